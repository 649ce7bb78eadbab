package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// errUnavailable means that the store failed, and that nothing decides in its place.
var errUnavailable = errors.New("no decision, because the store failed")

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

// leaveOut takes the parts of servers whose breakers are open out of the question, if on_failure can decide on these
// alone, and reports whether others are left for the store.
func (s *Service) leaveOut(a *asking) bool {
	q := a.q
	if s.joint.serverOf == nil || q.stored < 2 || q.domain.onFailure != failOpen && q.domain.onFailure != failLocal {
		return false
	}
	failing := s.failing(a)
	if failing == nil || a.Err() != nil { // a probe may have taken all the time
		return false
	}
	for i := range q.parts {
		switch p := &q.parts[i]; {
		case p.limiter == nil || !failing[s.joint.serverOf(p.key)]:
		case p.limit.Rate == 0: // decided without the store
			p.local = true
		case q.domain.onFailure == failOpen:
			p.unknown()
		case p.becomeLocal(s.local, q.domain) != nil:
			return false
		}
	}
	q.gather(s.joint)
	return true
}

// failing returns which servers of the question have open breakers, or nil if none has, or all have.
func (s *Service) failing(a *asking) map[string]bool {
	failing := map[string]bool{}
	some, all := false, true
	for i, one := range a.q.ofStore() {
		server := s.joint.server(&one)
		if _, known := failing[server]; known { // its breaker may have changed meanwhile
			continue
		}
		check := &question{domain: a.q.domain, asks: a.q.asks[i : i+1], stored: 1, check: true}
		r, err := s.breaker.AllowN(&asking{a.Context, check, a.caller}, "decision", 1)
		is := err != nil || r.Source() == ratelimit.SourceFailClosed
		failing[server], some, all = is, some || is, all && is
	}
	if !some || all {
		return nil
	}
	return failing
}

// askLocal asks this process for its shares of the limits.
func (s *Service) askLocal(ctx context.Context, q *question) (ratelimit.Result, error) {
	for i := range q.parts {
		p := &q.parts[i]
		if p.limiter == nil || p.local {
			continue
		}
		if err := p.becomeLocal(s.local, q.domain); err != nil {
			return ratelimit.Result{}, fmt.Errorf("%w: descriptor %d: %w", errUnavailable, i, err)
		}
	}
	q.gather(s.joint)
	return q.ask(ctx)
}

// becomeLocal changes the part to a share of its limit, on local.
func (p *part) becomeLocal(local store.Store, d *domain) (err error) {
	share, err := d.share(p.limit, p.algorithm())
	if err != nil {
		return err
	}
	reserved := 0
	if p.rule != nil { // a share, rounded up while that leaves anything
		reserved = min((p.rule.reserved+d.instances-1)/d.instances, max(0, capacity(share)-1))
	}
	p.local, p.limit, p.shown, p.result = true, share, shownLimit(share, reserved, p.shown.GetName()), ratelimit.Result{}
	p.limiter, err = ratelimit.New(p.algorithm(), local, p.limit, ratelimit.WithName(nameOf(d)), ratelimit.WithReserved(reserved), ratelimit.WithObserver(locally(p.observers)))
	return err
}

// locally are observers of decisions that this process makes in place of the store.
type locally []ratelimit.Observer

var inPlaceOfStore = ratelimit.NewMark(nil, ratelimit.SourceLocal, nil)

func (l locally) Decided(ctx context.Context, key string, n int, r ratelimit.Result, err error, took time.Duration) {
	for _, o := range l {
		o.Decided(ctx, key, n, r.WithMark(inPlaceOfStore), err, took)
	}
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
		p.over = !p.back && (closed || p.limit.Rate == 0)
		q.over = q.over || p.denies()
		p.result = ratelimit.Result{Allowed: !p.over, RetryAfter: res.RetryAfter}
		p.shown = nil // nothing is known about it
	}
	return nil
}
