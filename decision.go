package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// decision is a call to one or more limits that is being decided:
//
//	run          decide, and then result, which joins the results of the entries
//	decide       askInTurn, and after a denial or an error giveBackInTime
//	askInTurn    decideGroup for each call to a store or to a limiter without a core, until one denies
//	decideGroup  askStore or askOther
//	askStore     requestOf for each entry, the call, and read for each reply
type decision struct {
	how       asking
	n         int  // events; in a Decide, the most that an entry other than a shadow asks for
	denied    bool // whether the whole call is denied
	all       *All // nil for a Decide or a single limiter
	entries   []entry
	parts     []Part // of the entries, in their order
	watched   bool   // whether an entry has observers
	prepared  bool   // whether prepareAll was called
	apart     bool   // whether each entry is decided alone, because the store cannot decide on several keys at present
	since     time.Time
	callCount int // calls to stores and other limiters so far

	// The current call to a store.
	group    []*entry
	requests []store.Request
	replies  [maxLimits]store.Reply

	arrays struct { // the memory of the slices above
		entries  [maxLimits]entry
		parts    [maxLimits]Part
		group    [maxLimits]*entry
		requests [maxLimits]store.Request
	}
}

// entry is one of the limits of a decision.
type entry struct {
	member
	key    string // the key asked for; with a core, prepare makes it the key that is counted
	n      int    // events
	asked  int    // events asked for; n differs if the core counts calls
	shadow bool
	gate   bool // a look whose denial denies the whole

	reserved     int64       // events that must remain
	result       *Result     // zero until decided
	limit        store.Limit // of the core
	decided      bool
	skipped      bool  // a shadow that has failed
	err          error // of the call that should have decided the entry
	chargedBy    int   // the number of the call that charged it, from 1; 0 if nothing is charged
	requestIndex int   // index in the decision's requests, while in the group; -1 if it is not asked with the group
}

// votes reports whether denying e denies the whole decision.
func (e *entry) votes() bool { return e.gate || e.n > 0 && !e.shadow }

// op returns the operation that a store is asked for e.
func (d *decision) op(e *entry) store.Op {
	switch {
	case e.gate && d.how.what != toPeek:
		return store.OpGate
	case e.n == 0 || d.how.what == toPeek || d.how.what == toCharge && e.core.calls: // a counted call was charged when it was admitted
		return store.OpLook
	case e.shadow:
		return store.OpShadow
	case d.how.what == toTakeUpTo:
		return store.OpUpTo
	case d.how.what == toCharge:
		return store.OpOverdraw
	}
	return store.OpTake
}

var decisions = sync.Pool{New: func() any { return new(decision) }}

// begin returns an empty decision. The caller must call end.
func begin(how asking, all *All) *decision {
	d := decisions.Get().(*decision)
	d.how, d.n, d.denied, d.all, d.watched, d.prepared, d.apart, d.callCount = how, 0, false, all, false, false, false, 0
	d.entries, d.parts = d.arrays.entries[:0], d.arrays.parts[:0]
	return d
}

// add adds an entry. Callers add at most maxLimits.
func (d *decision) add(p member, key string, n int, shadow bool) {
	i := len(d.entries)
	d.entries, d.parts = d.entries[:i+1], d.arrays.parts[:i+1]
	e := &d.entries[i]
	e.member, e.key, e.n, e.asked, e.shadow, e.result = p, key, p.events(n), n, shadow, &d.parts[i].Result
	d.parts[i].Limiter = p.limiter
	if p.core != nil {
		e.reserved = p.core.reserved
	}
	if !shadow {
		d.n = max(d.n, n)
	}
	if c := p.core; c != nil && c.observers != nil && d.how.what != toPeek && (d.how.what != toCharge || !c.calls) {
		if d.watched = true; c.timed && d.since.IsZero() {
			d.since = time.Now()
		}
	}
}

// addGate adds a look at key whose denial denies the whole decision.
func (d *decision) addGate(c *limiter, key string) {
	d.add(member{core: c}, key, 0, false)
	d.entries[len(d.entries)-1].gate = true
}

// behindGate makes res the result of the entries after the first one, which is a gate that has not
// denied. These entries are of an All or of a single limiter.
func (d *decision) behindGate(ctx context.Context, res *Result) {
	entries, parts := d.entries, d.parts
	defer func() { d.entries, d.parts = entries, parts }()
	d.entries, d.parts = entries[1:], parts[1:]
	d.fill(ctx, res)
}

// fill makes res the result of the entries, which are of an All or of a single limiter.
func (d *decision) fill(ctx context.Context, res *Result) {
	if d.all != nil {
		d.result(ctx, res)
		return
	}
	*res = d.parts[0].Result
}

// addAsk adds the limits of an Ask.
func (d *decision) addAsk(ctx context.Context, a *Ask) (err error) {
	var few [1]member // on the stack
	var members []member
	if core := coreOf(a.Limiter); core != nil {
		few[0] = member{a.Limiter, core}
		members, err = few[:], nil
	} else {
		members, err = membersOf(a.Limiter)
	}
	switch {
	case err != nil:
		return err
	case len(d.entries)+len(members) > maxLimits:
		return errAsks(len(d.entries) + len(members))
	}
	if err := a.check(ctx, a.Look); err != nil {
		return err
	}
	for i := range members {
		d.add(members[i], a.Key, a.N, a.Shadow)
		if e := &d.entries[len(d.entries)-1]; a.Reserved > 0 {
			if e.core == nil || e.core.rule.Held {
				return fmt.Errorf("%w: Ask.Reserved is %d, but a %T cannot reserve events", ErrInvalidOption, a.Reserved, e.limiter)
			}
			e.reserved = int64(a.Reserved)
		}
	}
	return nil
}

// end clears d, so that it keeps nothing alive, and returns it to the pool.
func (d *decision) end() {
	for i := range d.entries {
		d.entries[i] = entry{}
	}
	for i := range d.parts { // for two parts, a loop takes half the time of two calls to clear
		d.parts[i], d.arrays.requests[i] = Part{}, store.Request{}
	}
	d.all, d.since = nil, time.Time{}
	decisions.Put(d)
}

// run decides, and makes res the result.
func (d *decision) run(ctx context.Context, res *Result) error {
	err := d.decide(ctx)
	if err == nil {
		d.result(ctx, res)
	}
	return err
}

// decide decides on the entries. After a denial, an error or a panic, it refunds what is charged. A
// store charges all requests of one call or none, so only the charges of other calls are refunded.
func (d *decision) decide(ctx context.Context) error {
	returned := false
	defer func() {
		if !returned { // a user's function or a store has panicked
			d.giveBack(ctx)
		}
	}()
	err := d.askInTurn(ctx)
	returned = true
	if err != nil || d.denied {
		d.giveBackInTime(ctx)
	}
	d.conclude(ctx, err)
	return err
}

// conclude notifies the observers, and makes the results of limiters that count calls.
func (d *decision) conclude(ctx context.Context, err error) {
	if d.watched {
		d.notify(ctx)
	}
	if err == nil && d.all == nil && d.how.what != toPeek { // for a Refund; the Result of an All has the number of events
		for i := range d.entries {
			if e := &d.entries[i]; e.core != nil && e.core.calls && e.decided {
				e.result.ofCall(e.core, e.asked, d.how.what)
			}
		}
	}
}

// askInTurn asks the entries one group after the other, until one denies.
func (d *decision) askInTurn(ctx context.Context) error {
	if err := d.prepareAll(ctx); err != nil {
		return err
	}
	for _, vote := range [...]bool{true, false} { // voters first, so that no shadow takes the room of a limit on the same state
		for i := range d.entries {
			e := &d.entries[i]
			if e.decided || e.skipped || e.votes() != vote {
				continue
			}
			denied := d.denied
			if denied && d.how.what != toPeek {
				return nil
			}
			switch err := d.decideGroup(ctx, e); {
			case err == nil:
			case denied: // only a Peek asks after a denial, and it can do without this answer
				if err := ctx.Err(); err != nil {
					return err
				}
			default:
				return err
			}
		}
	}
	return nil
}

// takePlain decides if the limits are plain, by one call to their store, without an entry for each of
// them. The store charges all or none, so nothing has to be refunded. This is the common case of an
// All, and takes a third of the time.
func (a *All) takePlain(ctx context.Context, key string, n int, res *Result) error {
	d := decisions.Get().(*decision)
	requests, replies := d.arrays.requests[:len(a.members)], d.replies[:len(a.members)]
	for i := range a.members {
		c, r := a.members[i].core, &requests[i]
		r.Namespace, r.Key, r.Limit, r.N = c.namespace, key, c.integers, min(int64(a.members[i].events(n)), beyond)
	}
	err := a.members[0].core.joint.Decide(ctx, requests, replies)
	if err == nil {
		parts, denied := d.arrays.parts[:len(a.members)], false
		for i := range replies {
			denied = denied || !replies[i].OK()
		}
		for i := range replies {
			charged := requests[i].N
			if denied {
				charged = 0
			}
			a.members[i].core.taken(&parts[i].Result, replies[i], requests[i].N, charged)
		}
		if !a.pairs.describe(parts, n, res) {
			for i := range parts {
				parts[i].Limiter = a.members[i].limiter
			}
			j := join(parts, 1<<len(parts)-1)
			if !denied {
				j.charged = n
			}
			if i := res.ofParts(j, denied); i >= 0 {
				j.deniedBy = a.members[i].core.policyName
			}
		}
		for i := range parts {
			parts[i] = Part{}
		}
	}
	for i := range requests {
		requests[i] = store.Request{}
	}
	decisions.Put(d)
	return err
}

// skip skips e, which has failed, if it is a shadow, and reports whether it is.
func (d *decision) skip(e *entry) bool {
	e.skipped = e.shadow
	return e.shadow
}

// prepareAll prepares the entries, once, so that users' functions are called once.
func (d *decision) prepareAll(ctx context.Context) error {
	if d.prepared {
		return nil
	}
	d.prepared = true
	for i := range d.entries {
		e := &d.entries[i]
		if e.err = d.prepare(ctx, e); e.err != nil && !d.skip(e) {
			return e.err
		}
	}
	return nil
}

// prepare finds the key and the limit of an entry with a core, and decides the entry if that needs
// no store.
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
	if d.how.what == toTakeWithin {
		e.limit = e.core.limitWithin(e.limit, d.how.d)
	}
	if e.limit.Rate <= 0 {
		e.result.withoutStore(e.limit)
		e.decided = true
		d.denied = d.denied || e.limit.Rate == 0 && e.votes()
	}
	return nil
}

// notify notifies the observers of the entries that were asked.
func (d *decision) notify(ctx context.Context) {
	for i := range d.entries {
		if e := &d.entries[i]; e.core != nil && e.n > 0 && (e.decided || e.err != nil) {
			e.core.notify(ctx, e.key, e.n, e.result, e.err, d.since)
		}
	}
}

// giveBack refunds what was charged before an entry denied or failed, the last charge first, even if ctx has ended.
func (d *decision) giveBack(ctx context.Context) {
	for i := range d.chargeOrder().lastFirst(len(d.entries)) {
		if e := &d.entries[i]; e.chargedBy > 0 {
			e.giveBack(context.WithoutCancel(ctx))
		}
	}
}

// giveBackInTime is giveBack for a caller that waits only until ctx ends. The refunds, which have time of their own,
// then go on without it.
func (d *decision) giveBackInTime(ctx context.Context) {
	if !slices.ContainsFunc(d.entries, func(e entry) bool { return e.chargedBy > 0 }) {
		return
	}
	if ctx.Done() == nil {
		d.giveBack(ctx)
		return
	}
	later := begin(d.how, nil)
	later.entries, later.parts = append(later.entries, d.entries...), append(later.parts, d.parts...)
	for i := range later.entries {
		later.entries[i].result = &later.parts[i].Result
	}
	done := make(chan any, 1)
	go func() {
		defer func() { done <- recover() }() // if a limiter or a store panics, the caller does, unless it has left
		later.giveBack(ctx)
	}()
	select {
	case panicked := <-done:
		for i := range d.entries {
			*d.entries[i].result = later.parts[i].Result
		}
		later.end()
		if panicked != nil {
			panic(panicked)
		}
	case <-ctx.Done():
		for i := range d.entries {
			e := &d.entries[i]
			*e.result = e.result.without(e.n, e.n)
		}
	}
}

// chargeOrder returns by which call each entry was charged.
func (d *decision) chargeOrder() (o chargeOrder) {
	for i := range d.entries {
		o |= chargeOrder(max(d.entries[i].chargedBy-1, 0)) << (orderBits * i)
	}
	return o
}

func (e *entry) giveBack(ctx context.Context) {
	var err error
	if e.core != nil { // under the limit of the charge, without asking for it again
		err = e.core.store.Refund(ctx, e.core.namespace, e.key, e.limit, e.core.receipt(*e.result, int64(e.n)))
	} else {
		err = e.limiter.Refund(ctx, e.key, *e.result, e.n)
	}
	if err == nil {
		*e.result = e.result.without(e.n, e.n)
	}
}

// result makes whole, which is zero, the Result of the parts.
func (d *decision) result(ctx context.Context, whole *Result) {
	if d.all != nil && d.all.pairs.describe(d.parts, d.n, whole) {
		return
	}
	v := voters(0)
	for i := range d.entries {
		if e := &d.entries[i]; e.votes() && e.decided {
			v |= 1 << i
		}
	}
	j := join(d.parts, v)
	j.order = d.chargeOrder()
	if !d.denied && d.how.what != toPeek {
		j.charged = d.n
	}
	if i := whole.ofParts(j, d.denied); i >= 0 {
		j.deniedBy = d.name(ctx, i)
	}
}

// name returns the name of part i, which denies. A list, or a limiter of another package, may have a
// policy of its own.
func (d *decision) name(ctx context.Context, i int) string {
	p := &d.parts[i]
	if d.entries[i].core == nil && p.DeniedBy() == "" && p.Source() != SourceBan {
		if policies, err := AppendPolicies(ctx, nil, p.Limiter, d.entries[i].key); err == nil && len(policies) > 0 {
			return policies[0].Name
		}
	}
	return p.Name()
}
