// Package grpclimit puts the limiters of package ratelimit before the calls of a
// gRPC server, and before those that a client makes.
//
//	perCaller, err := ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(10))
//	...
//	limit, err := grpclimit.UnaryServerInterceptor(perCaller,
//		grpclimit.WithKey(grpclimit.First(grpclimit.Metadata("x-api-key"), grpclimit.PeerIP)),
//		grpclimit.WithSkip(grpclimit.HealthAndReflection))
//	...
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit))
//	...
//	// a call too many: codes.ResourceExhausted, with RetryInfo and QuotaFailure
//
// A server tells its callers how they stand in the header metadata ratelimit-policy
// and ratelimit, of draft-ietf-httpapi-ratelimit-headers-10, and on a denial in
// retry-after. A client waits for its turn ([UnaryClientInterceptor]), or is refused
// without a round trip ([WithoutWaiting]).
//
// Whoever is limited is named by a [KeyFunc]. Nothing of a key is told to anybody: not
// in a status, not in metadata.
package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/pause"
)

// Option sets what is optional about an interceptor of a server or of a client.
// Where options contradict each other, the last one counts.
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

// ErrorHandler says what becomes of a call on which no decision is known: the error
// that it returns is the call's, and nil lets the call through uncounted. It should
// be made by package status, and not quote err, which may name keys. A server's own
// is told to its clients. It must be safe for concurrent use.
type ErrorHandler func(ctx context.Context, fullMethod string, err error) error

// config is what the four interceptors have in common, and what some of them have.
type config struct {
	limiter      ratelimit.Limiter
	key          KeyFunc
	cost         func(ctx context.Context, fullMethod string, msg any) int
	skip         func(ctx context.Context, fullMethod string) bool
	keyError     ErrorHandler
	limiterError ErrorHandler
	refundOn     []codes.Code

	headers  bool // of a server
	messages bool // of a server's streams

	refuse  bool          // of a client, in place of waiting
	pauses  *pause.Set    // of a client, nil unless it heeds what servers say
	longest time.Duration // of pauses
}

// newConfig is the defaults, of which headers are a server's.
func newConfig(l ratelimit.Limiter, key KeyFunc) (*config, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	return &config{
		limiter:      l,
		key:          key,
		cost:         func(context.Context, string, any) int { return 1 },
		skip:         func(context.Context, string) bool { return false },
		keyError:     unidentified,
		limiterError: unavailable,
		headers:      true,
	}, nil
}

var errNilOption = fmt.Errorf("%w: an option is nil", ratelimit.ErrInvalidOption)

// notNil is an option that sets something, or the error that it is nil.
func notNil(name string, given any, set func(*config)) option {
	return func(c *config) error {
		if isnil.Is(given) {
			return fmt.Errorf("%w: %s(nil)", ratelimit.ErrInvalidOption, name)
		}
		set(c)
		return nil
	}
}

// WithKey names who is limited. Without it a server limits each [PeerIP], and a
// client all its calls together ([Global]).
func WithKey(f KeyFunc) Option {
	return notNil("WithKey", f, func(c *config) { c.key = f })
}

// WithCost asks f how many events a call is; without it each is one. The message is
// the request of a unary call, nil at the opening of a stream, and each message
// received where [WithMessages] counts them. What costs 0 is free, and nobody is asked; a
// negative cost is the limiter's [ratelimit.ErrInvalidN], for [WithLimiterError]. What
// costs more than the limit is never admitted, so bound what clients can choose. f must
// be safe for concurrent use.
func WithCost(f func(ctx context.Context, fullMethod string, msg any) int) Option {
	return notNil("WithCost", f, func(c *config) { c.cost = f })
}

// WithSkip leaves the calls alone for which f returns true, such as those of
// [HealthAndReflection]: no key, no decision, no metadata. f must be safe for concurrent use.
func WithSkip(f func(ctx context.Context, fullMethod string) bool) Option {
	return notNil("WithSkip", f, func(c *config) { c.skip = f })
}

// HealthAndReflection is true for the methods of grpc.health.v1 and grpc.reflection,
// for [WithSkip].
func HealthAndReflection(_ context.Context, fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/") ||
		strings.HasPrefix(fullMethod, "/grpc.reflection.")
}

// WithKeyError lets f say what becomes of a call whose [KeyFunc] fails: with
// [ErrNoIdentity] that of a caller who says nothing of himself, with
// [ratelimit.ErrInvalidKey] one with a key of over 64 KiB. Without it, it is refused
// with [codes.InvalidArgument].
func WithKeyError(f ErrorHandler) Option {
	return notNil("WithKeyError", f, func(c *config) { c.keyError = f })
}

// WithLimiterError lets f say what becomes of a call when the limiter has an error
// ([ratelimit.ErrStore] and others). Without it, it is refused with
// [codes.Unavailable]; f that returns nil fails open. The end of the call's own ctx
// is none of it: that is [codes.Canceled] or [codes.DeadlineExceeded].
func WithLimiterError(f ErrorHandler) Option {
	return notNil("WithLimiterError", f, func(c *config) { c.limiterError = f })
}

// WithRefundOn gives back what a call was charged if it ends with one of these
// codes, so that failures do not count: codes.Internal, codes.Unavailable. (With
// codes.OK only failures do: guesses at a password.) A handler that panics ends with
// codes.Internal. The call's end waits for the refund, by a context that has no
// end, so that the store should have a timeout; an error of it is dropped, and the charge stands then.
//
// Of a stream the opening is given back, and messages ([WithMessages]) are not. A
// client's stream ends when RecvMsg says so; of one that is left before that,
// nothing is given back.
func WithRefundOn(these ...codes.Code) Option {
	return option(func(c *config) error {
		if len(these) == 0 {
			return fmt.Errorf("%w: WithRefundOn without codes", ratelimit.ErrInvalidOption)
		}
		c.refundOn = slices.Clone(these)
		return nil
	})
}

// WithoutHeaders keeps ratelimit-policy, ratelimit and retry-after out of the
// metadata. The status of a denial says what it says. It saves some of the time
// that a call costs here, and where the limiter has a limit function, asking it
// a second time for the policy.
func WithoutHeaders() ServerOption {
	return serverOption(func(c *config) error { c.headers = false; return nil })
}

// WithMessages counts each message that a stream receives, besides its opening, which
// [WithCost] can make free. One too many is an error of RecvMsg, for the handler to
// return. What it says is in the status alone, since headers may have been sent. On
// unary calls it has no effect. A stream's key is asked for once.
func WithMessages() ServerOption {
	return serverOption(func(c *config) error { c.messages = true; return nil })
}

// WithoutWaiting refuses a call that the limiter does not admit now, with
// [codes.ResourceExhausted] and without a round trip, in place of waiting for its turn.
func WithoutWaiting() ClientOption {
	return clientOption(func(c *config) error { c.refuse = true; return nil })
}

// WithServerRetryAfter heeds servers: when one ends a call with
// [codes.ResourceExhausted] or [codes.Unavailable] and says when to come back (RetryInfo in
// the status, or else retry-after in seconds in the metadata), later calls of the same key,
// and those that wait already, wait until then, and after that for the limiter; with
// [WithoutWaiting] they are refused. A server is believed up to longest, above 0. Calls that
// have been sent go on.
//
// It remembers 4,096 keys at once. Beyond that it forgets the one that may go on the soonest,
// of some that it looks at. Interceptors that are given the same option, for unary calls
// and for streams, heed what either of them hears.
func WithServerRetryAfter(longest time.Duration) ClientOption {
	shared := new(pause.Set)
	return clientOption(func(c *config) error {
		if longest <= 0 {
			return fmt.Errorf("%w: WithServerRetryAfter(%v)", ratelimit.ErrInvalidOption, longest)
		}
		c.pauses, c.longest = shared, longest
		return nil
	})
}

// charge is what a call has been charged: nothing if n is 0.
type charge struct {
	key    string
	n      int
	result ratelimit.Result
}

// subject is the key of a call, and whether it is to be counted at all. The error is
// the call's.
func (c *config) subject(ctx context.Context, fullMethod string) (key string, counted bool, err error) {
	if c.skip(ctx, fullMethod) {
		return "", false, nil
	}
	if key, err = c.key(ctx, fullMethod); err != nil {
		return "", false, c.failed(ctx, fullMethod, err, c.keyError)
	}
	return key, true, nil
}

// limiterFailed is what becomes of a call after an error of the limiter.
func (c *config) limiterFailed(ctx context.Context, fullMethod string, err error) error {
	handler := c.limiterError
	if errors.Is(err, ratelimit.ErrInvalidKey) {
		handler = c.keyError
	}
	return c.failed(ctx, fullMethod, err, handler)
}

// failed is what handler makes of err, unless err is that ctx has ended.
func (c *config) failed(ctx context.Context, fullMethod string, err error, handler ErrorHandler) error {
	if end := ctx.Err(); end != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return status.FromContextError(end).Err()
	}
	return handler(ctx, fullMethod, err)
}

// The texts are constant: those of errors name keys.
func unidentified(context.Context, string, error) error {
	return status.Error(codes.InvalidArgument, "rate limit: the caller cannot be identified")
}

func unavailable(context.Context, string, error) error {
	return status.Error(codes.Unavailable, "rate limit: no decision is known")
}

// settle gives back what was charged for a call that ended with code.
func (c *config) settle(ctx context.Context, ch charge, code codes.Code) {
	if ch.n == 0 || !slices.Contains(c.refundOn, code) {
		return
	}
	// The call has its answer already. Without the refund it is charged, no more.
	_ = c.limiter.Refund(context.WithoutCancel(ctx), ch.key, ch.result, ch.n)
}

// codeOf is the code that gRPC makes of a handler's error.
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}
