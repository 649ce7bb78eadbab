package redisstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Reserves and a First hold on every kind of client as on one server, also for a crowd on one key.
func TestReservesAndAFirstHoldOnEachKindOfClient(t *testing.T) {
	effort.NeedFull(t)
	cluster := redistest.StartCluster(t, 3, 0)
	ofCluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: true})
	defer ofCluster.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": redistest.Start(t).Addr(), "b": redistest.Start(t).Addr()}, ContextTimeoutEnabled: true})
	defer ring.Close()
	for name, open := range map[string]func() (*redisstore.Store, error){
		"one server": func() (*redisstore.Store, error) {
			return redisstore.New(redistest.Start(t).Client(t), redisstore.WithTimeout(time.Minute))
		},
		"cluster": func() (*redisstore.Store, error) {
			return redisstore.New(ofCluster, redisstore.WithTimeout(time.Minute))
		},
		"cluster, hash tags": func() (*redisstore.Store, error) {
			return redisstore.New(ofCluster, redisstore.WithTimeout(time.Minute), redisstore.WithHashTags(64), redisstore.WithPrefix("tags"))
		},
		"ring": func() (*redisstore.Store, error) {
			return redisstore.New(ring, redisstore.WithTimeout(time.Minute))
		},
	} {
		s, err := open()
		require.NoError(t, err)
		limiter := func(n int, opts ...ratelimit.Option) ratelimit.Limiter {
			l, err := ratelimit.NewFixedWindow(s, ratelimit.Limit{Rate: n, Period: 3650 * 24 * time.Hour}, opts...)
			require.NoError(t, err)
			return l
		}
		plan, low := limiter(400, ratelimit.WithName("plan")), limiter(400, ratelimit.WithName("plan"), ratelimit.WithReserved(100))
		credits, daily := limiter(300, ratelimit.WithName("credits")), limiter(250, ratelimit.WithName("daily"))
		both, err := ratelimit.NewAll(credits, daily)
		require.NoError(t, err)
		first, err := ratelimit.NewFirst(low, both)
		require.NoError(t, err)
		var admitted atomic.Int32
		var group sync.WaitGroup
		for range 64 {
			group.Go(func() {
				for range 20 {
					r, err := first.Allow(t.Context(), "key")
					if assert.NoError(t, err, name) && r.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		group.Wait()
		require.EqualValues(t, 300+250, admitted.Load(), "%s: the plan but for what is reserved, and the lesser of the two", name)
		for l, want := range map[ratelimit.Limiter]int{plan: 100, credits: 50, daily: 0} {
			r, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, want, r.Remaining, fmt.Sprint(name, ", ", l.(*ratelimit.FixedWindow).Name()))
		}
	}
}

// A First whose second limit fails is told why, on every kind of client, and also if its call goes alone: nothing was charged.
func TestAFirstIsToldWhatHasFailed(t *testing.T) {
	t.Parallel()
	server, _ := clusterOfOne(t)
	for name, client := range kinds(t, server.Addr(), true) {
		s, err := redisstore.New(client, redisstore.WithTimeout(20*time.Second), redisstore.WithPrefix(name))
		require.NoError(t, err)
		plan, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1), ratelimit.WithName("plan"))
		require.NoError(t, err)
		credits, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(9), ratelimit.WithName("credits"))
		require.NoError(t, err)
		first, err := ratelimit.NewFirst(plan, credits)
		require.NoError(t, err)
		for range 2 { // one of each, and connections to go alone on
			_, err = first.Allow(t.Context(), "k")
			require.NoError(t, err)
		}
		redis := server.Client(t)
		keys, err := redis.Keys(t.Context(), name+":*credits*").Result()
		require.NoError(t, err)
		require.Len(t, keys, 1)
		require.NoError(t, redis.Set(t.Context(), keys[0], "garbage", 0).Err())
		for range 2 {
			_, err = first.Allow(t.Context(), "k")
			require.ErrorIs(t, err, store.ErrCorrupt, name)
		}
	}
}
