package serve_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

func memory(t testing.TB) store.Store {
	t.Helper()
	c := newClock()
	return ratelimit.Must(memstore.New(memstore.WithClock(c.now)))
}

const failing = `
descriptors:
	- {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
	- {key: never, rate_limit: {unit: minute, requests_per_unit: 0}}
	- {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
	- {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
checks:
	NAME: [{user: header X-User}]
`

// unreachable is a store that refuses connections.
func unreachable(t *testing.T) *serve.Stored {
	t.Helper()
	st, err := serve.Open("redis://127.0.0.1:1", "rl", 50*time.Millisecond)
	require.NoError(t, err)
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// The log says why the store fails, and not for each request.
func TestTheLogSaysWhyTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s, err := serve.New(refusing{memory(t)}, rules(t, edge), serve.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		for want := 1; want <= 3; want++ {
			for range 100 {
				_, err := s.ShouldRateLimit(t.Context(), request("user=ann"))
				require.Equal(t, codes.Unavailable, status.Code(err))
			}
			require.Equal(t, want, strings.Count(log.String(), "READONLY"), &log)
			time.Sleep(10 * time.Second)
		}
	})
}

// refusing is a store that answers each call with an error.
type refusing struct{ store.Store }

var errReadOnly = fmt.Errorf("%w: READONLY", store.ErrUnavailable)

func (refusing) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, errReadOnly
}

func (refusing) Decide(context.Context, []store.Request, []store.Reply) error { return errReadOnly }

// While the store fails each domain answers as its on_failure says, also of shadows and quotas
// alone, and before and after the breaker opens.
func TestAStoreThatFails(t *testing.T) {
	t.Parallel()
	var files []string
	for _, how := range []string{"open", "closed", "error"} {
		files = append(files, "domain: "+how+"\non_failure: "+how+strings.ReplaceAll(failing, "NAME", how))
	}
	st := unreachable(t)
	require.Error(t, st.Ready(t.Context()))
	s, err := serve.New(st.Store, rules(t, files...), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	for range 10 {
		for _, descriptors := range []string{"user=a", "user=a|trial=b", "quota=a", "quota=a|quota=b", "user=a -1", "user=a 0"} {
			req := request(strings.Split(descriptors, "|")...)
			req.Domain = "error"
			_, err := s.ShouldRateLimit(t.Context(), req)
			require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", descriptors, err)
			req.Domain = "open"
			answer, err := s.ShouldRateLimit(t.Context(), req)
			require.NoError(t, err)
			require.Equal(t, "OK"+strings.Repeat(", OK", len(req.GetDescriptors())), short(answer))
		}
		req := request("user=a", "trial=b", "unknown=c")
		req.Domain = "closed"
		answer, err := s.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, "OVER, OVER, OK, OK", short(answer))
		req = request("user=a", "never=b")
		req.Domain = "open"
		answer, err = s.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, "OVER, OK, OVER", short(answer), "a limit of 0 needs no store")
	}
	for path, want := range map[string]int{"open": 204, "closed": 429, "error": 503} {
		r := httptest.NewRequest(http.MethodGet, "/check/"+path, nil)
		r.Header.Set("X-User", "a")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		require.Equal(t, want, w.Code)
		require.Equal(t, want == 429, w.Header().Get("Retry-After") != "", path)
	}
	page := get(t, s.Private(st.Ready), "/metrics")
	require.Contains(t, page, `ratelimit_serve_store_failures_total{class="unavailable",domain="error"} `)
	require.Contains(t, page, `ratelimit_breaker_state{limiter="store",state="open"} 1`)
}

// readyz is the code of /readyz, and its text.
func readyz(s *serve.Service, st *serve.Stored) (int, string) {
	w := httptest.NewRecorder()
	s.Private(st.Ready).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	return w.Code, w.Body.String()
}

// A store that has answered may fail, if on_failure answers in some domain.
func TestReadyWhileTheStoreFails(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	services, wants := map[string]*serve.Service{}, map[string]int{
		"{domain: a}": http.StatusServiceUnavailable,
		"{domain: a, on_failure: error}|{domain: b}":                                  http.StatusServiceUnavailable,
		"{domain: a}|{domain: b, on_failure: open}":                                   http.StatusOK,
		"{domain: a, on_failure: closed}":                                             http.StatusOK,
		"{domain: a, on_failure: error}|{domain: b, on_failure: local, instances: 2}": http.StatusOK,
	}
	st, err := serve.Open("redis://"+server.Address, "rl", time.Minute)
	require.NoError(t, err)
	defer st.Close()
	for files := range wants {
		s, err := serve.New(st.Store, rules(t, strings.Split(files, "|")...))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return second(readyz(s, st)) == "ready\n" }, time.Minute, time.Millisecond)
		services[files] = s
	}
	decides, err := serve.New(st.Store, rules(t, "on_failure: open\n"+edge))
	require.NoError(t, err)
	require.Contains(t, short(ask(t, decides, "user=a")), "2/3", "nobody has asked for /readyz")
	server.Stop()
	for files, want := range wants {
		code, says := readyz(services[files], st)
		require.Equal(t, want, code, files)
		require.Regexp(t, "connection refused|deadline exceeded", says, "the state of the store is told")
		require.Equal(t, want == http.StatusOK, strings.HasPrefix(says, "ready, "))
		require.NoError(t, services[files].Update(rules(t, "{domain: c, on_failure: open}")))
		code, _ = readyz(services[files], st)
		require.Equal(t, http.StatusOK, code, "by the rules in force")
	}
	code, _ := readyz(decides, st)
	require.Equal(t, http.StatusOK, code)
}

// A store that has never answered may have a wrong address, so a rollout must stop.
func TestNotReadyBeforeTheStoreHasAnswered(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"error", "open", "closed", "local, instances: 2"} {
		st := unreachable(t)
		s, err := serve.New(st.Store, rules(t, "{domain: edge, on_failure: "+how+", descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 9}}]}"))
		require.NoError(t, err)
		for range 7 { // until the breaker is open
			_, _ = s.ShouldRateLimit(t.Context(), request("user=a"))
		}
		code, says := readyz(s, st)
		require.Equal(t, http.StatusServiceUnavailable, code, how)
		require.Contains(t, says, "the store has not answered yet: ")
	}
	server := testenv.StartRedis(t)
	st, err := serve.Open("redis://"+server.Address, "rl", 100*time.Millisecond)
	require.NoError(t, err)
	defer st.Close()
	s, err := serve.New(st.Store, rules(t, "on_failure: open\n"+edge))
	require.NoError(t, err)
	server.Freeze()
	require.Equal(t, "OK, OK", short(ask(t, s, "user=a")))
	code, says := readyz(s, st)
	require.Equal(t, http.StatusServiceUnavailable, code, says)
	server.Thaw()
	require.Eventually(t, func() bool { return second(readyz(s, st)) == "ready\n" }, time.Minute, time.Millisecond)
}

func second(_ int, text string) string { return text }

// While Redis is stopped each instance of a domain with on_failure: local admits its share, of all
// limits or of none.
func TestAShareWhileRedisIsStopped(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	st, err := serve.Open("redis://"+server.Address, "edge", 100*time.Millisecond)
	require.NoError(t, err)
	t.Cleanup(func() { _ = st.Close() })
	s, err := serve.New(st.Store, rules(t, `domain: edge
on_failure: local
instances: 3
descriptors:
	- {key: user, rate_limit: {unit: year, requests_per_unit: 10, name: of users}}
	- {key: all, rate_limit: {limit: 6/365d burst 12, algorithm: token_bucket}}
	- {key: never, rate_limit: {unit: year, requests_per_unit: 0}}
	- {key: trial, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
	- {key: backend, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
	- {key: free, rate_limit: {unlimited: true}}
	- {key: queue, rate_limit: {limit: 1/s, algorithm: leaky_bucket}}
`, "{domain: fleet, on_failure: local, instances: 1000}"), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.HasPrefix(short(ask(t, s, "user=a 0")), "OK, OK 10/10") }, time.Minute, time.Millisecond)
	server.Stop()
	for _, step := range []struct{ descriptors, want string }{
		{"user=a|all=1|never=0 0|free=1", "OVER, OK 3/3, OK 4/2, OVER 0/0, OK"},
		{"user=a|all=1|unknown=1", "OK, OK 2/3, OK 3/2, OK"}, // a share of its own, of both
		{"user=a 3|all=1", "OVER, OVER 2/3, OK 3/2"},         // charges nothing
		{"user=a 2", "OK, OK 0/3"},
		{"user=a", "OVER, OVER 0/3"},
		{"user=a -1", "OK, OK 1/3"}, // gives back
		{"user=a", "OK, OK 0/3"},
		{"user=b 0", "OK, OK 3/3"}, // looks
		{"trial=a", "OK, OK 0/1"},
		{"trial=a|user=b", "OK, OK 0/1, OK 2/3"},
		{"backend=a|user=b", "OK, OK 0/1, OK 1/3"},
		{"backend=a|user=b", "OVER, OVER 0/1, OK 1/3"},
	} {
		got := short(ask(t, s, strings.Split(step.descriptors, "|")...))
		require.Equal(t, step.want, seconds.ReplaceAllString(got, ""), step.descriptors)
	}
	name := ask(t, s, "user=a 0").GetStatuses()[0].GetCurrentLimit().GetName()
	require.Equal(t, "of users", name)
	_, err = s.ShouldRateLimit(t.Context(), request("queue=a -1"))
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)

	req := request("user=d")
	req.Descriptors[0].Limit = override(typev3.RateLimitUnit_YEAR, 7)
	for i := range 3 {
		answer, err := s.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, i == 2, answer.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT, "a share of 7 is 2")
	}
	req.Descriptors[0].Limit = override(typev3.RateLimitUnit_YEAR, 1)
	answer, err := s.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	require.EqualValues(t, 3, answer.GetStatuses()[0].GetCurrentLimit().GetUnitMultiplier().GetValue(), "1 in three years")
	req.Domain = "fleet"
	_, err = s.ShouldRateLimit(t.Context(), req)
	require.Equal(t, codes.Unavailable, status.Code(err), "no limit has 1 in a thousand years: %v", err)
	require.Equal(t, 3, allowedOf(s, 32, request("user=c", "all=2")), "of callers at once")
	require.Subset(t, decisionsOf(t, s, "edge/trial"), []string{"allowed local 1", "denied local 1"})
	require.Subset(t, decisionsOf(t, s, "edge overrides"), []string{"allowed local 3", "denied local 1"})
}

// A corrupt value in the place of a shadow's count does not block the other limits, whether it is
// asked for events, looked at or refunded to.
func TestAShadowWhoseCountIsCorrupt(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	st, err := serve.Open("redis://"+server, "corrupt", time.Minute)
	require.NoError(t, err)
	defer st.Close()
	s, err := serve.New(st.Store, rules(t, `domain: edge
descriptors:
	- {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
	- {key: trial, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
`))
	require.NoError(t, err)
	ask(t, s, "trial=a")
	client := redis.NewClient(&redis.Options{Addr: server})
	defer client.Close()
	keys, err := client.Keys(t.Context(), "corrupt:*trial*").Result()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	require.NoError(t, client.Set(t.Context(), keys[0], "garbage", time.Minute).Err())
	for i, hits := range []string{"", " 0", " -1"} {
		got := seconds.ReplaceAllString(short(ask(t, s, "trial=a"+hits, "user=b")), "")
		require.Regexp(t, fmt.Sprintf("^OK, .*, OK %d/3$", 2-i), got)
	}
}

// scattered is a store that cannot decide on two keys together, as a cluster, and fails for one of them.
type scattered struct {
	store.Store
	fails string
}

func (*scattered) Together(a, b string) bool { return a == b }

func (s *scattered) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if requests[0].Key == s.fails {
		return store.ErrUnavailable
	}
	return s.Store.Decide(ctx, requests, replies)
}

// A cluster tells of two limits what one server does, and a denial stands while another of its servers fails.
func TestADenialBesideAServerThatFails(t *testing.T) {
	t.Parallel()
	const limits = `domain: edge
descriptors:
	- {key: user, rate_limit: {unit: minute, requests_per_unit: 1}}
	- {key: tenant, rate_limit: {unit: hour, requests_per_unit: 5, reserved: 2}}
`
	together := memory(t)
	cluster := &scattered{Store: memory(t)}
	for _, st := range []store.Store{together, cluster} {
		s, err := serve.New(st, rules(t, limits))
		require.NoError(t, err)
		ask(t, s, "user=ann", "tenant=x")
		for _, hits := range []string{"", " 2", " 3", " 4"} {
			want := "OVER, OVER 0/1 1m0s, OVER 2/3 1h0m0s"
			if hits == "" || hits == " 2" {
				want = "OVER, OVER 0/1 1m0s, OK 2/3 1h0m0s"
			}
			require.Equal(t, want, short(ask(t, s, "user=ann", "tenant=x"+hits)), "%T%s", st, hits)
		}
	}
	s, err := serve.New(cluster, rules(t, limits))
	require.NoError(t, err)
	cluster.fails = "tenant=x"
	require.Equal(t, "OVER, OVER 0/1 1m0s, OK", short(ask(t, s, "user=ann", "tenant=x 2")))
}

// silent is a scattered store, one of whose servers hangs.
type silent struct{ scattered }

func (s *silent) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := s.scattered.Decide(ctx, requests, replies); err == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(250 * time.Millisecond):
		return store.ErrTimeout
	}
}

// A denial stands while another server of a cluster hangs, and arrives in the caller's time.
func TestADenialBesideAServerThatHangs(t *testing.T) {
	for name, c := range map[string]struct{ has, takes time.Duration }{"short": {100 * time.Millisecond, 80 * time.Millisecond}, "long": {time.Minute, 250 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := &silent{scattered{Store: memory(t)}}
				s, err := serve.New(cluster, rules(t, edge))
				require.NoError(t, err)
				ask(t, s, "user=ann 3")
				cluster.fails = "user=bob"
				ctx, cancel := context.WithTimeout(t.Context(), c.has)
				defer cancel()
				start := time.Now()
				r, err := s.ShouldRateLimit(ctx, request("user=ann", "user=bob", "user=bob 2"))
				require.NoError(t, err)
				require.Equal(t, "OVER, OVER 0/3 1m0s, OK, OK", short(r))
				require.Equal(t, c.takes, time.Since(start))
			})
		})
	}
}

// stingy is a store whose Refunds fail.
type stingy struct{ store.Store }

func (stingy) Refund(context.Context, *store.Namespace, string, store.Limit, store.Receipt) error {
	return store.ErrUnavailable
}

// A denial stands if what was charged beside it cannot be refunded.
func TestADenialWhoseRefundFails(t *testing.T) {
	t.Parallel()
	s, err := serve.New(stingy{memory(t)}, rules(t, edge))
	require.NoError(t, err)
	ask(t, s, "user=ann 3")
	require.Equal(t, "OVER, OVER 0/3 1m0s, OK 2/3 1m0s", short(ask(t, s, "user=ann 0", "user=bob")))
	require.NoError(t, s.Update(rules(t, "all_or_none: false\n"+edge)))
	require.Equal(t, "OVER, OVER 0/3 1m0s, OK 2/3 1m0s", short(ask(t, s, "user=ann", "user=bob -1")))
	_, err = s.ShouldRateLimit(t.Context(), request("user=cat", "user=bob -1"))
	require.Equal(t, codes.Unavailable, status.Code(err))
}

// seconds are those of what short returns.
var seconds = regexp.MustCompile(` (\d+h)?(\d+m)?\d+s`)

// allowedOf is how many of so many callers at once are admitted.
func allowedOf(s *serve.Service, callers int, req *pb.RateLimitRequest) int {
	var allowed atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			answer, err := s.ShouldRateLimit(context.Background(), req)
			if err == nil && answer.GetOverallCode() == pb.RateLimitResponse_OK {
				allowed.Add(1)
			}
		})
	}
	all.Wait()
	return int(allowed.Load())
}

// A caller that disconnects does not count as a failure of the store.
func TestACallerThatGoesAway(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, edge)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.ShouldRateLimit(ctx, request("user=a"))
	require.Equal(t, codes.Canceled, status.Code(err))
}

// A domain's store block stands before Redis, and the answers are the same.
func TestOnRedis(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	st, err := serve.Open("redis://"+server, "edge", time.Minute)
	require.NoError(t, err)
	defer st.Close()
	require.NoError(t, st.Ready(t.Context()))
	for _, block := range []string{"", "store: {lease: 50ms}\n", "store: {deny_cache: true}\n", "store: {deny_cache: true, coalescing: true}\n", "store: {coalescing: true}\n"} {
		file := block + `domain: edge` + strings.TrimSpace(block) + `
descriptors:
	- {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
`
		file = strings.Replace(file, strings.TrimSpace(block)+"\ndesc", "\ndesc", 1)
		s, err := serve.New(st.Store, rules(t, file))
		require.NoError(t, err)
		name := "user=" + strings.NewReplacer(" ", "", ",", ".").Replace(strings.TrimSpace(block))
		for i, want := range []string{"OK, OK 2/3", "OK, OK 1/3", "OK, OK 0/3", "OVER, OVER 0/3", "OVER, OVER 0/3"} {
			require.Contains(t, short(ask(t, s, name)), want, "%s %d", block, i)
		}
		require.NoError(t, s.Close(t.Context()))
	}
}

// Each kind of server that a URL can name, and passwords.
func TestStoresByURL(t *testing.T) {
	t.Parallel()
	plain := testenv.StartRedis(t, "--requirepass", "secret").Address
	cluster := testenv.StartRedis(t, "--requirepass", "secret", "--cluster-enabled", "yes").Address
	all := redis.NewClient(&redis.Options{Addr: cluster, Password: "secret"})
	defer all.Close()
	require.NoError(t, all.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	host, port, _ := strings.Cut(plain, ":")
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor m %s %s 1\nsentinel auth-pass m secret\n", host, port)
	require.NoError(t, os.WriteFile(conf, []byte(text), 0o600))
	sentinel := testenv.StartRedis(t, conf, "--sentinel").Address
	for url, ready := range map[string]bool{
		"redis://:secret@" + plain:                               true,
		"redis://:wrong@" + plain:                                false,
		"redis://" + plain:                                       false,
		"redis+cluster://:secret@" + cluster:                     true,
		"redis+cluster://" + cluster:                             false,
		"redis://" + sentinel + "?master_name=m&password=secret": true,
		"redis://" + sentinel + "?master_name=n&password=secret": false,
	} {
		st, err := serve.Open(url, "url", time.Minute)
		require.NoError(t, err)
		defer st.Close()
		if !ready {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			require.Error(t, st.Ready(ctx), url)
			cancel()
			continue
		}
		require.Eventually(t, func() bool { return st.Ready(t.Context()) == nil }, 30*time.Second, 10*time.Millisecond, url)
		s, err := serve.New(st.Store, rules(t, strings.Replace(edge, "unit: hour", "unit: year", 1)))
		require.NoError(t, err)
		key := "tokens=" + strings.NewReplacer(",", ".", "=", ".").Replace(url)
		require.Contains(t, short(ask(t, s, key)), "OK 999/1000", url)
		require.Contains(t, short(ask(t, s, key)), "OK 998/1000", url)
	}
}

func TestURLsThatAreWrong(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"redis://:/secret@h", "redis://:?secret@h", "redis://:#secret@h:1", "redis:h:1", "http://x", "redis://user:secret@h:x", "redis+cluster://h?x=y", "redis://h?master_name=m&x=y", ""} {
		_, err := serve.Open(address, "rl", time.Second)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, address)
		require.NotContains(t, err.Error(), "secret")
	}
}

// The first caller makes the connections, and other callers wait in the meantime, so that none of
// them takes the other's. The pool has no room for two.
func TestReadyMakesConnectionsOnce(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	for range 20 {
		st, err := serve.Open("redis://"+server+"?pool_size=16", "rl", time.Second)
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				assert.NoError(t, st.Ready(ctx))
			})
		}
		all.Wait()
		require.Equal(t, 17, connections(t, server), "with that of the question")
		before := warmings(t, server)
		require.NoError(t, st.Ready(t.Context()))
		require.Equal(t, before, warmings(t, server), "later it is only asked")
		require.NoError(t, st.Close())
		require.Eventually(t, func() bool { return connections(t, server) == 1 }, time.Minute, time.Millisecond)
	}
}

// warmings is what a server says of the commands that are sent on new connections.
func warmings(t *testing.T, server string) string {
	client := redis.NewClient(&redis.Options{Addr: server})
	defer client.Close()
	text, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	calls := regexp.MustCompile(`cmdstat_time:calls=\d+`).FindString(text)
	require.NotEmpty(t, calls)
	return calls
}

// connections is how many a server has, with that of the question.
func connections(t *testing.T, server string) int {
	client := redis.NewClient(&redis.Options{Addr: server})
	defer client.Close()
	list, err := client.ClientList(t.Context()).Result()
	require.NoError(t, err)
	return strings.Count(list, "\n")
}
