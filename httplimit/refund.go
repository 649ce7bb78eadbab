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

// Failed reports whether status is an error of the server: 500 and above. See [WithRefund].
func Failed(status int) bool { return status >= http.StatusInternalServerError }

// Successful reports whether status is below 400. See [WithRefund].
func Successful(status int) bool { return status < http.StatusBadRequest }

// charge is what a request was charged, until it is given back. The slot is given back by itself.
type charge struct {
	guard.Charge
	once sync.Once // of a refund, whose reply may be lost
	err  error     // of it
}

// refund gives it back the first time, and tells how that ended. The request may have ended.
func (c *charge) refund(ctx context.Context, key string, r *ratelimit.Result) error {
	c.once.Do(func() { c.err = c.Refund(ctx, key, r) })
	return c.err
}

const unseen = "httplimit: a handler wrote nothing to the ResponseWriter that it got, so WithRefund gave nothing back: " +
	"let a framework write through it, or call Decision.Refund"

// refunding lets next answer, and refunds the charge if its status says so.
func (m *middleware) refunding(ctx context.Context, w http.ResponseWriter, r *http.Request, next http.Handler, key string, res *ratelimit.Result, c *charge) {
	a, returned := watchAnswer(w, r), false
	defer func() { // also when next panics, which goes on
		status := a.status
		switch {
		case status == 0 && returned: // 200, or a status that a framework has written past w
			if r.Context().Err() == nil { // else nobody needs an answer
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
			// An error leaves the charge: the answer has been written.
			_ = c.refund(ctx, key, res)
		}
	}()
	a.serve(next)
	returned = true
}

// learn puts into r what was found out in inner, a copy of it. The server removes the files of a form that it knows.
// Logs around the middleware look for the pattern of a mux and its path values, whose names only the pattern has.
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

// hungUp reports whether ctx has ended with the client, and not with a slot ([WithCancelLost]).
func hungUp(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), inflight.ErrLost)
}

// answer is one that is watched.
type answer struct {
	w      http.ResponseWriter
	outer  *http.Request
	r      *http.Request // as the handler gets it
	body   body
	status int // the first one written that is not informational, 0 until then
}

// watchAnswer returns the answer to r. If that has a body, the handler gets a copy of r with another one: by its own
// Body the server tells whether to wait for what nobody has read, and whether what comes next is another request.
func watchAnswer(w http.ResponseWriter, r *http.Request) *answer {
	a := &answer{outer: r, r: r}
	if hasBody(r) {
		a.body.ReadCloser = r.Body
		a.r = r.WithContext(r.Context())
		a.r.Body = &a.body
	}
	a.w = watched(w, a)
	return a
}

// hasBody reports whether r has a body. A proxy looks for one that is http.NoBody.
func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// serve lets next answer.
func (a *answer) serve(next http.Handler) {
	defer learn(a.outer, a.r)
	next.ServeHTTP(a.w, a.r)
	a.begin(http.StatusOK) // if nothing was written
}

// begin is called before the header is written. An http.MaxBytesReader tells the server's own ResponseWriter, by a method
// that no other one can have, to end the connection and not to wait for the rest of the body.
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

// hijacked is a connection that was taken over.
func (a *answer) hijacked(c net.Conn) net.Conn {
	a.wrote(http.StatusSwitchingProtocols)
	return c
}

// body is that of a request. It knows whether reading it has failed, which only the client can
// cause unless it was closed before. It knows also whether the last Read has filled its buffer and found no end. So does
// the last one of an http.MaxBytesReader, if that finds that the body is too large.
type body struct {
	io.ReadCloser
	closed, broken, cut atomic.Bool // a proxy's transport may still read it when the handler returns
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.cut.Store(err == nil && n == len(p))
	if err != nil && !errors.Is(err, io.EOF) && !b.closed.Load() {
		b.broken.Store(true)
	}
	return n, err
}

func (b *body) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
