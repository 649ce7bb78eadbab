package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/lease"
)

// Stores in front share the limit of those that ask the table itself.
func TestStoresInFrontShareTheLimit(t *testing.T) {
	t.Parallel()
	pool := shared(t)
	leased, err := lease.New(open(t, pool), time.Minute)
	require.NoError(t, err)
	coalesced, err := coalesce.New(open(t, pool))
	require.NoError(t, err)
	cached, err := denycache.New(open(t, pool))
	require.NoError(t, err)
	for name, s := range map[string]store.Store{"lease": leased, "coalesce": coalesced, "denycache": cached} {
		l := window(t, s, "n", 300)
		require.EqualValues(t, 300, crowd(16, 30, func(int, int) bool { return take(t, l, "key").Allowed }), name)
	}
	require.NoError(t, leased.Close(context.Background()))
}

func TestSlotsAreHeldAndReleased(t *testing.T) {
	t.Parallel()
	l, err := inflight.New(open(t, shared(t)), 3, time.Minute)
	require.NoError(t, err)
	hold := func() (*inflight.Slot, bool) {
		slot, r, err := inflight.Hold(t.Context(), l, "key", 1)
		require.NoError(t, err)
		return slot, r.Allowed
	}
	var slots []*inflight.Slot
	for range 3 {
		slot, ok := hold()
		require.True(t, ok)
		slots = append(slots, slot)
	}
	_, ok := hold()
	require.False(t, ok)
	for _, slot := range slots {
		slot.Release()
	}
	eventually(t, func() bool {
		slot, ok := hold()
		slot.Release()
		return ok
	})
}

func TestBansCalendarsReservesAndFallbackStandOnIt(t *testing.T) {
	t.Parallel()
	s := open(t, shared(t))
	month, err := ratelimit.NewFixedWindow(s, ratelimit.PerMonth(3), ratelimit.WithName("month"))
	require.NoError(t, err)
	require.EqualValues(t, 3, crowd(1, 5, func(int, int) bool { return take(t, month, "key").Allowed }))

	reserved, err := ratelimit.NewTokenBucket(s, ratelimit.PerDay(10), ratelimit.WithName("shared"), ratelimit.WithReserved(4))
	require.NoError(t, err)
	require.EqualValues(t, 6, crowd(4, 5, func(int, int) bool { return take(t, reserved, "key").Allowed }))
	whole, err := ratelimit.NewTokenBucket(s, ratelimit.PerDay(10), ratelimit.WithName("shared"))
	require.NoError(t, err)
	require.EqualValues(t, 4, crowd(4, 5, func(int, int) bool { return take(t, whole, "key").Allowed }))

	banned, err := ratelimit.NewBan(window(t, s, "banned", 1), s, ratelimit.Penalty{Denials: 2, Within: time.Minute, For: time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 1, crowd(1, 8, func(int, int) bool { return take(t, banned, "key").Allowed }))

	failsOpen, err := fallback.New(window(t, s, "fallback", 2), fallback.FailOpen())
	require.NoError(t, err)
	require.EqualValues(t, 2, crowd(1, 4, func(int, int) bool { return take(t, failsOpen, "key").Allowed }))
}
