module github.com/ratelimit-go/ratelimit/tools/mutate

go 1.26.0
