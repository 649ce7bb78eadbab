package fallback

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/store"
)

// ledger is debts, without a limiter.
func ledger() *debts { return &debts{seeds: keyhash.New()} }

func (d *debts) owe(key string, c charge, now, life time.Duration) {
	d.add(key, c, store.ErrUnavailable, now, life)
}

// requireKeys requires so many keys to take memory, and calls to take a lock only if there are any.
func (d *debts) requireKeys(t *testing.T, n int) {
	t.Helper()
	require.Len(t, d.byKey, n)
	require.EqualValues(t, n, d.keys.Load())
}

func TestKeysThatOweNothingTakeNoMemory(t *testing.T) {
	d := ledger()
	d.owe("a", charge{1, 1}, 0, 10)
	d.owe("b", charge{1, 1}, 0, 20)
	require.Zero(t, d.take("a", 10))
	d.requireKeys(t, 1)
	require.Zero(t, d.take("a", 20), "all have decayed")
	d.requireKeys(t, 0)

	for range 2 {
		d.owe("a", charge{2, 1}, 30, 10)
		require.Equal(t, charge{2, 1}, d.take("a", 30).charge)
		require.Zero(t, d.take("b", 40))
		d.requireKeys(t, 1) // it is being charged
		d.paid("a", charge{2, 1}, false)
		d.requireKeys(t, 0)
		d.owe("a", charge{2, 1}, 30, 10)
		require.Zero(t, d.take("b", 40), "all have decayed")
		d.requireKeys(t, 0)
	}
}

// When there is no room for another key, those whose events have decayed make it.
func TestKeysWhoseEventsHaveDecayedAreForgottenFirst(t *testing.T) {
	for range 50 { // in any order
		d := ledger()
		d.owe("decayed", charge{100, 100}, 0, 10)
		d.owe("owes", charge{1, 1}, 0, 20)
		d.owe("owes more", charge{2, 2}, 0, 20)
		d.dropLeast(10)
		require.Zero(t, d.of("decayed"))
		d.dropLeast(10)
		require.Zero(t, d.of("owes"))
		require.Equal(t, 2, d.of("owes more").events)
	}
}

func TestWhatIsNotPaidStaysOwed(t *testing.T) {
	for _, c := range []struct{ owed, paid charge }{
		{charge{4, 0}, charge{3, 0}}, // of a Charge
		{charge{2, 2}, charge{2, 1}},
		{charge{3, 1}, charge{1, 0}},
	} {
		d := ledger()
		d.owe("key", c.owed, 0, 10)
		d.take("key", 0)
		d.paid("key", c.paid, false)
		want := charge{c.owed.events - c.paid.events, c.owed.calls - c.paid.calls}
		require.Equal(t, want, d.take("key", 0).charge)
	}
}

// Events that are refunded while they are charged to the store are not subtracted from later ones.
func TestAKeyOwesNoLessThanNothing(t *testing.T) {
	d := ledger()
	d.owe("key", charge{3, 2}, 0, 10)
	d.take("key", 0)
	d.forgive("key", 3)
	d.owe("key", charge{1, 1}, 0, 10)
	d.paid("key", charge{3, 0}, false)
	d.owe("key", charge{3, 1}, 0, 10)
	require.Equal(t, charge{3, 2}, d.take("key", 0).charge)
}
