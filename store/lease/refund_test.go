package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// pair is two processes, the first of which holds a lease.
type pair struct {
	d, other *onLease
	plain    ratelimit.Limiter // under the limit that they ask the store for, for what is left
	store    *recorder
	limit    int
	taken    []ratelimit.Result
}

// onPairs runs a test on two processes, in a bubble. The clock of their store stands still.
func onPairs(t *testing.T, test func(t *testing.T, p *pair)) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t, stopped)}
			limiter := func() *onLease {
				return newLease(t, newLimiter(t, algorithm, s, ratelimit.PerSecond(1000)), life)
			}
			p := &pair{d: limiter(), other: limiter(), plain: limiter(), store: s}
			p.limit = remaining(t, p.plain)
			if algorithm == "token_bucket" { // whose burst is smaller
				require.Equal(t, 1000-51, p.limit)
			}
			p.taken = hold(t, p.d, 8)
			s.reset()
			test(t, p)
		})
	})
}

func (p *pair) refund(t *testing.T, d *onLease, r ratelimit.Result, n int) {
	t.Helper()
	require.NoError(t, d.Refund(t.Context(), "key", r, n))
}

// admitted holds what the store has left, when both have given back theirs, to what was admitted.
func (p *pair) admitted(t *testing.T, n int) {
	t.Helper()
	closeLease(t, p.d)
	closeLease(t, p.other)
	require.Equal(t, p.limit-n, remaining(t, p.plain))
}

func TestRefundWithinTheLease(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		held := p.d.Stats().Held
		last := allow(t, p.d)
		require.Equal(t, held-1, p.d.Stats().Held)
		p.refund(t, p.d, last, 1)
		require.Equal(t, held, p.d.Stats().Held)
		require.Empty(t, asked(p.store.reset(), "Refund"))
		several := allowN(t, p.d, 3)
		p.refund(t, p.d, several, 2)
		require.Equal(t, held-1, p.d.Stats().Held)
		p.admitted(t, len(p.taken)+1)
	})
}

func TestRefundAfterTheLease(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		one, several := allow(t, p.d), allowN(t, p.d, 3)
		time.Sleep(2 * life)
		synctest.Wait()
		p.refund(t, p.d, one, 1)
		p.refund(t, p.d, several, 2)
		p.refund(t, p.d, p.taken[0], 1)
		p.admitted(t, len(p.taken)+4-4)
	})
}

// A lease that has ended takes no refunds, even if it had been used up.
func TestRefundToALeaseThatWasSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life, lease.WithMaxLease(1))
		early, late := allow(t, d), allow(t, d)
		require.NoError(t, d.Refund(t.Context(), "key", late, 1))
		require.Empty(t, asked(s.reset(), "Refund"))
		require.Equal(t, 1, d.Stats().Held)
		late = allow(t, d)
		require.Zero(t, d.Stats().Held)
		time.Sleep(life)
		for _, r := range []ratelimit.Result{early, late} {
			require.NoError(t, d.Refund(t.Context(), "key", r, 1))
			require.Equal(t, []int{1}, asked(s.reset(), "Refund"))
		}
		closeLease(t, d)
	})
}

// What the store has charged itself is refunded under the limit that it was charged under.
// Otherwise, Redis would forget a log too soon.
func TestRefundKeepsToTheStrictLimit(t *testing.T) {
	mini := redistest.Mini(t)
	s, err := redisstore.New(mini.Client(t), redisstore.WithTimeout(time.Minute)) // on a busy machine, too
	require.NoError(t, err)
	d := newLease(t, newLimiter(t, "sliding_log", s, ratelimit.PerSecond(10)), 100*time.Millisecond)
	r := allowN(t, d, 5)
	require.NoError(t, d.Refund(t.Context(), "key", r, 2))
	mini.Advance(1050 * time.Millisecond) // it counts for a life longer than a second
	require.Equal(t, 7, remaining(t, d))
	mini.Advance(100 * time.Millisecond)
	require.Equal(t, 10, remaining(t, d))
	closeLease(t, d)
}

// A process can refund the Results of another process through the store.
func TestRefundByAnotherProcess(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		p.refund(t, p.other, allowN(t, p.d, 3), 2)
		require.Equal(t, []int{2}, asked(p.store.reset(), "Refund"))
		p.admitted(t, len(p.taken)+1)
	})
}

// More than a Result has charged is not given back, and a lease never has more than was granted.
func TestRefundOfTooMuch(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		one := allow(t, p.d)
		held := p.d.Stats().Held
		p.refund(t, p.d, one, 1000)
		require.Equal(t, held+1, p.d.Stats().Held)
		granted := p.d.Stats().Granted
		for range 1000 { // which takes those of other calls
			p.refund(t, p.d, one, 1)
		}
		require.LessOrEqual(t, int64(p.d.Stats().Held), granted)
		before := remaining(t, p.plain)
		time.Sleep(2 * life)
		synctest.Wait()
		p.refund(t, p.d, p.taken[0], 1000)
		require.LessOrEqual(t, remaining(t, p.plain), before+int(p.d.Stats().Lapsed)+1)
		require.ErrorIs(t, p.d.Refund(t.Context(), "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidN)
		closeLease(t, p.d)
		require.LessOrEqual(t, remaining(t, p.plain), p.limit)
	})
}

// A caller can refund its admission after the next caller was denied.
func TestRefundAfterADenial(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		last := allow(t, p.d)
		n := len(p.taken) + 1
		for {
			r := allow(t, p.d)
			if !r.Allowed {
				require.ErrorIs(t, p.d.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN)
				break
			}
			last = r
			n++
			synctest.Wait()
		}
		require.Equal(t, p.limit, n)
		p.refund(t, p.d, last, 1)
		require.True(t, allow(t, p.d).Allowed)
		require.False(t, allow(t, p.d).Allowed)
		p.refund(t, p.d, last, 1)
		p.admitted(t, n-1)
	})
}

// A failed call takes nothing from the lease that is being spent.
func TestRefundAfterAnError(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		var spent []ratelimit.Result
		p.store.set(0, func(op string) error {
			if op == "TakeUpTo" {
				return errOdd
			}
			return nil
		})
		n := len(p.taken)
		for p.d.Stats().Held > 1 {
			spent = append(spent, allow(t, p.d))
			n++
			synctest.Wait()
		}
		require.Positive(t, p.d.Stats().Lost)
		p.store.set(0, nil)
		for _, r := range spent[len(spent)-3:] {
			p.refund(t, p.d, r, 1)
		}
		p.admitted(t, n-3)
	})
}

func TestReserveAroundALease(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		charged := len(p.taken)
		for _, c := range []struct{ estimate, cost int }{{1, 1}, {3, 1}, {2, 5}, {1, 0}, {4, 0}, {50, 20}, {1, 30}} {
			r, _, err := ratelimit.Reserve(t.Context(), p.d, "key", c.estimate)
			require.NoError(t, err)
			require.NotNil(t, r)
			_, err = r.Settle(t.Context(), c.cost)
			require.NoError(t, err)
			synctest.Wait()
			charged += c.cost
		}
		p.admitted(t, charged)
	})
}

func TestAllowUpToAroundALease(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		n, r, err := ratelimit.AllowUpTo(t.Context(), p.d, "key", 4)
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.Equal(t, ratelimit.SourceLease, r.Source())
		sum := len(p.taken) + 4
		n, r, err = ratelimit.AllowUpTo(t.Context(), p.d, "key", 100)
		require.NoError(t, err)
		require.Equal(t, 100, n)
		require.Equal(t, ratelimit.SourceStore, r.Source())
		p.refund(t, p.d, r, 40)
		sum += 60
		n, _, err = ratelimit.AllowUpTo(t.Context(), p.other, "key", 10_000)
		require.NoError(t, err)
		require.Equal(t, p.limit-sum-p.d.Stats().Held, n, "without what is held")
		sum += n
		n, r, err = ratelimit.AllowUpTo(t.Context(), p.other, "key", 5)
		require.NoError(t, err)
		require.Zero(t, n)
		require.False(t, r.Allowed)
		p.admitted(t, sum)
	})
}

func TestAllowWithinAroundALease(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		ctx := t.Context()
		r, err := ratelimit.AllowWithin(ctx, p.d, "key", 2, 0)
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceLease, r.Source())
		require.Zero(t, r.Delay)
		sum := len(p.taken) + 2
		left := remaining(t, p.plain)
		require.True(t, allowN(t, p.other, left).Allowed)
		sum += left
		later, err := ratelimit.AllowWithin(ctx, p.other, "key", 10, time.Second)
		require.NoError(t, err)
		if _, buckets := p.other.Unwrap().(*ratelimit.TokenBucket); buckets {
			require.True(t, later.Allowed)
			require.Equal(t, 10*time.Millisecond, later.Delay)
			p.refund(t, p.other, later, 10)
		} else {
			require.False(t, later.Allowed)
		}
		p.admitted(t, sum)
	})
}

func TestWaitAroundALease(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			d := newLease(t, newLimiter(t, algorithm, memory(t), ratelimit.PerSecond(100)), life)
			began := time.Now()
			for range 1000 {
				r, err := ratelimit.Wait(t.Context(), d, "key", 1)
				require.NoError(t, err)
				require.True(t, r.Allowed)
			}
			require.GreaterOrEqual(t, time.Since(began), 8*time.Second)
			require.LessOrEqual(t, time.Since(began), 12*time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			var err error
			for err == nil {
				_, err = ratelimit.Wait(ctx, d, "key", 1)
			}
			require.ErrorIs(t, err, context.DeadlineExceeded)
			closeLease(t, d)
		})
	})
}

// Reset forgets what is held here. Another process spends its lease.
func TestAResetForgetsWhatIsHeldHere(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		hold(t, p.other, 4)
		held := p.other.Stats().Held
		require.NoError(t, p.d.Reset(t.Context(), "key"))
		require.Zero(t, p.d.Stats().Held)
		require.Equal(t, p.limit, remaining(t, p.plain))
		require.True(t, allow(t, p.d).Allowed)
		require.Equal(t, held, p.other.Stats().Held)
		require.Equal(t, ratelimit.SourceLease, allow(t, p.other).Source())
		closeLease(t, p.d)
		closeLease(t, p.other)
		require.LessOrEqual(t, remaining(t, p.plain), p.limit)

		d := newLease(t, p.d.plain, life) // also a denial
		for allow(t, d).Allowed {
			synctest.Wait()
		}
		require.NoError(t, d.Reset(t.Context(), "key"))
		require.True(t, allow(t, d).Allowed)
		closeLease(t, d)
	})
}

// A Charge is charged immediately and visible to all processes. Leases stay held.
func TestAChargeIsSeenByAllAndLeavesWhatIsHeld(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		held := p.d.Stats().Held
		left := remaining(t, p.plain)
		r, err := ratelimit.Charge(t.Context(), p.d, "key", left+5)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, held, p.d.Stats().Held)
		require.False(t, allow(t, p.other).Allowed)
		require.True(t, allow(t, p.d).Allowed, "from the lease")
		p.refund(t, p.d, r, left+5)
		p.admitted(t, len(p.taken)+1)
	})
}

func TestPeek(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		left, held := remaining(t, p.plain), p.d.Stats().Held
		require.Equal(t, left+held, remaining(t, p.d))
		require.Equal(t, left, remaining(t, p.other))
		require.True(t, allowN(t, p.other, left).Allowed)
		r, err := p.d.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Zero(t, r.RetryAfter)
		require.Equal(t, held, r.Remaining)
		r, err = p.other.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		p.admitted(t, left+len(p.taken))
	})
}
