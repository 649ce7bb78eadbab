// Package grpclimit limits the calls that a gRPC server accepts or a client makes, with a
// [ratelimit.Limiter]:
//
//	perClient, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(100), ratelimit.WithName("client"))
//	...
//	limit, err := grpclimit.UnaryServerInterceptor(perClient, grpclimit.WithSkip(grpclimit.HealthAndReflection))
//	...
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit))
//
// Here, each client, identified by its address, can make 100 calls per minute. The header metadata
// of each response reports how many are left. The 101st call fails with [codes.ResourceExhausted],
// and the client is told when to come back.
//
// A [Key] determines which calls are counted together. Behind a proxy, use [ClientIP]; otherwise
// all clients share the limit of the proxy. Keys are never shown to clients.
//
// For several limits at the same time, use a limiter that combines them, such as a [ratelimit.All].
// It charges a call to all limits or to none, and the response reports each.
//
// gRPC itself answers some calls before any interceptor runs, and they are not counted: calls of
// unknown methods, and unary calls whose message is too large or cannot be decoded. A
// [grpc.UnknownServiceHandler] sends unknown methods through the stream interceptor. A
// [google.golang.org/grpc/tap.ServerInHandle] sees every call: an example counts there.
//
// A client of somebody else's service should wait until it may call: see [UnaryClientInterceptor].
// Package httplimit does the same for HTTP, and makes the same keys.
package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// charge is a decision, its slot if the limiter counts slots, and the number of events that were
// charged, which is 0 for a call that is free or not limited.
type charge struct {
	Decision
	n int
}

// subject returns the key of a call, and whether the call is counted. The error is the one to
// return for the call.
func (c *config) subject(ctx context.Context, fullMethod string) (key string, counted bool, err error) {
	of := call{ctx: ctx, fullMethod: fullMethod}
	if c.Skips(of) {
		return "", false, nil
	}
	if key, err = c.Key.Text(of); err != nil {
		return "", false, c.handled(ctx, fullMethod, err, c.keyFailed)
	}
	return key, true, nil
}

// limiterFailed returns the result of a call after an error of the limiter.
func (c *config) limiterFailed(ctx context.Context, fullMethod string, err error) error {
	handler := c.failed
	if errors.Is(err, ratelimit.ErrInvalidKey) {
		handler = c.keyFailed
	}
	return c.handled(ctx, fullMethod, err, handler)
}

// handled returns what handler returns for err, unless err means that ctx has ended.
func (c *config) handled(ctx context.Context, fullMethod string, err error, handler ErrorHandler) error {
	if end := guard.Ended(ctx, err); end != nil {
		return status.FromContextError(end).Err()
	}
	said := handler(ctx, fullMethod, err)
	if ErrorStatus(err) != misconfigured {
		return said
	}
	alarm(&c.unset, err)
	if said == nil { // a configuration error must not let calls through
		said = misconfigured.Err()
	}
	return said
}

// standard is the default ErrorHandler.
func (c *config) standard(_ context.Context, _ string, err error) error {
	s := ErrorStatus(err)
	if s == unavailable {
		alarm(&c.down, err)
	}
	return s.Err()
}

// alarm logs err, at most once per minute for each a.
func alarm(a *guard.Alarm, err error) {
	if a.Due() {
		grpclog.Component("grpclimit").Error(err)
	}
}

// refundBy refunds the charge of a call that ended with code, if the option asks for it.
func (c *config) refundBy(ctx context.Context, ch charge, code codes.Code) {
	if ch.n == 0 || c.refund == nil || !c.refund(code) {
		return
	}
	// If the refund fails, the charge stands, because the call already has its result.
	_ = (&guard.Charge{Limiter: c.Limiter, N: ch.n, Slot: ch.slot}).Refund(ctx, ch.Key, &ch.Result)
}

// codeOf returns the code that gRPC uses for a handler's error.
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}
