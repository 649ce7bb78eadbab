package observe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// nearTo returns a Near that records each report as key: used/limit.
func nearTo(t *testing.T, percent int) (*observe.Near, func() []string) {
	t.Helper()
	var told []string
	near, err := observe.NewNear(percent, func(_ context.Context, key string, r ratelimit.Result) {
		told = append(told, fmt.Sprintf("%s: %d/%d", key, r.Limit-r.Remaining, r.Limit))
	})
	require.NoError(t, err)
	return near, func() []string {
		defer func() { told = nil }()
		return told
	}
}

func TestNearIsToldOnceForAKeyAndWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, told := nearTo(t, 80)
		lim := observed(t, inMemory(t, "fixed_window", ratelimit.PerMinute(10)), near)
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(90 * time.Second))) // the middle of a window
		allow := func(key string, n int) {
			_, err := lim.AllowN(t.Context(), key, n)
			require.NoError(t, err)
		}
		allow("ann", 7)
		require.Empty(t, told(), "70 %")
		allow("ann", 1)
		require.Equal(t, []string{"ann: 8/10"}, told())
		allow("ann", 2)
		allow("ann", 1)
		require.Empty(t, told(), "once")
		allow("bob", 9)
		require.Equal(t, []string{"bob: 9/10"}, told(), "another key")
		time.Sleep(30*time.Second - time.Microsecond)
		allow("ann", 1)
		require.Empty(t, told(), "the same window")
		time.Sleep(time.Microsecond)
		allow("ann", 1)
		require.Empty(t, told(), "a new window, 10 %")
		allow("ann", 8)
		require.Equal(t, []string{"ann: 9/10"}, told())
	})
}

func TestNearLooksAtEachOfSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, told := nearTo(t, 80)
		mem, err := memstore.New()
		require.NoError(t, err)
		minute, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(5))
		require.NoError(t, err)
		day, err := ratelimit.NewTokenBucket(mem, ratelimit.PerDay(50))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(minute, day)
		require.NoError(t, err)
		lim := observed(t, all, near)
		for range 7 {
			_, err := lim.AllowN(t.Context(), "ann", 5)
			require.NoError(t, err)
			time.Sleep(time.Minute)
		}
		require.Len(t, told(), 7, "the minute's, each time it is whole again")
		for range 2 {
			_, err = lim.AllowN(t.Context(), "ann", 5)
			require.NoError(t, err)
			time.Sleep(time.Minute)
		}
		require.Equal(t, []string{"ann: 5/5", "ann: 40/50", "ann: 5/5"}, told(), "the day's has the least left in percent, not in events")
	})
}

// A key that makes one call at a time has always used up its one slot.
func TestNearDoesNotLookAtSlots(t *testing.T) {
	near, told := nearTo(t, 80)
	mem, err := memstore.New()
	require.NoError(t, err)
	rate, err := ratelimit.NewTokenBucket(mem, ratelimit.PerDay(5))
	require.NoError(t, err)
	atOnce, err := inflight.New(mem, 1, time.Minute)
	require.NoError(t, err)
	for key, slots := range map[string]ratelimit.Limiter{"ann": atOnce, "bob": observed(t, atOnce, observe.NewCounters("slots"))} {
		all, err := ratelimit.NewAll(rate, slots)
		require.NoError(t, err)
		lim := observed(t, all, near)
		for range 5 {
			slot, _, err := inflight.Hold(t.Context(), lim, key, 1)
			require.NoError(t, err)
			slot.Release()
		}
		require.Equal(t, []string{key + ": 4/5"}, told())
	}
}

func TestNearHeedsWhatALimitHasCounted(t *testing.T) {
	near, told := nearTo(t, 100)
	for _, r := range []ratelimit.Result{
		{},
		{Allowed: true},
		{Allowed: true, Limit: 10, Remaining: 1, ResetAfter: time.Hour},
	} {
		near.Decided(t.Context(), "ann", 1, r, nil, 0)
	}
	near.Decided(t.Context(), "ann", 1, ratelimit.Result{Limit: 10}, errors.New("down"), 0)
	require.Empty(t, told())
	observed(t, inMemory(t, "fixed_window", ratelimit.Unlimited()), near).Allow(t.Context(), "ann")
	observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(0)), near).Allow(t.Context(), "ann")
	require.Empty(t, told())
	near.Decided(t.Context(), "ann", 1, ratelimit.Result{Limit: 10, RetryAfter: time.Hour, ResetAfter: ratelimit.Never}, nil, 0)
	near.Decided(t.Context(), "ann", 1, ratelimit.Result{Limit: 10, RetryAfter: time.Hour, ResetAfter: ratelimit.Never}, nil, 0)
	require.Equal(t, []string{"ann: 10/10"}, told())
}

func TestNearRemembersABoundedNumberOfKeys(t *testing.T) {
	effort.OneGoroutine(t)
	near, told := nearTo(t, 80)
	r := ratelimit.Result{Limit: 10, ResetAfter: time.Hour}
	ask := func(from, to int) {
		for i := from; i < to; i++ {
			near.Decided(t.Context(), fmt.Sprint(i), 1, r, nil, 0)
		}
	}
	ask(0, 16384)
	require.Len(t, told(), 16384)
	ask(0, 16384)
	require.Empty(t, told())
	ask(16384, 2*16384)
	require.Len(t, told(), 16384)
	ask(0, 2*16384)
	require.Empty(t, told(), "both sets are asked")
	ask(2*16384, 2*16384+1)
	require.Len(t, told(), 1)
	ask(0, 1)
	require.Len(t, told(), 1, "the oldest are forgotten")
	before := heapBytes()
	ask(0, 200_000)
	require.Less(t, heapBytes(), before+3<<20)
}

func TestNearRefusesWhatCannotWork(t *testing.T) {
	tell := func(context.Context, string, ratelimit.Result) {}
	for _, percent := range []int{-1, 0, 101} {
		_, err := observe.NewNear(percent, tell)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	_, err := observe.NewNear(80, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}
