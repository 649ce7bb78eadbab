package grpclimit_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// transport stands in for the transport of a call, which copies its headers.
type transport struct{ header metadata.MD }

func (*transport) Method() string { return unaryCall }
func (t *transport) SetHeader(md metadata.MD) error {
	t.header = metadata.Join(t.header, md)
	return nil
}
func (*transport) SendHeader(metadata.MD) error { return nil }
func (*transport) SetTrailer(metadata.MD) error { return nil }

// BenchmarkInterceptor measures an interceptor alone, without a network: a token
// bucket in memory and one key.
func BenchmarkInterceptor(b *testing.B) {
	handler := func(context.Context, any) (any, error) { return nil, nil }
	info := &grpc.UnaryServerInfo{FullMethod: unaryCall}
	for _, c := range []struct {
		name  string
		limit ratelimit.Limit
		opts  []grpclimit.ServerOption
	}{
		{"allowed", ratelimit.PerSecond(1e9), nil},
		{"allowed, no headers", ratelimit.PerSecond(1e9), []grpclimit.ServerOption{grpclimit.WithoutHeaders()}},
		{"allowed, no headers, API key", ratelimit.PerSecond(1e9), []grpclimit.ServerOption{
			grpclimit.WithoutHeaders(), grpclimit.WithKey(grpclimit.APIKey("x-api-key"))}},
		{"denied", ratelimit.PerDay(1), nil},
		{"denied, no headers", ratelimit.PerDay(1), []grpclimit.ServerOption{grpclimit.WithoutHeaders()}},
	} {
		b.Run("server/"+c.name, func(b *testing.B) {
			ctx := peer.NewContext(b.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}})
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("x-api-key", "0123456789abcdef"))
			stream := new(transport)
			ctx = grpc.NewContextWithServerTransportStream(ctx, stream)
			i, err := grpclimit.UnaryServerInterceptor(fresh(b, c.limit), c.opts...)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				stream.header = nil
				_, _ = i(ctx, nil, info, handler)
			}
		})
	}
	s, err := memstore.New()
	if err != nil {
		b.Fatal(err)
	}
	window, err := ratelimit.NewSlidingWindow(s, ratelimit.PerSecond(1e9))
	if err != nil {
		b.Fatal(err)
	}
	slot, err := inflight.New(s, 1000, time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	for name, l := range map[string]ratelimit.Limiter{"window": window, "slot": slot} {
		b.Run("server/"+name+", no headers", func(b *testing.B) {
			i, err := grpclimit.UnaryServerInterceptor(l, grpclimit.WithoutHeaders(), global)
			if err != nil {
				b.Fatal(err)
			}
			ctx := grpc.NewContextWithServerTransportStream(b.Context(), new(transport))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = i(ctx, nil, info, handler)
			}
		})
	}
	b.Run("client/allowed", func(b *testing.B) {
		i, err := grpclimit.UnaryClientInterceptor(fresh(b, ratelimit.PerSecond(1e9)))
		if err != nil {
			b.Fatal(err)
		}
		invoker := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
		ctx := b.Context()
		b.ReportAllocs()
		for b.Loop() {
			_ = i(ctx, unaryCall, nil, nil, nil, invoker)
		}
	})
}

// fresh is a bucket whose time runs.
func fresh(b *testing.B, l ratelimit.Limit) ratelimit.Limiter {
	b.Helper()
	s, err := memstore.New()
	if err != nil {
		b.Fatal(err)
	}
	return bucketOn(b, s, l)
}
