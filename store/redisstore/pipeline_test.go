package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Times here are ten times those of a real network, so that a busy machine does not count.
const (
	farTrip    = 150 * time.Millisecond // to the server and back
	farTimeout = 500 * time.Millisecond // of a call
)

// farAway returns a proxy of a server that is farTrip away, and a client of it.
func farAway(t *testing.T, change func(*redis.Options)) (*redistest.Proxy, *redis.Client) {
	t.Helper()
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	proxy.Delay(farTrip)
	o := &redis.Options{Addr: proxy.Addr()}
	if change != nil {
		change(o)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return proxy, client
}

// A handshake is three round trips and a first call two, which is more than a call's time.
func TestAServerFarAwayIsReached(t *testing.T) {
	effort.NeedFull(t)
	for _, contextTimeouts := range []bool{false, true} {
		proxy, client := farAway(t, func(o *redis.Options) { o.ContextTimeoutEnabled = contextTimeouts })
		ring := redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"a": proxy.Addr()}, ContextTimeoutEnabled: contextTimeouts, HeartbeatFrequency: time.Hour,
		})
		t.Cleanup(func() { _ = ring.Close() })
		for _, c := range []redis.UniversalClient{client, ring} {
			t.Run(fmt.Sprintf("%T, ContextTimeoutEnabled %t", c, contextTimeouts), func(t *testing.T) {
				t.Parallel()
				s := newStore(t, c, redisstore.WithTimeout(farTimeout))
				var callers sync.WaitGroup
				for range 100 {
					callers.Go(func() {
						for end := time.Now().Add(30 * time.Second); ; {
							_, err := s.Take(t.Context(), space, "k", limit, 1)
							if err == nil || time.Now().After(end) {
								require.NoError(t, err)
								return
							}
						}
					})
				}
				callers.Wait()
			})
		}
	}

	// The fault bites: a handshake that only has a call's time never ends.
	_, client := farAway(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), farTimeout-farTrip)
		require.Error(t, client.Ping(ctx).Err())
		cancel()
	}
}

func TestReadyMakesTheConnections(t *testing.T) {
	effort.NeedFull(t)
	proxy, client := farAway(t, nil)
	s := newStore(t, client, redisstore.WithTimeout(farTimeout))
	require.NoError(t, s.Prepare(counter, store.Limit{}, true))
	require.NoError(t, s.Ready(t.Context()))
	made := proxy.Made()
	require.Equal(t, 16, made)
	l := run(t, s, 100, time.Second)
	l.report("100 callers after Ready")
	require.Positive(t, l.count("ok"))
	require.Equal(t, l.calls(), l.count("ok"))
	require.Equal(t, made, proxy.Made())
}

// Of those who call Ready at once none waits for connections that another one holds. Nor does it matter
// that the program holds some.
func TestReadyAtOnce(t *testing.T) {
	server := redistest.Start(t)
	for range 10 {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 16})
		held := client.Conn()
		require.NoError(t, held.Ping(t.Context()).Err())
		var callers sync.WaitGroup
		for _, s := range []*redisstore.Store{newStore(t, client), newStore(t, client)} {
			for range 4 {
				callers.Go(func() { assert.NoError(t, s.Ready(t.Context())) })
			}
		}
		callers.Wait()
		require.NoError(t, held.Close())
		require.NoError(t, client.Close())
	}
}

// The client makes no more connections than it may. That is no failure of the server.
func TestReadyOfAClientWithFewConnections(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr(), PoolSize: 16, MaxActiveConns: 4})
	defer client.Close()
	for range 3 {
		held := client.Conn()
		defer held.Close()
		require.NoError(t, held.Ping(t.Context()).Err())
	}
	require.NoError(t, newStore(t, client).Ready(t.Context()))
}

// If two round trips do not fit into a call's time, no call may have to wait for a flight
// to end. A call that is itself too late loads the script.
func TestManyCallersOfTheFarthestServer(t *testing.T) {
	effort.NeedFull(t)
	proxy, client := farAway(t, nil)
	proxy.Delay(2 * farTimeout / 3)
	s := newStore(t, client, redisstore.WithTimeout(farTimeout))
	served := func() (all, ok int) {
		l := run(t, s, 100, 2*farTimeout)
		l.report("100 callers")
		return l.calls(), l.count("ok")
	}
	require.Eventually(t, func() bool {
		_, ok := served()
		return ok > 0
	}, time.Minute, time.Millisecond, "a cold start")
	require.NoError(t, s.Ready(t.Context()))
	require.Eventually(t, func() bool { // a busy machine takes a part of the time
		all, ok := served()
		return ok > all*9/10
	}, time.Minute, time.Millisecond)
}

func TestReadyOfAllClients(t *testing.T) {
	effort.NeedFull(t)
	_, proxy := clusterOfOne(t)
	for name, client := range kinds(t, proxy.Addr(), true) {
		s := newStore(t, client)
		require.NoError(t, s.Prepare(counter, store.Limit{}, true))
		require.NoError(t, s.Ready(t.Context()), name)
		_, err := s.Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err, name)
	}
	gone := redistest.Start(t)
	gone.Kill()
	s := newStore(t, redis.NewClient(&redis.Options{Addr: gone.Addr()}))
	require.ErrorIs(t, s.Ready(t.Context()), store.ErrUnavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Ready(ctx), context.Canceled)
}

// Of some clients it is not known which servers are behind them.
func TestReadyOfUnknownServers(t *testing.T) {
	t.Parallel()
	gone := redistest.Start(t)
	gone.Kill()
	queue, err := redis.NewClient(&redis.Options{Addr: gone.Addr()}).AsyncAutoPipeline()
	require.NoError(t, err)
	defer queue.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": gone.Addr()}, HeartbeatFrequency: time.Millisecond})
	defer ring.Close()
	require.Eventually(t, func() bool { return ring.Len() == 0 }, time.Minute, time.Millisecond)
	for name, client := range map[string]redisstore.Client{"auto-pipeliner": queue, "a ring whose shards are down": ring} {
		s := newStore(t, client)
		require.ErrorIs(t, s.Ready(t.Context()), store.ErrUnavailable, name)
	}
}

// Callers without a pause lose all their connections, and are served again by few new
// ones. If each failed call closed a connection, they never would be.
func TestAHerdIsServedAfterABreak(t *testing.T) {
	effort.NeedFull(t)
	for _, pool := range []int{0, 600} {
		t.Run(fmt.Sprint("PoolSize ", pool), func(t *testing.T) {
			proxy, client := farAway(t, func(o *redis.Options) { o.PoolSize = pool })
			proxy.Delay(farTrip / 2)
			s := newStore(t, client, redisstore.WithTimeout(farTimeout))
			require.NoError(t, s.Ready(t.Context()))
			l := start(t, s, "k", 512)
			time.Sleep(farTimeout)
			made := proxy.Made()
			proxy.Cut()
			time.Sleep(4 * farTimeout)
			before, ok := l.calls(), l.count("ok")
			time.Sleep(2 * farTimeout)
			l.end()
			l.report("512 callers")
			calls, served := l.calls()-before, l.count("ok")-ok
			t.Logf("from %v after the break on %d of %d calls served; %d new connections", 4*farTimeout, served, calls, proxy.Made()-made)
			require.Greater(t, served, calls/2)
			require.LessOrEqual(t, proxy.Made()-made, 4*32, "new connections")
		})
	}
}

// One connection and many callers: each call has its own reply, whatever the others have.
func TestCallsThatGoTogetherAreDecidedOneByOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	for _, contextTimeouts := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 1, ContextTimeoutEnabled: contextTimeouts})
		defer client.Close()
		seen := new(pipelines)
		client.AddHook(seen)
		s := newStore(t, client)
		require.NoError(t, client.Set(t.Context(), s.RedisKey(space, "wrong"), "not a number", 0).Err())
		require.NoError(t, client.ScriptFlush(t.Context()).Err())
		proxy.Hold()
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		callers.Go(func() {
			_, err := s.Take(t.Context(), space, "alone", limit, 1)
			require.NoError(t, err)
		})
		if contextTimeouts {
			require.Eventually(t, func() bool { return s.Trips() == 1 }, 10*time.Second, 100*time.Microsecond)
		}
		time.Sleep(50 * time.Millisecond)
		for i := range 200 {
			callers.Go(func() {
				switch i % 10 {
				case 1:
					_, err := s.Take(t.Context(), rule("return redis.error_reply('OOM planted')"), "k", limit, 1)
					require.ErrorIs(t, err, store.ErrOutOfMemory)
				case 2:
					_, err := s.Take(ctx, space, "left", limit, 1)
					require.ErrorIs(t, err, context.Canceled)
				default:
					r, err := s.Take(t.Context(), space, fmt.Sprint(contextTimeouts, i), limit, int64(i+1))
					require.NoError(t, err)
					require.Equal(t, store.Reply{Outcome: store.Admitted, Z: 7}, r)
					require.EqualValues(t, i+1, used(t, s, fmt.Sprint(contextTimeouts, i)))
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		cancel()
		time.Sleep(50 * time.Millisecond)
		proxy.Release()
		callers.Wait()
		require.LessOrEqual(t, used(t, s, "left"), int64(1), "at most the call that was alone was under way")
		require.Equal(t, contextTimeouts, seen.most.Load() > 1, "hooks of a client that keeps to deadlines see pipelines")
	}
}

// pipelines is a hook that records how long pipelines are. It panics if it is told to.
type pipelines struct {
	tracer
	most    atomic.Int64
	planted atomic.Bool
}

func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			p.most.Store(max(p.most.Load(), int64(len(cmds))))
			if p.planted.Load() {
				panic("planted")
			}
		}
		return next(ctx, cmds)
	}
}

func TestAPanicOfAHookIsThatOfAllWhoGoTogether(t *testing.T) {
	proxy := redistest.StartProxy(t, redistest.Shared(t).Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 1, ContextTimeoutEnabled: true})
	defer client.Close()
	hook := new(pipelines)
	hook.planted.Store(true)
	client.AddHook(hook)
	s := newStore(t, client)
	_, err := s.Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
	proxy.Hold()
	var callers sync.WaitGroup
	var panics atomic.Int64
	rules := []*store.Namespace{space, rule("return {1, 0, 0, 0}")} // which have no script in common
	for i := range 20 {
		callers.Go(func() {
			defer func() {
				if recover() == "planted" {
					panics.Add(1)
				}
			}()
			_, err := s.Take(t.Context(), rules[i%2], "k", limit, 1)
			require.NoError(t, err)
		})
	}
	time.Sleep(50 * time.Millisecond)
	proxy.Release()
	callers.Wait()
	require.Positive(t, panics.Load())
	hook.planted.Store(false)
	_, err = s.Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
}

// A reply that comes too late for its callers does not cost the connection.
func TestLateRepliesLeaveTheConnections(t *testing.T) {
	effort.NeedFull(t)
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 16})
	defer client.Close()
	s := newStore(t, client, redisstore.WithTimeout(200*time.Millisecond))
	require.NoError(t, s.Ready(t.Context()))
	l := start(t, s, "k", 64)
	time.Sleep(100 * time.Millisecond)
	before := proxy.Made()
	proxy.Hold()
	time.Sleep(400 * time.Millisecond)
	require.Positive(t, l.count("timeout"))
	proxy.Release()
	time.Sleep(200 * time.Millisecond)
	ok := l.count("ok")
	time.Sleep(200 * time.Millisecond)
	l.end()
	l.report("64 callers, replies held for twice the timeout")
	require.Greater(t, l.count("ok"), ok)
	require.Equal(t, before, proxy.Made())
	require.LessOrEqual(t, int(used(t, newStore(t, client), "k")), l.calls())
}

// If more callers wait than can be answered in time, the last of them are refused at
// once.
func TestMoreThanCanBeServedAreRefusedAtOnce(t *testing.T) {
	effort.NeedFull(t)
	_, client := farAway(t, func(o *redis.Options) { o.PoolSize = 1 })
	s := newStore(t, client, redisstore.WithTimeout(2*farTrip+farTrip/2))
	require.NoError(t, s.Ready(t.Context()))
	for range 4 { // so that the length of a trip is known
		run(t, s, 2, farTrip)
	}
	var refused atomic.Int64
	var callers sync.WaitGroup
	for range 640 { // ten trips
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*farTrip+farTrip/2)
			defer cancel()
			begun := time.Now()
			_, err := s.Take(ctx, space, "k", limit, 1)
			if err != nil && time.Since(begun) < farTrip {
				require.ErrorIs(t, err, store.ErrOverloaded)
				refused.Add(1)
			}
		})
	}
	callers.Wait()
	require.Positive(t, refused.Load(), "of 640")
}

// The shortest trip of late took as long as the server stood still. Calls with less time than that
// look again each second, however long the store's own timeout is.
func TestCallsWithDeadlinesFindAServerAgainThatStoodStill(t *testing.T) {
	t.Parallel()
	const rest, still = 2200 * time.Millisecond, 500 * time.Millisecond // what was known is forgotten in a rest
	server := redistest.Start(t)
	s, err := redisstore.New(server.Client(t), redisstore.WithTimeout(time.Hour))
	require.NoError(t, err)
	require.NoError(t, s.Ready(t.Context()))
	for s.Stats().RoundTrip <= still/2 { // until the way seems long: a busy machine may ask after the Thaw
		time.Sleep(rest)
		server.Freeze()
		time.AfterFunc(still, server.Thaw)
		_, err = s.Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := s.Take(ctx, space, "k", limit, 1)
		return err == nil
	}, 10*time.Second, time.Millisecond)
}

// A call that is tried again waits beside others who have come later, but has no more time
// than before.
func TestACallThatIsTriedAgainEndsByItsOwnTime(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody listens there
	defer client.Close()
	const timeout = 500 * time.Millisecond
	s := newStore(t, client, redisstore.WithTimeout(timeout))
	requireInTime(t, "16 callers", func() time.Duration {
		return worst(16, 1, func() time.Duration {
			begun := time.Now()
			_, err := s.Take(context.Background(), space, "k", limit, 1)
			assert.ErrorIs(t, err, store.ErrUnavailable)
			return time.Since(begun) - timeout
		})
	})
}

// Connections, handshake and script take several times as long as a call may.
func TestOneCallerIsServedFarAway(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	proxy.Delay(160 * time.Millisecond)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer client.Close()
	s := newStore(t, client, redisstore.WithTimeout(200*time.Millisecond))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := s.Take(t.Context(), space, "k", limit, 1)
		require.NoError(c, err)
	}, time.Minute, time.Millisecond)
}

// Callers with less time than trips once took find out that trips are shorter now: one of
// them is sent all the same, now and then.
func TestShorterTripsAreLearnedAgain(t *testing.T) {
	t.Parallel()
	const trip = 1500 * time.Millisecond
	client := redistest.Start(t).Client(t)
	patient := newStore(t, client)
	_, err := patient.Take(t.Context(), space, "k", limit, 1) // the server has the script
	require.NoError(t, err)
	s := newStore(t, client, redisstore.WithTimeout(trip))
	s.Warmed(1, trip)
	take := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), trip*2/3)
		defer cancel()
		_, err := s.Take(ctx, space, "k", limit, 1)
		return err
	}
	require.Equal(t, context.DeadlineExceeded, take())
	require.Eventually(t, func() bool { return take() == nil }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return s.Trips() == 0 }, 10*time.Second, time.Millisecond) // its trip has ended
	require.NoError(t, take())
	require.EqualValues(t, 3, used(t, patient, "k"))
}

// A way that is longer than a call may take is no outage, and nothing is sent.
func TestCallsThatAreTooShortForTheWay(t *testing.T) {
	client := redistest.Start(t).Client(t)
	s := newStore(t, client, redisstore.WithTimeout(50*time.Millisecond))
	s.Warmed(1, time.Minute)
	_, err := s.Take(context.Background(), space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrTimeout)
	require.ErrorContains(t, err, "nothing was sent: a round trip takes longer than the call has left")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = s.Take(ctx, space, "k", limit, 1)
	require.Equal(t, context.DeadlineExceeded, err)
	require.Equal(t, redisstore.Stats{TooShort: 2, RoundTrip: time.Minute}, s.Stats())
	require.Zero(t, used(t, newStore(t, client), "k"))
}

// Callers return in time if a server hangs while many of them wait: not much later than a
// timer that was set when they called.
func TestAHerdReturnsInTime(t *testing.T) {
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer client.Close()
	s, err := redisstore.New(client)
	require.NoError(t, err)
	require.NoError(t, s.Ready(t.Context()))
	proxy.Delay(time.Millisecond)
	requireInTime(t, "512 callers, beside timers of the same instant", func() time.Duration {
		proxy.Release()
		time.AfterFunc(20*time.Millisecond, proxy.Hold)
		defer proxy.Release()
		return worst(512, 4, func() time.Duration {
			var fired atomic.Int64 // ns since begun
			begun := time.Now()
			time.AfterFunc(redisstore.DefaultTimeout, func() { fired.Store(int64(time.Since(begun))) })
			_, _ = s.Take(t.Context(), space, "k", limit, 1)
			took := time.Since(begun)
			if took < redisstore.DefaultTimeout {
				return 0
			}
			for fired.Load() == 0 { // a machine that stops is late for both
				time.Sleep(time.Millisecond)
			}
			return took - time.Duration(fired.Load())
		})
	})
}
