package redisstore_test

import (
	"context"
	"fmt"
	"net"
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
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// In a cluster each key has one owner, the master of its slot, which makes all decisions on it:
// also after the slot has moved, and after that master was killed. So a cluster needs no leader
// of its own for a room, a document or a customer.
func TestEachKeyHasOneOwner(t *testing.T) {
	t.Parallel()
	replicas := 0
	if effort.Long() { // a failover takes seconds
		replicas = 3
	}
	cluster := redistest.StartCluster(t, 3, replicas)
	client := cluster.Client(t)
	s, err := redisstore.New(client, redisstore.WithTimeout(5*time.Second))
	require.NoError(t, err)
	l, err := ratelimit.NewFixedWindow(s, ratelimit.Limit{Rate: 500, Period: 10 * 365 * 24 * time.Hour}, ratelimit.WithName("room"))
	require.NoError(t, err)
	const key = "room:7"

	// burst has 32 callers ask, and returns who has run their scripts.
	var admitted atomic.Int64
	burst := func(n int) (owners []*redistest.Server) {
		before := scripts(t, cluster)
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				for range n {
					r, err := l.Allow(t.Context(), key)
					if err != nil {
						t.Error(err)
					} else if r.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		for server, calls := range scripts(t, cluster) {
			if calls > before[server] {
				owners = append(owners, server)
			}
		}
		return owners
	}
	first := burst(5)
	require.Len(t, first, 1)
	require.EqualValues(t, 160, admitted.Load())

	var other *redistest.Server
	for _, m := range cluster.Masters {
		if m != first[0] {
			other = m
		}
	}
	moveSlotOf(t, client, key, first[0].Client(t), other.Client(t))
	require.Equal(t, []*redistest.Server{other}, burst(5))
	require.EqualValues(t, 320, admitted.Load(), "it knows what the former owner has admitted")

	if effort.Long() {
		time.Sleep(time.Second) // until its replica has all of it
		other.Kill()
		require.Eventually(t, func() bool {
			_, err := l.Peek(t.Context(), key)
			return err == nil
		}, 30*time.Second, 100*time.Millisecond)
		last := burst(5)
		require.Len(t, last, 1)
		require.Contains(t, cluster.Replicas, last[0])
		require.EqualValues(t, 480, admitted.Load())
	}
	burst(10)
	require.EqualValues(t, 500, admitted.Load())
}

// scripts is how many scripts each server that answers has run.
func scripts(t *testing.T, cluster *redistest.Cluster) map[*redistest.Server]int {
	t.Helper()
	calls := make(map[*redistest.Server]int)
	for _, server := range append(cluster.Masters[:len(cluster.Masters):len(cluster.Masters)], cluster.Replicas...) {
		n, err := evalshas(t.Context(), server.Client(t))
		if err == nil {
			calls[server] = n
		}
	}
	return calls
}

// moveSlotOf moves the slot of the limiter's only key between two masters.
func moveSlotOf(t *testing.T, client *redis.ClusterClient, key string, from, to *redis.Client) {
	t.Helper()
	ctx := t.Context()
	var mu sync.Mutex
	var names []string
	require.NoError(t, client.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		found, err := c.Keys(ctx, "*"+key+"*").Result()
		mu.Lock()
		defer mu.Unlock()
		names = append(names, found...)
		return err
	}))
	require.Len(t, names, 1)
	slot := client.ClusterKeySlot(ctx, names[0]).Val()
	fromID, toID := from.Do(ctx, "CLUSTER", "MYID").Val(), to.Do(ctx, "CLUSTER", "MYID").Val()
	require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err())
	require.NoError(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err())
	host, port, err := net.SplitHostPort(to.Options().Addr)
	require.NoError(t, err)
	require.NoError(t, from.Do(ctx, "MIGRATE", host, port, names[0], 0, 5000).Err())
	require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
	require.NoError(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
}

// evalshas is how many scripts the server has been asked to run.
func evalshas(ctx context.Context, c *redis.Client) (n int, err error) {
	text, err := c.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for _, command := range []string{"evalsha", "eval"} {
		var calls int
		if _, rest, found := strings.Cut(text, "cmdstat_"+command+":calls="); found {
			if _, err := fmt.Sscanf(rest, "%d,", &calls); err != nil {
				return 0, err
			}
		}
		n += calls
	}
	return n, nil
}
