package lease

import (
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/store"
)

// The algorithms that can be leased, by name.
const (
	fixedWindow   = "fixed_window"
	slidingWindow = "sliding_window"
	slidingLog    = "sliding_log"
	tokenBucket   = "token_bucket"
)

const maxPeriod = 10 * 365 * 24 * 3600 * 1e6 // µs

// strict is the limit to ask the store for. Events that are admitted up to life after they were
// charged then keep to the bound of l:
//
//   - a window as it is, since its leases end with it, however many events come in a life;
//   - a bucket without what flows into it in that time;
//   - a log that remembers for so much longer.
//
// If less than an event comes in a life of these two, or nearly all of the burst, it is l, and not
// leasable.
func strict(algorithm string, l store.Limit, life time.Duration) (by store.Limit, leasable bool) {
	switch {
	case l.Rate <= 0: // Unlimited is below 0
		return l, false
	case algorithm == fixedWindow || algorithm == slidingWindow:
		return l, true
	case life.Microseconds()*l.Rate < l.Period:
		return l, false
	}
	us := lifeMicros(life)
	by, leasable = l, true
	switch algorithm {
	case tokenBucket:
		by.Burst -= ahead(l, us)
		leasable = by.Burst > 0
	case slidingLog:
		by.Period += us
		leasable = by.Period <= maxPeriod
	}
	if !leasable {
		return l, false
	}
	return by, true
}

// eventLife is the least life in which an event of l comes.
func eventLife(l store.Limit) time.Duration {
	return time.Duration(exact.MulDivUp(1, l.Period, 0, l.Rate)) * time.Microsecond
}

// lifeMicros is how long a life can take on the store's clock, in whole µs: as long as it must be
// for shortened to be no less than a life.
func lifeMicros(life time.Duration) int64 {
	us := wholeMicros(life).Microseconds()
	return us + us/(clockPart-1) + 2
}

// ahead is how many events flow in us µs, rounded up.
func ahead(l store.Limit, us int64) int64 { return exact.MulDivUp(us, l.Rate, 0, l.Period) }

// pause is for how long a process does not ask again after a denial. At the limit time and not
// demand decides how often the store is asked. It is half a life, and no more than half
// of the time in which the limit refills, which would be lost. A fixed window needs none: nothing
// comes before its end, and then all does.
func pause(algorithm string, l store.Limit, life time.Duration) time.Duration {
	if algorithm == fixedWindow {
		return 0
	}
	return min(life, refill(l)) / 2
}

// refill is the time in which all of l comes back.
func refill(l store.Limit) time.Duration {
	return time.Duration(exact.MulDivUp(l.Burst, l.Period, 0, l.Rate)) * time.Microsecond
}

// untilWindowEnds is for how long the store counts the admission r in its window.
func untilWindowEnds(algorithm string, r *ratelimit.Result, by store.Limit) time.Duration {
	switch algorithm {
	case fixedWindow:
		return shortened(r.ResetAfter)
	case slidingWindow: // which weighs until the next one ends
		return shortened(r.ResetAfter - time.Duration(by.Period)*time.Microsecond)
	}
	return math.MaxInt64
}
