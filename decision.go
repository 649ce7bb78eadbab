package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// decision is one of several limits on its way.
type decision struct {
	how     asking
	n       int  // events; of a Decide the most that one with a say is asked for
	denied  bool // by one of the entries
	all     *All // nil of a Decide
	entries []entry
	results []Result // of the entries, in the same order
	watched bool     // by an observer
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

// entry is one of the limits of a decision.
type entry struct {
	part
	key    string // that is asked for; of a core, once prepared, what is counted
	n      int    // events
	asked  int    // the same, but for CountCalls
	shadow bool
	gate   bool // a look whose denial denies the whole

	result  *Result     // zero until decided
	limit   store.Limit // of the core
	decided bool
	skipped bool  // a shadow that has failed
	err     error // of the call that was to decide it
	charged bool
	request int // in the decision's requests, of those in its group; -1 if it has none there
}

// op is what a store is asked.
func (e *entry) op() store.Op {
	switch {
	case e.gate:
		return store.OpGate
	case e.n == 0:
		return store.OpLook
	case e.shadow:
		return store.OpShadow
	}
	return store.OpTake
}

// votes is whether a denial of e denies the whole.
func (e *entry) votes() bool { return e.gate || e.n > 0 && !e.shadow }

var decisions = sync.Pool{New: func() any { return new(decision) }}

// begin returns a decision that is to end.
func begin(how asking, all *All) *decision {
	d := decisions.Get().(*decision)
	d.begin(how, all)
	return d
}

func (d *decision) begin(how asking, all *All) {
	d.how, d.n, d.denied, d.all, d.watched = how, 0, false, all, false
	d.entries, d.results = d.arrays.entries[:0], d.arrays.results[:0]
}

// add adds a limit. There are no more than maxParts.
func (d *decision) add(p part, key string, n int, shadow bool) {
	i := len(d.entries)
	d.entries, d.results = d.entries[:i+1], d.arrays.results[:i+1]
	e := &d.entries[i]
	e.part, e.key, e.n, e.asked, e.shadow, e.result = p, key, p.events(n), n, shadow, &d.results[i]
	if !shadow {
		d.n = max(d.n, n)
	}
	if p.core != nil && p.core.observers != nil && d.how.what != peek {
		if d.watched = true; p.core.timed && d.since.IsZero() {
			d.since = time.Now()
		}
	}
}

// addGate adds a look at key whose denial denies the whole.
func (d *decision) addGate(c *limiter, key string) {
	d.add(part{core: c}, key, 0, false)
	d.entries[len(d.entries)-1].gate = true
}

// behindGate makes res the result of the entries after the first one, a gate that is open: of an
// All, or of one limiter.
func (d *decision) behindGate(ctx context.Context, res *Result) {
	entries, results := d.entries, d.results
	defer func() { d.entries, d.results = entries, results }()
	d.entries, d.results = entries[1:], results[1:]
	if d.all != nil {
		d.result(ctx, res)
		return
	}
	if e := &d.entries[0]; e.core != nil {
		d.finish(ctx, e)
	}
	*res = d.results[0]
}

// ask adds the limits of an Ask.
func (d *decision) ask(ctx context.Context, a *Ask) (err error) {
	var few [1]part // on the stack
	var parts []part
	if core := coreOf(a.Limiter); core != nil {
		few[0] = part{a.Limiter, core}
		parts, err = few[:], nil
	} else {
		parts, err = partsOf(a.Limiter)
	}
	switch {
	case err != nil:
		return err
	case len(d.entries)+len(parts) > maxParts:
		return errAsks(len(d.entries) + len(parts))
	}
	if err := a.check(ctx, a.Look); err != nil {
		return err
	}
	for i := range parts {
		d.add(parts[i], a.Key, a.N, a.Shadow)
	}
	return nil
}

// end lets d be used again.
func (d *decision) end() {
	d.clear()
	decisions.Put(d)
}

// clear lets go of what the decision refers to.
func (d *decision) clear() {
	for i := range d.entries {
		d.entries[i] = entry{}
	}
	for i := range d.results { // for two, a loop takes half the time of two calls of clear
		d.results[i], d.arrays.requests[i] = Result{}, store.Request{}
	}
	d.all, d.since = nil, time.Time{}
}

// run decides, and makes res.
func (d *decision) run(ctx context.Context, res *Result) error {
	err := d.settle(ctx)
	if err == nil {
		d.result(ctx, res)
	}
	return err
}

// settle decides, and gives back what a denial, an error or a panic leaves charged.
func (d *decision) settle(ctx context.Context) error {
	returned := false
	defer func() {
		if !returned { // of a user's function, in a limiter that is none of the five
			d.giveBack(context.WithoutCancel(ctx))
		}
	}()
	err := d.decide(ctx)
	returned = true
	if err != nil || d.denied {
		d.giveBack(context.WithoutCancel(ctx))
	}
	if d.watched {
		d.tell(ctx)
	}
	return err
}

// decide asks the entries one group after the other, until one denies.
func (d *decision) decide(ctx context.Context) error {
	if d.how.what == overdraw {
		return d.overdraw(ctx)
	}
	for i := range d.entries {
		e := &d.entries[i]
		if e.err = d.prepare(ctx, e); e.err != nil && !d.skip(e) {
			return e.err
		}
	}
	for _, vote := range [...]bool{true, false} { // so that no shadow takes the room of a limit on the same state
		for i := range d.entries {
			if e := &d.entries[i]; e.decided || e.skipped || e.votes() != vote {
				continue
			}
			if d.denied && d.how.what != peek {
				return nil
			}
			if err := d.decideGroup(ctx, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// takePlain decides where the limits are plain: one call of their store, without a look at each
// of them. It is the common case of an All, and takes a third of the time.
func (a *All) takePlain(ctx context.Context, key string, n int, res *Result) error {
	d := decisions.Get().(*decision)
	requests, replies := d.arrays.requests[:len(a.parts)], d.replies[:len(a.parts)]
	for i := range a.parts {
		c, r := a.parts[i].core, &requests[i]
		r.Namespace, r.Key, r.Limit, r.N = c.namespace, key, c.integers, min(int64(a.parts[i].events(n)), beyond)
	}
	err := a.parts[0].core.joint.Decide(ctx, requests, replies)
	if err == nil && (a.pairs == nil || !a.takenPair(replies, n, res)) {
		a.takenMore(ctx, d, replies, key, n, res)
	}
	for i := range requests {
		requests[i] = store.Request{}
	}
	decisions.Put(d)
	return err
}

// takenPair makes res of the replies to a call for n events of two limits, if the Result has
// room for what both say.
func (a *All) takenPair(replies []store.Reply, n int, res *Result) bool {
	var results [2]Result
	denied := !replies[0].OK() || !replies[1].OK()
	for i := range results {
		p := &a.parts[i]
		events, charged := min(int64(p.events(n)), beyond), int64(0)
		if !denied {
			charged = events
		}
		p.core.taken(&results[i], replies[i], events, charged)
	}
	if denied {
		return a.pairs.denial(results[:], res)
	}
	return a.pairs.result(results[:], n, res)
}

// takenMore makes res, which is zero, of any replies.
func (a *All) takenMore(ctx context.Context, d *decision, replies []store.Reply, key string, n int, res *Result) {
	d.begin(asking{what: take}, a)
	defer d.clear()
	for i := range replies {
		d.denied = d.denied || !replies[i].OK()
	}
	for i := range replies {
		d.add(a.parts[i], key, n, false)
		d.entries[i].decided = true
		events, charged := min(int64(a.parts[i].events(n)), beyond), int64(0)
		if !d.denied {
			charged = events
		}
		a.parts[i].core.taken(&d.results[i], replies[i], events, charged)
	}
	d.result(ctx, res)
}

// skip passes over e, which has failed, if it is a shadow.
func (d *decision) skip(e *entry) bool {
	e.skipped = e.shadow
	return e.shadow
}

// prepare finds the key and the limit of an entry with a core, and decides it if that needs no
// store.
func (d *decision) prepare(ctx context.Context, e *entry) (err error) {
	if e.core == nil {
		return nil
	}
	if e.core.keyFunc != nil {
		if e.key, err = e.core.keyOf(ctx, e.key, max(e.n, 1)); err != nil {
			return err
		}
	}
	if e.limit, err = e.core.limitOf(ctx, e.key); err != nil {
		return err
	}
	if d.how.what == takeWithin {
		e.limit = limitWithin(e.core.rule, e.limit, d.how.d)
	}
	if e.limit.Rate <= 0 {
		e.result.withoutStore(e.limit)
		e.decided = true
		d.denied = d.denied || e.limit.Rate == 0 && e.votes()
	}
	return nil
}

// tell tells the observers of the entries that were asked what these have decided.
func (d *decision) tell(ctx context.Context) {
	for i := range d.entries {
		if e := &d.entries[i]; e.core != nil && e.n > 0 && (e.decided || e.err != nil) {
			e.core.tell(ctx, e.key, e.n, e.result, e.err, d.since)
		}
	}
}

// decideGroup decides on entry i, and on those that its store can decide in the same call. If all
// of them are shadows, it is no error if they fail.
func (d *decision) decideGroup(ctx context.Context, i int) (err error) {
	d.groupFrom(i)
	switch {
	case d.how.what == peek:
		return d.peek(ctx)
	case len(d.group) > 1:
		err = d.chargeTogether(ctx)
	default:
		err = d.charge(ctx, d.group[0])
	}
	if err == nil {
		return nil
	}
	voters := 0
	for _, e := range d.group {
		if e.request >= 0 {
			e.err = err
		}
		if !d.skip(e) {
			voters++
		}
	}
	switch {
	case voters == 0:
		return ctx.Err()
	case voters < len(d.group) && errors.Is(err, store.ErrCorrupt): // nothing ran; it may be of a shadow
		for _, e := range d.group {
			if !e.shadow {
				e.err = nil
			}
		}
		return d.decideGroup(ctx, i)
	}
	return err
}

// groupFrom makes group the entry i, and those that its store can decide in the same call.
func (d *decision) groupFrom(i int) {
	first := &d.entries[i]
	d.group = append(d.arrays.group[:0], first)
	first.request = 0
	if first.core == nil || first.core.joint == nil {
		return
	}
	for j := range d.entries {
		e := &d.entries[j]
		if j != i && !e.decided && !e.skipped && e.core != nil && e.core.joint == first.core.joint && first.core.joint.Together(first.key, e.key) {
			d.group = append(d.group, e)
		}
	}
}

// peek asks the group. What charge would not have asked, since an earlier part denies, may
// fail.
func (d *decision) peek(ctx context.Context) error {
	denied := d.denied
	for _, e := range d.group {
		if err := d.peekAt(ctx, e); err != nil {
			if denied {
				return ctx.Err()
			}
			return err
		}
	}
	return nil
}

// peekAt asks for what charge would be told, and looks.
func (d *decision) peekAt(ctx context.Context, e *entry) (err error) {
	switch {
	case e.core == nil:
		*e.result, err = e.limiter.Peek(ctx, e.key)
	case e.n == 0:
		err = e.core.decide(ctx, e.key, 1, peek, &e.limit, e.result)
	default:
		err = e.core.decide(ctx, e.key, d.sharing(e), peek, &e.limit, e.result)
	}
	e.decided = err == nil
	d.denied = d.denied || e.votes() && !e.result.Allowed
	return err
}

// sharing is how many events are charged to the state of e's, before it or together with it, by
// e and by others.
func (d *decision) sharing(e *entry) (events int) {
	before := true
	for i := range d.entries {
		other := &d.entries[i]
		if other.core != nil && other.limit.Rate > 0 && (before || other.limit == e.limit && other.core.joint == e.core.joint) && other.key == e.key && other.core.sameSpace(e.core) {
			events += other.n
		}
		before = before && other != e
	}
	return events
}

// charge decides on one entry.
func (d *decision) charge(ctx context.Context, e *entry) (err error) {
	switch {
	case e.n == 0:
		return d.peekAt(ctx, e)
	case e.core == nil:
		*e.result, err = d.how.ask(ctx, e.limiter, e.key, e.n)
	default:
		err = e.core.decide(ctx, e.key, e.n, take, &e.limit, e.result)
	}
	e.decided, e.charged = err == nil, err == nil && e.result.Allowed
	d.denied = err == nil && e.votes() && !e.result.Allowed
	return err
}

// chargeTogether decides on the group by one call of its store. A look or a shadow of a state
// that others charge as well is asked alone, after them.
func (d *decision) chargeTogether(ctx context.Context) error {
	d.requests = d.arrays.requests[:0]
	for _, vote := range [...]bool{true, false} {
		for _, e := range d.group {
			if e.votes() == vote {
				e.request = d.requestOf(e)
			}
		}
	}
	replies := d.replies[:len(d.requests)]
	if err := d.group[0].core.joint.Decide(ctx, d.requests, replies); err != nil {
		return err
	}
	for i := range replies {
		d.denied = d.denied || !replies[i].OK() && d.requests[i].Votes()
	}
	for i := len(d.group) - 1; i >= 0; i-- {
		if e := d.group[i]; e.request >= 0 {
			d.read(e, &d.requests[e.request], replies[e.request])
		}
	}
	return nil
}

// requestOf is the place of e's request in requests. Entries on the same key of the same
// namespace share one. It is -1 if they differ in the limit or in what they ask, so that they
// must be decided one after the other.
func (d *decision) requestOf(e *entry) int {
	n := min(int64(e.n), beyond)
	for i := range d.requests {
		req := &d.requests[i]
		if !req.Namespace.Equal(e.core.namespace) || req.Key != e.key {
			continue
		}
		if req.Limit != e.limit || req.Op != store.OpTake || e.op() != store.OpTake {
			return -1
		}
		req.N = min(req.N+n, beyond)
		return i
	}
	d.requests = d.requests[:len(d.requests)+1]
	req := &d.requests[len(d.requests)-1]
	req.Namespace, req.Key, req.Limit, req.N, req.Op = e.core.namespace, e.key, e.limit, max(n, 1), e.op()
	return len(d.requests) - 1
}

// read makes e's result of the reply to its request. Entries with one request are read from
// the last to the first.
func (d *decision) read(e *entry, req *store.Request, reply store.Reply) {
	charged := req.N
	if d.denied || !reply.OK() || req.Looks() {
		charged = 0
	}
	e.core.result(e.result, req.Limit, reply, req.N, charged)
	e.result.n = min(e.result.n, int32(min(e.n, maxEvents)))
	// The entries before are told as if charged before: or else a Refund, which gives
	// back to each what is still charged, would find the same events twice. Where only the
	// tail is taken back, all of them are the tail.
	if charged > 0 && !e.core.rule.LastOnly {
		req.N -= int64(e.n)
	}
	e.decided, e.charged = true, charged > 0
}

// overdraw charges each entry. What it has charged is not given back.
func (d *decision) overdraw(ctx context.Context) (err error) {
	d.denied, d.watched = true, false // each tells its own
	for i := range d.entries {
		e := &d.entries[i]
		if *e.result, err = Charge(ctx, e.limiter, e.key, d.n); err != nil {
			return err
		}
		e.decided = true
		d.denied = d.denied && !e.result.Allowed
	}
	return nil
}

// giveBack refunds what was charged before an entry denied or failed.
func (d *decision) giveBack(ctx context.Context) {
	for i := len(d.entries) - 1; i >= 0; i-- {
		e := &d.entries[i]
		if !e.charged || e.result.uncounted() {
			continue
		}
		var err error
		if e.core != nil { // by the limit of the charge, without asking for it anew
			err = e.core.store.Refund(ctx, e.core.namespace, e.key, e.limit, e.result.receipt(int64(e.n)))
		} else {
			err = e.limiter.Refund(ctx, e.key, *e.result, e.n)
		}
		if err == nil {
			*e.result = e.result.without(e.n, e.n)
		}
	}
}

// result makes whole, which is zero, the whole of results.
func (d *decision) result(ctx context.Context, whole *Result) {
	if !d.denied && d.all != nil && d.all.pairs.result(d.results, d.n, whole) {
		return
	}
	source, worst, silent := SourceUnlimited, -1, uint16(0)
	whole.Allowed = !d.denied
	for i := range d.entries {
		e, p := &d.entries[i], &d.results[i]
		d.finish(ctx, e)
		if !e.votes() {
			silent |= 1 << i
			continue
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
	j := join(d.results)
	j.silent = silent
	if worst >= 0 {
		source, j.deniedBy = d.results[worst].source(), d.name(ctx, worst)
	}
	if !d.denied && d.how.what != peek {
		j.charged = d.n
	}
	if source == SourceUnlimited || source == SourceList && whole.Allowed { // as long as nothing is counted
		whole.least(j)
	}
	whole.sum(j)
	whole.mark = j.markOf(source)
}

// least gives r the least that its parts say. A Slowdown may have let through what a list denied.
func (r *Result) least(j *joined) {
	r.Limit, r.Remaining = maxEvents, maxEvents
	for i := range j.parts {
		if p := &j.parts[i]; j.speaks(i) {
			r.Limit, r.Remaining = min(r.Limit, p.Limit), min(r.Remaining, p.Remaining)
		}
	}
}

// finish gives e's result what is needed later.
func (d *decision) finish(ctx context.Context, e *entry) {
	switch {
	case e.core == nil:
		d.spread(ctx, e)
	case e.core.calls && d.all == nil: // for GiveBack; an All knows what was asked of all
		e.result.ofCall(e.core, e.asked, take)
	}
}

// spread gives e as many results as it has policies, so that [Result.Parts] are in their
// order. What was not asked, or has answered for several limits at once, has one.
func (d *decision) spread(ctx context.Context, e *entry) {
	if e.result.parts() != nil || see.Algorithm(e.limiter) != "" { // which is one limit, and has one policy
		return
	}
	policies, err := AppendPolicies(ctx, nil, e.limiter, e.key)
	if err != nil || len(policies) < 2 {
		return
	}
	j := &joined{parts: make([]Result, len(policies)), charged: e.result.Charged()}
	j.parts[0] = *e.result
	j.markOf(e.result.Source()).owner = spread
	*e.result = e.result.WithMark(&j.mark)
}

// spread owns the marks that decision.spread makes.
var spread = new(byte)

// unspread is r as the limiter has told it, which is to refund it.
func (r Result) unspread() Result {
	if r.mark != nil && r.mark.owner == spread {
		return r.mark.note.(*joined).parts[0]
	}
	return r
}

// weights says which source stands for several that admit: a store that did not answer
// outweighs one that did, and either a limit that needs none.
var weights = [...]uint8{
	SourceUnlimited: 0, SourceList: 1, SourceZeroRate: 2, SourceStore: 3, SourceLease: 3,
	SourceFailOpen: 4, SourceFailClosed: 4, SourceLocal: 4, SourceDenyCache: 4, SourceBan: 4,
}

// name is that of entry i.
func (d *decision) name(ctx context.Context, i int) string {
	e := &d.entries[i]
	if e.core != nil {
		return e.core.policyName
	}
	if name := e.result.DeniedBy(); name != "" {
		return name
	}
	if b, ok := see.First[*Ban](e.limiter); ok && e.result.source() == SourceBan { // its limits have not denied
		return b.(*Ban).denials.policyName
	}
	if policies, err := AppendPolicies(ctx, nil, e.limiter, e.key); err == nil && len(policies) > 0 {
		return policies[0].Name
	}
	return ""
}
