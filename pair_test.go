package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// Most Alls are of limits without options, which are decided without a look at each of them, and
// two of them are told in the Result alone. That is only faster: an All whose limits are observed,
// and a Decide, say the same.
func TestAnAllDecidesAlikeOnEachOfItsWays(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range 150 {
		c := newClock()
		var ways [3]alike
		limits := 2 + round%3/2 // most often 2
		for w := range ways {
			ways[w] = alike{s: memory(t, c)}
		}
		for i := range limits {
			algorithm, opts := algorithms[rng.IntN(len(algorithms))], []ratelimit.Option{ratelimit.WithName(fmt.Sprint(i))}
			if rng.IntN(3) == 0 || round%10 == 0 {
				opts = append(opts, ratelimit.CountCalls())
			}
			l := ratelimit.Limit{Rate: 1 + rng.IntN(9), Period: time.Duration(2+rng.IntN(3)) * time.Second}
			if rng.IntN(12) == 0 {
				l = []ratelimit.Limit{ratelimit.PerHour(0), ratelimit.Unlimited()}[rng.IntN(2)]
			}
			if hasBurst(algorithm) && l.Rate > 0 && rng.IntN(2) == 0 {
				l.Burst = l.Rate + 2
			}
			for w := range ways {
				one := newLimiter(t, algorithm, ways[w].s, l, opts...)
				if w == 1 {
					one = observed(t, one, saying(func() {}))
				}
				ways[w].limits = append(ways[w].limits, one)
			}
		}
		for w := range ways {
			ways[w].all, ways[w].decides = all(t, ways[w].limits...), w == 2
		}
		for range 30 {
			ways[0].requireStep(t, c, rng, ways[1:])
		}
	}
}

// alike is an All that is asked as others are.
type alike struct {
	s       store.Store
	limits  []ratelimit.Limiter
	all     *ratelimit.All
	decides bool // by Decide
	last    ratelimit.Result
	n       int // of last
}

func (a *alike) asks(n int) []ratelimit.Ask {
	asks := make([]ratelimit.Ask, len(a.limits))
	for i, l := range a.limits {
		asks[i] = ratelimit.Ask{Limiter: l, Key: "key", N: n}
	}
	return asks
}

func (a *alike) allowN(ctx context.Context, n int) (r ratelimit.Result, err error) {
	if a.decides {
		r, err = ratelimit.Decide(ctx, a.asks(n)...)
	} else {
		r, err = a.all.AllowN(ctx, "key", n)
	}
	a.last, a.n = r, n
	return r, err
}

func (a *alike) refund(ctx context.Context, n int) error {
	if a.decides {
		return ratelimit.GiveBack(ctx, a.last, a.asks(n)...)
	}
	return a.all.Refund(ctx, "key", a.last, n)
}

// requireStep does the same at random to all of the ways, which then tell the same.
func (a *alike) requireStep(t *testing.T, c *clock, rng *rand.Rand, others []alike) {
	t.Helper()
	ctx, what, n := t.Context(), rng.IntN(12), 1+rng.IntN(3)
	if rng.IntN(20) == 0 {
		n = []int{math.MaxInt32, math.MaxInt32 + 1}[rng.IntN(2)]
	}
	if what == 0 { // the clock of one limit is ahead
		c.Advance(300 * time.Millisecond)
	}
	act := func(a *alike) (told []any) {
		tell := func(r ratelimit.Result, err error) {
			require.NoError(t, err)
			told = append(told, r.Counted(), r.Charged(), r.DeniedBy(), r.Source(), r.String(), visible(r), r.ResetAfter, len(r.Parts()))
			for _, p := range r.Parts() {
				told = append(told, visible(p), p.ResetAfter, p.Source(), p.Charged())
			}
		}
		switch what {
		case 0:
			_, err := a.limits[0].Allow(ctx, "key")
			require.NoError(t, err)
		case 1:
			tell(a.all.Peek(ctx, "key"))
		case 2:
			tell(a.all.AllowWithin(ctx, "key", n, time.Second))
		case 3:
			if a.last.Allowed {
				require.NoError(t, a.refund(ctx, min(a.n, n)))
				a.last.Allowed = false
			}
		case 4:
			_, err := a.all.Charge(ctx, "key", min(n, 3))
			require.NoError(t, err)
		default:
			tell(a.allowN(ctx, n))
		}
		return told
	}
	want := act(a)
	for i := range others {
		require.Equal(t, want, act(&others[i]), "%d events on way %d of %v", n, i+1, a.limits)
	}
	if what == 0 {
		c.Advance(-300 * time.Millisecond)
	}
	c.Advance(time.Duration(rng.IntN(700)) * time.Millisecond)
}
