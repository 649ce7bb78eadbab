package redisstore_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

const (
	childAddr = "RATELIMIT_TEST_CHILD_ADDR" // set for a process that TestProcessesShareOneLimit started
	children  = 4
	perHour   = 500
)

// allow returns the decisions of a child, by the names of the algorithms, and a naive
// one.
func allow(client *redis.Client) (map[string]func(ctx context.Context) (bool, error), error) {
	calls := map[string]func(ctx context.Context) (bool, error){
		"naive": func(ctx context.Context) (bool, error) { // looks, then counts
			n, err := client.Get(ctx, "naive").Int()
			if err != nil && err != redis.Nil || n >= perHour { //nolint:errorlint // as it is
				return false, nil
			}
			time.Sleep(time.Millisecond)
			return true, client.Incr(ctx, "naive").Err()
		},
	}
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		s, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second))
		if err != nil {
			return nil, err
		}
		l, err := ratelimit.New(algorithm, s, ratelimit.PerHour(perHour))
		if err != nil {
			return nil, err
		}
		calls[algorithm] = func(ctx context.Context) (bool, error) {
			r, err := l.Allow(ctx, "shared")
			return r.Allowed, err
		}
	}
	return calls, nil
}

// TestChildProcess is one of the processes, and prints how many were admitted.
func TestChildProcess(t *testing.T) {
	addr := os.Getenv(childAddr)
	if addr == "" {
		t.Skip("not started by TestProcessesShareOneLimit")
	}
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 16})
	defer client.Close()
	calls, err := allow(client)
	require.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		call := calls[name]
		together(t, client, name)
		var admitted atomic.Int64
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() {
				for range 50 {
					ok, err := call(t.Context())
					if err != nil {
						t.Error(name, err)
					}
					if ok {
						admitted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		fmt.Printf("admitted %s %d\n", name, admitted.Load())
	}
}

// together returns when all children have called it.
func together(t *testing.T, client *redis.Client, what string) {
	require.NoError(t, client.Incr(t.Context(), "ready "+what).Err())
	require.Eventually(t, func() bool {
		n, err := client.Get(t.Context(), "ready "+what).Int()
		return err == nil && n >= children
	}, 20*time.Second, time.Millisecond)
}

// 4 processes of 16 callers each ask 3,200 times for 500 events an hour.
func TestProcessesShareOneLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	start := time.Now()
	out := make([]strings.Builder, children)
	var running sync.WaitGroup
	for i := range out {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChildProcess$", "-test.v")
		cmd.Env = append(os.Environ(), childAddr+"="+server.Addr())
		cmd.Stdout, cmd.Stderr = &out[i], &out[i]
		require.NoError(t, cmd.Start())
		running.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out[i].String())
			}
		})
	}
	running.Wait()

	total := map[string]int{}
	for i := range out {
		for line := range strings.Lines(out[i].String()) {
			var name string
			var n int
			if _, err := fmt.Sscanf(line, "admitted %s %d", &name, &n); err == nil {
				total[name] += n
			}
		}
	}
	t.Logf("admitted of %d: %v", perHour, total)
	require.Greater(t, total["naive"], perHour, "the fault bites")
	delete(total, "naive")
	require.Len(t, total, len(ratelimit.PerSecond(1).Algorithms()))
	refilled := int(time.Since(start).Hours()*perHour) + 1
	for name, n := range total {
		require.GreaterOrEqual(t, n, perHour, name)
		bucket := ratelimit.Limit{Rate: 1, Period: time.Hour, Burst: 2}
		if bucket.ValidateFor(name) == nil {
			require.LessOrEqual(t, n, perHour+refilled, name)
		} else if time.Now().Truncate(time.Hour).Before(start) { // not across the edge of a window
			require.Equal(t, perHour, n, name)
		}
	}
	requireTTLs(t, server.Client(t))
}

// requireTTLs fails t if a limiter's key would stay for ever.
func requireTTLs(t *testing.T, client *redis.Client) {
	t.Helper()
	keys := client.Scan(t.Context(), 0, "rl:*", 1000).Iterator()
	n := 0
	for keys.Next(t.Context()) {
		n++
		require.Positive(t, client.PTTL(t.Context(), keys.Val()).Val(), keys.Val())
	}
	require.NoError(t, keys.Err())
	require.Positive(t, n)
}
