package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const (
	unaryCall  = "/grpc.testing.TestService/UnaryCall"
	duplexCall = "/grpc.testing.TestService/FullDuplexCall"
)

// start is a round time, so that windows begin there.
var start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// said is what package grpclog was told of errors.
var said errorLog

type errorLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (e *errorLog) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(b)
}

// count is how often text was said.
func (e *errorLog) count(text string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Count(e.text.String(), text)
}

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, &said))
	os.Exit(m.Run())
}

// bucket is a token bucket in memory whose time stands still.
func bucket(t testing.TB, l ratelimit.Limit, opts ...ratelimit.Option) *ratelimit.TokenBucket {
	t.Helper()
	s, err := memstore.New(memstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	return bucketOn(t, s, l, opts...)
}

func bucketOn(t testing.TB, s store.Store, l ratelimit.Limit, opts ...ratelimit.Option) *ratelimit.TokenBucket {
	t.Helper()
	lim, err := ratelimit.NewTokenBucket(s, l, opts...)
	require.NoError(t, err)
	return lim
}

// service is a server whose methods are what a test needs; without more it says OK.
type service struct {
	pb.UnimplementedTestServiceServer
	unary  func(ctx context.Context) error
	duplex func(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error

	calls atomic.Int64 // that have reached a handler
}

func (s *service) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	s.calls.Add(1)
	if s.unary != nil {
		if err := s.unary(ctx); err != nil {
			return nil, err
		}
	}
	return &pb.SimpleResponse{}, nil
}

// FullDuplexCall answers each message, until there are no more.
func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	s.calls.Add(1)
	if s.duplex != nil {
		return s.duplex(stream)
	}
	return echo(stream)
}

func (s *service) StreamingInputCall(stream grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error {
	return stream.SendAndClose(&pb.StreamingInputCallResponse{})
}

func echo(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			if errors.Is(err, errEOF) {
				return nil
			}
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// listen serves on loopback until the test ends, and returns the address.
func listen(t testing.TB, s pb.TestServiceServer, opts ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(opts...)
	pb.RegisterTestServiceServer(server, s)
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		served.Wait()
	})
	return listener.Addr().String()
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	return pb.NewTestServiceClient(dialConn(t, addr, opts...))
}

func dialConn(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func unaryServer(t testing.TB, l ratelimit.Limiter, opts ...grpclimit.ServerOption) grpc.ServerOption {
	t.Helper()
	i, err := grpclimit.UnaryServerInterceptor(l, opts...)
	require.NoError(t, err)
	return grpc.ChainUnaryInterceptor(i)
}

func streamServer(t testing.TB, l ratelimit.Limiter, opts ...grpclimit.ServerOption) grpc.ServerOption {
	t.Helper()
	i, err := grpclimit.StreamServerInterceptor(l, opts...)
	require.NoError(t, err)
	return grpc.ChainStreamInterceptor(i)
}

// answer is all that a client is told.
type answer struct {
	status          *status.Status
	header, trailer metadata.MD
}

func (a answer) code() codes.Code { return a.status.Code() }

// retryInfo is the wait in the status, -1 if there is none.
func (a answer) retryInfo() time.Duration {
	for _, d := range a.status.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return -1
}

// quotas are the violated policies in the status.
func (a answer) quotas() (ids []string) {
	for _, d := range a.status.Details() {
		if failure, ok := d.(*errdetails.QuotaFailure); ok {
			for _, v := range failure.GetViolations() {
				ids = append(ids, v.GetQuotaId())
			}
		}
	}
	return ids
}

// violations are the descriptions of what was violated in the status.
func (a answer) violations() (texts []string) {
	for _, d := range a.status.Details() {
		if failure, ok := d.(*errdetails.QuotaFailure); ok {
			for _, v := range failure.GetViolations() {
				texts = append(texts, v.GetDescription())
			}
		}
	}
	return texts
}

func call(t testing.TB, client pb.TestServiceClient, metadataPairs ...string) (a answer) {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), metadataPairs...)
	_, err := client.UnaryCall(ctx, &pb.SimpleRequest{}, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	a.status = status.Convert(err)
	return a
}

// recorder is a limiter that remembers what it was asked.
type recorder struct {
	ratelimit.Limiter
	mu      sync.Mutex
	keys    []string
	costs   []int
	refunds []int
}

func (r *recorder) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r.mu.Lock()
	r.keys, r.costs = append(r.keys, key), append(r.costs, n)
	r.mu.Unlock()
	return r.Limiter.AllowN(ctx, key, n)
}

func (r *recorder) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.mu.Lock()
	r.refunds = append(r.refunds, n)
	r.mu.Unlock()
	return r.Limiter.Refund(ctx, key, charged, n)
}

func (r *recorder) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, r.Limiter, key)
}

func (r *recorder) asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.keys...)
}

func (r *recorder) refunded() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, events := range r.refunds {
		n += events
	}
	return n
}

// ---- What the constructors refuse.

func TestConstructorsRefuseNilAndValuesOutOfRange(t *testing.T) {
	var typedNil *ratelimit.TokenBucket
	var nilOption grpclimit.Option
	everything := ratelimittest.Static(ratelimit.Result{Allowed: true}, nil)
	both := map[string]grpclimit.Option{
		"an option":                nilOption,
		"the zero Key":             grpclimit.WithKey(grpclimit.Key{}),
		"WithCost":                 grpclimit.WithCost(nil),
		"WithSkip":                 grpclimit.WithSkip(nil),
		"WithKeyErrorHandler":      grpclimit.WithKeyErrorHandler(nil),
		"WithErrorHandler":         grpclimit.WithErrorHandler(nil),
		"WithRefund":               grpclimit.WithRefund(nil),
		"Combined of none":         grpclimit.WithKey(grpclimit.Combined()),
		"Combined of the zero Key": grpclimit.WithKey(grpclimit.Combined(grpclimit.Route(), grpclimit.Key{})),
		"First of none":            grpclimit.WithKey(grpclimit.First()),
		"a part that is unusable":  grpclimit.WithKey(grpclimit.First(grpclimit.PeerIP(), grpclimit.Combined(grpclimit.APIKey("")))),
		"User of nil":              grpclimit.WithKey(grpclimit.User(nil)),
		"KeyFunc of nil":           grpclimit.WithKey(grpclimit.KeyFunc("name", nil)),
		"a name that is empty":     grpclimit.WithKey(grpclimit.KeyFunc("", nobody)),
		"a name with a colon":      grpclimit.WithKey(grpclimit.KeyFunc("a:b", nobody)),
		"a hexadecimal name":       grpclimit.WithKey(grpclimit.KeyFunc("2001", nobody)),
		"KnownKeys of nil":         grpclimit.WithKey(grpclimit.APIKey("x", grpclimit.KnownKeys(nil))),
		"a short secret":           grpclimit.WithKey(grpclimit.APIKey("x", grpclimit.HashedWith([]byte("short")))),
		"a nil APIKeyOption":       grpclimit.WithKey(grpclimit.APIKey("x", nil)),
		"a nil IPOption":           grpclimit.WithKey(grpclimit.PeerIP(nil)),
		"metadata without a name":  grpclimit.WithKey(grpclimit.APIKey("")),
		"a name that gRPC refuses": grpclimit.WithKey(grpclimit.OutgoingAPIKey("x key")),
		"a prefix of 31 bits":      grpclimit.WithKey(grpclimit.PeerIP(grpclimit.IPv6Prefix(31))),
		"an IPv4 prefix of 15":     grpclimit.WithKey(grpclimit.PeerIP(grpclimit.IPv4Prefix(15))),
		"an IPv4 prefix of 33":     grpclimit.WithKey(grpclimit.PeerIP(grpclimit.IPv4Prefix(33))),
		"a prefix of 65 bits":      grpclimit.WithKey(grpclimit.PeerIP(grpclimit.IPv6Prefix(65))),
	}
	for name, opt := range both {
		t.Run(name, func(t *testing.T) {
			for _, err := range construct(everything, []grpclimit.ServerOption{grpclimit.WithMessages(), opt}, []grpclimit.ClientOption{opt}) {
				require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
			}
		})
	}
	for name, l := range map[string]ratelimit.Limiter{"no limiter": nil, "a typed nil": typedNil} {
		for _, err := range construct(l, nil, nil) {
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		}
	}
	_, err := grpclimit.UnaryServerInterceptor(everything, grpclimit.WithDeniedHandler(nil))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	for _, d := range []time.Duration{0, -1} {
		_, err := grpclimit.UnaryClientInterceptor(everything, grpclimit.WithMaxPause(d))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	for _, err := range construct(everything, nil, nil) {
		require.NoError(t, err)
	}
}

// endsWith refunds calls that end with one of these codes.
func endsWith(these ...codes.Code) grpclimit.Option {
	return grpclimit.WithRefund(func(code codes.Code) bool { return slices.Contains(these, code) })
}

func nobody(context.Context, string) (string, error) { return "", nil }

func construct(l ratelimit.Limiter, server []grpclimit.ServerOption, client []grpclimit.ClientOption) []error {
	_, unaryServer := grpclimit.UnaryServerInterceptor(l, server...)
	_, streamServer := grpclimit.StreamServerInterceptor(l, server...)
	_, unaryClient := grpclimit.UnaryClientInterceptor(l, client...)
	_, streamClient := grpclimit.StreamClientInterceptor(l, client...)
	return []error{unaryServer, streamServer, unaryClient, streamClient}
}
