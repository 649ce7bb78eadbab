package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// decide asks the store, refunds what is to be refunded, and determines what is over its limit.
func (s *Service) decide(ctx context.Context, q *question) error {
	if len(q.asks) == 0 {
		return nil
	}
	a, cancel := s.asking(ctx, q)
	defer cancel()
	res, err := s.breaker.AllowN(a, "decision", 1)
	if err == nil && res.Source() == ratelimit.SourceFailClosed {
		s.failed(q)
		if s.leaveOut(a) {
			res, err = s.breaker.AllowN(a, "decision", 1)
		}
	}
	if err == nil && res.Source() == ratelimit.SourceFailClosed {
		if q.domain.onFailure != failLocal {
			return q.fail(res)
		}
		a.Context = ctx // memory never waits
		res, err = s.askLocal(ctx, q)
	}
	if err != nil {
		return err
	}
	if err := s.results(a, res); err != nil {
		return err
	}
	q.judge()
	denied := s.denies(q)
	if denied && !q.domain.each {
		q.undo(ctx, res)
	}
	s.askShadows(a, denied)
	if denied && !q.domain.each {
		return nil
	}
	if err := q.credit(ctx); !denied { // a denial stands even if a refund fails
		return err
	}
	return nil
}

var errMissing = fmt.Errorf("%w: some limits have not decided", ratelimit.ErrStore)

// first returns the asks that are asked together.
func (q *question) first() []ratelimit.Ask { return q.asks[:q.together] }

// ofStore returns those of them that the store decides.
func (q *question) ofStore() []ratelimit.Ask { return q.asks[:q.stored] }

// ask asks the limiters, and charges overdrafts. With errMissing, the Result has the decisions of the others.
func (q *question) ask(ctx context.Context) (r ratelimit.Result, err error) {
	asks := q.first()
	if one := &asks[0]; len(asks) == 1 && one.N > 0 {
		r, err = one.Limiter.AllowN(ctx, one.Key, one.N)
	} else if r, err = ratelimit.Decide(ctx, asks...); err == nil && q.missing(r) {
		_ = ratelimit.GiveBack(ctx, r, asks...) // on_failure may ask the others again
		return r, errMissing
	}
	for i := range q.parts {
		p := &q.parts[i]
		if charged := p.result != (ratelimit.Result{}); err == nil && p.overdraws && q.has(p) && !charged { // or else before a failure
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

// has reports whether the part is asked together with the others.
func (q *question) has(p *part) bool { return p.limiter != nil && !p.out && p.ask < q.together }

// resultOf returns the part's own decision, or the zero Result if it was not asked.
func (p *part) resultOf(whole ratelimit.Result) ratelimit.Result {
	if results := whole.Parts(); results != nil {
		return results[p.ask].Result
	}
	return whole
}

// overdraw charges n even beyond the limit, and whatever the whole decision is. The result is a
// denial if n did not fit.
func (p *part) overdraw(ctx context.Context, whole ratelimit.Result) (err error) {
	r := p.resultOf(whole)
	if r == (ratelimit.Result{}) || r.Allowed && !whole.Allowed { // another limit denies: nothing was charged
		r, err = p.limiter.AllowN(ctx, p.key, p.n)
	}
	if err == nil && !r.Allowed {
		if _, err = ratelimit.Charge(ctx, p.limiter, p.key, p.n); err == nil {
			r, err = p.limiter.Peek(ctx, p.key) // to find out how long the debt lasts
			r.Allowed = false
		}
	}
	p.result = r
	return err
}

// missing reports whether a limit that counts for the decision was asked as a shadow and failed.
func (q *question) missing(r ratelimit.Result) bool {
	if !r.Allowed {
		return false // the limit may not have been asked, because another limit denies
	}
	parts := r.Parts()
	for i := range q.parts {
		if p := &q.parts[i]; q.has(p) && parts[p.ask].Result == (ratelimit.Result{}) && p.counts() {
			return true
		}
	}
	return false
}

// results gives each part that was asked together with the others its own result. A part that was not asked, because
// another one denies, is looked at. If that fails, the denial stands, and nothing is known about this part and later
// ones, so that the caller waits for a store that hangs only once.
func (s *Service) results(a *asking, whole ratelimit.Result) error {
	var failed error
	for i := range a.q.parts {
		p := &a.q.parts[i]
		if !a.q.has(p) || p.overdraws {
			continue
		}
		if p.result = p.resultOf(whole); p.result != (ratelimit.Result{}) {
			continue
		}
		if failed == nil {
			p.result, failed = s.peek(a, p)
		}
		switch {
		case failed == nil:
		case a.caller.Err() != nil:
			return failed
		default:
			p.unknown()
		}
	}
	return nil
}

// peek returns what the part's limiter would answer alone.
func (s *Service) peek(a *asking, p *part) (ratelimit.Result, error) {
	one := ratelimit.Ask{Limiter: p.limiter, Key: p.key, Look: true}
	r, err := s.alone(a, p, one)
	if err != nil || p.back || p.n <= 1 || r.Remaining >= p.n {
		return r, err
	}
	one.Reserved = p.n - 1 // a Look is for one event
	if p.rule != nil {
		one.Reserved = min(one.Reserved+p.rule.reserved, maxHits)
	}
	later, err := s.alone(a, p, one)
	if err == nil {
		r.Allowed, r.RetryAfter = later.Allowed, later.RetryAfter
	}
	return r, err
}

// alone asks one part apart from the others. While its server fails, that takes no time.
func (s *Service) alone(a *asking, p *part, one ratelimit.Ask) (r ratelimit.Result, err error) {
	one.Shadow = false // its failure is one
	q := &question{domain: a.q.domain, asks: []ratelimit.Ask{one}, stored: 1, together: 1}
	if p.overdraws {
		q.parts = []part{*p}
		q.parts[0].ask = 0
	}
	if p.local {
		r, err = q.ask(a)
	} else if r, err = s.aside.AllowN(&asking{a.Context, q, a.caller}, "decision", 1); err == nil && r.Source() == ratelimit.SourceFailClosed {
		err = errUnavailable
	}
	if parts := r.Parts(); parts != nil {
		r = parts[0].Result
	}
	if p.overdraws && err == nil {
		r = q.parts[0].result
	}
	return r, err
}

// askShadows asks the parts that are not asked together with the others. If that fails, nothing is known about them.
func (s *Service) askShadows(a *asking, denied bool) {
	for i := range a.q.parts {
		p := &a.q.parts[i]
		if p.limiter == nil || p.out || a.q.has(p) {
			continue
		}
		var err error
		if denied && !a.q.domain.each && !p.overdraws { // which are charged whatever the others say
			p.result, err = s.peek(a, p)
		} else {
			p.result, err = s.alone(a, p, a.q.asks[p.ask])
		}
		if err != nil {
			p.unknown()
		}
		p.judge()
	}
}

// unknown admits the part without asking its limit, because its server fails.
func (p *part) unknown() { p.result, p.shown, p.out = ratelimit.Result{Allowed: true}, nil, true }

// judge determines whether the part is over its limit.
func (p *part) judge() { p.over = p.decided() && !p.result.Allowed && !p.back }

// judge determines which parts are over their limits. The whole is over if a part is that is neither
// a shadow nor a quota, or if all quotas are.
func (q *question) judge() {
	quotas, spent := 0, 0
	for i := range q.parts {
		p := &q.parts[i]
		p.judge()
		switch {
		case !p.quota():
			q.over = q.over || p.denies()
		case p.denies():
			quotas, spent = quotas+1, spent+1
		case p.decided():
			quotas++
		}
	}
	q.over = q.over || quotas > 0 && quotas == spent
}

// undo refunds what was charged although the whole is denied, because a look at a limit found nothing
// left, or because all quotas of the request are spent. If that fails, the denial stands, and the events stay charged.
func (q *question) undo(ctx context.Context, res ratelimit.Result) {
	if !res.Allowed || res.Parts() == nil {
		return // nothing was charged
	}
	for i := range q.parts {
		if p := &q.parts[i]; p.overdraws && q.has(p) {
			q.asks[p.ask].N = 0 // these events stay charged
		}
	}
	if err := ratelimit.GiveBack(ctx, res, q.first()...); err != nil && !errors.Is(err, ratelimit.ErrInvalidN) {
		return
	}
	for i := range q.parts {
		if p := &q.parts[i]; q.has(p) && p.result.Allowed && q.asks[p.ask].N > 0 {
			p.result.Remaining = min(p.result.Remaining+p.n, p.result.Limit)
		}
	}
}

// credit refunds the events that an admitted request asks to refund.
func (q *question) credit(ctx context.Context) error {
	for i := range q.parts {
		p := &q.parts[i]
		if !p.back || p.limiter == nil || p.out || p.n == 0 {
			continue
		}
		given, err := ratelimit.Credit(ctx, p.limiter, p.key, p.n)
		p.n = given
		if err != nil && p.counts() {
			return err
		}
		if p.result.Remaining > 0 || given == 0 {
			p.result.Remaining = min(p.result.Remaining+given, p.result.Limit)
		} else if r, err := p.limiter.Peek(ctx, p.key); err == nil { // the key may owe more than was refunded
			p.result = r
		}
	}
	return nil
}

// wait returns how long a part tells callers to wait: until the same events would be admitted or,
// if they are admitted, until the count begins anew.
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

// worst returns the part to report to clients: the one that denies longest, or the one with the
// fewest events left. It is nil if no part has a limit.
func (q *question) worst() *part {
	var worst *part
	for i := range q.parts {
		p := &q.parts[i]
		if p.shown == nil || p.limiter == nil || q.over && !p.denies() {
			continue
		}
		if worst == nil || q.over && p.result.RetryAfter > worst.result.RetryAfter || !q.over && p.result.Remaining < worst.result.Remaining {
			worst = p
		}
	}
	return worst
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 {
	return int64(d/time.Second) + int64(min(d%time.Second, 1))
}
