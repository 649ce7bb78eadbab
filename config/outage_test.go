package config_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// After an outage, a key that owes events pays them, and holds no slot for it.
func TestADebtThatIsPaidTakesNoSlot(t *testing.T) {
	for name, of := range map[string]func(t *testing.T, s store.Store) ratelimit.Limiter{
		"in a file": func(t *testing.T, s store.Store) ratelimit.Limiter {
			return limiter(t, build(t, s, one("algorithm: token_bucket, limit: 100/d, in_flight: 1, life: 30s, on_failure: local, instances: 1")), "a")
		},
		"the same in code": func(t *testing.T, s store.Store) ratelimit.Limiter {
			rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerDay(100), ratelimit.WithName("a")))
			slots := ratelimit.Must(inflight.New(s, 1, 30*time.Second, ratelimit.WithName("a")))
			return ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(rate, slots)), fallback.FailLocal(1)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &frail{Store: elsewhere{ratelimit.Must(memstore.New())}}
				l := of(t, s)
				s.down = true
				slot := hold(t, l)
				require.NotNil(t, slot)
				slot.Release()
				synctest.Wait()
				s.down = false
				time.Sleep(2 * time.Second)
				back := time.Now()
				next := hold(t, l)
				for next == nil && time.Since(back) < time.Minute {
					time.Sleep(time.Second)
					next = hold(t, l)
				}
				require.NotNil(t, next)
				require.Zero(t, time.Since(back), "nobody holds the one slot, but it is free only after this time")
				next.Release()
				synctest.Wait()
			})
		})
	}
}

// A call that held a slot in an outage, and nothing else, owes nothing to the rates of a later text once the slot is free.
func TestASlotOfAnOutageIsNotOwedToARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, rates = "in_flight: 5, on_failure: local, instances: 1", "algorithm: fixed_window, limit: 100/d, "
		s := &frail{Store: elsewhere{ratelimit.Must(memstore.New())}}
		ls := build(t, s, one(rates+slots))
		l := limiter(t, ls, "a")
		holdFor := func(n int) {
			slot, _, err := inflight.Hold(t.Context(), l, "user:ann", n)
			require.NoError(t, err)
			require.NotNil(t, slot)
			slot.Release()
			synctest.Wait()
		}
		holdFor(50)
		update(t, ls, one(slots))
		s.down = true
		holdFor(20)
		update(t, ls, one(rates+slots))
		holdFor(7) // is owed
		s.down = false
		time.Sleep(2 * time.Second)
		_, err := l.Peek(t.Context(), "user:ann")
		require.NoError(t, err)
		rate := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(100), ratelimit.WithName("a")))
		require.Equal(t, 43, peek(t, rate, "user:ann").Remaining)
	})
}

// on_failure: closed denies every event, but not those of an unlimited tier.
func TestClosedAdmitsAnUnlimitedTier(t *testing.T) {
	for name, of := range map[string]func(t *testing.T, s store.Store) ratelimit.Limiter{
		"the same in code": func(t *testing.T, s store.Store) ratelimit.Limiter {
			return ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(8), ratelimit.WithName("a"),
				ratelimit.WithTiers(tierFunc, map[string]ratelimit.Limit{"internal": ratelimit.Unlimited()}))), fallback.FailClosed()))
		},
		"in a file": func(t *testing.T, s store.Store) ratelimit.Limiter {
			return limiter(t, build(t, s, one("algorithm: fixed_window, limit: 8/d, tiers: {internal: unlimited}, on_failure: closed")), "a")
		},
		"in a file, by an Update": func(t *testing.T, s store.Store) ratelimit.Limiter {
			ls := build(t, s, one("algorithm: fixed_window, limit: 8/d, tiers: {internal: unlimited}"))
			l := limiter(t, ls, "a")
			update(t, ls, one("algorithm: fixed_window, limit: 8/d, tiers: {internal: unlimited}, on_failure: closed"))
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &frail{Store: memory(t)}
				l := of(t, s)
				s.down = true
				require.True(t, allow(t, l, "internal:1").Allowed, "it needs no store")
				for range 5 {
					require.False(t, allow(t, l, "other").Allowed)
				}
				r := allow(t, l, "internal:1")
				require.True(t, r.Allowed, "while the breaker is open: %v", r)
			})
		})
	}
}

// The store and a single instance keep to one limit together, also if the limiter has a ban.
func TestALocalBanHidesNoDebt(t *testing.T) {
	for name, of := range map[string]func(t *testing.T, s store.Store) ratelimit.Limiter{
		"the same in code": func(t *testing.T, s store.Store) ratelimit.Limiter {
			window := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(10), ratelimit.WithName("a")))
			ban := ratelimit.Must(ratelimit.NewBan(window, s, ratelimit.Penalty{Denials: 1, Within: 10 * time.Minute, For: time.Hour}))
			return ratelimit.Must(fallback.New(ban, fallback.FailLocal(1)))
		},
		"in a file": func(t *testing.T, s store.Store) ratelimit.Limiter {
			return limiter(t, build(t, s, one("algorithm: fixed_window, limit: 10/d, ban: {denials: 1/10m, for: 1h}, on_failure: local, instances: 1")), "a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &frail{Store: memory(t)}
				l := of(t, s)
				s.down = true
				require.Equal(t, 10, admitted(t, l, "key", 12))
				s.down = false
				time.Sleep(2 * time.Second)
				require.Zero(t, admitted(t, l, "key", 12), "10 of 10 were admitted in the outage")
			})
		})
	}
}

// The limiter and its fallback share the answer of the tier function.
func TestATierFunctionIsAskedOnce(t *testing.T) {
	var asked atomic.Int32
	c := parse(t, one("algorithm: fixed_window, limit: 8/d, tiers: {free: 4/d}, on_failure: local, instances: 1"))
	ls, err := c.Build(memory(t), config.WithTierFunc(func(context.Context, string) (string, error) {
		asked.Add(1)
		return "free", nil
	}))
	require.NoError(t, err)
	require.True(t, allow(t, limiter(t, ls, "a"), "key").Allowed)
	require.EqualValues(t, 1, asked.Load())
}
