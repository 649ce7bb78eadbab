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

// strict returns the limit to ask the store for, so that events admitted up to life after they were
// charged keep to the bound of l:
//
//   - a window is unchanged, because its leases end with it, however many events flow in per TTL
//   - a bucket is smaller by what flows into it in that time
//   - a log remembers events for that much longer
//
// If less than one event flows into a log or a bucket per TTL, or nearly all of the burst does, it
// returns l, which is not leasable. With a Rate of 0 or below the store is never asked, so the
// result does not matter.
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

// lifeMicros returns how long a TTL can take on the store's clock, in whole µs, so that shortened
// of it is at least a TTL.
func lifeMicros(life time.Duration) int64 {
	us := inMicros(life)
	return us + us/(clockPart-1) + 2
}

// ahead returns how many events flow in within us µs, rounded up.
func ahead(l store.Limit, us int64) int64 { return exact.MulDivUp(us, l.Rate, 0, l.Period) }

// pause returns how long a process does not ask again after a denial. At the limit, time and not
// demand must determine how often the store is asked. It is half a TTL, but no more than half of
// the time in which the limit refills, because the rest would be lost. A fixed window needs no
// pause: nothing becomes free before its end, and then everything does.
func pause(algorithm string, l store.Limit, life time.Duration) time.Duration {
	if algorithm == fixedWindow {
		return 0
	}
	return min(life, refill(l.Burst, l)) / 2
}

// refill returns the shortest time in which n events of l flow in.
func refill(n int64, l store.Limit) time.Duration {
	return micros(exact.MulDivUp(n, l.Period, 0, l.Rate))
}

// untilWindowEnds returns for how long the store counts an admission in its current window. reset is
// the time in µs until the key would be fully reset.
func untilWindowEnds(algorithm string, reset int64, by store.Limit) time.Duration {
	switch algorithm {
	case fixedWindow:
		return shortened(micros(reset))
	case slidingWindow: // its events count until the next window ends
		return shortened(micros(reset - by.Period))
	}
	return math.MaxInt64
}

// micros returns a duration of us µs.
func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// inMicros returns d in µs, rounded up.
func inMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// limits are the limit of callers, and the strict one that the store is asked for.
type limits struct {
	rule     *store.Rule
	own, by  store.Limit // of callers, and strict
	leasable bool
}

func newLimits(rule *store.Rule, l store.Limit, life time.Duration) *limits {
	ls := &limits{rule: rule, own: l}
	ls.by, ls.leasable = strict(rule.Name, l, life)
	return ls
}

// underOwn returns r, a reply under the strict limit to a call for n events, as a reply under the limit
// of callers. If r admits the events, charged is how many are charged: all or none.
func (ls *limits) underOwn(r store.Reply, n, charged int64) store.Reply {
	if ls.by == ls.own {
		return r
	}
	return r.Plainly(ls.rule, ls.by, n, charged)
}
