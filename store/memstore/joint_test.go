package memstore_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// TestAnAllIntoAnEmptyTable decides on several keys in one call.
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

// apart returns the first key of each of two tables.
func apart(s *memstore.Store, ns *store.Namespace) (here, there string) {
	for i := range 1000 {
		if there = strconv.Itoa(i); s.TableOf(ns, there) != s.TableOf(ns, "0") {
			break
		}
	}
	return "0", there
}

// TestAllsInEachOrderDoNotBlockEachOther takes two keys of two tables together: with takeTwo, and,
// with a third request that only looks, with takeAll.
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

// TestAKeyIsChargedInItsOwnTableThoughThatHasJustSplit has a call wait for a table that then
// belongs to another key only.
func TestAKeyIsChargedInItsOwnTableThoughThatHasJustSplit(t *testing.T) {
	s := newStore(t)
	ns := store.NewNamespace(window, "")
	here, there := apart(s, ns)
	if !s.CoveringAfter(ns, here, there) {
		t.Error("another table than the key's is locked")
	}
}

// TestAnAllOfTwoLeavesWhatIsReserved takes from two keys together, until only what is reserved is left.
func TestAnAllOfTwoLeavesWhatIsReserved(t *testing.T) {
	s := newStore(t, memstore.WithClock(newClock().now))
	ns := store.NewNamespace(window, "")
	three := store.Limit{Rate: 3, Period: plenty.Period, Burst: 3}
	of := func(key string) store.Request {
		return store.Request{Namespace: ns, Key: key, Limit: three, N: 1, Reserved: 1}
	}
	for i := range 3 {
		replies := make([]store.Reply, 2)
		if err := s.Decide(ctx, []store.Request{of("a"), of("b")}, replies); err != nil || replies[0].OK() != (i < 2) || replies[1].OK() != (i < 2) {
			t.Errorf("call %d: %+v, %v", i, replies, err)
		}
	}
}

// TestALogThatBeginsInAnAllOfTwoKeepsWhatItHad takes three events of each of many logs, together
// with events of a bucket.
func TestALogThatBeginsInAnAllOfTwoKeepsWhatItHad(t *testing.T) {
	s := newStore(t, memstore.WithClock(newClock().now))
	log := ratelimit.Must(ratelimit.NewSlidingLog(s, ratelimit.PerMinute(3)))
	both := ratelimit.Must(ratelimit.NewAll(log, ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(3)))))
	for i := range 32 { // the hashes determine which of the two is first
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

// TestAllsOfManyNewKeysSplitTables adds keys three at a time.
func TestAllsOfManyNewKeysSplitTables(t *testing.T) {
	effort.OneGoroutine(t)
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

// TestAnAllThatSplitsATableFindsTheOtherKeys asks for all keys of a full table, one of which is
// where the table ends after the split, and for new keys.
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

// TestALookAndAShadowBesideCountedKeysHaveNoSay has a look and a shadow of a key that is full,
// first and last.
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
