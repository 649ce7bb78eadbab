package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

var _ store.Store = (*memstore.Store)(nil)

var ctx = context.Background()

func TestOptions(t *testing.T) {
	for name, opt := range map[string]memstore.Option{
		"no keys":       memstore.WithMaxKeys(0),
		"negative keys": memstore.WithMaxKeys(-1),
		"nil clock":     memstore.WithClock(nil),
		"nil option":    nil,
	} {
		if s, err := memstore.New(opt); !errors.Is(err, store.ErrInvalidOption) || s != nil {
			t.Errorf("%s: New = %v, %v, want ErrInvalidOption", name, s, err)
		}
	}
}

func TestStoreNotMadeByNewFails(t *testing.T) {
	s := new(memstore.Store)
	ns := store.NewNamespace(window, "")
	_, take := s.Take(ctx, ns, "k", plenty, 1)
	_, peek := store.Peek(ctx, s, ns, "k", plenty, 1)
	refund := s.Refund(ctx, ns, "k", plenty, store.Receipt{N: 1})
	_, upTo := store.TakeUpTo(ctx, s, ns, "k", plenty, 1)
	_, overdraw := store.Overdraw(ctx, s, ns, "k", plenty, 1, 1)
	for _, err := range []error{take, upTo, overdraw, peek, refund, s.Reset(ctx, ns, "k")} {
		if !errors.Is(err, store.ErrStore) {
			t.Errorf("error %v, want ErrStore", err)
		}
	}
	if _, err := ratelimit.NewTokenBucket(s, ratelimit.PerMinute(5)); !errors.Is(err, store.ErrInvalidOption) {
		t.Errorf("a limiter that can never work: %v, want ErrInvalidOption", err)
	}
}

func TestSpacesAreApart(t *testing.T) {
	s := newStore(t)
	a, b := store.NewNamespace(window, "a"), store.NewNamespace(window, "b")
	take(t, s, a, "k", plenty, 5)
	if r := take(t, s, b, "k", plenty, 1); r.X != 0 {
		t.Errorf("another space sees %d events, want 0", r.X)
	}
	if r := take(t, s, store.NewNamespace(window, "a"), "k", plenty, 1); r.X != 5 {
		t.Errorf("an equal space sees %d events, want 5", r.X)
	}
}

func TestStateOfEveryRangeComesBack(t *testing.T) {
	want := store.State{At: 1<<62 - 1, Period: 1<<49 - 1, Whole: 1<<31 - 1, Part: 1<<49 - 1}
	var got store.State
	echo := &store.Rule{
		Name: "echo",
		Step: func(s store.State, _ store.Limit, _, _ int64) (store.State, store.Reply) {
			got = s
			return want, store.Reply{Outcome: store.Admitted}
		},
		TTL: func(store.State, store.Limit) int64 { return 1 },
	}
	s := newStore(t)
	ns := store.NewNamespace(echo, "")
	take(t, s, store.NewNamespace(window, ""), "other", plenty, 1) // so that echo is not rule 0
	take(t, s, ns, "k", plenty, 1)
	take(t, s, ns, "k", plenty, 1)
	if got != want {
		t.Errorf("state %+v, want %+v", got, want)
	}
}

func TestDenialOfAnUnknownKeyKeepsNothing(t *testing.T) {
	for _, rule := range []*store.Rule{window, sliding} {
		s := newStore(t)
		ns := store.NewNamespace(rule, "")
		if r := take(t, s, ns, "k", perMinute(10), 11); r.OK() || s.Len() != 0 {
			t.Errorf("%s: OK %v, Len %d, want a denial and no key", rule.Name, r.OK(), s.Len())
		}
	}
}

// A key whose events are all refunded is like a new key. A state is removed immediately, and an
// empty log with the next sweep.
func TestRefundOfEverythingForgetsTheKey(t *testing.T) {
	for rule, kept := range map[*store.Rule]int{window: 0, sliding: 1} {
		c := newClock()
		s := newStore(t, memstore.WithClock(c.now))
		ns, l := store.NewNamespace(rule, ""), perMinute(10)
		for range 2 {
			if r := take(t, s, ns, "k", l, 10); !r.OK() {
				t.Errorf("%s: denied %+v", rule.Name, r)
			}
			for range 2 {
				if err := s.Refund(ctx, ns, "k", l, store.Receipt{At: c.µs.Load(), N: 5}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if s.Len() != kept {
			t.Errorf("%s: Len %d, want %d", rule.Name, s.Len(), kept)
		}
		c.add(3 * second)
		s.SweepAll()
		if s.Len() != 0 {
			t.Errorf("%s: Len %d after the sweep, want 0", rule.Name, s.Len())
		}
	}
}

func TestALogKeepsItsEndHoweverFarTheClockGoesBack(t *testing.T) {
	const years = 365 * 24 * 3600 * second
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns := store.NewNamespace(forward, "")
	take(t, s, ns, "k", perMinute(10), 1)
	c.add(-30 * years)
	take(t, s, ns, "k", perMinute(10), 1) // at the time of the first event
	c.add(29 * years)
	s.SweepAll()
	if s.Len() != 1 {
		t.Errorf("Len %d a year before the end, want 1", s.Len())
	}
	c.add(years + 70*second)
	s.SweepAll()
	if s.Len() != 0 {
		t.Errorf("Len %d after the end, want 0", s.Len())
	}
}

func TestRefundNeverExtendsALife(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	longer := *window // as if under a limit of another Period
	longer.TTL = func(store.State, store.Limit) int64 { return 3600 * second }
	take(t, s, store.NewNamespace(window, ""), "k", perMinute(10), 3)
	if err := s.Refund(ctx, store.NewNamespace(&longer, ""), "k", plenty, store.Receipt{At: c.µs.Load(), N: 1}); err != nil {
		t.Fatal(err)
	}
	c.add(70 * second)
	s.SweepAll()
	if s.Len() != 0 {
		t.Errorf("Len %d a minute later, want 0", s.Len())
	}
}

// TestAStoreCountsAsMapsDo runs random calls on many keys of two rules, and on two plain maps that
// forget nothing, through growth, splits and sweeps.
func TestAStoreCountsAsMapsDo(t *testing.T) {
	const keys = 1_000_000 / scale
	calls := effort.Of(250_000, 500_000, 2_500_000) / scale
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	windows, logs := store.NewNamespace(window, ""), store.NewNamespace(sliding, "")
	model := maps{states: map[int]store.State{}, logs: map[int]*plainLog{}}
	limits := []store.Limit{perMinute(3), {Rate: 5, Period: 3600 * second, Burst: 5}, {Rate: 2, Period: second, Burst: 2}}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range calls {
		k := rng.IntN(keys)
		if i%2 == 0 {
			k %= 1000 // these keys are used often
		}
		key, l, ns := strconv.Itoa(k), limits[k%3], windows
		if k%5 == 0 {
			ns = logs
		}
		now, n := c.µs.Load(), 1+rng.Int64N(3)
		switch what := rng.IntN(20); {
		case what < 14:
			want := model.step(ns.Rule, k, l, now, n, true)
			if got := take(t, s, ns, key, l, n); got != want {
				t.Fatalf("call %d: Take(%s, %d) = %+v, want %+v", i, key, n, got, want)
			}
		case what < 17:
			want := model.step(ns.Rule, k, l, now, n, false)
			if got, _ := store.Peek(ctx, s, ns, key, l, n); got != want {
				t.Fatalf("call %d: Peek(%s, %d) = %+v, want %+v", i, key, n, got, want)
			}
		case what < 19:
			charge := store.Receipt{At: now - rng.Int64N(2)*second, N: n}
			model.refund(ns.Rule, k, l, now, charge)
			s.Refund(ctx, ns, key, l, charge)
		default:
			model.reset(k)
			s.Reset(ctx, ns, key)
		}
		switch {
		case i == calls/2: // all keys end
			c.add(2 * 3600 * second)
		case i%16 == 0:
			c.add(rng.Int64N(scale * second / 1000))
		}
		if i%(calls/10) == 0 {
			check(t, s)
		}
	}
	check(t, s)
	if s.Evicted() != 0 {
		t.Errorf("%d keys evicted by a store with room", s.Evicted())
	}
}

type maps struct {
	states map[int]store.State
	logs   map[int]*plainLog
}

func (m maps) step(rule *store.Rule, k int, l store.Limit, now, n int64, charge bool) (r store.Reply) {
	if rule == window {
		next, r := window.Step(m.states[k], l, now, n)
		if charge && r.OK() {
			m.states[k] = next
		}
		return r
	}
	g := m.logs[k]
	if g == nil {
		g = new(plainLog)
		m.logs[k] = g
	}
	if r = g.Step(l, now, n); charge && r.OK() {
		g.Add(l, now, n)
	}
	return r
}

func (m maps) refund(rule *store.Rule, k int, l store.Limit, now int64, c store.Receipt) {
	if rule == window {
		m.states[k] = window.Refund(m.states[k], l, now, c)
	} else if g := m.logs[k]; g != nil {
		g.Refund(l, now, c)
	}
}

func (m maps) reset(k int) { delete(m.states, k); delete(m.logs, k) }

// TestCountsAreExactUnderFire charges keys from many goroutines, while other keys come, go idle,
// are swept, evicted and reset.
func TestCountsAreExactUnderFire(t *testing.T) {
	for _, maxKeys := range []int{memstore.DefaultMaxKeys, 5000} {
		t.Run(fmt.Sprintf("cap=%d", maxKeys), func(t *testing.T) {
			const workers, keys, limit = 8, 50, 100
			rounds := effort.Of(20, 100, 300)
			c := newClock()
			s := newStore(t, memstore.WithClock(c.now), memstore.WithMaxKeys(maxKeys))
			spaces := []*store.Namespace{store.NewNamespace(window, ""), store.NewNamespace(sliding, "")}
			l := store.Limit{Rate: limit, Period: 10 * 365 * 24 * 3600 * second, Burst: limit}
			for _, ns := range spaces {
				for k := range keys { // spend enough not to be evicted
					take(t, s, ns, strconv.Itoa(k), l, 10)
				}
			}
			var admitted [2][keys]atomic.Int64
			var group sync.WaitGroup
			for w := range workers {
				group.Go(func() {
					for i := range rounds {
						for j, ns := range spaces {
							for k := range keys {
								if r, _ := s.Take(ctx, ns, strconv.Itoa(k), l, 1); r.OK() {
									admitted[j][k].Add(1)
								}
							}
							passing := fmt.Sprint(w, "/", i)
							for k := range 40 / scale * 5 {
								s.Take(ctx, ns, passing+strconv.Itoa(k), perMinute(5), 1)
							}
							s.Reset(ctx, ns, passing+"3")
							store.Peek(ctx, s, ns, passing+"4", perMinute(5), 1)
						}
						c.add(second / 20)
						if s.Len() > maxKeys {
							t.Errorf("Len %d beyond the cap", s.Len())
						}
					}
				})
			}
			group.Wait()
			check(t, s)
			for j := range spaces {
				for k := range keys {
					if n := admitted[j][k].Load(); n != limit-10 {
						t.Errorf("%s: key %d admitted %d times, want %d", spaces[j].Rule.Name, k, n, limit-10)
					}
				}
			}
		})
	}
}

// TestAClockBefore1970IsOneLikeOthers asks for keys of many tables, 40 minutes after the beginning
// of an hour.
func TestAClockBefore1970IsOneLikeOthers(t *testing.T) {
	c := newClock()
	c.µs.Store(-300_000_000 * second)
	s := newStore(t, memstore.WithClock(c.now))
	lim := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerHour(5)))
	for i := range 1000 {
		if r, err := lim.Allow(ctx, strconv.Itoa(i)); err != nil || r.ResetAfter != 20*time.Minute {
			t.Fatalf("%+v, %v, want a reset after 20 minutes", r, err)
		}
	}
}

// TestWhatAKeyCosts compares the memory of all tables with the numbers in the package's
// documentation.
func TestWhatAKeyCosts(t *testing.T) {
	s := newStore(t, memstore.WithClock(newClock().now))
	s.Use(memstore.SecretOf(1))
	ns := store.NewNamespace(window, "")
	slot, table := memstore.Sizes()
	for i := 1; i <= 200_000; i++ {
		if take(t, s, ns, strconv.Itoa(i), plenty, 1); i < 50_000 || i%10_000 != 0 {
			continue
		}
		bytes := 0
		shapes, _ := s.Shapes()
		for _, shape := range shapes {
			bytes += int(table) + shape.Size*int(slot+1) // and a tag
		}
		if cost := float64(bytes) / float64(i); cost > 43 {
			t.Errorf("%.1f bytes a key of %d, want 43 at most", cost, i)
		}
	}
}

func TestPeekChangesNothing(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	for i := range 5000 {
		take(t, s, ns, strconv.Itoa(i), perMinute(5), 1)
	}
	before, hand := s.Shapes()
	c.add(3600 * second)
	for i := range 10_000 {
		store.Peek(ctx, s, ns, strconv.Itoa(i), perMinute(5), 1)
	}
	after, handAfter := s.Shapes()
	if hand != handAfter {
		t.Error("Peek swept")
	}
	for table, shape := range before {
		if after[table] != shape {
			t.Errorf("Peek made %+v of %+v", after[table], shape)
		}
	}
}

// TestACallMovesAndSweepsFewKeys counts, for each call, the slots of the tables that the call
// changed or swept.
func TestACallMovesAndSweepsFewKeys(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	rng := rand.New(rand.NewPCG(3, 4))
	before, hand := s.Shapes()
	most := 0
	calls := effort.Of(20_000, 30_000, 60_000) / scale
	for i := range calls {
		if i == calls/2 {
			c.add(3600 * second)
		}
		s.Take(ctx, ns, strconv.Itoa(rng.IntN(calls)), perMinute(5), 1)
		after, next := s.Shapes()
		moved, swept := 0, 0
		if next != hand {
			if swept = before[hand].Size; next != s.Next(hand) {
				t.Fatalf("call %d swept more than one table", i)
			}
		}
		for table, now := range after {
			if was := before[table]; now.Array != was.Array && table != hand {
				moved += now.Keys
			}
		}
		if moved > memstore.MaxSlots || swept > memstore.MaxSlots {
			t.Fatalf("call %d moved %d slots and swept %d", i, moved, swept)
		}
		most = max(most, moved)
		before, hand = after, next
	}
	if most < 100/scale {
		t.Errorf("no call moved more than %d slots: nothing was tested", most)
	}
}

func TestADefaultStoreHolds16MillionKeys(t *testing.T) {
	if memstore.DefaultMaxKeys != 16_777_216 { // as the docs say
		t.Errorf("%d keys at most", memstore.DefaultMaxKeys)
	}
}

func TestKnownKeysAllocateNothing(t *testing.T) {
	s := newStore(t)
	ns, once := store.NewNamespace(window, ""), perMinute(1)
	take(t, s, ns, "known", plenty, 1000)
	take(t, s, ns, "spent", plenty, 1)
	for name, call := range map[string]func(){
		"Take":   func() { s.Take(ctx, ns, "known", plenty, 1) },
		"denied": func() { s.Take(ctx, ns, "spent", once, 1) },
		"Peek":   func() { store.Peek(ctx, s, ns, "known", plenty, 1) },
		"Refund": func() { s.Refund(ctx, ns, "known", plenty, store.Receipt{At: time.Now().UnixMicro(), N: 1}) },
	} {
		if n := testing.AllocsPerRun(500, call); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	s := newStore(t)
	for i := range 10_000 {
		take(t, s, store.NewNamespace(window, ""), strconv.Itoa(i), plenty, 1)
	}
	for range 100 { // a timer of the process may run in a goroutine now and then
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines before, %d after", before, runtime.NumGoroutine())
}

func TestClockOfABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ns, l := store.NewNamespace(window, ""), perMinute(5)
		for range 3 {
			if r := take(t, s, ns, "k", l, 5); !r.OK() || r.Y != time.Now().UnixMicro() {
				t.Errorf("%+v, want OK at %d", r, time.Now().UnixMicro())
			}
			time.Sleep(time.Minute - time.Microsecond)
			if take(t, s, ns, "k", l, 1).OK() {
				t.Error("admitted before the minute is over")
			}
			time.Sleep(time.Microsecond)
		}
	})
}

func TestPanicOfTheClockLeavesNoLock(t *testing.T) {
	fail := true
	s := newStore(t, memstore.WithClock(func() time.Time {
		if fail {
			panic("no clock")
		}
		return time.Now()
	}))
	ns := store.NewNamespace(window, "")
	func() {
		defer func() { _ = recover() }()
		s.Take(ctx, ns, "k", plenty, 1)
	}()
	fail = false
	if !take(t, s, ns, "k", plenty, 1).OK() {
		t.Error("denied")
	}
}

// net/http recovers the panic of a handler. Calls for other keys must not wait forever then.
func TestPanicOfARuleLeavesNoLock(t *testing.T) {
	c, fail := newClock(), false
	s := newStore(t, memstore.WithClock(c.now))
	faulty := *window
	faulty.Plain = ""
	faulty.Step = func(st store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
		if fail {
			panic("a fault of the rule")
		}
		return window.Step(st, l, now, n)
	}
	faulty.TTL = func(store.State, store.Limit) int64 {
		if fail {
			panic("a fault of the rule")
		}
		return 60 * second
	}
	ns := store.NewNamespace(&faulty, "")
	ask := func(op store.Op, keys ...string) func() {
		requests := make([]store.Request, len(keys))
		for i, key := range keys {
			requests[i] = store.Request{Namespace: ns, Key: key, Limit: perMinute(9), N: 1, Op: op}
		}
		return func() { _ = s.Decide(ctx, requests, make([]store.Reply, len(requests))) }
	}
	keys := []string{"new", "known", "other"}
	take(t, s, ns, "known", perMinute(9), 1)
	take(t, s, ns, "other", perMinute(9), 1)
	c.add(3600 * second)
	for name, call := range map[string]func(){
		"a new key":     ask(store.OpTake, "new"),
		"a known key":   ask(store.OpTake, "known"),
		"another limit": func() { _, _ = s.Take(ctx, ns, "known", perMinute(8), 1) },
		"up to two":     func() { _, _ = store.TakeUpTo(ctx, s, ns, "known", perMinute(9), 2) },
		"a look":        ask(store.OpLook, "new"),
		"an overdraft":  ask(store.OpOverdraw, "known"),
		"two keys":      ask(store.OpTake, "known", "other"),
		"three keys":    ask(store.OpTake, keys...),
		"a refund":      func() { _ = s.Refund(ctx, ns, "known", perMinute(9), store.Receipt{N: 1}) },
		"a sweep":       s.SweepAll,
	} {
		fail = true
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call()
		}()
		fail = false
		free := make(chan struct{})
		go func() {
			defer close(free)
			for _, key := range keys {
				s.LockTableOf(ns, key)()
			}
		}()
		select {
		case <-free:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: a table stayed locked", name)
		}
	}
	check(t, s)
}

func TestTooManyRules(t *testing.T) {
	effort.OneGoroutine(t)
	s := newStore(t)
	rules := make([]store.Rule, 1<<15+1)
	for i := range rules {
		rules[i] = *window
	}
	last := len(rules) - 1
	for i := range rules[:last] {
		if n, ok := s.NumberAnew(&rules[i]); !ok || n != uint32(i) {
			t.Fatalf("rule %d has number %d, %v", i, n, ok)
		}
	}
	if _, err := s.Take(ctx, store.NewNamespace(&rules[last], ""), "one more", plenty, 1); !errors.Is(err, store.ErrStore) {
		t.Errorf("error %v, want ErrStore", err)
	}
	take(t, s, store.NewNamespace(&rules[last-1], ""), "one of them", plenty, 1)
	check(t, s)
}

// TestCallersThatAddARuleAtOnceCountTogether adds each of two rules again, after another call has
// added it.
func TestCallersThatAddARuleAtOnceCountTogether(t *testing.T) {
	s := newStore(t)
	for i, rule := range []*store.Rule{window, sliding, window, sliding} {
		if n, ok := s.NumberAnew(rule); !ok || n != uint32(i%2) {
			t.Errorf("%s has number %d, %v", rule.Name, n, ok)
		}
	}
}

// clock is a clock that tests set, in Unix µs. It starts at the beginning of a minute.
type clock struct{ µs atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.µs.Store(1_800_000_000 * second)
	return c
}

func (c *clock) now() time.Time { return time.UnixMicro(c.µs.Load()) }
func (c *clock) add(d int64)    { c.µs.Add(d) }

func perMinute(n int64) store.Limit { return store.Limit{Rate: n, Period: 60 * second, Burst: n} }

func take(tb testing.TB, s *memstore.Store, ns *store.Namespace, key string, l store.Limit, n int64) store.Reply {
	r, err := s.Take(ctx, ns, key, l, n)
	if err != nil {
		tb.Helper() // it costs more than a Take
		tb.Fatal(err)
	}
	return r
}

func check(tb testing.TB, s *memstore.Store) {
	tb.Helper()
	if err := s.Check(); err != nil {
		tb.Fatal(err)
	}
}

// TestAStoreThatWasNotMadeTakesNothing asks a zero Store for one, two and three keys.
func TestAStoreThatWasNotMadeTakesNothing(t *testing.T) {
	ns := store.NewNamespace(window, "")
	var requests []store.Request
	for n := range 3 {
		requests = append(requests, store.Request{Namespace: ns, Key: strconv.Itoa(n), Limit: plenty, N: 1})
		if err := new(memstore.Store).Decide(ctx, requests, make([]store.Reply, n+1)); err == nil {
			t.Errorf("%d keys: no error", n+1)
		}
	}
}
