package main

import (
	"context"

	"github.com/redis/go-redis/v9"
	ulule "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

// ululeMemory is github.com/ulule/limiter: a window per key that starts with the first
// event. It answers Limit, Remaining, Reset in whole seconds and Reached. It has no
// RetryAfter. It counts a denied call. A goroutine cleans idle keys, every 30 s by
// default.
var ululeMemory = contestant{
	name: "ulule", module: "github.com/ulule/limiter/v3", algorithm: "fixed window", forgets: true,
	open: func(w workload) (limiter, error) {
		s := ululememory.NewStoreWithOptions(ulule.StoreOptions{
			Prefix:          ulule.DefaultPrefix,
			CleanUpInterval: min(ulule.DefaultCleanUpInterval, w.quota().window),
		})
		return openUlule(s, w), nil
	},
}

// ululeOnRedis is one script of INCRBY and PEXPIRE or PTTL.
var ululeOnRedis = redisContestant{
	name: "ulule", module: "github.com/ulule/limiter/v3",
	open: func(client *redis.Client, w workload) (limiter, error) {
		s, err := ululeredis.NewStore(client)
		if err != nil {
			return limiter{}, err
		}
		return openUlule(s, w), nil
	},
}

func openUlule(s ulule.Store, w workload) limiter {
	q := w.quota()
	lim := ulule.New(s, ulule.Rate{Period: q.window, Limit: int64(q.events)})
	ctx := context.Background()
	return limiter{
		decide: func(key string) (bool, error) {
			r, err := lim.Get(ctx, key)
			return !r.Reached, err
		},
		// A finalizer stops its goroutine, in a later collection.
		close: nothing,
	}
}
