package fallback

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// As much is still owed as the local limiter counts. What it does not count decays in the same ratio.
func TestWhatIsOwedDecaysLocally(t *testing.T) {
	for _, c := range []struct{ owed, held, want charge }{
		{charge{6, 3}, charge{4, 2}, charge{4, 2}},
		{charge{6, 3}, charge{9, 9}, charge{6, 3}},
		{charge{6, 3}, charge{-1, -1}, charge{6, 3}},
		{charge{6, 3}, charge{-1, 2}, charge{4, 2}},
		{charge{6, 3}, charge{3, -1}, charge{3, 2}}, // rounded up
		{charge{6, 3}, charge{0, -1}, charge{0, 0}},
		{charge{6, 3}, charge{-1, 0}, charge{0, 0}},
		{charge{6, 3}, charge{0, 2}, charge{0, 2}},
		{charge{6, 3}, charge{2, 0}, charge{2, 0}},
		{charge{5, 1}, charge{-1, 0}, charge{0, 0}},
		{charge{5, 0}, charge{-1, 0}, charge{5, 0}}, // of a Charge
	} {
		require.Equal(t, c.want, c.owed.still(c.held), "%+v", c)
	}
}

// levels are limiters in memory: of 10 calls, 20 events, 50 events, and one without a limit.
func levels(t *testing.T, calls, few, many int) (plan, credits, total, free ratelimit.Limiter) {
	t.Helper()
	mem := ratelimit.Must(memstore.New())
	limit := func(name string, l ratelimit.Limit, spent int, opts ...ratelimit.Option) ratelimit.Limiter {
		lim := ratelimit.Must(ratelimit.NewFixedWindow(mem, l, append(opts, ratelimit.WithName(name))...))
		for range spent {
			r, err := lim.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		return lim
	}
	return limit("plan", ratelimit.PerDay(10), calls, ratelimit.CountCalls()), limit("credits", ratelimit.PerDay(20), few),
		limit("total", ratelimit.PerDay(50), many), limit("free", ratelimit.Unlimited(), 0)
}

func TestALocalLimiterIsCountedByItsLimits(t *testing.T) {
	owed := charge{8, 4}
	all := func(l ...ratelimit.Limiter) ratelimit.Limiter { return ratelimit.Must(ratelimit.NewAll(l...)) }
	first := func(l ...ratelimit.Limiter) ratelimit.Limiter { return ratelimit.Must(ratelimit.NewFirst(l...)) }
	plan, credits, total, free := levels(t, 3, 2, 5)
	newPlan, newCredits, newTotal, _ := levels(t, 0, 0, 0)
	_, full, alsoFull, _ := levels(t, 0, 20, 50)
	_, banned, _, _ := levels(t, 0, 20, 0)
	ban := ratelimit.Must(ratelimit.NewBan(banned, ratelimit.Must(memstore.New()), ratelimit.Penalty{Denials: 1, Within: time.Hour, For: time.Hour}))
	r, err := ban.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.False(t, r.Allowed)
	for name, c := range map[string]struct {
		local ratelimit.Limiter
		want  tally
	}{
		"events":                           {credits, tally{charge{2, -1}, 18}},
		"calls":                            {plan, tally{charge{-1, 3}, math.MaxInt}},
		"an All":                           {all(plan, credits, total), tally{charge{5, 3}, 18}},
		"an All with one that is free":     {all(free, newCredits), tally{charge{0, -1}, 20}},
		"an All with a ban":                {all(credits, ban), tally{charge{2, -1}, 18}},
		"a First of events":                {first(credits, total), tally{charge{7, -1}, 45}},
		"a First of calls and events":      {first(plan, credits), tally{charge{8, 4}, math.MaxInt}},
		"a First of calls alone":           {first(plan, newCredits), tally{charge{6, 3}, math.MaxInt}},
		"a First of events alone":          {first(newPlan, credits), tally{charge{2, 1}, math.MaxInt}},
		"a First without room":             {first(full, alsoFull), tally{charge{8 + 8, -1}, 0}},
		"an All around a First":            {all(first(credits, newTotal), total), tally{charge{5, -1}, 45}},
		"an All around a First, the first": {all(total, first(credits, full)), tally{charge{10, -1}, 18}},
		"an All of calls around a First":   {all(plan, first(credits, newTotal)), tally{charge{2, 3}, 50}},
	} {
		p, err := c.local.Peek(t.Context(), "key")
		require.NoError(t, err, name)
		got, err := tallyOf(t.Context(), c.local, "key", p, owed)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

// What has been paid is told even if there was no room for the rest.
func TestAPaymentIsAsLargeAsTheRoom(t *testing.T) {
	pays := func(l ratelimit.Limiter, due, want charge) {
		t.Helper()
		paid, err := pay(t.Context(), l, "key", due, false)
		require.NoError(t, err)
		require.Equal(t, want, paid)
	}
	plan, credits, total, _ := levels(t, 9, 18, 0)
	pays(ratelimit.Must(ratelimit.NewFirst(plan, credits)), charge{4, 4}, charge{3, 3})
	pays(total, charge{0, 1}, charge{0, 1})
	plan, _, _, _ = levels(t, 9, 0, 0)
	paid, err := pay(t.Context(), ratelimit.Must(ratelimit.NewFirst(plan, failing{total})), "key", charge{4, 4}, false)
	require.ErrorIs(t, err, ratelimit.ErrStore)
	require.Equal(t, charge{1, 1}, paid)
	p, err := total.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 50, p.Remaining)
}

// failing is a limiter of another package whose store fails.
type failing struct{ ratelimit.Limiter }

func (failing) AllowN(context.Context, string, int) (ratelimit.Result, error) {
	return ratelimit.Result{}, ratelimit.ErrStore
}

func (failing) Peek(context.Context, string) (ratelimit.Result, error) {
	return ratelimit.Result{}, ratelimit.ErrStore
}
