package suite_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// around are all wrappers of one limiter in this module, by their types.
func around(t *testing.T, l ratelimit.Limiter) map[string]ratelimit.Limiter {
	t.Helper()
	waiter, err := throttle.NewWaiter(l, time.Second)
	require.NoError(t, err)
	slowdown, err := throttle.NewSlowdown(l, throttle.Slow{Step: time.Second, Max: time.Second})
	require.NoError(t, err)
	listed, err := accesslist.New(l)
	require.NoError(t, err)
	tried, err := shadow.New(l, func(context.Context, string, int, ratelimit.Result, error) {})
	require.NoError(t, err)
	return map[string]ratelimit.Limiter{
		"Waiter": waiter, "Slowdown": slowdown, "accesslist": listed, "shadow": tried,
		"another key": onOneKey(t, l, "everybody"), "All": all(t, l), "fallback": failover(t, l, fallback.FailOpen()),
	}
}

func TestWrappersInAnOrderThatCannotWorkAreRefused(t *testing.T) {
	inside := around(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)))
	for name, may := range map[string]struct{ inFallback, inAll bool }{
		"Waiter": {}, "Slowdown": {inAll: true}, "accesslist": {inAll: true}, "shadow": {inAll: true},
		"another key": {inFallback: true, inAll: true}, "All": {inFallback: true, inAll: true},
		"fallback": {inFallback: true, inAll: true},
	} {
		_, err := fallback.New(inside[name], fallback.FailOpen())
		require.Equal(t, may.inFallback, err == nil, "a fallback around %s", name)
		_, err = fallback.New(onOneKey(t, inside[name], "key"), fallback.FailOpen())
		require.Equal(t, may.inFallback, err == nil, "a fallback around %s under another key", name)
		_, err = ratelimit.NewAll(inside[name])
		require.Equal(t, may.inAll, err == nil, "an All around %s", name)
		listed, err := accesslist.New(inside[name])
		require.NoError(t, err)
		_, err = ratelimit.NewAll(onOneKey(t, listed, "key"))
		require.Equal(t, may.inAll, err == nil, "an All around %s two layers down", name)
	}
	_, err := fallback.New(inside["shadow"], fallback.FailOpen())
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, "*shadow.Limiter")
}

// A store that embeds another one, as one that counts its calls does, decides on several
// limits at once as that does.
func TestAStoreInsideAnotherLosesNothing(t *testing.T) {
	counting := &tally{Store: memory(t, newClock())}
	lim := all(t, newLimiter(t, "token_bucket", counting, ratelimit.PerHour(1000)), newLimiter(t, "sliding_log", counting, ratelimit.PerHour(1000)))
	for range 100 {
		require.True(t, allow(t, lim, "key").Allowed)
	}
	require.Equal(t, 100, counting.Joints)
	require.Zero(t, counting.Singles)
	overcharge(t, lim, 5000)
	require.Positive(t, allow(t, lim, "key").RetryAfter)
}

// strict embeds one of the five types and has an AllowN of its own.
type strict struct{ *ratelimit.TokenBucket }

func (s strict) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if n > 1 {
		return ratelimit.Result{}, nil
	}
	return s.TokenBucket.AllowN(ctx, key, n)
}

func TestATypeThatEmbedsALimiterIsAskedItself(t *testing.T) {
	bucket, err := ratelimit.NewTokenBucket(memory(t, newClock()), ratelimit.PerHour(5))
	require.NoError(t, err)
	lim := strict{bucket}
	require.True(t, allowN(t, all(t, bucket), 2).Allowed)
	require.False(t, allowN(t, all(t, lim), 2).Allowed)
	require.Equal(t, "token_bucket", see.Algorithm[ratelimit.Limiter](bucket))
	require.Empty(t, see.Algorithm[ratelimit.Limiter](lim))
	_, err = see.Local[ratelimit.Limiter](lim, memory(t, newClock()), 2)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

func TestTheAlgorithmIsKnownThroughWrappers(t *testing.T) {
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		l := inMemory(t, algorithm, ratelimit.PerHour(5))
		require.Equal(t, algorithm, see.Algorithm[ratelimit.Limiter](l))
		for name, w := range around(t, l) {
			want := ""
			switch name {
			case "another key", "fallback", "accesslist", "shadow":
				want = algorithm
			}
			require.Equal(t, want, see.Algorithm[ratelimit.Limiter](w), name)
		}
		require.Equal(t, algorithm, see.Algorithm[ratelimit.Limiter](around(t, onOneKey(t, l, "key"))["fallback"]))
	}
	require.Empty(t, see.Algorithm[ratelimit.Limiter](nil))
}

func TestAWaiterKnowsALeakyBucketInsideOthers(t *testing.T) {
	bucket := newLimiter(t, "leaky_bucket", memory(t, newClock()), ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 3})
	for name, l := range around(t, bucket) {
		if see.Algorithm[ratelimit.Limiter](l) == "" {
			continue
		}
		if tried, ok := l.(*shadow.Limiter); ok {
			require.NoError(t, tried.SetEnforcement(100))
		}
		w, err := throttle.NewWaiter(l, time.Millisecond)
		require.NoError(t, err)
		require.True(t, allowN(t, w, 3).Allowed)
		denied := allowN(t, w, 1)
		require.False(t, denied.Allowed, name)
		require.Equal(t, 299*time.Millisecond, denied.RetryAfter, "%s: the turn behind three others, less what can be slept", name)
		require.NoError(t, l.Reset(t.Context(), "key"))
	}
}

func TestZeroValuesAnswerByOneRule(t *testing.T) {
	ctx := t.Context()
	for _, l := range []ratelimit.Limiter{
		new(ratelimit.FixedWindow), new(ratelimit.SlidingWindow), new(ratelimit.SlidingLog), new(ratelimit.TokenBucket),
		new(ratelimit.LeakyBucket), new(ratelimit.All), new(ratelimit.First), new(fallback.Limiter),
		new(throttle.Waiter), new(throttle.Slowdown), new(accesslist.Limiter), new(shadow.Limiter),
	} {
		_, allowed := l.Allow(ctx, "key")
		_, allowedN := l.AllowN(ctx, "key", 2)
		_, peeked := l.Peek(ctx, "key")
		_, charged := ratelimit.Charge(ctx, l, "key", 1)
		_, within := ratelimit.AllowWithin(ctx, l, "key", 1, time.Second)
		_, _, upTo := ratelimit.AllowUpTo(ctx, l, "key", 2)
		_, policies := ratelimit.AppendPolicies(ctx, nil, l, "key")
		_, waited := ratelimit.Wait(ctx, l, "key", 1)
		for what, err := range map[string]error{
			"Allow": allowed, "AllowN": allowedN, "Peek": peeked, "Charge": charged, "AllowWithin": within, "AllowUpTo": upTo,
			"AppendPolicies": policies, "Wait": waited, "Refund": l.Refund(ctx, "key", ratelimit.Result{Allowed: true}, 1), "Reset": l.Reset(ctx, "key"),
		} {
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, "%T.%s", l, what)
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%T.%s", l, what)
		}
		require.Empty(t, see.Algorithm[ratelimit.Limiter](l))
	}
}

func TestAShareIsAnNthOfEachLimit(t *testing.T) {
	tier := "free"
	bucket, err := ratelimit.NewTokenBucket(newDenyCache(t, memory(t, newClock())), ratelimit.PerHour(8), ratelimit.WithName("api"), ratelimit.WithTiers(
		func(context.Context, string) (string, error) { return tier, nil },
		map[string]ratelimit.Limit{"paid": ratelimit.PerHour(40), "none": ratelimit.PerHour(0), "all": ratelimit.Unlimited()}),
		ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "everybody", nil }))
	require.NoError(t, err)
	window := inMemory(t, "sliding_window", ratelimit.PerHour(7))
	l := all(t, bucket, window)

	mem, err := memstore.New(memstore.WithClock(newClock().Now))
	require.NoError(t, err)
	share, err := see.Local[ratelimit.Limiter](l, mem, 4)
	require.NoError(t, err)
	for name, want := range map[string]int{"free": 1, "paid": 1, "none": 0, "all": 1} {
		tier = name
		require.NoError(t, share.Reset(t.Context(), "key"))
		require.Equal(t, want, admitted(t, share, 50), name)
	}
	policies, err := ratelimit.AppendPolicies(t.Context(), nil, share, "key")
	require.NoError(t, err)
	require.Equal(t, "api", policies[0].Name)

	for n, want := range map[int]error{0: ratelimit.ErrInvalidLimit, -1: ratelimit.ErrInvalidLimit} {
		_, err := see.Local[ratelimit.Limiter](l, mem, n)
		require.ErrorIs(t, err, want)
	}
	decade := inMemory(t, "token_bucket", ratelimit.Limit{Rate: 1, Period: 10 * 365 * 24 * time.Hour})
	_, err = see.Local[ratelimit.Limiter](decade, mem, 2)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, "a Period over 10 years")
	for _, foreign := range []ratelimit.Limiter{nil, ratelimittest.Static(ratelimit.Result{}, nil), new(ratelimit.TokenBucket), around(t, window)["shadow"]} {
		_, err = see.Local[ratelimit.Limiter](foreign, mem, 2)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	failing, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(8), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) {
			return ratelimit.Limit{}, fmt.Errorf("no such user")
		}))
	require.NoError(t, err)
	share, err = see.Local[ratelimit.Limiter](failing, mem, 2)
	require.NoError(t, err)
	_, err = share.Allow(t.Context(), "key")
	require.ErrorContains(t, err, "no such user")
}

func TestLimitsAreValidatedAsByTheConstructors(t *testing.T) {
	mem := memory(t, newClock())
	for _, l := range []ratelimit.Limit{
		{}, ratelimit.PerSecond(-1), ratelimit.PerSecond(5), ratelimit.Unlimited(), {Rate: 5, Period: time.Second, Burst: 9},
		{Rate: 1, Period: 365 * 24 * time.Hour, Burst: 101}, {Rate: 1, Period: 1}, {Rate: -1, Period: time.Second},
	} {
		valid := false
		for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
			_, want := ratelimit.New(algorithm, mem, l)
			require.Equal(t, want, l.ValidateFor(algorithm), "%s of %v", algorithm, l)
			valid = valid || want == nil
		}
		if valid {
			require.NoError(t, l.Validate())
		}
	}
	require.ErrorIs(t, ratelimit.Limit{}.Validate(), ratelimit.ErrInvalidLimit)
	require.NoError(t, ratelimit.Limit{Rate: 1, Period: 365 * 24 * time.Hour, Burst: 101}.Validate(), "a bucket's constructor says more")
	err := ratelimit.PerSecond(1).ValidateFor("bucket")
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		require.ErrorContains(t, err, algorithm)
	}
}

// described is a store that can be compared by its type, and not by what it holds.
type described struct {
	store.Store
	about any
}

func TestAStoreThatCannotBeComparedIsAskedForOneLimitAfterTheOther(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	s := described{mem, []string{"here"}}
	a, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(5))
	require.NoError(t, err)
	b, err := ratelimit.NewFixedWindow(s, ratelimit.PerHour(5))
	require.NoError(t, err)
	require.Equal(t, 4, allow(t, all(t, a, b), "key").Remaining)
}

func TestNoLimiterHasNoShareAndNoAlgorithm(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	for _, none := range []ratelimit.Limiter{
		nil, (*ratelimit.TokenBucket)(nil), (*ratelimit.All)(nil),
		new(ratelimit.TokenBucket),
	} {
		_, err = see.Local[ratelimit.Limiter](none, mem, 2)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%T", none)
		require.Empty(t, see.Algorithm[ratelimit.Limiter](none), "%T", none)
	}
}

func TestACopyOfALimiterIsOneOfTheFiveToo(t *testing.T) {
	original := inMemory(t, "token_bucket", ratelimit.PerHour(1))
	limiter := *original.(*ratelimit.TokenBucket)
	require.Equal(t, "token_bucket", see.Algorithm[ratelimit.Limiter](&limiter))
	require.True(t, allow(t, original, "key").Allowed)
	require.False(t, allow(t, &limiter, "key").Allowed)
}

// Each of several limits has its part, in their order, whatever stands around them, and whether they
// were asked or not. Those for whom one has answered, or that were not asked behind one, have one part.
func TestAllHasPartsInTheOrderOfItsLimits(t *testing.T) {
	mem := memory(t, newClock())
	two := func(s store.Store) ratelimit.Limiter {
		return levels.New(t, "fixed_window", s, "api", ratelimit.PerHour(11), ratelimit.PerDay(12))
	}
	tried, err := shadow.New(two(away{Store: mem}), func(context.Context, string, int, ratelimit.Result, error) {})
	require.NoError(t, err)
	list, err := accesslist.NewList("=key")
	require.NoError(t, err)
	listed := func(lists accesslist.Lists) ratelimit.Limiter {
		l, err := accesslist.New(two(mem), accesslist.WithLists(lists))
		require.NoError(t, err)
		return l
	}
	severals := around(t, two(mem))
	delete(severals, "Waiter") // which goes around
	for name, l := range map[string]ratelimit.Limiter{
		"a fallback that lets through": failover(t, two(away{Store: mem}), fallback.FailOpen()),
		"a fallback that refuses":      failover(t, two(away{Store: mem}), fallback.FailClosed()),
		"a fallback with one for both": failover(t, two(away{Store: mem}), fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(7)))),
		"a shadow without a store":     tried,
		"a list that lets through":     listed(accesslist.Lists{Allow: list}),
		"a list that refuses":          listed(accesslist.Lists{Deny: list}),
		"another key for a fallback":   onOneKey(t, failover(t, two(away{Store: mem}), fallback.FailOpen()), "key"),
		"an All around a nested one":   all(t, onOneKey(t, two(mem), "key")),
	} {
		severals[name] = l
	}
	last := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5), ratelimit.WithName("last"))
	first := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(3), ratelimit.WithName("first"))
	zero := inMemory(t, "token_bucket", ratelimit.PerHour(0))
	for name, several := range severals {
		for what, a := range map[string]ratelimit.Limiter{
			"asked":               all(t, first, several, last),
			"not asked":           all(t, zero, first, several, last),
			"not asked, rekeyed":  all(t, zero, onOneKey(t, all(t, first, several), "key"), last),
			"asked again, nested": all(t, first, onOneKey(t, all(t, several, last), "key")),
		} {
			policies, err := ratelimit.AppendPolicies(t.Context(), nil, a, "key")
			require.NoError(t, err)
			told, r := peek(t, a, "key"), allowN(t, a, 1)
			for _, parts := range [][]ratelimit.Part{r.Parts(), told.Parts()} {
				require.LessOrEqual(t, len(parts), len(policies), "%s, %s", name, what)
				next := 0
				for _, part := range parts {
					if part.Source() == ratelimit.SourceList || part.Result == (ratelimit.Result{}) {
						continue // a list has a policy of its own
					}
					at := slices.IndexFunc(policies[next:], func(p ratelimit.Policy) bool { return p.Name == part.Name() })
					require.GreaterOrEqual(t, at, 0, "%s, %s: %v", name, what, parts)
					next += at + 1
				}
			}
			if parts := r.Parts(); r.Allowed {
				require.Equal(t, "last", parts[len(parts)-1].Name(), "%s, %s", name, what)
				require.Equal(t, 5, parts[len(parts)-1].Limit, "%s, %s", name, what)
				require.NoError(t, a.Refund(t.Context(), "key", r, 1), "%s, %s", name, what)
			}
			require.Equal(t, 5, peek(t, last, "key").Remaining, "%s, %s", name, what)
			require.Equal(t, 3, peek(t, first, "key").Remaining, "%s, %s", name, what)
		}
	}
}
