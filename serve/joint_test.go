package serve_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/denycache"
)

// hanging is a store that can be made to answer nobody.
type hanging struct {
	store.Store
	hangs atomic.Bool
}

func (h *hanging) wait(ctx context.Context) error {
	if h.hangs.Load() {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (h *hanging) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := h.wait(ctx); err != nil {
		return store.Reply{}, err
	}
	return h.Store.Take(ctx, ns, key, l, n)
}

func (h *hanging) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := h.wait(ctx); err != nil {
		return err
	}
	return h.Store.Decide(ctx, requests, replies)
}

// hangs is a service on a store that hangs.
func hangs(t *testing.T, files ...string) (*serve.Service, *hanging) {
	t.Helper()
	st := &hanging{Store: memory(t)}
	st.hangs.Store(true)
	s, err := serve.New(st, rules(t, files...), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	return s, st
}

// within asks with a deadline, and returns the answer in short, or its error, and how long it took.
func within(t *testing.T, s *serve.Service, d time.Duration, req *pb.RateLimitRequest) (string, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	at := time.Now()
	answer, err := s.ShouldRateLimit(ctx, req)
	if err != nil {
		return status.Code(err).String(), time.Since(at)
	}
	return short(answer), time.Since(at)
}

// While the store hangs each domain answers as its on_failure says, in four fifths of the
// caller's time, and at once after a second.
func TestAStoreThatHangs(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]string{"open": "OK", "closed": "OVER", "error": "Unavailable", "local\ninstances: 3": "OK, OK 0/1 "} {
		for _, block := range []string{"", "\nall_or_none: false", "\nstore: {coalescing: true}", "\nstore: {deny_cache: true}"} {
			synctest.Test(t, func(t *testing.T) {
				s, st := hangs(t, "domain: edge\non_failure: "+how+block+failing)
				for _, descriptors := range []string{"user=a", "user=b|user=c 0", "user=c|user=d", "quota=a", "quota=b|quota=c"} {
					got, took := within(t, s, 100*time.Millisecond, request(strings.Split(descriptors, "|")...))
					require.True(t, strings.HasPrefix(got, want), "%s %s %s: %s", how, block, descriptors, got)
					require.Equal(t, 80*time.Millisecond, took)
				}
				for range 20 {
					within(t, s, 100*time.Millisecond, request("user=d"))
				}
				_, took := within(t, s, 100*time.Millisecond, request("user=e"))
				require.Zero(t, took, "the breaker is open")
				require.Contains(t, get(t, s.Private(nil), "/metrics"), `ratelimit_serve_store_failures_total{class="timeout",domain="edge"} `)

				st.hangs.Store(false)
				time.Sleep(time.Second)
				got, _ := within(t, s, 100*time.Millisecond, request("user=f"))
				require.True(t, strings.HasPrefix(got, "OK, OK 2/3 "), got)
			})
		}
	}
}

// Over HTTP the URL says how long a caller waits. A field does not: through a proxy it would be the
// client's, who could wait for nothing and be let through.
func TestAStoreThatHangsOverHTTP(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct {
		method, body string
		code         int
		took         time.Duration
	}{
		"/check/NAME": {"GET", "", 204, 80},
		"/json":       {"POST", `{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}`, 200, 80},
		"/v1/decide":  {"POST", `{"domain": "edge", "asks": [{"entries": {"user": "a"}}]}`, 200, 80},
		"/v1/refund":  {"POST", `{"domain": "edge", "asks": [{"entries": {"user": "a"}}]}`, 200, 80},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, st := hangs(t, "domain: edge\non_failure: open"+failing)
			ask := func(query string) (int, time.Duration) {
				r := httptest.NewRequestWithContext(t.Context(), want.method, path+query, strings.NewReader(want.body))
				r.Header.Set("X-User", "a")
				r.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", "1")
				r.Header.Set("Grpc-Timeout", "1m")
				w, at := httptest.NewRecorder(), time.Now()
				s.Handler().ServeHTTP(w, r)
				return w.Code, time.Since(at)
			}
			code, took := ask("?timeout=100ms")
			require.Equal(t, want.code, code, path)
			require.Equal(t, want.took*time.Millisecond, took, path)
			for _, query := range []string{"?timeout=", "?timeout=0s", "?timeout=-1s", "?timeout=100", "?timeout=soon", "?timeout=1s&timeout=2s", "?timeout=1s;denied=403", "?timeout=%1s"} {
				code, _ = ask(query)
				require.Equal(t, http.StatusBadRequest, code, path+query)
			}
			st.hangs.Store(false)
			code, took = ask("")
			require.Equal(t, want.code, code, path)
			require.Zero(t, took)
		})
	}
}

// Nor does who settles wait longer. Nothing is known of the reservation then.
func TestSettleOnAStoreThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, st := hangs(t, "domain: edge\non_failure: open"+failing)
		st.hangs.Store(false)
		id := reserve(t, s, "user=a", "2")
		st.hangs.Store(true)
		at := time.Now()
		require.Equal(t, http.StatusServiceUnavailable, post(s, "/v1/settle?timeout=100ms", settleBody("user=a", "1", id)).Code)
		require.Equal(t, 100*time.Millisecond, time.Since(at))
	})
}

// Callers with no patience open no breaker for others.
func TestLateCallsBesideOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, st := hangs(t, "domain: edge\non_failure: open"+failing)
		for i := range 100 {
			st.hangs.Store(true)
			for range 20 {
				got, took := within(t, s, time.Millisecond, request("user=a"))
				require.Equal(t, "OK, OK", got)
				require.Equal(t, 800*time.Microsecond, took, "%d", i)
			}
			time.Sleep(700 * time.Millisecond)
			st.hangs.Store(false)
			got, _ := within(t, s, time.Millisecond, request("unknown=y", "user=b 0"))
			require.Contains(t, got, "/3", "%d: the store is asked", i)
		}
	})
}

// A caller that leaves gets no answer, and a decision that takes no time has one.
func TestACallerWithoutTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := hangs(t, "domain: edge\non_failure: open"+failing)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := s.ShouldRateLimit(ctx, request("user=a"))
		require.Equal(t, codes.Canceled, status.Code(err))
		got, _ := within(t, s, 0, request("user=a"))
		require.Equal(t, codes.DeadlineExceeded.String(), got)
	})
}

// Redis hangs, and its timeout is longer than callers wait.
func TestRedisThatHangs(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	st, err := serve.Open("redis://"+server.Address, "edge", time.Second)
	require.NoError(t, err)
	t.Cleanup(func() { _ = st.Close() })
	s, err := serve.New(st.Store, rules(t, "domain: edge\non_failure: open"+failing), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	answer := func() string {
		got, _ := within(t, s, 100*time.Millisecond, request("user=a 0"))
		return got
	}
	counts := func() bool { return strings.HasPrefix(answer(), "OK, OK 3/3") }
	require.Eventually(t, counts, time.Minute, time.Millisecond)
	server.Freeze()
	require.Eventually(t, func() bool { return answer() == "OK, OK" }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool {
		answer()
		return strings.Contains(get(t, s.Private(nil), "/metrics"), `ratelimit_breaker_state{limiter="store",state="open"} 1`)
	}, time.Minute, time.Millisecond)
	server.Thaw()
	require.Eventually(t, counts, time.Minute, time.Millisecond)
}

// cluster is a store of two servers, one of which hangs: that of keys with "bob" in them.
type cluster struct {
	*hanging
	sent    atomic.Int64 // calls to the server that hangs
	charges atomic.Int64 // those that charge
	down    atomic.Bool  // whether it fails at once instead
	others  atomic.Bool  // whether the other server fails at once
	stuck   atomic.Bool  // whether it hangs
}

func (c *cluster) ServerOf(key string) string {
	if strings.Contains(key, "bob") {
		return "b"
	}
	return "a"
}

func (c *cluster) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if c.ServerOf(key) == "a" {
		if c.others.Load() {
			return store.Reply{}, store.ErrUnavailable
		}
		return c.Store.Take(ctx, ns, key, l, n)
	}
	c.sent.Add(1)
	c.charges.Add(1)
	if c.down.Load() {
		return store.Reply{}, failed{store.ErrUnavailable, "b"}
	}
	return c.hanging.Take(ctx, ns, key, l, n)
}

func (c *cluster) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	switch other := c.ServerOf(requests[0].Key) == "a"; {
	case other && c.others.Load():
		return failed{store.ErrUnavailable, "a"}
	case other && c.stuck.Load():
		<-ctx.Done()
		return ctx.Err()
	case other:
		return c.Store.Decide(ctx, requests, replies)
	}
	c.sent.Add(1)
	if !requests[0].Looks() {
		c.charges.Add(1)
	}
	if c.down.Load() {
		return failed{store.ErrUnavailable, "b"}
	}
	return c.hanging.Decide(ctx, requests, replies)
}

// failed is an error of a server, as package redisstore returns it.
type failed struct {
	error
	server string
}

func (f failed) Unwrap() error  { return f.error }
func (f failed) Server() string { return f.server }

func (c *cluster) Together(key, other string) bool { return c.ServerOf(key) == c.ServerOf(other) }

// A server of a cluster that hangs opens a breaker for its own keys. Requests for keys of the others, and their
// settlements, do not notice.
func TestAServerOfAClusterHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &cluster{hanging: &hanging{Store: memory(t)}}
		s, err := serve.New(st, rules(t, "domain: edge\non_failure: open\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000}}"), serve.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		id := reserve(t, s, "user=ann", "2")
		st.hangs.Store(true)
		ask := func(descriptors ...string) time.Duration {
			_, took := within(t, s, 100*time.Millisecond, request(descriptors...))
			return took
		}
		for range 30 {
			ask("user=ann", "user=bob")
			require.Zero(t, ask("user=ann"))
		}
		sent := st.sent.Load()
		for range 100 {
			require.Zero(t, ask("user=bob"), "its breaker is open")
			require.Zero(t, ask("user=bob", "user=ann"))
			answer, err := s.ShouldRateLimit(t.Context(), request("user=ann"))
			require.NoError(t, err)
			require.Contains(t, short(answer), "/1000", "by the store")
		}
		require.Equal(t, sent, st.sent.Load())
		require.Equal(t, http.StatusOK, post(s, "/v1/settle", settleBody("user=ann", "1", id)).Code)

		st.hangs.Store(false)
		time.Sleep(time.Second)
		answer, err := s.ShouldRateLimit(t.Context(), request("user=ann", "user=bob"))
		require.NoError(t, err)
		require.Equal(t, 2, strings.Count(short(answer), "/1000"), short(answer))
	})
}

// A descriptor that cannot deny the request does not decide by whom the others are decided, and does not delay them
// for longer than a second, if its server fails or hangs. Neither does one that is not asked because another one denies.
func TestADescriptorThatDoesNotDecideIsOnAServerThatFails(t *testing.T) {
	t.Parallel()
	file := `domain: edge
on_failure: open
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000}}
- {key: spent, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1000}}
- {key: budget, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1000, charge_over_limit: true}}
`
	for name, c := range map[string]struct {
		descriptors []string
		ofOthers    bool // whether the breaker of the server is open, because others ask it
	}{
		"shadow":                    {[]string{"user=ann", "trial=bob"}, false},
		"shadow first":              {[]string{"trial=bob", "user=ann"}, false},
		"budget":                    {[]string{"user=ann", "budget=bob"}, false},
		"refund of a shadow":        {[]string{"user=ann", "trial=bob -1"}, false},
		"shadow, breaker open":      {[]string{"user=ann", "trial=bob"}, true},
		"denied":                    {[]string{"spent=ann", "user=bob"}, false},
		"denied, of several events": {[]string{"spent=ann", "user=bob 2"}, false},
		"denied beside a shadow":    {[]string{"spent=ann", "trial=bob"}, false},
	} {
		for _, how := range []string{"fails", "hangs"} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					st := &cluster{hanging: &hanging{Store: memory(t)}}
					s, err := serve.New(st, rules(t, file), serve.WithLogger(slog.New(slog.DiscardHandler)))
					require.NoError(t, err)
					_, _ = within(t, s, time.Second, request("spent=ann"))
					st.down.Store(how == "fails")
					st.hangs.Store(how == "hangs")
					ask := func() time.Duration {
						got, took := within(t, s, 100*time.Millisecond, request(c.descriptors...))
						require.Equal(t, 1, strings.Count(got, "/1"), "%s: the store decides one of them", got)
						return took
					}
					for range 20 {
						if ask(); c.ofOthers {
							_, _ = within(t, s, 100*time.Millisecond, request("user=bob"))
						}
						time.Sleep(time.Millisecond)
					}
					var took time.Duration
					for range 1000 {
						took += ask()
						time.Sleep(time.Millisecond)
					}
					require.LessOrEqual(t, took, 160*time.Millisecond, "one of them a second finds out whether the server still hangs")

					st.down.Store(false)
					st.hangs.Store(false)
					time.Sleep(time.Second)
					got, _ := within(t, s, 100*time.Millisecond, request(c.descriptors...))
					require.Equal(t, 2, strings.Count(got, "/1"), got)
				})
			})
		}
	}
}

// What this process decides in place of a server that fails does not depend on the server's breakers.
func TestLooksAtALocalShare(t *testing.T) {
	t.Parallel()
	st := &cluster{hanging: &hanging{Store: memory(t)}}
	s, err := serve.New(st, rules(t, `domain: edge
on_failure: local
instances: 1
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: never, rate_limit: {unit: hour, requests_per_unit: 0}}
`), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	st.down.Store(true)
	for range 10 {
		require.Equal(t, "OVER, OVER 0/0 1h0m0s, OK", short(ask(t, s, "never=bob", "user=bob")))
	}
	for range 10 {
		ask(t, s, "user=bob")
	}
	require.Regexp(t, "^OVER, OVER 0/0 1h0m0s, OVER 0/10 ", short(ask(t, s, "never=bob", "user=bob")))
}

// While a server fails, on_failure decides on the descriptors of that server, and the store on the others of the same request.
func TestTheOtherServersDecideOnTheirDescriptors(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, onFailure string) (*serve.Service, *cluster) {
		st := &cluster{hanging: &hanging{Store: memory(t)}}
		s, err := serve.New(st, rules(t, "domain: edge\non_failure: "+onFailure+`
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: spent, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: never, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
`), serve.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		st.down.Store(true)
		ask(t, s, "spent=ann")
		return s, st
	}
	for onFailure, steps := range map[string][]string{
		"open": {
			"user=ann|user=bob = OK, OK 8/9, OK",
			"user=bob 2|user=ann 2|user=bob = OK, OK, OK 6/9, OK",
			"spent=ann|user=bob = OVER, OVER 0/1, OK",
			"user=bob|user=ann 7 = OVER, OK, OVER 6/9",
			"never=bob|user=ann = OVER, OVER 0/0, OK 6/9",
			"trial=bob|user=ann = OK, OK, OK 5/9",
			"user=bob|trial=ann = OK, OK, OK",
			"user=bob -1|user=ann -1 = OK, OK, OK 6/9",
			"user=ann|spent=ann 0|user=bob = OVER, OK 6/9, OVER 0/1, OK",
			"user=bob = OK, OK",
		},
		"closed": {
			"user=ann|user=bob = OVER, OVER, OVER",
			"user=ann 0 = OK, OK 9/9",
		},
		"local\ninstances: 3": {
			"user=ann|user=bob = OK, OK 8/9, OK 2/3",
			"spent=ann|user=bob = OVER, OVER 0/1, OK 2/3",
			"user=ann|user=bob 3 = OVER, OK 8/9, OVER 2/3",
			"never=bob|user=ann = OVER, OVER 0/0, OK 8/9",
			"trial=bob|user=ann|user=bob = OK, OK 2/3, OK 7/9, OK 1/3",
			"user=bob -1|user=ann -1 = OK, OK 2/3, OK 8/9",
			"user=bob 0|user=ann 0 = OK, OK 2/3, OK 8/9",
		},
	} {
		t.Run(onFailure, func(t *testing.T) {
			t.Parallel()
			s, _ := start(t, onFailure)
			for range 10 {
				ask(t, s, "user=bob 0")
			}
			for _, step := range steps {
				descriptors, want, _ := strings.Cut(step, " = ")
				got := regexp.MustCompile(`(/[0-9]+) [0-9hms]+`).ReplaceAllString(short(ask(t, s, strings.Split(descriptors, "|")...)), "$1")
				require.Equal(t, want, got, descriptors)
			}
		})
	}

	// Then another server fails, too.
	s, st := start(t, "open")
	for range 10 {
		ask(t, s, "user=bob")
	}
	st.others.Store(true)
	for range 10 {
		require.Equal(t, "OK, OK, OK", short(ask(t, s, "user=ann", "user=bob")))
	}
	require.Equal(t, "OVER, OK, OK, OVER", short(ask(t, s, "user=ann", "user=bob", "never=bob")))

	// What this process has admitted in place of the store is not refunded to it.
	s, st = start(t, "local\ninstances: 1")
	ask(t, s, "user=bob 0")
	st.down.Store(false)
	require.Equal(t, "OK, OK 4/9 1h0m0s", short(ask(t, s, "user=bob 5")))
	st.down.Store(true)
	for range 10 {
		ask(t, s, "user=bob 0")
	}
	w := post(s, "/v1/decide", `{"domain": "edge", "reserve": true, "asks": [{"entries": {"user": "ann"}, "hits": 3}, {"entries": {"user": "bob"}, "hits": 3}]}`)
	var answer struct{ Reservation string }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), w.Body)
	st.down.Store(false)
	w = post(s, "/v1/settle", `{"domain": "edge", "reservation": "`+answer.Reservation+`", "asks": [{"entries": {"user": "ann"}, "used": 1}, {"entries": {"user": "bob"}, "used": 1}]}`)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.Equal(t, 8, left(t, s, "user=ann"))
}

// A request that is asked again, because a server fails, is charged once.
func TestARequestThatIsAskedAgainIsChargedOnce(t *testing.T) {
	t.Parallel()
	const limits = `
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: never, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: budget, rate_limit: {unit: hour, requests_per_unit: 9, charge_over_limit: true}}
`
	for descriptors, onFailure := range map[string]string{
		"user=ann|user=bob":                 "open\nall_or_none: false",
		"user=ann|quota=bob":                "open",
		"quota=ann|quota=bob":               "local\ninstances: 1",
		"budget=ann|budget=bob":             "open",
		"never=ann|budget=ann|budget=bob":   "open",
		"never=ann|budget=ann|budget=bob 2": "local\ninstances: 1",
	} {
		s, st := start(t, "domain: edge\non_failure: "+onFailure+limits)
		st.down.Store(true)
		for range 5 { // the last one opens the breaker of bob's server
			ask(t, s, strings.Split(descriptors, "|")...)
		}
		mine := regexp.MustCompile("[a-z]+=ann").FindAllString(descriptors, -1)
		require.GreaterOrEqual(t, left(t, s, mine[len(mine)-1]), 4, "%s: %s", onFailure, descriptors)
	}

	s, st := start(t, "domain: edge\non_failure: local\ninstances: 3"+limits)
	st.down.Store(true)
	got := short(ask(t, s, "never=ann", "budget=ann", "budget=bob"))
	require.Equal(t, "OVER, OVER 0/0, OK 2/3, OK 2/3", seconds.ReplaceAllString(got, ""))

	// While another server fails or hangs, what this process decides is charged once, too.
	for _, descriptors := range []string{"user=ann|user=bob 5", "quota=ann|user=bob 5", "trial=ann|user=ann|user=bob 5", "budget=ann|user=bob 5"} {
		for _, each := range []string{"", "\nall_or_none: false"} {
			for _, how := range []string{"fails", "hangs"} {
				synctest.Test(t, func(t *testing.T) {
					s, st := start(t, "domain: edge\non_failure: local\ninstances: 1"+each+limits)
					st.down.Store(true)
					for range 10 {
						ask(t, s, "user=bob 0")
					}
					st.others.Store(how == "fails")
					st.stuck.Store(how == "hangs")
					got, _ := within(t, s, 100*time.Millisecond, request(strings.Split(descriptors, "|")...))
					require.True(t, strings.HasSuffix(seconds.ReplaceAllString(got, ""), "OK 4/9"), "%s%s, %s: %s", descriptors, each, how, got)
					require.Equal(t, 4, left(t, s, "user=bob"), "%s%s, %s", descriptors, each, how)
				})
			}
		}
	}
}

// tipping is a cluster that does something the second time it is asked for the server of a key.
type tipping struct {
	*cluster
	key   string
	asked int
	then  func()
}

func (c *tipping) ServerOf(key string) string {
	if strings.Contains(key, c.key) {
		if c.asked++; c.asked == 2 {
			c.then()
		}
	}
	return c.cluster.ServerOf(key)
}

// A breaker may open between two descriptors of its server, because of other requests.
func TestABreakerOpensInTheMeantime(t *testing.T) {
	t.Parallel()
	st := &tipping{cluster: &cluster{hanging: &hanging{Store: memory(t)}}, key: "last"}
	s, err := serve.New(st, rules(t, "domain: edge\non_failure: open\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 9}}"), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	st.down.Store(true)
	st.then = func() {
		for range 10 {
			ask(t, s, "user=bob")
		}
	}
	require.Equal(t, "OK, OK, OK", short(ask(t, s, "user=bob", "user=bob-last")))
}

// start is a service on a cluster.
func start(t *testing.T, file string) (*serve.Service, *cluster) {
	t.Helper()
	st := &cluster{hanging: &hanging{Store: memory(t)}}
	s, err := serve.New(st, rules(t, file), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	return s, st
}

// While the breaker of a server is half open, a probe looks at that server, whichever is asked for first, and charges nothing to it.
// A request that the other server alone has decided does not count as its answer.
func TestTheServerThatHangsIsProbed(t *testing.T) {
	t.Parallel()
	file := "domain: edge\non_failure: open\ndescriptors:\n" +
		"- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000000}}\n- {key: spent, rate_limit: {unit: hour, requests_per_unit: 1}}"
	for name, other := range map[string]string{"admitted": "user=ann", "denied": "spent=ann"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := &cluster{hanging: &hanging{Store: memory(t)}}
				s, err := serve.New(st, rules(t, file), serve.WithLogger(slog.New(slog.DiscardHandler)))
				require.NoError(t, err)
				_, _ = within(t, s, time.Second, request("spent=ann"))
				st.hangs.Store(true)
				ask := func(descriptors ...string) time.Duration {
					_, took := within(t, s, 100*time.Millisecond, request(descriptors...))
					return took
				}
				for range 30 {
					ask(other, "user=bob")
					ask("user=bob")
				}
				require.Zero(t, ask("user=bob"), "its breaker is open")
				charges := st.charges.Load()
				for range 5 {
					time.Sleep(time.Second)
					ask(other, "user=bob") // the probe
					sent := st.sent.Load()
					require.Zero(t, ask(other, "user=bob"))
					require.Zero(t, ask("user=bob"))
					require.Equal(t, sent, st.sent.Load())
				}
				require.Equal(t, charges, st.charges.Load())
				st.hangs.Store(false)
				time.Sleep(time.Second)
				ask(other, "user=bob")
				answer, err := s.ShouldRateLimit(t.Context(), request("user=bob"))
				require.NoError(t, err)
				require.Contains(t, short(answer), "/1000000", "by the store")
			})
		})
	}
}

// If descriptors are charged separately, a server that fails or hangs is not mistaken for one that has answered.
func TestAServerOfSeparateDescriptorsFails(t *testing.T) {
	t.Parallel()
	file := "domain: edge\non_failure: open\nall_or_none: false\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000000}}"
	for _, how := range []string{"fails", "hangs"} {
		for _, order := range []string{"ann, bob", "bob, ann"} {
			t.Run(how+", "+order, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					st := &cluster{hanging: &hanging{Store: memory(t)}}
					s, err := serve.New(st, rules(t, file), serve.WithLogger(slog.New(slog.DiscardHandler)))
					require.NoError(t, err)
					st.down.Store(how == "fails")
					st.hangs.Store(how == "hangs")
					both := request("user=ann", "user=bob")
					if order == "bob, ann" {
						both = request("user=bob", "user=ann")
					}
					for range 50 {
						_, _ = within(t, s, 100*time.Millisecond, both)
						if how == "hangs" {
							_, _ = within(t, s, 100*time.Millisecond, request("user=ann")) // this server is not silent
						}
					}
					_, took := within(t, s, 100*time.Millisecond, both)
					require.Zero(t, took, "the breaker is open")
					answer, err := s.ShouldRateLimit(t.Context(), request("user=ann"))
					require.NoError(t, err)
					require.Contains(t, short(answer), "/1000000", "by the store")
				})
			})
		}
	}
}

// The servers of a store behind a cache are told apart, too.
func TestServersBehindACache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &cluster{hanging: &hanging{Store: memory(t)}}
		cached, err := denycache.New(st)
		require.NoError(t, err)
		s, err := serve.New(cached, rules(t, "domain: edge\non_failure: open\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000}}"), serve.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		st.down.Store(true)
		for range 10 {
			require.Equal(t, "OK, OK", short(ask(t, s, "user=bob")))
		}
		require.Contains(t, short(ask(t, s, "user=ann")), "/1000", "by the store")
	})
}
