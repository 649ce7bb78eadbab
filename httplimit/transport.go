package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// Transport is an [http.RoundTripper] that keeps the requests of a client under a limit, such as
// that of somebody else's service. Each request waits until the limiter admits it
// ([ratelimit.Wait]), as long as its context lasts. A request that would have to wait beyond its
// deadline fails with [ratelimit.ErrWouldExceedDeadline] as soon as that is known. With
// [WithoutWaiting], no request waits. [http.Client] returns these errors inside a *url.Error, and
// its Timeout includes the time that a request waits.
//
// A Transport heeds the server. After a 429 or 503, all requests of the same key wait as long as
// Retry-After says, or else RateLimit, RateLimit-Reset or X-RateLimit-Reset. The time can be in
// seconds, a date, a duration, or a Unix or RFC 3339 time (see docs/client.md). Fields over 4 KiB
// are ignored. A server is believed for up to a minute ([WithMaxPause]). After a pause, requests
// continue in the order in which they began to wait for its end; requests that the limiter itself
// held until then can be sent earlier. With [WithRemaining], the fields of other responses count
// too.
//
// If the limiter counts slots (package inflight), a request also waits for a slot
// ([inflight.Wait]), and holds it until the response's body is closed, or read to its end or an
// error.
//
// Requests are retried only with [WithRetries]. At most 4,096 keys can pause; beyond that, a pause
// that ends soon is forgotten.
//
// A Transport has nothing to close and is safe for concurrent use. Use [NewTransport] to create
// one.
type Transport struct {
	c      config // not embedded, or its exported fields and methods would be those of the Transport
	base   http.RoundTripper
	pauses atomic.Int64 // number of pauses that have begun
}

// leastPause is the pause before the first retry if the server does not say how long to wait, says
// that there is no need to wait, or gives a date that has passed. It doubles with each retry.
const leastPause = 100 * time.Millisecond

// maxDrain is how long a retry waits for the rest of a refusal's body.
const maxDrain = 100 * time.Millisecond

// ErrLimited is the error of a [Transport] that does not wait ([WithoutWaiting]) and has not sent a
// request. The error is a [*LimitedError].
var ErrLimited = errors.New("httplimit: over the limit")

// LimitedError is an [ErrLimited] with the time after which the request can be sent.
type LimitedError struct {
	Key        string
	RetryAfter time.Duration // above 0; [ratelimit.Never] if waiting will not help; 1 s if no slot is free
}

func (e *LimitedError) Error() string {
	if e.RetryAfter == ratelimit.Never {
		return fmt.Sprintf("%v: key %q never has enough room", ErrLimited, e.Key)
	}
	return fmt.Sprintf("%v: key %q has room in %v", ErrLimited, e.Key, e.RetryAfter)
}

// Is reports whether target is [ErrLimited].
func (e *LimitedError) Is(target error) bool { return target == ErrLimited }

// NewTransport returns a Transport that sends what l admits through base, or through
// [http.DefaultTransport] if base is nil. It returns [ratelimit.ErrInvalidOption] if l, an option
// or a function is nil, if an option is out of range, if two options cannot be combined, or if l waits by
// itself, as throttle's Waiter does, and [WithoutWaiting] is missing.
func NewTransport(base http.RoundTripper, l ratelimit.Limiter, opts ...ClientOption) (*Transport, error) {
	c, err := newConfig(l, Key{requestKey{Kind: "host:", Make: host}})
	if err != nil {
		return nil, err
	}
	if base == nil {
		base = http.DefaultTransport
	}
	if isnil.Is(base) {
		return nil, guard.Invalid("the RoundTripper is nil")
	}
	if err := guard.ApplyClient(&c.Config, opts, func(o ClientOption) error { return o.client(c) }); err != nil {
		return nil, err
	}
	if c.Refuse && c.retries > 0 {
		return nil, guard.Invalid("WithRetries cannot be combined with WithoutWaiting")
	}
	return &Transport{c: *c, base: base}, nil
}

// host returns the host and port that r is sent to, in one form for other spellings of a URL, which a page or a redirect
// may choose.
func host(r *http.Request) (string, error) {
	if r.URL == nil || r.URL.Host == "" {
		return "", fmt.Errorf("%w: the request has no host", ErrNoIdentity)
	}
	name, port := strings.TrimSuffix(strings.ToLower(r.URL.Hostname()), "."), r.URL.Port()
	if strings.Contains(name, ":") { // IPv4 has only one spelling
		if addr, err := netip.ParseAddr(name); err == nil {
			name = addr.Unmap().String()
		}
	}
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[r.URL.Scheme]
	}
	return net.JoinHostPort(name, strings.TrimLeft(port, "0")), nil
}

// RoundTrip sends r when the limiter admits it. It returns errors of the key unchanged.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.c.Limiter == nil {
		closeBody(r)
		return nil, guard.Invalid("the Transport was not made by NewTransport")
	}
	n := t.c.costs(r)
	if n == 0 {
		return t.base.RoundTrip(r)
	}
	key, err := t.c.Key.Text(r)
	for try := 0; ; try++ {
		var slot *inflight.Slot
		if err == nil {
			slot, err = t.admit(r.Context(), key, n)
		}
		if err != nil {
			closeBody(r)
			return nil, err
		}
		res, err := t.send(r, slot)
		if err != nil || res == nil {
			return res, err
		}
		again, ok := t.follow(r, res, key, try)
		if !ok {
			return res, nil
		}
		drain(res) // also releases the slot
		r = again
	}
}

// send sends r. The request holds slot, unless that is nil, until its response has been read.
func (t *Transport) send(r *http.Request, slot *inflight.Slot) (res *http.Response, err error) {
	if slot == nil {
		return t.base.RoundTrip(r)
	}
	answered := false
	defer func() {
		if !answered { // even if the RoundTripper has panicked
			slot.Release()
		}
	}()
	if res, err = t.base.RoundTrip(r); err != nil || res == nil || res.Body == nil || res.Body == http.NoBody {
		return res, err
	}
	answered = true
	body := &heldBody{res.Body, slot}
	res.Body = body
	if w, ok := body.ReadCloser.(io.Writer); ok { // after a 101, Switching Protocols
		res.Body = &switchedBody{body, w}
	}
	return res, nil
}

// switchedBody is a connection that has switched to another protocol.
type switchedBody struct {
	*heldBody
	io.Writer
}

// CloseWrite calls the connection's own method, which a proxy looks for.
func (b *switchedBody) CloseWrite() error {
	if half, ok := b.Writer.(halfCloser); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// heldBody is the body of a response whose request holds a slot.
type heldBody struct {
	io.ReadCloser
	slot *inflight.Slot
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.slot.Release()
	}
	return n, err
}

func (b *heldBody) Close() error {
	b.slot.Release()
	return b.ReadCloser.Close()
}

// CloseIdleConnections closes the idle connections of the underlying RoundTripper, if it can: see
// [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// admit waits until n events of key are admitted. The slot is nil if the limiter counts none.
func (t *Transport) admit(ctx context.Context, key string, n int) (*inflight.Slot, error) {
	slot, r, err := t.c.Admit(ctx, key, n)
	if paused, ok := errors.AsType[guard.Paused](err); ok {
		return nil, &LimitedError{key, time.Duration(paused)}
	}
	if err == nil && !r.Allowed {
		err = t.limited(ctx, key, r)
	}
	return slot, err
}

// limited returns the error for the denial r. It needs the policies only if the limiter counts
// slots.
func (t *Transport) limited(ctx context.Context, key string, r ratelimit.Result) error {
	if t.c.Holds() {
		d := report.Of(r)
		d.Describe(ctx, t.c.Limiter, key, nil)
		d.Shorten(0)
		r.RetryAfter = d.Result.RetryAfter
	}
	return &LimitedError{key, r.RetryAfter}
}

// follow heeds res, the response to attempt try, and returns r to be sent again if it should be.
func (t *Transport) follow(r *http.Request, res *http.Response, key string, try int) (again *http.Request, ok bool) {
	followed := false
	defer func() {
		if !followed && res.Body != nil { // the function of WithOnPause or GetBody has panicked
			_ = res.Body.Close()
		}
	}()
	if t.heed(key, res, try) && try < t.c.retries {
		again, ok = t.again(r, res, key)
	}
	followed = true
	return again, ok
}

// heed begins a cooldown of key if res, the response to attempt try, asks for one. It reports
// whether res is a refusal that can be retried: a 429, or a 503 that says when to come back, no
// later than after MaxPause.
func (t *Transport) heed(key string, res *http.Response, try int) bool {
	many := res.StatusCode == http.StatusTooManyRequests
	refusal := many || res.StatusCode == http.StatusServiceUnavailable
	if !refusal && !t.c.remaining {
		return false
	}
	var d time.Duration
	var field string
	if refusal {
		d, field = parseRetryAfter(res.Header, time.Now())
	}
	if field == "" && t.c.remaining {
		d, field = parseRemaining(res.Header, time.Now())
	}
	ok := refusal && (field != "" || many) && d <= t.c.MaxPause
	if ok && d == 0 && !t.c.Refuse && try < t.c.retries {
		d = leastPause << min(try, 20) // about 29 h
	}
	if d = min(d, t.c.MaxPause); t.c.Pauses.Add(key, d) { // false if d is 0
		t.pauses.Add(1)
		if t.c.onPause != nil {
			t.c.onPause(key, d, field)
		}
	}
	return ok
}

// Pauses returns how many pauses servers have begun so far, and how many keys have a pause now. It
// is for metrics: see promlimit and otellimit.
func (t *Transport) Pauses() (begun int64, now int) {
	if t.c.Pauses == nil { // the zero Transport
		return 0, 0
	}
	return t.pauses.Load(), t.c.Pauses.Len()
}

// again returns r to be sent again after res, if that is possible.
func (t *Transport) again(r *http.Request, res *http.Response, key string) (*http.Request, bool) {
	deadline, limited := r.Context().Deadline()
	switch {
	case t.c.Refuse,
		limited && t.c.Pauses.Left(key) >= time.Until(deadline),
		res.StatusCode == http.StatusServiceUnavailable && !idempotent(r):
		return nil, false
	case r.Body == nil || r.Body == http.NoBody:
		return r, true
	case r.GetBody == nil:
		return nil, false
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, false
	}
	again := r.WithContext(r.Context())
	again.Body = body
	return again, true
}

func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// drain reads the rest of a short response, so that its connection can be reused. It gives up on a
// slow one.
func drain(res *http.Response) {
	if res.Body == nil { // never from net/http's transport; its Client takes nil for no body
		return
	}
	timer := time.AfterFunc(maxDrain, func() { _ = res.Body.Close() }) // a Close ends a Read of net/http's body
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	_ = res.Body.Close()
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
