package lease

import (
	"context"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/batch"
	"github.com/ratelimit-go/ratelimit/store"
)

// line is a queue of claims on one set of keys under the same limits, in order of arrival. The
// store is asked for all of them together, in one call after the other. The shard of the first key
// protects it.
type line struct {
	lacks  []lack // of each claim, except for the numbers
	claims []batch.Claim
	busy   bool           // whether a goroutine serves it
	after  *line          // the next queue of the entry
	first  [1]batch.Claim // usually the only one
}

// isOf reports whether ln is for these keys, under these limits.
func (ln *line) isOf(lacks []lack) bool {
	return slices.EqualFunc(ln.lacks, lacks, func(a, b lack) bool { return a.entry == b.entry && a.limits == b.limits })
}

// claim waits in the queue of the keys in lacks. If its claim is all that the store would be asked
// for, the call asks the store itself, with its own context.
func (d *Store) claim(ctx context.Context, lacks []lack, replies []store.Reply) (all bool, err error) {
	c := batch.NewClaim(len(lacks), func(i int) int64 { return lacks[i].request.N })
	if ln := stand(lacks, c); ln != nil {
		switch f := d.next(ln, nil, false); {
		case f == nil: // c is answered
		case f.IsOf(c):
			d.askFor(ctx, ln, f)
		default:
			go d.askFor(context.Background(), ln, f) // not a caller's context, because the store has a timeout
		}
	}
	v, err := c.Wait(ctx, d.patience)
	for i := range v.Replies {
		replies[lacks[i].at] = v.Replies[i]
	}
	return v.OK, err
}

// stand appends c to its queue. If nothing serves the queue, it returns the queue, and the caller
// must serve it. While a lease of a single key is being fetched, its queue waits for that.
func stand(lacks []lack, c batch.Claim) *line {
	s, e := lacks[0].shard, lacks[0].entry
	s.mu.Lock()
	defer s.mu.Unlock()
	ln := e.lines
	for ln != nil && !ln.isOf(lacks) {
		ln = ln.after
	}
	if ln == nil {
		ln = &line{lacks: lacks, after: e.lines}
		ln.claims, e.lines = ln.first[:0], ln
	}
	ln.claims = batch.Add(ln.claims, c)
	if ln.busy || len(lacks) == 1 && e.fetching {
		return nil
	}
	ln.busy = true
	return ln
}

// wake serves the queues of e alone, which have waited for the call that fetched a lease of e. The
// caller holds the shard's lock.
func (d *Store) wake(e *entry) {
	for ln := e.lines; ln != nil; ln = ln.after {
		if len(ln.lacks) == 1 && !ln.busy {
			ln.busy = true
			go d.goOn(ln, nil)
		}
	}
}

// forget removes ln from the queues of e.
func (e *entry) forget(ln *line) {
	at := &e.lines
	for *at != ln {
		at = &(*at).after
	}
	*at = ln.after
}

// askFor asks the store for f and continues with the next call, even if the store ends the
// goroutine.
func (d *Store) askFor(ctx context.Context, ln *line, f *fetch) {
	var again []batch.Claim
	defer func() { d.goOn(ln, again) }()
	again = d.run(ctx, f)
}

// goOn asks the store for the claims that are left in ln, if any.
func (d *Store) goOn(ln *line, left []batch.Claim) {
	if f := d.next(ln, left, true); f != nil {
		go d.askFor(context.Background(), ln, f)
	}
}

// next returns the next call for ln: for the claims left over from the last call, and those that
// have arrived since. If some have waited, they are first answered with what is held by now. It
// returns nil if no claims are left, and the queue is then removed, or if they wait for a lease
// that is being fetched.
func (d *Store) next(ln *line, left []batch.Claim, waited bool) *fetch {
	s, e := ln.lacks[0].shard, ln.lacks[0].entry
	for wait := false; ; waited = true {
		s.mu.Lock()
		var claims []batch.Claim
		if wait && e.fetching {
			ln.claims, ln.busy = append(left, ln.claims...), false
			s.mu.Unlock()
			return nil
		}
		if claims, ln.claims = batch.Next(left, ln.claims); len(claims) == 0 {
			e.forget(ln)
		}
		s.mu.Unlock()
		if len(claims) == 0 {
			return nil
		}
		if waited {
			claims = d.answerHere(ln.lacks, claims)
		}
		if left = claims; len(left) > 0 {
			var f *fetch
			if f, wait = d.newFetch(ln.lacks, left); f != nil {
				return f
			}
		}
	}
}

// answerHere answers claims without the store, up to the first one that needs it. It returns that
// claim and those after it.
func (d *Store) answerHere(lacks []lack, claims []batch.Claim) []batch.Claim {
	if slices.ContainsFunc(lacks, lack.stale) {
		return claims
	}
	requests := make([]store.Request, len(lacks))
	for i := range lacks {
		requests[i] = lacks[i].request
	}
	for len(claims) > 0 {
		c, replies := claims[0], make([]store.Reply, len(lacks))
		for i := range requests {
			requests[i].N = c.N[i]
		}
		if lacking := d.decideHere(requests, replies); lacking != nil {
			d.putBack(requests, replies, lacking)
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
func (l lack) stale() bool {
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	return l.entry.limits != l.limits
}
