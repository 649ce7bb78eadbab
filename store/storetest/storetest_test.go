package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

func openReference(_ testing.TB, clock func() time.Time) store.Store { return newReference(clock) }

// On the reference store, only the model and the checks can find faults.
func TestReferenceStore(t *testing.T) { Run(t, openReference, Traces(effort.Of(20, 100, 300))) }

// An algorithm is checked even if only its promise is known.
func TestStoriesAreOptional(t *testing.T) {
	for _, a := range algorithms {
		plain := algorithm{name: a.name, newModel: a.newModel, limits: tried, bound: a.bound}
		s := newSuite(openReference, Traces(9))
		s.algorithms = []algorithm{plain}
		for _, c := range checks {
			t.Run(a.name+"/"+c.name, func(t *testing.T) { s.run(t, plain, c) })
		}
		for _, c := range checksOfStores {
			t.Run(a.name+"/"+c.name, func(t *testing.T) { s.run(t, algorithm{}, c) })
		}
	}
}

// withoutLogs is a store that has no place for logs.
type withoutLogs struct{ *reference }

var errLog = errors.New("a log")

func (w withoutLogs) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if ns.Rule.NewLog != nil {
		return store.Reply{}, errLog
	}
	return w.reference.Take(ctx, ns, key, l, n)
}

// Decide implements [store.Store].
func (w withoutLogs) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, w, w.reference, requests, replies)
}

func (w withoutLogs) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	for _, q := range requests {
		if q.Namespace.Rule.NewLog != nil {
			return errLog
		}
	}
	return w.reference.Decide(ctx, requests, replies)
}

func TestAStoreCanDoWithoutAnAlgorithm(t *testing.T) {
	Run(t, func(_ testing.TB, clock func() time.Time) store.Store { return withoutLogs{newReference(clock)} },
		Traces(9), Without("sliding_log"))
}

func TestWithoutIsOfAlgorithmsThatThereAre(t *testing.T) {
	var all []string
	for _, a := range algorithms {
		all = append(all, a.name)
	}
	for _, names := range [][]string{{"sliding_lag"}, {""}, all} {
		if err := newSuite(openReference, Without(names...)).leaveOut(); err == nil {
			t.Errorf("Without(%q) is taken", names)
		}
	}
	for _, n := range []int{0, -1} {
		if err := newSuite(openReference, Traces(n)).leaveOut(); err == nil {
			t.Errorf("Traces(%d) is taken: it would prove nothing", n)
		}
	}
	s := newSuite(openReference, Without(all[1:3]...), Without(all[3:]...))
	if err := s.leaveOut(); err != nil || len(s.algorithms) != 1 || s.algorithms[0].name != all[0] {
		t.Errorf("%v, %d are left", err, len(s.algorithms))
	}
}

// FuzzReference replaces a value with arbitrary bytes. Calls then fail with ErrCorrupt or return an
// answer, and after a Reset the key is new.
func FuzzReference(f *testing.F) {
	clock := newClock()
	m := newReference(clock.read)
	l := ratelimit.PerMinute(10)
	for _, a := range algorithms {
		lim, err := ratelimit.New(a.name, m, l)
		if err != nil {
			f.Fatal(err)
		}
		for range 3 {
			if _, err := lim.AllowN(background, "key", 3); err != nil {
				f.Fatal(err)
			}
			clock.advance(time.Second)
		}
	}
	for _, b := range m.values {
		f.Add(b)
	}
	f.Add(store.AppendState(nil, store.State{At: clock.us.Load(), Period: 3650 * 24 * 3600 * 1e6, Whole: 1<<32 - 1, Part: 1<<49 - 1}, store.Limit{Rate: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, a := range algorithms {
			clock := newClock()
			m := newReference(clock.read)
			seen := &tap{Store: m}
			lim, err := ratelimit.New(a.name, seen, l)
			if err != nil {
				t.Fatal(err)
			}
			charged, err := lim.AllowN(background, "key", 3)
			if err != nil {
				t.Fatal(err)
			}
			plant := func() { m.values[address(seen.space, "key")] = bytes.Clone(b) }
			expect := func(r ratelimit.Result, err error) {
				t.Helper()
				if err != nil && !errors.Is(err, store.ErrCorrupt) {
					t.Fatalf("%s: %v", a.name, err)
				}
				if err == nil && (r.Limit != 10 || r.Remaining < 0 || r.Remaining > 10) {
					t.Fatalf("%s: %+v", a.name, r)
				}
			}
			for range 2 {
				plant()
				expect(lim.Peek(background, "key"))
				expect(lim.AllowN(background, "key", 2))
				plant()
				expect(lim.(ratelimit.Charger).Charge(background, "key", 2))
				plant()
				if err := lim.Refund(background, "key", charged, 2); err != nil {
					expect(ratelimit.Result{}, err)
				}
				expect(lim.Peek(background, "key"))
				clock.advance(time.Hour)
			}
			if err := lim.Reset(background, "key"); err != nil {
				t.Fatal(err)
			}
			if r, err := lim.Peek(background, "key"); r.Remaining != 10 || err != nil {
				t.Fatalf("%s: %+v, %v", a.name, r, err)
			}
		}
	})
}

// wrong is the reference store with a planted bug: a field that is not nil replaces the
// method.
type wrong struct {
	*reference
	take   func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error)
	peek   func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error)
	refund func(m *reference, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error
	reset  func(m *reference, ns *store.Namespace, key string) error
	force  func(m *reference, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error)
	all    func(m *reference, requests []store.Request, replies []store.Reply) error
}

var background = context.Background()

func (w *wrong) Take(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if w.take != nil {
		return w.take(w.reference, ns, key, l, n)
	}
	return w.reference.Take(background, ns, key, l, n)
}

// Decide implements [store.Store].
func (w *wrong) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, w, w.reference, requests, replies)
}

func (w *wrong) Peek(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if w.peek != nil {
		return w.peek(w.reference, ns, key, l, n)
	}
	return store.Peek(background, w.reference, ns, key, l, n)
}

func (w *wrong) Refund(_ context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if w.refund != nil {
		return w.refund(w.reference, ns, key, l, c)
	}
	return w.reference.Refund(background, ns, key, l, c)
}

func (w *wrong) Reset(_ context.Context, ns *store.Namespace, key string) error {
	if w.reset != nil {
		return w.reset(w.reference, ns, key)
	}
	return w.reference.Reset(background, ns, key)
}

func (w *wrong) Overdraw(_ context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	if w.force != nil {
		return w.force(w.reference, ns, key, l, n, most)
	}
	return store.Overdraw(background, w.reference, ns, key, l, n, most)
}

func (w *wrong) TakeAll(_ context.Context, requests []store.Request, replies []store.Reply) error {
	if w.all != nil {
		return w.all(w.reference, requests, replies)
	}
	return w.reference.Decide(background, requests, replies)
}

// afterOverdraw changes the state that Overdraw has written.
func afterOverdraw(f func(*store.State, store.Limit)) func(*reference) store.Store {
	return func(m *reference) store.Store {
		return &wrong{reference: m, force: func(m *reference, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
			r, err := store.Overdraw(background, m, ns, key, l, n, most)
			edit(m, ns, key, func(s *store.State) { f(s, l) })
			return r, err
		}}
	}
}

// clockwork is a reference store whose clock is changed by f.
func clockwork(f func(time.Time) time.Time) func(*reference) store.Store {
	return func(m *reference) store.Store {
		clock := m.clock
		m.clock = func() time.Time { return f(clock()) }
		return m
	}
}

// withKeys is a reference store in which f changes keys and namespaces.
func withKeys(f func(ns *store.Namespace, key string) (*store.Namespace, string)) func(*reference) store.Store {
	return func(m *reference) store.Store {
		return &wrong{reference: m,
			take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
				ns, key = f(ns, key)
				return m.Take(background, ns, key, l, n)
			},
			peek: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
				ns, key = f(ns, key)
				return store.Peek(background, m, ns, key, l, n)
			},
			refund: func(m *reference, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
				ns, key = f(ns, key)
				return m.Refund(background, ns, key, l, c)
			},
			reset: func(m *reference, ns *store.Namespace, key string) error {
				ns, key = f(ns, key)
				return m.Reset(background, ns, key)
			},
		}
	}
}

// withTurn is a reference store whose Take gets another Before, if it has one.
func withTurn(f func(before int64) int64) func(*reference) store.Store {
	return func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			if l.Before() > 0 {
				l = l.TurnBefore(f(l.Before()))
			}
			return m.Take(background, ns, key, l, n)
		}}
	}
}

// edit changes the state of a key, if it has one.
func edit(m *reference, ns *store.Namespace, key string, f func(*store.State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, l, err := store.ParseState(m.values[address(ns, key)]); err == nil {
		f(&s)
		m.values[address(ns, key)] = store.AppendState(nil, s, l)
	}
}

// planted are bugs that were each seen in some rate limiter, and where they can show.
// Some cannot be planted in the log, which keeps its state to itself.
var planted = []struct {
	name string
	open func(m *reference) store.Store
	in   string // algorithms, "all", "states" (all but the log) or "stores"
}{
	{"the clock is 1 µs fast after its first second", clockwork(func(t time.Time) time.Time {
		if t.Sub(epoch) > time.Second {
			return t.Add(time.Microsecond)
		}
		return t
	}), "all"},
	{"the clock is rounded up", clockwork(func(t time.Time) time.Time { return t.Add(999 * time.Nanosecond) }), "fixed_window sliding_window"}, // elsewhere every instant is as good as the next
	{"the clock counts milliseconds", clockwork(func(t time.Time) time.Time { return t.Truncate(time.Millisecond) }), "all"},
	{"a denial is charged", func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			r, err := m.Take(background, ns, key, l, n)
			if !r.OK() && n < l.Burst {
				_, _ = m.Take(background, ns, key, l, 1)
			}
			return r, err
		}}
	}, "all"},
	{"Peek charges", func(m *reference) store.Store {
		return &wrong{reference: m, peek: (*reference).take}
	}, "all"},
	{"Peek is of one event", func(m *reference) store.Store {
		return &wrong{reference: m, peek: func(m *reference, ns *store.Namespace, key string, l store.Limit, _ int64) (store.Reply, error) {
			return store.Peek(background, m, ns, key, l, 1)
		}}
	}, "all"},
	{"when the turn comes does not matter", withTurn(func(int64) int64 { return 0 }), "token_bucket leaky_bucket"},
	{"the turn may come 1 µs late", withTurn(func(before int64) int64 { return before + 1 }), "token_bucket leaky_bucket"},
	{"the turn must come 1 µs early", withTurn(func(before int64) int64 { return max(before-1, 1) }), "token_bucket leaky_bucket"},
	{"what is charged ahead of its turn is cut", func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			r, err := m.Take(background, ns, key, l, n)
			edit(m, ns, key, func(s *store.State) { s.Whole &^= 1 << 31 })
			return r, err
		}}
	}, "token_bucket"},
	{"a refund forgets when the charge was", func(m *reference) store.Store {
		return &wrong{reference: m, refund: func(m *reference, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
			c.At = m.clock().UnixMicro()
			c.Due = c.At + l.Period
			edit(m, ns, key, func(s *store.State) { c.At = s.At })
			return m.Refund(background, ns, key, l, c)
		}}
	}, "all"},
	{"a refund gives back one more", func(m *reference) store.Store {
		return &wrong{reference: m, refund: func(m *reference, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
			c.N++
			return m.Refund(background, ns, key, l, c)
		}}
	}, "all"},
	{"a refund gives back all", func(m *reference) store.Store {
		return &wrong{reference: m, refund: func(m *reference, ns *store.Namespace, key string, _ store.Limit, _ store.Receipt) error {
			return m.Reset(background, ns, key)
		}}
	}, "all"},
	{"a refund does nothing", func(m *reference) store.Store {
		return &wrong{reference: m, refund: func(*reference, *store.Namespace, string, store.Limit, store.Receipt) error { return nil }}
	}, "all"},
	{"a refund after the fact is paid in full", func(m *reference) store.Store {
		return &wrong{reference: m, refund: func(m *reference, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
			c.Due += 100 * l.Period
			return m.Refund(background, ns, key, l, c)
		}}
	}, "token_bucket leaky_bucket"},
	{"a refund is of any place in the queue", func(m *reference) store.Store {
		return &wrong{reference: m, refund: func(m *reference, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
			edit(m, ns, key, func(s *store.State) { c.At, c.Due = s.At, c.Due+100*l.Period })
			return m.Refund(background, ns, key, l, c)
		}}
	}, "leaky_bucket"},
	{"a debt ends where the limit is", afterOverdraw(func(s *store.State, l store.Limit) { s.Whole = min(s.Whole, l.Burst) }), "states"},
	{"a debt overwrites the one before", func(m *reference) store.Store {
		return &wrong{reference: m, force: func(m *reference, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
			edit(m, ns, key, func(s *store.State) { s.Whole = min(s.Whole, l.Rate) })
			return store.Overdraw(background, m, ns, key, l, n, most)
		}}
	}, "fixed_window sliding_window"},
	{"a Charge is of one event less", func(m *reference) store.Store {
		return &wrong{reference: m, force: func(m *reference, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
			return store.Overdraw(background, m, ns, key, l, max(1, n-1), most)
		}}
	}, "all"},
	{"a debt is refunded as what was within the limit", func(m *reference) store.Store {
		return &wrong{reference: m, refund: func(m *reference, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
			c.Overdrawn = false
			return m.Refund(background, ns, key, l, c)
		}}
	}, "token_bucket leaky_bucket"},
	{"an end of 0 is taken for none", func(m *reference) store.Store {
		return &wrong{reference: m, refund: func(m *reference, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
			m.mu.Lock()
			v, err := m.get(ns, key, m.now())
			m.mu.Unlock()
			if err != nil || v.end(ns.Rule) == 0 {
				return err
			}
			return m.Refund(background, ns, key, l, c)
		}}
	}, "all"},
	{"Reset does nothing", func(m *reference) store.Store {
		return &wrong{reference: m, reset: func(*reference, *store.Namespace, string) error { return nil }}
	}, "all"},
	{"the level is kept as a float64", afterTake(func(s *store.State, _ store.Limit) {
		level := float64(s.Whole) + float64(s.Part)/float64(s.Period)
		s.Whole = int64(level)
		s.Part = int64((level - float64(s.Whole)) * float64(s.Period))
	}), "token_bucket leaky_bucket"},
	{"the level is kept as a float32", afterTake(func(s *store.State, _ store.Limit) {
		s.Whole = int64(float32(s.Whole))
	}), "states"},
	{"the fraction is dropped", afterTake(func(s *store.State, _ store.Limit) { s.Part = 0 }), "token_bucket leaky_bucket sliding_window"},
	{"the Period of the state is not kept", afterTake(func(s *store.State, _ store.Limit) { s.Period = 1e6 }), "states"},
	{"a limit change starts afresh", beforeTake(func(s *store.State, l store.Limit) {
		if s.Period != l.Period {
			*s = store.State{}
		}
	}), "states"},
	{"a late reading rewinds the state", func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			now := m.clock().UnixMicro()
			edit(m, ns, key, func(s *store.State) { s.At = min(s.At, now) })
			return m.Take(background, ns, key, l, n)
		}}
	}, "states"},
	{"a late reading finds a key never seen", func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			now := m.clock().UnixMicro()
			edit(m, ns, key, func(s *store.State) {
				if s.At > now {
					*s = store.State{}
				}
			})
			return m.Take(background, ns, key, l, n)
		}}
	}, "states"},
	{"two calls read before either writes", func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			r, err := store.Peek(background, m, ns, key, l, n)
			if !r.OK() {
				return r, err
			}
			runtime.Gosched()
			l.Burst, l.Rate = 2*l.Burst, 2*l.Rate
			_, err = m.Take(background, ns, key, l, n)
			return r, err
		}}
	}, "all"},
	{"a lost update", func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			m.mu.Lock()
			next, r, err := m.step(ns, key, l, m.now(), n, 0, 0)
			m.mu.Unlock()
			runtime.Gosched()
			m.mu.Lock()
			m.put(ns, key, next)
			m.mu.Unlock()
			return r, err
		}}
	}, "all"},
	{"a Charge is a lost update", func(m *reference) store.Store {
		return &wrong{reference: m, force: func(m *reference, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
			var reply [1]store.Reply
			err := lateWrite(m, []store.Request{{Namespace: ns, Key: key, Limit: l, N: n, Op: store.OpOverdraw, Most: most}}, reply[:])
			return reply[0], err
		}}
	}, "all"},
	{"of several keys, updates are lost", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			if store.Alternatives(requests) || requests[0].Op == store.OpUpTo {
				return m.Decide(background, requests, replies)
			}
			return lateWrite(m, requests, replies)
		}}
	}, "all"},
	{"of several keys, those that fit are charged", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) (err error) {
			for i, q := range requests {
				if replies[i], err = m.take(q.Namespace, q.Key, q.Limit, q.N); err != nil {
					return err
				}
			}
			return nil
		}}
	}, "stores"},
	{"what is reserved is charged", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for i := range requests {
				requests[i].N, requests[i].Reserved = requests[i].N+requests[i].Reserved, 0
			}
			return m.Decide(background, requests, replies)
		}}
	}, "all"},
	{"what is reserved is given to everybody", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for i := range requests {
				requests[i].Reserved = 0
			}
			return m.Decide(background, requests, replies)
		}}
	}, "all"},
	{"alternatives are charged besides the one that was admitted", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for from, to := 0, 0; from < len(requests); from = to {
				for to = from + 1; to < len(requests) && !requests[to].Else; to++ {
				}
				if err := m.Decide(background, requests[from:to], replies[from:to]); err != nil {
					return err
				}
			}
			return nil
		}}
	}, "stores"},
	{"only the first alternative is decided", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			to := 1
			for to < len(requests) && !requests[to].Else {
				to++
			}
			for i := range replies[to:] {
				replies[to+i] = store.Reply{}
			}
			return m.Decide(background, requests[:to], replies[:to])
		}}
	}, "stores"},
	{"alternatives that are not asked keep their replies", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			before := slices.Clone(replies)
			err := m.Decide(background, requests, replies)
			for i := range replies {
				if replies[i].Outcome == store.NotAsked {
					replies[i] = before[i]
				}
			}
			return err
		}}
	}, "stores"},
	{"of several requests, a shadow's denial denies", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for i := range requests {
				if requests[i].Op == store.OpShadow {
					requests[i].Op = store.OpTake
				}
			}
			return m.Decide(background, requests, replies)
		}}
	}, "stores"},
	{"of several requests, a look charges an event", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for i := range requests {
				if requests[i].Op == store.OpLook {
					requests[i].Op = store.OpShadow
				}
			}
			return m.Decide(background, requests, replies)
		}}
	}, "stores"},
	{"of several requests, a gate has no say", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for i := range requests {
				if requests[i].Op == store.OpGate {
					requests[i].Op = store.OpLook
				}
			}
			return m.Decide(background, requests, replies)
		}}
	}, "stores"},
	{"of several requests, a gate charges an event", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for i := range requests {
				if requests[i].Op == store.OpGate {
					requests[i].Op = store.OpTake
				}
			}
			return m.Decide(background, requests, replies)
		}}
	}, "stores"},
	{"of several requests, shadows are not charged", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for i := range requests {
				if requests[i].Op == store.OpShadow {
					requests[i].Op = store.OpLook
				}
			}
			return m.Decide(background, requests, replies)
		}}
	}, "stores"},
	{"of several requests, all have the first one's turn", func(m *reference) store.Store {
		return &wrong{reference: m, all: func(m *reference, requests []store.Request, replies []store.Reply) error {
			for i := range requests {
				requests[i].Limit = requests[i].Limit.TurnBefore(requests[0].Limit.Before())
			}
			return m.Decide(background, requests, replies)
		}}
	}, "token_bucket leaky_bucket"},
	{"keys end at a zero byte", withKeys(func(ns *store.Namespace, key string) (*store.Namespace, string) {
		head, _, _ := strings.Cut(key, "\x00")
		return ns, head
	}), "stores"},
	{"keys are cut after 128 bytes", withKeys(func(ns *store.Namespace, key string) (*store.Namespace, string) {
		return ns, key[:min(128, len(key))]
	}), "stores"},
	{"keys are made valid UTF-8", withKeys(func(ns *store.Namespace, key string) (*store.Namespace, string) {
		return ns, strings.ToValidUTF8(key, "\ufffd")
	}), "stores"},
	{"keys lose their braces", withKeys(func(ns *store.Namespace, key string) (*store.Namespace, string) {
		return ns, strings.Trim(key, "{}")
	}), "stores"},
	{"keys lose their spaces", withKeys(func(ns *store.Namespace, key string) (*store.Namespace, string) {
		return ns, strings.TrimSpace(key)
	}), "stores"},
	{"space and key run together", withKeys(func(ns *store.Namespace, key string) (*store.Namespace, string) {
		return store.NewNamespace(ns.Rule, ""), ns.Rule.Name + strings.TrimRight(ns.Name, ":") + ":" + key
	}), "stores"},
	{"the space is forgotten", withKeys(func(ns *store.Namespace, key string) (*store.Namespace, string) {
		return store.NewNamespace(ns.Rule, ""), key
	}), "stores"},
}

func (m *reference) take(ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return m.Take(background, ns, key, l, n)
}

// lateWrite decides on requests, and lets others do so too before it writes.
func lateWrite(m *reference, requests []store.Request, replies []store.Reply) (err error) {
	next := make([][]byte, len(requests))
	for i, q := range requests {
		m.mu.Lock()
		next[i], replies[i], err = m.step(q.Namespace, q.Key, q.Limit, m.now(), q.N, q.Reserved, q.Most)
		m.mu.Unlock()
		if err != nil {
			return err
		}
	}
	runtime.Gosched()
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, q := range requests {
		if store.AllOK(requests, replies) && !q.Looks() || q.Op == store.OpOverdraw {
			m.put(q.Namespace, q.Key, next[i])
		}
	}
	return nil
}

// afterTake changes the state that Take has written.
func afterTake(f func(*store.State, store.Limit)) func(*reference) store.Store {
	return func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			r, err := m.Take(background, ns, key, l, n)
			if r.OK() {
				edit(m, ns, key, func(s *store.State) { f(s, l) })
			}
			return r, err
		}}
	}
}

// beforeTake changes the state that Take will find.
func beforeTake(f func(*store.State, store.Limit)) func(*reference) store.Store {
	return func(m *reference) store.Store {
		return &wrong{reference: m, take: func(m *reference, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
			edit(m, ns, key, func(s *store.State) { f(s, l) })
			return m.Take(background, ns, key, l, n)
		}}
	}
}

// Each planted bug is found in each algorithm that can have it. The model and the checks
// find it alone, without comparing Results with the reference store's.
func TestPlantedBugsAreFound(t *testing.T) {
	for _, bug := range planted {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			s := newSuite(func(_ testing.TB, clock func() time.Time) store.Store {
				return bug.open(newReference(clock))
			}, Traces(effort.Of(8, 30, 60)))
			s.alone = true
			if bug.in == "stores" {
				s.finds(t, algorithm{name: "stores"}, checksOfStores)
				return
			}
			for _, a := range algorithms {
				if bug.in == "all" || bug.in == "states" && a.name != "sliding_log" || strings.Contains(bug.in, a.name) {
					s.finds(t, a, checks)
				}
			}
		})
	}
}

// finds expects at least one of the checks to fail.
func (s *suite) finds(t *testing.T, a algorithm, checks []check) {
	t.Helper()
	var found []string
	for _, c := range checks {
		if message, failed := try(t, func(t testing.TB) { c.run(t, s, a) }); failed {
			if found = append(found, fmt.Sprintf("%s: %.300s", c.name, message)); !effort.Long() { // one is enough
				break
			}
		}
	}
	if len(found) == 0 {
		t.Errorf("%s: not found", a.name)
	}
	t.Logf("%s: found by %d checks:\n%s", a.name, len(found), strings.Join(found, "\n"))
}

func TestOnlyThePartThatLostStateIsRunAgain(t *testing.T) {
	var runs [4]int
	s := newSuite(openReference, ExpiresInRealTime())
	s.part(t, func(t testing.TB, s *suite) {
		runs[0]++
		for i := 1; i < len(runs); i++ {
			s.part(t, func(t testing.TB, s *suite) {
				if runs[i]++; runs[i] < i {
					s.late.Store(true)
					t.Fatal("lost")
				}
			})
		}
	})
	if want := [4]int{1, 1, 2, 3}; runs != want {
		t.Fatalf("runs %v, want %v", runs, want)
	}

	message, failed := try(t, func(t testing.TB) {
		s.part(t, func(t testing.TB, s *suite) {
			runs[0]++
			s.part(t, func(t testing.TB, _ *suite) { t.Fatal("wrong, and nothing was lost") })
		})
	})
	if !failed || runs[0] != 2 || !strings.Contains(message, "wrong, and nothing was lost") {
		t.Fatalf("failed %v after %d runs: %s", failed, runs[0]-1, message)
	}
}
