package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/didip/tollbooth/v7"
	"github.com/go-chi/httprate"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/throttled/throttled/v2"
	throttledredis "github.com/throttled/throttled/v2/store/goredisstore.v9"
	throttledmemory "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululestdlib "github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"golang.org/x/time/rate"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// The tests of this file prove docs/migrating.md. In each, the code of a peer and the new code
// get the same traffic at the same time: first what is equal, then what differs.

const user = "user:42"

func TestMovingFromRedisRate(t *testing.T) {
	ctx, client := t.Context(), redistest.Start(t).Client(t)

	limiter := redis_rate.NewLimiter(client)
	old := func(n int) *redis_rate.Result {
		r, err := limiter.AllowN(ctx, user, redis_rate.PerHour(10), n)
		require.NoError(t, err)
		return r
	}

	bucket := newLimiter(t, "token_bucket", onRedis(t, client), ratelimit.PerHour(10))

	for _, step := range []struct {
		n       int
		allowed bool
	}{{4, true}, {4, true}, {4, false}, {2, true}, {1, false}} {
		require.Equal(t, step.allowed, old(step.n).Allowed > 0)
		require.Equal(t, step.allowed, ask(t, bucket, step.n).Allowed)
	}

	t.Run("more events than the burst", func(t *testing.T) {
		was, err := limiter.AllowN(ctx, "fresh", redis_rate.PerHour(10), 11)
		require.NoError(t, err)
		require.Equal(t, 6*time.Minute, was.RetryAfter.Round(time.Second), "as if it came true then")
		require.Equal(t, ratelimit.Never, ask(t, bucket, 11).RetryAfter)
	})
	t.Run("RetryAfter and Remaining of the first of ten a second", func(t *testing.T) {
		was, err := limiter.Allow(ctx, "new", redis_rate.PerSecond(10))
		require.NoError(t, err)
		is := ask(t, newLimiter(t, "token_bucket", onRedis(t, client), ratelimit.PerSecond(10)), 1)
		require.EqualValues(t, -1, was.RetryAfter)
		require.Zero(t, is.RetryAfter)
		require.Equal(t, 8, was.Remaining)
		require.Equal(t, 9, is.Remaining)
	})
}

func TestMovingFromTheRetriesOfRedisRate(t *testing.T) {
	ctx, server := t.Context(), redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	limiter := redis_rate.NewLimiter(client)
	old := func(n int) (*redis_rate.Result, error) { return limiter.AllowN(ctx, user, redis_rate.PerHour(10), n) }
	bucket := newLimiter(t, "token_bucket", onRedis(t, client), ratelimit.PerHour(10))
	_, err := old(1) // from here on the server has the scripts
	require.NoError(t, err)
	ask(t, bucket, 1)

	proxy.DropReplies(2, "EVALSHA")
	was, err := old(1)
	require.NoError(t, err)
	require.Equal(t, 10-1-3, was.Remaining, "three charges, and no error")

	proxy.DropReplies(1, "EVALSHA")
	_, err = bucket.Allow(ctx, user)
	require.ErrorIs(t, err, store.ErrTimeout)
	require.Equal(t, 10-1-1-1, ask(t, bucket, 1).Remaining, "one charge, and an error")
}

// The clock of miniredis stands still between the calls.
func TestMovingFromAllowAtMostOfRedisRate(t *testing.T) {
	server := redistest.Mini(t)
	client := server.Client(t)
	limiter := redis_rate.NewLimiter(client)
	bucket := newLimiter(t, "token_bucket", onRedis(t, client), ratelimit.PerSecond(10))
	old, now := 0, 0
	for range 21 {
		was, err := limiter.AllowAtMost(t.Context(), user, redis_rate.PerSecond(10), 10)
		require.NoError(t, err)
		granted, _, err := ratelimit.AllowUpTo(t.Context(), bucket, user, 10)
		require.NoError(t, err)
		old, now = old+was.Allowed, now+granted
		server.Advance(150 * time.Millisecond)
	}
	require.Equal(t, 10+20, old, "half an event is lost each time")
	require.Equal(t, 10+30, now)
}

func TestMovingFromXTimeRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := rate.NewLimiter(10, 20)
		bucket := newLimiter(t, "token_bucket", memory(t), ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 20})
		traffic := []burst{{0, 30}, {350 * time.Millisecond, 30}, {250 * time.Millisecond, 30}, {time.Hour, 30}}
		old, now := admitted(traffic, limiter.Allow, asking(t, bucket))
		require.Equal(t, []int{20, 3, 3, 20}, old)
		require.Equal(t, old, now)
	})
}

// The bucket is empty when the waiters come.
func TestMovingFromTheWaitersOfXTimeRate(t *testing.T) {
	const s = time.Second
	old := func(*testing.T) (func(context.Context, int) error, func() bool) {
		limiter := rate.NewLimiter(1, 5)
		limiter.AllowN(time.Now(), 5)
		return limiter.WaitN, limiter.Allow
	}
	now := func(t *testing.T) (func(context.Context, int) error, func() bool) {
		bucket := newLimiter(t, "token_bucket", memory(t), ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 5})
		ask(t, bucket, 5)
		return func(ctx context.Context, n int) error {
			_, err := ratelimit.Wait(ctx, bucket, user, n)
			return err
		}, asking(t, bucket)
	}
	for _, test := range []struct {
		name     string
		open     func(*testing.T) (func(context.Context, int) error, func() bool)
		left     []time.Duration // by three waiters of 1, 3 and 1 events
		behind   time.Duration   // by the third if the second gives up
		admitted int             // of ten Allows, one a second, beside a waiter of 5 events
		beside   time.Duration   // by that waiter
	}{
		{"old", old, []time.Duration{s, 4 * s, 5 * s}, 5 * s, 5, 5 * s},
		{"new", now, []time.Duration{s, 4 * s, 5 * s}, 2 * s, 10, 15 * s},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wait, _ := test.open(t)
				require.Equal(t, test.left, leave(t, wait, 1, 3, 1))
			})
			synctest.Test(t, func(t *testing.T) {
				wait, _ := test.open(t)
				second := func(ctx context.Context, n int) error {
					if n == 3 {
						canceled, cancel := context.WithCancel(ctx)
						time.AfterFunc(s/2, cancel)
						ctx = canceled
					}
					return wait(ctx, n)
				}
				require.Equal(t, []time.Duration{s, s / 2, test.behind}, leave(t, second, 1, 3, 1))
			})
			synctest.Test(t, func(t *testing.T) {
				wait, allow := test.open(t)
				left := make(chan []time.Duration)
				go func() { left <- leave(t, wait, 5) }()
				n := 0
				for range 10 {
					time.Sleep(s)
					synctest.Wait() // the waiter goes first
					n += admits(1, allow)
				}
				require.Equal(t, test.admitted, n)
				require.Equal(t, []time.Duration{test.beside}, <-left)
			})
		})
	}
}

func TestMovingFromUlule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // at midnight, where windows of any length begin
		perMinute, err := ulule.NewRateFromFormatted("10-M")
		require.NoError(t, err)
		limiter := ulule.New(ululememory.NewStoreWithOptions(ulule.StoreOptions{}), perMinute) // without its goroutine
		old := func(n int64) ulule.Context {
			c, err := limiter.Increment(t.Context(), user, n)
			require.NoError(t, err)
			return c
		}

		limit, err := ratelimit.ParseLimit("10/m")
		require.NoError(t, err)
		window := newLimiter(t, "fixed_window", memory(t), limit)

		allow := func() bool { return !old(1).Reached }
		were, are := admitted([]burst{{0, 15}, {30 * time.Second, 15}, {31 * time.Second, 15}}, allow, asking(t, window))
		require.Equal(t, []int{10, 0, 10}, were)
		require.Equal(t, were, are)

		time.Sleep(time.Hour - 11*time.Second) // 50 s into a minute
		were, are = admitted([]burst{{0, 15}, {20 * time.Second, 15}, {41 * time.Second, 15}}, allow, asking(t, window))
		require.Equal(t, []int{10, 0, 10}, were, "the minute begins with the first event")
		require.Equal(t, []int{10, 10, 0}, are, "the minute is that of the clock")

		time.Sleep(time.Hour)
		require.True(t, old(11).Reached)
		require.False(t, ask(t, window, 11).Allowed)
		require.Zero(t, admits(10, allow), "what was too much is spent")
		require.Equal(t, 10, admits(10, asking(t, window)), "what was too much costs nothing")
	})
}

func TestMovingFromTheMiddlewareOfUlule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := ulule.New(ululememory.NewStoreWithOptions(ulule.StoreOptions{}), ulule.Rate{Period: time.Minute, Limit: 10},
			ulule.WithTrustForwardHeader(true))
		old := ululestdlib.NewMiddleware(limiter).Handler(hello)
		now := httplimit.Middleware(newLimiter(t, "fixed_window", memory(t), ratelimit.PerMinute(10)),
			httplimit.WithKey(httplimit.ClientIP([]string{"192.0.2.1/32"})))(hello)

		forged := func(h http.Handler) (served int) {
			for i := range 15 { // the proxy at 192.0.2.1 adds the client's true address
				if get(t, h, "/", fmt.Sprintf("198.51.100.%d, 203.0.113.9", i)).Code == http.StatusOK {
					served++
				}
			}
			return served
		}
		require.Equal(t, 15, forged(old), "it believes the first address")
		require.Equal(t, 10, forged(now))
		for range 10 {
			get(t, old, "/", "")
		}
		require.Empty(t, get(t, old, "/", "").Header().Get("Retry-After"))
		require.Equal(t, "60", get(t, now, "/", "203.0.113.9").Header().Get("Retry-After"))
	})
}

func TestMovingFromThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gcra, err := throttledmemory.NewCtx(0)
		require.NoError(t, err)
		quota := throttled.RateQuota{MaxRate: throttled.PerMin(20), MaxBurst: 5}
		limiter, err := throttled.NewGCRARateLimiterCtx(gcra, quota)
		require.NoError(t, err)
		old := func(n int) (bool, throttled.RateLimitResult) {
			limited, r, err := limiter.RateLimitCtx(t.Context(), user, n)
			require.NoError(t, err)
			return !limited, r
		}

		bucket := newLimiter(t, "token_bucket", memory(t), ratelimit.Limit{Rate: 20, Period: time.Minute, Burst: quota.MaxBurst + 1})

		traffic := []burst{{0, 15}, {10 * time.Second, 15}, {5 * time.Second, 15}, {time.Hour, 15}}
		were, are := admitted(traffic, func() bool { ok, _ := old(1); return ok }, asking(t, bucket))
		require.Equal(t, []int{6, 3, 2, 6}, were)
		require.Equal(t, were, are)

		time.Sleep(time.Hour)
		for range 9 { // six are admitted, and three denied
			ok, was := old(1)
			is := ask(t, bucket, 1)
			require.Equal(t, ok, is.Allowed)
			require.Equal(t, was.Limit, is.Limit)
			require.Equal(t, was.Remaining, is.Remaining)
			require.Equal(t, was.ResetAfter, is.ResetAfter)
			if ok {
				require.EqualValues(t, -1, was.RetryAfter)
				require.Zero(t, is.RetryAfter)
			} else {
				require.Equal(t, was.RetryAfter, is.RetryAfter)
			}
		}
		_, was := old(7)
		require.EqualValues(t, -1, was.RetryAfter)
		require.Equal(t, ratelimit.Never, ask(t, bucket, 7).RetryAfter)
		require.Panics(t, func() { _ = throttled.PerSec(0) })
		require.False(t, ask(t, newLimiter(t, "token_bucket", memory(t), ratelimit.PerSecond(0)), 1).Allowed)
	})
}

func TestMovingFromHttprate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // at midnight
		address := func(r *http.Request) (string, error) { return httprate.CanonicalizeIP(r.RemoteAddr), nil }
		old := httprate.LimitBy(10, time.Minute, address)(hello)
		now := httplimit.Middleware(newLimiter(t, "sliding_window", memory(t), ratelimit.PerMinute(10)))(hello)

		time.Sleep(24 * time.Second)
		were, are := admitted([]burst{{0, 15}}, serves(t, old), serves(t, now))
		require.Equal(t, []int{10}, were)
		require.Equal(t, were, are)
		require.Equal(t, "60", get(t, old, "/", "").Header().Get("Retry-After"))
		require.Equal(t, "42", get(t, now, "/", "").Header().Get("Retry-After"))

		traffic := []burst{{42*time.Second - time.Microsecond, 0}, {time.Microsecond, 15}, {time.Hour, 15}}
		were, are = admitted(traffic, serves(t, old), serves(t, now))
		require.Equal(t, []int{0, 1, 10}, were)
		require.Equal(t, were, are)

		time.Sleep(time.Hour - 6*time.Second)
		traffic = []burst{{0, 10}, {63 * time.Second, 15}, {time.Millisecond, 15}, {3*time.Second - time.Millisecond, 15}}
		were, are = admitted(traffic, serves(t, old), serves(t, now))
		require.Equal(t, []int{10, 0, 1, 0}, were, "just below 9.5 events are rounded to 9")
		require.Equal(t, []int{10, 0, 0, 1}, are)

		time.Sleep(time.Hour - 16*time.Second) // 50 s into a minute
		old = httprate.LimitBy(10, time.Minute, address)(hello)
		were, are = admitted([]burst{{0, 15}, {20 * time.Second, 15}}, serves(t, old), serves(t, now))
		require.Equal(t, []int{10, 0}, were, "its minute begins when it is made")
		require.Equal(t, []int{10, 1}, are, "the minute is that of the clock")
	})
}

func TestMovingFromTollbooth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := tollbooth.NewLimiter(10, nil)
		old := tollbooth.LimitHandler(limiter, hello)

		bucket := newLimiter(t, "token_bucket", memory(t), ratelimit.PerSecond(10))
		now := httplimit.Middleware(bucket)(hello)

		traffic := []burst{{0, 15}, {350 * time.Millisecond, 15}, {250 * time.Millisecond, 15}, {time.Hour, 15}}
		were, are := admitted(traffic, serves(t, old), serves(t, now))
		require.Equal(t, []int{10, 3, 3, 10}, were)
		require.Equal(t, were, are)

		require.Empty(t, get(t, old, "/", "").Header().Get("Retry-After"))
		require.Equal(t, "1", get(t, now, "/", "").Header().Get("Retry-After"))
		require.Equal(t, http.StatusOK, get(t, old, "/other", "").Code, "each path has a limit of its own")
		require.Equal(t, http.StatusTooManyRequests, get(t, now, "/other", "").Code)
		require.Equal(t, http.StatusOK, get(t, old, "/", "198.51.100.1").Code, "a client names itself")
		require.Equal(t, http.StatusTooManyRequests, get(t, now, "/", "198.51.100.1").Code)
	})
}

func TestMovingFromTollboothWithALimitPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := tollbooth.NewLimiter(10.0/60, nil).SetBurst(10)
		limiter.SetTokenBucketExpirationTTL(time.Minute)
		old := tollbooth.LimitHandler(limiter, hello)
		now := httplimit.Middleware(newLimiter(t, "token_bucket", memory(t), ratelimit.PerMinute(10)))(hello)

		require.Equal(t, "0", get(t, old, "/", "").Header().Get("RateLimit-Limit"), "the rate per second, rounded")
		require.Equal(t, `"api";q=10;w=60`, get(t, now, "/", "").Header().Get("RateLimit-Policy"))

		traffic := []burst{{0, 15}, {30 * time.Second, 15}, {31 * time.Second, 15}}
		were, are := admitted(traffic, serves(t, old), serves(t, now))
		require.Equal(t, []int{9, 5, 10}, were, "a minute after it was made, a bucket is forgotten")
		require.Equal(t, []int{9, 5, 5}, are)
	})
}

// Old and new code of one user on one Redis: neither finds what the other has counted.
func TestStatesBeginAnew(t *testing.T) {
	client := redistest.Start(t).Client(t)
	perHour := redis_rate.NewLimiter(client)
	throttledStore, err := throttledredis.NewCtx(client, "")
	require.NoError(t, err)
	gcra, err := throttled.NewGCRARateLimiterCtx(throttledStore, throttled.RateQuota{MaxRate: throttled.PerHour(10), MaxBurst: 9})
	require.NoError(t, err)
	ululeStore, err := ululeredis.NewStore(client)
	require.NoError(t, err)
	windows := ulule.New(ululeStore, ulule.Rate{Period: time.Hour, Limit: 10})

	for name, allow := range map[string]func() (bool, error){
		"redis_rate": func() (bool, error) {
			r, err := perHour.Allow(t.Context(), user, redis_rate.PerHour(10))
			return err == nil && r.Allowed > 0, err
		},
		"throttled": func() (bool, error) {
			limited, _, err := gcra.RateLimitCtx(t.Context(), user, 1)
			return !limited, err
		},
		"ulule": func() (bool, error) {
			c, err := windows.Get(t.Context(), user)
			return !c.Reached, err
		},
	} {
		require.Equal(t, 10, admits(15, func() bool {
			ok, err := allow()
			require.NoError(t, err)
			return ok
		}), name)
	}
	for _, algorithm := range []string{"token_bucket", "sliding_log"} {
		now := newLimiter(t, algorithm, onRedis(t, client), ratelimit.PerHour(10))
		require.Equal(t, 10, admits(15, asking(t, now)), algorithm)
	}
	require.EqualValues(t, 5, client.DBSize(t.Context()).Val())
}

// burst is some calls at once, and how long after those before.
type burst struct {
	after time.Duration
	calls int
}

// admitted returns how many calls of each burst the old and the new code admit.
func admitted(traffic []burst, old, now func() bool) (were, are []int) {
	for _, b := range traffic {
		time.Sleep(b.after)
		were, are = append(were, admits(b.calls, old)), append(are, admits(b.calls, now))
	}
	return were, are
}

// admits returns how many of n calls are admitted.
func admits(n int, allow func() bool) (admitted int) {
	for range n {
		if allow() {
			admitted++
		}
	}
	return admitted
}

// leave lets waiters come one after the other, at once, and returns when they leave.
func leave(t *testing.T, wait func(context.Context, int) error, events ...int) []time.Duration {
	start, left := time.Now(), make([]time.Duration, len(events))
	done := make(chan error)
	for i, n := range events {
		go func() {
			err := wait(t.Context(), n)
			left[i] = time.Since(start)
			done <- err
		}()
		synctest.Wait()
	}
	for range events {
		if err := <-done; !errors.Is(err, context.Canceled) {
			require.NoError(t, err)
		}
	}
	return left
}

// newLimiter returns one of ours.
func newLimiter(t *testing.T, algorithm string, s store.Store, l ratelimit.Limit) ratelimit.Limiter {
	t.Helper()
	limiter, err := ratelimit.New(algorithm, s, l, ratelimit.WithName("api"))
	require.NoError(t, err)
	return limiter
}

func memory(t *testing.T) store.Store {
	t.Helper()
	s, err := memstore.New()
	require.NoError(t, err)
	return s
}

func onRedis(t *testing.T, client *redis.Client) store.Store {
	t.Helper()
	s, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second)) // the machine may be busy
	require.NoError(t, err)
	return s
}

func ask(t *testing.T, l ratelimit.Limiter, n int) ratelimit.Result {
	t.Helper()
	r, err := l.AllowN(t.Context(), user, n)
	require.NoError(t, err)
	return r
}

func asking(t *testing.T, l ratelimit.Limiter) func() bool {
	return func() bool { return ask(t, l, 1).Allowed }
}

var hello = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// get is a request of 192.0.2.1, with an X-Forwarded-For unless it is empty.
func get(t *testing.T, h http.Handler, path, forwarded string) *httptest.ResponseRecorder {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if forwarded != "" {
		r.Header.Set("X-Forwarded-For", forwarded)
	}
	h.ServeHTTP(w, r)
	return w
}

func serves(t *testing.T, h http.Handler) func() bool {
	return func() bool { return get(t, h, "/", "").Code == http.StatusOK }
}
