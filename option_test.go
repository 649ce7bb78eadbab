package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/kept"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// requestsAndTokens is an All of 5 requests and 20 tokens in an hour, and both alone. around
// makes what stands around the limiter of requests.
func requestsAndTokens(t *testing.T, s store.Store, around func(ratelimit.Limiter) ratelimit.Limiter) (a, requests, tokens ratelimit.Limiter) {
	requests = newLimiter(t, "fixed_window", s, ratelimit.PerHour(5), ratelimit.WithName("requests"))
	tokens = newLimiter(t, "fixed_window", s, ratelimit.PerHour(20), ratelimit.WithName("tokens"))
	return all(t, around(requests), tokens), requests, tokens
}

// hour is the model: what is charged in this hour.
type hour struct{ calls, events int }

func (h *hour) fits(n int) bool { return h.calls < 5 && h.events+n <= 20 }

func (h *hour) charge(n int) { h.calls, h.events = h.calls+1, h.events+n }

func TestCallsInAnAllAreOneRequestAndNTokens(t *testing.T) {
	t.Parallel()
	c := newClock()
	stores := map[string]store.Store{
		"memory":            memory(t, c),
		"Redis":             redisServer(t, redisstore.WithClock(c.Now)),
		"one after another": withoutJoint{Store: memory(t, c)},
	}
	ways := map[string]func(l ratelimit.Limiter) ratelimit.Limiter{
		"plain":         func(l ratelimit.Limiter) ratelimit.Limiter { return perCall(t, l) },
		"another key":   func(l ratelimit.Limiter) ratelimit.Limiter { return perCall(t, onOneKey(t, l, "key")) },
		"in a fallback": func(l ratelimit.Limiter) ratelimit.Limiter { return failover(t, perCall(t, l), fallback.FailOpen()) },
	}
	for where, s := range stores {
		for way, around := range ways {
			t.Run(where+", "+way, func(t *testing.T) {
				ctx, rng := t.Context(), rand.New(rand.NewPCG(1, 2))
				a, requests, tokens := requestsAndTokens(t, s, around)
				require.NoError(t, a.Reset(ctx, "key"))
				var now hour
				began := c.Now().Truncate(time.Hour)
				for range 400 {
					if c.Now().Truncate(time.Hour) != began {
						now, began = hour{}, c.Now().Truncate(time.Hour)
					}
					n := 1 + rng.IntN(8)
					fits := now.fits(n)
					var r ratelimit.Result
					var err error
					switch rng.IntN(6) {
					case 0:
						r, err = a.Peek(ctx, "key")
						require.Equal(t, now.fits(1), r.Allowed)
					case 1:
						var granted int
						granted, r, err = ratelimit.AllowUpTo(ctx, a, "key", n)
						want := max(0, min(n, 20-now.events))
						if now.calls == 5 {
							want = 0
						}
						require.Equal(t, want, granted)
						if granted > 0 {
							now.charge(granted)
						}
					case 2:
						r, err = ratelimit.Charge(ctx, a, "key", n) // past the limit, too
						require.True(t, r.Allowed)
						now.events += n
						if rng.IntN(2) == 0 {
							require.NoError(t, a.Refund(ctx, "key", r, n))
							now.events -= n
						}
					default:
						if rng.IntN(2) == 0 {
							r, err = a.AllowN(ctx, "key", n)
						} else {
							r, err = ratelimit.AllowWithin(ctx, a, "key", n, time.Minute)
						}
						require.Equal(t, fits, r.Allowed)
						if !fits {
							break
						}
						require.Equal(t, n, r.Charged())
						require.Equal(t, 1, r.Parts()[0].Charged())
						now.charge(n)
						back := rng.IntN(n + 1)
						if back == 0 || rng.IntN(3) == 0 {
							break
						}
						require.NoError(t, a.Refund(ctx, "key", r, back))
						if now.events -= back; back == n {
							now.calls--
						}
					}
					require.NoError(t, err)
					require.Len(t, r.Parts(), 2)
					require.Equal(t, 5-now.calls, peek(t, requests, "key").Remaining)
					require.Equal(t, max(0, 20-now.events), peek(t, tokens, "key").Remaining)
					c.Advance(time.Duration(rng.Int64N(int64(10 * time.Minute))))
				}
			})
		}
	}
}

func TestCallsInAnAllAreDecidedTogether(t *testing.T) {
	s := &tally{Store: memory(t, newClock())}
	for _, around := range []func(l ratelimit.Limiter) ratelimit.Limiter{
		func(l ratelimit.Limiter) ratelimit.Limiter { return perCall(t, l) },
		func(l ratelimit.Limiter) ratelimit.Limiter {
			return onOneKey(t, perCall(t, l), "key")
		},
	} {
		a, _, _ := requestsAndTokens(t, s, around)
		require.NoError(t, a.Reset(t.Context(), "key"))
		s.Joints = 0
		require.True(t, allowN(t, a, 7).Allowed)
		require.True(t, allowN(t, a, 13).Allowed)
		r := allowN(t, a, 1)
		require.Equal(t, "tokens", r.DeniedBy())
		require.Equal(t, 3, r.Parts()[0].Remaining)
		require.Equal(t, []int{3, 0}, []int{s.Joints, s.Singles})
	}
}

// Of a limit that two parts charge, one with each call and one with each event.
func TestCallsBesideTheSameLimit(t *testing.T) {
	for _, s := range []store.Store{memory(t, newClock()), withoutJoint{Store: memory(t, newClock())}} {
		lim := newLimiter(t, "token_bucket", s, ratelimit.PerHour(10))
		for i, a := range []ratelimit.Limiter{all(t, perCall(t, lim), lim), all(t, lim, perCall(t, lim))} {
			r := allowN(t, a, 6)
			require.True(t, r.Allowed)
			require.Equal(t, 3, r.Remaining)
			require.Equal(t, 1, r.Parts()[i].Charged())
			require.False(t, allowN(t, a, 3).Allowed)
			require.NoError(t, a.Refund(t.Context(), "key", r, 5))
			require.Equal(t, 8, peek(t, lim, "key").Remaining)
			whole := allowN(t, a, 7)
			require.True(t, whole.Allowed)
			require.NoError(t, a.Refund(t.Context(), "key", whole, 7))
			require.Equal(t, 8, peek(t, lim, "key").Remaining)
			require.NoError(t, lim.Reset(t.Context(), "key"))
		}
	}
	_, err := ratelimit.NewAll(inMemory(t, "token_bucket", ratelimit.PerHour(5)), perCall(t, onOneKey(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)), "x")))
	require.NoError(t, err)
	lim := inMemory(t, "token_bucket", ratelimit.PerHour(5))
	_, err = ratelimit.NewAll(lim, perCall(t, onOneKey(t, lim, "x")))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

func TestCallsAloneChargeOneEvent(t *testing.T) {
	ctx := t.Context()
	for _, algorithm := range algorithms {
		lim := inMemory(t, algorithm, ratelimit.PerHour(5))
		l := perCall(t, lim)
		r := allowN(t, l, 1_000_000)
		require.True(t, r.Allowed)
		require.Equal(t, 4, r.Remaining)
		require.Equal(t, 1, r.Charged())
		require.NoError(t, l.Refund(ctx, "key", r, 999_999), "of fewer, none")
		require.Equal(t, 4, peek(t, l, "key").Remaining)
		require.NoError(t, l.Refund(ctx, "key", r, 1_000_000))
		require.Equal(t, 5, peek(t, lim, "key").Remaining)
		require.NoError(t, l.Refund(ctx, "key", allow(t, l, "key"), 3))
		require.Equal(t, 5, peek(t, lim, "key").Remaining, "all that there was of a call of one")

		granted, r, err := ratelimit.AllowUpTo(ctx, l, "key", math.MaxInt)
		require.NoError(t, err)
		require.Equal(t, math.MaxInt, granted)
		require.Equal(t, 4, r.Remaining)
		within := allowWithin(t, l, 9, time.Hour)
		require.True(t, within.Allowed)
		require.Equal(t, 1, within.Charged())
		left := peek(t, lim, "key").Remaining
		r = overcharge(t, l, 50)
		require.Equal(t, []int{0, left}, []int{r.Charged(), r.Remaining})
		require.NoError(t, l.Refund(ctx, "key", r, 50))
		require.Equal(t, left, peek(t, lim, "key").Remaining)
		require.True(t, allowN(t, l, left).Allowed)
		for allow(t, l, "key").Allowed {
		}
		granted, _, err = ratelimit.AllowUpTo(ctx, l, "key", 9)
		require.NoError(t, err)
		require.Zero(t, granted)
		require.ErrorIs(t, l.Refund(ctx, "key", allowN(t, l, 2), 2), ratelimit.ErrInvalidN)
		require.NoError(t, l.Reset(ctx, "key"))
		require.Equal(t, 5, peek(t, lim, "key").Remaining)
		require.Len(t, policiesOf(t, l, "key"), 1+1)
		_, err = ratelimit.Wait(ctx, l, "key", 50)
		require.NoError(t, err)
	}
}

func TestCallsCheckTheirInput(t *testing.T) {
	zero := allowN(t, perCall(t, inMemory(t, "token_bucket", ratelimit.PerHour(0))), 2)
	require.Equal(t, ratelimit.SourceZeroRate, zero.Source())
	l := perCall(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)))
	calls := map[string]func(key string, n int) error{
		"AllowN":      func(key string, n int) error { _, err := l.AllowN(t.Context(), key, n); return err },
		"AllowWithin": func(key string, n int) error { _, err := ratelimit.AllowWithin(t.Context(), l, key, n, 0); return err },
		"Charge":      func(key string, n int) error { _, err := ratelimit.Charge(t.Context(), l, key, n); return err },
		"Refund": func(key string, n int) error {
			return l.Refund(t.Context(), key, allowN(t, l, 2), n)
		},
	}
	for name, call := range calls {
		require.ErrorIs(t, call("key", 0), ratelimit.ErrInvalidN, name)
		require.ErrorIs(t, call("", 1), ratelimit.ErrInvalidKey, name)
	}
}

func TestTheLocalLimiterOfCallsCountsCalls(t *testing.T) {
	a, _, _ := requestsAndTokens(t, memory(t, newClock()), func(l ratelimit.Limiter) ratelimit.Limiter { return perCall(t, l) })
	share, err := see.Local(a, memory(t, newClock()), 5)
	require.NoError(t, err)
	require.True(t, allowN(t, share, 3).Allowed)
	require.Equal(t, "requests", allowN(t, share, 1).DeniedBy(), "a fifth of 5, and of 20")
}

func TestTiers(t *testing.T) {
	unknown := errors.New("no such user")
	tiers := map[string]ratelimit.Limit{
		"pro": ratelimit.PerHour(10), "internal": ratelimit.Unlimited(), "banned": ratelimit.PerHour(0),
	}
	tier := ""
	of := func(_ context.Context, key string) (string, error) {
		if key == "nobody" {
			return "pro", unknown
		}
		return tier, nil
	}
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		lim := newLimiter(t, algorithm, s, ratelimit.PerHour(3), ratelimit.WithTiers(of, tiers))
		for _, step := range []struct {
			tier                 string
			n, limit, left       int
			allowed, neverBefore bool
		}{
			{"", 2, 3, 1, true, false},
			{"pro", 5, 10, 3, true, false}, // 7 are spent
			{"unknown", 1, 3, 0, false, false},
			{"banned", 1, 0, 0, false, true},
			{"internal", 1000, 1<<31 - 1, 1<<31 - 1, true, false},
			{"pro", 3, 10, 0, true, false},
		} {
			tier = step.tier
			r := allowN(t, lim, step.n)
			require.Equal(t, step.allowed, r.Allowed, "%s %q", algorithm, step.tier)
			require.Equal(t, step.limit, r.Limit)
			require.Equal(t, step.left, r.Remaining)
			require.Equal(t, step.neverBefore, r.RetryAfter == ratelimit.Never)
		}
		_, err := lim.Allow(t.Context(), "nobody")
		require.ErrorIs(t, err, unknown)
	})

	tiers["pro"] = ratelimit.PerHour(0) // is nobody's any more
	tier = "pro"
	lim := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(3), ratelimit.WithTiers(of, map[string]ratelimit.Limit{"pro": ratelimit.PerHour(5)}))
	require.Equal(t, 4, allowN(t, lim, 1).Remaining)

	_, err := ratelimit.NewTokenBucket(memory(t, newClock()), ratelimit.PerHour(3), ratelimit.WithTiers(nil, tiers))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = ratelimit.NewFixedWindow(memory(t, newClock()), ratelimit.PerHour(3), ratelimit.WithTiers(of, map[string]ratelimit.Limit{"burst": {Rate: 1, Period: 1e9, Burst: 2}}))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorContains(t, err, `tier "burst"`)
}

func TestAChangeOfTierKeepsTheSpendAmongSeveralLimitsToo(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		tier := ""
		user := newLimiter(t, algorithm, s, ratelimit.PerHour(10), ratelimit.WithTiers(
			func(context.Context, string) (string, error) { return tier, nil },
			map[string]ratelimit.Limit{
				"pro": ratelimit.PerHour(20), "daily": ratelimit.PerDay(30),
				"internal": ratelimit.Unlimited(), "banned": ratelimit.PerHour(0),
			}))
		global := newLimiter(t, algorithm, s, ratelimit.PerHour(100))
		a := all(t, user, global)
		for _, step := range []struct {
			tier       string
			n          int
			allowed    bool
			user, rest int // what is left by the user's limit, and of all users'
		}{
			{"", 4, true, 6, 96},
			{"pro", 5, true, 11, 91},
			{"banned", 1, false, 0, 91},
			{"internal", 2, true, 1<<31 - 1, 89},
			{"", 2, false, 1, 89},
			{"daily", 3, true, 18, 86},
		} {
			tier = step.tier
			require.Equal(t, step.allowed, allowN(t, a, step.n).Allowed, step.tier)
			require.Equal(t, step.user, peek(t, user, "key").Remaining, step.tier)
			require.Equal(t, step.rest, peek(t, global, "key").Remaining, step.tier)
		}
	})
}

// Options of which one would do nothing are refused, in either order.
func TestOneFunctionHasTheLimits(t *testing.T) {
	perKey := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, nil })
	tiers := ratelimit.WithTiers(func(context.Context, string) (string, error) { return "", nil }, map[string]ratelimit.Limit{"x": ratelimit.PerHour(1)})
	for _, opts := range [][]ratelimit.Option{{perKey, tiers}, {tiers, perKey}, {tiers, tiers}, {perKey, perKey}} {
		_, err := ratelimit.New("token_bucket", memory(t, newClock()), ratelimit.PerHour(1), opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, "WithLimitFunc and WithTiers can be used only once, and not together")
	}
	for _, none := range []map[string]ratelimit.Limit{nil, {}} {
		_, err := ratelimit.New("token_bucket", memory(t, newClock()), ratelimit.PerHour(1),
			ratelimit.WithTiers(func(context.Context, string) (string, error) { return "", nil }, none))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, "WithTiers: want at least one tier")
	}
}

// withKey lets l decide on the key that f makes: by an option of one of the five, and else by a
// limiter around it, as a user may write one.
func withKey(l ratelimit.Limiter, f func(ctx context.Context, key string) (string, error)) ratelimit.Limiter {
	if one := ratelimit.With(l, ratelimit.WithKeyFunc(f)); one != l {
		return one
	}
	return testkit.OtherKey(l, f)
}

// onOneKey lets l decide on one key, whatever it is asked for.
func onOneKey(t testing.TB, l ratelimit.Limiter, key string) ratelimit.Limiter {
	t.Helper()
	return withKey(l, func(context.Context, string) (string, error) { return key, nil })
}

// perCall charges l, one of the five, one event a call.
func perCall(t testing.TB, l ratelimit.Limiter) ratelimit.Limiter {
	t.Helper()
	calls := ratelimit.With(l, ratelimit.CountCalls())
	if calls == l {
		t.Fatalf("a %T has no options", l)
	}
	return calls
}

func TestInOneRequestPoliciesAndRefundsGoByTheLimitOfTheDecision(t *testing.T) {
	answer, calls := ratelimit.PerMinute(5), 0
	var failure error
	l, err := ratelimit.NewFixedWindow(frozenMemory(), ratelimit.PerMinute(1), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) {
			calls++
			return answer, failure
		}))
	require.NoError(t, err)
	quota := func(ctx context.Context) int {
		policies, err := ratelimit.AppendPolicies(ctx, nil, l, "key")
		require.NoError(t, err)
		return policies[0].Quota
	}
	ctx := kept.New[ratelimit.Limit](t.Context(), false)
	r, err := l.AllowN(ctx, "key", 2)
	require.NoError(t, err)
	require.Equal(t, 3, r.Remaining)

	answer = ratelimit.PerMinute(7)
	inside := kept.New[ratelimit.Limit](ctx, false)
	require.Equal(t, 7, quota(inside), "it does not know what was decided outside of it")
	require.Equal(t, 7, quota(ctx), "and tells what it has asked")
	require.Equal(t, 7, quota(t.Context()))
	require.Equal(t, 3, calls)

	answer = ratelimit.PerMinute(8)
	_, err = l.Allow(ctx, "key")
	require.NoError(t, err)
	require.Equal(t, 8, quota(ctx), "each decision asks")
	_, err = l.Allow(ctx, "other")
	require.NoError(t, err)
	require.Equal(t, 5, calls)

	failure = errors.New("the database is down")
	require.NoError(t, l.Refund(ctx, "key", r, 2))
	require.Equal(t, 8, quota(ctx))
	require.Equal(t, 5, calls)
	_, err = l.Allow(ctx, "key")
	require.Equal(t, failure, err)
	require.Equal(t, failure, l.Refund(t.Context(), "key", r, 2))
}

// observed is l, one of the five, with observers.
func observed(t testing.TB, l ratelimit.Limiter, observers ...ratelimit.Observer) ratelimit.Limiter {
	t.Helper()
	watched := ratelimit.With(l, ratelimit.WithObserver(observers...))
	require.NotSame(t, l, watched)
	return watched
}

func timed(l ratelimit.Limiter, o ratelimit.Observer) ratelimit.Limiter {
	return ratelimit.With(l, ratelimit.WithTimedObserver(o))
}

func TestAnObserverIsToldOfEachDecision(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		var o recorder
		ctx, l := t.Context(), observed(t, newLimiter(t, algorithm, s, ratelimit.PerHour(10)), &o)

		r, err := l.Allow(ctx, "a")
		require.Equal(t, []decided{{"a", 1, r, err, 0}}, o.take())
		r, err = l.AllowN(ctx, "a", 2)
		require.Equal(t, []decided{{"a", 2, r, err, 0}}, o.take())
		r, err = ratelimit.AllowWithin(ctx, l, "a", 2, time.Hour)
		require.Equal(t, []decided{{"a", 2, r, err, 0}}, o.take())
		granted, r, err := ratelimit.AllowUpTo(ctx, l, "a", 9)
		require.Equal(t, 5, granted)
		require.Equal(t, []decided{{"a", 9, r, err, 0}}, o.take())
		require.Equal(t, 5, r.Charged())
		r, err = l.Allow(ctx, "a")
		require.False(t, r.Allowed)
		require.Equal(t, []decided{{"a", 1, r, err, 0}}, o.take())
		r, err = ratelimit.Charge(ctx, l, "a", 3)
		require.Equal(t, []decided{{"a", 3, r, err, 0}}, o.take())

		reservation, r, err := ratelimit.Reserve(ctx, l, "b", 4)
		require.Equal(t, []decided{{"b", 4, r, err, 0}}, o.take())
		_, err = reservation.Settle(ctx, 6)
		require.NoError(t, err)
		told := o.take()
		require.Len(t, told, 1)
		require.Equal(t, 2, told[0].N, "the Charge of what the estimate was short of")

		_, err = l.AllowN(ctx, "a", 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
		require.Equal(t, []decided{{"a", 0, ratelimit.Result{}, err, 0}}, o.take())
		_, err = ratelimit.Charge(ctx, l, "a", -1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
		require.Equal(t, []decided{{"a", -1, ratelimit.Result{}, err, 0}}, o.take())

		_, err = l.Peek(ctx, "a")
		require.NoError(t, err)
		require.NoError(t, l.Refund(ctx, "b", r, 1))
		require.NoError(t, l.Reset(ctx, "a"))
		require.Empty(t, o.take(), "they decide nothing")
	})
}

func TestAnObserverIsToldOfWhatAWaitAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o recorder
		l := observed(t, inMemory(t, "sliding_log", ratelimit.PerSecond(1)), &o)
		allow(t, l, "key")
		start := time.Now()
		_, err := ratelimit.Wait(t.Context(), l, "key", 1)
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(start).Round(time.Millisecond))
		told := o.take()
		require.Len(t, told, 3, "one before, a denial and an admission")
		require.Equal(t, []bool{true, false, true}, []bool{told[0].R.Allowed, told[1].R.Allowed, told[2].R.Allowed})
	})
}

func TestAnObserverIsToldHowLongADecisionTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o, other recorder
		slow := newLimiter(t, "token_bucket", slowly{memory(t, newClock()), time.Millisecond}, ratelimit.PerHour(10))
		allow(t, timed(slow, &o), "key")
		require.Equal(t, time.Millisecond, o.take()[0].Took)
		allow(t, observed(t, slow, &o), "key")
		require.Zero(t, o.take()[0].Took)

		b := newBan(t, slow, slowly{newMemory(t), time.Millisecond}, quarter, ratelimit.WithTimedObserver(&o))
		_, err := b.Strike(t.Context(), "key", 1)
		require.NoError(t, err)
		require.Equal(t, time.Millisecond, o.take()[0].Took, "a denial that counts")

		core := inMemory(t, "token_bucket", ratelimit.PerHour(10))
		a := all(t, timed(core, &o), slow, observed(t, slow, &other))
		allow(t, a, "key")
		require.Equal(t, 2*time.Millisecond, o.take()[0].Took, "of the whole")
		require.Zero(t, other.take()[0].Took)
	})
}

// slowly takes its time. It decides on one key at a time.
type slowly struct {
	store.Store
	d time.Duration
}

func (s slowly) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	time.Sleep(s.d)
	return s.Store.Take(ctx, ns, key, l, n)
}

func (slowly) Together(string, string) bool { return false }

func TestAnObserverOfNothingIsRefused(t *testing.T) {
	mem, one := memory(t, newClock()), new(recorder)
	for _, opt := range []ratelimit.Option{
		ratelimit.WithObserver(), ratelimit.WithObserver(nil), ratelimit.WithObserver(one, (*recorder)(nil)), ratelimit.WithTimedObserver(),
		ratelimit.WithKeyFunc(nil),
	} {
		_, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	same := ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key, nil })
	_, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), same, same)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "which of them?")
}

func TestObserversAreToldInTheirOrder(t *testing.T) {
	var order []string
	say := func(name string) ratelimit.Observer { return saying(func() { order = append(order, name) }) }
	l := observed(t, observed(t, inMemory(t, "token_bucket", ratelimit.PerHour(10)), say("a"), say("b")), say("c"))
	allow(t, l, "key")
	require.Equal(t, []string{"a", "b", "c"}, order)
}

// decided is what an Observer is told of.
type decided struct {
	Key  string
	N    int
	R    ratelimit.Result
	Err  error
	Took time.Duration
}

// recorder is an Observer that remembers.
type recorder struct {
	mu   sync.Mutex
	told []decided
}

func (r *recorder) Decided(_ context.Context, key string, n int, res ratelimit.Result, err error, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, decided{key, n, res, err, took})
}

// take is what was told since the last take.
func (r *recorder) take() []decided {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told
	r.told = nil
	return told
}

type saying func()

func (s saying) Decided(context.Context, string, int, ratelimit.Result, error, time.Duration) { s() }

// ---- In an All.

func TestAnAllOfObservedLimitsIsOneScript(t *testing.T) {
	client := redistest.Start(t).Client(t)
	s := onRedis(t, client)
	var o recorder
	var parts []ratelimit.Limiter
	for i, algorithm := range algorithms {
		l := observed(t, newLimiter(t, algorithm, s, ratelimit.PerHour(1_000+i)), &o)
		parts = append(parts, timed(l, &o))
	}
	a := all(t, parts...)
	allow(t, a, "key") // loads the script
	o.take()
	before, loaded := calls(t, client, "evalsha"), calls(t, client, "eval")
	for range 100 {
		allow(t, a, "key")
	}
	require.Equal(t, 100, calls(t, client, "evalsha")-before)
	require.Equal(t, loaded, calls(t, client, "eval"))
	require.Len(t, o.take(), 100*2*len(parts))
}

func TestAnObserverInAnAllIsToldItsOwnPartsDecision(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		var wide, narrow recorder
		a := all(t, observed(t, newLimiter(t, algorithm, s, ratelimit.PerHour(5)), &wide),
			observed(t, newLimiter(t, algorithm, s, ratelimit.PerHour(3)), &narrow))
		for _, n := range []int{1, 2} {
			r := allowN(t, a, n)
			require.Equal(t, []decided{{"key", n, r.Parts()[0].Result, nil, 0}}, wide.take())
			require.Equal(t, []decided{{"key", n, r.Parts()[1].Result, nil, 0}}, narrow.take())
		}
		r := allowN(t, a, 1)
		require.False(t, r.Allowed)
		for i, o := range []*recorder{&wide, &narrow} {
			told := o.take()
			require.Len(t, told, 1)
			require.Equal(t, i == 0, told[0].R.Allowed, "the wide one has room")
			require.Zero(t, told[0].R.Charged())
			require.Equal(t, r.Parts()[i].Result, told[0].R)
		}
		_, err := a.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Empty(t, wide.take())
		_, err = a.Charge(t.Context(), "key", 2)
		require.NoError(t, err)
		require.Len(t, wide.take(), 1)
		require.Len(t, narrow.take(), 1)
	})
}

func TestAnObserverIsToldTheKeyAndTheEventsThatAreCounted(t *testing.T) {
	var inner, outer recorder
	core := observed(t, inMemory(t, "token_bucket", ratelimit.PerHour(9)), &inner)
	part := perCall(t, withKey(core, func(_ context.Context, key string) (string, error) { return "a:" + key, nil }))
	for name, l := range map[string]ratelimit.Limiter{"alone": part, "in an All": all(t, part)} {
		l, err := observe.Around(l, &outer)
		require.NoError(t, err)
		allowN(t, l, 3)
		for i, o := range []*recorder{&inner, &outer} {
			told := o.take()
			require.Len(t, told, 1, name)
			require.Equal(t, []string{"a:key", "key"}[i], told[0].Key, name)
			require.Equal(t, []int{1, 3}[i], told[0].N, name)
		}
	}
}

func TestAnObserverInAnAllIsToldOfErrors(t *testing.T) {
	errNo := errors.New("no")
	var first, failing, later recorder
	mem := memory(t, newClock())
	at := func(o *recorder, s store.Store, opts ...ratelimit.Option) ratelimit.Limiter {
		return observed(t, newLimiter(t, "token_bucket", s, ratelimit.PerHour(5), append(opts, ratelimit.WithName(fmt.Sprintf("%p", o)))...), o)
	}
	broken := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, errNo })
	a := all(t, at(&first, mem), at(&failing, mem, broken), at(&later, mem))
	_, err := a.Allow(t.Context(), "key")
	require.ErrorIs(t, err, errNo)
	require.Equal(t, []decided{{"key", 1, ratelimit.Result{}, errNo, 0}}, failing.take())
	require.Empty(t, first.take(), "no store was asked")
	require.Empty(t, later.take())

	down := &unreliable{Store: memory(t, newClock())}
	down.Down.Store(true)
	a = all(t, at(&first, mem), at(&failing, down), at(&later, down))
	_, err = a.Allow(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)
	told := first.take()
	require.Len(t, told, 1)
	require.True(t, told[0].R.Allowed)
	require.Zero(t, told[0].R.Charged(), "it was given back")
	require.ErrorIs(t, failing.take()[0].Err, ratelimit.ErrStore)
	require.ErrorIs(t, later.take()[0].Err, ratelimit.ErrStore, "asked in the same call")
}

func TestAnObserverOfAPartThatWasNotAskedIsNotTold(t *testing.T) {
	var o recorder
	blocked := inMemory(t, "token_bucket", ratelimit.PerHour(0))
	r := allowN(t, all(t, blocked, observed(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)), &o)), 1)
	require.False(t, r.Allowed)
	require.Empty(t, o.take())
}

// ---- In other wrappers.

func TestAnObserverIsToldWhatADenyCacheAnswers(t *testing.T) {
	var asked int
	var o recorder
	l := timed(newLimiter(t, "token_bucket", newDenyCache(t, memory(t, newClock())), ratelimit.PerHour(1), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) {
			asked++
			return ratelimit.PerHour(2), nil
		})), &o)
	for range 5 {
		allow(t, l, "key")
	}
	require.Equal(t, 5, asked, "once for each call")
	told := o.take()
	require.Len(t, told, 5)
	require.Equal(t, ratelimit.SourceStore, told[2].R.Source())
	require.Equal(t, ratelimit.SourceDenyCache, told[4].R.Source())
}

func TestAShareIsNotObserved(t *testing.T) {
	var o recorder
	down := &unreliable{Store: memory(t, newClock())}
	down.Down.Store(true)
	l := observed(t, newLimiter(t, "token_bucket", down, ratelimit.PerHour(4)), &o)
	f := failover(t, l, fallback.FailLocal(2))
	r := allow(t, f, "key")
	require.Equal(t, ratelimit.SourceLocal, r.Source())
	require.Equal(t, 1, r.Remaining)
	told := o.take()
	require.Len(t, told, 1)
	require.ErrorIs(t, told[0].Err, ratelimit.ErrStore)
}

func TestAnObserverAllocatesNothing(t *testing.T) {
	nothing := saying(func() {})
	for _, algorithm := range algorithms {
		// By a clock of its own: or else the speed of the calls decides how long a turn is away,
		// and so whether an All has to tell it.
		plain := newLimiter(t, algorithm, memory(t, newClock()), ratelimit.PerSecond(1_000_000))
		l := timed(observed(t, plain, nothing, nothing), nothing)
		ctx := t.Context()
		require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = l.Allow(ctx, "key") }), algorithm)
		parts, watched := all(t, plain, plain), all(t, l, l)
		require.Equal(t, testing.AllocsPerRun(1000, func() { _, _ = parts.Allow(ctx, "key") }),
			testing.AllocsPerRun(1000, func() { _, _ = watched.Allow(ctx, "key") }), algorithm)
	}
}

// The time that a decision took begins with it, and not with one before.
func TestATimedObserverIsToldOfOneDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o recorder
		mem := newMemory(t)
		l := timed(newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5)), &o)
		a := all(t, l, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(5)))
		for range 3 {
			allow(t, a, "key")
			told := o.take()
			require.Len(t, told, 1)
			require.EqualValues(t, 1, told[0].Took) // in a bubble the clock stands still
			time.Sleep(time.Minute)
		}
	})
}

// prepared is a store that is told what it has to prepare for.
type prepared struct {
	store.Store
	fixed []bool
}

func (p *prepared) Prepare(_ *store.Rule, _ store.Limit, fixed bool) error {
	p.fixed = append(p.fixed, fixed)
	return nil
}

func TestAStoreIsToldWhetherKeysMayHaveOtherLimits(t *testing.T) {
	p := new(prepared)
	newLimiter(t, "token_bucket", p, ratelimit.PerHour(5))
	newLimiter(t, "token_bucket", p, ratelimit.PerHour(5), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, nil }))
	require.Equal(t, []bool{true, false}, p.fixed)
}

// What a limit of calls is charged has been charged when the call was admitted: it is let through,
// with what is left of the calls.
func TestAChargeOfALimitOfCallsIsAlwaysAllowed(t *testing.T) {
	var o recorder
	l := observed(t, inMemory(t, "fixed_window", ratelimit.PerHour(2), ratelimit.CountCalls()), &o)
	allow(t, l, "key")
	allow(t, l, "key")
	r := overcharge(t, l, 7)
	require.Equal(t, []any{true, 0, time.Duration(0)}, []any{r.Allowed, r.Remaining, r.RetryAfter})
	require.NoError(t, l.Refund(t.Context(), "key", r, 7))
	require.Zero(t, peek(t, l, "key").Remaining, "it has charged nothing")

	o.take()
	_, err := l.AllowN(t.Context(), "key", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	told := o.take()
	require.Len(t, told, 1)
	require.Zero(t, told[0].N, "no call is one of no events")
}
