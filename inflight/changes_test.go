package inflight_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// renewed has another limiter inside each time it is looked at.
type renewed struct {
	ratelimit.Limiter
	inside func() ratelimit.Limiter
}

func (r renewed) Unwrap() ratelimit.Limiter { return r.inside() }

// The limiter inside each wrapper may change while the store is asked. Nothing of either limiter
// stays charged.
func TestALimiterThatChangesAllTheTimeIsAskedTwice(t *testing.T) {
	redis, err := redisstore.New(redistest.Start(t).Client(t), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	for store, s := range map[string]store.Store{"in memory": ratelimit.Must(memstore.New()), "on Redis": redis} {
		atOnce := slots(t, s, 2)
		rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerDay(1000), ratelimit.WithName("rate")))
		inside := func() ratelimit.Limiter { return slots(t, s, 2) }
		both := func() ratelimit.Limiter { return ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 2))) }
		for name, l := range map[string]ratelimit.Limiter{
			"bare":     renewed{inside(), inside},
			"an All":   renewed{both(), both},
			"fallback": ratelimit.Must(fallback.New(renewed{inside(), inside}, fallback.FailOpen())),
			"observed": ratelimit.Must(observe.Around(renewed{inside(), inside}, observe.NewCounters("x"))),
			"enforced": ratelimit.Must(shadow.New(renewed{inside(), inside}, func(context.Context, string, int, ratelimit.Result, error) {}, shadow.WithEnforcement(100))),
		} {
			t.Run(store+"/"+name, func(t *testing.T) {
				for range 3 {
					slot, r, err := inflight.Hold(t.Context(), l, "key", 1)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					slot.Release()
					require.Eventually(t, func() bool { return free(t, atOnce) == 2 }, time.Minute, time.Millisecond)
				}
			})
		}
	}
}

// swapped is around another limiter from one moment to the next.
type swapped struct {
	now *atomic.Pointer[ratelimit.Custom]
}

func (s swapped) Unwrap() ratelimit.Limiter { return s.now.Load() }
func (s swapped) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.now.Load().Allow(ctx, key)
}
func (s swapped) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return s.now.Load().AllowN(ctx, key, n)
}
func (s swapped) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.now.Load().Peek(ctx, key)
}
func (s swapped) Refund(ctx context.Context, key string, r ratelimit.Result, n int) error {
	return s.now.Load().Refund(ctx, key, r, n)
}
func (s swapped) Reset(ctx context.Context, key string) error { return s.now.Load().Reset(ctx, key) }

// A caller that asks while the limiter is replaced gets one slot of the new limiter.
func TestALimiterThatChangesOnceIsAskedOnceMore(t *testing.T) {
	for _, changes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newRemote(t)
			s.way = 10 * time.Millisecond
			l := swapped{new(atomic.Pointer[ratelimit.Custom])}
			l.now.Store(slots(t, s, 2))
			go func() {
				time.Sleep(5 * time.Millisecond)
				if changes {
					l.now.Store(slots(t, s, 3))
				}
			}()
			slot := hold(t, l)
			if changes {
				require.Equal(t, 2, free(t, l))
				require.EqualValues(t, 3, s.called.Load(), "taken, given back and taken")
			} else {
				require.Equal(t, 1, free(t, l))
				require.EqualValues(t, 1, s.called.Load())
			}
			time.Sleep(time.Minute) // it is renewed
			require.False(t, slot.Lost())
			slot.Release()
			time.Sleep(time.Second)
			require.Equal(t, l.now.Load().Limit().Rate, free(t, l))
		})
	}
}

// Slots taken by the previous limiter are forgotten. What stands in for it is refunded once per
// answer.
func TestALimiterThatChangesGivesBackOnceForEachAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, local := newRemote(t), newRemote(t)
		s.way = 10 * time.Millisecond
		now := swapped{new(atomic.Pointer[ratelimit.Custom])}
		now.now.Store(slots(t, s, 2))
		var gives atomic.Int64
		local.after = func() { gives.Add(1) }
		l := ratelimit.Must(fallback.New(now, fallback.FailTo(slots(t, local, 2))))
		time.AfterFunc(5*time.Millisecond, func() { now.now.Store(slots(t, s, 3)) })
		slot := hold(t, l)
		before := gives.Load()
		slot.Release()
		time.Sleep(time.Second)
		require.EqualValues(t, 1, gives.Load()-before)
	})
}
