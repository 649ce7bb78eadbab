package config_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const whole = `# All that there is.
limiters:
  api:
    algorithm: sliding_window
    limit: 100/m
    tiers:
      free: 10/m
      "pro": 1000/m
      internal: unlimited
      banned: 0/m
  login:
    algorithm: fixed_window
    limits: [5/15m, 50/d]
  search:
    algorithm: token_bucket
    limit: 10/s burst 20
    on_failure: local
    instances: 4
    store:
      deny_cache: true
      coalescing: true
`

const wholeInJSON = `{
	"limiters": {
		"api": {
			"algorithm": "sliding_window",
			"limit": "100\/m",
			"tiers": {"free": "10/m", "pro": "1000/m", "internal": "unlimited", "banned": "0/m"}
		},
		"login": {"algorithm": "fixed_window", "limits": ["5/15m", "50/d"]},
		"search": {
			"algorithm": "token_bucket", "limit": "10/s burst 20",
			"on_failure": "local", "instances": 4, "store": {"deny_cache": true, "coalescing": true}
		}
	}
}`

// tierFunc takes what stands before the colon of a key for its tier.
func tierFunc(_ context.Context, key string) (string, error) {
	tier, _, _ := strings.Cut(key, ":")
	if tier == "nobody" {
		return "", errNobody
	}
	return tier, nil
}

var errNobody = errors.New("nobody knows")

func parse(t testing.TB, text string) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte(text))
	require.NoError(t, err)
	return c
}

// start is the time of all tests, at which windows begin.
func start() time.Time { return time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC) }

func memory(t testing.TB) store.Store {
	t.Helper()
	s, err := memstore.New(memstore.WithClock(start))
	require.NoError(t, err)
	return elsewhere{s}
}

// elsewhere is a store that is not known to be in memory.
type elsewhere struct{ store.Store }

func onRedis(t testing.TB) store.Store {
	t.Helper()
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(t.Context()).Err())
	s, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second), redisstore.WithClock(start))
	require.NoError(t, err)
	return s
}

// onEach runs a test on memory and on Redis, with clocks that stand still.
func onEach(t *testing.T, test func(t *testing.T, s store.Store)) {
	t.Helper()
	t.Run("in memory", func(t *testing.T) { test(t, memory(t)) })
	t.Run("on Redis", func(t *testing.T) { test(t, onRedis(t)) })
}

func build(t testing.TB, s store.Store, text string) *config.Limiters {
	t.Helper()
	ls, err := parse(t, text).Build(s, config.WithTierFunc(tierFunc))
	require.NoError(t, err)
	return ls
}

func limiter(t testing.TB, ls *config.Limiters, name string) ratelimit.Limiter {
	t.Helper()
	l, err := ls.Limiter(name)
	require.NoError(t, err)
	return l
}

func allow(t testing.TB, l ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := l.Allow(t.Context(), key)
	require.NoError(t, err)
	return r
}

// admitted is how many of some tries l admits at one instant.
func admitted(t testing.TB, l ratelimit.Limiter, key string, tries int) (n int) {
	t.Helper()
	for range tries {
		if allow(t, l, key).Allowed {
			n++
		}
	}
	return n
}

func policies(t testing.TB, l ratelimit.Limiter, key string) string {
	t.Helper()
	all, err := l.(ratelimit.PolicyAppender).AppendPolicies(t.Context(), nil, key)
	require.NoError(t, err)
	var texts []string
	for _, p := range all {
		texts = append(texts, p.Name+" "+p.Limit.String())
	}
	return strings.Join(texts, ", ")
}

func TestATextInYAMLOrInJSONMakesTheLimitersThatItNames(t *testing.T) {
	for name, text := range map[string]string{"YAML": whole, "JSON": wholeInJSON} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s store.Store) {
				ls := build(t, s, text)
				require.Equal(t, []string{"api", "login", "search"}, ls.Names())

				api := limiter(t, ls, "api")
				require.Equal(t, 10, admitted(t, api, "free:1", 12))
				require.Equal(t, 100, admitted(t, api, "whoever:1", 101), "a tier that is not listed")
				require.Zero(t, admitted(t, api, "banned:1", 1))
				require.Equal(t, ratelimit.SourceUnlimited, allow(t, api, "internal:1").Source())
				_, err := api.Allow(t.Context(), "nobody:1")
				require.ErrorIs(t, err, errNobody)
				require.Equal(t, "api 1000/m", policies(t, api, "pro:1"))

				login := limiter(t, ls, "login")
				require.Equal(t, 5, admitted(t, login, "1", 6))
				require.Equal(t, "login/15m 5/15m, login/d 50/d", policies(t, login, "1"))
				require.Len(t, allow(t, login, "2").Parts(), 2)

				search := limiter(t, ls, "search")
				require.Equal(t, 20, admitted(t, search, "1", 20))
				require.Equal(t, ratelimit.SourceStore, allow(t, search, "1").Source())
				require.Equal(t, ratelimit.SourceDenyCache, allow(t, search, "1").Source())
				require.Equal(t, "search 10/s burst 20", policies(t, search, "1"))
			})
		})
	}
}

func TestGoodTexts(t *testing.T) {
	const limiters = "limiters:\n a: {algorithm: fixed_window, "
	for name, text := range map[string]string{
		"a mark of UTF-8 at the beginning": "\ufeff" + limiters + "limit: 1/s}\n",
		"lines that end as on Windows":     "limiters:\r\n a:\r\n  algorithm: sliding_log\r\n  limit: 1/s\r\n",
		"marks around the document":        "---\n" + limiters + "limit: 1/s}\n...\n",
		"an unlimited limiter":             limiters + "limit: unlimited}\n",
		"a limit that denies all":          limiters + "limit: 0/s}\n",
		"one limit under limits":           limiters + "limits: [1/s]}\n",
		"limits one below the other":       "limiters:\n a:\n  algorithm: leaky_bucket\n  limits:\n  - 1/s burst 2\n  - 5 / 15 minutes\n",
		"sixteen limits":                   limiters + "limits: [1/1s, 1/2s, 1/3s, 1/4s, 1/5s, 1/6s, 1/7s, 1/8s, 1/9s, 1/10s, 1/11s, 1/12s, 1/13s, 1/14s, 1/15s, 1/16s]}\n",
		"fifteen limits and a ban":         limiters + "limits: [1/1s, 1/2s, 1/3s, 1/4s, 1/5s, 1/6s, 1/7s, 1/8s, 1/9s, 1/10s, 1/11s, 1/12s, 1/13s, 1/14s, 1/15s], ban: {denials: 3/m, for: 15m}}\n",
		"names like numbers and truths":    "limiters:\n 404: {algorithm: fixed_window, limit: 1/s, tiers: {1: 1/s, true: 2/s}}\n",
		"a name like a merge key":          "limiters:\n '<<': {algorithm: fixed_window, limit: 1/s}\n",
		"names in other scripts":           "limiters:\n 'größe 東京': {algorithm: fixed_window, limit: 1/s}\n",
		"all that is off by name":          limiters + "limit: 1/s, on_failure: error, store: {deny_cache: false, coalescing: False}}\n",
		"off beside several limits":        limiters + "limits: [1/s, 2/m], store: {deny_cache: false, coalescing: false}}\n",
		"fail open":                        limiters + "limit: 1/s, on_failure: open}\n",
		"fail closed":                      limiters + "limits: [1/s, 2/m], on_failure: closed}\n",
		"several limits with local shares": limiters + "limits: [1/s, 2/m], on_failure: local, instances: 3}\n",
		"a name of 256 bytes":              "limiters:\n " + strings.Repeat("n", 256) + ": {algorithm: fixed_window, limit: 1/s}\n",
		"a block text":                     "limiters:\n a:\n  algorithm: fixed_window\n  limit: >-\n   1/s\n",
	} {
		t.Run(name, func(t *testing.T) {
			ls := build(t, memory(t), text)
			for _, name := range ls.Names() {
				allow(t, limiter(t, ls, name), "key")
			}
			require.Len(t, ls.Names(), 1)
		})
	}
}

func TestBadTextsAreRefusedWithTheLineAndTheColumn(t *testing.T) {
	const a = "limiters:\n  a:\n    algorithm: fixed_window\n"
	const log = "limiters:\n  a:\n    algorithm: sliding_log\n"
	tests := []struct {
		name, text, err string
		is              error
	}{
		{name: "nothing", text: "", err: "1:1: the text is empty"},
		{name: "a comment", text: "# soon\n", err: "1:1: the text is empty"},
		{name: "a document without content", text: "---\n", err: "2:1: nothing: want a mapping with the field limiters"},
		{name: "a list", text: "\n- a\n", err: "2:1: a list of 1: want a mapping with the field limiters"},
		{name: "an unknown field at the top", text: "limit: 1/s\n", err: `1:1: unknown field "limit": want limiters`},
		{name: "no limiters", text: "limiters:\n", err: "1:10: limiters: nothing: want a limiter for each name"},
		{name: "empty limiters", text: "limiters: {}\n", err: "1:11: limiters: an empty mapping: want a limiter for each name"},
		{name: "two documents", text: a + "    limit: 1/s\n---\n" + a, err: "5:1: a second document begins, but a text must have only one"},
		{name: "a limiter twice", text: a + "    limit: 1/s\n  a:\n    algorithm: x\n", err: `5:3: limiters: "a" is already set in line 2`},
		{name: "a field twice", text: a + "    limit: 1/s\n    limit: 2/s\n", err: `5:5: limiter "a": "limit" is already set in line 4`},
		{name: "a tier twice", text: a + "    limit: 1/s\n    tiers: {x: 1/s, x: 2/s}\n", err: `5:21: limiter "a": tiers: "x" is already set in line 5`},
		{name: "a limiter of nothing", text: "limiters:\n  a:\n", err: `2:5: limiter "a": nothing: want a mapping with the fields algorithm and limit, or in_flight`},
		{name: "a limiter of text", text: "limiters:\n  a: 5/s\n", err: `2:6: limiter "a": "5/s": want a mapping with the fields algorithm and limit, or in_flight`},
		{name: "a limiter without a name", text: "limiters:\n  : {limit: 1/s}\n", err: "2:3: limiters: nothing: want a name"},
		{name: "a list for a name", text: "limiters:\n  [a]: {limit: 1/s}\n", err: "2:3: limiters: a list of 1: want a name"},
		{
			name: "an unknown field", text: a + "    limit: 1/s\n    burst: 5\n",
			err: `5:5: limiter "a": unknown field "burst": want algorithm, limit, limits, tiers, shares, reserved, in_flight, life, ban, store, on_failure, instances`,
		},
		{name: "no algorithm", text: "limiters:\n  a:\n    limit: 1/s\n", err: `2:3: limiter "a": no algorithm: add one, such as token_bucket`},
		{
			name: "an unknown algorithm", text: "limiters:\n  a:\n    algorithm: bucket\n    limit: 1/s\n", is: ratelimit.ErrInvalidOption,
			err: `3:16: limiter "a": algorithm: ` + ratelimit.ErrInvalidOption.Error() +
				`: unknown algorithm "bucket": want one of ` + strings.Join(ratelimit.PerSecond(1).Algorithms(), ", "),
		},
		{name: "an algorithm of the wrong type", text: "limiters:\n  a:\n    algorithm: [x]\n    limit: 1/s\n", err: `3:16: limiter "a": algorithm: a list of 1: want its name`},
		{name: "no limit", text: a, err: `2:3: limiter "a": no limit: add one, such as 100/m`},
		{name: "a limit of nothing", text: a + "    limit:\n", err: `4:11: limiter "a": limit: nothing: want a limit such as 100/m`},
		{name: "a number for a limit", text: a + "    limit: 100\n", err: `4:12: limiter "a": limit: "100": want a limit such as 100/m`},
		{
			name: "a limit with a wrong unit", text: a + "    limit: 100/x\n", is: ratelimit.ErrInvalidLimit,
			err: `4:12: limiter "a": limit: ratelimit: invalid limit: "100/x": unit "x" is unknown: want ms, s, m, h, d, week or month`,
		},
		{
			name: "a burst on a window", text: a + "    limit: 10/s burst 20\n", is: ratelimit.ErrInvalidLimit,
			err: `4:12: limiter "a": limit: ratelimit: invalid limit: 10/s burst 20: a fixed_window cannot have a burst`,
		},
		{
			name: "a bucket that never refills", text: "limiters:\n  a:\n    limit: 1/3650d burst 11\n    algorithm: token_bucket\n", is: ratelimit.ErrInvalidLimit,
			err: `3:12: limiter "a": limit: ratelimit: invalid limit: 1/3650d burst 11: the bucket would take more than 100 years to refill`,
		},
		{name: "limit and limits", text: a + "    limits: [1/s]\n    limit: 1/s\n", err: `5:5: limiter "a": limit and limits: use only one of them`},
		{name: "limits of text", text: a + "    limits: 1/s\n", err: `4:13: limiter "a": limits: "1/s": want a list of 1 to 16 limits`},
		{name: "no limits in the list", text: a + "    limits: []\n", err: `4:13: limiter "a": limits: a list of 0: want a list of 1 to 16 limits`},
		{name: "seventeen limits", text: a + "    limits: [" + strings.Repeat("1/s, ", 17) + "]\n", err: `4:13: limiter "a": limits: a list of 17: want a list of 1 to 16 limits`},
		{name: "sixteen limits and a ban", text: a + "    limits: [" + strings.Repeat("1/s, ", 16) + "]\n    ban: {denials: 3/10m, for: 15m}\n", err: `4:13: limiter "a": limits: a list of 16: want a list of 1 to 15 limits`},
		{name: "a bad limit in the list", text: a + "    limits:\n    - 1/s\n    - {}\n", err: `6:7: limiter "a": limits: an empty mapping: want a limit such as 100/m`},
		{name: "limits of one period", text: a + "    limits: [5/m, 60/60s]\n", err: `4:19: limiter "a": limits: "60/60s": another limit has the same period, so both would share one count`},
		{name: "tiers beside limits", text: a + "    limits: [1/s]\n    tiers: {x: 1/s}\n", err: `5:5: limiter "a": tiers: cannot be combined with limits: use limit`},
		{name: "tiers in a list", text: a + "    limit: 1/s\n    tiers: [x]\n", err: `5:12: limiter "a": tiers: a list of 1: want a limit for each tier`},
		{
			name: "a bad tier", text: a + "    limit: 1/s\n    tiers:\n      pro: 5/s burst 9\n", is: ratelimit.ErrInvalidLimit,
			err: `6:12: limiter "a": tier "pro": ratelimit: invalid limit: 5/s burst 9: a fixed_window cannot have a burst`,
		},
		{name: "an unknown policy", text: a + "    limit: 1/s\n    on_failure: ajar\n", err: `5:17: limiter "a": on_failure: "ajar": want open, closed, local or error`},
		{name: "a policy of the wrong type", text: a + "    limit: 1/s\n    on_failure: true\n", err: `5:17: limiter "a": on_failure: "true": want open, closed, local or error`},
		{name: "local without instances", text: a + "    limit: 1/s\n    on_failure: local\n", err: `5:17: limiter "a": on_failure: local: needs instances, the number of processes that share the store`},
		{name: "instances without local", text: a + "    limit: 1/s\n    instances: 4\n", err: `5:5: limiter "a": instances: needs on_failure: local`},
		{name: "no instances", text: a + "    limit: 1/s\n    on_failure: local\n    instances: 0\n", err: `6:16: limiter "a": instances: "0": want a number from 1 to 2147483647`},
		{name: "a number that YAML 1.1 reads as eight", text: "limiters:\n  a:\n    in_flight: 010\n", err: `3:16: limiter "a": in_flight: "010": want a number from 1 to 2147483647`},
		{name: "half an instance", text: a + "    limit: 1/s\n    on_failure: local\n    instances: 0.5\n", err: `6:16: limiter "a": instances: "0.5": want a number from 1 to 2147483647`},
		{
			name: "a share with too long a period", text: a + "    limit: 1/3650d\n    on_failure: local\n    instances: 2\n", is: ratelimit.ErrInvalidLimit,
			err: `6:16: limiter "a": instances: ratelimit: invalid limit: a share of 1/2 of 1/3650d needs a period of more than 10 years`,
		},
		{
			name: "a tier's share with too long a period", text: a + "    limit: 1/s\n    tiers: {x: 1/3650d}\n    on_failure: local\n    instances: 2\n", is: ratelimit.ErrInvalidLimit,
			err: `7:16: limiter "a": instances: ratelimit: invalid limit: a share of 1/2 of 1/3650d needs a period of more than 10 years`,
		},
		{name: "a word for a truth", text: a + "    limit: 1/s\n    store: {deny_cache: yes}\n", err: `5:25: limiter "a": store: deny_cache: "yes": want true or false`},
		{name: "a truth in quotes", text: a + "    limit: 1/s\n    store: {coalescing: 'true'}\n", err: `5:25: limiter "a": store: coalescing: "true": want true or false`},
		{name: "a store of text", text: a + "    limit: 1/s\n    store: redis\n", err: `5:12: limiter "a": store: "redis": want a mapping with deny_cache, coalescing or lease`},
		{name: "an empty store", text: a + "    limit: 1/s\n    store: {}\n", err: `5:12: limiter "a": store: an empty mapping: want a mapping with deny_cache, coalescing or lease`},
		{name: "an unknown field of a store", text: a + "    limit: 1/s\n    store: {burst: 5}\n", err: `5:13: limiter "a": store: unknown field "burst": want deny_cache, coalescing, lease`},
		{name: "a deny cache for several limits", text: a + "    limits: [1/s]\n    store: {deny_cache: true}\n", err: `5:13: limiter "a": store: deny_cache: cannot be combined with limits, because it only repeats denials by all of them: use limit`},
		{name: "a lease in which nothing happens for one of several limits", text: log + "    limits: [2000/m, 1000/s, 20000/h]\n    store: {lease: 50ms}\n", is: ratelimit.ErrInvalidOption, err: `5:20: limiter "a": store: lease: ratelimit: invalid option: a lease TTL of 50ms is too short for an event at 20000/h: use at least 180ms`},
		{name: "a lease and a deny cache", text: a + "    limit: 100/s\n    store: {deny_cache: true, lease: 50ms}\n", err: `5:31: limiter "a": store: lease: cannot be combined with deny_cache or coalescing, because a lease does both`},
		{name: "a lease without a unit", text: a + "    limit: 100/s\n    store: {lease: '50'}\n", err: `5:20: limiter "a": store: lease: "50": want the lifetime of a lease, such as 50ms`},
		{name: "a lease that is a number", text: a + "    limit: 100/s\n    store: {lease: 50}\n", err: `5:20: limiter "a": store: lease: "50": want the lifetime of a lease, such as 50ms`},
		{name: "a short lease", text: a + "    limit: 100/s\n    store: {lease: 1us}\n", is: ratelimit.ErrInvalidOption, err: `5:20: limiter "a": store: lease: ratelimit: invalid option: a lease TTL of 1µs, want 1ms to 1h0m0s`},
		{name: "a lease in which nothing happens", text: log + "    limit: 1000/m\n    store: {lease: 50ms}\n", is: ratelimit.ErrInvalidOption, err: `5:20: limiter "a": store: lease: ratelimit: invalid option: a lease TTL of 50ms is too short for an event at 1000/m: use at least 60ms`},
		{name: "a lease of few events, in tiers too", text: log + "    limit: 1000/m\n    tiers: {x: 0/m, y: unlimited, z: 1199/m}\n    store: {lease: 50ms}\n", is: ratelimit.ErrInvalidOption, err: `6:20: limiter "a": store: lease: ratelimit: invalid option: a lease TTL of 50ms is too short for an event at 1000/m: use at least 60ms`},
		{name: "a name with braces", text: "limiters:\n  '{a}': {algorithm: fixed_window, limit: 1/s}\n", is: ratelimit.ErrInvalidOption,
			err: `2:3: limiter "{a}": ` + ratelimit.ErrInvalidOption.Error() + `: want a name that is not empty and has no braces`},
		{name: "an empty name", text: "limiters:\n  '': {algorithm: fixed_window, limit: 1/s}\n", is: ratelimit.ErrInvalidOption,
			err: `2:3: limiter "": ` + ratelimit.ErrInvalidOption.Error() + `: want a name that is not empty and has no braces`},
		{name: "a name of 257 bytes", text: "limiters:\n " + strings.Repeat("n", 257) + ": {algorithm: fixed_window, limit: 1/s}\n",
			err: `2:2: limiter "` + strings.Repeat("n", 48) + `"...: the name has 257 bytes, more than 256`},
		{name: "an anchor", text: a + "    limit: &l 1/s\n", err: `4:12: anchor "&l": anchors are not supported`},
		{name: "a tag", text: a + "    limit: !!str 1/s\n", err: `4:12: tag "!!str": tags are not supported`},
		{name: "a directive about tags", text: "%YAML 1.1\n%TAG !a! x\n---\n" + a, err: "2:1: directive %TAG: tags are not supported"},
		{name: "a merge key", text: a + "    <<: {limit: 1/s}\n    limit: 1/s\n", err: `4:5: limiter "a": "<<": merge keys are not supported`},
		{name: "a merge key among names", text: "limiters:\n  <<: {algorithm: fixed_window, limit: 1/s}\n", err: `2:3: limiters: "<<": merge keys are not supported`},
		{name: "an alias of nothing", text: a + "    limit: *l\n", err: "4:12: unknown anchor 'l' referenced"},
		{name: "a colon too many", text: a + "    limit: 1/s: 2\n", err: "4:15: mapping values are not allowed in this context"},
		{name: "a tab", text: a + "\tlimit: 1/s\n", err: "4:1: a tab: indent YAML with spaces"},
		{name: "a tab before the first field", text: "limiters:\n  ä:\n\talgorithm: fixed_window\n", err: "3:1: a tab: indent YAML with spaces"},
		{name: "a tab after spaces", text: "\ufefflimiters:\r\n  \ta:\r\n", err: "2:3: a tab: indent YAML with spaces"},
		{name: "a tab after a dash", text: a + "    limits:\n    -\t- 1/s\n", err: "5:6: a tab: indent YAML with spaces"},
		{name: "a character that begins nothing", text: a + "    limit: @1/s\n", err: "4:12: while scanning for the next token: found character that cannot start any token"},
		{name: "an open list", text: a + "    limits: [1/s,\n", err: "5:1: while parsing a flow node: did not find expected node content"},
		{name: "a wrong second document", text: a + "    limit: 1/s\n---\n]\n", err: "6:1: while parsing a block node: did not find expected node content"},
		{name: "a zero byte", text: "limiters:\n  ä: \x00\n", err: "2:6: character U+0000 is not allowed"},
		{name: "a control character after a mark of UTF-8", text: "\ufeffa: \x01\n", err: "1:4: character U+0001 is not allowed"},
		{name: "other than UTF-8", text: "limiters:\n  \xe4: 1\n", err: "2:3: byte 0xe4 is not UTF-8"},
		{name: "UTF-16", text: "\xff\xfel\x00", err: "1:1: byte 0xff is not UTF-8"},
		{name: "deep nesting", text: "limiters: " + strings.Repeat("[", 100), err: "1:27: while increasing flow level: exceeded max depth of 16"},
		{name: "JSON with a comma too few", text: "{\n  \"limiters\": {}\n  \"x\": 1\n}", err: "3:3: while parsing a flow mapping: did not find expected ',' or '}'"},
		{name: "JSON with a wrong limit", text: "{\"limiters\": {\n\t\"a\": {\"algorithm\": \"fixed_window\",\n\t\t\"limit\": 5}}}",
			err: `3:12: limiter "a": limit: "5": want a limit such as 100/m`},
		{name: "a long text", text: "limiters: " + strings.Repeat("x", 200), err: `1:11: limiters: "` + strings.Repeat("x", 48) + `"...: want a limiter for each name`},
		{name: "over 1 MiB", text: strings.Repeat("#", 1<<20) + "\n", err: "1:1: the text has 1048577 bytes, more than 1048576"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := config.Parse([]byte(tt.text))
			require.Nil(t, c)
			require.EqualError(t, err, "config: "+tt.err)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			var at *config.Error
			require.ErrorAs(t, err, &at)
			require.True(t, strings.HasPrefix(tt.err, fmt.Sprintf("%d:%d: ", at.Line, at.Column)))
		})
	}
}

func TestAllErrorsAreToldAtOnceInTheOrderOfTheText(t *testing.T) {
	_, err := config.Parse([]byte(`limiters:
  a:
    limit: 5/x
    algorithm: nothing
  b: {}
  c:
    algorithm: fixed_window
    colour: red
    limits: [1/s, 1/, 3/s]
`))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	var places []string
	for line := range strings.Lines(err.Error()) {
		_, line, _ = strings.Cut(line, "config: ")
		place, _, _ := strings.Cut(line, ": ")
		places = append(places, place)
	}
	require.Equal(t, []string{"3:12", "4:16", "5:6", "8:5", "9:19", "9:23"}, places)
}

func TestOfManyErrorsTheFirstTwentyAreTold(t *testing.T) {
	_, err := config.Parse([]byte("limiters:\n" + strings.Repeat("  a: 1\n", 1000)))
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, 21)
	require.Equal(t, `config: 22:3: 980 more errors follow, the first of them: limiters: "a" is already set in line 2`, lines[20])
}

func TestATextOfAliasesThatWouldGrowIsRefusedAtItsFirstAnchor(t *testing.T) {
	text := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for name := 'b'; name < 'k'; name++ {
		alias := fmt.Sprintf("*%c, ", name-1)
		text += fmt.Sprintf("%c: &%c [%s]\n", name, name, strings.Repeat(alias, 9))
	}
	_, err := config.Parse([]byte(text))
	require.ErrorContains(t, err, "config: 1:4: anchor \"&a\": anchors are not supported\n")
	require.ErrorContains(t, err, "config: 2:8: alias \"*a\": aliases are not supported\n")
}

// crowds are texts of 1 MiB that took the library up to 7 s and 1.9 GiB.
var crowds = map[string]string{
	"names of nothing":    "{" + strings.Repeat(":,", 1<<19-1) + "}",
	"pairs in a list":     "[" + strings.Repeat(":,", 1<<19-1) + "]",
	"names":               "{" + strings.Repeat("a,", 1<<19-1) + "}",
	"lists":               "[" + strings.Repeat("[],", 1<<18) + "]",
	"quoted names":        "[" + strings.Repeat(`"a":b,`, 1<<17) + "]",
	"numbers that fail":   "[" + strings.Repeat("1_,", 1<<18) + "]",
	"aliases":             "[&a a," + strings.Repeat("*a,", 1<<18) + "]",
	"directives":          strings.Repeat("%TAG !a! x\n", 1<<16) + "---\na\n",
	"comments":            strings.Repeat("- #\n", 1<<18),
	"names in lines":      strings.Repeat(":\n", 1<<19),
	"items in lines":      strings.Repeat("-\n", 1<<19),
	"what is good so far": "limiters: {" + strings.Repeat("a: {algorithm: fixed_window, limit: 1/s},", 1<<14) + "}",
}

func TestATextOfMoreSignsThanAnybodyWritesIsRefusedUnread(t *testing.T) {
	for name, text := range crowds {
		text := []byte(text)
		require.LessOrEqual(t, len(text), 1<<20)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := config.Parse(text)
		runtime.ReadMemStats(&after)
		require.ErrorContains(t, err, "config: 1:1: the text has ", name)
		require.ErrorContains(t, err, " of the characters ,:-?[{#%&*!, more than 65536", name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), name)
	}
}

func TestATextOfManyLimitersIsRead(t *testing.T) {
	var text strings.Builder
	text.WriteString("limiters:\n")
	for i := range 8000 {
		fmt.Fprintf(&text, "  limiter_%d:\n    algorithm: fixed_window\n    limit: 10/s\n    store:\n      deny_cache: true\n    tiers: {free: 1/s}\n", i)
	}
	require.Len(t, build(t, memory(t), text.String()).Names(), 8000)
}

func TestAStoreBlockIsRefusedInMemoryWhereItHasNoEffect(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	for _, block := range []string{"deny_cache: true", "coalescing: true", "lease: 1s"} {
		_, err := parse(t, one("algorithm: fixed_window, limit: 10/s, store: {"+block+"}")).Build(mem)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.EqualError(t, err, `config: 1:12: limiter "a": ratelimit: invalid option: store: it has no effect, because the store is in memory: remove it`)
	}
	off, err := parse(t, one("algorithm: fixed_window, limit: 10/s, store: {deny_cache: false}")).Build(mem)
	require.NoError(t, err)
	require.ErrorContains(t, off.Update(parse(t, one("algorithm: fixed_window, limit: 10/s, store: {deny_cache: true}"))), "it has no effect")
}

// A deny cache stays while texts come and go.
func TestADenyCacheRemembersAcrossUpdates(t *testing.T) {
	text := one("algorithm: fixed_window, limit: 1/d, store: {deny_cache: true}")
	ls := build(t, memory(t), text)
	l := limiter(t, ls, "a")
	for range 2 {
		allow(t, l, "key")
	}
	require.Equal(t, ratelimit.SourceDenyCache, allow(t, l, "key").Source())
	update(t, ls, one("algorithm: fixed_window, limit: 1/d, store: {deny_cache: true}, on_failure: open"))
	require.Equal(t, ratelimit.SourceDenyCache, allow(t, l, "key").Source())
	update(t, ls, one("algorithm: fixed_window, limit: 1/d"))
	require.Equal(t, ratelimit.SourceStore, allow(t, l, "key").Source())
	update(t, ls, text)
	require.Equal(t, ratelimit.SourceDenyCache, allow(t, l, "key").Source())
	update(t, ls, one("algorithm: fixed_window, limit: 2/d, store: {deny_cache: true}"))
	require.True(t, allow(t, l, "key").Allowed, "another limit")
}

func TestBuildRefusesWhatItCannotUse(t *testing.T) {
	good, mem := parse(t, whole), memory(t)
	build := func(c *config.Config, s store.Store, opts ...config.Option) string {
		ls, err := c.Build(s, opts...)
		require.Nil(t, ls)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		return err.Error()
	}
	require.Contains(t, build(good, nil, config.WithTierFunc(tierFunc)), "the store is nil")
	require.Contains(t, build(good, (*memstore.Store)(nil), config.WithTierFunc(tierFunc)), "the store is nil")
	require.Contains(t, build(good, mem, nil), "an Option is nil")
	require.Contains(t, build(good, mem, config.WithTierFunc(nil)), "WithTierFunc(nil)")
	require.Contains(t, build(new(config.Config), mem), "was not made by its constructor")
	require.Contains(t, build(nil, mem), "was not made by its constructor")
	require.Equal(t, `config: 3:3: limiter "api": `+ratelimit.ErrInvalidOption.Error()+`: it has tiers: pass WithTierFunc to Build`, build(good, mem))
}

func TestTheLimitersOfNoBuildAnswerErrors(t *testing.T) {
	for _, ls := range []*config.Limiters{nil, new(config.Limiters)} {
		_, err := ls.Limiter("api")
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorIs(t, ls.Update(parse(t, whole)), ratelimit.ErrInvalidOption)
		require.Empty(t, ls.Names())
	}
	_, err := build(t, memory(t), whole).Limiter("apo")
	require.EqualError(t, err, ratelimit.ErrInvalidOption.Error()+`: the configuration has no limiter "apo"`)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

func TestLimitersOfAConfigurationRefuseBadInputAsAllLimitersDo(t *testing.T) {
	ls := build(t, memory(t), whole)
	for _, name := range ls.Names() {
		l := limiter(t, ls, name)
		_, err := l.AllowN(t.Context(), "key", 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
		_, err = l.Peek(t.Context(), "")
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
		require.ErrorIs(t, l.Refund(t.Context(), "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidN)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Reset(ctx, "key"), context.Canceled)
	}
}

func TestADecisionOfAConfiguredLimiterInMemoryAllocatesNothing(t *testing.T) {
	l := limiter(t, build(t, memory(t), "limiters: {a: {algorithm: token_bucket, limit: 1000000/s, tiers: {x: 2000000/s}}}"), "a")
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = l.Allow(ctx, "x:1") }))
}

func TestTheRootAndMemstoreDoNotLinkTheYAMLLibraryAndThisPackageLinksNoMore(t *testing.T) {
	deps := func(packages ...string) string {
		args := append([]string{"list", "-deps", "-f", "{{if not .Standard}}{{with .Module}}{{.Path}}{{end}}{{end}}"}, packages...)
		out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.NotContains(t, deps("..", "../store/memstore"), "yaml")
	for path := range strings.FieldsSeq(deps(".")) {
		require.Contains(t, []string{"github.com/ratelimit-go/ratelimit", "github.com/sony/gobreaker/v2", "go.yaml.in/yaml/v4"}, path)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		whole, wholeInJSON, "", "limiters: {a: {algorithm: leaky_bucket, limits: [1/s burst 3, 2/m]}}",
		"limiters:\n a: &x\n  algorithm: sliding_log\n  limit: 1/3650d\n  on_failure: local\n  instances: 1\n b: *x\n", "---\n...\n---\n", "? [x]\n: !!str y\n",
	} {
		f.Add([]byte(text))
	}
	s, err := memstore.New()
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := config.Parse(text)
		if err != nil {
			require.Nil(t, c)
			var at *config.Error
			require.ErrorAs(t, err, &at)
			require.Positive(t, at.Column)
			require.LessOrEqual(t, at.Line, 2+strings.Count(string(text), "\n")+strings.Count(string(text), "\r")+
				strings.Count(string(text), "\u0085")+strings.Count(string(text), "\u2028")+strings.Count(string(text), "\u2029"))
			return
		}
		ls := build(t, elsewhere{s}, string(text))
		require.NoError(t, ls.Update(c))
		for _, name := range ls.Names() {
			allow(t, limiter(t, ls, name), "key")
		}
	})
}
