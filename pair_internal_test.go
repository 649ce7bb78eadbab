package ratelimit

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

type unheard struct{}

func (unheard) Decided(context.Context, string, int, Result, error, time.Duration) {}

// The two limits that most users have are told in the Result alone, so that a decision of theirs
// allocates nothing. Where no store decides together, or limits are observed, a denial may.
func TestTwoLimitsAreToldInTheResult(t *testing.T) {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return time.Unix(1e9, 0) }))
	require.NoError(t, err)
	alone := func(r Result) bool {
		_, ok := r.mark.note.(*pair)
		return ok
	}
	for _, opts := range [][]Option{nil, {WithObserver(unheard{})}} {
		for _, denier := range []int{0, 1} {
			limits := []Limit{PerHour(9), PerHour(9)}
			limits[denier] = PerHour(1)
			a, err := NewAll(Must(NewTokenBucket(mem, limits[0], opts...)), Must(NewSlidingWindow(mem, limits[1], opts...)))
			require.NoError(t, err)
			r, err := a.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.True(t, alone(r))
			require.True(t, opts == nil || !a.plain)
			r, err = a.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Equal(t, opts == nil, alone(r))
			require.NoError(t, a.Reset(t.Context(), "key"))
		}
	}
	calls, err := NewAll(Must(NewTokenBucket(mem, PerHour(5), CountCalls())), Must(NewFixedWindow(mem, PerHour(5), CountCalls())))
	require.NoError(t, err)
	r, err := calls.AllowN(t.Context(), "key", math.MaxInt32)
	require.NoError(t, err)
	require.True(t, alone(r), "of as many events as there is room for")
}

// A limit of calls notes of how many events a call was, since a Refund of fewer leaves it charged.
// Most are of one, and need no note.
func TestACallOfOneEventHasNoNote(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	l := Must(NewTokenBucket(mem, PerHour(5), CountCalls()))
	for n, noted := range map[int]bool{1: false, 2: true} {
		r, err := l.AllowN(t.Context(), "key", n)
		require.NoError(t, err)
		require.Equal(t, noted, r.mark != nil)
	}
}

// Of a ban, as stores see it: a key that is banned has room for nothing, denials are kept no longer
// than they count, and the longest ban is not counted again, however often it begins.
func TestTheStateOfABan(t *testing.T) {
	l := store.Limit{Rate: 2, Period: 60e6, Burst: 60}
	strikes := l.TurnBefore(5e6 + 1)
	s, r := banStep(store.State{}, strikes, 1e15, 1)
	require.True(t, r.OK())
	require.EqualValues(t, 5e6, ban.TTL(s, l))
	_, r = banStep(s, strikes, 1e15-1, 1)
	require.EqualValues(t, 1e15, r.X, "a late reading")
	s, _ = banStep(s, strikes, 1e15, 1)
	banned, r := banStep(s, l, 1e15+1, 1)
	require.False(t, r.OK())
	require.Zero(t, ban.Available(l, r))
	require.Equal(t, s, banned)
	for i := range int64(5) {
		again, r := banStep(s, strikes, s.At+60e6, 2)
		require.True(t, r.OK())
		require.Equal(t, s.Whole, again.Whole, i)
		s = again
	}
}

// What was counted until the end of its hour has ended at that instant, also where its limit is of
// months now.
func TestAnHourEndsInAMonth(t *testing.T) {
	month, err := integers(&fixedWindow, PerMonth(2))
	require.NoError(t, err)
	const hour = 3600e6
	s := store.State{At: 500_000*hour + 1, Period: hour, Whole: 2}
	for now, count := range map[int64]int64{500_001*hour - 1: 2, 500_001 * hour: 0} {
		_, r := fixedWindowStep(s, month, now, 1)
		require.Equal(t, count, r.Y)
		require.Equal(t, count == 0, r.OK())
	}
}
