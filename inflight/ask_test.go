package inflight_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// noted is a limiter whose questions are noted.
type noted struct {
	ratelimit.Limiter
	*notes
}

type notes struct {
	mu        sync.Mutex
	at        []time.Time          // of all questions
	last      map[string]time.Time // when that of a key was answered
	now, most int                  // under way
}

func note(l ratelimit.Limiter) noted { return noted{l, &notes{last: map[string]time.Time{}}} }

func (n noted) Unwrap() ratelimit.Limiter { return n.Limiter }

func (n noted) AllowN(ctx context.Context, key string, events int) (ratelimit.Result, error) {
	n.mu.Lock()
	n.at = append(n.at, time.Now())
	n.now++
	n.most = max(n.most, n.now)
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.now--
		n.last[key] = time.Now()
		n.mu.Unlock()
	}()
	return n.Limiter.AllowN(ctx, key, events)
}

func (n *notes) asked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.at)
}

// settled waits until each key has had an answer within this time, and nobody asks.
func (n *notes) settled(within time.Duration, keys ...string) {
	for {
		time.Sleep(time.Millisecond)
		n.mu.Lock()
		ready := n.now == 0
		for _, key := range keys {
			ready = ready && time.Since(n.last[key]) < within
		}
		n.mu.Unlock()
		if ready {
			return
		}
	}
}

// The slots of other processes are polled after 5 ms, and then after pauses that double, up to 50
// ms. A waiter that gets none for long polls less and less often, down to once per second. A rate
// with room does not change this.
func TestTheFirstInLineAsksLessAndLessOften(t *testing.T) {
	for name, beside := range map[string]bool{"alone": false, "beside a rate": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRemote(t)
				var l ratelimit.Limiter = slots(t, s, 1, ratelimit.WithName("one"))
				other := ratelimit.Must(inflight.New(s, 1, time.Hour, ratelimit.WithName("one")))
				_, err := other.Allow(t.Context(), "key")
				require.NoError(t, err)
				if beside {
					l = ratelimit.Must(ratelimit.NewAll(l, ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1000), ratelimit.WithName("rate")))))
				}
				counted := note(l)
				ctx, end := context.WithTimeout(t.Context(), 2*time.Minute)
				defer end()
				began := time.Now()
				_, _, err = inflight.Wait(ctx, counted, "key", 1)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, began, counted.at[0])
				require.Less(t, len(counted.at), 500)
				require.LessOrEqual(t, counted.at[len(counted.at)-1].Sub(began), 2*time.Minute)
				require.GreaterOrEqual(t, counted.at[len(counted.at)-1].Sub(began), 2*time.Minute-time.Second)
				rest := 5 * time.Millisecond
				for i, at := range counted.at[1:] {
					took := at.Sub(counted.at[i])
					require.LessOrEqual(t, took, rest)
					require.GreaterOrEqual(t, took, rest*3/4, "processes do not ask together")
					longest := min(max(50*time.Millisecond, counted.at[i].Sub(began)/64), time.Second)
					rest = min(2*rest, longest)
				}
			})
		})
	}
}

// The first job that ends shows for how long slots are held, and therefore how seldom they need to be polled for.
func TestAQueueOfLongJobsAsksSeldomFromTheSecondOneOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := note(slots(t, newRemote(t), 1))
		first, got := wait(t.Context(), t, l, "key"), make(chan *inflight.Slot)
		for range 2 {
			go func() { got <- wait(t.Context(), t, l, "key") }()
		}
		time.Sleep(4 * time.Second)
		first.Release()
		second := <-got
		time.Sleep(2 * time.Second) // in which the pauses grow
		before := l.asked()
		time.Sleep(10 * time.Second)
		asked := l.asked() - before
		second.Release()
		(<-got).Release()
		synctest.Wait()
		require.LessOrEqual(t, asked, 15) // once per second
	})
}

// A queue that has got nothing for long asks as often as any other again after it got a slot.
func TestAfterASlotAQueueAsksOftenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, there := note(slots(t, s, 1, ratelimit.WithName("x"))), slots(t, s, 1, ratelimit.WithName("x"))
		other := hold(t, there)
		ctx, end := context.WithCancel(t.Context())
		first := waitFor(t, ctx, l, "key")
		waitFor(t, ctx, l, "key")
		time.Sleep(70 * time.Second)
		other.Release()
		at := <-first
		before := l.asked()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Greater(t, l.asked(), before)
		require.LessOrEqual(t, l.at[before].Sub(at), 50*time.Millisecond)
		end()
		synctest.Wait()
	})
}

// After a job that took very long, a queue of short jobs soon asks as often as its jobs are short.
func TestAQueueOfShortJobsForgetsALongOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := note(ratelimit.Must(inflight.New(newRemote(t), 1, time.Hour))) // so that there are no renewals
		const jobs = 60
		got := make(chan *inflight.Slot)
		for range jobs + 2 {
			go func() { got <- wait(t.Context(), t, l, "key") }()
		}
		slot, took := <-got, time.Hour/2
		for range jobs {
			time.Sleep(took)
			slot.Release()
			slot, took = <-got, 50*time.Millisecond
		}
		time.Sleep(time.Second) // in which the pauses of the last one grow
		before := l.asked()
		time.Sleep(time.Second)
		require.Greater(t, l.asked()-before, 15, "every 50 ms")
		slot.Release()
		(<-got).Release()
		time.Sleep(time.Minute)
	})
}

// Where only a slot is known to be free, or one that an outage lets through, one asks, and not the whole queue.
func TestWhileARateOrTheStoreIsAwayAReleaseWakesOne(t *testing.T) {
	for name, make := range map[string]func(t *testing.T) ratelimit.Limiter{
		"local slots": func(t *testing.T) ratelimit.Limiter {
			away := newRemote(t)
			away.down.Store(true)
			return ratelimit.Must(fallback.New(slots(t, away, 1), fallback.FailLocal(1)))
		},
		"a rate that fails open": func(t *testing.T) ratelimit.Limiter {
			s := ratelimit.Must(memstore.New())
			rate, _ := rates(testkit.Away{Store: s})
			return ratelimit.Must(ratelimit.NewAll(slots(t, s, 1), ratelimit.Must(fallback.New(rate, fallback.FailOpen()))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := note(make(t))
				a := hold(t, l)
				ctx, end := context.WithCancel(t.Context())
				var got []<-chan time.Time
				for range 50 {
					got = append(got, waitFor(t, ctx, l, "key"))
				}
				l.settled(300*time.Millisecond, "key")
				before, began := l.asked(), time.Now()
				a.Release()
				require.Zero(t, (<-got[0]).Sub(began))
				synctest.Wait()
				require.Equal(t, 1, l.asked()-before)
				end()
				synctest.Wait()
			})
		})
	}
}

// A queue that finds many slots does not ask for all of them at once: there may be a thousand.
func TestNotAllOfAQueueAskAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 10 * time.Millisecond
		const n = 3 * inflight.MostAsking
		l := note(slots(t, s, n))
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				slot := wait(t.Context(), t, l, "key")
				time.Sleep(500 * time.Millisecond)
				slot.Release()
			})
		}
		all.Wait()
		time.Sleep(time.Second)
		require.Equal(t, inflight.MostAsking, l.most)
		require.Equal(t, n, free(t, l))
	})
}

// keysThatWait makes each key hold its only slot, and one more caller wait for it. They also wait
// for a slot of all keys, which somebody else holds.
func keysThatWait(t *testing.T, ctx context.Context, keys ...string) (noted, *inflight.Slot) {
	both, _ := perKeyAndTotal(t, 1, len(keys)+1)
	l := note(both)
	for _, key := range keys {
		slot := holdOf(t, l, key)
		context.AfterFunc(ctx, slot.Release)
	}
	other := holdOf(t, l, "other")
	for _, key := range keys {
		waitFor(t, ctx, l, key)
	}
	l.settled(300*time.Millisecond, keys...)
	return l, other
}

// A slot that is given back is offered to each queue at most once, and to a few at most: none may be able to use it.
func TestASlotThatNobodyCanUseIsOfferedToFew(t *testing.T) {
	for _, keys := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c", "d", "e"}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			l, other := keysThatWait(t, ctx, keys...)
			before := l.asked()
			other.Release()
			synctest.Wait()
			require.Equal(t, min(len(keys), inflight.MostOffers), l.asked()-before)
			end()
			synctest.Wait()
		})
	}
}

// A waiter that could not use a slot that it was offered continues to poll for itself, at the same
// times as before.
func TestAnOfferIsPassedOnOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		l, other := keysThatWait(t, ctx, "a", "b")
		other.Release()
		synctest.Wait()
		before := l.asked()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for i, at := range l.at[before:] {
			require.NotEqual(t, l.at[before+i-1], at)
		}
		end()
		synctest.Wait()
	})
}

// A waiter that is denied a released slot, because another process was faster, does not poll
// sooner.
func TestAWaiterThatLosesASlotAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		one := slots(t, s, 1, ratelimit.WithName("one"))
		l, observed := note(one), note(one)
		other := ratelimit.Must(inflight.New(s, 1, time.Hour, ratelimit.WithName("one")))
		a := hold(t, l)
		ctx, end := context.WithCancel(t.Context())
		waitFor(t, ctx, l, "key")
		waitFor(t, ctx, observed, "key")
		l.settled(200*time.Millisecond, "key")
		observed.settled(600*time.Millisecond, "key")
		before := l.asked() + observed.asked()
		s.after = func() { // the Refund
			s.after = nil
			_, err := other.Allow(t.Context(), "key")
			require.NoError(t, err)
		}
		a.Release()
		synctest.Wait()
		require.Equal(t, 1, l.asked()+observed.asked()-before)
		end()
		synctest.Wait()
	})
}

// As many slots as are given back at once are asked for at once, whichever queues they are offered to first.
func TestMoreSlotsThanAQueueCanUseGoToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 10 * time.Millisecond
		each := ratelimit.Must(inflight.New(s, 8, time.Hour, ratelimit.WithName("each"))) // so that there are no renewals
		total := ratelimit.Must(inflight.New(s, 8, time.Hour, ratelimit.WithName("total"), ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "all", nil })))
		l := note(ratelimit.Must(ratelimit.NewAll(each, total)))
		var held []*inflight.Slot
		for range 8 {
			held = append(held, holdOf(t, l, "other"))
		}
		ctx, end := context.WithCancel(t.Context())
		keys := []string{"a", "c", "c", "c", "c", "c", "c"}
		got := make(chan time.Time)
		for _, key := range keys {
			go func() {
				slot := wait(t.Context(), t, l, key)
				got <- time.Now()
				<-ctx.Done()
				slot.Release()
			}()
			synctest.Wait()
		}
		time.Sleep(70 * time.Second) // so that they ask rarely
		l.settled(300*time.Millisecond, "a", "c")
		began := time.Now()
		for _, slot := range held {
			slot.Release()
		}
		for range keys {
			require.Equal(t, 3*s.way, (<-got).Sub(began), "two parts are given back at the same time, and then two are taken")
		}
		end()
		time.Sleep(time.Minute)
	})
}

// If a waiter leaves before its first request, when it may ask, the next one asks in its place.
func TestAWaiterThatLeavesBeforeAskingLetsTheNextAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 20 { // it leaves before or after it is offered the slot
			l := slots(t, newRemote(t).Store, 2)
			a, b := hold(t, l), hold(t, l)
			ctx, end := context.WithCancel(t.Context())
			gone, leave := context.WithCancel(t.Context())
			first := waitFor(t, ctx, l, "key")
			waitFor(t, gone, l, "key")
			third := waitFor(t, ctx, l, "key")
			a.Release()
			<-first
			synctest.Wait()
			began := time.Now()
			leave()
			b.Release()
			require.Zero(t, (<-third).Sub(began))
			end()
			synctest.Wait()
		}
	})
}

// A waiter that is admitted by a rate does not keep the next one from asking for slots of other processes as soon as any other.
func TestAfterARateSlotsAreAskedForAsSoonAsEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		rate := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerSecond(10)))
		l := note(ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 1))))
		began := time.Now()
		_, err := rate.AllowN(t.Context(), "key", 10)
		require.NoError(t, err)
		ctx, end := context.WithCancel(t.Context())
		first := waitFor(t, ctx, l, "key")
		waitFor(t, ctx, l, "key")
		require.Equal(t, time.Second, (<-first).Sub(began))
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, 3, l.asked())
		require.GreaterOrEqual(t, l.at[2].Sub(l.at[1]), 3750*time.Microsecond, "processes do not ask together")
		end()
		synctest.Wait()
	})
}

// While slots are free, a waiter goes on when the rate has room, even in a queue of long jobs, which asks seldom.
func TestAQueueOfLongJobsLearnsWhenTheRateHasRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 200 * time.Millisecond
		s := newRemote(t)
		here, there := slots(t, s, 3, ratelimit.WithName("x")), slots(t, s, 3, ratelimit.WithName("x"))
		l := ratelimit.Must(ratelimit.NewAll(here, ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 1, Period: every, Burst: 1}))))
		others := []*inflight.Slot{hold(t, there), hold(t, there)}
		job := wait(t.Context(), t, l, "key")
		ctx, end := context.WithCancel(t.Context())
		var got [3]<-chan time.Time
		for i := range got {
			got[i] = waitFor(t, ctx, l, "key")
		}
		time.Sleep(4 * time.Second)
		job.Release()
		<-got[0]
		time.Sleep(10 * time.Second) // in which the pauses grow to a second
		for _, slot := range others {
			slot.Release()
		}
		second := <-got[1]
		require.Equal(t, every, (<-got[2]).Sub(second))
		end()
		synctest.Wait()
	})
}

// While a Release fails and is repeated, nobody is woken: the slot is not free.
func TestAReleaseThatFailsWakesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := note(slots(t, s, 1))
		a := hold(t, l)
		ctx, end := context.WithCancel(t.Context())
		waitFor(t, ctx, l, "key")
		time.Sleep(time.Second) // in which the pauses grow to 50 ms
		before := l.asked()
		s.down.Store(true)
		a.Release()
		time.Sleep(2900 * time.Millisecond) // in which it is repeated after 5 ms, 15 ms, 35 ms ...
		end()
		synctest.Wait()
		for i := before + 1; i < l.asked(); i++ {
			require.Greater(t, l.at[i].Sub(l.at[i-1]), 37*time.Millisecond)
		}
		time.Sleep(time.Minute)
	})
}
