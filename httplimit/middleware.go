// Package httplimit keeps the requests of an HTTP server, and those that a client makes,
// within the limits of a [ratelimit.Limiter]:
//
//	mem := ratelimit.Must(memstore.New())
//	perClient := ratelimit.Must(httplimit.LimitByIP(mem, "api", ratelimit.PerMinute(100)))
//	mux := http.NewServeMux()
//	mux.HandleFunc("GET /search", search)
//	log.Fatal(http.ListenAndServe(":8080", perClient(mux)))
//
// Each client, by its address, can do 100 requests a minute here. Each answer reports how
// many are left. The 101st request gets status 429 and is told when to come back.
//
// A [Key] says which requests are counted together. Behind a proxy use [ClientIP], or all
// clients share the limit of the proxy. Keys are never reported to clients.
//
// For several limits at once use one limiter of them, such as a [ratelimit.All]. It charges a
// request to all or none, and the answer reports each. Of two middlewares around each
// other only the inner one's fields are seen. A [net/http/httputil.ReverseProxy] behind the
// middleware adds those of a backend that limits too: an example removes them.
//
// What answers browsers of other origins (CORS) goes around the middleware, or else their
// scripts cannot read a refusal, and each preflight is counted. Scripts read only the fields that
// Access-Control-Expose-Headers names.
//
// A client of somebody else's service waits for its turn: see [Transport]. Package
// grpclimit is the same for gRPC, and makes the same keys.
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
	"github.com/ratelimit-go/ratelimit/internal/report"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Middleware returns a function that puts l in front of a handler. A request that l denies
// does not reach the handler. The answer is
//
//   - 429 with a problem of RFC 9457, which names the policies that denied
//     ([ratelimit.PolicyAppender]), and Retry-After. If no waiting helps, its detail says so, and
//     there is no Retry-After. Its type is quota-exceeded or, of a [ratelimit.Ban], abnormal-usage-detected;
//   - 403 with a problem and no such field if a list denies ([ratelimit.SourceList]);
//   - 503 with Retry-After if the limiter is closed by an outage ([ratelimit.SourceFailClosed]);
//   - what [WithKeyErrorHandler] and [WithErrorHandler] say where no decision is known, and
//     otherwise what [WriteError] says;
//   - 499, for logs, if the client has gone meanwhile.
//
// An invalid argument, such as a nil limiter, makes the middleware answer 500 to each
// request. The first time, the server's ErrorLog says why. [New] returns the error of an argument.
// Where the limiter has an error, and no handler of yours answers, the log says so once a minute.
//
// The limiter gets a context with the address of the client (package clientaddr), which the Key
// or [WithClientAddr] finds when it is asked for. The five types without a limit function, and
// an All of such, never ask, and get the context of the request.
//
// Without [WithRefund] and [WithContext] a request costs the limiter's decision, and two
// allocations for that context if it is needed. A key that is no IPv4 address costs another. So
// do the header fields, in one of ten requests. Whoever keeps a header keeps some 5 KiB. A
// limit function is asked once ([ratelimit.KeepLimits]). Nothing grows, and there is nothing to close.
//
// If l counts slots (package inflight), alone or beside rates, a request holds one until its handler
// is done, whether it returns or panics. A connection that the handler takes over holds it until it
// is closed. An adaptor that runs its handlers after the middleware, as fiber's does, gives slots back too
// early: docs/http.md has another. So does an [http.TimeoutHandler] inside the middleware: put it
// around. Retry-After of a denial by slots alone is a second ([WithSlotRetryAfter]). A request that has
// a slot and a body costs some 15 allocations more.
//
// The Delay of a leaky bucket is not waited for: put a throttle.Waiter around a limiter that
// is to hold requests back.
func Middleware(l ratelimit.Limiter, opts ...ServerOption) func(http.Handler) http.Handler {
	wrap, err := New(l, opts...)
	if err != nil {
		return func(http.Handler) http.Handler { return &misconfigured{err: err} }
	}
	return wrap
}

// LimitByIP returns a middleware that limits each client, by its address, with a token bucket
// on s:
//
//	mem := ratelimit.Must(memstore.New())
//	...
//	r.Use(ratelimit.Must(httplimit.LimitByIP(mem, "api", ratelimit.PerMinute(100))))
//
// The name is that of [ratelimit.WithName]: limits of one name and Period on one store count
// together. Behind a proxy add [WithKey] of a [ClientIP]. Its errors are those of [New] and of
// [ratelimit.NewTokenBucket].
func LimitByIP(s store.Store, name string, l ratelimit.Limit, opts ...ServerOption) (func(http.Handler) http.Handler, error) {
	perClient, err := ratelimit.NewTokenBucket(s, l, ratelimit.WithName(name))
	if err != nil {
		return nil, err
	}
	return New(perClient, opts...)
}

// New is [Middleware] with an error. It wraps [ratelimit.ErrInvalidOption]: l, an option or
// a function is nil, or an option is out of range.
func New(l ratelimit.Limiter, opts ...ServerOption) (func(http.Handler) http.Handler, error) {
	c, err := newConfig(l, PeerIP())
	if err != nil {
		return nil, err
	}
	if err := guard.Apply(&c.Config, opts, func(o ServerOption) error { return o.server(c) }); err != nil {
		return nil, err
	}
	c.spent = new(sync.Pool)
	c.Holder = &deferring{see.Traits{Behind: l, Spent: c.spent}, l}
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

// middleware is what all handlers of one New have in common.
type middleware struct {
	config
	texts  policyTexts
	unset  guard.Alarm // what is not set up correctly
	down   guard.Alarm // why else there is no decision
	unseen notice      // that WithRefund did not see a status
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
	var d report.Decision
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

// context returns that of r for the limiter, with the address of the client if that is known.
func (c *config) context(r *http.Request) context.Context {
	ctx := r.Context()
	if c.asks {
		ctx = ratelimit.KeepLimits(ctx)
	}
	if c.Addr == nil {
		return ctx
	}
	return clientaddr.NewContextFunc(ctx, r, c.Addr)
}

// costs returns what r is charged, 0 if it is skipped.
func (c *config) costs(r *http.Request) int {
	if c.Skips(r) {
		return 0
	}
	return c.Costs(r)
}

// fail answers where there is no decision. What is not set up correctly is never a reason to let a
// request through.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, by ErrorHandler, err error) {
	if hasGone(r, err) {
		w.WriteHeader(clientClosedRequest)
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

// scratch is memory for one answer until its header is set. It cannot be on the stack,
// since it is passed to interfaces.
type scratch struct {
	policies [4]ratelimit.Policy
	text     []byte
	supply   supply
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// answer reports the decision, and lets the request through or refuses it.
func (h *handler) answer(ctx context.Context, w http.ResponseWriter, r *http.Request, key string, t guard.Charge, d *report.Decision) {
	s, kept := scratches.Get().(*scratch), h.keeps(&d.Result)
	d.Split()
	d.Bucket = (kept || h.styles != 0 && d.Result.Allowed && d.Result.Remaining == 0) && report.IsBucket(h.Limiter)
	if kept {
		d.Describe(ctx, h.Limiter, key, nil)
	} else if h.styles&withPolicies != 0 || !d.Result.Allowed || d.Bucket || t.Slot != nil {
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
		h.decided(ctx, w, r, t, Decision{Result: d.Result, Policies: d.Policies, Key: key, bucket: d.Bucket, slotRetry: h.SlotRetry})
		return
	}
	h.pass(ctx, w, r, key, &d.Result, t, nil)
}

// refuse writes the problem of d.
func (h *handler) refuse(w http.ResponseWriter, f *fields, d *report.Decision, s *scratch) {
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

// decided calls the handler that is due, which gets the decision.
func (h *handler) decided(ctx context.Context, w http.ResponseWriter, r *http.Request, t guard.Charge, d Decision) {
	var c *charge
	if h.InContext {
		inside := &decisionContext{Context: ctx, decision: d, charge: charge{Charge: t}}
		if t.Slot != nil && h.CancelLost { // of a context within ctx, which ends with the slot
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

// pass calls the protected handler. c is the charge that its context knows, if any.
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

// misconfigured answers where there is no middleware because of err.
type misconfigured struct {
	err    error
	notice notice
}

func (m *misconfigured) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.notice.say(r, "httplimit: "+m.err.Error())
	WriteError(w, m.err)
}

// notice is what the operator should know. It is said once.
type notice struct{ once sync.Once }

// say tells the operator text.
func (n *notice) say(r *http.Request, text string) { n.once.Do(func() { tell(r, text) }) }

// alarm tells the operator err, which goes wrong now, unless a was told within a minute.
func alarm(a *guard.Alarm, r *http.Request, err error) {
	if a.Due() {
		tell(r, "httplimit: "+err.Error())
	}
}

// tell writes text into the log of the server that serves r.
func tell(r *http.Request, text string) {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && server.ErrorLog != nil {
		server.ErrorLog.Print(text)
		return
	}
	log.Print(text)
}
