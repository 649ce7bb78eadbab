package suite_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// An admission by two limits keeps nothing beside its Result. Its parts are the Results of
// single limits that were asked for the same events, whatever their algorithms.
func TestAnAdmissionByTwoLimitsHasTheirResults(t *testing.T) {
	for _, first := range algorithms {
		for _, second := range algorithms {
			t.Run(first+" and "+second, func(t *testing.T) {
				c := newClock()
				together, alone := pairOn(t, memory(t, c), first, second), pairOn(t, memory(t, c), first, second)
				all, err := ratelimit.NewAll(together...)
				require.NoError(t, err)
				random, ctx := rand.New(rand.NewPCG(3, 4)), t.Context()
				admitted, denied := 0, 0
				for range 300 {
					c.Advance(time.Duration(random.IntN(400)) * time.Millisecond)
					if random.IntN(8) == 0 { // one limit's clock is ahead of the other's
						c.Advance(50 * time.Millisecond)
						for _, l := range []ratelimit.Limiter{together[0], alone[0]} {
							_, err := l.Allow(ctx, "a")
							require.NoError(t, err)
						}
						c.Advance(-50 * time.Millisecond)
					}
					n := 1 + random.IntN(2)
					r, err := all.AllowN(ctx, "a", n)
					require.NoError(t, err)
					if !r.Allowed {
						denied++
						requireDenial(t, r, n, together, alone)
						continue
					}
					admitted++
					require.Equal(t, n, r.Charged())
					require.Empty(t, r.DeniedBy())
					for i, l := range alone {
						want, err := l.AllowN(ctx, "a", n)
						require.NoError(t, err)
						require.Equal(t, want, r.Parts()[i].Result)
					}
					p, q := r.Parts()[0], r.Parts()[1]
					require.Equal(t, min(p.Remaining, q.Remaining), r.Remaining)
					require.Equal(t, max(p.ResetAfter, q.ResetAfter), r.ResetAfter)
					if random.IntN(4) == 0 {
						back := 1 + random.IntN(n)
						require.NoError(t, all.Refund(ctx, "a", r, back))
						for i, l := range alone {
							require.NoError(t, l.Refund(ctx, "a", r.Parts()[i].Result, back))
						}
					}
				}
				require.Greater(t, admitted, 40)
				require.Greater(t, denied, 10)
			})
		}
	}
}

// requireDenial checks a denial of n events by two limits. Each part is what the limit alone says
// of them.
func requireDenial(t *testing.T, r ratelimit.Result, n int, together, alone []ratelimit.Limiter) {
	t.Helper()
	require.Zero(t, r.Charged())
	require.Len(t, r.Parts(), 2)
	longest := ""
	var retry time.Duration
	for i, l := range together {
		part := r.Parts()[i]
		standing, err := l.Peek(t.Context(), "a") // nothing was charged
		require.NoError(t, err)
		want, err := alone[i].AllowN(t.Context(), "a", n)
		require.NoError(t, err)
		if want.Allowed {
			require.NoError(t, alone[i].Refund(t.Context(), "a", want, n))
			want.Limit, want.RetryAfter = standing.Limit, 0
		}
		require.Equal(t, want.Allowed, part.Allowed)
		require.Equal(t, [...]any{want.Limit, standing.Remaining, want.RetryAfter, standing.ResetAfter}, [...]any{part.Limit, part.Remaining, part.RetryAfter, part.ResetAfter})
		require.ErrorIs(t, l.Refund(t.Context(), "a", part.Result, 1), ratelimit.ErrInvalidN)
		if part.RetryAfter > retry {
			policies, err := ratelimit.AppendPolicies(t.Context(), nil, l, "a")
			require.NoError(t, err)
			longest, retry = policies[0].Name, part.RetryAfter
		}
	}
	p, q := r.Parts()[0], r.Parts()[1]
	require.Equal(t, retry, r.RetryAfter)
	require.Equal(t, longest, r.DeniedBy())
	require.Equal(t, min(p.Remaining, q.Remaining), r.Remaining)
	require.Equal(t, max(p.ResetAfter, q.ResetAfter), r.ResetAfter)
}

func TestTheResultOfTwoLimitsIsNoneOfASingleOne(t *testing.T) {
	ctx := t.Context()
	two := pairOn(t, memory(t, newClock()), "token_bucket", "sliding_window")
	all, err := ratelimit.NewAll(two...)
	require.NoError(t, err)
	r, err := all.Allow(ctx, "a")
	require.NoError(t, err)
	for _, l := range two {
		require.ErrorIs(t, l.Refund(ctx, "a", r, 1), ratelimit.ErrInvalidN)
	}
}

// pairOn returns limiters of two limits, either of which may be the first to deny.
func pairOn(t *testing.T, s store.Store, first, second string) []ratelimit.Limiter {
	t.Helper()
	limits := []ratelimit.Limit{{Rate: 10, Period: 3 * time.Second}, {Rate: 12, Period: 4 * time.Second}}
	pair := make([]ratelimit.Limiter, 2)
	for i, algorithm := range []string{first, second} {
		var err error
		pair[i], err = ratelimit.New(algorithm, s, limits[i], ratelimit.WithName(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	return pair
}

// A Result has 32 bits for the events of a charge, and a limit of calls takes more.
func TestTwoLimitsOfCallsGiveBackAnyNumberOfEvents(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("no int is larger")
	}
	s := memory(t, newClock())
	var parts []ratelimit.Limiter
	for _, algorithm := range []string{"token_bucket", "fixed_window"} {
		parts = append(parts, newLimiter(t, algorithm, s, ratelimit.PerHour(10), ratelimit.CountCalls()))
	}
	all, err := ratelimit.NewAll(parts...)
	require.NoError(t, err)
	for _, bits := range []int{3, 31, 32} {
		n := 1<<bits + 3
		r, err := all.AllowN(t.Context(), "key", n)
		require.NoError(t, err)
		require.Equal(t, n, r.Charged())
		require.NoError(t, all.Refund(t.Context(), "key", r, n))
		require.Equal(t, 10, peek(t, all, "key").Remaining)
	}
}

// Of two limits that have as much left, the Limit is that of the first. So it is where more than
// two decide, which are described in another way.
func TestOfTwoLimitsWithAsMuchLeftTheFirstIsTold(t *testing.T) {
	for _, tens := range []int{0, 1} {
		s := memory(t, newClock())
		limits := []ratelimit.Limiter{newLimiter(t, "fixed_window", s, ratelimit.PerHour(12)), newLimiter(t, "token_bucket", s, ratelimit.PerHour(12))}
		limits[tens] = newLimiter(t, "sliding_window", s, ratelimit.PerHour(10))
		allowN(t, limits[1-tens], 2)
		two := allowN(t, all(t, limits...), 1)
		require.Equal(t, two.Parts()[0].Remaining, two.Parts()[1].Remaining)
		require.Equal(t, two.Parts()[0].Limit, two.Limit)
		require.NotEqual(t, two.Parts()[1].Limit, two.Limit)
		three := allowN(t, all(t, append(limits, newLimiter(t, "fixed_window", s, ratelimit.PerHour(100)))...), 1)
		require.Equal(t, two.Limit, three.Limit)
	}
}
