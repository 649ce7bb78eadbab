package lease_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
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

// Callers of one All at once share a call, also if leases live no longer than it takes.
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
	for taken, want := range map[int]int{10: 1 + 19, 28: 1 + 1, 29: 1, 40: 1} {
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
				require.LessOrEqual(t, calls, 6)
				s.set(0, nil)
				require.NoError(t, d.Close(t.Context()))
				require.Equal(t, fresh-want, remaining(t, wide))
				require.Equal(t, max(0, 30-want-taken), remaining(t, tight))
			})
		})
	}
}

// Whatever callers of several sets of keys do, and stores of other processes, no event is lost, and none is
// admitted twice.
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
					})
				}
				wg.Wait()
				s.set(0, nil)
				time.Sleep(time.Minute) // what lapsed goes back
				for _, d := range stores {
					require.NoError(t, d.Close(t.Context()))
				}
				synctest.Wait()
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
					tight := newLimiter(t, "fixed_window", d, ratelimit.PerHour(30))
					all, err := ratelimit.NewAll(tight, newLimiter(t, "fixed_window", d, ratelimit.PerDay(7200)))
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
	for _, several := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t)}
			s.set(hasty{}.Timeout()*7/8, nil)
			d, err := lease.New(hasty{s}, time.Second)
			require.NoError(t, err)
			l := newLimiter(t, "token_bucket", d, ratelimit.Limit{Rate: 50, Period: time.Second, Burst: 100})
			if several {
				l, err = ratelimit.NewAll(l, newLimiter(t, "token_bucket", d, ratelimit.PerHour(1_000_000)))
				require.NoError(t, err)
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
	}
}

// What another limit of a denied All has left is told without those who are admitted before.
func TestWhatIsLeftBesideADenialOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onStopped(t, time.Second)
		all, err := ratelimit.NewAll(newLimiter(t, "fixed_window", d, ratelimit.PerHour(30)), newLimiter(t, "fixed_window", d, ratelimit.PerDay(100)))
		require.NoError(t, err)
		s.set(20*time.Millisecond, nil)
		for i, r := range atOnce(t, all, 60, one) {
			require.Equal(t, i < 30, r.Allowed)
			if !r.Allowed {
				require.Equal(t, 70, r.Parts()[1].Remaining, i)
			}
		}
		s.set(0, nil)
		require.NoError(t, d.Close(t.Context()))
	})
}

// What a batch takes of a limit is not forgotten for what was known of it before.
func TestWhatABatchHasTakenIsKnown(t *testing.T) {
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

// A key may be forgotten while a line is under way of which it is not the first. No lease is then put where nobody
// finds it.
func TestAKeyOfALineIsForgottenMeanwhile(t *testing.T) {
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
		ask(2, first, second) // stands in line meanwhile
		wg.Wait()
		s.set(0, nil)
		time.Sleep(time.Minute)
		require.NoError(t, d.Close(t.Context()))
		synctest.Wait()
		require.Equal(t, fresh-charged, remaining(t, second))
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

// A store that denies what it says there is room for keeps nobody waiting, and admits nothing by that.
func TestWhereTheStoreContradictsItselfAllAreDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &contradicting{recorder: &recorder{Store: memory(t, stopped)}}
		d, err := lease.New(s, time.Second)
		require.NoError(t, err)
		all, err := ratelimit.NewAll(newLimiter(t, "fixed_window", d, ratelimit.PerHour(1000)), newLimiter(t, "fixed_window", d, ratelimit.PerDay(2000)))
		require.NoError(t, err)
		s.set(20*time.Millisecond, nil)
		require.Zero(t, allowed(atOnce(t, all, 10, one), one))
		s.set(0, nil)
		require.NoError(t, d.Close(t.Context()))
	})
}

// contradicting is a store that denies, although there is room.
type contradicting struct{ *recorder }

func (s *contradicting) TakeAll(_ context.Context, _ []store.Request, replies []store.Reply) error {
	err := s.called("TakeAll", int64(len(replies)))
	for i := range replies {
		replies[i] = store.Reply{Outcome: store.DeniedPlainly, X: 1, Y: 500, Z: 1_000_000}
	}
	s.answered()
	return err
}
