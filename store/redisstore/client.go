package redisstore

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/waves"
)

// Client is what the store needs of a go-redis client. *redis.Client (single or
// Sentinel), *redis.ClusterClient, *redis.Ring, *redis.AutoPipeliner and
// redis.UniversalClient implement it. So does a redis.Pipeliner, but it runs nothing
// until Exec, so every call fails.
//
// These clients cost a goroutine for each call under way. That of an abandoned call ends
// when the client gives up.
//
//   - a ClusterClient or Ring without ContextTimeoutEnabled
//   - a ClusterClient that reads from replicas
//   - an AutoPipeliner in its blocking mode
//   - any client that this package does not know
//
// Hooks of a *redis.Client with ContextTimeoutEnabled see a call that goes alone as a
// command, with the values of its caller's context. They see calls that go together as a
// command of several keys, or as a pipeline, without such values.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

var (
	_ Client = (*redis.Client)(nil)
	_ Client = (*redis.ClusterClient)(nil)
	_ Client = (*redis.Ring)(nil)
	_ Client = (*redis.AutoPipeliner)(nil)
	_ Client = redis.UniversalClient(nil)
)

// command is a command that no client sends twice. By default go-redis sends a command up
// to three more times if its reply is lost. As a single pointer, a command costs nothing
// as a redis.Cmder.
type command struct{ *redis.Cmd }

// NoRetry tells go-redis not to send the command again.
func (command) NoRetry() bool { return true }

// Clone keeps the type, and with it NoRetry.
func (c command) Clone() redis.Cmder { return command{c.Cmd.Clone().(*redis.Cmd)} }

func newCommand(ctx context.Context, args []any) command {
	return onKey(command{redis.NewCmd(ctx, args...)})
}

// numbers is a command whose reply is integers alone. It costs less than a reply of any kind.
type numbers struct{ *redis.IntSliceCmd }

// NoRetry tells go-redis not to send the command again.
func (numbers) NoRetry() bool { return true }

// Clone keeps the type, and with it NoRetry.
func (c numbers) Clone() redis.Cmder { return numbers{c.IntSliceCmd.Clone().(*redis.IntSliceCmd)} }

func newNumbers(ctx context.Context, args []any) numbers {
	return onKey(numbers{redis.NewIntSliceCmd(ctx, args...)})
}

// mixed is a command whose reply is read by [group.read].
type mixed struct {
	*redis.RawWriteToCmd
	reply bytes.Buffer
}

// NoRetry tells go-redis not to send the command again.
func (*mixed) NoRetry() bool { return true }

// Err is the server's answer, which a raw command takes for a reply.
func (c *mixed) Err() error {
	err := c.RawWriteToCmd.Err()
	if text, failed := bytes.CutPrefix(c.reply.Bytes(), []byte("-")); err == nil && failed {
		err = refusal(bytes.TrimSpace(text))
	}
	return err
}

// Clone keeps the type, and with it NoRetry.
func (c *mixed) Clone() redis.Cmder { return newMixed(context.Background(), c.Args(), 0) }

// replySize is the bytes of a reply for each call, about.
const replySize = 64

func newMixed(ctx context.Context, args []any, calls int) *mixed {
	c := new(mixed)
	c.reply.Grow(calls * replySize)
	c.RawWriteToCmd = redis.NewRawWriteToCmd(ctx, &c.reply, args...)
	return onKey(c)
}

// onKey returns cmd, an EVALSHA, as a command of its first key.
func onKey[C redis.Cmder](cmd C) C {
	cmd.SetFirstKeyPos(keyArg)
	cmd.SetStepCount(1) // for an unknown count a ClusterClient would send COMMAND
	return cmd
}

// process runs cmd and returns by b's end. If it returns an error, the client may still
// own cmd and its arguments: do not read or use them again.
type process func(b budget, cmd redis.Cmder, sent *sending) error

// budget is the caller's context and the time that a call has.
type budget struct {
	context.Context
	end  time.Time
	left time.Duration // until end, when the call began
	own  bool          // end is the store's own timeout, not the caller's deadline

	ahead bool // it gives room to others, and goes before those that want it
}

// budget returns the budget of a call with ctx that begins now.
func (s *Store) budget(ctx context.Context) budget {
	now := time.Now()
	end := now.Add(s.timeout)
	if callers, ok := ctx.Deadline(); ok && callers.Before(end) {
		return budget{Context: ctx, end: callers, left: callers.Sub(now)}
	}
	return budget{Context: ctx, end: end, left: s.timeout, own: true}
}

// patient is a context whose Done comes before its Deadline.
type patient struct {
	context.Context
	end time.Time
}

func (p patient) Deadline() (time.Time, bool) { return p.end, true }

// patient returns the context for a go-redis client, which waits for a connection until
// Done and for a server until Deadline. The last quarter of the store's own timeout is
// kept for the server. Otherwise a call that gets its connection too late would time out
// and close it. If many callers wait for few connections, the client would then do
// nothing but make new ones.
func (b budget) patient() (context.Context, context.CancelFunc) {
	until := b.end
	if b.own {
		until = until.Add(-time.Until(until) / 4)
	} else if own, ok := b.Deadline(); ok && !own.After(until) {
		return b.Context, func() {}
	}
	ctx, cancel := context.WithDeadline(b.Context, until)
	return patient{ctx, b.end}, cancel
}

// unhurried is patient, but gives the server as much time as a trip does. Its caller
// leaves by a timer.
func (b budget) unhurried() (context.Context, context.CancelFunc) {
	ctx, cancel := b.patient()
	now := time.Now()
	return patient{ctx, now.Add(max(lasting, lastingTimes*b.end.Sub(now)))}, cancel
}

// plain returns the context for any other client.
func (b budget) plain() (context.Context, context.CancelFunc) {
	return context.WithDeadline(b.Context, b.end)
}

// link is a client, as the store uses it.
type link struct {
	client   Client
	process  process
	pool     func(key string) (*redis.Client, error) // the client whose connections key's commands use; nil if it is not known
	pipeline *pipeline                               // of a *redis.Client; nil for other kinds
	slots    *slots                                  // of a cluster client; nil for other kinds
	pulse    pulse
	turn     chan struct{} // of one Ready: two would each wait for the connections that the other holds
}

// newLink finds the cheapest way to run commands on client that keeps to deadlines.
func newLink(s *Store, client Client) *link {
	timeout := s.timeout
	l := &link{client: client, process: detached(client, budget.plain), pulse: pulse{base: time.Now()}, turn: make(chan struct{}, 1)}
	switch c := client.(type) {
	case *redis.Client:
		limited := deadlines(c, max(timeout, lasting))
		l.pipeline = newPipeline(s, limited, c.Options().ContextTimeoutEnabled)
		l.process = direct(limited, timeout)
		l.pool = func(string) (*redis.Client, error) { return c, nil }
	case *redis.AutoPipeliner:
		l.process = newDetour(c, timeout).process
	case *redis.ClusterClient:
		l.process = detached(c, budget.patient)
		// With ReadOnly the client looks up each command, for up to 5 s whatever the
		// context.
		if o := c.Options(); o.ContextTimeoutEnabled && !o.ReadOnly {
			l.process = settled(c, timeout)
		}
		l.pool = func(key string) (*redis.Client, error) { return c.MasterForKey(ended(), key) }
		l.slots = &slots{client: c}
	case *redis.Ring:
		l.process = detached(c, budget.patient)
		if c.Options().ContextTimeoutEnabled {
			l.process = settled(c, timeout)
		}
		l.pool = c.GetShardClientForKey
	}
	return l
}

// deadlines returns a clone of c that keeps to deadlines, of at most most. It has its own
// options, the same connections, and none of c's hooks: go-redis has no way to keep them.
func deadlines(c *redis.Client, most time.Duration) *redis.Client {
	if c.Options().ContextTimeoutEnabled {
		return c
	}
	clone := c.WithTimeout(most)
	clone.Options().ContextTimeoutEnabled = true
	return clone
}

// ended is a context that has ended: a call that takes it does no I/O.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// full reports whether all connections that key's commands may use are taken. If so, a
// call whose wait was in vain has waited for one of them. If not, it has waited for a new
// one.
func (l *link) full(key string) bool {
	if l.pool == nil {
		return false
	}
	c, err := l.pool(key)
	return err == nil && taken(c)
}

// taken reports whether all places of c's pool are.
func taken(c *redis.Client) bool { return int(c.PoolStats().TotalConns) >= c.Options().PoolSize }

// answered notes that a server has answered a call of key.
func (l *link) answered(key string) {
	l.pulse.beat()
	if l.slots != nil {
		l.slots.answered(key)
	}
}

// failed notes that a call of key has failed.
func (l *link) failed(f fault, key string) {
	if l.slots != nil {
		l.slots.failed(f, key)
	}
}

// direct is for clients that keep to the context's deadline.
func direct(client Client, timeout time.Duration) process {
	w := waves.New(timeout)
	return func(b budget, cmd redis.Cmder, sent *sending) error {
		if b.own && b.Done() == nil {
			return client.Process(sent.waitsWith(w, b), cmd)
		}
		ctx, cancel := b.patient()
		defer cancel()
		return client.Process(ctx, cmd)
	}
}

// settled is direct while no more calls are under way than have had connections before.
// Calls that may have to make a connection are detached, and have the time that a
// handshake takes. Otherwise go-redis would close the connection when the caller's time
// is up.
func settled(client Client, timeout time.Duration) process {
	alone, making := direct(client, timeout), detached(client, budget.unhurried)
	var underway, proven atomic.Int64
	return func(b budget, cmd redis.Cmder, sent *sending) error {
		n := underway.Add(1)
		defer underway.Add(-1)
		if n <= proven.Load() {
			err := alone(b, cmd, sent)
			if !answeredBy(err) {
				proven.Store(0)
			}
			return err
		}
		err := making(b, cmd, sent)
		if answeredBy(err) {
			for most := proven.Load(); n > most && !proven.CompareAndSwap(most, n); most = proven.Load() {
			}
		}
		return err
	}
}

// outcome is how a call of a client has ended.
type outcome struct {
	err      error
	panicked any
}

func (o outcome) error() error {
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}

// detached is for all other clients. The goroutine lasts as long as the client's own
// timeouts. By then ctx has ended, so an abandoned command that still waits for a
// connection is not sent.
func detached(client Client, within func(budget) (context.Context, context.CancelFunc)) process {
	return func(b budget, cmd redis.Cmder, sent *sending) error {
		ctx, cancel := within(b)
		defer cancel()
		done := make(chan outcome, 1)
		go func() {
			o := outcome{panicked: errExit}
			defer func() { // a panic belongs on the caller's goroutine, which may expect it
				if r := recover(); r != nil {
					o.panicked = r
				}
				done <- o
			}()
			if o.err = client.Process(ctx, cmd); o.err == nil {
				o.err = cmd.Err() // waits, if the client only queued the command
			}
			o.panicked = nil
		}()
		gone := func(err error) error {
			return left{err, func() error {
				o := <-done
				if o.panicked != nil {
					return errPanic
				}
				return o.err
			}}
		}
		select {
		case o := <-done:
			return o.error()
		case <-ctx.Done():
			if sent.state.Load() != written {
				return gone(ctx.Err())
			}
		}
		// Only the time to wait for a connection is over.
		last, cancel := b.plain()
		defer cancel()
		select {
		case o := <-done:
			return o.error()
		case <-last.Done():
			return gone(last.Err())
		}
	}
}
