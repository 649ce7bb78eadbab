package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// noRefunds is a hook that panics with each refund.
type noRefunds struct{ tracer }

func (*noRefunds) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		for _, arg := range cmd.Args() {
			if op, ok := arg.(fmt.Stringer); ok && strings.HasPrefix(op.String(), "refund") {
				panic("planted")
			}
		}
		return next(ctx, cmd)
	}
}

// A hook that panics may end the calls of callers, who may expect it. It does not end the process.
func TestAPanicOfAHookInABackgroundRefund(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	client.AddHook(new(noRefunds))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(newStore(t, client), ratelimit.PerDay(1000)))
	r, err := bucket.Allow(t.Context(), "k")
	require.NoError(t, err)
	require.Panics(t, func() { _ = bucket.Refund(t.Context(), "k", r, 1) }, "of a caller, who may recover")
	t.Log("a caller has recovered")
	for range 3 { // connections are made again
		_, err = bucket.Allow(t.Context(), "k")
		require.NoError(t, err)
	}
	proxy.Delay(300 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = bucket.AllowN(ctx, "k", 7)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	time.Sleep(time.Second) // the process lives
}

// Shards of a ring come and go while calls are made. No call fails, because it is certain that none of those ran that found a
// shard's client closed, and another shard has the key.
func TestShardsOfARingComeAndGo(t *testing.T) {
	t.Parallel()
	a, b := redistest.Start(t).Addr(), redistest.Start(t).Addr()
	both := map[string]string{"a": a, "b": b}
	ring := redis.NewRing(&redis.RingOptions{Addrs: both, ContextTimeoutEnabled: true})
	defer ring.Close()
	s := newStore(t, ring, redisstore.WithTimeout(5*time.Second))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerSecond(1_000_000)))
	var done atomic.Bool
	var calls, failed atomic.Int64
	var text atomic.Value
	var callers sync.WaitGroup
	for i := range 64 {
		callers.Go(func() {
			for n := 0; !done.Load(); n++ {
				calls.Add(1)
				if _, err := bucket.Allow(t.Context(), fmt.Sprint(i, n%16)); err != nil {
					if errors.Is(err, store.ErrUnavailable) {
						failed.Add(1)
						text.Store(err.Error())
					}
				}
			}
		})
	}
	for range effort.Of(8, 40, 40) {
		ring.SetAddrs(map[string]string{"a": a})
		time.Sleep(20 * time.Millisecond)
		ring.SetAddrs(both)
		time.Sleep(20 * time.Millisecond)
	}
	done.Store(true)
	callers.Wait()
	require.Zero(t, failed.Load(), "of %d calls: %v", calls.Load(), text.Load())
}
