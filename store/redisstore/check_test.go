package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// found is what Check reports, as one text.
func found(t testing.TB, client redisstore.Client, opts ...redisstore.Option) string {
	t.Helper()
	list, err := newStore(t, client, opts...).Check(t.Context())
	require.NoError(t, err)
	for _, finding := range list {
		require.Regexp(t, `^[^ ]+: .*\.$`, finding)
	}
	return strings.Join(list, "\n")
}

// A Ring gives the keys of a lost shard to the others, where they have spent nothing. Check finds that, unless the Ring's
// HeartbeatFn keeps the shard, as Check advises: then the calls for its keys fail, and those for other keys go on.
func TestARingThatLosesAShardForgetsItsCounts(t *testing.T) {
	stays := func(context.Context, *redis.Client) bool { return true }
	asks := func(ctx context.Context, c *redis.Client) bool { return c.Ping(ctx).Err() == nil }
	for _, c := range []struct {
		name    string
		shards  int
		alive   func(context.Context, *redis.Client) bool
		forgets bool
	}{
		{"default", 2, nil, true},
		{"asks itself", 2, asks, true},
		{"as Check advises", 2, stays, false},
		{"one shard", 1, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			addrs, servers := map[string]string{}, []*redistest.Server{}
			for i := range c.shards {
				servers = append(servers, redistest.Start(t))
				addrs[string(rune('a'+i))] = servers[i].Addr()
			}
			ring := redis.NewRing(&redis.RingOptions{
				Addrs: addrs, HeartbeatFn: c.alive, HeartbeatFrequency: 5 * time.Millisecond,
				ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
			})
			t.Cleanup(func() { _ = ring.Close() })
			require.Equal(t, c.forgets, strings.Contains(found(t, ring), "if a shard of this Ring is lost"))

			s, ns := newStore(t, ring, redisstore.WithTimeout(10*time.Second)), spaceOf(t, "token_bucket")
			keys := strings.Split("abcdefghijklmnop", "") // one shard has all of them by a chance of 1 in 32,768
			for _, key := range keys {
				reply, err := s.Take(t.Context(), ns, key, year(1), 1)
				require.NoError(t, err)
				require.True(t, reply.OK())
			}
			servers[0].Kill()
			if c.forgets {
				require.Eventually(t, func() bool { return ring.Len() == c.shards-1 }, 10*time.Second, time.Millisecond)
			}
			again, failed := 0, 0
			if !c.forgets { // each call for a lost key takes so long
				s = newStore(t, ring, redisstore.WithTimeout(50*time.Millisecond))
			}
			for _, key := range keys {
				reply, err := s.Take(t.Context(), ns, key, year(1), 1)
				switch {
				case err != nil:
					require.ErrorIs(t, err, store.ErrStore)
					failed++
				case reply.OK():
					again++
				}
			}
			require.Equal(t, c.forgets, again > 0, "%d are admitted again", again)
			require.True(t, c.forgets || failed > 0)
		})
	}
}

func TestCheckSaysWhatIsWrong(t *testing.T) {
	server := redistest.Start(t)
	plain := server.Client(t)
	good := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer good.Close()
	ctx := t.Context()
	require.Empty(t, found(t, good))

	// The client.
	require.Contains(t, found(t, plain), "ContextTimeoutEnabled is false")
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr()}})
	defer ring.Close()
	require.Contains(t, found(t, ring), "each call costs a goroutine")
	async, err := good.AsyncAutoPipeline()
	require.NoError(t, err)
	require.Contains(t, found(t, async), "MaxQueuedCommands")
	require.Contains(t, found(t, struct{ redisstore.Client }{good}), "is not known to this package")

	// The server.
	for _, policy := range []string{"allkeys-lru", "volatile-ttl", "allkeys-random"} {
		require.NoError(t, plain.ConfigSet(ctx, "maxmemory-policy", policy).Err())
		text := found(t, good)
		require.Contains(t, text, server.Addr()+": maxmemory-policy is "+policy)
		require.Contains(t, text, "No maxmemory is set yet")
		require.Contains(t, found(t, async), "server: maxmemory-policy is "+policy)
		require.Contains(t, found(t, ring), "maxmemory-policy is "+policy)
	}
	require.NoError(t, plain.ConfigSet(ctx, "maxmemory", "100mb").Err())
	require.Contains(t, found(t, good), ". When memory is full")
	require.NoError(t, plain.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	require.Empty(t, found(t, good))

	// Connections that rest.
	require.NoError(t, plain.ConfigSet(ctx, "timeout", "600").Err())
	require.Contains(t, found(t, good), server.Addr()+": timeout is 10m0s: the server closes connections that rest for longer.")
	require.Contains(t, found(t, ring), "timeout is 10m0s")
	require.Contains(t, found(t, async), "server: timeout is 10m0s")
	for idle, says := range map[time.Duration]bool{-1: true, 10 * time.Minute: true, 599 * time.Second: false} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, ConnMaxIdleTime: idle})
		require.Equal(t, says, strings.Contains(found(t, client), "timeout is 10m0s"), "%v", idle)
		require.NoError(t, client.Close())
	}
	require.NoError(t, plain.ConfigSet(ctx, "timeout", "0").Err())
	require.Empty(t, found(t, good))

	host, port, _ := net.SplitHostPort(server.Addr())
	replica := redistest.Start(t, "--replicaof", host, port)
	require.Contains(t, found(t, replica.Client(t)), "this is a replica")

	// Clocks.
	for ahead, says := range map[time.Duration]string{
		time.Second: `its clock is -(1s|9\d\dms) ahead`, -2 * time.Second: `its clock is (2s|1\.9\d*s) ahead`,
		50 * time.Millisecond: "", -50 * time.Millisecond: "",
	} {
		text := found(t, good, redisstore.WithClock(func() time.Time { return time.Now().Add(ahead) }))
		require.Regexp(t, says, text)
		require.Equal(t, says == "", text == "", text)
	}

	// A user who may not ask.
	require.NoError(t, plain.Do(ctx, "ACL", "SETUSER", "limiter", "on", "nopass", "~*", "+eval", "+evalsha", "+get", "+set", "+hello", "+client").Err())
	user := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "limiter", Password: "x", ContextTimeoutEnabled: true})
	defer user.Close()
	require.Contains(t, found(t, user), "could not be checked (NOPERM")
	require.NotContains(t, found(t, user), "connections that rest")
}

// Servers that do not tell are often rented, and asked over TLS.
func TestCheckSaysOverTLSThatTheTimeOfRestIsNotKnown(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	require.NoError(t, server.Client(t).Do(t.Context(), "ACL", "SETUSER", "limiter", "on", "nopass", "~*", "+@all", "-config").Err())
	for keeps, says := range map[time.Duration]bool{0: true, -1: true, 6 * time.Minute: true, 4 * time.Minute: false} {
		o := server.TLSOptions()
		o.Username, o.Password, o.ConnMaxIdleTime, o.Protocol = "limiter", "x", keeps, 2
		client := redis.NewClient(o)
		require.Equal(t, says, strings.Contains(found(t, client), "timeout, after which the server closes connections that rest, could not be checked (NOPERM"), "%v", keeps)
		require.NoError(t, client.Close())
	}
}

func TestCheckOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 2, 0)
	require.NoError(t, cluster.Masters[1].Client(t).ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru").Err())
	text := found(t, cluster.Client(t))
	require.Contains(t, text, "ContextTimeoutEnabled is false")
	require.Contains(t, text, cluster.Masters[1].Addr()+": maxmemory-policy")
	require.NotContains(t, text, cluster.Masters[0].Addr())

	for _, o := range []*redis.ClusterOptions{{ReadOnly: true}, {RouteRandomly: true}} { // with RouteByLatency go-redis 9.23 has a race of its own
		o.Addrs = cluster.Addrs()
		client := redis.NewClusterClient(o)
		require.Contains(t, found(t, client), "it reads from replicas")
		require.NoError(t, client.Close())
	}
	require.Contains(t, found(t, cluster.Masters[0].Client(t)), "Use redis.NewClusterClient")
}

func TestCheckIsBounded(t *testing.T) {
	effort.NeedFull(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, 1, 0)
	server := cluster.Masters[0]
	for name, client := range kinds(t, server.Addr(), false) {
		s := newStore(t, client)
		_, err := s.Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		server.Freeze()
		requireInTime(t, name, func() time.Duration {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			list, err := s.Check(ctx)
			took := time.Since(start)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NotEmpty(t, list, "what is known without the server: %s", name)
			return took - 100*time.Millisecond
		})
		server.Thaw()
	}
	server.Kill()
	s := newStore(t, server.Client(t))
	_, err := s.Check(t.Context())
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.False(t, errors.Is(err, context.DeadlineExceeded))
}

func TestCheckReadsVersionsOfRedisAndValkey(t *testing.T) {
	for info, says := range map[string]string{
		"redis_version:6.2.0": "", "redis_version:7.0.15": "", "redis_version:10.0.1": "",
		"redis_version:6.0.16": "too old", "redis_version:5.0": "too old", "redis_version:4.9.9": "too old",
		"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1": "",
		"redis_version:7.2.4\r\nvalkey_version:7.1.0":                       "too old",
		"redis_version:unstable":                                            "could not be checked", "": "could not be checked",
	} {
		text := strings.Join(redisstore.CheckVersion(info), " ")
		if says == "" {
			require.Empty(t, text, info)
		}
		require.Contains(t, text, says, info)
	}
}

func TestCheckKnowsADialTimeoutThatOutlastsAFailover(t *testing.T) {
	found := func(dial time.Duration) string {
		client := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}, DialTimeout: dial,
		})
		defer client.Close()
		return strings.Join(newStore(t, client).Settings(), "\n")
	}
	require.Contains(t, found(0), "DialTimeout is 5s") // go-redis' default
	require.NotContains(t, found(500*time.Millisecond), "DialTimeout")
	plain := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer plain.Close()
	require.NotContains(t, strings.Join(newStore(t, plain).Settings(), "\n"), "DialTimeout")
}
