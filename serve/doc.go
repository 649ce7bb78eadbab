// Package serve decides for proxies and for programs in other languages: over Envoy's rate limit
// service v3, and over HTTP. Its files are those of github.com/envoyproxy/ratelimit.
//
//	files, err := serve.ReadFiles("limits.yaml")
//	...
//	rules, err := serve.Parse(files...)
//	...
//	service, err := serve.New(mem, rules)
//	...
//	grpcServer := grpc.NewServer(grpc.ForceServerCodecV2(serve.Codec()))
//	pb.RegisterRateLimitServiceServer(grpcServer, service)
//
// The command ratelimit-serve in cmd is a whole server. docs/serve.md is its guide.
package serve
