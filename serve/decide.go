package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// errUnavailable says that the store failed, and that the domain says no more about that.
var errUnavailable = errors.New("no decision: the store fails")

// decide asks the store, gives back what is to be given back, and says what is over its limit.
func (s *Service) decide(ctx context.Context, q *question) error {
	if len(q.asks) == 0 {
		return nil
	}
	a, cancel := s.asking(ctx, q)
	defer cancel()
	res, err := s.breaker.AllowN(a, "decision", 1)
	if err == nil && res.Source() == ratelimit.SourceFailClosed {
		s.metrics.failed(q)
		if q.domain.onFailure != failLocal {
			return q.fail(res)
		}
		res, err = s.askLocal(ctx, q)
	}
	if err != nil {
		return err
	}
	if err := q.results(ctx, res); err != nil {
		return err
	}
	q.judge()
	if s.denies(q) && !q.domain.each {
		return q.undo(ctx, res)
	}
	return q.credit(ctx)
}

// ask asks the limiters, and charges what is charged whatever is left.
func (q *question) ask(ctx context.Context) (r ratelimit.Result, err error) {
	if one := &q.asks[0]; len(q.asks) == 1 && one.N > 0 {
		r, err = one.Limiter.AllowN(ctx, one.Key, one.N)
	} else if r, err = ratelimit.Decide(ctx, q.asks...); err == nil && q.missing(r) {
		err = fmt.Errorf("%w: not each limit has decided", ratelimit.ErrStore)
	}
	for i := range q.parts {
		if p := &q.parts[i]; err == nil && p.overdraws && p.limiter != nil {
			if err = p.overdraw(ctx, r); !p.counts() {
				err = nil
			}
		}
	}
	if err != nil {
		return ratelimit.Result{}, err
	}
	return r, nil
}

// resultOf is the part's own decision, zero if it was not asked.
func (p *part) resultOf(whole ratelimit.Result) ratelimit.Result {
	if results := whole.Parts(); results != nil {
		return results[p.ask].Result
	}
	return whole
}

// overdraw charges n whatever is left, and whatever the whole is. The result is a denial if they did not fit.
func (p *part) overdraw(ctx context.Context, whole ratelimit.Result) (err error) {
	r := p.resultOf(whole)
	if r == (ratelimit.Result{}) || r.Allowed && !whole.Allowed { // another limit denies: nothing was charged
		r, err = p.limiter.AllowN(ctx, p.key, p.n)
	}
	if err == nil && !r.Allowed {
		if _, err = ratelimit.Charge(ctx, p.limiter, p.key, p.n); err == nil {
			r, err = p.limiter.Peek(ctx, p.key) // how long the debt lasts
			r.Allowed = false
		}
	}
	p.result = r
	return err
}

// askLocal asks this process, for its shares of the limits.
func (s *Service) askLocal(ctx context.Context, q *question) (ratelimit.Result, error) {
	q.local = true
	for i := range q.parts {
		p := &q.parts[i]
		if p.limiter == nil {
			continue
		}
		if err := p.becomeLocal(s.local, q.domain); err != nil {
			return ratelimit.Result{}, fmt.Errorf("%w: descriptor %d: %w", errUnavailable, i, err)
		}
		q.asks[p.ask].Limiter = p.limiter
	}
	return q.ask(ctx)
}

// becomeLocal makes the part that of a share of its limit, on local.
func (p *part) becomeLocal(local store.Store, d *domain) (err error) {
	if p.limit, err = d.share(p.limit, p.algorithm()); err != nil {
		return err
	}
	reserved := 0
	if p.rule != nil { // a share, rounded up while that leaves anything
		reserved = min((p.rule.reserved+d.instances-1)/d.instances, max(0, capacity(p.limit)-1))
	}
	p.shown = shownLimit(p.limit, reserved, p.shown.GetName())
	p.limiter, err = ratelimit.New(p.algorithm(), local, p.limit, ratelimit.WithName(nameOf(d)), ratelimit.WithReserved(reserved))
	return err
}

// missing reports whether a limit that has a say was asked as a shadow, and has failed as one.
func (q *question) missing(r ratelimit.Result) bool {
	if !r.Allowed {
		return false // or was not asked, since another one denies
	}
	parts := r.Parts()
	for i := range q.parts {
		if p := &q.parts[i]; p.limiter != nil && parts[p.ask].Result == (ratelimit.Result{}) && p.counts() {
			return true
		}
	}
	return false
}

// results gives each part its own result. One that was not asked, since another one denies, is
// looked at.
func (q *question) results(ctx context.Context, whole ratelimit.Result) error {
	for i := range q.parts {
		p := &q.parts[i]
		if p.limiter == nil || p.overdraws {
			continue
		}
		if p.result = p.resultOf(whole); p.result != (ratelimit.Result{}) {
			continue
		}
		r, err := p.limiter.Peek(ctx, p.key)
		if err != nil && p.counts() {
			return err
		}
		if p.n > 0 && !p.back {
			r.Allowed = r.Remaining >= p.n
		}
		p.result = r
	}
	return nil
}

// judge says what is over its limit: the whole if a limit is, but for shadows and quotas, or if
// all quotas are.
func (q *question) judge() {
	quotas, spent := 0, 0
	for i := range q.parts {
		p := &q.parts[i]
		p.over = p.decided() && !p.result.Allowed && !p.back
		switch {
		case !p.quota():
			q.over = q.over || p.told()
		case p.told():
			quotas, spent = quotas+1, spent+1
		case p.decided():
			quotas++
		}
	}
	q.over = q.over || quotas > 0 && quotas == spent
}

// undo gives back what was charged although the whole is denied: beside a look at a limit with
// nothing left, and of a request whose quotas are all spent.
func (q *question) undo(ctx context.Context, res ratelimit.Result) error {
	if !res.Allowed || res.Parts() == nil {
		return nil // nothing was charged
	}
	for i := range q.parts {
		if p := &q.parts[i]; p.overdraws && p.limiter != nil {
			q.asks[p.ask].N = 0 // which stay charged
		}
	}
	if err := ratelimit.GiveBack(ctx, res, q.asks...); err != nil && !errors.Is(err, ratelimit.ErrInvalidN) {
		return err
	}
	for i := range q.parts {
		if p := &q.parts[i]; p.limiter != nil && p.result.Allowed && q.asks[p.ask].N > 0 {
			p.result.Remaining = min(p.result.Remaining+p.n, p.result.Limit)
		}
	}
	return nil
}

// credit gives back what the request says, of a request that is admitted.
func (q *question) credit(ctx context.Context) error {
	for i := range q.parts {
		p := &q.parts[i]
		if !p.back || p.limiter == nil || p.n == 0 {
			continue
		}
		given, err := ratelimit.Credit(ctx, p.limiter, p.key, p.n)
		if err != nil && p.counts() {
			return err
		}
		p.n = given
		if p.result.Remaining > 0 || given == 0 {
			p.result.Remaining = min(p.result.Remaining+given, p.result.Limit)
		} else if r, err := p.limiter.Peek(ctx, p.key); err == nil { // it may owe more than that
			p.result = r
		}
	}
	return nil
}

// fail answers without any limit while the store fails.
func (q *question) fail(res ratelimit.Result) error {
	if q.domain.onFailure == failError {
		return errUnavailable
	}
	closed := q.domain.onFailure == failClosed
	for i := range q.parts {
		p := &q.parts[i]
		if p.limiter == nil {
			continue
		}
		p.over = !p.back && (closed || p.shown.GetRequestsPerUnit() == 0)
		q.over = q.over || p.told()
		p.result = ratelimit.Result{Allowed: !p.over, RetryAfter: res.RetryAfter}
		p.shown = nil // nothing is known of it
	}
	return nil
}

// wait is how long a part says to wait: when the same events would be admitted or, if they are,
// when the count begins anew.
func (p *part) wait() time.Duration {
	switch r := &p.result; {
	case p.over && r.RetryAfter == ratelimit.Never:
		return max(r.ResetAfter, p.limit.Period)
	case p.over:
		return r.RetryAfter
	default:
		return r.ResetAfter
	}
}

// worst is the part that clients should know of: the one that denies longest, or the one with
// the least left. It is nil if no part has a limit.
func (q *question) worst() *part {
	var worst *part
	for i := range q.parts {
		p := &q.parts[i]
		if p.shown == nil || p.limiter == nil || q.over && !p.told() {
			continue
		}
		if worst == nil || q.over && p.wait() > worst.wait() || !q.over && p.result.Remaining < worst.result.Remaining {
			worst = p
		}
	}
	return worst
}

// seconds are those of d, rounded up.
func seconds(d time.Duration) int64 {
	return int64(d/time.Second) + int64(min(d%time.Second, 1))
}
