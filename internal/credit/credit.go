// Package credit refunds events without the Result of their charge, for the two windows and the
// token bucket.
package credit

import (
	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/store"
)

// Has reports whether events of rule can be refunded in this way.
func Has(rule *store.Rule) bool {
	return rule.Name == "fixed_window" || rule.Name == "sliding_window" || rule.Name == "token_bucket"
}

// Most returns how many events of a key can be refunded. r is the reply to a look at it under l.
// The last event of a bucket cannot be refunded: see package bucket.
func Most(rule *store.Rule, l store.Limit, r store.Reply) int64 {
	switch {
	case r.Plain() || !Has(rule):
		return 0
	case rule.Burst:
		return max(0, rule.Spent(r)-1)
	case r.Y < 0: // a sliding window, counted in another Period
		return 0
	case rule.Name == "fixed_window" && r.Y > 0:
		if _, end := l.Window(r.X); r.X+r.Z != end { // counted by another calendar
			return 0
		}
	}
	return rule.Spent(r)
}

// Receipt converts c, which was charged on another store or is made up, for the Refund of a key
// under l. The result does not depend on when a bucket was charged, because the receipt is for a
// level that is older than the bucket's and as high as possible. (It may refund less of what takes
// over 50 years to refill.)
func Receipt(rule *store.Rule, l store.Limit, c store.Receipt) store.Receipt {
	if !rule.Burst {
		return c
	}
	half := bucket.DrainTime(bucket.Most(l), 0, l) / 2
	c.At, c.Due, c.Rate, c.Period, c.Overdrawn = c.At-half, c.At+half, l.Rate, l.Period, true
	return c
}
