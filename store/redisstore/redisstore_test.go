package redisstore_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"os"
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

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// counter admits while no more than Burst events were charged within Period of the last.
// It answers what it was given. Do not copy it as a rate limiter.
var counter = &store.Rule{Name: "counter", Script: redisstore.ScriptOf(`
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
local n = tonumber(ARGV[5])
if string.sub(ARGV[1], 1, 6) == 'refund' then
	redis.call('DECRBY', KEYS[1], ARGV[5])
	return {0, 0, 0, 0}
end
local ok = used + n <= tonumber(ARGV[4])
if ok and ARGV[1] == 'take' then
	redis.call('INCRBY', KEYS[1], ARGV[5])
	redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(tonumber(ARGV[3]) / 1000)))
end
return {ok and 1 or 0, used, tonumber(ARGV[6]) or 0, tonumber(ARGV[2])}
`)}

var (
	space = store.NewNamespace(counter, "test")
	limit = store.Limit{Rate: 7, Period: 60_000_000, Burst: 1 << 30}
)

// rule is a rule of which only the script matters: see [redisstore.ScriptOf].
func rule(lua string) *store.Namespace {
	return store.NewNamespace(&store.Rule{Name: "script", Script: redisstore.ScriptOf(lua)}, "test")
}

func newStore(t testing.TB, client redisstore.Client, opts ...redisstore.Option) *redisstore.Store {
	t.Helper()
	// A test machine under load must not look like a slow server.
	opts = append([]redisstore.Option{redisstore.WithPrefix(redistest.Prefix(t)), redisstore.WithTimeout(20 * time.Second)}, opts...)
	s, err := redisstore.New(client, opts...)
	require.NoError(t, err)
	return s
}

// used is how many events key has been charged in the namespace.
func used(t testing.TB, s store.Store, key string) int64 {
	t.Helper()
	r, err := store.Peek(t.Context(), s, space, key, limit, 1)
	require.NoError(t, err)
	return r.X
}

var algorithms = ratelimit.PerSecond(1).Algorithms()

// spy learns the namespace of a limiter.
type spy struct {
	store.Store
	space *store.Namespace
}

func (*spy) Prepare(*store.Rule, store.Limit, bool) error { return nil }

func (s *spy) Take(_ context.Context, ns *store.Namespace, _ string, _ store.Limit, _ int64) (store.Reply, error) {
	s.space = ns
	return store.Reply{}, store.ErrStore
}

func spaceOf(t testing.TB, algorithm string) *store.Namespace {
	t.Helper()
	s := new(spy)
	lim, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(1))
	require.NoError(t, err)
	_, err = lim.Allow(t.Context(), "k")
	require.ErrorIs(t, err, store.ErrStore)
	return s.space
}

// minute is n events a minute, as a store.Limit.
func minute(n int64) store.Limit { return store.Limit{Rate: n, Period: 60_000_000, Burst: n} }

// hour is n events an hour: a state of one does not expire while a busy server pauses.
func hour(n int64) store.Limit { return store.Limit{Rate: n, Period: 3_600_000_000, Burst: n} }

// year is n events a year: none comes back while a test runs.
func year(n int64) store.Limit {
	return store.Limit{Rate: n, Period: 365 * 24 * 3600 * 1_000_000, Burst: n}
}

// servers returns the servers on which scripts must do the same.
func servers(t *testing.T) map[string]*redis.Client {
	return map[string]*redis.Client{"redis": redistest.Shared(t).Client(t), "miniredis": redistest.Mini(t).Client(t)}
}

// charged is how many events key has been charged, as the server sees it.
func charged(t *testing.T, server *redistest.Server, ns *store.Namespace, key string) int64 {
	t.Helper()
	return missing(t, newStore(t, server.Client(t)), ns, key, year(100))
}

// missing is how many tokens are missing, or not whole yet.
func missing(t *testing.T, s *redisstore.Store, ns *store.Namespace, key string, l store.Limit) int64 {
	t.Helper()
	r, err := store.Peek(t.Context(), s, ns, key, l, 1)
	require.NoError(t, err)
	if r.Z > 0 {
		return r.Y + 1
	}
	return r.Y
}

func TestScriptGetsWhatTheContractSays(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	at := time.Date(2026, 3, 4, 5, 6, 7, 890_123_999, time.UTC)
	server := newStore(t, client)
	caller := newStore(t, client, redisstore.WithClock(func() time.Time { return at }))
	ctx := t.Context()

	r, err := server.Take(ctx, space, "k", limit, 3)
	require.NoError(t, err)
	require.Equal(t, store.Reply{Outcome: store.Admitted, X: 0, Y: 0, Z: 7}, r)

	r, err = store.Peek(ctx, caller, space, "k", limit, 3)
	require.NoError(t, err)
	require.Equal(t, store.Reply{Outcome: store.Admitted, X: 3, Y: at.UnixMicro(), Z: 7}, r)

	r, err = server.Take(ctx, space, "k", store.Limit{Rate: 7, Period: 1000, Burst: 5}, 3)
	require.NoError(t, err)
	require.Equal(t, store.Reply{Outcome: store.Denied, X: 3, Y: 0, Z: 7}, r)

	require.NoError(t, server.Refund(ctx, space, "k", limit, store.Receipt{At: 1, Due: 2, N: 2}))
	require.EqualValues(t, 1, used(t, server, "k"))
	require.NoError(t, server.Reset(ctx, space, "k"))
	require.EqualValues(t, 0, used(t, server, "k"))
	require.NoError(t, server.Reset(ctx, space, "never seen"))

	// Every argument in its place.
	echo := func(arg int) store.Reply {
		ns := rule("return {1, tonumber(ARGV[" + string(rune('0'+arg)) + "]), #ARGV, #KEYS}")
		r, err := caller.Take(ctx, ns, "k", store.Limit{Rate: 31, Period: 41, Burst: 51}, 61)
		require.NoError(t, err)
		return r
	}
	for arg, want := range map[int]int64{2: 31, 3: 41, 4: 51, 5: 61, 6: at.UnixMicro()} {
		require.Equal(t, store.Reply{Outcome: store.Admitted, X: want, Y: 6, Z: 1}, echo(arg))
	}
	for s, want := range map[*redisstore.Store]string{server: "", caller: fmt.Sprint(" ", at.UnixMicro())} {
		ns := rule(`if table.concat(ARGV, ' ') ~= 'refund 71 81 91 101 1 31 41 51 61` + want + `' then return {2, 0, 0, 0} end return {1, 0, 0, 0}`)
		require.NoError(t, s.Refund(ctx, ns, "k", store.Limit{Rate: 31, Period: 41, Burst: 51}, store.Receipt{N: 61, At: 71, Due: 81, Rate: 91, Period: 101, Overdrawn: true}))
	}
}

func TestKeyLayout(t *testing.T) {
	m := redistest.Mini(t)
	s, err := redisstore.New(m.Client(t), redisstore.WithTimeout(5*time.Second))
	require.NoError(t, err)
	long := strings.Repeat("x", 128)
	for key, want := range map[string]string{
		"user:1":      "rl:2:counter:test:{=user:1}",
		"a b\x00\xff": "rl:2:counter:test:{=a b\x00\xff}",
		long:          "rl:2:counter:test:{=" + long + "}",
		long + "x":    "rl:2:counter:test:{#" + hexSHA256(long+"x") + "}",
		"{":           "rl:2:counter:test:{#021fb596db81e6d02bf3d2586ee3981fe519f275c0ac9ca76bbcf2ebb4097d96}",
		"a}b":         "rl:2:counter:test:{#" + hexSHA256("a}b") + "}",
	} {
		m.FlushAll()
		_, err := s.Take(t.Context(), space, key, limit, 1)
		require.NoError(t, err)
		require.Equal(t, []string{want}, m.Keys())
	}
}

func hexSHA256(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

func TestKeysAreEqualIfAndOnlyIfTheirBytesAre(t *testing.T) {
	s := newStore(t, redistest.Shared(t).Client(t))
	long := strings.Repeat("y", 129)
	keys := []string{
		"a", "A", "a ", "a\x00", "\x00", "\xff", "é", "e\u0301", ":", "a:b", "=a", "#a", "{a}", "{=a}", "}a{", "{", "}", "{}",
		"021fb596db81e6d02bf3d2586ee3981fe519f275c0ac9ca76bbcf2ebb4097d96",
		"{#021fb596db81e6d02bf3d2586ee3981fe519f275c0ac9ca76bbcf2ebb4097d96}",
		long, long + "y", long[:128], long + "\x00", strings.Repeat("{", 64<<10),
	}
	for round := range int64(2) {
		for _, key := range keys {
			r, err := s.Take(t.Context(), space, key, limit, 1)
			require.NoError(t, err)
			require.Equal(t, round, r.X, "%.40q", key)
		}
	}
	// So are the other parts of the Redis key.
	other := newStore(t, redistest.Shared(t).Client(t), redisstore.WithPrefix(redistest.Prefix(t)+"2"))
	require.EqualValues(t, 0, used(t, other, "a"))
	r, err := store.Peek(t.Context(), s, store.NewNamespace(counter, "test2"), "a", limit, 1)
	require.NoError(t, err)
	require.EqualValues(t, 0, r.X)
}

func TestOptionsAreChecked(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for name, opt := range map[string]redisstore.Option{
		"open brace":  redisstore.WithPrefix("a{b"),
		"close brace": redisstore.WithPrefix("}"),
		"no timeout":  redisstore.WithTimeout(0),
		"negative":    redisstore.WithTimeout(-time.Second),
		"no end":      redisstore.WithTimeout(math.MaxInt64),
		"no clock":    redisstore.WithClock(nil),
		"no option":   nil,
	} {
		s, err := redisstore.New(client, opt)
		require.ErrorIs(t, err, store.ErrInvalidOption, name)
		require.Nil(t, s)
	}
	for _, nothing := range []redisstore.Client{
		nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil), (*redis.AutoPipeliner)(nil),
		redis.UniversalClient(nil), redis.UniversalClient((*redis.Client)(nil)),
	} {
		_, err := redisstore.New(nothing)
		require.ErrorIs(t, err, store.ErrInvalidOption, "%T", nothing)
	}
	_, err := redisstore.New(client) // no server listens there: New does no I/O
	require.NoError(t, err)
}

// The client reads nil as 0, and a text of digits as a number.
func TestRepliesThatAreNotFourIntegers(t *testing.T) {
	s := newStore(t, redistest.Shared(t).Client(t))
	unreadable := []string{
		`return 1`, `return 'OK'`, `return redis.status_reply('OK')`, `return {1, 'two', 3, 4}`, `return {1, {2}, 3, 4}`,
	}
	for _, script := range append(unreadable,
		`return nil`, `return false`,
		`return {}`, `return {1, 2, 3}`, `return {1, 2, 3, 4, 5}`,
		`return {1, 2, redis.error_reply('ERR inner'), 4}`,
		`return {2, 0, 0, 0}`, `return {-1, 0, 0, 0}`, `return {1.9, 0, 0}`,
		`return redis.error_reply('ERR planted')`, `error('planted')`, `return {1, 2`, ``,
	) {
		r, err := s.Take(t.Context(), rule(script), "secret", limit, 1)
		require.ErrorIs(t, err, store.ErrStore, script)
		require.Equal(t, slices.Contains(unreadable, script), strings.Contains(err.Error(), "the reply cannot be parsed"), err)
		require.Zero(t, r, script)
		require.NotContains(t, err.Error(), "secret")
		require.EqualValues(t, 0, used(t, s, "after "+script), "the connection is still in step")
	}
	_, err := s.Take(t.Context(), rule(`return redis.error_reply('ERR planted')`), "secret", limit, 1)
	require.EqualError(t, err, "ratelimit: store failed: ERR planted")
	var answer redis.Error
	require.ErrorAs(t, err, &answer)
}

func TestRepliesOfABatchThatAreNone(t *testing.T) {
	s := newStore(t, redistest.Shared(t).Client(t))
	for _, script := range []string{
		`return 1`, `return 'OK'`, `return {}`, `return {1, 2, 3, 4, 5, 6, 7}`, `return {1, 2, 3, 4, 5, 6, 7, 8, 9}`,
		`return {1, 'two', 3, 4, 5, 6, 7, 8}`, `return {1, 2, 3, 4, 5, {6}, 7, 8}`,
	} {
		b := s.Batch(store.NewNamespace(&store.Rule{Name: "none", Script: func([]*store.Rule) string { return script }}, "none"))
		b.Take("secret", limit, 1)
		b.Take("another", limit, 1)
		_, errs, again := b.Make()
		for i, err := range errs {
			require.ErrorIs(t, err, store.ErrTimeout, script)
			require.ErrorContains(t, err, "the reply cannot be parsed", script)
			require.False(t, again[i], "it may have run")
		}
	}
}

func TestStoredValueOfTheWrongType(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	s := newStore(t, client)
	ctx := context.Background()
	require.NoError(t, client.LPush(ctx, redistest.Prefix(t)+":2:counter:test:{=k}", "x").Err())
	_, err := s.Take(ctx, space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrStore)
	require.ErrorContains(t, err, "WRONGTYPE")
	_, err = store.Peek(ctx, s, space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrStore)
	require.ErrorIs(t, s.Refund(ctx, space, "k", limit, store.Receipt{N: 1}), store.ErrStore)
	require.NoError(t, s.Reset(ctx, space, "k"))
	require.EqualValues(t, 0, used(t, s, "k"))
}

func TestDoneContextSendsNothing(t *testing.T) {
	m := redistest.Mini(t)
	s := newStore(t, m.Client(t))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Take(ctx, space, "k", limit, 1)
	require.Equal(t, context.Canceled, err)
	past, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer cancel()
	for range 3 { // the first looks whether the way has become shorter, and the others are too short for it
		_, err = store.Peek(past, s, space, "k", limit, 1)
		require.Equal(t, context.DeadlineExceeded, err)
	}
	require.Equal(t, context.Canceled, s.Refund(ctx, space, "k", limit, store.Receipt{N: 1}))
	require.Equal(t, context.Canceled, s.Reset(ctx, space, "k"))
	require.Zero(t, m.CommandCount())
}

func TestPipelinerRunsNothing(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	s := newStore(t, client.Pipeline())
	_, err := s.Take(t.Context(), space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrStore)
	require.EqualValues(t, 0, used(t, newStore(t, client), "k"))
}

func TestAClockThatLuaCannotCountIsAnError(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	for _, at := range []time.Time{{}, time.Date(2201, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1739, 1, 1, 0, 0, 0, 0, time.UTC)} {
		s := newStore(t, client, redisstore.WithClock(func() time.Time { return at }))
		_, err := s.Take(t.Context(), space, "k", limit, 1)
		require.ErrorContains(t, err, "ratelimit: store failed: the clock reads")
		require.NotErrorIs(t, err, store.ErrUnavailable)
		require.ErrorContains(t, s.Refund(t.Context(), space, "k", limit, store.Receipt{N: 1}), "ratelimit: store failed: the clock reads")
	}
}

// FuzzRedisKey checks that equal bytes, and only they, have equal keys. The hash tag is
// between the first pair of braces, and depends on the user's key alone.
func FuzzRedisKey(f *testing.F) {
	long := strings.Repeat("k", 129)
	f.Add("a", "b", "a:b", "c")
	f.Add("1000:=n", "1000:=n", "{x}", "#"+hexSHA256("{x}"))
	f.Add("1000:=n:{=a", "1000:=n", "a}", "a")
	f.Add("n", "n", long, "="+long)
	f.Add("", "", "}{", "\xff\x00")
	s, err := redisstore.New(redis.NewClient(&redis.Options{})) // which is never used
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, name1, name2, key1, key2 string) {
		if strings.ContainsAny(name1+name2, "{}") {
			t.Skip("the root package refuses such names")
		}
		one := store.NewNamespace(&store.Rule{Name: "rule"}, name1)
		two := store.NewNamespace(&store.Rule{Name: "rule"}, name2)
		require.Equal(t, name1 == name2 && key1 == key2, s.RedisKey(one, key1) == s.RedisKey(two, key2))
		require.Equal(t, tag(s.RedisKey(one, key1)), tag(s.RedisKey(two, key1)))
		require.Equal(t, key1 == key2, tag(s.RedisKey(one, key1)) == tag(s.RedisKey(one, key2)))
	})
}

// tag is the part of key that Redis Cluster hashes.
func tag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	inner, _, _ := strings.Cut(rest, "}")
	return inner
}

func TestAStoreThatNewHasNotMadeAnswersErrors(t *testing.T) {
	s, ctx := new(redisstore.Store), t.Context()
	ask := func(n string, err error) {
		require.ErrorIs(t, err, store.ErrStore, n)
		require.ErrorContains(t, err, "not made by New", n)
	}
	_, err := s.Take(ctx, space, "k", limit, 1)
	ask("Take", err)
	_, err = store.TakeUpTo(ctx, s, space, "k", limit, 1)
	ask("TakeUpTo", err)
	_, err = store.Overdraw(ctx, s, space, "k", limit, 1, 1)
	ask("Force", err)
	_, err = store.Peek(ctx, s, space, "k", limit, 1)
	ask("Peek", err)
	ask("Refund", s.Refund(ctx, space, "k", limit, store.Receipt{N: 1}))
	ask("Reset", s.Reset(ctx, space, "k"))
	ask("TakeAll", s.Decide(ctx, []store.Request{{Namespace: space, Key: "k", Limit: limit, N: 1}}, make([]store.Reply, 1)))
	ask("TakeAll of none", s.Decide(ctx, nil, nil))
	ask("Ready", s.Ready(ctx))
	for _, held := range []bool{false, true} {
		err = s.Prepare(&store.Rule{Name: "rule", Held: held}, limit, true)
		require.ErrorIs(t, err, store.ErrInvalidOption, "a limiter that can never work")
		require.ErrorContains(t, err, "not made by New")
	}
	require.True(t, s.Together("a", "a"))
	require.False(t, s.Together("a", "b"))
}

// A pause of 100 ms is shorter than the default timeout: a server that forks, or a process
// whose goroutines wait for a processor, costs no call.
func TestAShortPauseOfTheServerCostsNoCall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	require.NoError(t, s.Ready(t.Context()))
	served := func() bool {
		require.NoError(t, client.Do(t.Context(), "client", "pause", 100, "all").Err())
		_, err := s.Take(context.Background(), space, "k", limit, 1)
		return err == nil
	}
	require.Eventually(t, served, 10*time.Second, time.Millisecond) // a busy machine may pause too
}

// The nearer of the store's timeout and the caller's deadline ends a call. A fallback counts
// only the store's as a failure, so a late deadline does not put that off.
func TestTheNearerOfTimeoutAndDeadlineEndsACall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, err := redisstore.New(server.Client(t))
	require.NoError(t, err)
	require.NoError(t, s.Ready(t.Context()))
	server.Freeze()
	defer server.Thaw()
	take := func(deadline time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		_, err := s.Take(ctx, space, "k", limit, 1)
		return err
	}
	require.ErrorIs(t, take(time.Hour), store.ErrTimeout)
	require.Equal(t, context.DeadlineExceeded, take(20*time.Millisecond))
}
