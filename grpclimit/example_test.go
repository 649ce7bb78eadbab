package grpclimit_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A server that limits all of its calls, and a client that waits until it may call.
func Example() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	perClient, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(100), ratelimit.WithName("client"))
	if err != nil {
		log.Fatal(err)
	}
	issued := func(_ context.Context, key string) bool { return key == "key-of-ann" }
	key := grpclimit.WithKey(grpclimit.First(
		grpclimit.APIKey("x-api-key", grpclimit.KnownKeys(issued)), grpclimit.PeerIP()))
	unary, err := grpclimit.UnaryServerInterceptor(perClient, key, grpclimit.WithSkip(grpclimit.HealthAndReflection))
	if err != nil {
		log.Fatal(err)
	}
	stream, err := grpclimit.StreamServerInterceptor(perClient, key)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream))
	defer server.Stop()

	limiter, err := ratelimit.NewLeakyBucket(mem, ratelimit.PerSecond(20), ratelimit.WithName("supplier"))
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.UnaryClientInterceptor(limiter, grpclimit.WithMaxPause(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	conn, err := grpc.NewClient("localhost:50051", grpc.WithUnaryInterceptor(limit),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	_ = conn.Close()
	// Output:
}

// A server that allows two calls per day for each API key, or otherwise for each address.
func ExampleUnaryServerInterceptor() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(2), ratelimit.WithName("daily"))
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.UnaryServerInterceptor(limiter,
		grpclimit.WithKey(grpclimit.First(grpclimit.APIKey("x-api-key"), grpclimit.PeerIP())))
	if err != nil {
		log.Fatal(err)
	}
	client, closeAll := loopback([]grpc.ServerOption{grpc.ChainUnaryInterceptor(limit)})
	defer closeAll()

	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-api-key", "ann's")
	for range 3 {
		var header metadata.MD
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header))
		fmt.Println(status.Code(err), header["ratelimit-policy"])
	}
	// Output:
	// OK ["daily";q=2;w=86400]
	// OK ["daily";q=2;w=86400]
	// ResourceExhausted ["daily";q=2;w=86400]
}

// A client can make two calls per hour of each method, and three in total. Both are decided
// together: a call that one limit denies is not charged to the other.
func ExampleCombined() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	address := grpclimit.PeerIP()
	addressOf := func(ctx context.Context, _ string) (string, error) { return address.Of(ctx, "") }
	perMethod, err := ratelimit.NewSlidingLog(mem, ratelimit.PerHour(2), ratelimit.WithName("method"))
	if err != nil {
		log.Fatal(err)
	}
	perClient, err := ratelimit.NewSlidingLog(mem, ratelimit.PerHour(3), ratelimit.WithName("client"), ratelimit.WithKeyFunc(addressOf))
	if err != nil {
		log.Fatal(err)
	}
	both, err := ratelimit.NewAll(perMethod, perClient)
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.UnaryServerInterceptor(both, grpclimit.WithKey(grpclimit.Combined(address, grpclimit.Route())))
	if err != nil {
		log.Fatal(err)
	}
	client, closeAll := loopback([]grpc.ServerOption{grpc.ChainUnaryInterceptor(limit)})
	defer closeAll()

	ctx := context.Background()
	for range 3 {
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		fmt.Println("Check", status.Code(err))
	}
	for range 2 {
		_, err := client.List(ctx, &healthpb.HealthListRequest{})
		fmt.Println("List", status.Code(err))
	}
	// Output:
	// Check OK
	// Check OK
	// Check ResourceExhausted
	// List OK
	// List ResourceExhausted
}

// Each client can make one List call per hour, and two of each other method.
func Example_methods() {
	ofMethod := func(ctx context.Context, _ string) (ratelimit.Limit, error) {
		if method, _ := grpc.Method(ctx); method == healthpb.Health_List_FullMethodName {
			return ratelimit.PerHour(1), nil
		}
		return ratelimit.PerHour(2), nil
	}
	mem := ratelimit.Must(memstore.New())
	limiter := ratelimit.Must(ratelimit.NewSlidingLog(mem, ratelimit.PerHour(2), ratelimit.WithName("method"), ratelimit.WithLimitFunc(ofMethod)))
	limit := ratelimit.Must(grpclimit.UnaryServerInterceptor(limiter, grpclimit.WithKey(grpclimit.Combined(grpclimit.PeerIP(), grpclimit.Route()))))
	client, closeAll := loopback([]grpc.ServerOption{grpc.ChainUnaryInterceptor(limit)})
	defer closeAll()

	for range 3 {
		_, list := client.List(context.Background(), &healthpb.HealthListRequest{})
		_, check := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(list), status.Code(check))
	}
	// Output:
	// OK OK
	// ResourceExhausted OK
	// ResourceExhausted ResourceExhausted
}

// Calls that cannot be decoded, and unknown methods, do not reach an interceptor. A tap counts
// them. Here, a server accepts five calls per hour from each address, whatever they are. A tap
// blocks its connection while it decides, so its limiter is in memory. Interceptors still count the
// calls that they see.
func Example_flood() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	flood, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(5), ratelimit.WithName("flood"))
	if err != nil {
		log.Fatal(err)
	}
	peer := grpclimit.PeerIP()
	tapped := func(ctx context.Context, info *tap.Info) (context.Context, error) {
		key, err := peer.Of(ctx, info.FullMethodName)
		if err != nil {
			return nil, grpclimit.ErrorStatus(err).Err()
		}
		r, err := flood.Allow(ctx, key)
		if err != nil {
			return nil, grpclimit.ErrorStatus(err).Err()
		}
		if !r.Allowed {
			return nil, grpclimit.DeniedStatus(grpclimit.NewDecision(ctx, flood, key, r)).Err()
		}
		return ctx, nil
	}
	client, closeAll := loopback([]grpc.ServerOption{grpc.InTapHandle(tapped)})
	defer closeAll()

	for range 7 {
		_, err := client.List(context.Background(), &healthpb.HealthListRequest{}, grpc.ForceCodecV2(garbled{new(int)}))
		fmt.Println(status.Code(err))
	}
	// Output:
	// Internal
	// Internal
	// Internal
	// Internal
	// Internal
	// ResourceExhausted
	// ResourceExhausted
}

// Opening a stream costs nothing, and each message that the server receives is one event.
func ExampleStreamServerInterceptor() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(1), ratelimit.WithName("example"))
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.StreamServerInterceptor(limiter, grpclimit.WithMessages(),
		grpclimit.WithCost(func(_ context.Context, _ string, msg any) int {
			if msg == nil {
				return 0
			}
			return 1
		}))
	if err != nil {
		log.Fatal(err)
	}
	client, closeAll := loopback([]grpc.ServerOption{grpc.ChainStreamInterceptor(limit)})
	defer closeAll()

	for range 2 {
		stream, err := client.Watch(context.Background(), &healthpb.HealthCheckRequest{})
		if err != nil {
			log.Fatal(err)
		}
		_, err = stream.Recv()
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// ResourceExhausted
}

// A client without interceptors finds in the status when the call would be admitted.
func ExampleDeniedStatus() {
	mem := ratelimit.Must(memstore.New())
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerHour(1), ratelimit.WithName("example")))
	var denied ratelimit.Result
	for range 2 {
		r, err := limiter.Allow(context.Background(), "ann")
		if err != nil {
			log.Fatal(err)
		}
		denied = r
	}
	err := grpclimit.DeniedStatus(grpclimit.NewDecision(context.Background(), limiter, "ann", denied)).Err()

	var wait time.Duration
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			wait = retry.GetRetryDelay().AsDuration()
		}
	}
	fmt.Println(status.Code(err), wait.Round(time.Hour))
	// Output: ResourceExhausted 1h0m0s
}

// A client that keeps to the limit of somebody else's server, and fails instead of waiting. Without
// WithoutWaiting, the second call would be sent after half a minute.
func ExampleUnaryClientInterceptor() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewLeakyBucket(mem, ratelimit.Limit{Rate: 2, Period: time.Minute, Burst: 1}, ratelimit.WithName("example"))
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.UnaryClientInterceptor(limiter, grpclimit.WithoutWaiting())
	if err != nil {
		log.Fatal(err)
	}
	client, closeAll := loopback(nil, grpc.WithUnaryInterceptor(limit))
	defer closeAll()

	for range 2 {
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// ResourceExhausted
}

// Streams of each method and each user have their own limit.
func ExampleStreamClientInterceptor() {
	limit, err := grpclimit.StreamClientInterceptor(
		ratelimittest.Static(ratelimit.Result{RetryAfter: ratelimit.Never}, nil),
		grpclimit.WithKey(grpclimit.Combined(grpclimit.Route(), grpclimit.OutgoingAPIKey("tenant"))))
	if err != nil {
		log.Fatal(err)
	}
	client, closeAll := loopback(nil, grpc.WithStreamInterceptor(limit))
	defer closeAll()

	ctx := metadata.AppendToOutgoingContext(context.Background(), "tenant", "ann")
	_, err = client.Watch(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(status.Code(err))
	_, err = client.Watch(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(status.Code(err) == codes.InvalidArgument)
	// Output:
	// ResourceExhausted
	// true
}

// loopback returns a health service and a client of it.
func loopback(server []grpc.ServerOption, client ...grpc.DialOption) (healthpb.HealthClient, func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer(server...)
	healthpb.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), append(client, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		log.Fatal(err)
	}
	return healthpb.NewHealthClient(conn), func() {
		_ = conn.Close()
		s.Stop()
	}
}
