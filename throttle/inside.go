package throttle

import (
	"context"

	"github.com/ratelimit-go/ratelimit"
)

// inside has the limiter l that a [Waiter] or a [Slowdown] wraps, and the methods that only call l.
type inside struct{ limiter ratelimit.Limiter }

// unmade returns the error of a limiter that was not made by its constructor.
var unmade = new(ratelimit.TokenBucket)

// made returns l, or unmade if there is none.
func (in *inside) made() ratelimit.Limiter {
	if in.limiter == nil {
		return unmade
	}
	return in.limiter
}

// Charge charges l for n events that have already happened. It does not sleep.
func (in *inside) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return ratelimit.Charge(ctx, in.made(), key, n)
}

// Reset forgets the state of key in l. Callers that sleep for the key continue to sleep.
func (in *inside) Reset(ctx context.Context, key string) error { return in.made().Reset(ctx, key) }

// AppendPolicies appends the policies of l. A [Slowdown] counts by them, but does not enforce them.
func (in *inside) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, in.made(), key)
}
