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
	"github.com/ratelimit-go/ratelimit/shadow"
)

// A caller that disconnects while the store is asked has no Slot, and cannot release anything.
// Everything that was charged is released or refunded: the slot, and the events charged with it.
func TestDisconnectedCallersAreChargedNothing(t *testing.T) {
	ways := map[string]func(ctx context.Context, l ratelimit.Limiter) (*inflight.Slot, error){
		"Hold": func(ctx context.Context, l ratelimit.Limiter) (*inflight.Slot, error) {
			s, _, err := inflight.Hold(ctx, l, "key", 1000)
			return s, err
		},
		"Hold that may wait": func(ctx context.Context, l ratelimit.Limiter) (*inflight.Slot, error) {
			s, _, err := inflight.Hold(ctx, l, "key", 1000, inflight.WaitUpTo(time.Minute))
			return s, err
		},
		"Wait": func(ctx context.Context, l ratelimit.Limiter) (*inflight.Slot, error) {
			s, _, err := inflight.Wait(ctx, l, "key", 1000)
			return s, err
		},
	}
	around := map[string]struct {
		wrap func(l ratelimit.Limiter) ratelimit.Limiter
		down bool
	}{
		"bare": {func(l ratelimit.Limiter) ratelimit.Limiter { return l }, false},
		"shadow": {func(l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(shadow.New(l, func(context.Context, string, int, ratelimit.Result, error) {}))
		}, false},
		"fallback": {func(l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(fallback.New(l, fallback.FailLocal(1)))
		}, false},
		"fallback in an outage": {func(l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(fallback.New(l, fallback.FailLocal(1)))
		}, true},
	}
	for how, hold := range ways {
		for what, c := range around {
			t.Run(how+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newRemote(t)
					s.way = 10 * time.Millisecond
					calls := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(100), ratelimit.WithName("calls"), ratelimit.CountCalls()))
					tokens := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerDay(100_000), ratelimit.WithName("tokens")))
					turns := ratelimit.Must(ratelimit.NewLeakyBucket(s, ratelimit.PerDay(100_000), ratelimit.WithName("turns")))
					atOnce := slots(t, s, 20)
					l := c.wrap(ratelimit.Must(ratelimit.NewAll(calls, tokens, turns, atOnce)))
					s.down.Store(c.down)
					for i := range 20 {
						ctx, hangUp := context.WithCancel(t.Context())
						time.AfterFunc(s.way/2, hangUp)
						slot, err := hold(ctx, l)
						if c.down && i > 0 && err == nil { // the breaker is open, so that no answer is late
							require.NoError(t, slot.Settle(t.Context(), 0))
							slot.Release()
						} else {
							require.ErrorIs(t, err, context.Canceled)
						}
						time.Sleep(time.Second) // for the answer, and for what goes back
						hangUp()
					}
					if !c.down {
						require.Equal(t, []int{100, 100_000, 100_000, 20}, []int{free(t, calls), free(t, tokens), free(t, turns), free(t, atOnce)})
					}
					if _, ok := l.(*fallback.Limiter); ok { // with limits of its own, which answer now
						s.down.Store(true)
						r, err := l.AllowN(t.Context(), "key", 1)
						require.NoError(t, err)
						require.Equal(t, ratelimit.SourceLocal, r.Source())
						require.Len(t, r.Parts(), 4)
						for _, p := range r.Parts() {
							require.Equal(t, p.Limit-1, p.Remaining, "%+v", p)
						}
					}
				})
			})
		}
	}
}

// Nothing is asked for a caller that had disconnected before.
func TestCallersThatDisconnectedBeforeTakeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		ctx, hangUp := context.WithCancel(t.Context())
		hangUp()
		for _, opts := range [][]inflight.Option{nil, {inflight.WaitUpTo(time.Minute)}} {
			slot, _, err := inflight.Hold(ctx, slots(t, s, 20), "key", 1, opts...)
			require.ErrorIs(t, err, context.Canceled)
			require.Nil(t, slot)
			synctest.Wait()
			require.Zero(t, s.called.Load())
		}
	})
}

// OnEnd tells of slots. A caller that is gone when its denial arrives has had none.
func TestADenialThatComesTooLateEndsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 10 * time.Millisecond
		l, ended := slots(t, s, 1), 0
		slot := hold(t, l)
		ctx, hangUp := context.WithTimeout(t.Context(), s.way/2)
		defer hangUp()
		_, _, err := inflight.Hold(ctx, l, "key", 1, inflight.OnEnd(func(inflight.Ending) { ended++ }))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		slot.Release()
		time.Sleep(time.Second)
		require.Zero(t, ended)
	})
}
