package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// customers are those with an API key. A real service has them in its database, by the
// hash of the key.
var customers = map[string]string{
	"demo-free": "customer-1",
	"demo-pro":  "customer-2",
}

// tierOf is each customer's tier.
var tierOf = map[string]string{
	"customer-1": "free",
	"customer-2": "pro",
}

var (
	anonymous = ratelimit.PerMinute(60) // per address
	tiers     = map[string]ratelimit.Limit{
		"free": ratelimit.PerMinute(100),
		"pro":  ratelimit.PerMinute(1000),
	}
	searches         = ratelimit.PerMinute(20) // of any client, besides its tier's limit
	logins           = ratelimit.Limit{Rate: 5, Period: 15 * time.Minute}
	loginsPerAddress = ratelimit.Limit{Rate: 20, Period: 15 * time.Minute}
)

// address is the client's. Behind a load balancer use
// httplimit.ClientIP([]string{"10.0.0.7"}), which reads X-Forwarded-For.
var address = httplimit.PeerIP()

// client is the key of a request. With a known API key it is "user:customer-1", and
// otherwise "192.0.2.1". The API key itself is a secret, and stays out of the store.
var client = httplimit.First(
	httplimit.User(func(r *http.Request) string { return customers[r.Header.Get("X-API-Key")] }),
	address,
)

// attempt is the key of a login: "attempt:192.0.2.1 demo".
var attempt = httplimit.KeyFunc("attempt", func(r *http.Request) (string, error) {
	ip, err := address.Of(r)
	user := r.PostFormValue("user")
	if err != nil || user == "" {
		return "", httplimit.ErrNoIdentity
	}
	return ip + " " + strings.ToLower(user), nil
})

// clientLimits returns the limits of clients, by their tier.
func clientLimits(s store.Store) (ratelimit.Limiter, error) {
	tier := func(_ context.Context, key string) (string, error) {
		return tierOf[strings.TrimPrefix(key, "user:")], nil // "" is anonymous
	}
	return ratelimit.NewTokenBucket(s, anonymous, ratelimit.WithName("client"), ratelimit.WithTiers(tier, tiers))
}

// searchLimits returns the limits of searches: the client's and one for searches. A
// search that one of them denies is charged to neither.
func searchLimits(s store.Store) (ratelimit.Limiter, error) {
	all, err := clientLimits(s)
	if err != nil {
		return nil, err
	}
	search, err := ratelimit.NewTokenBucket(s, searches, ratelimit.WithName("search"))
	if err != nil {
		return nil, err
	}
	return ratelimit.NewAll(all, search)
}

// loginLimits returns the limits of password guesses. There are a few per user and
// address, so that a guesser cannot lock out a user who is elsewhere. There are some more
// per address, whatever the user. They hold in any 15 minutes, exactly, so they use a
// log.
func loginLimits(s store.Store) (ratelimit.Limiter, error) {
	perUser, err := ratelimit.NewSlidingLog(s, logins, ratelimit.WithName("login"))
	if err != nil {
		return nil, err
	}
	addressOf := func(_ context.Context, key string) (string, error) {
		ip, _, _ := strings.Cut(strings.TrimPrefix(key, "attempt:"), " ")
		return ip, nil
	}
	perAddress, err := ratelimit.NewSlidingLog(s, loginsPerAddress, ratelimit.WithName("login-address"), ratelimit.WithKeyFunc(addressOf))
	if err != nil {
		return nil, err
	}
	return ratelimit.NewAll(perUser, perAddress)
}

// stores are where limits are counted.
type stores struct {
	memory *memstore.Store
	shared *redisstore.Store // nil without Redis
	client *redis.Client
}

// newStores does not connect: the server also starts while Redis is down.
func newStores(cfg config) (*stores, error) {
	var inMemory []memstore.Option
	var onRedis []redisstore.Option
	if cfg.clock != nil {
		inMemory = append(inMemory, memstore.WithClock(cfg.clock))
		onRedis = append(onRedis, redisstore.WithClock(cfg.clock))
	}
	if cfg.redisTimeout != 0 {
		onRedis = append(onRedis, redisstore.WithTimeout(cfg.redisTimeout))
	}
	memory, err := memstore.New(inMemory...)
	if err != nil || cfg.redisAddr == "" {
		return &stores{memory: memory}, err
	}
	client := redis.NewClient(&redis.Options{Addr: cfg.redisAddr, ContextTimeoutEnabled: true})
	shared, err := redisstore.New(client, onRedis...)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &stores{memory, shared, client}, nil
}

func (s *stores) close() error {
	if s.client == nil {
		return nil
	}
	return s.client.Close()
}

// limiter returns build's limiter, in memory or on Redis, which w watches by name. While Redis
// fails, the one in memory decides instead. With n servers, give each of them a share of
// 1/n ([ratelimit.Limit.Share]).
func (s *stores) limiter(name string, build func(store.Store) (ratelimit.Limiter, error), w *watch) (ratelimit.Limiter, error) {
	local, err := build(s.memory)
	if err != nil {
		return nil, err
	}
	if s.shared == nil {
		return w.limiter(name, local)
	}
	shared, err := build(s.shared)
	if err != nil {
		return nil, err
	}
	if shared, err = w.store(name, shared); err != nil {
		return nil, err
	}
	safe, err := fallback.New(shared, fallback.FailTo(local), fallback.WithOnChange(w.changed(name)))
	if err != nil {
		return nil, err
	}
	w.config.Fallbacks[name] = safe
	return w.limiter(name, safe)
}
