package fallback_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// breakable is a store that fails on demand, and counts the calls.
type breakable struct {
	store.Store
	down         atomic.Bool
	peeks, calls atomic.Int64
}

func newBreakable(t testing.TB) *breakable {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	return &breakable{Store: mem}
}

func (b *breakable) fault() error {
	if b.calls.Add(1); b.down.Load() {
		return store.ErrUnavailable
	}
	return nil
}

// Decide implements [store.Store].
func (b *breakable) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, b, b.Store, requests, replies)
}

func (b *breakable) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := b.fault(); err != nil {
		return store.Reply{}, err
	}
	return b.Store.Take(ctx, ns, key, l, n)
}

func (b *breakable) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := b.fault(); err != nil {
		return store.Reply{}, err
	}
	return store.TakeUpTo(ctx, b.Store, ns, key, l, n)
}

func (b *breakable) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	b.peeks.Add(1)
	if err := b.fault(); err != nil {
		return store.Reply{}, err
	}
	return store.Peek(ctx, b.Store, ns, key, l, n)
}

func (b *breakable) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := b.fault(); err != nil {
		return err
	}
	return b.Store.Decide(ctx, requests, replies)
}

func (b *breakable) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if err := b.fault(); err != nil {
		return err
	}
	return b.Store.Refund(ctx, ns, key, l, c)
}

func leased(t testing.TB, s store.Store, limit ratelimit.Limit, life time.Duration) ratelimit.Limiter {
	t.Helper()
	l, err := lease.New(s, life)
	require.NoError(t, err)
	return newLimiter(t, "fixed_window", l, limit)
}

// A key can be answered for long from what is held. The store is asked all the same to end an
// outage, or to tell that it goes on.
func TestAnAnswerWithoutTheStoreIsNoReasonToStayHalfOpen(t *testing.T) {
	for name, test := range map[string]struct {
		inside func(t *testing.T, s store.Store) ratelimit.Limiter
		want   ratelimit.Source
	}{
		"lease": {func(t *testing.T, s store.Store) ratelimit.Limiter {
			return leased(t, s, ratelimit.PerHour(1000), time.Hour)
		}, ratelimit.SourceLease},
		"deny cache": {func(t *testing.T, s store.Store) ratelimit.Limiter {
			cache, err := denycache.New(s)
			require.NoError(t, err)
			return newLimiter(t, "fixed_window", cache, ratelimit.PerHour(1))
		}, ratelimit.SourceDenyCache},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newBreakable(t)
				lim := failover(t, test.inside(t, s), fallback.FailClosed(), fallback.WithBreaker(2, time.Second))
				for allow(t, lim, "key").Source() != test.want {
					synctest.Wait()
				}
				synctest.Wait() // what is fetched ahead is held
				require.Equal(t, test.want, allow(t, lim, "key").Source())
				require.Zero(t, s.peeks.Load(), "a closed breaker has nothing to find out")

				s.down.Store(true)
				for range 2 {
					allow(t, lim, "other")
				}
				require.Equal(t, fallback.StateOpen, state(lim))
				time.Sleep(time.Second)
				require.Equal(t, ratelimit.SourceFailClosed, allow(t, lim, "key").Source())
				require.Equal(t, fallback.StateOpen, state(lim), "the probe has failed")

				s.down.Store(false)
				time.Sleep(time.Second)
				require.Equal(t, test.want, allow(t, lim, "key").Source())
				require.Equal(t, fallback.StateClosed, state(lim))
				require.EqualValues(t, 2, s.peeks.Load())
				require.Equal(t, test.want, allow(t, lim, "key").Source())
				require.EqualValues(t, 2, s.peeks.Load())
			})
		})
	}
}

// The caller may leave while the store is looked at. The breaker has no answer then.
func TestAProbeMayEndWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		held := held{Limiter: inner, result: ratelimit.Result{Allowed: true, Limit: 10}.WithMark(
			ratelimit.NewMark(t, ratelimit.SourceLease, nil))}
		lim := failover(t, held, fallback.FailClosed(), fallback.WithBreaker(1, time.Second))
		inner.down.Store(true)
		peeked, err := lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceFailClosed, peeked.Source())
		time.Sleep(time.Second)
		inner.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = lim.Allow(ctx, "key")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, fallback.StateHalfOpen, state(lim))
	})
}

// held admits everything by what it holds.
type held struct {
	ratelimit.Limiter
	result ratelimit.Result
}

func (h held) AllowN(context.Context, string, int) (ratelimit.Result, error) { return h.result, nil }

// A lease takes back without the store what it can admit again. The breaker learns nothing from that.
func TestARefundIntoALeaseIsNoSuccessOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBreakable(t)
		inside := leased(t, s, ratelimit.PerHour(1000), time.Minute)
		observed, err := observe.Around(inside, nobody{})
		require.NoError(t, err)
		lim := failover(t, all(t, observed), fallback.FailClosed(), fallback.WithBreaker(2, time.Second))
		r := allow(t, lim, "key")
		require.Equal(t, ratelimit.SourceStore, r.Source())
		s.down.Store(true)
		allow(t, lim, "other")
		calls := s.calls.Load()
		require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
		require.Equal(t, calls, s.calls.Load(), "the store was not asked")
		allow(t, lim, "other")
		require.Equal(t, fallback.StateOpen, state(lim))
	})
}

type nobody struct{}

func (nobody) Decided(context.Context, string, int, ratelimit.Result, error, time.Duration) {}
