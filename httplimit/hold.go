package httplimit

import (
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"

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

// watch returns w, and whether the connection was taken over, nil if it cannot be. That gives the slot
// back when it is closed.
func watch(w http.ResponseWriter, slot *inflight.Slot) (http.ResponseWriter, *atomic.Bool) {
	if !hijackable(w) {
		return w, nil
	}
	t := &takeover{slot: slot}
	return watched(w, t), &t.done
}

// takeover is that of the connection of a request that holds a slot.
type takeover struct {
	slot *inflight.Slot
	done atomic.Bool
}

func (t *takeover) begin(int) {}
func (t *takeover) wrote(int) {}

func (t *takeover) hijacked(c net.Conn) net.Conn {
	t.done.Store(true)
	return newConn(c, t.slot)
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
