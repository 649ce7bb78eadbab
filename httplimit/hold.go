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

// deferring is a limiter whose slots [handler.holding] releases with a defer.
type deferring struct {
	see.Wrapper
	ratelimit.Limiter
}

// holding answers a request that holds a slot, and releases the slot.
func (h *handler) holding(ctx context.Context, w http.ResponseWriter, r *http.Request, key string, t guard.Charge, d *report.Values) {
	w, taken := watch(w, t.Slot)
	defer func() { // even if the handler panics; the panic continues
		if taken == nil || !taken.Load() {
			t.Slot.Release()
			if !h.InContext && !h.CancelLost { // then no handler has the slot
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

// watch returns w, and whether the connection was taken over, or nil if w cannot be hijacked. A
// connection that was taken over releases the slot when it is closed.
func watch(w http.ResponseWriter, slot *inflight.Slot) (http.ResponseWriter, *atomic.Bool) {
	if !hijackable(w) {
		return w, nil
	}
	t := &takeover{slot: slot}
	return watched(w, t), &t.done
}

// takeover watches the connection of a request that holds a slot.
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

// newConn returns c with the slot, and with CloseWrite if c has it. If the connection is garbage
// collected without a Close, the slot is released too, because no defer does it.
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

// Close closes the connection and releases the slot.
func (c *conn) Close() error {
	c.slot.Release()
	return c.Conn.Close()
}

// NetConn returns the underlying connection, like the method of package tls.
func (c *conn) NetConn() net.Conn { return c.Conn }

// ReadFrom uses the underlying connection's own method, if it has one.
func (c *conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }
