package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/pause"
)

// Transport is an [http.RoundTripper] that keeps our own calls within somebody else's
// limit: each waits until the limiter admits it, in the order of arrival of its key's calls
// ([ratelimit.Wait], which says also which errors of a store it waits out). What the other side answers counts too:
// after 429 and 503 later calls of the same key, and those that wait already, wait as long as
// Retry-After says (in seconds or as a date) or, if that cannot be read, RateLimit,
// RateLimit-Reset or X-RateLimit-Reset, and at most a minute ([WithMaxPause]). It asks
// nobody again by itself, unless [WithRetries] says so.
//
// A wait ends with the request's context, and if that has a deadline before the end of
// the wait it is not begun: the error is [ratelimit.ErrWouldExceedDeadline] (through
// [http.Client] inside a *url.Error, as all errors). [http.Client.Timeout] counts while
// it waits.
//
// RateLimit fields of other answers do not count: their time is that of the whole quota,
// and there may be a part of it before.
//
// It remembers pauses of at most 4,096 keys; of more it forgets the one that ends first, of
// some that it looks at.
// It starts no goroutine, has nothing to close and is safe for concurrent use. Make it
// by [NewTransport].
type Transport struct {
	base     http.RoundTripper
	limiter  ratelimit.Limiter
	key      func(*http.Request) (string, error)
	denying  bool
	retries  int
	maxPause time.Duration
	pauses   pause.Set
}

// ErrLimited says that a [Transport] that does not wait ([WithoutWaiting]) has not sent
// a request. It is a [*LimitedError].
var ErrLimited = errors.New("httplimit: over the limit")

// LimitedError is [ErrLimited], with the time after which the request can be sent.
type LimitedError struct {
	Key        string
	RetryAfter time.Duration // above 0; [ratelimit.Never] if it never can
}

func (e *LimitedError) Error() string {
	if e.RetryAfter == ratelimit.Never {
		return fmt.Sprintf("%v: %q never has room", ErrLimited, e.Key)
	}
	return fmt.Sprintf("%v: %q has room in %v", ErrLimited, e.Key, e.RetryAfter)
}

// Is is whether target is [ErrLimited].
func (e *LimitedError) Is(target error) bool { return target == ErrLimited }

// TransportOption sets what is optional about a [Transport].
type TransportOption func(*Transport) error

// WithTransportKey says which requests share a limit, in place of those to the same
// host and port: f is the key in the limiter. An error of f is that of the request,
// which is not sent. f must not put secrets into keys, which errors tell.
func WithTransportKey(f func(r *http.Request) (string, error)) TransportOption {
	return func(t *Transport) error {
		t.key = f
		return given(f != nil, "WithTransportKey")
	}
}

// WithoutWaiting fails with [ErrLimited], in place of waiting, if a request cannot be
// sent now. The Delay of a leaky bucket is no reason, and is not waited for.
func WithoutWaiting() TransportOption {
	return func(t *Transport) error {
		t.denying = true
		return nil
	}
}

// WithMaxPause is the most that an answer can make later calls wait, above 0, in place
// of a minute. After it they ask again.
func WithMaxPause(d time.Duration) TransportOption {
	return func(t *Transport) error {
		if d <= 0 {
			return fmt.Errorf("%w: WithMaxPause(%v)", ratelimit.ErrInvalidOption, d)
		}
		t.maxPause = d
		return nil
	}
}

// WithRetries sends a request up to n times more, 0 to 100, where the answer says when to
// come back: after 429, and after 503 if the method is idempotent or the request has an
// Idempotency-Key. Each time is charged and waits as the first. A request is not sent
// again if its body cannot be had again ([http.Request.GetBody]). With [WithoutWaiting]
// there are no retries, and an answer whose pause is longer than the context has time is
// returned as it is.
func WithRetries(n int) TransportOption {
	return func(t *Transport) error {
		if n < 0 || n > 100 {
			return fmt.Errorf("%w: WithRetries(%d): 0 to 100", ratelimit.ErrInvalidOption, n)
		}
		t.retries = n
		return nil
	}
}

// NewTransport returns a Transport that sends through base, [http.DefaultTransport] if
// that is nil, what l admits. Its error is [ratelimit.ErrInvalidOption]: l or what is
// given to an option is nil or out of range.
func NewTransport(base http.RoundTripper, l ratelimit.Limiter, opts ...TransportOption) (*Transport, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	if base == nil {
		base = http.DefaultTransport
	}
	if isnil.Is(base) {
		return nil, fmt.Errorf("%w: the RoundTripper is nil", ratelimit.ErrInvalidOption)
	}
	t := &Transport{base: base, limiter: l, key: host, maxPause: time.Minute}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: a TransportOption is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(t); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// host is the host and port that r goes to.
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

// RoundTrip sends r when there is room for it.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, err := t.keyOf(r)
	for try := 0; ; try++ {
		if err == nil {
			err = t.admit(r.Context(), key)
		}
		if err != nil {
			closeBody(r)
			return nil, err
		}
		res, err := t.base.RoundTrip(r)
		if err != nil || !t.heed(key, res) || try == t.retries {
			return res, err
		}
		again, ok := t.again(r, res, key)
		if !ok {
			return res, nil
		}
		drain(res)
		r = again
	}
}

func (t *Transport) keyOf(r *http.Request) (string, error) {
	if t.limiter == nil {
		return "", fmt.Errorf("%w: a Transport is made by its constructor", ratelimit.ErrInvalidOption)
	}
	return t.key(r)
}

// admit waits until a request of key can be sent.
func (t *Transport) admit(ctx context.Context, key string) error {
	for {
		if err := t.waitPause(ctx, key); err != nil {
			return err
		}
		r, err := t.charge(ctx, key)
		if err != nil || t.pauses.Left(key) <= 0 {
			return err
		}
		// A pause has begun meanwhile. All that kept its charge until the end of it would be
		// sent at once then. An error leaves the charge of what was not sent: it ends by itself.
		_ = t.limiter.Refund(context.WithoutCancel(ctx), key, r, 1)
	}
}

// charge is the limiter's admission.
func (t *Transport) charge(ctx context.Context, key string) (ratelimit.Result, error) {
	if !t.denying {
		return ratelimit.Wait(ctx, t.limiter, key, 1)
	}
	r, err := t.limiter.Allow(ctx, key)
	if err == nil && !r.Allowed {
		err = &LimitedError{key, r.RetryAfter}
	}
	return r, err
}

// waitPause waits until key has no pause.
func (t *Transport) waitPause(ctx context.Context, key string) error {
	if !t.denying {
		return t.pauses.Wait(ctx, key)
	}
	if left := t.pauses.Left(key); left > 0 {
		return &LimitedError{key, left}
	}
	return nil
}

// heed lets later calls of key wait, if res says so.
func (t *Transport) heed(key string, res *http.Response) bool {
	if res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusServiceUnavailable {
		return false
	}
	d, ok := comeBack(res.Header, time.Now())
	t.pauses.Add(key, min(d, t.maxPause)) // none of 0
	return ok
}

// again is r to be sent once more after res, if it can be.
func (t *Transport) again(r *http.Request, res *http.Response, key string) (*http.Request, bool) {
	deadline, limited := r.Context().Deadline()
	switch {
	case t.denying,
		limited && t.pauses.Left(key) >= time.Until(deadline),
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

// drain reads what is left of a short answer, so that its connection can be used again.
func drain(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	_ = res.Body.Close()
}

// closeBody does what a RoundTripper must also for a request that is not sent.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
