package storetest

import (
	"math/rand/v2"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

func boundHolds(t testing.TB, s *suite, a algorithm) {
	for i, l := range s.someLimits(a) {
		s.part(t, func(t testing.TB, s *suite) { boundOfLimitHolds(t, s, a, i, l) })
	}
}

// boundOfLimitHolds takes everything it can get at the worst times: at the edges of windows, at
// RetryAfter, all together and one by one.
func boundOfLimitHolds(t testing.TB, s *suite, a algorithm, i int, l ratelimit.Limit) {
	k := s.bench(t).key(a.name, l)
	rng := rand.New(rand.NewPCG(uint64(i), 3))
	var admitted []entry
	for range 40 {
		admitted = append(admitted, greed(k, rng)...)
		if next := attack(k, l, rng); next < horizon {
			k.set(next)
		}
	}
	for i, first := range admitted {
		sum := int64(0)
		for _, last := range admitted[i:] {
			sum += last.n
			x := last.at - first.at + 1
			if most := a.bound(integers(l), x); sum > most && most > 0 {
				t.Fatalf("%v admitted %d in %d µs; the bound is %d", l, sum, x, most)
			}
		}
	}
}

// greed takes everything, until the last event is denied.
func greed(k *key, rng *rand.Rand) []entry {
	k.t.Helper()
	var got []entry
	for range 40 {
		var n int
		switch left := k.peek().Remaining; {
		case left == 0:
			k.deny(1)
			return got
		case rng.IntN(3) > 0 || len(got) > 3:
			n = left
		default:
			n = 1 + rng.IntN(left)
		}
		k.take(n)
		got = append(got, entry{k.us.Load(), int64(n)})
	}
	k.t.Fatalf("at one instant, there is more after all has been taken %d times", len(got))
	return nil
}

// attack returns the next time to be greedy.
func attack(k *key, l ratelimit.Limit, rng *rand.Rand) int64 {
	now, period := k.us.Load(), l.Period.Microseconds()
	edge := integers(l).windowEnd(now)
	switch rng.IntN(6) {
	case 0:
		return max(now, edge-1)
	case 1:
		return edge
	case 2:
		return now + 1 + rng.Int64N(period)
	case 3:
		return now + period - 1
	}
	return now + k.peek().RetryAfter.Microseconds()
}

func longRun(t testing.TB, s *suite, a algorithm) {
	for i, l := range s.someLimits(a) {
		s.part(t, func(t testing.TB, s *suite) { longRunOfLimit(t, s, a, i, l) })
	}
}

// longRunOfLimit takes everything it can get, up to 400 times, at random intervals of whole µs.
func longRunOfLimit(t testing.TB, s *suite, a algorithm, i int, l ratelimit.Limit) {
	k := s.bench(t).key(a.name, l)
	rng := rand.New(rand.NewPCG(uint64(i), 4))
	exact, m := integers(l), a.newModel()
	start, sum, due := k.us.Load(), int64(0), int64(0)
	most := exact.period // µs between two calls
	if a.due != nil {
		most = drainTime(exact, exact.burst-1) // so that it is never full again
	}
	for range min(400, 2*s.traces) {
		now := k.us.Load()
		if r := k.peek(); r.Remaining > 0 {
			k.take(r.Remaining)
			sum += int64(r.Remaining)
		}
		due += chargeAll(m, exact, now)
		if a.due != nil && most > 0 { // a single division from the start gives the sum
			due = a.due(exact, now-start)
		}
		if sum != due {
			t.Fatalf("%v admitted %d in %d µs; %d were due", l, sum, now-start, due)
		}
		if step := 1 + rng.Int64N(max(1, most)); now+step < horizon {
			k.set(now + step)
		}
	}
}

// chargeAll charges m at now with as many events as fit, and returns how many.
func chargeAll(m model, l limit, now int64) int64 {
	sum := int64(0)
	for n := int64(1) << 31; n > 0; n /= 2 {
		if m.fits(l, now, n) {
			m.charge(l, now, n)
			sum += n
		}
	}
	return sum
}

// refilled returns how many whole events flow into a bucket of l in us µs.
func refilled(l limit, us int64) int64 { return down(l.flow(us)) }

// drainTime returns how long n events of a bucket of l take to drain, in whole µs.
func drainTime(l limit, n int64) int64 { return down(share(n, l.period, l.rate)) }
