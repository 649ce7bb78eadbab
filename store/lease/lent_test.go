package lease_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// looksFail is how a store answers of which all looks fail.
func looksFail(op string) error {
	if op == "Peek" {
		return store.ErrOverloaded
	}
	return nil
}

// The overdraft keeps its bound if the look fails that follows a charge beyond the limit. The key then counts as full
// until all of the limit has come back, and no longer.
func TestOverdraftKeepsItsBoundWhileLooksFail(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		for _, overdraft := range []int{1, 8} {
			s := &recorder{Store: memory(t, stopped)}
			d := newLease(t, newLimiter(t, algorithm, s, perSecond), life, lease.WithOverdraft(overdraft))
			s.set(0, looksFail)
			admitted := 0
			for range 5000 {
				if r, err := d.Allow(t.Context(), "key"); err == nil && r.Allowed {
					admitted++
				}
				synctest.Wait()
			}
			require.LessOrEqual(t, admitted, 1000+overdraft, "the store's clock stands still")
			s.set(0, nil)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Zero(t, d.Stats().Keys)
			closeLease(t, d)
		}
	})
}

// The overdraft keeps its bound if each of the two clocks is wrong by as much as NTP allows.
func TestOverdraftKeepsItsBoundWithClocksThatDiffer(t *testing.T) {
	for _, fail := range []func(string) error{nil, looksFail} {
		synctest.Test(t, func(t *testing.T) {
			const slow, fast = 9995, 10005 // the store's clock, and this one
			began, start := time.Now(), time.Unix(1_800_000_000, 0)
			s := &recorder{Store: memory(t, memstore.WithClock(func() time.Time { return start.Add(time.Since(began) * slow / fast) }))}
			plain := newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1000))
			d := newLease(t, plain, time.Second, lease.WithOverdraft(1))
			require.True(t, allowN(t, plain, 1000).Allowed)
			s.set(0, fail)
			require.True(t, allow(t, d).Allowed, "lent")
			synctest.Wait()
			s.set(0, nil)
			time.Sleep((time.Minute - 10*time.Microsecond) * fast / slow)
			require.False(t, allow(t, d).Allowed, "it is the same window")
			time.Sleep(20 * time.Microsecond)
			require.True(t, allow(t, d).Allowed)
			closeLease(t, d)
		})
	}
}

// The same if one call in ten is refused, of whatever kind, with an error after which nothing is charged.
func TestOverdraftKeepsItsBoundIfOneCallInTenIsRefused(t *testing.T) {
	eachLending(t, func(t *testing.T, algorithm string) {
		s := &recorder{Store: memory(t, stopped)}
		d := newLease(t, newLimiter(t, algorithm, s, perSecond), life, lease.WithOverdraft(8))
		random := rand.New(rand.NewPCG(1, 2))
		s.set(0, func(string) error {
			if random.IntN(10) == 0 {
				return store.ErrOverloaded
			}
			return nil
		})
		admitted := 0
		for range 20_000 {
			if r, err := d.Allow(t.Context(), "key"); err == nil && r.Allowed {
				admitted++
			}
			synctest.Wait()
			time.Sleep(100 * time.Microsecond)
		}
		s.set(0, nil)
		closeLease(t, d)
		require.LessOrEqual(t, admitted, 1000+8, "the store's clock stands still")
	})
}

// An event that was lent in an earlier window is no room in this one.
func TestALateRefundOfALentEventIsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t), latency: 10 * time.Millisecond}
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1000)), time.Second, lease.WithOverdraft(4))
		var lent []ratelimit.Result
		for range 400 {
			before := d.Stats().Overdrawn
			r := allow(t, d)
			require.True(t, r.Allowed)
			if d.Stats().Overdrawn > before {
				lent = append(lent, r)
			}
			time.Sleep(time.Millisecond)
		}
		t.Logf("%d events were lent in the first window", len(lent))
		time.Sleep(time.Minute)
		s.set(0, nil)
		admitted := 0
		for allow(t, d).Allowed {
			admitted++
			synctest.Wait()
		}
		t.Logf("%d were admitted in the next window before the refunds", admitted)
		for _, r := range lent {
			require.NoError(t, d.Refund(t.Context(), "key", r, 1))
			if allow(t, d).Allowed {
				admitted++
			}
		}
		synctest.Wait()
		require.LessOrEqual(t, admitted, 1000+4)
	})
}

// However often a lent event is refunded, a lease has no more than was granted. That is also so if others were lent
// while the first ones were paid for.
func TestRepeatedRefundsOfALentEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t), latency: trip}
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerSecond(100)), 100*time.Millisecond, lease.WithOverdraft(8))
		first := allow(t, d)
		for range 5 { // at the fourth one the store is asked
			allow(t, d)
			synctest.Wait()
		}
		require.EqualValues(t, 6, d.Stats().Overdrawn)
		time.Sleep(trip)
		synctest.Wait()
		require.EqualValues(t, 4+1, d.Stats().Granted)
		for range 1000 {
			require.NoError(t, d.Refund(t.Context(), "key", first, 1))
		}
		require.Equal(t, 4+1, d.Stats().Held)
		s.set(0, nil)
		closeLease(t, d)
	})
}

// An event that was lent is refunded while it is paid for. What the payment then brings too much goes back, even if
// two leases are held.
func TestALentEventIsRefundedWhileItIsPaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t, stopped)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Second, lease.WithOverdraft(8))
		taken := hold(t, d, 16)
		s.set(trip, nil)
		var lent []ratelimit.Result
		for len(lent) < 3 { // while the next lease is on its way
			before := d.Stats().Overdrawn
			r := allow(t, d)
			synctest.Wait()
			if taken = append(taken, r); d.Stats().Overdrawn > before {
				lent = append(lent, r)
			}
		}
		require.NoError(t, d.Refund(t.Context(), "key", taken[len(taken)-4], 1)) // the last one of the lease, which is held again
		require.Equal(t, 1, d.Stats().Held)
		time.Sleep(trip)
		synctest.Wait()
		require.Greater(t, d.Stats().Held, 1, "and the next lease")
		d.Sweep() // which pays
		synctest.Wait()
		require.NoError(t, d.Refund(t.Context(), "key", lent[2], 1))
		time.Sleep(trip)
		synctest.Wait()
		s.set(0, nil)
		closeLease(t, d)
		require.Equal(t, 1_000_000-(len(taken)-2), remaining(t, d))
	})
}

// distant is a store at a distance that keeps to the contexts of calls.
type distant struct {
	store.Store
	way atomic.Int64 // ns
}

func (s *distant) wait(ctx context.Context) error {
	select {
	case <-time.After(time.Duration(s.way.Load())):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *distant) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := s.wait(ctx); err != nil {
		return store.Reply{}, err
	}
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *distant) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Store.Decide(ctx, requests, replies)
}

func (s *distant) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Store.Refund(ctx, ns, key, l, c)
}

// A caller whose own deadline ends an AllowUpTo costs the others nothing of what is held.
func TestAnAllowUpToInAHurryLosesNoLease(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &distant{Store: memory(t, stopped)}
			d := newLease(t, newLimiter(t, algorithm, s, ratelimit.PerHour(100_000)), time.Minute)
			fresh := fullKey(t, d.plain)
			taken := hold(t, d, 64)
			held := d.Stats().Held
			s.way.Store(int64(2 * time.Millisecond))
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			n, _, err := d.AllowUpTo(ctx, "key", 1000)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Zero(t, n)
			s.way.Store(0)
			time.Sleep(10 * time.Minute)
			closeLease(t, d)
			require.Equal(t, fresh-len(taken), remaining(t, d.plain), "%d were held, %+v", held, d.Stats())
		})
	})
}

// A debt that is refunded is not room for others, if it has the time of a lease that waits behind another one.
func TestADebtOfTheTimeOfASpareLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Unix(1_800_000_000, 0)
		s := &recorder{Store: memory(t, memstore.WithClock(func() time.Time { return now }))}
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerDay(200)), time.Hour)
		used := 0
		spare := false
		for !spare { // until a second lease has come while the first one has events left
			now = now.Add(time.Microsecond)
			before := d.Stats().Granted
			require.True(t, allow(t, d).Allowed)
			used++
			synctest.Wait()
			spare = d.Stats().Granted > before && d.Stats().Held > int(d.Stats().Granted-before)
		}
		t.Logf("%d used, %+v", used, d.Stats())
		rest := remaining(t, d.plain)
		require.True(t, allowN(t, d.plain, rest).Allowed)
		used += rest
		debt, err := d.Charge(t.Context(), "key", 3) // at the time of the spare lease, and beyond the limit
		require.NoError(t, err)
		now = now.Add(time.Microsecond)
		other, err := d.Charge(t.Context(), "key", 1)
		require.NoError(t, err)
		for range 4 { // one is the last of the first lease
			require.True(t, allow(t, d).Allowed)
			used++
			synctest.Wait()
		}
		require.NoError(t, d.Refund(t.Context(), "key", debt, 3))
		require.NoError(t, d.Refund(t.Context(), "key", other, 1))
		for allow(t, d).Allowed {
			used++
			synctest.Wait()
		}
		require.LessOrEqual(t, used, 200)
	})
}

// If the store hangs, an AllowUpTo ends by the store's timeout.
func TestAnAllowUpToWaitsForOneTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 250 * time.Millisecond
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerHour(100_000)), time.Minute)
		hold(t, d, 64)
		for r := d.Stats(); r.Held < 65; r = d.Stats() { // until there is a second one
			allow(t, d)
			synctest.Wait()
		}
		s.set(0, func(string) error {
			time.Sleep(timeout)
			return store.ErrTimeout
		})
		began := time.Now()
		_, _, err := d.AllowUpTo(t.Context(), "key", 1000)
		took := time.Since(began)
		require.ErrorIs(t, err, store.ErrTimeout)
		s.set(0, nil)
		closeLease(t, d)
		require.LessOrEqual(t, took, timeout+timeout/16)
	})
}

// What is held is not for a limiter that leaves a reserve to others, because only the store knows what remains.
func TestAReserveIsLeftAlthoughEventsAreHeld(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		for _, reserved := range []int{1, 30} {
			synctest.Test(t, func(t *testing.T) {
				limit := ratelimit.PerHour(100_000)
				d := newLease(t, newLimiter(t, algorithm, memory(t, stopped), limit), time.Minute)
				hold(t, d, 8)
				l, err := ratelimit.New(algorithm, d.Store, limit, ratelimit.WithName("test"), ratelimit.WithReserved(reserved))
				require.NoError(t, err)
				require.True(t, allowN(t, l, remaining(t, l)).Allowed)
				require.False(t, allow(t, l).Allowed)
				require.Equal(t, ratelimit.SourceLease, allow(t, d).Source())
				closeLease(t, d)
			})
		}
	})
}

// An AllowUpTo leaves the reserve to others, and says how many it has charged.
func TestAnAllowUpToLeavesTheReserve(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := memory(t, stopped)
			l, err := ratelimit.New(algorithm, newLease(t, newLimiter(t, algorithm, s, ratelimit.PerHour(100)), time.Minute).Store, ratelimit.PerHour(100),
				ratelimit.WithName("test"), ratelimit.WithReserved(30))
			require.NoError(t, err)
			all, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			var r ratelimit.Result
			for _, c := range [][2]int{{40, 40}, {1000, all.Remaining - 40}, {5, 0}} {
				var n int
				n, r, err = ratelimit.AllowUpTo(t.Context(), l, "key", c[0])
				want := c[1]
				require.NoError(t, err)
				require.Equal(t, want, n)
				require.Equal(t, want, r.Charged())
				require.Equal(t, want > 0, r.Allowed)
			}
			rest, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Zero(t, rest.Remaining)
			require.Equal(t, rest.RetryAfter, r.RetryAfter)
			require.GreaterOrEqual(t, remaining(t, newLimiter(t, algorithm, s, ratelimit.PerHour(100))), 30)
		})
	})
}
