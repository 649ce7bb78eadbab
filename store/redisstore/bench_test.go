package redisstore_test

import (
	"context"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
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

// BenchmarkClasses is 512 callers of one limiter, of three limiters of its name of which two leave events to others,
// and of limits of three tiers.
func BenchmarkClasses(b *testing.B) {
	s := newStore(b, redistest.Shared(b).Client(b))
	class := func(name string, opts ...ratelimit.Option) ratelimit.Limiter {
		l, err := ratelimit.NewTokenBucket(s, ratelimit.PerSecond(1_000_000), append(opts, ratelimit.WithName(name))...)
		if err != nil {
			b.Fatal(err)
		}
		return l
	}
	tier := ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) {
		return ratelimit.PerSecond(1_000_000 + int(key[0]-'a')), nil
	})
	one := class("one")
	for _, bench := range []struct {
		name    string
		classes []ratelimit.Limiter
	}{
		{"one", []ratelimit.Limiter{one}},
		{"three classes", []ratelimit.Limiter{class("api"), class("api", ratelimit.WithReserved(10)), class("api", ratelimit.WithReserved(20))}},
		{"three tiers", []ratelimit.Limiter{class("tiers", tier)}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var caller atomic.Int32
			b.SetParallelism(512 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				i := int(caller.Add(1))
				l, key := bench.classes[i%len(bench.classes)], string(rune('a'+i%3))+strconv.Itoa(i)
				for pb.Next() {
					if _, err := l.Allow(context.Background(), key); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
