package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// Transport is an [http.RoundTripper] that keeps the requests of a client under a limit, such
// as that of somebody else's service. Each waits until the limiter admits it
// ([ratelimit.Wait]), as long as its context lasts. A request that would have to wait beyond
// its deadline is [ratelimit.ErrWouldExceedDeadline] as soon as that is known. With [WithoutWaiting] nothing
// waits. [http.Client] returns these errors inside a *url.Error, and its Timeout counts while
// a request waits.
//
// A Transport heeds the server. After 429 and 503 later requests of the same key, and those
// that wait already, wait as long as Retry-After says, in seconds or as a date. If that
// cannot be read, RateLimit, RateLimit-Reset or X-RateLimit-Reset counts. In each of them a fraction of
// a second counts as a whole one, and a number of more than ten years that is a time in Unix seconds
// or milliseconds, within ten years of now, is that time. A duration such as 1m30s, and a time of RFC 3339,
// are read too. No field of more than
// 4 KiB is read. Servers are believed up to a minute ([WithMaxPause]). Fields of
// other answers count with [WithRemaining]. After a pause requests go on
// in the order in which they came to it, and after those that the limiter held until then.
//
// If the limiter counts slots (package inflight), a request waits for one ([inflight.Wait]), and
// holds it until the body of its answer is closed or read to its end, or until there is an error.
//
// Nothing is sent again unless [WithRetries] says so. The pauses of at most 4,096 keys are
// remembered. Beyond that one that ends soon is forgotten.
//
// A Transport starts no goroutine, has nothing to close and is safe for concurrent use. Make
// it by [NewTransport].
type Transport struct {
	c      config // not embedded, or its exported fields and methods would be those of the Transport
	base   http.RoundTripper
	pauses atomic.Int64 // that have begun
}

// leastPause is that before the first retry if the server does not say how long, or says that it
// need not wait, or until a date that is over. It doubles with each retry.
const leastPause = 100 * time.Millisecond

// maxDrain is how long a retry waits for the rest of a refusal.
const maxDrain = 100 * time.Millisecond

// ErrLimited says that a [Transport] that does not wait ([WithoutWaiting]) has not sent
// a request. It is a [*LimitedError].
var ErrLimited = errors.New("httplimit: over the limit")

// LimitedError is [ErrLimited] with the time after which the request can be sent.
type LimitedError struct {
	Key        string
	RetryAfter time.Duration // above 0; [ratelimit.Never] if it never can; a second if slots are missing
}

func (e *LimitedError) Error() string {
	if e.RetryAfter == ratelimit.Never {
		return fmt.Sprintf("%v: %q never has room", ErrLimited, e.Key)
	}
	return fmt.Sprintf("%v: %q has room in %v", ErrLimited, e.Key, e.RetryAfter)
}

// Is reports whether target is [ErrLimited].
func (e *LimitedError) Is(target error) bool { return target == ErrLimited }

// NewTransport returns a Transport that sends what l admits through base, or through
// [http.DefaultTransport] if base is nil. Its errors wrap [ratelimit.ErrInvalidOption]: l, an
// option or a function is nil, an option is out of range, or has no effect beside another.
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
	if err := guard.Apply(&c.Config, opts, func(o ClientOption) error { return o.client(c) }); err != nil {
		return nil, err
	}
	if c.Refuse && c.retries > 0 {
		return nil, guard.Invalid("WithRetries beside WithoutWaiting, which never waits for one")
	}
	return &Transport{c: *c, base: base}, nil
}

// host returns the host and port that r goes to.
func host(r *http.Request) (string, error) {
	if r.URL == nil || r.URL.Host == "" {
		return "", fmt.Errorf("%w: the request has no host", ErrNoIdentity)
	}
	name := strings.ToLower(r.URL.Host)
	if r.URL.Port() == "" {
		name = strings.TrimSuffix(name, ":") + map[string]string{"http": ":80", "https": ":443"}[r.URL.Scheme]
	}
	return name, nil
}

// RoundTrip sends r when the limiter admits it. An error of the key is returned as it is.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.c.Limiter == nil {
		closeBody(r)
		return nil, guard.Invalid("the zero Transport")
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
		if err != nil || res == nil || !t.heed(key, res, try) || try == t.c.retries {
			return res, err
		}
		again, ok := t.again(r, res, key)
		if !ok {
			return res, nil
		}
		drain(res) // which gives back the slot
		r = again
	}
}

// send sends r, which holds slot, nil if it needs none, until its answer has been read.
func (t *Transport) send(r *http.Request, slot *inflight.Slot) (res *http.Response, err error) {
	if slot == nil {
		return t.base.RoundTrip(r)
	}
	answered := false
	defer func() {
		if !answered { // also if the RoundTripper has panicked
			slot.Release()
		}
	}()
	if res, err = t.base.RoundTrip(r); err != nil || res == nil || res.Body == nil || res.Body == http.NoBody {
		return res, err
	}
	answered = true
	body := &heldBody{res.Body, slot}
	res.Body = body
	if w, ok := body.ReadCloser.(io.Writer); ok { // of 101, Switching Protocols
		res.Body = &switchedBody{body, w}
	}
	return res, nil
}

// switchedBody is a connection that speaks another protocol now.
type switchedBody struct {
	*heldBody
	io.Writer
}

// CloseWrite is the connection's own: what a proxy looks for.
func (b *switchedBody) CloseWrite() error {
	if half, ok := b.Writer.(halfCloser); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// heldBody is that of an answer whose request holds a slot.
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

// CloseIdleConnections closes those of the RoundTripper that sends, if that can:
// [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// admit waits until n events of key are admitted. The slot is nil if the limiter has none.
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

// limited is the error of the denial r. Only of slots it depends on the policies.
func (t *Transport) limited(ctx context.Context, key string, r ratelimit.Result) error {
	if t.c.Holds() {
		d := report.Of(r)
		d.Describe(ctx, t.c.Limiter, key, nil)
		d.Shorten(0)
		r.RetryAfter = d.Result.RetryAfter
	}
	return &LimitedError{key, r.RetryAfter}
}

// heed begins a cooldown of key if res, of that try, says so. It reports whether res is a refusal that can be
// answered by another try: it is 429 or says when to come back, which is not later than maxPause.
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
		d = leastPause << min(try, 20) // some 29 h
	}
	if d = min(d, t.c.MaxPause); t.c.Pauses.Add(key, d) { // none of 0
		t.pauses.Add(1)
		if t.c.onPause != nil {
			t.c.onPause(key, d, field)
		}
	}
	return ok
}

// Pauses says how many pauses servers have begun so far, and how many keys have one now. It is for
// metrics: see promlimit and otellimit.
func (t *Transport) Pauses() (begun int64, now int) {
	if t.c.Pauses == nil { // the zero Transport
		return 0, 0
	}
	return t.pauses.Load(), t.c.Pauses.Len()
}

// again returns r to be sent once more after res, if it can be.
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

// drain reads the rest of a short answer, so that its connection can be used again. A rest
// that takes long is not worth it.
func drain(res *http.Response) {
	if res.Body == nil { // not of net/http's transport; its Client takes that for none
		return
	}
	timer := time.AfterFunc(maxDrain, func() { _ = res.Body.Close() }) // which ends a Read of net/http's
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	_ = res.Body.Close()
}

// closeBody does what a RoundTripper must do for a request that is not sent, too.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
