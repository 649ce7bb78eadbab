package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// fault is a failed call, as the caller sees it.
type fault struct {
	class error  // one of package store's
	what  string // what is known besides err, or ""
	err   error  // the client's
	again bool   // nothing ran, and another attempt may succeed
	made  error  // what error returns

	sent bool  // the call may run: what it charges is given back if over is not nil
	over error // the error of the caller's context, when it was left
}

var (
	isFull   = ready(fault{class: store.ErrOverloaded, what: "nothing was sent", err: errQueued})
	isSilent = ready(fault{class: store.ErrUnavailable, what: "nothing was sent: all connections wait for a server that does not answer", err: errQueued})
	isFar    = ready(fault{class: store.ErrTimeout, what: "nothing was sent", err: errFar})
)

// ready returns f with its error made.
func ready(f fault) *fault {
	f.made = f.error()
	return &f
}

// queued returns the fault of a call that found no room.
func (v *server) queued() *fault {
	switch {
	case v.pulse.cause.Load() != nil:
		f := v.unconnected(errQueued)
		return &f
	case v.silent():
		return isSilent
	}
	return isFull
}

// error is the fault as the error of a call.
func (f *fault) error() error {
	if f.made != nil {
		return f.made
	}
	what := f.what
	if what != "" {
		what += ": "
	}
	if timeUp(f.err) {
		// It was not the caller's context that ended, so its errors must not show.
		return fmt.Errorf("%w: %s%v", f.class, what, f.err) //nolint:errorlint // on purpose
	}
	return fmt.Errorf("%w: %s%w", f.class, what, f.err)
}

// timeUp reports whether err is the end of a context.
func timeUp(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// timedOut reports whether err is a timeout, of a context or of a socket.
func timedOut(err error) bool {
	var n net.Error
	return timeUp(err) || errors.As(err, &n) && n.Timeout()
}

// refused reports whether code is the answer of a server that cannot work now and has
// changed nothing. READONLY and NOREPLICAS count too: a script gets them at its first
// write, so nothing is written before.
func refused(code string) bool {
	switch code {
	case "LOADING", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "BUSY", "MOVED", "ASK":
		return true
	}
	return false
}

// elsewhere reports whether err is the answer of a node of a cluster that another one has the key, or
// is to have it.
func elsewhere(err error) bool {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return false
	}
	switch codeOf(answer.Error()) {
	case "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY":
		return true
	}
	return false
}

// answered returns the fault of a server's answer.
func answered(err error, answer string) fault {
	switch code := codeOf(answer); {
	case refused(code), strings.Contains(answer, "max number of clients"):
		return fault{class: store.ErrUnavailable, err: err, again: true}
	case code == "MISCONF": // it cannot save to its disk, and so refuses writes
		return fault{class: store.ErrUnavailable, err: err}
	case code == "OOM":
		return fault{class: store.ErrOutOfMemory, err: err}
	case code == "WRONGTYPE", strings.Contains(answer, "ratelimit: the value of the key"):
		return fault{class: store.ErrCorrupt, err: err}
	case strings.Contains(answer, "ratelimit: the clocks of server and"):
		return fault{class: store.ErrClock, err: err}
	}
	return fault{class: store.ErrStore, err: err}
}

// codeOf returns the first word of an answer. For a command within a script, Redis before
// 7 puts a prefix before it: "ERR Error running script (call to f_…): @user_script:3: ".
// Some answers then have "@user_script: 3: " once more, and a minus.
func codeOf(answer string) string {
	answer = strings.TrimPrefix(answer, "ERR ")
	if strings.HasPrefix(answer, "Error running script") {
		_, answer, _ = strings.Cut(answer, "): ")
		for strings.HasPrefix(answer, "@user_script:") {
			_, answer, _ = strings.Cut(answer[len("@user_script:"):], ": ")
		}
		answer = strings.TrimPrefix(answer, "-")
	}
	code, _, _ := strings.Cut(answer, " ")
	return code
}

// unanswered returns the fault of a call that ended without a server's answer.
func (v *server) unanswered(err error, sent bool) fault {
	switch {
	case busy(err), !sent && (timeUp(err) || errors.Is(err, errUnmade)):
		return v.unconnected(err)
	case !sent && errors.Is(err, redis.ErrClosed):
		return fault{class: store.ErrUnavailable, what: "nothing was sent", err: err}
	case !sent, dialing(err), errors.Is(err, errRested):
		return fault{class: store.ErrUnavailable, what: "nothing was sent", err: err, again: true}
	}
	return v.unknown(err)
}

// unconnected returns the fault of a call that got no connection. One that had to wait has no time
// for another attempt.
func (v *server) unconnected(err error) fault {
	f := fault{class: store.ErrUnavailable, what: "nothing was sent", err: err, again: busy(err) && !errors.Is(err, errQueued)}
	full := busy(err) || timeUp(err) && v.full()
	switch cause := v.pulse.cause.Load(); {
	case cause != nil:
		f.what, f.err = f.what+": no connection was made", *cause
	case full && v.silent():
		f.what += ": all connections wait for a server that does not answer"
	case full:
		f.class = store.ErrOverloaded
		if timeUp(err) {
			f.what += ": no connection was free"
		}
	case timeUp(err):
		f.what += ": no connection was made"
	}
	return f
}

// unknown returns the fault of a call that was sent and has no answer.
func (v *server) unknown(err error) fault {
	what := fmt.Sprintf("no reply (timeout %v)", v.timeout)
	if unreadable(err) {
		what = "a reply that cannot be read"
	}
	return fault{class: store.ErrTimeout, err: err, what: what + ", the outcome is unknown"}
}

var errReply = errors.New("not the reply of a script of limiters")

// unreadable reports whether err is about a reply that is not of integers. The client has
// no type for such errors.
func unreadable(err error) bool {
	var number *strconv.NumError
	return errors.Is(err, errReply) || errors.As(err, &number) || strings.HasPrefix(err.Error(), "redis: can't parse")
}

// busy reports whether the client's own queue rejected the command.
func busy(err error) bool {
	return errors.Is(err, errQueued) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		errors.Is(err, redis.ErrAutoPipelineQueueFull) || errors.Is(err, redis.ErrAutoPipelineTimeout)
}

// dialing reports whether there was no connection to send on. An AutoPipeliner asks for a
// command's bytes before it has one.
func dialing(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
