package storetest

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// fill spends everything a key has, in ways of different age and size. Each is called on a new key.
var fill = []struct {
	name string
	do   func(k *key, l ratelimit.Limit, capacity int)
}{
	{"all at once", func(k *key, _ ratelimit.Limit, capacity int) { k.take(capacity) }},
	{"in two parts, a third of a period apart", func(k *key, l ratelimit.Limit, capacity int) {
		k.take(capacity - capacity/2)
		k.advance(l.Period / 3)
		if r := k.peek(); r.Remaining > 0 {
			k.take(r.Remaining)
		}
	}},
	{"1 µs before the end of a window", func(k *key, l ratelimit.Limit, capacity int) {
		period := l.Period.Microseconds()
		k.set(windowStart(k.us.Load(), period) + period - 1)
		k.take(capacity)
	}},
}

// eachKey calls f for each limit, with a new key.
func (s *suite) eachKey(t testing.TB, a algorithm, f func(t testing.TB, k *key, l ratelimit.Limit, capacity int)) {
	t.Helper()
	for _, l := range s.someLimits(a) {
		s.part(t, func(t testing.TB, s *suite) {
			k := s.bench(t).key(a.name, l)
			k.advance(123_456_789 * microsecond)
			f(t, k, l, int(integers(l).burst))
		})
	}
}

// another returns a new key of the same limiter.
func (k *key) another() *key {
	other := *k
	other.name += "'"
	return &other
}

func exactlyTheCapacity(t testing.TB, s *suite, a algorithm) {
	s.eachKey(t, a, func(t testing.TB, k *key, _ ratelimit.Limit, capacity int) {
		k.has(capacity)
		ones := min(capacity, 20)
		if capacity > ones {
			k.take(capacity - ones)
		}
		for i := range ones {
			if r := k.take(1); r.Remaining != ones-1-i {
				t.Fatalf("Remaining is %d, want %d: %+v", r.Remaining, ones-1-i, r)
			}
		}
		for range 3 {
			k.deny(1)
		}
		k.has(0)
	})
}

func retryAfterIsExact(t testing.TB, s *suite, a algorithm) {
	for _, l := range s.someLimits(a) {
		capacity := int(integers(l).burst)
		for _, way := range fill {
			for _, n := range []int{1, 2, 1 + capacity/2, capacity} {
				if n > capacity {
					continue
				}
				s.part(t, func(t testing.TB, s *suite) {
					k := s.bench(t).key(a.name, l)
					way.do(k, l, capacity)
					wait := k.deny(n).RetryAfter
					if wait <= 0 || wait == ratelimit.Never || wait%microsecond != 0 {
						t.Fatalf("%v, %s: %d denied: RetryAfter is %v", l, way.name, n, wait)
					}
					k.advance(wait - microsecond)
					if r := k.deny(n); r.RetryAfter != microsecond {
						t.Fatalf("%v, %s: %d denied, 1 µs before RetryAfter it is %v", l, way.name, n, r.RetryAfter)
					}
					k.advance(microsecond)
					k.take(n)
				})
			}
		}
	}
}

func resetAfterIsExact(t testing.TB, s *suite, a algorithm) {
	for _, l := range s.someLimits(a) {
		capacity := int(integers(l).burst)
		for _, way := range fill {
			s.part(t, func(t testing.TB, s *suite) {
				k := s.bench(t).key(a.name, l)
				unseen := k.another()
				way.do(k, l, capacity)
				k.advance(k.peek().ResetAfter - microsecond)
				if r := k.peek(); r.ResetAfter != microsecond || r == unseen.peek() {
					t.Fatalf("%v, %s: fully reset 1 µs before ResetAfter: %+v", l, way.name, r)
				}
				k.advance(microsecond)
				if r := k.peek(); r != unseen.peek() {
					t.Fatalf("%v, %s: not fully reset at ResetAfter: %+v", l, way.name, r)
				}
				k.take(capacity)
			})
		}
	}
}

func tooManyCostNothing(t testing.TB, s *suite, a algorithm) {
	s.eachKey(t, a, func(t testing.TB, k *key, l ratelimit.Limit, capacity int) {
		for _, spent := range []int{0, 1, capacity} {
			k = k.another()
			if spent > 0 {
				k.take(spent)
			}
			before := k.peek()
			for _, n := range []int{capacity + 1, capacity + 2, math.MaxInt32, math.MaxInt} {
				if n <= capacity {
					continue
				}
				r := k.deny(n)
				if r.RetryAfter != ratelimit.Never || r.Remaining != before.Remaining || r.ResetAfter != before.ResetAfter {
					t.Fatalf("%v with %d spent, AllowN(%d): %+v after %+v", l, spent, n, r, before)
				}
			}
			if r := k.peek(); r != before {
				t.Fatalf("%v with %d spent: %+v, before %+v", l, spent, r, before)
			}
		}
	})
}

// tap is a store that records and counts its calls.
type tap struct {
	store.Store
	calls int
	space *store.Namespace
	limit store.Limit
}

func (p *tap) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	p.calls, p.space, p.limit = p.calls+1, ns, l
	return p.Store.Take(ctx, ns, key, l, n)
}

func (p *tap) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	p.calls, p.space, p.limit = p.calls+1, requests[0].Namespace, requests[0].Limit
	return p.Store.Decide(ctx, requests, replies)
}

func (p *tap) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	p.calls++
	return p.Store.Refund(ctx, ns, key, l, c)
}

func (p *tap) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	p.calls++
	return p.Store.Reset(ctx, ns, key)
}

func peekAnswersAsTake(t testing.TB, s *suite, a algorithm) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, l := range s.someLimits(a) {
		b := s.bench(t)
		seen := &tap{Store: b.store}
		b.store = seen
		k := b.key(a.name, l)
		for range 12 {
			b.advance(time.Duration(rng.Int64N(int64(l.Period))).Truncate(microsecond) / 5)
			before := k.peek()
			if again := k.peek(); again != before {
				t.Fatalf("%v: Peek changed what it saw: %+v, then %+v", l, before, again)
			}
			n := 1 + rng.Int64N(2+int64(before.Limit))
			want, err := store.Peek(context.Background(), b.store, seen.space, k.name, seen.limit, n)
			if err != nil {
				t.Fatal(err)
			}
			got, err := b.store.Take(context.Background(), seen.space, k.name, seen.limit, n)
			if got != want || err != nil {
				t.Fatalf("%v: Take of %d is %+v, %v; Peek said %+v", l, n, got, err, want)
			}
			before = k.peek()
			r := k.allow(1)
			if r.Allowed != before.Allowed || r.RetryAfter != before.RetryAfter || r.Delay != before.Delay || r.Limit != before.Limit {
				t.Fatalf("%v: Allow is %+v; Peek said %+v", l, r, before)
			}
		}
	}
}

// denialsChangeNothing plays traces with all calls, and without Peeks and denied calls. All other
// calls must have the same Results.
func denialsChangeNothing(t testing.TB, s *suite, a algorithm) {
	for seed := range uint64(1 + s.traces/3) {
		s.part(t, func(t testing.TB, s *suite) { denialsOfTraceChangeNothing(t, s, a, seed) })
	}
}

func denialsOfTraceChangeNothing(t testing.TB, s *suite, a algorithm, seed uint64) {
	g := newGenerator(s, a, seed, seed%2 == 0)
	p := newPlayer(t, s, a, g.base)
	p.reference = nil
	var all, fewer []op
	for len(all) < traceLen {
		o := g.next(p)
		if err := p.play(o); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		all = append(all, o)
		decided := o.kind == "AllowN" || o.kind == "AllowWithin"
		if o.kind != "Peek" && (!decided || p.results[o.id].Allowed) {
			fewer = append(fewer, o)
		}
	}
	q := newPlayer(t, s, a, g.base)
	for _, o := range fewer {
		q.clock.set(o.at)
		q.limit = o.limit
		r, err := call(q.lim(o.reserved), o, q.results[o.of])
		if q.results[o.id] = r; err != nil || r != p.results[o.id] {
			t.Fatalf("seed %d, %v: without the denials %+v, %v; with them %+v\n%s",
				seed, o, r, err, p.results[o.id], lines(all))
		}
	}
}

func lateReadingsMintNothing(t testing.TB, s *suite, a algorithm) {
	s.eachKey(t, a, func(t testing.TB, k *key, l ratelimit.Limit, capacity int) {
		k.take(capacity)
		now := k.us.Load()
		for _, late := range []time.Duration{microsecond, 50 * time.Millisecond, l.Period, 2*l.Period + microsecond} {
			k.set(now - late.Microseconds())
			if r := k.deny(1); r.Remaining != 0 || r.RetryAfter <= 0 || r.RetryAfter == ratelimit.Never {
				t.Fatalf("%v, %v late: %+v", l, late, r)
			}
		}
		k.set(now)
		k.deny(1)
	})
}

func resetForgets(t testing.TB, s *suite, a algorithm) {
	s.eachKey(t, a, func(t testing.TB, k *key, _ ratelimit.Limit, capacity int) {
		k.reset() // of a new key
		unseen := k.another().peek()
		charged := k.take(capacity)
		k.reset()
		if r := k.peek(); r != unseen {
			t.Fatalf("after Reset %+v, a new key %+v", r, unseen)
		}
		k.refund(charged, capacity) // nothing is charged any more
		if r := k.peek(); r != unseen {
			t.Fatalf("after Reset and Refund %+v, a new key %+v", r, unseen)
		}
		k.take(capacity)
		k.deny(1)
	})
}

// endsAtZero refunds a part of a key whose end is the number 0, the beginning of 1970.
func endsAtZero(t testing.TB, s *suite, a algorithm) {
	k := s.bench(t).key(a.name, tenPerMinute)
	k.set(-k.another().take(10).ResetAfter.Microseconds())
	k.take(4)
	last := k.take(6)
	k.resetsAfter(time.Duration(-k.us.Load()) * microsecond)
	k.refund(last, 1)
	k.has(1)
	k.refund(last, 5)
	k.has(6)
}

func rateOfZero(t testing.TB, s *suite, a algorithm) {
	b := s.bench(t)
	seen := &tap{Store: b.store}
	b.store = seen
	k := b.key(a.name, ratelimit.PerHour(0))
	for _, n := range []int{1, 2, math.MaxInt} {
		if r := k.allow(n); r != (ratelimit.Result{RetryAfter: ratelimit.Never}) {
			t.Fatalf("AllowN(%d): %+v", n, r)
		}
	}
	if r := k.peek(); r != (ratelimit.Result{RetryAfter: ratelimit.Never}) {
		t.Fatalf("Peek: %+v", r)
	}
	if seen.calls != 0 {
		t.Fatalf("the store was called %d times", seen.calls)
	}
}
