package ratelimit

import (
	"context"
	"errors"

	"github.com/ratelimit-go/ratelimit/internal/faults"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// decideGroup decides on first, and on the entries that its store can decide in the same call. If all
// of them are shadows, their failure is ignored.
func (d *decision) decideGroup(ctx context.Context, first *entry) (err error) {
	if d.callCount++; first.core == nil {
		d.group = append(d.arrays.group[:0], first)
		err = d.askOther(ctx, first)
	} else {
		d.groupFrom(first)
		err = d.askStore(ctx, first.core.store)
	}
	switch {
	case err == nil:
		return nil
	case len(d.group) > 1 && errors.Is(err, see.ErrApart):
		d.apart = true
		d.callCount-- // which has charged nothing, so that each entry can still have a call of its own
		return d.decideGroup(ctx, first)
	}
	needed := 0 // entries without which there is no decision
	for _, e := range d.group {
		if e.requestIndex >= 0 {
			e.err = err
		}
		if !d.skip(e) {
			needed++
		}
	}
	switch {
	case needed == 0:
		return ctx.Err()
	case needed < len(d.group) && faults.OfKey(err): // nothing was charged, and a shadow may have caused it
		for _, e := range d.group {
			if !e.shadow {
				e.err = nil
			}
		}
		return d.decideGroup(ctx, first)
	}
	return err
}

// groupFrom makes group the entry first and the entries that its store can decide in the same call.
func (d *decision) groupFrom(first *entry) {
	d.group = append(d.arrays.group[:0], first)
	if first.core.joint == nil || d.apart {
		return
	}
	for i := range d.entries {
		e := &d.entries[i]
		if e != first && !e.decided && !e.skipped && e.core != nil && e.core.joint == first.core.joint && first.core.joint.Together(first.key, e.key) {
			d.group = append(d.group, e)
		}
	}
}

// askOther asks a limiter without a core.
func (d *decision) askOther(ctx context.Context, e *entry) (err error) {
	if e.n == 0 {
		*e.result, err = e.limiter.Peek(ctx, e.key)
	} else {
		*e.result, err = d.how.ask(ctx, e.limiter, e.key, e.n)
	}
	e.decided = err == nil
	if e.decided && e.result.Allowed && e.n > 0 && d.how.what != toPeek {
		e.chargedBy = d.callCount
	}
	d.denied = d.denied || e.decided && e.votes() && !e.result.Allowed
	return err
}

// askStore decides on the group by one call to its store s. A look or a shadow on a state that other
// entries charge is asked alone, after them.
func (d *decision) askStore(ctx context.Context, s store.Store) error {
	d.requests = d.arrays.requests[:0]
	for _, vote := range [...]bool{true, false} {
		for _, e := range d.group {
			if e.votes() == vote {
				e.requestIndex = d.requestOf(e)
			}
		}
	}
	replies := d.replies[:len(d.requests)]
	var err error
	if r := &d.requests[0]; len(replies) == 1 && r.Op == store.OpTake && r.Reserved == 0 { // fast path
		replies[0], err = s.Take(ctx, r.Namespace, r.Key, r.Limit, r.N)
	} else {
		err = s.Decide(ctx, d.requests, replies)
	}
	if err != nil {
		return err
	}
	d.readAll(replies)
	return nil
}

// readAll makes the results of the group from the replies to its requests.
func (d *decision) readAll(replies []store.Reply) {
	for _, e := range d.group {
		if i := e.requestIndex; i >= 0 && !replies[i].OK() && (d.requests[i].Votes() || d.how.what == toPeek) {
			d.denied = true
		}
	}
	for i := len(d.group) - 1; i >= 0; i-- {
		if e := d.group[i]; e.requestIndex >= 0 {
			d.read(e, &d.requests[e.requestIndex], replies[e.requestIndex])
		}
	}
}

// requestOf returns the index of e's request in requests. Entries with the same key and namespace share
// a request. If they differ in the limit or in the operation, requestOf returns -1, and they must be
// decided one after the other.
func (d *decision) requestOf(e *entry) int {
	op, reserved := d.op(e), e.reserved
	if op == store.OpOverdraw {
		reserved = 0
	}
	n := min(int64(e.n), beyond-reserved)
	for i := range d.requests {
		req := &d.requests[i]
		if !req.Namespace.Equal(e.core.namespace) || req.Key != e.key {
			continue
		}
		switch {
		case req.Limit != e.limit || req.Op != op || req.Reserved != reserved:
			return -1
		case op != store.OpTake && d.how.what != toPeek:
			return -1
		}
		req.N = min(req.N+n, beyond-reserved)
		return i
	}
	if d.how.what == toPeek {
		n += d.before(e)
	}
	d.requests = d.requests[:len(d.requests)+1]
	req := &d.requests[len(d.requests)-1]
	req.Namespace, req.Key, req.Limit, req.N, req.Op = e.core.namespace, e.key, e.limit, max(n, 1), op
	req.Reserved = reserved
	if op == store.OpOverdraw {
		req.Most = mostOf(e.core.rule, e.limit)
		req.N = min(req.N, req.Most)
	}
	return len(d.requests) - 1
}

// before returns how many events the entries decided before e would have charged to e's state.
func (d *decision) before(e *entry) (events int64) {
	for i := range d.entries {
		other := &d.entries[i]
		if other.decided && other.core != nil && other.limit.Rate > 0 && other.key == e.key && other.core.sameSpace(e.core) {
			events += int64(other.n)
		}
	}
	return events
}

// read makes e's result from the reply to its request. Entries that share a request are read from the
// last to the first.
func (d *decision) read(e *entry, req *store.Request, reply store.Reply) {
	e.decided = true
	switch req.Op {
	case store.OpOverdraw:
		e.core.overdrawn(e.result, req, reply)
		e.result.leaveDebt(int(e.reserved))
		return
	case store.OpUpTo:
		req.N = max(1, min(req.N, reply.Available(e.core.rule, req.Limit)-req.Reserved))
	}
	charged := req.N
	if d.denied || !reply.OK() || req.Looks() {
		charged = 0
	}
	e.core.result(e.result, req.Limit, reply, req.N+req.Reserved, charged)
	e.result.leave(int(e.reserved))
	e.result.n = min(e.result.n, int32(min(e.n, maxEvents)))
	// The receipts of earlier entries on the same state do not include this charge. Otherwise, a
	// Refund of each entry, which refunds what is still charged, would find the same events twice.
	// If only the tail can be refunded, all of the entries together are the tail.
	if charged > 0 && !e.core.rule.LastOnly {
		req.N -= int64(e.n)
	}
	if charged > 0 {
		e.chargedBy = d.callCount
	}
}

// appendRequests appends the requests of d to those of list, as an alternative. It returns false if one call cannot decide
// on all of them.
func (d *decision) appendRequests(ctx context.Context, list *decision) (together bool, err error) {
	d.group, d.requests = d.arrays.group[:0], d.arrays.requests[:0]
	if err := d.prepareAll(ctx); err != nil {
		return false, err
	}
	if d.denied { // by a Rate of 0
		return true, nil
	}
	for i := range d.entries {
		e := &d.entries[i]
		if e.decided {
			continue
		}
		if e.requestIndex = d.requestOf(e); e.requestIndex < 0 {
			return false, nil
		}
		d.group = append(d.group, e)
	}
	for i := range d.requests {
		r := d.requests[i]
		r.Else = i == 0
		if list.requests = append(list.requests, r); !d.group[0].core.joint.Together(list.requests[0].Key, r.Key) {
			return false, nil
		}
	}
	return true, nil
}
