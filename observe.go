package ratelimit

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// Observer is told of decisions. Package observe has some.
type Observer interface {
	// Decided is told of a decision on n events of key before its caller is answered. It must
	// be fast, safe for concurrent use, and must not panic. Beside an err r is zero. Of
	// [AllowUpTo] n is what was asked for. took is 0 if nobody measures it.
	Decided(ctx context.Context, key string, n int, r Result, err error, took time.Duration)
}

// WithObserver tells each of observers what the limit decides, but not of Peek, Refund and
// Reset. With [CountCalls] n is 1. An observer costs some 6 ns and no allocation.
//
// To see what callers are told, use Around of package observe.
func WithObserver(observers ...Observer) Option { return withObservers(observers, false) }

// WithTimedObserver is [WithObserver], and measures how long decisions take (in an All the
// whole one). That costs some 75 ns: it is for limiters on Redis.
func WithTimedObserver(observers ...Observer) Option { return withObservers(observers, true) }

func withObservers(more []Observer, timed bool) Option {
	return func(lim *limiter) error {
		if len(more) == 0 {
			return fmt.Errorf("%w: WithObserver of none", ErrInvalidOption)
		}
		for _, o := range more {
			if isnil.Is(o) {
				return fmt.Errorf("%w: WithObserver(nil)", ErrInvalidOption)
			}
		}
		lim.observers = append(lim.observers, more...)
		lim.timed = lim.timed || timed
		return nil
	}
}

// now is the time if it is asked for.
func (lim *limiter) now() (t time.Time) {
	if lim.timed {
		t = time.Now()
	}
	return t
}

// tell tells the observers of a decision on n events of key.
func (lim *limiter) tell(ctx context.Context, key string, n int, r *Result, err error, since time.Time) {
	if lim.observers == nil {
		return
	}
	var took time.Duration
	if lim.timed {
		took = time.Since(since)
	}
	if err != nil {
		r = &Result{}
	}
	for _, o := range lim.observers {
		o.Decided(ctx, key, n, *r, err, took)
	}
}

// decideWithOptions is decide of a limiter with a key function, calls or observers, and
// AllowWithin of any.
func (lim *limiter) decideWithOptions(ctx context.Context, key string, n int, how asking, res *Result) error {
	since := lim.now()
	counted, err := lim.keyOf(ctx, key, n)
	if err == nil {
		err = lim.decideOn(ctx, counted, n, how, res)
	}
	switch {
	case how.what == peek:
	case lim.calls && n > 0:
		if how.what != overdraw {
			lim.tell(ctx, counted, 1, res, err, since)
		}
		res.ofCall(lim, n, how.what)
	default:
		lim.tell(ctx, counted, n, res, err, since)
	}
	return err
}

// decideOn decides on the key that is counted.
func (lim *limiter) decideOn(ctx context.Context, counted string, n int, how asking, res *Result) error {
	l, err := lim.limitOf(ctx, counted)
	if err != nil {
		return err
	}
	if lim.calls {
		n = 1
		if how.what == overdraw { // the call has been charged when it was admitted
			how.what = peek
		}
	}
	if how.what == takeWithin {
		l, how.what = limitWithin(lim.rule, l, how.d), take
	}
	return lim.decide(ctx, counted, n, how.what, &l, res)
}

// callOf is the note on the Result of a call for so many events, of which one was charged.
type callOf int

// ofCall makes r, of one event, the Result of a call for n.
func (r *Result) ofCall(lim *limiter, n int, what operation) {
	switch {
	case what == overdraw && *r != (Result{}):
		r.Allowed, r.RetryAfter = true, 0
		*r = r.WithMark(NewMark(lim, SourceStore, callOf(math.MaxInt))) // which no Refund reaches
	case n > 1 && r.Allowed:
		*r = r.WithMark(NewMark(lim, SourceStore, callOf(n)))
	}
}

// keyOf is the key that is counted where key is asked for. After an error it is key.
func (lim *limiter) keyOf(ctx context.Context, key string, n int) (string, error) {
	if err := lim.check(ctx, key, n); err != nil || lim.keyFunc == nil {
		return key, err
	}
	counted, err := (*lim.keyFunc)(ctx, key)
	if err == nil {
		err = store.CheckCall(ctx, counted, n)
	}
	if err != nil {
		return key, err
	}
	return counted, nil
}
