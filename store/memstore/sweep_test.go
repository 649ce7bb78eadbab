package memstore_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// TestEachWayOfAskingSweeps has ended keys, and then only calls of one kind.
func TestEachWayOfAskingSweeps(t *testing.T) {
	effort.OneGoroutine(t)
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

// TestLogsGoWithTheirLastEvent has three events of a key, each of which a sliding log stores in a
// different way.
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

// TestRoomOfDeadKeysIsUsedAgain fills tables with keys, most of which have ended by then.
func TestRoomOfDeadKeysIsUsedAgain(t *testing.T) {
	effort.OneGoroutine(t)
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	for i := range 300_000 {
		if i%28_000 == 0 {
			c.add(3600 * second)
		}
		take(t, s, ns, strconv.Itoa(i), plenty, 1)
	}
	if n := s.Tables(); n > 200 { // as many as all keys ever used would need
		t.Errorf("%d tables", n)
	}
	check(t, s)
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

// TestDeadStaysDead sets the clock back after a state was dropped. The time in which the state was
// in force must not come again.
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

// TestEndedStateReadsAsNeverSeen has a rule that would still count an ended state, as a rule may
// under another limit. A sweep must not affect the decision.
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

// TestASweepFreesWhatIsHardlyUsed has a full table, of which less than a fifth remains, or more.
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
