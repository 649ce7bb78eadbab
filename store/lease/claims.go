package lease

import (
	"context"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/batch"
	"github.com/ratelimit-go/ratelimit/store"
)

// queue is a queue of claims on one set of keys under the same limits, in order of arrival. The
// store is asked for all of them together, in one call after the other. The shard of the first key
// protects it.
type queue struct {
	misses []miss // the misses of each claim, except for the numbers
	claims []batch.Claim
	busy   bool           // whether a goroutine serves it
	after  *queue         // the next queue of the entry
	first  [1]batch.Claim // usually the only one
}

// isOf reports whether q is for these keys, under these limits.
func (q *queue) isOf(misses []miss) bool {
	return slices.EqualFunc(q.misses, misses, func(a, b miss) bool { return a.entry == b.entry && a.limits == b.limits })
}

// claim waits in the queue of the keys in misses. If its claim is all that the store would be asked
// for, the call asks the store itself, with its own context.
func (d *Store) claim(ctx context.Context, misses []miss, replies []store.Reply) (all bool, err error) {
	c := batch.NewClaim(len(misses), func(i int) int64 { return misses[i].request.N })
	if q := enqueue(misses, c); q != nil {
		switch f := d.next(q, nil, false); {
		case f == nil: // c is answered
		case f.IsOf(c):
			d.askFor(ctx, q, f)
		default:
			go d.askFor(context.Background(), q, f) // not a caller's context, because the store has a timeout
		}
	}
	v, err := c.Wait(ctx, d.patience, misses[0].entry.key, &misses[0].entry.answered)
	for i := range v.Replies {
		replies[misses[i].at] = v.Replies[i]
	}
	return v.OK, err
}

// enqueue appends c to its queue. If nothing serves the queue, it returns the queue, and the caller
// must serve it. While a lease of a single key is being fetched, its queue waits for that.
func enqueue(misses []miss, c batch.Claim) *queue {
	s, e := misses[0].shard, misses[0].entry
	s.mu.Lock()
	defer s.mu.Unlock()
	q := e.queues
	for q != nil && !q.isOf(misses) {
		q = q.after
	}
	if q == nil {
		q = &queue{misses: misses, after: e.queues}
		q.claims, e.queues = q.first[:0], q
	}
	q.claims = batch.Add(q.claims, c)
	if q.busy || len(misses) == 1 && e.fetching {
		return nil
	}
	q.busy = true
	return q
}

// wake serves the queues of e alone, which have waited for the call that fetched a lease of e. The
// caller holds the shard's lock.
func (d *Store) wake(e *entry) {
	for q := e.queues; q != nil; q = q.after {
		if len(q.misses) == 1 && !q.busy {
			q.busy = true
			go d.proceed(q, nil)
		}
	}
}

// forget removes q from the queues of e.
func (e *entry) forget(q *queue) {
	at := &e.queues
	for *at != q {
		at = &(*at).after
	}
	*at = q.after
}

// askFor asks the store for f and continues with the next call, even if the store ends the
// goroutine.
func (d *Store) askFor(ctx context.Context, q *queue, f *fetch) {
	var again []batch.Claim
	defer func() { d.proceed(q, again) }()
	again = d.run(ctx, f)
}

// proceed asks the store for the claims that are left in q, if any.
func (d *Store) proceed(q *queue, left []batch.Claim) {
	if f := d.next(q, left, true); f != nil {
		go d.askFor(context.Background(), q, f)
	}
}

// next returns the next call for q: for the claims left over from the last call, and those that
// have arrived since. If some have waited, they are first answered with what is held by now. It
// returns nil if no claims are left, and the queue is then removed, or if they wait for a lease
// that is being fetched.
func (d *Store) next(q *queue, left []batch.Claim, waited bool) *fetch {
	s, e := q.misses[0].shard, q.misses[0].entry
	for wait := false; ; waited = true {
		s.mu.Lock()
		var claims []batch.Claim
		if wait && e.fetching {
			q.claims, q.busy = append(left, q.claims...), false
			s.mu.Unlock()
			return nil
		}
		if claims, q.claims = batch.Next(left, q.claims); len(claims) == 0 {
			e.forget(q)
		}
		s.mu.Unlock()
		if len(claims) == 0 {
			return nil
		}
		if waited {
			claims = d.answerHere(q.misses, claims)
		}
		if left = claims; len(left) > 0 {
			var f *fetch
			if f, wait = d.newFetch(q.misses, left); f != nil {
				return f
			}
			// Events for the first claim have arrived, or another call is fetching a lease. The next round answers the
			// claim, or returns, so that the claims wait for that call.
		}
	}
}

// answerHere answers claims without the store, up to the first one that needs it. It returns that
// claim and those after it.
func (d *Store) answerHere(misses []miss, claims []batch.Claim) []batch.Claim {
	if slices.ContainsFunc(misses, miss.stale) {
		return claims
	}
	requests := make([]store.Request, len(misses))
	for i := range misses {
		requests[i] = misses[i].request
	}
	for len(claims) > 0 {
		c, replies := claims[0], make([]store.Reply, len(misses))
		for i := range requests {
			requests[i].N = c.N[i]
		}
		if missed := d.decideHere(requests, replies); missed != nil {
			d.putBack(requests, replies, missed)
			break
		}
		all := store.AllOK(requests, replies)
		if !c.Answer(batch.Verdict{OK: all, Replies: replies}, nil) && all {
			d.putBack(requests, replies, nil)
		}
		claims = claims[1:]
	}
	return claims
}

// stale reports whether other calls now ask for the key under another limit.
func (m miss) stale() bool {
	m.shard.mu.Lock()
	defer m.shard.mu.Unlock()
	return m.entry.limits != m.limits
}
