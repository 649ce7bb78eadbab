// Command update is one process of a fleet, built by TestAnUpdateOfAFleetKeepsCounts. It calls
// limiters on Redis, and prints how many events each has admitted, and how many are left.
//
//	update 127.0.0.1:6379 200    # the calls of each goroutine; 0 to look at what is left
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

const (
	goroutines = 8
	slots      = 3
	key        = "user:42"
)

var (
	// forever is so long that no event becomes free while the test runs.
	forever = ratelimit.Limit{Rate: 2_000, Period: 10 * 365 * 24 * time.Hour}
	// quick is fast enough for leases of a bucket or a log, which need some events per TTL.
	quick = ratelimit.Limit{Rate: 50, Period: time.Second}
)

func main() {
	log.SetFlags(0)
	calls, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = run(context.Background(), os.Args[1], calls)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// fleet is what all processes share.
type fleet struct {
	client *redis.Client
	leases *lease.Store
	limits []limit // the algorithms, and then leases
	all    ratelimit.Limiter
	ban    *ratelimit.Ban
	slots  ratelimit.Limiter

	mu           sync.Mutex
	Admitted     map[string]int // by limit, without refunded events
	Left         map[string]int
	Banned       bool
	Held         int64 // the most slots that were held at the same time
	Began, Ended time.Time
}

// limit is a limiter that is asked through leases, if it has them, and looked at without them.
type limit struct {
	name          string
	asked, looked ratelimit.Limiter
}

func run(ctx context.Context, addr string, calls int) error {
	f := &fleet{client: redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}), Admitted: map[string]int{}, Left: map[string]int{}, Began: time.Now()}
	defer func() { _ = f.client.Close() }()
	if err := f.open(); err != nil {
		return err
	}
	errs := make([]error, goroutines)
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for range calls {
				if errs[i] = errors.Join(f.call(ctx), f.hold(ctx)); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	f.Ended = time.Now()
	if err := errors.Join(append(errs, f.leases.Close(ctx))...); err != nil {
		return err
	}
	if calls > 0 {
		if _, err := f.ban.Strike(ctx, key, 3); err != nil {
			return err
		}
	}
	return f.look(ctx)
}

func (f *fleet) open() error {
	s, err := redisstore.New(f.client, redisstore.WithTimeout(time.Minute))
	if err != nil {
		return err
	}
	if f.leases, err = lease.New(s, 100*time.Millisecond); err != nil {
		return err
	}
	var plain []ratelimit.Limiter
	for _, algorithm := range forever.Algorithms() {
		l, err := ratelimit.New(algorithm, s, forever, ratelimit.WithName(algorithm))
		if err != nil {
			return err
		}
		plain = append(plain, l)
		f.limits = append(f.limits, limit{algorithm, l, l})
	}
	for algorithm, l := range map[string]ratelimit.Limit{"fixed_window": forever, "sliding_window": forever, "sliding_log": quick, "token_bucket": quick} {
		name := "lease of " + algorithm
		asked, err := ratelimit.New(algorithm, f.leases, l, ratelimit.WithName(name))
		if err != nil {
			return err
		}
		looked, err := ratelimit.New(algorithm, s, l, ratelimit.WithName(name))
		if err != nil {
			return err
		}
		f.limits = append(f.limits, limit{name, asked, looked})
	}
	if f.all, err = ratelimit.NewAll(plain...); err != nil {
		return err
	}
	if f.ban, err = ratelimit.NewBan(plain[0], s, ratelimit.Penalty{Denials: 6, Within: time.Hour, For: time.Hour}); err != nil {
		return err
	}
	f.slots, err = inflight.New(s, slots, time.Minute)
	return err
}

// call makes a call of one of the limits, or of all, and may refund what it has charged.
func (f *fleet) call(ctx context.Context) error {
	i, n := rand.IntN(len(f.limits)+1), 1+rand.IntN(3)
	if i == len(f.limits) {
		r, err := f.all.AllowN(ctx, key, n)
		if err == nil && r.Allowed {
			f.admit(n, f.limits[:len(forever.Algorithms())]...)
		}
		return err
	}
	l := f.limits[i]
	var r ratelimit.Result
	var err error
	if rand.IntN(4) > 0 {
		r, err = l.asked.AllowN(ctx, key, n)
	} else {
		n, r, err = ratelimit.AllowUpTo(ctx, l.asked, key, n)
	}
	if err != nil || !r.Allowed {
		return err
	}
	if window := i < 3; window && rand.IntN(8) == 0 {
		return l.asked.Refund(ctx, key, r, n)
	}
	f.admit(n, l)
	return nil
}

func (f *fleet) admit(n int, limits ...limit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range limits {
		f.Admitted[l.name] += n
	}
}

// hold holds a slot for a moment, if there is one.
func (f *fleet) hold(ctx context.Context) error {
	slot, _, err := inflight.Hold(ctx, f.slots, key, 1)
	if err != nil || slot == nil {
		return err
	}
	defer slot.Release()
	held, err := f.client.Incr(ctx, "held").Result()
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.Held = max(f.Held, held)
	f.mu.Unlock()
	return f.client.Decr(ctx, "held").Err()
}

// look prints what this process knows.
func (f *fleet) look(ctx context.Context) error {
	for _, l := range f.limits {
		r, err := l.looked.Peek(ctx, key)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		f.Left[l.name] = r.Remaining
	}
	r, err := f.ban.Peek(ctx, key)
	if err != nil {
		return err
	}
	f.Banned = r.Source() == ratelimit.SourceBan
	return json.NewEncoder(os.Stdout).Encode(f)
}
