package regions

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// region is one of several, and its part of each limit.
type region struct {
	store.Store
	name   string
	bottom store.Store // which knows the rule's numbers

	number       int64 // of regions
	from, to, of int64 // of all weights those of this region

	until atomic.Int64 // when it may be asked again; 0 if it did not fail
}

const (
	mostRegions = 1_000
	mostWeight  = 1_000_000 // so that an int64 holds all of them times an event
)

// divide returns the regions in the order of their names.
func divide(stores map[string]store.Store, weights map[string]int) ([]*region, error) {
	if len(stores) < 2 || len(stores) > mostRegions {
		return nil, fmt.Errorf("%w: %d regions, want 2 to %d", store.ErrInvalidOption, len(stores), mostRegions)
	}
	if weights != nil && len(weights) != len(stores) {
		return nil, fmt.Errorf("%w: %d regions have a weight, and %d a store", store.ErrInvalidOption, len(weights), len(stores))
	}
	var all []*region
	sum := int64(0)
	for _, name := range slices.Sorted(maps.Keys(stores)) {
		s, weight, ok := stores[name], 1, true
		if isnil.Is(s) {
			return nil, fmt.Errorf("%w: the store of %q is nil", store.ErrInvalidOption, name)
		}
		if weights != nil {
			weight, ok = weights[name]
		}
		if !ok {
			return nil, fmt.Errorf("%w: %q has no weight", store.ErrInvalidOption, name)
		}
		r := &region{Store: s, name: name, bottom: see.Bottom(s), number: int64(len(stores)), from: sum}
		for _, other := range all {
			if reflect.ValueOf(r.bottom).Comparable() && r.bottom == other.bottom {
				return nil, fmt.Errorf("%w: %q and %q have the same store: give each region one of its own", store.ErrInvalidOption, other.name, name)
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

// share is the region's share of l: at least one event, or two of a Burst, since the last event of
// a bucket cannot be given back.
func (r *region) share(rule *store.Rule, l store.Limit) (store.Limit, error) {
	share, err := r.anyShare(rule, l)
	if err == nil && !exact.AtMost(share.Burst, share.Period, share.Rate, bucket.MaxRefill) { // of which the rate is rounded down more than the burst
		err = fmt.Errorf("%w: the share of %q, %d of %d in %d µs, takes over 100 years to refill",
			store.ErrInvalidOption, r.name, share.Burst, share.Rate, share.Period)
	}
	return share, err
}

// anyShare is share, however long that takes to refill.
func (r *region) anyShare(rule *store.Rule, l store.Limit) (store.Limit, error) {
	burst := int64(1)
	if rule.Burst {
		burst = 2
	}
	share := l
	share.Rate, share.Burst = r.part(l.Rate, 1), r.part(l.Burst, burst)
	if l.Rate < r.number || l.Burst < burst*r.number {
		return share, fmt.Errorf("%w: %d events and a burst of %d cannot be shared by %d regions, want %d and %d or more",
			store.ErrInvalidOption, l.Rate, l.Burst, r.number, r.number, burst*r.number)
	}
	return share, nil
}

// part is the region's part of n events, of which each region has at least so many. The parts of
// all regions add up to n.
func (r *region) part(n, least int64) int64 {
	rest := n - least*r.number
	return least + rest*r.to/r.of - rest*r.from/r.of
}
