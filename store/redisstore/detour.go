package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// detour is the way past an AutoPipeliner that is held up. Unless told otherwise it has one
// batch under way, for which it waits as long as the client's ReadTimeout, 5 s: one
// connection that has died unnoticed holds up all calls. So when a call is late by as much
// again as it may take, those that follow go past the queue, each on another connection,
// until that call has come to its end. (Sooner, a slow server would lose its batches.)
type detour struct {
	client  *redis.AutoPipeliner
	timeout time.Duration
	past    process
	gone    context.Context          // has ended: to look without waiting
	late    atomic.Pointer[lateCall] // the first that is; nil if none is
}

// lateCall is a call that its caller has left and that has not ended.
type lateCall struct {
	held  time.Time // from then on others go past it
	ended func() bool
}

func newDetour(client *redis.AutoPipeliner, timeout time.Duration) *detour {
	return &detour{client: client, timeout: timeout, past: detached(alone{client}, budget.patient), gone: ended()}
}

// process is the [process] of the client.
func (d *detour) process(b budget, cmd command, sent *sending) error {
	if l := d.late.Load(); l != nil {
		switch {
		case l.ended():
			d.late.CompareAndSwap(l, nil)
		case time.Now().After(l.held):
			return d.past(b, cmd, sent)
		}
	}
	queue := d.deferred
	if d.client.IsBlocking() {
		queue = d.blocking
	}
	ended, err := queue(b, cmd, sent)
	if ended != nil && !ended() {
		d.late.CompareAndSwap(nil, &lateCall{held: b.end.Add(d.timeout), ended: ended})
	}
	return err
}

// deferred is for the asynchronous face, which needs no goroutine. It returns how to look
// whether the call has ended, if its time was up.
func (d *detour) deferred(b budget, cmd command, _ *sending) (ended func() bool, err error) {
	ctx, cancel := b.plain()
	defer cancel()
	future := d.client.Submit(ctx, cmd)
	err = future.WaitContext(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return func() bool { return !errors.Is(future.WaitContext(d.gone), context.Canceled) }, err
}

// blocking is for the other.
func (d *detour) blocking(b budget, cmd command, sent *sending) (ended func() bool, err error) {
	w := &watched{Client: d.client}
	err = detached(w, budget.plain)(b, cmd, sent)
	if !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return w.ended.Load, err
}

// watched is a client that says when it has made its one call.
type watched struct {
	Client
	ended atomic.Bool
}

func (w *watched) Process(ctx context.Context, cmd redis.Cmder) error {
	defer w.ended.Store(true)
	return w.Client.Process(ctx, cmd)
}

// alone is an AutoPipeliner whose commands go each in a pipeline of its own.
type alone struct{ *redis.AutoPipeliner }

func (a alone) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe := a.Pipeline()
	_ = pipe.Process(ctx, cmd)
	_, err := pipe.Exec(ctx)
	return err
}
