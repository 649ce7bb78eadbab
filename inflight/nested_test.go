package inflight_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// besides makes limiters around an All.
var besides = map[string]func(s store.Store, all ratelimit.Limiter) ratelimit.Limiter{
	"All": func(_ store.Store, all ratelimit.Limiter) ratelimit.Limiter { return all },
	"fallback": func(_ store.Store, all ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(fallback.New(all, fallback.FailLocal(3)))
	},
	"Ban": func(s store.Store, all ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewBan(all, s, ratelimit.Penalty{Denials: 50, Within: time.Minute, For: time.Minute}))
	},
	"shadow": func(_ store.Store, all ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(shadow.New(all, func(context.Context, string, int, ratelimit.Result, error) {}))
	},
	"observe": func(_ store.Store, all ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(observe.Around(all, observe.NewCounters("pair")))
	},
	"another package": func(_ store.Store, all ratelimit.Limiter) ratelimit.Limiter { return struct{ ratelimit.Limiter }{all} },
}

// rates are token buckets of 100 calls and 200 events a minute.
func rates(s store.Store) (a, b *ratelimit.TokenBucket) {
	return ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(100), ratelimit.WithName("a"), ratelimit.CountCalls())),
		ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(200), ratelimit.WithName("b")))
}

// bothWays calls f with 3 slots before and behind each limiter of besides, in an All.
func bothWays(t *testing.T, f func(t *testing.T, l, sl, a, b ratelimit.Limiter)) {
	t.Helper()
	for name, around := range besides {
		for _, first := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := ratelimit.Must(memstore.New())
					a, b := rates(s)
					sl := slots(t, s, 3)
					alone := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(1_000_000)))
					limits := []ratelimit.Limiter{alone, sl, around(s, ratelimit.Must(ratelimit.NewAll(a, b)))}
					if !first {
						slices.Reverse(limits)
					}
					f(t, ratelimit.Must(ratelimit.NewAll(limits...)), sl, a, b)
				})
			})
		}
	}
}

func TestASlotBesideALimiterAroundAnAllIsGivenBack(t *testing.T) {
	bothWays(t, func(t *testing.T, l, sl, a, b ratelimit.Limiter) {
		for range 4 {
			time.Sleep(time.Hour)
			slot, r, err := inflight.Hold(t.Context(), l, "key", 50)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, []int{2, 99, 150}, []int{free(t, sl), free(t, a), free(t, b)})
			time.Sleep(30 * time.Millisecond)
			require.NoError(t, slot.Settle(t.Context(), 20))
			require.Equal(t, []int{2, 180}, []int{free(t, sl), free(t, b)})
			slot.Release()
			require.Equal(t, []int{3, 180}, []int{free(t, sl), free(t, b)})
		}
	})
}

// Limiters of other packages need not say what their limits are, however many there are.
func TestASlotBesideSilentLimitersIsGivenBack(t *testing.T) {
	s := ratelimit.Must(memstore.New())
	a, b := rates(s)
	hourly, daily := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerHour(100))), ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(100)))
	silent, sl := besides["another package"], slots(t, s, 3)
	l := ratelimit.Must(ratelimit.NewAll(
		silent(s, ratelimit.Must(ratelimit.NewAll(a, hourly))), sl, silent(s, ratelimit.Must(ratelimit.NewAll(b, daily)))))
	slot := hold(t, l)
	require.Equal(t, 2, free(t, sl))
	slot.Release()
	require.Equal(t, []int{3, 99, 99}, []int{free(t, sl), free(t, a), free(t, daily)})
}

// If a rate denies for longer than the caller can wait, the caller is denied immediately.
func TestARateInsideOfALimiterBesideSlotsIsForeseen(t *testing.T) {
	bothWays(t, func(t *testing.T, l, _, _, b ratelimit.Limiter) {
		r, err := b.AllowN(t.Context(), "key", 200)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
		defer end()
		began := time.Now()
		slot, r, err := inflight.Wait(ctx, l, "key", 50) // 15 s
		if slot.Release(); r.Allowed {
			return // a shadow
		}
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.Zero(t, time.Since(began))
	})
}

// In a store that others may share a slot lasts for as long as it is renewed.
func TestASlotBesideALimiterAroundAnAllIsRenewed(t *testing.T) {
	for name, around := range besides {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRemote(t)
				a, b := rates(s)
				sl := slots(t, s, 3)
				slot := hold(t, ratelimit.Must(ratelimit.NewAll(around(s, ratelimit.Must(ratelimit.NewAll(a, b))), sl)))
				time.Sleep(time.Minute)
				require.Equal(t, 2, free(t, sl))
				slot.Release()
				time.Sleep(time.Second)
				require.Equal(t, 3, free(t, sl))
			})
		})
	}
}

// While the store of the rates is away, the slots are those of their own store.
func TestASlotBesideAFallbackIsGivenBackInAnOutage(t *testing.T) {
	for name, answer := range map[string]fallback.Answer{"FailOpen": fallback.FailOpen(), "FailLocal": fallback.FailLocal(2)} {
		t.Run(name, func(t *testing.T) {
			s := ratelimit.Must(memstore.New())
			a, b := rates(testkit.Away{Store: s})
			sl := slots(t, s, 3)
			for _, rates := range []ratelimit.Limiter{a, ratelimit.Must(ratelimit.NewAll(a, b))} {
				safe := ratelimit.Must(fallback.New(rates, answer))
				for _, l := range []*ratelimit.All{ratelimit.Must(ratelimit.NewAll(sl, safe)), ratelimit.Must(ratelimit.NewAll(safe, sl))} {
					for range 5 {
						slot := hold(t, l)
						require.Equal(t, 2, free(t, sl))
						slot.Release()
						require.Equal(t, 3, free(t, sl))
					}
				}
			}
		})
	}
}

// What a fallback has also charged to its local limiter is released with the slot. Otherwise, the
// local slots would be taken when an outage begins.
func TestASlotOfAnAllInAFallbackIsGivenBackToTheLocalLimiterToo(t *testing.T) {
	for name, c := range map[string]struct {
		inside, outside func(s store.Store, l ratelimit.Limiter) ratelimit.Limiter
	}{
		"alone":              {besides["All"], besides["All"]},
		"observed":           {besides["All"], besides["observe"]},
		"around an observer": {besides["observe"], besides["All"]},
		"around a Ban":       {besides["Ban"], besides["observe"]},
		"tried out":          {besides["All"], besides["shadow"]},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, local := ratelimit.Must(memstore.New()), ratelimit.Must(memstore.New())
				a, _ := rates(s)
				inner := ratelimit.Must(ratelimit.NewAll(a, slots(t, s, 6, ratelimit.WithName("at_once"))))
				l := c.outside(s, ratelimit.Must(fallback.New(c.inside(s, inner), fallback.FailLocal(2).On(local))))
				here := slots(t, local, 3, ratelimit.WithName("at_once"))
				for range 7 {
					slot, r, err := inflight.Hold(t.Context(), l, "key", 2)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					require.Equal(t, 2, free(t, here), "it is warm")
					require.NoError(t, slot.Settle(t.Context(), 1))
					require.Equal(t, 2, free(t, here))
					slot.Release()
					require.Equal(t, 3, free(t, here))
				}
			})
		})
	}
}

// The local limiter may have no slots, or rates of its own. These stay, and so does what a Settle has charged.
func TestTheEndOfASlotGivesBackNoLocalRate(t *testing.T) {
	for name, withSlots := range map[string]bool{"slots": true, "rates alone": false} {
		for _, actual := range []int{1, 2, 3} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, local := ratelimit.Must(memstore.New()), ratelimit.Must(memstore.New())
					_, rate := rates(s)
					_, here := rates(local)
					heldHere := slots(t, local, 3)
					parts := []ratelimit.Limiter{here}
					if withSlots {
						parts = append(parts, heldHere)
					}
					inner := ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 6)))
					l := ratelimit.Must(fallback.New(inner, fallback.FailTo(ratelimit.Must(ratelimit.NewAll(parts...)))))
					slot, r, err := inflight.Hold(t.Context(), l, "key", 2)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					require.NoError(t, slot.Settle(t.Context(), actual))
					slot.Release()
					require.Equal(t, []int{200 - actual, 200 - actual, 3}, []int{free(t, rate), free(t, here), free(t, heldHere)})
				})
			})
		}
	}
}
