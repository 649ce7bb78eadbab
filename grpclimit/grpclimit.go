// Package grpclimit keeps the calls of a gRPC server, and those that a client makes, within
// the limits of a [ratelimit.Limiter]:
//
//	perClient, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(100), ratelimit.WithName("client"))
//	...
//	limit, err := grpclimit.UnaryServerInterceptor(perClient, grpclimit.WithSkip(grpclimit.HealthAndReflection))
//	...
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit))
//
// Each client, by its address, can make 100 calls a minute here. The header metadata of each
// answer reports how many are left. The 101st call is [codes.ResourceExhausted] and is told
// when to come back.
//
// A [Key] says which calls are counted together. Behind a proxy use [ClientIP], or all
// clients share the limit of the proxy. Keys are never reported to clients.
//
// For several limits at once use one limiter of them, such as a [ratelimit.All]. It charges a
// call to all or none, and the answer reports each.
//
// gRPC answers some calls before any interceptor: those of unknown methods, and unary ones whose
// message is too large or does not decode. They are not counted. A [grpc.UnknownServiceHandler]
// takes the unknown methods through the stream interceptor. A
// [google.golang.org/grpc/tap.ServerInHandle] sees every call: an example counts there.
//
// A client of somebody else's service waits for its turn: see [UnaryClientInterceptor].
// Package httplimit is the same for HTTP, and makes the same keys.
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

// charge is a decision, with its slot if the limiter counts some, and how many events were charged for
// it: 0 for a call that is free or not limited.
type charge struct {
	Decision
	n int
}

// subject returns the key of a call, and whether it is counted at all. The error is
// the call's.
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

// limiterFailed returns what becomes of a call after an error of the limiter.
func (c *config) limiterFailed(ctx context.Context, fullMethod string, err error) error {
	handler := c.failed
	if errors.Is(err, ratelimit.ErrInvalidKey) {
		handler = c.keyFailed
	}
	return c.handled(ctx, fullMethod, err, handler)
}

// handled returns what handler makes of err, unless err is that ctx has ended.
func (c *config) handled(ctx context.Context, fullMethod string, err error, handler ErrorHandler) error {
	if end := ctx.Err(); end != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return status.FromContextError(end).Err()
	}
	said := handler(ctx, fullMethod, err)
	if ErrorStatus(err) != misconfigured {
		return said
	}
	alarm(&c.unset, err)
	if said == nil { // no reason to let a call through
		said = misconfigured.Err()
	}
	return said
}

// standard is the default of handlers.
func (c *config) standard(_ context.Context, _ string, err error) error {
	s := ErrorStatus(err)
	if s == unavailable {
		alarm(&c.down, err)
	}
	return s.Err()
}

// alarm tells the operator err, which goes wrong now, unless a was told within a minute.
func alarm(a *guard.Alarm, err error) {
	if a.Due() {
		grpclog.Component("grpclimit").Error(err)
	}
}

// refundBy gives back what was charged for a call that ended with code, if it is to be.
func (c *config) refundBy(ctx context.Context, ch charge, code codes.Code) {
	if ch.n == 0 || c.refund == nil || !c.refund(code) {
		return
	}
	// An error leaves the charge: the call has its answer already.
	_ = (&guard.Charge{Limiter: c.Limiter, N: ch.n, Slot: ch.slot}).Refund(ctx, ch.Key, &ch.Result)
}

// codeOf returns the code that gRPC makes of a handler's error.
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}
