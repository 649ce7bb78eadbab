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

// customers are those that have been given an API key. A real service has them in its
// database, by the hash of the key.
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
	anonymous = ratelimit.PerMinute(60) // and address
	tiers     = map[string]ratelimit.Limit{
		"free": ratelimit.PerMinute(100),
		"pro":  ratelimit.PerMinute(1000),
	}
	searches         = ratelimit.PerMinute(20) // of any client, within its tier's
	logins           = ratelimit.Limit{Rate: 5, Period: 15 * time.Minute}
	loginsPerAddress = ratelimit.Limit{Rate: 20, Period: 15 * time.Minute}
)

// address is that of the client. Behind a load balancer it is
// httplimit.ClientIP([]string{"10.0.0.0/8"}), which reads X-Forwarded-For.
var address = httplimit.PeerIP()

// client is the key of a request: "user:customer-1" by the API key, and "192.0.2.1" without
// one or with an unknown one. The API key itself is a secret, and stays out of the store.
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

// clientLimits are by the tier of the client.
func clientLimits(s store.Store) (ratelimit.Limiter, error) {
	tier := func(_ context.Context, key string) (string, error) {
		return tierOf[strings.TrimPrefix(key, "user:")], nil // "" is anonymous
	}
	return ratelimit.NewSlidingWindow(s, anonymous, ratelimit.WithName("client"), ratelimit.WithTiers(tier, tiers))
}

// searchLimits are the client's and those of searches: a search that one of them denies
// is charged to neither.
func searchLimits(s store.Store) (ratelimit.Limiter, error) {
	all, err := clientLimits(s)
	if err != nil {
		return nil, err
	}
	search, err := ratelimit.NewSlidingWindow(s, searches, ratelimit.WithName("search"))
	if err != nil {
		return nil, err
	}
	return ratelimit.NewAll(all, search)
}

// loginLimits are on guesses of a password: a few per user and address, so that nobody
// can lock out a user who is elsewhere, and some more per address, whatever the user. They
// hold in any 15 minutes, exactly, which is what a log is for.
func loginLimits(s store.Store) (ratelimit.Limiter, error) {
	perUser, err := ratelimit.NewSlidingLog(s, logins, ratelimit.WithName("login"))
	if err != nil {
		return nil, err
	}
	perAddress, err := ratelimit.NewSlidingLog(s, loginsPerAddress, ratelimit.WithName("login-address"))
	if err != nil {
		return nil, err
	}
	keyed, err := ratelimit.NewRekeyed(perAddress, func(_ context.Context, key string) (string, error) {
		ip, _, _ := strings.Cut(strings.TrimPrefix(key, "attempt:"), " ")
		return ip, nil
	})
	if err != nil {
		return nil, err
	}
	return ratelimit.NewAll(perUser, keyed)
}

// stores are where limits are counted.
type stores struct {
	memory *memstore.Store
	shared *redisstore.Store // nil without Redis
	client *redis.Client
}

// newStores connects to nothing: a server that starts while Redis is down serves.
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

// limiter is that of build, in memory or on Redis, counted by c. While Redis fails the
// one in memory decides in its place. Of n servers each would give it a share of 1/n
// ([ratelimit.Limit.Share]).
func (s *stores) limiter(build func(store.Store) (ratelimit.Limiter, error), c *counters) (ratelimit.Limiter, error) {
	local, err := build(s.memory)
	if err != nil {
		return nil, err
	}
	if s.shared == nil {
		return decisions{local, c}, nil
	}
	shared, err := build(s.shared)
	if err != nil {
		return nil, err
	}
	failover, err := fallback.New(storeErrors{shared, c}, fallback.Local(local))
	if err != nil {
		return nil, err
	}
	return decisions{failover, c}, nil
}
