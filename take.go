package ratelimit

import (
	"context"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/store"
)

// operation is what a limiter is asked for.
type operation uint8

const (
	toTake operation = iota
	toTakeUpTo
	toPeek
	toCharge
	toTakeWithin // the store is asked to take, under a limit with a turn
)

// Peek implements [Limiter].
func (lim *limiter) Peek(ctx context.Context, key string) (res Result, err error) {
	err = lim.peek(ctx, key, &res)
	return res, err
}

// AllowUpTo admits as many of n events as fit: see [AllowUpTo].
func (lim *limiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r Result, err error) {
	err = lim.ask(ctx, key, n, asking{what: toTakeUpTo}, &r)
	if r.Allowed && (lim.calls || r.Source() == SourceUnlimited) {
		return n, r, err
	}
	return r.Charged(), r, err
}

// Charge implements [Charger].
func (lim *limiter) Charge(ctx context.Context, key string, n int) (res Result, err error) {
	err = lim.ask(ctx, key, n, asking{what: toCharge}, &res)
	return res, err
}

// take implements AllowN. It fills the caller's Result in place, because a Result is too large to return
// through several levels.
func (lim *limiter) take(ctx context.Context, key string, n int, res *Result) error {
	if !lim.quick || n < 1 || n > maxEvents || len(key) == 0 || len(key) > store.MaxKey || ctx.Err() != nil {
		return lim.takeWithOptions(ctx, key, n, asking{what: toTake}, res)
	}
	r, err := lim.store.Take(ctx, lim.namespace, key, lim.integers, int64(n))
	if err != nil {
		return err
	}
	charged := int64(0)
	if r.OK() {
		charged = int64(n)
	}
	lim.taken(res, r, int64(n), charged)
	return nil
}

// takeWithOptions is take for a limiter with options, and AllowWithin. It has to be fast too, because
// most services have an observer.
func (lim *limiter) takeWithOptions(ctx context.Context, key string, n int, how asking, res *Result) error {
	var since time.Time
	if lim.timed {
		since = time.Now()
	}
	key, err := lim.keyOf(ctx, key, n)
	events := lim.events(n)
	if err == nil {
		var l store.Limit
		if l, err = lim.limitOf(ctx, key); err == nil {
			if how.what == toTakeWithin {
				l = lim.limitWithin(l, how.d)
			}
			err = lim.takeBy(ctx, key, l, min(int64(events), beyond), res)
		}
	}
	lim.notify(ctx, key, events, res, err, since)
	if lim.calls {
		res.ofCall(lim, n, toTake)
	}
	return err
}

// events returns how many events a call for n charges.
func (lim *limiter) events(n int) int {
	if lim.calls {
		return min(n, 1)
	}
	return n
}

// takeBy is take under the limit l.
func (lim *limiter) takeBy(ctx context.Context, key string, l store.Limit, n int64, res *Result) error {
	if l.Rate <= 0 {
		res.withoutStore(l)
		return nil
	}
	var r store.Reply
	var err error
	if lim.takeLeaving == nil {
		r, err = lim.store.Take(ctx, lim.namespace, key, l, n)
	} else {
		n = min(n, beyond-lim.reserved)
		r, err = lim.takeLeaving(ctx, lim, key, l, n)
	}
	if err != nil {
		return err
	}
	charged := int64(0)
	if r.OK() {
		charged = n
	}
	lim.result(res, l, r, n+lim.reserved, charged)
	res.leave(int(lim.reserved))
	return nil
}

// takeLeaving takes n events, and leaves the reserved ones.
func takeLeaving(ctx context.Context, lim *limiter, key string, l store.Limit, n int64) (store.Reply, error) {
	return store.Decide(ctx, lim.store, store.Request{Namespace: lim.namespace, Key: key, Limit: l, N: n, Reserved: lim.reserved})
}

// peek implements Peek. Like take, it has a fast path.
func (lim *limiter) peek(ctx context.Context, key string, res *Result) error {
	if !lim.quick || len(key) == 0 || len(key) > store.MaxKey || ctx.Err() != nil {
		return lim.ask(ctx, key, 1, asking{what: toPeek}, res)
	}
	r, err := store.Peek(ctx, lim.store, lim.namespace, key, lim.integers, 1)
	if err != nil {
		return err
	}
	lim.taken(res, r, 1, 0)
	return nil
}

// ask implements Peek, AllowUpTo and Charge by a decision with one entry.
func (lim *limiter) ask(ctx context.Context, key string, n int, how asking, res *Result) error {
	d := begin(how, nil)
	defer d.end()
	d.add(member{core: lim}, key, n, false)
	err := lim.check(ctx, key, n)
	switch {
	case err != nil && d.watched:
		lim.notify(ctx, key, n, nil, err, d.since)
	case err == nil:
		if err = d.decide(ctx); err == nil {
			*res = d.parts[0].Result
		}
	}
	return err
}

// callOf is the note on the Result of a call for that many events that was charged as one event.
type callOf int

// ofCall turns r, the Result for one event, into the Result of a call for n events.
func (r *Result) ofCall(lim *limiter, n int, what operation) {
	switch {
	case what == toCharge && *r != (Result{}):
		r.Allowed, r.RetryAfter = true, 0
		*r = r.WithMark(NewMark(lim, SourceStore, callOf(math.MaxInt))) // more than any Refund gives back
	case n > 1 && r.Allowed:
		*r = r.WithMark(NewMark(lim, SourceStore, callOf(n)))
	}
}

// Refund implements [Limiter].
func (lim *limiter) Refund(ctx context.Context, key string, charged Result, n int) error {
	key, err := lim.keyOf(ctx, key, n)
	if err != nil {
		return err
	}
	if charged.Allowed && charged.uncounted() {
		return nil
	}
	l := lim.integers
	if lim.limitFunc != nil {
		if l, err = lim.read(lim.keptLimit(ctx, key)); err != nil {
			return err
		}
	}
	if lim.calls {
		under, note, _ := charged.Unmark(lim)
		if of, ok := note.(callOf); ok && n < int(of) { // not all events, so the call stays charged
			return nil
		}
		charged = under
	}
	if charged.n == 0 || charged.together() != nil {
		return errNothingCharged
	}
	receipt := lim.receipt(charged, int64(n))
	if l.Rate <= 0 { // 0 or unlimited for now: under the limit of the charge, the refund is not lost
		l = store.Limit{Rate: receipt.Rate, Period: receipt.Period, Burst: min(max(int64(charged.Limit)+lim.reserved, 1), maxEvents)}
		if lim.rule.Burst && !receipt.Overdrawn { // others may have been charged under a larger Burst since
			l.Burst = max(l.Burst, bucket.Most(l))
		}
	}
	return lim.store.Refund(ctx, lim.namespace, key, l, receipt)
}

// receipt returns the receipt of n of the events that lim admitted by charged. A limiter that reserves events
// leaves a bucket above its Burst only by a Charge.
func (lim *limiter) receipt(charged Result, n int64) store.Receipt {
	c := charged.receipt(n)
	if lim.reserved > 0 {
		c.Overdrawn = charged.rate < 0
	}
	return c
}

// Reset implements [Limiter].
func (lim *limiter) Reset(ctx context.Context, key string) error {
	key, err := lim.keyOf(ctx, key, 1)
	if err != nil {
		return err
	}
	return lim.store.Reset(ctx, lim.namespace, key)
}
