package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// All is a [Limiter] of several limits, of which each must admit: 10 per second and
// 1,000 per hour; one per user and one per address ([NewRekeyed]). If any of them denies,
// none is charged.
//
// Limits of the five algorithms on one store are decided together, at one instant:
// in memory under the locks of their keys, on Redis by one script in one round trip.
// On a cluster or a ring these are the limits that decide on the same key. All
// others (on other stores, other keys of a cluster, other Limiters) are charged one
// after the other, in the order in which they were given, and given back when a later
// one denies. Bound: until then, for as long as those calls take, others see up to n
// events too few; a [LeakyBucket] may have given out turns behind them, and takes no
// refund of earlier events after them; and what cannot be given back, since its store
// fails, stays charged.
//
// The [Result] has the least Remaining of all and that one's Limit, the longest
// RetryAfter of those that deny, the longest ResetAfter, and the longest Delay if all
// admit. It names the limit that denied ([Result.DeniedBy]) and has each limit's own
// decision ([Result.Parts]). A limit that was not asked, because an earlier one denied or
// has a Rate of 0, has a zero Result there; one that was given back is told without the
// charge, but for a ResetAfter that may be too long. RetryAfter is exact where the limits
// are decided together, nobody else calling; elsewhere the limits not asked may make it
// longer.
//
// A part that decides on the same key of the same limiter as another is charged n
// events for each, of which Remaining knows nothing: it is what the key has left. Peek
// allows for it where the parts are the five algorithms, or a [Rekeyed] around one. A
// decision takes as long as those of its parts, less a lock or a round trip for each but
// the first, and two allocations. [WithCoalescing] has no effect on limits that are
// decided together. Its own memory is nothing per key.
//
// It is safe for concurrent use. Make it by [NewAll] or [NewLevels].
type All struct {
	parts []allPart
}

// maxParts is how many limits an All has at most: a script decides on all of them,
// while the server does nothing else.
const maxParts = 16

// allPart is one of the limits.
type allPart struct {
	limiter Limiter
	keyed   *Rekeyed    // that limiter is, or nil
	core    *limiter    // that limiter is, or keyed's, or nil if it is none of the five
	joint   store.Store // core's store, or nil
}

// NewAll returns a limiter that admits what all of limiters admit, 1 to 16. An All
// among them is taken for its parts. Its error is [ErrInvalidOption]: there are
// none or too many, or one is nil.
func NewAll(limiters ...Limiter) (*All, error) {
	a := new(All)
	for _, l := range limiters {
		if isnil.Is(l) {
			return nil, fmt.Errorf("%w: a limiter is nil", ErrInvalidOption)
		}
		if inner, ok := l.(*All); ok {
			if len(inner.parts) == 0 {
				return nil, errNoAll
			}
			a.parts = append(a.parts, inner.parts...)
			continue
		}
		a.parts = append(a.parts, newAllPart(l))
	}
	if len(a.parts) == 0 || len(a.parts) > maxParts {
		return nil, fmt.Errorf("%w: %d limiters, want 1 to %d", ErrInvalidOption, len(a.parts), maxParts)
	}
	return a, nil
}

func newAllPart(l Limiter) allPart {
	p := allPart{limiter: l}
	if p.keyed, _ = l.(*Rekeyed); p.keyed != nil {
		l = p.keyed.limiter
	}
	if p.core = coreOf(l); p.core == nil {
		return p
	}
	if reflect.TypeOf(p.core.store).Comparable() {
		p.joint = p.core.store
	}
	return p
}

// coreOf is what the five types have in common, if l is one of them. (An interface
// would also find what another type embeds, and call it in place of that type's own
// AllowN.)
func coreOf(l Limiter) *limiter {
	switch l := l.(type) {
	case *FixedWindow:
		return &l.limiter
	case *SlidingWindow:
		return &l.limiter
	case *SlidingLog:
		return &l.limiter
	case *TokenBucket:
		return &l.limiter
	case *LeakyBucket:
		return &l.limiter
	}
	return nil
}

// NewLevels returns one limiter of several limits on the same keys, by the
// algorithm's name as in [New]: NewLevels("sliding_window", s, PerSecond(10),
// PerMinute(100), PerHour(1000)). Its errors are those of New and of NewAll. To give
// the levels options make them by New, and an All of them.
func NewLevels(algorithm string, s store.Store, levels ...Limit) (*All, error) {
	limiters := make([]Limiter, 0, len(levels))
	for _, l := range levels {
		lim, err := New(algorithm, s, l)
		if err != nil {
			return nil, err
		}
		limiters = append(limiters, lim)
	}
	return NewAll(limiters...)
}

// Allow is AllowN of 1.
func (a *All) Allow(ctx context.Context, key string) (Result, error) {
	return a.AllowN(ctx, key, 1)
}

// AllowN decides on n events at once: all limits are charged with them, or none is.
func (a *All) AllowN(ctx context.Context, key string, n int) (Result, error) {
	return a.decide(ctx, key, n, asking{what: take})
}

// AllowWithin decides on n events whose turn must come within d in each limit: see the
// function [AllowWithin]. The limits that AllowN decides together are decided together
// here too. Delay is the longest of all.
func (a *All) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (Result, error) {
	return a.decide(ctx, key, n, asking{takeWithin, d})
}

// Peek answers what Allow would, and charges nothing. It asks one limit after the
// other.
func (a *All) Peek(ctx context.Context, key string) (Result, error) {
	return a.decide(ctx, key, 1, asking{what: peek})
}

// Charge charges n events that have happened already to each limit, in their order,
// whether they fit or not. A limit of Rate 0 is charged nothing; if all of them are
// of it, the Result is their denial. After an error the limits before it stay charged.
func (a *All) Charge(ctx context.Context, key string, n int) (Result, error) {
	if err := a.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	r := round{parts: a.parts, key: key, n: n, denied: true, results: make([]Result, len(a.parts))}
	for i := range a.parts {
		var err error
		if r.results[i], err = Charge(ctx, a.parts[i].limiter, key, n); err != nil {
			return Result{}, err
		}
		r.decided[i] = true
		r.denied = r.denied && !r.results[i].Allowed
	}
	return r.result(ctx), nil
}

// Refund gives back n of the events that charged admitted, to each limit. Its
// error is that of all that fail, joined; the others have got theirs.
func (a *All) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := a.check(ctx, key, n); err != nil {
		return err
	}
	d := charged.ofAll()
	if !charged.Allowed || d == nil || d.denied || len(d.parts) != len(a.parts) {
		return errNothingCharged
	}
	var errs []error
	for i := len(d.parts) - 1; i >= 0; i-- { // the last to be charged first
		if part := d.parts[i]; part.Allowed { // or else Charge has met a Rate of 0
			errs = append(errs, a.parts[i].limiter.Refund(ctx, key, part, n))
		}
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
	all := dst
	for i := range a.parts {
		var err error
		if all, err = AppendPolicies(ctx, all, a.parts[i].limiter, key); err != nil {
			return dst, err
		}
	}
	return all, nil
}

var errNoAll = fmt.Errorf("%w: an All is made by its constructor", ErrInvalidOption)

func (a *All) check(ctx context.Context, key string, n int) error {
	if len(a.parts) == 0 {
		return errNoAll
	}
	return checkCall(ctx, key, n)
}

// decide is AllowN, AllowWithin or Peek.
func (a *All) decide(ctx context.Context, key string, n int, how asking) (Result, error) {
	if err := a.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	r := rounds.Get().(*round)
	defer r.end()
	r.begin(a, key, n, how)
	err := r.prepare(ctx)
	for i := range a.parts {
		if err != nil || r.denied && how.what != peek {
			break
		}
		switch {
		case r.decided[i]:
		case how.what == peek:
			err = r.peek(ctx, i)
		default:
			err = r.charge(ctx, i)
		}
	}
	if err != nil || r.denied {
		r.giveBack(context.WithoutCancel(ctx))
	}
	if err != nil {
		return Result{}, err
	}
	return r.result(ctx), nil
}

// round is one decision of an All on its way.
type round struct {
	parts   []allPart
	key     string
	n       int
	how     asking
	denied  bool     // by one of results
	results []Result // of each part, zero if it was not asked
	decided [maxParts]bool
	charged [maxParts]bool

	// Of the parts with a core.
	keys   [maxParts]string
	limits [maxParts]store.Limit

	// Of a call of a store.
	claims  [maxParts]store.Request
	replies [maxParts]store.Reply
	claimOf [maxParts]int // of each part, from 1; 0 if it has none
}

var rounds = sync.Pool{New: func() any { return new(round) }}

func (r *round) begin(a *All, key string, n int, how asking) {
	r.parts, r.key, r.n, r.how = a.parts, key, n, how
	r.results = make([]Result, len(a.parts))
}

// end lets go of what the round refers to.
func (r *round) end() {
	n := len(r.parts)
	clear(r.decided[:n])
	clear(r.charged[:n])
	clear(r.keys[:n])
	clear(r.claims[:n])
	r.parts, r.key, r.results, r.denied = nil, "", nil, false
	rounds.Put(r)
}

// prepare finds the key and the limit of each part with a core, and decides those
// that need no store.
func (r *round) prepare(ctx context.Context) (err error) {
	for i := range r.parts {
		p := &r.parts[i]
		if p.core == nil {
			continue
		}
		if r.keys[i] = r.key; p.keyed != nil {
			if r.keys[i], err = p.keyed.key(ctx, r.key); err != nil {
				return err
			}
		}
		if err = p.core.check(ctx, r.keys[i], r.n); err != nil {
			return err
		}
		if r.limits[i], err = p.core.limitOf(ctx, r.keys[i]); err != nil {
			return err
		}
		if r.how.what == takeWithin {
			r.limits[i].Before = p.core.algorithm.before(r.how.d)
		}
		if l := r.limits[i]; l.Rate <= 0 {
			r.results[i].withoutStore(l)
			r.decided[i] = true
			r.denied = r.denied || l.Rate == 0
		}
	}
	return nil
}

// peek asks the parts that charge would decide together with part i. What charge would
// not have asked, since an earlier one denies, may fail.
func (r *round) peek(ctx context.Context, i int) error {
	denied := r.denied
	for j := i; j < len(r.parts); j++ {
		if !r.together(i, j) {
			continue
		}
		if err := r.peekAt(ctx, j); err != nil {
			if denied {
				return ctx.Err()
			}
			return err
		}
	}
	return nil
}

// together is whether part j, which is not before part i, is decided in one call with it.
func (r *round) together(i, j int) bool {
	p, q := &r.parts[i], &r.parts[j]
	return i == j || !r.decided[j] && p.joint != nil && q.joint == p.joint && p.joint.Together(r.keys[i], r.keys[j])
}

// anyTogether is whether a part after part i is decided in one call with it.
func (r *round) anyTogether(i int) bool {
	for j := i + 1; j < len(r.parts); j++ {
		if r.together(i, j) {
			return true
		}
	}
	return false
}

// peekAt asks part i for what charge would be told.
func (r *round) peekAt(ctx context.Context, i int) (err error) {
	p := &r.parts[i]
	if p.core == nil {
		r.results[i], err = p.limiter.Peek(ctx, r.key)
	} else {
		err = p.core.decide(ctx, r.keys[i], r.n*r.sharing(i), peek, &r.limits[i], &r.results[i])
	}
	r.decided[i] = true
	r.denied = r.denied || !r.results[i].Allowed
	return err
}

// sharing is how many parts charge the state of part i, itself one of them, before it
// or together with it.
func (r *round) sharing(i int) (parts int) {
	p := &r.parts[i]
	for j := range r.parts {
		q := &r.parts[j]
		if q.core == nil || r.limits[j].Rate <= 0 || j > i && r.limits[j] != r.limits[i] {
			continue
		}
		oneStore := q.core == p.core || p.joint != nil && q.joint == p.joint
		if oneStore && r.keys[j] == r.keys[i] && q.core.space.Equal(p.core.space) {
			parts++
		}
	}
	return parts
}

// charge decides on part i, and on those after it that can be decided with it.
func (r *round) charge(ctx context.Context, i int) (err error) {
	p := &r.parts[i]
	switch {
	case p.core == nil:
		r.results[i], err = r.how.ask(ctx, p.limiter, r.key, r.n)
	case r.anyTogether(i):
		return r.chargeTogether(ctx, i)
	default:
		err = p.core.decide(ctx, r.keys[i], r.n, take, &r.limits[i], &r.results[i])
	}
	r.decided[i], r.charged[i] = err == nil, err == nil && r.results[i].Allowed
	r.denied = err == nil && !r.results[i].Allowed
	return err
}

// chargeTogether is charge of the parts from i on whose store can decide on them in one
// call.
func (r *round) chargeTogether(ctx context.Context, i int) error {
	joint, claims := r.parts[i].joint, r.claims[:0]
	for j := i; j < len(r.parts); j++ {
		r.claimOf[j] = 0
		if r.together(i, j) {
			claims, r.claimOf[j] = r.claim(claims, j)
		}
	}
	replies := r.replies[:len(claims)]
	if err := joint.TakeAll(ctx, claims, replies); err != nil {
		return err
	}
	for c := range replies {
		r.denied = r.denied || !replies[c].OK
	}
	for j := len(r.parts) - 1; j >= i; j-- {
		c := r.claimOf[j] - 1
		if c < 0 {
			continue
		}
		core, charged := r.parts[j].core, claims[c].N
		if r.denied {
			charged = 0
		}
		core.fill(&r.results[j], claims[c].Limit, replies[c], claims[c].N, charged)
		r.results[j].n = min(r.results[j].n, int32(min(r.n, maxEvents)))
		// The parts before are told as if charged before: or else a Refund, which gives
		// back to each what is still charged, would find the same events twice. A leaky
		// bucket takes back only its tail, which all of them are.
		if charged > 0 && core.algorithm != &leakyBucket {
			claims[c].N -= int64(r.n)
		}
		r.decided[j], r.charged[j] = true, !r.denied
	}
	return nil
}

// claim adds part j to claims, and returns the number of its claim, from 1. That of
// a part on the same key of the same space is for both; 0 if they differ in the limit, and
// must be decided one after the other.
func (r *round) claim(claims []store.Request, j int) ([]store.Request, int) {
	n := min(int64(r.n), beyond)
	for c := range claims {
		if claims[c].Key != r.keys[j] || !claims[c].Namespace.Equal(r.parts[j].core.space) {
			continue
		}
		if claims[c].Limit != r.limits[j] {
			return claims, 0
		}
		claims[c].N = min(claims[c].N+n, beyond)
		return claims, c + 1
	}
	claims = append(claims, store.Request{Namespace: r.parts[j].core.space, Key: r.keys[j], Limit: r.limits[j], N: n})
	return claims, len(claims)
}

// giveBack refunds what was charged before a part denied or failed.
func (r *round) giveBack(ctx context.Context) {
	for i := len(r.parts) - 1; i >= 0; i-- {
		res := &r.results[i]
		if !r.charged[i] || res.uncounted() {
			continue
		}
		if p := &r.parts[i]; p.core != nil { // by the limit of the charge, without asking for it anew
			_ = p.core.store.Refund(ctx, p.core.space, r.keys[i], r.limits[i], res.charge(int64(r.n)))
		} else {
			_ = p.limiter.Refund(ctx, r.key, *res, r.n)
		}
		*res = res.before(r.n)
	}
}

// before is r without the n events that it has charged, not to be refunded again.
func (r *Result) before(n int) Result {
	d := r.ofAll()
	if d != nil && d.denied { // and let through
		n = 0
	}
	b := Result{Allowed: true, Limit: r.Limit, Remaining: r.Remaining, details: r.details}
	if b.Remaining += min(n, r.Limit-r.Remaining); b.Remaining < b.Limit {
		b.ResetAfter = r.ResetAfter
	}
	if d != nil && !d.denied {
		b.details = &details{source: r.Source(), denied: true, parts: make([]Result, len(d.parts))}
		for i := range d.parts {
			if b.details.parts[i] = d.parts[i]; !d.parts[i].uncounted() {
				b.details.parts[i] = d.parts[i].before(n)
			}
		}
	}
	return b
}

// result is the whole of results.
func (r *round) result(ctx context.Context) Result {
	whole := Result{Allowed: !r.denied, Limit: maxEvents, Remaining: maxEvents}
	d := &details{parts: r.results, denied: r.denied, source: SourceUnlimited}
	worst, known := -1, false
	for i := range r.results {
		p := &r.results[i]
		if !r.decided[i] {
			continue
		}
		known = whole.add(p) || known
		d.source = worse(d.source, p.Source())
		if r.denied && !p.Allowed && (worst < 0 || p.RetryAfter > r.results[worst].RetryAfter) {
			worst = i
		}
	}
	if worst >= 0 {
		d.deniedBy = r.name(ctx, worst)
	}
	if !known && d.source != SourceUnlimited {
		whole.Limit, whole.Remaining = 0, 0
	}
	whole.details = d
	return whole
}

// add makes r what it is with one more limit, that of p, and says whether it is known
// what that has left.
func (r *Result) add(p *Result) (known bool) {
	known = p.Source() != SourceFailOpen && p.Source() != SourceUnlimited
	if known && p.Remaining < r.Remaining {
		r.Limit, r.Remaining = p.Limit, p.Remaining
	}
	if r.Allowed {
		r.Delay = max(r.Delay, p.Delay)
	} else {
		r.RetryAfter = max(r.RetryAfter, p.RetryAfter)
	}
	r.ResetAfter = max(r.ResetAfter, p.ResetAfter)
	return known
}

// worse is the source of a decision that has two parts: a store that did not answer
// outweighs one that did, most of all if the event is refused for it, and either a limit
// that needs none.
func worse(a, b Source) Source {
	switch {
	case a == SourceUnlimited, a == SourceStore && b != SourceUnlimited, b == SourceFailClosed:
		return b
	}
	return a
}

// name is that of part i.
func (r *round) name(ctx context.Context, i int) string {
	if p := &r.parts[i]; p.core != nil {
		return p.core.title
	}
	if name := r.results[i].DeniedBy(); name != "" {
		return name
	}
	policies, err := AppendPolicies(ctx, nil, r.parts[i].limiter, r.key)
	if err != nil || len(policies) == 0 {
		return ""
	}
	return policies[0].Name
}
