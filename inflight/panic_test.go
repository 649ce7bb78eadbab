package inflight_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

// trouble makes the next calls of a limit function panic, as many as it counts.
type trouble struct{ atomic.Int64 }

func (n *trouble) option() ratelimit.Option {
	return ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
		if n.Add(-1) >= 0 {
			panic("planted")
		}
		return ratelimit.Limit{}, nil
	})
}

// A limit function that panics while a slot is given back costs neither the slot nor the process.
func TestAPanicInAReleaseKeepsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := newRemote(t)
		for name, s := range map[string]store.Store{"memory": far.Store, "elsewhere": far} {
			var n trouble
			l := slots(t, s, 1, ratelimit.WithName(name), n.option())
			slot := hold(t, l)
			n.Store(1)
			slot.Release()
			time.Sleep(time.Second)
			require.Equal(t, 1, free(t, l), name)
		}
	})
}

func TestAPanicBesideAReleaseKeepsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		var n trouble
		rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(100), n.option()))
		one := slots(t, s, 1, n.option())
		slot := hold(t, ratelimit.Must(fallback.New(ratelimittest.All(t, rate, one), fallback.FailLocal(1))))
		n.Store(2)
		slot.Release()
		time.Sleep(time.Second)
		n.Store(0)
		require.Equal(t, 1, free(t, one))
	})
}

// Nobody is left for whom a refund could panic.
func TestAPanicAfterTheCallerHasLeftKeepsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 20 * time.Millisecond
		var n trouble
		rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(100), n.option()))
		one := slots(t, s, 1)
		ctx, cancel := context.WithTimeout(t.Context(), s.way/2)
		defer cancel()
		_, _, err := inflight.Hold(ctx, ratelimittest.All(t, rate, one), "key", 1, inflight.OnEnd(func(inflight.Ending) { panic("planted") }))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		n.Store(1)
		time.Sleep(time.Second)
		require.Zero(t, n.Load(), "it has panicked")
		require.Equal(t, 1, free(t, one))
	})
}

// The slot that replaces a local one is held, although the local one is not given back.
func TestAPanicOfAStandInKeepsTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		var n trouble
		one := slots(t, s, 1)
		s.down.Store(true)
		slot := hold(t, ratelimit.Must(fallback.New(one, fallback.FailTo(slots(t, newRemote(t).Store, 1, n.option())))))
		s.down.Store(false)
		n.Store(1)
		time.Sleep(2 * time.Second)
		require.Zero(t, n.Load(), "it has panicked")
		require.Zero(t, free(t, one))
		slot.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, one))
	})
}

// OnEnd panics for the caller of Release. If a slot ends otherwise, its panic is dropped.
func TestAPanicOfOnEndIsThatOfTheCallerOfRelease(t *testing.T) {
	var ended atomic.Int64
	planted := inflight.OnEnd(func(inflight.Ending) { ended.Add(1); panic("planted") })
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		require.PanicsWithValue(t, "planted", hold(t, slots(t, s, 1), planted).Release)
		slot := hold(t, slots(t, s, 2), planted, inflight.Longest(time.Second))
		time.Sleep(time.Second)
		require.True(t, slot.Lost())
		slot = hold(t, slots(t, s, 3), planted)
		s.down.Store(true)
		time.Sleep(time.Minute)
		require.True(t, slot.Lost())
		require.EqualValues(t, 3, ended.Load())
	})
	l := slots(t, newRemote(t).Store, 1)
	hold(t, l, planted)
	require.Eventually(t, func() bool {
		runtime.GC()
		return ended.Load() == 4 && free(t, l) == 1
	}, time.Minute, time.Millisecond)
}
