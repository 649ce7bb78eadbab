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

// Events whose turn must come in time: ratelimit.AllowWithin, which the store meets as a
// store.Limit with a Before.

// ask is a call of AllowWithin and what it answers, of a limit of 10 a minute: an event
// each 6 s.
type ask struct {
	at    time.Duration // of the epoch
	n     int
	d     time.Duration
	delay time.Duration // of an admission
	retry time.Duration // of a denial; 0 if it is none
}

const minute, second = time.Minute, time.Second

// turnsInHand are worked out by hand. Each begins with a key that has spent spent events
// at 0.
var turnsInHand = map[string][]struct {
	spent int
	asks  []ask
}{
	"leaky_bucket": {
		{0, []ask{ // each waits for those before
			{n: 1, d: 0},
			{n: 1, d: 0, retry: 6 * second},
			{n: 1, d: 6*second - 1, retry: microsecond}, // of which 999 ns are no whole µs
			{n: 2, d: 6 * second, delay: 6 * second},
			{n: 1, d: 6 * second, retry: 12 * second}, // 3 in the queue
			{n: 1, d: minute, delay: 18 * second},
			{at: 6 * second, n: 1, d: 18*second + 999, delay: 18 * second},
			{at: 6 * second, n: 1, d: -minute, retry: 24 * second},
		}},
		{10, []ask{ // full: there must be room, and the turn near enough
			{n: 1, d: ratelimit.Never, retry: 6 * second},
			{n: 1, d: 54 * second, retry: 6 * second},
			{n: 1, d: 53 * second, retry: 7 * second},
			{n: 10, d: 0, retry: minute},
			{n: 10, d: minute, retry: minute},
			{n: 11, d: minute, retry: ratelimit.Never},
			{at: 6 * second, n: 1, d: 54 * second, delay: 54 * second},
		}},
	},
	"token_bucket": {
		{0, []ask{
			{n: 10, d: 0},
			{n: 1, d: 0, retry: 6 * second},
			{n: 1, d: 6*second - 1, retry: microsecond},
			{n: 1, d: 6 * second, delay: 6 * second},
			{n: 1, d: 6 * second, retry: 6 * second},
			{n: 2, d: 18*second + 999, delay: 18 * second}, // 13 charged
			{n: 10, d: 77 * second, retry: second},
			{n: 10, d: 78 * second, delay: 78 * second}, // 23 charged
			{n: 11, d: ratelimit.Never, retry: ratelimit.Never},
			{at: minute, n: 1, d: 0, retry: 24 * second}, // and 13 are left
			{at: minute, n: 1, d: 20 * second, retry: 4 * second},
			{at: 84*second - microsecond, n: 1, d: 0, retry: microsecond},
			{at: 84 * second, n: 1, d: 0},
		}},
		{4, []ask{
			{n: 6, d: minute},
			{n: 1, d: minute, delay: 6 * second},
		}},
	},
	"": { // windows and logs decide as AllowN
		{8, []ask{
			{n: 3, d: ratelimit.Never, retry: minute},
			{n: 2, d: minute},
			{n: 1, d: -1, retry: minute},
			{n: 11, d: minute, retry: ratelimit.Never},
		}},
	},
}

func turns(t testing.TB, s *suite, a algorithm) {
	cases := turnsInHand[a.name]
	if !a.bucket {
		cases = turnsInHand[""]
	}
	for _, c := range cases {
		k := s.bench(t).key(a.name, tenPerMinute)
		if c.spent > 0 {
			k.take(c.spent)
		}
		for i, q := range c.asks {
			r := k.at(q.at).allowWithin(q.n, q.d)
			retry := q.retry
			if a.name == "sliding_window" && retry == minute { // the window before weighs on
				retry = r.RetryAfter
			}
			if r.Allowed != (q.retry == 0) || r.RetryAfter != retry || r.Delay != q.delay {
				t.Fatalf("%d spent, call %d, %+v: %+v", c.spent, i, q, r)
			}
		}
	}
	switch a.name {
	case "leaky_bucket":
		requestsWithAndWithoutTurns(t, s, a, 3, true, false)
		turnsOfLeakyBucket(s.bench(t).key(a.name, tenPerMinute))
	case "token_bucket":
		requestsWithAndWithoutTurns(t, s, a, 10, false, true)
		turnsOfTokenBucket(func() *key { return s.bench(t).key(a.name, tenPerMinute) })
	}
}

// requestsWithAndWithoutTurns: the Before of a request is that request's alone. Of two keys that
// have spent spent events, one is asked for a turn at any time, and the other for one
// within 6 minutes, an event's time.
func requestsWithAndWithoutTurns(t testing.TB, s *suite, a algorithm, spent int, plain, within bool) {
	b := s.bench(t)
	if !b.store.Together("plain", "within") {
		return
	}
	seen := &tap{Store: b.store}
	b.store = seen
	for _, name := range []string{"plain", "within"} {
		k := b.key(a.name, ratelimit.PerHour(10))
		k.name = name
		k.take(spent)
	}
	requests := []store.Request{
		{Namespace: seen.space, Key: "plain", Limit: seen.limit, N: 1},
		{Namespace: seen.space, Key: "within", Limit: seen.limit, N: 1},
	}
	requests[1].Limit.Before = (6 * minute).Microseconds() + 1
	for range 2 {
		replies := make([]store.Reply, 2)
		if err := b.store.TakeAll(context.Background(), requests, replies); err != nil {
			t.Fatal(err)
		}
		if replies[0].OK != plain || replies[1].OK != within {
			t.Fatalf("%d spent, at any time and within 6 minutes: %+v", spent, replies)
		}
		requests[0], requests[1], plain, within = requests[1], requests[0], within, plain
	}
}

// turnsOfLeakyBucket: what comes too late leaves no gap.
func turnsOfLeakyBucket(k *key) {
	k.take(3)
	before := k.peek()
	for range 100 {
		if r := k.allowWithin(1, 17*second); r.Allowed || r.RetryAfter != second || r.Remaining != 7 || r.ResetAfter != 18*second {
			k.t.Fatalf("a turn 18 s from now is not within 17: %+v", r)
		}
	}
	if r := k.peek(); r != before {
		k.t.Fatalf("denied 100 times: %+v, before %+v", r, before)
	}
	tail := k.allowWithin(1, 18*second)
	k.refund(tail, 1)
	if r := k.peek(); r != before {
		k.t.Fatalf("refunded: %+v, before %+v", r, before)
	}
}

// turnsOfTokenBucket: what is charged ahead of its turn is charged, and can be refunded.
func turnsOfTokenBucket(part func() *key) {
	k := part() // plain calls are denied until it is paid
	k.take(10)
	k.allowWithin(5, minute)
	if r := k.deny(1); r.RetryAfter != 36*second || r.ResetAfter != 90*second || r.Remaining != 0 {
		k.t.Fatalf("5 events ahead: %+v", r)
	}
	if r := k.peek(); r.Allowed || r.Delay != 0 || r.RetryAfter != 36*second {
		k.t.Fatalf("Peek knows of no patience: %+v", r)
	}
	k.at(36*second - microsecond).deny(1)
	k.at(36 * second).take(1)
	k.deny(1)

	k = part() // of all that was admitted ahead, any can be given back
	k.take(10)
	first, last := k.allowWithin(2, minute), k.allowWithin(3, minute)
	k.refund(first, 2)
	if r := k.deny(1); r.RetryAfter != 24*second {
		k.t.Fatalf("3 events ahead: %+v", r)
	}
	k.refund(last, 3)
	if r := k.deny(1); r.RetryAfter != 6*second {
		k.t.Fatalf("full, and none ahead: %+v", r)
	}
	k.at(minute).has(10)

	k = part() // after its turn, as far as it is still charged
	k.take(10)
	r := k.allowWithin(1, minute) // due at 66 s
	k.at(63*second).refund(r, 1)  // half of it
	k.resetsAfter(0)
}

// retryAfterWithinIsExact denies calls that can wait for less than it takes.
func retryAfterWithinIsExact(t testing.TB, s *suite, a algorithm) {
	rng := rand.New(rand.NewPCG(5, 5))
	s.eachKey(t, a, func(k *key, l ratelimit.Limit, capacity int) {
		for _, n := range []int{1, 1 + capacity/2, capacity} {
			k = k.another()
			k.at(0).take(capacity)
			if a.bucket { // further than the capacity, and with a part of an event
				k.advance(time.Duration(rng.Int64N(drainTime(integers(l), 1)+1)) * microsecond)
				k.allowWithin(1+rng.IntN(capacity), l.Period*time.Duration(rng.IntN(3)))
			}
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

// horizonAfter is how long traces go on at most.
func horizonAfter(k *key) time.Duration {
	return min(time.Duration(horizon-k.us.Load())*microsecond, 90*365*24*time.Hour)
}

// turnsKeepTheBound takes all it can get within random times. An event counts at its turn.
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

// turnsTogether: several limits answer on the store under test as on the reference store,
// and admit what each of them would admit alone.
func turnsTogether(t testing.TB, s *suite, _ algorithm) {
	for seed := range uint64(20) {
		b, rng := s.bench(t), rand.New(rand.NewPCG(seed, 7))
		if !b.store.Together("key", "key") {
			return
		}
		var tested, reference []ratelimit.Limiter
		for i := range 1 + rng.IntN(4) {
			p := pairs(t, b, algorithms[rng.IntN(len(algorithms))].name, limitOf(rng), ratelimit.WithName(fmt.Sprint(i)))
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

// haveTurnsTogether asks all for n events within d, and its parts alone, of which those
// that are charged in vain are given back: each is the tail of its queue.
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
		return fmt.Errorf("%d events within %v: %+v, and alone %+v", n, d, got, want)
	}
	for i, l := range alone {
		part := got.Parts()[i]
		if fits || !want[i].Allowed {
			if part != want[i] {
				return fmt.Errorf("limit %d says of %d events within %v\n%+v, and alone\n%+v", i, n, d, part, want[i])
			}
			continue
		}
		if err := l.Refund(ctx, "key", want[i], n); err != nil {
			return err
		}
		if !part.Allowed || part.Delay != want[i].Delay {
			return fmt.Errorf("limit %d says of %d events within %v\n%+v, and alone\n%+v", i, n, d, part, want[i])
		}
	}
	return nil
}
