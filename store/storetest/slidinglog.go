package storetest

import "github.com/ratelimit-go/ratelimit"

var slidingLog = algorithm{
	name:     "sliding_log",
	newModel: func() model { return new(logModel) },
	limits:   tried,
	refused:  []ratelimit.Limit{withBurst},
	bound: func(l limit, x int64) int64 { // rate in a period
		if x > l.period {
			return 0
		}
		return l.rate
	},
	stories: []story{
		{"a refund is of its own entry", tenPerMinute, func(k *tiers) {
			first, other := k.at(0).take(3), k.at(10*second).take(4)
			k.at(20*second).refund(other, 4)
			k.has(7)
			k.refund(other, 4) // its entry is gone, and the one that is left is not its own
			k.has(7)
			k.at(minute - microsecond).has(7)
			k.at(minute).take(10)
			k.refund(first, 3) // has left the log
			k.has(0)
		}},
		refundOfWhatHasExpired,
		{"turns do not matter", tenPerMinute, turnsDoNotMatter(minute, minute)},
	},
}
