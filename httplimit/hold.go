package httplimit

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"

	"github.com/felixge/httpsnoop"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/report"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// deferring is a limiter whose slots [handler.holding] gives back by a defer.
type deferring struct {
	see.Traits
	ratelimit.Limiter
}

// holding answers a request that holds a slot, and gives that back.
func (h *handler) holding(ctx context.Context, w http.ResponseWriter, r *http.Request, key string, t guard.Charge, d *report.Decision) {
	w, taken := watch(w, t.Slot)
	defer func() { // also when the handler panics, which goes on
		if taken == nil || !taken.Load() {
			t.Slot.Release()
			if !h.InContext && !h.CancelLost { // no handler has the slot
				h.spent.Put(t.Slot)
			}
		}
	}()
	if h.CancelLost {
		work, stop := guard.EndWith(ctx, t.Slot)
		defer stop()
		inner := r.WithContext(work)
		defer learn(r, inner)
		r = inner
	}
	h.answer(ctx, w, r, key, t, d)
}

// watch returns w with the same optional methods, and whether the connection was taken over, nil if it
// cannot be. That gives the slot back when it is closed.
func watch(w http.ResponseWriter, slot *inflight.Slot) (http.ResponseWriter, *atomic.Bool) {
	w, ok := hijackable(w)
	if !ok { // as in HTTP/2
		return w, nil
	}
	taken := new(atomic.Bool)
	return httpsnoop.Wrap(w, httpsnoop.Hooks{Hijack: func(do httpsnoop.HijackFunc) httpsnoop.HijackFunc {
		return func() (net.Conn, *bufio.ReadWriter, error) {
			c, buffer, err := do()
			if err != nil {
				return c, buffer, err
			}
			taken.Store(true)
			return newConn(c, slot), buffer, nil
		}
	}}), taken
}

// in is what an [http.ResponseController] finds inside of w, such as what takes the connection over.
func in[T any](w http.ResponseWriter) (found T, ok bool) {
	for !ok {
		wrapper, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !wraps {
			break
		}
		w = wrapper.Unwrap()
		found, ok = w.(T)
	}
	return found, ok
}

// hijackable returns w with the Hijack that an [http.ResponseController] of it finds, and whether there is one.
func hijackable(w http.ResponseWriter) (http.ResponseWriter, bool) {
	if _, ok := w.(http.Hijacker); ok {
		return w, true
	}
	inside, ok := in[http.Hijacker](w)
	if ok {
		w = reach(w, inside)
	}
	return w, ok
}

// reaching is a ResponseWriter with the Hijack of one inside of it, so that nobody gets past it to that.
type reaching struct {
	http.ResponseWriter
	http.Hijacker
}

// Unwrap is for an [http.ResponseController], which finds all else behind it.
func (r *reaching) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// reach returns w with the Hijack of inside, and with Flush if it has that.
func reach(w http.ResponseWriter, inside http.Hijacker) http.ResponseWriter {
	r := &reaching{w, inside}
	switch f := w.(type) {
	case flusher:
		return &struct {
			*reaching
			flusher
		}{r, f}
	case http.Flusher:
		return &struct {
			*reaching
			http.Flusher
		}{r, f}
	}
	return r
}

type flusher interface {
	http.Flusher
	FlushError() error
}

// conn is a connection that holds a slot until it is closed.
type conn struct {
	net.Conn
	slot *inflight.Slot
}

// newConn returns c with the slot, and with CloseWrite if it has that. One that is forgotten gives the
// slot back: no defer does.
func newConn(c net.Conn, slot *inflight.Slot) net.Conn {
	held := &conn{c, slot}
	runtime.AddCleanup(held, (*inflight.Slot).Release, slot)
	if half, ok := c.(halfCloser); ok {
		return &struct {
			*conn
			halfCloser
		}{held, half}
	}
	return held
}

type halfCloser interface{ CloseWrite() error }

// Close closes the connection, and gives back the slot.
func (c *conn) Close() error {
	c.slot.Release()
	return c.Conn.Close()
}

// NetConn returns the connection itself, as that of package tls does.
func (c *conn) NetConn() net.Conn { return c.Conn }

// ReadFrom is the connection's own, if it has one.
func (c *conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }
