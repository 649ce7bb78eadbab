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
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// leastACL is the least that a user needs, as in docs/redis.md.
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
	guide, err := os.ReadFile("../../docs/redis.md")
	require.NoError(t, err)
	require.Contains(t, string(guide), "\n    "+leastACL+"\n")
	reset, err := os.ReadFile("redisstore.go")
	require.NoError(t, err)
	tried, err := os.ReadFile("../redischeck/permissions.go")
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
	run := commands(reset, `redis\.call\('([A-Z]+)'`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		run = append(run, commands(text, `(?:call|try)\('([A-Z]+)'`)...)
	}
	slices.Sort(run)
	run = slices.Compact(run)
	least := slices.DeleteFunc(leastCommands(), func(name string) bool { return strings.HasPrefix(name, "eval") })
	require.ElementsMatch(t, run, least)
	require.ElementsMatch(t, run, commands(tried, `\n(?:if .* then )?try\('([A-Z]+)'`))
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
}
