package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/limittext"
	"github.com/ratelimit-go/ratelimit/internal/order"
	"github.com/ratelimit-go/ratelimit/store"
)

// All is a [Limiter] of several limits that must all admit: 10 per second and 1,000 per hour,
// one per user and one per address ([NewRekeyed]), requests and their costs ([PerCall]). If
// any of them denies, none is charged.
//
// Limits of the five algorithms on one store are decided together, at one instant. In memory
// that is under the locks of their keys, and on Redis one script in one round trip. On a
// cluster or a ring it holds for the limits that decide on the same key. All others are
// charged in the order in which they were given, and given back when a later one denies.
//
// Bound: while limits are charged in order, others see up to n events too few. A [LeakyBucket]
// may then have given out turns behind them, and takes no refund of earlier events. What cannot
// be given back, since its store fails, stays charged. Limits that are decided together have
// no such time.
//
// The [Result] has the Limit and Remaining of the limit with the least Remaining, and the
// longest ResetAfter. It has the longest RetryAfter of those that deny, or the longest Delay if
// all admit. What is not counted ([Result.Counted]) has no say in Limit, Remaining and
// ResetAfter. RetryAfter is exact where the limits are decided together. Elsewhere the limits
// that were not asked may make the wait longer.
//
// A denial names the limit that denied ([Result.DeniedBy]) and has its Source. [Result.Parts]
// has each limit's own decision. A limit that was not asked, since an earlier one denied, has a
// zero Result there. So have all but the first of several limits for which a wrapper had one
// answer, as a fallback has. A limit that was given back is told without the charge, but its
// ResetAfter may be too long.
//
// Two parts that decide on the same key of the same limiter charge it n events each, while
// Remaining is what the key has left. Peek allows for it where the parts are the five
// algorithms, also inside [Rekeyed] and [PerCall].
//
// A decision takes as long as those of its parts, less a lock or a round trip for each but the
// first. An admission by two of the five algorithms allocates nothing unless [Result.Parts] is
// asked for. Others take one or two allocations. An All keeps nothing per key.
//
// It is safe for concurrent use. Make it by [NewAll] or [NewLevels].
type All struct {
	contents // package order looks for it
	parts    []part
	pairs    *pairs // nil if it has none
	plain    bool   // parts are on one store, under one key: see isPlain
}

type contents = order.Parts[Limiter]

// maxParts is how many limits an All has at most: a script decides on all of them,
// while the server does nothing else.
const maxParts = 16

// part is one of the limits.
type part struct {
	limiter   Limiter
	rekeyed   []*Rekeyed  // on the way from limiter to core
	observers []onTheWay  // so are these
	perCall   bool        // so is one: each call is one event
	core      *limiter    // nil if it is none of the five that decides
	store     store.Store // core's, or nil if it cannot be compared with others
	bottom    store.Store // which keeps what store is asked for
}

// onTheWay is an observer, with what stands between it and the whole.
type onTheWay struct {
	*observed
	rekeyed int // so many of the part's
	perCall bool
}

// NewAll returns a limiter that admits what all of limiters admit, 1 to 16. Nested Alls are
// flattened. Its error is [ErrInvalidOption]:
//
//   - there are none or too many, or one is nil;
//   - one sleeps, as throttle's Waiter does: that goes around an All;
//   - two count in one place ([WithName]) under different keys, by [Rekeyed], so that a key
//     of one could use up another key of the other. Give each a name of its own.
//
// The last two are also found inside of limiters that have a method Unwrap() Limiter.
func NewAll(limiters ...Limiter) (*All, error) {
	a := &All{contents: order.NewParts(limiters)}
	for _, l := range limiters {
		sleeper, sleeps := order.Sleeping(l)
		switch inner, isAll := l.(*All); {
		case isnil.Is(l):
			return nil, errNilLimiter
		case sleeps:
			return nil, fmt.Errorf("%w: an All around a %T: put the %[2]T around the All", ErrInvalidOption, sleeper)
		case isAll && len(inner.parts) == 0:
			return nil, fmt.Errorf("%w: an All that is not made by its constructor", ErrInvalidOption)
		case isAll:
			a.parts = append(a.parts, inner.parts...)
		default:
			a.parts = append(a.parts, newPart(l))
		}
	}
	if len(a.parts) == 0 || len(a.parts) > maxParts {
		return nil, fmt.Errorf("%w: %d limiters, want 1 to %d", ErrInvalidOption, len(a.parts), maxParts)
	}
	if err := oneKeyEach(appendCores(nil, a, nil)); err != nil {
		return nil, err
	}
	a.pairs, a.plain = newPairs(a.parts), isPlain(a.parts)
	return a, nil
}

// isPlain is whether each call asks one store for each of parts under the same key, and under
// the constructor's limits, so that the requests need no looking at each other.
func isPlain(parts []part) bool {
	for i := range parts {
		p := &parts[i]
		if p.store == nil || p.store != parts[0].store || len(p.rekeyed)+len(p.observers) > 0 ||
			p.core.limitFunc != nil || p.core.integers.Rate <= 0 || slices.ContainsFunc(parts[:i], p.sameCount) {
			return false
		}
	}
	return true
}

// sameCount is whether other counts in p's namespace.
func (p *part) sameCount(other part) bool { return p.core.namespace.Equal(other.core.namespace) }

func newPart(l Limiter) part {
	var p part
	switch w := l.(type) {
	case *Rekeyed:
		p = newPart(w.limiter)
		p.rekeyed = slices.Insert(p.rekeyed, 0, w)
		for i := range p.observers {
			p.observers[i].rekeyed++
		}
	case *perCall:
		p = newPart(w.limiter)
		p.perCall = true
		for i := range p.observers {
			p.observers[i].perCall = true
		}
	case *observed:
		p = newPart(w.limiter)
		p.observers = slices.Insert(p.observers, 0, onTheWay{observed: w})
	default:
		p.setCore(coreOf(l))
	}
	p.limiter = l
	return p
}

func (p *part) setCore(core *limiter) {
	if p.core = core; core != nil && reflect.ValueOf(core.store).Comparable() {
		p.store, p.bottom = core.store, bottom(core.store)
	}
}

// events is how many a call for n events charges to the core.
func (p *part) events(n int) int {
	if p.perCall {
		return 1
	}
	return n
}

// sameSpace is whether both count in the same namespace.
func (p *part) sameSpace(other *part) bool {
	oneStore := p.core == other.core || p.bottom != nil && p.bottom == other.bottom
	return oneStore && p.core.namespace.Equal(other.core.namespace)
}

// appendCores appends a part for each core inside of l, to which those rekeyed lead.
func appendCores(dst []part, l Limiter, rekeyed []*Rekeyed) []part {
	switch l := l.(type) {
	case *All:
		for i := range l.parts {
			dst = appendCores(dst, l.parts[i].limiter, rekeyed)
		}
		return dst
	case *Rekeyed:
		rekeyed = append(slices.Clip(rekeyed), l)
	}
	if core := coreOf(l); core != nil {
		p := part{limiter: l, rekeyed: rekeyed}
		p.setCore(core)
		return append(dst, p)
	}
	if inner := inside(l); inner != nil {
		return appendCores(dst, inner, rekeyed)
	}
	return dst
}

// inside is the limiter that l wraps, nil if l does not say.
func inside(l Limiter) Limiter {
	if w, ok := l.(interface{ Unwrap() Limiter }); ok {
		if l = w.Unwrap(); !isnil.Is(l) {
			return l
		}
	}
	return nil
}

// oneKeyEach refuses cores that are one and asked for different keys.
func oneKeyEach(cores []part) error {
	for i := range cores {
		for j := range cores[:i] {
			if p, q := &cores[j], &cores[i]; p.sameSpace(q) && !slices.EqualFunc(p.rekeyed, q.rekeyed, sameKey) {
				return fmt.Errorf("%w: two limits of an All, %q and %q, are one under different keys: name them by WithName",
					ErrInvalidOption, p.core.policyName, q.core.policyName)
			}
		}
	}
	return nil
}

func sameKey(k, other *Rekeyed) bool { return k.key == other.key }

// NewLevels returns one limiter of several limits on the same keys, by the algorithm's name as
// in [New] and the limiter's as in [WithName]:
//
//	NewLevels("sliding_window", s, "api", PerSecond(10), PerMinute(100), PerHour(1000))
//
// The policies are named "api/s", "api/m" and "api/h". The errors are those of New and NewAll,
// and [ErrInvalidOption] if two levels have one Period and one calendar. To give the levels
// options make them by New, and an All of them.
func NewLevels(algorithm string, s store.Store, name string, levels ...Limit) (*All, error) {
	limiters := make([]Limiter, len(levels))
	for i, l := range levels {
		if slices.ContainsFunc(levels[:i], func(other Limit) bool { return other.Period == l.Period && other.calendar == l.calendar }) {
			return nil, fmt.Errorf("%w: two levels have the period %s", ErrInvalidOption, limittext.Period(l.String()))
		}
		policy := name + "/" + limittext.Period(l.String())
		var err error
		if limiters[i], err = New(algorithm, s, l, WithName(name), WithPolicyName(policy)); err != nil {
			return nil, err
		}
	}
	return NewAll(limiters...)
}

// Allow is AllowN of 1.
func (a *All) Allow(ctx context.Context, key string) (res Result, err error) {
	err = a.decide(ctx, key, 1, asking{what: take}, &res)
	return res, err
}

// AllowN decides on n events at once: all limits are charged with them, or none is.
func (a *All) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = a.decide(ctx, key, n, asking{what: take}, &res)
	return res, err
}

// AllowWithin decides on n events whose turn must come within d in each limit: see the
// function [AllowWithin]. The limits that AllowN decides together are decided together
// here too. Delay is the longest of all.
func (a *All) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (res Result, err error) {
	err = a.decide(ctx, key, n, asking{takeWithin, d}, &res)
	return res, err
}

// Peek answers what Allow would, and charges nothing. It asks one limit after the
// other.
func (a *All) Peek(ctx context.Context, key string) (res Result, err error) {
	err = a.decide(ctx, key, 1, asking{what: peek}, &res)
	return res, err
}

// Charge charges n events that have happened already to each limit, in their order,
// whether they fit or not. A limit of Rate 0 is charged nothing; if all of them are
// of it, the Result is their denial. After an error the limits before it stay charged.
func (a *All) Charge(ctx context.Context, key string, n int) (res Result, err error) {
	err = a.decide(ctx, key, n, asking{what: overdraw}, &res)
	return res, err
}

// Refund gives back n of the events that charged admitted, to each limit. Its
// error is that of all that fail, joined; the others have got theirs.
func (a *All) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := a.check(ctx, key, n); err != nil {
		return err
	}
	j := charged.joined()
	if !charged.Allowed || j == nil || j.charged == 0 || len(j.parts) != len(a.parts) {
		return errNothingCharged
	}
	var errs []error
	for i := len(j.parts) - 1; i >= 0; i-- { // the last to be charged first
		part, fewer := j.parts[i], n < j.charged
		if !part.Allowed || fewer && a.parts[i].perCall { // Charge has met a Rate of 0; the call stands
			continue
		}
		errs = append(errs, a.parts[i].limiter.Refund(ctx, key, part, n))
	}
	return errors.Join(errs...)
}

// Reset forgets key in each limit. Its error is that of all that fail, joined.
func (a *All) Reset(ctx context.Context, key string) error {
	if err := a.check(ctx, key, 1); err != nil {
		return err
	}
	var errs []error
	for i := range a.parts {
		errs = append(errs, a.parts[i].limiter.Reset(ctx, key))
	}
	return errors.Join(errs...)
}

// AppendPolicies appends the policies of all limits, in their order.
func (a *All) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	if len(a.parts) == 0 {
		return dst, errNoAll
	}
	all := dst
	for i := range a.parts {
		var err error
		if all, err = AppendPolicies(ctx, all, a.parts[i].limiter, key); err != nil {
			return dst, err
		}
	}
	return all, nil
}

var errNoAll = fmt.Errorf("%w: an All is made by its constructor", ErrInvalidLimit)

func (a *All) check(ctx context.Context, key string, n int) error {
	if len(a.parts) == 0 {
		return errNoAll
	}
	return CheckCall(ctx, key, n)
}

// decide is AllowN, AllowWithin, Peek or Charge.
func (a *All) decide(ctx context.Context, key string, n int, how asking, res *Result) error {
	if err := a.check(ctx, key, n); err != nil {
		return err
	}
	r := begin(a, key, n, how)
	defer r.end()
	err := r.decide(ctx)
	if err != nil || r.denied {
		r.giveBack(context.WithoutCancel(ctx))
	}
	r.tell(ctx)
	if err == nil {
		r.result(ctx, res)
	}
	return err
}

var (
	_ Limiter   = (*All)(nil)
	_ Describer = (*All)(nil)
	_ Charger   = (*All)(nil)
	_ Delayer   = (*All)(nil)
)
