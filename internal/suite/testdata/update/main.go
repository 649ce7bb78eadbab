// Command update is one process of a fleet, of a build that TestAnUpdateOfAFleetKeepsCounts makes. It
// calls limiters on Redis, and prints what it was admitted of each, and what is left.
//
//	update 127.0.0.1:6379 200    # so many calls by each goroutine; 0 to look at what is left
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
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

const (
	goroutines = 8
	slots      = 3
	key        = "user:42"
)

// forever is so long that nothing comes back while the test runs.
var forever = ratelimit.Limit{Rate: 2_000, Period: 10 * 365 * 24 * time.Hour}

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
	limits []ratelimit.Limiter
	ban    *ratelimit.Ban
	slots  ratelimit.Limiter

	mu       sync.Mutex
	Admitted map[string]int // by the limit, without what was given back
	Left     map[string]int
	Banned   bool
	Held     int64 // the most slots that were held at once
}

func run(ctx context.Context, addr string, calls int) error {
	f := &fleet{client: redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}), Admitted: map[string]int{}, Left: map[string]int{}}
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
	if err := errors.Join(errs...); err != nil {
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
	for _, algorithm := range forever.Algorithms() {
		l, err := ratelimit.New(algorithm, s, forever, ratelimit.WithName(algorithm))
		if err != nil {
			return err
		}
		f.limits = append(f.limits, l)
	}
	all, err := ratelimit.NewAll(f.limits...)
	if err != nil {
		return err
	}
	f.limits = append(f.limits, all)
	if f.ban, err = ratelimit.NewBan(f.limits[0], s, ratelimit.Penalty{Denials: 6, Within: time.Hour, For: time.Hour}); err != nil {
		return err
	}
	f.slots, err = inflight.New(s, slots, time.Minute)
	return err
}

// call makes a call of one of the limits, and may give back what it has charged.
func (f *fleet) call(ctx context.Context) error {
	i := rand.IntN(len(f.limits))
	l, n := f.limits[i], 1+rand.IntN(3)
	var r ratelimit.Result
	var err error
	if i == len(f.limits)-1 || rand.IntN(4) > 0 {
		r, err = l.AllowN(ctx, key, n)
	} else {
		n, r, err = ratelimit.AllowUpTo(ctx, l, key, n)
	}
	if err != nil || !r.Allowed {
		return err
	}
	charged := []int{i}
	if i == len(f.limits)-1 {
		charged = []int{0, 1, 2, 3, 4}
	} else if window := i < 3; window && rand.IntN(8) == 0 {
		if err := l.Refund(ctx, key, r, n); err != nil {
			return err
		}
		n = 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range charged {
		f.Admitted[forever.Algorithms()[i]] += n
	}
	return nil
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
	for i, algorithm := range forever.Algorithms() {
		r, err := f.limits[i].Peek(ctx, key)
		if err != nil {
			return fmt.Errorf("%s: %w", algorithm, err)
		}
		f.Left[algorithm] = r.Remaining
	}
	r, err := f.ban.Peek(ctx, key)
	if err != nil {
		return err
	}
	f.Banned = r.Source() == ratelimit.SourceBan
	return json.NewEncoder(os.Stdout).Encode(f)
}
