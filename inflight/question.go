package inflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// question is one for n events of a key, and for the slots that go with them.
type question struct {
	limiter ratelimit.Limiter
	ctx     context.Context // has the caller's values, and no end
	key     string
	n       int
	core    *ratelimit.Custom   // limiter, if that is nothing else and has slots
	before  []*ratelimit.Custom // what it had of slots when it was asked; nil if that cannot change
}

// check refuses a limiter without slots.
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

// answer is that of a limiter, or its panic.
type answer struct {
	r     ratelimit.Result
	err   error
	panic any
}

// ask asks on a goroutine of its own.
func (q *question) ask() <-chan answer {
	answered := make(chan answer, 1)
	go func() {
		a := answer{panic: errors.New("inflight: the limiter has ended its goroutine")}
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

// Has reports whether l counts slots, so that [Hold] can hold one: it is a limiter of [New], or
// has one inside.
func Has(l ratelimit.Limiter) bool { return see.Held(l) }

// checkLimiter refuses what has no slots, or has them where they cannot be told apart.
func checkLimiter(l ratelimit.Limiter) error {
	if !see.Held(l) {
		return fmt.Errorf("%w: a %T has no slots: they are those of inflight.New", ratelimit.ErrInvalidOption, l)
	}
	for _, part := range several(l) {
		if several(part) != nil && see.Held(part) {
			return fmt.Errorf("%w: an All around a %T around an All that has slots", ratelimit.ErrInvalidOption, part)
		}
	}
	return nil
}

// around returns the one limiter that l is around, or nil.
func around(l ratelimit.Limiter) ratelimit.Limiter {
	if _, bare := l.(*ratelimit.Custom); bare { // which is quick to see
		return nil
	}
	if w, ok := l.(interface{ Unwrap() ratelimit.Limiter }); ok {
		return w.Unwrap()
	}
	return nil
}

// innermost is what the limiter inside of l, of which a shadow may be a part, has decided where l
// has answered r.
func innermost(l ratelimit.Limiter, r ratelimit.Result) ratelimit.Result {
	for ; l != nil; l = around(l) {
		r = innerOf(l, r)
	}
	return r
}

// innerOf is what a shadow l has decided where it has answered r. It is r if l is none.
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

// several are the limits of an All, also inside a wrapper, and nil of a single limit.
func several(l ratelimit.Limiter) []ratelimit.Limiter {
	for ; l != nil; l = around(l) {
		if w, ok := l.(interface{ Unwrap() []ratelimit.Limiter }); ok {
			return w.Unwrap()
		}
	}
	return nil
}

// slotsIn returns the limiter of slots that l is, or is around.
func slotsIn(l ratelimit.Limiter) (*ratelimit.Custom, bool) {
	found, ok := see.First[*ratelimit.Custom](l)
	if !ok || !see.Held(found) {
		return nil, false
	}
	return found.(*ratelimit.Custom), true
}

// cores are the limiters of slots in l. They are not nil if there are none.
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
