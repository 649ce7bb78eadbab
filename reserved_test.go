package ratelimit_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/regions"
)

// classes are a limiter, and one of the same name that leaves 4 of 10 events to it.
func classes(t *testing.T, algorithm string, s store.Store, opts ...ratelimit.Option) (high, low ratelimit.Limiter) {
	t.Helper()
	opts = append(opts, ratelimit.WithName("api"))
	return newLimiter(t, algorithm, s, ratelimit.PerMinute(10), opts...),
		newLimiter(t, algorithm, s, ratelimit.PerMinute(10), append(opts, ratelimit.WithReserved(4))...)
}

// Storetest holds reserves to the exact model, at their edges. This is what a reader can check by hand.
func TestReservedEventsAreLeftToOthers(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *ratelimittest.Clock) {
		high, low := classes(t, algorithm, s)
		r := allowN(t, low, 6)
		require.True(t, r.Allowed)
		require.Equal(t, 6, r.Limit)
		require.Zero(t, r.Remaining)
		denied := allowN(t, low, 1)
		require.False(t, denied.Allowed)
		require.Equal(t, denied.RetryAfter, peek(t, low, "key").RetryAfter)
		require.Equal(t, ratelimit.Never, allowN(t, low, 7).RetryAfter)
		require.Equal(t, 4, left(t, high, "key"))
		c.Advance(denied.RetryAfter - time.Microsecond)
		require.False(t, allowN(t, low, 1).Allowed)
		c.Advance(time.Microsecond)
		require.True(t, allowN(t, high, 4).Allowed, "although others had all but these")
	})
}

func TestReservesThatLeaveNothingOrDoNothingAreRefused(t *testing.T) {
	s := memory(t, newClock())
	tiers := func(l ratelimit.Limit) ratelimit.Option {
		return ratelimit.WithTiers(func(context.Context, string) (string, error) { return "a", nil }, map[string]ratelimit.Limit{"a": l})
	}
	for _, algorithm := range algorithms {
		for what, opts := range map[string][]ratelimit.Option{
			"below 0":       {ratelimit.WithReserved(-1)},
			"too many":      {ratelimit.WithReserved(math.MaxInt32 + 1)},
			"all":           {ratelimit.WithReserved(10)},
			"all of a tier": {ratelimit.WithReserved(4), tiers(ratelimit.PerMinute(4))},
		} {
			_, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(10), opts...)
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption, what)
		}
		for _, l := range []ratelimit.Limit{ratelimit.Unlimited(), ratelimit.PerMinute(0)} {
			_, err := ratelimit.New(algorithm, s, l, ratelimit.WithReserved(1))
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%v", l)
		}
		_, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(10), ratelimit.WithReserved(9), tiers(ratelimit.Unlimited()))
		require.NoError(t, err)
	}
	apart, err := regions.New("a", map[string]store.Store{"a": s, "b": memory(t, newClock())})
	require.NoError(t, err)
	_, err = ratelimit.NewTokenBucket(apart, ratelimit.PerMinute(10), ratelimit.WithReserved(4))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	bucket := newLimiter(t, "token_bucket", apart, ratelimit.PerMinute(10))
	_, err = ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: bucket, Key: "key", N: 1, Reserved: 4})
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

func TestAPolicyIsWhatIsNotReserved(t *testing.T) {
	for _, algorithm := range algorithms {
		_, low := classes(t, algorithm, memory(t, newClock()))
		policies, err := ratelimit.AppendPolicies(t.Context(), nil, low, "key")
		require.NoError(t, err)
		require.Equal(t, 6, policies[0].Quota)
		want := time.Minute
		if algorithm == "token_bucket" || algorithm == "leaky_bucket" {
			want = 36 * time.Second // in which 6 come
		}
		require.Equal(t, want, policies[0].Window, algorithm)
	}
}

// What waits would be missing from what is reserved.
func TestATokenBucketChargesNothingAheadThatIsReserved(t *testing.T) {
	high, low := classes(t, "token_bucket", memory(t, newClock()))
	require.True(t, allowN(t, low, 6).Allowed)
	r, err := ratelimit.AllowWithin(t.Context(), low, "key", 1, time.Hour)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Equal(t, 6*time.Second, r.RetryAfter)
	require.Equal(t, 4, left(t, high, "key"))
}

func TestAnAskCanReserve(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *ratelimittest.Clock) {
		high, low := classes(t, algorithm, s)
		ask := func(l ratelimit.Limiter, n, reserved int) ratelimit.Result {
			r, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: l, Key: "key", N: n, Reserved: reserved})
			require.NoError(t, err)
			return r
		}
		require.False(t, ask(high, 6, 5).Allowed)
		require.True(t, ask(low, 5, 5).Allowed, "in place of its own")
		r := ask(high, 1, 4)
		require.True(t, r.Allowed)
		require.Equal(t, 6, r.Limit)
		require.Zero(t, r.Remaining)
		require.False(t, ask(low, 1, 0).Allowed)
		require.NoError(t, ratelimit.GiveBack(t.Context(), r, ratelimit.Ask{Limiter: high, Key: "key", N: 1, Reserved: 4}))
		require.True(t, ask(low, 1, 0).Allowed)
	})
	_, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: inMemory(t, "token_bucket", ratelimit.PerMinute(1)), Key: "key", N: 1, Reserved: -1})
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	wrapped, err := ratelimit.NewAround(inMemory(t, "token_bucket", ratelimit.PerMinute(1)), func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		return c.Inside(ctx)
	})
	require.NoError(t, err)
	_, err = ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: wrapped, Key: "key", N: 1, Reserved: 1})
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// A store in front never gives one class the answer of the other.
func TestStoresInFrontKeepClassesApart(t *testing.T) {
	for name, front := range map[string]func(store.Store) store.Store{
		"denycache": func(s store.Store) store.Store { return newDenyCache(t, s) },
		"coalesce":  func(s store.Store) store.Store { return newCoalesced(t, s) },
		"lease": func(s store.Store) store.Store {
			leased, err := lease.New(s, 5*time.Second)
			require.NoError(t, err)
			t.Cleanup(func() { _ = leased.Close(context.WithoutCancel(t.Context())) })
			return leased
		},
	} {
		for _, algorithm := range algorithms {
			if name == "lease" && algorithm == "leaky_bucket" {
				continue
			}
			mem, err := memstore.New()
			require.NoError(t, err)
			s := front(mem)
			high := newLimiter(t, algorithm, s, ratelimit.PerHour(1000), ratelimit.WithName("api"))
			low := newLimiter(t, algorithm, s, ratelimit.PerHour(1000), ratelimit.WithName("api"), ratelimit.WithReserved(400))
			require.True(t, allowN(t, low, 590).Allowed, "%s, %s", name, algorithm)
			for range 20 {
				_ = allow(t, low, "key")
			}
			require.False(t, allow(t, low, "key").Allowed, "%s, %s", name, algorithm)
			require.True(t, allow(t, high, "key").Allowed, "%s, %s: the denial of the other", name, algorithm)
			require.True(t, allowN(t, high, 300).Allowed, "%s, %s", name, algorithm)
			require.False(t, allowN(t, low, 1).Allowed, "%s, %s: the admission of the other", name, algorithm)
			granted, _, err := ratelimit.AllowUpTo(t.Context(), low, "key", 50)
			require.NoError(t, err)
			require.Zero(t, granted, "%s, %s", name, algorithm)
		}
	}
}

func TestImportantCallersNeverWaitForOthers(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "sliding_log", "sliding_window", "leaky_bucket"} {
		synctest.Test(t, func(t *testing.T) {
			mem, err := memstore.New()
			require.NoError(t, err)
			l := ratelimit.PerMinute(60)
			high := newLimiter(t, algorithm, mem, l, ratelimit.WithName("api"))
			low := newLimiter(t, algorithm, mem, l, ratelimit.WithName("api"), ratelimit.WithReserved(20))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			var admitted atomic.Int32
			for range 4 {
				go func() {
					for {
						if _, err := ratelimit.Wait(ctx, low, "key", 1); err != nil {
							return
						}
						admitted.Add(1)
					}
				}()
			}
			for range 8 {
				time.Sleep(61 * time.Second)
				r, err := high.AllowN(ctx, "key", 10)
				require.NoError(t, err)
				require.True(t, r.Allowed, "%s: %+v", algorithm, r)
			}
			cancel()
			synctest.Wait()
			require.Greater(t, admitted.Load(), int32(240), "%s: others have what is left", algorithm)
		})
	}
}

func TestAShareReservesItsPart(t *testing.T) {
	s := memory(t, newClock())
	low := newLimiter(t, "token_bucket", s, ratelimit.PerMinute(100), ratelimit.WithReserved(40))
	for instances, want := range map[int]int{1: 60, 3: 34 - 14, 50: 1, 100: 1} {
		share, err := see.Local(low, memory(t, newClock()), instances)
		require.NoError(t, err)
		require.Equal(t, want, admitted(t, share, 100), "%d instances", instances)
	}
}
