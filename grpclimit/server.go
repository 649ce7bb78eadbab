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
	"github.com/ratelimit-go/ratelimit/internal/kept"
)

// UnaryServerInterceptor returns an interceptor that limits unary calls with l. A call that l
// denies does not reach its handler. The status is
//
//   - [codes.ResourceExhausted] with a QuotaFailure that names the policies that denied
//     ([ratelimit.PolicyAppender]), and a RetryInfo unless waiting will not help
//   - [codes.PermissionDenied] without metadata if a list denies ([ratelimit.SourceList])
//   - [codes.Unavailable] with RetryInfo if the limiter is closed by an outage
//     ([ratelimit.SourceFailClosed])
//   - that of [WithKeyErrorHandler] or [WithErrorHandler] if there is no decision; the default is
//     [ErrorStatus]
//   - [codes.Canceled] or [codes.DeadlineExceeded] if the call has ended
//
// The header metadata of a response has the ratelimit-policy and ratelimit of
// draft-ietf-httpapi-ratelimit-headers-10, and a denial also has retry-after. They are left out if
// an earlier interceptor has already sent the headers.
//
// The limiter and the handler get a context with the address of the client (package clientaddr),
// which the Key or [WithClientAddr] finds when it is needed.
//
// If l counts slots (package inflight), alone or with rates, a call holds a slot until its handler
// returns or panics. If slots alone deny, retry-after is 1 s ([WithSlotRetryAfter]).
//
// The interceptor does not wait for the Delay of a leaky bucket. To hold calls back, wrap the
// limiter in a throttle.Waiter. The interceptor keeps nothing that grows, starts no goroutine and
// has nothing to close.
//
// It returns [ratelimit.ErrInvalidOption] if l, an option or a function is nil, or if an option is
// out of range.
func UnaryServerInterceptor(l ratelimit.Limiter, opts ...ServerOption) (grpc.UnaryServerInterceptor, error) {
	s, err := newServer(l, opts)
	if err != nil {
		return nil, err
	}
	return s.unary, nil
}

// StreamServerInterceptor is like [UnaryServerInterceptor], for streams. It counts the opening of
// each stream and, with [WithMessages], each message that a stream receives.
func StreamServerInterceptor(l ratelimit.Limiter, opts ...ServerOption) (grpc.StreamServerInterceptor, error) {
	s, err := newServer(l, opts)
	if err != nil {
		return nil, err
	}
	return s.stream, nil
}

// server implements the interceptors of a server.
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
		return server{}, guard.Invalid("WithMessages cannot be used with a limiter that counts slots (package inflight), because messages hold no slots")
	}
	if c.Addr == nil {
		c.Addr = c.Key.Addr
	}
	if c.Addr != nil { // a context is cheaper to pass than the whole call
		c.addr = func(ctx context.Context) netip.Addr { return c.Addr(call{ctx: ctx}) }
	}
	return server{c}, nil
}

// context returns ctx for the limiter, with the client's address if it is known.
func (s server) context(ctx context.Context) context.Context {
	ctx = kept.New[ratelimit.Limit](ctx, false)
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

// run calls the handler, and refunds the charge if its code asks for it.
func (s server) run(ctx context.Context, ch charge, handler func(context.Context) error) error {
	code := codes.Internal // if the handler panics
	defer ch.slot.Release()
	defer func() {
		if code != codes.OK && ctx.Err() != nil && !errors.Is(context.Cause(ctx), inflight.ErrLost) { // ErrLost: the slot of an outer interceptor
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

// decide asks the limiter about a call or a message. The error is the one to return for the call.
// If the charge has no key, no decision was made.
func (s server) decide(ctx context.Context, fullMethod, key string, msg any, headers bool) (ch charge, err error) {
	n := s.Costs(call{ctx, fullMethod, msg})
	if n == 0 {
		return charge{}, nil
	}
	slot, r, err := s.Take(ctx, key, n)
	defer func() {
		if ch.slot == nil { // a function of the limiter or a DeniedHandler has panicked
			slot.Release()
		}
	}()
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
		d.Policies, d.limiter = a.Policies, s.Limiter
	}
	if headers {
		if md := a.metadata(); md != nil {
			_ = grpc.SetHeader(ctx, md) // fails if headers have been sent; the decision stands
		}
	}
	switch {
	case r.Allowed:
		return charge{d, n}, nil
	case s.denied != nil:
		return charge{Decision: d}, s.denied(ctx, fullMethod, d)
	}
	return charge{}, denial(&a.Values).Err()
}

// serverStream is a stream whose handler finds its decision, and whose messages may be counted.
type serverStream struct {
	grpc.ServerStream
	ctx             context.Context
	server          server
	key, fullMethod string
}

// Context returns the stream's context, with its decision.
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg receives the next message, and asks the limiter whether to admit it.
func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || !s.server.messages {
		return err
	}
	ch, err := s.server.decide(s.ctx, s.fullMethod, s.key, m, false)
	ch.slot.Release() // nil, unless the limiter has begun to count slots in the meantime; the stream itself holds one
	return err
}
