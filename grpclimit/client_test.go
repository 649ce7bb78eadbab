package grpclimit_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// client is an interceptor without a network, so that time can be a bubble's.
type client struct {
	t      *testing.T
	unary  grpc.UnaryClientInterceptor
	answer error       // of the server
	header metadata.MD // too
	sent   int
}

func newClient(t *testing.T, l ratelimit.Limiter, opts ...grpclimit.ClientOption) *client {
	t.Helper()
	unary, err := grpclimit.UnaryClientInterceptor(l, opts...)
	require.NoError(t, err)
	return &client{t: t, unary: unary}
}

// call says how long it took, and how it ended.
func (c *client) call(ctx context.Context) (time.Duration, answer) {
	c.t.Helper()
	began := time.Now()
	err := c.unary(ctx, unaryCall, &pb.SimpleRequest{}, nil, nil, func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		c.sent++
		for _, opt := range opts {
			if o, ok := opt.(grpc.HeaderCallOption); ok {
				*o.HeaderAddr = c.header
			}
		}
		return c.answer
	})
	return time.Since(began), answer{status: status.Convert(err)}
}

// running is a bucket whose time is the bubble's.
func running(t *testing.T, l ratelimit.Limit) ratelimit.Limiter {
	t.Helper()
	s, err := memstore.New()
	require.NoError(t, err)
	return bucketOn(t, s, l)
}

func everything() ratelimit.Limiter {
	return ratelimittest.Static(ratelimit.Result{Allowed: true}, nil)
}

// comeBack is a refusal by a server that says when to come back.
func comeBack(code codes.Code, after time.Duration) error {
	s, err := status.New(code, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

const jitter = 10 * time.Millisecond // the most that a waiter adds

func TestACallWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, running(t, ratelimit.PerMinute(2)))
		for _, want := range []time.Duration{0, 0, 30 * time.Second, 30 * time.Second} {
			took, a := c.call(t.Context())
			require.Equal(t, codes.OK, a.code())
			require.InDelta(t, want, took, float64(jitter))
		}
		require.Equal(t, 4, c.sent)
	})
}

func TestACallWhoseTurnComesTooLateIsNotSentAndNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, running(t, ratelimit.PerMinute(1)))
		c.call(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		took, a := c.call(ctx)
		require.Equal(t, codes.DeadlineExceeded, a.code())
		require.Zero(t, took, "at once")

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		took, a = c.call(ctx)
		require.Equal(t, codes.Canceled, a.code())
		require.Equal(t, 10*time.Second, took)
		require.Equal(t, 1, c.sent)
		time.Sleep(50 * time.Second)
		took, a = c.call(t.Context())
		require.Equal(t, codes.OK, a.code())
		require.Zero(t, took)
	})
}

func TestAClientThatDoesNotWaitIsRefusedWithoutARoundTrip(t *testing.T) {
	c := newClient(t, bucket(t, ratelimit.PerMinute(1)), grpclimit.WithoutWaiting())
	_, a := c.call(t.Context())
	require.Equal(t, codes.OK, a.code())
	_, a = c.call(t.Context())
	require.Equal(t, codes.ResourceExhausted, a.code())
	require.Equal(t, time.Minute, a.retryInfo())
	require.Equal(t, []string{"1/m"}, a.quotas())
	require.Equal(t, 1, c.sent)
}

// A client that waits would wait beyond the maximum of a Waiter.
func TestAClientWaitsForNoWaiter(t *testing.T) {
	w := ratelimit.Must(throttle.NewWaiter(bucket(t, ratelimit.PerMinute(1)), time.Second))
	_, err := grpclimit.UnaryClientInterceptor(w)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = grpclimit.StreamClientInterceptor(w)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, a := newClient(t, w, grpclimit.WithoutWaiting()).call(t.Context())
	require.Equal(t, codes.OK, a.code())
}

func TestACallThatNoWaitingAdmitsIsRefused(t *testing.T) {
	for _, opts := range [][]grpclimit.ClientOption{nil, {grpclimit.WithoutWaiting()}} {
		opts = append(opts, grpclimit.WithCost(func(context.Context, string, any) int { return 3 }))
		c := newClient(t, bucket(t, ratelimit.PerMinute(2)), opts...)
		_, a := c.call(t.Context())
		require.Equal(t, codes.ResourceExhausted, a.code())
		require.EqualValues(t, -1, a.retryInfo())
		require.Equal(t, "rate limit: the call costs more than the limit ever admits, so waiting will not help", a.status.Message())
		require.Equal(t, []string{"2/m"}, a.quotas())
		require.Zero(t, c.sent)
	}
}

func TestAnOutageOfTheLimiterIsTheClientsToJudge(t *testing.T) {
	broken := bucketOn(t, failing{}, ratelimit.PerHour(1))
	c := newClient(t, broken)
	_, a := c.call(t.Context())
	require.Equal(t, codes.Unavailable, a.code())
	require.Zero(t, c.sent)

	c = newClient(t, broken, grpclimit.WithErrorHandler(func(context.Context, string, error) error { return nil }))
	_, a = c.call(t.Context())
	require.Equal(t, codes.OK, a.code())
	require.Equal(t, 1, c.sent)

	c = newClient(t, broken, grpclimit.WithKey(grpclimit.OutgoingAPIKey("tenant")))
	_, a = c.call(t.Context())
	require.Equal(t, codes.InvalidArgument, a.code())
}

func TestACallThatIsSkippedOrFreeIsSent(t *testing.T) {
	nothing := ratelimittest.Static(ratelimit.Result{RetryAfter: ratelimit.Never}, nil)
	for _, opt := range []grpclimit.ClientOption{
		grpclimit.WithSkip(func(context.Context, string) bool { return true }),
		grpclimit.WithCost(func(context.Context, string, any) int { return 0 }),
	} {
		c := newClient(t, nothing, opt)
		_, a := c.call(t.Context())
		require.Equal(t, codes.OK, a.code())
	}
}

func TestAServerThatSaysWhenToComeBackIsHeeded(t *testing.T) {
	soon := time.Date(2000, 1, 1, 0, 0, 5, 0, time.UTC) // 5 s after a bubble begins
	header := func(text string) metadata.MD { return metadata.Pairs("retry-after", text) }
	for name, c := range map[string]struct {
		answer error
		header metadata.MD
		want   time.Duration
	}{
		"by its status":                      {comeBack(codes.ResourceExhausted, 7*time.Second), nil, 7 * time.Second},
		"when it is unavailable":             {comeBack(codes.Unavailable, 7*time.Second), nil, 7 * time.Second},
		"by metadata":                        {status.Error(codes.ResourceExhausted, ""), header("5"), 5 * time.Second},
		"by a fraction":                      {status.Error(codes.ResourceExhausted, ""), header("4.2"), 5 * time.Second},
		"by Unix seconds":                    {status.Error(codes.ResourceExhausted, ""), header(fmt.Sprint(soon.Unix())), 5 * time.Second},
		"by Unix milliseconds":               {status.Error(codes.ResourceExhausted, ""), header(fmt.Sprint(soon.UnixMilli())), 5 * time.Second},
		"not by a time that is over":         {status.Error(codes.ResourceExhausted, ""), header(fmt.Sprint(soon.Unix() - 3600)), 0},
		"the status wins":                    {comeBack(codes.ResourceExhausted, 7*time.Second), header("5"), 7 * time.Second},
		"up to a bound":                      {comeBack(codes.ResourceExhausted, time.Hour), nil, time.Minute},
		"up to a bound, by metadata":         {status.Error(codes.ResourceExhausted, ""), header(fmt.Sprint(int64(math.MaxInt64))), time.Minute},
		"beyond 64 bits":                     {status.Error(codes.ResourceExhausted, ""), header("99999999999999999999"), time.Minute},
		"not with other codes":               {comeBack(codes.NotFound, 7*time.Second), header("5"), 0},
		"not when all is well":               {nil, header("5"), 0},
		"not when it says nothing":           {status.Error(codes.ResourceExhausted, ""), nil, 0},
		"not when it says what is past":      {comeBack(codes.ResourceExhausted, -time.Second), header("-5"), 0},
		"not when it says what is no number": {status.Error(codes.ResourceExhausted, ""), header("Wed, 21 Oct 2026"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				key := grpclimit.WithKey(grpclimit.User(user))
				heeding := newClient(t, everything(), key, grpclimit.WithMaxPause(time.Minute))
				deaf := newClient(t, everything(), key)
				ann := context.WithValue(t.Context(), userKey{}, "ann")
				for _, client := range []*client{heeding, deaf} {
					client.answer, client.header = c.answer, c.header
					client.call(ann)
					client.answer, client.header = nil, nil
				}
				took, _ := deaf.call(ann)
				require.Zero(t, took, "without the option")
				took, _ = heeding.call(context.WithValue(t.Context(), userKey{}, "bob"))
				require.Zero(t, took, "others go on")

				time.Sleep(c.want / 4)
				took, a := heeding.call(ann)
				require.Equal(t, codes.OK, a.code())
				require.Equal(t, c.want-c.want/4, took)
				took, _ = heeding.call(ann)
				require.Zero(t, took, "it is over")
			})
		})
	}
}

func TestAPauseEndsWithTheCallAndChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := &recorder{Limiter: everything()}
		shared := grpclimit.WithMaxPause(time.Hour)
		c, refusing := newClient(t, lim, shared), newClient(t, lim, shared, grpclimit.WithoutWaiting())
		c.answer = comeBack(codes.ResourceExhausted, time.Minute)
		c.call(t.Context())
		c.answer = comeBack(codes.ResourceExhausted, time.Second)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		took, a := c.call(ctx)
		require.Equal(t, codes.DeadlineExceeded, a.code())
		require.Zero(t, took, "at once")

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		took, a = c.call(ctx)
		require.Equal(t, codes.Canceled, a.code())
		require.Equal(t, 10*time.Second, took)

		_, a = refusing.call(t.Context())
		require.Equal(t, codes.ResourceExhausted, a.code(), "the option is shared")
		require.Equal(t, 50*time.Second, a.retryInfo())
		require.Len(t, lim.asked(), 1)
	})
}

func TestCallsThatWaitForTheLimiterHeedAPauseAndAreNotSentAllAtOnceAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unary, err := grpclimit.UnaryClientInterceptor(running(t, ratelimit.PerSecond(1)), grpclimit.WithMaxPause(time.Minute))
		require.NoError(t, err)
		var mu sync.Mutex
		var sent []time.Time
		server := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			mu.Lock()
			sent = append(sent, time.Now())
			first := len(sent) == 1
			mu.Unlock()
			time.Sleep(500 * time.Millisecond)
			if first {
				return comeBack(codes.ResourceExhausted, 30*time.Second)
			}
			return nil
		}
		var wg sync.WaitGroup
		for range 10 { // one is sent and refused, while the others wait for the limiter
			wg.Go(func() { _ = unary(t.Context(), unaryCall, nil, nil, nil, server) })
		}
		wg.Wait()
		require.Len(t, sent, 10)
		for i := range sent[1:] {
			require.GreaterOrEqual(t, sent[i+1].Sub(sent[0]), 30*time.Second)
			require.GreaterOrEqual(t, sent[i+1].Sub(sent[i]), time.Second)
		}
	})
}

func TestAfterAPauseCallsGoOnInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unary, err := grpclimit.UnaryClientInterceptor(running(t, ratelimit.PerSecond(1)), grpclimit.WithMaxPause(time.Minute))
		require.NoError(t, err)
		sent := make(chan int, 20)
		var wg sync.WaitGroup
		for i := range 20 {
			server := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				if sent <- i; i == 4 {
					return comeBack(codes.ResourceExhausted, 30*time.Second)
				}
				return nil
			}
			wg.Go(func() { _ = unary(t.Context(), unaryCall, nil, nil, nil, server) })
			synctest.Wait()
		}
		wg.Wait()
		for i := range 20 {
			require.Equal(t, i, <-sent)
		}
	})
}

// meanwhile does something, once, while it is asked.
type meanwhile struct {
	ratelimit.Limiter
	do func()
}

func (l *meanwhile) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if do := l.do; do != nil {
		l.do = nil
		do()
	}
	return l.Limiter.AllowN(context.WithoutCancel(ctx), key, n) // as a store that answers in spite of the end
}

func TestACallThatIsNotMadeAfterAllIsRefunded(t *testing.T) {
	for want, opts := range map[codes.Code][]grpclimit.ClientOption{
		codes.DeadlineExceeded:  nil,
		codes.ResourceExhausted: {grpclimit.WithoutWaiting()},
	} {
		synctest.Test(t, func(t *testing.T) {
			shared := grpclimit.WithMaxPause(time.Hour)
			lim := &meanwhile{Limiter: running(t, ratelimit.PerDay(10))}
			c, other := newClient(t, lim, append(opts, shared)...), newClient(t, everything(), shared)
			other.answer = comeBack(codes.ResourceExhausted, 30*time.Second)
			lim.do = func() { other.call(t.Context()) } // which is told to leave the server alone
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, a := c.call(ctx)
			require.Equal(t, want, a.code())
			p, err := lim.Peek(t.Context(), "global")
			require.NoError(t, err)
			require.Equal(t, 10, p.Remaining)
		})
	}
}

// The context of a call ends while the limiter is asked, which admits it. The call is not made, and not charged.
func TestACallThatEndsWhileTheLimiterIsAskedIsRefunded(t *testing.T) {
	for name, opts := range map[string][]grpclimit.ClientOption{
		"waiting": nil, "without waiting": {grpclimit.WithoutWaiting()}, "with pauses": {grpclimit.WithMaxPause(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			lim := &meanwhile{Limiter: running(t, ratelimit.PerDay(10))}
			ctx, hangUp := context.WithCancel(t.Context())
			lim.do = hangUp
			c := newClient(t, lim, opts...)
			_, a := c.call(ctx)
			require.Equal(t, codes.Canceled, a.code())
			require.Zero(t, c.sent)
			p, err := lim.Peek(t.Context(), "global")
			require.NoError(t, err)
			require.Equal(t, 10, p.Remaining)
		})
	}
}

func TestAShorterPauseDoesNotEndALongerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, everything(), grpclimit.WithMaxPause(time.Hour))
		later := make(chan struct{})
		go func() { // under way since before the first pause
			defer close(later)
			_ = c.unary(t.Context(), unaryCall, nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				time.Sleep(time.Second)
				return comeBack(codes.ResourceExhausted, time.Second)
			})
		}()
		synctest.Wait()
		c.answer = comeBack(codes.ResourceExhausted, time.Minute)
		c.call(t.Context())
		<-later
		took, _ := c.call(t.Context())
		require.Equal(t, 59*time.Second, took)
	})
}

func TestFailedCallsOfAClientAreGivenBackIfTheyAreMeantTo(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(10))}
	c := newClient(t, lim, endsWith(codes.Unavailable, codes.Internal))
	for i, err := range []error{status.Error(codes.Unavailable, ""), nil, status.Error(codes.NotFound, "")} {
		c.answer = err
		c.call(t.Context())
		require.Equal(t, 1, lim.refunded(), i)
	}
	require.PanicsWithValue(t, "boom", func() {
		_ = c.unary(t.Context(), unaryCall, nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			panic("boom")
		})
	})
	require.Equal(t, 2, lim.refunded())
	open, err := grpclimit.StreamClientInterceptor(lim, endsWith(codes.Internal))
	require.NoError(t, err)
	require.PanicsWithValue(t, "boom", func() {
		_, _ = open(t.Context(), &grpc.StreamDesc{}, nil, unaryCall, func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			panic("boom")
		})
	})
	require.Equal(t, 3, lim.refunded())
}

// ---- Over loopback.

func dialStreams(t *testing.T, svc *service, l ratelimit.Limiter, opts ...grpclimit.ClientOption) pb.TestServiceClient {
	t.Helper()
	unary, err := grpclimit.UnaryClientInterceptor(l, opts...)
	require.NoError(t, err)
	stream, err := grpclimit.StreamClientInterceptor(l, opts...)
	require.NoError(t, err)
	return dial(t, listen(t, svc), grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream))
}

func TestUnaryCallsAndStreamsAreKeptUnderOneLimit(t *testing.T) {
	svc := &service{}
	c := dialStreams(t, svc, bucket(t, ratelimit.PerHour(3)), grpclimit.WithoutWaiting())
	require.Equal(t, codes.OK, call(t, c).code())
	require.Equal(t, codes.OK, converse(t, c, 5).code())
	require.Equal(t, codes.OK, call(t, c).code())
	for _, a := range []answer{call(t, c), converse(t, c, 1)} {
		require.Equal(t, codes.ResourceExhausted, a.code())
		require.Equal(t, 20*time.Minute, a.retryInfo())
		require.Equal(t, []string{"3/h"}, a.quotas())
	}
	require.EqualValues(t, 3, svc.calls.Load(), "the others were not sent")
}

func TestAStreamThatFailsIsGivenBackOnce(t *testing.T) {
	end := make(chan error, 1)
	svc := &service{duplex: func(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
		return <-end
	}}
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(10))}
	c := dialStreams(t, svc, lim, endsWith(codes.Unavailable))
	for i, err := range []error{status.Error(codes.Unavailable, ""), nil, status.Error(codes.NotFound, "")} {
		end <- err
		stream, err := c.FullDuplexCall(t.Context())
		require.NoError(t, err)
		for range 2 {
			_, err = stream.Recv()
			require.Error(t, err)
		}
		require.Equal(t, 1, lim.refunded(), i)
	}
}

func TestAStreamOfOneAnswerEndsWithIt(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(10))}
	c := dialStreams(t, &service{}, lim, endsWith(codes.OK))
	stream, err := c.StreamingInputCall(t.Context())
	require.NoError(t, err)
	_, err = stream.CloseAndRecv()
	require.NoError(t, err)
	require.Equal(t, 1, lim.refunded())
}

func TestAStreamThatCannotBeOpenedIsGivenBackAndHeeded(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(10))}
	i, err := grpclimit.StreamClientInterceptor(lim, endsWith(codes.Unavailable),
		grpclimit.WithMaxPause(time.Hour), grpclimit.WithoutWaiting())
	require.NoError(t, err)
	for _, want := range []codes.Code{codes.Unavailable, codes.ResourceExhausted} {
		_, err = i(t.Context(), &grpc.StreamDesc{}, nil, duplexCall, func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, comeBack(codes.Unavailable, time.Hour)
		})
		require.Equal(t, want, status.Code(err))
	}
	require.Equal(t, 1, lim.refunded())
}

func TestAClientHeedsTheLimiterOfAServer(t *testing.T) {
	for name, opts := range map[string][]grpclimit.ServerOption{"headers": nil, "no headers": {grpclimit.WithoutHeaders()}} {
		t.Run(name, func(t *testing.T) {
			lim, svc := bucket(t, ratelimit.PerHour(1)), &service{}
			addr := listen(t, svc, unaryServer(t, lim, opts...), streamServer(t, lim, opts...))
			both := []grpclimit.ClientOption{grpclimit.WithMaxPause(2 * time.Hour), grpclimit.WithoutWaiting()}
			unary, err := grpclimit.UnaryClientInterceptor(everything(), both...)
			require.NoError(t, err)
			stream, err := grpclimit.StreamClientInterceptor(everything(), both...)
			require.NoError(t, err)
			c := dial(t, addr, grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream))

			require.Equal(t, codes.OK, converse(t, c, 1).code())
			require.Equal(t, []string{"1/h"}, converse(t, c, 1).quotas(), "by the server")
			for _, a := range []answer{call(t, c), converse(t, c, 1)} {
				require.Equal(t, codes.ResourceExhausted, a.code())
				require.Empty(t, a.quotas(), "by the client")
				require.Greater(t, a.retryInfo(), 50*time.Minute)
			}
		})
	}
}
