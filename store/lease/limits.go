package lease

import (
	"math"
	"time"

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
// leasable. With a Rate of 0 or below no store is asked, whatever this is.
func strict(algorithm string, l store.Limit, life time.Duration) (by store.Limit, leasable bool) {
	switch {
	case algorithm == fixedWindow || algorithm == slidingWindow:
		return l, true
	case life.Microseconds()*l.Rate < l.Period:
		return l, false
	}
	us := lifeMicros(life)
	by = l
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
	us := inMicros(life)
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

// untilWindowEnds is for how long the store counts an admission in its window. The key is to be as
// never seen in reset µs.
func untilWindowEnds(algorithm string, reset int64, by store.Limit) time.Duration {
	switch algorithm {
	case fixedWindow:
		return shortened(micros(reset))
	case slidingWindow: // which weighs until the next one ends
		return shortened(micros(reset - by.Period))
	}
	return math.MaxInt64
}

// micros is a number of µs.
func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// inMicros is d in µs, rounded up.
func inMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// limits are a limit as it is asked for, and as the store is asked.
type limits struct {
	rule     *store.Rule
	own, by  store.Limit
	leasable bool
}

func newLimits(rule *store.Rule, l store.Limit, life time.Duration) *limits {
	ls := &limits{rule: rule, own: l}
	ls.by, ls.leasable = strict(rule.Name, l, life)
	return ls
}

// told is what r, a reply under the strict limit to a call for n events, says under the limit that
// was asked for. If it admits them, so many are charged: all of them or none.
func (ls *limits) told(r store.Reply, n, charged int64) store.Reply {
	if ls.by == ls.own {
		return r
	}
	return r.Plainly(ls.rule, ls.by, n, charged)
}
