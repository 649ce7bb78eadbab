package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A user can run two exports at the same time.
func Example() {
	store, err := memstore.New() // or a redisstore.Store, for several processes
	if err != nil {
		log.Fatal(err)
	}
	exports, err := inflight.New(store, 2, time.Minute, ratelimit.WithName("exports"))
	if err != nil {
		log.Fatal(err)
	}
	export := func() *inflight.Slot {
		slot, r, err := inflight.Hold(context.Background(), exports, "user:42", 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, r.Remaining)
		return slot
	}
	first, second := export(), export()
	export()
	first.Release()
	third := export()
	second.Release()
	third.Release()
	// Output:
	// true 1
	// true 0
	// false 0
	// true 0
}

// A supplier of a language model limits requests per minute, tokens per minute, and concurrent
// requests. All of them are decided together. The tokens are settled when they are known.
func ExampleHold_all() {
	store, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	requests, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(60), ratelimit.WithName("requests"), ratelimit.CountCalls())
	if err != nil {
		log.Fatal(err)
	}
	tokens, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(90_000), ratelimit.WithName("tokens"))
	if err != nil {
		log.Fatal(err)
	}
	atOnce, err := inflight.New(store, 8, time.Minute, ratelimit.WithName("at_once"))
	if err != nil {
		log.Fatal(err)
	}
	model, err := ratelimit.NewAll(requests, tokens, atOnce)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	slot, r, err := inflight.Hold(ctx, model, "org:7", 1200) // one request, 1,200 tokens, one slot
	if err != nil {
		log.Fatal(err)
	}
	defer slot.Release()
	for _, part := range r.Parts() {
		fmt.Println(part.Remaining, "of", part.Limit)
	}
	// Output:
	// 59 of 60
	// 88800 of 90000
	// 7 of 8
}

// runJob runs a job of a customer in one of the slots of jobs.
func runJob(ctx context.Context, jobs ratelimit.Limiter, job func(context.Context) error) error {
	slot, _, err := inflight.Wait(ctx, jobs, "customer:7", 1, inflight.MaxWaiting(100))
	if err != nil {
		return err // ctx has ended, 100 others wait already (ErrFull), or the store failed
	}
	defer slot.Release()
	work, cancel := context.WithCancelCause(slot.Context()) // ends with the slot, by the cause ErrLost
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })() // and with ctx
	if err := job(work); err != nil {
		return errors.Join(err, context.Cause(work))
	}
	return nil
}

// A job stops when its slot is lost, and when the program ends.
func ExampleWait() {
	store, err := memstore.New() // or a redisstore.Store, for several processes
	if err != nil {
		log.Fatal(err)
	}
	jobs, err := inflight.New(store, 3, time.Minute, ratelimit.WithName("jobs"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	err = runJob(ctx, jobs, func(work context.Context) error {
		stop(errors.New("the program ends"))
		<-work.Done()
		return work.Err()
	})
	fmt.Println(err)
	// Output:
	// context canceled
	// the program ends
}
