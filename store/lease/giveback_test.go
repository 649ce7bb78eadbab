package lease_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Lapsed events are refunded by a timer that runs only while something is held.
func TestLapsedEventsAreRefunded(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			mem := memory(t)
			limit := ratelimit.PerHour(360_000) // 5 a life
			d := newLease(t, newLimiter(t, algorithm, mem, limit), life)
			require.False(t, d.Armed())
			taken := len(hold(t, d, 20))
			require.True(t, d.Armed())
			plain := newLimiter(t, algorithm, mem, limit)
			if algorithm != "sliding_log" {
				require.Less(t, remaining(t, plain), 360_000-taken)
			}
			time.Sleep(2*life + 1)
			synctest.Wait()
			stats := d.Stats()
			require.Positive(t, stats.Lapsed)
			require.Equal(t, stats.Lapsed, stats.GivenBack)
			require.Equal(t, stats.Granted, stats.GivenBack+int64(taken))
			require.Zero(t, stats.Held)
			want, flown := 360_000-taken, 0
			if algorithm == "token_bucket" { // what has flown in meanwhile may have been these
				flown = 10
			}
			require.GreaterOrEqual(t, remaining(t, plain), want)
			require.LessOrEqual(t, remaining(t, plain), min(360_000, want+flown))
			time.Sleep(4 * life)
			synctest.Wait()
			require.Zero(t, d.Stats().Keys)
			require.False(t, d.Armed())
			closeLease(t, d)
		})
	})
}

// A lease that arrives after its TTL, and that nobody takes, is refunded when the next lease is
// requested. It does not wait for a sweep.
func TestLateLeasesAreRefundedImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 3*life + life/4
		s := &recorder{Store: memory(t), latency: slow}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life)
		var asking sync.WaitGroup
		ask := func(stays time.Duration) {
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), stays)
				defer cancel()
				_, err := d.Allow(ctx, "key")
				require.Equal(t, stays < time.Hour, err != nil)
			})
			synctest.Wait()
		}
		ask(time.Hour)
		for range 10 { // they leave during the call for them
			ask(slow + life)
		}
		time.Sleep(slow + 2*life)
		ask(time.Hour) // behind that call
		s.reset()
		time.Sleep(slow - 2*life + 1)
		synctest.Wait()
		require.ElementsMatch(t, []call{{"TakeUpTo", 1}, {"Refund", 10}}, s.reset())
		asking.Wait()
		s.set(0, nil)
		closeLease(t, d)
	})
}

// occupy has all workers of d refund until back is closed. It returns how s answers meanwhile.
func occupy(t *testing.T, d *onLease, s *recorder) (refunds func(op string) error, back chan struct{}) {
	back = make(chan struct{})
	refunds = func(op string) error {
		if op == "Refund" {
			<-back
		}
		return nil
	}
	s.set(0, refunds)
	for range 32 {
		hold(t, d, 1)
		time.Sleep(2 * life)
		synctest.Wait()
	}
	return refunds, back
}

// A caller that waits behind a failing call is asked for immediately, even while a call ahead waits
// for a worker, because all workers are refunding.
func TestWaitersAreServedWithoutAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life)
		refunds, back := occupy(t, d, s)
		hold(t, d, 8)
		for d.Stats().Held > 0 { // the next lease is to be fetched ahead
			allow(t, d)
		}
		s.set(trip, func(op string) error {
			s.set(trip, refunds)
			return errors.New("lost")
		})
		var asking sync.WaitGroup
		for i := range 2 {
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*trip)
				defer cancel()
				_, err := d.Allow(ctx, "key")
				require.Equal(t, i == 0, err != nil, err)
			})
			synctest.Wait()
		}
		asking.Wait()
		s.set(0, nil)
		s.reset()
		close(back)
		synctest.Wait()
		require.Empty(t, asked(s.reset(), "TakeUpTo"), "the lease has come without a worker")
		closeLease(t, d)
	})
}

// Leases in flight while the store is closed are refunded too.
func TestCloseGivesBackWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Second)
		taken := len(hold(t, d, 20))
		s.set(trip, nil)
		for s.reset(); len(s.reset()) == 0; synctest.Wait() { // until another one is asked for
			require.Equal(t, ratelimit.SourceLease, allow(t, d).Source())
			taken++
		}
		closeLease(t, d)
		s.set(0, nil)
		require.Equal(t, d.Stats().Granted, d.Stats().GivenBack+int64(taken))
		require.Equal(t, 1_000_000-taken, remaining(t, d))
	})
}

// Nobody gets the errors of refunds in the background. The events stay charged.
func TestFailedRefundsStayCharged(t *testing.T) {
	for _, fail := range []func(string) error{
		func(string) error { return errors.New("lost") },
		func(string) error { panic("broken") },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t)}
			d := newLease(t, newLimiter(t, "token_bucket", s, window), life)
			hold(t, d, 8)
			s.set(0, fail)
			time.Sleep(2 * life)
			synctest.Wait()
			require.Positive(t, d.Stats().Lapsed)
			require.Zero(t, d.Stats().GivenBack)
			s.set(0, nil)
			hold(t, d, 8)
			s.set(0, fail)
			require.Error(t, d.Close(t.Context()))
			require.NoError(t, d.Close(t.Context()), "again")
		})
	}
}

// If the store takes back less than lapses, some calls are under way at once, and as many as keys may be held wait
// for these. The rest stays charged.
func TestRefundsBeyondTheBoundStayCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 4
		s := &recorder{Store: memory(t, stopped)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life, lease.WithMaxKeys(keys))
		refunds, back := 0, make(chan struct{})
		s.set(0, func(op string) error {
			if op == "Refund" {
				s.mu.Lock()
				refunds++
				s.mu.Unlock()
				<-back
			}
			return nil
		})
		taken := 0
		for range 60 {
			taken += len(hold(t, d, 1))
			time.Sleep(2 * life)
			synctest.Wait()
		}
		require.Positive(t, refunds)
		require.LessOrEqual(t, refunds, 32)
		close(back)
		synctest.Wait()
		require.LessOrEqual(t, refunds, 32+keys)
		closeLease(t, d)
		stats := d.Stats()
		require.EqualValues(t, stats.Granted, int64(taken)+stats.Lapsed)
		require.Less(t, stats.GivenBack, stats.Lapsed)
		require.EqualValues(t, 1_000_000-stats.Granted+stats.GivenBack, remaining(t, d))
	})
}

// Close does what is left to do, also the last of it, while others end what they are at.
func TestCloseLeavesNothingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, lapses = 32, 2*32 + 1
		s := &recorder{Store: memory(t, stopped)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life)
		refunds, ended := 0, [2]chan struct{}{make(chan struct{}), make(chan struct{})}
		s.set(0, func(op string) error {
			if op == "Refund" {
				s.mu.Lock()
				i := min(refunds/workers, 1)
				refunds++
				s.mu.Unlock()
				<-ended[i]
			}
			return nil
		})
		taken := 0
		for range lapses {
			taken += len(hold(t, d, 1))
			time.Sleep(2 * life)
			synctest.Wait()
		}
		require.Equal(t, workers, refunds)
		var closing sync.WaitGroup
		closing.Go(func() { closeLease(t, d) })
		synctest.Wait()
		require.Equal(t, 2*workers, refunds)
		close(ended[0])
		synctest.Wait()
		require.Equal(t, 2*workers, refunds, "the last is left to Close, whose context it has")
		close(ended[1])
		closing.Wait()
		require.Equal(t, lapses, refunds)
		require.Equal(t, 1_000_000-taken, remaining(t, d))
	})
}

// Another Close does not return before the first one has given everything back, or before its own context has ended.
func TestEachCloseWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life)
		taken := len(hold(t, d, 10))
		s.set(trip, nil)
		began := time.Now()
		var closing sync.WaitGroup
		for range 3 {
			closing.Go(func() {
				require.NoError(t, d.Close(t.Context()))
				require.Equal(t, trip, time.Since(began))
				require.Equal(t, d.Stats().Lapsed, d.Stats().GivenBack)
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), trip/2)
		defer cancel()
		require.ErrorIs(t, d.Close(ctx), context.DeadlineExceeded)
		require.Equal(t, trip/2, time.Since(began))
		closing.Wait()
		s.set(0, nil)
		require.Equal(t, 1_000_000-taken, remaining(t, d))
	})
}

func TestCloseReturnsTheErrorThatCameFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 8
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Minute)
		for key := range keys {
			for range 3 { // for the last one, two are fetched
				_, err := d.Allow(t.Context(), string(rune('a'+key)))
				require.NoError(t, err)
			}
		}
		require.Equal(t, keys, d.Stats().Held)
		first, last := errors.New("first"), errors.New("last")
		var refunds atomic.Int64
		s.set(0, func(string) error {
			n := refunds.Add(1)
			time.Sleep(time.Duration(keys-n) * time.Second)
			if n == keys {
				return first
			}
			return last
		})
		require.Equal(t, first, d.Close(t.Context()))
	})
}

// This is what the docs say about a process that ends without Close, that is idle for a while, or
// that closes.
func TestAProcessThatEndsWithoutCloseLosesWhatItHolds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(ctx context.Context, leases *lease.Store)
		left int
	}{
		"at once":         {func(context.Context, *lease.Store) {}, 488},
		"after a rest":    {func(context.Context, *lease.Store) { time.Sleep(time.Second) }, 700},
		"after its Close": {func(ctx context.Context, leases *lease.Store) { _ = leases.Close(ctx) }, 700},
	} {
		synctest.Test(t, func(t *testing.T) {
			mem := ratelimit.Must(memstore.New())
			leases := ratelimit.Must(lease.New(mem, 50*time.Millisecond))
			plain := ratelimit.Must(ratelimit.NewFixedWindow(mem, ratelimit.PerHour(1000), ratelimit.WithName("k")))
			l := ratelimit.Must(ratelimit.NewFixedWindow(leases, ratelimit.PerHour(1000), ratelimit.WithName("k")))
			for range 300 {
				r, err := l.Allow(t.Context(), "a")
				require.NoError(t, err)
				require.True(t, r.Allowed)
				synctest.Wait() // what is fetched ahead has come
			}
			c.end(t.Context(), leases)
			r, err := plain.Peek(t.Context(), "a") // as another process sees it
			require.NoError(t, err)
			require.Equal(t, c.left, r.Remaining, name)
			require.NoError(t, leases.Close(t.Context()))
		})
	}
}

// Close waits for calls in progress, refunds everything, and leaves neither a timer nor a
// goroutine. Callers that wait are answered by the store.
func TestCloseGivesBackAllAndLeavesNoGoroutine(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			mem := memory(t, stopped)
			s := &recorder{Store: mem}
			d := newLease(t, newLimiter(t, algorithm, s, ratelimit.PerHour(100_000)), life)
			taken := len(hold(t, d, 40))
			s.set(trip, nil)
			var asking sync.WaitGroup
			for range 200 {
				asking.Go(func() { require.True(t, allow(t, d).Allowed) })
			}
			time.Sleep(trip / 2)
			began := time.Now()
			closeLease(t, d)
			require.LessOrEqual(t, time.Since(began), 3*trip)
			asking.Wait()
			require.True(t, allow(t, d).Allowed)
			taken += 201
			require.Zero(t, d.Stats().Keys)
			require.Equal(t, 100_000-taken, remaining(t, newLimiter(t, algorithm, mem, ratelimit.PerHour(100_000))))
			require.NoError(t, d.Close(t.Context()))
		})
	})
}
