package storetest

import "github.com/ratelimit-go/ratelimit"

var tokenBucket = algorithm{
	name:     "token_bucket",
	newModel: func() model { return new(bucketModel) },
	limits:   withBursts(tried),
	refused:  refillTooLong,
	bound:    bucketBound,
	due:      bucketDue,
	stories: []story{
		theLastPart,
		theLastPartIsWhole,
		refundOfWhatDrainedFaster,
		{"a refund is of what is not refilled", tenPerMinute, func(k *tiers) {
			first, last := k.at(0).take(4), k.take(4) // drained after 24 s and after 48 s
			k.at(12 * second).has(4)
			k.refund(first, 4) // 2 of them are already refilled
			k.has(6)
			k.refund(last, 4) // none of them is
			k.has(10)
		}},
		{"idling mints nothing", tenPerMinute, func(k *tiers) {
			charged := k.at(0).take(6) // refilled after 36 s
			k.at(36 * second).take(5)
			k.refund(charged, 6)
			k.has(5)
		}},
		{"1 µs of a charge is a 6,000,000th of an event", tenPerMinute, func(k *tiers) {
			charged := k.at(0).take(6)
			k.at(36*second - microsecond).take(4)
			k.refund(charged, 6)
			k.has(6)
			k.resetsAfter(24 * second)
		}},
		{"whole events are refunded in another period", tenPerMinute, func(k *tiers) {
			charged := k.at(0).take(5)
			k.take(2)
			k.to(ratelimit.PerHour(10)).refund(charged, 5) // all 5 are still charged
			k.has(8)
		}},
		// With this Period, each µs is a different part of an event.
		{"a state keeps its period", ratelimit.Limit{Rate: 1, Period: minute, Burst: 10}, func(k *tiers) {
			charged := k.at(0).take(5)
			k.take(4)
			k.to(ratelimit.Limit{Rate: 1, Period: 60 * minute, Burst: 10}).at(3*second).refund(charged, 5)
			k.to(ratelimit.Limit{}).resetsAfter(5*minute - 3*second) // at one event per hour, 4 of the 5 were whole
		}},
		{"a refund of nothing leaves what is above a lower limit", ratelimit.PerMinute(1000), func(k *tiers) {
			charged := k.at(0).take(1)
			k.at(60_000 * microsecond).take(500)
			k.to(tenPerMinute).refund(charged, 1) // its event has just drained
			k.to(ratelimit.PerMinute(1000)).has(500)
		}},
		{"tokens come in time", tenPerMinute, asks(
			ask{n: 10, d: 0},
			ask{n: 1, d: 0, retry: 6 * second},
			ask{n: 1, d: 6*second - 1, retry: microsecond}, // 999 ns of it are not a whole µs
			ask{n: 1, d: 6 * second, delay: 6 * second},
			ask{n: 1, d: 6 * second, retry: 6 * second},
			ask{n: 2, d: 18*second + 999, delay: 18 * second}, // 13 charged
			ask{n: 10, d: 77 * second, retry: second},
			ask{n: 10, d: 78 * second, delay: 78 * second}, // 23 charged
			ask{n: 11, d: ratelimit.Never, retry: ratelimit.Never},
			ask{at: minute, n: 1, d: 0, retry: 24 * second}, // 13 of them are left
			ask{at: minute, n: 1, d: 20 * second, retry: 4 * second},
			ask{at: 84*second - microsecond, n: 1, d: 0, retry: microsecond},
			ask{at: 84 * second, n: 1, d: 0},
		)},
		{"the first that is ahead waits for one token", tenPerMinute, asks(
			ask{n: 4}, ask{n: 6, d: minute}, ask{n: 1, d: minute, delay: 6 * second},
		)},
		{"plain calls are denied until what is ahead is paid", tenPerMinute, func(k *tiers) {
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
		}},
		{"of what was admitted ahead, any can be given back", tenPerMinute, func(k *tiers) {
			k.take(10)
			first, last := k.allowWithin(2, minute), k.allowWithin(3, minute)
			k.refund(first, 2)
			if r := k.deny(1); r.RetryAfter != 24*second {
				k.t.Fatalf("3 events ahead: %+v", r)
			}
			k.refund(last, 3)
			if r := k.deny(1); r.RetryAfter != 6*second {
				k.t.Fatalf("full, and nothing ahead of its time: %+v", r)
			}
			k.at(minute).has(10)
		}},
		{"after its turn, an event is refunded as far as it is charged", tenPerMinute, func(k *tiers) {
			k.take(10)
			r := k.allowWithin(1, minute) // due at 66 s
			k.at(63*second).refund(r, 1)  // half of it
			k.resetsAfter(0)
		}},
	},
}
