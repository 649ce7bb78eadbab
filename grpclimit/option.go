package grpclimit

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/cooldown"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// Option sets what is optional about an interceptor of a server or of a client. Where
// options contradict each other, the last one counts.
type Option interface {
	ServerOption
	ClientOption
}

// ServerOption sets what is optional about an interceptor of a server.
type ServerOption interface{ server(*config) error }

// ClientOption sets what is optional about an interceptor of a client.
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

// DeniedHandler answers a call that the limiter has denied. The error that it returns is the
// call's, and should be made by package status; nil lets the call through. The header
// metadata is set already. [DeniedStatus] is the default.
type DeniedHandler func(ctx context.Context, fullMethod string, d Decision) error

// ErrorHandler answers a call on which no decision is known. The error that it returns is the
// call's, and should be made by package status; nil lets the call through uncounted, unless err is
// one of the configuration. Do not quote err, which may name keys. [ErrorStatus] is the default:
// then package grpclog is told err, once a minute, unless the client has caused it.
type ErrorHandler func(ctx context.Context, fullMethod string, err error) error

// config is what the four interceptors have in common, and what some of them have.
type config struct {
	guard.Config[call]

	keyFailed ErrorHandler
	failed    ErrorHandler
	refund    func(codes.Code) bool // nil unless set

	unset, down guard.Alarm // what is not set up correctly, and why else there is no decision

	addr     func(ctx context.Context) netip.Addr // of a server: Addr, if it is not nil
	denied   DeniedHandler                        // of a server, nil unless set
	headers  bool                                 // of a server
	messages bool                                 // of a server's streams
}

func newConfig(l ratelimit.Limiter, key Key) (*config, error) {
	g, err := guard.New(l, key.key)
	c := &config{Config: g, headers: true}
	c.keyFailed, c.failed = c.standard, c.standard
	return c, err
}

// WithKey sets which calls are counted together. The default of a server is [PeerIP]; that
// of a client is [Global].
func WithKey(k Key) Option {
	return option(func(c *config) error { return c.WithKey(k.key) })
}

// WithClientAddr sets where limiters that decide by the client's address find it, such as those
// of package accesslist. k is a [PeerIP] or a [ClientIP], or has one inside of a [First] or
// [Combined]. The first one counts. The default is that of the interceptor's own Key. It is
// needed where that has none, as with
//
//	WithKey(User(login)), WithClientAddr(ClientIP([]string{"10.0.0.7"}))
//
// It is overridden by an address that [clientaddr.NewContext] has put into the call's context.
func WithClientAddr(k Key) ServerOption {
	return serverOption(func(c *config) error { return c.WithClientAddr(k.key) })
}

// WithCost charges f(ctx, fullMethod, msg) events for a call. The default is 1. A cost of 0
// skips the limiter, and a negative one is [ratelimit.ErrInvalidN]. A cost above the limit
// is never admitted, so bound what clients can choose. f must be safe for concurrent use.
//
// msg is the request of a unary call, nil at the opening of a stream, and each message
// received where [WithMessages] counts them.
func WithCost(f func(ctx context.Context, fullMethod string, msg any) int) Option {
	return option(func(c *config) error {
		c.Cost = func(of call) int { return f(of.ctx, of.fullMethod, of.msg) }
		return guard.Given(f != nil, "WithCost")
	})
}

// WithSkip bypasses the limiter for calls for which f returns true, such as those of
// [HealthAndReflection]. There is no key, no decision and no metadata for them. f must be
// safe for concurrent use.
func WithSkip(f func(ctx context.Context, fullMethod string) bool) Option {
	return option(func(c *config) error {
		c.Skip = func(of call) bool { return f(of.ctx, of.fullMethod) }
		return guard.Given(f != nil, "WithSkip")
	})
}

// HealthAndReflection is true for the methods of grpc.health.v1 and grpc.reflection,
// for [WithSkip].
func HealthAndReflection(_ context.Context, fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/") ||
		strings.HasPrefix(fullMethod, "/grpc.reflection.")
}

// WithKeyErrorHandler lets h answer calls whose key is not known; see [Key] for the errors.
// The default is [ErrorStatus].
func WithKeyErrorHandler(h ErrorHandler) Option {
	return option(func(c *config) error {
		c.keyFailed = h
		return guard.Given(h != nil, "WithKeyErrorHandler")
	})
}

// WithErrorHandler lets h answer calls when the limiter has an error, such as
// [ratelimit.ErrStore]. The default is [ErrorStatus]. The end of the call's own context is
// not such an error: that is [codes.Canceled] or [codes.DeadlineExceeded].
//
// A handler that returns nil fails open. A fallback around the limiter does that too, has
// other answers to an outage, and spares the store. For an error of the configuration, such as a
// deny list without an address, nil becomes [ErrorStatus], and package grpclog is told why.
func WithErrorHandler(h ErrorHandler) Option {
	return option(func(c *config) error {
		c.failed = h
		return guard.Given(h != nil, "WithErrorHandler")
	})
}

// WithDeniedHandler lets h answer calls that the limiter denies. The default is
// [DeniedStatus].
func WithDeniedHandler(h DeniedHandler) ServerOption {
	return serverOption(func(c *config) error {
		c.denied = h
		return guard.Given(h != nil, "WithDeniedHandler")
	})
}

// WithRefund gives back what a call was charged if f returns true for the code that it ends
// with. WithRefund([Failed]) does not count what fails by the server's fault. WithRefund([Successful])
// counts only failures, such as guesses at a password.
//
// A call is charged before it is served, so that many at once cannot exceed the limit. It is
// refunded when the handler has returned, even if the client has gone. The metadata is that
// before the refund. An error of the refund is dropped, and the charge stands. The refund's
// context does not end, so give the store a timeout.
//
// A handler that panics ends with [codes.Internal]. On a server the code of an error is
// [codes.Canceled] if the client has cancelled the call before, or its deadline was over. An f
// that is true for it lets a client that always cancels make any number of calls. Failed and
// Successful are false for it. Of a stream the opening is refunded, and
// messages ([WithMessages]) are not. A client's stream ends when RecvMsg says so: one that
// is abandoned before is not refunded.
func WithRefund(f func(code codes.Code) bool) Option {
	return option(func(c *config) error {
		c.refund = f
		return guard.Given(f != nil, "WithRefund")
	})
}

// Failed reports whether code is an error of the server: [codes.Unknown], which is that of an error
// without a code, DeadlineExceeded, Internal, Unavailable or DataLoss. See [WithRefund].
func Failed(code codes.Code) bool {
	switch code {
	case codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// Successful reports whether code is [codes.OK]. See [WithRefund].
func Successful(code codes.Code) bool { return code == codes.OK }

// WithoutHeaders leaves out the metadata that reports the limits: ratelimit-policy, ratelimit
// and retry-after. A refusal still says when to come back, in RetryInfo. It saves time.
func WithoutHeaders() ServerOption {
	return serverOption(func(c *config) error {
		c.headers = false
		return nil
	})
}

// WithContext puts the [Decision] into the context that the handler gets, for [FromContext].
// It costs some allocations a call.
func WithContext() ServerOption {
	return serverOption(func(c *config) error {
		c.InContext = true
		return nil
	})
}

// WithMessages counts each message that a stream receives, besides its opening, which
// [WithCost] can make free. A denial is an error of RecvMsg, for the handler to return. It is
// reported in the status alone, since headers may have been sent. The key of a stream is
// made once. On unary calls the option has no effect. It is [ratelimit.ErrInvalidOption] if the
// limiter counts slots (package inflight).
func WithMessages() ServerOption {
	return serverOption(func(c *config) error {
		c.messages = true
		return nil
	})
}

// WithSlots sets what is optional about the slots that calls hold: [inflight.Longest], and
// [inflight.OnEnd], which is told how each has ended, and of one that is lost. It is
// [ratelimit.ErrInvalidOption] if the limiter counts no slots (package inflight).
func WithSlots(opts ...inflight.Option) Option {
	return option(func(c *config) error { return c.WithSlots(opts) })
}

// WithSlotRetryAfter sets RetryInfo and retry-after of a call that slots alone deny, above 0. The
// default is a second. Nobody knows when a slot is given back: the RetryAfter of the Result is the
// end of one that nobody gives back. It is [ratelimit.ErrInvalidOption] if the limiter counts no
// slots.
func WithSlotRetryAfter(d time.Duration) ServerOption {
	return serverOption(func(c *config) error { return c.WithSlotRetryAfter(d) })
}

// WithCancelLost ends the context of a handler whose slot is lost, with the cause
// [inflight.ErrLost]. By default the handler goes on: an outage of the store that is longer than
// the life of a slot would end all calls. It is [ratelimit.ErrInvalidOption] if the limiter counts
// no slots.
func WithCancelLost() ServerOption {
	return serverOption(func(c *config) error {
		c.CancelLost = true
		return nil
	})
}

// WithoutWaiting refuses a call that cannot be made now with [codes.ResourceExhausted]
// instead of waiting. There is no round trip. Beside [inflight.WaitUpTo] it is refused.
func WithoutWaiting() ClientOption {
	return clientOption(func(c *config) error {
		c.Refuse = true
		return nil
	})
}

// WithMaxPause sets the longest time, above 0, for which a server can make later calls wait.
// Without it servers are not heeded, which saves allocations.
//
// A server is heeded when it ends a call with [codes.ResourceExhausted] or
// [codes.Unavailable] and says when to come back, in RetryInfo or in retry-after, which is read as that of
// an httplimit.Transport.
// Later calls of the same key, and those that wait already, wait until then, and after that
// for the limiter. They keep their order. With [WithoutWaiting] they are refused. A call that the
// server has denied is not sent again.
//
// The pauses of at most 4,096 keys are remembered. Beyond that the one that ends soonest is
// forgotten, of some that are looked at. Interceptors that are given the same option, for
// unary calls and for streams, share their pauses.
func WithMaxPause(d time.Duration) ClientOption {
	shared := new(cooldown.Set)
	return clientOption(func(c *config) error {
		c.Pauses = shared
		return c.WithMaxPause(d)
	})
}
