package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// A dial of an unreachable host lasts for DialTimeout, 5 s, and holds a place in the
// pool. If another host is named, as by Sentinel, a place is left to reach it.
func TestDialsThatHangLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var cutOff atomic.Bool
	var hanging atomic.Int64
	cutOff.Store(true)
	client := redis.NewClient(&redis.Options{PoolSize: 20, Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if cutOff.Load() {
			hanging.Add(1)
			defer hanging.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return new(net.Dialer).DialContext(ctx, "tcp", server.Addr())
	}})
	defer client.Close()
	s, err := redisstore.New(client)
	require.NoError(t, err)
	l := start(t, s, "k", 64)
	defer l.end()
	time.Sleep(700 * time.Millisecond)
	require.Zero(t, l.count("ok"))
	require.Positive(t, hanging.Load(), "the fault bites")
	require.Less(t, hanging.Load(), int64(20))
	cutOff.Store(false)
	named := time.Now()
	for l.count("ok") == 0 && time.Since(named) < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	t.Logf("%d dials hang; reached after %v", hanging.Load(), time.Since(named))
	require.Less(t, time.Since(named), 3*time.Second, "a dial each 500 ms")
}

// A server that is gone for a while refuses dials at once. They do not count as hanging
// dials.
func TestRefusedDialsDoNotCountAsHanging(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), DialerRetries: 1, DialTimeout: time.Hour})
	defer client.Close()
	s, err := redisstore.New(client)
	require.NoError(t, err)
	server.Kill()
	l := run(t, s, 32, 500*time.Millisecond)
	require.Zero(t, l.count("ok"))
	server.Restart(t)
	require.Eventually(t, func() bool {
		_, err := s.Take(t.Context(), space, "k", limit, 1)
		return err == nil
	}, 30*time.Second, time.Millisecond)
}

// If others have all connections, a call waits for them, and no dial hangs.
func TestAPoolThatOthersUseUpIsNoDialThatHangs(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), PoolSize: 1})
	defer client.Close()
	s := newStore(t, client, redisstore.WithTimeout(10*time.Second))
	other := client.Conn()
	require.NoError(t, other.Ping(t.Context()).Err())
	for range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := s.Take(ctx, space, "k", limit, 1)
		require.Error(t, err)
		cancel()
	}
	require.NoError(t, other.Close())
	_, err := s.Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
}

// A call that may not dial yet does so in time, even without other calls.
func TestACallThatMayNotYetDialDoesSoLater(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var cutOff atomic.Bool
	cutOff.Store(true)
	client := redis.NewClient(&redis.Options{
		PoolSize: 4, DialTimeout: 500 * time.Millisecond, DialerRetries: 1,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if cutOff.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return new(net.Dialer).DialContext(ctx, "tcp", server.Addr())
		},
	})
	defer client.Close()
	s := newStore(t, client, redisstore.WithTimeout(10*time.Second))
	for range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := s.Take(ctx, space, "k", limit, 1)
		require.Error(t, err)
		cancel()
	}
	cutOff.Store(false)
	_, err := s.Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
}

// Once a client's dials have failed it fails at once, until one works. The store does not try
// without a pause, while calls wait for a connection that is in use.
func TestDialsThatFailAtOnceAreNotTriedWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBookkeeper()
		client := redis.NewClient(&redis.Options{ // by name, it would look up where it is, which a bubble cannot
			Addr: "127.0.0.1:1", Dialer: b.dial, DialerRetries: 1, PoolSize: 4, ContextTimeoutEnabled: true, DisableIdentity: true,
		})
		tries := new(commandCount)
		client.AddHook(tries)
		s, err := redisstore.New(client)
		require.NoError(t, err)
		_, err = s.Take(t.Context(), bookkeeping, "0", year(1), 1)
		require.NoError(t, err)
		b.mu.Lock()
		b.wires[0].silent, b.gone = true, true
		b.mu.Unlock()
		var callers sync.WaitGroup
		for i := range 40 {
			callers.Go(func() {
				_, err := s.Take(context.Background(), bookkeeping, fmt.Sprint(i), year(1), 1)
				require.Error(t, err)
			})
			time.Sleep(10 * time.Millisecond)
		}
		callers.Wait()
		require.Less(t, tries.n.Load(), int64(500))
		require.NoError(t, client.Close())
		time.Sleep(2 * time.Second) // it tries to dial once a second
	})
	runtime.GC()
	runtime.GC()
}

// commandCount counts the commands of a client. If there are too many, time goes on.
type commandCount struct{ n atomic.Int64 }

func (c *commandCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commandCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *commandCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c.n.Add(1) > 1000 {
			time.Sleep(time.Millisecond)
		}
		return next(ctx, cmd)
	}
}
