package lease_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// atOnce has so many callers ask at once, with costs of n, and returns what they were told, in the order of
// their arrival.
func atOnce(t *testing.T, l ratelimit.Limiter, callers int, n func(i int) int) []ratelimit.Result {
	told := make([]ratelimit.Result, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			r, err := l.AllowN(t.Context(), "key", n(i))
			require.NoError(t, err)
			told[i] = r
		})
		synctest.Wait()
	}
	wg.Wait()
	return told
}

func one(int) int { return 1 }

// allowed is how many events of these are admitted.
func allowed(told []ratelimit.Result, n func(i int) int) (sum int) {
	for i, r := range told {
		if r.Allowed {
			sum += n(i)
		}
	}
	return sum
}

// Concurrent callers of one All share a call, even if leases live no longer than the call takes.
func TestAllsAtOnceShareACall(t *testing.T) {
	for _, trip := range []time.Duration{20 * time.Millisecond, 1500 * time.Millisecond} {
		eachAlgorithm(t, func(t *testing.T, algorithm string) {
			synctest.Test(t, func(t *testing.T) {
				all, tight, wide, d, s := two(t, algorithm)
				fresh := [2]int{fullKey(t, tight), fullKey(t, wide)}
				const callers = 100
				s.reset()
				s.set(trip, nil)
				t0 := time.Now()
				require.Equal(t, callers, allowed(atOnce(t, all, callers, one), one))
				require.Equal(t, 2*trip, time.Since(t0), "of the first, and of all others")
				require.Len(t, asked(s.reset(), "TakeAll"), 2)
				stats := d.Stats()
				require.EqualValues(t, [2]int64{2, 0}, [2]int64{stats.Asked, stats.Lost})
				require.GreaterOrEqual(t, stats.Granted, int64(2*callers))
				s.set(0, nil)
				require.NoError(t, d.Close(t.Context()))
				if algorithm != "token_bucket" { // into which some has flowed
					require.Equal(t, fresh[0]-callers, remaining(t, tight))
					require.Equal(t, fresh[1]-callers, remaining(t, wide))
				}
			})
		})
	}
}

// Those who wait behind the first one have what its leases bring.
func TestAllsAtOnceHaveTheLeasesOfTheFirst(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			all, _, _, d, s := two(t, algorithm)
			grow(t, all, d)
			s.reset()
			s.set(20*time.Millisecond, nil)
			require.Equal(t, 4, allowed(atOnce(t, all, 4, one), one))
			require.Equal(t, []call{{"TakeAll", 2}}, s.reset())
			s.set(0, nil)
			require.NoError(t, d.Close(t.Context()))
		})
	})
}

// Of callers at once as many are admitted as fit, in the order of arrival. The others are told when the
// next one does, as they would be alone.
func TestOfAllsAtOnceAsManyAreAdmittedAsFit(t *testing.T) {
	for name, c := range map[string]struct {
		n          func(i int) int
		fit, calls int
	}{
		"one event":     {one, 30, 5},
		"three events":  {func(int) int { return 3 }, 10, 5},
		"other numbers": {func(i int) int { return 1 + i%2 }, 20, 100},
	} {
		t.Run(name, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, algorithm string) {
				synctest.Test(t, func(t *testing.T) {
					d, s := onStopped(t, time.Second)
					tight, wide := newLimiter(t, algorithm, d, ratelimit.PerHour(3600)), newLimiter(t, algorithm, d, ratelimit.PerDay(24*3600))
					all, err := ratelimit.NewAll(tight, wide)
					require.NoError(t, err)
					fresh := fullKey(t, wide)
					require.True(t, allowN(t, tight, fullKey(t, tight)-30).Allowed)
					s.reset()
					s.set(20*time.Millisecond, nil)
					told := atOnce(t, all, 100, c.n)
					require.LessOrEqual(t, len(s.reset()), c.calls)
					require.Equal(t, 30, allowed(told, c.n))
					for i, r := range told {
						require.Equal(t, i < c.fit, r.Allowed, i)
						if n := c.n(i); n > 1 && !r.Allowed {
							require.Equal(t, allowN(t, all, n).RetryAfter, r.RetryAfter)
						}
					}
					s.set(0, nil)
					require.NoError(t, d.Close(t.Context()))
					require.Zero(t, remaining(t, tight))
					require.Equal(t, fresh-30, remaining(t, wide))
				})
			})
		})
	}
}

// If another process takes of the room meanwhile, as many as then fit are admitted, and none of the others.
func TestOfAllsAtOnceAsManyAreAdmittedAsOthersLeave(t *testing.T) {
	for taken, want := range map[int]int{1: 1 + 28, 10: 1 + 19, 28: 1 + 1, 29: 1, 40: 1} {
		eachAlgorithm(t, func(t *testing.T, algorithm string) {
			synctest.Test(t, func(t *testing.T) {
				d, s := onStopped(t, time.Second)
				tight, wide := newLimiter(t, algorithm, d, ratelimit.PerHour(3600)), newLimiter(t, algorithm, d, ratelimit.PerDay(24*3600))
				other, err := lease.New(s.Store, time.Second, lease.WithMaxLease(1))
				require.NoError(t, err)
				others := newLimiter(t, algorithm, other, ratelimit.PerHour(3600)).(limiting)
				all, err := ratelimit.NewAll(tight, wide)
				require.NoError(t, err)
				fresh := fullKey(t, wide)
				require.True(t, allowN(t, tight, fullKey(t, tight)-30).Allowed)
				calls := 0
				s.set(20*time.Millisecond, func(op string) error {
					if op == "TakeAll" {
						if calls++; calls == 3 { // of the first one, of all others, and of as many as fit
							_, _, err := others.AllowUpTo(t.Context(), "key", taken)
							require.NoError(t, err)
						}
					}
					return nil
				})
				told := atOnce(t, all, 100, one)
				for i, r := range told {
					require.Equal(t, i < want, r.Allowed, i)
				}
				require.LessOrEqual(t, calls, 4, "and of as many as then fit")
				s.set(0, nil)
				require.NoError(t, d.Close(t.Context()))
				require.Equal(t, fresh-want, remaining(t, wide))
				require.Equal(t, max(0, 30-want-taken), remaining(t, tight))
			})
		})
	}
}

// Whatever callers of several sets of keys and other processes do, no event is lost, and none is
// admitted twice. What was granted was used, or has lapsed.
func TestOfAllsAtOnceNothingIsLost(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		for seed := range uint64(effort.Of(5, 50, 500)) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				s := &recorder{Store: memory(t, stopped)}
				s.set(time.Duration(r.IntN(50))*time.Millisecond, nil)
				limits := []int{100 + r.IntN(2000), 100 + r.IntN(2000), 5000}
				var stores [2]*lease.Store
				var singles [2][]ratelimit.Limiter
				var lims [2][]ratelimit.Limiter
				for p := range stores {
					var err error
					stores[p], err = lease.New(s, time.Second)
					require.NoError(t, err)
					for i, rate := range limits {
						l := ratelimit.Limit{Rate: (1 + i) * (3600 + rate), Period: time.Duration(1+i) * time.Hour}
						singles[p] = append(singles[p], newLimiter(t, algorithm, stores[p], l))
					}
					for _, set := range [][]int{{0, 1, 2}, {0, 1}, {1, 2}, {2, 1}, {0}} {
						var some []ratelimit.Limiter
						for _, i := range set {
							some = append(some, singles[p][i])
						}
						all, err := ratelimit.NewAll(some...)
						require.NoError(t, err)
						lims[p] = append(lims[p], all)
					}
				}
				sets := [][]int{{0, 1, 2}, {0, 1}, {1, 2}, {2, 1}, {0}}
				var fresh, charged [3]int
				for i, l := range singles[0] {
					fresh[i] = fullKey(t, l)
				}
				var used int64 // of what was granted
				var mu sync.Mutex
				var wg sync.WaitGroup
				for range 400 {
					p, set, n := r.IntN(2), r.IntN(len(sets)), 1
					if r.IntN(3) == 0 {
						n = 1 + r.IntN(30)
					}
					at, patience := time.Duration(r.IntN(300))*time.Millisecond, time.Duration(1+r.IntN(100))*time.Millisecond
					impatient := r.IntN(4) == 0
					wg.Go(func() {
						time.Sleep(at)
						ctx := t.Context()
						if impatient {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeout(ctx, patience)
							defer cancel()
						}
						r, err := lims[p][set].AllowN(ctx, "key", n)
						if err != nil {
							require.ErrorIs(t, err, context.DeadlineExceeded)
							return
						}
						if !r.Allowed {
							return
						}
						mu.Lock()
						defer mu.Unlock()
						for _, i := range sets[set] {
							charged[i] += n
						}
						if len(sets[set]) > 1 || n == 1 || r.Source() == ratelimit.SourceLease { // otherwise the store was asked for just these
							used += int64(n * len(sets[set]))
						}
					})
				}
				wg.Wait()
				s.set(0, nil)
				time.Sleep(time.Minute) // what lapsed goes back
				for _, d := range stores {
					require.NoError(t, d.Close(t.Context()))
					used -= d.Stats().Granted - d.Stats().Lapsed
				}
				synctest.Wait()
				require.Zero(t, used, "seed %d", seed)
				for i, l := range singles[0] {
					require.Equal(t, fresh[i]-charged[i], remaining(t, l), "seed %d, limit %d", seed, i)
				}
			})
		}
	})
}

// An error, or a panic, of any of the calls is that of all who wait for it.
func TestACallForSeveralAllsThatFails(t *testing.T) {
	planted := errors.New("planted")
	for name, fail := range map[string]func() error{
		"error": func() error { return planted },
		"panic": func() error { panic(planted) },
	} {
		for of, op := range map[int]string{2: "TakeAll", 3: "TakeAll", 1: "Peek"} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d, s := onStopped(t, time.Second)
					tight := newLimiter(t, "sliding_log", d, ratelimit.PerHour(3600))
					require.True(t, allowN(t, tight, fullKey(t, tight)-30).Allowed)
					all, err := ratelimit.NewAll(tight, newLimiter(t, "sliding_log", d, ratelimit.PerDay(24*3600)))
					require.NoError(t, err)
					calls := 0
					s.set(20*time.Millisecond, func(asked string) error {
						if asked == op {
							calls++
						}
						if calls == of {
							calls++
							return fail()
						}
						return nil
					})
					var wg sync.WaitGroup
					var mu sync.Mutex
					ended := map[string]int{}
					for range 100 {
						wg.Go(func() {
							how := "admitted"
							defer func() {
								if p := recover(); p != nil {
									require.Equal(t, planted, p)
									how = "failed"
								}
								mu.Lock()
								defer mu.Unlock()
								ended[how]++
							}()
							r, err := all.Allow(t.Context(), "key")
							switch {
							case err != nil:
								require.ErrorIs(t, err, planted)
								how = "failed"
							case !r.Allowed:
								how = "denied"
							}
						})
						synctest.Wait()
					}
					wg.Wait()
					require.Equal(t, 100, ended["admitted"]+ended["denied"]+ended["failed"])
					require.Positive(t, ended["failed"], "%v", ended)
					require.Positive(t, ended["admitted"], "%v", ended)
					require.Equal(t, op == "TakeAll", d.Stats().Lost == 1)
					s.set(0, nil)
					require.NoError(t, d.Close(t.Context()))
				})
			})
		}
	}
}

func TestWhereTheStoreHangsNobodyWaitsForTwoCalls(t *testing.T) {
	for _, several := range []bool{false, true} {
		t.Run(map[bool]string{false: "Take", true: "TakeAll"}[several], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, err := lease.New(testkit.Hanging{Store: memory(t)}, time.Second)
				require.NoError(t, err)
				l := newLimiter(t, "token_bucket", d, ratelimit.PerMinute(100))
				if several {
					l, err = ratelimit.NewAll(l, newLimiter(t, "token_bucket", d, ratelimit.PerHour(7200)))
					require.NoError(t, err)
				}
				testkit.NobodyWaitsForTwoCalls(t, l)
				require.NoError(t, d.Close(t.Context()))
			})
		})
	}
}

// hasty is a store that answers within its timeout.
type hasty struct{ *recorder }

func (hasty) Timeout() time.Duration { return 160 * time.Millisecond }

// A store that answers, and be it slowly, is not told to have failed, however many of its calls one waits for.
func TestWhereTheStoreAnswersSlowlyEverybodyIsDecidedOn(t *testing.T) {
	for name, opts := range map[string][]lease.Option{"alone": nil, "in an All": nil, "with overdraft": {lease.WithOverdraft(2)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &recorder{Store: memory(t)}
				s.set(hasty{}.Timeout()*7/8, nil)
				d, err := lease.New(hasty{s}, time.Second, opts...)
				require.NoError(t, err)
				l := newLimiter(t, "token_bucket", d, ratelimit.Limit{Rate: 50, Period: time.Second, Burst: 100})
				switch name {
				case "in an All":
					l, err = ratelimit.NewAll(l, newLimiter(t, "token_bucket", d, ratelimit.PerHour(1_000_000)))
					require.NoError(t, err)
				case "with overdraft": // of which the store does not have the last event
					l = newLimiter(t, "fixed_window", d, ratelimit.PerHour(2))
				}
				var wg sync.WaitGroup
				for i := range 1000 {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 3 * time.Millisecond)
						_, err := l.Allow(t.Context(), "key")
						require.NoError(t, err)
					})
				}
				wg.Wait()
				s.set(0, nil)
				require.NoError(t, d.Close(t.Context()))
			})
		})
	}
}

// When an All is denied, what another of its limits has left is reported without the calls that are
// admitted before, even if it has no room for all waiters.
func TestADenialOfManyReportsWhatOtherLimitsHaveLeft(t *testing.T) {
	for _, wide := range []int{100, 50} {
		synctest.Test(t, func(t *testing.T) {
			d, s := onStopped(t, time.Second)
			all, err := ratelimit.NewAll(newLimiter(t, "fixed_window", d, ratelimit.PerHour(30)), newLimiter(t, "fixed_window", d, ratelimit.PerDay(wide)))
			require.NoError(t, err)
			s.set(20*time.Millisecond, nil)
			for i, r := range atOnce(t, all, 60, one) {
				require.Equal(t, i < 30, r.Allowed)
				if !r.Allowed {
					require.True(t, r.Parts()[1].Allowed)
					require.Equal(t, wide-30, r.Parts()[1].Remaining, i)
				}
			}
			s.set(0, nil)
			require.NoError(t, d.Close(t.Context()))
		})
	}
}

// What a batch takes from a limit replaces what was known about it before.
func TestABatchReplacesWhatWasKnownOfALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onStopped(t, time.Second)
		bucket := ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 500}
		long, quick := newLimiter(t, "fixed_window", d, ratelimit.PerDay(24*3600)), newLimiter(t, "token_bucket", d, bucket)
		all, err := ratelimit.NewAll(long, quick)
		require.NoError(t, err)
		require.True(t, allowN(t, long, fullKey(t, long)-30).Allowed)
		s.set(20*time.Millisecond, nil)
		three := func(int) int { return 3 }
		require.Equal(t, 30, allowed(atOnce(t, all, 20, three), three))
		s.set(0, nil)
		plain := newLimiter(t, "token_bucket", s.Store, bucket)
		require.True(t, allowN(t, plain, remaining(t, plain)).Allowed)
		for allow(t, quick).Allowed {
		}
		require.Greater(t, allow(t, all).RetryAfter, 10*time.Minute, "until the day ends")
		require.NoError(t, d.Close(t.Context()))
	})
}

// A key may be forgotten while a queue is served of which it is not the first. No lease is then put where nobody
// finds it.
func TestAKeyOfAQueueIsForgottenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onStopped(t, 10*time.Millisecond)
		first := newLimiter(t, "fixed_window", d, ratelimit.PerDay(7200))
		second := newLimiter(t, "fixed_window", d, ratelimit.Limit{Rate: 7200, Period: 48 * time.Hour})
		full := newLimiter(t, "fixed_window", d, ratelimit.PerHour(60))
		fresh, charged := fullKey(t, second), 0
		var mu sync.Mutex
		var wg sync.WaitGroup
		ask := func(n int, limits ...ratelimit.Limiter) {
			l, err := ratelimit.NewAll(limits...)
			require.NoError(t, err)
			wg.Go(func() {
				r, err := l.AllowN(t.Context(), "key", n)
				require.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				if r.Allowed {
					charged += n
				}
			})
			synctest.Wait()
		}
		s.set(time.Millisecond, nil)
		for range 60 { // so that the next lease of the second is large
			ask(1, full, second)
		}
		wg.Wait()
		s.set(40*time.Millisecond, nil)
		ask(2, full, second) // which is denied, but is there to lead the second
		time.Sleep(5 * time.Millisecond)
		s.set(200*time.Millisecond, nil)
		ask(2, first, second)
		ask(2, first, second) // waits in the queue meanwhile
		wg.Wait()
		s.set(0, nil)
		time.Sleep(time.Minute)
		require.NoError(t, d.Close(t.Context()))
		synctest.Wait()
		require.Equal(t, fresh-charged, remaining(t, second))
	})
}

// Events of a caller that has left are returned to the lease that arrived for it, and are not
// forgotten with the keys, although these have not been used for long.
func TestALeaseThatCameLateIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const life = 40 * time.Millisecond
		s := &recorder{Store: memory(t, stopped)}
		d, err := lease.New(s, life)
		require.NoError(t, err)
		limit := ratelimit.PerDay(7200)
		first := newLimiter(t, "fixed_window", d, limit, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
		second := newLimiter(t, "fixed_window", d, ratelimit.PerHour(7200))
		all, err := ratelimit.NewAll(first, second)
		require.NoError(t, err)
		s.set(5*life, nil)
		var wg sync.WaitGroup
		wg.Go(func() { require.True(t, allow(t, all).Allowed) })
		synctest.Wait()
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*life/2+2*time.Millisecond)
			defer cancel()
			_, err := all.Allow(ctx, "key")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		synctest.Wait()
		s.set(2*time.Millisecond, nil) // from the second half of the call that is under way on
		limit = ratelimit.PerDay(7000) // so that those who wait are decided on by the store
		require.True(t, allow(t, first).Allowed)
		wg.Wait()
		time.Sleep(time.Minute)
		require.NoError(t, d.Close(t.Context()))
		require.EqualValues(t, 2, d.Stats().GivenBack)
		require.Equal(t, []int{6998, 7199}, []int{remaining(t, first), remaining(t, second)})
	})
}

// If the store panics, what was held for the call is held again.
func TestAPanicLosesNothingThatWasHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _, wide, d, s := two(t, "fixed_window")
		charged := 0
		for ; d.Stats().Held < 10; charged++ {
			require.True(t, allow(t, wide).Allowed)
			synctest.Wait()
		}
		held := d.Stats().Held
		s.set(0, func(string) error { panic("planted") })
		require.Panics(t, func() { _, _ = all.Allow(t.Context(), "key") })
		require.Equal(t, held, d.Stats().Held)
		s.set(0, nil)
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, 360_000-charged, remaining(t, wide))
	})
}

// sizes is a store that tells for how many events of each key it is asked together.
type sizes struct {
	*recorder
	n [][]int64
	// before is told of each call, if it is not nil.
	before func(n []int64)
}

// Decide implements [store.Store].
func (s *sizes) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if requests[0].Op == store.OpTake {
		return s.TakeAll(ctx, requests, replies)
	}
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *sizes) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	n := make([]int64, len(requests))
	for i := range requests {
		n[i] = requests[i].N
	}
	s.n = append(s.n, n)
	if s.before != nil {
		s.before(n)
	}
	return s.recorder.Decide(ctx, requests, replies)
}

// onSizes is a lease on a store that tells how much it is asked for.
func onSizes(t *testing.T, opts ...memstore.Option) (*lease.Store, *sizes) {
	t.Helper()
	s := &sizes{recorder: &recorder{Store: memory(t, opts...)}}
	d, err := lease.New(s, time.Second)
	require.NoError(t, err)
	return d, s
}

// Each of those who are decided on together is told what those before have left, as if they had come one
// after the other.
func TestEachOfManyIsToldWhatThoseBeforeHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onStopped(t, time.Second)
		all, err := ratelimit.NewAll(newLimiter(t, "fixed_window", d, ratelimit.PerHour(1000)), newLimiter(t, "sliding_window", d, ratelimit.PerDay(5000)))
		require.NoError(t, err)
		s.set(20*time.Millisecond, nil)
		n, sum := func(i int) int { return 1 + i%3 }, 0
		for i, r := range atOnce(t, all, 100, n) {
			sum += n(i)
			require.Equal(t, []int{1000 - sum, 5000 - sum}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining}, i)
		}
		s.set(0, nil)
		require.NoError(t, d.Close(t.Context()))
	})
}

// Calls for the same first key and others each charge their own.
func TestCallsForOtherKeysAreNotDecidedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const users = 200 // so that some are in one shard
		d, s := onStopped(t, time.Second)
		route, user := newLimiter(t, "fixed_window", d, ratelimit.PerHour(1000)), newLimiter(t, "fixed_window", d, ratelimit.PerDay(10))
		s.set(20*time.Millisecond, nil)
		var wg sync.WaitGroup
		for range 2 {
			for i := range users {
				wg.Go(func() {
					r, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: route, Key: "key", N: 1}, ratelimit.Ask{Limiter: user, Key: strconv.Itoa(i), N: 1})
					require.NoError(t, err)
					require.True(t, r.Allowed)
				})
			}
		}
		wg.Wait()
		s.set(0, nil)
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, 1000-2*users, remaining(t, route))
		for i := range users {
			r, err := user.Peek(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
			require.Equal(t, 10-2, r.Remaining, i)
		}
	})
}

// Once it is known that not all claims fit, as many as fit are requested without leases, so that
// they are admitted even if others leave no more than that.
func TestThoseWhoFitAreAskedForWithoutLeases(t *testing.T) {
	for _, algorithm := range algorithms[1:] { // of a fixed window no lease is large enough
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, s := onSizes(t, stopped)
				tight, wide := newLimiter(t, algorithm, d, ratelimit.PerHour(3600)), newLimiter(t, algorithm, d, ratelimit.PerDay(24*3600))
				all, err := ratelimit.NewAll(tight, wide)
				require.NoError(t, err)
				other, err := lease.New(s.Store, time.Second, lease.WithMaxLease(1))
				require.NoError(t, err)
				others := newLimiter(t, algorithm, other, ratelimit.PerHour(3600))
				for range 60 { // so that leases are large
					require.True(t, allow(t, all).Allowed)
					synctest.Wait()
				}
				for d.Stats().Held > 0 {
					require.True(t, allow(t, all).Allowed)
				}
				require.True(t, allowN(t, others, remaining(t, others)-31).Allowed)
				s.set(20*time.Millisecond, nil)
				tooMuch, taken := false, false
				s.before = func(n []int64) {
					if tooMuch && !taken {
						taken = true
						require.True(t, allow(t, others).Allowed)
					}
					tooMuch = tooMuch || n[0] > 31 && n[0] == 3*99
				}
				three := func(int) int { return 3 }
				told := atOnce(t, all, 100, three)
				require.True(t, taken)
				for i, r := range told {
					require.Equal(t, i < 10, r.Allowed, i)
				}
				s.set(0, nil)
				require.NoError(t, d.Close(t.Context()))
				require.Zero(t, remaining(t, tight))
			})
		})
	}
}

// A store that denies what it says there is room for keeps nobody waiting, and admits nothing by that.
func TestWhereTheStoreContradictsItselfAllAreDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &contradicting{recorder: &recorder{Store: memory(t, stopped)}}
		d, err := lease.New(s, time.Second)
		require.NoError(t, err)
		all, err := ratelimit.NewAll(newLimiter(t, "fixed_window", d, ratelimit.PerHour(1000)), newLimiter(t, "fixed_window", d, ratelimit.PerDay(2000)))
		require.NoError(t, err)
		s.set(20*time.Millisecond, nil)
		for _, r := range atOnce(t, all, 10, one) {
			require.False(t, r.Allowed)
			require.Equal(t, time.Microsecond, r.RetryAfter)
		}
		s.set(0, nil)
		require.NoError(t, d.Close(t.Context()))
	})
}

// contradicting is a store that denies, although there is room.
type contradicting struct{ *recorder }

// Decide implements [store.Store].
func (s *contradicting) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if requests[0].Op == store.OpTake {
		return s.TakeAll(ctx, requests, replies)
	}
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *contradicting) TakeAll(_ context.Context, _ []store.Request, replies []store.Reply) error {
	err := s.called("TakeAll", int64(len(replies)))
	for i := range replies {
		replies[i] = store.Reply{Outcome: store.DeniedPlainly, X: 1, Y: 500, Z: 1_000_000}
	}
	s.answered()
	return err
}

// What was lost may be charged, so the next lease of several limits is small, and nothing is known
// about them.
func TestLeasesOfAnAllAfterAnErrorAreSmall(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			d, s := onSizes(t)
			all, err := ratelimit.NewAll(newLimiter(t, algorithm, d, ratelimit.PerMinute(1200)), newLimiter(t, algorithm, d, ratelimit.PerHour(360_000)))
			require.NoError(t, err)
			charged := grow(t, all, d)
			require.EqualValues(t, charged, d.Stats().Granted/2)
			s.set(0, func(string) error { return errOdd })
			_, err = all.Allow(t.Context(), "key")
			require.ErrorIs(t, err, errOdd)
			s.set(0, nil)
			require.True(t, allow(t, all).Allowed)
			require.Equal(t, []int64{1, 1}, s.n[len(s.n)-1])
			require.Greater(t, s.n[len(s.n)-2][0], int64(1))
			require.NoError(t, d.Close(t.Context()))
		})
	})
}

// The grant that empties a limit comes with what the next call is told, at the price of one look. No other one
// looks, and it says nothing of the demand: once there is room again leases are as large as before.
func TestOfTheGrantThatEmptiesALimit(t *testing.T) {
	for _, rate := range []int{66, 100} { // of which the last grant has 2, or 36, where 64 were wished for
		synctest.Test(t, func(t *testing.T) {
			d, s := onSizes(t)
			tight := newLimiter(t, "sliding_log", d, ratelimit.PerSecond(rate)) // and so the store counts events for two
			all, err := ratelimit.NewAll(tight, newLimiter(t, "sliding_log", d, ratelimit.PerHour(360_000)))
			require.NoError(t, err)
			looks := 0
			for n := range rate + 1 {
				s.reset()
				r := allow(t, all)
				synctest.Wait()
				calls := s.reset()
				looks += len(asked(calls, "Peek"))
				require.Equal(t, n < rate, r.Allowed)
				if !r.Allowed {
					require.Empty(t, calls)
					peek, err := tight.Peek(t.Context(), "key")
					require.NoError(t, err)
					require.Equal(t, peek.RetryAfter, r.RetryAfter)
				}
				time.Sleep(time.Millisecond)
			}
			require.Equal(t, 1, looks)

			time.Sleep(500 * time.Millisecond)
			require.False(t, allow(t, all).Allowed)
			time.Sleep(1600 * time.Millisecond)
			s.reset()
			for range 2 {
				require.True(t, allow(t, all).Allowed)
			}
			require.Equal(t, []int{64}, asked(s.reset(), "TakeUpTo"))
			require.NoError(t, d.Close(t.Context()))
		})
	}
}

// Nor is it worth a look if the last event was asked for alone: nobody may ask for the next one.
func TestNobodyLooksAfterTheLastEventWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onStopped(t, time.Second)
		tight := newLimiter(t, "sliding_log", d, ratelimit.PerHour(3600))
		all, err := ratelimit.NewAll(tight, newLimiter(t, "sliding_log", d, ratelimit.PerDay(24*3600)))
		require.NoError(t, err)
		require.True(t, allowN(t, tight, fullKey(t, tight)-1).Allowed)
		s.reset()
		require.True(t, allow(t, all).Allowed)
		require.Equal(t, []call{{"TakeAll", 2}}, s.reset())
		require.False(t, allow(t, all).Allowed)
		require.NoError(t, d.Close(t.Context()))
	})
}

// If others have taken what there seemed to be, or have given back, what is asked for is found without a look.
func TestNobodyLooksWhereALimitIsNotEmptied(t *testing.T) {
	for name, others := range map[string]func(t *testing.T, l ratelimit.Limiter, taken ratelimit.Result){
		"taken": func(t *testing.T, l ratelimit.Limiter, _ ratelimit.Result) { require.True(t, allowN(t, l, 10).Allowed) },
		"given back": func(t *testing.T, l ratelimit.Limiter, taken ratelimit.Result) {
			require.NoError(t, l.Refund(t.Context(), "key", taken, 64))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, s := onSizes(t, stopped)
				const rate = 200
				all, err := ratelimit.NewAll(newLimiter(t, "sliding_log", d, ratelimit.PerMinute(rate)), newLimiter(t, "sliding_log", d, ratelimit.PerHour(360_000)))
				require.NoError(t, err)
				other, err := lease.New(s.Store, time.Second, lease.WithMaxLease(1))
				require.NoError(t, err)
				l := newLimiter(t, "sliding_log", other, ratelimit.PerMinute(rate))
				taken := allowN(t, l, 100)
				for range 63 { // leases of 1, 1, 2 and so on to 32
					require.True(t, allow(t, all).Allowed)
					synctest.Wait()
				}
				for d.Stats().Held > 0 {
					require.True(t, allow(t, all).Allowed)
				}
				others(t, l, taken)
				s.reset()
				require.True(t, allow(t, all).Allowed)
				calls := s.reset()
				require.Empty(t, asked(calls, "Peek"))
				require.LessOrEqual(t, len(calls), 2)
				require.EqualValues(t, 36, s.n[len(s.n)-len(calls)][0], "all there seemed to be")
				require.NoError(t, d.Close(t.Context()))
			})
		})
	}
}

// A denied call of several events forgets no denial of one, and ends one if it finds room.
func TestADenialOfSeveralEventsKeepsTheDenialOfOne(t *testing.T) {
	for _, free := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			d, s := onStopped(t, time.Second)
			tight := newLimiter(t, "fixed_window", d, ratelimit.PerHour(30))
			all, err := ratelimit.NewAll(tight, newLimiter(t, "fixed_window", d, ratelimit.PerDay(1000)))
			require.NoError(t, err)
			plain := newLimiter(t, "fixed_window", s.Store, ratelimit.PerHour(30))
			taken := allowN(t, plain, 30)
			require.False(t, allow(t, all).Allowed)
			if free > 0 {
				require.NoError(t, plain.Refund(t.Context(), "key", taken, free))
			}
			require.False(t, allow(t, all).Allowed, "it is remembered")
			require.False(t, allowN(t, all, 2).Allowed)
			s.reset()
			require.Equal(t, free > 0, allow(t, all).Allowed)
			require.Equal(t, free == 0, len(s.reset()) == 0)
			require.NoError(t, d.Close(t.Context()))
		})
	}
}

// Events granted together under a limit that has since changed are not spent under the current one.
func TestAGrantOfSeveralLimitsUnderAnOlderOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onSizes(t, stopped)
		type tier struct{}
		tiered := newLimiter(t, "fixed_window", d, ratelimit.PerMinute(10_000), ratelimit.WithLimitFunc(func(ctx context.Context, _ string) (l ratelimit.Limit, err error) {
			l, _ = ctx.Value(tier{}).(ratelimit.Limit)
			return l, nil
		}))
		all, err := ratelimit.NewAll(tiered, newLimiter(t, "fixed_window", d, ratelimit.PerDay(1_000_000)))
		require.NoError(t, err)
		charged := grow(t, all, d)
		lower := context.WithValue(t.Context(), tier{}, ratelimit.PerMinute(5000))
		s.set(20*time.Millisecond, nil)
		var wg sync.WaitGroup
		for _, n := range []int{3, 1} { // so that the next lease would have 3
			wg.Go(func() { require.True(t, allowN(t, all, n).Allowed) })
			synctest.Wait()
		}
		r, err := tiered.AllowN(lower, "key", 2) // by the store, and the limit is another one from now on
		require.NoError(t, err)
		require.Equal(t, []any{true, 5000}, []any{r.Allowed, r.Limit})
		wg.Wait()
		require.EqualValues(t, 1, s.n[len(s.n)-1][0], "no lease is asked for under the older one")
		s.set(0, nil)
		charged += 6
		r, err = tiered.Allow(lower, "key")
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceStore, r.Source())
		charged++
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, 10_000-charged, remaining(t, tiered))
	})
}
