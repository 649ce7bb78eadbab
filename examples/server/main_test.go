package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/observe"
)

const callers = 50

// onEachStore runs a test in memory and on Redis. Time stands still in the stores, so no
// window ends in a test. Redis has a long timeout, so no call falls back.
func onEachStore(t *testing.T, test func(t *testing.T, s *service)) {
	t.Helper()
	at := time.Now()
	cfg := config{grace: time.Minute, clock: func() time.Time { return at }}
	t.Run("memory", func(t *testing.T) { test(t, start(t, cfg)) })
	t.Run("redis", func(t *testing.T) {
		cfg.redisAddr, cfg.redisTimeout = redistest.Start(t).Addr(), 10*time.Second
		s := start(t, cfg)
		test(t, s)
		for _, name := range routeNames {
			require.Zero(t, s.counts(t, name).Local, "decisions without Redis")
			require.Zero(t, s.counts(t, name+"/store").Errors)
		}
	})
}

// service is a running server, and its client.
type service struct {
	url     string
	private string // url for operators
	log     *lockedBuffer
	client  *http.Client
	cancel  context.CancelFunc
	end     func() error // waits for the return of run
}

// start runs a server until the end of the test, or until it is cancelled.
func start(t *testing.T, cfg config) *service {
	t.Helper()
	l := listen(t)
	s := new(service)
	s.log = new(lockedBuffer)
	cfg.log = slog.New(slog.NewJSONHandler(s.log, nil))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, l, cfg) }()
	*s = service{
		url:     "http://" + l.public.Addr().String(),
		private: "http://" + l.private.Addr().String(),
		log:     s.log,
		client:  newClient(t, new(net.Dialer)),
		cancel:  cancel,
		end:     sync.OnceValue(func() error { return <-ended }),
	}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		cancel()
		_ = s.end()
	})
	return s
}

func listen(t *testing.T) listeners {
	t.Helper()
	public, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	private, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return listeners{public, private}
}

// lockedBuffer is a log.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func newClient(t *testing.T, dialer *net.Dialer) *http.Client {
	t.Helper()
	transport := &http.Transport{
		DialContext: dialer.DialContext, MaxIdleConnsPerHost: callers, ExpectContinueTimeout: time.Minute,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

func (s *service) do(r *http.Request) (answer, error) {
	res, err := s.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(body)}, errors.Join(err, res.Body.Close())
}

// get makes a request with an API key, or with none.
func (s *service) get(path, apiKey string) *http.Request {
	r, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	if err != nil {
		panic(err)
	}
	if apiKey != "" {
		r.Header.Set("X-API-Key", apiKey)
	}
	return r
}

func (s *service) login(user, password string) *http.Request {
	form := url.Values{"user": {user}, "password": {password}}.Encode()
	r, err := http.NewRequest(http.MethodPost, s.url+"/v1/login", strings.NewReader(form))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

// one sends one request.
func (s *service) one(t *testing.T, r *http.Request) answer {
	t.Helper()
	a, err := s.do(r)
	require.NoError(t, err)
	return a
}

// drive sends n requests, from as many goroutines as there are callers.
func (s *service) drive(t *testing.T, n int, request func() *http.Request) []answer {
	t.Helper()
	answers, errs := make([]answer, n), make([]error, callers)
	var next atomic.Int64
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && errs[caller] == nil; i = next.Add(1) - 1 {
				answers[i], errs[caller] = s.do(request())
			}
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	return answers
}

// operator makes a request to the address of operators.
func (s *service) operator(t *testing.T, path string) answer {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, s.private+path, nil)
	require.NoError(t, err)
	a := s.one(t, r)
	require.Equal(t, http.StatusOK, a.status)
	return a
}

// limitsPage is what /limits shows.
type limitsPage struct {
	Counters []observe.Snapshot     `json:"counters"`
	TopKeys  map[string]observe.Top `json:"top_keys"`
}

func (s *service) limits(t *testing.T) (page limitsPage) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(s.operator(t, "/limits").body), &page))
	return page
}

// counts are those of a limiter.
type counts struct{ Allowed, Blocked, Local, Errors int64 }

var routeNames = []string{"algorithms", "search", "login"}

func (s *service) counts(t *testing.T, name string) (c counts) {
	t.Helper()
	for _, counters := range s.limits(t).Counters {
		if counters.Limiter != name {
			continue
		}
		for _, d := range counters.Decisions {
			switch d.Outcome {
			case "allowed":
				c.Allowed += d.Calls
			default:
				c.Blocked += d.Calls
			}
			if d.Source == "local" {
				c.Local += d.Calls
			}
		}
		for _, e := range counters.Errors {
			c.Errors += e.Calls
		}
	}
	return c
}

// count is how many answers have that status.
func count(answers []answer, status int) int {
	n := 0
	for _, a := range answers {
		if a.status == status {
			n++
		}
	}
	return n
}

// requireSplit requires that admitted answers have status ok, and that all others are
// refused.
func requireSplit(t *testing.T, answers []answer, ok, admitted int) {
	t.Helper()
	require.Equal(t, admitted, count(answers, ok))
	require.Equal(t, len(answers)-admitted, count(answers, http.StatusTooManyRequests))
}

func TestEachTierHasExactlyItsLimit(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *service) {
		for _, tier := range []struct {
			apiKey string
			limit  int
		}{{"", 60}, {"demo-free", 100}, {"demo-pro", 1000}} {
			answers := s.drive(t, tier.limit+2*callers, func() *http.Request { return s.get("/v1/algorithms", tier.apiKey) })
			requireSplit(t, answers, http.StatusOK, tier.limit)

			var left, want []int
			for _, a := range answers {
				l := limitsIn(t, a)
				require.Equal(t, []limitIn{{"client", tier.limit, 60, l[0].left}}, l)
				if a.status == http.StatusOK {
					left = append(left, l[0].left)
				}
			}
			for n := range tier.limit {
				want = append(want, n)
			}
			slices.Sort(left)
			require.Equal(t, want, left, "each admission leaves another number")
		}
		require.Equal(t, http.StatusTooManyRequests, s.one(t, s.get("/v1/algorithms", "invented")).status,
			"an API key that nobody was given is that of the address")
	})
}

func TestASearchIsWithinItsOwnLimitAndTheClients(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *service) {
		search := func(apiKey string) func() *http.Request {
			return func() *http.Request { return s.get("/v1/search?q=bucket", apiKey) }
		}
		answers := s.drive(t, 3*callers, search(""))
		requireSplit(t, answers, http.StatusOK, 20)
		for _, a := range answers {
			l := limitsIn(t, a)
			require.Len(t, l, 2)
			require.Equal(t, limitIn{"client", 60, 60, l[0].left}, l[0])
			require.Equal(t, limitIn{"search", 20, 60, l[1].left}, l[1])
			if a.status == http.StatusOK {
				require.JSONEq(t, `{"found":["token_bucket","leaky_bucket"]}`, a.body)
			} else {
				require.Contains(t, a.body, `"violated-policies":["search"]`)
			}
		}
		list := func() *http.Request { return s.get("/v1/algorithms", "") }
		requireSplit(t, s.drive(t, 2*callers, list), http.StatusOK, 40) // denied searches have cost nothing

		requireSplit(t, s.drive(t, 2*callers, search("demo-pro")), http.StatusOK, 20) // of another client

		free := func() *http.Request { return s.get("/v1/algorithms", "demo-free") }
		requireSplit(t, s.drive(t, 95, free), http.StatusOK, 95)
		requireSplit(t, s.drive(t, callers, search("demo-free")), http.StatusOK, 5) // what is left of the client's limit
	})
}

func TestLoginsAreFivePerUserAndTwentyPerAddress(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *service) {
		demo := func() *http.Request { return s.login("Demo", demoPassword) }
		answers := s.drive(t, 2*callers, demo)
		requireSplit(t, answers, http.StatusOK, 5)
		for _, a := range answers {
			l := limitsIn(t, a)
			require.Len(t, l, 2)
			require.Equal(t, limitIn{"login", 5, 900, l[0].left}, l[0])
			require.Equal(t, limitIn{"login-address", 20, 900, l[1].left}, l[1])
		}
		require.Equal(t, http.StatusTooManyRequests, s.one(t, s.login("dEMO", "guess")).status, "no other user")

		for i := range 3 {
			guess := func() *http.Request { return s.login(fmt.Sprint("user-", i), demoPassword) }
			requireSplit(t, s.drive(t, callers, guess), http.StatusUnauthorized, 5)
		}
		a := s.one(t, s.login("user-3", "guess")) // the 21st
		require.Equal(t, http.StatusTooManyRequests, a.status)
		require.Contains(t, a.body, `"violated-policies":["login-address"]`)

		require.Equal(t, http.StatusOK, s.one(t, s.get("/v1/algorithms", "")).status, "other routes are not concerned")
	})
}

func TestNobodyIsLockedOutFromElsewhere(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("127.0.0.2 is an address of this machine on Linux only")
	}
	onEachStore(t, func(t *testing.T, s *service) {
		requireSplit(t, s.drive(t, callers, func() *http.Request { return s.login(demoUser, "guess") }), http.StatusUnauthorized, 5)
		s.client.CloseIdleConnections() // the server's end would wait for a connection that was never used
		s.client = newClient(t, &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}})
		require.Equal(t, http.StatusOK, s.one(t, s.login(demoUser, demoPassword)).status)
	})
}

func TestALoginOfNobodyIsRefused(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *service) {
		for _, r := range []*http.Request{s.login("", "guess"), s.login(strings.Repeat("x", maxBody), "guess")} {
			a := s.one(t, r)
			require.Equal(t, http.StatusBadRequest, a.status)
			require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
		}
		for _, name := range routeNames {
			require.Zero(t, s.counts(t, name))
		}
	})
}

func TestHealthHasNoLimit(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *service) {
		s.drive(t, 2*callers, func() *http.Request { return s.get("/v1/algorithms", "") })
		require.Equal(t, http.StatusTooManyRequests, s.one(t, s.get("/v1/algorithms", "")).status)

		answers := s.drive(t, 40*callers, func() *http.Request { return s.get("/health", "") })
		require.Equal(t, len(answers), count(answers, http.StatusOK))
		for _, a := range answers {
			require.JSONEq(t, `{"status":"ok"}`, a.body)
			require.Empty(t, a.header.Values("RateLimit"))
		}
	})
}

func TestCountersAddUp(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *service) {
		s.mixed(t)
		require.Equal(t, counts{Allowed: 60, Blocked: 20}, s.counts(t, "algorithms"))
		require.Equal(t, counts{Allowed: 20, Blocked: 60}, s.counts(t, "search"))
		require.Equal(t, counts{Allowed: 5, Blocked: 75}, s.counts(t, "login"))
	})
}

// mixed sends 80 requests to each route.
func (s *service) mixed(t *testing.T) {
	t.Helper()
	var turn atomic.Int64
	requests := []func() *http.Request{
		func() *http.Request { return s.get("/v1/algorithms", "") },
		func() *http.Request { return s.get("/v1/search?q=log", "demo-free") },
		func() *http.Request { return s.login(demoUser, "guess") },
		func() *http.Request { return s.get("/health", "") },
	}
	s.drive(t, 4*80, func() *http.Request { return requests[turn.Add(1)%4]() })
}

func TestPrometheusScrapesTheServer(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *service) {
		for _, limit := range []string{"login", "login-address"} { // a rate sees the first denials
			require.Contains(t, s.operator(t, "/metrics").body, fmt.Sprintf("ratelimit_denied_by_total{denied_by=%q,limiter=\"login\"} 0", limit))
		}
		s.mixed(t)
		exposition := s.operator(t, "/metrics").body
		for _, sample := range []string{
			`ratelimit_decisions_total{limiter="algorithms",outcome="allowed",source="store"} 60`,
			`ratelimit_decisions_total{limiter="login",outcome="denied",source="store"} 75`,
			`ratelimit_denied_by_total{denied_by="search",limiter="search"} 60`,
			`ratelimit_store_keys{store="memory"} `,
		} {
			require.Contains(t, exposition, "\n"+sample)
		}
		requirePromtool(t, exposition)
		require.Equal(t, http.StatusNotFound, s.one(t, s.get("/metrics", "")).status)
		require.Equal(t, http.StatusNotFound, s.one(t, s.get("/limits", "")).status)
	})
}

// requirePromtool requires what Prometheus has no complaint about.
func requirePromtool(t *testing.T, exposition string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		require.Empty(t, os.Getenv("RATELIMIT_REQUIRE_PROMTOOL"), "there is no promtool")
		return
	}
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(exposition)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))
}

func TestOperatorsFindTheClientThatIsDeniedMost(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *service) {
		s.drive(t, 3*callers, func() *http.Request { return s.get("/v1/search", "demo-pro") })
		s.drive(t, callers, func() *http.Request { return s.get("/v1/search", "") })
		top := s.limits(t).TopKeys["search"]
		require.EqualValues(t, 130+30, top.Denials)
		require.Equal(t, []observe.TopKey{{Key: "user:customer-2", Count: 130}, {Key: "127.0.0.1", Count: 30}}, top.Keys)
		require.Equal(t, 2, strings.Count(s.log.String(), `"limiter":"search"`), "the first denial of each: %s", s.log)
	})
}

// Redis is killed when 499 of 1,500 requests are answered or on their way. Each of those
// on their way may be admitted beyond the limit.
func TestRedisDiesAndMemoryGoesOn(t *testing.T) {
	server := redistest.Start(t)
	at := time.Now()
	s := start(t, config{grace: time.Minute, redisAddr: server.Addr(), clock: func() time.Time { return at }})
	var sent atomic.Int64
	killed := make(chan struct{})
	request := func() *http.Request {
		switch n := sent.Add(1); {
		case n == 500:
			server.Kill()
			close(killed)
		case n > 500:
			<-killed
		}
		return s.get("/v1/algorithms", "demo-pro")
	}
	answers := s.drive(t, 1500, request)
	admitted, refused := count(answers, http.StatusOK), count(answers, http.StatusTooManyRequests)
	require.Equal(t, len(answers), admitted+refused, "no other status")
	require.GreaterOrEqual(t, admitted, 1000)
	require.LessOrEqual(t, admitted, 1000+callers)
	for _, a := range answers {
		require.Equal(t, "client", limitsIn(t, a)[0].name)
	}

	all, shared := s.counts(t, "algorithms"), s.counts(t, "algorithms/store")
	require.EqualValues(t, admitted, all.Allowed)
	require.EqualValues(t, refused, all.Blocked)
	require.GreaterOrEqual(t, all.Local, int64(1001), "all from the 500th on")
	require.Zero(t, all.Errors, "clients see none")
	require.Positive(t, shared.Errors)
	require.Less(t, shared.Errors, all.Local, "Redis is not asked each time")

	for range 5 { // one after the other: each fails, and the breaker opens
		s.one(t, s.get("/v1/algorithms", "demo-pro"))
	}
	require.Contains(t, s.log.String(), `"msg":"circuit breaker","limiter":"algorithms","state":"open"`)
	closed := strings.Contains(s.operator(t, "/metrics").body, "\n"+`ratelimit_breaker_state{limiter="algorithms",state="closed"} 1`)
	require.False(t, closed, "open, or a probe is due")

	requireSplit(t, s.drive(t, callers, func() *http.Request { return s.login(demoUser, demoPassword) }), http.StatusOK, 5)
	searches := s.drive(t, callers, func() *http.Request { return s.get("/v1/search", "") })
	requireSplit(t, searches, http.StatusOK, 20)
	require.Len(t, limitsIn(t, searches[0]), 2, "memory tells of each limit too")
}

func TestAServerStartsWhileRedisIsDown(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	at := time.Now()
	s := start(t, config{grace: time.Minute, redisAddr: server.Addr(), clock: func() time.Time { return at }})
	requireSplit(t, s.drive(t, 2*callers, func() *http.Request { return s.get("/v1/algorithms", "") }), http.StatusOK, 60)
}

// A login is under way, half of its body sent, when the server is told to end.
func TestTheEndWaitsForARequestUnderWay(t *testing.T) {
	s := start(t, config{grace: time.Minute})
	body, got := s.halfALogin(t)
	s.cancel()
	s.waitUntilClosed(t)
	ended := make(chan error, 1)
	go func() { ended <- s.end() }()
	select {
	case err := <-ended:
		t.Fatal("ended before its request:", err)
	case <-got:
		t.Fatal("an answer to half a request")
	default:
	}

	_, err := io.WriteString(body, "&password="+demoPassword)
	require.NoError(t, err)
	require.NoError(t, body.Close())
	r := <-got
	require.NoError(t, r.err)
	require.Equal(t, http.StatusOK, r.status)
	require.JSONEq(t, `{"user":"demo"}`, r.body)
	require.NoError(t, <-ended)
}

func TestTheEndDoesNotWaitForEver(t *testing.T) {
	s := start(t, config{grace: time.Millisecond})
	body, got := s.halfALogin(t)
	s.cancel()
	require.ErrorIs(t, s.end(), context.DeadlineExceeded)
	require.NoError(t, body.Close())
	require.Error(t, (<-got).err)
}

type outcome struct {
	answer
	err error
}

// halfALogin sends a login without its password, and returns when the server reads it.
func (s *service) halfALogin(t *testing.T) (*io.PipeWriter, <-chan outcome) {
	t.Helper()
	reader, writer := io.Pipe()
	read := make(chan struct{})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(read) }})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/login", reader)
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Expect", "100-continue") // which comes when the handler reads the body
	got := make(chan outcome, 1)
	go func() {
		a, err := s.do(r)
		got <- outcome{a, err}
	}()
	<-read
	_, err = io.WriteString(writer, "user="+demoUser)
	require.NoError(t, err)
	return writer, got
}

// waitUntilClosed returns when the server accepts no more connections.
func (s *service) waitUntilClosed(t *testing.T) {
	t.Helper()
	for t.Context().Err() == nil {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			return
		}
		require.NoError(t, conn.Close())
	}
}

func TestAServerThatCannotServeIsAnError(t *testing.T) {
	discard := slog.New(slog.DiscardHandler)
	l := listen(t)
	taken := l.public.Addr().String()
	require.Error(t, listenAndRun(t.Context(), config{log: discard, listen: taken, private: "127.0.0.1:0"}))
	require.Error(t, listenAndRun(t.Context(), config{log: discard, listen: "127.0.0.1:0", private: taken}))
	require.NoError(t, l.public.Close())
	require.ErrorIs(t, run(t.Context(), l, config{log: discard}), net.ErrClosed)
	require.ErrorIs(t, l.private.Close(), net.ErrClosed, "the other one ends too")

	l = listen(t)
	require.NoError(t, l.private.Close())
	require.ErrorIs(t, run(t.Context(), l, config{log: discard}), net.ErrClosed)
	require.ErrorIs(t, l.public.Close(), net.ErrClosed)

	l = listen(t)
	err := run(t.Context(), l, config{log: discard, redisAddr: "127.0.0.1:1", redisTimeout: -1})
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorIs(t, l.public.Close(), net.ErrClosed)
	require.ErrorIs(t, l.private.Close(), net.ErrClosed)
}

func TestTheEnvironmentIsTheConfiguration(t *testing.T) {
	environment := map[string]string{}
	of := func() config {
		cfg := configOf(func(name string) string { return environment[name] })
		require.NotNil(t, cfg.log)
		cfg.log = nil
		return cfg
	}
	require.Equal(t, config{listen: ":8080", private: "localhost:8081", grace: 10 * time.Second}, of())
	environment["LISTEN"], environment["PRIVATE_LISTEN"], environment["REDIS_ADDR"] = "127.0.0.1:0", "127.0.0.1:1", "redis:6379"
	require.Equal(t, config{listen: "127.0.0.1:0", private: "127.0.0.1:1", redisAddr: "redis:6379", grace: 10 * time.Second}, of())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := config{listen: "127.0.0.1:0", private: "127.0.0.1:0", grace: time.Minute, log: slog.New(slog.DiscardHandler)}
	require.NoError(t, listenAndRun(ctx, cfg))
}

func TestNothingIsLeftAfterTheEnd(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection closes forgotten connections
	server := redistest.Start(t)
	asking := server.Client(t)
	require.NoError(t, asking.Ping(t.Context()).Err())
	before := runtime.NumGoroutine()
	s := start(t, config{grace: time.Minute, redisAddr: server.Addr()})
	s.drive(t, 2*callers, func() *http.Request { return s.get("/v1/search", "demo-pro") })
	s.client.CloseIdleConnections()
	s.cancel()
	require.NoError(t, s.end())
	left := func() bool {
		return runtime.NumGoroutine() > before ||
			asking.InfoMap(t.Context(), "clients").Item("Clients", "connected_clients") != "1"
	}
	for range 500 {
		if !left() {
			return
		}
		time.Sleep(10 * time.Millisecond) // connections end in their own goroutines, and on Redis some time later
	}
	t.Log(asking.ClientList(t.Context()).Val())
	stacks := make([]byte, 1<<20)
	t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}

// limitIn is what the fields of an answer say about a limit.
type limitIn struct {
	name                string
	quota, window, left int
}

// limitsIn reads the fields of a, and fails unless they fit together.
func limitsIn(t *testing.T, a answer) []limitIn {
	t.Helper()
	policies, err := httpsfv.UnmarshalList(a.header.Values("RateLimit-Policy"))
	require.NoError(t, err)
	limits, err := httpsfv.UnmarshalList(a.header.Values("RateLimit"))
	require.NoError(t, err)
	require.Len(t, limits, len(policies))

	least := 0
	all := make([]limitIn, len(limits))
	for i := range limits {
		policy, limit := policies[i].(httpsfv.Item), limits[i].(httpsfv.Item)
		require.Equal(t, policy.Value, limit.Value)
		all[i] = limitIn{policy.Value.(string), integer(t, policy, "q"), integer(t, policy, "w"), integer(t, limit, "r")}
		if all[i].left < all[least].left {
			least = i
		}
	}
	require.Equal(t, all[least].quota, number(t, a, "X-RateLimit-Limit"))
	require.Equal(t, all[least].left, number(t, a, "X-RateLimit-Remaining"))
	require.Positive(t, number(t, a, "X-RateLimit-Reset"))
	if a.status != http.StatusTooManyRequests {
		require.Empty(t, a.header.Values("Retry-After"))
		return all
	}
	require.Positive(t, number(t, a, "Retry-After"))
	require.LessOrEqual(t, number(t, a, "Retry-After"), 900)
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
	require.True(t, json.Valid([]byte(a.body)))
	return all
}

func integer(t *testing.T, item httpsfv.Item, param string) int {
	t.Helper()
	value, ok := item.Params.Get(param)
	require.True(t, ok, param)
	n, ok := value.(int64)
	require.True(t, ok, param)
	return int(n)
}

func number(t *testing.T, a answer, name string) int {
	t.Helper()
	n, err := strconv.Atoi(a.header.Get(name))
	require.NoError(t, err, name)
	return n
}

// The log is JSON, also while Redis is down, when go-redis writes to it. The program itself must do so, because the
// logger of go-redis is one for the whole process.
func TestTheLogIsJSONWhileRedisIsDown(t *testing.T) {
	if os.Getenv("SERVE") == "1" {
		os.Args = os.Args[:1]
		main()
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheLogIsJSONWhileRedisIsDown$")
	cmd.Env = append(os.Environ(), "SERVE=1", "LISTEN=127.0.0.1:0", "PRIVATE_LISTEN=127.0.0.1:0", "REDIS_ADDR=127.0.0.1:1")
	out, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var line struct{ Library, Public string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line), lines.Text())
		if line.Public != "" { // it listens
			resp, err := http.Get("http://" + line.Public + "/v1/algorithms")
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		if line.Library == "go-redis" {
			return
		}
	}
	t.Fatal("the log has ended, without what go-redis says")
}

func TestHelpDoesNotServe(t *testing.T) {
	for _, arg := range []string{"-h", "-help", "--help"} {
		var stdout, stderr strings.Builder
		code, serves := arguments([]string{arg}, &stdout, &stderr)
		require.False(t, serves)
		require.Zero(t, code)
		require.Empty(t, stderr.String())
		for _, variable := range []string{"LISTEN", "PRIVATE_LISTEN", "REDIS_ADDR"} {
			require.Contains(t, stdout.String(), "\n\t"+variable+" ")
		}
	}
	var stdout, stderr strings.Builder
	code, serves := arguments([]string{"-listen", ":80"}, &stdout, &stderr)
	require.False(t, serves, "an argument that has no effect")
	require.Equal(t, 2, code)
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), `no argument "-listen"`)
	_, serves = arguments(nil, &stdout, &stderr)
	require.True(t, serves)
}
