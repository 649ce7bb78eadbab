package storetest

import "github.com/ratelimit-go/ratelimit"

var slidingWindow = algorithm{
	name:     "sliding_window",
	newModel: func() model { return new(slidingModel) },
	limits:   tried,
	refused:  []ratelimit.Limit{withBurst},
	bound:    func(l limit, x int64) int64 { return l.rate + refilled(l, x) }, // rate·(1 + x/period)
	stories: []story{
		{"a refund is of the window of its charge, also of the previous one", tenPerMinute, func(k *tiers) {
			charged := k.at(0).take(10)
			k.at(minute).has(0)
			k.refund(charged, 4) // of the previous window: 6 are left of it
			k.has(4)
			k.at(90 * second).has(7) // they weigh half
			k.at(95 * second).take(3)
			k.at(2 * minute).take(2)
			k.refund(charged, 6) // its window has no weight any more; that of the 3 has full weight
			k.has(5)
		}},
		refundOfWhatHasExpired,
		// In the next window 8 weigh 7 after 7.5 s, and 10 weigh 9 after 6 s.
		{"turns do not matter", tenPerMinute, turnsDoNotMatter(67*second+second/2, 66*second)},
	},
}
