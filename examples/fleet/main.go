// Fleet has four processes that share one limit, 10,000 events a second, and lease from it. They
// ask as often as they can for two seconds. Few of their decisions reach Redis, and together
// they are admitted no event too many.
//
// Look at the last lines, and change life to see what staler decisions cost. Without REDIS_ADDR
// (host:port) it uses an imitation of Redis inside its own process.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

const (
	processes = 4
	callers   = 8 // in each process
	duration  = 2 * time.Second
	life      = 50 * time.Millisecond // of a lease

	addrVariable = "REDIS_ADDR"
	keyVariable  = "RATELIMIT_EXAMPLE_FLEET" // set for the processes that are started here
)

var limit = ratelimit.Limit{Rate: 10_000, Period: time.Second, Burst: 10_000}

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
		did, err := member(ctx, addr, key)
		return errors.Join(err, json.NewEncoder(w).Encode(did))
	}
	if addr == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	start := time.Now()
	did, err := startAll(ctx, addr, "example-"+rand.Text())
	if err != nil {
		return err
	}
	return report(w, did, time.Since(start))
}

// work is what a process has done.
type work struct{ Decisions, Admitted, Asked int }

// member asks for the time of the example, from several goroutines.
func member(ctx context.Context, addr, key string) (did work, err error) {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer func() { err = errors.Join(err, client.Close()) }()
	// A demonstration should wait rather than fail. A service keeps the default of 250 ms.
	shared, err := redisstore.New(client, redisstore.WithTimeout(time.Second))
	if err != nil {
		return did, err
	}
	leases, err := lease.New(shared, life)
	if err != nil {
		return did, err
	}
	defer func() { err = errors.Join(err, leases.Close(context.WithoutCancel(ctx))) }()
	bucket, err := ratelimit.NewTokenBucket(leases, limit, ratelimit.WithName("fleet"))
	if err != nil {
		return did, err
	}

	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	all, errs := make([]work, callers), make([]error, callers)
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() { all[i], errs[i] = ask(ctx, bucket, key) })
	}
	group.Wait()
	for _, one := range all {
		did.Decisions, did.Admitted = did.Decisions+one.Decisions, did.Admitted+one.Admitted
	}
	did.Asked = int(leases.Stats().Asked)
	return did, errors.Join(errs...)
}

// ask asks until the time is up.
func ask(ctx context.Context, l ratelimit.Limiter, key string) (did work, err error) {
	for {
		r, err := l.Allow(ctx, key)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return did, nil
		case err != nil:
			return did, err
		case r.Allowed:
			did.Admitted++
		}
		did.Decisions++
	}
}

// startAll runs this program as several processes at once.
func startAll(ctx context.Context, addr, key string) ([]work, error) {
	did, errs := make([]work, processes), make([]error, processes)
	var group sync.WaitGroup
	for i := range did {
		group.Go(func() {
			if errs[i] = start(ctx, addr, key, &did[i]); errs[i] != nil {
				errs[i] = fmt.Errorf("process %d: %w", i+1, errs[i])
			}
		})
	}
	group.Wait()
	return did, errors.Join(errs...)
}

func start(ctx context.Context, addr, key string, did *work) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), addrVariable+"="+addr, keyVariable+"="+key)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(out, did)
}

// report compares what was admitted in this time with what the limit admits at most.
func report(w io.Writer, did []work, took time.Duration) error {
	var sum work
	for i, p := range did {
		fmt.Fprintf(w, "process %d: %9d decisions, %6d admitted, %4d calls of Redis\n", i+1, p.Decisions, p.Admitted, p.Asked)
		sum.Decisions, sum.Admitted, sum.Asked = sum.Decisions+p.Decisions, sum.Admitted+p.Admitted, sum.Asked+p.Asked
	}
	most := limit.Burst + int(took.Seconds()*float64(limit.Rate))
	over := max(0, sum.Admitted-most)
	fmt.Fprintf(w, "together:  %9d decisions, %6d admitted, %4d calls of Redis\n", sum.Decisions, sum.Admitted, sum.Asked)
	fmt.Fprintf(w, "%v admits up to %d in %v: overshoot %d\n", limit, most, took.Round(10*time.Millisecond), over)
	if over > 0 {
		return fmt.Errorf("%d events too many", over)
	}
	return nil
}
