// Pacing sends jobs to a supplier that allows 20 a second. Several workers send them, and
// do not know of each other. A leaky bucket and [ratelimit.Wait] turn the rate into a
// pace: one job every 50 ms, whichever worker sends it.
//
// Look at the times: they are 50 ms apart from the first job to the last, with no burst
// at the beginning. A token bucket would send all jobs at once.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const (
	workers = 3
	jobs    = 12
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// sender sends a job to the supplier.
type sender func(ctx context.Context, worker, job int) error

func run(ctx context.Context, w io.Writer) error {
	mem, err := memstore.New()
	if err != nil {
		return err
	}
	// The queue has 20 places, as Burst is not set. A worker waits for its turn before it
	// asks for another, so it takes at most one place.
	limiter, err := ratelimit.NewLeakyBucket(mem, ratelimit.PerSecond(20), ratelimit.WithName("supplier"))
	if err != nil {
		return err
	}

	var mu sync.Mutex // protects w
	began := time.Now()
	return work(ctx, limiter, func(_ context.Context, worker, job int) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Fprintf(w, "%3d ms  worker %d sends job %2d\n", time.Since(began).Milliseconds(), worker, job)
		return err
	})
}

// work does the jobs with send, at the pace of limiter. The first error ends it, even for
// workers that wait for their turn.
func work(ctx context.Context, limiter ratelimit.Limiter, send sender) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	queue := make(chan int, jobs)
	for job := range jobs {
		queue <- job + 1
	}
	close(queue)

	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for job := range queue {
				if err := sendPaced(ctx, limiter, worker+1, job, send); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// sendPaced waits for the job's turn. All workers use one key: it stands for the
// supplier, who counts the calls of all.
func sendPaced(ctx context.Context, limiter ratelimit.Limiter, worker, job int, send sender) error {
	if _, err := ratelimit.Wait(ctx, limiter, "supplier", 1); err != nil {
		return fmt.Errorf("job %d: %w", job, err)
	}
	return send(ctx, worker, job)
}
