package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestEachOfSeveralLimitsIsTold(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	require.NoError(t, err)
	both := levels.New(t, "fixed_window", mem, "api", ratelimit.PerSecond(2), ratelimit.PerHour(3))
	h := httplimit.Middleware(both)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}

	w := ask()
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, `"api/s";q=2;w=1,"api/h";q=3;w=3600`, w.Header().Get("RateLimit-Policy"))
	require.Equal(t, `"api/s";r=1;t=1,"api/h";r=2;t=3600`, w.Header().Get("RateLimit"))
	require.Equal(t, "1", w.Header().Get("X-RateLimit-Remaining"))

	require.Equal(t, http.StatusOK, ask().Code)
	w = ask()
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.Equal(t, `"api/s";r=0;t=1,"api/h";r=1`, w.Header().Get("RateLimit"), "the hour has room, and was not charged")
	require.Contains(t, w.Body.String(), `"violated-policies":["api/s"]`)

	now = now.Add(time.Second)
	require.Equal(t, http.StatusOK, ask().Code)
	w = ask()
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "3599", w.Header().Get("Retry-After"))
	require.Contains(t, w.Body.String(), `"violated-policies":["api/h"]`)
}

// one returns the fields of the style that has room for one limit: how many events it allows, how many are left,
// and in how many seconds it resets, by the clock of a bubble.
func one(t *testing.T, h http.Header) string {
	t.Helper()
	at, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64)
	require.NoError(t, err)
	return fmt.Sprintf("%s, %s, %d", h.Get("X-RateLimit-Limit"), h.Get("X-RateLimit-Remaining"), at-time.Now().Unix())
}

// A First that denies has the numbers of the limiter that admits again first, in every style.
func TestAFirstTellsTheSameTimeInEachField(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		window := func(name string, l ratelimit.Limit) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFixedWindow(mem, l, ratelimit.WithName(name)))
		}
		first, err := ratelimit.NewFirst(window("day", ratelimit.PerDay(1)), window("minute", ratelimit.PerMinute(2)), window("hour", ratelimit.PerHour(3)))
		require.NoError(t, err)
		h := httplimit.Middleware(first)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for i, want := range []string{
			"1, 0, 86400",
			"2, 1, 60", "2, 0, 60",
			"3, 2, 3600", "3, 1, 3600", "3, 0, 3600",
			"2, 0, 60",
		} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			require.Equal(t, want, one(t, w.Header()), i)
			require.Equal(t, map[bool]string{true: "60"}[i == 6], w.Header().Get("Retry-After"), i)
		}
	})
}

// A First that admits has the numbers of the limiter that was charged, although a limit that was not has fewer left.
func TestAFirstTellsOfTheLimiterThatWasCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		window := func(name string, l ratelimit.Limit) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFixedWindow(mem, l, ratelimit.WithName(name)))
		}
		plan, err := ratelimit.NewAll(window("hour", ratelimit.PerHour(1)), window("day", ratelimit.PerDay(2)))
		require.NoError(t, err)
		first, err := ratelimit.NewFirst(plan, window("credits", ratelimit.PerDay(100)))
		require.NoError(t, err)
		h := httplimit.Middleware(first)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for _, want := range []string{"1, 0, 3600", "100, 99, 86400", "100, 98, 86400"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			require.Equal(t, want, one(t, w.Header()))
		}
	})
}

func TestALimitThatWasNotAskedIsNotTold(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	onItsOwnStore := func(name string, rate int) ratelimit.Limiter {
		mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
		require.NoError(t, err)
		lim, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(rate), ratelimit.WithName(name))
		require.NoError(t, err)
		return lim
	}
	for _, c := range []struct {
		first, second       int // rates
		rateLimit, violated string
	}{
		{1, 100, `"first";r=0;t=3600`, `["first"]`},
		{0, 100, `"first";r=0`, `["first"]`},
		{9, 1, `"first";r=8,"second";r=0;t=3600`, `["second"]`},
	} {
		all, err := ratelimit.NewAll(onItsOwnStore("first", c.first), onItsOwnStore("second", c.second))
		require.NoError(t, err)
		h := httplimit.Middleware(all)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w := httptest.NewRecorder()
		for range 2 {
			w = httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		}
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, c.rateLimit, w.Header().Get("RateLimit"))
		require.Contains(t, w.Body.String(), `"violated-policies":`+c.violated)
	}
}

func TestFieldsWithRoomForOneLimitAreOfOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			algorithm string
			levels    []ratelimit.Limit
			reset     int // in seconds, at Remaining 0
		}{
			{"fixed_window", []ratelimit.Limit{ratelimit.PerSecond(2), ratelimit.PerHour(1000)}, 1},
			{"sliding_window", []ratelimit.Limit{ratelimit.PerSecond(2), ratelimit.PerHour(1000)}, 2},
			{"fixed_window", []ratelimit.Limit{ratelimit.PerSecond(9), ratelimit.PerHour(2)}, 3600},
			{"fixed_window", []ratelimit.Limit{ratelimit.PerSecond(2), ratelimit.PerHour(2)}, 3600}, // the longer of two that are used up
			{"token_bucket", []ratelimit.Limit{{Rate: 60, Period: time.Minute, Burst: 2}, ratelimit.PerHour(1000)}, 1},
		} {
			both := levels.New(t, c.algorithm, memory(t), "api", c.levels...)
			h := httplimit.Middleware(both)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			var w *httptest.ResponseRecorder
			for range 2 {
				w = httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				require.Equal(t, http.StatusOK, w.Code)
			}
			require.Equal(t, fmt.Sprintf("2, 0, %d", c.reset), one(t, w.Header()))
		}
	})
}

func TestAtNothingLeftTheTimeIsThatToTheNextPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, algorithm := range []string{"fixed_window", "token_bucket", "leaky_bucket"} {
			for _, l := range []ratelimit.Limit{ratelimit.PerMinute(7), ratelimit.PerHour(60), ratelimit.PerSecond(3)} {
				lim, err := ratelimit.New(algorithm, memory(t), l)
				require.NoError(t, err)
				h := httplimit.Middleware(lim)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				w := httptest.NewRecorder()
				for range l.Rate {
					w = httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				}
				require.Equal(t, http.StatusOK, w.Code)
				said := one(t, w.Header())
				w = httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				require.Equal(t, http.StatusTooManyRequests, w.Code)
				require.True(t, strings.HasSuffix(said, ", 0, "+w.Header().Get("Retry-After")), "%s of %v: %s", algorithm, l, said)
			}
		}
	})
}

func TestInAnAllTheTimeIsThatToTheNextPlaceToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(2)))
		lim := ratelimit.Must(ratelimit.NewAll(bucket, window(t, mem, ratelimit.PerDay(100), ratelimit.WithName("daily"))))
		h := httplimit.Middleware(lim, httplimit.WithHeaders(httplimit.Legacy))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w := httptest.NewRecorder()
		for range 2 {
			w = httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		}
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, fmt.Sprint(time.Now().Unix()+30), w.Header().Get("X-RateLimit-Reset"))
	})
}

func TestWhileALocalShareDecidesThePolicyIsTheShares(t *testing.T) {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	local, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(10))
	require.NoError(t, err)
	down := unreachable{window(t, memory(t), ratelimit.PerHour(100), ratelimit.WithName("api"))}
	lim, err := fallback.New(down, fallback.FailTo(local))
	require.NoError(t, err)
	w := httptest.NewRecorder()
	protect(t, lim).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, `"api";q=10;w=3600`, w.Header().Get("RateLimit-Policy"))
	require.Equal(t, `"api";r=9;t=3600`, w.Header().Get("RateLimit"))
	require.Equal(t, "10", w.Header().Get("X-RateLimit-Limit"))
}

func TestThePolicyOfALocalShareHasItsWindow(t *testing.T) {
	tiers := ratelimit.WithTiers(func(_ context.Context, key string) (string, error) { return key, nil },
		map[string]ratelimit.Limit{"global": ratelimit.PerHour(80)})
	other := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "all", nil })
	for name, c := range map[string]struct {
		algorithm string
		limit     ratelimit.Limit
		opts      []ratelimit.Option
		watched   bool
		want      string
	}{
		"a window":           {algorithm: "fixed_window", limit: ratelimit.PerHour(40), want: `"api";q=10;w=3600`},
		"less than an event": {algorithm: "sliding_log", limit: ratelimit.PerHour(1), want: `"api";q=1;w=14400`},
		"a bucket": {algorithm: "token_bucket", limit: ratelimit.Limit{Rate: 10, Period: time.Hour, Burst: 4},
			want: `"api";q=1;w=1440`},
		"a tier":                   {algorithm: "fixed_window", limit: ratelimit.PerHour(40), opts: []ratelimit.Option{tiers}, want: `"api";q=20;w=3600`},
		"inside of other limiters": {algorithm: "fixed_window", limit: ratelimit.PerHour(40), opts: []ratelimit.Option{ratelimit.CountCalls()}, watched: true, want: `"api";q=10;w=3600`},
		"asked for another key":    {algorithm: "fixed_window", limit: ratelimit.PerHour(40), opts: []ratelimit.Option{tiers, other}, want: `"api";q=10;w=3600`},
	} {
		lim, err := ratelimit.New(c.algorithm, unreachableStore{}, c.limit, append(c.opts, ratelimit.WithName("api"))...)
		require.NoError(t, err)
		lim, err = fallback.New(lim, fallback.FailLocal(4))
		require.NoError(t, err)
		if c.watched {
			lim, err = observe.Around(lim, nobody{})
			require.NoError(t, err)
		}
		h := protect(t, lim, httplimit.WithKey(httplimit.Global()))
		for range 30 { // and of denials
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			require.Equal(t, c.want, w.Header().Get("RateLimit-Policy"), name)
		}
		r, err := lim.Allow(t.Context(), "global")
		require.NoError(t, err)
		header := make(http.Header)
		httplimit.SetHeaders(header, httplimit.NewDecision(t.Context(), lim, "global", r))
		require.Equal(t, c.want, header.Get("RateLimit-Policy"), name)
	}
}

// A request for more than a local share may have room when the store is back, and the next probe
// will show. Each field says so, whatever other limits there are.
func TestMoreThanALocalShareIsToComeBack(t *testing.T) {
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(unreachableStore{}, ratelimit.PerMinute(20), ratelimit.WithName("tokens")))
	calls := ratelimit.Must(ratelimit.NewFixedWindow(unreachableStore{}, ratelimit.PerMinute(20), ratelimit.CountCalls(), ratelimit.WithName("calls")))
	slots := ratelimit.Must(inflight.New(unreachableStore{}, 20, time.Minute, ratelimit.WithName("slots")))
	for _, limits := range [][]ratelimit.Limiter{{tokens}, {tokens, calls}, {slots, tokens}, {calls, slots, tokens}} {
		l := ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(limits...)), fallback.FailLocal(4)))
		w := httptest.NewRecorder()
		protect(t, l, httplimit.WithKey(httplimit.Global()), httplimit.WithCost(func(*http.Request) int { return 10 })).
			ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "1", w.Header().Get("Retry-After"), len(limits))
		require.Contains(t, w.Header().Get("RateLimit"), `"tokens";r=5;t=1`)
		require.Contains(t, w.Body.String(), `"retryAfter":1,"violated-policies":["tokens"]`)
	}
}

// nobody is an observer.
type nobody struct{}

func (nobody) Decided(context.Context, string, int, ratelimit.Result, error, time.Duration) {}

// unreachableStore is a store that is down.
type unreachableStore struct{ store.Store }

func (unreachableStore) Together(string, string) bool { return true }

// Decide implements [store.Store].
func (u unreachableStore) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, u, u.Store, requests, replies)
}

func (unreachableStore) TakeAll(context.Context, []store.Request, []store.Reply) error {
	return store.ErrUnavailable
}

func (unreachableStore) Prepare(*store.Rule, store.Limit, bool) error { return nil }

func (unreachableStore) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

func (unreachableStore) Peek(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

func (unreachableStore) TakeUpTo(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

// unreachable is a limiter whose store fails. It describes itself as before.
type unreachable struct{ ratelimit.Limiter }

func (unreachable) AllowN(context.Context, string, int) (ratelimit.Result, error) {
	return ratelimit.Result{}, ratelimit.ErrStore
}

func (l unreachable) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, l.Limiter, key)
}
