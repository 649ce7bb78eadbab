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

// A key of which all is given back is as a new one. A state goes at once, and an empty log with the
// next sweep.
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
	take(t, s, ns, "k", perMinute(10), 1) // at the time of the first
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

// TestAgainstMaps runs random calls on many keys of two rules, and on two plain maps that
// forget nothing, through growth, splits and sweeps.
func TestAgainstMaps(t *testing.T) {
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
			k %= 1000 // these are met often
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

// TestCountsAreExactUnderFire charges keys from many goroutines while others
// come, go idle, are swept, evicted and reset around them.
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
				for k := range keys { // spend enough that the cap spares them
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

func TestCapIsExact(t *testing.T) {
	ns := store.NewNamespace(window, "")
	for _, maxKeys := range []int{1, 2, 10, 63, 64, 100, 1000, 3000} {
		c := newClock()
		s := newStore(t, memstore.WithMaxKeys(maxKeys), memstore.WithClock(c.now))
		for i := range 3 * maxKeys {
			take(t, s, ns, strconv.Itoa(i), plenty, 1)
			if want := min(i+1, maxKeys); s.Len() != want || s.Evicted() != uint64(i+1-want) {
				t.Fatalf("cap %d, %d keys: Len %d, Evicted %d", maxKeys, i+1, s.Len(), s.Evicted())
			}
		}
		check(t, s)
	}
}

func TestCapIsExactInParallel(t *testing.T) {
	ns := store.NewNamespace(window, "")
	for _, maxKeys := range []int{1, 10, 70, 2000} {
		const workers, each = 8, 20_000 / scale
		s := newStore(t, memstore.WithMaxKeys(maxKeys), memstore.WithClock(newClock().now))
		var group sync.WaitGroup
		for w := range workers {
			group.Go(func() {
				for i := range each {
					s.Take(ctx, ns, fmt.Sprint(w, "/", i), plenty, 1)
					if n := s.Len(); n > maxKeys {
						t.Errorf("Len %d, cap %d", n, maxKeys)
					}
				}
			})
		}
		group.Wait()
		check(t, s)
		if s.Len() != maxKeys || s.Evicted() != uint64(workers*each-maxKeys) {
			t.Errorf("cap %d, %d keys: Len %d, Evicted %d", maxKeys, workers*each, s.Len(), s.Evicted())
		}
	}
}

// TestFullStoreWithAnEmptyTable adds a key whose table has no key to evict.
func TestFullStoreWithAnEmptyTable(t *testing.T) {
	const maxKeys = 64 // the least that has two tables
	c := newClock()
	s := newStore(t, memstore.WithMaxKeys(maxKeys), memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	var here, there []string
	for i := range 1000 {
		if key := strconv.Itoa(i); s.TableOf(ns, key) == s.TableOf(ns, "0") {
			here = append(here, key)
		} else {
			there = append(there, key)
		}
	}
	for _, key := range here[:maxKeys] {
		take(t, s, ns, key, plenty, 1)
	}
	for i, key := range there[:5] {
		take(t, s, ns, key, plenty, 1)
		if s.Len() != maxKeys || s.Evicted() != uint64(i+1) {
			t.Errorf("%d keys too many: Len %d, Evicted %d", i+1, s.Len(), s.Evicted())
		}
	}
	check(t, s)
}

// TestFullStoreWhoseNextTableIsEmpty has all keys in one of four tables, and they are dead. The new key is
// of a table whose next one is empty too.
func TestFullStoreWhoseNextTableIsEmpty(t *testing.T) {
	const maxKeys = 128
	c := newClock()
	s := newStore(t, memstore.WithMaxKeys(maxKeys), memstore.WithClock(c.now))
	ns, there := store.NewNamespace(window, ""), ""
	home := s.TableOf(ns, "0")
	for i := 0; there == "" || s.Len() < maxKeys; i++ {
		key := strconv.Itoa(i)
		switch own := s.TableOf(ns, key); {
		case own != home && s.Next(own) != home:
			there = key
		case own == home && s.Len() < maxKeys:
			take(t, s, ns, key, perMinute(5), 1)
		}
	}
	c.add(60 * second)
	if take(t, s, ns, there, plenty, 1); s.Len() != maxKeys || s.Evicted() != 0 {
		t.Errorf("Len %d, Evicted %d", s.Len(), s.Evicted())
	}
	check(t, s)
}

// TestOfEqualSpendsTheOneThatEndsFirstGoes has a key that ends before the seven others.
func TestOfEqualSpendsTheOneThatEndsFirstGoes(t *testing.T) {
	for i := range 10 {
		s := newStore(t, memstore.WithMaxKeys(8), memstore.WithClock(newClock().now))
		ns := store.NewNamespace(window, strconv.Itoa(i))
		take(t, s, ns, "soon", perMinute(5), 1)
		for k := range 8 {
			take(t, s, ns, strconv.Itoa(k), plenty, 1)
		}
		if r, err := store.Peek(ctx, s, ns, "soon", perMinute(5), 1); err != nil || r.X != 0 {
			t.Fatalf("%+v, %v: another one was forgotten", r, err)
		}
	}
}

// TestAClockBefore1970IsOneLikeOthers asks for keys of many tables, 40 minutes after an hour began.
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

// TestWhatAKeyCosts compares the memory of all tables with what the package says.
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

// TestAnAllIntoAnEmptyTable is the same of several keys in one call.
func TestAnAllIntoAnEmptyTable(t *testing.T) {
	const maxKeys = 64
	s := newStore(t, memstore.WithMaxKeys(maxKeys), memstore.WithClock(newClock().now))
	ns := store.NewNamespace(window, "")
	var there []store.Request
	for i := range 1000 {
		if key := strconv.Itoa(i); s.TableOf(ns, key) != s.TableOf(ns, "0") {
			there = append(there, store.Request{Namespace: ns, Key: key, Limit: plenty, N: 1})
		} else if s.Len() < maxKeys {
			take(t, s, ns, key, plenty, 1)
		}
	}
	replies := make([]store.Reply, 2)
	if err := s.Decide(ctx, there[:2], replies); err != nil || !replies[0].OK() || !replies[1].OK() {
		t.Fatal(err, replies)
	}
	if s.Len() != maxKeys || s.Evicted() != 2 {
		t.Errorf("Len %d, Evicted %d", s.Len(), s.Evicted())
	}
	check(t, s)
}

// apart returns keys of two tables, the first of each.
func apart(s *memstore.Store, ns *store.Namespace) (here, there string) {
	for i := range 1000 {
		if there = strconv.Itoa(i); s.TableOf(ns, there) != s.TableOf(ns, "0") {
			break
		}
	}
	return "0", there
}

// TestAllsInEachOrderDoNotBlockEachOther takes two keys of two tables together, by the short way and, with
// a third request that only looks, by the long one.
func TestAllsInEachOrderDoNotBlockEachOther(t *testing.T) {
	s := newStore(t, memstore.WithMaxKeys(64), memstore.WithClock(newClock().now))
	ns := store.NewNamespace(window, "")
	here, there := apart(s, ns)
	of := func(key string, n int64) store.Request {
		return store.Request{Namespace: ns, Key: key, Limit: plenty, N: n}
	}
	ways := [][]store.Request{{of(here, 1), of(there, 1)}, {of(there, 1), of(here, 1)}, {of(there, 1), of(here, 1), of("look", 0)}, {of(here, 1), of(there, 1), of("look", 0)}}
	const calls = 20_000
	var wg sync.WaitGroup
	for _, requests := range ways {
		wg.Go(func() {
			replies := make([]store.Reply, len(requests))
			for range calls {
				if err := s.Decide(ctx, requests, replies); err != nil || !replies[0].OK() {
					t.Error(err, replies)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("they wait for each other")
	}
	for _, key := range []string{here, there} {
		if r := take(t, s, ns, key, plenty, 1); r.X != int64(len(ways)*calls) {
			t.Errorf("%s: %+v", key, r)
		}
	}
	check(t, s)
}

// TestEachWayOfAskingSweeps has dead keys, and then only calls of one kind.
func TestEachWayOfAskingSweeps(t *testing.T) {
	if !newStore(t).Together("a", "b") {
		t.Error("two keys are not together")
	}
	counting := *sliding
	counting.Available = func(l store.Limit, r store.Reply) int64 { return max(0, l.Burst-r.X) }
	ns, logs := store.NewNamespace(window, ""), store.NewNamespace(&counting, "")
	alls := func(s *memstore.Store, keys ...string) error {
		var requests []store.Request
		for _, key := range keys {
			requests = append(requests, store.Request{Namespace: ns, Key: key, Limit: plenty, N: 1})
		}
		return s.Decide(ctx, requests, make([]store.Reply, len(keys)))
	}
	for name, ask := range map[string]func(s *memstore.Store) error{
		"All of two":     func(s *memstore.Store) error { return alls(s, "a", "b") },
		"All of three":   func(s *memstore.Store) error { return alls(s, "a", "b", "c") },
		"as many as fit": func(s *memstore.Store) error { _, err := store.TakeUpTo(ctx, s, ns, "a", plenty, 2); return err },
		"the same of log": func(s *memstore.Store) error {
			_, err := store.TakeUpTo(ctx, s, logs, "a", perMinute(1), 2)
			return err
		},
	} {
		c := newClock()
		s := newStore(t, memstore.WithClock(c.now))
		for i := range 20_000 {
			take(t, s, ns, strconv.Itoa(i), plenty, 1)
		}
		c.add(7200 * second)
		for range 200_000 {
			if err := ask(s); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.Len(); n > 1000 {
			t.Errorf("%s: %d keys are left", name, n)
		}
		check(t, s)
	}
}

// TestLogsGoWithTheirLastEvent has three events of a key, of which a sliding log notes each in another way.
func TestLogsGoWithTheirLastEvent(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	lim := ratelimit.Must(ratelimit.NewSlidingLog(s, ratelimit.PerMinute(5)))
	for range 3 {
		if _, err := lim.Allow(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		c.add(1)
	}
	c.add(63 * second)
	if s.SweepAll(); s.Len() != 0 {
		t.Errorf("Len %d a minute later, want 0", s.Len())
	}
}

// TestRoomOfDeadKeysIsUsedAgain fills tables with keys of which most are dead by then.
func TestRoomOfDeadKeysIsUsedAgain(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	for i := range 300_000 {
		if i%28_000 == 0 {
			c.add(3600 * second)
		}
		take(t, s, ns, strconv.Itoa(i), plenty, 1)
	}
	if n := s.Tables(); n > 200 { // as many as for all keys that were ever there
		t.Errorf("%d tables", n)
	}
	check(t, s)
}

func TestVictimsAreJudgedByTheirOwnRule(t *testing.T) {
	dear := *window
	dear.Used = func(store.State, int64, int64) int64 { return 1 << 40 }
	s := newStore(t, memstore.WithMaxKeys(8), memstore.WithClock(newClock().now))
	cheap, ns := store.NewNamespace(window, "cheap"), store.NewNamespace(&dear, "dear")
	take(t, s, cheap, "first", plenty, 1)
	for range 2 {
		take(t, s, ns, "k", plenty, 1)
	}
	for i := range 100 {
		take(t, s, cheap, strconv.Itoa(i), plenty, 1000)
	}
	if r, _ := store.Peek(ctx, s, ns, "k", plenty, 1); r.X != 2 {
		t.Errorf("spent %d, want 2", r.X)
	}
}

func TestDeadKeysAreNotEvictedButReplaced(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithMaxKeys(10), memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	for i := range 10 {
		take(t, s, ns, strconv.Itoa(i), perMinute(5), 5)
	}
	c.add(60 * second) // within the grace: they are still there
	for i := range 3 {
		take(t, s, ns, "new"+strconv.Itoa(i), perMinute(5), 1)
	}
	if s.Len() != 10 || s.Evicted() != 0 {
		t.Errorf("Len %d, Evicted %d, want 10 and 0", s.Len(), s.Evicted())
	}
}

// TestTheDeadGoBeforeThoseWhoHaveNearlyNothing has a key in force whose spend is less than an event.
func TestTheDeadGoBeforeThoseWhoHaveNearlyNothing(t *testing.T) {
	light := *window
	light.Used = func(store.State, int64, int64) int64 { return 0 }
	c := newClock()
	s := newStore(t, memstore.WithMaxKeys(2), memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	take(t, s, ns, "dead", perMinute(5), 5)
	take(t, s, store.NewNamespace(&light, "light"), "k", plenty, 1)
	c.add(60 * second)
	if take(t, s, ns, "new", plenty, 1); s.Len() != 2 || s.Evicted() != 0 {
		t.Errorf("Len %d, Evicted %d, want 2 and 0", s.Len(), s.Evicted())
	}
}

// TestRotatingKeysResetNobody floods a store at its cap with new keys. Keys that have
// spent more than the flood's keep their state, the attacker's too.
func TestRotatingKeysResetNobody(t *testing.T) {
	for _, rule := range []*store.Rule{window, sliding} {
		for _, maxKeys := range []int{10, 100, 1000} {
			t.Run(fmt.Sprintf("%s/cap=%d", rule.Name, maxKeys), func(t *testing.T) { flood(t, rule, maxKeys, nil) })
		}
	}
}

// TestRotatingKeysResetNobodyWithAnySecret forces certain secrets. With them, a hash of
// one multiplication led all new keys to few tables, which then forgot users.
func TestRotatingKeysResetNobodyWithAnySecret(t *testing.T) {
	for maxKeys, numbers := range map[int][]int{100: {60, 1901}, 1000: {14, 159, 617, 1249, 1295, 1871, 2028, 2097, 2488}} {
		for _, number := range numbers {
			t.Run(fmt.Sprintf("cap=%d/secret=%d", maxKeys, number), func(t *testing.T) {
				flood(t, window, maxKeys, memstore.SecretOf(number))
			})
		}
	}
}

// flood floods a store with this secret; nil is one of its own.
func flood(t *testing.T, rule *store.Rule, maxKeys int, secret *memstore.Secret) {
	const limit = 100
	rotating := effort.Of(30_000, 100_000) / scale
	established := max(1, maxKeys/20) // at a tenth, one in 10^8 new keys finds eight of them
	c := newClock()
	s := newStore(t, memstore.WithMaxKeys(maxKeys), memstore.WithClock(c.now))
	if secret != nil {
		s.Use(secret)
	}
	ns, l := store.NewNamespace(rule, ""), store.Limit{Rate: limit, Period: 3600 * second, Burst: limit}
	for u := range established {
		take(t, s, ns, "user"+strconv.Itoa(u), l, 5)
	}
	take(t, s, ns, "attacker", l, 5)
	admitted, newcomers := 5, 0
	for i := range rotating {
		if i%10 == 0 && take(t, s, ns, "attacker", l, 1).OK() {
			admitted++
		}
		if take(t, s, ns, strconv.Itoa(i), l, 1).OK() {
			newcomers++
		}
		c.add(1)
	}
	if admitted > limit*105/100 {
		t.Errorf("the attacker got %d of %d", admitted, limit)
	}
	if newcomers != rotating {
		t.Errorf("%d of %d new keys admitted", newcomers, rotating)
	}
	for u := range established {
		if r, _ := store.Peek(ctx, s, ns, "user"+strconv.Itoa(u), l, 1); r.X != 5 {
			t.Errorf("user %d has spent %d, want 5", u, r.X)
		}
	}
}

func TestIdleKeysGoByThemselves(t *testing.T) {
	const busy = 1000 // some in each table
	idle := effort.Of(300_000, 300_000, 1_000_000) / scale
	calls := idle
	c := newClock()
	names := keyNames(idle)
	empty := heap()
	s := newStore(t, memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	for _, key := range names {
		take(t, s, ns, key, perMinute(5), 1)
	}
	peak := heap() - empty
	c.add(3600 * second)
	for i := range calls {
		take(t, s, ns, names[i%busy], plenty, 1)
	}
	most := busy + idle/10
	if left := heap() - empty; s.Len() > most || int64(left) > int64(peak)*int64(most)/int64(idle) { // more than an int of 32 bits
		t.Errorf("%d of %d keys and %d of %d bytes are left", s.Len(), idle, left, peak)
	}
	check(t, s)
	runtime.KeepAlive(names)
}

// TestDeadStaysDead sets the clock back after a state was dropped. The time in which it
// was in force must not come again.
func TestDeadStaysDead(t *testing.T) {
	ns, l := store.NewNamespace(window, ""), perMinute(5)
	for name, drop := range map[string]func(*memstore.Store){
		"sweep": (*memstore.Store).SweepAll,
		"growth": func(s *memstore.Store) {
			for i := range 100_000 / scale {
				take(t, s, ns, "g"+strconv.Itoa(i), plenty, 1)
			}
		},
		"idle": func(s *memstore.Store) {
			for range 100_000 {
				take(t, s, ns, "busy", plenty, 1)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			start := c.µs.Load()
			s := newStore(t, memstore.WithClock(c.now))
			for i := range 100 {
				take(t, s, ns, strconv.Itoa(i), l, 5)
			}
			c.add(63 * second)
			drop(s)
			c.µs.Store(start + second)
			for i := range 100 {
				if r, _ := store.Peek(ctx, s, ns, strconv.Itoa(i), l, 1); r.X == 0 && r.Y < start+60*second {
					t.Fatalf("key %d has spent %d at %v", i, r.X, time.Duration(r.Y-start)*1000)
				}
			}
		})
	}
}

func TestDeadVictimStaysDead(t *testing.T) {
	c := newClock()
	start := c.µs.Load()
	s := newStore(t, memstore.WithClock(c.now), memstore.WithMaxKeys(1))
	ns, l := store.NewNamespace(window, ""), perMinute(5)
	take(t, s, ns, "a", l, 5)
	c.add(60 * second)
	take(t, s, ns, "b", l, 5)
	c.µs.Store(start)
	if r, _ := store.Peek(ctx, s, ns, "a", l, 1); r.Y < start+60*second {
		t.Errorf("decided at %v, want a minute or more", time.Duration(r.Y-start)*1000)
	}
}

// TestARefundAfterTheEndLeavesTheDeadDead sets the clock back after a Refund that came too late.
func TestARefundAfterTheEndLeavesTheDeadDead(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns, l, start := store.NewNamespace(window, ""), perMinute(5), c.µs.Load()
	take(t, s, ns, "k", l, 5)
	c.add(60 * second)
	if err := s.Refund(ctx, ns, "k", l, store.Receipt{At: start, N: 5}); err != nil {
		t.Fatal(err)
	}
	c.µs.Store(start + second)
	if r := take(t, s, ns, "k", l, 1); r.OK() {
		t.Errorf("%+v in the minute that is spent", r)
	}
}

// TestEndedStateReadsAsNeverSeen has a rule that would still count an ended state, as one
// may under another limit. A sweep must not decide.
func TestEndedStateReadsAsNeverSeen(t *testing.T) {
	hoarder := *window
	hoarder.Step = func(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
		return store.State{At: now, Period: l.Period, Whole: s.Whole + n}, store.Reply{Outcome: store.AdmittedIf(s.Whole+n <= l.Burst), X: s.Whole}
	}
	longer := store.Limit{Rate: 5, Period: 3600 * second, Burst: 5}
	for _, rule := range []*store.Rule{&hoarder, sliding} {
		for _, swept := range []bool{false, true} {
			c := newClock()
			s := newStore(t, memstore.WithClock(c.now))
			ns := store.NewNamespace(rule, "")
			take(t, s, ns, "k", perMinute(5), 5)
			c.add(60*second - 1)
			if r, _ := store.Peek(ctx, s, ns, "k", longer, 1); r.X != 5 {
				t.Errorf("%s: %d events before the end, want 5", rule.Name, r.X)
			}
			c.add(3*second + 1)
			if swept {
				s.SweepAll()
			}
			if r, _ := store.Peek(ctx, s, ns, "k", longer, 1); r.X != 0 {
				t.Errorf("%s, swept %v: Peek sees %d events, want 0", rule.Name, swept, r.X)
			}
			if r := take(t, s, ns, "k", longer, 1); r.X != 0 {
				t.Errorf("%s, swept %v: Take sees %d events, want 0", rule.Name, swept, r.X)
			}
			if r := take(t, s, ns, "k", longer, 1); r.X != 1 {
				t.Errorf("%s, swept %v: then %d events, want 1", rule.Name, swept, r.X)
			}
		}
	}
}

func TestStateIsKeptForTheGrace(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	take(t, s, ns, "k", perMinute(5), 1)
	c.add(61 * second)
	s.SweepAll()
	if s.Len() != 1 {
		t.Error("dropped a second after its end")
	}
	c.add(second)
	s.SweepAll()
	if s.Len() != 0 {
		t.Error("kept for longer than the grace")
	}
}

func TestASweepDoesNotLookAgainBeforeTheGrace(t *testing.T) {
	looks := 0
	rule := *window
	rule.TTL = func(s store.State, l store.Limit) int64 { looks++; return window.TTL(s, l) }
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	take(t, s, store.NewNamespace(&rule, ""), "k", perMinute(5), 1)
	for _, step := range []struct {
		after int64 // µs
		looks int
	}{{2 * second, 1}, {0, 0}, {2*second - 1, 0}, {1, 1}} {
		c.add(step.after)
		looks = 0
		s.SweepAll()
		if looks != step.looks {
			t.Errorf("%d µs later: %d looks at the state, want %d", step.after, looks, step.looks)
		}
	}
}

func TestKeysAreDroppedThoughTheClockWasSetBack(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithMaxKeys(8), memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	take(t, s, ns, "early", perMinute(5), 1)
	s.SweepAll()
	c.add(-3_600 * second)
	take(t, s, ns, "late", perMinute(5), 1)
	c.add(62 * second)
	s.SweepAll()
	if s.Len() != 1 {
		t.Errorf("%d keys, want 1: only the first has not ended", s.Len())
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

// TestWorkPerCall counts, for each call, the slots of the tables that it changed
// or swept.
func TestWorkPerCall(t *testing.T) {
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

func TestSizes(t *testing.T) {
	if slot, table := memstore.Sizes(); slot != 32 || table > 192 && strconv.IntSize == 64 {
		t.Errorf("a slot has %d bytes and a table %d, want 32 and at most 192", slot, table)
	}
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

// TestARuleThatTwoAddAtOnceHasOneNumber adds each of two rules again, after another call has.
func TestARuleThatTwoAddAtOnceHasOneNumber(t *testing.T) {
	s := newStore(t)
	for i, rule := range []*store.Rule{window, sliding, window, sliding} {
		if n, ok := s.NumberAnew(rule); !ok || n != uint32(i%2) {
			t.Errorf("%s has number %d, %v", rule.Name, n, ok)
		}
	}
}

// TestATableThatHasJustSplitIsLeft has a call wait for a table that then is another key's alone.
func TestATableThatHasJustSplitIsLeft(t *testing.T) {
	s := newStore(t)
	ns := store.NewNamespace(window, "")
	here, there := apart(s, ns)
	if !s.CoveringAfter(ns, here, there) {
		t.Error("another table than the key's is locked")
	}
}

// TestAVictimIsOneOfEight counts how many keys a new one is compared with in a full table.
func TestAVictimIsOneOfEight(t *testing.T) {
	compared := 0
	counting := *window
	counting.Used = func(s store.State, _, _ int64) int64 { compared++; return s.Whole }
	s := newStore(t, memstore.WithMaxKeys(60), memstore.WithClock(newClock().now)) // in one table
	ns := store.NewNamespace(&counting, "")
	for i := range 100 {
		compared = 0
		take(t, s, ns, strconv.Itoa(i), plenty, 1)
		if want := 8 * (i / 60); compared != min(want, 8) {
			t.Errorf("key %d was compared with %d", i, compared)
		}
	}
}

// TestASweepFreesWhatIsHardlyUsed has a full table, of which less than a fifth stays, or more.
func TestASweepFreesWhatIsHardlyUsed(t *testing.T) {
	for staying, most := range map[int]int{5: 16, 102: 180, 150: memstore.MaxSlots} {
		c := newClock()
		s := newStore(t, memstore.WithClock(c.now))
		ns, n := store.NewNamespace(window, ""), 0
		for i := 0; n < 470; i++ {
			if key := strconv.Itoa(i); s.TableOf(ns, key) == s.TableOf(ns, "0") {
				l := perMinute(5)
				if n < staying {
					l = plenty
				}
				take(t, s, ns, key, l, 1)
				n++
			}
		}
		c.add(63 * second)
		s.SweepAll()
		shapes, _ := s.Shapes()
		if shape := shapes[s.TableOf(ns, "0")]; shape.Keys != staying || shape.Size > most || shape.Size == memstore.MaxSlots != (most == memstore.MaxSlots) {
			t.Errorf("%d keys in %d slots, want %d in at most %d", shape.Keys, shape.Size, staying, most)
		}
		check(t, s)
	}
}

// TestALogThatBeginsInAnAllOfTwoKeepsWhatItHad takes three events of each of many logs, besides those of a bucket.
func TestALogThatBeginsInAnAllOfTwoKeepsWhatItHad(t *testing.T) {
	s := newStore(t, memstore.WithClock(newClock().now))
	log := ratelimit.Must(ratelimit.NewSlidingLog(s, ratelimit.PerMinute(3)))
	both := ratelimit.Must(ratelimit.NewAll(log, ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(3)))))
	for i := range 32 { // which of both is first is of its hash
		key := strconv.Itoa(i)
		for range 3 {
			if r, err := both.Allow(ctx, key); err != nil || !r.Allowed {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		if r, err := log.Allow(ctx, key); err != nil || r.Allowed {
			t.Errorf("key %d: %+v, %v after three of three", i, r, err)
		}
	}
}

// clock is set by tests, in Unix µs, and begins at the beginning of a minute.
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

// TestAllsOfManyNewKeysSplitTables adds keys three at a time.
func TestAllsOfManyNewKeysSplitTables(t *testing.T) {
	s := newStore(t, memstore.WithClock(newClock().now))
	ns := store.NewNamespace(window, "")
	requests, replies := make([]store.Request, 3), make([]store.Reply, 3)
	const calls = 100_000
	for i := range calls {
		for j := range requests {
			requests[j] = store.Request{Namespace: ns, Key: strconv.Itoa(3*i + j), Limit: plenty, N: 2}
		}
		if err := s.Decide(ctx, requests, replies); err != nil || !replies[0].OK() || !replies[1].OK() || !replies[2].OK() {
			t.Fatal(err, replies)
		}
	}
	if s.Len() != 3*calls {
		t.Errorf("%d keys", s.Len())
	}
	for i := range 3 * calls {
		if r := take(t, s, ns, strconv.Itoa(i), plenty, 1); r.X != 2 {
			t.Fatalf("key %d: %+v", i, r)
		}
	}
	check(t, s)
}

// TestAnAllThatSplitsATableFindsTheOtherKeys asks for all keys of a full table, of which one is where the
// table then ends, and for new ones.
func TestAnAllThatSplitsATableFindsTheOtherKeys(t *testing.T) {
	s := newStore(t, memstore.WithClock(newClock().now))
	s.Use(memstore.SecretOf(1))
	ns := store.NewNamespace(window, "")
	var requests []store.Request
	for i, tables := 0, s.Tables(); s.Tables() == tables; i++ {
		key := strconv.Itoa(i)
		if s.TableOf(ns, key) != s.TableOf(ns, "0") {
			continue
		}
		requests = append(requests, store.Request{Namespace: ns, Key: key, Limit: plenty, N: 1})
		shapes, _ := s.Shapes()
		if shape := shapes[s.TableOf(ns, key)]; shape.Size < memstore.MaxSlots || shape.Size-shape.Keys > 1+shape.Size/16 {
			take(t, s, ns, key, plenty, 1)
		} else if len(requests) == shape.Keys+20 {
			if err := s.Decide(ctx, requests, make([]store.Reply, len(requests))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, r := range requests {
		if got, err := store.Peek(ctx, s, ns, r.Key, plenty, 1); err != nil || got.X != 2 && i < len(requests)-20 || got.X != 1 && i >= len(requests)-20 {
			t.Errorf("key %d of %d: %+v, %v", i, len(requests), got, err)
		}
	}
	check(t, s)
}

// TestALookAndAShadowBesideCountedKeysHaveNoSay has each of a key that is full, first and last.
func TestALookAndAShadowBesideCountedKeysHaveNoSay(t *testing.T) {
	s := newStore(t, memstore.WithClock(newClock().now))
	ns := store.NewNamespace(window, "")
	few := store.Limit{Rate: 6, Period: plenty.Period, Burst: 6}
	take(t, s, ns, "full", few, 6)
	take(t, s, ns, "take", plenty, 1)
	look := store.Request{Namespace: ns, Key: "full", Limit: few, N: 1, Op: store.OpLook}
	shadow := store.Request{Namespace: ns, Key: "full", Limit: few, N: 1, Op: store.OpShadow}
	taken := store.Request{Namespace: ns, Key: "take", Limit: plenty, N: 2}
	for i, requests := range [][]store.Request{{look, taken}, {taken, look}, {shadow, taken}, {taken, shadow}} {
		replies := make([]store.Reply, 2)
		if err := s.Decide(ctx, requests, replies); err != nil {
			t.Fatal(err)
		}
		if replies[i%2].OK() || !replies[1-i%2].OK() || replies[1-i%2].X != int64(1+2*i) {
			t.Errorf("%v: %+v", requests, replies)
		}
	}
	if r, err := store.Peek(ctx, s, ns, "full", few, 1); err != nil || r.OK() || r.X != 6 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestAStoreThatWasNotMadeTakesNothing asks for one, two and three keys.
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
