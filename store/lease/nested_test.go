package lease_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// told counts what an Observer is told of.
type told struct{ admitted, denied, failed atomic.Int64 }

func (o *told) Decided(_ context.Context, _ string, _ int, r ratelimit.Result, err error, _ time.Duration) {
	switch {
	case err != nil:
		o.failed.Add(1)
	case r.Allowed:
		o.admitted.Add(1)
	default:
		o.denied.Add(1)
	}
}

// wrappers stand around a lease. (The matrix of package ratelimit has no leases: its model knows
// no denial that is remembered, and no event that is held.)
var wrappers = map[string]func(t *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error){
	"nothing": func(_ *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) { return l, nil },
	"observe.Around": func(_ *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) {
		return observe.Around(l, new(told))
	},
	"All": func(t *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) {
		other := newLimiter(t, "token_bucket", memory(t, stopped), ratelimit.PerSecond(200))
		return ratelimit.NewAll(other, l)
	},
	"All of two leases": func(t *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) {
		other := newLease(t, newLimiter(t, "sliding_window", memory(t, stopped), ratelimit.PerSecond(200)), life)
		return ratelimit.NewAll(l, other.limiting)
	},
	"fallback open": func(_ *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) {
		return fallback.New(l, fallback.FailOpen())
	},
	"fallback, FailLocal": func(_ *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) {
		return fallback.New(l, fallback.FailLocal(2))
	},
	"accesslist": func(_ *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) { return accesslist.New(l) },
	"shadow, enforced": func(_ *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) {
		return shadow.New(l, func(context.Context, string, int, ratelimit.Result, error) {}, shadow.WithEnforcement(100))
	},
	"Waiter": func(_ *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) {
		return throttle.NewWaiter(l, 2*life)
	},
	"Slowdown": func(_ *testing.T, l ratelimit.Limiter) (ratelimit.Limiter, error) {
		return throttle.NewSlowdown(l, throttle.Slow{Step: time.Millisecond, Max: life})
	},
}

// Whatever is done to a lease through other wrappers, the store counts each event in the end.
func TestNestedLeasesCountEachEvent(t *testing.T) {
	for name, wrap := range wrappers {
		t.Run(name, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, algorithm string) {
				for seed := range uint64(20) {
					synctest.Test(t, func(t *testing.T) {
						mem := memory(t, stopped)
						d := newLease(t, newLimiter(t, algorithm, mem, ratelimit.PerSecond(150)), life)
						plain := newLease(t, newLimiter(t, algorithm, mem, ratelimit.PerSecond(150)), life)
						limit := remaining(t, plain)
						l, err := wrap(t, d.limiting)
						require.NoError(t, err)
						charged := atRandom(t, l, rand.New(rand.NewPCG(seed, 5)))
						closeLease(t, d)
						require.Equal(t, max(0, limit-charged), remaining(t, plain))
					})
				}
			})
		})
	}
}

// atRandom asks l for this and that, and returns how many events it has charged.
func atRandom(t *testing.T, l ratelimit.Limiter, random *rand.Rand) (charged int) {
	t.Helper()
	ctx := t.Context()
	type call struct {
		n int
		r ratelimit.Result
	}
	var admitted []call
	for range 100 {
		n := 1
		if random.IntN(3) == 0 {
			n += random.IntN(4)
		}
		var r ratelimit.Result
		var err error
		switch random.IntN(12) {
		default:
			r, err = l.AllowN(ctx, "key", n)
		case 0:
			_, r, err = ratelimit.AllowUpTo(ctx, l, "key", n)
		case 1:
			r, err = ratelimit.AllowWithin(ctx, l, "key", n, 0)
		case 2:
			time.Sleep(time.Duration(random.Int64N(int64(life))))
		case 3:
			_, err = l.Peek(ctx, "key")
		case 4, 5:
			if len(admitted) > 0 {
				last := admitted[len(admitted)-1]
				admitted = admitted[:len(admitted)-1]
				err = l.Refund(ctx, "key", last.r, last.n)
				charged -= last.r.Charged()
			}
		}
		require.NoError(t, err)
		if r.Charged() > 0 {
			admitted = append(admitted, call{n, r})
			charged += r.Charged()
		}
		if random.IntN(4) == 0 {
			synctest.Wait()
		}
	}
	return charged
}

// While the store fails, what is held is admitted, and then the fallback answers.
func TestFallbackAroundALease(t *testing.T) {
	for name, c := range map[string]struct {
		policy fallback.Answer
		source ratelimit.Source
	}{
		"open":       {fallback.FailOpen(), ratelimit.SourceFailOpen},
		"closed":     {fallback.FailClosed(), ratelimit.SourceFailClosed},
		"LocalShare": {fallback.FailLocal(2), ratelimit.SourceLocal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &recorder{Store: memory(t)}
				d := newLease(t, newLimiter(t, "token_bucket", s, perSecond), life)
				l, err := fallback.New(d.limiting, c.policy)
				require.NoError(t, err)
				hold(t, d, 8)
				s.set(0, func(string) error { return store.ErrUnavailable })
				for d.Stats().Held > 0 {
					require.Equal(t, ratelimit.SourceLease, allow(t, l).Source())
					synctest.Wait()
				}
				r := allow(t, l)
				require.Equal(t, c.source, r.Source())
				require.Equal(t, name != "closed", r.Allowed)
				closeLease(t, d)
			})
		})
	}
}

// An observer is told of each decision, whoever has made it.
func TestObservedLease(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			observer := new(told)
			d := newLease(t, newLimiter(t, algorithm, memory(t, stopped), perSecond), life)
			l, err := observe.Around(d.limiting, observer)
			require.NoError(t, err)
			n := int64(0)
			for allow(t, l).Allowed {
				n++
				synctest.Wait()
			}
			require.Equal(t, n, observer.admitted.Load())
			require.Equal(t, int64(1), observer.denied.Load())
			require.Less(t, d.Stats().Asked, n/2)
			closeLease(t, d)
		})
	})
}

// The policy that a lease reports matches its Results.
func TestPoliciesOfALease(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		tiers := ratelimit.WithTiers(
			func(_ context.Context, key string) (string, error) { return key, nil },
			map[string]ratelimit.Limit{"free": ratelimit.PerSecond(100), "tiny": ratelimit.PerSecond(10), "all": ratelimit.Unlimited()})
		d := newLease(t, newLimiter(t, algorithm, memory(t, stopped), perSecond, tiers), life)
		for _, key := range []string{"free", "tiny", "all"} {
			policies, err := ratelimit.AppendPolicies(t.Context(), nil, d, key)
			require.NoError(t, err)
			require.Len(t, policies, 1)
			r, err := d.Allow(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, policies[0].Quota, r.Limit, key)
		}
		closeLease(t, d)
	})
}

// Limits on one lease are decided together: all or none, to the event.
func TestAnAllOnALeaseCountsEachEvent(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t, stopped)}
			d, err := lease.New(s, life)
			require.NoError(t, err)
			of := func(s store.Store, limit int) ratelimit.Limiter {
				return newLimiter(t, algorithms[seed%4], s, ratelimit.PerSecond(limit))
			}
			tight, wide := of(d, 150), newLimiter(t, algorithms[(seed+1)%4], d, ratelimit.PerSecond(400))
			all, err := ratelimit.NewAll(tight, wide)
			require.NoError(t, err)
			fresh := [2]int{fullKey(t, tight), fullKey(t, wide)}
			random := rand.New(rand.NewPCG(seed, 6))
			charged := atRandom(t, all, random)
			for range 20 { // also alone, so that some of an All is held
				r := allow(t, []ratelimit.Limiter{tight, wide}[seed%2])
				if r.Allowed {
					fresh[seed%2]--
				}
				synctest.Wait()
				r = allowN(t, all, 1+random.IntN(3))
				charged += r.Charged()
			}
			require.NoError(t, d.Close(t.Context()))
			require.Equal(t, max(0, fresh[0]-charged), remaining(t, tight))
			require.Equal(t, max(0, fresh[1]-charged), remaining(t, wide))
		})
	}
}

// An All that is often used is held completely, and then needs no call to the store.
func TestAnAllOfHeldKeysAsksNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d, err := lease.New(s, time.Minute)
		require.NoError(t, err)
		all, err := ratelimit.NewAll(newLimiter(t, "fixed_window", d, ratelimit.PerHour(100_000)), newLimiter(t, "sliding_window", d, ratelimit.PerHour(200_000)))
		require.NoError(t, err)
		for range 2000 {
			require.True(t, allow(t, all).Allowed)
			synctest.Wait()
		}
		require.Less(t, d.Stats().Asked, int64(200))
		r := allow(t, all)
		require.Equal(t, ratelimit.SourceLease, r.Source())
		require.InDelta(t, 100_000-2001, r.Parts()[0].Remaining, 100, "by the grant that it is of")
		require.NoError(t, all.Refund(t.Context(), "key", r, 1))
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, 100_000-2000, remaining(t, all))
	})
}

// A denial of one limit leaves what is held of the other.
func TestADeniedAllLeavesHeldEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := lease.New(memory(t, stopped), life)
		require.NoError(t, err)
		held := newLimiter(t, "fixed_window", d, ratelimit.PerSecond(1000))
		full := newLimiter(t, "sliding_log", d, ratelimit.PerSecond(200))
		for d.Stats().Held < 8 {
			require.True(t, allow(t, held).Allowed)
			synctest.Wait()
		}
		require.True(t, allowN(t, full, fullKey(t, full)).Allowed)
		all, err := ratelimit.NewAll(held, full)
		require.NoError(t, err)
		before := d.Stats().Held
		for range 5 {
			require.False(t, allow(t, all).Allowed)
		}
		require.Equal(t, before, d.Stats().Held)
		require.NoError(t, d.Close(t.Context()))
	})
}
