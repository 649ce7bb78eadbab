package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// networks are the networks of each autonomous system. A real program looks them up in a database of its own.
var networks = map[string]string{"192.0.2.0/24": "AS64496", "198.51.100.0/24": "AS64496", "2001:db8::/32": "AS64497"}

// asnOf returns the autonomous system of an address. It is asked for keys such as "192.0.2.1" and "2001:db8::/64".
func asnOf(_ context.Context, key string) (string, error) {
	address, _, _ := strings.Cut(key, "/")
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return "", err
	}
	for network, asn := range networks {
		if netip.MustParsePrefix(network).Contains(addr) {
			return asn, nil
		}
	}
	return key, nil // an address whose network is not known counts alone
}

// A limit per address, and a larger one for all addresses of a network operator.
func ExampleWithKeyFunc_autonomousSystem() {
	store := frozenMemory()
	perAddress, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(60), ratelimit.WithName("address"))
	if err != nil {
		log.Fatal(err)
	}
	perASN, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(100), ratelimit.WithName("asn"), ratelimit.WithKeyFunc(asnOf))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewAll(perAddress, perASN)
	if err != nil {
		log.Fatal(err)
	}
	for _, address := range []string{"192.0.2.1", "198.51.100.1", "2001:db8::/64", "203.0.113.1"} {
		granted, r, err := ratelimit.AllowUpTo(context.Background(), limiter, address, 60)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(address, granted, r.Parts()[1].Remaining)
	}
	// Output:
	// 192.0.2.1 60 40
	// 198.51.100.1 40 0
	// 2001:db8::/64 60 40
	// 203.0.113.1 60 40
}

// raises are limits that operators have raised for some keys, each until a time.
type raises struct{ sync.Map }

type raise struct {
	limit ratelimit.Limit
	until time.Time
}

// limitOf returns the raised limit of a key, or else the zero Limit, which means the constructor's.
func (m *raises) limitOf(_ context.Context, key string) (ratelimit.Limit, error) {
	r, found := m.Load(key)
	if !found || time.Now().After(r.(raise).until) {
		return ratelimit.Limit{}, nil
	}
	return r.(raise).limit, nil
}

// One customer gets a higher limit for a day.
func ExampleWithLimitFunc_forADay() {
	store, raised := frozenMemory(), new(raises)
	limiter, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(60),
		ratelimit.WithName("api"), ratelimit.WithLimitFunc(raised.limitOf))
	if err != nil {
		log.Fatal(err)
	}
	raised.Store("user:ann", raise{ratelimit.PerMinute(600), time.Now().Add(24 * time.Hour)})

	for _, key := range []string{"user:ann", "user:bob"} {
		r, err := limiter.Allow(context.Background(), key)
		fmt.Println(key, r.Limit, err)
	}
	// Output:
	// user:ann 600 <nil>
	// user:bob 60 <nil>
}

// The bodies of all requests in progress have at most 64 MiB. Each request ends within a minute.
func ExampleLimiter_Refund_bytesInFlight() {
	ctx := context.Background()
	store, err := memstore.New() // several instances: redisstore.New
	if err != nil {
		log.Fatal(err)
	}
	bytes, err := ratelimit.NewSlidingLog(store, ratelimit.Limit{Rate: 64 << 20, Period: time.Minute},
		ratelimit.WithName("bytes"))
	if err != nil {
		log.Fatal(err)
	}
	handle := func(size int, work func(ctx context.Context)) error {
		r, err := bytes.AllowN(ctx, "all", size)
		if err != nil {
			return err
		}
		if !r.Allowed {
			fmt.Println(size, "bytes do not fit")
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 59*time.Second) // less than the Period
		defer cancel()
		work(ctx)
		return bytes.Refund(context.WithoutCancel(ctx), "all", r, size)
	}

	err = handle(48<<20, func(context.Context) { _ = handle(32<<20, func(context.Context) {}) })
	fmt.Println(err)
	r, err := bytes.Peek(ctx, "all")
	fmt.Println(r.Remaining == 64<<20, err)
	// Output:
	// 33554432 bytes do not fit
	// <nil>
	// true <nil>
}
