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
	"github.com/ratelimit-go/ratelimit/internal/options"
)

// Option configures an interceptor of a server or of a client. If options contradict each other,
// the last one counts.
type Option interface {
	ServerOption
	ClientOption
}

// ServerOption configures an interceptor of a server. If options contradict each other, the last one counts.
type ServerOption interface{ server(*config) error }

// ClientOption configures an interceptor of a client. If options contradict each other, the last one counts.
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

// DeniedHandler answers a call that the limiter has denied. The error that it returns becomes the
// call's error, and should be made by package status. If it returns nil, the call continues. The
// header metadata is already set. The default is [DeniedStatus].
type DeniedHandler func(ctx context.Context, fullMethod string, d Decision) error

// ErrorHandler answers a call for which there is no decision. The error that it returns becomes the
// call's error, and should be made by package status. If it returns nil, the call continues
// uncounted, unless err is a configuration error. Do not show err to clients, because it may
// contain keys. The default is [ErrorStatus], which also logs err to package grpclog once per
// minute, unless the client has caused it.
type ErrorHandler func(ctx context.Context, fullMethod string, err error) error

// config is the configuration of any of the four interceptors.
type config struct {
	guard.Config[call]

	keyFailed ErrorHandler
	failed    ErrorHandler
	refund    func(codes.Code) bool // nil unless set

	unset, down guard.Alarm // for errors of the configuration, and for other reasons why there is no decision

	addr     func(ctx context.Context) netip.Addr // for servers: Addr, if it is not nil
	denied   DeniedHandler                        // for servers; nil unless set
	headers  bool                                 // for servers
	messages bool                                 // for streams of servers
}

func newConfig(l ratelimit.Limiter, key Key) (*config, error) {
	g, err := guard.New(l, key.key)
	c := &config{Config: g, headers: true}
	c.keyFailed, c.failed = c.standard, c.standard
	return c, err
}

// WithKey sets which calls are counted together. The default is [PeerIP] for servers and [Global]
// for clients.
func WithKey(k Key) Option {
	return option(func(c *config) error { return c.WithKey(k.key) })
}

// WithClientAddr sets how to find the client's address for limiters that decide by it, such as
// those of package accesslist. k is a [PeerIP] or a [ClientIP], or a [First] or [Combined] that
// contains one. If it contains several, the first one counts. By default, the interceptor takes it from its own Key.
// You need WithClientAddr if that Key contains no address, as in
//
//	WithKey(User(login)), WithClientAddr(ClientIP([]string{"10.0.0.7"}))
//
// An address that [clientaddr.NewContext] has put into the call's context takes precedence.
func WithClientAddr(k Key) ServerOption {
	return serverOption(func(c *config) error { return c.WithClientAddr(k.key) })
}

// WithCost charges f(ctx, fullMethod, msg) events for a call. The default is 1. If the cost is 0,
// the call bypasses the limiter. A negative cost is [ratelimit.ErrInvalidN]. A cost above the limit
// is never admitted, so bound what clients can choose. f must be safe for concurrent use.
//
// msg is the request of a unary call. For a stream, it is nil at the opening, and then each message
// received if [WithMessages] counts them.
func WithCost(f func(ctx context.Context, fullMethod string, msg any) int) Option {
	return option(options.Checked(options.Given("WithCost", f != nil), func(c *config) {
		c.Cost = func(of call) int { return f(of.ctx, of.fullMethod, of.msg) }
	}))
}

// WithSkip lets calls for which f returns true bypass the limiter, such as those of
// [HealthAndReflection]. They have no key, no decision and no metadata. f must be safe for
// concurrent use.
func WithSkip(f func(ctx context.Context, fullMethod string) bool) Option {
	return option(options.Checked(options.Given("WithSkip", f != nil), func(c *config) {
		c.Skip = func(of call) bool { return f(of.ctx, of.fullMethod) }
	}))
}

// HealthAndReflection reports whether fullMethod belongs to grpc.health.v1 or grpc.reflection, for
// [WithSkip].
func HealthAndReflection(_ context.Context, fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/") ||
		strings.HasPrefix(fullMethod, "/grpc.reflection.")
}

// WithKeyErrorHandler lets h answer calls whose key cannot be determined; see [Key] for the errors.
// The default is [ErrorStatus].
func WithKeyErrorHandler(h ErrorHandler) Option {
	return option(options.Checked(options.Given("WithKeyErrorHandler", h != nil), func(c *config) { c.keyFailed = h }))
}

// WithErrorHandler lets h answer calls if the limiter returns an error, such as
// [ratelimit.ErrStore]. The default is [ErrorStatus]. h is not called if the call's own context has
// ended, which results in [codes.Canceled] or [codes.DeadlineExceeded].
//
// A handler that returns nil fails open. A fallback that wraps the limiter can do that too; it also
// has other answers to an outage, and does not call a store that is down. For a configuration
// error, such as a deny list without an address, nil becomes [ErrorStatus], and the reason is
// logged to package grpclog.
func WithErrorHandler(h ErrorHandler) Option {
	return option(options.Checked(options.Given("WithErrorHandler", h != nil), func(c *config) { c.failed = h }))
}

// WithDeniedHandler lets h answer calls that the limiter denies. The default is
// [DeniedStatus].
func WithDeniedHandler(h DeniedHandler) ServerOption {
	return serverOption(options.Checked(options.Given("WithDeniedHandler", h != nil), func(c *config) { c.denied = h }))
}

// WithRefund refunds a call's charge if f returns true for the code that the call ends with.
// WithRefund([Failed]) refunds calls that fail through the server's fault. WithRefund([Successful])
// counts only failures, such as wrong passwords.
//
// A call is charged before it is served, so that concurrent calls cannot exceed the limit. The
// refund is made when the handler has returned, even if the client has disconnected. The metadata
// shows the state before the refund. If the refund fails, its error is dropped and the charge
// stands. The refund's context does not end, so give the store a timeout. Slots (package inflight)
// are released in any case, so a limiter of slots alone is refused with
// [ratelimit.ErrInvalidOption].
//
// If a handler panics, the code is [codes.Internal]. If a handler returns an error after the client
// has canceled the call or its deadline has passed, the code is [codes.Canceled]. [Failed] and
// [Successful] return false for it, because clients can cause it as often as they like.
//
// For a stream, the charge of the opening is refunded, but not that of messages ([WithMessages]). A
// client's stream ends when RecvMsg returns its end. A stream that is abandoned before that is not
// refunded.
func WithRefund(f func(code codes.Code) bool) Option {
	return option(options.Checked(options.Given("WithRefund", f != nil), func(c *config) { c.refund, c.Refunds = f, true }))
}

// Failed reports whether code is an error of the server: [codes.Unknown], which is the code of an
// error without one, DeadlineExceeded, Internal, Unavailable or DataLoss. See [WithRefund].
func Failed(code codes.Code) bool {
	switch code {
	case codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// Successful reports whether code is [codes.OK]. See [WithRefund].
func Successful(code codes.Code) bool { return code == codes.OK }

// WithoutHeaders leaves out the metadata that reports the limits, ratelimit-policy, ratelimit and
// retry-after, which saves time. A refusal still has a RetryInfo.
func WithoutHeaders() ServerOption {
	return serverOption(options.Set(func(c *config) { c.headers = false }))
}

// WithContext puts the [Decision] into the context that the handler gets, for [FromContext]. It
// costs a few allocations per call.
func WithContext() ServerOption {
	return serverOption(options.Set(func(c *config) { c.InContext = true }))
}

// WithMessages counts each message that a stream receives, in addition to its opening, which
// [WithCost] can make free. If a message is denied, RecvMsg returns an error, which the handler
// should return. Only the status reports it, because the headers may already have been sent. The
// key of a stream is made once. The option has no effect on unary calls. It returns
// [ratelimit.ErrInvalidOption] if the limiter counts slots (package inflight).
func WithMessages() ServerOption {
	return serverOption(options.Set(func(c *config) { c.messages = true }))
}

// WithSlots configures the slots that calls hold by options of [inflight.Hold], such as
// [inflight.Longest], or [inflight.OnEnd], which reports how each slot ended, and when a slot is
// lost. With [inflight.WaitUpTo], calls wait for a slot. It returns [ratelimit.ErrInvalidOption] if
// the limiter counts no slots (package inflight).
func WithSlots(opts ...inflight.Option) Option {
	return option(func(c *config) error { return c.WithSlots(opts) })
}

// WithSlotRetryAfter sets the RetryInfo and retry-after of a call that is denied by slots alone,
// above 0. The default is 1 s. It is a guess, because nobody knows when a slot will be released:
// the RetryAfter of the Result is when a slot would expire if it is never released.
// WithSlotRetryAfter returns [ratelimit.ErrInvalidOption] if the limiter counts no slots.
func WithSlotRetryAfter(d time.Duration) ServerOption {
	return serverOption(options.Checked(options.Positive("WithSlotRetryAfter", d), func(c *config) { c.SlotRetry = d }))
}

// WithCancelLost cancels the context of a handler whose slot is lost, with the cause
// [inflight.ErrLost]. By default the handler continues, because otherwise a store outage longer
// than a slot's lifetime would end all calls. WithCancelLost returns [ratelimit.ErrInvalidOption]
// if the limiter counts no slots.
func WithCancelLost() ServerOption {
	return serverOption(options.Set(func(c *config) { c.CancelLost = true }))
}

// WithoutWaiting makes a client refuse a call that cannot be made now, with
// [codes.ResourceExhausted] and without sending it, instead of waiting. It cannot be combined with
// [inflight.WaitUpTo].
func WithoutWaiting() ClientOption {
	return clientOption(options.Set(func(c *config) { c.Refuse = true }))
}

// WithMaxPause makes the client heed servers, and sets the longest time, above 0, for which a
// server can make later calls wait. By default servers are not heeded, which saves allocations.
//
// A pause begins when a server ends a call with [codes.ResourceExhausted] or [codes.Unavailable]
// and says when to come back, in RetryInfo or in retry-after, which is read as by an
// httplimit.Transport. All calls of the same key then wait until the pause is over, and after that
// for the limiter, in order. With [WithoutWaiting] they are refused. A call that the server has
// denied is not sent again.
//
// The pauses of at most 4,096 keys are remembered. Beyond that, a few pauses are sampled, and the
// one that ends first is forgotten. Interceptors for unary calls and for streams that get the same
// option share their pauses.
func WithMaxPause(d time.Duration) ClientOption {
	shared := new(cooldown.Set)
	return clientOption(options.Checked(options.Positive("WithMaxPause", d), func(c *config) { c.Pauses, c.MaxPause = shared, d }))
}
