package inflight_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestASlotIsLostWhileTheMachineSleeps(t *testing.T) {
	held := hold(t, ratelimit.Must(inflight.New(newRemote(t), 1, time.Hour)))
	defer held.Release()
	require.False(t, held.LostAfterSleep(10*time.Minute))
	require.True(t, held.LostAfterSleep(2*time.Hour))
}

func TestASlotIsLostWhenItCannotBeRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		var endings []inflight.Reason
		held := hold(t, l, inflight.OnEnd(func(e inflight.Ending) { endings = append(endings, e.Reason) }))
		work := held.Context()
		time.Sleep(1500 * time.Millisecond)
		s.down.Store(true)
		time.Sleep(2 * time.Second) // it was renewed after 1 s
		require.False(t, held.Lost())
		require.NoError(t, work.Err())
		time.Sleep(500 * time.Millisecond)
		require.True(t, held.Lost())
		synctest.Wait()
		require.ErrorIs(t, context.Cause(work), inflight.ErrLost)
		s.down.Store(false)
		time.Sleep(1100 * time.Millisecond)
		require.Zero(t, free(t, l), "what still runs is counted again")
		require.True(t, held.Lost())
		held.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
		require.Equal(t, []inflight.Reason{inflight.Lost, inflight.Released}, endings)
		require.Equal(t, "lost, released", fmt.Sprintf("%v, %v", endings[0], endings[1]), "as metrics name them")
	})
}

func TestARenewalThatHangsLeavesTimeForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		held := hold(t, slots(t, s, 1))
		s.hangs.Store(true)
		time.Sleep(1100 * time.Millisecond) // it is renewed after 1 s
		s.hangs.Store(false)
		time.Sleep(time.Minute)
		require.False(t, held.Lost())
		held.Release()
		synctest.Wait()
	})
}

// The work is told of a loss when the slot ends, and not when a renewal under way gives up or comes
// back: another one may have taken the slot by then.
func TestALossIsToldWhileARenewalIsUnderWay(t *testing.T) {
	for name, way := range map[string]time.Duration{"hanging": 0, "on its way": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRemote(t)
				began := time.Now()
				held := hold(t, slots(t, s, 1))
				if s.way = way; way == 0 {
					s.hangs.Store(true)
				}
				s.down.Store(true)
				<-held.Context().Done()
				require.ErrorIs(t, context.Cause(held.Context()), inflight.ErrLost)
				require.Equal(t, 3*time.Second, time.Since(began))
				s.hangs.Store(false)
				s.down.Store(false)
				held.Release()
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestAForgottenSlotIsTakenAgainOrLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 1)
		a := hold(t, l)
		token := a.Token()
		require.NoError(t, l.Reset(t.Context(), "key"))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, free(t, l))
		require.Greater(t, a.Token(), token)
		require.False(t, a.Lost())

		time.Sleep(time.Millisecond) // or else b gets the same number
		require.NoError(t, l.Reset(t.Context(), "key"))
		b := hold(t, l)
		time.Sleep(time.Second)
		synctest.Wait()
		require.True(t, a.Lost())
		require.False(t, b.Lost())
		b.Release()
		a.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
	})
}

func TestLongestEndsASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []store.Store{newRemote(t), newRemote(t).Store} {
			l := slots(t, s, 1)
			var ending inflight.Ending
			held := hold(t, l, inflight.Longest(10*time.Second), inflight.OnEnd(func(e inflight.Ending) { ending = e }))
			work := held.Context()
			time.Sleep(9 * time.Second)
			require.False(t, held.Lost())
			require.Zero(t, free(t, l))
			time.Sleep(time.Second)
			require.True(t, held.Lost())
			synctest.Wait()
			require.Equal(t, inflight.Ending{Key: "key", Held: 10 * time.Second, Reason: inflight.TooLong}, ending)
			require.ErrorIs(t, context.Cause(work), inflight.ErrLost)
			require.Equal(t, 1, free(t, l))
			require.True(t, held.Lost(), "it stays so")
			held.Release()
			require.True(t, held.Lost())
		}
	})
}

// The clock says so before a renewal under way has ended.
func TestLongestIsOverDuringARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 400 * time.Millisecond
		held := hold(t, slots(t, s, 1), inflight.Longest(1600*time.Millisecond))
		time.Sleep(1199 * time.Millisecond)
		require.False(t, held.Lost())
		time.Sleep(time.Millisecond)
		require.True(t, held.Lost())
		held.Release()
		time.Sleep(time.Minute)
	})
}

// A Release may come at the moment of a renewal. Whichever is first, it is given back once.
func TestAReleaseAtTheMomentOfARenewal(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			s := newRemote(t)
			s.way = 10 * time.Millisecond
			var gives atomic.Int64
			s.after = func() { gives.Add(1) }
			a := hold(t, slots(t, s, 1))
			time.Sleep(990 * time.Millisecond)
			a.Release()
			time.Sleep(time.Minute)
			require.EqualValues(t, 1, gives.Load())
		})
	}
}

// A Release may come while a renewal is under way. The slot is given back after that, once.
func TestAReleaseDuringARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 100 * time.Millisecond
		l := slots(t, s, 1)
		a := hold(t, l)
		called := s.called.Load()
		for s.called.Load() == called {
			time.Sleep(time.Millisecond)
		}
		called = s.called.Load()
		a.Release()
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 1, s.called.Load()-called)
		require.Equal(t, 1, free(t, l))
	})
}

// A slot of 3 s beside one of an hour, on a store that hangs.
func TestALossIsToldInTimeBesideALongLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		long, err := inflight.New(s, 1, time.Hour, ratelimit.WithName("long"))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(long, slots(t, s, 1, ratelimit.WithName("short")))
		require.NoError(t, err)
		began := time.Now()
		a := hold(t, all)
		s.hangs.Store(true)
		<-a.Context().Done()
		took := time.Since(began)
		s.hangs.Store(false)
		a.Release()
		time.Sleep(time.Hour)
		require.LessOrEqual(t, took, 3*time.Second+time.Millisecond)
	})
}

// One of two stores hangs. The slot on the other store is renewed.
func TestALongLifeThatHangsDoesNotLoseAShortOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, s2 := newRemote(t), newRemote(t)
		long, err := inflight.New(s, 1, time.Hour, ratelimit.WithName("long"))
		require.NoError(t, err)
		short := slots(t, s2, 1, ratelimit.WithName("short"))
		all, err := ratelimit.NewAll(long, short)
		require.NoError(t, err)
		a := hold(t, all)
		s.hangs.Store(true)
		time.Sleep(10 * time.Second)
		n := free(t, short)
		s.hangs.Store(false)
		a.Release()
		time.Sleep(time.Hour)
		require.Zero(t, n, "the short one is held, and its store answers")
	})
}

// In memory a slot with an end lasts until that.
func TestLongestInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slot := hold(t, slots(t, ratelimit.Must(memstore.New()), 1), inflight.Longest(time.Minute))
		time.Sleep(time.Minute - 1)
		require.False(t, slot.Lost())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.True(t, slot.Lost())
	})
}

// The release of a slot that ended in an outage is repeated as rarely as that of a released one.
func TestLongestEndsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		slot := hold(t, slots(t, s, 1), inflight.Longest(500*time.Millisecond))
		s.down.Store(true)
		called := s.called.Load()
		time.Sleep(2 * time.Second) // less than a life
		require.True(t, slot.Lost())
		require.LessOrEqual(t, s.called.Load()-called, int64(10), "after 5 ms, and then after twice as long each time")
		time.Sleep(2 * time.Second)
	})
}
