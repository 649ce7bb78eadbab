package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// detour is the way past an AutoPipeliner that is blocked. By default a pipeliner has one
// batch under way, and waits for it as long as the client's ReadTimeout, 5 s. So one
// connection that has died unnoticed blocks all calls.
//
// A call is late after twice the time that it may take. From then on new calls go past
// the queue, each on another connection, until the late call has ended. If they did so
// sooner, a slow server would lose its batches.
type detour struct {
	client  *redis.AutoPipeliner
	timeout time.Duration
	past    process
	late    atomic.Pointer[lateCall] // the first late call, or nil
}

// lateCall is a call that its caller has left and that has not ended.
type lateCall struct {
	held  time.Time // when others begin to go past it
	ended func() bool
}

func newDetour(client *redis.AutoPipeliner, timeout time.Duration) *detour {
	return &detour{client: client, timeout: timeout, past: detached(alone{client}, patiently)}
}

// process is the [process] of the client.
func (d *detour) process(b carrier.Budget, cmd redis.Cmder, a *attempt) error {
	if l := d.late.Load(); l != nil {
		switch {
		case l.ended():
			d.late.CompareAndSwap(l, nil)
		case time.Now().After(l.held):
			return d.past(b, cmd, a)
		}
	}
	queue := d.deferred
	if d.client.IsBlocking() {
		queue = d.blocking
	}
	ended, err := queue(b, cmd, a)
	if ended != nil && !ended() {
		d.late.CompareAndSwap(nil, &lateCall{held: b.End.Add(d.timeout), ended: ended})
	}
	return err
}

// deferred is for the asynchronous mode, which needs no goroutine. If the call's time is
// up, it returns a function that reports whether the call has ended.
func (d *detour) deferred(b carrier.Budget, cmd redis.Cmder, _ *attempt) (ended func() bool, err error) {
	ctx, cancel := plainly(b)
	defer cancel()
	future := d.client.Submit(ctx, cmd)
	err = future.WaitContext(ctx)
	if err != nil && ctx.Err() != nil {
		err = left{err, func() error { return future.WaitContext(context.Background()) }}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return func() bool { return !errors.Is(future.WaitContext(gone), context.Canceled) }, err
}

// blocking is for the blocking mode.
func (d *detour) blocking(b carrier.Budget, cmd redis.Cmder, a *attempt) (ended func() bool, err error) {
	w := &watched{Client: d.client}
	err = detached(w, plainly)(b, cmd, a)
	if !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return w.ended.Load, err
}

// watched is a client that reports when it has made its one call.
type watched struct {
	Client
	ended atomic.Bool
}

func (w *watched) Process(ctx context.Context, cmd redis.Cmder) error {
	defer w.ended.Store(true)
	return w.Client.Process(ctx, cmd)
}

// alone is an AutoPipeliner that sends each command in a pipeline of its own.
type alone struct{ *redis.AutoPipeliner }

func (a alone) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe := a.Pipeline()
	_ = pipe.Process(ctx, cmd)
	_, err := pipe.Exec(ctx)
	return err
}
