package serve

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// asking is the context of a question to the store. It ends before the caller's context, so that
// on_failure can still decide.
type asking struct {
	context.Context
	q      *question
	caller context.Context
}

// asking reserves a fifth of the caller's time for the answer. A store in memory never waits.
func (s *Service) asking(ctx context.Context, q *question) (*asking, context.CancelFunc) {
	a := &asking{ctx, q, ctx}
	end, ends := ctx.Deadline()
	if _, inMemory := s.store.(*memstore.Store); inMemory || !ends {
		return a, func() {}
	}
	var cancel context.CancelFunc
	a.Context, cancel = context.WithDeadline(ctx, end.Add(-time.Until(end)/5))
	return a, cancel
}

// joint is the limiter that decides on the question in its context. The breaker wraps it.
type joint struct {
	base   time.Time
	silent atomic.Int64 // ns since base, of the first late call after the store's last answer; 0 if there is none

	answered atomic.Bool // whether the store has answered at least once
}

// silence is how long the store must not have answered before late calls count as failures of the
// store. A shorter silence may be caused by a busy machine or by an impatient caller, and must not
// open the breaker for everyone.
const silence = time.Second

var errLate = fmt.Errorf("%w: no reply within four fifths of the caller's time, so the outcome is unknown", store.ErrTimeout)

func (j *joint) AllowN(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
	a := ctx.(*asking)
	r, err := a.q.ask(a.Context)
	return j.heard(a, r, err)
}

func (j *joint) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return j.AllowN(ctx, key, 1)
}

// Peek asks the store, for the breaker.
func (j *joint) Peek(ctx context.Context, _ string) (ratelimit.Result, error) {
	a := ctx.(*asking)
	one := &a.q.asks[0]
	r, err := one.Limiter.Peek(a.Context, one.Key)
	return j.heard(a, r, err)
}

// heard returns what the breaker gets for an answer.
func (j *joint) heard(a *asking, r ratelimit.Result, err error) (ratelimit.Result, error) {
	since := j.silent.Load()
	a.q.cause = err
	switch late := err != nil && a.Err() != nil && a.caller.Err() == nil; {
	case err == nil:
		if s := r.Source(); s == ratelimit.SourceStore || s == ratelimit.SourceUnlimited { // SourceUnlimited comes from looks alone
			if since != 0 {
				j.silent.Store(0)
			}
			if !j.answered.Load() { // a load does not slow down other processors
				j.answered.Store(true)
			}
		}
	case late:
		now := int64(time.Since(j.base))
		j.silent.CompareAndSwap(0, now)
		err, a.q.cause = errLate, errLate
		if since == 0 || now-since < int64(silence) {
			err = store.ErrOverloaded // the fallback answers it, but does not count it as a failure
		}
	}
	return r, err
}

func (*joint) Refund(context.Context, string, ratelimit.Result, int) error {
	return ratelimit.ErrInvalidN
}

func (*joint) Reset(context.Context, string) error { return ratelimit.ErrInvalidOption }
