package denycache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// distant is a store at a distance: a call takes some time to be decided, and its
// answer some more.
type distant struct {
	store.Store
	way   func(ctx context.Context) (there, back time.Duration)
	calls atomic.Int64
	space atomic.Pointer[store.Namespace] // of the last call
}

func (s *distant) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.calls.Add(1)
	s.space.Store(ns)
	there, back := s.way(ctx)
	time.Sleep(there)
	defer time.Sleep(back)
	return s.Store.Take(ctx, ns, key, l, n)
}

// Refund is decided at another instant than those at which it is sent and answered,
// so that what happens has an order.
func (s *distant) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	there, back := s.way(ctx)
	time.Sleep(there + 1)
	defer time.Sleep(back + 1)
	return s.Store.Refund(ctx, ns, key, l, c)
}

// Reset is like Refund.
func (s *distant) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	there, back := s.way(ctx)
	time.Sleep(there + 1)
	defer time.Sleep(back + 1)
	return s.Store.Reset(ctx, ns, key)
}

// inMemory is a store in memory, by the bubble's clock, at the distance that a
// call's context says.
func distantMemory(t testing.TB) *distant {
	t.Helper()
	s, err := memstore.New()
	require.NoError(t, err)
	return &distant{Store: s, way: func(ctx context.Context) (there, back time.Duration) {
		w, _ := ctx.Value(timing{}).(timing)
		return w.there, w.back
	}}
}

// timing is when a call is sent, and how far away the store is for it.
type timing struct{ sent, there, back time.Duration }

// call makes a call at its time.
func (w timing) call(t *testing.T, wg *sync.WaitGroup, call func(ctx context.Context)) {
	wg.Go(func() {
		time.Sleep(w.sent)
		call(context.WithValue(t.Context(), timing{}, w))
	})
}

const ms = time.Millisecond

// ---- No false denial.

// smallLimit has waits of some ms, so that many of them end.
func smallLimit(algorithm string) ratelimit.Limit {
	if hasBurst(algorithm) {
		return ratelimit.Limit{Rate: 20, Period: 50 * time.Millisecond, Burst: 12}
	}
	return ratelimit.Limit{Rate: 20, Period: 20 * time.Millisecond}
}

// raised is smallLimit in one half of the time, and half as much again in the other.
func raised(algorithm string, half bool) ratelimit.Limit {
	l := smallLimit(algorithm)
	if half && l.Burst > 0 {
		l.Burst += l.Burst / 2
	} else if half {
		l.Rate += l.Rate / 2
	}
	return l
}

// traffic is the calls of some processes on four keys, in costs of 1 to 5, and what
// became of them.
type traffic struct {
	algorithm string
	denials   int                           // local ones, after which it ends
	wrap      func(store.Store) store.Store // the first process' store
	raising   bool                          // there is one process, and a limit function

	decisions, denied, local, wrong atomic.Int64 // wrong: denied locally where the store would have admitted
}

const phase = 30 * time.Millisecond

// run lets three callers of one process, whose store is wrapped, and one of
// another spend. The first process also refunds and resets. Each local denial is
// compared with what the store says of the same call at the same instant.
func (c *traffic) run(t *testing.T) *traffic {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		base := time.Now()
		limit := func() ratelimit.Limit {
			return raised(c.algorithm, c.raising && time.Since(base)/phase%2 == 1)
		}
		mem, err := memstore.New()
		require.NoError(t, err)
		delay := func() time.Duration { return max(0, rand.N(1200*time.Microsecond)-200*time.Microsecond) }
		way := func(context.Context) (there, back time.Duration) { return delay(), delay() }
		near := &distant{Store: mem, way: way}
		var opts []ratelimit.Option
		if c.raising {
			opts = append(opts, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit(), nil }))
		}
		process := newLimiter(t, c.algorithm, c.wrap(near), smallLimit(c.algorithm), opts...)
		other := process
		if !c.raising {
			other = newLimiter(t, c.algorithm, &distant{Store: mem, way: way}, smallLimit(c.algorithm))
		}

		goesOn := func() bool {
			if in := time.Since(base) % phase; c.raising && in > phase-5*time.Millisecond {
				time.Sleep(phase - in) // no call is under way when the limit changes
			}
			return c.local.Load() < int64(c.denials) && c.decisions.Load() < 20*int64(c.denials)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for goesOn() {
					time.Sleep(rand.N(20 * time.Microsecond))
					key := "key " + strconv.Itoa(rand.N(4))
					for range 4 {
						if goesOn() {
							c.turn(t, process, near, limit, key)
						}
					}
					if rand.N(500) == 0 && goesOn() && process.Reset(t.Context(), key) != nil {
						t.Error("Reset failed")
					}
				}
			})
		}
		wg.Go(func() {
			for goesOn() {
				if _, err := other.AllowN(t.Context(), "key "+strconv.Itoa(rand.N(4)), 1+rand.N(5)); err != nil {
					t.Error(err)
				}
				time.Sleep(rand.N(time.Millisecond))
			}
		})
		wg.Wait()
	})
	return c
}

// turn makes a call, and refunds it or checks it.
func (c *traffic) turn(t *testing.T, lim ratelimit.Limiter, near *distant, limit func() ratelimit.Limit, key string) {
	n := 1 + rand.N(5)
	r, err := lim.AllowN(t.Context(), key, n)
	c.decisions.Add(1)
	switch {
	case err != nil:
		t.Error(err)
	case r.Allowed:
		if rand.N(20) == 0 && lim.Refund(t.Context(), key, r, n) != nil {
			t.Error("Refund failed")
		}
	case r.Source() == ratelimit.SourceStore:
		c.denied.Add(1)
	default:
		c.local.Add(1)
		l := limit()
		integers := store.Limit{Rate: int64(l.Rate), Period: l.Period.Microseconds(), Burst: int64(max(l.Rate, l.Burst))}
		if l.Burst > 0 {
			integers.Burst = int64(l.Burst)
		}
		if truth, _ := store.Peek(t.Context(), near, near.space.Load(), key, integers, int64(n)); truth.OK() {
			c.wrong.Add(1)
		}
	}
}

func denyCached(t testing.TB) func(store.Store) store.Store {
	return func(s store.Store) store.Store { return newDenyCache(t, s) }
}

func TestADenyCacheDeniesNothingThatTheStoreWouldAdmit(t *testing.T) {
	for _, raising := range []bool{false, true} {
		for _, algorithm := range algorithms {
			t.Run(fmt.Sprintf("%s, raising %v", algorithm, raising), func(t *testing.T) {
				denials := effort.Of(4_000, 20_000, 210_000) // of each algorithm: over 10^6 in a long run
				if raising {
					denials = effort.Of(2_000, 15_000, 50_000)
				}
				c := &traffic{algorithm: algorithm, denials: denials, wrap: denyCached(t), raising: raising}
				c.run(t)
				t.Logf("%d decisions, of which %d were local denials, %d of them false; the store denied %d",
					c.decisions.Load(), c.local.Load(), c.wrong.Load(), c.denied.Load())
				require.Zero(t, c.wrong.Load())
				require.GreaterOrEqual(t, c.local.Load(), int64(denials))
			})
		}
	}
}

// naive is a deny cache as one would write it first, with at most one fault.
type naive struct {
	store.Store
	fault string
	base  time.Time

	mu      sync.Mutex
	entries map[string]naiveEntry
	changes map[string]int
	pending map[string]int
}

type naiveEntry struct {
	n     int64
	until time.Duration
}

var faults = []string{"lives from the answer", "ignores the cost", "stays on Refund", "stays on Reset", "remembers what raced with a change"}

func newNaive(s store.Store, fault string) *naive {
	return &naive{
		Store: s, fault: fault, base: time.Now(),
		entries: map[string]naiveEntry{}, changes: map[string]int{}, pending: map[string]int{},
	}
}

func (c *naive) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	sent := time.Since(c.base)
	c.mu.Lock()
	e, ok := c.entries[key]
	changes := c.changes[key]
	c.mu.Unlock()
	if ok && sent < e.until && (e.n <= n || c.fault == "ignores the cost") {
		return store.Reply{Outcome: store.DeniedByCache, X: 1}, nil
	}
	r, err := c.Store.Take(ctx, ns, key, l, n)
	if err != nil || r.OK() || n > l.Burst {
		return r, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != "remembers what raced with a change" && (changes != c.changes[key] || c.pending[key] > 0) {
		return r, err
	}
	retry := time.Duration(r.Report(ns.Rule, l, n, 0).Retry) * time.Microsecond
	until := sent + retry - time.Microsecond
	if c.fault == "lives from the answer" {
		until = time.Since(c.base) + retry
	}
	c.entries[key] = naiveEntry{n, until}
	return r, err
}

func (c *naive) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, charged store.Receipt) error {
	return c.change(key, "stays on Refund", func() error { return c.Store.Refund(ctx, ns, key, l, charged) })
}

func (c *naive) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	return c.change(key, "stays on Reset", func() error { return c.Store.Reset(ctx, ns, key) })
}

func (c *naive) change(key, fault string, call func() error) error {
	if c.fault == fault {
		return call()
	}
	c.mu.Lock()
	delete(c.entries, key)
	c.pending[key]++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.changes[key]++
		c.pending[key]--
		c.mu.Unlock()
	}()
	return call()
}

func TestTheTrafficFindsTheFaultsOfANaiveDenyCache(t *testing.T) {
	wrong := func(t *testing.T, fault string, raising bool) int64 {
		c := &traffic{algorithm: "token_bucket", denials: effort.Of(20_000, 40_000, 60_000), raising: raising}
		c.wrap = func(s store.Store) store.Store { return newNaive(s, fault) }
		c.run(t)
		t.Logf("%q: %d false denials of %d", fault, c.wrong.Load(), c.local.Load())
		return c.wrong.Load()
	}
	found := func(fault string, raising bool) bool {
		for range 10 { // some need two calls that meet
			if wrong(t, fault, raising) > 0 {
				return true
			}
		}
		return false
	}
	require.Zero(t, wrong(t, "", false), "without a fault")
	for _, fault := range faults {
		require.True(t, found(fault, false), fault)
	}
	require.True(t, found("", true), "it does not see that the limit is raised")
}

// spaceOf is a namespace of an algorithm.
func spaceOf(t *testing.T, algorithm string) *store.Namespace {
	t.Helper()
	p := &prepared{Store: memory(t)}
	newLimiter(t, algorithm, p, ratelimit.PerHour(1))
	return store.NewNamespace(p.rule, "name")
}

// prepared keeps the rule of the last limiter that was made on it.
type prepared struct {
	store.Store
	rule *store.Rule
}

func (p *prepared) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	p.rule = rule
	return p.Store.Prepare(rule, l, fixed)
}

// proofs are what the store has denied, as its callers were told.
type proofs struct {
	mu     sync.Mutex
	denied []told
}

type told struct {
	n  int
	at time.Time
	d  time.Duration // for which it is denied at least
}

func (p *proofs) add(n int, at time.Time, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denied = append(p.denied, told{n, at, d})
}

// of reports whether n events were denied at the time. All calls have returned by then.
func (p *proofs) of(n int, at time.Time) bool {
	return slices.ContainsFunc(p.denied, func(d told) bool { return d.n <= n && at.Before(d.at.Add(d.d)) })
}

// A server cannot be asked what it would have said at the instant of a local
// denial, but just after it. If it denies then, it would have denied; if it admits,
// one of its answers must prove the denial.
func TestADenyCacheDeniesNothingThatRedisWouldAdmit(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			far := &distant{Store: onRedis(t, redistest.Shared(t).Client(t)), way: func(context.Context) (there, back time.Duration) { return 0, 0 }}
			integers := store.Limit{Rate: 20, Period: 100_000, Burst: 20}
			d := newLimiter(t, algorithm, newDenyCache(t, far), ratelimit.Limit{Rate: 20, Period: 100 * ms})
			var proven, questioned proofs
			var local atomic.Int64
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					enough, end := time.Now().Add(time.Duration(effort.Of(150, 500))*ms), time.Now().Add(10*time.Second)
					for now := time.Now(); now.Before(enough) || local.Load() == 0 && now.Before(end); now = time.Now() {
						n, called := 1+rand.N(3), time.Now()
						r, err := d.AllowN(t.Context(), "key", n)
						if err != nil {
							t.Error(err)
						}
						switch {
						case r.Source() != ratelimit.SourceStore:
							local.Add(1)
						case r.Allowed:
							continue
						default:
							proven.add(n, called, r.RetryAfter)
							continue
						}
						if truth, err := store.Peek(t.Context(), far, far.space.Load(), "key", integers, int64(n)); err == nil && !truth.OK() {
							continue
						}
						questioned.add(n, called, 0)
					}
				})
			}
			wg.Wait()
			for _, q := range questioned.denied {
				require.True(t, proven.of(q.n, q.at), "%d events were denied, and nothing proves it", q.n)
			}
			t.Logf("%d local denials; just after %d of them Redis admitted, none too early", local.Load(), len(questioned.denied))
			require.Positive(t, local.Load())
		})
	}
}
