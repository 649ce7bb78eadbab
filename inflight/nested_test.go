package inflight_test

import (
	"context"
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

// besides makes limiters around an All of two token buckets, of 100 and 200 a minute.
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
}

// bothWays calls f with slots before and behind each limiter of besides, in an All.
func bothWays(t *testing.T, f func(t *testing.T, l, slots, a, b ratelimit.Limiter)) {
	t.Helper()
	for name, around := range besides {
		for _, first := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := ratelimit.Must(memstore.New())
					a := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(100), ratelimit.WithName("a"), ratelimit.CountCalls()))
					b := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(200), ratelimit.WithName("b")))
					slots := ratelimit.Must(inflight.New(s, 3, 10*time.Second))
					beside := around(s, ratelimit.Must(ratelimit.NewAll(a, b)))
					limits := []ratelimit.Limiter{slots, beside}
					if !first {
						limits[0], limits[1] = beside, slots
					}
					f(t, ratelimit.Must(ratelimit.NewAll(limits...)), slots, a, b)
				})
			})
		}
	}
}

func TestASlotBesideALimiterAroundAnAllIsGivenBack(t *testing.T) {
	bothWays(t, func(t *testing.T, l, slots, a, b ratelimit.Limiter) {
		ctx := context.Background()
		left := func(l ratelimit.Limiter) int {
			r, err := l.Peek(ctx, "k")
			require.NoError(t, err)
			return r.Remaining
		}
		for range 4 {
			time.Sleep(time.Hour)
			slot, r, err := inflight.Hold(ctx, l, "k", 50)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, []int{2, 99, 150}, []int{left(slots), left(a), left(b)})
			time.Sleep(30 * time.Millisecond)
			require.NoError(t, slot.Settle(ctx, 20))
			require.Equal(t, []int{2, 180}, []int{left(slots), left(b)})
			slot.Release()
			require.Equal(t, []int{3, 180}, []int{left(slots), left(b)})
		}
	})
}

// Whom a rate beside the slots refuses for longer than there is time is told at once.
func TestARateInsideOfALimiterBesideSlotsIsForeseen(t *testing.T) {
	bothWays(t, func(t *testing.T, l, _, _, b ratelimit.Limiter) {
		r, err := b.AllowN(context.Background(), "k", 200)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		ctx, end := context.WithTimeout(context.Background(), 10*time.Second)
		defer end()
		began := time.Now()
		slot, r, err := inflight.Wait(ctx, l, "k", 50) // 15 s
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
				ctx := context.Background()
				s := testkit.WithoutJoint{Store: ratelimit.Must(memstore.New())}
				a := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(100), ratelimit.WithName("a")))
				b := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(200), ratelimit.WithName("b")))
				slots := ratelimit.Must(inflight.New(s, 3, 10*time.Second))
				l := ratelimit.Must(ratelimit.NewAll(around(s, ratelimit.Must(ratelimit.NewAll(a, b))), slots))
				slot, _, err := inflight.Hold(ctx, l, "k", 2)
				require.NoError(t, err)
				time.Sleep(time.Minute)
				r, err := slots.Peek(ctx, "k")
				require.NoError(t, err)
				require.Equal(t, 2, r.Remaining)
				slot.Release()
				synctest.Wait()
				r, err = slots.Peek(ctx, "k")
				require.NoError(t, err)
				require.Equal(t, 3, r.Remaining)
			})
		})
	}
}

// While the store of the rates is away, the slots are those of their own store.
func TestASlotBesideAFallbackIsGivenBackInAnOutage(t *testing.T) {
	for name, answer := range map[string]fallback.Answer{"FailOpen": fallback.FailOpen(), "FailLocal": fallback.FailLocal(2)} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := ratelimit.Must(memstore.New())
			away := testkit.Away{Store: s}
			a := ratelimit.Must(ratelimit.NewTokenBucket(away, ratelimit.PerMinute(100), ratelimit.WithName("a")))
			b := ratelimit.Must(ratelimit.NewTokenBucket(away, ratelimit.PerMinute(200), ratelimit.WithName("b")))
			slots := ratelimit.Must(inflight.New(s, 3, 10*time.Second))
			one, two := ratelimit.Must(fallback.New(a, answer)), ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(a, b)), answer))
			for _, l := range []*ratelimit.All{
				ratelimit.Must(ratelimit.NewAll(slots, one)), ratelimit.Must(ratelimit.NewAll(one, slots)),
				ratelimit.Must(ratelimit.NewAll(slots, two)), ratelimit.Must(ratelimit.NewAll(two, slots)),
			} {
				for range 5 {
					slot, r, err := inflight.Hold(ctx, l, "k", 2)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					r, err = slots.Peek(ctx, "k")
					require.NoError(t, err)
					require.Equal(t, 2, r.Remaining)
					slot.Release()
					r, err = slots.Peek(ctx, "k")
					require.NoError(t, err)
					require.Equal(t, 3, r.Remaining)
				}
			}
		})
	}
}
