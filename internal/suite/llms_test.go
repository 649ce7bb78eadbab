package suite_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/plancache"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// The functions are the code of docs/llms.txt.

var errTooMany = errors.New("too many requests")

func limitServer(store store.Store, handler http.Handler) (http.Handler, error) {
	limiter, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(60), ratelimit.WithName("web"))
	if err != nil {
		return nil, err
	}
	key := httplimit.ClientIP([]string{"10.0.0.7"}) // the load balancer; without one httplimit.PeerIP()
	limit, err := httplimit.New(limiter, httplimit.WithKey(key))
	if err != nil {
		return nil, err
	}
	return limit(handler), nil
}

func sharedStore(addr string) (*redisstore.Store, error) {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	return redisstore.New(client) // Redis 6.2 or later; nothing to close but the client
}

func mayCall(ctx context.Context, limiter ratelimit.Limiter, user string) error {
	r, err := limiter.Allow(ctx, "user:"+user)
	switch {
	case err != nil:
		return err // no decision is known: an error is not a denial
	case !r.Allowed:
		return fmt.Errorf("%w: try again in %v", errTooMany, r.RetryAfter) // ratelimit.Never if waiting never helps
	}
	return nil
}

func twoLimits(store store.Store) (*ratelimit.All, error) {
	perSecond, err := ratelimit.NewTokenBucket(store, ratelimit.PerSecond(10), ratelimit.WithName("burst"))
	if err != nil {
		return nil, err
	}
	perMonth, err := ratelimit.NewFixedWindow(store, ratelimit.PerMonth(5000), ratelimit.WithName("quota"))
	if err != nil {
		return nil, err
	}
	return ratelimit.NewAll(perSecond, perMonth) // all are charged, or none
}

func plansOf(store store.Store, planOf func(ctx context.Context, key string) (string, error)) (ratelimit.Limiter, error) {
	plans, err := plancache.New(planOf, time.Minute) // planOf asks the database, at most once a minute per key
	if err != nil {
		return nil, err
	}
	tiers := map[string]ratelimit.Limit{"pro": ratelimit.PerMinute(1000), "internal": ratelimit.Unlimited()}
	return ratelimit.NewTokenBucket(store, ratelimit.PerMinute(10), // for every other plan
		ratelimit.WithName("api"), ratelimit.WithTiers(plans.Get, tiers))
}

func survive(limiter ratelimit.Limiter) (*fallback.Limiter, error) {
	return fallback.New(limiter, fallback.FailLocal(3)) // three instances count in memory; or FailOpen(), FailClosed()
}

// wrong, err := ratelimit.NewSlidingLog(store, ratelimit.Limit{Rate: 5, Period: 15 * time.Minute}, ratelimit.WithName("login"))
func login(ctx context.Context, wrong ratelimit.Limiter, address, user string, check func() bool) error {
	r, err := wrong.Allow(ctx, address+" "+user) // charge before the password is checked
	switch {
	case err != nil:
		return err
	case !r.Allowed:
		return errTooMany
	}
	if check() {
		return wrong.Refund(ctx, address+" "+user, r, 1) // only wrong passwords count
	}
	return nil
}

func callSupplier(store store.Store) (*http.Client, error) {
	limiter, err := ratelimit.NewLeakyBucket(store, ratelimit.PerSecond(20), ratelimit.WithName("supplier"))
	if err != nil {
		return nil, err
	}
	transport, err := httplimit.NewTransport(http.DefaultTransport, limiter, httplimit.WithRetries(3))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport, Timeout: time.Minute}, nil // it waits for its turn and for Retry-After
}

// tokens, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(10_000), ratelimit.WithName("tokens"))
func completion(ctx context.Context, tokens ratelimit.Limiter, user string, complete func() (used int)) error {
	reserved, r, err := ratelimit.Reserve(ctx, tokens, user, 2000) // an estimate
	switch {
	case err != nil:
		return err
	case !r.Allowed:
		return errTooMany
	}
	_, err = reserved.Settle(ctx, max(1, complete())) // what was used: the difference is refunded or charged
	return err
}

// exports, err := inflight.New(store, 2, time.Minute, ratelimit.WithName("exports"))
func export(ctx context.Context, exports ratelimit.Limiter, user string, work func()) error {
	slot, r, err := inflight.Hold(ctx, exports, user, 1)
	switch {
	case err != nil:
		return err
	case !r.Allowed:
		return errTooMany
	}
	defer slot.Release()
	work()
	return nil
}

func TestTheCodeOfLLMs(t *testing.T) {
	ctx, clock := t.Context(), ratelimittest.NewClock(time.Now())
	mem := clock.Memory(t)
	web, err := limitServer(mem, http.NotFoundHandler())
	require.NoError(t, err)
	w := httptest.NewRecorder()
	web.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusNotFound, w.Code)

	shared, err := sharedStore("localhost:6379") // it does not connect
	require.NoError(t, err)
	require.NotNil(t, shared)
	both, err := twoLimits(mem)
	require.NoError(t, err)
	safe, err := survive(both)
	require.NoError(t, err)
	for range 10 {
		require.NoError(t, mayCall(ctx, safe, "ann"))
	}
	require.ErrorIs(t, mayCall(ctx, safe, "ann"), errTooMany)

	plans, err := plansOf(mem, func(context.Context, string) (string, error) { return "pro", nil })
	require.NoError(t, err)
	r, err := plans.Allow(ctx, "user:ann")
	require.NoError(t, err)
	require.Equal(t, 1000, r.Limit)

	wrong := ratelimittest.New(t, "sliding_log", mem, ratelimit.Limit{Rate: 5, Period: 15 * time.Minute}, ratelimit.WithName("login"))
	for range 10 {
		require.NoError(t, login(ctx, wrong, "192.0.2.1", "ann", func() bool { return true }))
	}
	for range 5 {
		require.NoError(t, login(ctx, wrong, "192.0.2.1", "ann", func() bool { return false }))
	}
	require.ErrorIs(t, login(ctx, wrong, "192.0.2.1", "ann", nil), errTooMany)

	client, err := callSupplier(mem)
	require.NoError(t, err)
	require.NotNil(t, client)

	tokens := ratelimittest.New(t, "token_bucket", mem, ratelimit.PerMinute(10_000), ratelimit.WithName("tokens"))
	require.NoError(t, completion(ctx, tokens, "ann", func() int { return 3000 }))
	left, err := tokens.Peek(ctx, "ann")
	require.NoError(t, err)
	require.Equal(t, 7000, left.Remaining)

	exports, err := inflight.New(mem, 2, time.Minute, ratelimit.WithName("exports"))
	require.NoError(t, err)
	require.NoError(t, export(ctx, exports, "ann", func() {
		require.NoError(t, export(ctx, exports, "ann", func() {
			require.ErrorIs(t, export(ctx, exports, "ann", nil), errTooMany)
		}))
	}))
}
