package serve_test

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// spend is what Envoy does with a budget that is charged once a stream is done, of 10 tokens: it looks, and charges
// the cost of 7 if that admits. It returns how many streams were admitted.
func spend(t *testing.T, s *serve.Service) (admitted int) {
	t.Helper()
	for range 6 {
		if code(ask(t, s, "user=ann 0").GetOverallCode()) == "OK" {
			admitted++
			ask(t, s, "user=ann 7")
		}
	}
	return admitted
}

// A budget that is charged afterwards ends: by each algorithm, and on each store with what may stand before it.
func TestABudgetThatIsChargedAfterwardsEnds(t *testing.T) {
	t.Parallel()
	address, cluster := testenv.Redis(t), testenv.StartRedis(t, "--cluster-enabled", "yes").Address
	node := redis.NewClient(&redis.Options{Addr: cluster})
	defer node.Close()
	require.NoError(t, node.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	require.Eventually(t, func() bool { return strings.Contains(node.ClusterInfo(t.Context()).Val(), "cluster_state:ok") }, time.Minute, time.Millisecond)
	for _, front := range []string{"memory", "redis", "cluster", "deny_cache: true", "coalescing: true", "deny_cache: true, coalescing: true", "lease: 1h"} {
		file := "domain: edge\ncharge_over_limit: true\n"
		var st *serve.Stored
		var err error
		switch front {
		case "memory":
			st, err = serve.Open("memory:", "", time.Second)
		case "cluster":
			st, err = serve.Open("redis+cluster://"+cluster, "rl", time.Minute)
		default:
			st, err = serve.Open("redis://"+address, strings.NewReplacer(":", "", " ", "", ",", "").Replace(front), time.Minute)
		}
		require.NoError(t, err)
		defer st.Close()
		if strings.Contains(front, ":") {
			file += "store: {" + front + "}\n"
		}
		tried := 0
		for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
			s, err := serve.New(st.Store, rules(t, file+"descriptors: [{key: user, rate_limit: {limit: 10/365d, algorithm: "+algorithm+"}}]"))
			if errors.Is(err, ratelimit.ErrInvalidOption) && strings.HasPrefix(front, "lease") {
				continue // of which no lease can be made
			}
			tried++
			require.NoError(t, err, front)
			require.Equal(t, 2, spend(t, s), "%s, %s: 7 are charged, then 7 of 3, and nothing is left", front, algorithm)
			require.NoError(t, s.Close(t.Context()))
		}
		require.GreaterOrEqual(t, tried, 2, front)
	}
}

// These are the charges and the answers, step by step. A rule may differ from its file.
func TestChargesOverTheLimit(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		chargesOverTheLimit(t, apart)
	}
}

// chargesOverTheLimit is for one server, or for a store whose shadows are on other servers.
func chargesOverTheLimit(t *testing.T, apart bool) {
	c := newClock()
	st := store.Store(ratelimit.Must(memstore.New(memstore.WithClock(c.now))))
	if apart {
		st = servers{st}
	}
	s, err := serve.New(st, rules(t, `domain: edge
charge_over_limit: true
descriptors:
	- {key: tokens, rate_limit: {unit: minute, requests_per_unit: 10}}
	- {key: bucket, rate_limit: {limit: 10/m, algorithm: token_bucket}}
	- {key: calls, rate_limit: {unit: minute, requests_per_unit: 3, charge_over_limit: false}}
	- {key: other, metadata: {ratelimit: {charge_over_limit: no}}, rate_limit: {unit: minute, requests_per_unit: 3}}
	- {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
	- {key: never, rate_limit: {unit: minute, requests_per_unit: 0}}
	- {key: free, rate_limit: {unlimited: true}}
`))
	require.NoError(t, err)
	for _, step := range []struct{ descriptors, want string }{
		{"tokens=a 7", "OK, OK 3/10 1m0s"},
		{"tokens=a 7", "OVER, OVER 0/10 1m0s"},
		{"tokens=a 0", "OVER, OVER 0/10 1m0s"},
		{"tokens=b 11", "OVER, OVER 0/10 1m0s"}, // more than there ever is
		{"tokens=b 0", "OVER, OVER 0/10 1m0s"},
		{"tokens=b -2", "OK, OK 1/10 1m0s"}, // of the 11
		{"tokens=c", "OK, OK 9/10 1m0s"},
		{"calls=a 4", "OVER, OVER 3/3 1m0s"}, // as without the setting
		{"other=a 4", "OVER, OVER 3/3 1m0s"},
		{"trial=a 4", "OK, OK 0/3 1m0s"},
		{"never=a", "OVER, OVER 0/0 1m0s"},
		{"free=a 9", "OK, OK"},
		// Each is charged whatever the others say, and what has no such setting only if all is admitted.
		{"tokens=d 7|tokens=e 11|calls=b", "OVER, OK 3/10 1m0s, OVER 0/10 1m0s, OK 3/3 1m0s"},
		{"tokens=d 0|calls=b 0", "OK, OK 3/10 1m0s, OK 3/3 1m0s"},
		{"calls=c 4|tokens=f 7|tokens=f 7", "OVER, OVER 3/3 1m0s, OK 3/10 1m0s, OVER 0/10 1m0s"},
		{"calls=c 2|tokens=g 7|trial=b 4", "OK, OK 1/3 1m0s, OK 3/10 1m0s, OK 0/3 1m0s"},
		{"tokens=g 7|calls=c 1", "OVER, OVER 0/10 1m0s, OK 1/3 1m0s"},
		{"tokens=h|tokens=a 0|calls=d", "OVER, OK 9/10 1m0s, OVER 0/10 1m0s, OK 3/3 1m0s"}, // beside a look that denies
		{"calls=d 0", "OK, OK 3/3 0s"},
		{"calls=e 4|trial=c 4", "OVER, OVER 3/3 1m0s, OK 0/3 1m0s"},
		{"trial=c 0", "OK, OK 0/3 1m0s"},
		{"bucket=a 25", "OVER, OVER 0/10 1m36s"}, // 15 are owed, and one more would be admitted
		{"bucket=a 0", "OVER, OVER 0/10 1m36s"},
	} {
		got := short(ask(t, s, strings.Split(step.descriptors, "|")...))
		require.Equal(t, strings.ReplaceAll(step.want, "3/3 1m0s", "3/3 0s"), strings.ReplaceAll(got, "3/3 1m0s", "3/3 0s"), "%s, apart: %v", step.descriptors, apart)
	}
	c.sleep(95 * time.Second)
	require.Equal(t, "OVER, OVER 0/10 1s", short(ask(t, s, "bucket=a 0")))
	c.sleep(time.Second)
	require.Equal(t, "OK, OK 1/10 54s", short(ask(t, s, "bucket=a 0")), "a bucket pays its debt")
	require.Contains(t, get(t, s.Private(nil), "/rules"), `"algorithm":"token_bucket","charge_over_limit":true`)
}

// Costs of many streams at once are all charged.
func TestCostsOfManyAtOnce(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"memory:", "redis://" + testenv.Redis(t)} {
		st, err := serve.Open(address, "rl", time.Minute)
		require.NoError(t, err)
		defer st.Close()
		s, err := serve.New(st.Store, rules(t, "domain: edge\ndescriptors: [{key: b, rate_limit: {limit: 100/365d, algorithm: token_bucket, charge_over_limit: true}}]"))
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				for range 5 {
					if _, err := s.ShouldRateLimit(t.Context(), request("b=a 7")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		until := ask(t, s, "b=a 0").GetStatuses()[0].GetDurationUntilReset().AsDuration()
		require.InDelta(t, (32*5*7-99)*365*24.0/100, until.Hours(), 1, address)
	}
}

// A cost that is reserved is known afterwards by its reservation: its estimate has to fit.
func TestReservationsAndChargesOverTheLimit(t *testing.T) {
	t.Parallel()
	s, err := serve.New(ratelimit.Must(memstore.New()), rules(t, "charge_over_limit: true\n"+strings.ReplaceAll(costs, "/m", "/365d")))
	require.NoError(t, err)
	id := reserve(t, s, "window=a", "900")
	require.Empty(t, reserve(t, s, "window=a", "101"))
	require.Equal(t, 100, left(t, s, "window=a"), "a denied estimate charges nothing")
	require.Equal(t, http.StatusOK, post(s, "/v1/settle", settleBody("window=a", "950", id)).Code)
	require.Equal(t, 50, left(t, s, "window=a"))
	require.Equal(t, http.StatusTooManyRequests, post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"window": "a"}, "hits": 60}]}`).Code)
	require.Equal(t, 0, left(t, s, "window=a"))
}

// While the store is away the share of this process is charged in the same way.
func TestChargesOverTheLimitWithoutTheStore(t *testing.T) {
	t.Parallel()
	s, err := serve.New(unreachable(t).Store, rules(t, `domain: edge
on_failure: local
instances: 2
charge_over_limit: true
descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 20}}]
`), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	require.Equal(t, 2, spend(t, s))
}

// The metrics of a rule count a cost that does not fit as denied, and its charge as admitted.
func TestMetricsOfChargesOverTheLimit(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, `domain: edge
descriptors:
	- {key: user, rate_limit: {unit: day, requests_per_unit: 5, charge_over_limit: true}}
	- {key: never, rate_limit: {unit: day, requests_per_unit: 0}}
`)
	for range 10 {
		ask(t, s, "user=bob 4")
	}
	require.Equal(t, []string{"allowed store 10", "denied store 9"}, decisionsOf(t, s, "edge/user"))
	page := get(t, s.Private(nil), "/metrics")
	require.Contains(t, page, `ratelimit_events_total{limiter="edge/user",outcome="allowed"} 40`)
	require.Contains(t, page, `ratelimit_serve_requests_total{answer="over_limit",domain="edge"} 9`)
	ask(t, s, "user=ann 4", "never=1")
	require.Equal(t, []string{"allowed store 11", "denied store 9"}, decisionsOf(t, s, "edge/user"), "beside a limit that denies")
}
