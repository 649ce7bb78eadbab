package ratelimit

import (
	"context"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// round is one decision of an [All] on its way.
type round struct {
	key     string
	n       int
	how     asking
	denied  bool // by one of the parts
	all     *All
	entries []entry  // one for each part, in their order
	results []Result // of the entries, in the same order
	told    []toTell // whose entries have been asked
	since   time.Time

	// Of one call of a store.
	group    []*entry
	requests []store.Request
	replies  [maxParts]store.Reply

	arrays struct { // of the slices above
		entries  [maxParts]entry
		results  [maxParts]Result
		group    [maxParts]*entry
		requests [maxParts]store.Request
	}
}

// entry is what a round knows of a part.
type entry struct {
	*part
	result  *Result     // zero until decided
	key     string      // of the core
	limit   store.Limit // of the core
	decided bool
	err     error // of the call that was to decide it
	charged bool
	request int // in the round's requests, of those in its group; -1 if it has none there
}

var rounds = sync.Pool{New: func() any { return new(round) }}

// toTell is an observer that is to be told of an entry.
type toTell struct {
	observer *onTheWay
	entry    *entry
	key      string
}

// begin returns a round that is to end.
func begin(a *All, key string, n int, how asking) *round {
	r := rounds.Get().(*round)
	r.key, r.n, r.how, r.denied, r.since = key, n, how, false, time.Time{}
	r.all, r.results, r.entries = a, r.arrays.results[:len(a.parts)], r.arrays.entries[:len(a.parts)]
	for i := range r.entries {
		r.entries[i].part, r.entries[i].result = &a.parts[i], &r.results[i]
	}
	return r
}

// end lets go of what the round refers to.
func (r *round) end() {
	for i := range r.entries { // for two, a loop takes half the time of three calls of clear
		r.entries[i], r.results[i], r.arrays.requests[i] = entry{}, Result{}, store.Request{}
	}
	if len(r.told) > 0 {
		clear(r.told)
	}
	r.key, r.all, r.told = "", nil, r.told[:0]
	rounds.Put(r)
}

// decide asks the parts one group after the other, until one denies.
func (r *round) decide(ctx context.Context) error {
	switch {
	case r.how.what == overdraw:
		return r.overdraw(ctx)
	case r.how.what == take && r.all.plain && len(r.entries) > 1 && r.entries[0].store.Together(r.key, r.key):
		return r.chargePlain(ctx)
	}
	for i := range r.entries {
		e := &r.entries[i]
		if e.err = r.prepare(ctx, e); e.err != nil {
			return e.err
		}
	}
	for i := range r.entries {
		if r.entries[i].decided {
			continue
		}
		if r.denied && r.how.what != peek {
			break
		}
		var err error
		switch r.groupFrom(i); {
		case r.how.what == peek:
			err = r.peek(ctx)
		case len(r.group) == 1:
			err = r.charge(ctx, r.group[0])
		default:
			err = r.chargeTogether(ctx)
		}
		if err != nil {
			r.fail(err)
			return err
		}
	}
	return nil
}

// fail tells the group that it is not decided.
func (r *round) fail(err error) {
	for _, e := range r.group {
		if !e.decided && e.request >= 0 {
			e.err = err
		}
	}
}

// prepare finds the key and the limit of a part with a core, and decides it if that needs no
// store.
func (r *round) prepare(ctx context.Context, e *entry) (err error) {
	if e.core == nil {
		return nil
	}
	e.key = r.key
	for i, k := range e.rekeyed {
		r.pass(e, i)
		if e.key, err = k.of(ctx, e.key); err != nil {
			return err
		}
	}
	r.pass(e, len(e.rekeyed))
	if len(e.rekeyed) > 0 {
		if err = CheckCall(ctx, e.key, r.n); err != nil {
			return err
		}
	}
	if e.limit, err = e.core.limitOf(ctx, e.key); err != nil {
		return err
	}
	if r.how.what == takeWithin {
		e.limit = limitWithin(e.core.rule, e.limit, r.how.d)
	}
	if e.limit.Rate <= 0 {
		e.result.withoutStore(e.limit)
		e.decided = true
		r.denied = r.denied || e.limit.Rate == 0
	}
	return nil
}

// pass remembers the observers that are asked for e's key as it is behind so many Rekeyed.
func (r *round) pass(e *entry, rekeyed int) {
	for i := range e.observers {
		if o := &e.observers[i]; o.rekeyed == rekeyed && r.how.what != peek {
			r.told = append(r.told, toTell{o, e, e.key})
			if r.since.IsZero() {
				r.since = e.now()
			}
		}
	}
}

// tell tells the observers of the parts that were asked what these have decided.
func (r *round) tell(ctx context.Context) {
	for i := range r.told {
		t, n := &r.told[i], r.n
		if t.observer.perCall {
			n = 1
		}
		if e := t.entry; e.decided || e.err != nil {
			t.observer.tell(ctx, t.key, n, *e.result, e.err, r.since)
		}
	}
}

// groupFrom makes group the entry i, and those after it that its store can decide in the
// same call.
func (r *round) groupFrom(i int) {
	first := &r.entries[i]
	r.group = append(r.arrays.group[:0], first)
	if first.store == nil {
		return
	}
	for j := i + 1; j < len(r.entries); j++ {
		if e := &r.entries[j]; !e.decided && e.store == first.store && first.store.Together(first.key, e.key) {
			r.group = append(r.group, e)
		}
	}
}

// peek asks the group. What charge would not have asked, since an earlier part denies, may
// fail.
func (r *round) peek(ctx context.Context) error {
	denied := r.denied
	for _, e := range r.group {
		if err := r.peekAt(ctx, e); err != nil {
			if denied {
				return ctx.Err()
			}
			return err
		}
	}
	return nil
}

// peekAt asks a part for what charge would be told.
func (r *round) peekAt(ctx context.Context, e *entry) (err error) {
	if e.core == nil {
		*e.result, err = e.limiter.Peek(ctx, r.key)
	} else {
		err = e.core.decide(ctx, e.key, r.n*r.sharing(e), peek, &e.limit, e.result)
	}
	e.decided = true
	r.denied = r.denied || !e.result.Allowed
	return err
}

// sharing is how many parts charge the state of e's, itself one of them, before it
// or together with it.
func (r *round) sharing(e *entry) (parts int) {
	before := true
	for i := range r.entries {
		other := &r.entries[i]
		if other.core != nil && other.limit.Rate > 0 && (before || other.limit == e.limit && other.store == e.store) && other.sameState(e) {
			parts++
		}
		before = before && other != e
	}
	return parts
}

// sameState is whether both charge the same key of the same namespace.
func (e *entry) sameState(other *entry) bool {
	return e.key == other.key && e.sameSpace(other.part)
}

// charge decides on one part.
func (r *round) charge(ctx context.Context, e *entry) (err error) {
	if e.core == nil {
		*e.result, err = r.how.ask(ctx, e.limiter, r.key, r.n)
	} else {
		err = e.core.decide(ctx, e.key, e.events(r.n), take, &e.limit, e.result)
	}
	e.decided, e.charged = err == nil, err == nil && e.result.Allowed
	r.denied = err == nil && !e.result.Allowed
	return err
}

// chargeTogether decides on the group by one call of its store.
func (r *round) chargeTogether(ctx context.Context) error {
	r.requests = r.arrays.requests[:0]
	for _, e := range r.group {
		e.request = r.requestOf(e)
	}
	return r.takeAll(ctx)
}

// chargePlain is chargeTogether of all parts, where the parts of the All are plain.
func (r *round) chargePlain(ctx context.Context) error {
	r.group, r.requests = r.arrays.group[:len(r.entries)], r.arrays.requests[:len(r.entries)]
	for i := range r.entries {
		e, req := &r.entries[i], &r.requests[i]
		e.key, e.limit, e.request, r.group[i] = r.key, e.core.integers, i, e
		req.Namespace, req.Key, req.Limit, req.N = e.core.namespace, r.key, e.core.integers, min(int64(e.events(r.n)), beyond)
	}
	return r.takeAll(ctx)
}

// takeAll decides on the requests.
func (r *round) takeAll(ctx context.Context) error {
	replies := r.replies[:len(r.requests)]
	if err := r.group[0].store.TakeAll(ctx, r.requests, replies); err != nil {
		return err
	}
	for i := range replies {
		r.denied = r.denied || !replies[i].OK()
	}
	for i := len(r.group) - 1; i >= 0; i-- {
		if e := r.group[i]; e.request >= 0 {
			r.read(e, &r.requests[e.request], replies[e.request])
		}
	}
	return nil
}

// requestOf is the place of e's request in requests. Parts on the same key of the same
// namespace share one. It is -1 if they differ in the limit, so that they must be decided one
// after the other.
func (r *round) requestOf(e *entry) int {
	n := min(int64(e.events(r.n)), beyond)
	for i := range r.requests {
		req := &r.requests[i]
		if !req.Namespace.Equal(e.core.namespace) || req.Key != e.key {
			continue
		}
		if req.Limit != e.limit {
			return -1
		}
		req.N = min(req.N+n, beyond)
		return i
	}
	r.requests = r.requests[:len(r.requests)+1]
	req := &r.requests[len(r.requests)-1]
	req.Namespace, req.Key, req.Limit, req.N = e.core.namespace, e.key, e.limit, n
	return len(r.requests) - 1
}

// read makes e's result of the reply to its request. Parts with one request are read from
// the last to the first.
func (r *round) read(e *entry, req *store.Request, reply store.Reply) {
	charged := req.N
	if r.denied {
		charged = 0
	}
	e.core.result(e.result, req.Limit, reply, req.N, charged)
	e.result.n = min(e.result.n, int32(min(e.events(r.n), maxEvents)))
	// The parts before are told as if charged before: or else a Refund, which gives
	// back to each what is still charged, would find the same events twice. Where only the
	// tail is taken back, all of them are the tail.
	if charged > 0 && !e.core.rule.LastOnly {
		req.N -= int64(e.events(r.n))
	}
	e.decided, e.charged = true, !r.denied
}

// overdraw charges each part. What it has charged is not given back.
func (r *round) overdraw(ctx context.Context) (err error) {
	r.denied = true
	for i := range r.entries {
		e := &r.entries[i]
		if *e.result, err = Charge(ctx, e.limiter, r.key, r.n); err != nil {
			return err
		}
		e.decided = true
		r.denied = r.denied && !e.result.Allowed
	}
	return nil
}

// giveBack refunds what was charged before a part denied or failed.
func (r *round) giveBack(ctx context.Context) {
	for i := len(r.entries) - 1; i >= 0; i-- {
		e := &r.entries[i]
		if !e.charged || e.result.uncounted() {
			continue
		}
		var err error
		if e.core != nil { // by the limit of the charge, without asking for it anew
			err = e.core.store.Refund(ctx, e.core.namespace, e.key, e.limit, e.result.receipt(int64(r.n)))
		} else {
			err = e.limiter.Refund(ctx, r.key, *e.result, r.n)
		}
		if err == nil {
			*e.result = e.result.without(r.n, r.n)
		}
	}
}

// result makes whole the whole of results. It is zero before.
func (r *round) result(ctx context.Context, whole *Result) {
	if !r.denied && r.all.pairs.result(r.results, r.n, whole) {
		return
	}
	source, worst := SourceUnlimited, -1
	whole.Allowed = !r.denied
	for i := range r.entries {
		e, p := &r.entries[i], &r.results[i]
		if e.core == nil {
			r.spread(ctx, e)
		}
		if !e.decided {
			continue
		}
		if whole.Allowed {
			whole.Delay = max(whole.Delay, p.Delay)
		} else if !p.Allowed && (worst < 0 || p.RetryAfter > whole.RetryAfter) {
			whole.RetryAfter, worst = p.RetryAfter, i
		}
		if s := p.source(); weights[s] > weights[source] {
			source = s
		}
	}
	j := join(r.results)
	if worst >= 0 {
		source, j.deniedBy = r.results[worst].source(), r.name(ctx, worst)
	}
	if !r.denied && r.how.what != peek {
		j.charged = r.n
	}
	if source == SourceUnlimited || source == SourceList && whole.Allowed { // as long as nothing is counted
		whole.Limit, whole.Remaining = maxEvents, maxEvents
	}
	whole.sum(j.parts)
	whole.mark = j.markOf(source)
}

// spread gives e as many results as it has policies, so that [Result.Parts] are in their
// order. What was not asked, or has answered for several limits at once, has one.
func (r *round) spread(ctx context.Context, e *entry) {
	if e.result.parts() != nil || deciding(e.limiter) != nil { // which is one limit, and has one policy
		return
	}
	policies, err := AppendPolicies(ctx, nil, e.limiter, r.key)
	if err != nil || len(policies) < 2 {
		return
	}
	j := &joined{parts: make([]Result, len(policies)), charged: e.result.Charged()}
	j.parts[0] = *e.result
	*e.result = e.result.With(j.markOf(e.result.Source()))
}

// weights says which source stands for several that admit: a store that did not answer
// outweighs one that did, and either a limit that needs none.
var weights = [...]uint8{
	SourceUnlimited: 0, SourceList: 1, SourceZeroRate: 2, SourceStore: 3, SourceLease: 3,
	SourceFailOpen: 4, SourceFailClosed: 4, SourceLocal: 4, SourceDenyCache: 4,
}

// name is that of part i.
func (r *round) name(ctx context.Context, i int) string {
	e := &r.entries[i]
	if e.core != nil {
		return e.core.policyName
	}
	if name := e.result.DeniedBy(); name != "" {
		return name
	}
	policies, err := AppendPolicies(ctx, nil, e.limiter, r.key)
	if err != nil || len(policies) == 0 {
		return ""
	}
	return policies[0].Name
}
