package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// algorithms are the names for ratelimit.New, with those in the tables.
var algorithms = [][2]string{
	{"fixed_window", "FixedWindow"},
	{"sliding_window", "SlidingWindow"},
	{"sliding_log", "SlidingLog"},
	{"token_bucket", "TokenBucket"},
	{"leaky_bucket", "LeakyBucket"},
}

// ours returns the five algorithms of this library on its memory store, through the
// Limiter interface. Each decision is a complete Result.
func ours() []contestant {
	var all []contestant
	for _, a := range algorithms {
		all = append(all, contestant{
			name: a[1], algorithm: a[0], ours: true, forgets: true,
			open: func(w workload) (limiter, error) {
				s, err := memstore.New()
				if err != nil {
					return limiter{}, err
				}
				return openOurs(a[0], s, w)
			},
		})
	}
	return all
}

// growingLog is our SlidingLog with the limit of the others, under which no event leaves
// while it is measured. It is in the tables of times only.
var growingLog = contestant{
	name: "SlidingLog, growing", algorithm: "sliding_log", ours: true,
	open: func(w workload) (limiter, error) {
		s, err := memstore.New()
		if err != nil {
			return limiter{}, err
		}
		q := w.quota()
		return openLimit("sliding_log", s, ratelimit.Limit{Rate: q.events, Period: q.window})
	},
}

// tokenBucketAgain is TokenBucket once more. The ratio of the two is what chance does to the
// figures of a run.
var tokenBucketAgain = contestant{
	name: "TokenBucket, again", algorithm: "token_bucket", ours: true,
	open: func(w workload) (limiter, error) {
		s, err := memstore.New()
		if err != nil {
			return limiter{}, err
		}
		return openOurs("token_bucket", s, w)
	},
}

// tokenBucketPeek is Peek of a TokenBucket in place of Allow, once each key has been shown.
var tokenBucketPeek = contestant{
	name: "TokenBucket, Peek", algorithm: "token_bucket", ours: true,
	open: func(w workload) (limiter, error) {
		s, err := memstore.New()
		if err != nil {
			return limiter{}, err
		}
		lim, err := ratelimit.New("token_bucket", s, ourLimit("token_bucket", w))
		if err != nil {
			return limiter{}, err
		}
		allow, left := opened(lim), atomic.Int64{}
		left.Store(int64(w.keys))
		allow.decide = deciding(lim, &left)
		return allow, nil
	},
}

// deciding is Allow for as many calls as are left, and then Peek.
func deciding(lim ratelimit.Limiter, left *atomic.Int64) func(key string) (bool, error) {
	ctx := context.Background()
	return func(key string) (bool, error) {
		ask := lim.Peek
		if left.Load() > 0 && left.Add(-1) >= 0 {
			ask = lim.Allow
		}
		r, err := ask(ctx, key)
		return r.Allowed, err
	}
}

// allOfTwo is an All of two token buckets on the same key, the second of which has twice the
// limit.
var allOfTwo = contestant{
	name: "All of 2", algorithm: "token_bucket", ours: true,
	open: func(w workload) (limiter, error) {
		s, err := memstore.New()
		if err != nil {
			return limiter{}, err
		}
		l := ourLimit("token_bucket", w)
		twice := l
		twice.Burst, twice.Period = 2*l.Burst, l.Period/2
		first, err := ratelimit.NewTokenBucket(s, l, ratelimit.WithName("all"))
		if err != nil {
			return limiter{}, err
		}
		second, err := ratelimit.NewTokenBucket(s, twice, ratelimit.WithName("all"))
		if err != nil {
			return limiter{}, err
		}
		all, err := ratelimit.NewAll(first, second)
		if err != nil {
			return limiter{}, err
		}
		return opened(all), nil
	},
}

// oursOnRedis returns the same five on Redis. Among 512 callers a decision may wait
// longer than the default timeout.
func oursOnRedis() []redisContestant {
	var all []redisContestant
	for _, a := range algorithms {
		all = append(all, redisContestant{
			name: a[1], ours: true,
			open: func(client *redis.Client, w workload) (limiter, error) {
				s, err := redisstore.New(client, redisstore.WithTimeout(redisTimeout))
				if err != nil {
					return limiter{}, err
				}
				return openOurs(a[0], s, w)
			},
		})
	}
	return append(all,
		redisContestant{
			name: "TokenBucket, auto-pipelined", ours: true, pipelined: true,
			open: func(client *redis.Client, w workload) (limiter, error) {
				batches, err := client.AsyncAutoPipeline()
				if err != nil {
					return limiter{}, err
				}
				s, err := redisstore.New(batches, redisstore.WithTimeout(redisTimeout))
				if err != nil {
					return limiter{}, err
				}
				return openOurs("token_bucket", s, w)
			},
		},
		redisContestant{
			name: "TokenBucket, coalescing", ours: true,
			open: func(client *redis.Client, w workload) (limiter, error) {
				s, err := redisstore.New(client, redisstore.WithTimeout(redisTimeout))
				if err != nil {
					return limiter{}, err
				}
				together, err := coalesce.New(s)
				if err != nil {
					return limiter{}, err
				}
				return openOurs("token_bucket", together, w)
			},
		})
}

func openOurs(algorithm string, s store.Store, w workload) (limiter, error) {
	return openLimit(algorithm, s, ourLimit(algorithm, w))
}

func openLimit(algorithm string, s store.Store, l ratelimit.Limit) (limiter, error) {
	lim, err := ratelimit.New(algorithm, s, l)
	if err != nil {
		return limiter{}, err
	}
	return opened(lim), nil
}

func opened(lim ratelimit.Limiter) limiter {
	ctx := context.Background()
	return limiter{
		decide: func(key string) (bool, error) {
			r, err := lim.Allow(ctx, key)
			return r.Allowed, err
		},
		close: nothing,
	}
}

// ourLimit is the quota of w. A log of a whole year would still be growing while it is
// measured, as growingLog is, so its Period is 100 µs for each key: events leave as fast
// as they come.
func ourLimit(algorithm string, w workload) ratelimit.Limit {
	q := w.quota()
	switch {
	case algorithm == "token_bucket" || algorithm == "leaky_bucket":
		return ratelimit.Limit{Rate: 1, Period: q.each, Burst: q.events}
	case algorithm == "sliding_log" && w.outcome == allowed:
		q.window = max(time.Millisecond, time.Duration(w.keys)*100*time.Microsecond)
	}
	return ratelimit.Limit{Rate: q.events, Period: q.window}
}
