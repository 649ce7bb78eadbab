package regions

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// region is one of the regions, with its part of each limit.
type region struct {
	store.Store
	name   string
	bottom store.Store // the innermost store, which uses the rule's numbers

	number       int64 // the number of regions
	from, to, of int64 // the range of this region in the sum of all weights

	until atomic.Int64 // when it may be asked again; 0 if it has not failed
}

const (
	mostRegions = 1_000
	mostWeight  = 1_000_000 // so that an int64 can hold the sum of all weights times a number of events
)

// divide returns the regions in the order of their names.
func divide(stores map[string]store.Store, weights map[string]int) ([]*region, error) {
	if len(stores) < 2 || len(stores) > mostRegions {
		return nil, fmt.Errorf("%w: %d regions, want 2 to %d", store.ErrInvalidOption, len(stores), mostRegions)
	}
	if weights != nil && len(weights) != len(stores) {
		return nil, fmt.Errorf("%w: %d regions have a weight, but %d have a store", store.ErrInvalidOption, len(weights), len(stores))
	}
	var all []*region
	sum := int64(0)
	for _, name := range slices.Sorted(maps.Keys(stores)) {
		s, weight, ok := stores[name], 1, true
		if isnil.Is(s) {
			return nil, fmt.Errorf("%w: the store of region %q is nil", store.ErrInvalidOption, name)
		}
		if weights != nil {
			weight, ok = weights[name]
		}
		if !ok {
			return nil, fmt.Errorf("%w: region %q has no weight", store.ErrInvalidOption, name)
		}
		r := &region{Store: s, name: name, bottom: see.Bottom(s), number: int64(len(stores)), from: sum}
		for _, other := range all {
			if reflect.ValueOf(r.bottom).Comparable() && r.bottom == other.bottom {
				return nil, fmt.Errorf("%w: regions %q and %q have the same store: give each region its own", store.ErrInvalidOption, other.name, name)
			}
		}
		sum += int64(weight)
		r.to = sum
		all = append(all, r)
	}
	for _, r := range all {
		r.of = sum
	}
	return all, nil
}

// share returns the region's share of l: at least one event, or two events of a Burst, because the
// last event of a bucket cannot be refunded.
func (r *region) share(rule *store.Rule, l store.Limit) (store.Limit, error) {
	share, err := r.anyShare(rule, l)
	if err == nil && !exact.AtMost(share.Burst, share.Period, share.Rate, bucket.MaxRefill) { // the rate is rounded down more than the burst
		err = fmt.Errorf("%w: the share of region %q, a burst of %d at %d per %v, takes over 100 years to refill",
			store.ErrInvalidOption, r.name, share.Burst, share.Rate, time.Duration(share.Period)*time.Microsecond)
	}
	return share, err
}

// anyShare is like share, even if the share takes too long to refill.
func (r *region) anyShare(rule *store.Rule, l store.Limit) (store.Limit, error) {
	burst := int64(1)
	if rule.Burst {
		burst = 2
	}
	share := l
	share.Rate, share.Burst = r.part(l.Rate, 1), r.part(l.Burst, burst)
	if l.Rate < r.number || l.Burst < burst*r.number {
		return share, fmt.Errorf("%w: a limit of %d with a burst of %d cannot be shared by %d regions, want at least %d and %d",
			store.ErrInvalidOption, l.Rate, l.Burst, r.number, r.number, burst*r.number)
	}
	return share, nil
}

// part returns the region's part of n events, of which each region gets at least least. The parts
// of all regions add up to n.
func (r *region) part(n, least int64) int64 {
	rest := n - least*r.number
	return least + rest*r.to/r.of - rest*r.from/r.of
}
