package ratelimit_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

type allowUpTo interface {
	AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error)
}

func TestAllowUpToGrantsWhatFitsAndNoMore(t *testing.T) {
	eachStore(t, func(t *testing.T, s store.Store) {
		for _, algorithm := range algorithms {
			lim := newLimiter(t, algorithm, s, ratelimit.PerDay(10))
			for _, step := range []struct{ ask, want, remaining int }{
				{4, 4, 6}, {1, 1, 5}, {min(1<<40, math.MaxInt), 5, 0}, {3, 0, 0}, {1, 0, 0},
			} {
				granted, r, err := lim.(allowUpTo).AllowUpTo(t.Context(), "key", step.ask)
				require.NoError(t, err)
				require.Equal(t, step.want, granted, "%s: of %d", algorithm, step.ask)
				require.Equal(t, step.remaining, r.Remaining)
				require.Equal(t, granted > 0, r.Allowed)
				if granted == 0 { // as Allow would be denied
					require.Positive(t, r.RetryAfter)
					require.Less(t, r.RetryAfter, 3*24*time.Hour)
				}
			}
		}
	})
}

func TestAllowUpToCanBeRefunded(t *testing.T) {
	eachStore(t, func(t *testing.T, s store.Store) {
		for _, algorithm := range algorithms {
			lim := newLimiter(t, algorithm, s, ratelimit.PerDay(10))
			granted, r, err := lim.(allowUpTo).AllowUpTo(t.Context(), "key", 15)
			require.NoError(t, err)
			require.Equal(t, 10, granted)
			require.NoError(t, lim.Refund(t.Context(), "key", r, 4))
			granted, _, err = lim.(allowUpTo).AllowUpTo(t.Context(), "key", 15)
			require.NoError(t, err)
			require.Equal(t, 4, granted, algorithm)
		}
	})
}

func TestAllowUpToRefusesBadInput(t *testing.T) {
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, untouched{t}, ratelimit.PerDay(10)).(allowUpTo)
		for _, n := range []int{0, -1} {
			granted, r, err := lim.AllowUpTo(t.Context(), "key", n)
			require.ErrorIs(t, err, ratelimit.ErrInvalidN)
			require.Zero(t, granted)
			require.Zero(t, r)
		}
		_, _, err := lim.AllowUpTo(t.Context(), "", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)

		blocked := newLimiter(t, algorithm, untouched{t}, ratelimit.PerDay(0)).(allowUpTo)
		granted, r, err := blocked.AllowUpTo(t.Context(), "key", 3)
		require.NoError(t, err)
		require.Zero(t, granted)
		require.Equal(t, ratelimit.Never, r.RetryAfter)
	}
}

func TestConcurrentPartialGrantsAreExact(t *testing.T) {
	eachStore(t, func(t *testing.T, s store.Store) {
		for _, algorithm := range algorithms {
			lim := newLimiter(t, algorithm, s, ratelimit.PerDay(500)).(allowUpTo)
			var granted atomic.Int64
			var group sync.WaitGroup
			for c := range 32 {
				group.Go(func() {
					for i := range 10 {
						n, _, err := lim.AllowUpTo(t.Context(), "key", 1+(c+i)%7)
						if err != nil {
							t.Error(err)
						}
						granted.Add(int64(n))
					}
				})
			}
			group.Wait()
			require.EqualValues(t, 500, granted.Load(), algorithm)
		}
	})
}

// The clock moves with each reading, so that more fits at a second look than at the
// first: what was granted is what was charged all the same.
func TestAllowUpToChargesWhatItGrantsWhileTimePasses(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "leaky_bucket"} {
		c, step := newClock(), time.Duration(0)
		s, err := memstore.New(memstore.WithClock(func() time.Time { c.Advance(step); return c.Now() }))
		require.NoError(t, err)
		lim := newLimiter(t, algorithm, s, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 10})
		require.True(t, allowN(t, lim, 10).Allowed)
		step = 2 * time.Second
		granted, r, err := lim.(allowUpTo).AllowUpTo(t.Context(), "key", 6)
		require.NoError(t, err)
		require.Equal(t, 2, granted, algorithm)
		step = 0
		peek, err := lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, r.Remaining, peek.Remaining)
	}
}

func TestAllowUpToAsksALimiterOfAnotherPackageThreeTimes(t *testing.T) {
	busy := counting{Limiter: ratelimittest.Static(ratelimit.Result{Limit: 5, Remaining: 1, RetryAfter: time.Second}, nil)}
	granted, r, err := ratelimit.AllowUpTo(t.Context(), &busy, "key", 4)
	require.NoError(t, err)
	require.Zero(t, granted)
	require.Equal(t, time.Second, r.RetryAfter)
	require.Equal(t, 3, busy.calls)

	three := make([]ratelimit.Limiter, 3)
	for i := range three {
		three[i] = busy.Limiter
	}
	busy = counting{Limiter: all(t, three...)}
	_, _, err = ratelimit.AllowUpTo(t.Context(), &busy, "key", 9)
	require.NoError(t, err)
	require.Equal(t, 4, busy.calls, "once more than there are limits")
}

// Limits on stores of their own are asked one after the other, and each denial shows the room of one of them.
func TestAllowUpToFindsTheRoomOfAllLimits(t *testing.T) {
	var limits []ratelimit.Limiter
	for i := range 16 {
		limits = append(limits, newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerDay(20-i)))
	}
	for _, l := range []ratelimit.Limiter{all(t, limits...), newFirst(t, all(t, limits...))} {
		granted, r, err := ratelimit.AllowUpTo(t.Context(), l, "key", 30)
		require.NoError(t, err)
		require.Equal(t, 5, granted)
		require.NoError(t, l.Refund(t.Context(), "key", r, granted))
	}
}

func TestNothingIsGrantedBesideAnError(t *testing.T) {
	for _, l := range []ratelimit.Limiter{nil, ratelimittest.Static(ratelimit.Result{}, errGone), all(t, awayLimit(t))} {
		granted, r, err := ratelimit.AllowUpTo(t.Context(), l, "key", 3)
		require.Error(t, err)
		require.Zero(t, granted)
		require.Zero(t, r)
	}
}

// What a limiter of another package claims to have, while it denies just that, is not what a First has room for.
func TestAllowUpToOfAFirstGrantsWhatOneOfThemGives(t *testing.T) {
	says := ratelimittest.Static(ratelimit.Result{Limit: 5, Remaining: 5, RetryAfter: time.Second}, nil)
	bucket := newLimiter(t, "token_bucket", ratelimit.Must(memstore.New()), ratelimit.PerHour(3))
	n, r, err := ratelimit.AllowUpTo(t.Context(), ratelimit.Must(ratelimit.NewFirst(says, bucket)), "key", 5)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, 3, r.Charged())
}
