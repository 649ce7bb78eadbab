package grpclimit

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// UnaryServerInterceptor returns an interceptor that asks l before each unary call.
// A call that is not admitted does not reach its handler. Its status is
//
//   - [codes.ResourceExhausted] with QuotaFailure, which names the policies that denied
//     ([ratelimit.Describer]), and RetryInfo, which has the exact wait, unless no waiting helps;
//   - [codes.Unavailable] with RetryInfo if the limiter is closed by an outage ([fallback.Closed]);
//   - what [WithKeyError] and [WithLimiterError] say where no decision is known;
//   - [codes.Canceled] or [codes.DeadlineExceeded] if the call has ended meanwhile.
//
// The handler finds its Result by [FromContext]. The Delay of a leaky bucket or a slowdown
// is not waited for: put a throttle.Waiter around those. The interceptor holds nothing but
// what l holds. Its errors wrap [ratelimit.ErrInvalidOption]: l, an option or a function is nil.
func UnaryServerInterceptor(l ratelimit.Limiter, opts ...ServerOption) (grpc.UnaryServerInterceptor, error) {
	s, err := newServer(l, opts)
	if err != nil {
		return nil, err
	}
	return s.unary, nil
}

// StreamServerInterceptor returns an interceptor that asks l before each stream, once
// unless [WithMessages] counts messages too. For the rest see [UnaryServerInterceptor].
func StreamServerInterceptor(l ratelimit.Limiter, opts ...ServerOption) (grpc.StreamServerInterceptor, error) {
	s, err := newServer(l, opts)
	if err != nil {
		return nil, err
	}
	return s.stream, nil
}

// resultKey is what a call's context has its Result by.
type resultKey struct{}

// FromContext returns the Result of the call, or of the opening of the stream, that a
// handler has ctx from; and false if no limiter has decided on it. Of several
// interceptors it is the innermost one's.
func FromContext(ctx context.Context) (ratelimit.Result, bool) {
	r, ok := ctx.Value(resultKey{}).(*ratelimit.Result)
	if !ok {
		return ratelimit.Result{}, false
	}
	return *r, true
}

// server is the interceptors of a server.
type server struct{ *config }

func newServer(l ratelimit.Limiter, opts []ServerOption) (server, error) {
	c, err := newConfig(l, PeerIP)
	if err != nil {
		return server{}, err
	}
	for _, opt := range opts {
		if isnil.Is(opt) {
			return server{}, errNilOption
		}
		if err := opt.server(c); err != nil {
			return server{}, err
		}
	}
	return server{c}, nil
}

func (s server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	key, counted, err := s.subject(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if !counted {
		return handler(ctx, req)
	}
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
	defer func() { s.settle(ctx, ch, code) }()
	inner := ctx
	if ch.n > 0 {
		inner = context.WithValue(ctx, resultKey{}, &ch.result)
	}
	err := handler(inner)
	code = codeOf(err)
	return err
}

// decide asks the limiter about a call or a message. The error is the call's.
func (s server) decide(ctx context.Context, fullMethod, key string, msg any, headers bool) (charge, error) {
	n := s.cost(ctx, fullMethod, msg)
	if n == 0 {
		return charge{}, nil
	}
	r, err := s.limiter.AllowN(ctx, key, n)
	if err != nil {
		return charge{}, s.limiterFailed(ctx, fullMethod, err)
	}
	if r.Allowed && !headers {
		return charge{key, n, r}, nil
	}
	rep := s.report(ctx, key, r)
	defer rep.free()
	if headers {
		if md := rep.metadata(); md != nil {
			// It fails where an interceptor before this one has sent the headers. The
			// decision stands without them.
			_ = grpc.SetHeader(ctx, md)
		}
	}
	if !r.Allowed {
		return charge{}, rep.denial()
	}
	return charge{key, n, r}, nil
}

// report is what to tell about r. Free it.
func (c *config) report(ctx context.Context, key string, r ratelimit.Result) *report {
	rep := reports.Get().(*report)
	rep.Result, rep.Parts, rep.DeniedBy = r, r.Parts(), r.DeniedBy()
	// Policies that cannot be told, as when a limit function fails now, are not.
	rep.Policies, _ = ratelimit.AppendPolicies(ctx, rep.Policies, c.limiter, key)
	return rep
}

// serverStream is a stream whose handler finds its Result, and whose messages may count.
type serverStream struct {
	grpc.ServerStream
	ctx             context.Context
	server          server
	key, fullMethod string
}

// Context is the stream's, with its Result.
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg receives the next message, and asks the limiter whether it may.
func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || !s.server.messages {
		return err
	}
	_, err := s.server.decide(s.ctx, s.fullMethod, s.key, m, false)
	return err
}
