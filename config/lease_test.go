package config_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/store"
)

const leased = "algorithm: fixed_window, limit: 1000/d, store: {lease: 1h}"

// held has a limiter hold some events, and returns how many of 1,000 are left.
func held(t *testing.T, ls *config.Limiters, admissions int) {
	t.Helper()
	l := limiter(t, ls, "a")
	local := false
	for range admissions {
		r := allow(t, l, "key")
		require.True(t, r.Allowed)
		local = local || r.Source() == ratelimit.SourceLease
	}
	require.True(t, local, "some were admitted here")
}

func TestALeaseIsGivenBackByClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		ls := build(t, mem, one(leased))
		held(t, ls, 40)
		other := limiter(t, build(t, mem, one("algorithm: fixed_window, limit: 1000/d")), "a")
		require.Less(t, peek(t, other, "key").Remaining, 960, "some are held")
		require.NoError(t, ls.Close(t.Context()))
		require.NoError(t, ls.Close(t.Context()))
		require.Equal(t, 960, peek(t, other, "key").Remaining)
		require.True(t, allow(t, limiter(t, ls, "a"), "key").Allowed, "it asks the store")
		require.Equal(t, 959, peek(t, other, "key").Remaining)
		require.NoError(t, build(t, mem, one("algorithm: fixed_window, limit: 9/d")).Close(t.Context()), "nothing to close")
		require.ErrorIs(t, new(config.Limiters).Close(t.Context()), ratelimit.ErrInvalidOption)
	})
}

func TestALeaseOfAFormerTextIsGivenBack(t *testing.T) {
	for _, next := range []string{"algorithm: fixed_window, limit: 1000/d", "algorithm: fixed_window, limit: 2000/d, store: {lease: 30m}"} {
		synctest.Test(t, func(t *testing.T) {
			mem := memory(t)
			ls := build(t, mem, one(leased))
			held(t, ls, 40)
			update(t, ls, one(leased)) // nothing has changed
			synctest.Wait()
			other := limiter(t, build(t, mem, one("algorithm: fixed_window, limit: 1000/d")), "a")
			require.Less(t, peek(t, other, "key").Remaining, 960)
			update(t, ls, one(next))
			synctest.Wait()
			require.Equal(t, 960, peek(t, other, "key").Remaining)
			require.NoError(t, ls.Close(t.Context()))
		})
	}
}

// deaf is a store whose Refunds last until their context ends.
type deaf struct{ store.Store }

func (*deaf) Refund(ctx context.Context, _ *store.Namespace, _ string, _ store.Limit, _ store.Receipt) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestCloseWaitsForLeasesOfFormerTextsNoLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := build(t, &deaf{memory(t)}, one(leased))
		for range 2 { // the second time, nobody hurries what ends before Close
			held(t, ls, 40)
			update(t, ls, one("algorithm: fixed_window, limit: 1000/d"))
			time.Sleep(time.Second)
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			require.NoError(t, ls.Close(ctx))
			cancel()
			require.Equal(t, time.Second, time.Since(began))
			update(t, ls, one(leased))
		}
		require.NoError(t, ls.Close(t.Context()))
	})
}

// Events held under another limit are refunded when the key is used again, if the lease stays.
func TestALeaseStaysWhereALimitChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		ls := build(t, mem, one(leased))
		held(t, ls, 40)
		other := limiter(t, build(t, mem, one("algorithm: fixed_window, limit: 1000/d")), "a")
		before := peek(t, other, "key").Remaining
		require.Less(t, before, 960)
		update(t, ls, one("algorithm: fixed_window, limit: 2000/d, store: {lease: 1h}"))
		synctest.Wait()
		require.Equal(t, before, peek(t, other, "key").Remaining)
		require.Equal(t, ratelimit.SourceStore, allow(t, limiter(t, ls, "a"), "key").Source())
		require.NoError(t, ls.Close(t.Context()))
		require.Equal(t, 959, peek(t, other, "key").Remaining)
	})
}

func TestARefundReachesWhatALeaseOfAFormerTextHasAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		ls := build(t, mem, one(leased))
		held(t, ls, 40)
		r := allow(t, limiter(t, ls, "a"), "key")
		update(t, ls, one("algorithm: fixed_window, limit: 1000/d"))
		synctest.Wait()
		require.Equal(t, 959, peek(t, limiter(t, ls, "a"), "key").Remaining)
		require.NoError(t, limiter(t, ls, "a").Refund(t.Context(), "key", r, 1))
		require.Equal(t, 960, peek(t, limiter(t, ls, "a"), "key").Remaining)
		time.Sleep(3 * time.Hour) // the timer of the lease ends
	})
}

// A lease in which no event flows is refused, unless another limit of the text can be leased.
func TestALeaseOfATier(t *testing.T) {
	build(t, memory(t), one("algorithm: sliding_log, limit: 1000/m, tiers: {x: 1200/m}, store: {lease: 50ms}"))
	build(t, memory(t), one("algorithm: sliding_log, limit: 0/m, store: {lease: 50ms}")) // nobody is admitted, for now
}

// Limits that must all admit are leased together, and counted as without a lease.
func TestALeaseOfSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		ls := build(t, mem, one("algorithm: fixed_window, limits: [1000/d, 500/h], store: {lease: 1h}"))
		held(t, ls, 40)
		other := limiter(t, build(t, mem, one("algorithm: fixed_window, limits: [1000/d, 500/h]")), "a")
		require.Less(t, peek(t, other, "key").Remaining, 460, "some are held")
		update(t, ls, one("algorithm: fixed_window, limit: 1000/d"))
		synctest.Wait()
		require.Equal(t, 460, peek(t, other, "key").Remaining)
		require.Equal(t, 960, peek(t, limiter(t, ls, "a"), "key").Remaining)
	})
}

func peek(t *testing.T, l ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := l.Peek(t.Context(), key)
	require.NoError(t, err)
	return r
}
