package grpclimit

import (
	"context"
	"errors"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// UnaryServerInterceptor returns an interceptor that puts l in front of unary calls. A call
// that l denies does not reach its handler. The status is
//
//   - [codes.ResourceExhausted] with QuotaFailure, which names the policies that denied
//     ([ratelimit.PolicyAppender]), and RetryInfo, unless no waiting helps;
//   - [codes.PermissionDenied] without metadata if a list denies ([ratelimit.SourceList]);
//   - [codes.Unavailable] with RetryInfo if the limiter is closed by an outage ([ratelimit.SourceFailClosed]);
//   - what [WithKeyErrorHandler] and [WithErrorHandler] say where no decision is known, and
//     otherwise [ErrorStatus];
//   - [codes.Canceled] or [codes.DeadlineExceeded] if the call has ended meanwhile.
//
// The header metadata of an answer has ratelimit-policy and ratelimit of
// draft-ietf-httpapi-ratelimit-headers-10, and retry-after in a denial. Where an interceptor
// before this one has sent the headers, they are left out.
//
// The limiter, and the handler, get a context with the address of the client (package
// clientaddr), which the Key or [WithClientAddr] finds when it is asked for.
//
// If l counts slots (package inflight), alone or beside rates, a call holds one until its handler
// is done, whether it returns or panics. retry-after of a denial by slots alone is a second
// ([WithSlotRetryAfter]).
//
// The Delay of a leaky bucket is not waited for: put a throttle.Waiter around a limiter that
// is to hold calls back. The interceptor keeps nothing that grows, starts no goroutine and has
// nothing to close.
//
// Its errors wrap [ratelimit.ErrInvalidOption]: l, an option or a function is nil, or an
// option is out of range.
func UnaryServerInterceptor(l ratelimit.Limiter, opts ...ServerOption) (grpc.UnaryServerInterceptor, error) {
	s, err := newServer(l, opts)
	if err != nil {
		return nil, err
	}
	return s.unary, nil
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams. The opening of each is
// counted, and with [WithMessages] each message that it receives.
func StreamServerInterceptor(l ratelimit.Limiter, opts ...ServerOption) (grpc.StreamServerInterceptor, error) {
	s, err := newServer(l, opts)
	if err != nil {
		return nil, err
	}
	return s.stream, nil
}

// server has the interceptors of a server.
type server struct{ *config }

func newServer(l ratelimit.Limiter, opts []ServerOption) (server, error) {
	c, err := newConfig(l, PeerIP())
	if err != nil {
		return server{}, err
	}
	if err := guard.Apply(&c.Config, opts, func(o ServerOption) error { return o.server(c) }); err != nil {
		return server{}, err
	}
	if c.messages && c.Holds() {
		return server{}, guard.Invalid("WithMessages for a limiter with slots (package inflight): a stream holds one, and its messages none")
	}
	if c.Addr == nil {
		c.Addr = c.Key.Addr
	}
	if c.Addr != nil { // the context of a call is less to carry than the whole of it
		c.addr = func(ctx context.Context) netip.Addr { return c.Addr(call{ctx: ctx}) }
	}
	return server{c}, nil
}

// context returns ctx for the limiter, with the address of the client if that is known.
func (s server) context(ctx context.Context) context.Context {
	ctx = ratelimit.KeepLimits(ctx)
	if s.addr == nil {
		return ctx
	}
	return clientaddr.NewContextFunc(ctx, ctx, s.addr)
}

func (s server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	key, counted, err := s.subject(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if !counted {
		return handler(ctx, req)
	}
	ctx = s.context(ctx)
	ch, err := s.decide(ctx, info.FullMethod, key, req, s.headers)
	if err != nil {
		return nil, err
	}
	err = s.run(ctx, ch, func(ctx context.Context) error {
		resp, err = handler(ctx, req)
		return err
	})
	return resp, err
}

func (s server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx := stream.Context()
	key, counted, err := s.subject(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	if !counted {
		return handler(srv, stream)
	}
	ctx = s.context(ctx)
	ch, err := s.decide(ctx, info.FullMethod, key, nil, s.headers)
	if err != nil {
		return err
	}
	return s.run(ctx, ch, func(ctx context.Context) error {
		return handler(srv, &serverStream{ServerStream: stream, ctx: ctx, server: s, key: key, fullMethod: info.FullMethod})
	})
}

// run calls the handler, and gives back what it was charged if it ends so.
func (s server) run(ctx context.Context, ch charge, handler func(context.Context) error) error {
	code := codes.Internal // of a handler that panics
	defer ch.slot.Release()
	defer func() {
		if code != codes.OK && ctx.Err() != nil && !errors.Is(context.Cause(ctx), inflight.ErrLost) { // of an outer interceptor
			code = codes.Canceled
		}
		s.refundBy(ctx, ch, code)
	}()
	inner := ctx
	if s.CancelLost && ch.slot != nil {
		work, stop := guard.EndWith(ctx, ch.slot)
		defer stop()
		inner = work
	}
	if s.InContext && ch.Key != "" {
		inner = context.WithValue(inner, decisionKey{}, &ch.Decision)
	}
	err := handler(inner)
	code = codeOf(err)
	return err
}

// decide asks the limiter about a call or a message. The error is the call's. Without a key
// in the answer no decision was made.
func (s server) decide(ctx context.Context, fullMethod, key string, msg any, headers bool) (charge, error) {
	n := s.Costs(call{ctx, fullMethod, msg})
	if n == 0 {
		return charge{}, nil
	}
	slot, r, err := s.Take(ctx, key, n)
	if err != nil {
		return charge{}, s.limiterFailed(ctx, fullMethod, err)
	}
	if r.Allowed && !headers && !s.InContext {
		return charge{Decision{Result: r, Key: key, slot: slot}, n}, nil
	}
	a := s.answer(ctx, key, r, s.InContext || !r.Allowed && s.denied != nil)
	defer a.free()
	d := Decision{Result: r, Key: key, slotRetry: s.SlotRetry, slot: slot}
	if a.kept {
		d.Policies, d.bucket = a.Policies, a.Bucket
	}
	if headers {
		if md := a.metadata(); md != nil {
			_ = grpc.SetHeader(ctx, md) // an error: headers have been sent; the decision stands
		}
	}
	switch {
	case r.Allowed:
		return charge{d, n}, nil
	case s.denied != nil:
		return charge{Decision: d}, s.denied(ctx, fullMethod, d)
	}
	return charge{}, denial(&a.Decision).Err()
}

// serverStream is a stream whose handler finds its decision, and whose messages may count.
type serverStream struct {
	grpc.ServerStream
	ctx             context.Context
	server          server
	key, fullMethod string
}

// Context returns the stream's context, with its decision.
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg receives the next message, and asks the limiter whether it may.
func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || !s.server.messages {
		return err
	}
	ch, err := s.server.decide(s.ctx, s.fullMethod, s.key, m, false)
	ch.slot.Release() // of a limiter that has come to count slots: the stream holds one
	return err
}
