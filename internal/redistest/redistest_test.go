package redistest_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func TestServerFreezesThawsDiesAndComesBack(t *testing.T) {
	ctx := t.Context()
	s := redistest.Start(t, "--maxmemory", "50mb")
	client := s.Client(t)
	require.Equal(t, "52428800", client.ConfigGet(ctx, "maxmemory").Val()["maxmemory"])
	require.NoError(t, client.Set(ctx, "k", 1, 0).Err())

	quick := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: 50 * time.Millisecond, MaxRetries: -1})
	defer quick.Close()
	s.Freeze()
	require.Error(t, quick.Ping(ctx).Err())
	s.Thaw()
	require.NoError(t, client.Ping(ctx).Err())

	s.Kill()
	_, err := net.Dial("tcp", s.Addr())
	require.Error(t, err)
	s.Restart(t)
	require.NoError(t, client.Ping(ctx).Err())
	require.Zero(t, client.Exists(ctx, "k").Val(), "nothing is persistent")

	s.Freeze() // a frozen server can be killed too
}

func TestSharedIsOneServer(t *testing.T) {
	require.Same(t, redistest.Shared(t), redistest.Shared(t))
	require.NoError(t, redistest.Shared(t).Client(t).Ping(t.Context()).Err())
}

func TestATestThatRunsAgainHasAnotherPrefix(t *testing.T) {
	type run struct{ testing.TB } // each under the same name
	first, second := &run{t}, &run{t}
	prefix := redistest.Prefix(first)
	require.Contains(t, prefix, t.Name())
	require.Equal(t, prefix, redistest.Prefix(first))
	require.NotEqual(t, prefix, redistest.Prefix(second))
}

func TestServerThatCannotStart(t *testing.T) {
	redistest.NeedBinary(t)
	_, err := redistest.StartIn(t.TempDir(), "--no-such-option", "1")
	require.ErrorContains(t, err, "did not come up")
}

func TestClusterIsWhole(t *testing.T) {
	t.Parallel()
	start := time.Now()
	c := redistest.StartCluster(t, 3, 3)
	t.Log("ready in", time.Since(start))
	client := c.Client(t)
	ctx := t.Context()
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		require.NoError(t, client.Set(ctx, key, 1, 0).Err())
	}
	for _, r := range c.Replicas {
		require.Contains(t, r.Client(t).Info(ctx, "replication").Val(), "role:slave")
	}
	require.Len(t, c.Addrs(), 6)
}

func TestProxyLosesExactlyTheRepliesItShould(t *testing.T) {
	ctx := t.Context()
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr())
	through := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1})
	defer through.Close()
	direct := s.Client(t)
	for _, lost := range []int{1, 3} {
		require.NoError(t, direct.FlushAll(ctx).Err())
		p.DropReplies(lost, "incr")
		for i := range lost {
			require.NoError(t, through.Ping(ctx).Err(), "other replies pass")
			require.Error(t, through.Incr(ctx, "k").Err())
			n, err := direct.Get(ctx, "k").Int()
			require.NoError(t, err)
			require.Equal(t, i+1, n, "committed")
		}
		require.Equal(t, lost, p.Dropped())
		require.EqualValues(t, lost+1, through.Incr(ctx, "k").Val())
	}

	// A client that retries does not notice; the server does.
	retrying := redis.NewClient(&redis.Options{Addr: p.Addr()})
	defer retrying.Close()
	require.NoError(t, direct.FlushAll(ctx).Err())
	p.DropReplies(3, "incr")
	require.EqualValues(t, 4, retrying.Incr(ctx, "k").Val())
	require.Equal(t, 3, p.Dropped())
}

func TestProxyHoldsReplies(t *testing.T) {
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr())
	client := redis.NewClient(&redis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1})
	defer client.Close()
	require.NoError(t, client.Ping(t.Context()).Err())

	p.Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, client.Incr(ctx, "k").Err())
	require.Equal(t, "1", s.Client(t).Get(t.Context(), "k").Val(), "committed")
	p.Release()
	require.EqualValues(t, 2, client.Incr(t.Context(), "k").Val())

	s.Kill()
	require.Error(t, client.Ping(t.Context()).Err())
}

func TestProxyMutesTheConnectionsThereAre(t *testing.T) {
	server := redistest.Start(t)
	p := redistest.StartProxy(t, server.Addr())
	client := func() *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: p.Addr(), ReadTimeout: 500 * time.Millisecond, MaxRetries: -1})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	old := client()
	require.NoError(t, old.Ping(t.Context()).Err())
	require.Equal(t, 1, p.Mute())
	require.Error(t, old.Incr(t.Context(), "k").Err())
	require.Equal(t, "1", server.Client(t).Get(t.Context(), "k").Val(), "committed")
	require.Eventually(t, func() bool { return client().Ping(t.Context()).Err() == nil }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return old.Ping(t.Context()).Err() == nil }, 10*time.Second, time.Millisecond, "on another")
}

func TestMiniMovesBothClocks(t *testing.T) {
	m := redistest.Mini(t)
	client := m.Client(t)
	ctx := t.Context()
	require.NoError(t, client.Set(ctx, "k", 1, time.Second).Err())
	require.True(t, m.Now().Equal(client.Time(ctx).Val()))
	m.Advance(999 * time.Millisecond)
	require.Equal(t, time.Millisecond, client.PTTL(ctx, "k").Val())
	m.Advance(time.Millisecond)
	require.True(t, m.Now().Equal(client.Time(ctx).Val()))
	require.Zero(t, client.Exists(ctx, "k").Val())
	seconds, err := client.Eval(ctx, "return redis.call('TIME')[1]", nil).Text()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(seconds, "1767225601"), seconds)
}

func TestSentinelsPromoteAReplica(t *testing.T) {
	effort.NeedFull(t) // as the tests that use them
	t.Parallel()
	start := time.Now()
	s := redistest.StartSentinel(t, 1, 500*time.Millisecond)
	t.Log("ready in", time.Since(start))
	client := s.Client(t)
	require.NoError(t, client.Set(t.Context(), "k", 1, 0).Err())
	s.Master.Kill()
	killed := time.Now()
	require.Eventually(t, func() bool {
		return strings.Contains(s.Replicas[0].Client(t).Info(t.Context(), "replication").Val(), "role:master")
	}, 30*time.Second, 20*time.Millisecond)
	t.Log("promoted in", time.Since(killed))
	require.Eventually(t, func() bool { // the Sentinels tell clients a little later
		return client.Set(t.Context(), "k", 2, 0).Err() == nil
	}, 30*time.Second, 20*time.Millisecond)
}

func TestRestartLoadsWhatWasSaved(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client(t)
	require.NoError(t, client.Set(t.Context(), "k", "kept", 0).Err())
	require.NoError(t, client.Save(t.Context()).Err())
	s.Restart(t)
	require.Equal(t, "kept", client.Get(t.Context(), "k").Val())
}
