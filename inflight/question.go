package inflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// question is a request for n events of a key, and for the slots that go with them.
type question struct {
	limiter     ratelimit.Limiter
	ctx         context.Context // with the caller's values, but without its end
	key         string
	n           int
	core        *ratelimit.Custom   // the limiter, if it is a bare limiter of slots
	coresBefore []*ratelimit.Custom // the limiters of slots in it when it was asked; nil if that cannot change
}

// check rejects a limiter that counts no slots.
func (q *question) check() error {
	err := checkLimiter(q.limiter)
	if err == nil {
		q.core, _ = q.limiter.(*ratelimit.Custom)
	}
	return err
}

// atHand reports whether the slots are in this process's memory, where no call waits.
func (q *question) atHand() bool {
	return q.core != nil && q.core.Limit().Period == forever
}

// answer is the answer of a limiter, or its panic.
type answer struct {
	r     ratelimit.Result
	err   error
	panic any
}

// ask asks on a separate goroutine.
func (q *question) ask() <-chan answer {
	answered := make(chan answer, 1)
	go func() {
		a := answer{panic: errors.New("inflight: the limiter called runtime.Goexit")}
		defer func() {
			if p := recover(); p != nil {
				a.panic = p
			}
			answered <- a
		}()
		a.r, a.err = q.limiter.AllowN(q.ctx, q.key, q.n)
		a.panic = nil
	}()
	return answered
}

// checkLimiter rejects limiters that count no slots, and those whose slots cannot be told apart.
func checkLimiter(l ratelimit.Limiter) error {
	if !see.Held(l) {
		return fmt.Errorf("%w: a %T counts no slots: use a limiter made by inflight.New, or an All that contains one", ratelimit.ErrInvalidOption, l)
	}
	for _, part := range several(l) {
		if several(part) != nil && see.Held(part) {
			return fmt.Errorf("%w: an All cannot contain a %T that wraps another All with slots: put all limits into one All", ratelimit.ErrInvalidOption, part)
		}
	}
	return nil
}

// around returns the one limiter that l wraps, or nil.
func around(l ratelimit.Limiter) ratelimit.Limiter {
	if _, bare := l.(*ratelimit.Custom); bare { // a fast path
		return nil
	}
	if w, ok := l.(interface{ Unwrap() ratelimit.Limiter }); ok {
		return w.Unwrap()
	}
	return nil
}

// innermost returns the decision of the innermost limiter, given that l answered r. A shadow inside may
// have changed it.
func innermost(l ratelimit.Limiter, r ratelimit.Result) ratelimit.Result {
	for ; l != nil; l = around(l) {
		r = innerOf(l, r)
	}
	return r
}

// innerOf returns the decision of the limiter inside a shadow l that answered r. It returns r if l is
// not a shadow.
func innerOf(l ratelimit.Limiter, r ratelimit.Result) ratelimit.Result {
	if _, bare := l.(*ratelimit.Custom); bare {
		return r
	}
	if w, ok := l.(interface {
		Inner(ratelimit.Result) ratelimit.Result
	}); ok {
		return w.Inner(r)
	}
	return r
}

// several returns the limits of an All, even inside a wrapper, or nil for a single limit.
func several(l ratelimit.Limiter) []ratelimit.Limiter {
	for ; l != nil; l = around(l) {
		if w, ok := l.(interface{ Unwrap() []ratelimit.Limiter }); ok {
			return w.Unwrap()
		}
	}
	return nil
}

// slotsIn returns the limiter of slots that l is or wraps.
func slotsIn(l ratelimit.Limiter) (*ratelimit.Custom, bool) {
	found, ok := see.First[*ratelimit.Custom](l)
	if !ok || !see.Held(found) {
		return nil, false
	}
	return found.(*ratelimit.Custom), true
}

// cores returns the limiters of slots in l. The result is not nil even if there are none.
func cores(l ratelimit.Limiter) []*ratelimit.Custom {
	limits, all := several(l), []*ratelimit.Custom{}
	if limits == nil {
		limits = []ratelimit.Limiter{l}
	}
	for _, limit := range limits {
		if core, ok := slotsIn(limit); ok {
			all = append(all, core)
		}
	}
	return all
}
