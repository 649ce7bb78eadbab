package redischeck_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redischeck"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestWrongSettingsAreFound(t *testing.T) {
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
	require.Contains(t, found(t, ring), "ContextTimeoutEnabled is false")
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
func TestOverTLSATimeOfRestThatIsNotKnownIsFound(t *testing.T) {
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

func TestEachNodeOfAClusterIsChecked(t *testing.T) {
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

func TestOldVersionsOfRedisAndValkeyAreFound(t *testing.T) {
	for info, says := range map[string]string{
		"redis_version:6.2.0": "", "redis_version:7.0.15": "", "redis_version:10.0.1": "",
		"redis_version:6.0.16": "too old", "redis_version:5.0": "too old", "redis_version:4.9.9": "too old",
		"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1": "",
		"redis_version:7.2.4\r\nvalkey_version:7.1.0":                       "too old",
		"redis_version:unstable":                                            "could not be checked", "": "could not be checked",
	} {
		text := strings.Join(redischeck.Version(info), " ")
		if says == "" {
			require.Empty(t, text, info)
		}
		require.Contains(t, text, says, info)
	}
}

func TestATimeoutThatIsShortForTheDistanceIsFound(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		trip, timeout time.Duration
		says          string // "" for nothing
	}{
		{trip: ms, timeout: 50 * ms},
		{trip: 25 * ms, timeout: 50 * ms},
		{trip: 26 * ms, timeout: 50 * ms, says: "Call Ready at the start, or set WithTimeout to at least 78ms"},
		{trip: 45 * ms, timeout: 50 * ms, says: "Call Ready"},
		{trip: 46 * ms, timeout: 50 * ms, says: "none is answered in time. Set WithTimeout to at least 138ms"},
		{trip: 46 * ms, timeout: 150 * ms},
	} {
		found := redischeck.Distance(c.trip, c.timeout)
		if c.says == "" {
			require.Empty(t, found, "%v, %v", c.trip, c.timeout)
			continue
		}
		require.Len(t, found, 1)
		require.Contains(t, found[0], c.says)
	}

	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	proxy.Delay(60 * ms)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	s, err := redisstore.New(client, redisstore.WithTimeout(50*ms)) // which gets no answer
	require.NoError(t, err)
	found, err := redischeck.Run(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Contains(t, found[0], "none is answered in time")
}

// An evicting server forgets what keys have spent, which is found.
func TestEvictionResetsLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru")
	client := server.Client(t)
	s := newStore(t, client)
	list, err := redischeck.Run(t.Context(), s)
	require.NoError(t, err)
	require.Contains(t, strings.Join(list, "\n"), "maxmemory-policy is allkeys-lru")

	l := limiterOn(t, s, 1)
	allow := func() bool {
		r, err := l.Allow(t.Context(), "user")
		require.NoError(t, err, "no OOM")
		return r.Allowed
	}
	require.True(t, allow())
	require.False(t, allow())
	key := client.Keys(t.Context(), "*user*").Val()[0]
	written := 0
	for ; client.Exists(t.Context(), key).Val() == 1 && written < 100_000; written++ {
		require.NoError(t, client.Set(t.Context(), fmt.Sprint("filler", written), make([]byte, 1000), 0).Err())
	}
	require.True(t, allow(), "the fault bites: the second event of the day")
	t.Logf("the limit was forgotten when %d kB had passed through 4 MB", written)
}

// A deadline that is shorter than a round trip is none that a server could keep.
func TestDeadlinesThatAreShortForTheDistanceAreFound(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	proxy.Delay(100 * time.Millisecond)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	s := newStore(t, client)
	require.NoError(t, s.Ready(t.Context()))
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := limiterOn(t, s, 1).Allow(ctx, "k")
		cancel()
		require.Equal(t, context.DeadlineExceeded, err)
	}
	text := found(t, client)
	list, err := redischeck.Run(t.Context(), s)
	require.NoError(t, err)
	require.Empty(t, text, "another store's calls had time")
	require.Len(t, list, 1)
	require.Regexp(t, `2 calls had less time than a round trip takes \(1\d\d`, list[0])
}
