package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// This file tests events that may wait for a limited time, with ratelimit.AllowWithin. The store
// sees a store.Limit with a turn.

// turnsOfRequests checks that each of several requests has its own turn. Two keys have spent the
// same. One is asked for events at any time, and the other for events within 6 minutes, the time of
// one event.
func turnsOfRequests(t testing.TB, s *suite, a algorithm) {
	for _, spent := range []int{3, 10} {
		b := s.bench(t)
		if !b.store.Together("plain", "within") {
			return
		}
		seen := &tap{Store: b.store}
		b.store = seen
		l, m := ratelimit.PerHour(10), a.newModel()
		m.charge(integers(l), b.us.Load(), int64(spent))
		for _, name := range []string{"within", "plain"} {
			k := b.key(a.name, l)
			k.name = name
			k.take(spent)
		}
		k := b.key(a.name, l)
		k.allowWithin(1, 6*minute)
		within := seen.limit
		if within.Before() == 0 {
			return // turns do not matter to a
		}
		k.peek()
		requests := []store.Request{
			{Namespace: seen.space, Key: "plain", Limit: seen.limit, N: 1},
			{Namespace: seen.space, Key: "within", Limit: within, N: 1},
		}
		want := []bool{
			m.fits(integers(l), b.us.Load(), 1),
			m.inTime(integers(l), b.us.Load(), 1, (6 * minute).Microseconds()),
		}
		for range 2 {
			replies := make([]store.Reply, 2)
			if err := b.store.Decide(context.Background(), requests, replies); err != nil {
				t.Fatal(err)
			}
			if replies[0].OK() != want[0] || replies[1].OK() != want[1] {
				t.Fatalf("%d spent: %+v, want %v", spent, replies, want)
			}
			slices.Reverse(requests)
			slices.Reverse(want)
		}
	}
}

// retryAfterWithinIsExact denies calls that cannot wait long enough.
func retryAfterWithinIsExact(t testing.TB, s *suite, a algorithm) {
	rng := rand.New(rand.NewPCG(5, 5))
	s.eachKey(t, a, func(t testing.TB, k *key, l ratelimit.Limit, capacity int) {
		for _, n := range []int{1, 1 + capacity/2, capacity} {
			k = k.another()
			k.at(0).take(capacity)
			// Perhaps beyond the capacity, and with a part of an event.
			k.advance(time.Duration(rng.Int64N(drainTime(integers(l), 1)+1)) * microsecond)
			k.allowWithin(1+rng.IntN(capacity), l.Period*time.Duration(rng.IntN(3)))
			now := k.allow(n)
			if now.Allowed || now.RetryAfter > horizonAfter(k) {
				continue
			}
			d := time.Duration(rng.Int64N(int64(now.RetryAfter)))
			r := k.allowWithin(n, d)
			if r.Allowed {
				t.Fatalf("%v, %d events within %v of %v: %+v", l, n, d, now.RetryAfter, r)
			}
			if r.RetryAfter > horizonAfter(k) {
				continue
			}
			k.advance(r.RetryAfter - microsecond)
			if early := k.allowWithin(n, d); early.Allowed || early.RetryAfter != microsecond {
				t.Fatalf("%v, %d events within %v: 1 µs before %v: %+v", l, n, d, r.RetryAfter, early)
			}
			k.advance(microsecond)
			if r = k.allowWithin(n, d); !r.Allowed || r.Delay > d {
				t.Fatalf("%v, %d events within %v: %+v", l, n, d, r)
			}
		}
	})
}

// horizonAfter returns the longest time for which traces continue.
func horizonAfter(k *key) time.Duration {
	return min(time.Duration(horizon-k.us.Load())*microsecond, 90*365*24*time.Hour)
}

// turnsKeepTheBound takes everything it can get within random times. An event counts at its turn.
func turnsKeepTheBound(t testing.TB, s *suite, a algorithm) {
	for i, l := range s.someLimits(a) {
		k := s.bench(t).key(a.name, l)
		rng := rand.New(rand.NewPCG(uint64(i), 6))
		exact := integers(l)
		event := drainTime(exact, 1) + 1
		var turns []entry
		for range 120 {
			n, d := 1+rng.IntN(max(1, int(exact.burst)/(1+rng.IntN(10)))), rng.Int64N(event*(1+rng.Int64N(20)))
			var r ratelimit.Result
			if rng.IntN(4) == 0 {
				r, d = k.allow(n), horizon
			} else {
				r = k.allowWithin(n, time.Duration(d)*microsecond)
			}
			if r.Delay.Microseconds() > d {
				t.Fatalf("%v: a turn after %v, within %d µs", l, r.Delay, d)
			}
			if r.Allowed {
				turns = append(turns, entry{k.us.Load() + r.Delay.Microseconds(), int64(n)})
			}
			step := rng.Int64N(event)
			if rng.IntN(3) == 0 {
				step = 0
			} else if !r.Allowed && r.RetryAfter != ratelimit.Never && rng.IntN(2) == 0 {
				step = r.RetryAfter.Microseconds()
			}
			if now := k.us.Load(); now+step < horizon {
				k.set(now + step)
			}
		}
		slices.SortStableFunc(turns, func(a, b entry) int { return int(min(max(a.at-b.at, -1), 1)) })
		for i, first := range turns {
			sum := int64(0)
			for _, last := range turns[i:] {
				sum += last.n
				x := last.at - first.at + 1
				if most := a.bound(exact, x); sum > most && most > 0 {
					t.Fatalf("%v has %d turns in %d µs; the bound is %d", l, sum, x, most)
				}
			}
		}
	}
}

// turnsTogether checks that several limits answer on the store under test as on the reference
// store, and admit what each of them would admit alone.
func turnsTogether(t testing.TB, s *suite, _ algorithm) {
	for seed := range uint64(20) {
		b, rng := s.bench(t), rand.New(rand.NewPCG(seed, 7))
		if !b.store.Together("key", "key") {
			return
		}
		var tested, reference []ratelimit.Limiter
		for i := range 1 + rng.IntN(4) {
			p := pairs(t, b, s.algorithms[rng.IntN(len(s.algorithms))].name, limitOf(rng), ratelimit.WithName(fmt.Sprint(i)))
			tested, reference = append(tested, p.tested), append(reference, p.reference)
		}
		all, err := ratelimit.NewAll(tested...)
		if err != nil {
			t.Fatal(err)
		}
		for range traceLen {
			d := time.Duration(rng.Int64N(int64(time.Hour)))
			if err := haveTurnsTogether(all, reference, 1+rng.IntN(4), d); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			b.advance(time.Duration(rng.Int64N(int64(30 * time.Minute))))
		}
	}
}

// haveTurnsTogether asks all, and each of its parts alone, for n events within d. It refunds the
// events that only some parts were charged, each of which is the tail of its queue.
func haveTurnsTogether(all *ratelimit.All, alone []ratelimit.Limiter, n int, d time.Duration) error {
	ctx := context.Background()
	got, err := all.AllowWithin(ctx, "key", n, d)
	if err != nil {
		return err
	}
	want := make([]ratelimit.Result, len(alone))
	fits, delay, retry := true, time.Duration(0), time.Duration(0)
	for i, l := range alone {
		if want[i], err = ratelimit.AllowWithin(ctx, l, "key", n, d); err != nil {
			return err
		}
		fits = fits && want[i].Allowed
		delay, retry = max(delay, want[i].Delay), max(retry, want[i].RetryAfter)
	}
	if !fits {
		delay = 0
	}
	if got.Allowed != fits || got.Delay != delay || got.RetryAfter != retry {
		return fmt.Errorf("%d events within %v: %+v, but alone it would be %+v", n, d, got, want)
	}
	for i, l := range alone {
		part := got.Parts()[i]
		if fits || !want[i].Allowed {
			if part.Result != want[i] {
				return fmt.Errorf("limit %d, %d events within %v:\n%+v, but alone it would be\n%+v", i, n, d, part, want[i])
			}
			continue
		}
		if err := l.Refund(ctx, "key", want[i], n); err != nil {
			return err
		}
		if !part.Allowed || part.Delay != want[i].Delay {
			return fmt.Errorf("limit %d, %d events within %v:\n%+v, but alone it would be\n%+v", i, n, d, part, want[i])
		}
	}
	return nil
}
