package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// watch is a limiter that notices if the store may have expired a key that is in force by the
// suite's clock.
type watch struct {
	ratelimit.Limiter
	*watched
}

// watched is what limiters of the same keys have in common.
type watched struct {
	late *atomic.Bool

	mu   sync.Mutex
	ends map[string]time.Time // of each key, in real time
}

func (w *watch) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return w.AllowN(ctx, key, 1)
}

func (w *watch) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return w.charged(key, func() (ratelimit.Result, error) { return w.Limiter.AllowN(ctx, key, n) })
}

func (w *watch) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	r, err = w.charged(key, func() (ratelimit.Result, error) {
		granted, r, err = w.Limiter.(upTo).AllowUpTo(ctx, key, n)
		return r, err
	})
	return granted, r, err
}

func (w *watch) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return w.charged(key, func() (ratelimit.Result, error) { return w.Limiter.(ratelimit.Charger).Charge(ctx, key, n) })
}

// AllowWithin implements [ratelimit.Delayer].
func (w *watch) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	return w.charged(key, func() (ratelimit.Result, error) { return ratelimit.AllowWithin(ctx, w.Limiter, key, n, d) })
}

// charged watches a call that may charge key.
func (w *watch) charged(key string, call func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	start := time.Now()
	r, err := call()
	w.check(key)
	if r.Allowed {
		w.end(key, start.Add(r.ResetAfter))
	}
	return r, err
}

func (w *watch) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	r, err := w.Limiter.Peek(ctx, key)
	w.check(key)
	return r, err
}

func (w *watch) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	start := time.Now()
	err := w.Limiter.Refund(ctx, key, charged, n)
	w.check(key)
	if err != nil {
		return err
	}
	if r, err := w.Limiter.Peek(ctx, key); err == nil {
		w.end(key, start.Add(r.ResetAfter)) // no later than before
	}
	return nil
}

func (w *watch) Reset(ctx context.Context, key string) error {
	w.mu.Lock()
	delete(w.ends, key)
	w.mu.Unlock()
	return w.Limiter.Reset(ctx, key)
}

func (w *watch) end(key string, end time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends[key] = end
}

// slack is how much the server's clock may differ from its earlier value, because it can be set.
const slack = 100 * time.Millisecond

func (w *watch) check(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end, found := w.ends[key]; found && !time.Now().Add(slack).Before(end) {
		w.late.Store(true)
	}
}
