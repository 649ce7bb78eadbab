// Redis shares one limit between two processes: 100 events an hour for both together. It
// starts itself twice, and each of the two tries 100 events at the same time.
//
// Look at the sum: how many each process was admitted differs from run to run, and
// together they are 100. Without REDIS_ADDR (host:port) it uses an imitation of Redis
// inside its own process.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

const (
	processes = 2
	events    = 100 // that each process tries

	addrVariable = "REDIS_ADDR"
	keyVariable  = "RATELIMIT_EXAMPLE_KEY" // set for the processes that are started here
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Getenv(addrVariable), os.Getenv(keyVariable)); err != nil {
		log.Fatal(err)
	}
}

// run is the program. The processes that it starts have a key; the one that starts them
// has none.
func run(ctx context.Context, w io.Writer, addr, key string) error {
	if key != "" {
		return child(ctx, w, addr, key)
	}
	if addr == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	return parent(ctx, w, addr)
}

// newLimiter is the same in each process. They share the count on the server, under the
// algorithm, the limit and the key.
func newLimiter(client *redis.Client) (*ratelimit.SlidingLog, error) {
	// A demonstration should wait rather than fail. A service keeps the default of 250 ms.
	shared, err := redisstore.New(client, redisstore.WithTimeout(2*time.Second))
	if err != nil {
		return nil, err
	}
	return ratelimit.NewSlidingLog(shared, ratelimit.PerHour(100), ratelimit.WithName("redis-example"))
}

// child tries its events, and prints how many were admitted.
func child(ctx context.Context, w io.Writer, addr, key string) (err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, client.Close()) }()
	limiter, err := newLimiter(client)
	if err != nil {
		return err
	}
	admitted := 0
	for range events {
		r, err := limiter.Allow(ctx, key)
		if err != nil {
			return err // no decision is known, and the event may have been charged
		}
		if r.Allowed {
			admitted++
		}
	}
	_, err = fmt.Fprintln(w, admitted)
	return err
}

// parent starts the processes, and adds up how many events they were admitted.
func parent(ctx context.Context, w io.Writer, addr string) (err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, client.Close()) }()
	limiter, err := newLimiter(client)
	if err != nil {
		return err
	}

	key := "example-" + rand.Text() // for this run only
	if _, err := limiter.Peek(ctx, key); err != nil {
		return err // one clear error if there is no server
	}
	admitted, err := startAll(ctx, addr, key)
	// Leave nothing on the server, even after Ctrl-C.
	if err := errors.Join(err, limiter.Reset(context.WithoutCancel(ctx), key)); err != nil {
		return err
	}
	return printSum(w, admitted, limiter.Limit())
}

// startAll runs this program as several processes at once. It returns how many events
// each was admitted.
func startAll(ctx context.Context, addr, key string) ([]int, error) {
	admitted, errs := make([]int, processes), make([]error, processes)
	var group sync.WaitGroup
	for i := range admitted {
		group.Go(func() {
			if admitted[i], errs[i] = start(ctx, addr, key); errs[i] != nil {
				errs[i] = fmt.Errorf("process %d: %w", i+1, errs[i])
			}
		})
	}
	group.Wait()
	return admitted, errors.Join(errs...)
}

func start(ctx context.Context, addr, key string) (int, error) {
	program, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), addrVariable+"="+addr, keyVariable+"="+key)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return 0, fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

func printSum(w io.Writer, admitted []int, limit ratelimit.Limit) error {
	sum := 0
	for i, n := range admitted {
		fmt.Fprintf(w, "process %d tried %d events, %d admitted\n", i+1, events, n)
		sum += n
	}
	fmt.Fprintf(w, "together %d admitted, at a limit of %v\n", sum, limit)
	if sum != limit.Rate {
		return fmt.Errorf("%d events were admitted instead of %d", sum, limit.Rate)
	}
	return nil
}
