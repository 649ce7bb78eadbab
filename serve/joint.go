package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// asking is the context of a question to the store. It ends before the caller's context, so that
// on_failure can still decide.
type asking struct {
	context.Context
	q      *question
	caller context.Context
}

// asking reserves a fifth of the caller's time for the answer. A store in memory never waits.
func (s *Service) asking(ctx context.Context, q *question) (*asking, context.CancelFunc) {
	a := &asking{ctx, q, ctx}
	end, ends := ctx.Deadline()
	if _, inMemory := s.store.(*memstore.Store); inMemory || !ends {
		return a, func() {}
	}
	var cancel context.CancelFunc
	a.Context, cancel = context.WithDeadline(ctx, end.Add(-time.Until(end)/5))
	return a, cancel
}

// joint is the limiter that decides on the question in its context. The breaker wraps it.
type joint struct {
	serverOf func(key string) string // names the server of a key; nil if the store does not tell its servers apart
	base     time.Time

	late   atomic.Bool              // whether silent has an element
	mu     sync.Mutex               // protects silent
	silent map[string]time.Duration // since base: the first late call after the last answer of a server, which is "" if it is not known

	answered atomic.Bool // whether the store has answered at least once
}

func newJoint(st store.Store) *joint {
	j := &joint{base: time.Now(), silent: map[string]time.Duration{}}
	for {
		if st, tells := st.(interface{ ServerOf(key string) string }); tells {
			j.serverOf = st.ServerOf
			return j
		}
		cache, ok := st.(interface{ Unwrap() store.Store })
		if !ok {
			return j
		}
		st = cache.Unwrap()
	}
}

// limiter returns what the breaker wraps.
func (j *joint) limiter() ratelimit.Limiter {
	if j.serverOf == nil {
		return j
	}
	return apart{j}
}

// apart is a joint whose servers have breakers of their own.
type apart struct{ *joint }

// Servers calls add with each server that the question in ctx asks. Package fallback looks for it.
func (j apart) Servers(ctx context.Context, _ string, _ int, add func(server string)) {
	asks := ctx.(*asking).q.ofStore()
	for i := range asks {
		add(j.server(&asks[i]))
	}
}

// Heard calls add with each server that the question in ctx asks, and whether it had a part in r. Package
// fallback looks for it.
func (j apart) Heard(ctx context.Context, r ratelimit.Result, add func(server string, answered bool)) {
	asks := ctx.(*asking).q.ofStore()
	for i := range asks {
		add(j.server(&asks[i]), answered(r, i))
	}
}

// server returns the name of the server that one asks, or "" if it is not known.
func (j *joint) server(one *ratelimit.Ask) string {
	if j.serverOf == nil {
		return ""
	}
	return j.serverOf(one.Key)
}

// elsewhere reports whether all parts that count are on other servers than p is, and there are some.
func (j *joint) elsewhere(p *part, parts []part) (is bool) {
	if j.serverOf == nil {
		return false
	}
	for i := range parts {
		if other := &parts[i]; other.limiter != nil && other.counts() && !other.local && !other.out {
			if is = j.serverOf(other.key) != j.serverOf(p.key); !is {
				return false
			}
		}
	}
	return is
}

// answered reports whether r has a decision on ask i. It has none if another ask was denied before, or if the ask, which
// may not deny the others, has failed.
func answered(r ratelimit.Result, i int) bool {
	parts := r.Parts()
	return parts == nil || parts[i].Result != (ratelimit.Result{})
}

// leastSilence is how long a server must not have answered before late calls count as failures of the
// server. A shorter silence may be caused by a busy machine or by an impatient caller, and must not
// open the breaker for everyone.
const leastSilence = time.Second

var errLate = fmt.Errorf("%w: no reply within four fifths of the caller's time, so the outcome is unknown", store.ErrTimeout)

// ofServer is the error of a server. Package fallback asks which one it is.
type ofServer struct {
	error
	server string
}

func (o ofServer) Unwrap() error  { return o.error }
func (o ofServer) Server() string { return o.server }

func (j *joint) AllowN(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
	a := ctx.(*asking)
	if a.q.check { // the breaker learns nothing from a Result that is not of the store
		return ratelimit.Result{Allowed: true}.WithMark(inPlaceOfStore), nil
	}
	r, err := a.q.ask(a.Context)
	return j.heard(a, a.q.ofStore(), r, err)
}

func (j *joint) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return j.AllowN(ctx, key, 1)
}

// Peek asks each server once, for the breakers.
func (j *joint) Peek(ctx context.Context, _ string) (r ratelimit.Result, err error) {
	a := ctx.(*asking)
	var asked []string
	asks := a.q.ofStore()
	for i := range asks {
		one := &asks[i]
		server := j.server(one)
		if slices.Contains(asked, server) {
			continue
		}
		asked = append(asked, server)
		r, err = one.Limiter.Peek(a.Context, one.Key)
		if r, err = j.heard(a, asks[i:i+1], r, err); err != nil {
			break
		}
	}
	return r, err
}

// heard returns what the breakers get for an answer to asks.
func (j *joint) heard(a *asking, asks []ratelimit.Ask, r ratelimit.Result, err error) (ratelimit.Result, error) {
	a.q.cause = err
	switch late := err != nil && a.Err() != nil && a.caller.Err() == nil; {
	case err == nil:
		if s := r.Source(); s == ratelimit.SourceStore || s == ratelimit.SourceUnlimited { // SourceUnlimited comes from looks alone
			j.recordAnswers(asks, r)
			if !j.answered.Load() { // a load does not slow down other processors
				j.answered.Store(true)
			}
		}
	case late:
		a.q.cause = errLate
		if server, long := j.recordLate(missing(asks, r)); long {
			err = ofServer{errLate, server}
		} else {
			err = store.ErrOverloaded // the fallback answers it, but does not count it as a failure
		}
	case errors.Is(err, errMissing):
		err = ofServer{err, j.server(&missing(asks, r)[0])}
	}
	return r, err
}

// missing returns the first of asks that r has no decision on: it has failed, or has taken all the time. Without parts of
// r, any of asks may have.
func missing(asks []ratelimit.Ask, r ratelimit.Result) []ratelimit.Ask {
	for i := range asks {
		if !answered(r, i) {
			return asks[i : i+1]
		}
	}
	return asks
}

// recordAnswers records that the servers of r have answered.
func (j *joint) recordAnswers(asks []ratelimit.Ask, r ratelimit.Result) {
	if !j.late.Load() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range asks {
		if answered(r, i) {
			delete(j.silent, j.server(&asks[i]))
		}
	}
	j.late.Store(len(j.silent) > 0)
}

// recordLate records that the servers of asks have not answered in time. It returns the one that has been silent for the
// longest time, and whether that is too long.
func (j *joint) recordLate(asks []ratelimit.Ask) (longest string, long bool) {
	now := time.Since(j.base)
	first := now
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range asks {
		server := j.server(&asks[i])
		since, found := j.silent[server]
		if !found {
			j.silent[server] = now
		} else if since <= first {
			longest, first = server, since
		}
	}
	j.late.Store(true)
	return longest, now-first >= leastSilence
}

func (*joint) Refund(context.Context, string, ratelimit.Result, int) error {
	return ratelimit.ErrInvalidN
}

func (*joint) Reset(context.Context, string) error { return ratelimit.ErrInvalidOption }
