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
	client         *redis.AutoPipeliner
	timeout        time.Duration
	blocking, past process
	late           atomic.Pointer[lateCall] // the first late call, or nil
}

// lateCall is a call that its caller has left and that has not ended.
type lateCall struct {
	left
	held time.Time // when others begin to go past it
}

func (l *left) ended() bool {
	ended, _ := l.wait(gone)
	return ended
}

func newDetour(client *redis.AutoPipeliner, timeout time.Duration) *detour {
	return &detour{client: client, timeout: timeout, blocking: detached(client, plainly), past: detached(alone{client}, patiently)}
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
	err := queue(b, cmd, a)
	var l left
	if errors.Is(err, context.DeadlineExceeded) && errors.As(err, &l) && !l.ended() {
		d.late.CompareAndSwap(nil, &lateCall{l, b.End.Add(d.timeout)})
	}
	return err
}

// deferred is for the asynchronous mode, which needs no goroutine.
func (d *detour) deferred(b carrier.Budget, cmd redis.Cmder, _ *attempt) error {
	ctx, cancel := plainly(b)
	defer cancel()
	future := d.client.Submit(ctx, cmd)
	err := future.WaitContext(ctx)
	if err == nil || ctx.Err() == nil {
		return err
	}
	return left{err, func(ctx context.Context) (bool, error) {
		err := future.WaitContext(ctx)
		return ctx.Err() == nil || !errors.Is(err, ctx.Err()), err
	}}
}

// alone is an AutoPipeliner that sends each command in a pipeline of its own.
type alone struct{ *redis.AutoPipeliner }

func (a alone) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe := a.Pipeline()
	_ = pipe.Process(ctx, cmd)
	_, err := pipe.Exec(ctx)
	return err
}
