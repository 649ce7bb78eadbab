package httplimit

import (
	"net/http"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// Option sets what is optional about the middleware and about a [Transport]. Where options
// contradict each other, the last one counts.
type Option interface {
	ServerOption
	ClientOption
}

// ServerOption sets what is optional about the middleware.
type ServerOption interface{ server(*config) error }

// ClientOption sets what is optional about a [Transport].
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

// DeniedHandler answers a request that the limiter has denied. The header fields are set
// already: those of the styles, Retry-After, and Cache-Control: no-store. A handler that
// serves something else than a refusal may change them. next is the protected handler.
// [WriteProblem] is the default.
type DeniedHandler func(w http.ResponseWriter, r *http.Request, next http.Handler, d Decision)

// ErrorHandler answers a request on which no decision is known. next is the protected
// handler: next.ServeHTTP(w, r) lets the request through uncounted, unless err is one of the
// configuration. Do not quote err, which may name keys. [WriteError] is the default.
type ErrorHandler func(w http.ResponseWriter, r *http.Request, next http.Handler, err error)

// config is what the middleware and a Transport have in common, and what one of them has.
type config struct {
	guard.Config[*http.Request]

	styles    HeaderStyle // of the middleware
	denied    DeniedHandler
	keyFailed ErrorHandler
	failed    ErrorHandler
	refund    func(status int) bool
	asks      bool       // whether the limiter may use the context
	spent     *sync.Pool // of slots that nobody else has seen

	onPause   func(key string, d time.Duration, field string) // of a Transport
	retries   int                                             // too
	remaining bool                                            // too
}

func newConfig(l ratelimit.Limiter, key Key) (*config, error) {
	c, err := guard.New(l, key.key)
	c.MaxPause = time.Minute
	return &config{Config: c, styles: defaultStyles}, err
}

// WithKey sets which requests are counted together. The default of the middleware is
// [PeerIP]; that of a [Transport] is the host and port of the URL.
func WithKey(k Key) Option {
	return option(func(c *config) error { return c.WithKey(k.key) })
}

// WithClientAddr sets where limiters that decide by the client's address find it, such as those
// of package accesslist. k is a [PeerIP] or a [ClientIP], or has one inside of a [First] or
// [Combined]. The first one counts. The default is that of the middleware's own Key. It is
// needed where that has none, as with
//
//	WithKey(User(login)), WithClientAddr(ClientIP([]string{"10.0.0.7"}))
//
// It is overridden by an address that [clientaddr.NewContext] has put into the request's
// context.
func WithClientAddr(k Key) ServerOption {
	return serverOption(func(c *config) error { return c.WithClientAddr(k.key) })
}

// WithCost charges f(r) events for a request. The default is 1. A cost of 0 skips the
// limiter, with its lists and bans, and a negative one is [ratelimit.ErrInvalidN]. A cost above the limit is never
// admitted, so bound what clients can choose. f must be safe for concurrent use.
func WithCost(f func(r *http.Request) int) Option {
	return option(func(c *config) error {
		c.Cost = f
		return guard.Given(f != nil, "WithCost")
	})
}

// WithSkip bypasses the limiter for requests for which f returns true: health checks,
// internal networks. There is no key, no decision and no header field for them. f must be
// safe for concurrent use.
func WithSkip(f func(r *http.Request) bool) Option {
	return option(func(c *config) error {
		c.Skip = f
		return guard.Given(f != nil, "WithSkip")
	})
}

// WithKeyErrorHandler lets h answer requests whose key is not known; see [Key] for the
// errors. The default is [WriteError].
func WithKeyErrorHandler(h ErrorHandler) ServerOption {
	return serverOption(func(c *config) error {
		c.keyFailed = h
		return guard.Given(h != nil, "WithKeyErrorHandler")
	})
}

// WithErrorHandler lets h answer requests when the limiter has an error, such as
// [ratelimit.ErrStore]. The default is [WriteError]. A client that has gone is not such an
// error.
//
// A handler that calls next fails open. A fallback around the limiter does that too, has
// other answers to an outage, and spares the store. For an error of the configuration, such as a
// deny list without an address, next is [WriteError]: it lets nobody through, and the server's
// ErrorLog says why.
func WithErrorHandler(h ErrorHandler) ServerOption {
	return serverOption(func(c *config) error {
		c.failed = h
		return guard.Given(h != nil, "WithErrorHandler")
	})
}

// WithDeniedHandler lets h answer requests that the limiter denies. The default is
// [WriteProblem].
func WithDeniedHandler(h DeniedHandler) ServerOption {
	return serverOption(func(c *config) error {
		c.denied = h
		return guard.Given(h != nil, "WithDeniedHandler")
	})
}

// WithPlainText answers denied requests with a line of plain text: [WritePlainText].
func WithPlainText() ServerOption {
	return WithDeniedHandler(func(w http.ResponseWriter, _ *http.Request, _ http.Handler, d Decision) { WritePlainText(w, d) })
}

// WithRefund gives back what a request was charged if f returns true for the status of its
// answer. WithRefund([Failed]) does not count what fails by the server's fault. WithRefund([Successful])
// counts only failures, such as guesses at a password. An f that is true for 4xx lets a client that
// asks for what is not there make any number of requests.
//
// A request is charged before it is served, so that many at once cannot exceed the limit.
// It is refunded when the handler has returned, even if the client has gone. The answer's
// fields are those before the refund. An error of the refund is dropped, and the charge
// stands. A [ratelimit.LeakyBucket] takes only back what is last in its queue.
//
// The status is the one written: 101 for a connection that the handler took over (hijacked), and
// 500 if it panicked first. In place of 400 and above it is 499 if the client has hung up before
// the handler returned. It is 499 too if the client's body could not be read, as one that is cut
// off or has broken chunks. An f that is true for 499 lets a client that always does so make any
// number of requests. Behind a [net/http/httputil.ReverseProxy] each would be a 502. Failed and
// Successful are false for it. The handler gets another ResponseWriter, with the same optional
// methods, and another Body, at the price of some allocations. A body that is too large for an
// [http.MaxBytesReader] ends the connection, as it does with the server's own ResponseWriter.
//
// Put [http.MaxBytesHandler] and [http.TimeoutHandler] around the middleware. Inside, a ReverseProxy
// answers 502 to a body that is too large, and a timeout 503 to work that still runs: Failed refunds both.
//
// Nothing is given back if the handler returns without having written to that ResponseWriter. A
// framework may have answered past it: docs/http.md shows how to put the middleware into some.
// The server's ErrorLog says so once. [Decision.Refund] does not depend on it.
func WithRefund(f func(status int) bool) ServerOption {
	return serverOption(func(c *config) error {
		c.refund = f
		return guard.Given(f != nil, "WithRefund")
	})
}

// WithHeaders selects the header styles. The default is [Legacy] and [Draft10]. There must
// be at least one; see [WithoutHeaders].
func WithHeaders(styles ...HeaderStyle) ServerOption {
	return serverOption(func(c *config) error {
		c.styles = 0
		for _, s := range styles {
			if s > Legacy|Draft10|Draft7|Draft6 {
				return guard.Invalid("WithHeaders(%d): no such style", s)
			}
			c.styles |= s
		}
		if c.styles == 0 {
			return guard.Invalid("WithHeaders without a style")
		}
		if c.styles&Draft10 != 0 && c.styles&(Draft7|Draft6) != 0 {
			return guard.Invalid("WithHeaders: Draft10 and an older draft have fields of one name")
		}
		return nil
	})
}

// WithoutHeaders leaves out the header fields that report the limits. A refusal still says
// when to come back, in Retry-After. It saves time.
func WithoutHeaders() ServerOption {
	return serverOption(func(c *config) error {
		c.styles = 0
		return nil
	})
}

// WithContext puts the [Decision] into the context that the handler gets, for
// [FromContext] and [Decision.Refund], and the address of the client, for [clientaddr.FromContext]. It costs some
// 600 bytes in three allocations a request, since net/http has to copy the request.
func WithContext() ServerOption {
	return serverOption(func(c *config) error {
		c.InContext = true
		return nil
	})
}

// WithSlots sets what is optional about the slots that requests hold: [inflight.Longest], and
// [inflight.OnEnd], which is told how each has ended, and of one that is lost. It is
// [ratelimit.ErrInvalidOption] if the limiter counts no slots (package inflight).
func WithSlots(opts ...inflight.Option) Option {
	return option(func(c *config) error { return c.WithSlots(opts) })
}

// WithSlotRetryAfter sets the Retry-After of a request that slots alone deny, above 0. The default
// is a second. Nobody knows when a slot is given back: the RetryAfter of the Result is the end of
// one that nobody gives back. It is [ratelimit.ErrInvalidOption] if the limiter counts no slots.
func WithSlotRetryAfter(d time.Duration) ServerOption {
	return serverOption(func(c *config) error { return c.WithSlotRetryAfter(d) })
}

// WithCancelLost ends the context of a request whose slot is lost, with the cause
// [inflight.ErrLost]. By default the handler goes on: an outage of the store that is longer than
// the life of a slot would end all requests. A connection that was taken over goes on in any case.
// It is [ratelimit.ErrInvalidOption] if the limiter counts no slots.
func WithCancelLost() ServerOption {
	return serverOption(func(c *config) error {
		c.CancelLost = true
		return nil
	})
}

// WithoutWaiting refuses a request that cannot be sent now with [ErrLimited] instead of
// waiting. The Delay of a leaky bucket is no reason to refuse, and is not waited for. Beside
// [inflight.WaitUpTo] it is refused.
func WithoutWaiting() ClientOption {
	return clientOption(func(c *config) error {
		c.Refuse = true
		return nil
	})
}

// WithMaxPause sets the longest time, above 0, for which a server can make later requests
// wait. The default is a minute. After it the client asks again.
func WithMaxPause(d time.Duration) ClientOption {
	return clientOption(func(c *config) error { return c.WithMaxPause(d) })
}

// WithRemaining makes later requests wait as soon as an answer reports that nothing is left of a limit, as they would
// after a refusal, so that they are not refused. By default only refusals begin a pause. The pause ends when the answer says that
// there is room again, at most after [WithMaxPause]. If nothing is left of several limits it ends when the last of them has room.
// Requests that are on their way when the answer arrives can still be refused.
//
// Answers of every status count, such as the 403 by which GitHub refuses. For a 429 or 503 these fields count only
// if the answer does not say otherwise when to come back. Times are read as in Retry-After, or as durations such as 6m0s and
// 120ms, or as times of RFC 3339:
//
//   - RateLimit of the IETF's drafts 7 to 10, and RateLimit-Remaining with RateLimit-Reset of draft 6. A limit whose unit
//     in RateLimit-Policy is concurrent-requests is ignored, because it has room as soon as a request ends.
//   - X-RateLimit-Remaining with X-RateLimit-Reset, unless one of the fields above reports that nothing is left: then they
//     report the same limit.
//   - Each other field whose name has RateLimit or Rate-Limit and then Remaining, with the field that has Reset in its
//     place, such as x-ratelimit-remaining-tokens (OpenAI) and anthropic-ratelimit-requests-remaining.
//
// A pause begins only if the number is 0 and there is a time. It does not begin after a negative number, after an answer with an Age,
// which comes from a cache, by a field in the trailer, or after a request that is not counted ([WithSkip], or a cost of 0). The option
// has no effect if a server reports none of these fields: see [Transport.Pauses] and [WithOnPause].
//
// Use a [WithKey] that gives each quota of the server a key of its own. If a server counts searches apart, and the key is the
// host, all requests wait when the searches are used up.
//
// Many servers report when the whole quota is back, rather than when there is room for one request. Then the requests go in
// bursts, with the same throughput. It is half as much if the server estimates a sliding window, as [ratelimit.SlidingWindow] does.
// Most fields count in whole seconds, so a pause takes at least a second. Do not use the option if the server
// admits requests sooner and its burst is less than what it admits in a second.
func WithRemaining() ClientOption {
	return clientOption(func(c *config) error {
		c.remaining = true
		return nil
	})
}

// WithOnPause calls f when a server makes the requests of a key wait for d, such as to log it. The field is the header
// field that said so, in the form of [http.CanonicalHeaderKey]: Retry-After, Ratelimit, or with [WithRemaining] one such as
// X-Ratelimit-Remaining-Tokens. It is empty for a refusal that does not say when to come back. The server chooses the end of
// such a name, of at most 100 bytes, so do not make it the label of a metric. f is
// not told of a later answer that only makes a pause longer. f is called before the answer is
// returned. It must be fast and safe for concurrent use. [Transport.Pauses] counts them.
func WithOnPause(f func(key string, d time.Duration, field string)) ClientOption {
	return clientOption(func(c *config) error {
		c.onPause = f
		return guard.Given(f != nil, "WithOnPause")
	})
}

// WithRetries sends a request again up to n times, 0 to 100. It does so after 429. After 503 it
// does so if the answer says when to come back, and if the method is idempotent or the request
// has an Idempotency-Key. The default is 0.
//
// Each time is charged and waits like the first. A 429 may not say when to come back, or an
// answer may say at once. Then the pause is a tenth of a second before the first retry, and
// doubles with each, up to [WithMaxPause]. A request is not sent again if its body cannot be had
// again ([http.Request.GetBody]), or if the server asks for a pause longer than its context lasts or
// than WithMaxPause: the answer is returned then. [WithoutWaiting] beside it is refused.
func WithRetries(n int) ClientOption {
	return clientOption(func(c *config) error {
		if n < 0 || n > 100 {
			return guard.Invalid("WithRetries(%d): 0 to 100", n)
		}
		c.retries = n
		return nil
	})
}
