// Package serve is a rate limit server for proxies and for programs in other languages. It
// implements Envoy's rate limit service v3, and a service over HTTP. It reads the configuration
// files of github.com/envoyproxy/ratelimit.
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
// The command ratelimit-serve in cmd is a complete server. Its guide is docs/serve.md.
package serve
