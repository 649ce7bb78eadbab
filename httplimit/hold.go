package httplimit

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/felixge/httpsnoop"

	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// holding answers a request that holds a slot, and gives that back.
func (h *handler) holding(ctx context.Context, w http.ResponseWriter, r *http.Request, key string, t taken, d *report.Decision) {
	s := &stay{slot: t.slot}
	defer s.end() // also when the handler panics, which goes on
	if h.cancelLost {
		work, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		of := t.slot.Context()
		defer context.AfterFunc(of, func() { cancel(context.Cause(of)) })()
		r = r.WithContext(work)
	}
	h.answer(ctx, s.watch(w), r, key, t, d)
}

// stay is a request that holds a slot.
type stay struct {
	slot  *inflight.Slot
	taken atomic.Bool // the connection was taken over, and has the slot
}

func (s *stay) end() {
	if !s.taken.Load() {
		s.slot.Release()
	}
}

// watch returns w with the same optional methods. A connection that is taken over gives the slot
// back when it is closed.
func (s *stay) watch(w http.ResponseWriter) http.ResponseWriter {
	if _, ok := w.(http.Hijacker); !ok { // as in HTTP/2
		return w
	}
	return httpsnoop.Wrap(w, httpsnoop.Hooks{Hijack: func(do httpsnoop.HijackFunc) httpsnoop.HijackFunc {
		return func() (net.Conn, *bufio.ReadWriter, error) {
			c, buffer, err := do()
			if err != nil {
				return c, buffer, err
			}
			s.taken.Store(true)
			return newConn(c, s.slot), buffer, nil
		}
	}})
}

// conn is a connection that holds a slot until it is closed.
type conn struct {
	net.Conn
	slot *inflight.Slot
}

// newConn returns c with the slot, and with CloseWrite if it has that.
func newConn(c net.Conn, slot *inflight.Slot) net.Conn {
	if half, ok := c.(halfCloser); ok {
		return &struct {
			conn
			halfCloser
		}{conn{c, slot}, half}
	}
	return &conn{c, slot}
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
