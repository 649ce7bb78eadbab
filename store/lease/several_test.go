package lease_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
)

// two are an All of two limits on one lease, on a store that tells what it is asked.
func two(t *testing.T, algorithm string) (all *ratelimit.All, tight, wide ratelimit.Limiter, d *lease.Store, s *recorder) {
	s = &recorder{Store: memory(t)}
	d, err := lease.New(s, time.Second)
	require.NoError(t, err)
	tight = newLimiter(t, algorithm, d, ratelimit.PerMinute(1200))
	wide = newLimiter(t, algorithm, d, ratelimit.PerHour(360_000))
	all, err = ratelimit.NewAll(tight, wide)
	require.NoError(t, err)
	return all, tight, wide, d, s
}

// grow has leases grow, and spends what is held, so that the next call asks for more than it needs.
func grow(t *testing.T, all *ratelimit.All, d *lease.Store) (charged int) {
	for range 12 {
		require.True(t, allow(t, all).Allowed)
		synctest.Wait()
		charged++
	}
	for d.Stats().Held > 0 {
		require.True(t, allow(t, all).Allowed)
		charged++
	}
	return charged
}

// A caller that leaves while leases are fetched is charged nothing, and the leases are there for
// others. The same holds if the call fails or panics, although what was requested may stay charged.
func TestAnAllThatEndsWhileItsLeasesAreFetched(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			all, tight, wide, d, s := two(t, algorithm)
			fresh := [2]int{fullKey(t, tight), fullKey(t, wide)}
			charged := grow(t, all, d)
			s.set(20*time.Millisecond, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Millisecond)
			_, err := all.Allow(ctx, "key")
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			time.Sleep(10 * time.Millisecond)
			require.GreaterOrEqual(t, d.Stats().Held, 2*2, "leases came all the same")
			s.reset()
			require.True(t, allow(t, all).Allowed)
			require.Empty(t, s.reset())
			charged++

			for d.Stats().Held > 0 {
				require.True(t, allow(t, all).Allowed)
				charged++
			}
			wrong, before := errors.New("planted"), d.Stats()
			s.set(0, func(string) error { return wrong })
			_, err = all.Allow(t.Context(), "key")
			require.ErrorIs(t, err, wrong)
			s.set(0, func(string) error { panic(wrong) })
			require.PanicsWithValue(t, wrong, func() { _, _ = all.Allow(t.Context(), "key") })
			s.set(0, nil)
			require.True(t, allow(t, all).Allowed)
			charged++
			after := d.Stats()
			require.Equal(t, [2]int64{2, 3}, [2]int64{after.Lost - before.Lost, after.Asked - before.Asked})
			require.NoError(t, d.Close(t.Context()))
			now := [2]int{remaining(t, tight), remaining(t, wide)}
			if algorithm == "token_bucket" { // some has flowed in
				require.GreaterOrEqual(t, now[0], fresh[0]-charged)
				return
			}
			require.Equal(t, [2]int{fresh[0] - charged, fresh[1] - charged}, now)
		})
	})
}

// A call for one of the keys alone, made in the meantime, is decided by the result.
func TestACallForOneKeyDuringAnAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, tight, _, d, s := two(t, "fixed_window")
		s.set(20*time.Millisecond, nil)
		go func() { _, _ = all.Allow(t.Context(), "key") }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := tight.Allow(ctx, "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, 1200-2, remaining(t, tight))
	})
}

// A call for several keys may find a key empty at the store because a lease of it is in flight. If that leaves enough
// when it arrives, the call is not denied.
func TestAnAllIsNotDeniedWhatALeaseInFlightHas(t *testing.T) {
	for _, algorithm := range []string{"sliding_window", "sliding_log"} {
		for n := range 4 { // one event or two, and whether it is known of another denial what there was
			synctest.Test(t, func(t *testing.T) {
				all, tight, wide, d, s := two(t, algorithm)
				grow(t, all, d)
				enough := 1 + n%2
				allowN(t, tight, remaining(t, tight)-1-enough)
				if n >= 2 {
					full := newLimiter(t, algorithm, d, ratelimit.PerDay(100_000))
					require.True(t, allowN(t, full, 100_000).Allowed)
					both, err := ratelimit.NewAll(tight, full)
					require.NoError(t, err)
					require.False(t, allow(t, both).Allowed)
				}
				left := remaining(t, wide)
				s.set(20*time.Millisecond, nil)
				go func() { _, _ = tight.Allow(t.Context(), "key") }()
				synctest.Wait()
				time.Sleep(time.Millisecond)
				for range enough {
					require.True(t, allow(t, all).Allowed, algorithm)
				}
				require.False(t, allow(t, all).Allowed, algorithm)
				require.NoError(t, d.Close(t.Context()))
				require.Equal(t, left-enough, remaining(t, wide), algorithm)
				require.Zero(t, remaining(t, tight), algorithm)
			})
		}
	}
}

// A First of limits on one lease takes what is held of the first one, and then of the next one.
func TestAFirstTakesWhatIsHeldInTurn(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			d, s := onStopped(t, time.Second)
			plan, credits := newLimiter(t, algorithm, d, ratelimit.PerMinute(1200)), newLimiter(t, algorithm, d, ratelimit.PerHour(360_000))
			first, err := ratelimit.NewFirst(plan, credits)
			require.NoError(t, err)
			fresh := []int{fullKey(t, plan), fullKey(t, credits)}
			s.reset()
			for range fresh[0] + 100 {
				require.True(t, allow(t, first).Allowed)
				synctest.Wait()
			}
			require.Less(t, len(s.reset()), 100)
			require.NoError(t, d.Close(t.Context()))
			require.Equal(t, []int{0, fresh[1] - 100}, []int{remaining(t, plan), remaining(t, credits)})
		})
	})
}

// A denial of an All is remembered, with what its other limits have said.
func TestADenialOfAnAllIsRemembered(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			all, tight, _, d, s := two(t, algorithm)
			require.True(t, allowN(t, tight, fullKey(t, tight)).Allowed)
			denial := allow(t, all)
			require.False(t, denial.Allowed)
			s.reset()
			for range 10 {
				r := allow(t, all)
				require.False(t, r.Allowed)
				require.Equal(t, ratelimit.SourceLease, r.Source())
				require.Equal(t, denial.Parts()[1].Remaining, r.Parts()[1].Remaining)
				require.LessOrEqual(t, r.RetryAfter, max(denial.RetryAfter, time.Second))
			}
			require.Empty(t, s.reset())
			require.NoError(t, d.Close(t.Context()))
		})
	})
}

// The leases of an All grow as others do, however long the process has run.
func TestLeasesOfAnAllGrow(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			all, _, _, d, s := two(t, algorithm)
			time.Sleep(time.Hour)
			for range 100 {
				require.True(t, allow(t, all).Allowed)
				synctest.Wait()
			}
			require.LessOrEqual(t, len(s.reset()), 20)
			require.NoError(t, d.Close(t.Context()))
		})
	})
}

// The grant that empties a limit comes with what the next call is told.
func TestTheDenialAfterTheLastGrantOfAnAllIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onStopped(t, time.Second)
		tight := newLimiter(t, "sliding_log", d, ratelimit.PerMinute(1200))
		all, err := ratelimit.NewAll(tight, newLimiter(t, "sliding_log", d, ratelimit.PerHour(360_000)))
		require.NoError(t, err)
		allowed := 0
		for allow(t, all).Allowed {
			synctest.Wait()
			allowed++
			s.reset()
		}
		require.Equal(t, 1200, allowed)
		require.Empty(t, s.reset())
		require.NoError(t, d.Close(t.Context()))
	})
}

// What an All has spent of a lease is refunded if another limit denies, even if the lease was
// closed in the meantime.
func TestCloseDuringAnAllThatIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _, wide, d, s := two(t, "sliding_log")
		charged := 0
		for ; d.Stats().Held < 4; charged++ {
			require.True(t, allow(t, all).Allowed)
			synctest.Wait()
		}
		small, err := ratelimit.NewSlidingLog(d, ratelimit.PerHour(100_000), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.PerHour(1), nil })) // too few for a lease
		require.NoError(t, err)
		require.True(t, allow(t, small).Allowed)
		both, err := ratelimit.NewAll(wide, small)
		require.NoError(t, err)
		s.set(time.Second, nil)
		denied := make(chan bool)
		go func() { denied <- !allow(t, both).Allowed }()
		synctest.Wait()
		s.set(0, nil)
		require.NoError(t, d.Close(t.Context()))
		require.True(t, <-denied)
		synctest.Wait()
		plain := newLimiter(t, "sliding_log", s.Store, ratelimit.PerHour(360_000))
		r, err := plain.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 360_000-charged, r.Remaining)
	})
}

// A limit that can have no lease is asked of the store each time, and what is held of the others is spent if
// that admits the event, and only then.
func TestAnAllBesideALimitWithoutALease(t *testing.T) {
	for name, algorithm := range map[string]string{"window": "fixed_window", "log": "sliding_log"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, _, wide, d, s := two(t, algorithm)
				charged := 0
				for ; d.Stats().Held < 8; charged++ {
					require.True(t, allow(t, all).Allowed)
					synctest.Wait()
				}
				small, err := ratelimit.New("sliding_log", d, ratelimit.PerHour(100_000), ratelimit.WithLimitFunc(
					func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.PerHour(2), nil })) // too few for a lease
				require.NoError(t, err)
				both, err := ratelimit.NewAll(wide, small)
				require.NoError(t, err)
				for _, step := range []struct {
					fail    error
					allowed bool
					spent   int
				}{{nil, true, 1}, {errors.New("planted"), false, 0}, {nil, true, 1}, {nil, false, 0}} {
					s.set(0, func(string) error { return step.fail })
					before := d.Stats()
					r, err := both.Allow(t.Context(), "key")
					require.ErrorIs(t, err, step.fail)
					require.Equal(t, step.allowed, r.Allowed)
					after := d.Stats()
					require.Equal(t, step.spent, before.Held-after.Held)
					require.EqualValues(t, 1, after.Asked-before.Asked)
					charged += step.spent
				}
				r, err := both.Peek(t.Context(), "key")
				require.NoError(t, err)
				require.False(t, r.Allowed)
				require.NoError(t, d.Close(t.Context()))
				require.Equal(t, 360_000-charged, remaining(t, wide))
			})
		})
	}
}

// gates is a store to which each look is a gate.
type gates struct{ store.Store }

func (g gates) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	for i := range requests {
		if requests[i].Op == store.OpLook && len(requests) > 1 {
			requests[i].Op = store.OpGate
		}
	}
	return g.Store.Decide(ctx, requests, replies)
}

// The store decides whether a gate is open. Events held here do not show that it was, after nothing
// was charged.
func TestBehindAGateThatDeniesNothingIsAdmitted(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			d, s := onStopped(t, time.Second)
			gate, behind := newLimiter(t, algorithm, gates{d}, ratelimit.PerMinute(1200)), newLimiter(t, algorithm, gates{d}, ratelimit.PerHour(360_000))
			ask := func() ratelimit.Result {
				r, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: gate, Key: "key", Look: true}, ratelimit.Ask{Limiter: behind, Key: "key", N: 1})
				require.NoError(t, err)
				return r
			}
			fresh := fullKey(t, behind)
			require.True(t, ask().Allowed)
			for d.Stats().Held < 8 {
				require.True(t, allow(t, gate).Allowed)
				synctest.Wait()
			}
			other, err := lease.New(s.Store, time.Second, lease.WithMaxLease(1))
			require.NoError(t, err)
			_, _, err = newLimiter(t, algorithm, other, ratelimit.PerMinute(1200)).(limiting).AllowUpTo(t.Context(), "key", 1200)
			require.NoError(t, err)
			require.False(t, ask().Allowed)
			require.NoError(t, d.Close(t.Context()))
			require.Equal(t, fresh-1, remaining(t, behind))
		})
	})
}

// said is the content of a Result, except for its Source.
type said struct {
	allowed                  bool
	limit, remaining         int
	retryAfter, after, delay time.Duration
}

func saysOf(r ratelimit.Result) []said {
	says := []said{{r.Allowed, r.Limit, r.Remaining, r.RetryAfter, r.ResetAfter, r.Delay}}
	for _, part := range r.Parts() {
		says = append(says, saysOf(part.Result)...)
	}
	return says
}

// A limit that cannot be leased reports what the store itself would: about events, about looks, and
// about what another limit denies.
func TestSeveralLimitsWithoutALeaseAreToldWhatTheStoreSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := lease.New(memory(t), time.Second)
		require.NoError(t, err)
		var sides [2][]ratelimit.Limiter
		for i, s := range []store.Store{d, memory(t)} {
			for _, algorithm := range algorithms[:2] { // whose strict limits are their own
				sides[i] = append(sides[i], newLimiter(t, algorithm, s, ratelimit.PerMinute(12)), newLimiter(t, algorithm, s, ratelimit.PerHour(300)))
			}
		}
		random, admitted := rand.New(rand.NewPCG(4, 1)), 0
		for i := range 500 {
			time.Sleep(time.Duration(random.Int64N(int64(10 * time.Second))))
			var asks [2][]ratelimit.Ask
			for l := range sides[0] {
				n, key := random.IntN(5), strings.Repeat("k", 257+random.IntN(2)) // too long to be held
				for side := range asks {
					asks[side] = append(asks[side], ratelimit.Ask{Limiter: sides[side][l], Key: key, N: n, Look: n == 0})
				}
			}
			got, err := ratelimit.Decide(t.Context(), asks[0]...)
			require.NoError(t, err)
			want, err := ratelimit.Decide(t.Context(), asks[1]...)
			require.NoError(t, err)
			require.Equal(t, saysOf(want), saysOf(got), "call %d: %+v", i, asks[0])
			if got.Allowed {
				admitted++
			}
		}
		require.Greater(t, admitted, 100)
		require.Less(t, admitted, 400)
		require.NoError(t, d.Close(t.Context()))
	})
}

// A call that may wait takes events that are held, or otherwise the turn that the store gives, to
// the microsecond, charged each time. A call that does not wait has leases fetched as usual.
func TestTurnsAreGivenByTheStore(t *testing.T) {
	for name, several := range map[string]bool{"alone": false, "in an All": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, s := onStopped(t, life)
				bucket := newLimiter(t, "token_bucket", d, ratelimit.Limit{Rate: 1_000_000, Period: time.Second, Burst: 200_000})
				l := bucket
				if several {
					all, err := ratelimit.NewAll(bucket, newLimiter(t, "fixed_window", d, ratelimit.PerHour(1_000_000)))
					require.NoError(t, err)
					l = all
				}
				within := func(wait time.Duration) ratelimit.Result {
					r, err := ratelimit.AllowWithin(t.Context(), l, "key", 1, wait)
					require.NoError(t, err)
					synctest.Wait()
					return r
				}
				for d.Stats().Held < 16 {
					require.True(t, within(0).Allowed)
					require.Less(t, d.Stats().Asked, int64(40), "no lease is fetched")
				}
				s.reset()
				require.Equal(t, ratelimit.SourceLease, within(time.Second).Source())
				require.Empty(t, s.reset())

				_, _, err := bucket.(limiting).AllowUpTo(t.Context(), "key", 200_000)
				require.NoError(t, err)
				for i := range 3 {
					wait := time.Duration(1+i) * time.Microsecond
					require.False(t, within(wait-time.Microsecond).Allowed, i)
					r := within(wait)
					require.True(t, r.Allowed, i)
					require.Equal(t, wait, r.Delay)
				}
				require.NoError(t, d.Close(t.Context()))
			})
		})
	}
}

// A key that is asked for in each life is not forgotten, whoever asks.
func TestAKeyInUseIsNotForgotten(t *testing.T) {
	for name, ask := range map[string]func(t *testing.T, l limiting){
		"one event":      func(t *testing.T, l limiting) { allow(t, l) },
		"several events": func(t *testing.T, l limiting) { allowN(t, l, 3) },
		"several limits": func(t *testing.T, l limiting) {
			other := newLimiter(t, "fixed_window", l.(*onLease).Store, ratelimit.PerDay(1_000_000))
			_, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: l.(*onLease).limiting, Key: "key", N: 3}, ratelimit.Ask{Limiter: other, Key: strings.Repeat("k", 257), N: 1})
			require.NoError(t, err)
		},
		"up to some": func(t *testing.T, l limiting) {
			_, _, err := l.AllowUpTo(t.Context(), "key", 3)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newLease(t, newLimiter(t, "fixed_window", memory(t), window), life)
				require.True(t, allow(t, d).Allowed)
				for range 20 {
					ask(t, d)
					time.Sleep(life)
					synctest.Wait()
					require.Equal(t, 1, d.Stats().Keys)
				}
				time.Sleep(5 * life)
				synctest.Wait()
				require.Zero(t, d.Stats().Keys)
				closeLease(t, d)
			})
		})
	}
}

// What other limits have reported with a denial is known for half a TTL. It denies only together
// with what denies, and admits nothing.
func TestReportsWithADenialAdmitNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onStopped(t, time.Second)
		tight, wide, wider := newLimiter(t, "fixed_window", d, ratelimit.PerHour(30)), newLimiter(t, "fixed_window", d, ratelimit.PerDay(1000)), newLimiter(t, "sliding_window", d, ratelimit.PerDay(2000))
		all, err := ratelimit.NewAll(tight, wide, wider)
		require.NoError(t, err)
		others, err := ratelimit.NewAll(wide, wider)
		require.NoError(t, err)
		require.True(t, allowN(t, tight, 30).Allowed)
		require.True(t, allowN(t, wide, 990).Allowed)
		time.Sleep(10 * time.Second)
		s.reset()
		require.False(t, allow(t, all).Allowed)
		require.Equal(t, []call{{"TakeAll", 3}}, s.reset(), "once")
		require.False(t, allowN(t, all, 11).Allowed, "of which wide has 10")
		s.reset()
		time.Sleep(time.Second/2 - 1)
		require.False(t, allow(t, all).Allowed)
		require.Empty(t, s.reset())
		time.Sleep(time.Nanosecond)
		require.False(t, allow(t, all).Allowed)
		require.NotEmpty(t, s.reset())
		require.True(t, allow(t, others).Allowed)
		require.Equal(t, []int{2}, asked(s.reset(), "TakeAll"))
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, []int{9, 1999}, []int{remaining(t, wide), remaining(t, wider)})
	})
}

// A shadow that denies is told so, and nothing is held of it.
func TestAShadowThatDeniesHasNoLease(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			d, _ := onStopped(t, time.Second)
			trial, real := newLimiter(t, algorithm, d, ratelimit.PerHour(7200)), newLimiter(t, algorithm, d, ratelimit.PerDay(100_000))
			require.True(t, allowN(t, trial, fullKey(t, trial)).Allowed)
			for range 10 {
				r, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: trial, Key: "key", N: 1, Shadow: true}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
				require.NoError(t, err)
				require.True(t, r.Allowed)
				require.False(t, r.Parts()[0].Allowed)
				synctest.Wait()
			}
			require.False(t, allow(t, trial).Allowed)
			fresh := fullKey(t, real)
			require.NoError(t, d.Close(t.Context()))
			require.Equal(t, fresh-10, remaining(t, real))
		})
	})
}

// A look finds the one event that is held here, although others have taken all the rest.
func TestALookFindsTheLastEventThatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := onStopped(t, time.Second)
		seen, other := newLimiter(t, "fixed_window", d, ratelimit.PerHour(1000)), newLimiter(t, "fixed_window", d, ratelimit.PerDay(1000))
		for d.Stats().Held != 1 {
			require.True(t, allow(t, seen).Allowed)
			require.Less(t, d.Stats().Granted, int64(500))
		}
		plain := newLimiter(t, "fixed_window", s.Store, ratelimit.PerHour(1000))
		require.True(t, allowN(t, plain, remaining(t, plain)).Allowed)
		r, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: seen, Key: "key", Look: true}, ratelimit.Ask{Limiter: other, Key: "key", N: 1})
		require.NoError(t, err)
		require.True(t, r.Parts()[0].Allowed)
		require.NoError(t, d.Close(t.Context()))
	})
}
