package memstore_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

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

// TestFullStoreWhoseNextTableIsEmpty has all keys in one of four tables, and all have ended. The
// new key belongs to a table whose next table is empty too.
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

// TestTheDeadGoBeforeThoseWhoHaveNearlyNothing has a key in force that has spent less than one
// event.
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

// TestRotatingKeysResetNobody floods a full store with new keys. Keys that have spent more than the
// keys of the flood keep their state, including the attacker's.
func TestRotatingKeysResetNobody(t *testing.T) {
	for _, rule := range []*store.Rule{window, sliding} {
		for _, maxKeys := range []int{10, 100, 1000} {
			t.Run(fmt.Sprintf("%s/cap=%d", rule.Name, maxKeys), func(t *testing.T) { flood(t, rule, maxKeys, nil) })
		}
	}
}

// TestRotatingKeysResetNobodyWithAnySecret uses certain secrets. With them, a hash with a single
// multiplication led all new keys to a few tables, which then forgot users.
func TestRotatingKeysResetNobodyWithAnySecret(t *testing.T) {
	for maxKeys, numbers := range map[int][]int{100: {60, 1901}, 1000: {14, 159, 617, 1249, 1295, 1871, 2028, 2097, 2488}} {
		for _, number := range numbers {
			t.Run(fmt.Sprintf("cap=%d/secret=%d", maxKeys, number), func(t *testing.T) {
				flood(t, window, maxKeys, memstore.SecretOf(number))
			})
		}
	}
}

// flood floods a store with the given secret; nil means a random one.
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

// TestANewKeyOfAFullStoreIsComparedWithEight counts how many keys of a full table a new key is
// compared with.
func TestANewKeyOfAFullStoreIsComparedWithEight(t *testing.T) {
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
