package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// errUnavailable means that the store failed, and that the domain's on_failure is error.
var errUnavailable = errors.New("no decision, because the store failed")

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

// quiet is the shortest time between two lines of the log about failures of the store.
const quiet = 10 * time.Second

// failed counts a failure of the store, and logs why, because the metrics have only its class.
func (s *Service) failed(q *question) {
	s.metrics.failed(q)
	now, next := int64(time.Since(s.joint.base)), s.nextLogged.Load()
	if q.cause != nil && now >= next && s.nextLogged.CompareAndSwap(next, now+int64(quiet)) {
		s.log.Warn("the store has failed, and on_failure decides; the next failures are logged after 10 s", "domain", q.domain.name, "error", q.cause)
	}
}

var errMissing = fmt.Errorf("%w: some limits have not decided", ratelimit.ErrStore)

// first returns the asks that are asked together.
func (q *question) first() []ratelimit.Ask { return q.asks[:q.together] }

// ask asks the limiters, and charges overdrafts. With errMissing, the Result has the decisions of the others.
func (q *question) ask(ctx context.Context) (r ratelimit.Result, err error) {
	asks := q.first()
	if one := &asks[0]; len(asks) == 1 && one.N > 0 {
		r, err = one.Limiter.AllowN(ctx, one.Key, one.N)
	} else if r, err = ratelimit.Decide(ctx, asks...); err == nil && q.missing(r) {
		return r, errMissing
	}
	for i := range q.parts {
		if p := &q.parts[i]; err == nil && p.overdraws && q.has(p) {
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
func (q *question) has(p *part) bool { return p.limiter != nil && p.ask < q.together }

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

// askLocal asks this process for its shares of the limits.
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

// becomeLocal changes the part to a share of its limit, on local.
func (p *part) becomeLocal(local store.Store, d *domain) (err error) {
	if p.limit, err = d.share(p.limit, p.algorithm()); err != nil {
		return err
	}
	reserved := 0
	if p.rule != nil { // a share, rounded up while that leaves anything
		reserved = min((p.rule.reserved+d.instances-1)/d.instances, max(0, capacity(p.limit)-1))
	}
	p.shown = shownLimit(p.limit, reserved, p.shown.GetName())
	p.limiter, err = ratelimit.New(p.algorithm(), local, p.limit, ratelimit.WithName(nameOf(d)), ratelimit.WithReserved(reserved), ratelimit.WithObserver(locally(p.observers)))
	return err
}

// locally are observers that are told that this process has decided in place of the store.
type locally []ratelimit.Observer

var inPlaceOfStore = ratelimit.NewMark(nil, ratelimit.SourceLocal, nil)

func (l locally) Decided(ctx context.Context, key string, n int, r ratelimit.Result, err error, took time.Duration) {
	for _, o := range l {
		o.Decided(ctx, key, n, r.WithMark(inPlaceOfStore), err, took)
	}
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
			p.result, failed = s.look(a, p)
		}
		switch {
		case failed == nil:
		case a.caller.Err() != nil:
			return failed
		default:
			p.result, p.shown = ratelimit.Result{Allowed: true}, nil
		}
	}
	return nil
}

// look returns what the part's limiter would answer alone.
func (s *Service) look(a *asking, p *part) (ratelimit.Result, error) {
	one := ratelimit.Ask{Limiter: p.limiter, Key: p.key, Look: true}
	r, err := s.alone(a, one)
	if err != nil || p.back || p.n <= 1 || r.Remaining >= p.n {
		return r, err
	}
	one.Reserved = p.n - 1 // a Look is for one event
	if p.rule != nil {
		one.Reserved = min(one.Reserved+p.rule.reserved, maxHits)
	}
	later, err := s.alone(a, one)
	if err == nil {
		r.Allowed, r.RetryAfter = later.Allowed, later.RetryAfter
	}
	return r, err
}

// alone asks one part apart from the others. While its server fails, that takes no time.
func (s *Service) alone(a *asking, one ratelimit.Ask, parts ...part) (r ratelimit.Result, err error) {
	one.Shadow = false // its failure is one
	q := &question{domain: a.q.domain, asks: []ratelimit.Ask{one}, together: 1, parts: parts}
	if a.q.local {
		r, err = q.ask(a)
	} else if r, err = s.aside.AllowN(&asking{a.Context, q, a.caller}, "decision", 1); err == nil && r.Source() == ratelimit.SourceFailClosed {
		err = errUnavailable
	}
	if parts := r.Parts(); parts != nil {
		r = parts[0].Result
	}
	return r, err
}

// askShadows asks the parts that are not asked together with the others. If that fails, nothing is known about them.
func (s *Service) askShadows(a *asking, denied bool) {
	for i := range a.q.parts {
		p := &a.q.parts[i]
		if p.limiter == nil || a.q.has(p) {
			continue
		}
		var err error
		switch {
		case p.overdraws: // whatever the others say
			only := []part{*p}
			only[0].ask = 0
			_, err = s.alone(a, a.q.asks[p.ask], only...)
			p.result = only[0].result
		case denied && !a.q.domain.each:
			p.result, err = s.look(a, p)
		default:
			p.result, err = s.alone(a, a.q.asks[p.ask])
		}
		if err != nil {
			p.limiter, p.shown = nil, nil
		}
		p.over = p.decided() && !p.result.Allowed && !p.back
	}
}

// judge determines which parts are over their limits. The whole is over if a part is that is neither
// a shadow nor a quota, or if all quotas are.
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

// undo refunds what was charged although the whole is denied, because a look at a limit found nothing
// left, or because all quotas of the request are spent. If that fails, the denial stands, and the events stay charged.
func (q *question) undo(ctx context.Context, res ratelimit.Result) {
	if !res.Allowed || res.Parts() == nil {
		return // nothing was charged
	}
	for i := range q.parts {
		if p := &q.parts[i]; p.overdraws && p.limiter != nil {
			q.asks[p.ask].N = 0 // these events stay charged
		}
	}
	if err := ratelimit.GiveBack(ctx, res, q.first()...); err != nil && !errors.Is(err, ratelimit.ErrInvalidN) {
		return
	}
	for i := range q.parts {
		if p := &q.parts[i]; p.limiter != nil && p.result.Allowed && q.asks[p.ask].N > 0 {
			p.result.Remaining = min(p.result.Remaining+p.n, p.result.Limit)
		}
	}
}

// credit refunds the events that an admitted request asks to refund.
func (q *question) credit(ctx context.Context) error {
	for i := range q.parts {
		p := &q.parts[i]
		if !p.back || p.limiter == nil || p.n == 0 {
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

// fail answers without asking any limit, while the store fails.
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
		p.shown = nil // nothing is known about it
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
		if p.shown == nil || p.limiter == nil || q.over && !p.told() {
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
