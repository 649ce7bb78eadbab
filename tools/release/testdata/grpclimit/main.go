// An interceptor in memory: one call passes, and the next does not.
package main

import (
	"context"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func main() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.UnaryServerInterceptor(limiter)
	if err != nil {
		log.Fatal(err)
	}
	client := &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}}
	ctx := peer.NewContext(context.Background(), client)
	info := &grpc.UnaryServerInfo{FullMethod: "/service/Method"}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		if _, err := limit(ctx, nil, info, handler); status.Code(err) != want {
			log.Fatal(err)
		}
	}
}
