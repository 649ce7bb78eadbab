// Package httplimit limits the requests that an HTTP server accepts or a client sends, with a
// [ratelimit.Limiter]:
//
//	mem := ratelimit.Must(memstore.New())
//	perClient := ratelimit.Must(httplimit.LimitByIP(mem, "api", ratelimit.PerMinute(100)))
//	mux := http.NewServeMux()
//	mux.HandleFunc("GET /search", search)
//	log.Fatal(http.ListenAndServe(":8080", perClient(mux)))
//
// Here, each client, identified by its address, can make 100 requests per minute. Each response
// reports how many are left. The 101st request gets status 429 and is told when to come back.
//
// A [Key] determines which requests are counted together. Behind a proxy, use [ClientIP]; otherwise
// all clients share the limit of the proxy. Keys are never shown to clients.
//
// For several limits at the same time, use a limiter that combines them, such as a [ratelimit.All].
// It charges a request to all limits or to none, and the response reports each. If you nest two
// middlewares instead, only the fields of the inner one are visible. If a
// [net/http/httputil.ReverseProxy] behind the middleware talks to a backend that limits too, the
// backend's fields are added; an example removes them.
//
// Put your CORS handler outside the middleware. Otherwise, scripts from other origins cannot read a
// refusal, and each preflight request is counted. Scripts can read only the fields that
// Access-Control-Expose-Headers names.
//
// A client of somebody else's service should wait until it may send: see [Transport]. Package
// grpclimit does the same for gRPC, and makes the same keys.
package httplimit

import (
	"context"
	"errors"
	"log"
	"net/http"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/kept"
	"github.com/ratelimit-go/ratelimit/internal/report"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Middleware returns a function that wraps a handler with l. A request that l denies does not reach
// the handler. The response is
//
//   - 429 with an RFC 9457 problem that names the policies that denied
//     ([ratelimit.PolicyAppender]), and Retry-After. If waiting will not help, its detail says so,
//     and there is no Retry-After. Its type is quota-exceeded, or abnormal-usage-detected for a
//     [ratelimit.Ban].
//   - 403 with a problem, without Retry-After, if a list denies ([ratelimit.SourceList])
//   - 503 with Retry-After if the limiter is closed by an outage ([ratelimit.SourceFailClosed])
//   - that of [WithKeyErrorHandler] or [WithErrorHandler] if there is no decision; the default is
//     [WriteError]
//   - 499, for logs, if the client has disconnected, or 503 if the request's deadline has passed, such
//     as that of an [http.TimeoutHandler] outside
//
// If an argument is invalid, such as a nil limiter, the middleware answers every request with 500,
// and the server's ErrorLog has the reason once. [New] returns that error instead. Errors of the
// limiter that no handler of yours answers are logged once per minute.
//
// The limiter's context has the client's address (package clientaddr), found by the Key or
// [WithClientAddr]. The built-in algorithms without a limit function, and an All of them, do not
// need it.
//
// Without [WithRefund] and [WithContext], a request costs the limiter's decision and at most four
// allocations. Two are for that context if it is needed, one is for a key that is not an IPv4 address,
// and one, in every tenth request, is for header fields. A limit function is called once per request.
// There is nothing to close.
//
// If l counts slots (package inflight), alone or with rates, a request holds a slot until its
// handler returns or panics. If the handler takes over the connection, it holds the slot until that
// is closed. Put an [http.TimeoutHandler] outside the middleware; inside, it releases slots too
// early, as fiber's adaptor does (see docs/http.md). A request with a slot and a body costs about
// 15 more allocations.
//
// Middleware does not wait for the Delay of a leaky bucket. To hold requests back, wrap the limiter
// in a throttle.Waiter.
func Middleware(l ratelimit.Limiter, opts ...ServerOption) func(http.Handler) http.Handler {
	wrap, err := New(l, opts...)
	if err != nil {
		return func(http.Handler) http.Handler { return &misconfigured{err: err} }
	}
	return wrap
}

// LimitByIP returns a middleware that limits each client, identified by its address, with a token
// bucket on s:
//
//	mem := ratelimit.Must(memstore.New())
//	...
//	r.Use(ratelimit.Must(httplimit.LimitByIP(mem, "api", ratelimit.PerMinute(100))))
//
// The name is the one for [ratelimit.WithName]: on one store, limits with the same name and Period
// share their counts. Behind a proxy, add [WithKey] with a [ClientIP]. LimitByIP returns the errors
// of [New] and of [ratelimit.NewTokenBucket].
func LimitByIP(s store.Store, name string, l ratelimit.Limit, opts ...ServerOption) (func(http.Handler) http.Handler, error) {
	perClient, err := ratelimit.NewTokenBucket(s, l, ratelimit.WithName(name))
	if err != nil {
		return nil, err
	}
	return New(perClient, opts...)
}

// New is like [Middleware], but returns an error that wraps [ratelimit.ErrInvalidOption] if l, an
// option or a function is nil, or if an option is out of range.
func New(l ratelimit.Limiter, opts ...ServerOption) (func(http.Handler) http.Handler, error) {
	c, err := newConfig(l, PeerIP())
	if err != nil {
		return nil, err
	}
	if err := guard.Apply(&c.Config, opts, func(o ServerOption) error { return o.server(c) }); err != nil {
		return nil, err
	}
	c.spent = new(sync.Pool)
	c.Holder = &deferring{see.Has(see.Traits{Behind: l, Spent: c.spent}), l}
	c.asks = !see.IgnoresContext(l)
	switch {
	case !c.asks && !c.InContext:
		c.Addr = nil
	case c.Addr == nil:
		c.Addr = c.Key.Addr
	}
	m := &middleware{config: *c}
	return func(next http.Handler) http.Handler {
		if next == nil {
			return &misconfigured{err: guard.Invalid("the handler is nil")}
		}
		return &handler{m, next}
	}, nil
}

// middleware is shared by all handlers of one New.
type middleware struct {
	config
	texts  policyTexts
	unset  guard.Alarm // for errors of the configuration
	down   guard.Alarm // for other reasons why there is no decision
	unseen notice      // for WithRefund when it did not see a status
}

type handler struct {
	*middleware
	next http.Handler
}

// ServeHTTP decides on r.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := h.costs(r)
	if n == 0 {
		h.next.ServeHTTP(w, r)
		return
	}
	key, err := h.Key.Text(r)
	if err != nil {
		h.fail(w, r, h.keyFailed, err)
		return
	}
	var d report.Values
	ctx, t := h.context(r), guard.Charge{Limiter: h.Limiter, N: n}
	t.Slot, d.Result, err = h.Take(ctx, key, n)
	switch {
	case t.Slot != nil:
		h.holding(ctx, w, r, key, t, &d)
	case err == nil:
		h.answer(ctx, w, r, key, t, &d)
	case errors.Is(err, ratelimit.ErrInvalidKey):
		h.fail(w, r, h.keyFailed, err)
	default:
		h.fail(w, r, h.failed, err)
	}
}

// context returns the context of r for the limiter, with the client's address if it is known.
func (c *config) context(r *http.Request) context.Context {
	ctx := r.Context()
	if c.asks {
		ctx = kept.New[ratelimit.Limit](ctx, false)
	}
	if c.Addr == nil {
		return ctx
	}
	return clientaddr.NewContextFunc(ctx, r, c.Addr)
}

// costs returns how many events r is charged, 0 if it is skipped.
func (c *config) costs(r *http.Request) int {
	if c.Skips(r) {
		return 0
	}
	return c.Costs(r)
}

// fail answers a request for which there is no decision. A configuration error never lets a request
// through.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, by ErrorHandler, err error) {
	switch end := guard.Ended(r.Context(), err); {
	case errors.Is(end, context.Canceled):
		w.WriteHeader(clientClosedRequest)
		return
	case end != nil: // nobody waits for next, so by must not call it
		WriteError(w, end)
		return
	}
	next := h.next
	switch fault := maker.FaultOf(err); {
	case fault == guard.Misconfigured:
		alarm(&h.unset, r, err)
		next = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteError(w, err) })
	case by == nil && fault == guard.Unavailable:
		alarm(&h.down, r, err)
	}
	if by != nil {
		by(w, r, next, err)
		return
	}
	WriteError(w, err)
}

// scratch is memory for one response until its header is set. It cannot be on the stack, because it
// is passed to interfaces.
type scratch struct {
	policies [4]ratelimit.Policy
	text     []byte
	supply   supply
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// answer reports the decision, and lets the request through or refuses it.
func (h *handler) answer(ctx context.Context, w http.ResponseWriter, r *http.Request, key string, t guard.Charge, d *report.Values) {
	s, kept := scratches.Get().(*scratch), h.keeps(&d.Result)
	d.Split()
	d.Limiter = h.Limiter
	if kept {
		d.Describe(ctx, h.Limiter, key, nil)
	} else if h.styles&Draft10 != 0 || !d.Result.Allowed || h.styles != 0 && d.Result.Remaining == 0 || t.Slot != nil {
		d.Describe(ctx, h.Limiter, key, s.policies[:0])
	}
	retry := d.Result.RetryAfter
	d.Shorten(h.SlotRetry)
	f := fields{text: s.text[:0]}
	f.report(h.styles, d, &h.texts)
	if !d.Result.Allowed {
		f.refusal(&d.Result)
		if h.denied == nil {
			h.refuse(w, &f, d, s)
			return
		}
	}
	f.set(w.Header(), &s.supply)
	s.text = f.text
	scratches.Put(s) // before the handler, which may take long
	if kept {
		d.Result.RetryAfter = retry
		h.decided(ctx, w, r, t, Decision{Result: d.Result, Policies: d.Policies, Key: key, limiter: h.Limiter, slotRetry: h.SlotRetry})
		return
	}
	h.pass(ctx, w, r, key, &d.Result, t, nil)
}

// refuse writes the problem for d.
func (h *handler) refuse(w http.ResponseWriter, f *fields, d *report.Values, s *scratch) {
	f.add(contentType, problemJSON)
	f.set(w.Header(), &s.supply)
	code := status(d)
	s.text = appendProblem(f.text[:0], code, d, &h.texts)
	w.WriteHeader(code)
	_, _ = w.Write(s.text) // an error: the client has gone
	scratches.Put(s)
}

// keeps reports whether the policies outlive the header.
func (h *handler) keeps(r *ratelimit.Result) bool {
	return h.InContext || !r.Allowed && h.denied != nil
}

// decided calls the next handler or the denied handler, which gets the decision.
func (h *handler) decided(ctx context.Context, w http.ResponseWriter, r *http.Request, t guard.Charge, d Decision) {
	var c *charge
	if h.InContext {
		inside := &decisionContext{Context: ctx, decision: d, charge: charge{Charge: t}}
		if t.Slot != nil && h.CancelLost { // r.Context() is derived from ctx, and ends when the slot is lost
			inside.Context = r.Context()
		}
		c = &inside.charge
		inside.decision.charge = c
		inner := r.WithContext(inside)
		defer learn(r, inner)
		r = inner
	}
	if d.Result.Allowed {
		h.pass(ctx, w, r, d.Key, &d.Result, t, c)
		return
	}
	h.denied(w, r, h.next, d)
}

// pass calls the protected handler. c is the charge that the request's context has, if any.
func (h *handler) pass(ctx context.Context, w http.ResponseWriter, r *http.Request, key string, res *ratelimit.Result, t guard.Charge, c *charge) {
	switch {
	case h.refund != nil:
		if c == nil {
			c = &charge{Charge: t}
		}
		h.refunding(ctx, w, r, h.next, key, res, c)
	case t.Slot != nil && hasBody(r):
		watchAnswer(w, r).serve(h.next)
	default:
		h.next.ServeHTTP(w, r)
	}
}

// misconfigured answers all requests with an error in place of a middleware.
type misconfigured struct {
	err    error
	notice notice
}

func (m *misconfigured) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.notice.say(r, "httplimit: "+m.err.Error())
	WriteError(w, m.err)
}

// notice is a message for the operator that is logged once.
type notice struct{ once sync.Once }

// say logs text.
func (n *notice) say(r *http.Request, text string) { n.once.Do(func() { tell(r, text) }) }

// alarm logs err, at most once per minute for each a.
func alarm(a *guard.Alarm, r *http.Request, err error) {
	if a.Due() {
		tell(r, "httplimit: "+err.Error())
	}
}

// tell writes text to the log of the server that serves r.
func tell(r *http.Request, text string) {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && server.ErrorLog != nil {
		server.ErrorLog.Print(text)
		return
	}
	log.Print(text)
}
