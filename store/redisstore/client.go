package redisstore

// The kinds of clients, and how each makes a call. If Redis hangs, a call ends by its deadline or the store's timeout,
// whatever the client is. The kinds differ in what the call costs until then, and in what it leaves behind:
//
//	*redis.Client          A call waits for a connection for three quarters of the timeout, and then for the reply. Calls
//	(single, Sentinel)     that go together share one goroutine. After the callers have left, it waits for a late reply, so
//	                       that the connection can be used again. A call that goes alone has no goroutine, and if its time
//	                       is up, its connection is closed. With Sentinel, calls go to a new master when the client does.
//	*redis.ClusterClient   The same, with the client of the key's master. If a master fails, the store asks for the slots
//	                       until another node has them: see route.go. A call that a node sends elsewhere goes there as
//	                       any other does, or has a goroutine if that node is not known yet.
//	*redis.Ring            The same, with the client of the key's shard.
//	*redis.AutoPipeliner   A call waits in the pipeliner's queue, and in the blocking mode has a goroutine. If the queue is
//	                       stuck for twice the timeout, new calls bypass it: see pipeliner.
//	any other              A call has a goroutine, which stays until the client gives up.
//
// For all kinds, a call that could not be served in time is refused before it is sent: see package carrier. A call whose
// caller has left before it was written charges nothing: see operation.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// Client is what the store needs of a go-redis client. *redis.Client (single or
// Sentinel), *redis.ClusterClient, *redis.Ring, *redis.AutoPipeliner and
// redis.UniversalClient implement it. A redis.Pipeliner implements it too, but it runs nothing
// until Exec, so every call fails.
//
// An AutoPipeliner in its blocking mode, and any client that this package does not know, cost a
// goroutine for each call in progress. The goroutine of an abandoned call ends when the client gives
// up.
//
// Calls are sent to the server of their key, and not through the client of a ring or a cluster.
// Therefore, add hooks to the clients of the servers, with OnNewNode. With ContextTimeoutEnabled, a
// hook sees a call that is sent alone as a command, with the values of its caller's context. It sees
// calls that are sent together as a command of several keys, or as a pipeline, without such values.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

var _ Client = redis.UniversalClient(nil)

// kind is what the store uses of a client besides its Process. A column is nil if the kind of client does not have it.
type kind struct {
	single *redis.Client                           // the client, if one server has all keys
	visit  visit                                   // calls a function with the client of each server
	owner  func(key string) (*redis.Client, error) // the client of the server that has a key, as far as it is known without I/O
	slots  *slots                                  // asks where the keys are, and again while a master fails
	send   process                                 // makes a call at the server that the client itself chooses
}

type visit = func(context.Context, func(context.Context, *redis.Client) error) error

// kindOf is the table of the kinds of clients.
func kindOf(client Client, timeout time.Duration) kind {
	switch c := client.(type) {
	case *redis.Client: // of Sentinel, too
		return kind{single: c}
	case *redis.ClusterClient:
		return kind{
			visit: c.ForEachMaster,
			owner: func(key string) (*redis.Client, error) { return c.MasterForKey(gone, key) },
			slots: &slots{client: c, timeout: timeout},
			send:  onGoroutine(c, contextWithReserve),
		}
	case *redis.Ring:
		return kind{
			visit: c.ForEachShard,
			owner: c.GetShardClientForKey,
			send:  onGoroutine(c, contextOf),
		}
	case *redis.AutoPipeliner:
		p := &pipeliner{client: c, timeout: timeout, queued: onGoroutine(c, contextOf), past: onGoroutine(unqueued{c}, contextWithReserve)}
		return kind{send: p.process}
	}
	return kind{send: onGoroutine(client, contextOf)}
}

// gone is a context that has ended: a call that takes it does no I/O.
var gone = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// deadlines returns c if it keeps to the deadlines of contexts, and otherwise a clone that does, with
// timeouts of most. The clone has the connections of c, but not its hooks, which go-redis cannot copy.
func deadlines(c *redis.Client, most time.Duration) *redis.Client {
	if c.Options().ContextTimeoutEnabled {
		return c
	}
	clone := c.WithTimeout(most)
	clone.Options().ContextTimeoutEnabled = true
	return clone
}

// process runs cmd, which belongs to a, and returns by b's end. If it returns an error, the client may still
// own cmd and its arguments: do not read or use them again.
type process func(b carrier.Budget, cmd redis.Cmder, a *loneCommand) error

// earlyDone is a context whose Done comes before its Deadline. A go-redis client waits for a connection until
// Done, and for a server until Deadline.
type earlyDone struct {
	context.Context
	end time.Time
}

func (c earlyDone) Deadline() (time.Time, bool) { return c.end, true }

// contextWithReserve returns the context for a go-redis client, in which the last quarter of the store's own timeout is
// kept for the server. Otherwise a call that gets its connection too late would time out
// and close it. If many callers wait for few connections, the client would then do
// nothing but make new ones.
func contextWithReserve(b carrier.Budget) (context.Context, context.CancelFunc) {
	until := b.End
	if b.Own {
		until = until.Add(-time.Until(until) / 4)
	} else if deadline, ok := b.Deadline(); ok && !deadline.After(until) {
		return b.Context, func() {}
	}
	ctx, cancel := context.WithDeadline(b.Context, until)
	return earlyDone{ctx, b.End}, cancel
}

// contextOf returns the context for any other client.
func contextOf(b carrier.Budget) (context.Context, context.CancelFunc) {
	return context.WithDeadline(b.Context, b.End)
}

// inline returns the process of a client that keeps to the deadlines of contexts.
func inline(client Client, timeout time.Duration) process {
	w := waves.New(timeout)
	return func(b carrier.Budget, cmd redis.Cmder, a *loneCommand) error {
		if b.Own && b.Done() == nil {
			a.waits = waves.EarlyDone{Context: b.Context, End: b.End, Wave: w.After(b.End.Add(-time.Until(b.End) / 4))}
			return client.Process(&a.waits, cmd)
		}
		ctx, cancel := contextWithReserve(b)
		defer cancel()
		return client.Process(ctx, cmd)
	}
}

var errPanic = errors.New("a hook of the client panicked")

// onGoroutine returns the process of any other client. Its goroutine lasts as long as the client's own
// timeouts. ctx ends before that, so an abandoned command that still waits for a connection is not sent.
func onGoroutine(client Client, within func(carrier.Budget) (context.Context, context.CancelFunc)) process {
	return func(b carrier.Budget, cmd redis.Cmder, a *loneCommand) error {
		ctx, cancel := within(b)
		defer cancel()
		var err error
		var panicked any = carrier.ErrExit
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { // a panic belongs on the caller's goroutine, which may expect it
				if r := recover(); r != nil {
					panicked = r
				}
			}()
			if err = client.Process(ctx, cmd); err == nil {
				err = cmd.Err() // waits, if the client only queued the command
			}
			panicked = nil
		}()
		leave := func(why error) error {
			return left{why, func(ctx context.Context) (bool, error) {
				switch {
				case !ended(ctx, done):
					return false, nil
				case panicked != nil:
					return true, errPanic
				}
				return true, err
			}}
		}
		if !ended(ctx, done) {
			if !a.writing.Begun() {
				return leave(ctx.Err())
			}
			last, cancel := contextOf(b) // only the time to wait for a connection is over
			defer cancel()
			if !ended(last, done) {
				return leave(last.Err())
			}
		}
		if panicked != nil {
			panic(panicked)
		}
		return err
	}
}

// ended waits until done is closed, or ctx ends, and reports whether done is closed.
func ended(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// pipeliner is an AutoPipeliner whose queue can be bypassed. By default it has one batch in progress, and
// waits for it for the client's ReadTimeout, 5 s, so one connection that has died unnoticed blocks all calls.
//
// The queue is stuck if a call has not ended after twice the time that it may take. From then on, new calls
// bypass the queue, each on another connection, until the late call has ended. If they bypassed it sooner, a
// slow server would lose its batches.
type pipeliner struct {
	client  *redis.AutoPipeliner
	timeout time.Duration
	queued  process                  // through the queue, in its blocking mode
	past    process                  // past the queue
	late    atomic.Pointer[lateCall] // the first late call, or nil
}

// lateCall is a call whose caller has left, but that has not ended.
type lateCall struct {
	left
	stuck time.Time // when the queue counts as stuck
}

// process is the [process] of the client.
func (p *pipeliner) process(b carrier.Budget, cmd redis.Cmder, a *loneCommand) error {
	if l := p.late.Load(); l != nil {
		switch {
		case l.ended():
			p.late.CompareAndSwap(l, nil)
		case time.Now().After(l.stuck):
			return p.past(b, cmd, a)
		}
	}
	queue := p.submit
	if p.client.IsBlocking() {
		queue = p.queued
	}
	err := queue(b, cmd, a)
	var l left
	if errors.Is(err, context.DeadlineExceeded) && errors.As(err, &l) && !l.ended() {
		p.late.CompareAndSwap(nil, &lateCall{l, b.End.Add(p.timeout)})
	}
	return err
}

// submit is the process in the asynchronous mode, which needs no goroutine.
func (p *pipeliner) submit(b carrier.Budget, cmd redis.Cmder, _ *loneCommand) error {
	ctx, cancel := contextOf(b)
	defer cancel()
	future := p.client.Submit(ctx, cmd)
	err := future.WaitContext(ctx)
	if err == nil || ctx.Err() == nil {
		return err
	}
	return left{err, func(ctx context.Context) (bool, error) {
		err := future.WaitContext(ctx)
		return ctx.Err() == nil || !errors.Is(err, ctx.Err()), err
	}}
}

// unqueued is an AutoPipeliner that sends each command in a pipeline of its own.
type unqueued struct{ *redis.AutoPipeliner }

func (u unqueued) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe := u.Pipeline()
	_ = pipe.Process(ctx, cmd)
	_, err := pipe.Exec(ctx)
	return err
}

// command is a command that no client sends twice. By default go-redis sends a command up
// to three more times if its reply is lost. As a single pointer, a command costs nothing
// as a redis.Cmder.
type command struct{ *redis.Cmd }

// NoRetry tells go-redis not to send the command again.
func (command) NoRetry() bool { return true }

// Clone keeps the type, and with it NoRetry.
func (c command) Clone() redis.Cmder { return command{c.Cmd.Clone().(*redis.Cmd)} }

// numbers is a command whose reply is integers alone. It costs less than a reply of any kind.
type numbers struct{ *redis.IntSliceCmd }

// NoRetry tells go-redis not to send the command again.
func (numbers) NoRetry() bool { return true }

// Clone keeps the type, and with it NoRetry.
func (c numbers) Clone() redis.Cmder { return numbers{c.IntSliceCmd.Clone().(*redis.IntSliceCmd)} }

// list is a command whose reply is integers, except that an alternative that failed begins with a text, its error.
type list struct{ *redis.SliceCmd }

// NoRetry tells go-redis not to send the command again.
func (list) NoRetry() bool { return true }

// Clone keeps the type, and with it NoRetry.
func (c list) Clone() redis.Cmder { return list{c.SliceCmd.Clone().(*redis.SliceCmd)} }

// newAlone returns a command for c alone, of a type whose errors a ClusterClient sees.
func newAlone(ctx context.Context, args []any, c *call) redis.Cmder {
	if c.alternative(0) == c.size() {
		return onKey(numbers{redis.NewIntSliceCmd(ctx, args...)})
	}
	return onKey(list{redis.NewSliceCmd(ctx, args...)})
}

// valuesOf returns the values of a command of newAlone, or the error that an alternative has ended in.
func valuesOf(cmd redis.Cmder) (values []int64, err error) {
	if cmd, ok := cmd.(numbers); ok {
		return cmd.Val(), nil
	}
	for i, v := range cmd.(list).Val() {
		value, ok := v.(int64)
		if text, failed := v.(string); failed && i%4 == 0 {
			return nil, refusal(text)
		} else if !ok {
			return nil, fmt.Errorf("%w: element %d is %q", errReply, i, v)
		}
		values = append(values, value)
	}
	return values, nil
}

// mixed is a command whose reply is read by [bundle.read].
type mixed struct {
	*redis.RawWriteToCmd
	reply bytes.Buffer
}

// NoRetry tells go-redis not to send the command again.
func (*mixed) NoRetry() bool { return true }

// Err also returns an error of the server, which a raw command takes for a reply.
func (c *mixed) Err() error {
	err := c.RawWriteToCmd.Err()
	if text, failed := bytes.CutPrefix(c.reply.Bytes(), []byte("-")); err == nil && failed {
		err = refusal(bytes.TrimSpace(text))
	}
	return err
}

// Clone keeps the type, and with it NoRetry.
func (c *mixed) Clone() redis.Cmder { return newMixed(context.Background(), c.Args(), 0) }

// replySize is about how many bytes a reply has per request.
const replySize = 64

func newMixed(ctx context.Context, args []any, requests int) *mixed {
	c := new(mixed)
	c.reply.Grow(requests * replySize)
	c.RawWriteToCmd = redis.NewRawWriteToCmd(ctx, &c.reply, args...)
	return onKey(c)
}

// onKey returns cmd, an EVALSHA, as a command of its first key.
func onKey[C redis.Cmder](cmd C) C {
	cmd.SetFirstKeyPos(keyArg)
	cmd.SetStepCount(1) // for an unknown count a ClusterClient would send COMMAND
	return cmd
}
