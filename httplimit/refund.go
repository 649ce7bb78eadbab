package httplimit

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// Failed reports whether status is an error of the server, 500 or above. See [WithRefund].
func Failed(status int) bool { return status >= http.StatusInternalServerError }

// Successful reports whether status is below 400. See [WithRefund].
func Successful(status int) bool { return status < http.StatusBadRequest }

// charge is what a request was charged, until it is refunded. The slot is released separately.
type charge struct {
	guard.Charge
	once sync.Once // one refund, because its reply may be lost
	err  error     // of the refund
}

// refund refunds the charge on the first call, and returns that call's error to all calls. It works
// even after the request has ended.
func (c *charge) refund(ctx context.Context, key string, r *ratelimit.Result) error {
	c.once.Do(func() { c.err = c.Refund(ctx, key, r) })
	return c.err
}

const unseen = "httplimit: WithRefund refunded nothing, because a handler wrote nothing to the ResponseWriter that it got: " +
	"let the framework write through it, or call Decision.Refund"

// refunding lets next answer, and refunds the charge if f returns true for its status.
func (m *middleware) refunding(ctx context.Context, w http.ResponseWriter, r *http.Request, next http.Handler, key string, res *ratelimit.Result, c *charge) {
	a, returned := watchAnswer(w, r), false
	defer func() { // even if next panics; the panic continues
		status := a.status
		switch {
		case status == 0 && returned: // 200, or a status that a framework wrote past w
			if r.Context().Err() == nil { // otherwise nobody needs a response
				m.unseen.say(r, unseen)
			}
			return
		case status == 0:
			status = http.StatusInternalServerError
		}
		if !Successful(status) && (hungUp(r.Context()) || a.body.broken.Load()) {
			status = clientClosedRequest
		}
		if m.refund(status) {
			// If the refund fails, the charge stands, because the response has already been
			// written.
			_ = c.refund(ctx, key, res)
		}
	}()
	a.serve(next)
	returned = true
}

// learn copies into r what was found out in inner, a copy of r. The server removes the temporary
// files of a form only if r refers to it. Loggers that wrap the middleware look for the mux's
// pattern and its path values, whose names are only in the pattern.
func learn(r, inner *http.Request) {
	r.Form, r.PostForm, r.MultipartForm, r.Pattern = inner.Form, inner.PostForm, inner.MultipartForm, inner.Pattern
	for _, rest, found := strings.Cut(r.Pattern, "{"); found; _, rest, found = strings.Cut(rest, "{") {
		var name string
		name, rest, _ = strings.Cut(rest, "}")
		name, _, _ = strings.Cut(strings.TrimSuffix(name, "..."), ":") // some routers have an expression there
		if v := inner.PathValue(name); v != r.PathValue(name) {
			r.SetPathValue(name, v)
		}
	}
}

// hungUp reports whether ctx has ended because the client disconnected, and not because of a lost
// slot ([WithCancelLost]).
func hungUp(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), inflight.ErrLost)
}

// answer is a response that is being watched.
type answer struct {
	w      http.ResponseWriter
	outer  *http.Request
	r      *http.Request // as the handler gets it
	body   body
	status int // the first one written that is not informational; 0 until then
}

// watchAnswer returns the answer to r. If r has a body, the handler gets a copy of r with another
// Body. The server needs its own Body to decide whether to wait for unread data, and whether another
// request follows.
func watchAnswer(w http.ResponseWriter, r *http.Request) *answer {
	a := &answer{outer: r, r: r}
	if hasBody(r) {
		a.r = r.WithContext(r.Context())
		a.body.ReadCloser, a.body.outer, a.body.inner = r.Body, r, a.r
		a.r.Body = &a.body
	}
	a.w = watched(w, a)
	return a
}

// hasBody reports whether r has a body. http.NoBody, which proxies look for, does not count.
func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// serve calls next.
func (a *answer) serve(next http.Handler) {
	defer learn(a.outer, a.r)
	next.ServeHTTP(a.w, a.r)
	a.begin(http.StatusOK) // if nothing was written
}

// begin is called before the header is written. An http.MaxBytesReader asks the server's own
// ResponseWriter to end the connection, and not to wait for the rest of the body, by a method that
// no other ResponseWriter can have.
func (a *answer) begin(status int) {
	if a.status == 0 && status >= http.StatusOK && a.body.cut.Load() && a.r.ProtoMajor == 1 {
		a.w.Header().Set("Connection", "close")
	}
}

// wrote is called when the header is written.
func (a *answer) wrote(status int) {
	if a.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		a.status = status
	}
}

// hijacked is called when the connection is taken over.
func (a *answer) hijacked(c net.Conn) net.Conn {
	a.wrote(http.StatusSwitchingProtocols)
	return c
}

// body is the body of a request. It records whether reading it has failed, which only the client
// can cause unless the body was closed before. It also records whether the last Read filled its
// buffer without reaching the end, as the last Read of an http.MaxBytesReader does if the body is
// too large. The server has then set the trailer of its own request, whose map is a new one if the client has not
// announced it.
type body struct {
	io.ReadCloser
	outer, inner        *http.Request
	closed, broken, cut atomic.Bool // atomic, because a proxy's transport may still read it when the handler returns
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.cut.Store(err == nil && n == len(p))
	switch {
	case err == nil:
	case !errors.Is(err, io.EOF):
		if !b.closed.Load() {
			b.broken.Store(true)
		}
	case b.inner.Trailer == nil && b.outer.Trailer != nil:
		b.inner.Trailer = b.outer.Trailer
	}
	return n, err
}

func (b *body) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
