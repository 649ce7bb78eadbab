package storetest

import "github.com/ratelimit-go/ratelimit"

var leakyBucket = algorithm{
	name:     "leaky_bucket",
	newModel: func() model { return &bucketModel{queue: true} },
	limits:   withBursts(tried),
	refused:  refillTooLong,
	bound:    bucketBound,
	due:      bucketDue,
	stories: []story{
		theLastPart,
		theLastPartIsWhole,
		refundOfWhatDrainedFaster,
		{"a refund is of the tail", tenPerMinute, func(k *tiers) {
			first, tail := k.at(0).take(3), k.take(2)
			k.refund(first, 3) // the places behind it are already taken
			k.has(5)
			k.refund(tail, 2)
			k.has(7)
		}},
		{"the tail drains", tenPerMinute, func(k *tiers) {
			first := k.at(0).take(3)
			tail := k.at(12 * second).take(2) // behind 1, with places from 18 s to 30 s
			if tail.Delay != 6*second {
				k.t.Fatalf("Delay is %v, want 6s", tail.Delay)
			}
			k.refund(first, 3)
			k.has(7)
			k.at(24*second).refund(tail, 2) // 1 of the 2 has drained
			k.has(10)
			k.at(minute).take(10)
			k.refund(tail, 2)
			k.has(0)
		}},
		{"what was behind and was given back leaves no trace", tenPerMinute, func(k *tiers) {
			first := k.at(0).take(3)
			k.refund(k.at(second).take(2), 2)
			k.refund(first, 3)
			k.has(10)
		}},
		{"what is behind and was given back in part is behind", tenPerMinute, func(k *tiers) {
			first := k.at(0).take(3)
			k.refund(k.at(6*second).take(2), 1)
			k.refund(first, 3)
			k.has(7)
		}},
		{"the next event takes the turn that was given back", tenPerMinute, func(k *tiers) {
			k.at(0).take(3)
			k.refund(k.at(second).take(2), 2)
			if r := k.take(1); r.Delay != 17*second {
				k.t.Fatalf("Delay is %v, want 17s", r.Delay)
			}
		}},
		// In 1 µs, 1.3 events drain. A charge stores in which µs its level has drained, so it knows
		// the level only to 1.3 events.
		{"what was just before the tail is not it", ratelimit.PerMinute(78_000_000), func(k *tiers) {
			k.at(0).take(39_000_010)
			first := k.at(microsecond).take(1) // leaves 39,000,009.7 behind, by its ResetAfter 39,000,010.4
			k.take(1)                          // 39,000,010.7
			k.refund(first, 1)
			k.has(78_000_000 - 39_000_011)
		}},
		{"each waits for those before", tenPerMinute, asks(
			ask{n: 1, d: 0},
			ask{n: 1, d: 0, retry: 6 * second},
			ask{n: 1, d: 6*second - 1, retry: microsecond}, // 999 ns of it are not a whole µs
			ask{n: 2, d: 6 * second, delay: 6 * second},
			ask{n: 1, d: 6 * second, retry: 12 * second}, // 3 in the queue
			ask{n: 1, d: minute, delay: 18 * second},
			ask{at: 6 * second, n: 1, d: 18*second + 999, delay: 18 * second},
			ask{at: 6 * second, n: 1, d: -minute, retry: 24 * second},
		)},
		{"there must be room, and the turn near enough", tenPerMinute, asks(
			ask{n: 10, d: 0},
			ask{n: 1, d: ratelimit.Never, retry: 6 * second},
			ask{n: 1, d: 54 * second, retry: 6 * second},
			ask{n: 1, d: 53 * second, retry: 7 * second},
			ask{n: 10, d: 0, retry: minute},
			ask{n: 10, d: minute, retry: minute},
			ask{n: 11, d: minute, retry: ratelimit.Never},
			ask{at: 6 * second, n: 1, d: 54 * second, delay: 54 * second},
		)},
		{"what comes too late leaves no gap", tenPerMinute, func(k *tiers) {
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
		}},
	},
}
