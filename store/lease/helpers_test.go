package lease_test

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// algorithms are those that can be leased.
var algorithms = []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"}

func eachAlgorithm(t *testing.T, test func(t *testing.T, algorithm string)) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) { test(t, algorithm) })
	}
}

func memory(t testing.TB, opts ...memstore.Option) store.Store {
	t.Helper()
	s, err := memstore.New(opts...)
	require.NoError(t, err)
	return s
}

// stopped is a clock of a store that stands still.
var stopped = memstore.WithClock(func() time.Time { return time.Unix(1_800_000_000, 0) })

func newLimiter(t testing.TB, algorithm string, s store.Store, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	of := func(s store.Store) (ratelimit.Limiter, error) {
		return ratelimit.New(algorithm, s, l, append(opts, ratelimit.WithName("test"))...)
	}
	lim, err := of(s)
	require.NoError(t, err)
	recipes.Store(lim, recipe{s, of})
	return lim
}

// recipes are how limiters of newLimiter were made, so that newLease makes others alike.
var recipes sync.Map

type recipe struct {
	store store.Store
	of    func(s store.Store) (ratelimit.Limiter, error)
}

// onLease is a limiter on a lease.
type onLease struct {
	limiting
	*lease.Store
	plain ratelimit.Limiter // like it, without the lease
}

type limiting interface {
	ratelimit.Limiter
	ratelimit.Charger
	ratelimit.Delayer
	ratelimit.PolicyAppender
	AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error)
}

// These are those of the limiter.
func (d *onLease) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return d.limiting.Peek(ctx, key)
}

func (d *onLease) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	return d.limiting.Refund(ctx, key, charged, n)
}

func (d *onLease) Reset(ctx context.Context, key string) error { return d.limiting.Reset(ctx, key) }

// Unwrap returns one of the five.
func (d *onLease) Unwrap() ratelimit.Limiter { return d.limiting }

// leaseOf tries to make a limiter like l on a lease.
func leaseOf(l ratelimit.Limiter, life time.Duration, opts ...lease.Option) (*onLease, error) {
	made, _ := recipes.Load(l)
	d, err := lease.New(made.(recipe).store, life, opts...)
	if err != nil {
		return nil, err
	}
	lim, err := made.(recipe).of(d)
	if err != nil {
		return nil, err
	}
	return &onLease{lim.(limiting), d, l}, nil
}

// newLease makes a limiter like l on a lease.
func newLease(t testing.TB, l ratelimit.Limiter, life time.Duration, opts ...lease.Option) *onLease {
	t.Helper()
	d, err := leaseOf(l, life, opts...)
	require.NoError(t, err)
	return d
}

func allow(t testing.TB, l ratelimit.Limiter) ratelimit.Result { return allowN(t, l, 1) }

func allowN(t testing.TB, l ratelimit.Limiter, n int) ratelimit.Result {
	r, err := l.AllowN(t.Context(), "key", n)
	// A check of package require costs more than a decision, and so does Helper.
	if err != nil || r.Allowed != (r.RetryAfter == 0) || r.Remaining < 0 || r.Remaining > r.Limit {
		t.Helper()
		t.Fatalf("%+v, %v", r, err)
	}
	return r
}

// remaining is what the store has left of the key.
func remaining(t testing.TB, plain ratelimit.Limiter) int {
	t.Helper()
	r, err := plain.Peek(t.Context(), "key")
	require.NoError(t, err)
	return r.Remaining
}

// fullKey is how many events of another key there are.
func fullKey(t testing.TB, l ratelimit.Limiter) int {
	t.Helper()
	r, err := l.Peek(t.Context(), "fresh")
	require.NoError(t, err)
	return r.Remaining
}

func closeLease(t testing.TB, d *onLease) {
	t.Helper()
	require.NoError(t, d.Close(t.Context()))
	require.Zero(t, d.Stats().Held)
	require.Zero(t, d.Stats().Keys)
}

// hold has a process of a synctest bubble ask until it holds at least so many events.
func hold(t testing.TB, d *onLease, want int) (taken []ratelimit.Result) {
	t.Helper()
	for d.Stats().Held < want {
		r := allow(t, d)
		require.True(t, r.Allowed)
		taken = append(taken, r)
		require.Less(t, len(taken), 10_000, "leases do not grow")
		synctest.Wait()
	}
	return taken
}

// call is one call of a store.
type call struct {
	op string
	n  int64
}

// recorder is a store that tells what it is asked for, and may be far away, or fail.
type recorder struct {
	store.Store

	mu      sync.Mutex
	calls   []call
	latency time.Duration
	fail    func(op string) error
}

func (s *recorder) called(op string, n int64) error {
	s.mu.Lock()
	s.calls = append(s.calls, call{op, n})
	latency, fail := s.latency, s.fail
	s.mu.Unlock()
	time.Sleep(latency / 2)
	if fail != nil {
		return fail(op)
	}
	return nil
}

func (s *recorder) answered() {
	s.mu.Lock()
	latency := s.latency
	s.mu.Unlock()
	time.Sleep(latency - latency/2)
}

// set changes how s answers.
func (s *recorder) set(latency time.Duration, fail func(op string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency, s.fail = latency, fail
}

// reset forgets the calls, and returns them.
func (s *recorder) reset() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// onStopped is a lease on a store whose clock stands still, and which tells what it is asked.
func onStopped(t testing.TB, life time.Duration) (*lease.Store, *recorder) {
	t.Helper()
	s := &recorder{Store: memory(t, stopped)}
	d, err := lease.New(s, life)
	require.NoError(t, err)
	return d, s
}

// asked are the numbers of events of the calls of op.
func asked(calls []call, op string) (n []int) {
	for _, c := range calls {
		if c.op == op {
			n = append(n, int(c.n))
		}
	}
	return n
}

// Decide implements [store.Store].
func (s *recorder) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *recorder) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := s.called("Take", n); err != nil {
		return store.Reply{}, err
	}
	defer s.answered()
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *recorder) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := s.called("TakeUpTo", n); err != nil {
		return store.Reply{}, err
	}
	defer s.answered()
	return store.TakeUpTo(ctx, s.Store, ns, key, l, n)
}

func (s *recorder) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := s.called("Peek", n); err != nil {
		return store.Reply{}, err
	}
	defer s.answered()
	return store.Peek(ctx, s.Store, ns, key, l, n)
}

func (s *recorder) Overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	if err := s.called("Overdraw", n); err != nil {
		return store.Reply{}, err
	}
	defer s.answered()
	return store.Overdraw(ctx, s.Store, ns, key, l, n, most)
}

func (s *recorder) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if err := s.called("Refund", c.N); err != nil {
		return err
	}
	defer s.answered()
	return s.Store.Refund(ctx, ns, key, l, c)
}

func (s *recorder) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	op := "TakeAll"
	if !slices.ContainsFunc(requests, func(r store.Request) bool { return r.Op != store.OpLook }) {
		op = "Peek"
	}
	if err := s.called(op, int64(len(requests))); err != nil {
		return err
	}
	defer s.answered()
	return s.Store.Decide(ctx, requests, replies)
}
