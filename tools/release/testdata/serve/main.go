package main

import (
	"context"
	"log"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func main() {
	rules, err := serve.Parse(serve.File{Name: "limits.yaml", Text: []byte("domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n")})
	if err != nil {
		log.Fatal(err)
	}
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	service, err := serve.New(mem, rules)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := service.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{
		Domain:      "edge",
		Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "ann"}}}},
	})
	if err != nil || answer.GetOverallCode() != pb.RateLimitResponse_OK {
		log.Fatal(answer, err)
	}
}
