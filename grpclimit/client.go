package grpclimit

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/cooldown"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// UnaryClientInterceptor returns an interceptor that keeps the calls of a client under a limit,
// such as the limit of somebody else's service. Each call waits until the limiter admits it
// ([ratelimit.Wait]), as long as its context lasts. A call that would have to wait beyond its
// deadline fails immediately with [codes.DeadlineExceeded]. A call that will never be admitted
// fails with [codes.ResourceExhausted]. With [WithoutWaiting], no call waits. Other statuses are
// those of [UnaryServerInterceptor].
//
// If l counts slots (package inflight), a call waits for a slot ([inflight.Wait]), and holds it
// until the call ends. A stream ends when RecvMsg returns its end, or with its context.
//
// A call is counted when it is made, and not again when gRPC's own retry policy sends it again.
// With [WithMaxPause], the client heeds the server.
//
// It returns [ratelimit.ErrInvalidOption] if l, an option or a function is nil, if an option is
// out of range, or if l waits by itself, as throttle's Waiter does, and [WithoutWaiting] is missing.
func UnaryClientInterceptor(l ratelimit.Limiter, opts ...ClientOption) (grpc.UnaryClientInterceptor, error) {
	c, err := newClient(l, opts)
	if err != nil {
		return nil, err
	}
	return c.unary, nil
}

// StreamClientInterceptor is like [UnaryClientInterceptor], for streams. It counts the opening of
// each stream, but not its messages.
func StreamClientInterceptor(l ratelimit.Limiter, opts ...ClientOption) (grpc.StreamClientInterceptor, error) {
	c, err := newClient(l, opts)
	if err != nil {
		return nil, err
	}
	return c.stream, nil
}

// client implements the interceptors of a client.
type client struct{ *config }

func newClient(l ratelimit.Limiter, opts []ClientOption) (client, error) {
	c, err := newConfig(l, Global())
	if err != nil {
		return client{}, err
	}
	return client{c}, guard.ApplyClient(&c.Config, opts, func(o ClientOption) error { return o.client(c) })
}

func (c client) unary(ctx context.Context, fullMethod string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ch, err := c.admit(ctx, fullMethod, req)
	if err != nil {
		return err
	}
	if ch.Key == "" {
		return invoker(ctx, fullMethod, req, reply, cc, opts...)
	}
	var said []metadata.MD
	if c.heeds() {
		said = make([]metadata.MD, 2)
		opts = append(slices.Clip(opts), grpc.Header(&said[0]), grpc.Trailer(&said[1]))
	}
	code := codes.Internal // if the invoker panics
	defer ch.slot.Release()
	defer func() { c.refundBy(ctx, ch, code) }()
	err = invoker(ctx, fullMethod, req, reply, cc, opts...)
	code = codeOf(err)
	c.heed(ch.Key, err, said...)
	return err
}

func (c client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, fullMethod string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ch, err := c.admit(ctx, fullMethod, nil)
	if err != nil {
		return nil, err
	}
	code, opened := codes.Internal, false // if the streamer panics
	defer func() {
		if !opened {
			defer ch.slot.Release()
			c.refundBy(ctx, ch, code)
		}
	}()
	if ch.slot != nil { // even if nobody receives the end; using the Context of a stream would end gRPC's retries
		opts = append(slices.Clip(opts), grpc.OnFinish(func(error) { ch.slot.Release() }))
	}
	stream, err := streamer(ctx, desc, cc, fullMethod, opts...)
	if ch.Key == "" {
		return stream, err
	}
	if err != nil {
		code = codeOf(err)
		c.heed(ch.Key, err)
		return nil, err
	}
	opened = true
	if !c.heeds() && c.refund == nil && ch.slot == nil {
		return stream, nil
	}
	return &clientStream{ClientStream: stream, client: c, charge: ch, single: !desc.ServerStreams}, nil
}

// admit waits until a call may be made, or refuses it. If the charge has no key, the call is not
// limited. If there is an error, nothing is charged.
func (c client) admit(ctx context.Context, fullMethod string, msg any) (charge, error) {
	key, counted, err := c.subject(ctx, fullMethod)
	if err != nil || !counted {
		return charge{}, err
	}
	n := c.Costs(call{ctx, fullMethod, msg})
	slot, r, err := c.Admit(ctx, key, n)
	paused, isPaused := errors.AsType[guard.Paused](err)
	switch {
	case isPaused:
		return charge{}, refusal(codes.ResourceExhausted, "rate limit: the server asked to wait", time.Duration(paused)).Err()
	case errors.Is(err, ratelimit.ErrWouldExceedDeadline):
		return charge{}, errTooLate
	case errors.Is(err, inflight.ErrFull):
		return charge{}, refusal(codes.ResourceExhausted, "rate limit: too many calls are waiting", time.Second).Err()
	case errors.Is(err, ratelimit.ErrNever):
		return charge{}, c.denied(ctx, key, ratelimit.Result{RetryAfter: ratelimit.Never})
	case err != nil:
		return charge{Decision: Decision{Key: key}}, c.limiterFailed(ctx, fullMethod, err)
	case !r.Allowed:
		return charge{}, c.denied(ctx, key, r)
	}
	return charge{Decision{Result: r, Key: key, slot: slot}, n}, nil
}

var errTooLate = status.Error(codes.DeadlineExceeded, "rate limit: the call would be admitted only after its deadline")

func (c client) denied(ctx context.Context, key string, r ratelimit.Result) error {
	a := c.answer(ctx, key, r, false)
	defer a.free()
	return denial(&a.Values).Err()
}

// heeds reports whether responses of servers can make later calls wait.
func (c client) heeds() bool { return c.MaxPause > 0 }

// heed begins a cooldown of key if the server, which ended a call with err, asks for one.
func (c client) heed(key string, err error, mds ...metadata.MD) {
	if !c.heeds() || err == nil {
		return
	}
	s, _ := status.FromError(err)
	if s.Code() != codes.ResourceExhausted && s.Code() != codes.Unavailable {
		return
	}
	c.Pauses.Add(key, min(retryAfter(s, mds), c.MaxPause)) // does nothing if the time is 0
}

// retryAfter returns how long a server asks the client to wait. It reads RetryInfo of its status,
// or retry-after of the metadata as httplimit does. It returns 0 if there is neither.
func retryAfter(s *status.Status, mds []metadata.MD) time.Duration {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().IsValid() {
			return info.GetRetryDelay().AsDuration()
		}
	}
	for _, md := range mds {
		for _, text := range md.Get(retryAfterHeader) {
			if after, ok := cooldown.ParseWait(text, time.Now()); ok {
				return after
			}
		}
	}
	return 0
}

// clientStream is a stream whose end is watched.
type clientStream struct {
	grpc.ClientStream
	client client
	charge charge
	single bool // the server answers with one message, and the stream ends with it
	ended  atomic.Bool
}

// RecvMsg receives the next message, and notices the end of the stream.
func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if (err != nil || s.single) && s.ended.CompareAndSwap(false, true) {
		s.end(err)
	}
	return err
}

// end is called once, when the stream has ended.
func (s *clientStream) end(err error) {
	code := codes.OK
	if err != nil && !errors.Is(err, io.EOF) {
		code = codeOf(err)
	}
	if code != codes.OK && s.client.heeds() {
		header, _ := s.Header() // available, because the stream has ended
		s.client.heed(s.charge.Key, err, header, s.Trailer())
	}
	defer s.charge.slot.Release()
	s.client.refundBy(s.Context(), s.charge, code)
}
