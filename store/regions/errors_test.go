package regions_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/regions"
)

var errDown = fmt.Errorf("%w: down", store.ErrUnavailable)

// failing returns a hook that fails calls of an operation.
func failing(of string) func(context.Context, string) error {
	return func(_ context.Context, op string) error {
		if op == of {
			return errDown
		}
		return nil
	}
}

func TestErrorsOfOthersAreNotTheCallers(t *testing.T) {
	for _, op := range []string{"peek", "debit"} {
		synctest.Test(t, func(t *testing.T) {
			x := newTwo(t, "fixed_window", ratelimit.PerDay(10))
			x.far.before = failing(op)
			require.Equal(t, 10, use(t, x, "key", 11))
			require.EqualValues(t, 1, x.shared.Stats().Failed)
			calls := x.far.calls.Load()
			require.Equal(t, 10, use(t, x, "another key", 11))
			require.Equal(t, calls, x.far.calls.Load(), "it rests for all keys")
			x.far.before = nil
			time.Sleep(time.Second)
			require.Equal(t, 5, use(t, x, "key", 5))
			require.Equal(t, 5, use(t, x, "another key", 5))
		})
	}
}

// A failure for one key, or for lack of room in this process, does not mean that a region fails.
func TestAnErrorOfAKeyRestsNoRegion(t *testing.T) {
	for name, fault := range map[string]error{
		"corrupt":    store.ErrCorrupt,
		"clock":      store.ErrClock,
		"overloaded": store.ErrOverloaded,
	} {
		synctest.Test(t, func(t *testing.T) {
			x := newTwo(t, "fixed_window", ratelimit.PerDay(10))
			bad := func(context.Context, string) error { return fmt.Errorf("%w: on purpose", fault) }
			x.far.before = bad
			require.Equal(t, 10, use(t, x, "bad", 11), name)
			x.far.before = nil
			require.Equal(t, 20, use(t, x, "good", 21), name)

			x.far.before = failing("peek")
			require.Equal(t, 10, use(t, x, "rests", 11), name)
			time.Sleep(time.Second)
			x.far.before = bad
			require.Zero(t, use(t, x, "bad", 1), name)
			x.far.before = nil
			require.Equal(t, 20, use(t, x, "better", 21), "%s: it was no probe of the region", name)
		})
	}
}

// Only a region that had all of the wait is left alone for being slow.
func TestASlowRegionIsNotTakenForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.PerDay(12)
		hung, slower := &faraway{Store: memory(t)}, &faraway{Store: memory(t), before: slow(90 * time.Millisecond)}
		_, l := first(t, "fixed_window", limit, []store.Store{memory(t), slower, hung}, regions.WithWait(200*time.Millisecond))
		hung.before = slow(time.Hour)
		require.Equal(t, 12, use(t, l, "key", 12))
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := l.Allow(short, "key") // which asks the one that hangs
		require.NoError(t, err)
		require.EqualValues(t, 1, hung.calls.Load())
		require.Zero(t, slower.calls.Load(), "no time is left")
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 1, use(t, l, "key", 1), "half of the slower one's")
		require.EqualValues(t, 1, hung.calls.Load(), "there was no need")
		require.Equal(t, 5, use(t, l, "key", 6), "the one that hangs has taken all the time")
		time.Sleep(100 * time.Millisecond)
		require.EqualValues(t, 2, hung.calls.Load())
		require.Equal(t, 3, use(t, l, "key", 3), "it rests, and the slower one does not")
		require.EqualValues(t, 2, hung.calls.Load())
	})
}

// A region is not left alone for what its caller or another region has left of the wait.
func TestARegionIsNotBlamedForTooLittleTime(t *testing.T) {
	ms := time.Millisecond
	for name, prepare := range map[string]func(ctx context.Context, l ratelimit.Limiter, other *faraway) (context.Context, context.CancelFunc){
		"a short ctx": func(ctx context.Context, _ ratelimit.Limiter, _ *faraway) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 100*ms)
		},
		"a canceled ctx": func(ctx context.Context, _ ratelimit.Limiter, _ *faraway) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*ms, cancel)
			return ctx, cancel
		},
		"after another": func(ctx context.Context, empty ratelimit.Limiter, other *faraway) (context.Context, context.CancelFunc) {
			require.Equal(t, 10, use(t, empty, "key", 10))
			other.before = slow(120 * ms)
			return ctx, func() {}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			limit := ratelimit.PerDay(10)
			other, asked := &faraway{Store: memory(t)}, &faraway{Store: memory(t), before: slow(60 * ms)}
			empty, stores := limiter(t, "fixed_window", other, limit), []store.Store{memory(t), asked}
			if name == "after another" {
				stores = append(stores, other) // which is the first to be asked
			}
			shared, l := first(t, "fixed_window", limit, stores, regions.WithWait(200*ms))
			require.Equal(t, 10, use(t, l, "key", 10))
			ctx, cancel := prepare(t.Context(), empty, other)
			defer cancel()
			r, err := l.Allow(ctx, "key")
			require.NoError(t, err)
			require.False(t, r.Allowed, name)
			require.EqualValues(t, 1, asked.calls.Load(), name)
			require.EqualValues(t, 1, shared.Stats().Failed, name)
			time.Sleep(100 * ms)
			require.Equal(t, 1, use(t, l, "key", 1), name)
		})
	}
}

// Events that are lost between debit and credit are lost to all regions.
func TestALostCreditIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "fixed_window", ratelimit.PerDay(10))
		x.near.before = failing("credit")
		require.Equal(t, 10, use(t, x, "key", 11))
		require.Equal(t, regions.Stats{Fetches: 1, Failed: 1}, x.shared.Stats())
		x.near.before = nil
		require.Equal(t, 5, remaining(t, x.other, "key"))
		time.Sleep(time.Second)
		require.Equal(t, 5, use(t, x, "key", 20))
	})
}
func TestErrorsOfTheOwnShareAre(t *testing.T) {
	x := newTwo(t, "fixed_window", ratelimit.PerDay(1))
	x.near.before = failing("debit")
	_, _, err := ratelimit.AllowUpTo(t.Context(), x.Limiter, "key", 2)
	require.ErrorIs(t, err, errDown)
	x.near.before = failing("peek")
	_, err = x.Peek(t.Context(), "key")
	require.ErrorIs(t, err, errDown)
	require.Zero(t, x.shared.Stats())
}
