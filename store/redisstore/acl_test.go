package redisstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// leastACL is the least that a user needs, as in the package documentation.
const leastACL = "~rl:* +evalsha +eval +time +get +set +del +unlink +pexpire +llen +lindex +lset +rpush +lpop +ltrim"

// leastCommands returns the commands of leastACL.
func leastCommands() (names []string) {
	for _, word := range strings.Fields(leastACL) {
		if name, ok := strings.CutPrefix(word, "+"); ok {
			names = append(names, name)
		}
	}
	return names
}

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

func TestTheDocumentedPermissionsAreThoseOfTheScripts(t *testing.T) {
	doc, err := os.ReadFile("redisstore.go")
	require.NoError(t, err)
	require.Contains(t, string(doc), "//\t"+leastACL+"\n")
	probe, err := os.ReadFile("check_probe.go")
	require.NoError(t, err)
	files, err := filepath.Glob("../../scripts/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	commands := func(text []byte, pattern string) (names []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			names = append(names, strings.ToLower(string(m[1])))
		}
		return names
	}
	run := commands(doc, `redis\.call\('([A-Z]+)'`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		run = append(run, commands(text, `(?:call|try)\('([A-Z]+)'`)...)
	}
	slices.Sort(run)
	run = slices.Compact(run)
	least := slices.DeleteFunc(leastCommands(), func(name string) bool { return strings.HasPrefix(name, "eval") })
	require.ElementsMatch(t, run, least)
	require.ElementsMatch(t, run, commands(probe, `\n(?:if .* then )?try\('([A-Z]+)'`))
}

// Each operation of each algorithm runs with exactly these permissions, and needs all of
// them.
func TestTheLeastPermissionsAreEnough(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, plain := userOf(t, server, leastACL), server.Client(t)
	require.NoError(t, plain.ConfigResetStat(t.Context()).Err())
	now := time.Now()
	open := func(opts ...redisstore.Option) *redisstore.Store {
		s, err := redisstore.New(client, append(opts, redisstore.WithTimeout(5*time.Second))...)
		require.NoError(t, err)
		return s
	}
	for i, s := range []*redisstore.Store{open(), open(redisstore.WithClock(func() time.Time { return now }))} {
		for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
			ctx, name := t.Context(), fmt.Sprint(algorithm, i)
			l, err := ratelimit.New(algorithm, s, ratelimit.PerHour(300), ratelimit.WithName(name))
			require.NoError(t, err)
			wide, err := ratelimit.New(algorithm, s, ratelimit.PerDay(3000), ratelimit.WithName(name))
			require.NoError(t, err)
			both, err := ratelimit.NewAll(l, wide)
			require.NoError(t, err)
			var charged []ratelimit.Result
			admit := func(n int) {
				r, err := l.AllowN(ctx, "k", n)
				require.NoError(t, err, name)
				require.True(t, r.Allowed, name)
				charged = append(charged, r)
			}
			for i := range 140 { // three blocks of a log
				now = now.Add(time.Millisecond)
				admit(1 + i%80/79)
			}
			for i := len(charged) - 1; i >= 0; i-- {
				require.NoError(t, l.Refund(ctx, "k", charged[i], 2), name)
			}
			charged = nil
			for range 70 {
				admit(1)
			}
			now = now.Add(59 * time.Minute)
			admit(2)
			now = now.Add(2 * time.Minute)
			admit(1) // a block of a log leaves
			now = now.Add(5 * time.Hour)
			admit(1) // all of it
			require.NoError(t, l.Refund(ctx, "k", charged[len(charged)-1], 1), name)
			_, _, err = l.(interface {
				AllowUpTo(ctx context.Context, key string, n int) (int, ratelimit.Result, error)
			}).AllowUpTo(ctx, "k", 1000)
			require.NoError(t, err, name)
			_, err = l.(interface {
				Charge(ctx context.Context, key string, n int) (ratelimit.Result, error)
			}).Charge(ctx, "k", 500)
			require.NoError(t, err, name)
			r, err := l.Allow(ctx, "k")
			require.NoError(t, err, name)
			require.False(t, r.Allowed)
			_, err = l.Peek(ctx, "k")
			require.NoError(t, err, name)
			r, err = both.Allow(ctx, "others")
			require.NoError(t, err, name)
			require.True(t, r.Allowed)
			require.NoError(t, l.Reset(ctx, "k"), name)
			space := spaceOf(t, algorithm)
			_, errs, _ := s.TakeEach([]store.Request{
				{Namespace: space, Key: "a", Limit: limit, N: 1}, {Namespace: space, Key: "b", Limit: limit, N: 1},
			})
			require.Equal(t, []error{nil, nil}, errs)
		}
	}
	stats, err := plain.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, name := range leastCommands() {
		require.Contains(t, stats, "cmdstat_"+name+":", "it is not needed")
	}
	require.Contains(t, found(t, client, redisstore.WithPrefix("rl")), "could not be checked")
	require.NotContains(t, found(t, client, redisstore.WithPrefix("rl")), "may not")
}

func TestCheckNamesThePermissionThatIsMissing(t *testing.T) {
	redistest.NeedRedis7(t) // for %R~, keys that may only be read
	server := redistest.Start(t)
	rl := redisstore.WithPrefix("rl")
	for _, name := range leastCommands() {
		client := userOf(t, server, leastACL+" +info -"+name)
		text := found(t, client, rl)
		require.Regexp(t, `: (scripts of this user|this user) may not run `+strings.ToUpper(name)+` \(.*Allow \+`+name+`\.$`, text)
		if name == "time" { // Check itself asks for it too
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
	}
	require.Empty(t, found(t, userOf(t, server, leastACL+" +info"), rl))
	require.Zero(t, server.Client(t).DBSize(t.Context()).Val(), "Check leaves no key")
}

func TestCheckNamesTheNodeOfAClusterThatForbids(t *testing.T) {
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

func TestCheckFindsAServerThatDoesNotWrite(t *testing.T) {
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

func TestCheckAndReadyFindAWrongPassword(t *testing.T) {
	server := redistest.Start(t)
	require.NoError(t, server.Client(t).ConfigSet(t.Context(), "requirepass", "secret").Err())
	for _, o := range []*redis.Options{{Password: "wrong"}, {Username: "nobody", Password: "wrong"}, {}} {
		o.Addr, o.ContextTimeoutEnabled = server.Addr(), true
		client := redis.NewClient(o)
		list, err := newStore(t, client).Check(t.Context())
		require.ErrorIs(t, err, store.ErrStore)
		require.Equal(t, "no class", classOf(t, err))
		require.Len(t, list, 1)
		require.Contains(t, list[0], "does not know this user by this password")
		require.NotContains(t, list[0], "INFO")
		err = newStore(t, client).Ready(t.Context())
		require.ErrorIs(t, err, store.ErrStore)
		require.Equal(t, "no class", classOf(t, err))
		require.NoError(t, client.Close())
	}
}

func TestCheckDisturbsNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	s := newStore(t, client)
	for range 3 {
		_, err := s.Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		list, err := s.Check(t.Context())
		require.NoError(t, err)
		require.Empty(t, list)
	}
	require.EqualValues(t, 3, used(t, s, "k"))
	require.EqualValues(t, 1, client.DBSize(t.Context()).Val())
	// Keys that may not be removed expire.
	user := userOf(t, server, "~* +evalsha +eval +time +get +set +pexpire +llen +lindex +lset +rpush +lpop +ltrim")
	require.Contains(t, found(t, user), "may not run DEL, UNLINK")
	require.Eventually(t, func() bool { return client.DBSize(t.Context()).Val() == 1 }, 10*time.Second, 10*time.Millisecond)
}
