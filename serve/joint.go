package serve

import (
	"context"
	"fmt"
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
	if st, tells := st.(interface{ ServerOf(key string) string }); tells {
		j.serverOf = st.ServerOf
	}
	return j
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
	j.each(ctx.(*asking), add)
}

// each calls f with each server that a asks.
func (j *joint) each(a *asking, f func(server string)) {
	if j.serverOf == nil {
		f("")
		return
	}
	for i := range a.q.asks {
		f(j.serverOf(a.q.asks[i].Key))
	}
}

// silence is how long a server must not have answered before late calls count as failures of the
// server. A shorter silence may be caused by a busy machine or by an impatient caller, and must not
// open the breaker for everyone.
const silence = time.Second

var errLate = fmt.Errorf("%w: no reply within four fifths of the caller's time, so the outcome is unknown", store.ErrTimeout)

// lateServer is the errLate of a server. Package fallback asks which one it is.
type lateServer struct {
	error
	server string
}

func (l lateServer) Unwrap() error  { return l.error }
func (l lateServer) Server() string { return l.server }

func (j *joint) AllowN(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
	a := ctx.(*asking)
	r, err := a.q.ask(a.Context)
	return j.heard(a, r, err)
}

func (j *joint) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return j.AllowN(ctx, key, 1)
}

// Peek asks the store, for the breaker.
func (j *joint) Peek(ctx context.Context, _ string) (ratelimit.Result, error) {
	a := ctx.(*asking)
	one := &a.q.asks[0]
	r, err := one.Limiter.Peek(a.Context, one.Key)
	return j.heard(a, r, err)
}

// heard returns what the breaker gets for an answer.
func (j *joint) heard(a *asking, r ratelimit.Result, err error) (ratelimit.Result, error) {
	a.q.cause = err
	switch late := err != nil && a.Err() != nil && a.caller.Err() == nil; {
	case err == nil:
		if s := r.Source(); s == ratelimit.SourceStore || s == ratelimit.SourceUnlimited { // SourceUnlimited comes from looks alone
			j.speak(a)
			if !j.answered.Load() { // a load does not slow down other processors
				j.answered.Store(true)
			}
		}
	case late:
		a.q.cause = errLate
		if server, long := j.silence(a); long {
			err = lateServer{errLate, server}
		} else {
			err = store.ErrOverloaded // the fallback answers it, but does not count it as a failure
		}
	}
	return r, err
}

// speak records that the servers that a asks have answered.
func (j *joint) speak(a *asking) {
	if !j.late.Load() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.each(a, func(server string) { delete(j.silent, server) })
	j.late.Store(len(j.silent) > 0)
}

// silence records that the servers that a asks have not answered in time. It returns the one that has
// been silent for the longest time, and whether that is too long.
func (j *joint) silence(a *asking) (longest string, long bool) {
	now := time.Since(j.base)
	first := now
	j.mu.Lock()
	defer j.mu.Unlock()
	j.each(a, func(server string) {
		since, found := j.silent[server]
		if !found {
			j.silent[server] = now
		} else if since <= first {
			longest, first = server, since
		}
	})
	j.late.Store(true)
	return longest, now-first >= silence
}

func (*joint) Refund(context.Context, string, ratelimit.Result, int) error {
	return ratelimit.ErrInvalidN
}

func (*joint) Reset(context.Context, string) error { return ratelimit.ErrInvalidOption }
