module github.com/ratelimit-go/ratelimit/examples/playground

go 1.26.0

replace github.com/ratelimit-go/ratelimit => ../..

require (
	github.com/andybalholm/brotli v1.2.8
	github.com/ratelimit-go/ratelimit v0.0.0
)
