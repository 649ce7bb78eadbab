module github.com/ratelimit-go/ratelimit/tools/release

go 1.26.0
