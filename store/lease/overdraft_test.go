package lease_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
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
func TestWhatIsLentIsCharged(t *testing.T) {
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

// What was charged beyond the limit is no longer owed. The denial that comes with it is the only
// one.
func TestOverdraftsAreChargedOnce(t *testing.T) {
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

// A caller that is lent an event gets what is known to be left, minus what is owed. The key does
// not look like a new one.
func TestLentEventsLeaveTheRemainingLessWhatIsOwed(t *testing.T) {
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

// Once the store is full, nothing is lent until the overdraft has left the limit, even if limits
// alternate, and also while what is owed is on its way.
func TestNothingIsLentWhileTheStoreIsFull(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		for _, latency := range []time.Duration{0, time.Millisecond} {
			s := &recorder{Store: memory(t)}
			limits := []ratelimit.Limit{ratelimit.PerMinute(1190), ratelimit.PerMinute(1180)}
			if algorithm == "token_bucket" { // which a limit of a smaller Burst would empty
				limits[1].Burst = 1190
			}
			turn, began := 0, time.Now()
			l := newLimiter(t, algorithm, s, limits[0], ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
				turn++
				return limits[turn%len(limits)], nil
			}))
			d := newLease(t, l, 2*life, lease.WithOverdraft(8))
			admitted := 0
			if latency > 0 { // others have had nearly all, so that what is owed is charged beyond the limit
				admitted = 1180
				require.True(t, allowN(t, l, admitted).Allowed)
			}
			s.set(latency, nil)
			for range 5000 {
				if allow(t, d).Allowed {
					admitted++
				}
				synctest.Wait()
				time.Sleep(latency / 3)
			}
			most := 1190 + 8
			if algorithm == "token_bucket" {
				most += int(time.Since(began) / (50 * time.Millisecond)) // which flow in
			}
			require.LessOrEqual(t, admitted, most)
			s.set(0, nil)
			closeLease(t, d)
		}
	})
}

// Once the store has room again it is lent as before.
func TestEventsAreLentOnceThereIsRoomAgain(t *testing.T) {
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

// What was paid is not charged again if a later call of the same fetch fails, and what was granted
// is held.
func TestWhatIsPaidIsNotChargedAgainAfterAnError(t *testing.T) {
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

// A store that hangs runs later everything it was sent. What is owed is therefore sent once, and again only when the store
// has answered.
func TestWhatIsOwedIsSentOnceToAStoreThatHangs(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		s := &recorder{Store: memory(t, stopped)}
		plain := newLimiter(t, algorithm, s, perSecond)
		d := newLease(t, newLimiter(t, algorithm, s, perSecond), life, lease.WithOverdraft(100))
		s.set(0, func(string) error { return errOdd })
		for range 99 {
			require.True(t, allow(t, d).Allowed)
		}
		time.Sleep(20 * life)
		synctest.Wait()
		sent := asked(s.reset(), "TakeUpTo")
		require.Greater(t, len(sent), 10)
		for _, n := range sent[1:] {
			require.LessOrEqual(t, n, 2, "one event that is owed, and a lease")
		}
		s.set(0, nil)
		time.Sleep(5 * life)
		synctest.Wait()
		require.Equal(t, 1000-99, remaining(t, plain))
		closeLease(t, d)
	})
}

// A key that is full for long is kept only where that bounds the overdraft.
func TestAKeyThatIsFullForLongIsKeptOnlyForTheOverdraft(t *testing.T) {
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

// lendingTwo is an All of two limits with an overdraft of n, on a store that tells what it is asked.
func lendingTwo(t *testing.T, algorithm string, n int, tight ratelimit.Limit) (all *ratelimit.All, limits []ratelimit.Limiter, d *lease.Store, s *recorder) {
	t.Helper()
	s = &recorder{Store: memory(t, stopped)}
	d, err := lease.New(s, life, lease.WithOverdraft(n))
	require.NoError(t, err)
	limits = []ratelimit.Limiter{newLimiter(t, algorithm, d, tight), newLimiter(t, algorithm, d, ratelimit.PerMinute(600_000))}
	all, err = ratelimit.NewAll(limits...)
	require.NoError(t, err)
	return all, limits, d, s
}

// Nobody waits for several limits either, unless as much of one of them is owed already.
func TestOverdraftOfSeveralLimitsDoesNotWait(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		for _, n := range []int{1, 8} {
			all, limits, d, s := lendingTwo(t, algorithm, n, perSecond)
			fresh := []int{fullKey(t, limits[0]), fullKey(t, limits[1])}
			s.set(trip, nil)
			began := time.Now()
			for range n {
				r := allow(t, all)
				require.True(t, r.Allowed)
				require.Equal(t, ratelimit.SourceLease, r.Source())
			}
			require.Zero(t, time.Since(began))
			require.EqualValues(t, 2*n, d.Stats().Overdrawn)
			r := allow(t, all)
			require.True(t, r.Allowed)
			require.Positive(t, time.Since(began))
			require.NoError(t, all.Refund(t.Context(), "key", r, 1))
			s.set(0, nil)
			require.NoError(t, d.Close(t.Context()))
			require.Equal(t, []int{fresh[0] - n, fresh[1] - n}, []int{remaining(t, limits[0]), remaining(t, limits[1])})
		}
	})
}

// What one limit was lent for an All that another limit denies is not owed.
func TestADenialOfAnAllOwesNothing(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		all, limits, d, _ := lendingTwo(t, algorithm, 3, perSecond)
		fresh := fullKey(t, limits[1])
		_, _, err := limits[0].(limiting).AllowUpTo(t.Context(), "key", 1000)
		require.NoError(t, err)
		admitted := 0
		for range 200 {
			if allow(t, all).Allowed {
				admitted++
			}
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		if algorithm != "token_bucket" { // into which events would flow, if the store's clock did not stand still
			require.LessOrEqual(t, admitted, 3)
		}
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, fresh-admitted, remaining(t, limits[1]))
		require.Zero(t, remaining(t, limits[0]))
	})
}

// An event that one limit was lent for an All that then waits for another limit was not admitted by overdraft.
func TestWhatIsNotLentToAllIsNotCounted(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		all, limits, d, s := lendingTwo(t, algorithm, 4, perSecond)
		s.set(trip, nil) // so that what is owed stays owed
		for range 4 {
			require.True(t, allow(t, limits[1]).Allowed)
		}
		require.EqualValues(t, 4, d.Stats().Overdrawn)
		require.True(t, allow(t, all).Allowed)
		require.EqualValues(t, 4, d.Stats().Overdrawn)
		s.set(0, nil)
		require.NoError(t, d.Close(t.Context()))
	})
}

// Whatever callers of one limit and of several do in two processes, even if they leave, each limit
// exceeds its bound by at most its overdraft per process, and in the end the store has charged each
// event once.
func TestOverdraftOfOneLimitAndOfSeveral(t *testing.T) {
	for _, algorithm := range lending[:2] { // events would flow into a bucket, if the store's clock did not stand still
		t.Run(algorithm, func(t *testing.T) {
			for seed := range uint64(effort.Of(10, 100, 1000)) {
				synctest.Test(t, func(t *testing.T) {
					const overdraft = 5
					random := rand.New(rand.NewPCG(seed, 3))
					s := &recorder{Store: memory(t, stopped)}
					s.set(time.Duration(random.IntN(20))*time.Millisecond, nil)
					rates := []int{40 + random.IntN(400), 40 + random.IntN(400)}
					var stores []*lease.Store
					var limits [2][]ratelimit.Limiter // of each process
					for p := range limits {
						d, err := lease.New(s, life, lease.WithOverdraft(overdraft))
						require.NoError(t, err)
						stores = append(stores, d)
						for i, rate := range rates {
							limits[p] = append(limits[p], newLimiter(t, algorithm, d, ratelimit.Limit{Rate: rate, Period: time.Duration(1+i) * time.Second}))
						}
						all, err := ratelimit.NewAll(limits[p]...)
						require.NoError(t, err)
						limits[p] = append(limits[p], all)
					}
					fresh := []int{fullKey(t, limits[0][0]), fullKey(t, limits[0][1])}
					var charged [2]atomic.Int64
					var group sync.WaitGroup
					for range 600 {
						l, of, n := limits[random.IntN(2)], random.IntN(3), 1+random.IntN(2)*random.IntN(2)
						at, patience := time.Duration(random.IntN(500))*time.Millisecond, time.Duration(1+random.IntN(60))*time.Millisecond
						refunds := random.IntN(5) == 0
						group.Go(func() {
							time.Sleep(at)
							ctx, cancel := context.WithTimeout(t.Context(), patience)
							defer cancel()
							r, err := l[of].AllowN(ctx, "key", n)
							if err == nil && r.Allowed && refunds {
								require.NoError(t, l[of].Refund(t.Context(), "key", r, n))
							} else if err == nil && r.Allowed {
								for i := range charged {
									if of == i || of == 2 {
										charged[i].Add(int64(n))
									}
								}
							}
						})
					}
					group.Wait()
					s.set(0, nil)
					time.Sleep(10 * life)
					for _, d := range stores {
						require.NoError(t, d.Close(t.Context()))
					}
					synctest.Wait()
					for i, most := range fresh {
						n := int(charged[i].Load())
						require.LessOrEqual(t, n, most+2*overdraft, "seed %d, limit %d", seed, i)
						require.Equal(t, max(0, most-n), remaining(t, limits[0][i]), "seed %d, limit %d: %d of %d", seed, i, n, most)
					}
				})
			}
		})
	}
}
