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

// All is a [Limiter] of several limits that must all admit a call. Examples are 10 per second and 1,000
// per hour, a limit per user and one per address ([WithKeyFunc]), or requests and their cost
// ([CountCalls]). If any limit denies the call, none is charged. If the limits differ from call to call, use [Decide].
//
// Limits with built-in algorithms on the same store are decided together: in memory under the locks of
// their keys, and on Redis by one script. On a cluster or a ring, this needs the same key or hash tag.
// Other limits are charged one after the other, and refunded if a later one denies.
//
// Bound: the bound of each limit. While limits are charged one after the other, other callers may see
// up to n events per call too few, and be denied with a RetryAfter that is too long, so put the limit that
// denies most first. Events whose refund fails stay charged.
//
// The [Result] has the least Remaining of all limits, and the longest ResetAfter, Delay and
// RetryAfter. See [Result.DeniedBy] and [Result.Parts]. RetryAfter is an estimate if limits that share their
// counts ([WithName]) have different Rates, because a count then ages by the limit that read it last. An All
// keeps no state of its own.
type All struct {
	known
	limiters
	members []member
	pairs   *pairs // nil unless there are two members, both with a core
	plain   bool   // whether takePlain can decide
	held    bool   // whether some members count slots: a Refund may be for these alone, or for the others
}

// maxLimits is the most limits that are decided together, because while a script decides on them, the
// server does nothing else.
const maxLimits = 16

// member is one of several limits.
type member struct {
	limiter Limiter
	core    *limiter // of limiter; nil if that is a wrapper or another package's
}

// events returns how many events a call for n charges.
func (p *member) events(n int) int {
	if p.core != nil {
		return p.core.events(n)
	}
	return n
}

// NewAll returns a limiter that admits a call if all of 1 to 16 limiters do. Nested Alls are flattened.
// Limiters that share their counts ([WithName]) are each charged, so an event then counts several times.
// It returns [ErrInvalidOption] if a limiter sleeps, as throttle's Waiter does, or if two limiters share
// their counts ([WithName]) but do not have the same Option [WithKeyFunc].
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
	for _, p := range a.members {
		a.limiters = append(a.limiters, p.limiter)
	}
	if err := oneKeyEach(coresOf(nil, a)); err != nil {
		return nil, err
	}
	a.pairs, a.plain = newPairs(a.members), isPlain(a.members)
	a.held = slices.ContainsFunc(a.members, func(p member) bool { return see.Held(p.limiter) })
	a.known = see.NewCore[Limiter](a, see.Known[Limiter]{Kinds: a.kind, Key: a.keyFunc(), Local: a.local})
	return a, nil
}

// kind returns how a admits waiters.
func (a *All) kind() queue.Kind {
	kind := queuesOf(a.limiters[0]).Kind
	for _, l := range a.limiters {
		kind = queue.Joint(kind, queuesOf(l).Kind)
	}
	if kind == queue.Leaky && len(a.members) > 1 && !a.plain { // the ResetAfter of a denial may count events that were refunded
		kind = queue.Turns
	}
	return kind
}

// membersOf returns the members of l if it is an All, and otherwise l itself, unless it cannot be a member.
func membersOf(l Limiter) ([]member, error) {
	if core := coreOf(l); core != nil {
		return []member{{l, core}}, nil
	}
	if isnil.Is(l) {
		return nil, errNilLimiter
	}
	if a, ok := l.(several); ok {
		if members, is := a.membersAs(l); is {
			if len(members) == 0 {
				return nil, unmade.Err
			}
			return members, nil
		}
	}
	if sleeper, sleeps := see.Sleeping(l); sleeps {
		return nil, fmt.Errorf("%w: a %T cannot be in an All, a First, a Ban or a Decide: put it around them", ErrInvalidOption, sleeper)
	}
	return []member{{l, nil}}, nil
}

// several is implemented by All. Code that does not name All does not link it into programs without one.
type several interface {
	membersAs(l Limiter) (members []member, is bool)
}

// membersAs returns the members of l if l is an *All, and not a type that embeds one.
func (a *All) membersAs(l Limiter) (members []member, is bool) {
	all, is := l.(*All)
	if !is {
		return nil, false
	}
	return all.members, true
}

// limiters are the limiters of an [All] or a [First].
type limiters []Limiter

// Unwrap returns the limiters, in their order.
func (ls *limiters) Unwrap() []Limiter { return slices.Clone(*ls) }

// Reset forgets the state of key in each limiter.
func (ls *limiters) Reset(ctx context.Context, key string) error {
	if err := ls.check(ctx, key, 1); err != nil {
		return err
	}
	var errs []error
	for _, l := range *ls {
		errs = append(errs, l.Reset(ctx, key))
	}
	return errors.Join(errs...)
}

// AppendPolicies implements [PolicyAppender].
func (ls *limiters) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	if len(*ls) == 0 {
		return dst, unmade.Err
	}
	policies := dst
	for _, l := range *ls {
		var err error
		if policies, err = AppendPolicies(ctx, policies, l, key); err != nil {
			return dst, err
		}
	}
	return policies, nil
}

// keyFunc makes the key of the waiting queue from the keys of all limiters.
func (ls *limiters) keyFunc() see.Key {
	keys := make([]see.Key, len(*ls))
	for i, l := range *ls {
		keys[i] = see.KeyOf(l)
	}
	return see.Keys(keys...)
}

func (ls *limiters) check(ctx context.Context, key string, n int) error {
	return unmade.Check(ctx, len(*ls) > 0, key, n)
}

// isPlain reports whether every call makes one request per member to the same store, under the same key
// and the constructor's limits, so that no request depends on another.
func isPlain(members []member) bool {
	if len(members) < 2 {
		return false
	}
	for i := range members {
		c := members[i].core
		if c == nil || c.joint == nil || c.joint != members[0].core.joint || c.keyFunc != nil || c.observers != nil || c.reserved > 0 ||
			c.limitFunc != nil || c.integers.Rate <= 0 || slices.ContainsFunc(members[:i], func(other member) bool { return c.sameSpace(other.core) }) {
			return false
		}
	}
	return true
}

// sameSpace reports whether lim and other count in the same namespace of the same store.
func (lim *limiter) sameSpace(other *limiter) bool {
	oneStore := lim == other || lim.bottom != nil && lim.bottom == other.bottom
	return oneStore && lim.namespace.Equal(other.namespace)
}

// coresOf appends the cores of the limiters in l to dst.
func coresOf(dst []*limiter, l Limiter) []*limiter {
	if core := coreOf(l); core != nil {
		return append(dst, core)
	}
	for _, inner := range see.Inside(l) {
		dst = coresOf(dst, inner)
	}
	return dst
}

// oneKeyEach refuses limits that share their counts but may use different keys. Functions cannot be compared.
func oneKeyEach(cores []*limiter) error {
	for i, c := range cores {
		for _, other := range cores[:i] {
			if c.sameSpace(other) && c.keyFunc != other.keyFunc {
				return fmt.Errorf("%w: limits %q and %q share counts, but their keys may differ: give both the same WithKeyFunc Option, or each its own WithName",
					ErrInvalidOption, other.policyName, c.policyName)
			}
		}
	}
	return nil
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

// Charge charges n events to each limit, in their order, until one returns an error. What it has charged by then stays
// charged.
func (a *All) Charge(ctx context.Context, key string, n int) (res Result, err error) {
	if err = a.check(ctx, key, n); err != nil {
		return res, err
	}
	d := begin(asking{what: toCharge}, a)
	defer d.end()
	d.denied = true // until a member has charged
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

// Refund refunds n events to each limit.
func (a *All) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := a.check(ctx, key, n); err != nil {
		return err
	}
	j := charged.joined()
	if !charged.Allowed || j == nil || j.charged == 0 || len(j.parts) != len(a.members) {
		return errNothingCharged
	}
	only := see.Everything
	if a.held || slices.ContainsFunc(a.members, func(p member) bool { return p.core == nil && see.Held(p.limiter) }) {
		only = see.PartOf(ctx)
	}
	var errs []error
	for i := range j.lastFirst() {
		p, part := &a.members[i], j.parts[i]
		if only != see.Everything && see.Held(p.limiter) != (only == see.Slots) {
			continue
		}
		if !part.Allowed || n < j.charged && p.core != nil && p.core.calls { // a Charge met a Rate of 0, or a counted call stays charged
			continue
		}
		errs = append(errs, p.limiter.Refund(ctx, key, part.Result, n))
	}
	return errors.Join(errs...)
}

// local returns an All of the local limiters of a's limiters.
func (a *All) local(s store.Store, instances int) (Limiter, error) {
	locals := make([]Limiter, len(a.limiters))
	for i, l := range a.limiters {
		var err error
		if locals[i], err = see.Local(l, s, instances); err != nil {
			return nil, err
		}
	}
	return NewAll(locals...)
}

// decide implements AllowN, AllowWithin and Peek.
func (a *All) decide(ctx context.Context, key string, n int, how asking, res *Result) error {
	if err := a.check(ctx, key, n); err != nil {
		return err
	}
	apart := false
	if how.what == toTake && a.plain && a.members[0].core.joint.Together(key, key) {
		err := a.takePlain(ctx, key, n, res)
		if apart = errors.Is(err, see.ErrApart); !apart {
			return err
		}
	}
	d := begin(how, a)
	defer d.end()
	d.apart = apart
	for i := range a.members {
		d.add(a.members[i], key, n, false)
	}
	return d.run(ctx, res)
}

var _ complete = (*All)(nil)

// Ask is one part of a [Decide]: N events of Key, decided by Limiter.
type Ask struct {
	Limiter Limiter
	Key     string
	N       int // events
	// Look only looks, as Peek does. N must be 0.
	Look bool
	// Shadow tries a limit out: the limit is charged if it has room, but never denies the call.
	Shadow bool
	// Reserved is how many events must remain afterwards, as for [WithReserved], at most 2^31-1. 0 means the
	// number that the Limiter reserves. A number above 0 requires a Limiter with a built-in algorithm, or an All
	// of them.
	Reserved int
}

// check is CheckCall for an Ask, whose N may be 0 only if mayBeZero is set.
func (a *Ask) check(ctx context.Context, mayBeZero bool) error {
	switch {
	case a.Reserved < 0 || a.Reserved > maxEvents:
		return fmt.Errorf("%w: Ask.Reserved is %d, want 0 to %d", ErrInvalidN, a.Reserved, maxEvents)
	case a.N == 0 && mayBeZero:
		return store.CheckCall(ctx, a.Key, 1)
	case a.Look:
		return fmt.Errorf("%w: Ask.N is %d, want 0 if Look is set", ErrInvalidN, a.N)
	}
	return store.CheckCall(ctx, a.Key, a.N)
}

// Decide decides on 1 to 16 asks as an [All] does, but the call chooses the limits, the keys and the
// numbers of events. Either all asks are admitted and charged, or none is.
//
// If the same limit and key occur twice, they are charged twice. [Result.Parts] has the decision on
// each ask (zero if a shadow fails), and for an All the decisions of its limits.
func Decide(ctx context.Context, asks ...Ask) (res Result, err error) {
	d := begin(asking{what: toTake}, nil)
	defer d.end()
	for i := range asks {
		if err := d.addAsk(ctx, &asks[i]); err != nil {
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
	return fmt.Errorf("%w: Decide was called with %d limits, want 1 to %d", ErrInvalidOption, n, maxLimits)
}

// GiveBack refunds what a [Decide] has charged. asks are those of the Decide, in the same order, with N
// lowered to the number of events to refund. GiveBack works even if ctx has ended. It returns
// [ErrInvalidN] if nothing was charged, or if the number of asks differs.
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
		return fmt.Errorf("%w: GiveBack was called with %d limits, but the Decide had %d", ErrInvalidN, len(members), len(j.parts))
	}
	var errs []error
	for i := range j.lastFirst() {
		if a, r := of[i], j.parts[i]; a.N > 0 && r.Allowed {
			errs = append(errs, members[i].limiter.Refund(ctx, a.Key, r.Result, a.N))
		}
	}
	return errors.Join(errs...)
}
