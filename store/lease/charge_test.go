package lease_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A look sees what a Charge leaves, even if the store is asked under a stricter limit.
func TestChargeSaysWhatPeekSays(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		for _, n := range []int{1, 30, 99, 150} {
			d := newLease(t, newLimiter(t, algorithm, memory(t, stopped), ratelimit.PerSecond(100)), life)
			r, err := d.Charge(t.Context(), "key", n)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			peek, err := d.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, []any{peek.Limit, peek.Remaining, peek.ResetAfter}, []any{r.Limit, r.Remaining, r.ResetAfter}, n)
			require.NoError(t, d.Refund(t.Context(), "key", r, n))
			require.Equal(t, fullKey(t, d), remaining(t, d), "all of it can be refunded")
			closeLease(t, d)
		}
	})
}

// A debt that is refunded is not room for others. It may have the same µs as a lease, as in one
// Redis script.
func TestADebtOfTheTimeOfALeaseDoesNotGoIntoIt(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		now := time.Unix(1_800_000_000, 0)
		d := newLease(t, newLimiter(t, algorithm, memory(t, memstore.WithClock(func() time.Time { return now })), ratelimit.PerSecond(100)), life)
		defer closeLease(t, d)
		require.True(t, allow(t, d).Allowed)
		require.True(t, allowN(t, d, remaining(t, d)).Allowed)
		debt, err := d.Charge(t.Context(), "key", 3)
		require.NoError(t, err)
		now = now.Add(time.Microsecond)
		_, err = d.Charge(t.Context(), "key", 1)
		require.NoError(t, err)
		require.NoError(t, d.Refund(t.Context(), "key", debt, 3))
		require.False(t, allow(t, d).Allowed)
	})
}

// A failed refund of one lease leaves no other one charged.
func TestAnAllowUpToGivesBackWhatItCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerHour(100_000)), time.Minute)
		hold(t, d, 64)
		for r := d.Stats(); r.Held < 65; r = d.Stats() { // until there is a second one
			allow(t, d)
			synctest.Wait()
		}
		held, left := d.Stats().Held, remaining(t, d.plain)
		var failed atomic.Bool
		s.set(0, func(op string) error {
			if op == "Refund" && !failed.Swap(true) {
				return store.ErrUnavailable
			}
			return nil
		})
		_, _, err := d.AllowUpTo(t.Context(), "key", 1000)
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.Zero(t, d.Stats().Held)
		given := remaining(t, d.plain) - left
		require.Positive(t, given, "of %d held", held)
		require.Equal(t, given, int(d.Stats().GivenBack))
		closeLease(t, d)
	})
}
