package regions_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/store/regions"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var algorithms = []string{"fixed_window", "sliding_window", "token_bucket"}

const (
	second = int64(1e6)             // µs
	minute = 60 * second            // a window of a world: keys on Redis expire in real time, which passes slower
	epoch  = 1_700_000_000 * second // a window begins
	skew   = int64(200_000)         // µs by which clocks are off, at most
)

// world is some regions, and the processes in them, that take turns. While one waits for a
// store others decide, time passes, and calls are lost.
type world struct {
	t         testing.TB
	rng       *rand.Rand
	algorithm string
	now       int64   // Unix µs
	off       []int64 // of each region's clock
	limit     ratelimit.Limit
	weights   map[string]int
	stores    []store.Store       // of the regions
	plain     []ratelimit.Limiter // of each region, by calls that are not lost
	processes []*process
	depth     int // of decisions inside of others
	skew      int64

	events  []*event
	flights []flight
	moved   int
	space   *store.Namespace
}

// process is one of a region.
type process struct {
	ratelimit.Limiter
	shared *regions.Store
	region int
	last   *event // that was admitted
	debit  flight // that is to be credited
}

// event is n of them that were admitted.
type event struct {
	at, window int64 // Unix µs; by the region's clock, of the window
	n          int64
}

// flight is n events that were debited at from, and credited at to.
type flight struct{ from, to, n int64 }

// link is how a process reaches a store.
type link struct {
	store.Store
	w  *world
	p  *process
	to int
}

func (l *link) own() bool { return l.p.region == l.to }

// meanwhile lets time pass, and others decide.
func (w *world) meanwhile() {
	switch w.rng.IntN(8) {
	case 0, 1:
		w.now += w.rng.Int64N(minute * 3 / 100)
	case 2:
		if w.rng.IntN(20) == 0 {
			w.now += w.rng.Int64N(minute)
		}
	case 3, 4:
		if w.depth < 3 {
			w.decide()
		}
	}
}

var errLost = fmt.Errorf("%w: lost", store.ErrTimeout)

// call is a call of a store: it may be lost, or only its reply.
func (l *link) call(do func() error) error {
	l.w.meanwhile()
	if l.w.rng.IntN(40) == 0 {
		return errLost
	}
	if err := do(); err != nil {
		return err
	}
	l.w.meanwhile()
	if l.w.rng.IntN(40) == 0 {
		return errLost
	}
	return nil
}

// Decide implements [store.Store].
func (l *link) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, l, l.Store, requests, replies)
}

func (l *link) Peek(ctx context.Context, ns *store.Namespace, key string, by store.Limit, n int64) (r store.Reply, err error) {
	err = l.call(func() error {
		r, err = store.Peek(ctx, l.Store, ns, key, by, n)
		return err
	})
	return r, err
}

// Take is of the own share.
func (l *link) Take(ctx context.Context, ns *store.Namespace, key string, by store.Limit, n int64) (store.Reply, error) {
	r, err := l.Store.Take(ctx, ns, key, by, n)
	if err == nil && r.OK() {
		l.w.space = ns
		l.p.last = &event{l.w.now, r.X - r.X%minute, n}
		l.w.events = append(l.w.events, l.p.last)
	}
	return r, err
}

// TakeUpTo is a debit.
func (l *link) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, by store.Limit, n int64) (r store.Reply, err error) {
	err = l.call(func() error {
		if r, err = store.TakeUpTo(ctx, l.Store, ns, key, by, n); err == nil && r.OK() {
			l.p.debit = flight{from: l.w.now, n: min(n, ns.Rule.Available(by, r))}
		}
		return err
	})
	return r, err
}

// Refund is a credit.
func (l *link) Refund(ctx context.Context, ns *store.Namespace, key string, by store.Limit, c store.Receipt) error {
	return l.call(func() error {
		require.True(l.w.t, l.own())
		require.Equal(l.w.t, l.p.debit.n, c.N, "what was debited is credited")
		l.p.debit.to = l.w.now
		l.w.flights = append(l.w.flights, l.p.debit)
		l.w.moved += int(c.N)
		l.p.debit = flight{}
		return l.Store.Refund(ctx, ns, key, by, c)
	})
}

// newWorld is one of some regions, each on a store that open makes for its clock.
func newWorld(t testing.TB, seed uint64, algorithm string, open func(region int, clock func() time.Time) store.Store) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), algorithm: algorithm, now: epoch + 40*second} // a minute begins
	if w.rng.IntN(2) == 0 {
		w.skew = 60 * skew
	}
	n := 2 + w.rng.IntN(2)
	w.limit = ratelimit.PerMinute(n + w.rng.IntN(30*n))
	if algorithm == "token_bucket" {
		w.limit.Burst = 2*n + w.rng.IntN(30*n)
	}
	plain := map[string]store.Store{}
	if w.rng.IntN(4) > 0 {
		w.weights = map[string]int{}
	}
	for i := range n {
		w.off = append(w.off, w.rng.Int64N(w.skew+1))
		w.stores = append(w.stores, open(i, func() time.Time { return time.UnixMicro(w.now + w.off[i]) }))
		plain[name(i)] = w.stores[i]
		if w.weights != nil {
			w.weights[name(i)] = 1 + w.rng.IntN(30)
		}
	}
	for i := range n {
		w.plain = append(w.plain, limiter(t, algorithm, w.region(i, plain), w.limit))
	}
	for i := range 2 * n { // two processes in each region
		p := &process{region: i % n}
		links := map[string]store.Store{}
		for j := range n {
			links[name(j)] = &link{w.stores[j], w, p, j}
		}
		p.shared = w.region(p.region, links)
		p.Limiter = limiter(t, algorithm, p.shared, w.limit)
		w.processes = append(w.processes, p)
	}
	return w
}

// name is that of a region.
func name(i int) string { return string(rune('a' + i)) }

func (w *world) region(i int, stores map[string]store.Store) *regions.Store {
	var opts []regions.Option
	if w.weights != nil {
		opts = append(opts, regions.WithWeights(w.weights))
	}
	s, err := regions.New(name(i), stores, opts...)
	require.NoError(w.t, err)
	return s
}

func limiter(t testing.TB, algorithm string, s store.Store, limit ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(algorithm, s, limit, append(opts, ratelimit.WithName("shared"))...)
	require.NoError(t, err)
	return l
}

// decide has a process decide, and gives back some of what it admits.
func (w *world) decide() {
	w.depth++
	defer func() { w.depth-- }()
	p := w.processes[w.rng.IntN(len(w.processes))]
	if w.depth == 1 && w.rng.IntN(3) > 0 { // most of the load is in one region
		p = w.processes[0]
	}
	if w.rng.IntN(2) == 0 {
		p.shared.Forget()
	}
	n := 1
	if w.rng.IntN(4) == 0 {
		n = 1 + w.rng.IntN(8)
	}
	p.last = nil
	r, err := p.AllowN(w.t.Context(), "key", n)
	require.NoError(w.t, err)
	if r.Allowed && p.last != nil && w.rng.IntN(20) == 0 {
		require.NoError(w.t, w.plain[p.region].Refund(w.t.Context(), "key", r, n))
		p.last.n = 0
	}
}

// checkCounts holds what the shares count to what they have admitted in a window and the one
// before. It is for times at which nothing is under way, and all clocks show one window.
func (w *world) checkCounts() {
	counts, window := [2]int64{}, (w.now+w.off[0])/minute*minute
	for i, s := range w.stores {
		if (w.now+w.off[i])/minute*minute != window || w.space == nil {
			return
		}
		r, err := store.Peek(w.t.Context(), s, w.space, "key", store.Limit{Rate: 1, Period: minute, Burst: 1}, 1)
		require.NoError(w.t, err)
		if w.algorithm == "fixed_window" {
			r.Y, r.Z = 0, r.Y
		}
		counts[0], counts[1] = counts[0]+r.Z, counts[1]+r.Y
	}
	for _, e := range w.events {
		for i := range counts {
			if e.window == window-int64(i)*minute {
				counts[i] -= e.n
			}
		}
	}
	require.GreaterOrEqual(w.t, counts[0], int64(0), "of this window")
	if w.algorithm == "sliding_window" {
		require.GreaterOrEqual(w.t, counts[1], int64(0), "of the one before")
	}
}

// reached is the part of the bound that was reached.
func (w *world) reached() (part float64) {
	rate, burst := int64(w.limit.Rate), int64(w.limit.Burst)
	if w.algorithm == "fixed_window" {
		windows := map[int64]int64{}
		for _, e := range w.events {
			windows[e.window] += e.n
			part = max(part, float64(windows[e.window])/float64(rate))
		}
		return part
	}
	for i, from := range w.events {
		bound := rate*minute + rate*w.skew // in millionths
		if w.algorithm == "token_bucket" {
			bound = burst*minute + rate // and 1 µs
			for _, f := range w.flights {
				if f.from <= from.at && from.at <= f.to {
					bound += f.n * minute
				}
			}
		}
		sum := int64(0)
		for _, to := range w.events[i:] {
			sum += to.n
			part = max(part, float64(sum*minute)/float64(bound+rate*(to.at-from.at)))
		}
	}
	return part
}

// TestRegionsNeverAdmitMoreThanTheLimit runs random schedules of some regions, with
// calls that overlap, late ones and lost ones.
func TestRegionsNeverAdmitMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, algorithm string, worlds int, open func(t testing.TB, id, region int, clock func() time.Time) store.Store) {
		if testing.Short() {
			worlds = 1 + worlds/10
		}
		most, moved := 0.0, 0
		for seed := range worlds {
			w := newWorld(t, uint64(seed), algorithm, func(region int, clock func() time.Time) store.Store {
				return open(t, seed, region, clock)
			})
			for range 400 {
				w.now += w.rng.Int64N(minute / 125)
				w.decide()
				if algorithm != "token_bucket" {
					w.checkCounts()
				}
			}
			part := w.reached()
			require.LessOrEqual(t, part, 1.0, "seed %d", seed)
			most, moved = max(most, part), moved+w.moved
		}
		t.Logf("%d schedules reached %.3f of the bound, and moved %d events", worlds, most, moved)
		if worlds >= 300 {
			require.Greater(t, most, 0.97, "the schedules are too tame")
		}
		if worlds > 1 {
			require.Greater(t, moved, 10*worlds)
		}
	}
	for _, algorithm := range algorithms {
		t.Run(algorithm+" in memory", func(t *testing.T) {
			test(t, algorithm, effort.Of(20, 100, 1_500), func(t testing.TB, _, _ int, clock func() time.Time) store.Store {
				return memory(t, memstore.WithClock(clock))
			})
		})
		t.Run(algorithm+" on Redis", func(t *testing.T) {
			client := redistest.Shared(t).Client(t)
			test(t, algorithm, effort.Of(2, 8, 100), func(t testing.TB, id, region int, clock func() time.Time) store.Store {
				s, err := redisstore.New(client, redisstore.WithClock(clock), redisstore.WithTimeout(time.Minute),
					redisstore.WithPrefix(fmt.Sprint(redistest.Prefix(t), id, "-", region)))
				require.NoError(t, err)
				return s
			})
		})
	}
}

func memory(t testing.TB, opts ...memstore.Option) store.Store {
	t.Helper()
	s, err := memstore.New(opts...)
	require.NoError(t, err)
	return s
}
