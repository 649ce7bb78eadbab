package storetest

import "github.com/ratelimit-go/ratelimit"

var fixedWindow = algorithm{
	name:     "fixed_window",
	newModel: func() model { return new(fixedModel) },
	limits:   append(calendars(), tried...),
	refused:  []ratelimit.Limit{withBurst},
	bound: func(l limit, x int64) int64 { // 2·rate in a period
		if x > l.shortest() {
			return 0
		}
		return 2 * l.rate
	},
	stories: []story{
		{"a refund is of the window of its charge", tenPerMinute, func(k *tiers) {
			first, second := k.at(0).take(4), k.at(10*second).take(3)
			k.at(minute-microsecond).refund(first, 4)
			k.has(7)
			k.at(minute).take(2)
			k.refund(second, 3) // its window is over
			k.has(8)
		}},
		refundOfWhatHasExpired,
		{"turns do not matter", tenPerMinute, turnsDoNotMatter(minute, minute)},
	},
}

// calendars are limits whose windows begin at midnight, in zones with all that clocks do. Zones
// that are not known here are left out.
func calendars() (all []ratelimit.Limit) {
	for _, text := range []string{
		"10/month", "100/month from 31 in America/Sao_Paulo", "3/month from 15 in Asia/Kolkata", "7/week", "20/week from sunday in Europe/Berlin",
		"10/day in UTC", "100/day in Asia/Kolkata", "1000003/day in America/St_Johns", "2147483647/day in Africa/Cairo",
	} {
		l, err := ratelimit.ParseLimit(text)
		if err == nil {
			all = append(all, l)
		}
	}
	return all
}
