package fallback_test

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Several callers at once exceed the limit by their number and one at most for each outage: those who come while another
// call pays what their key owes may be admitted before it. Outages are a Period apart, so that each counts alone.
func TestAcrossOutagesSeveralCallersKeepToOneLimit(t *testing.T) {
	limit := ratelimit.Limit{Rate: 200, Period: time.Second}
	const callers = 8
	for _, algorithm := range algorithms {
		worst := map[string]float64{}
		for seed := range uint64(effort.Of(1, 30)) {
			for name, make := range map[string]func(inner, local ratelimit.Limiter) ratelimit.Limiter{
				"naive": func(inner, local ratelimit.Limiter) ratelimit.Limiter { return naiveFallback{inner, local} },
				"failover": func(inner, local ratelimit.Limiter) ratelimit.Limiter {
					return failover(t, inner, fallback.FailTo(local), fallback.WithBreaker(1+int(seed%3), 50*time.Millisecond))
				},
			} {
				synctest.Test(t, func(t *testing.T) {
					rnd, faults := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
					inner := &faulty{Limiter: inMemory(t, algorithm, limit), before: func(context.Context) error {
						time.Sleep(time.Millisecond)
						return nil
					}}
					lim := make(inner, inMemory(t, algorithm, limit))
					began := time.Now()
					var mu sync.Mutex
					var events []event
					var all sync.WaitGroup
					for range callers {
						all.Go(func() {
							for time.Since(began) < 8*time.Second {
								r := allowN(t, lim, 1)
								mu.Lock()
								if r.Allowed {
									events = append(events, event{time.Since(began), 1})
								}
								pause := time.Duration(rnd.Int64N(int64(20 * time.Millisecond)))
								mu.Unlock()
								time.Sleep(pause)
							}
						})
					}
					for time.Since(began) < 8*time.Second {
						time.Sleep(limit.Period + time.Duration(faults.Int64N(int64(600*time.Millisecond))))
						inner.down.Store(true)
						time.Sleep(time.Duration(faults.Int64N(int64(600 * time.Millisecond))))
						inner.down.Store(false)
					}
					all.Wait()
					worst[name] = max(worst[name], excess(algorithm, limit, events))
				})
			}
		}
		t.Logf("%s: over the bound by %.1f, naive by %.1f", algorithm, worst["failover"], worst["naive"])
		require.LessOrEqual(t, worst["failover"], callers+1., algorithm)
		require.Greater(t, worst["naive"], 5.*callers, algorithm)
	}
}

// event is an admission: n events at a time.
type event struct {
	at time.Duration
	n  int
}

// excess is by how many events an interval of some events exceeds the algorithm's
// bound for it, at most, beginning and ending with an event.
func excess(algorithm string, l ratelimit.Limit, events []event) (most float64) {
	for i := range events {
		sum := 0
		for j := i; j < len(events); j++ {
			sum += events[j].n
			x := events[j].at - events[i].at
			periods := float64(x+time.Microsecond) / float64(l.Period)
			bound := float64(l.Rate) * (1 + periods)
			switch algorithm {
			case "fixed_window":
				first, last := events[i].at/l.Period, events[j].at/l.Period
				bound = float64(l.Rate) * float64(last-first+1)
			case "sliding_log":
				bound = float64(l.Rate) * (1 + math.Floor(float64(x)/float64(l.Period)))
			}
			most = max(most, float64(sum)-bound)
		}
	}
	return most
}

// naive is a failover without a warm start and without payment.
type naiveFallback struct {
	ratelimit.Limiter
	local ratelimit.Limiter
}

func (n naiveFallback) AllowN(ctx context.Context, key string, events int) (ratelimit.Result, error) {
	r, err := n.Limiter.AllowN(ctx, key, events)
	if err != nil {
		return n.local.AllowN(ctx, key, events)
	}
	return r, nil
}

// A single instance has the whole limit as its fallback, in outages of any length at any time.
// All that the store and the fallback admit keeps to the bound of one limiter, to one event for
// each outage.
func TestAcrossOutagesOneInstanceKeepsToOneLimit(t *testing.T) {
	limit := ratelimit.Limit{Rate: 20, Period: time.Second}
	for _, algorithm := range algorithms {
		worst := map[string]float64{}
		for seed := range uint64(30) {
			for name, make := range map[string]func(inner, local ratelimit.Limiter) ratelimit.Limiter{
				"naive": func(inner, local ratelimit.Limiter) ratelimit.Limiter { return naiveFallback{inner, local} },
				"failover": func(inner, local ratelimit.Limiter) ratelimit.Limiter {
					return failover(t, inner, fallback.FailTo(local), fallback.WithBreaker(1+int(seed%3), 50*time.Millisecond))
				},
			} {
				synctest.Test(t, func(t *testing.T) {
					rnd := rand.New(rand.NewPCG(seed, 1))
					inner := &faulty{Limiter: inMemory(t, algorithm, limit)}
					lim := make(inner, inMemory(t, algorithm, limit))
					began := time.Now()
					base := began.UnixNano() // windows begin at the Unix epoch
					var events []event
					var turn time.Duration // of the next outage or recovery
					outages := 0.
					for time.Since(began) < 5*time.Second {
						if time.Since(began) >= turn {
							turn += time.Duration(rnd.Int64N(int64(600 * time.Millisecond)))
							inner.down.Store(!inner.down.Load())
							outages += 0.5
						}
						n := 1 + rnd.IntN(3)
						if allowN(t, lim, n).Allowed {
							events = append(events, event{time.Duration(time.Now().UnixNano() - base + base%int64(limit.Period)), n})
						}
						time.Sleep(time.Duration(rnd.Int64N(int64(20 * time.Millisecond))))
					}
					worst[name] = max(worst[name], excess(algorithm, limit, events))
				})
			}
		}
		t.Logf("%s: over the bound by %.1f, naive by %.1f", algorithm, worst["failover"], worst["naive"])
		require.LessOrEqual(t, worst["failover"], 1., algorithm)
		require.Greater(t, worst["naive"], 10., algorithm)
	}
}

// 4 instances that all try much more than there is, with a share of a quarter each.
func TestAFlappingStoreIsNotALimitForEachOfItsStates(t *testing.T) {
	limit := ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 20}
	share := ratelimit.Limit{Rate: 25, Period: time.Second, Burst: 5}
	run := func(make func(inner, local ratelimit.Limiter) ratelimit.Limiter) (total int) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, 2))
			inner := &faulty{Limiter: inMemory(t, "token_bucket", limit)}
			var instances []ratelimit.Limiter
			for range 4 {
				instances = append(instances, make(inner, inMemory(t, "token_bucket", share)))
			}
			for ms := range 20_000 {
				inner.down.Store(ms/200%2 == 1)
				for _, i := range rnd.Perm(len(instances)) {
					total += admitted(t, instances[i], 1)
				}
				time.Sleep(time.Millisecond)
			}
		})
		return total
	}
	due := 20 * limit.Rate
	got := run(func(inner, local ratelimit.Limiter) ratelimit.Limiter {
		return failover(t, inner, fallback.FailTo(local), fallback.WithBreaker(1, 10*time.Millisecond))
	})
	ignorant := run(func(inner, local ratelimit.Limiter) ratelimit.Limiter { return naiveFallback{inner, local} })
	t.Logf("%d admitted of %d; %d without warm start and payment", got, due, ignorant)
	require.LessOrEqual(t, got, due+due/4)
	require.GreaterOrEqual(t, got, due-due/10)
	require.Greater(t, ignorant, due+due/2)
}

// ---- Real servers.

// fault is a way in which Redis fails.
type fault struct {
	name   string
	strike func(server *redistest.Server, proxy *redistest.Proxy)
	// giveUp, if set, is the context of a caller who waits for less than the store's
	// timeout, and gaveUp what it ends with.
	giveUp func(context.Context) (context.Context, context.CancelFunc)
	gaveUp error
}

var storeFaults = []fault{
	{name: "error", strike: func(s *redistest.Server, _ *redistest.Proxy) { s.Kill() }},
	{name: "timeout", strike: func(s *redistest.Server, _ *redistest.Proxy) { s.Freeze() }},
	{name: "lost reply", strike: func(_ *redistest.Server, p *redistest.Proxy) { p.DropReplies(1, "evalsha") }},
	{
		name: "caller's cancel", strike: func(_ *redistest.Server, p *redistest.Proxy) { p.Hold() }, gaveUp: context.Canceled,
		giveUp: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, cancel)
			return ctx, cancel
		},
	},
	{
		name: "caller's deadline", strike: func(_ *redistest.Server, p *redistest.Proxy) { p.Hold() }, gaveUp: context.DeadlineExceeded,
		giveUp: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 20*time.Millisecond)
		},
	},
}

func TestEachFaultOfRedisIsAnsweredByThePolicy(t *testing.T) {
	t.Parallel()
	sources := []ratelimit.Source{ratelimit.SourceFailOpen, ratelimit.SourceFailClosed, ratelimit.SourceLocal}
	for i, fault := range storeFaults {
		for j, want := range sources {
			t.Run(fault.name+" "+want.String(), func(t *testing.T) {
				if i%len(sources) != j { // one policy each will do
					effort.NeedFull(t)
				}
				t.Parallel()
				server := redistest.Start(t)
				proxy := redistest.StartProxy(t, server.Addr())
				client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
				t.Cleanup(func() { _ = client.Close() })
				timeout, failures, probeAfter := 600*time.Millisecond, 2, 50*time.Millisecond
				if fault.name == "lost reply" { // which ends with its connection, not with the time
					timeout = 10 * time.Second
				}
				if fault.giveUp != nil { // the caller is the first to give up, as often as would trip it, and for long
					failures, probeAfter = 3, time.Hour
				}
				patient, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second))
				require.NoError(t, err)
				_, err = newLimiter(t, "token_bucket", patient, ratelimit.PerHour(10)).Peek(t.Context(), "key")
				require.NoError(t, err, "the script is known")
				s, err := redisstore.New(client, redisstore.WithTimeout(timeout))
				require.NoError(t, err)
				bare := newLimiter(t, "token_bucket", s, ratelimit.PerHour(10))
				lim := failover(t, bare, policies(t)[want], fallback.WithBreaker(failures, probeAfter))
				for range 2 { // the local limiter is warm
					require.Equal(t, ratelimit.SourceStore, source(t, lim))
				}
				call := func(lim ratelimit.Limiter) (ratelimit.Result, error) {
					ctx, cancel := t.Context(), func() {}
					if fault.giveUp != nil {
						ctx, cancel = fault.giveUp(ctx)
					}
					defer cancel()
					return lim.Allow(ctx, "key")
				}

				fault.strike(server, proxy)
				_, err = call(bare)
				if fault.giveUp != nil {
					require.Equal(t, fault.gaveUp, err, "the fault bites")
					for range 3 {
						r, err := call(lim)
						require.Equal(t, fault.gaveUp, err)
						require.Zero(t, r)
					}
					proxy.Release()
					require.Eventually(t, func() bool { return source(t, lim) == ratelimit.SourceStore },
						10*time.Second, time.Millisecond, "it has tripped")
					return
				}
				require.ErrorIs(t, err, ratelimit.ErrStore, "the fault bites, and without the wrapper it is an error")
				if fault.name == "lost reply" {
					fault.strike(server, proxy)
				}
				r, err := call(lim)
				require.NoError(t, err)
				require.Equal(t, want, r.Source())
				require.Equal(t, want == ratelimit.SourceFailOpen, r.Allowed, "the local limiter knew of 2 of 2")
				if fault.name == "lost reply" {
					require.Equal(t, ratelimit.SourceStore, source(t, lim), "one failure does not trip it")
					peek, err := bare.Peek(t.Context(), "key")
					require.NoError(t, err)
					require.Equal(t, 10-5, peek.Remaining, "the lost ones are charged, once each")
					return
				}
				_, err = call(lim)
				require.NoError(t, err)
				began := time.Now()
				for range 1000 {
					require.Equal(t, want, source(t, lim))
				}
				require.Less(t, time.Since(began), 10*timeout, "the breaker is open")
				if fault.name == "timeout" {
					server.Thaw()
				} else {
					server.Restart(t)
				}
				require.Eventually(t, func() bool { return source(t, lim) == ratelimit.SourceStore }, 10*time.Second, 10*time.Millisecond)
			})
		}
	}
}

// The one connection of the pool hangs, and so nearly all calls find none. It is an outage
// nevertheless.
func TestAHangingServerOpensTheBreakerThoughThePoolIsFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr()}, PoolSize: 1, HeartbeatFrequency: time.Hour})
	t.Cleanup(func() { _ = client.Close() })
	s, err := redisstore.New(client)
	require.NoError(t, err)
	lim := failover(t, newLimiter(t, "token_bucket", s, ratelimit.PerHour(10)), fallback.FailClosed(), fallback.WithBreaker(2, time.Hour))
	server.Freeze()
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 2 {
				require.Equal(t, ratelimit.SourceFailClosed, source(t, lim))
			}
		})
	}
	callers.Wait()
	require.ErrorContains(t, lim.Reset(t.Context(), "key"), "the circuit breaker is open")
}

func TestAnOutageLeavesNoGoroutine(t *testing.T) {
	server := redistest.Start(t)
	s, err := redisstore.New(server.Client(t), redisstore.WithTimeout(50*time.Millisecond))
	require.NoError(t, err)
	bucket := newLimiter(t, "token_bucket", s, ratelimit.PerHour(1_000_000))
	require.Eventually(t, func() bool { // on a busy machine the first calls may take longer
		_, err := bucket.Allow(t.Context(), "key")
		return err == nil
	}, 10*time.Second, time.Millisecond)
	before := runtime.NumGoroutine()
	for _, p := range policies(t) {
		lim := failover(t, bucket, p, fallback.WithBreaker(2, 10*time.Millisecond))
		server.Freeze()
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				for range 50 {
					_, _ = lim.Allow(t.Context(), "key")
				}
			})
		}
		callers.Wait()
		server.Thaw()
	}
	for range 500 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	stacks := make([]byte, 1<<20)
	t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}

// A server that is up for 200 ms and away for 200 ms, again and again, and 4
// instances under load for 20 s, whose calls wait for 100 ms:
//
//	RATELIMIT_LONG=1 go test -run TestAFlappingRedis -v .
func TestAFlappingRedisIsNoOutageOfTheService(t *testing.T) {
	effort.NeedLong(t)
	const instances, seconds = 4, 20
	limit := ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 20}
	share := ratelimit.Limit{Rate: 25, Period: time.Second, Burst: 5}
	server := redistest.Start(t)
	stop := make(chan struct{})
	var flapping, callers sync.WaitGroup
	flapping.Go(func() {
		for up := true; ; up = !up {
			select {
			case <-stop:
				if !up {
					server.Thaw()
				}
				return
			case <-time.After(200 * time.Millisecond):
			}
			if up {
				server.Freeze()
			} else {
				server.Thaw()
			}
		}
	})
	var total, failed, slow atomic.Int64
	var bySource [5]atomic.Int64
	began := time.Now()
	for range instances {
		s, err := redisstore.New(server.Client(t), redisstore.WithTimeout(100*time.Millisecond))
		require.NoError(t, err)
		lim := failover(t, newLimiter(t, "token_bucket", s, limit),
			fallback.FailTo(inMemory(t, "token_bucket", share)), fallback.WithBreaker(2, 20*time.Millisecond))
		for range 4 {
			callers.Go(func() {
				for time.Since(began) < seconds*time.Second {
					asked := time.Now()
					r, err := lim.Allow(t.Context(), "key")
					if err != nil {
						failed.Add(1)
					}
					if time.Since(asked) > 150*time.Millisecond {
						slow.Add(1)
					}
					bySource[r.Source()].Add(1)
					if r.Allowed {
						total.Add(1)
					}
					time.Sleep(2 * time.Millisecond)
				}
			})
		}
	}
	callers.Wait()
	due := time.Since(began).Seconds()*float64(limit.Rate) + float64(limit.Burst)
	close(stop)
	flapping.Wait()
	t.Logf("%d admitted of %.0f; %d by the store, %d locally; %d calls took over 150 ms",
		total.Load(), due, bySource[ratelimit.SourceStore].Load(), bySource[ratelimit.SourceLocal].Load(), slow.Load())
	require.Zero(t, failed.Load())
	require.LessOrEqual(t, float64(total.Load()), 1.25*due)
	require.GreaterOrEqual(t, float64(total.Load()), 0.75*due)
	require.NotZero(t, bySource[ratelimit.SourceStore].Load())
	require.NotZero(t, bySource[ratelimit.SourceLocal].Load())
}
