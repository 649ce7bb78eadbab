package guard

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Fault is the reason why there is no decision.
type Fault int

// The faults.
const (
	Unavailable   Fault = iota // the store or another part of the limiter
	Unidentified               // the call has no key
	Misconfigured              // the configuration is wrong
)

// FaultOf returns why err was returned in place of a decision.
func (m *KeyMaker[C]) FaultOf(err error) Fault {
	switch {
	case errors.Is(err, m.None), errors.Is(err, m.Ambiguous), errors.Is(err, ratelimit.ErrInvalidKey):
		return Unidentified
	case errors.Is(err, ratelimit.ErrInvalidOption), errors.Is(err, ratelimit.ErrInvalidLimit), errors.Is(err, ratelimit.ErrInvalidN):
		return Misconfigured
	}
	return Unavailable
}

// Ended returns the error of a call's context if err only means that it has ended, or that its deadline has passed, even
// if its own timer is late. Otherwise, it returns nil.
func Ended(ctx context.Context, err error) error {
	if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// Alarm limits how often a recurring problem is logged, to once per minute.
type Alarm struct{ next atomic.Int64 } // in Unix seconds

// Due reports whether to log now. If it returns true, it is not due again for a minute.
func (a *Alarm) Due() bool {
	now, next := time.Now().Unix(), a.next.Load()
	due := now >= next || now < next-60 // the clock has stepped back
	return due && a.next.CompareAndSwap(next, now+60)
}
