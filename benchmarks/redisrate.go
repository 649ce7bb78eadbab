package main

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

// redisRate is github.com/go-redis/redis_rate: GCRA in floating point in one script on
// the server's time. Its Result has Limit, Allowed, Remaining, RetryAfter and ResetAfter.
// It has no refund and no peek. For an event above the burst its RetryAfter is wrong.
var redisRate = redisContestant{
	name: "redis_rate", module: "github.com/go-redis/redis_rate/v10",
	open: func(client *redis.Client, w workload) (limiter, error) {
		return openRedisRate(redis_rate.NewLimiter(client), w), nil
	},
}

// redisRatePipelined is the same on go-redis' auto-pipeliner, in its blocking mode.
var redisRatePipelined = redisContestant{
	name: "redis_rate, auto-pipelined", pipelined: true,
	open: func(client *redis.Client, w workload) (limiter, error) {
		batches, err := client.AutoPipeline()
		if err != nil {
			return limiter{}, err
		}
		return openRedisRate(redis_rate.NewLimiter(batches), w), nil
	},
}

func openRedisRate(lim *redis_rate.Limiter, w workload) limiter {
	q := w.quota()
	limit := redis_rate.Limit{Rate: 1, Period: q.each, Burst: q.events}
	ctx := context.Background()
	decide := func(key string) (bool, error) {
		r, err := lim.Allow(ctx, key, limit)
		return err == nil && r.Allowed > 0, err
	}
	return limiter{decide, nothing}
}
