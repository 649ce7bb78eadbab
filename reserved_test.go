package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
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

		one := newLimiter(t, algorithm, s, ratelimit.PerMinute(10), ratelimit.WithName("one"), ratelimit.WithReserved(1))
		require.True(t, allowN(t, one, 9).Allowed)
		require.False(t, allow(t, one, "key").Allowed)
	})
}

func TestReservesThatLeaveNothingOrDoNothingAreRefused(t *testing.T) {
	s := memory(t, newClock())
	tiers := func(l ratelimit.Limit) ratelimit.Option {
		return ratelimit.WithTiers(func(context.Context, string) (string, error) { return "a", nil }, map[string]ratelimit.Limit{"a": l})
	}
	asked := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.PerMinute(2), nil })
	for _, algorithm := range algorithms {
		for what, opts := range map[string][]ratelimit.Option{
			"below 0":                    {ratelimit.WithReserved(-1)},
			"too many":                   {ratelimit.WithReserved(math.MaxInt)},
			"all":                        {ratelimit.WithReserved(10)},
			"all of a tier":              {ratelimit.WithReserved(4), tiers(ratelimit.PerMinute(4))},
			"all, but not of a tier":     {ratelimit.WithReserved(10), tiers(ratelimit.PerMinute(20))},
			"all, and nothing of a tier": {ratelimit.WithReserved(10), tiers(ratelimit.Unlimited())},
		} {
			_, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(10), opts...)
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption, what)
		}
		for _, l := range []ratelimit.Limit{ratelimit.Unlimited(), ratelimit.PerMinute(0)} {
			for _, tier := range []ratelimit.Limit{ratelimit.Unlimited(), ratelimit.PerMinute(0)} {
				_, err := ratelimit.New(algorithm, s, l, ratelimit.WithReserved(1), tiers(tier))
				require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%v, and a tier of %v", l, tier)
			}
			_, err := ratelimit.New(algorithm, s, l, ratelimit.WithReserved(1))
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%v", l)
			require.Equal(t, l == ratelimit.Unlimited(), strings.Contains(err.Error(), "unlimited"), "%v: %v", l, err)
			for _, others := range []ratelimit.Option{tiers(ratelimit.PerMinute(2)), asked} {
				_, err := ratelimit.New(algorithm, s, l, ratelimit.WithReserved(1), others)
				require.NoError(t, err, "%v", l)
			}
		}
		_, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(10), ratelimit.WithReserved(9), tiers(ratelimit.Unlimited()))
		require.NoError(t, err)
	}
	_, err := inflight.New(s, 3, time.Minute, ratelimit.WithReserved(1))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = inflight.New(s, 3, time.Minute, ratelimit.WithReserved(0))
	require.NoError(t, err)
	apart, err := regions.New("a", map[string]store.Store{"a": s, "b": memory(t, newClock())})
	require.NoError(t, err)
	_, err = ratelimit.NewTokenBucket(apart, ratelimit.PerMinute(10), ratelimit.WithReserved(4))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	bucket := newLimiter(t, "token_bucket", apart, ratelimit.PerMinute(10))
	_, err = ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: bucket, Key: "key", N: 1, Reserved: 4})
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// The store has decided, although the limit left to this limiter is 0.
func TestALimitThatIsReservedAsAWholeIsNotARateOf0(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *ratelimittest.Clock) {
		limit := ratelimit.PerMinute(3)
		low := newLimiter(t, algorithm, s, ratelimit.PerMinute(10), ratelimit.WithReserved(3), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
		asked, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: low, Key: "key", N: 1, Reserved: 5})
		require.NoError(t, err)
		for _, r := range []ratelimit.Result{allow(t, low, "key"), peek(t, low, "key"), asked, asked.Parts()[0].Result} {
			require.False(t, r.Allowed)
			require.Zero(t, r.Limit)
			require.Equal(t, ratelimit.Never, r.RetryAfter)
			require.Equal(t, ratelimit.SourceStore, r.Source())
		}
		limit = ratelimit.PerMinute(0)
		require.Equal(t, ratelimit.SourceZeroRate, allow(t, low, "key").Source())
	})
}

// What flows into a bucket in the TTL of a lease is admitted late, so others cannot have it at once.
func TestAReserveMustLeaveWhatALeaseNeeds(t *testing.T) {
	leased, err := lease.New(ratelimit.Must(memstore.New()), 50*time.Millisecond)
	require.NoError(t, err)
	defer leased.Close(t.Context())
	limit := ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 10} // 6 events in the TTL
	for n, burst := range map[int]int{4: 10, 1: 7} {
		_, err = ratelimit.NewTokenBucket(leased, ratelimit.Limit{Rate: 100, Period: time.Second, Burst: burst}, ratelimit.WithReserved(n))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, fmt.Sprintf("WithReserved(%d) leaves 6 events of 100/s burst %d", n, burst))
	}
	_, err = ratelimit.NewTokenBucket(leased, ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 6})
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.NotContains(t, err.Error(), "WithReserved", "nothing is reserved")
	low, err := ratelimit.NewTokenBucket(leased, limit, ratelimit.WithReserved(3))
	require.NoError(t, err)
	r, err := low.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
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
	for _, reserved := range []int{-1, math.MaxInt32 + 1, math.MaxInt} {
		l := inMemory(t, "token_bucket", ratelimit.PerMinute(1))
		_, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: l, Key: "key", N: 1, Reserved: reserved})
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
		require.Equal(t, 1, left(t, l, "key"))
	}
	wrapped, err := ratelimit.NewAround(inMemory(t, "token_bucket", ratelimit.PerMinute(1)), func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		return c.Inside(ctx)
	})
	require.NoError(t, err)
	_, err = ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: wrapped, Key: "key", N: 1, Reserved: 1})
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// Asks that share their counts, but not what they reserve, are decided one after the other.
func TestAsksWithDifferentReservesOnOneKeyAreDecidedInTheirOrder(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *ratelimittest.Clock) {
		high, low := classes(t, algorithm, s)
		require.True(t, allowN(t, low, 5).Allowed)
		one, four := ratelimit.Ask{Limiter: low, Key: "key", N: 1}, ratelimit.Ask{Limiter: high, Key: "key", N: 4}
		r, err := ratelimit.Decide(t.Context(), one, four)
		require.NoError(t, err)
		require.True(t, r.Allowed, "4 are left to the second")
		require.Zero(t, left(t, high, "key"))
		require.NoError(t, ratelimit.GiveBack(t.Context(), r, one, four))
		r, err = ratelimit.Decide(t.Context(), four, one)
		require.NoError(t, err)
		require.False(t, r.Allowed, "none is left to the second")
		require.Equal(t, 5, left(t, high, "key"))
	})
}

// A Charge ignores the reserve, so it may fill a bucket to its Burst and beyond. A Refund then leaves what it would
// leave without a reserve.
func TestWhatWasChargedOverAReserveGoesBackAsAnyCharge(t *testing.T) {
	for _, algorithm := range algorithms {
		for charged := 1; charged <= 14; charged++ {
			var levels []int
			for _, reserved := range []int{0, 1, 4} {
				limit := ratelimit.PerMinute(10)
				limits := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil })
				c := newClock()
				s := memory(t, c)
				high := newLimiter(t, algorithm, s, limit, ratelimit.WithName("api"), limits)
				low := newLimiter(t, algorithm, s, limit, ratelimit.WithName("api"), limits, ratelimit.WithReserved(reserved))
				r, err := ratelimit.Charge(t.Context(), low, "key", charged)
				require.NoError(t, err)
				require.NoError(t, low.Refund(t.Context(), "key", r, charged))
				levels = append(levels, left(t, high, "key"))

				r, err = ratelimit.Charge(t.Context(), low, "key", charged)
				require.NoError(t, err)
				c.Advance(30 * time.Second)
				_ = allow(t, high, "key")
				limit = ratelimit.PerMinute(0) // as long as the refund takes
				require.NoError(t, low.Refund(t.Context(), "key", r, 1))
				limit = ratelimit.PerMinute(10)
				levels = append(levels, left(t, high, "key"))
			}
			require.Equal(t, levels[:2], levels[2:4], "%s: %d events, and a reserve of 1", algorithm, charged)
			require.Equal(t, levels[:2], levels[4:], "%s: %d events, and a reserve of 4", algorithm, charged)
		}
	}
}

// largest is a store that notes the most events that it was asked for, with those reserved.
type largest struct {
	store.Store
	events int64
}

func (s *largest) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.events = max(s.events, n)
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *largest) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	for _, r := range requests {
		s.events = max(s.events, r.N+r.Reserved)
	}
	return s.Store.Decide(ctx, requests, replies)
}

func TestAStoreIsAskedForAtMost2To31Events(t *testing.T) {
	s := &largest{Store: memory(t, newClock())}
	high, low := classes(t, "token_bucket", s)
	for _, n := range []int{math.MaxInt32, math.MaxInt} {
		ask, more := ratelimit.Ask{Limiter: low, Key: "key", N: n}, ratelimit.Ask{Limiter: high, Key: "another", N: n}
		require.Equal(t, ratelimit.Never, allowN(t, low, n).RetryAfter)
		require.Equal(t, ratelimit.Never, allowN(t, high, n).RetryAfter)
		r, err := ratelimit.Decide(t.Context(), ask, more, ask, more)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Never, r.RetryAfter)
		granted, _, err := ratelimit.AllowUpTo(t.Context(), low, "another", n)
		require.NoError(t, err)
		require.Equal(t, 6, granted)
		require.NoError(t, low.Reset(t.Context(), "another"))
	}
	require.Equal(t, int64(1<<31), s.events)
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
	few := ratelimit.Limit{Rate: 100, Period: time.Minute, Burst: 2}
	tier := func(l ratelimit.Limit) ratelimit.Option {
		return ratelimit.WithTiers(func(context.Context, string) (string, error) { return "a", nil }, map[string]ratelimit.Limit{"a": l})
	}
	for _, test := range []struct {
		low        ratelimit.Limiter
		admittedBy map[int]int // each of so many instances
	}{
		{newLimiter(t, "token_bucket", s, ratelimit.PerMinute(100), ratelimit.WithReserved(40)), map[int]int{1: 60, 3: 34 - 14, 50: 1, 100: 1}},
		{newLimiter(t, "token_bucket", s, few, ratelimit.WithReserved(1)), map[int]int{1: 1, 2: 1, 4: 1}},
		{newLimiter(t, "token_bucket", s, ratelimit.Unlimited(), ratelimit.WithReserved(40), tier(ratelimit.PerMinute(100))), map[int]int{1: 60, 100: 1}},
		{newLimiter(t, "token_bucket", s, ratelimit.PerMinute(0), ratelimit.WithReserved(40), tier(ratelimit.PerMinute(100))), map[int]int{1: 60, 100: 1}},
		{newLimiter(t, "token_bucket", s, ratelimit.PerMinute(100), ratelimit.WithReserved(1), tier(few)), map[int]int{1: 1, 4: 1}},
	} {
		for instances, want := range test.admittedBy {
			share, err := see.Local(test.low, memory(t, newClock()), instances)
			require.NoError(t, err)
			require.Equal(t, want, admitted(t, share, 100), "%d instances", instances)
		}
	}
}
