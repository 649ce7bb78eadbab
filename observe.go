package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// Observer is told of decisions: to count them, or to log them. Package observe has some.
type Observer interface {
	// Decided is told of one decision on n events of key, by the caller that asked, before
	// that caller is answered. It must be fast, safe for concurrent use, and must not panic.
	//
	// Beside an err r is zero. Of [AllowUpTo] n is what was asked for, and what was granted
	// is r.Charged(). took is how long the decision took, and 0 without [WithLatency].
	Decided(ctx context.Context, key string, n int, r Result, err error, took time.Duration)
}

// ObserveOption configures [Observe].
type ObserveOption func(*observed)

// WithLatency tells the Observer how long decisions take. That costs two readings of the
// clock, some 75 ns: it is for limiters on Redis. Without it took is 0.
func WithLatency() ObserveOption { return func(o *observed) { o.latency = true } }

// Observe returns a limiter that decides as l does, and tells o of it. If o is nil it returns
// l itself.
//
// It tells of Allow, AllowN, AllowWithin, AllowUpTo and Charge, and so of what [Wait] and
// [Reserve] ask. It does not tell of Peek, Refund and Reset.
//
// It can stand anywhere among other wrappers, and they treat it as they treat l. Around all of
// them it sees what callers are told. Inside a fallback it sees the errors of the store.
//
// In an [All] it does not keep l from being decided together with others. Its Observer is told
// what l itself has decided. So a part that has room is told as allowed, even where another
// part denies. A part that was not asked is not told. There took is the time of the whole
// decision. An observed All inside of another All is asked on its own.
//
// If several limits decide in l, and o has a method Expect(limits ...string), Observe calls it
// with their names. So what o counts by limit can begin at 0, before anything is denied.
//
// [Share] leaves it out. An observer costs some 6 ns for each decision and what Decided takes,
// and no allocation. The error is [ErrInvalidOption]: l or an option is nil.
func Observe(l Limiter, o Observer, opts ...ObserveOption) (Limiter, error) {
	if isnil.Is(l) {
		return nil, errNilLimiter
	}
	w := &observed{limiter: l, observer: o}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an ObserveOption is nil", ErrInvalidOption)
		}
		opt(w)
	}
	if isnil.Is(o) {
		return l, nil
	}
	expect(o, l)
	return w, nil
}

type expecter interface{ Expect(limits ...string) }

// expect tells o which limits decide together in l.
func expect(o Observer, l Limiter) {
	e, ok := o.(expecter)
	if !ok {
		return
	}
	var names []string
	for _, p := range appendCores(nil, l, nil) {
		names = append(names, p.core.policyName)
	}
	if len(names) > 1 { // one limit is not named as that which denies
		e.Expect(names...)
	}
}

// Observers returns an Observer that tells each of all, in their order. Those that are nil are
// left out, and if none is left it is nil.
func Observers(all ...Observer) Observer {
	all = slices.DeleteFunc(slices.Clone(all), func(o Observer) bool { return isnil.Is(o) })
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return observers(all)
}

type observers []Observer

func (all observers) Decided(ctx context.Context, key string, n int, r Result, err error, took time.Duration) {
	for _, o := range all {
		o.Decided(ctx, key, n, r, err, took)
	}
}

// Expect is for those that have it.
func (all observers) Expect(limits ...string) {
	for _, o := range all {
		if e, ok := o.(expecter); ok {
			e.Expect(limits...)
		}
	}
}

// observed is a limiter with an Observer.
type observed struct {
	limiter  Limiter
	observer Observer
	latency  bool
}

// now is the time if it is asked for.
func (o *observed) now() (t time.Time) {
	if o.latency {
		t = time.Now()
	}
	return t
}

// now is the time if one of the observers asks for it.
func (p *part) now() time.Time {
	for _, o := range p.observers {
		if o.latency {
			return time.Now()
		}
	}
	return time.Time{}
}

func (o *observed) tell(ctx context.Context, key string, n int, r Result, err error, since time.Time) {
	var took time.Duration
	if o.latency {
		took = time.Since(since)
	}
	if err != nil {
		r = Result{}
	}
	o.observer.Decided(ctx, key, n, r, err, took)
}

// Allow is the limiter's.
func (o *observed) Allow(ctx context.Context, key string) (r Result, err error) {
	if o.latency {
		return o.timed(ctx, key, 1)
	}
	if r, err = o.limiter.Allow(ctx, key); err != nil {
		r = Result{}
	}
	o.observer.Decided(ctx, key, 1, r, err, 0)
	return r, err
}

// AllowN is the limiter's.
func (o *observed) AllowN(ctx context.Context, key string, n int) (r Result, err error) {
	if o.latency {
		return o.timed(ctx, key, n)
	}
	if r, err = o.limiter.AllowN(ctx, key, n); err != nil {
		r = Result{}
	}
	o.observer.Decided(ctx, key, n, r, err, 0)
	return r, err
}

// timed is AllowN with latency. (Without it AllowN does not call tell: a Result is large, and
// each call that hands it on takes some 3 ns.)
func (o *observed) timed(ctx context.Context, key string, n int) (r Result, err error) {
	since := time.Now()
	r, err = o.limiter.AllowN(ctx, key, n)
	o.tell(ctx, key, n, r, err, since)
	return r, err
}

// AllowWithin is the limiter's.
func (o *observed) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (r Result, err error) {
	since := o.now()
	r, err = AllowWithin(ctx, o.limiter, key, n, d)
	o.tell(ctx, key, n, r, err, since)
	return r, err
}

// AllowUpTo is the limiter's.
func (o *observed) AllowUpTo(ctx context.Context, key string, n int) (granted int, r Result, err error) {
	since := o.now()
	granted, r, err = AllowUpTo(ctx, o.limiter, key, n)
	o.tell(ctx, key, n, r, err, since)
	return granted, r, err
}

// Charge is the limiter's.
func (o *observed) Charge(ctx context.Context, key string, n int) (r Result, err error) {
	since := o.now()
	r, err = Charge(ctx, o.limiter, key, n)
	o.tell(ctx, key, n, r, err, since)
	return r, err
}

// Peek is the limiter's.
func (o *observed) Peek(ctx context.Context, key string) (Result, error) {
	return o.limiter.Peek(ctx, key)
}

// Refund is the limiter's.
func (o *observed) Refund(ctx context.Context, key string, charged Result, n int) error {
	return o.limiter.Refund(ctx, key, charged, n)
}

// Reset is the limiter's.
func (o *observed) Reset(ctx context.Context, key string) error { return o.limiter.Reset(ctx, key) }

// AppendPolicies appends those of the limiter.
func (o *observed) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	return AppendPolicies(ctx, dst, o.limiter, key)
}

// Unwrap returns the limiter that is observed.
func (o *observed) Unwrap() Limiter { return o.limiter }

var (
	_ Limiter   = (*observed)(nil)
	_ Describer = (*observed)(nil)
	_ Charger   = (*observed)(nil)
	_ Delayer   = (*observed)(nil)
)
