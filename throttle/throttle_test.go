package throttle_test

import (
	"context"
	"crypto/rand"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var algorithms = ratelimit.PerSecond(1).Algorithms()

// onEachAlgorithm runs test in a bubble for each algorithm, with a limiter whose clock
// is the bubble's.
func onEachAlgorithm(t *testing.T, l ratelimit.Limit, test func(t *testing.T, lim ratelimit.Limiter)) {
	t.Helper()
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) { inBubble(t, algorithm, l, test) })
	}
}

// hasBurst reports whether an algorithm accepts a Burst: those do whose spend drains, as in a
// bucket.
func hasBurst(algorithm string) bool {
	return ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 2}.ValidateFor(algorithm) == nil
}

func inBubble(t *testing.T, algorithm string, l ratelimit.Limit, test func(t *testing.T, lim ratelimit.Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, inMemory(t, algorithm, l)) })
}

func inMemory(t testing.TB, algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	lim, err := ratelimit.New(algorithm, mem, l, opts...)
	require.NoError(t, err)
	return lim
}

func onRedis(t testing.TB, algorithm string, l ratelimit.Limit) ratelimit.Limiter {
	t.Helper()
	s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(rand.Text()), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	lim, err := ratelimit.New(algorithm, s, l)
	require.NoError(t, err)
	return lim
}

func waiter(t testing.TB, l ratelimit.Limiter, most time.Duration, opts ...throttle.WaiterOption) *throttle.Waiter {
	t.Helper()
	w, err := throttle.NewWaiter(l, most, opts...)
	require.NoError(t, err)
	return w
}

// allow asks for one event, and returns how long that took.
func allow(t testing.TB, ctx context.Context, l ratelimit.Limiter) (time.Duration, ratelimit.Result) {
	t.Helper()
	took, r, err := timed(func() (ratelimit.Result, error) { return l.Allow(ctx, "key") })
	require.NoError(t, err)
	return took, r
}

func timed(call func() (ratelimit.Result, error)) (time.Duration, ratelimit.Result, error) {
	began := time.Now()
	r, err := call()
	return time.Since(began), r, err
}

// spend takes n events.
func spend(t testing.TB, l ratelimit.Limiter, n int) ratelimit.Result {
	t.Helper()
	r, err := l.AllowN(t.Context(), "key", n)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	return r
}

func peek(t testing.TB, l ratelimit.Limiter) ratelimit.Result {
	t.Helper()
	r, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	return r
}

// broken fails in the methods for which an error is set, and is otherwise the limiter.
type broken struct {
	ratelimit.Limiter
	allow, peek, refund, reset error
	works                      int // calls of AllowN that succeed before allow is returned
	calls                      int
}

func (b *broken) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if b.calls++; b.allow != nil && b.calls > b.works {
		return ratelimit.Result{}, b.allow
	}
	return b.Limiter.AllowN(ctx, key, n)
}

func (b *broken) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if b.peek != nil {
		return ratelimit.Result{}, b.peek
	}
	return b.Limiter.Peek(ctx, key)
}

func (b *broken) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if b.refund != nil {
		return b.refund
	}
	return b.Limiter.Refund(ctx, key, charged, n)
}

func (b *broken) Reset(ctx context.Context, key string) error {
	if b.reset != nil {
		return b.reset
	}
	return b.Limiter.Reset(ctx, key)
}

// badInputIsRefused checks the contract of every Limiter.
func badInputIsRefused(t *testing.T, l ratelimit.Limiter) {
	t.Helper()
	ctx := t.Context()
	_, err := l.AllowN(ctx, "key", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	_, err = l.Allow(ctx, "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	_, err = l.Peek(ctx, "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.ErrorIs(t, l.Reset(ctx, ""), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, l.Refund(ctx, "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidN)
	require.ErrorIs(t, l.Refund(ctx, "key", ratelimit.Result{Allowed: true}, 0), ratelimit.ErrInvalidN)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = l.Allow(ended, "key")
	require.ErrorIs(t, err, context.Canceled)
}

// aZeroValueIsAnError checks the rule for exported structs.
func aZeroValueIsAnError(t *testing.T, l interface {
	ratelimit.Limiter
	ratelimit.PolicyAppender
}) {
	t.Helper()
	ctx := t.Context()
	_, err := l.Allow(ctx, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = l.Peek(ctx, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, l.Refund(ctx, "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, l.Reset(ctx, "key"), ratelimit.ErrInvalidLimit)
	_, err = l.AppendPolicies(ctx, nil, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

// errorsAreTheLimiters checks that each method returns the error of the wrapped limiter.
func errorsAreTheLimiters(t *testing.T, wrap func(l ratelimit.Limiter) ratelimit.Limiter) {
	t.Helper()
	ctx := t.Context()
	b := &broken{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(2))}
	l := wrap(b)
	charged := spend(t, l, 1)
	b.allow, b.peek, b.refund, b.reset = ratelimit.ErrStore, ratelimit.ErrStore, ratelimit.ErrStore, ratelimit.ErrStore
	r, err := l.Allow(ctx, "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)
	require.Zero(t, r)
	r, err = l.Peek(ctx, "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)
	require.Zero(t, r)
	require.ErrorIs(t, l.Refund(ctx, "key", charged, 1), ratelimit.ErrStore)
	require.ErrorIs(t, l.Reset(ctx, "key"), ratelimit.ErrStore)
}

// policiesAreTheLimiters checks AppendPolicies.
func policiesAreTheLimiters(t *testing.T, wrap func(l ratelimit.Limiter) ratelimit.Limiter) {
	t.Helper()
	lim := inMemory(t, "token_bucket", ratelimit.PerHour(2))
	want, err := ratelimit.AppendPolicies(t.Context(), make([]ratelimit.Policy, 1), lim, "key")
	require.NoError(t, err)
	require.Len(t, want, 2)
	got, err := ratelimit.AppendPolicies(t.Context(), make([]ratelimit.Policy, 1), wrap(lim), "key")
	require.NoError(t, err)
	require.Equal(t, want, got)
}
