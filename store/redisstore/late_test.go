package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// A caller leaves while the reply to its call is on the way. What it was charged is given back,
// unless it is told of the decision all the same.
func TestChargesOfACallerThatLeftAreRefunded(t *testing.T) {
	t.Parallel()
	const limit = 1000
	server, proxy := clusterOfOne(t)
	plain := server.Client(t)
	proxy.Delay(20 * time.Millisecond)
	limiters := func(t *testing.T, client redisstore.Client) (bucket, window ratelimit.Limiter) {
		s := newStore(t, client, redisstore.WithPrefix(redistest.Prefix(t)))
		return ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerDay(limit))),
			ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(limit)))
	}
	for what, call := range map[string]func(ctx context.Context, bucket, window ratelimit.Limiter) (int, error){
		"AllowN": func(ctx context.Context, bucket, _ ratelimit.Limiter) (int, error) {
			r, err := bucket.AllowN(ctx, "k", 7)
			return r.Charged(), err
		},
		"AllowUpTo": func(ctx context.Context, _, window ratelimit.Limiter) (int, error) {
			n, _, err := ratelimit.AllowUpTo(ctx, window, "k", 7)
			return n, err
		},
		"Wait": func(ctx context.Context, bucket, _ ratelimit.Limiter) (int, error) {
			r, err := ratelimit.Wait(ctx, bucket, "k", 7)
			return r.Charged(), err
		},
		"All": func(ctx context.Context, bucket, window ratelimit.Limiter) (int, error) {
			r, err := ratelimit.Must(ratelimit.NewAll(bucket, window)).AllowN(ctx, "k", 7)
			return 2 * r.Charged(), err
		},
		"First": func(ctx context.Context, bucket, window ratelimit.Limiter) (int, error) {
			r, err := ratelimit.Must(ratelimit.NewFirst(bucket, window)).AllowN(ctx, "k", 7)
			return r.Charged(), err
		},
	} {
		for _, contextTimeouts := range []bool{false, true}[:effort.Of(1, 2)] {
			for name, client := range kinds(t, proxy.Addr(), contextTimeouts) {
				t.Run(fmt.Sprint(what, " ", name, " ", contextTimeouts), func(t *testing.T) {
					bucket, window := limiters(t, client)
					seenBucket, seenWindow := limiters(t, plain)
					charged := func() int {
						b, err := seenBucket.Peek(context.Background(), "k")
						w, err2 := seenWindow.Peek(context.Background(), "k")
						if err != nil || err2 != nil {
							return -1
						}
						return 2*limit - b.Remaining - w.Remaining
					}
					for range 2 { // the first makes connections, and tells the server a script
						before := charged()
						require.GreaterOrEqual(t, before, 0)
						ctx, cancel := context.WithCancel(t.Context())
						told, ended := 0, make(chan error, 1)
						go func() {
							var err error
							told, err = call(ctx, bucket, window)
							ended <- err
						}()
						require.Eventually(t, func() bool { return charged() > before || len(ended) > 0 }, 20*time.Second, time.Millisecond)
						cancel()
						if err := <-ended; err != nil {
							require.ErrorIs(t, err, context.Canceled)
							told = 0
						}
						require.Eventually(t, func() bool { return charged() == before+told }, 10*time.Second, time.Millisecond)
					}
				})
			}
		}
	}
}

// The same at the caller's deadline.
func TestChargesAfterADeadlineAreRefunded(t *testing.T) {
	t.Parallel()
	const limit = 1000
	server, proxy := clusterOfOne(t)
	for name, client := range kinds(t, proxy.Addr(), false) {
		t.Run(name, func(t *testing.T) {
			prefix := redisstore.WithPrefix(redistest.Prefix(t))
			bucket := ratelimit.Must(ratelimit.NewTokenBucket(newStore(t, client, prefix), ratelimit.PerDay(limit)))
			seen := ratelimit.Must(ratelimit.NewTokenBucket(newStore(t, server.Client(t), prefix), ratelimit.PerDay(limit)))
			for range 3 {
				_, err := bucket.Allow(t.Context(), "k")
				require.NoError(t, err)
			}
			proxy.Delay(300 * time.Millisecond)
			defer proxy.Delay(0)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := bucket.AllowN(ctx, "k", 7)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Eventually(t, func() bool {
				r, err := seen.Peek(t.Context(), "k")
				return err == nil && r.Remaining == limit-3
			}, 10*time.Second, time.Millisecond)
		})
	}
}

// What an AllowUpTo of such a caller has charged is what fits besides the reserved events.
func TestOnlyChargedEventsAreRefundedIfOthersAreReserved(t *testing.T) {
	t.Parallel()
	server, proxy := clusterOfOne(t)
	for name, client := range kinds(t, proxy.Addr(), false) {
		t.Run(name, func(t *testing.T) {
			prefix, limit := redisstore.WithPrefix(redistest.Prefix(t)), ratelimit.PerDay(100)
			low := ratelimit.Must(ratelimit.NewFixedWindow(newStore(t, client, prefix), limit, ratelimit.WithReserved(50)))
			seen := ratelimit.Must(ratelimit.NewFixedWindow(newStore(t, server.Client(t), prefix), limit))
			granted, _, err := ratelimit.AllowUpTo(t.Context(), low, "k", 47)
			require.NoError(t, err)
			require.Equal(t, 47, granted)
			proxy.Delay(300 * time.Millisecond)
			defer proxy.Delay(0)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, _, err = ratelimit.AllowUpTo(ctx, low, "k", 7) // charges 3
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Eventually(t, func() bool {
				r, err := seen.Peek(t.Context(), "k")
				return err == nil && r.Remaining == 53
			}, 10*time.Second, time.Millisecond)
		})
	}
}

// So is a slot that an AllowUpTo of such a caller has taken.
func TestASlotOfACallerThatLeftIsReleased(t *testing.T) {
	t.Parallel()
	server, proxy := clusterOfOne(t)
	for name, client := range kinds(t, proxy.Addr(), false) {
		t.Run(name, func(t *testing.T) {
			prefix := redisstore.WithPrefix(redistest.Prefix(t))
			slots := ratelimit.Must(inflight.New(newStore(t, client, prefix), 10, time.Hour))
			seen := ratelimit.Must(inflight.New(newStore(t, server.Client(t), prefix), 10, time.Hour))
			_, _, err := ratelimit.AllowUpTo(t.Context(), slots, "k", 7) // takes one slot
			require.NoError(t, err)
			free := func() int {
				r, err := seen.Peek(context.Background(), "k")
				if err != nil {
					return -1
				}
				return r.Remaining
			}
			require.Equal(t, 9, free())
			proxy.Delay(300 * time.Millisecond)
			defer proxy.Delay(0)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, _, err := ratelimit.AllowUpTo(ctx, slots, "k", 7)
				ended <- err
			}()
			require.Eventually(t, func() bool { return free() == 8 || len(ended) > 0 }, 20*time.Second, time.Millisecond)
			cancel()
			left := 9
			if err := <-ended; err == nil {
				left = 8 // the caller was told
			}
			require.Eventually(t, func() bool { return free() == left }, 10*time.Second, time.Millisecond)
		})
	}
}
