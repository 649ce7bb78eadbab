package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// All is a [Limiter] of several limits that must all admit: 10 per second and 1,000 per hour,
// one per user and one per address ([WithKeyFunc]), requests and their costs ([CountCalls]). If
// any denies, none is charged. What differs from call to call is for [Decide].
//
// Limits of the five algorithms on one store are decided together: in memory under the locks of
// their keys, on Redis by one script (on a cluster or a ring, limits of one key or of one hash tag). Others are
// charged in their order, and given back when a later one denies.
//
// Bound: that of each limit. While limits are charged in order, others see up to n events too
// few. What cannot be given back stays charged.
//
// The [Result] is that of the limit with the least Remaining, with the longest ResetAfter,
// Delay and RetryAfter: see [Result.DeniedBy] and [Result.Parts]. An All keeps nothing per key.
type All struct {
	known
	members []member
	pairs   *pairs // nil if it has none
	plain   bool   // whether takePlain can decide
	held    bool   // whether some limits count slots, which a Refund may be for, or not for
}

// maxLimits is how many limits are decided together at most: a script decides on all of them,
// while the server does nothing else.
const maxLimits = 16

// member is one of several limits.
type member struct {
	limiter Limiter
	core    *limiter // of limiter, nil if it is none of the five
}

// events is how many a call for n events charges.
func (p *member) events(n int) int {
	if p.core != nil && p.core.calls {
		return min(n, 1)
	}
	return n
}

// NewAll returns a limiter that admits what all of limiters admit, 1 to 16. Nested Alls are
// flattened. It is [ErrInvalidOption] if one sleeps, as throttle's Waiter does, or if two count in
// one place ([WithName]) under different keys ([WithKeyFunc]).
func NewAll(limiters ...Limiter) (*All, error) {
	a := new(All)
	for _, l := range limiters {
		members, err := membersOf(l)
		if err != nil {
			return nil, err
		}
		a.members = append(a.members, members...)
	}
	if len(a.members) == 0 || len(a.members) > maxLimits {
		return nil, fmt.Errorf("%w: %d limiters, want 1 to %d", ErrInvalidOption, len(a.members), maxLimits)
	}
	if err := oneKeyEach(coresOf(nil, a)); err != nil {
		return nil, err
	}
	a.pairs, a.plain = newPairs(a.members), isPlain(a.members)
	a.held = slices.ContainsFunc(a.members, func(p member) bool { return see.Held(p.limiter) })
	kind, keys := queuesOf(a.members[0].limiter).Kind, make([]see.Key, len(a.members))
	for i, p := range a.members {
		kind, keys[i] = queue.Joint(kind, queuesOf(p.limiter).Kind), see.KeyOf(p.limiter)
	}
	a.known = see.NewCore[Limiter](a, see.Known[Limiter]{Kind: kind, Key: see.Keys(keys...), Local: a.local})
	return a, nil
}

// membersOf is l, or the members of an All. What can be none is an error.
func membersOf(l Limiter) ([]member, error) {
	if core := coreOf(l); core != nil {
		return []member{{l, core}}, nil
	}
	if isnil.Is(l) {
		return nil, errNilLimiter
	}
	if a, ok := l.(*All); ok {
		if len(a.members) == 0 {
			return nil, unmade.Err
		}
		return a.members, nil
	}
	if sleeper, sleeps := see.Sleeping(l); sleeps {
		return nil, fmt.Errorf("%w: an All around a %T: put the %[2]T around the All", ErrInvalidOption, sleeper)
	}
	return []member{{l, nil}}, nil
}

// isPlain is whether each call asks one store for each of members under the same key, and under
// the constructor's limits, so that the requests need no looking at each other.
func isPlain(members []member) bool {
	if len(members) < 2 {
		return false
	}
	for i := range members {
		c := members[i].core
		if c == nil || c.joint == nil || c.joint != members[0].core.joint || c.keyFunc != nil || c.observers != nil ||
			c.limitFunc != nil || c.integers.Rate <= 0 || slices.ContainsFunc(members[:i], func(other member) bool { return c.sameSpace(other.core) }) {
			return false
		}
	}
	return true
}

// sameSpace is whether both count in the same namespace of one store.
func (lim *limiter) sameSpace(other *limiter) bool {
	oneStore := lim == other || lim.bottom != nil && lim.bottom == other.bottom
	return oneStore && lim.namespace.Equal(other.namespace)
}

// coresOf appends those of the five that are found in l.
func coresOf(dst []*limiter, l Limiter) []*limiter {
	if core := coreOf(l); core != nil {
		return append(dst, core)
	}
	for _, inner := range see.Inside(l) {
		dst = coresOf(dst, inner)
	}
	return dst
}

// oneKeyEach refuses limits that are one and asked for different keys.
func oneKeyEach(cores []*limiter) error {
	for i, c := range cores {
		for _, other := range cores[:i] {
			if c.sameSpace(other) && c.keyFunc != other.keyFunc {
				return fmt.Errorf("%w: two limits of an All, %q and %q, are one under different keys: name them by WithName",
					ErrInvalidOption, other.policyName, c.policyName)
			}
		}
	}
	return nil
}

// Unwrap returns the limits, in their order.
func (a *All) Unwrap() []Limiter {
	limiters := make([]Limiter, len(a.members))
	for i := range a.members {
		limiters[i] = a.members[i].limiter
	}
	return limiters
}

// Allow implements [Limiter].
func (a *All) Allow(ctx context.Context, key string) (res Result, err error) {
	err = a.decide(ctx, key, 1, asking{what: toTake}, &res)
	return res, err
}

// AllowN implements [Limiter].
func (a *All) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = a.decide(ctx, key, n, asking{what: toTake}, &res)
	return res, err
}

// AllowWithin implements [Delayer].
func (a *All) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (res Result, err error) {
	err = a.decide(ctx, key, n, asking{toTakeWithin, d}, &res)
	return res, err
}

// Peek implements [Limiter].
func (a *All) Peek(ctx context.Context, key string) (res Result, err error) {
	err = a.decide(ctx, key, 1, asking{what: toPeek}, &res)
	return res, err
}

// Charge charges n events to each limit, in their order, until an error.
func (a *All) Charge(ctx context.Context, key string, n int) (res Result, err error) {
	if err = a.check(ctx, key, n); err != nil {
		return res, err
	}
	d := begin(asking{what: toCharge}, a)
	defer d.end()
	d.denied = true // if nothing was charged
	for i := range a.members {
		l := a.members[i].limiter
		r, err := Charge(ctx, l, key, n)
		if err != nil {
			return res, err
		}
		d.add(a.members[i], key, n, false)
		d.entries[i].decided, *d.entries[i].result = true, r
		d.denied = d.denied && !r.Allowed
	}
	d.result(ctx, &res)
	return res, nil
}

// Refund gives back n events to each limit.
func (a *All) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := a.check(ctx, key, n); err != nil {
		return err
	}
	j := charged.joined()
	if !charged.Allowed || j == nil || j.charged == 0 || len(j.parts) != len(a.members) {
		return errNothingCharged
	}
	only := see.Everything
	if a.held {
		only = see.PartOf(ctx)
	}
	var errs []error
	for i := len(j.parts) - 1; i >= 0; i-- { // the last to be charged first
		p, part := &a.members[i], j.parts[i]
		if only != see.Everything && see.Held(p.limiter) != (only == see.Slots) {
			continue
		}
		if !part.Allowed || n < j.charged && p.core != nil && p.core.calls { // Charge has met a Rate of 0; the call stands
			continue
		}
		errs = append(errs, p.limiter.Refund(ctx, key, part.Result, n))
	}
	return errors.Join(errs...)
}

// Reset forgets key in each limit.
func (a *All) Reset(ctx context.Context, key string) error {
	if err := a.check(ctx, key, 1); err != nil {
		return err
	}
	var errs []error
	for i := range a.members {
		errs = append(errs, a.members[i].limiter.Reset(ctx, key))
	}
	return errors.Join(errs...)
}

// AppendPolicies implements [PolicyAppender].
func (a *All) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	if len(a.members) == 0 {
		return dst, unmade.Err
	}
	all := dst
	for i := range a.members {
		var err error
		if all, err = AppendPolicies(ctx, all, a.members[i].limiter, key); err != nil {
			return dst, err
		}
	}
	return all, nil
}

// local makes an All of the local limiters of its limits.
func (a *All) local(s store.Store, instances int) (Limiter, error) {
	limiters := make([]Limiter, len(a.members))
	for i := range a.members {
		var err error
		if limiters[i], err = see.Local(a.members[i].limiter, s, instances); err != nil {
			return nil, err
		}
	}
	return NewAll(limiters...)
}

func (a *All) check(ctx context.Context, key string, n int) error {
	if len(a.members) == 0 {
		return unmade.Err
	}
	return store.CheckCall(ctx, key, n)
}

// decide is AllowN, AllowWithin or Peek.
func (a *All) decide(ctx context.Context, key string, n int, how asking, res *Result) error {
	if err := a.check(ctx, key, n); err != nil {
		return err
	}
	if how.what == toTake && a.plain && a.members[0].core.joint.Together(key, key) {
		return a.takePlain(ctx, key, n, res)
	}
	d := begin(how, a)
	defer d.end()
	for i := range a.members {
		d.add(a.members[i], key, n, false)
	}
	return d.run(ctx, res)
}

var (
	_ Limiter        = (*All)(nil)
	_ PolicyAppender = (*All)(nil)
	_ Charger        = (*All)(nil)
	_ Delayer        = (*All)(nil)
)

// Ask is a question of [Decide]: N events of Key, asked of Limiter.
type Ask struct {
	Limiter Limiter
	Key     string
	N       int // events
	// Look only looks, as Peek does: N is 0.
	Look bool
	// Shadow tries a limit out: it is charged if all fits, but denies nothing else.
	Shadow bool
}

// check is CheckCall for an Ask, which may be of none if that is meant.
func (a *Ask) check(ctx context.Context, none bool) error {
	switch {
	case a.N == 0 && none:
		return store.CheckCall(ctx, a.Key, 1)
	case a.Look:
		return fmt.Errorf("%w: an Ask that looks is for %d events, want 0", ErrInvalidN, a.N)
	}
	return store.CheckCall(ctx, a.Key, a.N)
}

// Decide decides on all of asks, 1 to 16, as an [All] whose limits, keys and numbers are chosen
// by the call: all are admitted and charged, or none is.
//
// The same limit under the same key twice is charged twice. [Result.Parts] has each ask's own
// decision (zero if a shadow fails), and for an All those of its limits.
func Decide(ctx context.Context, asks ...Ask) (res Result, err error) {
	d := begin(asking{what: toTake}, nil)
	defer d.end()
	for i := range asks {
		if err := d.ask(ctx, &asks[i]); err != nil {
			return res, err
		}
	}
	if len(d.entries) == 0 {
		return res, errAsks(0)
	}
	err = d.run(ctx, &res)
	return res, err
}

func errAsks(n int) error {
	return fmt.Errorf("%w: a Decide of %d limits, want 1 to %d", ErrInvalidOption, n, maxLimits)
}

// GiveBack gives back what a [Decide] has charged: of each of its asks, in their order, N events
// or fewer than were asked for, also when ctx has ended. It is [ErrInvalidN] if nothing was
// charged, or the number of asks differs.
func GiveBack(ctx context.Context, charged Result, asks ...Ask) error {
	ctx = context.WithoutCancel(ctx)
	j := charged.joined()
	if !charged.Allowed || j == nil {
		return errNothingCharged
	}
	var members []member
	var of []*Ask
	for i := range asks {
		a := &asks[i]
		more, err := membersOf(a.Limiter)
		if err == nil {
			err = a.check(ctx, true)
		}
		if err != nil {
			return err
		}
		for range more {
			of = append(of, a)
		}
		members = append(members, more...)
	}
	if len(members) != len(j.parts) {
		return errNothingCharged
	}
	var errs []error
	for _, shadow := range [...]bool{true, false} { // the last to be charged first
		for i := len(members) - 1; i >= 0; i-- {
			a, r := of[i], j.parts[i]
			if a.Shadow == shadow && a.N > 0 && r.Allowed {
				errs = append(errs, members[i].limiter.Refund(ctx, a.Key, r.Result, a.N))
			}
		}
	}
	return errors.Join(errs...)
}
