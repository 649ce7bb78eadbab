// Package credit gives back events without the Result of their charge. It is for the two
// windows and the token bucket.
package credit

import (
	"math"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/store"
)

// Has reports whether events of rule can be given back so.
func Has(rule *store.Rule) bool { return rule.Spent != nil && !rule.LastOnly }

// Most is how many events of a key can be given back. r is the reply to a look at it under l. The
// last event of a bucket cannot: see package bucket.
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

// Receipt is c, which was charged on another store or is made up, for the Refund of a key under l.
// What a bucket gives back does not depend on when that was: the receipt is that of a level older
// than the bucket's, and as high as any. (Of what refills in over 50 years it may give back less.)
func Receipt(rule *store.Rule, l store.Limit, c store.Receipt) store.Receipt {
	if !rule.Burst {
		return c
	}
	most, _ := exact.MulDiv(bucket.MaxRefill, l.Rate, l.Period)
	half := exact.MulDivUp(min(most, math.MaxInt32), l.Period, 0, l.Rate) / 2
	c.At, c.Due, c.Rate, c.Period, c.Overdrawn = c.At-half, c.At+half, l.Rate, l.Period, true
	return c
}
