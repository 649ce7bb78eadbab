package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/lease"
)

// lending are the algorithms that have an overdraft.
var lending = []string{"fixed_window", "sliding_log", "token_bucket"}

func eachLending(t *testing.T, test func(t *testing.T, algorithm string)) {
	for _, algorithm := range lending {
		t.Run(algorithm, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { test(t, algorithm) }) })
	}
}

// With overdraft nobody waits for the store, unless as much is owed already.
func TestOverdraftDoesNotWait(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		s := &recorder{Store: memory(t, stopped), latency: trip}
		d := newLease(t, newLimiter(t, algorithm, s, perSecond), life, lease.WithOverdraft(8))
		began := time.Now()
		for range 8 {
			r := allow(t, d)
			require.True(t, r.Allowed)
			require.Equal(t, ratelimit.SourceLease, r.Source())
		}
		require.Zero(t, time.Since(began))
		require.EqualValues(t, 8, d.Stats().Overdrawn)
		require.True(t, allow(t, d).Allowed)
		require.Equal(t, trip, time.Since(began), "the call for the first ones was under way")
		closeLease(t, d)
		require.Equal(t, d.Unwrap().(interface{ Limit() ratelimit.Limit }).Limit().Rate-9, remaining(t, newLimiter(t, algorithm, s, perSecond)))
	})
}

// What is owed is charged by the next sweep, and by Close.
func TestWhatIsOwedIsCharged(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		s := &recorder{Store: memory(t, stopped)}
		plain := newLimiter(t, algorithm, s, perSecond)
		d := newLease(t, newLimiter(t, algorithm, s, perSecond), life, lease.WithOverdraft(100))
		allow(t, d)
		require.Equal(t, 1000, remaining(t, plain))
		time.Sleep(life + 1)
		synctest.Wait()
		require.Less(t, remaining(t, plain), 1000)
		time.Sleep(2 * life)
		synctest.Wait()
		require.Equal(t, 999, remaining(t, plain), "what came with it has lapsed")
		allow(t, d)
		allow(t, d)
		closeLease(t, d)
		require.Equal(t, 997, remaining(t, plain))
	})
}

// What was charged past the limit is not owed any more. The denial that comes with it is one after that.
func TestWhatIsOverdrawnIsChargedOnce(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		for _, overdraft := range []int{1, 2, 4} {
			lent := (overdraft + 1) / 2
			s := &recorder{Store: memory(t, stopped)}
			d := newLease(t, newLimiter(t, algorithm, s, slow), 2*life, lease.WithOverdraft(overdraft))
			require.True(t, allowN(t, d, remaining(t, d)).Allowed)
			for range lent {
				r := allow(t, d)
				require.True(t, r.Allowed)
				require.Zero(t, r.Remaining)
			}
			synctest.Wait()
			require.Equal(t, []int{lent}, asked(s.reset(), "Overdraw"))
			says, err := d.Peek(t.Context(), "key")
			require.NoError(t, err)
			r := allow(t, d)
			require.False(t, r.Allowed)
			require.Equal(t, max(says.RetryAfter, life), r.RetryAfter, "half of a lease, or later")
			closeLease(t, d)
			require.Empty(t, asked(s.reset(), "Overdraw"))
		}
	})
}

// Who is lent an event is told what is left as far as is known, less what is owed. The key is not as if new.
func TestWhatIsLeftBesideWhatIsLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t, stopped), latency: trip}
		d := newLease(t, newLimiter(t, "fixed_window", s, perSecond), 100*trip, lease.WithOverdraft(16))
		lent := 0
		for n := range 200 {
			before := d.Stats().Overdrawn
			r := allow(t, d)
			if n > 20 && d.Stats().Overdrawn > before {
				lent++
				require.Equal(t, 1000-1-n, r.Remaining)
			}
			require.Positive(t, r.ResetAfter)
		}
		require.Greater(t, lent, 5)
		s.set(0, nil)
		closeLease(t, d)
	})
}

// One event that is owed is charged by Close.
func TestCloseChargesOneEvent(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		mem := memory(t, stopped)
		d := newLease(t, newLimiter(t, algorithm, mem, perSecond), life, lease.WithOverdraft(100))
		allow(t, d)
		closeLease(t, d)
		require.Equal(t, 999, remaining(t, newLimiter(t, algorithm, mem, perSecond)))
	})
}

// Each process may admit its overdraft beyond the limit, and no more.
func TestOverdraftOfManyProcesses(t *testing.T) {
	for _, algorithm := range lending {
		t.Run(algorithm, func(t *testing.T) {
			const limit, processes, overdraft = 1_000, 4, 8
			mem := memory(t, stopped)
			var leases []*onLease
			for range processes {
				leases = append(leases, newLease(t, newLimiter(t, algorithm, mem, ratelimit.PerHour(limit)), 20*time.Second, lease.WithOverdraft(overdraft)))
			}
			var admitted atomic.Int64
			var asking sync.WaitGroup
			for i := range 16 * processes {
				asking.Go(func() {
					for range 100 {
						r, err := leases[i%processes].Allow(context.Background(), "key")
						if err != nil {
							t.Error(err)
						}
						if r.Allowed {
							admitted.Add(1)
						}
					}
				})
			}
			asking.Wait()
			for _, d := range leases {
				closeLease(t, d)
			}
			t.Logf("%d admitted", admitted.Load())
			require.LessOrEqual(t, admitted.Load(), int64(limit+processes*overdraft))
			require.Greater(t, admitted.Load(), int64(limit/2))
			left := remaining(t, newLimiter(t, algorithm, mem, ratelimit.PerHour(limit)))
			require.Equal(t, max(0, limit-int(admitted.Load())), left)
		})
	}
}

// Once the store is full nothing is lent until what was overdrawn has left, also if limits take
// turns.
func TestNothingIsLentWhileTheStoreIsFull(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		s := &recorder{Store: memory(t, stopped)}
		limits := []ratelimit.Limit{ratelimit.PerSecond(1000), ratelimit.PerSecond(900)}
		turn := 0
		l := newLimiter(t, algorithm, s, limits[0], ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			turn++
			return limits[turn%len(limits)], nil
		}))
		d := newLease(t, l, life, lease.WithOverdraft(8))
		admitted := 0
		for range 10_000 {
			if allow(t, d).Allowed {
				admitted++
			}
			synctest.Wait()
		}
		require.LessOrEqual(t, admitted, 1008)
		closeLease(t, d)
	})
}

// Once the store has room again it is lent as before.
func TestWhatHasRoomAgainIsLent(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		s := &recorder{Store: memory(t, stopped)}
		plain := newLimiter(t, algorithm, s, perSecond)
		d := newLease(t, newLimiter(t, algorithm, s, perSecond), life, lease.WithOverdraft(4))
		require.True(t, allowN(t, d, remaining(t, d)).Allowed)
		for allow(t, d).Allowed {
			synctest.Wait()
		}
		require.NoError(t, plain.Reset(t.Context(), "key"))
		time.Sleep(life)
		require.True(t, allow(t, d).Allowed) // of a window or a log by the store
		before := d.Stats().Overdrawn
		for range 10 {
			require.Equal(t, ratelimit.SourceLease, allow(t, d).Source())
			synctest.Wait()
		}
		require.Greater(t, d.Stats().Overdrawn, before)
		closeLease(t, d)
	})
}

// What was paid is not charged again after a later call of the same fetch has failed, and what
// was granted is held.
func TestFlightsThatFailHalfway(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		s := &recorder{Store: memory(t, stopped)}
		plain := newLimiter(t, algorithm, s, perSecond)
		d := newLease(t, newLimiter(t, algorithm, s, perSecond), life, lease.WithOverdraft(8))
		most := remaining(t, newLease(t, newLimiter(t, algorithm, s, perSecond), life)) // that d asks for
		require.True(t, allowN(t, d, most-2).Allowed)
		s.set(0, func(op string) error {
			if op == "Overdraw" || op == "Peek" {
				return errOdd
			}
			return nil
		})
		for range 4 { // at the fourth one the store is asked: two fit
			require.True(t, allow(t, d).Allowed)
		}
		synctest.Wait()
		require.Positive(t, d.Stats().Lost)
		s.set(0, nil)
		closeLease(t, d)
		require.Equal(t, max(0, 1000-(most-2)-4), remaining(t, plain), "and two are beyond")
	})
}

// A key that is full for long is kept only where that bounds the overdraft.
func TestKeysThatAreFullForLong(t *testing.T) {
	for _, overdraft := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			var opts []lease.Option
			if overdraft > 0 {
				opts = append(opts, lease.WithOverdraft(overdraft))
			}
			d := newLease(t, newLimiter(t, "fixed_window", memory(t), ratelimit.PerDay(100_000)), time.Second, opts...)
			require.True(t, allowN(t, d, 100_000).Allowed)
			for allow(t, d).Allowed {
				synctest.Wait()
			}
			time.Sleep(time.Minute)
			require.Equal(t, overdraft, d.Stats().Keys)
			closeLease(t, d)
		})
	}
}
