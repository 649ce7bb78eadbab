package inflight_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
)

func wait(ctx context.Context, t *testing.T, l ratelimit.Limiter, key string, opts ...inflight.Option) *inflight.Slot {
	s, r, err := inflight.Wait(ctx, l, key, 1, opts...)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	return s
}

// Waiters get slots in order of arrival, as soon as one is released here, and only the first one
// polls.
func TestWaitersAskInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []*remote{newRemote(t), {Store: newRemote(t).Store, way: 10 * time.Millisecond}} {
			var l ratelimit.Limiter = slots(t, s, 2)
			trips := 2 * s.way // of the Release, and of the next Hold
			a, b := hold(t, l), hold(t, l)
			var tokens [5]int64 // of the waiters, in their order
			var all sync.WaitGroup
			held := make(chan *inflight.Slot, len(tokens))
			for i := range tokens {
				all.Go(func() {
					slot := wait(t.Context(), t, l, "key")
					tokens[i] = slot.Token()
					held <- slot
				})
				synctest.Wait()
			}
			time.Sleep(65 * time.Second)
			called := s.called.Load()
			time.Sleep(time.Minute)
			require.InDelta(t, 60+2*60, s.called.Load()-called, 20, "one asks each second, and two are renewed")
			began := time.Now()
			a.Release()
			b.Release()
			for range tokens {
				(<-held).Release()
			}
			all.Wait()
			require.LessOrEqual(t, time.Since(began), 5*trips)
			for i := range tokens {
				overtakers := 0 // two are woken at once, and whose question is under way then may be denied
				for _, later := range tokens[i:] {
					if later < tokens[i] {
						overtakers++
					}
				}
				require.True(t, overtakers <= 2 || s.way == 0, "%d: %v", i, tokens) // or else all are taken at one instant
			}
			time.Sleep(time.Second)
			require.Equal(t, 2, free(t, l))
		}
	})
}

func TestAReleaseWakesOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		a := hold(t, l)
		var held atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if slot, _, err := inflight.Wait(ctx, l, "key", 1); err == nil {
					held.Add(1)
					<-ctx.Done()
					slot.Release()
				}
			})
		}
		time.Sleep(10*time.Second + 500*time.Millisecond) // between two renewals
		called := s.called.Load()
		a.Release()
		synctest.Wait()
		require.EqualValues(t, 1, held.Load())
		require.LessOrEqual(t, s.called.Load()-called, int64(2), "the first is woken, and nobody else")
		cancel()
		all.Wait()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
	})
}

// A slot of another process is seen within a second, and one of a process that died within its life.
func TestSlotsOfOthersAreSeenWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, other := slots(t, s, 1, ratelimit.WithName("one")), slots(t, s, 1, ratelimit.WithName("one"))
		a := hold(t, other)
		go func() {
			time.Sleep(time.Minute)
			a.Release()
		}()
		began := time.Now()
		wait(t.Context(), t, l, "key").Release()
		require.Less(t, time.Since(began), time.Minute+time.Second+time.Millisecond)
		time.Sleep(time.Second)

		_, err := other.Allow(t.Context(), "key") // and then it dies
		require.NoError(t, err)
		began = time.Now()
		wait(t.Context(), t, l, "key").Release()
		require.GreaterOrEqual(t, time.Since(began), 3*time.Second-time.Microsecond) // the store counts whole ones
		require.LessOrEqual(t, time.Since(began), 3*time.Second+time.Millisecond)
		time.Sleep(time.Second)
	})
}

// A waiter that finds more than one slot lets the next one ask immediately.
func TestOneWhoFindsRoomCallsTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 3)
		for range 3 {
			_, err := l.Allow(t.Context(), "key")
			require.NoError(t, err)
		}
		began := time.Now()
		var after [3]time.Duration
		var all sync.WaitGroup
		for i := range after {
			all.Go(func() {
				slot := wait(t.Context(), t, l, "key")
				after[i] = time.Since(began)
				time.Sleep(time.Minute)
				slot.Release()
			})
		}
		all.Wait()
		require.Equal(t, after[0], after[1])
		require.Equal(t, after[0], after[2])
		synctest.Wait()
	})
}

// Far from the store as many ask at once as there are slots: one after the other, all but one would be unused.
func TestFarSlotsAreInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 10 * time.Millisecond
		const n, rounds, work = 64, 8, 5 * time.Millisecond
		l := slots(t, s, n)
		began := time.Now()
		var all sync.WaitGroup
		for range n * rounds {
			all.Go(func() {
				slot := wait(t.Context(), t, l, "key")
				time.Sleep(work)
				slot.Release()
			})
		}
		all.Wait()
		const left = 100 * time.Millisecond // for other processes
		require.Less(t, time.Since(began), 2*s.way+rounds*(work+2*s.way)+left, "each round is a question, the work and a Release")
		require.Less(t, s.called.Load(), int64(3*n*rounds), "a question and a Release each, and some denials")
		time.Sleep(time.Second)
		require.Equal(t, n, free(t, l))
		require.Zero(t, inflight.Queues())
	})
}

// A caller that finds the queue full gets the last denial, because the store is busy enough.
func TestAFullQueueAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		first := hold(t, l)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			_, _, err := inflight.Wait(ctx, l, "key", 1)
			require.ErrorIs(t, err, context.Canceled)
		})
		time.Sleep(2500 * time.Millisecond) // between two renewals
		called := s.called.Load()
		for range 100 {
			slot, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(time.Second), inflight.MaxWaiting(1))
			require.NoError(t, err)
			require.Nil(t, slot)
			require.False(t, r.Allowed)
			require.Equal(t, 1, r.Limit)
			require.Zero(t, r.Remaining)
			require.Positive(t, r.RetryAfter)
			require.LessOrEqual(t, r.RetryAfter, r.ResetAfter)
		}
		require.Equal(t, called, s.called.Load())
		require.Zero(t, s.looks.Load())
		leave()
		all.Wait()
		first.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
	})
}

// A waiter that leaves although a slot is free, or while it asks, lets the next one ask
// immediately. After an error of the store, the next one waits.
func TestAWaiterThatLeavesLetsTheNextAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		for range 20 { // a waiter that may ask and has to leave does one or the other
			a := hold(t, l)
			ctx, cancel := context.WithCancel(t.Context())
			left, next := make(chan error), make(chan *inflight.Slot)
			go func() {
				slot, _, err := inflight.Wait(ctx, l, "key", 1)
				slot.Release()
				left <- err
			}()
			synctest.Wait()
			go func() { next <- wait(t.Context(), t, l, "key") }()
			time.Sleep(5 * time.Second)
			s.down.Store(true) // for the last question of the first
			time.Sleep(1100 * time.Millisecond)
			s.down.Store(false)
			began := time.Now()
			cancel()
			a.Release()
			b := <-next
			require.Zero(t, time.Since(began))
			require.ErrorIs(t, <-left, context.Canceled)
			b.Release()
			synctest.Wait()
			require.Zero(t, inflight.Queues())
		}

		s = newRemote(t)
		s.way = 10 * time.Millisecond
		l = slots(t, s, 1)
		a := hold(t, l)
		before := s.called.Load()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() {
			_, _, err := inflight.Wait(ctx, l, "key", 1)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		synctest.Wait()
		all.Go(func() { wait(t.Context(), t, l, "key").Release() })
		synctest.Wait()
		require.EqualValues(t, 1, s.called.Load()-before, "only the first asks")
		time.Sleep(6 * time.Millisecond)
		require.EqualValues(t, 2, s.called.Load()-before, "the next one asks as soon as the first has left")

		time.Sleep(time.Second)
		a.Release()
		all.Wait()

		time.Sleep(time.Second)
		s = newRemote(t)
		l = slots(t, s, 1)
		a = hold(t, l)
		ctx, cancel = context.WithCancel(t.Context())
		all.Go(func() {
			_, _, err := inflight.Wait(ctx, l, "key", 1)
			require.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		var ended [2]time.Time
		for i := range ended {
			all.Go(func() {
				_, _, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(time.Hour))
				require.ErrorIs(t, err, store.ErrUnavailable)
				ended[i] = time.Now()
			})
			synctest.Wait()
		}
		s.down.Store(true)
		cancel()
		all.Wait()
		require.Equal(t, 5*time.Millisecond, ended[1].Sub(ended[0]))
		s.down.Store(false)
		a.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
	})
}

// A waiter that asked and got no answer keeps its place.
func TestAWaiterWithoutAnAnswerKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, err := inflight.New(s, 2, 24*time.Hour) // so that there are no renewals
		require.NoError(t, err)
		a, b := hold(t, l), hold(t, l)
		s.way = 10 * time.Millisecond
		got := make(chan int, 3)
		for i := range 3 {
			go func() {
				slot := wait(t.Context(), t, l, "key")
				got <- i
				time.Sleep(time.Second)
				slot.Release()
			}()
			synctest.Wait()
		}
		time.Sleep(20 * time.Second)
		for called := s.called.Load(); s.called.Load() == called; {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * s.way) // the next time that the first looks is far
		a.Release()
		time.Sleep(s.way / 5)
		b.Release()
		time.Sleep(s.way + s.way/3) // two ask
		s.down.Store(true)
		time.Sleep(s.way)
		s.down.Store(false)
		for i := range 3 {
			require.Equal(t, i, <-got)
		}
		time.Sleep(2 * time.Second)
		require.Equal(t, 2, free(t, l))
	})
}

// A Release concerns those who wait for that key, and nobody else.
func TestAReleaseOfAnotherKeyWakesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		a := hold(t, l)
		other, _, err := inflight.Hold(t.Context(), l, "other", 1)
		require.NoError(t, err)
		done := make(chan *inflight.Slot)
		go func() { done <- wait(t.Context(), t, l, "key") }()
		time.Sleep(2500 * time.Millisecond) // between two renewals
		called := s.called.Load()
		other.Release()
		synctest.Wait()
		require.EqualValues(t, 1, s.called.Load()-called)
		a.Release()
		(<-done).Release()
		synctest.Wait()
	})
}

// In an All too, slots of another process are seen within a second, whatever a rate beside them says.
func TestSlotsBesideARateAreSeenWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, other := slots(t, s, 1, ratelimit.WithName("one")), slots(t, s, 1, ratelimit.WithName("one"))
		bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(5), ratelimit.WithName("rate"))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(bucket, l)
		require.NoError(t, err)
		r, err := other.Allow(t.Context(), "key")
		require.NoError(t, err)
		began := time.Now()
		time.AfterFunc(time.Second, func() { require.NoError(t, other.Refund(t.Context(), "key", r, 1)) })
		wait(t.Context(), t, all, "key").Release()
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		synctest.Wait()
	})
}

// value is a limiter that is not a pointer: it can be compared, or cannot, or is not even equal to
// itself.
type value struct {
	ratelimit.Limiter
	with any
}

func (v value) Unwrap() ratelimit.Limiter { return v.Limiter }

func TestEachKindOfLimiterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 1)
		for name, c := range map[string]struct {
			l      ratelimit.Limiter
			shared bool
		}{
			"a pointer": {l, true}, "a value": {value{l, 1}, true},
			"one without equality": {value{l, []int{1}}, false}, "one that is not itself": {value{l, math.NaN()}, false},
		} {
			a := hold(t, l)
			next := make(chan *inflight.Slot)
			go func() { next <- wait(t.Context(), t, c.l, "key") }()
			synctest.Wait()
			ctx, leave := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				_, _, err := inflight.Wait(ctx, c.l, "key", 1, inflight.MaxWaiting(1))
				ended <- err
			}()
			synctest.Wait()
			if c.shared {
				require.ErrorIs(t, <-ended, inflight.ErrFull, name)
			} else { // in a queue of its own
				leave()
				require.ErrorIs(t, <-ended, context.Canceled, name)
			}
			leave()
			require.Positive(t, inflight.Queues(), name)
			began := time.Now()
			a.Release()
			b := <-next
			require.Zero(t, time.Since(began), name)
			b.Release()
			synctest.Wait()
			require.Zero(t, inflight.Queues(), name)
		}
	})
}

// A store that is away for a moment is asked again after 5 ms.
func TestAMomentOfAnOutageCostsAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		s.down.Store(true)
		time.AfterFunc(time.Millisecond, func() { s.down.Store(false) })
		began := time.Now()
		wait(t.Context(), t, l, "key").Release()
		require.LessOrEqual(t, time.Since(began), 5*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(began), 3*time.Millisecond)
		synctest.Wait()
	})
}

// A rate that has room exactly at the deadline has none before.
func TestRoomAtTheDeadlineIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(1), ratelimit.WithName("rate"))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(bucket, slots(t, s, 2))
		require.NoError(t, err)
		wait(t.Context(), t, all, "key").Release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		_, _, err = inflight.Wait(ctx, all, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.Zero(t, time.Since(began))
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour+time.Microsecond)
		defer cancel()
		wait(ctx, t, all, "key").Release()
		require.Equal(t, time.Hour, time.Since(began))
		synctest.Wait()
	})
}

// Slots that are for all keys are waited for under each, and a Release wakes one who waits for them.
func TestAReleaseOfAnotherKeyWakesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		each := slots(t, s, 2, ratelimit.WithName("each"))
		total := slots(t, s, 2, ratelimit.WithName("total"), ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "all", nil }))
		l, err := ratelimit.NewAll(each, total)
		require.NoError(t, err)
		a := wait(t.Context(), t, l, "a")
		b := wait(t.Context(), t, l, "b")
		done := make(chan *inflight.Slot)
		go func() { done <- wait(t.Context(), t, l, "c") }()
		time.Sleep(10 * time.Second)
		began := time.Now()
		a.Release()
		c := <-done
		require.Zero(t, time.Since(began))
		b.Release()
		c.Release()
		synctest.Wait()
		require.Equal(t, 2, free(t, total))
	})
}

func TestAWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		a := hold(t, l)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		next := make(chan *inflight.Slot)
		ended := make(chan error)
		go func() {
			_, _, err := inflight.Wait(ctx, l, "key", 1, inflight.MaxWaiting(2))
			ended <- err
		}()
		synctest.Wait()
		go func() { next <- wait(t.Context(), t, l, "key", inflight.MaxWaiting(2)) }()
		synctest.Wait()
		_, _, err := inflight.Wait(t.Context(), l, "key", 1, inflight.MaxWaiting(2))
		require.ErrorIs(t, err, inflight.ErrFull)
		require.ErrorIs(t, <-ended, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
		s.down.Store(true) // which ends no wait
		time.Sleep(2 * time.Second)
		s.down.Store(false)
		time.Sleep(time.Second)
		a.Release()
		b := <-next

		bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(1), ratelimit.WithName("rate"))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(bucket, slots(t, s, 3, ratelimit.WithName("three")))
		require.NoError(t, err)
		c := wait(t.Context(), t, all, "key")
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		_, _, err = inflight.Wait(ctx, all, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		_, _, err = inflight.Wait(ctx, all, "key", 2)
		require.ErrorIs(t, err, ratelimit.ErrNever)
		require.Zero(t, time.Since(began))
		wait(t.Context(), t, all, "key").Release()
		require.InDelta(t, time.Hour, time.Since(began), float64(time.Millisecond))
		b.Release()
		c.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
		require.Zero(t, inflight.Queues())
	})
}

// A Hold that may wait queues for that time, and then denies. If the queue is full, it denies
// immediately.
func TestHoldWaitsForAsLongAsItIsTold(t *testing.T) {
	for name, way := range map[string]time.Duration{"in memory": 0, "far": 10 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRemote(t)
				s.way = way
				l := slots(t, s, 1)
				type told struct {
					slot  *inflight.Slot
					r     ratelimit.Result
					err   error
					after time.Duration
				}
				hold := func(ctx context.Context, l ratelimit.Limiter) <-chan told {
					ends, began := make(chan told, 1), time.Now()
					go func() {
						slot, r, err := inflight.Hold(ctx, l, "key", 1, inflight.WaitUpTo(time.Second), inflight.MaxWaiting(3))
						ends <- told{slot, r, err, time.Since(began)}
					}()
					time.Sleep(3 * way) // for its first question
					synctest.Wait()
					return ends
				}
				first := <-hold(t.Context(), l)
				require.NotNil(t, first.slot)
				gone, leave := context.WithCancel(t.Context())
				leaves := hold(gone, l)
				second, third := hold(t.Context(), l), hold(t.Context(), l)
				full := <-hold(t.Context(), l)
				require.NoError(t, full.err)
				require.Nil(t, full.slot)
				require.False(t, full.r.Allowed)
				require.Positive(t, full.r.RetryAfter)
				require.LessOrEqual(t, full.after, 2*way, "it asks no more than how things are")

				leave()
				require.ErrorIs(t, (<-leaves).err, context.Canceled)
				time.Sleep(500 * time.Millisecond)
				first.slot.Release()
				got := <-second
				require.NotNil(t, got.slot, "in order of arrival, as soon as it can be")
				require.Less(t, got.after, 700*time.Millisecond)
				late := <-third
				require.NoError(t, late.err)
				require.Nil(t, late.slot)
				require.False(t, late.r.Allowed)
				require.GreaterOrEqual(t, late.after, time.Second)
				require.LessOrEqual(t, late.after, time.Second+way, "a question under way is waited for")

				s.down.Store(true) // which is no lack of slots
				require.ErrorIs(t, (<-hold(t.Context(), l)).err, store.ErrUnavailable)
				s.down.Store(false)
				got.slot.Release()
				time.Sleep(time.Second)
				require.Equal(t, 1, free(t, l), "nothing stays of who left")

				bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(1), ratelimit.WithName("rate"))
				require.NoError(t, err)
				all, err := ratelimit.NewAll(bucket, l)
				require.NoError(t, err)
				slot, _, err := inflight.Hold(t.Context(), all, "key", 1)
				require.NoError(t, err)
				slot.Release()
				rate := <-hold(t.Context(), all)
				require.NoError(t, rate.err)
				require.False(t, rate.r.Allowed)
				require.LessOrEqual(t, rate.after, 4*way, "a token comes too late")
			})
		})
	}
}

// Wait and Transport may be told too how long they wait at most.
func TestAWaitMayHaveAnEndOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 1)
		defer hold(t, l).Release()
		began := time.Now()
		_, _, err := inflight.Wait(t.Context(), l, "key", 1, inflight.WaitUpTo(time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
	})
}

// The turn that a leaky bucket gives is slept for, and given back with the slot if it comes too late.
func TestAWaitIsForTheTurnToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		leaky, err := ratelimit.NewLeakyBucket(s, ratelimit.Limit{Rate: 1, Period: time.Minute, Burst: 5}, ratelimit.WithName("rate"))
		require.NoError(t, err)
		atOnce := slots(t, s, 3, ratelimit.WithName("three"))
		all, err := ratelimit.NewAll(leaky, atOnce)
		require.NoError(t, err)
		began := time.Now()
		a, b := wait(t.Context(), t, all, "key"), wait(t.Context(), t, all, "key")
		require.Equal(t, time.Minute, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err = inflight.Wait(ctx, all, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err = inflight.Wait(ctx, all, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline, "at which it is too late")
		require.Equal(t, time.Minute, time.Since(began))
		synctest.Wait()
		require.Equal(t, 1, free(t, atOnce))
		c := wait(t.Context(), t, all, "key")
		require.Equal(t, 2*time.Minute, time.Since(began), "nobody has that turn")
		a.Release()
		b.Release()
		c.Release()
		synctest.Wait()
	})
}

// 1,024 wait for slots of a key, unless they are told another number.
func TestAQueueHoldsAtMost1024CallersByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t).Store, 1)
		held := hold(t, l)
		var full atomic.Int64
		for range 1030 {
			go func() {
				slot, _, err := inflight.Wait(t.Context(), l, "key", 1)
				if slot.Release(); errors.Is(err, inflight.ErrFull) {
					full.Add(1)
				}
			}()
		}
		synctest.Wait()
		require.EqualValues(t, 6, full.Load())
		held.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
	})
}

// A caller that has got a slot keeps it, even if the context has ended by then, because there is no
// Delay to sleep for.
func TestASlotWithoutATurnIsNotSleptFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t).Store
		l := slots(t, s, 1, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			time.Sleep(time.Second)
			return ratelimit.PerSecond(1), nil
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wait(ctx, t, l, "key").Release()
	})
}

func TestLimitersThatCannotWaitAreRefused(t *testing.T) {
	s := newRemote(t)
	l := slots(t, s, 1)
	for _, n := range []int{0, -1} {
		_, _, err := inflight.Wait(t.Context(), l, "key", 1, inflight.MaxWaiting(n))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	for _, d := range []time.Duration{0, -1} {
		_, err := inflight.Check(inflight.WaitUpTo(d))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	waits, err := inflight.Check(inflight.WaitUpTo(1), inflight.MaxWaiting(math.MaxInt32))
	require.NoError(t, err)
	require.True(t, waits)
	waits, err = inflight.Check(inflight.Longest(time.Second))
	require.NoError(t, err)
	require.False(t, waits)
	_, _, err = inflight.Wait(t.Context(), l, "key", 1, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, _, err = inflight.Hold(t.Context(), l, "key", 1, inflight.MaxWaiting(1))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = inflight.Check(inflight.MaxWaiting(1))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerMinute(5))
	require.NoError(t, err)
	_, _, err = inflight.Wait(t.Context(), bucket, "key", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, _, err = inflight.Wait(t.Context(), l, "", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.Equal(t, 1, free(t, l))
}

// Two processes, as far as limiters can see, share slots on Redis: all who wait get one, and never
// too many have one.
func TestAllWhoWaitGetASlot(t *testing.T) {
	client := redistest.Start(t).Client(t)
	var inside, most atomic.Int64
	var all sync.WaitGroup
	for range 2 {
		l, err := onRedis(client, 10*time.Second)
		require.NoError(t, err)
		for range 20 {
			all.Go(func() {
				for range 5 {
					slot := wait(t.Context(), t, l, "key")
					now := inside.Add(1)
					for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
					}
					time.Sleep(time.Millisecond)
					inside.Add(-1)
					slot.Release()
				}
			})
		}
	}
	all.Wait()
	require.LessOrEqual(t, most.Load(), int64(5))
	require.Zero(t, inflight.Queues())
}

var _ store.Store = (*remote)(nil)
