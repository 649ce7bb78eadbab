package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func TestAllSaysWhichLimitDenied(t *testing.T) {
	c := newClock()
	mem := memory(t, c)
	second := newLimiter(t, "fixed_window", mem, ratelimit.PerSecond(2))
	hour := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(3), ratelimit.WithName("hourly"))
	a := all(t, second, hour)
	require.Equal(t, 1, allowN(t, a, 1).Remaining)
	require.Equal(t, 0, allowN(t, a, 1).Remaining)
	r := allowN(t, a, 1)
	require.False(t, r.Allowed)
	require.Equal(t, "2/s", r.DeniedBy())
	require.Equal(t, time.Second, r.RetryAfter)
	require.Equal(t, time.Hour, r.ResetAfter)
	require.Equal(t, 2, r.Limit)
	require.True(t, r.Parts()[1].Allowed)
	require.Equal(t, 1, r.Parts()[1].Remaining, "none of the hour's was charged")
	c.Advance(time.Second)
	r = allowN(t, a, 2)
	require.Equal(t, "hourly", r.DeniedBy())
	require.Equal(t, 3, r.Limit)
	require.Equal(t, 1, r.Remaining)
	require.Equal(t, time.Hour-time.Second, r.RetryAfter)
	r = allowN(t, a, 3)
	require.Equal(t, "2/s", r.DeniedBy(), "never is longer than an hour")
	require.Equal(t, ratelimit.Never, r.RetryAfter)
	require.Equal(t, []string{"2/s", "hourly"}, []string{policiesOf(t, a, "k")[1].Name, policiesOf(t, a, "k")[2].Name})
	require.NoError(t, a.Reset(t.Context(), "key"))
	require.Equal(t, 3, allowN(t, hour, 1).Remaining+1)
}

// outspoken is a limiter of another package, which says its limits and nothing else.
type outspoken struct{ ratelimit.Limiter }

func (s outspoken) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, s.Limiter, key)
}

// What a limiter of another package does not say of its denial comes from its limits.
func TestADenialThatSaysNoNameHasThatOfItsLimit(t *testing.T) {
	mem := memory(t, newClock())
	limit := func(name string) ratelimit.Limiter {
		l := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(1), ratelimit.WithName(name))
		allowN(t, l, 1)
		return l
	}
	banned := newBan(t, limit("banned"), mem, ratelimit.Penalty{Denials: 1, Within: time.Hour, For: time.Hour})
	allowN(t, banned, 1)
	require.Equal(t, ratelimit.SourceBan, allowN(t, banned, 1).Source())
	for want, l := range map[string]ratelimit.Limiter{
		"said": outspoken{limit("said")}, "inside": newBan(t, outspoken{limit("inside")}, mem, quarter), "": struct{ ratelimit.Limiter }{banned},
	} {
		r := allowN(t, all(t, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(9)), l), 1)
		require.False(t, r.Allowed)
		require.Equal(t, want, r.DeniedBy())
	}
}

func TestAllTellsWhatIsLeftOfALimitThatWasGivenBack(t *testing.T) {
	lim := newLimiter(t, "token_bucket", withoutJoint{Store: memory(t, newClock())}, ratelimit.PerHour(5))
	never := ratelimittest.Static(ratelimit.Result{RetryAfter: ratelimit.Never}, nil)
	fresh := allowN(t, all(t, lim, never), 1).Parts()[0].Result
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 5, Remaining: 5}, fresh)
	allowN(t, lim, 3)
	spent := allowN(t, all(t, lim, never), 1).Parts()[0].Result
	require.Equal(t, 2, spent.Remaining)
	require.GreaterOrEqual(t, spent.ResetAfter, peek(t, lim, "key").ResetAfter, "the key is not as never seen")

	let := ratelimittest.Static(ratelimit.Result{Allowed: true, Limit: 5, Remaining: 3}, nil) // any number
	r := allowN(t, all(t, let, never), math.MaxInt)
	require.Equal(t, 3, r.Parts()[0].Remaining, "which charges nobody")
	full := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5))
	allowN(t, full, 5)
	slow, err := throttle.NewSlowdown(full, throttle.Slow{Step: time.Second, Max: time.Second})
	require.NoError(t, err)
	r = allowN(t, all(t, slow, never), 1)
	require.True(t, r.Parts()[0].Allowed)
	require.Zero(t, r.Parts()[0].Remaining, "which was let through, and never charged")
}

// deaf does not give back.
type deaf struct{ ratelimit.Limiter }

func (deaf) Refund(context.Context, string, ratelimit.Result, int) error { return errGone }

func TestAllTellsWhatStaysCharged(t *testing.T) {
	lim := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5))
	r := allowN(t, all(t, deaf{lim}, ratelimittest.Static(ratelimit.Result{RetryAfter: 1}, nil)), 2)
	require.False(t, r.Allowed)
	require.Equal(t, 3, r.Parts()[0].Remaining)
	require.Equal(t, 3, peek(t, lim, "key").Remaining)
}

func TestTheSourceOfADenialIsThatOfTheLimitThatDenied(t *testing.T) {
	full := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5))
	allowN(t, full, 5)
	for name, c := range map[string]struct {
		a    ratelimit.Limiter
		want ratelimit.Source
	}{
		"after one that fails open":             {all(t, failover(t, awayLimit(t), fallback.FailOpen()), full), ratelimit.SourceStore},
		"before one that fails open":            {all(t, full, failover(t, awayLimit(t), fallback.FailOpen())), ratelimit.SourceStore},
		"after a local one that admits":         {all(t, failover(t, awayLimit(t), fallback.FailLocal(1)), full), ratelimit.SourceStore},
		"for longer than one of an outage":      {all(t, failover(t, awayLimit(t), fallback.FailOpen()), full, failover(t, awayLimit(t), fallback.FailClosed())), ratelimit.SourceStore},
		"an outage, after one of the store":     {all(t, failover(t, awayLimit(t), fallback.FailOpen()), failover(t, awayLimit(t), fallback.FailClosed()), full), ratelimit.SourceFailClosed},
		"a Rate of 0, after an outage":          {all(t, failover(t, awayLimit(t), fallback.FailOpen()), inMemory(t, "token_bucket", ratelimit.PerHour(0))), ratelimit.SourceZeroRate},
		"a Rate of 0, which decides for itself": {all(t, full, inMemory(t, "token_bucket", ratelimit.PerHour(0))), ratelimit.SourceZeroRate},
	} {
		require.Equal(t, c.want, allowN(t, c.a, 1).Source(), name)
		if c.want != ratelimit.SourceFailClosed { // a Peek asks the full one as well
			require.Equal(t, c.want, peek(t, c.a, "key").Source(), "a Peek: %s", name)
		}
	}
}

// Who answers for several limits at once has one Part, and each Part says whose it is.
func TestAPartNamesTheLimiterThatDecided(t *testing.T) {
	outage := func(name string) ratelimit.Limiter {
		return newLimiter(t, "fixed_window", banOutage{}, ratelimit.PerHour(5), ratelimit.WithName(name))
	}
	safe := failover(t, all(t, outage("a"), outage("b")), fallback.FailOpen())
	mem := memory(t, newClock())
	one := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(5), ratelimit.WithName("one"))
	two := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(3), ratelimit.WithName("two"), ratelimit.WithPolicyName("plan"))
	three := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(9))
	ban := newBan(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(7), ratelimit.WithName("banned")), mem, quarter)
	denied := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(1), ratelimit.WithName("spent"))
	allow(t, denied, "key")
	_, err := ban.Strike(t.Context(), "key", 1000)
	require.NoError(t, err)
	for _, c := range []struct {
		limiters []ratelimit.Limiter
		of       []ratelimit.Limiter
		names    []string
		denier   string
	}{
		{[]ratelimit.Limiter{one, two}, []ratelimit.Limiter{one, two}, []string{"one", "plan"}, ""},
		{[]ratelimit.Limiter{one, two, three}, []ratelimit.Limiter{one, two, three}, []string{"one", "plan", "9/h"}, ""},
		{[]ratelimit.Limiter{all(t, one, two), three}, []ratelimit.Limiter{one, two, three}, []string{"one", "plan", "9/h"}, ""},
		{[]ratelimit.Limiter{failover(t, all(t, one, two), fallback.FailOpen()), three}, []ratelimit.Limiter{one, two, three}, []string{"one", "plan", "9/h"}, ""},
		{[]ratelimit.Limiter{safe, one}, []ratelimit.Limiter{safe, one}, []string{"a", "one"}, ""},
		{[]ratelimit.Limiter{one, ban}, []ratelimit.Limiter{one, ban}, []string{"one", "ban"}, "ban"},
		{[]ratelimit.Limiter{denied, two}, []ratelimit.Limiter{denied, two}, []string{"spent", "plan"}, "spent"},
		{[]ratelimit.Limiter{one, two, denied}, []ratelimit.Limiter{one, two, denied}, []string{"one", "plan", "spent"}, "spent"},
		{[]ratelimit.Limiter{safe, denied}, []ratelimit.Limiter{safe, denied}, []string{"a", "spent"}, "spent"},
		{[]ratelimit.Limiter{one}, []ratelimit.Limiter{one}, []string{"one"}, ""},
	} {
		asks := make([]ratelimit.Ask, len(c.limiters))
		for i, l := range c.limiters {
			asks[i] = ratelimit.Ask{Limiter: l, Key: "key", N: 1}
		}
		whole := all(t, c.limiters...)
		for _, r := range []ratelimit.Result{peek(t, whole, "key"), decide(t, asks...), allowN(t, whole, 1)} {
			require.Len(t, r.Parts(), len(c.of), "%v", r)
			require.Equal(t, c.denier, r.DeniedBy())
			for i, part := range r.Parts() {
				require.Same(t, c.of[i], part.Limiter)
				require.Equal(t, c.names[i], part.Name())
				require.Equal(t, c.names[i] == c.denier, !part.Allowed && part.Result != (ratelimit.Result{}))
			}
			require.NoError(t, one.Reset(t.Context(), "key"))
			require.NoError(t, two.Reset(t.Context(), "key"))
		}
	}
}

// unseen is a limiter at which nobody can look.
type unseen struct {
	ratelimit.Limiter
	looks int
}

func (u *unseen) Peek(context.Context, string) (ratelimit.Result, error) {
	u.looks++
	return ratelimit.Result{}, ratelimit.ErrStore
}

// Of two limits that deny for as long, the name and the numbers are of the same one.
func TestADenialIsToldOfOneLimit(t *testing.T) {
	for _, s := range []store.Store{memory(t, newClock()), withoutJoint{Store: memory(t, newClock())}} {
		var parts []ratelimit.Limiter
		for name, rate := range []int{3, 2, 100} {
			parts = append(parts, newLimiter(t, "fixed_window", s, ratelimit.PerHour(rate), ratelimit.WithName(fmt.Sprint("limit ", name))))
		}
		r := allowN(t, all(t, parts...), 4)
		require.Equal(t, `denied by "limit 0", 3 of 3 left, never admitted`, r.String())
	}
}

// twoPlans is a limiter of two policies that decides by one of them, as a user may write one.
type twoPlans struct{ ratelimit.Limiter }

func (l twoPlans) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	dst, err := ratelimit.AppendPolicies(ctx, dst, l.Limiter, key)
	return append(dst, ratelimit.Policy{Name: "other plan"}), err
}

// Its Result is one Part, which is its own where it is to give back.
func TestALimiterOfSeveralPoliciesGetsItsOwnResultBack(t *testing.T) {
	mem := memory(t, newClock())
	plan := twoPlans{newLimiter(t, "token_bucket", mem, ratelimit.PerHour(9))}
	a := all(t, plan, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(99)))
	require.NoError(t, a.Refund(t.Context(), "key", allowN(t, a, 5), 5))
	require.Equal(t, 9, peek(t, plan, "key").Remaining)
	asks := []ratelimit.Ask{{Limiter: plan, Key: "key", N: 4}}
	require.NoError(t, ratelimit.GiveBack(t.Context(), decide(t, asks...), asks...))
	require.Equal(t, 9, peek(t, plan, "key").Remaining)

	r := settle(t, reserve(t, a, 5), 2)
	require.Len(t, r.Parts(), 2)
	require.Equal(t, 7, r.Remaining)
	require.Equal(t, 2, r.Parts()[0].Charged())
	require.NoError(t, a.Refund(t.Context(), "key", r, 5))
	require.Equal(t, 9, peek(t, plan, "key").Remaining, "no more than is still charged")
}

// Of several that admit the Source is that of the one that people should hear of first: whose store
// did not answer, then whose limit has counted, then what no limit counts.
func TestTheSourceOfAnAdmissionIsTheOneToHearOf(t *testing.T) {
	ranks := [][]ratelimit.Source{
		{ratelimit.SourceUnlimited}, {ratelimit.SourceList}, {ratelimit.SourceZeroRate}, {ratelimit.SourceStore, ratelimit.SourceLease},
		{ratelimit.SourceFailOpen, ratelimit.SourceFailClosed, ratelimit.SourceLocal, ratelimit.SourceDenyCache, ratelimit.SourceBan},
	}
	by := func(s ratelimit.Source) ratelimit.Limiter {
		return ratelimittest.Static(ratelimit.Result{Allowed: true, Limit: 5}.WithMark(ratelimit.NewMark(t, s, nil)), nil)
	}
	for i, rank := range ranks {
		for _, first := range rank {
			require.Equal(t, first, allowN(t, all(t, by(first)), 1).Source())
			for _, lower := range ranks[:i] {
				for _, second := range lower {
					require.Equal(t, first, allowN(t, all(t, by(first), by(second)), 1).Source(), second)
					require.Equal(t, first, allowN(t, all(t, by(second), by(first)), 1).Source(), second)
				}
			}
			for _, other := range rank { // the first of equal ones
				require.Equal(t, first, allowN(t, all(t, by(first), by(other)), 1).Source())
			}
		}
	}
}
