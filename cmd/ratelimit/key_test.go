package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// startRedis starts a redis-server, which ends with the test.
func startRedis(t *testing.T, args ...string) *redis.Client {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("RATELIMIT_REQUIRE_REDIS") == "1" {
			t.Fatal("redis-server is missing and RATELIMIT_REQUIRE_REDIS=1")
		}
		t.Skip("redis-server is missing")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	args = append(slices.Clone(args), "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "")
	cmd := exec.Command("redis-server", args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	client := redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { _ = client.Close() })
	require.Eventually(t, func() bool { return up(client.Ping(context.Background()).Err()) }, 10*time.Second, 5*time.Millisecond)
	return client
}

// up reports whether a server has answered, if only by asking for its password.
func up(err error) bool {
	refused := redis.Error(nil)
	return err == nil || errors.As(err, &refused)
}

func newStore(t *testing.T, client redisstore.Client, prefix string) store.Store {
	t.Helper()
	st, err := redisstore.New(client, redisstore.WithPrefix(prefix), redisstore.WithTimeout(5*time.Second))
	require.NoError(t, err)
	return st
}

// charge charges n events of key to a limiter, whether they fit or not.
func charge(t *testing.T, st store.Store, algorithm, limit, name, key string, n int) {
	t.Helper()
	l, err := ratelimit.ParseLimit(limit)
	require.NoError(t, err)
	var options []ratelimit.Option
	if name != "" {
		options = append(options, ratelimit.WithName(name))
	}
	limiter, err := ratelimit.New(algorithm, st, l, options...)
	require.NoError(t, err)
	_, err = ratelimit.Charge(t.Context(), limiter, key, n)
	require.NoError(t, err)
}

// columns returns the words of each line of text, with # in place of times.
func columns(text string) string {
	var b strings.Builder
	for line := range strings.Lines(regexp.MustCompile(`(\d+h)?(\d+m)?\d[\d.]*m?s\b`).ReplaceAllString(text, "#")) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

const listed = `limiter algorithm limit spent whole again in expires in
(no name) fixed_window 20/h 3 # #
pages leaky_bucket 10/m 4 # #
api sliding_log ?/h 5 # #
api:v2 sliding_window 100/h 60 # #
(no name) token_bucket 10/h burst 50 30 # #
costs token_bucket 10/h 30 # #
`

func chargeAll(t *testing.T, st store.Store, key string) {
	charge(t, st, "fixed_window", "20/h", "", key, 3)
	charge(t, st, "leaky_bucket", "10/m", "pages", key, 4)
	charge(t, st, "sliding_log", "100/h", "api", key, 2)
	charge(t, st, "sliding_log", "100/h", "api", key, 3)
	charge(t, st, "sliding_window", "100/h", "api:v2", key, 60)
	charge(t, st, "token_bucket", "10/h burst 50", "", key, 30)
	charge(t, st, "token_bucket", "10/h burst 50", "costs", key, 30)
}

func TestKeyListsTheLimitersThatHoldAKeyAndForgetsIt(t *testing.T) {
	client := startRedis(t)
	address := client.Options().Addr
	for prefix, keys := range map[string][]string{
		"rl":      {"user:42", "a*b", "a*[b]?\\", "{x}", strings.Repeat("a", 200), "x:{=y"},
		"my*app:": {"user:42"},
	} {
		for _, key := range keys {
			st := newStore(t, client, prefix)
			chargeAll(t, st, key)
			charge(t, st, "fixed_window", "20/h", "", key+"0", 1)       // of another key
			charge(t, st, "fixed_window", "20/h", "", "tenant:"+key, 1) // one that ends as it does
			if pattern := strings.ReplaceAll(key, "*", "XY"); pattern != key {
				charge(t, st, "fixed_window", "20/h", "", pattern, 1)
			}
			charge(t, newStore(t, client, "other"), "fixed_window", "20/h", "", key, 1)
			before := client.DBSize(t.Context()).Val()

			args := []string{"key", "-store", address, "-prefix", prefix, key}
			got := command(t, nil, args...)
			require.Equal(t, result{0, listed, ""}, result{got.code, columns(got.stdout), got.stderr}, key)
			require.Equal(t, before, client.DBSize(t.Context()).Val(), "a list changes nothing")

			args = append([]string{"key", "-reset"}, args[1:]...)
			got = command(t, nil, args...)
			require.Equal(t, result{0, listed + "reset in 6 limiters\n", ""}, result{got.code, columns(got.stdout), got.stderr})
			require.Equal(t, before-6, client.DBSize(t.Context()).Val())
			got = command(t, nil, args...)
			require.Equal(t, result{0, "no limiter holds " + printable(key) + "\nIs it the whole key, such as user:42 of httplimit.User or name:42 of a KeyFunc? Is -prefix the store's? Keys with hash tags (redisstore.WithHashTags) are not found.\n", ""}, got)
		}
	}
}

func TestKeySaysWhenItIsWholeAgain(t *testing.T) {
	client := startRedis(t)
	charge(t, newStore(t, client, "rl"), "token_bucket", "10/h", "costs", "user:42", 5)
	got := command(t, nil, "key", "-store", "redis://"+client.Options().Addr+"/0", "user:42")
	require.Regexp(t, `\ncosts +token_bucket +10/h +5 +(30m0s|29m5\S*s) +(30m0s|29m5\S*s)\n$`, got.stdout)
}

func TestKeyListsBansAndLiftsThem(t *testing.T) {
	client := startRedis(t)
	st := newStore(t, client, "rl")
	inside, err := ratelimit.NewFixedWindow(st, ratelimit.PerDay(100), ratelimit.WithName("api"))
	require.NoError(t, err)
	b, err := ratelimit.NewBan(inside, st, ratelimit.Penalty{
		Denials: 3, Within: 10 * time.Minute, For: 15 * time.Minute, Most: 24 * time.Hour,
	}, ratelimit.WithName("login"))
	require.NoError(t, err)
	args := []string{"key", "-store", client.Options().Addr, "user:42"}
	for range 2 { // the second round is as the first: its ban was lifted, and is forgotten
		_, err = b.Strike(t.Context(), "user:42", 2)
		require.NoError(t, err)
		require.Regexp(t, `\nlogin +ban +3/10m +2 +(10m0s|9m5\S*s) +(10m0s|9m5\S*s)\n$`, command(t, nil, args...).stdout)
		_, err = b.Strike(t.Context(), "user:42", 1)
		require.NoError(t, err)
		banned := command(t, nil, args...)
		require.Regexp(t, `\nlogin +ban +3/10m +3 +(15m0s|14m5\S*s) +24h1[45]m\S*s\n$`, banned.stdout, banned.stderr)
		r, err := b.Allow(t.Context(), "user:42")
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceBan, r.Source())
		lifted := command(t, nil, append([]string{"key", "-reset"}, args[1:]...)...)
		require.Contains(t, lifted.stdout, "\nreset in 1 limiters\n")
		r, err = b.Allow(t.Context(), "user:42")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, b.Reset(t.Context(), "user:42"))
	}
}

// A ban is lifted while the wrapped limiter keeps its spend, and the other way round.
func TestKeyForgetsOneAlgorithmAlone(t *testing.T) {
	client := startRedis(t)
	st := newStore(t, client, "rl")
	inside, err := ratelimit.NewFixedWindow(st, ratelimit.PerDay(1), ratelimit.WithName("login"))
	require.NoError(t, err)
	b, err := ratelimit.NewBan(inside, st, ratelimit.Penalty{Denials: 1, Within: time.Minute, For: time.Hour}, ratelimit.WithName("login"))
	require.NoError(t, err)
	for range 2 {
		_, err = b.Allow(t.Context(), "user:42")
		require.NoError(t, err)
	}
	key := func(args ...string) result {
		return command(t, nil, append(append([]string{"key", "-store", client.Options().Addr}, args...), "user:42")...)
	}
	const head = "limiter algorithm limit spent whole again in expires in\n"
	require.Equal(t, head+"login fixed_window 1/d 1 # #\n", columns(key("-algorithm", "fixed_window").stdout))
	require.Equal(t, head+"login ban 1/m 1 # #\nreset in 1 limiters\n", columns(key("-reset", "-algorithm", "ban").stdout))
	require.Equal(t, head+"login fixed_window 1/d 1 # #\n", columns(key().stdout))
	require.Contains(t, key("-reset", "-algorithm", "ban").stdout, "no limiter holds user:42\n")
	require.Equal(t, result{2, "", ""}, result{key("-algorithm", "bans").code, key("-algorithm", "bans").stdout, ""})
	require.Contains(t, key("-algorithm", "bans").stderr, `unknown algorithm "bans": want one of fixed_window, `)
	_, err = b.Allow(t.Context(), "user:42")
	require.NoError(t, err)
	require.Contains(t, key("-reset", "-algorithm", "fixed_window").stdout, "\nreset in 1 limiters\n")
	require.Equal(t, head+"login ban 1/m 1 # #\n", columns(key().stdout))
}

// slotLine matches the line that is printed for a slot.
var slotLine = regexp.MustCompile(`(?m)^(.+): slot (\d+) has been held by (.+) for (\d\S*s), and is free in (\S+s) unless it is renewed$`)

func TestKeyListsSlotsAndFreesThem(t *testing.T) {
	client := startRedis(t)
	st, err := redisstore.New(client, redisstore.WithLabel("night shift"), redisstore.WithTimeout(5*time.Second))
	require.NoError(t, err)
	exports, err := inflight.New(st, 5, time.Minute, ratelimit.WithName("exports"))
	require.NoError(t, err)
	unnamed, err := inflight.New(newStore(t, client, "rl"), 30, time.Hour)
	require.NoError(t, err)
	for range 2 {
		_, err = exports.Allow(t.Context(), "user:42")
		require.NoError(t, err)
	}
	for range mostSlots + 3 {
		_, err = unnamed.Allow(t.Context(), "user:42")
		require.NoError(t, err)
	}
	free := func() []int {
		a, err := exports.Peek(t.Context(), "user:42")
		require.NoError(t, err)
		b, err := unnamed.Peek(t.Context(), "user:42")
		require.NoError(t, err)
		return []int{a.Remaining, b.Remaining}
	}
	args := []string{"-store", client.Options().Addr, "user:42"}
	got := command(t, nil, append([]string{"key"}, args...)...)
	host, err := os.Hostname()
	require.NoError(t, err)
	process := fmt.Sprintf("%s:%d", host, os.Getpid())
	numbers, who := make(map[string]bool), make(map[string]int)
	found := slotLine.FindAllStringSubmatch(got.stdout, -1)
	for _, m := range found {
		numbers[m[2]] = true
		who[m[1]+" "+m[3]]++
	}
	require.Equal(t, map[string]int{"(no name) " + process: mostSlots, "exports " + process + ":night shift": 2}, who, got.stdout)
	require.Len(t, numbers, mostSlots+2)
	require.Contains(t, got.stdout, "\n(no name): and 3 more\n")
	require.Regexp(t, `\(no name\) +in_flight +30 at once +23 `, got.stdout)
	require.Regexp(t, `exports +in_flight +\? at once +2 +(1m0s|5\S*s) `, got.stdout)

	one := found[len(found)-1]
	for range 2 {
		got = command(t, nil, append([]string{"key", "-reset", "-slot", one[2]}, args...)...)
		require.Equal(t, []int{4, 7}, free())
	}
	require.Equal(t, 1, got.code, "it is free already")
	require.Contains(t, got.stderr, "no slot "+one[2]+" of the key is held")
	for _, wrong := range [][]string{{"-slot", one[2]}, {"-reset", "-slot", ""}, {"-reset", "-slot", "x"}} {
		got = command(t, nil, append(append([]string{"key"}, wrong...), args...)...)
		require.Equal(t, 2, got.code, wrong)
	}
	require.Equal(t, []int{4, 7}, free())
	got = command(t, nil, append([]string{"key", "-reset"}, args...)...)
	require.Contains(t, got.stdout, "\nreset in 2 limiters\n")
	require.Equal(t, []int{5, 30}, free())
	got = command(t, nil, append([]string{"key", "-reset", "-slot", one[2]}, args...)...)
	require.Equal(t, 1, got.code, "there is no such key")
}

// A ban that has ended is remembered, so that the next one is longer.
func TestKeyListsABanThatIsOver(t *testing.T) {
	client := startRedis(t)
	ended := time.Now().Add(-time.Hour)
	st, err := redisstore.New(client, redisstore.WithClock(func() time.Time { return ended }))
	require.NoError(t, err)
	inside, err := ratelimit.NewFixedWindow(st, ratelimit.PerDay(100))
	require.NoError(t, err)
	b, err := ratelimit.NewBan(inside, st, ratelimit.Penalty{Denials: 1, Within: time.Minute, For: time.Minute, Most: 24 * time.Hour})
	require.NoError(t, err)
	_, err = b.Strike(t.Context(), "user:42", 1)
	require.NoError(t, err)
	got := command(t, nil, "key", "-store", client.Options().Addr, "user:42")
	require.Contains(t, columns(got.stdout), "\nban ban 1/m 0 # #\n", got.stderr)
}

// A calendar is part of the Redis key, and the end of the window part of the state. If a limit
// function returned a limit in another zone, Redis knows only the end of its window.
// SCAN of a large server takes seconds, in which a state can expire. Key leaves it out, and does not list it as kept
// for ever.
func TestKeyLeavesOutWhatHasExpiredSinceItsScan(t *testing.T) {
	client := startRedis(t)
	st, err := redisstore.New(client)
	require.NoError(t, err)
	for _, algorithm := range algorithms {
		h, ok := parseKey("rl:2:"+algorithm+":60000000:=api:{=user:42}", "rl", "user:42")
		require.True(t, ok, algorithm)
		require.ErrorIs(t, h.read(t.Context(), client, st, "user:42"), redis.Nil, algorithm)
	}
}

func TestKeyShowsCalendars(t *testing.T) {
	client := startRedis(t)
	st := newStore(t, client, "rl")
	charge(t, st, "fixed_window", "10000/month from 31 in America/Sao_Paulo", "plan", "user:42", 2500)
	charge(t, st, "fixed_window", "500/week from sunday in Europe/Berlin", "", "user:42", 20)
	charge(t, st, "fixed_window", "100/day in Asia/Kolkata", "days", "user:42", 7)
	of := func(context.Context, string) (ratelimit.Limit, error) {
		return ratelimit.ParseLimit("50/week in Asia/Tokyo")
	}
	l, err := ratelimit.NewFixedWindow(st, ratelimit.PerWeek(60), ratelimit.WithName("tenants"), ratelimit.WithLimitFunc(of))
	require.NoError(t, err)
	_, err = l.AllowN(t.Context(), "user:42", 6)
	require.NoError(t, err)
	got := command(t, nil, "key", "-store", client.Options().Addr, "user:42")
	require.Equal(t, `limiter algorithm limit spent whole again in expires in
days fixed_window 100/day in Asia/Kolkata 7 # #
plan fixed_window 10000/month from 31 in America/Sao_Paulo 2500 # #
(no name) fixed_window 500/week from sunday in Europe/Berlin 20 # #
tenants fixed_window 50/week 6 # #
`, columns(got.stdout))
}

// A limit function returns a limit for the key that differs from the limiter's.
func TestKeyShowsTheLimitThatTheKeyWasCountedUnder(t *testing.T) {
	client := startRedis(t)
	of := func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.PerDay(7), nil }
	l, err := ratelimit.NewSlidingWindow(newStore(t, client, "rl"), ratelimit.PerHour(1), ratelimit.WithName("api"), ratelimit.WithLimitFunc(of))
	require.NoError(t, err)
	_, err = l.AllowN(t.Context(), "user:42", 6)
	require.NoError(t, err)
	got := command(t, nil, "key", "-store", client.Options().Addr, "user:42")
	require.Contains(t, columns(got.stdout), "\napi sliding_window 7/d 6 # #\n")
}

func TestKeyShowsWhatItCannotRead(t *testing.T) {
	client := startRedis(t)
	address := client.Options().Addr
	charge(t, newStore(t, client, "rl"), "token_bucket", "10/h", "costs", "user:42", 5)
	for key, value := range map[string]string{
		"rl:2:token_bucket:1000000:=a:{=user:42}":   "text",
		"rl:2:fixed_window:1000000:=b:{=user:42}":   strings.Repeat("\xff", 40),
		"rl:2:sliding_log:1000000:=c:{=user:42}":    "text",
		"rl:2:sliding_window:1000:1,1:{=user:42}":   "",
		"rl:2:ban:1000000:=d:{=user:42}":            "text",
		"rl:2:in_flight:any:=e:{=user:42}":          "text",
		"rl:2:none:1000000:=a:{=user:42}":           "not ours",
		"rl:2:token_bucket:soon:=a:{=user:42}":      "not ours",
		"rl:2:token_bucket:1000000:1;1:{=user:42}":  "not ours",
		"rl:2:token_bucket:1000000:1,1x:{=user:42}": "not ours",
	} {
		require.NoError(t, client.Set(t.Context(), key, value, 0).Err())
	}
	got := command(t, nil, "key", "-store", address, "-reset", "user:42")
	require.Zero(t, got.code, got.stderr)
	text := columns(got.stdout)
	require.Equal(t, 1+7+6+1, strings.Count(text, "\n"), text)
	require.Contains(t, text, "\ncosts token_bucket 10/h 5 # #\n")
	require.Contains(t, text, "\na token_bucket ?/s ? ? never\n")
	require.Contains(t, text, "\nrl:2:token_bucket:1000000:=a:{=user:42}: the value is not a state\n")
	require.Contains(t, text, "\nreset in 7 limiters\n")
	require.EqualValues(t, 4, client.DBSize(t.Context()).Val())
}

func TestKeyFindsTheNodeOfACluster(t *testing.T) {
	client := startRedis(t, "--cluster-enabled", "yes")
	require.NoError(t, client.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(client.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	}, 20*time.Second, 10*time.Millisecond)
	address := client.Options().Addr
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
	defer cluster.Close()
	for _, url := range []string{address, "redis://" + address, "redis+cluster://" + address} {
		chargeAll(t, newStore(t, cluster, "rl"), "user:42")
		got := command(t, nil, "key", "-store", url, "-reset", "user:42")
		require.Equal(t, listed+"reset in 6 limiters\n", columns(got.stdout), got.stderr)
	}
}

// The URLs are the same as for ratelimit-serve. A URL with a mistake is refused, and no password is
// printed, not even from a URL in a file.
func TestKeyTakesURLs(t *testing.T) {
	client := startRedis(t, "--requirepass", "secret")
	address := client.Options().Addr
	client = redis.NewClient(&redis.Options{Addr: address, Password: "secret"})
	defer client.Close()
	chargeAll(t, newStore(t, client, "rl"), "user:42")
	host, port, _ := strings.Cut(address, ":")
	conf, file := filepath.Join(t.TempDir(), "sentinel.conf"), filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, "sentinel monitor m %s %s 1\nsentinel auth-pass m secret\n", host, port), 0o600))
	sentinel := startRedis(t, conf, "--sentinel").Options().Addr
	url := "redis://:secret@" + address + "/0"
	require.NoError(t, os.WriteFile(file, []byte(url+"\n"), 0o600))
	for _, args := range [][]string{{"-store", url}, {"-store-file", file}, {"-store", "redis://" + sentinel + "?master_name=m&password=secret"}} {
		require.Eventually(t, func() bool { // a Sentinel must find the server first
			got := command(t, nil, append(append([]string{"key"}, args...), "user:42")...)
			return got.code == 0 && columns(got.stdout) == listed
		}, 30*time.Second, 100*time.Millisecond, "%v", args)
	}
	for url, want := range map[string]string{
		"redis://:/secret@h": "no host", "redis://:?secret@h": "no host", "redis://:#secret@h:1": "a #", "redis://u:%secret@h": "cannot be parsed",
		"redis://:secret@h/x": "number of a database", "redis://:secret@h?x=y": "the parameter x", "redis:secret:1": "must begin with redis://", "memory:": "must begin with redis://",
	} {
		got := command(t, nil, "key", "-store", url, "user:42")
		require.Equal(t, 2, got.code, url)
		require.Contains(t, got.stderr, want, url)
		require.NotContains(t, got.stdout+got.stderr, "secret", url)
	}
	got := command(t, nil, "key", "-store", address, "-store-file", file, "user:42")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, "not both")
	require.Equal(t, 1, command(t, nil, "key", "-store-file", file+"x", "user:42").code)
}

func TestKeyFailsWithoutAServer(t *testing.T) {
	got := command(t, nil, "key", "-store", "127.0.0.1:1", "user:42")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "connection refused")
	client := startRedis(t)
	got = command(t, nil, "key", "-store", client.Options().Addr, "-prefix", "{", "user:42")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "brace")
}
