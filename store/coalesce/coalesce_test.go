package coalesce_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var (
	algorithms = ratelimit.PerSecond(1).Algorithms()

	newLimiter = ratelimittest.New
	coalesced  = testkit.NewCoalesced
	allowN     = testkit.AllowN
	eachStore  = testkit.EachStore
	errGone    = testkit.ErrGone
)

// slow is a store as far away as a server.
type slow struct {
	store.Store
	calls atomic.Int64
	fail  atomic.Bool
	panic atomic.Bool
	exit  atomic.Bool
}

const roundTrip = time.Millisecond

// Decide implements [store.Store].
func (s *slow) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *slow) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.calls.Add(1)
	time.Sleep(roundTrip)
	if s.fail.Load() {
		return store.Reply{}, errGone
	}
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *slow) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.calls.Add(1)
	time.Sleep(roundTrip)
	if s.panic.Load() {
		panic("planted")
	}
	if s.exit.Load() {
		runtime.Goexit()
	}
	if s.fail.Load() {
		return store.Reply{}, errGone
	}
	return store.TakeUpTo(ctx, s.Store, ns, key, l, n)
}

func (s *slow) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	s.calls.Add(1)
	panics, exits := s.panic.Load(), s.exit.Load()
	time.Sleep(roundTrip)
	if panics {
		panic("planted")
	}
	if exits {
		runtime.Goexit()
	}
	if s.fail.Load() {
		return errGone
	}
	return s.Store.Decide(ctx, requests, replies)
}

func (s *slow) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.calls.Add(1)
	time.Sleep(roundTrip)
	return store.Peek(ctx, s.Store, ns, key, l, n)
}

func newSlow(t *testing.T) *slow {
	t.Helper()
	s, err := memstore.New()
	require.NoError(t, err)
	return &slow{Store: s}
}

// Each admitted caller sees what it would have seen alone, one after the other: as
// many Remaining as there are events, none twice.
func TestCoalescedCallsAnswerAsOneAfterTheOther(t *testing.T) {
	eachStore(t, func(t *testing.T, s store.Store) {
		for _, algorithm := range algorithms {
			lim := newLimiter(t, algorithm, coalesced(t, s), ratelimit.PerDay(100))
			var mu sync.Mutex
			left := map[int]int{}
			var group sync.WaitGroup
			for range 64 {
				group.Go(func() {
					for range 5 {
						r, err := lim.Allow(t.Context(), "hot")
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						if r.Allowed {
							left[r.Remaining]++
						} else if r.RetryAfter <= 0 || r.Remaining != 0 {
							t.Errorf("%+v", r)
						}
						mu.Unlock()
					}
				})
			}
			group.Wait()
			require.Len(t, left, 100, algorithm)
			for remaining, times := range left {
				require.Equal(t, 1, times, "%s: Remaining %d", algorithm, remaining)
			}
		}
	})
}

// ofOne and ofTwo make a limiter of so many events, alone and in an All with one that has more.
func ofOne(t *testing.T, algorithm string, s store.Store, rate int) ratelimit.Limiter {
	return newLimiter(t, algorithm, s, ratelimit.PerDay(rate))
}

func ofTwo(t *testing.T, algorithm string, s store.Store, rate int) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.NewAll(
		newLimiter(t, "token_bucket", s, ratelimit.PerDay(1_000_000), ratelimit.WithName("wide")), ofOne(t, algorithm, s, rate)))
}

// eachWay runs a test for each algorithm, alone and in an All.
func eachWay(t *testing.T, test func(t *testing.T, algorithm string, of func(t *testing.T, algorithm string, s store.Store, rate int) ratelimit.Limiter)) {
	for name, of := range map[string]func(t *testing.T, algorithm string, s store.Store, rate int) ratelimit.Limiter{"one": ofOne, "several": ofTwo} {
		for _, algorithm := range algorithms {
			t.Run(name+"/"+algorithm, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { test(t, algorithm, of) })
			})
		}
	}
}

func TestCallersInAQueueAreServedInTheirOrderByOneCall(t *testing.T) {
	eachWay(t, func(t *testing.T, algorithm string, of func(t *testing.T, algorithm string, s store.Store, rate int) ratelimit.Limiter) {
		for _, n := range []int{1, 3} {
			s := newSlow(t)
			if _, several := of(t, algorithm, s, 1).(*ratelimit.All); n > 1 && !several {
				continue
			}
			lim, alone := of(t, algorithm, coalesced(t, s), 6*n), of(t, algorithm, newSlow(t), 6*n)
			var results [10]ratelimit.Result
			var group sync.WaitGroup
			for i := range results {
				group.Go(func() {
					time.Sleep(time.Duration(i) * roundTrip / 100)
					r, err := lim.AllowN(t.Context(), "hot", n)
					if err != nil {
						t.Error(err)
					}
					results[i] = r
				})
			}
			group.Wait()
			// The first alone, then nine, or five of these, and of a log when the four may come back who were denied.
			require.LessOrEqual(t, s.calls.Load(), int64(4))
			for i, r := range results {
				want := allowN(t, alone, n)
				got, wants := append(r.Parts(), ratelimit.Part{Result: r}), append(want.Parts(), ratelimit.Part{Result: want})
				require.Len(t, got, len(wants))
				for p, r := range got {
					want := wants[p]
					require.Equal(t, want.Allowed, r.Allowed, "caller %d", i)
					require.Equal(t, want.Remaining, r.Remaining, "caller %d", i)
					require.InDelta(t, want.ResetAfter, r.ResetAfter, float64(20*roundTrip))
					require.InDelta(t, want.RetryAfter, r.RetryAfter, float64(20*roundTrip))
					require.InDelta(t, want.Delay, r.Delay, float64(20*roundTrip))
				}
			}
		}
	})
}

// Where room comes with each round trip there is always somebody to admit, and the
// others must be denied all the same, not be kept until it is their turn.
func TestCallersInAQueueAreDeniedThoughSomeAreAdmittedEachTime(t *testing.T) {
	const perRoundTrip, calls = 10, 5000
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			lim := newLimiter(t, algorithm, coalesced(t, newSlow(t)), ratelimit.PerSecond(2000))
			var admitted, denied atomic.Int64
			var group sync.WaitGroup
			for i := range calls {
				group.Go(func() {
					time.Sleep(time.Duration(i) * roundTrip / perRoundTrip)
					start := time.Now()
					switch r, err := lim.Allow(t.Context(), "hot"); {
					case err != nil:
						t.Error(err)
					case r.Allowed:
						admitted.Add(1)
					default:
						denied.Add(1)
						if r.RetryAfter <= 0 || r.ResetAfter < r.RetryAfter || r.Remaining != 0 || r.Limit != 2000 {
							t.Errorf("%s: %+v", algorithm, r)
						}
					}
					if took := time.Since(start); took > 4*roundTrip {
						t.Errorf("%s: call %d took %v", algorithm, i, took)
					}
				})
			}
			group.Wait()
			require.Positive(t, denied.Load(), algorithm)
			// Half a second, of a limit that begins full: no algorithm admits more than its bound.
			require.LessOrEqual(t, admitted.Load(), int64(2000+2000*6/10), algorithm)
			require.GreaterOrEqual(t, admitted.Load(), int64(2000), algorithm)
		})
	}
}

// A caller that leaves while it waits does not take a permit with it: what is charged in the end is
// what was admitted.
func TestACallerThatLeavesTheQueueLosesNobodyAPermit(t *testing.T) {
	eachWay(t, func(t *testing.T, algorithm string, of func(t *testing.T, algorithm string, s store.Store, rate int) ratelimit.Limiter) {
		s := newSlow(t)
		lim := of(t, algorithm, coalesced(t, s), 1000)
		var admitted, left atomic.Int64
		var group sync.WaitGroup
		for i := range 400 {
			group.Go(func() {
				time.Sleep(time.Duration(i*7%50) * roundTrip / 10)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i*13%40)*roundTrip/10)
				defer cancel()
				switch r, err := lim.Allow(ctx, "hot"); {
				case errors.Is(err, context.DeadlineExceeded):
					left.Add(1)
				case err != nil || !r.Allowed:
					t.Errorf("%+v, %v", r, err)
				default:
					admitted.Add(1)
				}
			})
		}
		group.Wait()
		synctest.Wait()
		require.Greater(t, left.Load(), int64(50), "nobody has left")
		require.Less(t, s.calls.Load(), int64(50))
		r, err := lim.Peek(t.Context(), "hot")
		require.NoError(t, err)
		require.EqualValues(t, 1000-admitted.Load(), r.Remaining, "%d admitted, %d left", admitted.Load(), left.Load())
		if parts := r.Parts(); len(parts) > 0 {
			require.EqualValues(t, 1_000_000-admitted.Load(), parts[0].Remaining)
		}
	})
}

func TestWhereTheStoreHangsNobodyWaitsForTwoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		together, err := coalesce.New(testkit.Hanging{Store: ratelimit.Must(memstore.New())})
		require.NoError(t, err)
		testkit.NobodyWaitsForTwoCalls(t, newLimiter(t, "token_bucket", together, ratelimit.PerMinute(100)))
	})
}

func requireNotStuck(t *testing.T, lim ratelimit.Limiter) {
	t.Helper()
	r, err := lim.Allow(t.Context(), "hot")
	require.NoError(t, err)
	require.True(t, r.Allowed, "the key is not stuck")
}

// eachOf runs a test in a bubble, on a token bucket alone and in an All.
func eachOf(t *testing.T, test func(t *testing.T, s *slow, lim ratelimit.Limiter)) {
	for name, of := range map[string]func(t *testing.T, algorithm string, s store.Store, rate int) ratelimit.Limiter{"one": ofOne, "several": ofTwo} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSlow(t)
				test(t, s, of(t, "token_bucket", coalesced(t, s), 50))
			})
		})
	}
}

func TestAnErrorReachesAllWhoWait(t *testing.T) {
	eachOf(t, func(t *testing.T, s *slow, lim ratelimit.Limiter) {
		s.fail.Store(true)
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				if r, err := lim.Allow(t.Context(), "hot"); !errors.Is(err, ratelimit.ErrStore) || r != (ratelimit.Result{}) {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		group.Wait()
		s.fail.Store(false)
		requireNotStuck(t, lim)
	})
}

func TestAPanicOfTheStoreReachesAllWhoWait(t *testing.T) {
	eachOf(t, func(t *testing.T, s *slow, lim ratelimit.Limiter) {
		var panicked atomic.Int64
		var group sync.WaitGroup
		group.Go(func() { requireNotStuck(t, lim) })
		synctest.Wait()
		s.panic.Store(true)
		for range 19 {
			group.Go(func() {
				defer func() {
					if recover() == "planted" {
						panicked.Add(1)
					}
				}()
				_, _ = lim.Allow(t.Context(), "hot")
			})
		}
		group.Wait()
		require.EqualValues(t, 19, panicked.Load(), "all but the first")
		s.panic.Store(false)
		requireNotStuck(t, lim)
	})
}

// As a test that fails does in a store of its own.
func TestAStoreThatEndsTheGoroutineLeavesNobodyWaiting(t *testing.T) {
	eachOf(t, func(t *testing.T, s *slow, lim ratelimit.Limiter) {
		var timeouts atomic.Int64
		var group sync.WaitGroup
		for i := range 40 {
			group.Go(func() {
				time.Sleep(time.Duration(i) * roundTrip / 20)
				if _, err := lim.Allow(t.Context(), "hot"); errors.Is(err, store.ErrTimeout) {
					timeouts.Add(1)
				}
			})
			if i == 0 {
				time.Sleep(roundTrip / 100)
				s.exit.Store(true)
			}
		}
		group.Wait()
		require.EqualValues(t, 39, timeouts.Load(), "all but the first")
		s.exit.Store(false)
		requireNotStuck(t, lim)
	})
}

// stuck is a store whose calls last as long as it likes, whatever their contexts.
type stuck struct {
	store.Store
	release chan struct{}
}

func (s stuck) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	<-s.release
	return s.Store.Take(ctx, ns, key, l, n)
}

// Callers come and leave while a call hangs. What is kept about them does not accumulate.
func TestCallersWhoLeaveAreForgottenWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stuck{ratelimit.Must(memstore.New()), make(chan struct{})}
		lim := newLimiter(t, "token_bucket", coalesced(t, s), ratelimit.PerDay(10))
		var group sync.WaitGroup
		stays := func() {
			group.Go(func() {
				r, err := lim.Allow(t.Context(), "hot")
				require.NoError(t, err)
				require.True(t, r.Allowed)
			})
			synctest.Wait()
		}
		stays()
		stays()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range 100_000 {
			ctx, cancel := context.WithCancel(t.Context())
			group.Go(func() {
				_, err := lim.Allow(ctx, "hot")
				require.ErrorIs(t, err, context.Canceled)
			})
			synctest.Wait()
			cancel()
			synctest.Wait()
		}
		stays()
		runtime.GC()
		runtime.ReadMemStats(&after)
		require.Less(t, after.HeapAlloc, before.HeapAlloc+5<<20, "20 MB of all who came")
		close(s.release)
		group.Wait()
	})
}

func TestACallThatMeetsNoOtherIsTheOnlyOne(t *testing.T) {
	s := newSlow(t)
	lim := newLimiter(t, "token_bucket", coalesced(t, s), ratelimit.PerDay(10))
	for i := range 3 {
		require.Equal(t, 9-i, allowN(t, lim, 1).Remaining)
	}
	require.EqualValues(t, 3, s.calls.Load())
}

func TestKeysOfTwoLimitersAreNotDecidedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := coalesced(t, newSlow(t))
		one := newLimiter(t, "token_bucket", c, ratelimit.PerDay(10), ratelimit.WithName("one"))
		other := newLimiter(t, "token_bucket", c, ratelimit.PerDay(10), ratelimit.WithName("other"))
		var group sync.WaitGroup
		for i := range 20 {
			group.Go(func() {
				require.True(t, allowN(t, []ratelimit.Limiter{one, other}[i%2], 1).Allowed)
			})
		}
		group.Wait()
		require.False(t, allowN(t, one, 1).Allowed)
		require.False(t, allowN(t, other, 1).Allowed)
	})
}

func TestADenyCacheBehindSparesThoseWhoAreDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := newSlow(t)
		cache, err := denycache.New(far)
		require.NoError(t, err)
		lim := newLimiter(t, "fixed_window", coalesced(t, cache), ratelimit.PerDay(1))
		require.True(t, allowN(t, lim, 1).Allowed)
		require.Equal(t, ratelimit.SourceStore, allowN(t, lim, 1).Source())
		before := far.calls.Load()
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				r := allowN(t, lim, 1)
				require.Equal(t, ratelimit.SourceDenyCache, r.Source())
				require.Positive(t, r.RetryAfter)
			})
		}
		group.Wait()
		require.Equal(t, before, far.calls.Load())
	})
}

// Events of callers that have left are refunded through the cache, which forgets its denials.
func TestADenyCacheBehindDeniesNothingThatTheQueueRefunded(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			cache, err := denycache.New(newSlow(t))
			require.NoError(t, err)
			lim := newLimiter(t, algorithm, coalesced(t, cache), ratelimit.PerDay(10))
			var group sync.WaitGroup
			for i := range 3 { // one who is served alone, and two who leave while they are being served
				group.Go(func() {
					time.Sleep(time.Duration(i))
					ctx, cancel := context.WithTimeout(t.Context(), roundTrip*3/2)
					defer cancel()
					_, err := lim.Allow(ctx, "key")
					require.Equal(t, i > 0, errors.Is(err, context.DeadlineExceeded))
				})
			}
			time.Sleep(roundTrip * 5 / 2)
			group.Wait()
			synctest.Wait()
			require.True(t, allowN(t, lim, 9).Allowed, algorithm)
		})
	}
}

func TestStoresThatCannotWorkAreRefused(t *testing.T) {
	for _, none := range []store.Store{nil, (*memstore.Store)(nil)} {
		_, err := coalesce.New(none)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	_, err := ratelimit.NewTokenBucket(new(coalesce.Store), ratelimit.PerDay(1))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, "was not made by its constructor")
	_, err = ratelimit.NewTokenBucket(coalesced(t, new(coalesce.Store)), ratelimit.PerDay(1))
	require.ErrorContains(t, err, "was not made by its constructor", "which the store behind says")
}

// Limits on it are decided together, as they are without it.
func TestAnAllIsOneCallOfTheStore(t *testing.T) {
	far := newSlow(t)
	c := coalesced(t, far)
	all, err := ratelimit.NewAll(newLimiter(t, "fixed_window", c, ratelimit.PerDay(10)), newLimiter(t, "sliding_log", c, ratelimit.PerDay(5)))
	require.NoError(t, err)
	require.Equal(t, 4, allowN(t, all, 1).Remaining)
	require.EqualValues(t, 1, far.calls.Load())
}

// Calls of several limits are decided together if all of their keys and limits are the same, in the same order.
func TestListsOfOtherKeysAreNotDecidedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t)
		c := coalesced(t, s)
		route := newLimiter(t, "fixed_window", c, ratelimit.PerDay(1000))
		user := newLimiter(t, "fixed_window", c, ratelimit.PerHour(10))
		same := newLimiter(t, "fixed_window", c, ratelimit.PerHour(20), ratelimit.WithName("same"))
		less := newLimiter(t, "fixed_window", c, ratelimit.PerHour(10), ratelimit.WithName("same"))
		lists := [][]ratelimit.Ask{
			{{Limiter: route, Key: "a", N: 1}, {Limiter: user, Key: "a", N: 1}},
			{{Limiter: route, Key: "a", N: 1}, {Limiter: user, Key: "b", N: 1}},
			{{Limiter: user, Key: "c", N: 1}, {Limiter: route, Key: "a", N: 1}},
			{{Limiter: route, Key: "a", N: 1}, {Limiter: user, Key: "c", N: 1}},
			{{Limiter: route, Key: "a", N: 1}, {Limiter: same, Key: "a", N: 1}},
			{{Limiter: route, Key: "a", N: 1}, {Limiter: less, Key: "b", N: 1}},
		}
		var group sync.WaitGroup
		for range 5 {
			for _, asks := range lists {
				group.Go(func() {
					r, err := ratelimit.Decide(t.Context(), asks...)
					require.NoError(t, err)
					require.True(t, r.Allowed)
				})
			}
		}
		group.Wait()
		require.EqualValues(t, 2*len(lists), s.calls.Load(), "the first of each, and then the others")
		for l, want := range map[ratelimit.Limiter]map[string]int{
			route: {"a": 1000 - 5*6}, user: {"a": 5, "b": 5, "c": 0}, same: {"a": 15, "b": 15}, less: {"a": 5, "b": 5},
		} {
			for key, left := range want {
				r, err := l.Peek(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, left, r.Remaining, key)
			}
		}
	})
}

// Shadows, looks, and calls that may wait for their turn are decided by the store alone.
func TestShadowsLooksAndTurnsAreNotCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t)
		c := coalesced(t, s)
		window, bucket := newLimiter(t, "fixed_window", c, ratelimit.PerDay(2)), newLimiter(t, "token_bucket", c, ratelimit.PerDay(3))
		all := ratelimit.Must(ratelimit.NewAll(window, bucket))
		for _, ask := range []func() (ratelimit.Result, error){
			func() (ratelimit.Result, error) {
				return ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: window, Key: "a", N: 1, Shadow: true}, ratelimit.Ask{Limiter: bucket, Key: "a", N: 1})
			},
			func() (ratelimit.Result, error) {
				return ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: window, Key: "b", Look: true}, ratelimit.Ask{Limiter: bucket, Key: "b", N: 1})
			},
			func() (ratelimit.Result, error) {
				return ratelimit.AllowWithin(t.Context(), all, "c", 1, time.Minute)
			},
		} {
			s.calls.Store(0)
			var group sync.WaitGroup
			for range 3 {
				group.Go(func() {
					_, err := ask()
					require.NoError(t, err)
				})
			}
			group.Wait()
			require.EqualValues(t, 3, s.calls.Load())
		}
	})
}

// Calls of several limits for other numbers of events are decided together, in their order.
func TestCallsForOtherNumbersOfEvents(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			s := newSlow(t)
			lim := ofTwo(t, algorithm, coalesced(t, s), 30)
			var results [40]ratelimit.Result
			var group sync.WaitGroup
			for i := range results {
				group.Go(func() {
					r, err := lim.AllowN(t.Context(), "hot", 1+i%2)
					require.NoError(t, err)
					results[i] = r
				})
				synctest.Wait()
			}
			group.Wait()
			require.LessOrEqual(t, s.calls.Load(), int64(8))
			for i, r := range results {
				require.Equal(t, i < 20, r.Allowed, i)
				require.Equal(t, i >= 20, r.RetryAfter > 0, i)
			}
			r, err := lim.Peek(t.Context(), "hot")
			require.NoError(t, err)
			require.Zero(t, r.Remaining)
		})
	}
}

// patient is a store that answers each call late, but within its timeout.
type patient struct{ store.Store }

func (patient) Timeout() time.Duration { return 160 * time.Millisecond }

func (patient) wait() { time.Sleep(150 * time.Millisecond) }

// Decide implements [store.Store].
func (s patient) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s patient) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.wait()
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s patient) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.wait()
	return store.TakeUpTo(ctx, s.Store, ns, key, l, n)
}

func (s patient) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.wait()
	return store.Peek(ctx, s.Store, ns, key, l, n)
}

func (s patient) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	s.wait()
	return s.Store.Refund(ctx, ns, key, l, c)
}

// All that is asked of the store before a caller's own call is answered in time, and so is the caller.
func TestWhereTheStoreIsSlowNobodyIsToldThatItIsDown(t *testing.T) {
	for name, tt := range map[string]struct {
		limit int
		leave time.Duration
	}{
		"after a denial":      {limit: 2, leave: time.Hour},
		"after a giving back": {limit: 100, leave: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, err := memstore.New()
				require.NoError(t, err)
				lim := newLimiter(t, "token_bucket", coalesced(t, patient{mem}), ratelimit.PerHour(tt.limit))
				var group sync.WaitGroup
				for i := range 6 {
					ctx := t.Context()
					if i == 2 {
						short, cancel := context.WithTimeout(ctx, tt.leave)
						defer cancel()
						ctx = short
					}
					group.Go(func() {
						_, err := lim.Allow(ctx, "key")
						if i != 2 {
							require.NoError(t, err)
						}
					})
					time.Sleep(time.Millisecond)
					if i == 3 { // what follows comes while the second call is under way
						time.Sleep(200 * time.Millisecond)
					}
				}
				group.Wait()
				time.Sleep(time.Second) // the timers have run
			})
		})
	}
}
