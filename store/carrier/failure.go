package carrier

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/ratelimit-go/ratelimit/store"
)

// Failure is the error of a call without a reply. [errors.Is] finds its Class, and what Err wraps, unless Err is the end of
// a context: it was not the caller's context that ended.
type Failure struct {
	Class error  // one of package store's, which wraps [store.ErrStore]
	What  string // what is known besides Err, or ""
	Err   error  // the client's error, or the server's answer
	Again bool   // nothing ran, and another attempt may succeed

	sent     bool  // the caller left while the call was under way, so it may have run
	ctxError error // if sent: the error of the caller's context, if that made the caller leave
}

func (f *Failure) Error() string {
	if f.What == "" {
		return fmt.Sprintf("%v: %v", f.Class, f.Err)
	}
	return fmt.Sprintf("%v: %s: %v", f.Class, f.What, f.Err)
}

// Is reports whether target is the class of f, or wrapped by it.
func (f *Failure) Is(target error) bool { return errors.Is(f.Class, target) }

// Unwrap returns Err, unless that is the end of a context.
func (f *Failure) Unwrap() error {
	if contextEnded(f.Err) {
		return nil
	}
	return f.Err
}

// Meaning is what an error of [Config.Send] or [Config.Alone] means.
type Meaning uint8

// The meanings of an error.
const (
	// Unknown is an error of the connection. If the call was written, it may have run.
	Unknown Meaning = iota

	// Answered is an answer of the server. The connection works.
	Answered

	// Busy means that the client had no free connection. Nothing was sent.
	Busy

	// Unsent means that nothing was sent although Begin had returned true, because the connection had been closed before.
	Unsent

	// Closed means that the client was closed. Unless the call was written, nothing was sent.
	Closed
)

var (
	errFar         = errors.New("a round trip takes longer than the call has left")
	errQueued      = errors.New("no connection was free in time")
	errUnconnected = errors.New("no connection was made in time")
	errGivenUp     = errors.New("the call was to share a round trip with another call that ran out of time")
	errNoEnd       = errors.New("carrier: Send returned nil without ending the call")
	errPanic       = errors.New("carrier: Send or Means panicked")
	errDial        = errors.New("carrier: Dial panicked")
)

// ErrExit is what the callers of Do panic with if Send or Means has ended its goroutine, as [runtime.Goexit] does.
var ErrExit = errors.New("carrier: runtime.Goexit ended the goroutine of a round trip")

const unsentText = "nothing was sent"

var (
	failFull   = &Failure{Class: store.ErrOverloaded, What: unsentText, Err: errQueued}
	failSilent = &Failure{Class: store.ErrUnavailable, What: unsentText + ": all connections are waiting for a server that does not answer", Err: errQueued}
	failFar    = &Failure{Class: store.ErrTimeout, What: unsentText, Err: errFar}
)

// contextEnded reports whether err is the end of a context.
func contextEnded(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// timedOut reports whether err is a timeout, of a context or of a socket.
func timedOut(err error) bool {
	var n net.Error
	return contextEnded(err) || errors.As(err, &n) && n.Timeout()
}

// dialFailed reports whether err means that no connection could be made.
func dialFailed(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// answered reports whether err is nil, or a server's answer on a good connection.
func (cr *Carrier[C]) answered(err error) bool { return err == nil || cr.means(err) == Answered }

func (cr *Carrier[C]) means(err error) Meaning {
	switch err {
	case errPanic, errNoEnd, errQueued, errUnconnected, errGivenUp: //nolint:errorlint // one that is wrapped is another carrier's
		return Unknown
	}
	return cr.config.Means(err)
}

// Explain returns what Do returns for a call that ended in err and may have been sent: err itself if it is the server's
// answer, and a [*Failure] otherwise. Use it for calls that go to the server in another way.
func (cr *Carrier[C]) Explain(err error, sent bool) error {
	m := cr.means(err)
	if m == Answered {
		cr.pulse.beat()
		return err
	}
	cr.pulse.noteDial(err)
	switch {
	case m == Busy, !sent && (contextEnded(err) || errors.Is(err, errUnconnected)):
		return cr.unconnected(err, m == Busy)
	case !sent && m == Closed:
		return &Failure{Class: store.ErrUnavailable, What: unsentText, Err: err}
	case !sent, m == Unsent, dialFailed(err):
		return &Failure{Class: store.ErrUnavailable, What: unsentText, Err: err, Again: true}
	}
	what := fmt.Sprintf("no reply (timeout %v), so the outcome is unknown", cr.timeout)
	return &Failure{Class: store.ErrTimeout, What: what, Err: err}
}

// unconnected returns the failure of a call that got no connection. It is tried again only if the
// client was busy, which it said at once, so there is time.
func (cr *Carrier[C]) unconnected(err error, busy bool) *Failure {
	f := &Failure{Class: store.ErrUnavailable, What: unsentText, Err: err, Again: busy}
	full := busy || contextEnded(err) && cr.conns.taken()
	switch cause := cr.pulse.cause.Load(); {
	case cause != nil:
		f.What, f.Err = f.What+": no connection was made", *cause
	case full && cr.silent():
		f.What += ": all connections are waiting for a server that does not answer"
	case full:
		f.Class = store.ErrOverloaded
		if contextEnded(err) {
			f.What += ": no connection was free"
		}
	case contextEnded(err):
		f.What += ": no connection was made"
	}
	return f
}
