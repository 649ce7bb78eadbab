// Package httplimit keeps HTTP requests within the limits of a [ratelimit.Limiter], as
// middleware of net/http:
//
//	mem, err := memstore.New()
//	...
//	limiter, err := ratelimit.NewSlidingWindow(mem, ratelimit.PerMinute(100))
//	...
//	mux := http.NewServeMux()
//	mux.HandleFunc("GET /search", search)
//	log.Fatal(http.ListenAndServe(":8080", httplimit.Middleware(limiter)(mux)))
//
// Each client, by its address, can do 100 requests a minute here, and reads in each
// answer how many are left. The 101st gets status 429 and is told when to come back.
//
// Behind a proxy say [WithKey] of a [ClientIP] with [TrustedProxies], or all clients
// share the bucket of the proxy. For keys by API key, user, or route see [Key]; for
// costs, for requests that do not count and for what a refusal looks like see [Option].
// For several limits at once use one limiter of them, so that one request is charged to
// all or none and the answer tells of each; of two middlewares around each other the
// inner one's fields are seen.
//
// Our own calls to a service with a limit of its own go through a [Transport].
package httplimit

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/tell"
)

// Middleware returns what puts l in front of a handler. Without options the key is
// ClientIP(), the fields are [Legacy] and [Draft10], and a refusal is status 429 with a
// problem by RFC 9457 (503 if the limiter is closed because its store is down).
//
// A wrong argument, such as a nil limiter, makes it answer 500 to each request, and say
// why in the server's ErrorLog at the first. [New] has an error for it.
//
// A request without refunds and context costs the limiter's decision, an allocation
// for the key unless that is an IPv4 address, and one in ten requests for the fields:
// a header that is kept for long keeps some 5 KiB. A limit function is asked a second
// time, for the policy, unless nothing tells of that. The middleware keeps nothing that
// grows, starts no goroutine and has nothing to close.
//
// The Delay of a leaky bucket or a slowdown is not waited for: put a throttle.Waiter around
// those that are to hold requests back.
func Middleware(l ratelimit.Limiter, opts ...Option) func(http.Handler) http.Handler {
	wrap, err := New(l, opts...)
	if err != nil {
		return func(http.Handler) http.Handler { return &misconfigured{err: err} }
	}
	return wrap
}

// New is [Middleware] with an error, [ratelimit.ErrInvalidOption], if l, an option or
// what is given to one is nil or out of range.
func New(l ratelimit.Limiter, opts ...Option) (func(http.Handler) http.Handler, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	lim := &limit{limiter: l, key: ClientIP(), styles: defaultStyles}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(lim); err != nil {
			return nil, err
		}
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			return &misconfigured{err: fmt.Errorf("%w: the handler is nil", ratelimit.ErrInvalidOption)}
		}
		return &handler{lim, next}
	}, nil
}

// limit is the limiter and how it is used.
type limit struct {
	limiter    ratelimit.Limiter
	key        Key
	styles     HeaderStyle
	skip       func(*http.Request) bool // these and what follows nil unless set
	cost       func(*http.Request) int
	refund     func(status int) bool
	denied     DeniedHandler
	noIdentity ErrorHandler
	failed     ErrorHandler
	inContext  bool
	texts      policyTexts
}

type handler struct {
	*limit
	next http.Handler
}

// ServeHTTP decides on r.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := 0
	if h.skip == nil || !h.skip(r) {
		n = h.costs(r)
	}
	if n == 0 {
		h.next.ServeHTTP(w, r)
		return
	}
	key, err := h.key.of(r)
	if err != nil {
		h.fail(w, r, h.noIdentity, err)
		return
	}
	var t tell.Decision
	t.Result, err = h.limiter.AllowN(r.Context(), key, n)
	switch {
	case err == nil:
		h.answer(w, r, key, n, &t)
	case errors.Is(err, ratelimit.ErrInvalidKey):
		h.fail(w, r, h.noIdentity, err)
	default:
		h.fail(w, r, h.failed, err)
	}
}

// costs is what r is charged.
func (h *handler) costs(r *http.Request) int {
	if h.cost == nil {
		return 1
	}
	return h.cost(r)
}

// fail answers where there is no decision.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, by ErrorHandler, err error) {
	switch {
	case hasGone(r, err):
		w.WriteHeader(clientClosedRequest)
	case by != nil:
		by(w, r, h.next, err)
	default:
		WriteError(w, err)
	}
}

// scratch is what an answer needs until its header is set and cannot keep on the stack,
// since it is handed on to interfaces, and of what its header is made.
type scratch struct {
	policies [4]ratelimit.Policy
	text     []byte
	supply   supply
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// answer tells of the decision, and lets the request pass or refuses it.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, key string, n int, t *tell.Decision) {
	s, kept := scratches.Get().(*scratch), h.keeps(&t.Result)
	t.Parts, t.DeniedBy = t.Result.Parts(), t.Result.DeniedBy()
	if kept {
		t.Policies = h.policies(r, key, nil)
	} else if h.styles&withPolicies != 0 || !t.Result.Allowed {
		t.Policies = h.policies(r, key, s.policies[:0])
	}
	f := fields{text: s.text[:0]}
	f.tell(h.styles, t, &h.texts)
	if !t.Result.Allowed {
		f.refusal(&t.Result)
		if h.denied == nil {
			h.refuse(w, &f, t, s)
			return
		}
	}
	f.set(w.Header(), &s.supply)
	s.text = f.text
	scratches.Put(s) // before the handler, which may take long
	if kept {
		h.decided(w, r, n, Decision{t.Result, t.Policies, key})
		return
	}
	h.pass(w, r, key, n, &t.Result)
}

// refuse writes the problem that t tells of.
func (h *handler) refuse(w http.ResponseWriter, f *fields, t *tell.Decision, s *scratch) {
	f.add(contentType, problemJSON)
	f.set(w.Header(), &s.supply)
	code := status(&t.Result)
	s.text = appendProblem(f.text[:0], code, t, &h.texts)
	w.WriteHeader(code)
	_, _ = w.Write(s.text) // the client has gone
	scratches.Put(s)
}

// keeps is whether the policies outlive the header.
func (h *handler) keeps(r *ratelimit.Result) bool {
	return h.inContext || !r.Allowed && h.denied != nil
}

// policies are those of key. They are not worth an error: a limit function that has
// failed now has decided before.
func (h *handler) policies(r *http.Request, key string, dst []ratelimit.Policy) []ratelimit.Policy {
	policies, err := ratelimit.AppendPolicies(r.Context(), dst, h.limiter, key)
	if err != nil {
		return nil
	}
	return policies
}

// decided calls the handler that is due and wants to know of the decision.
func (h *handler) decided(w http.ResponseWriter, r *http.Request, n int, d Decision) {
	if h.inContext {
		r = withDecision(r, d)
	}
	if d.Result.Allowed {
		h.pass(w, r, d.Key, n, &d.Result)
		return
	}
	h.denied(w, r, h.next, d)
}

// pass calls the handler that is protected.
func (h *handler) pass(w http.ResponseWriter, r *http.Request, key string, n int, res *ratelimit.Result) {
	if h.refund != nil {
		h.count(w, r, h.next, charge{key, *res, n})
		return
	}
	h.next.ServeHTTP(w, r)
}

// misconfigured answers in place of a middleware that is none.
type misconfigured struct {
	err  error
	once sync.Once
}

func (m *misconfigured) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.once.Do(func() {
		server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
		if ok && server.ErrorLog != nil {
			server.ErrorLog.Printf("httplimit: %v", m.err)
			return
		}
		log.Printf("httplimit: %v", m.err)
	})
	WriteError(w, m.err)
}
