package lease_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
)

// A key that owes is charged before what is held is used.
func TestALocalFallbackAroundALeaseKeepsToOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, limit, ok := &recorder{Store: memory(t)}, ratelimit.Limit{Rate: 1000, Period: time.Hour, Burst: 1000}, 0
		f, err := fallback.New(newLease(t, newLimiter(t, "token_bucket", s, limit), time.Minute),
			fallback.FailTo(newLimiter(t, "token_bucket", memory(t), limit)))
		require.NoError(t, err)
		ask := func(key string, times int) {
			for range times {
				r, err := f.Allow(t.Context(), key)
				require.NoError(t, err)
				if synctest.Wait(); r.Allowed && key == "key" {
					ok++
				}
			}
		}
		ask("key", 300)
		s.set(0, func(string) error { return store.ErrUnavailable })
		ask("other", 5) // the breaker opens
		ask("key", 1000)
		s.set(0, nil)
		time.Sleep(1100 * time.Millisecond)
		ask("other", 1) // and closes
		ask("key", 1000)
		require.LessOrEqual(t, ok, 1001)
	})
}

func TestCallsThatNobodyWaitsForAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		s := &recorder{Store: memory(t)}
		s.set(0, func(string) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(2 * time.Millisecond)
			now.Add(-1)
			return nil
		})
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1_000_000)), 50*time.Millisecond, lease.WithOverdraft(10))
		for i := range 20_000 {
			_, _ = d.Allow(t.Context(), strconv.Itoa(i))
		}
		time.Sleep(time.Second)
		require.NoError(t, d.Close(t.Context()))
		require.LessOrEqual(t, most.Load(), int64(2*32), "those of Close may come beside the last of the others")
	})
}

func TestCloseGivesBackSeveralAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerHour(1_000_000)), 10*time.Minute)
		for range 4 {
			for i := range 10_000 {
				_, _ = d.Allow(t.Context(), strconv.Itoa(i))
				synctest.Wait()
			}
		}
		s.set(20*time.Millisecond, nil)
		t0 := time.Now()
		require.NoError(t, d.Close(t.Context()))
		require.Less(t, time.Since(t0), 10*time.Second)
	})
}

func TestADenialOfAnAllGivesBackWhatWasLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newLimiter(t, "fixed_window", memory(t), ratelimit.PerMinute(10_000))
		d := newLease(t, p, life, lease.WithOverdraft(50))
		full := newLimiter(t, "token_bucket", memory(t), ratelimit.PerHour(1))
		allow(t, full)
		all, err := ratelimit.NewAll(d, full)
		require.NoError(t, err)
		for range 200 {
			require.False(t, allow(t, all).Allowed)
		}
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, 10_000, remaining(t, p))
	})
}

func TestResetForgetsWhatIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newLimiter(t, "fixed_window", memory(t), ratelimit.PerSecond(100))
		d := newLease(t, p, life, lease.WithOverdraft(50))
		for range 20 {
			allow(t, d)
		}
		require.NoError(t, d.Reset(t.Context(), "key"))
		require.NoError(t, d.Close(t.Context()))
		require.Equal(t, 100, remaining(t, p))
	})
}

func TestPeekAddsNothingHeldUnderAnotherLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := 1000
		f := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.PerHour(rate), nil })
		d := newLease(t, newLimiter(t, "fixed_window", memory(t), ratelimit.PerHour(1000), f), time.Minute)
		hold(t, d, 8)
		rate = 0
		peek, _ := d.Peek(t.Context(), "key")
		r, _ := d.Allow(t.Context(), "key")
		require.Equal(t, r.Allowed, peek.Allowed)
	})
}

// An event that was lent can be refunded wherever it is: owed, paid by a lease, or paid long ago.
func TestLentEventsCanBeRefunded(t *testing.T) {
	for name, after := range map[string]time.Duration{"owed": 0, "leased": 150 * time.Millisecond, "lapsed": 250 * time.Millisecond} {
		for _, n := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				p := newLimiter(t, "fixed_window", memory(t), ratelimit.PerSecond(100))
				d := newLease(t, p, 100*time.Millisecond, lease.WithOverdraft(8))
				var lent []ratelimit.Result
				for range n {
					lent = append(lent, allow(t, d))
				}
				time.Sleep(after)
				for before := d.Stats().Granted; name == "leased" && d.Stats().Granted == before; { // until there is another lease
					lent = append(lent, allow(t, d))
					synctest.Wait()
				}
				for _, r := range lent {
					require.NoError(t, d.Refund(t.Context(), "key", r, 1), name)
				}
				require.NoError(t, d.Close(t.Context()))
				require.Equal(t, 100, remaining(t, p), name)
			})
		}
	}
}

func TestTheLimitFunctionIsAskedOnceACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		f := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			asked++
			return ratelimit.PerHour(100_000), nil
		})
		ctx, d := t.Context(), newLease(t, newLimiter(t, "token_bucket", memory(t), ratelimit.PerHour(100_000), f), life)
		for name, call := range map[string]func() error{
			"AllowN":      func() error { _, err := d.AllowN(ctx, "key", 2); return err },
			"AllowWithin": func() error { _, err := d.AllowWithin(ctx, "key", 2, time.Second); return err },
			"AllowUpTo":   func() error { _, _, err := d.AllowUpTo(ctx, "key", 2); return err },
			"Peek":        func() error { _, err := d.Peek(ctx, "key"); return err },
			"Charge":      func() error { _, err := d.Charge(ctx, "key", 2); return err },
		} {
			asked = 0
			require.NoError(t, call(), name)
			require.Equal(t, 1, asked, name)
		}
	})
}

// Several limits on one lease are told as they stand: what another one denies is not charged, and
// a look counts what is held here, as Peek does.
func TestSeveralLimitsReportWhatPeekReturns(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s, err := lease.New(memory(t), 2*time.Second)
			require.NoError(t, err)
			of := func(n int, name string) ratelimit.Limiter {
				l, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(n), ratelimit.WithName(name))
				require.NoError(t, err)
				return l
			}
			big, small := of(600, "big"), of(60, "small")
			peek := func(key string) ratelimit.Result {
				r, err := big.Peek(t.Context(), key)
				require.NoError(t, err)
				return r
			}
			told := func(asks ...ratelimit.Ask) ratelimit.Result {
				r, err := ratelimit.Decide(t.Context(), asks...)
				require.NoError(t, err)
				return r.Parts()[0].Result
			}
			for range 50 {
				_, err := big.Allow(t.Context(), "key")
				require.NoError(t, err)
				synctest.Wait()
			}
			require.Positive(t, s.Stats().Held)
			says := told(ratelimit.Ask{Limiter: big, Key: "key", Look: true}, ratelimit.Ask{Limiter: small, Key: "key", N: 1})
			require.Equal(t, peek("key"), says, "a look")
			told(ratelimit.Ask{Limiter: big, Key: "other", N: 100}, ratelimit.Ask{Limiter: small, Key: "other", N: 1})
			says = told(ratelimit.Ask{Limiter: big, Key: "new", N: 100}, ratelimit.Ask{Limiter: small, Key: "other", N: 60})
			require.Equal(t, []any{peek("new").Remaining, peek("new").ResetAfter}, []any{says.Remaining, says.ResetAfter}, "denied by the other")
			require.NoError(t, s.Close(t.Context()))
		})
	})
}
