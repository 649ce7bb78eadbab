package inflight_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
)

// crowd is workers of several processes, as far as limiters can see, which wait for the same slots, work, and
// come again.
type crowd struct {
	workers  []int // of each process
	slots    int
	work     time.Duration // on average
	rate     int           // of an All with the slots, in events per second; 0 for slots alone
	patience time.Duration // of Hold; 0 for Wait
	pause    time.Duration // of a worker between two jobs
}

// run has c work for d. It returns how many jobs each process has done, what part of the slots' time was used, and
// how many calls of the store a job has cost.
func (c crowd) run(t *testing.T, d time.Duration) (jobs []int, used, calls float64) {
	t.Helper()
	s := newRemote(t)
	s.way = 500 * time.Microsecond
	jobs = make([]int, len(c.workers))
	ctx, end := context.WithTimeout(t.Context(), d)
	defer end()
	var opts []inflight.Option
	if c.patience > 0 {
		opts = append(opts, inflight.WaitUpTo(c.patience))
	}
	var worked time.Duration
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, n := range c.workers {
		var l ratelimit.Limiter = ratelimit.Must(inflight.New(s, c.slots, time.Minute, ratelimit.WithName("slots")))
		if c.rate > 0 {
			rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerSecond(c.rate), ratelimit.WithName("rate")))
			l = ratelimit.Must(ratelimit.NewAll(rate, l))
		}
		hold := inflight.Wait
		if c.patience > 0 {
			hold = inflight.Hold
		}
		for range n {
			all.Go(func() {
				for ctx.Err() == nil {
					slot, _, _ := hold(ctx, l, "key", 1, opts...)
					if slot == nil {
						continue
					}
					work := c.work/2 + rand.N(c.work)
					mu.Lock()
					jobs[i]++
					worked += work
					mu.Unlock()
					time.Sleep(work)
					slot.Release()
					time.Sleep(c.pause)
				}
			})
		}
	}
	all.Wait()
	n := 0
	for _, done := range jobs {
		n += done
	}
	calls = float64(s.called.Load()) / float64(n)
	time.Sleep(time.Minute) // until all is forgotten
	require.Zero(t, inflight.Queues())
	return jobs, worked.Seconds() / d.Seconds() / float64(c.slots), calls
}

// Waiters in several processes get even shares of the slots, and few slots are unused, whether or
// not there are more workers than slots in each process, and whether or not rates are decided with
// the slots.
func TestProcessesGetEvenShares(t *testing.T) {
	effort.OthersRace(t)
	const ms = time.Millisecond
	cases := []struct {
		crowd
		used, calls float64 // of the slots' time, at least, and of the store for a job, at most
	}{
		{crowd{workers: []int{8, 8}, slots: 3, work: 120 * ms}, 0.88, 4},
		{crowd{workers: []int{8, 8, 8, 8}, slots: 3, work: 120 * ms}, 0.88, 6},
		{crowd{workers: []int{8, 8}, slots: 3, work: 20 * ms}, 0.85, 3},
		{crowd{workers: []int{8, 8, 8, 8}, slots: 3, work: 20 * ms}, 0.85, 3},
		{crowd{workers: []int{8, 8, 8, 8}, slots: 3, work: time.Second}, 0.88, 10},
		{crowd{workers: []int{3, 3, 3, 3}, slots: 3, work: 120 * ms}, 0.88, 6},
		{crowd{workers: []int{1, 1}, slots: 1, work: 50 * ms}, 0.85, 5},
		{crowd{workers: []int{1, 1}, slots: 1, work: 50 * ms, pause: 1}, 0.85, 5}, // so that its Release comes first
		{crowd{workers: []int{8, 8}, slots: 3, work: 120 * ms, rate: 1000}, 0.88, 9},
		{crowd{workers: []int{8, 8, 8, 8}, slots: 3, work: 20 * ms, rate: 1000}, 0.82, 6},
		{crowd{workers: []int{8, 8}, slots: 3, work: 120 * ms, rate: 20}, 0.7, 10},
		{crowd{workers: []int{30, 60}, slots: 40, work: 50 * ms, patience: time.Second}, 0.88, 3},
	}
	for _, c := range cases[:effort.Of(5, len(cases))] {
		t.Run(fmt.Sprint(c.crowd), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := 2 * time.Minute
				if c.work == time.Second {
					d *= 4
				}
				jobs, used, calls := c.run(t, d)
				t.Logf("%v jobs, %.2f used, %.1f calls a job", jobs, used, calls)
				most := 2
				if c.slots == 1 { // which one process has at a time, for seconds now and then
					most = 10
				}
				require.LessOrEqual(t, slices.Max(jobs), most*slices.Min(jobs), "%v", jobs)
				require.GreaterOrEqual(t, used, c.used)
				require.LessOrEqual(t, calls, c.calls)
			})
		})
	}
}

// While two processes take slots from each other, neither is without one for longer than a short turn of the other.
func TestTheTurnOfAProcessIsShortWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 500 * time.Microsecond
		began := time.Now()
		ctx, end := context.WithTimeout(t.Context(), 30*time.Second)
		defer end()
		var without [2]time.Duration // the longest, of each process
		var workers sync.WaitGroup
		for i := range without {
			l, last := slots(t, s, 1, ratelimit.WithName("one")), began
			for range 2 { // which have the slot in turn
				workers.Go(func() {
					for ctx.Err() == nil {
						slot, _, _ := inflight.Wait(ctx, l, "key", 1)
						if slot == nil {
							continue
						}
						if now := time.Now(); now.Sub(began) > 10*time.Second { // until then they find each other
							without[i] = max(without[i], now.Sub(last))
						}
						time.Sleep(50 * time.Millisecond)
						last = time.Now()
						slot.Release()
					}
				})
			}
		}
		workers.Wait()
		time.Sleep(time.Minute)
		require.Less(t, slices.Max(without[:]), 2*time.Second, "some 12 jobs of 50 ms, and not 64: %v", without)
	})
}

// Where all who wait are in one process, what it leaves to others costs little.
func TestAProcessThatIsAloneKeepsItsSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []crowd{
			{workers: []int{1}, slots: 1, work: 50 * time.Millisecond},
			{workers: []int{8}, slots: 1, work: 50 * time.Millisecond},
			{workers: []int{8}, slots: 3, work: 120 * time.Millisecond},
		} {
			jobs, used, calls := c.run(t, 10*time.Minute)
			t.Logf("%+v: %v jobs, %.3f used, %.1f calls a job", c, jobs, used, calls)
			require.GreaterOrEqual(t, used, 0.95)
		}
	})
}

// A process that comes later, and finds all slots taken by another whose workers do not even wait in a queue,
// gets one in time.
func TestAProcessThatComesLaterGetsASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 500 * time.Microsecond
		ctx, end := context.WithCancel(t.Context())
		first, second := slots(t, s, 3, ratelimit.WithName("x")), slots(t, s, 3, ratelimit.WithName("x"))
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for ctx.Err() == nil {
					slot, _, _ := inflight.Hold(ctx, first, "key", 1, inflight.WaitUpTo(time.Minute))
					time.Sleep(48500 * time.Microsecond)
					slot.Release()
					time.Sleep(time.Millisecond) // so that none waits: with the calls it is 50 ms, and the slots are free at other times than they are asked for
				}
			})
		}
		time.Sleep(time.Minute + 25*time.Millisecond)
		began := time.Now()
		var slot *inflight.Slot
		for slot == nil && time.Since(began) < 30*time.Second { // a second on average
			time.Sleep(49500 * time.Microsecond) // as a queue of another process does, of which nothing is known here
			slot, _, _ = inflight.Hold(t.Context(), second, "key", 1)
		}
		end()
		require.NotNil(t, slot)
		all.Wait()
		slot.Release()
		time.Sleep(time.Minute)
	})
}

// A waiter with little time does not lose it because a slot is left to other processes that do not
// exist.
func TestAWaiterWithLittleTimeGetsALeftSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 1)
		for i := range 1000 {
			slot, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(20*time.Millisecond))
			require.NoError(t, err)
			require.True(t, r.Allowed)
			time.Sleep(100 * time.Millisecond)
			if slot.Release(); i%2 == 0 {
				synctest.Wait() // and otherwise the next one may come before the store has the slot
			}
		}
		synctest.Wait()
	})
}

// A slot that is left to others is asked for after that, even if the store has not answered its Release.
func TestASlotThatIsLeftIsAskedForEvenIfItsReleaseTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		var slow atomic.Bool
		s.after = func() {
			if slow.Load() {
				time.Sleep(time.Hour)
			}
		}
		l, got := slots(t, s, 1), make(chan *inflight.Slot)
		for range 3 {
			go func() { got <- wait(t.Context(), t, l, "key") }()
		}
		for i := range 2 {
			slot := <-got
			time.Sleep(10 * time.Second)
			slow.Store(i == 1) // after two long jobs, it is the turn of others
			slot.Release()
		}
		began := time.Now()
		slot := <-got
		took := time.Since(began)
		slot.Release()
		time.Sleep(2 * time.Hour)
		require.Greater(t, took, time.Second/2, "it was left to others")
		require.Less(t, took, 3*time.Second)
	})
}

// aTurn has callers of l do two long jobs, after which their slot is left to others for a second. Another caller waits for it.
func aTurn(t *testing.T, ctx context.Context, l ratelimit.Limiter) (got <-chan time.Time) {
	first, second := wait(t.Context(), t, l, "key"), make(chan *inflight.Slot)
	go func() { second <- wait(t.Context(), t, l, "key") }()
	synctest.Wait()
	got = waitFor(t, ctx, l, "key")
	time.Sleep(10 * time.Second)
	first.Release()
	slot := <-second
	time.Sleep(10 * time.Second)
	slot.Release()
	synctest.Wait()
	require.Empty(t, got)
	return got
}

// A slot stays left to others if all who waited for it leave, and one more comes.
func TestASlotIsLeftToOthersThoughAllWhoWaitLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 1)
		ctx, leave := context.WithCancel(t.Context())
		aTurn(t, ctx, l)
		leave()
		synctest.Wait()
		began := time.Now()
		slot := wait(t.Context(), t, l, "key")
		require.InDelta(t, time.Second, time.Since(began), float64(time.Second/2))
		slot.Release()
		time.Sleep(time.Minute)
	})
}

// A Release of another limit's slot, which is not left, does not let those who wait here take what is.
func TestASlotIsLeftToOthersBesideOneThatIsNot(t *testing.T) {
	for name, here := range map[string]bool{"beside slots in memory": true, "beside free slots": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRemote(t)
				beside := slots(t, s, 100, ratelimit.WithName("beside"))
				if here {
					beside = slots(t, s.Store, 1, ratelimit.WithName("beside"))
				}
				l, got := ratelimit.Must(ratelimit.NewAll(slots(t, s, 1), beside)), make(chan *inflight.Slot)
				for range 3 {
					go func() { got <- wait(t.Context(), t, l, "key") }()
				}
				for range 2 {
					slot := <-got
					time.Sleep(10 * time.Second)
					slot.Release()
				}
				began := time.Now()
				slot := <-got
				took := time.Since(began)
				slot.Release()
				time.Sleep(time.Minute)
				require.InDelta(t, time.Second, took, float64(time.Second/2))
			})
		})
	}
}

// Where another process has taken a slot that was left to it, newcomers ask as seldom as those before them, until that is
// forgotten. A store that is away has not taken it.
func TestNewcomersAskSeldomBesideAnotherProcess(t *testing.T) {
	inflight.ForgetShares()
	for name, away := range map[string]bool{"taken": false, "away": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRemote(t)
				l, there := note(slots(t, s, 1, ratelimit.WithName("x"))), slots(t, s, 1, ratelimit.WithName("x"))
				ctx, leave := context.WithCancel(t.Context())
				aTurn(t, ctx, l)
				var other *inflight.Slot
				if s.down.Store(away); !away {
					other = hold(t, there)
				}
				time.Sleep(3 * time.Second)
				leave()
				synctest.Wait()
				if s.down.Store(false); away {
					other = hold(t, there)
				}
				ctx, leave = context.WithCancel(t.Context())
				before := l.asked()
				waitFor(t, ctx, l, "key")
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.Equal(t, away, l.at[before+1].Sub(l.at[before]) < 750*time.Millisecond)
				leave()
				other.Release()
				time.Sleep(time.Minute)
				require.Zero(t, inflight.Shares())
			})
		})
	}
}

// While a slot is left to others, and after that, each queue finds slots that other processes release.
func TestEachQueueAsksAgainAfterASlotWasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, there := slots(t, s, 2, ratelimit.WithName("x")), slots(t, s, 2, ratelimit.WithName("x"))
		other := hold(t, there)
		ctx, end := context.WithCancel(t.Context())
		third := aTurn(t, ctx, l)
		fourth := waitFor(t, ctx, note(l), "key") // in another queue
		<-third
		time.Sleep(5 * time.Second)
		other.Release()
		select {
		case <-fourth:
		case <-time.After(2 * time.Second):
			t.Error("the slot is not found")
		}
		end()
		time.Sleep(time.Minute)
	})
}

// While a slot is left to others, who gets another one does not let the next one here ask for it.
func TestASlotThatIsLeftIsNotTakenBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, got := slots(t, newRemote(t), 2), make(chan *inflight.Slot)
		first, second := wait(t.Context(), t, l, "key"), wait(t.Context(), t, l, "key")
		for range 3 {
			go func() { got <- wait(t.Context(), t, l, "key") }()
		}
		time.Sleep(10 * time.Second)
		first.Release()
		third := <-got
		second.Release() // this one is left
		time.Sleep(200 * time.Millisecond)
		began := time.Now()
		third.Release()
		fourth := <-got
		require.Zero(t, time.Since(began))
		fifth := <-got
		require.Greater(t, time.Since(began), 500*time.Millisecond)
		fourth.Release()
		fifth.Release()
		time.Sleep(time.Minute)
	})
}

// While nobody takes what a process leaves to others, it leaves it ever more rarely.
func TestASlotThatNobodyElseWantsIsLeftMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, got := slots(t, newRemote(t), 1), make(chan *inflight.Slot)
		const jobs = 25
		for range jobs {
			go func() { got <- wait(t.Context(), t, l, "key") }()
		}
		var left []int
		for job := range jobs {
			began := time.Now()
			slot := <-got
			if time.Since(began) > 0 {
				left = append(left, job)
			}
			time.Sleep(10 * time.Second) // counted as 8 s
			slot.Release()
		}
		time.Sleep(time.Minute)
		require.Equal(t, []int{2, 4, 8, 13, 20}, left, "after 12 s, and then 18, 27, 40 and 60")
	})
}

// While slots are free nobody waits: others can have those.
func TestFreeSlotsAreNotLeftToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 2)
		for range 1000 {
			began := time.Now()
			slot := wait(t.Context(), t, l, "key")
			require.Zero(t, time.Since(began))
			time.Sleep(50 * time.Millisecond)
			slot.Release()
			synctest.Wait() // or else the next one may come first, and find none free
		}
	})
}

// While slots are free and only a rate is used up, none is left to others: each waiter goes on when the rate has room.
func TestFreeSlotsBesideARateAreNotLeftToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 10 * time.Second
		s := newRemote(t)
		rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 1, Period: every}))
		l, began := ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 5))), time.Now()
		got := make(chan *inflight.Slot)
		for range 5 {
			go func() { got <- wait(t.Context(), t, l, "key") }()
		}
		var started []time.Duration
		for range 5 {
			slot := <-got
			started = append(started, time.Since(began))
			time.Sleep(every - time.Second/2)
			slot.Release()
		}
		synctest.Wait()
		require.Equal(t, []time.Duration{0, every, 2 * every, 3 * every, 4 * every}, started)
	})
}

// Slots in memory belong to one process, so waiters do not poll more often, and no slot is left to
// others.
func TestSlotsInMemoryAreNotPolledFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := note(slots(t, newRemote(t).Store, 1))
		for range 1000 {
			slot := wait(t.Context(), t, l, "key")
			time.Sleep(50 * time.Millisecond)
			began := time.Now()
			slot.Release()
			wait(t.Context(), t, l, "key").Release()
			require.Zero(t, time.Since(began))
		}
		slot, before := wait(t.Context(), t, l, "key"), l.asked()
		time.AfterFunc(10*time.Second, slot.Release)
		wait(t.Context(), t, l, "key").Release()
		require.Less(t, l.asked()-before, 30) // once a second, in the end
	})
}

// Of several limits, only that without a free slot is left to others: slots in memory are not, and other keys find the slots
// of all keys free.
func TestFreeSlotsBesideOthersAreNotLeftToOthers(t *testing.T) {
	of := func(t *testing.T, s, each store.Store) ratelimit.Limiter {
		total := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "all", nil })
		return ratelimit.Must(ratelimit.NewAll(slots(t, each, 1), slots(t, s, 100, ratelimit.WithName("total"), total)))
	}
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		for _, c := range []struct {
			l    ratelimit.Limiter
			next string // who waits after a Release of "key"
		}{{of(t, s, s.Store), "key"}, {of(t, s, s), "another"}} {
			for range 1000 {
				slot := wait(t.Context(), t, c.l, "key")
				time.Sleep(50 * time.Millisecond)
				slot.Release()
				synctest.Wait()
				began := time.Now()
				wait(t.Context(), t, c.l, c.next).Release()
				require.Zero(t, time.Since(began), c.next)
				synctest.Wait()
			}
		}
	})
}

// Of several limits, only what was held of that without a free slot is a turn.
func TestWhatIsHeldOfFreeSlotsIsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		total := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "all", nil })
		l := ratelimit.Must(ratelimit.NewAll(slots(t, s, 1), slots(t, s, 100, ratelimit.WithName("total"), total)))
		ctx, end := context.WithCancel(t.Context())
		var held []*inflight.Slot
		var got []<-chan time.Time
		for i := range 20 {
			held = append(held, wait(t.Context(), t, l, fmt.Sprint(i)))
			got = append(got, waitFor(t, ctx, l, fmt.Sprint(i)))
		}
		time.Sleep(10 * time.Second)
		began := time.Now()
		for _, slot := range held {
			slot.Release()
		}
		for _, got := range got {
			require.Zero(t, (<-got).Sub(began))
		}
		end()
		time.Sleep(time.Minute)
	})
}

// While others wait for another key, a slot for which nobody waits is seldom left to others.
func TestASlotForWhichNobodyWaitsIsSeldomLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 1)
		another := holdOf(t, l, "another")
		ctx, end := context.WithCancel(t.Context())
		waitFor(t, ctx, l, "another")
		left := 0
		for range 100 {
			slot := wait(t.Context(), t, l, "key")
			time.Sleep(50 * time.Millisecond)
			slot.Release()
			synctest.Wait()
			began := time.Now()
			wait(t.Context(), t, l, "key").Release()
			synctest.Wait()
			if time.Since(began) > 0 {
				left++
			}
		}
		require.Less(t, left, 50, "one of 64 is")
		another.Release()
		end()
		time.Sleep(time.Minute)
	})
}

// Waiters leave at any time, the last of a queue too, while slots are released and left to others.
func TestWaitersMayLeaveAtAnyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = time.Millisecond
		some := func(most int) time.Duration { return time.Duration(1+rand.IntN(most)) * time.Millisecond } // often the same
		var all sync.WaitGroup
		for range 3 {
			one := slots(t, s, 2, ratelimit.WithName("x"))
			queues := []ratelimit.Limiter{one, note(one), note(one)} // three, for the same slots
			for i := range 6 {
				all.Go(func() {
					l := queues[i%3]
					for range 3000 {
						ctx, cancel := context.WithTimeout(t.Context(), some(20))
						if slot, _, err := inflight.Wait(ctx, l, "key", 1); err == nil {
							time.Sleep(some(50))
							slot.Release()
						}
						cancel()
						time.Sleep(some(100))
					}
				})
			}
		}
		all.Wait()
		time.Sleep(time.Minute)
		require.Zero(t, inflight.Queues())
		require.Equal(t, 2, free(t, slots(t, s, 2, ratelimit.WithName("x"))))
	})
}

// The same as above, of real processes on a real Redis. On the machine that runs this everything may take ten times
// as long, but a process that starves gets nothing at all.
func TestRealProcessesGetShares(t *testing.T) {
	t.Parallel()
	effort.NeedFull(t)
	server := redistest.Start(t)
	var processes [4]*process
	for i := range processes {
		processes[i] = start(t, server.Addr(), 10*time.Second, workerWaits+"=1")
	}
	for _, p := range processes {
		require.Eventually(t, func() bool { return p.ready.Load() }, time.Minute, 10*time.Millisecond)
	}
	before := [len(processes)]int64{}
	for i, p := range processes {
		before[i] = p.kept.Load()
	}
	var jobs []int64
	enough := func() bool { // as long as it takes to see shares
		jobs = nil
		total := int64(0)
		for i, p := range processes {
			jobs = append(jobs, p.kept.Load()-before[i])
			total += jobs[i]
		}
		return total >= 2000
	}
	require.Eventually(t, enough, time.Minute, 10*time.Millisecond)
	t.Log(jobs)
	require.LessOrEqual(t, slices.Max(jobs), 10*slices.Min(jobs), "%v", jobs)
}
