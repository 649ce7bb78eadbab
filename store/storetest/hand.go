package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// tenPerMinute is the limit of what is worked out by hand: a bucket of it holds
// 10 and drains one event in 6 s.
var tenPerMinute = ratelimit.PerMinute(10)

// threePer100s drains an event in 33,333,333 1/3 µs: after 33,333,333 of them the
// smallest part that there is, a 100,000,000th of an event, is left.
var threePer100s = ratelimit.Limit{Rate: 3, Period: 100 * time.Second}

// refunds is worked out by hand. Each part is of a key never seen, and its times
// are of the epoch, the beginning of a minute.
func refunds(t testing.TB, s *suite, a algorithm) {
	part := func() *key { return s.bench(t).key(a.name, tenPerMinute) }
	refundsOfAll(part)
	if a.bucket {
		refundsOfTheLastPart(s.bench(t).key(a.name, threePer100s))
	}
	switch a.name {
	case "fixed_window":
		refundsOfFixedWindow(part)
	case "sliding_window":
		refundsOfSlidingWindow(part)
	case "sliding_log":
		refundsOfSlidingLog(part)
	case "token_bucket":
		refundsOfTokenBucket(part)
	case "leaky_bucket":
		refundsOfLeakyBucket(part)
		refundOfWhatIsNotTheTail(s.bench(t).key(a.name, ratelimit.PerMinute(78_000_000)))
	}
}

func refundsOfAll(part func() *key) {
	k := part() // all of it, and it is as if it had not happened
	unseen := k.peek()
	k.refund(k.take(3), 3)
	if r := k.peek(); r != unseen {
		k.t.Fatalf("refunded whole: %+v, never seen: %+v", r, unseen)
	}

	k = part() // in parts
	charged := k.take(5)
	k.refund(charged, 1)
	k.has(6)
	k.refund(charged, 3)
	k.has(9)

	k = part() // no more than was charged
	k.take(5)
	k.refund(k.take(2), 100)
	k.has(5)

	k = part() // never past full
	charged = k.take(4)
	k.refund(charged, 4)
	k.refund(charged, 4)
	k.has(10)
	k.take(10)
	k.deny(1)

	k = part() // a refund never keeps a key for longer
	charged = k.take(9)
	k.at(time.Second)
	before := k.peek().ResetAfter
	k.refund(charged, 2)
	if after := k.peek().ResetAfter; after > before {
		k.t.Fatalf("ResetAfter went from %v to %v by a refund", before, after)
	}

	k = part() // long after, nothing is charged any more
	charged = k.at(0).take(10)
	k.at(time.Hour).take(10)
	k.refund(charged, 10)
	k.has(0)
	k.at(2*time.Hour).refund(charged, 10)
	k.has(10)
}

func refundsOfFixedWindow(part func() *key) {
	k := part()
	first, second := k.at(0).take(4), k.at(10*time.Second).take(3)
	k.at(60*time.Second-microsecond).refund(first, 4)
	k.has(7)
	k.at(60 * time.Second).take(2)
	k.refund(second, 3) // its window is over
	k.has(8)
}

func refundsOfSlidingWindow(part func() *key) {
	k := part()
	charged := k.at(0).take(10)
	k.at(60 * time.Second).has(0)
	k.refund(charged, 4) // of the previous window: 6 are left of it
	k.has(4)
	k.at(90 * time.Second).has(7) // they weigh half
	k.at(95 * time.Second).take(3)
	k.at(120 * time.Second).take(2)
	k.refund(charged, 6) // its window has no weight any more; that of the 3 has all
	k.has(5)
}

func refundsOfSlidingLog(part func() *key) {
	k := part()
	first, second := k.at(0).take(3), k.at(10*time.Second).take(4)
	k.at(20*time.Second).refund(second, 4)
	k.has(7)
	k.refund(second, 4) // the entry is gone, and the other is not its own
	k.has(7)
	k.at(60*time.Second - microsecond).has(7)
	k.at(60 * time.Second).take(10)
	k.refund(first, 3) // has left the log
	k.has(0)
}

// refundsOfTheLastPart: the smallest part of an event holds its place, and can be
// given back.
func refundsOfTheLastPart(k *key) {
	k.at(0).take(1)
	charged := k.at(33_333_333 * microsecond).take(1)
	k.refund(charged, 1)
	k.has(2)
	k.resetsAfter(microsecond)
	k.refund(charged, 1)
	k.has(3)
	k.resetsAfter(0)
}

func refundsOfTokenBucket(part func() *key) {
	k := part() // first has drained after 24 s, second after 48 s
	first, second := k.at(0).take(4), k.take(4)
	k.at(12 * time.Second).has(4)
	k.refund(first, 4) // 2 of them are refilled already
	k.has(6)
	k.refund(second, 4) // none of them is
	k.has(10)

	k = part() // 6 are refilled after 36 s; idling then mints nothing
	charged := k.at(0).take(6)
	k.at(36 * time.Second).take(5)
	k.refund(charged, 6)
	k.has(5)

	k = part()
	charged = k.at(0).take(6)
	k.at(36*time.Second - microsecond).take(4)
	k.refund(charged, 6) // 1 µs of it is left: a 6,000,000th of an event
	k.has(6)
	k.resetsAfter(24 * time.Second)
}

func refundsOfLeakyBucket(part func() *key) {
	k := part()
	first, tail := k.at(0).take(3), k.take(2)
	k.refund(first, 3) // the turns behind it are given out
	k.has(5)
	k.refund(tail, 2)
	k.has(7)

	k = part() // the queue is 1 after 12 s, and then the tail is of 12 s to 30 s
	first = k.at(0).take(3)
	tail = k.at(12 * time.Second).take(2)
	if tail.Delay != 6*time.Second {
		k.t.Fatalf("Delay is %v, want 6s", tail.Delay)
	}
	k.refund(first, 3)
	k.has(7)
	k.at(24*time.Second).refund(tail, 2) // 1 of the 2 has drained
	k.has(10)
	k.at(60 * time.Second).take(10)
	k.refund(tail, 2)
	k.has(0)

	k = part() // the next event takes the turn that was given back
	k.at(0).take(3)
	k.refund(k.at(time.Second).take(2), 2)
	if r := k.take(1); r.Delay != 17*time.Second {
		k.t.Fatalf("Delay is %v, want 17s", r.Delay)
	}
}

// refundOfWhatIsNotTheTail: 1.3 events drain in 1 µs, so that a charge, which knows
// the µs in which its level has drained, knows that level to 1.3 events.
func refundOfWhatIsNotTheTail(k *key) {
	k.at(0).take(39_000_010)
	first := k.at(microsecond).take(1) // leaves 39,000,009.7 behind, by its ResetAfter 39,000,010.4
	k.take(1)                          // 39,000,010.7
	k.refund(first, 1)
	k.has(78_000_000 - 39_000_011)
}

// tiers is a key whose limit can be changed.
type tiers struct {
	*key
	limit ratelimit.Limit // WithLimitFunc's answer
	err   error
}

func newTiers(t testing.TB, s *suite, a algorithm, l ratelimit.Limit) *tiers {
	t.Helper()
	k := new(tiers)
	k.key = s.bench(t).key(a.name, l, ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) { return k.limit, k.err }))
	return k
}

// at sets the clock.
func (k *tiers) at(d time.Duration) *tiers {
	k.key.at(d)
	return k
}

// to changes the limit.
func (k *tiers) to(l ratelimit.Limit) *tiers {
	k.limit = l
	return k
}

// limitChanges is worked out by hand, for each algorithm alike.
func limitChanges(t testing.TB, s *suite, a algorithm) {
	part := func() *tiers { return newTiers(t, s, a, tenPerMinute) }
	limitFuncAnswers(part())
	limitFlaps(part())
	limitFalls(t, part())
	periodChanges(part())
	if a.bucket {
		k := newTiers(t, s, a, threePer100s) // the smallest part of an event is a whole one in another period
		k.at(0).take(1)
		k.at(33_333_333 * microsecond).take(1)
		k.to(ratelimit.Limit{Rate: 3, Period: 300 * time.Second}).resetsAfter(200 * time.Second)
	}

	for _, l := range []ratelimit.Limit{ratelimit.PerDay(10), {Rate: 10, Period: 3650 * 24 * time.Hour}} {
		k := newTiers(t, s, a, l) // a full refill after it has changed, all is there
		k.at(0).take(10)
		k.at(time.Second).to(tenPerMinute).has(0)
		k.at(2*time.Minute + time.Second).has(10)
	}
}

// limitFuncAnswers: what the function returns is the limit, or the error.
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

// limitFlaps: without an admission, the limit may change as often as it likes.
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

// limitFalls: spend above the capacity is read as the capacity.
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

// periodChanges: whole events that have just been spent are spent in every
// period.
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

// refundsAfterChange: what has expired or drained under a limit does not come back
// under another, faster or slower.
func refundsAfterChange(t testing.TB, s *suite, a algorithm) {
	k := newTiers(t, s, a, tenPerMinute)
	charged := k.at(0).take(5)
	k.at(time.Hour).to(ratelimit.PerDay(10)).reset()
	k.take(10)
	k.refund(charged, 5) // has drained after 30 s
	k.has(0)

	if a.bucket {
		k = newTiers(t, s, a, ratelimit.PerDay(10))
		charged = k.at(0).take(10)
		k.to(tenPerMinute).at(time.Hour).take(10) // charged has drained at this rate
		k.refund(charged, 10)
		k.has(0)
		if a.name == "token_bucket" {
			refundsInAnotherPeriod(t, s, a)
		}
		return
	}
	k = newTiers(t, s, a, tenPerMinute)
	charged = k.at(0).take(5)
	k.at(10 * time.Minute).take(3) // charged has expired
	k.to(ratelimit.PerHour(10)).take(1)
	k.refund(charged, 5)
	k.has(6)
}

// refundsInAnotherPeriod: a state keeps its period, and whole events go back to it.
func refundsInAnotherPeriod(t testing.TB, s *suite, a algorithm) {
	k := newTiers(t, s, a, tenPerMinute)
	charged := k.at(0).take(5)
	k.take(2)
	k.to(ratelimit.PerHour(10)).refund(charged, 5) // all 5 are still charged
	k.has(8)

	slow := ratelimit.Limit{Rate: 1, Period: time.Minute, Burst: 10} // where each µs is a part of its own
	k = newTiers(t, s, a, slow)
	charged = k.at(0).take(5)
	k.take(4)
	k.to(ratelimit.Limit{Rate: 1, Period: time.Hour, Burst: 10}).at(3*time.Second).refund(charged, 5)
	k.to(slow).resetsAfter(5*time.Minute - 3*time.Second) // 4 of the 5 were whole at an event an hour

	k = newTiers(t, s, a, ratelimit.PerMinute(1000))
	charged = k.at(0).take(1)
	k.at(60 * time.Millisecond).take(500)
	k.to(tenPerMinute).refund(charged, 1) // has just drained: what is above 10 stays
	k.to(ratelimit.PerMinute(1000)).has(500)
}
