package redisstore_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/push"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// kindsOverTLS returns the client kinds that reach a server with the options o, which are for TLS. They share no
// connections. The cluster and the master of Sentinel are that server.
func kindsOverTLS(t *testing.T, o *redis.Options, contextTimeouts bool) map[string]redisstore.Client {
	t.Helper()
	o.ContextTimeoutEnabled, o.TLSConfig.ServerName = contextTimeouts, "127.0.0.1"
	single := func() *redis.Client {
		c := redis.NewClient(o)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": o.Addr}, TLSConfig: o.TLSConfig, ContextTimeoutEnabled: contextTimeouts, HeartbeatFrequency: time.Hour,
	})
	cluster := func() *redis.ClusterClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: o.Addr}}}}, nil
			},
			TLSConfig: o.TLSConfig, ContextTimeoutEnabled: contextTimeouts,
		})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	watch := redistest.StartSentinel(t, 0, time.Minute)
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.MasterName, SentinelAddrs: watch.Addrs(), ContextTimeoutEnabled: contextTimeouts, TLSConfig: o.TLSConfig,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != watch.Master.Addr() {
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			return (&tls.Dialer{Config: o.TLSConfig}).DialContext(ctx, network, o.Addr)
		},
	})
	t.Cleanup(func() { _, _ = ring.Close(), sentinel.Close() })
	async, err := single().AsyncAutoPipeline()
	require.NoError(t, err)
	blocking, err := single().AutoPipeline()
	require.NoError(t, err)
	return map[string]redisstore.Client{
		"Client":        single(),
		"Sentinel":      sentinel,
		"Ring":          ring,
		"ClusterClient": cluster(),
		"AutoPipeliner": async,
		"blocking":      blocking,
	}
}

// The server closes all connections while they rest, as it does after its timeout. Over TLS
// go-redis does not look whether a connection lives before it uses it.
func TestOverTLSAConnectionThatWasClosedWhileItRestedIsNotUsed(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	plain := server.Client(t)
	for _, contextTimeouts := range []bool{false, true} {
		for name, client := range kindsOverTLS(t, server.TLSOptions(), contextTimeouts) {
			t.Run(fmt.Sprint(name, " ", contextTimeouts), func(t *testing.T) {
				s := newStore(t, client)
				take := func() {
					_, err := s.Take(t.Context(), space, name, limit, 1)
					if err != nil {
						t.Error(err)
					}
				}
				const together, alone = 32, 8
				rounds := effort.Of(1, 3)
				for range rounds {
					var callers sync.WaitGroup
					for range together {
						callers.Go(take)
					}
					callers.Wait()
					killAll(t, plain)
					for range alone {
						take()
					}
					killAll(t, plain)
				}
				require.EqualValues(t, rounds*(together+alone), used(t, newStore(t, plain), name))
			})
		}
	}
}

// A connection that was made before the store is not watched. So it is not kept.
func TestOverTLSAConnectionOlderThanTheStoreIsNotUsedAfterARest(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	plain := server.Client(t)
	for name, client := range kindsOverTLS(t, server.TLSOptions(), true) {
		c, ok := client.(interface {
			Ping(ctx context.Context) *redis.StatusCmd
		})
		if _, pipelined := client.(*redis.AutoPipeliner); pipelined || !ok {
			continue // its client is not known
		}
		t.Run(name, func(t *testing.T) {
			var callers sync.WaitGroup
			for range 5 {
				callers.Go(func() {
					if err := c.Ping(t.Context()).Err(); err != nil {
						t.Error(err)
					}
				})
			}
			callers.Wait()
			for range 3 { // more stores than one on a client
				s := newStore(t, client)
				killAll(t, plain)
				for range 8 {
					_, err := s.Take(t.Context(), space, name, limit, 1)
					require.NoError(t, err)
				}
			}
		})
	}
}

// What was sent is not sent again: if the connection is closed before the reply, the outcome
// is unknown.
func TestOverTLSACallWhoseReplyIsLostRunsOnce(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	o := server.TLSOptions()
	proxy := redistest.StartProxy(t, o.Addr)
	o.Addr = proxy.Addr()
	plain := server.Client(t)
	for name, client := range kindsOverTLS(t, o, true) {
		t.Run(name, func(t *testing.T) {
			s, count := newStore(t, client), newStore(t, plain)
			const before = 5 // each connection that may be used next is made
			for range before {
				_, err := s.Take(t.Context(), space, name, limit, 1)
				require.NoError(t, err)
			}
			proxy.Hold()
			defer proxy.Release()
			ended := make(chan error)
			go func() {
				_, err := s.Take(t.Context(), space, name, limit, 1)
				ended <- err
			}()
			require.Eventually(t, func() bool { return used(t, count, name) == before+1 }, 10*time.Second, time.Millisecond)
			proxy.Cut()
			err := <-ended
			require.ErrorIs(t, err, store.ErrTimeout)
			require.ErrorContains(t, err, "outcome is unknown")
			require.EqualValues(t, before+1, used(t, count, name))
		})
	}
}

// A message that nobody has asked for is no end of a connection, and is not lost.
func TestOverTLSAMessageThatComesMeanwhileIsNoEnd(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	plain := server.Client(t)
	o := server.TLSOptions()
	o.PoolSize, o.PipelinePoolSize, o.Protocol, o.ContextTimeoutEnabled = 1, -1, 3, true
	client := redis.NewClient(o)
	defer client.Close()
	s := newStore(t, client, redisstore.WithTimeout(5*time.Second))
	heard := make(messages, 100)
	require.NoError(t, client.RegisterPushNotificationHandler("invalidate", heard, false))
	require.NoError(t, client.Do(t.Context(), "client", "tracking", "on").Err())
	id := client.ClientID(t.Context()).Val()
	for i := range 10 {
		_ = client.Get(t.Context(), "tracked") // so that the server tells of its next change
		require.NoError(t, plain.Set(t.Context(), "tracked", i, 0).Err())
		for range 2 {
			_, err := s.Take(t.Context(), space, "k", limit, 1)
			require.NoError(t, err)
		}
		select {
		case <-heard:
		case <-time.After(10 * time.Second):
			t.Fatal("no message")
		}
	}
	require.Equal(t, id, client.ClientID(t.Context()).Val(), "the same connection")
}

// messages is a handler of push notifications.
type messages chan []any

func (m messages) HandlePushNotification(_ context.Context, _ push.NotificationHandlerContext, message []any) error {
	m <- message
	return nil
}

// killAll has the server close all connections but that of client, and returns once they are
// closed.
func killAll(t *testing.T, client *redis.Client) {
	t.Helper()
	require.Eventually(t, func() bool { // a client may be about to make another one
		err := client.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err()
		list, err2 := client.ClientList(t.Context()).Result()
		return err == nil && err2 == nil && countLines(list) == 1
	}, 20*time.Second, time.Millisecond)
}

func countLines(s string) (n int) {
	for _, c := range s {
		if c == '\n' {
			n++
		}
	}
	return n
}
