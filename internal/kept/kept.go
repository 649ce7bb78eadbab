// Package kept is a context that remembers the results of limit functions.
package kept

import (
	"context"
	"slices"
	"sync"
)

// Limits are the limits of the last decisions on keys. L is ratelimit.Limit.
type Limits[L any] struct {
	context.Context
	outer *Limits[L] // the Limits of an outer context, which remember everything too; nil if there are none
	once  bool

	mu     sync.Mutex
	first  [1]limit[L] // in place, because there is seldom more than one function
	limits []limit[L]
}

// most is how many limits are kept. A request has a few. The handler of a stream may ask for any
// number.
const most = 64

type limit[L any] struct {
	of    any
	key   string
	limit L
}

type inContext[L any] struct{}

// New returns Limits in ctx. With them, AppendPolicies and Refund use the limit of the key's last
// decision, and do not ask the function again. If once is true, no function is called twice, because
// all calls are for one decision.
func New[L any](ctx context.Context, once bool) *Limits[L] {
	k := &Limits[L]{Context: ctx, outer: In[L](ctx), once: once}
	k.limits = k.first[:0]
	return k
}

// In returns the Limits of ctx, or nil if it has none.
func In[L any](ctx context.Context) *Limits[L] {
	k, _ := ctx.Value(inContext[L]{}).(*Limits[L])
	return k
}

// Value implements [context.Context].
func (k *Limits[L]) Value(key any) any {
	if key == (inContext[L]{}) {
		return k
	}
	return k.Context.Value(key)
}

// Ask returns the limit of key for a decision of the limiter of.
func (k *Limits[L]) Ask(ctx context.Context, of any, key string, ask func(context.Context, string) (L, error)) (L, error) {
	if k != nil && k.once {
		if l, ok := k.Find(of, key); ok {
			return l, nil
		}
	}
	l, err := ask(ctx, key)
	if err == nil {
		k.keep(of, key, l)
	}
	return l, err
}

// keep remembers that the limit of key was l in the last decision.
func (k *Limits[L]) keep(of any, key string, l L) {
	if k == nil {
		return
	}
	k.outer.keep(of, key, l)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch i := k.index(of, key); {
	case i >= 0:
		k.limits[i].limit = l
	case len(k.limits) == most: // the first ones are those of middlewares, for Refunds at the end
		k.limits[most-1] = limit[L]{of, key, l}
	default:
		k.limits = append(k.limits, limit[L]{of, key, l})
	}
}

// Find returns the limit of key in the last decision of the limiter of.
func (k *Limits[L]) Find(of any, key string) (l L, ok bool) {
	if k == nil {
		return l, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := k.index(of, key); i >= 0 {
		return k.limits[i].limit, true
	}
	return l, false
}

// index returns the index of the limit of key, or -1. The caller holds k.mu.
func (k *Limits[L]) index(of any, key string) int {
	return slices.IndexFunc(k.limits, func(l limit[L]) bool { return l.of == of && l.key == key })
}
