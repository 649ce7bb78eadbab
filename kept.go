package ratelimit

import (
	"context"
	"sync"
)

// KeepLimits returns a context for one request, in which a limit function ([WithLimitFunc],
// [WithTiers]) is asked once for each decision. [AppendPolicies] and Refund then go by the limit
// of the key's last decision. Without it each of them asks the function again. The middlewares of
// httplimit and grpclimit have it, and so may your own. It costs one allocation.
func KeepLimits(ctx context.Context) context.Context {
	return &keptLimits{Context: ctx, outer: keptIn(ctx)}
}

// keptLimits is a context that knows what limit functions have said.
type keptLimits struct {
	context.Context
	outer *keptLimits // knows what this one does; nil if there is none

	mu     sync.Mutex
	first  [1]keptLimit // in place, as there is seldom more than one function
	limits []keptLimit
}

type keptLimit struct {
	of    *limiter
	key   string
	limit Limit
}

type keptLimitsKey struct{}

func keptIn(ctx context.Context) *keptLimits {
	k, _ := ctx.Value(keptLimitsKey{}).(*keptLimits)
	return k
}

func (k *keptLimits) Value(key any) any {
	if key == (keptLimitsKey{}) {
		return k
	}
	return k.Context.Value(key)
}

// keep remembers that the limit of key was l in the last decision.
func (k *keptLimits) keep(of *limiter, key string, l Limit) {
	if k == nil {
		return
	}
	k.outer.keep(of, key, l)
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.limits {
		if have := &k.limits[i]; have.of == of && have.key == key {
			have.limit = l
			return
		}
	}
	if k.limits == nil {
		k.limits = k.first[:0]
	}
	k.limits = append(k.limits, keptLimit{of, key, l})
}

func (k *keptLimits) find(of *limiter, key string) (Limit, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.limits {
		if have := &k.limits[i]; have.of == of && have.key == key {
			return have.limit, true
		}
	}
	return Limit{}, false
}

// askLimit asks the limit function for the limit of a decision.
func (lim *limiter) askLimit(ctx context.Context, key string) (Limit, error) {
	l, err := lim.limitFunc(ctx, key)
	if err == nil {
		keptIn(ctx).keep(lim, key, l)
	}
	return l, err
}

// keptLimit is the limit of the last decision, if ctx knows that, and else asks.
func (lim *limiter) keptLimit(ctx context.Context, key string) (Limit, error) {
	if kept := keptIn(ctx); kept != nil {
		if l, ok := kept.find(lim, key); ok {
			return l, nil
		}
	}
	return lim.askLimit(ctx, key)
}
