package throttle

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// AllowWithin is l's own, for callers who sleep the Delay themselves: see
// [ratelimit.AllowWithin]. It does not sleep, and takes no place of those who do.
func (w *Waiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	if w.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	return ratelimit.AllowWithin(ctx, w.limiter, key, n, d)
}

var _ ratelimit.Delayer = (*Waiter)(nil)
