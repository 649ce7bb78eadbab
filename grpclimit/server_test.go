package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

var errEOF = io.EOF

func TestACallerIsToldHowHeStandsAndWhenToComeBack(t *testing.T) {
	svc := &service{}
	client := dial(t, listen(t, svc, unaryServer(t, bucket(t, ratelimit.PerMinute(2), ratelimit.WithName("search")))))

	first := call(t, client)
	require.Equal(t, codes.OK, first.code())
	require.Equal(t, []string{`"search";q=2;w=60`}, first.header["ratelimit-policy"])
	require.Equal(t, []string{`"search";r=1;t=30`}, first.header["ratelimit"])
	require.Empty(t, first.header["retry-after"])
	require.Equal(t, codes.OK, call(t, client).code())

	denied := call(t, client)
	require.Equal(t, codes.ResourceExhausted, denied.code())
	require.Equal(t, 30*time.Second, denied.retryInfo())
	require.Equal(t, []string{"search"}, denied.quotas())
	require.Equal(t, []string{`"search";q=2;w=60`}, denied.header["ratelimit-policy"])
	require.Equal(t, []string{`"search";r=0;t=30`}, denied.header["ratelimit"])
	require.Equal(t, []string{"30"}, denied.header["retry-after"])
	require.Empty(t, denied.trailer["ratelimit"], "never in trailers")
	require.Empty(t, denied.trailer["retry-after"])
	require.EqualValues(t, 2, svc.calls.Load(), "a denied call does not reach its handler")
}

func TestAStreamIsOneDecisionAndIsToldTheSame(t *testing.T) {
	svc := &service{}
	client := dial(t, listen(t, svc, streamServer(t, bucket(t, ratelimit.PerMinute(1)))))

	a := converse(t, client, 5)
	require.Equal(t, codes.OK, a.code())
	require.Equal(t, []string{`"1/m";q=1;w=60`}, a.header["ratelimit-policy"])
	require.Equal(t, []string{`"1/m";r=0;t=60`}, a.header["ratelimit"])

	a = converse(t, client, 5)
	require.Equal(t, codes.ResourceExhausted, a.code())
	require.Equal(t, time.Minute, a.retryInfo())
	require.Equal(t, []string{"1/m"}, a.quotas())
	require.Equal(t, []string{"60"}, a.header["retry-after"])
	require.EqualValues(t, 1, svc.calls.Load())
}

// converse sends n messages, one after the answer to the other, and says how it ended.
func converse(t *testing.T, client pb.TestServiceClient, n int) (a answer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.FullDuplexCall(ctx)
	for range n {
		if err != nil {
			break
		}
		if err = stream.Send(&pb.StreamingOutputCallRequest{}); err == nil || errors.Is(err, io.EOF) {
			_, err = stream.Recv()
		}
	}
	if err == nil {
		require.NoError(t, stream.CloseSend())
		_, err = stream.Recv()
	}
	if stream != nil {
		a.header, _ = stream.Header()
		a.trailer = stream.Trailer()
	}
	if !errors.Is(err, io.EOF) {
		a.status = status.Convert(err)
	}
	return a
}

func TestMessagesCountIfTheyAreMeantTo(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(6))}
	var keys atomic.Int64
	client := dial(t, listen(t, &service{}, streamServer(t, lim, grpclimit.WithMessages(),
		grpclimit.WithKey(grpclimit.KeyFunc("key", func(context.Context, string) (string, error) {
			keys.Add(1)
			return "one", nil
		})),
		grpclimit.WithCost(func(_ context.Context, _ string, msg any) int {
			if _, ok := msg.(*pb.StreamingOutputCallRequest); ok {
				return 2
			}
			return 0 // the opening
		}))))
	require.Equal(t, codes.OK, converse(t, client, 2).code())
	require.Equal(t, []int{2, 2}, lim.costs)
	a := converse(t, client, 5)
	require.Equal(t, codes.ResourceExhausted, a.code(), "the second message is the fourth of three")
	require.Equal(t, 20*time.Minute, a.retryInfo())
	require.Equal(t, []string{"6/h"}, a.quotas())
	require.Len(t, lim.costs, 4)
	require.EqualValues(t, 2, keys.Load(), "once for each stream")
}

func TestTheOpeningOfAStreamCountsBesidesItsMessages(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(100))}
	client := dial(t, listen(t, &service{}, streamServer(t, lim, grpclimit.WithMessages())))
	require.Equal(t, codes.OK, converse(t, client, 3).code())
	require.Equal(t, []int{1, 1, 1, 1}, lim.costs)
}

func TestAHandlerFindsTheDecisionOnRequest(t *testing.T) {
	seen := make(chan grpclimit.Decision, 2)
	find := func(ctx context.Context) error {
		d, ok := grpclimit.FromContext(ctx)
		if !ok {
			return errors.New("no decision")
		}
		seen <- d
		return nil
	}
	svc := &service{
		unary: find,
		duplex: func(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
			return find(stream.Context())
		},
	}
	lim := bucket(t, ratelimit.PerHour(5))
	for _, headers := range [][]grpclimit.ServerOption{nil, {grpclimit.WithoutHeaders()}} {
		opts := append(headers, grpclimit.WithContext())
		lim := bucket(t, ratelimit.PerHour(5), ratelimit.WithName("search"))
		client := dial(t, listen(t, svc, unaryServer(t, lim, opts...), streamServer(t, lim, opts...)))
		require.Equal(t, codes.OK, call(t, client).code())
		require.Equal(t, codes.OK, converse(t, client, 0).code())
		for _, remaining := range []int{4, 3} {
			d := <-seen
			require.Equal(t, remaining, d.Result.Remaining)
			require.Equal(t, "127.0.0.1", d.Key)
			require.Equal(t, "search", d.Limiter())
			require.Equal(t, ratelimit.PerHour(5), d.Policies[0].Limit)
		}
	}
	client := dial(t, listen(t, svc, unaryServer(t, lim), streamServer(t, lim)))
	require.Equal(t, codes.Unknown, call(t, client).code(), "not without the option")
	require.Equal(t, codes.Unknown, converse(t, client, 0).code())

	_, ok := grpclimit.FromContext(t.Context())
	require.False(t, ok)
}

func TestEachIdentityHasALimitOfItsOwnAndNobodyHasNone(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(1))}
	client := dial(t, listen(t, &service{}, unaryServer(t, lim, grpclimit.WithKey(grpclimit.APIKey("x-api-key"))),
		streamServer(t, lim, grpclimit.WithKey(grpclimit.APIKey("x-api-key")))))
	for _, who := range []string{"one", "two"} {
		require.Equal(t, codes.OK, call(t, client, "x-api-key", who).code())
		require.Equal(t, codes.ResourceExhausted, call(t, client, "x-api-key", who).code())
	}
	asked := len(lim.asked())
	require.Equal(t, codes.InvalidArgument, call(t, client).code())
	require.Equal(t, codes.InvalidArgument, call(t, client, "x-api-key", "").code())
	require.Equal(t, codes.InvalidArgument, call(t, client, "x-api-key", "one", "x-api-key", "three").code())
	require.Equal(t, codes.InvalidArgument, converse(t, client, 1).code())
	require.Len(t, lim.asked(), asked, "nobody is asked about nobody")
}

func TestAKeyThatIsTooLongIsTheCallersFault(t *testing.T) {
	for _, name := range []string{strings.Repeat("x", 1<<16+1), ""} {
		k := grpclimit.User(func(context.Context) string { return name })
		client := dial(t, listen(t, &service{}, unaryServer(t, bucket(t, ratelimit.PerHour(1)), grpclimit.WithKey(k))))
		require.Equal(t, codes.InvalidArgument, call(t, client).code())
	}
}

func TestAnErrorOfAKeyFunctionIsAnsweredByItsKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{grpclimit.ErrNoIdentity, codes.InvalidArgument},
		{grpclimit.ErrAmbiguousIdentity, codes.InvalidArgument},
		{ratelimit.ErrInvalidKey, codes.InvalidArgument},
		{ratelimit.ErrInvalidOption, codes.Internal},
		{errors.New("session store is down"), codes.Unavailable},
	} {
		lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(1))}
		k := grpclimit.KeyFunc("session", func(context.Context, string) (string, error) { return "ann", c.err })
		client := dial(t, listen(t, &service{}, unaryServer(t, lim, grpclimit.WithKey(k))))
		a := call(t, client)
		require.Equal(t, c.want, a.code(), c.err)
		require.NotContains(t, a.status.Message(), c.err.Error())
		require.Empty(t, lim.asked(), "not counted")
	}
}

func TestAPanicOfAKeyFunctionGoesOnAndChargesNothing(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(1))}
	i, err := grpclimit.UnaryServerInterceptor(lim,
		grpclimit.WithKey(grpclimit.KeyFunc("session", func(context.Context, string) (string, error) { panic("boom") })),
		grpclimit.WithKeyErrorHandler(func(context.Context, string, error) error { panic("not an error") }))
	require.NoError(t, err)
	require.PanicsWithValue(t, "boom", func() { _, _ = i(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, nil) })
	require.Empty(t, lim.asked(), "not counted")
}

func TestADenialCanBeAnythingOrLetThrough(t *testing.T) {
	svc := &service{duplex: func(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
		if d, ok := grpclimit.FromContext(stream.Context()); !ok || d.Result.Allowed {
			return errors.New("no denial in the context")
		}
		return echo(stream)
	}}
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(1))}
	key := grpclimit.WithKey(grpclimit.Global())
	handler := grpclimit.WithDeniedHandler(func(_ context.Context, fullMethod string, d grpclimit.Decision) error {
		assert.Equal(t, "global", d.Key)
		assert.Equal(t, "1/h", d.Limiter())
		if fullMethod == duplexCall {
			return nil
		}
		return status.Error(codes.Aborted, grpclimit.DeniedStatus(d).Message())
	})
	client := dial(t, listen(t, svc, unaryServer(t, lim, key, handler), streamServer(t, lim, key, handler, grpclimit.WithContext(), grpclimit.WithRefund(grpclimit.Successful))))
	require.Equal(t, codes.OK, call(t, client).code())
	a := call(t, client)
	require.Equal(t, codes.Aborted, a.code())
	require.Equal(t, "rate limit exceeded", a.status.Message())
	require.Equal(t, []string{"3600"}, a.header["retry-after"])
	require.Equal(t, codes.OK, converse(t, client, 1).code(), "nil lets it through")
	require.Zero(t, lim.refunded(), "it was not charged")
}

func TestTheStatusOfADenialIsTheStandardOne(t *testing.T) {
	lim := bucket(t, ratelimit.PerHour(0))
	own := grpclimit.WithDeniedHandler(func(_ context.Context, _ string, d grpclimit.Decision) error { return grpclimit.DeniedStatus(d).Err() })
	standard := call(t, dial(t, listen(t, &service{}, unaryServer(t, lim))))
	require.Equal(t, standard.status.Proto().String(), call(t, dial(t, listen(t, &service{}, unaryServer(t, lim, own)))).status.Proto().String())
}

func TestAHandlerDecidesOnCallsWithoutAnIdentity(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(1))}
	client := dial(t, listen(t, &service{}, unaryServer(t, lim, grpclimit.WithKey(grpclimit.APIKey("x-api-key")),
		grpclimit.WithKeyErrorHandler(func(_ context.Context, fullMethod string, err error) error {
			if errors.Is(err, grpclimit.ErrNoIdentity) && fullMethod == unaryCall {
				return status.Error(codes.Unauthenticated, "who are you?")
			}
			return nil
		}))))
	require.Equal(t, codes.Unauthenticated, call(t, client).code())
	a := call(t, client, "x-api-key", "one", "x-api-key", "two")
	require.Equal(t, codes.OK, a.code(), "nil lets it through")
	require.Empty(t, a.header["ratelimit"])
	require.Empty(t, lim.asked())
}

func TestAnOutageIsUnavailableAndTheErrorIsNotTold(t *testing.T) {
	broken := ratelimittest.Static(ratelimit.Result{}, fmt.Errorf("%w: redis at 10.0.0.1 key canary", ratelimit.ErrStore))
	client := dial(t, listen(t, &service{}, unaryServer(t, broken), streamServer(t, broken)))
	for _, a := range []answer{call(t, client), converse(t, client, 1)} {
		require.Equal(t, codes.Unavailable, a.code())
		require.NotContains(t, a.status.String(), "canary")
		require.NotContains(t, a.status.String(), "redis")
	}

	closed, err := fallback.New(broken, fallback.FailClosed())
	require.NoError(t, err)
	client = dial(t, listen(t, &service{}, unaryServer(t, closed)))
	a := call(t, client)
	require.Equal(t, codes.Unavailable, a.code())
	require.Equal(t, time.Second, a.retryInfo())
	require.Empty(t, a.quotas(), "no quota is exceeded")
	require.Equal(t, []string{"1"}, a.header["retry-after"])
	require.Empty(t, a.header["ratelimit"], "nothing is known")

	open, err := fallback.New(bucketOn(t, failing{}, ratelimit.PerHour(3)), fallback.FailOpen())
	require.NoError(t, err)
	client = dial(t, listen(t, &service{}, unaryServer(t, open)))
	a = call(t, client)
	require.Equal(t, codes.OK, a.code())
	require.Empty(t, a.header["ratelimit-policy"], "nothing was counted")
	require.Empty(t, a.header["ratelimit"])

	client = dial(t, listen(t, &service{}, unaryServer(t, broken, grpclimit.WithErrorHandler(
		func(_ context.Context, _ string, err error) error {
			require.ErrorIs(t, err, ratelimit.ErrStore)
			return nil
		}))))
	require.Equal(t, codes.OK, call(t, client).code(), "nil lets it through")
}

// asked is what one interceptor says of a call whose limiter answers with err.
func asked(t *testing.T, err error, opts ...grpclimit.ServerOption) codes.Code {
	t.Helper()
	i, failed := grpclimit.UnaryServerInterceptor(ratelimittest.Static(ratelimit.Result{}, err), append(opts, grpclimit.WithKey(grpclimit.Global()))...)
	require.NoError(t, failed)
	return code(t, i)
}

func code(t *testing.T, i grpc.UnaryServerInterceptor) codes.Code {
	t.Helper()
	_, err := i(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, func(context.Context, any) (any, error) { return nil, nil })
	return status.Code(err)
}

// A handler that fails open is for outages. A configuration error lets nobody through.
func TestAnErrorOfTheConfigurationLetsNobodyThrough(t *testing.T) {
	open := grpclimit.WithErrorHandler(func(context.Context, string, error) error { return nil })
	for i, sentinel := range []error{ratelimit.ErrInvalidOption, ratelimit.ErrInvalidLimit, ratelimit.ErrInvalidN} {
		err := fmt.Errorf("%w: configuration %d", sentinel, i)
		require.Equal(t, codes.Internal, asked(t, err, open))
		require.Equal(t, 1, said.count("[grpclimit] "+err.Error()))
	}
	require.Equal(t, codes.OK, asked(t, fmt.Errorf("%w: opens", ratelimit.ErrStore), open))
	require.Zero(t, said.count("opens"), "the handler is told")
	own := grpclimit.WithErrorHandler(func(context.Context, string, error) error { return status.Error(codes.Aborted, "") })
	require.Equal(t, codes.Aborted, asked(t, ratelimit.ErrInvalidN, own), "any other answer stands")
}

func TestWhyThereIsNoDecisionIsSaidOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := ratelimittest.Static(ratelimit.Result{}, fmt.Errorf("%w: for two minutes", ratelimit.ErrStore))
		i, err := grpclimit.UnaryServerInterceptor(down, grpclimit.WithKey(grpclimit.Global()))
		require.NoError(t, err)
		for range 121 { // from one second to the same two minutes later
			require.Equal(t, codes.Unavailable, code(t, i))
			time.Sleep(time.Second)
		}
		require.Equal(t, 3, said.count("for two minutes"))
		require.Equal(t, codes.InvalidArgument, asked(t, fmt.Errorf("%w: the client's own", ratelimit.ErrInvalidKey)))
		require.Zero(t, said.count("the client's own"))
	})
}

func TestTheEndOfTheCallIsNotAnOutage(t *testing.T) {
	hanging := hanging{entered: make(chan struct{}, 1)}
	var got atomic.Value
	spy := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		got.Store(status.Code(err))
		return resp, err
	}
	never := grpclimit.WithErrorHandler(func(context.Context, string, error) error { panic("not an error of the limiter") })
	client := dial(t, listen(t, &service{}, grpc.ChainUnaryInterceptor(spy), unaryServer(t, hanging, never)))

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-hanging.entered
		cancel()
	}()
	_, err := client.UnaryCall(ctx, &pb.SimpleRequest{})
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Eventually(t, func() bool { return got.Load() == codes.Canceled }, 10*time.Second, time.Millisecond)

	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	i, err := grpclimit.UnaryServerInterceptor(hanging, never, grpclimit.WithKey(grpclimit.Global()))
	require.NoError(t, err)
	_, err = i(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, nil)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
}

func TestADeadlineOfTheLimiterThatIsNotTheCallsIsAnOutage(t *testing.T) {
	late := ratelimittest.Static(ratelimit.Result{}, context.DeadlineExceeded)
	client := dial(t, listen(t, &service{}, unaryServer(t, late)))
	require.Equal(t, codes.Unavailable, call(t, client).code())
}

func TestNoWaitingHelpsSoNoneIsAdvised(t *testing.T) {
	cost := grpclimit.WithCost(func(context.Context, string, any) int { return 11 })
	small, large := bucket(t, ratelimit.PerMinute(10)), bucket(t, ratelimit.PerMinute(100))
	for left, l := range map[string]ratelimit.Limiter{
		`"10/m";r=10`: small, `"100/m";r=100,"10/m";r=10`: ratelimittest.All(t, large, small),
	} {
		a := call(t, dial(t, listen(t, &service{}, unaryServer(t, l, cost))))
		require.Equal(t, codes.ResourceExhausted, a.code())
		require.Equal(t, "rate limit: the call costs more than the limit ever admits, so waiting will not help", a.status.Message())
		require.EqualValues(t, -1, a.retryInfo())
		require.Equal(t, []string{"10/m"}, a.quotas())
		require.Equal(t, []string{left}, a.header["ratelimit"])
		require.Empty(t, a.header["retry-after"])
	}
}

func TestCostsSkipsAndWhatIsFree(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerMinute(10))}
	var cost atomic.Int64
	client := dial(t, listen(t, &service{}, unaryServer(t, lim,
		grpclimit.WithCost(func(_ context.Context, _ string, msg any) int {
			require.IsType(t, &pb.SimpleRequest{}, msg)
			return int(cost.Load())
		}),
		grpclimit.WithSkip(func(ctx context.Context, fullMethod string) bool {
			return len(metadata.ValueFromIncomingContext(ctx, "x-skip")) > 0 && fullMethod == unaryCall
		}))))
	cost.Store(7)
	require.Equal(t, []string{`"10/m";r=3;t=42`}, call(t, client).header["ratelimit"])
	require.Equal(t, codes.ResourceExhausted, call(t, client).code())
	require.Equal(t, codes.OK, call(t, client, "x-skip", "1").code())
	require.Equal(t, []int{7, 7}, lim.costs)
	cost.Store(0)
	a := call(t, client)
	require.Equal(t, codes.OK, a.code())
	require.Empty(t, a.header["ratelimit"])
	require.Len(t, lim.asked(), 2, "what is free is not asked about")
	cost.Store(-1)
	require.Equal(t, codes.Internal, call(t, client).code())
}

func TestASkippedStreamAndItsMessagesAreLeftAlone(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerMinute(1))}
	client := dial(t, listen(t, &service{}, streamServer(t, lim, grpclimit.WithMessages(),
		grpclimit.WithSkip(func(_ context.Context, fullMethod string) bool { return fullMethod == duplexCall }))))
	require.Equal(t, codes.OK, converse(t, client, 3).code())
	require.Empty(t, lim.asked())
}

func TestFailedCallsAreGivenBackIfTheyAreMeantTo(t *testing.T) {
	var fail atomic.Value
	fail.Store(codes.OK)
	failed := func(context.Context) error { return status.Error(fail.Load().(codes.Code), "") }
	svc := &service{
		unary: failed,
		duplex: func(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
			return failed(stream.Context())
		},
	}
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(100))}
	refund := endsWith(codes.Internal, codes.Unavailable)
	client := dial(t, listen(t, svc, unaryServer(t, lim, refund), streamServer(t, lim, refund)))
	want := 0
	for code, back := range map[codes.Code]bool{codes.OK: false, codes.NotFound: false, codes.Internal: true, codes.Unavailable: true} {
		fail.Store(code)
		require.Equal(t, code, call(t, client).code())
		require.Equal(t, code, converse(t, client, 0).code())
		if back {
			want += 2
		}
		require.Equal(t, want, lim.refunded(), code)
	}
	peek, err := lim.Peek(t.Context(), lim.asked()[0])
	require.NoError(t, err)
	require.Equal(t, 100-4, peek.Remaining)
}

func TestAPanicIsGivenBackAndGoesOn(t *testing.T) {
	recovering := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		defer func() { err = status.Error(codes.Aborted, fmt.Sprint(recover())) }()
		return handler(ctx, req)
	}
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(100))}
	client := dial(t, listen(t, &service{unary: func(context.Context) error { panic("boom") }},
		grpc.ChainUnaryInterceptor(recovering), unaryServer(t, lim, endsWith(codes.Internal))))
	a := call(t, client)
	require.Equal(t, codes.Aborted, a.code())
	require.Equal(t, "boom", a.status.Message())
	require.Equal(t, 1, lim.refunded())
}

func TestACancelledCallIsGivenBackToo(t *testing.T) {
	lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(100))}
	ctx, cancel := context.WithCancel(t.Context())
	svc := &service{unary: func(server context.Context) error {
		cancel()
		<-server.Done()
		return server.Err() // not a status: gRPC makes one of it
	}}
	client := dial(t, listen(t, svc, unaryServer(t, lim, endsWith(codes.Canceled))))
	_, err := client.UnaryCall(ctx, &pb.SimpleRequest{})
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Eventually(t, func() bool { return lim.refunded() == 1 }, 10*time.Second, time.Millisecond)
}

// Codes that a client can cause at will are not Failed; otherwise it could make any number of
// calls.
func TestFailedIsWhatAServerHasCaused(t *testing.T) {
	var failed []codes.Code
	for code := range codes.Unauthenticated + 1 {
		if grpclimit.Failed(code) {
			failed = append(failed, code)
		}
		require.Equal(t, code == codes.OK, grpclimit.Successful(code))
	}
	require.Equal(t, []codes.Code{codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable, codes.DataLoss}, failed)
}

func TestACallThatItsClientHasEndedIsNeitherFailedNorSuccessful(t *testing.T) {
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": context.WithCancel,
		"a deadline that the client chose": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, f := range []func(codes.Code) bool{grpclimit.Failed, grpclimit.Successful} {
					lim := &recorder{Limiter: bucket(t, ratelimit.PerHour(100))}
					unary, err := grpclimit.UnaryServerInterceptor(lim, grpclimit.WithKey(grpclimit.Global()), grpclimit.WithRefund(f))
					require.NoError(t, err)
					ctx, cancel := end(t.Context())
					defer cancel()
					_, err = unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, func(ctx context.Context, _ any) (any, error) {
						time.AfterFunc(2*time.Hour, cancel)
						<-ctx.Done()
						return nil, status.Error(codes.Unavailable, "of a backend")
					})
					require.Equal(t, codes.Unavailable, status.Code(err))
					require.Zero(t, lim.refunded())
				}
			})
		})
	}
}

func TestHeadersCanBeLeftOut(t *testing.T) {
	client := dial(t, listen(t, &service{}, unaryServer(t, bucket(t, ratelimit.PerMinute(1)), grpclimit.WithoutHeaders())))
	for _, code := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		a := call(t, client)
		require.Equal(t, code, a.code())
		for _, name := range []string{"ratelimit", "ratelimit-policy", "retry-after"} {
			require.Empty(t, a.header[name])
			require.Empty(t, a.trailer[name])
		}
	}
	require.Equal(t, time.Minute, call(t, client).retryInfo(), "the status still says it")
}

func TestOfManyCallsAtOnceExactlyTheLimitIsAdmitted(t *testing.T) {
	server := redistest.Start(t).Client(t)
	onRedis, err := redisstore.New(server, redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	const limit, callers, each = 100, 32, 20
	for name, lim := range map[string]ratelimit.Limiter{
		"in memory": bucket(t, ratelimit.PerDay(limit)),
		"on Redis":  bucketOn(t, onRedis, ratelimit.PerDay(limit)),
	} {
		t.Run(name, func(t *testing.T) {
			svc := &service{}
			client := dial(t, listen(t, svc, unaryServer(t, lim, grpclimit.WithKey(grpclimit.APIKey("x-api-key")))))
			var mu sync.Mutex
			answers := map[codes.Code]int{}
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for range each {
						a := call(t, client, "x-api-key", "canary")
						mu.Lock()
						answers[a.code()]++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			require.Equal(t, map[codes.Code]int{codes.OK: limit, codes.ResourceExhausted: callers*each - limit}, answers)
			require.EqualValues(t, limit, svc.calls.Load())
		})
	}
	keys, err := server.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	require.NotContains(t, keys[0], "canary")
}

func TestASecretInMetadataIsNeverTold(t *testing.T) {
	const canary = "canary-5e3f"
	var logged []string
	log := func(_ context.Context, _ string, err error) error {
		logged = append(logged, err.Error())
		return status.Error(codes.Unavailable, err.Error()) // as a careless handler would
	}
	key := grpclimit.First(grpclimit.APIKey("x-api-key"), grpclimit.PeerIP())
	for _, lim := range []*recorder{
		{Limiter: bucket(t, ratelimit.PerHour(1))},
		{Limiter: bucketOn(t, failing{}, ratelimit.PerHour(1))},
		{Limiter: ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil)},
	} {
		client := dial(t, listen(t, &service{},
			unaryServer(t, lim, grpclimit.WithKey(key), grpclimit.WithKeyErrorHandler(log), grpclimit.WithErrorHandler(log)),
			streamServer(t, lim, grpclimit.WithKey(grpclimit.Combined(key, grpclimit.Route())))))
		var told []string
		for range 3 {
			for _, a := range []answer{call(t, client, "x-api-key", canary), call(t, client, "x-api-key", canary, "x-api-key", "other"), streamWith(t, client, canary)} {
				told = append(told, a.status.String(), fmt.Sprint(a.status.Details()), fmt.Sprint(a.header), fmt.Sprint(a.trailer))
			}
		}
		require.NotEmpty(t, lim.asked())
		for _, text := range append(append(told, lim.asked()...), logged...) {
			require.NotContains(t, text, canary)
			require.NotContains(t, text, canary[:6])
		}
		for _, text := range told {
			require.NotContains(t, text, "apikey:", "nor is the key told")
		}
	}
	require.NotEmpty(t, logged)
}

func streamWith(t *testing.T, client pb.TestServiceClient, secret string) (a answer) {
	t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", secret))
	defer cancel()
	stream, err := client.FullDuplexCall(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.CloseSend())
	if _, err = stream.Recv(); !errors.Is(err, io.EOF) {
		a.status = status.Convert(err)
	}
	a.header, _ = stream.Header()
	a.trailer = stream.Trailer()
	return a
}
