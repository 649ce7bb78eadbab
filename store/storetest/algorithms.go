package storetest

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// algorithms are the algorithms that the suite runs. To add one, describe it with its model in a
// file of its own, and add its name here.
var algorithms = []algorithm{fixedWindow, slidingWindow, slidingLog, tokenBucket, leakyBucket}

// algorithm is everything that the suite knows about an algorithm. ratelimit.New decides whether it
// accepts a limit.
type algorithm struct {
	name     string       // as in ratelimit.New
	newModel func() model // what it promises about a key

	limits  []ratelimit.Limit // the limits to run it with; see tried
	refused []ratelimit.Limit // limits that its constructor rejects, in addition to those that no algorithm accepts

	// bound returns the largest number of events that the algorithm's docs allow in any half-open
	// interval of x µs, or 0 if they promise nothing for an interval of that length.
	bound func(l limit, x int64) int64
	// due, if not nil, returns how many events of a new key are admitted in us µs to a caller that
	// always takes everything before the key is full again.
	due func(l limit, us int64) int64

	stories []story
}

// takes reports whether the constructor accepts l.
func (a algorithm) takes(l ratelimit.Limit) bool {
	_, err := ratelimit.New(a.name, newReference(time.Now), l)
	return err == nil
}

// tried are the limits for all algorithms: primes, the largest, the smallest, and rates that do not
// divide any unit of time.
var tried = []ratelimit.Limit{
	{Rate: 3, Period: time.Second},
	{Rate: 7, Period: time.Minute},
	{Rate: 10, Period: time.Minute},
	{Rate: 1000003, Period: time.Hour},
	{Rate: 1000000, Period: time.Second},
	{Rate: 999983, Period: day},
	{Rate: math.MaxInt32, Period: 365 * day},
	{Rate: math.MaxInt32, Period: 3650 * day},
	{Rate: math.MaxInt32, Period: time.Millisecond},
	{Rate: 1, Period: time.Millisecond},
	{Rate: 2, Period: 1500 * time.Microsecond},
	{Rate: 1, Period: 3650 * day},
	{Rate: 13, Period: 1000003 * time.Microsecond},
	{Rate: 1, Period: time.Hour},
	{Rate: 100, Period: 90 * time.Minute},
}

const (
	microsecond = time.Microsecond
	second      = time.Second
	minute      = time.Minute
	day         = 24 * time.Hour
)

// withBursts returns the limits with the smallest Bursts, the largest, and some between. Those that
// an algorithm does not accept are removed later.
func withBursts(limits []ratelimit.Limit) (all []ratelimit.Limit) {
	for _, l := range limits {
		for _, l.Burst = range []int{0, 1, 2, 20, 1 << 20, math.MaxInt32} {
			all = append(all, l)
		}
	}
	return all
}

// withBurst is rejected by an algorithm that has no Burst.
var withBurst = ratelimit.Limit{Rate: 1, Period: second, Burst: 1}

// tenPerMinute is the limit of most hand-worked cases. Its bucket holds 10 events and drains one
// event in 6 s.
var tenPerMinute = ratelimit.PerMinute(10)

// story is a hand-worked case: calls on a new key, in which every number was worked out by hand. It
// begins at the epoch, which is the beginning of a minute, an hour and a day.
type story struct {
	what  string
	limit ratelimit.Limit
	tell  func(k *tiers)
}

// storiesHold is a check.
func storiesHold(t testing.TB, s *suite, a algorithm) {
	for _, c := range a.stories {
		s.part(t, func(t testing.TB, s *suite) {
			if messages, failed := try(t, func(t testing.TB) { c.tell(newTiers(t, s, a, c.limit)) }); failed {
				t.Fatalf("%s: %s", c.what, messages)
			}
		})
	}
}

// tiers is a key whose limit can be changed.
type tiers struct {
	*key
	limit ratelimit.Limit // what WithLimitFunc returns
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

// to changes the limit. The zero limit stands for the constructor's.
func (k *tiers) to(l ratelimit.Limit) *tiers {
	k.limit = l
	return k
}

// ask is a call of AllowWithin and its result.
type ask struct {
	at    time.Duration // since the epoch
	n     int
	d     time.Duration
	delay time.Duration // of an admission
	retry time.Duration // of a denial; 0 if admitted
}

// asks returns a story of calls.
func asks(calls ...ask) func(k *tiers) {
	return func(k *tiers) {
		k.t.Helper()
		for i, c := range calls {
			r := k.at(c.at).allowWithin(c.n, c.d)
			if r.Allowed != (c.retry == 0) || r.RetryAfter != c.retry || r.Delay != c.delay {
				k.t.Fatalf("call %d, %+v: %+v", i, c, r)
			}
		}
	}
}

// turnsDoNotMatter returns a story of windows and logs, for which AllowWithin decides as AllowN does.
// three is the RetryAfter of 3 events once 8 are spent, and one is that of 1 event once all 10 are.
func turnsDoNotMatter(three, one time.Duration) func(k *tiers) {
	return asks(
		ask{n: 8},
		ask{n: 3, d: ratelimit.Never, retry: three},
		ask{n: 2, d: minute},
		ask{n: 1, d: -1, retry: one},
		ask{n: 11, d: minute, retry: ratelimit.Never},
	)
}

// refundOfWhatHasExpired is a story of windows and logs.
var refundOfWhatHasExpired = story{"what has expired is not given back under a slower limit", tenPerMinute, func(k *tiers) {
	charged := k.at(0).take(5)
	k.at(10 * minute).take(3)
	k.to(ratelimit.PerHour(10)).take(1)
	k.refund(charged, 5)
	k.has(6)
}}
