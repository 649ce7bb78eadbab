package httplimit

import (
	"net/http"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/options"
)

// Option configures both the middleware and a [Transport]. If options contradict each other, the
// last one counts.
type Option interface {
	ServerOption
	ClientOption
}

// ServerOption configures the middleware. If options contradict each other, the last one counts.
type ServerOption interface{ server(*config) error }

// ClientOption configures a [Transport]. If options contradict each other, the last one counts.
type ClientOption interface{ client(*config) error }

type (
	option       func(*config) error
	serverOption func(*config) error
	clientOption func(*config) error
)

func (o option) server(c *config) error       { return o(c) }
func (o option) client(c *config) error       { return o(c) }
func (o serverOption) server(c *config) error { return o(c) }
func (o clientOption) client(c *config) error { return o(c) }

// DeniedHandler answers a request that the limiter has denied. The header fields are already set:
// those of the header styles, Retry-After, and Cache-Control: no-store. A handler that serves
// something other than a refusal may change them. next is the protected handler. The default is
// [WriteProblem].
type DeniedHandler func(w http.ResponseWriter, r *http.Request, next http.Handler, d Decision)

// ErrorHandler answers a request for which there is no decision. next is the protected handler:
// next.ServeHTTP(w, r) lets the request through uncounted, unless err is a configuration error. Do
// not show err to clients, because it may contain keys. The default is [WriteError].
type ErrorHandler func(w http.ResponseWriter, r *http.Request, next http.Handler, err error)

// config is the configuration of the middleware or of a Transport.
type config struct {
	guard.Config[*http.Request]

	styles    HeaderStyle // of the middleware
	denied    DeniedHandler
	keyFailed ErrorHandler
	failed    ErrorHandler
	refund    func(status int) bool
	asks      bool       // whether the limiter may use the context
	spent     *sync.Pool // unused slots that nothing else refers to

	onPause   func(key string, d time.Duration, field string) // for a Transport
	retries   int                                             // for a Transport
	remaining bool                                            // for a Transport
}

func newConfig(l ratelimit.Limiter, key Key) (*config, error) {
	c, err := guard.New(l, key.key)
	c.MaxPause = time.Minute
	return &config{Config: c, styles: defaultStyles}, err
}

// WithKey sets which requests are counted together. The default is [PeerIP] for the middleware, and
// the host and port of the URL for a [Transport].
func WithKey(k Key) Option {
	return option(func(c *config) error { return c.WithKey(k.key) })
}

// WithClientAddr sets how to find the client's address for limiters that decide by it, such as
// those of package accesslist. k is a [PeerIP] or a [ClientIP], or a [First] or [Combined] that
// contains one. If it contains several, the first one counts. By default, the middleware takes it from its own Key.
// You need WithClientAddr if that Key contains no address, as in
//
//	WithKey(User(login)), WithClientAddr(ClientIP([]string{"10.0.0.7"}))
//
// An address that [clientaddr.NewContext] has put into the request's context takes precedence.
func WithClientAddr(k Key) ServerOption {
	return serverOption(func(c *config) error { return c.WithClientAddr(k.key) })
}

// WithCost charges f(r) events for a request. The default is 1. If the cost is 0, the request
// bypasses the limiter, including its lists and bans. A negative cost is [ratelimit.ErrInvalidN]. A
// cost above the limit is never admitted, so bound what clients can choose. f must be safe for
// concurrent use.
func WithCost(f func(r *http.Request) int) Option {
	return option(options.Checked(options.Given("WithCost", f != nil), func(c *config) { c.Cost = f }))
}

// WithSkip lets requests for which f returns true bypass the limiter, such as health checks or
// requests from internal networks. They have no key, no decision and no header fields. f must be
// safe for concurrent use.
func WithSkip(f func(r *http.Request) bool) Option {
	return option(options.Checked(options.Given("WithSkip", f != nil), func(c *config) { c.Skip = f }))
}

// WithKeyErrorHandler lets h answer requests whose key cannot be determined; see [Key] for the
// errors. The default is [WriteError].
func WithKeyErrorHandler(h ErrorHandler) ServerOption {
	return serverOption(options.Checked(options.Given("WithKeyErrorHandler", h != nil), func(c *config) { c.keyFailed = h }))
}

// WithErrorHandler lets h answer requests if the limiter returns an error, such as
// [ratelimit.ErrStore]. The default is [WriteError]. h is not called if the client has
// disconnected, or if the request's deadline has passed.
//
// A handler that calls next fails open. A fallback that wraps the limiter can do that too; it also
// has other answers to an outage, and does not call a store that is down. For a configuration
// error, such as a deny list without an address, next is [WriteError]. It lets nobody through, and
// the reason is in the server's ErrorLog.
func WithErrorHandler(h ErrorHandler) ServerOption {
	return serverOption(options.Checked(options.Given("WithErrorHandler", h != nil), func(c *config) { c.failed = h }))
}

// WithDeniedHandler lets h answer requests that the limiter denies. The default is
// [WriteProblem].
func WithDeniedHandler(h DeniedHandler) ServerOption {
	return serverOption(options.Checked(options.Given("WithDeniedHandler", h != nil), func(c *config) { c.denied = h }))
}

// WithRefund refunds a request's charge if f returns true for the status of the response.
// WithRefund([Failed]) refunds requests that fail through the server's fault.
// WithRefund([Successful]) counts only failures, such as wrong passwords. If f returns true for any
// 4xx status, a client can make any number of requests for things that do not exist.
//
// A request is charged before it is served, so that concurrent requests cannot exceed the limit.
// The refund is made when the handler has returned, even if the client has disconnected. The header
// fields show the state before the refund. If the refund fails, its error is dropped and the charge
// stands. A [ratelimit.LeakyBucket] can refund only the last events in its queue. Slots (package
// inflight) are released in any case, so a limiter of slots alone is refused with
// [ratelimit.ErrInvalidOption].
//
// The status is the one that the handler wrote, with these exceptions:
//
//   - 101 if the handler took over (hijacked) the connection
//   - 500 if the handler panicked before it wrote a status
//   - 499 instead of any status from 400, if the client disconnected before the handler returned,
//     or if its body could not be read. [Failed] and [Successful] return false for 499, because
//     clients can cause it as often as they like.
//
// The handler gets a different ResponseWriter, with the same optional methods, and a different
// Body, which costs a few allocations. Put [http.MaxBytesHandler] and [http.TimeoutHandler] outside
// the middleware; docs/http.md explains why.
//
// If the handler returns without having written to that ResponseWriter, nothing is refunded, and
// the server's ErrorLog says so once. Some frameworks write past it; see docs/http.md.
// [Decision.Refund] does not depend on the ResponseWriter.
func WithRefund(f func(status int) bool) ServerOption {
	return serverOption(options.Checked(options.Given("WithRefund", f != nil), func(c *config) { c.refund, c.Refunds = f, true }))
}

// WithHeaders selects the header styles, at least one. The default is [Legacy] and [Draft10]. To
// write no fields, use [WithoutHeaders].
func WithHeaders(styles ...HeaderStyle) ServerOption {
	return serverOption(func(c *config) error {
		c.styles = 0
		for _, s := range styles {
			if s > Legacy|Draft10 {
				return guard.Invalid("WithHeaders(%d): no such style", s)
			}
			c.styles |= s
		}
		if c.styles == 0 {
			return guard.Invalid("WithHeaders: want at least one style, or use WithoutHeaders")
		}
		return nil
	})
}

// WithoutHeaders leaves out the header fields that report the limits, which saves time. A refusal
// still has a Retry-After.
func WithoutHeaders() ServerOption {
	return serverOption(options.Set(func(c *config) { c.styles = 0 }))
}

// WithContext puts the [Decision] into the context that the handler gets, for [FromContext] and
// [Decision.Refund]. It also puts the client's address there, for [clientaddr.FromContext]. It
// costs about 600 bytes in three allocations per request, because net/http has to copy the request.
func WithContext() ServerOption {
	return serverOption(options.Set(func(c *config) { c.InContext = true }))
}

// WithSlots configures the slots that requests hold by options of [inflight.Hold], such as
// [inflight.Longest], or [inflight.OnEnd], which reports how each slot ended, and when a slot is
// lost. With [inflight.WaitUpTo], requests wait for a slot. It returns
// [ratelimit.ErrInvalidOption] if the limiter counts no slots (package inflight).
func WithSlots(opts ...inflight.Option) Option {
	return option(func(c *config) error { return c.WithSlots(opts) })
}

// WithSlotRetryAfter sets the Retry-After of a request that is denied by slots alone, above 0. The
// default is 1 s. It is a guess, because nobody knows when a slot will be released: the RetryAfter
// of the Result is when a slot would expire if it is never released. WithSlotRetryAfter returns
// [ratelimit.ErrInvalidOption] if the limiter counts no slots.
func WithSlotRetryAfter(d time.Duration) ServerOption {
	return serverOption(options.Checked(options.Positive("WithSlotRetryAfter", d), func(c *config) { c.SlotRetry = d }))
}

// WithCancelLost cancels the context of a request whose slot is lost, with the cause
// [inflight.ErrLost]. By default the handler continues, because otherwise a store outage longer
// than a slot's lifetime would end all requests. A connection that was taken over is not affected.
// WithCancelLost returns [ratelimit.ErrInvalidOption] if the limiter counts no slots.
func WithCancelLost() ServerOption {
	return serverOption(options.Set(func(c *config) { c.CancelLost = true }))
}

// WithoutWaiting makes a Transport return [ErrLimited] instead of waiting if a request cannot be
// sent now. It neither waits for the Delay of a leaky bucket nor refuses because of it. It cannot
// be combined with [inflight.WaitUpTo].
func WithoutWaiting() ClientOption {
	return clientOption(options.Set(func(c *config) { c.Refuse = true }))
}

// WithMaxPause sets the longest time, above 0, for which one response of a server can make later
// requests wait. The default is a minute. After that, the next request is sent even if the server
// asked for more.
func WithMaxPause(d time.Duration) ClientOption {
	return clientOption(options.Checked(options.Positive("WithMaxPause", d), func(c *config) { c.MaxPause = d }))
}

// WithRemaining makes later requests wait as soon as a response reports that nothing is left of a
// limit, so that they are not refused. By default, only refusals begin a pause. The pause ends when
// the server says that there is room again, but after [WithMaxPause] at the latest. If nothing is
// left of several limits, the last one to have room counts. Requests in flight can still be
// refused.
//
// Responses of any status count, such as the 403 with which GitHub refuses. A time can have any
// form that is accepted in Retry-After, such as 30, 6m0s, or an RFC 3339 time. These fields are
// read, but for a 429 or 503 only if it does not otherwise say when to come back:
//
//   - RateLimit of the IETF drafts 7 to 10, except for limits whose unit in RateLimit-Policy is
//     concurrent-requests, and the RateLimit-Remaining and RateLimit-Reset of draft 6
//   - X-RateLimit-Remaining with X-RateLimit-Reset, unless the fields above report that nothing is
//     left, because they report the same limit
//   - any other field whose name contains RateLimit or Rate-Limit, and then Remaining, with the
//     field that has Reset in its place
//
// A pause begins only if the remaining number is 0 and a time is given. Trailers are ignored, and
// so are responses from a cache, which have an Age above 0, and responses to uncounted requests
// ([WithSkip], or a cost of 0).
//
// Use a [WithKey] that gives each quota of the server its own key. Otherwise one exhausted quota,
// such as for searches, stops all requests to the host. Most fields count in whole seconds, so a
// pause takes at least a second. Do not use WithRemaining if the server's burst is smaller than
// what it admits per second. docs/client.md has more.
func WithRemaining() ClientOption {
	return clientOption(options.Set(func(c *config) { c.remaining = true }))
}

// WithOnPause calls f when a server makes the requests of a key wait for d, for example to log it.
// The argument field is the header field that caused the pause, in the form of
// [http.CanonicalHeaderKey], such as Retry-After, Ratelimit, or with [WithRemaining]
// X-Ratelimit-Remaining-Tokens. It is empty for a refusal that does not say when to come back. The
// server chooses the end of such a name, up to 100 bytes, so do not use it as a metric label.
//
// f is not called when a later response only extends a pause. f is called before the response is
// returned, so it must be fast, and it must be safe for concurrent use. [Transport.Pauses] counts
// the pauses.
func WithOnPause(f func(key string, d time.Duration, field string)) ClientOption {
	return clientOption(options.Checked(options.Given("WithOnPause", f != nil), func(c *config) { c.onPause = f }))
}

// WithRetries sends a refused request again, up to n times, 0 to 100. The default is 0. A request
// is sent again after a 429. After a 503 it is sent again if the response says when to come back,
// and the method is idempotent or the request has an Idempotency-Key.
//
// Each retry is charged and waits like the first attempt. If a 429 does not say when to come back,
// or a response says immediately, the pause is 100 ms before the first retry and doubles with each
// further one, up to [WithMaxPause].
//
// The refusal is returned instead if the request's body cannot be read again
// ([http.Request.GetBody]), or if the server asks for a pause that is longer than WithMaxPause or
// ends after the deadline of the request's context. If the limiter admits the retry only after that
// deadline, the error is [ratelimit.ErrWouldExceedDeadline]. WithRetries cannot be combined with [WithoutWaiting].
func WithRetries(n int) ClientOption {
	return clientOption(options.Checked(options.Within("WithRetries", n, 0, 100), func(c *config) { c.retries = n }))
}
