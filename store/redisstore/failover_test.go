package redisstore_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// hidden is a client of which the store only knows Process.
type hidden struct{ redisstore.Client }

// keyOf returns a key whose slot belongs to this one of 3 masters.
func keyOf(t *testing.T, client *redis.ClusterClient, s *redisstore.Store, master int) string {
	t.Helper()
	for _, key := range strings.Split("a b c d e f g h i j k l m n o p q r s t u v w x y z", " ") {
		slot := client.ClusterKeySlot(t.Context(), s.RedisKey(space, key)).Val()
		if slot*3/16384 == int64(master) {
			return key
		}
	}
	t.Fatal("no key")
	return ""
}

// A master of a cluster is killed, behind a default client.
func TestLongClusterFailover(t *testing.T) {
	effort.NeedLong(t)
	cluster := redistest.StartCluster(t, 3, 3)
	loads := map[string]*load{}
	stores := map[string]*redisstore.Store{}
	var key string
	for name, client := range map[string]*redis.ClusterClient{
		"default":   cluster.Client(t),
		"deadlines": redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: true}),
		"naive":     cluster.Client(t), // not told that anything has changed
	} {
		t.Cleanup(func() { _ = client.Close() })
		process := redisstore.Client(client)
		if name == "naive" {
			process = hidden{client}
		}
		s, err := redisstore.New(process, redisstore.WithPrefix(name))
		require.NoError(t, err)
		_, err = newStore(t, client).Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		key = keyOf(t, client, s, 0)
		stores[name], loads[name] = s, start(t, s, key, 8)
	}
	time.Sleep(300 * time.Millisecond)
	cluster.Masters[0].Kill()
	killed := time.Now()
	time.Sleep(8 * time.Second) // node-timeout 1 s + 3 s, twice
	for name, l := range loads {
		l.end()
		l.report("master killed, " + name)
		if name == "naive" {
			t.Logf("naive: last failure after %v", l.recovered(killed))
			require.Greater(t, l.recovered(killed), 7*time.Second, "the fault bites")
			continue
		}
		count, err := redisstore.New(cluster.Client(t), redisstore.WithPrefix(name), redisstore.WithTimeout(5*time.Second))
		require.NoError(t, err)
		t.Logf("%s: recovered in %v; %d admitted, %d counted by the new master", name, l.recovered(killed), l.count("ok"), used(t, count, key))
		require.Less(t, l.recovered(killed), 4*time.Second)
	}
}

// The same behind an open circuit breaker, which blocks all calls. When its pause is over
// the cluster has another master, and the first call must find it.
func TestLongClusterFailoverBehindABreaker(t *testing.T) {
	effort.NeedLong(t)
	const pause = 6 * time.Second
	cluster := redistest.StartCluster(t, 3, 3)
	sources := map[string]ratelimit.Source{}
	lims := map[string]*fallback.Limiter{}
	var key string
	local, err := memstore.New()
	require.NoError(t, err)
	for name, client := range map[string]*redis.ClusterClient{"default": cluster.Client(t), "naive": cluster.Client(t)} {
		process := redisstore.Client(client)
		if name == "naive" { // not told that anything has changed
			process = hidden{client}
		}
		s, err := redisstore.New(process, redisstore.WithPrefix("k"))
		require.NoError(t, err)
		_, err = newStore(t, client).Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		key = keyOf(t, client, s, 0)
		bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000))
		require.NoError(t, err)
		share, err := ratelimit.NewTokenBucket(local, ratelimit.PerHour(1_000_000))
		require.NoError(t, err)
		lims[name], err = fallback.New(bucket, fallback.FailTo(share), fallback.WithBreaker(1, pause))
		require.NoError(t, err)
	}
	ask := func(name string) ratelimit.Source {
		r, err := lims[name].Peek(t.Context(), key)
		require.NoError(t, err)
		return r.Source()
	}
	for name := range lims {
		require.Eventually(t, func() bool { return ask(name) == ratelimit.SourceStore }, 20*time.Second, 10*time.Millisecond)
	}
	cluster.Masters[0].Kill()
	for name := range lims {
		require.Equal(t, ratelimit.SourceLocal, ask(name))
	}
	killed := time.Now()
	promoted := whenPromoted(cluster.Replicas, killed)
	t.Logf("a replica was promoted after %v", promoted)
	require.Less(t, promoted, pause-time.Second)
	time.Sleep(time.Until(killed.Add(pause)))
	for name := range lims {
		sources[name] = ask(name)
	}
	require.Equal(t, ratelimit.SourceStore, sources["default"])
	require.Equal(t, ratelimit.SourceLocal, sources["naive"], "the fault bites")
}

// The same with a master that hangs. If go-redis itself asks that master for the slots,
// it waits for 5 s.
func TestLongClusterMasterHangs(t *testing.T) {
	effort.NeedLong(t)
	cluster := redistest.StartCluster(t, 3, 3)
	client := cluster.Client(t)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	_, err = newStore(t, client).Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
	l := start(t, s, keyOf(t, client, s, 0), 8)
	time.Sleep(300 * time.Millisecond)
	cluster.Masters[0].Freeze()
	frozen := time.Now()
	time.Sleep(14 * time.Second)
	l.end()
	cluster.Masters[0].Thaw()
	l.report("master frozen")
	t.Logf("recovered in %v", l.recovered(frozen))
	require.Less(t, l.recovered(frozen), 8*time.Second)
}

func TestLongSentinelFailover(t *testing.T) {
	effort.NeedLong(t)
	const downAfter = time.Second
	for fault, promise := range map[string]time.Duration{
		"killed": downAfter + 3*time.Second,
		// A dial of a host that does not even refuse lasts for DialTimeout, 5 s.
		"frozen":                      downAfter + 4*time.Second,
		"cut off":                     downAfter + 4*time.Second,
		"frozen, DialTimeout 500 ms":  downAfter + 3*time.Second,
		"cut off, DialTimeout 500 ms": downAfter + 3*time.Second,
		"told to fail over":           downAfter + 3*time.Second,
	} {
		t.Run(fault, func(t *testing.T) {
			group := redistest.StartSentinel(t, 2, downAfter)
			o := &redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: group.Addrs()}
			if strings.Contains(fault, "DialTimeout") {
				o.DialTimeout = 500 * time.Millisecond
			}
			var cutOff atomic.Bool
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if cutOff.Load() && addr == group.Master.Addr() {
					<-ctx.Done() // it is not refused either
					return nil, ctx.Err()
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			client := redis.NewFailoverClient(o)
			defer client.Close()
			s, err := redisstore.New(client)
			require.NoError(t, err)
			fixed, err := redisstore.New(group.Master.Client(t), redisstore.WithPrefix("naive"))
			require.NoError(t, err)
			l, naive := start(t, s, "k", 64), start(t, fixed, "k", 2)
			time.Sleep(300 * time.Millisecond)
			at := time.Now()
			switch fault {
			case "killed":
				group.Master.Kill()
			case "frozen", "frozen, DialTimeout 500 ms":
				group.Master.Freeze()
			case "cut off", "cut off, DialTimeout 500 ms":
				cutOff.Store(true)
				group.Master.Freeze()
			default:
				sentinel := redis.NewSentinelClient(&redis.Options{Addr: group.Sentinels[0].Addr()})
				require.NoError(t, sentinel.Failover(t.Context(), redistest.MasterName).Err())
				require.NoError(t, sentinel.Close())
			}
			promoted := make(chan time.Duration, 1)
			go func() { promoted <- whenPromoted(group.Replicas, at) }()
			time.Sleep(100 * time.Millisecond)
			served := l.count("ok")
			for l.count("ok") < served+100 && time.Since(at) < 8*time.Second {
				time.Sleep(time.Millisecond)
			}
			again := time.Since(at)
			time.Sleep(time.Until(at.Add(8 * time.Second)))
			l.end()
			naive.end()
			l.report("master " + fault)
			if fault != "told to fail over" { // then the old master becomes a replica at its own pace
				require.Greater(t, naive.recovered(at), 5*time.Second, "the fault bites")
			}
			t.Logf("a replica was promoted after %v", <-promoted)
			patient := newStore(t, client, redisstore.WithPrefix("rl"))
			t.Logf("served again after %v; %d admitted, %d counted by the new master", again, l.count("ok"), used(t, patient, "k"))
			require.Less(t, again, promise)
		})
	}
}

// whenPromoted is how long after at one of the replicas became a master.
func whenPromoted(replicas []*redistest.Server, at time.Time) time.Duration {
	for time.Since(at) < 7*time.Second {
		for _, r := range replicas {
			client := redis.NewClient(&redis.Options{Addr: r.Addr()})
			role := client.InfoMap(context.Background(), "replication").Item("Replication", "role")
			_ = client.Close()
			if role == "master" {
				return time.Since(at).Round(time.Millisecond)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return -1
}

// A server that loads 3 million keys answers LOADING meanwhile.
func TestLongRestartThatLoads(t *testing.T) {
	effort.NeedLong(t)
	server := redistest.Start(t, "--enable-debug-command", "local")
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: 2 * time.Minute})
	defer admin.Close()
	require.NoError(t, admin.Do(t.Context(), "DEBUG", "POPULATE", 3_000_000, "key", 64).Err())
	require.NoError(t, admin.Save(t.Context()).Err())

	short, err := redisstore.New(server.Client(t))
	require.NoError(t, err)
	patient, err := redisstore.New(server.Client(t), redisstore.WithTimeout(time.Minute))
	require.NoError(t, err)
	server.Restart(t)
	up := time.Now()
	naive := server.Client(t)
	require.ErrorContains(t, naive.Set(t.Context(), "x", 1, 0).Err(), "LOADING", "the fault bites: after 3 retries")

	l := start(t, short, "short", 8)
	r, err := patient.Take(t.Context(), space, "patient", limit, 1)
	took := time.Since(up)
	time.Sleep(200 * time.Millisecond)
	l.end()
	require.NoError(t, err, "nothing to be seen where there is time")
	require.EqualValues(t, 0, r.X)
	l.report("loading 3 million keys")
	t.Logf("a call with a minute waited for %v; the others recovered in %v", took.Round(time.Millisecond), l.recovered(up))
	// A server that loads serves its clients now and then: many answers come late.
	require.Equal(t, l.calls(), l.count("ok")+l.count("unavailable")+l.count("timeout")+l.count("overloaded"))
	require.Positive(t, l.count("unavailable")+l.count("timeout"))
	require.Less(t, l.recovered(up)-took, 200*time.Millisecond)
	charged := int(used(t, newStore(t, server.Client(t), redisstore.WithPrefix("rl")), "short"))
	require.GreaterOrEqual(t, charged, l.count("ok"))
	require.LessOrEqual(t, charged, l.count("ok")+l.count("timeout"), "what is unknown may be charged")
}

// The short form of the long tests of clusters: the slots have moved, and the client gets
// no answer where it asks.
func TestClusterThatChangedIsAskedForItsSlots(t *testing.T) {
	t.Parallel()
	live, gone := redistest.Start(t), redistest.Start(t)
	gone.Kill()
	var master atomic.Pointer[redistest.Server]
	master.Store(gone)
	client, asked := elsewhere(t, &master)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	unasked, _ := elsewhere(t, &master)
	blind, err := redisstore.New(hidden{unasked})
	require.NoError(t, err)
	l, naive := start(t, s, "k", 8), start(t, blind, "k", 2)
	time.Sleep(500 * time.Millisecond)
	require.Zero(t, l.count("ok"))
	before, at := asked.Load(), time.Now()
	time.Sleep(time.Second)
	often := asked.Load() - before
	require.LessOrEqual(t, often, int64(time.Since(at)/(200*time.Millisecond))+1, "in %v", time.Since(at))
	master.Store(live)
	changed := time.Now()
	for l.count("ok") == 0 && time.Since(changed) < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	found := time.Since(changed)
	l.end()
	naive.end()
	l.report("the master is elsewhere")
	t.Logf("found in %v, asked %d times in a second", found, often)
	require.Less(t, found, 2*time.Second, "it asks every 200 ms")
	require.Zero(t, naive.count("ok"), "the fault bites")
}

// elsewhere returns a ClusterClient for which the whole cluster is one master, and how
// often it has asked for the master.
func elsewhere(t *testing.T, master *atomic.Pointer[redistest.Server]) (*redis.ClusterClient, *atomic.Int64) {
	asked := new(atomic.Int64)
	c := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		asked.Add(1)
		return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: master.Load().Addr()}}}}, nil
	}})
	t.Cleanup(func() { _ = c.Close() })
	return c, asked
}

// Behind an open circuit breaker there are no calls. The slots are still asked for, until
// they are known to be elsewhere.
func TestSlotsAreAskedForWithoutCalls(t *testing.T) {
	t.Parallel()
	live, gone := redistest.Start(t), redistest.Start(t)
	gone.Kill()
	var master atomic.Pointer[redistest.Server]
	master.Store(gone)
	client, asked := elsewhere(t, &master)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	patient := newStore(t, client)
	_, err = s.Take(t.Context(), space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	before := asked.Load()
	require.Eventually(t, func() bool { return asked.Load() >= before+3 }, 10*time.Second, 10*time.Millisecond, "nobody calls")
	master.Store(live)
	require.Eventually(t, func() bool {
		node, err := client.MasterForKey(t.Context(), "k")
		return err == nil && strings.HasSuffix(live.Addr(), node.Options().Addr) // go-redis leaves 127.0.0.1 out
	}, 10*time.Second, 10*time.Millisecond)
	_, err = patient.Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
	before = asked.Load()
	time.Sleep(time.Second)
	require.LessOrEqual(t, asked.Load(), before+1, "what is known is not asked for")
}

// The node that failed is back where it was, and so nothing has changed.
func TestSlotsAreNotAskedForWhenTheNodeIsBack(t *testing.T) {
	effort.NeedFull(t)
	server := redistest.Start(t)
	var master atomic.Pointer[redistest.Server]
	master.Store(server)
	client, asked := elsewhere(t, &master)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	patient := newStore(t, client)
	_, err = patient.Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
	server.Kill()
	before := asked.Load()
	_, err = s.Take(t.Context(), space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrStore)
	require.Eventually(t, func() bool { return asked.Load() >= before+3 }, 10*time.Second, 10*time.Millisecond)
	server.Restart(t)
	require.Eventually(t, func() bool {
		_, err := s.Take(t.Context(), space, "k", limit, 1)
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	before = asked.Load()
	time.Sleep(time.Second)
	require.LessOrEqual(t, asked.Load(), before+1)
}

// A closed client is not asked for slots.
func TestSlotsOfAClosedClientAreNotAskedFor(t *testing.T) {
	effort.NeedFull(t)
	gone := redistest.Start(t)
	gone.Kill()
	var master atomic.Pointer[redistest.Server]
	master.Store(gone)
	client, asked := elsewhere(t, &master)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	_, err = s.Take(t.Context(), space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.NoError(t, client.Close())
	time.Sleep(300 * time.Millisecond)
	before := asked.Load()
	time.Sleep(time.Second)
	require.LessOrEqual(t, asked.Load(), before+1)
}

// The short form of what the long tests measure: a restart, by each kind of client.
func TestServerThatComesBackIsFoundAtOnce(t *testing.T) {
	effort.NeedFull(t)
	t.Parallel()
	server := redistest.Start(t)
	loads := map[string]*load{}
	for name, client := range kinds(t, server.Addr(), false) {
		if name == "ClusterClient" {
			continue // no cluster; see the long tests
		}
		s, err := redisstore.New(client, redisstore.WithPrefix(name))
		require.NoError(t, err)
		_, err = newStore(t, client).Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		loads[name] = start(t, s, "k", 4)
	}
	time.Sleep(100 * time.Millisecond)
	server.Kill()
	time.Sleep(700 * time.Millisecond)
	server.Restart(t)
	back := time.Now()
	for name, l := range loads { // go-redis looks for a server once a second; a busy machine may take ten times as long
		require.Eventually(t, func() bool { return l.servedSince(back) }, 10*time.Second, 10*time.Millisecond, name)
		t.Logf("%s: found after %v", name, time.Since(back).Round(time.Millisecond))
	}
	for name, l := range loads {
		l.end()
		l.report("killed for 0.7 s, " + name)
		require.Positive(t, l.count("unavailable")+l.count("timeout"), "the fault bites")
	}
}
