package redisstore_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

// BenchmarkTake compares a decision with a PING of the same server.
func BenchmarkTake(b *testing.B) {
	server := redistest.Shared(b)
	client := server.Client(b)
	async, err := server.Client(b).AsyncAutoPipeline()
	if err != nil {
		b.Fatal(err)
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr()}})
	defer ring.Close()

	take := func(client interface {
		Process(context.Context, redis.Cmder) error
	}) func() error {
		s := newStore(b, client)
		return func() error {
			_, err := s.Take(context.Background(), space, "user:12345", limit, 1)
			return err
		}
	}
	for _, bench := range []struct {
		name string
		call func() error
	}{
		{"PING", func() error { return client.Ping(context.Background()).Err() }},
		{"Client", take(client)},
		{"AutoPipeliner", take(async)},
		{"Ring", take(ring)},
	} {
		b.Run(bench.name+"/1 caller", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := bench.call(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(bench.name+"/16 callers per CPU", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := bench.call(); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
