package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// The hand-worked cases that are the same for all algorithms, under a limit of 10 per minute. The
// cases of a single algorithm are its stories.

// refunds checks Refund; each part has a new key.
func refunds(t testing.TB, s *suite, a algorithm) {
	part := func() *key { return s.bench(t).key(a.name, tenPerMinute) }
	k := part() // all of it: the key is like new again
	unseen := k.peek()
	k.refund(k.take(3), 3)
	if r := k.peek(); r != unseen {
		k.t.Fatalf("after a refund of everything: %+v, a new key: %+v", r, unseen)
	}

	k = part() // in parts
	charged := k.take(5)
	k.refund(charged, 1)
	k.has(6)
	k.refund(charged, 3)
	k.has(9)

	k = part() // a refund never returns more than was charged
	k.take(5)
	k.refund(k.take(2), 100)
	k.has(5)

	k = part() // never more than full
	charged = k.take(4)
	k.refund(charged, 4)
	k.refund(charged, 4)
	k.has(10)
	k.take(10)
	k.deny(1)

	k = part() // a refund never makes a key last longer
	charged = k.take(9)
	k.at(time.Second)
	before := k.peek().ResetAfter
	k.refund(charged, 2)
	if after := k.peek().ResetAfter; after > before {
		k.t.Fatalf("ResetAfter went from %v to %v by a refund", before, after)
	}

	k = part() // long after, nothing is still charged
	charged = k.at(0).take(10)
	k.at(time.Hour).take(10)
	k.refund(charged, 10)
	k.has(0)
	k.at(2*time.Hour).refund(charged, 10)
	k.has(10)
}

// limitChanges checks changes of the limit. Each part has a new key.
func limitChanges(t testing.TB, s *suite, a algorithm) {
	part := func() *tiers { return newTiers(t, s, a, tenPerMinute) }
	limitFuncAnswers(part())
	limitFlaps(part())
	limitFalls(t, part())
	periodChanges(part())

	for _, l := range []ratelimit.Limit{ratelimit.PerDay(10), {Rate: 10, Period: 3650 * day}} {
		k := newTiers(t, s, a, l) // a full refill after the change, all is there
		k.at(0).take(10)
		k.at(second).to(tenPerMinute).has(0)
		k.at(2*minute + second).has(10)
	}
}

// limitFuncAnswers checks that the limit or the error is what the function returns.
func limitFuncAnswers(k *tiers) {
	k.take(6)
	k.to(ratelimit.PerMinute(20)).has(14)
	k.to(ratelimit.Limit{}).has(4) // the constructor's
	k.to(ratelimit.PerMinute(0))
	if r := k.deny(1); r != (ratelimit.Result{RetryAfter: ratelimit.Never}) {
		k.t.Fatalf("a rate of 0: %+v", r)
	}
	ctx := context.Background()
	for _, l := range []ratelimit.Limit{{Rate: -1, Period: time.Minute}, {Rate: 1}, {Rate: 1, Period: time.Minute, Burst: -1}} {
		if r, err := k.to(l).lim.Allow(ctx, k.name); !errors.Is(err, ratelimit.ErrInvalidLimit) || r != (ratelimit.Result{}) {
			k.t.Fatalf("%v: %+v, %v, want ErrInvalidLimit", l, r, err)
		}
	}
	k.to(tenPerMinute).err = errors.New("of the function")
	if r, err := k.lim.Allow(ctx, k.name); !errors.Is(err, k.err) || r != (ratelimit.Result{}) {
		k.t.Fatalf("%+v, %v, want the function's error", r, err)
	}
	k.err = nil
	k.has(4)
}

// limitFlaps checks that without an admission, the limit may change any number of times.
func limitFlaps(k *tiers) {
	k.take(6)
	for range 20 {
		k.to(ratelimit.PerMinute(4)).deny(1)
		k.deny(5)
		k.has(0)
		k.to(ratelimit.PerMinute(1)).has(0)
		k.to(ratelimit.PerMinute(20)).has(14)
		k.to(ratelimit.PerHour(10)).has(4)
		k.deny(5)
		k.to(ratelimit.PerSecond(10)).has(4)
	}
	k.to(tenPerMinute).take(4)
	k.deny(1)
}

// limitFalls checks that spend above the capacity counts as the capacity.
func limitFalls(t testing.TB, k *tiers) {
	t.Helper()
	k.to(ratelimit.PerMinute(1000)).take(1000)
	r := k.to(tenPerMinute).deny(1)
	if r.RetryAfter > 2*time.Minute || r.ResetAfter > 2*time.Minute {
		t.Fatalf("locked out for longer than a full refill: %+v", r)
	}
	k.at(r.ResetAfter).has(10)
	k.take(10)
	k.deny(1)
}

// periodChanges checks that whole events that were just spent stay spent in every period.
func periodChanges(k *tiers) {
	k.at(0).take(6)
	for _, l := range []ratelimit.Limit{ratelimit.PerHour(10), ratelimit.PerSecond(10), ratelimit.PerDay(10), tenPerMinute} {
		k.to(l).has(4)
		k.deny(5)
		k.take(1)
		k.has(3)
		k.refund(k.take(2), 2)
		k.to(tenPerMinute).has(3)
		k.reset()
		k.take(6)
	}
}

// refundsAfterChange checks that what has expired or drained does not return under another limit.
func refundsAfterChange(t testing.TB, s *suite, a algorithm) {
	k := newTiers(t, s, a, tenPerMinute)
	charged := k.at(0).take(5)
	k.at(time.Hour).to(ratelimit.PerDay(10)).reset()
	k.take(10)
	k.refund(charged, 5) // drained after 30 s, and was gone after a minute
	k.has(0)
}
