package redischeck_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redischeck"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// leastACL is the least that a user needs, as package redisstore documents it.
const leastACL = "~rl:* +evalsha +eval +time +get +set +del +unlink +pexpire +llen +lindex +lset +rpush +lpop +ltrim"

// userOf returns a client of a user who may do what the access list says and no more.
func userOf(t *testing.T, server *redistest.Server, list string) *redis.Client {
	t.Helper()
	args := []any{"acl", "setuser", "limiter", "reset", "on", ">secret", "-@all"}
	for _, word := range strings.Fields(list) {
		args = append(args, word)
	}
	require.NoError(t, server.Client(t).Do(t.Context(), args...).Err())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "limiter", Password: "secret", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestThePermissionThatIsMissingIsNamed(t *testing.T) {
	redistest.NeedRedis7(t) // for %R~, keys that may only be read
	server := redistest.Start(t)
	rl := redisstore.WithPrefix("rl")
	for _, command := range strings.Fields(leastACL)[1:] {
		name := command[1:]
		client := userOf(t, server, leastACL+" +info -"+name)
		text := found(t, client, rl)
		require.Regexp(t, `: (scripts of this user|this user) may not run `+strings.ToUpper(name)+` \(.*Allow \+`+name+`\.$`, text)
		if name == "time" { // which is also asked for by itself
			require.NotContains(t, found(t, client, rl, redisstore.WithClock(time.Now)), "may not")
			continue
		}
		require.NotContains(t, text, "\n", "nothing else")
	}
	text := found(t, userOf(t, server, leastACL+" +info -set -rpush"), rl)
	require.Contains(t, text, "may not run SET, RPUSH (")
	require.Contains(t, text, "Allow +set +rpush.")
	for _, keys := range []string{"resetkeys", "resetkeys ~other:*", "resetkeys %R~rl:*"} {
		text := found(t, userOf(t, server, leastACL+" +info "+keys), rl)
		require.Contains(t, text, "this user may not use the keys of the store", keys)
		require.Contains(t, text, "Allow ~rl:*.", keys)
		require.NotContains(t, text, "\n", "it is told once")
	}
	require.Empty(t, found(t, userOf(t, server, leastACL+" +info"), rl))
	require.Zero(t, server.Client(t).DBSize(t.Context()).Val(), "no key is left")
	text = found(t, userOf(t, server, leastACL), rl)
	require.Contains(t, text, "could not be checked")
	require.NotContains(t, text, "may not")
}

func TestTheNodeOfAClusterThatForbidsIsNamed(t *testing.T) {
	effort.NeedFull(t)
	cluster := redistest.StartCluster(t, 2, 0)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: true})
	defer client.Close()
	require.Empty(t, found(t, client))
	second := cluster.Masters[1]
	require.NoError(t, second.Client(t).Do(t.Context(), "acl", "setuser", "default", "-lset").Err())
	text := found(t, client)
	require.Contains(t, text, second.Addr()+": scripts of this user may not run LSET (")
	require.NotContains(t, text, "\n")
	require.NoError(t, second.Client(t).Do(t.Context(), "acl", "setuser", "default", "+lset").Err())
	for _, master := range cluster.Masters {
		require.Zero(t, master.Client(t).DBSize(t.Context()).Val())
		userOf(t, master, leastACL+" +cluster|slots +info")
	}
	users := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: cluster.Addrs(), Username: "limiter", Password: "secret", ContextTimeoutEnabled: true,
	})
	defer users.Close()
	for _, master := range cluster.Masters { // calls for keys whose slot is moving would fail
		require.Contains(t, found(t, users, redisstore.WithPrefix("rl")), master.Addr()+": this user may not run ASKING (")
		require.NoError(t, master.Client(t).Do(t.Context(), "acl", "setuser", "limiter", "+asking").Err())
	}
	require.Empty(t, found(t, users, redisstore.WithPrefix("rl")))
	s, err := redisstore.New(users, redisstore.WithTimeout(5*time.Second))
	require.NoError(t, err)
	l, err := ratelimit.NewSlidingLog(s, ratelimit.PerHour(5))
	require.NoError(t, err)
	for i := range 20 {
		_, err := l.Allow(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
	}
}

func TestARingNeedsPing(t *testing.T) {
	server := redistest.Start(t)
	userOf(t, server, leastACL+" +ping +info")
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": server.Addr()}, Username: "limiter", Password: "secret", HeartbeatFrequency: 10 * time.Millisecond,
		ContextTimeoutEnabled: true,
	})
	defer ring.Close()
	time.Sleep(100 * time.Millisecond) // after three failed heartbeats it leaves a shard
	require.Empty(t, found(t, ring, redisstore.WithPrefix("rl")))
}

func TestAServerThatDoesNotWriteIsFound(t *testing.T) {
	redistest.NeedRedis7(t) // Redis 6.2 puts the line of the script into its errors
	server := redistest.Start(t)
	plain := server.Client(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	require.NoError(t, plain.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	text := found(t, client)
	require.Contains(t, text, "the server refuses SET (NOREPLICAS")
	require.NotContains(t, text, "\n")
	require.NoError(t, plain.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	require.NoError(t, plain.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.Contains(t, found(t, client), "the server refuses SET (OOM")
	require.NoError(t, plain.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.Empty(t, found(t, client))
}

// A server that says that it is new, or does not say what it is, may lack commands, or have them under other names.
func TestAServerThatLacksCommandsIsFound(t *testing.T) {
	const use = "Use Redis 6.2, Valkey 7.2, or a later version"
	for lacks, says := range map[string]string{"lpop": ": the server refuses LPOP (", "eval": ": scripts do not run ("} {
		server := redistest.Start(t, "--rename-command", lacks, "other")
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		defer client.Close()
		text := found(t, client)
		require.Contains(t, text, says)
		require.Contains(t, text, use)
		require.NotContains(t, text, "\n")
	}
}

// answering answers commands by name in a server's place.
type answering map[string]any

func (answering) DialHook(next redis.DialHook) redis.DialHook { return next }

func (answering) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a answering) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if answer, ok := a[cmd.Name()]; ok {
			cmd.(interface{ SetVal(any) }).SetVal(answer)
			return nil
		}
		return next(ctx, cmd)
	}
}

func TestAnOldServerIsFoundInWords(t *testing.T) {
	server := redistest.Start(t)
	lacks := []any{"LPOP", "@user_script: 4: Wrong number of args calling Redis command From Lua script"} // as Redis 6.0 says of a count
	for info, says := range map[string]string{
		"redis_version:6.0.20\nmaxmemory_policy:noeviction": "Redis 6.0.20 is too old: the scripts need 6.2 or later, and may fail or decide wrongly. Upgrade it.",
		"redis_version:6.2.0\nmaxmemory_policy:noeviction":  "Use Redis 6.2, Valkey 7.2, or a later version",
	} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		defer client.Close()
		client.AddHook(answering{"info": info, "eval": lacks, "evalsha": lacks})
		text := found(t, client)
		require.Contains(t, text, says)
		require.NotContains(t, text, "\n", "nothing else")
	}
}

func TestAWrongPasswordIsFound(t *testing.T) {
	server := redistest.Start(t)
	require.NoError(t, server.Client(t).ConfigSet(t.Context(), "requirepass", "secret").Err())
	for _, o := range []*redis.Options{{Password: "wrong"}, {Username: "nobody", Password: "wrong"}, {}} {
		o.Addr, o.ContextTimeoutEnabled = server.Addr(), true
		client := redis.NewClient(o)
		s := newStore(t, client)
		list, err := redischeck.Run(t.Context(), s)
		require.ErrorIs(t, err, store.ErrStore)
		require.NotErrorIs(t, err, store.ErrUnavailable)
		require.Len(t, list, 1)
		require.Contains(t, list[0], "does not know this user by this password")
		require.NotContains(t, list[0], "INFO")
		err = s.Ready(t.Context())
		require.ErrorIs(t, err, store.ErrStore)
		require.NotErrorIs(t, err, store.ErrUnavailable)
		require.NoError(t, client.Close())
	}
}

// A cluster's client that is refused where it asks for the other nodes is no outage either.
func TestWhyAClusterIsNotFoundIsNamed(t *testing.T) {
	server := redistest.Start(t)
	userOf(t, server, leastACL)
	for says, o := range map[string]redis.ClusterOptions{
		"does not know this user by this password": {Username: "limiter", Password: "wrong"},
		"Allow +cluster|slots":                     {Username: "limiter", Password: "secret"},
		"Use redis.NewClient":                      {},
	} {
		o.Addrs, o.ContextTimeoutEnabled = []string{server.Addr()}, true
		client := redis.NewClusterClient(&o)
		s := newStore(t, client)
		list, err := redischeck.Run(t.Context(), s)
		for _, err := range []error{err, s.Ready(t.Context())} {
			require.ErrorIs(t, err, store.ErrStore)
			require.NotErrorIs(t, err, store.ErrUnavailable)
			require.Equal(t, 1, strings.Count(err.Error(), store.ErrStore.Error()))
		}
		require.Len(t, list, 1)
		require.Contains(t, list[0], says)
		require.NoError(t, client.Close())
	}
}

// What Sentinels answer is not the answer of a server: while they name no master, none is reached.
func TestWithoutAMasterNoServerIsReached(t *testing.T) {
	o := redis.FailoverOptions{
		MasterName: "master", SentinelAddrs: []string{redistest.Start(t).Addr()}, ContextTimeoutEnabled: true, // a server without the command SENTINEL
		DialTimeout: 500 * time.Millisecond, DialerRetries: 1, DialerRetryTimeout: time.Millisecond,
	}
	for _, client := range []redis.UniversalClient{redis.NewFailoverClient(&o), redis.NewFailoverClusterClient(&o)} {
		s := newStore(t, client)
		list, err := redischeck.Run(t.Context(), s)
		require.Empty(t, list)
		for _, err := range []error{err, s.Ready(t.Context())} {
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorContains(t, err, "unknown command 'sentinel'", "which says why")
		}
		require.NoError(t, client.Close())
	}
}
