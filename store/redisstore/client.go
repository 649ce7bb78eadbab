package redisstore

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// Client is what the store needs of a go-redis client. *redis.Client (single or
// Sentinel), *redis.ClusterClient, *redis.Ring, *redis.AutoPipeliner and
// redis.UniversalClient implement it. So does a redis.Pipeliner, but it runs nothing
// until Exec, so every call fails.
//
// An AutoPipeliner in its blocking mode, and any client that this package does not know, cost a
// goroutine for each call under way. That of an abandoned call ends when the client gives up.
//
// Calls go to the server of their key, and not through the client of a ring or a cluster. So hooks
// belong to the clients of the servers: add them by OnNewNode. With ContextTimeoutEnabled they see a
// call that goes alone as a command, with the values of its caller's context. They see calls that
// go together as a command of several keys, or as a pipeline, without such values.
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

// replySize is the bytes of a reply for each request, about.
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

// process runs cmd, which belongs to a, and returns by b's end. If it returns an error, the client may still
// own cmd and its arguments: do not read or use them again.
type process func(b carrier.Budget, cmd redis.Cmder, a *attempt) error

// patient is a context whose Done comes before its Deadline.
type patient struct {
	context.Context
	end time.Time
}

func (p patient) Deadline() (time.Time, bool) { return p.end, true }

// patiently returns the context for a go-redis client, which waits for a connection until
// Done and for a server until Deadline. The last quarter of the store's own timeout is
// kept for the server. Otherwise a call that gets its connection too late would time out
// and close it. If many callers wait for few connections, the client would then do
// nothing but make new ones.
func patiently(b carrier.Budget) (context.Context, context.CancelFunc) {
	until := b.End
	if b.Own {
		until = until.Add(-time.Until(until) / 4)
	} else if own, ok := b.Deadline(); ok && !own.After(until) {
		return b.Context, func() {}
	}
	ctx, cancel := context.WithDeadline(b.Context, until)
	return patient{ctx, b.End}, cancel
}

// plainly returns the context for any other client.
func plainly(b carrier.Budget) (context.Context, context.CancelFunc) {
	return context.WithDeadline(b.Context, b.End)
}

// link is a client, as the store uses it.
type link struct {
	client Client
	plain  *server                                 // of a *redis.Client; of others all servers, to which the client itself finds the way
	pool   func(key string) (*redis.Client, error) // the client whose connections key's commands use, without I/O; nil if it is not known
	many   *servers                                // of a ring or a cluster; nil for other kinds
	slots  *slots                                  // of a cluster client; nil for other kinds
	turn   chan struct{}                           // of one Ready: two would each wait for the connections that the other holds

	overloaded, tooShort atomic.Int64 // of servers that are gone
}

// newLink finds the cheapest way to run commands on client that keeps to deadlines.
func newLink(s *Store, client Client) *link {
	l := &link{client: client, turn: make(chan struct{}, 1)}
	process := detached(client, plainly)
	switch c := client.(type) {
	case *redis.Client:
		l.plain = s.server(c)
		l.pool = func(string) (*redis.Client, error) { return c, nil }
		return l
	case *redis.AutoPipeliner:
		process = newDetour(c, s.timeout).process
	case *redis.ClusterClient:
		process = detached(c, patiently)
		l.pool = func(key string) (*redis.Client, error) { return c.MasterForKey(gone, key) }
		l.slots = &slots{client: c}
		l.many = &servers{store: s, load: func(ctx context.Context) error {
			_, err := c.MasterForKey(ctx, "")
			return err
		}}
	case *redis.Ring:
		l.pool = c.GetShardClientForKey
		l.many = &servers{store: s}
	}
	l.plain = s.unknown(process)
	return l
}

// server returns key's server. On a cluster and a ring it may not be known.
func (l *link) server(b carrier.Budget, key string) (*server, error) {
	if l.many == nil {
		return l.plain, nil
	}
	c, err := l.pool(key)
	if err != nil && l.many.load != nil {
		if err = l.many.learn(b); err == nil {
			c, err = l.pool(key)
		}
	}
	if err != nil {
		return nil, err
	}
	return l.many.server(c), nil
}

// of returns the server of c, which is the client or that of one of its servers.
func (l *link) of(c *redis.Client) *server {
	if l.many == nil {
		return l.plain
	}
	return l.many.server(c)
}

// each calls f with each server.
func (l *link) each(f func(*server)) {
	f(l.plain)
	if l.many != nil {
		l.many.known.Range(func(_, v any) bool {
			f(v.(*server))
			return true
		})
	}
}

// servers are those of a ring or a cluster.
type servers struct {
	store *Store
	load  func(context.Context) error // asks where the keys of a cluster are; nil for a ring
	known sync.Map                    // *server by *redis.Client

	mu      sync.Mutex // protects what follows
	loading *loading
}

// loading is a question where the keys of a cluster are.
type loading struct {
	done chan struct{} // closed when err is known
	err  error
}

// mostLoading is how often a question is asked: the node that was asked may hang, and others may not.
const mostLoading = 8

// server returns the server of c. One that is new may stand in the place of another one, which goes then.
func (v *servers) server(c *redis.Client) *server {
	if known, ok := v.known.Load(c); ok {
		return known.(*server)
	}
	now, loaded := v.known.LoadOrStore(c, v.store.server(c))
	if !loaded {
		v.known.Range(func(of, old any) bool {
			if old.(*server).Idle() && v.known.CompareAndDelete(of, old) {
				stats, l := old.(*server).Stats(), v.store.link
				l.overloaded.Add(stats.Overloaded)
				l.tooShort.Add(stats.TooShort)
			}
			return true
		})
	}
	return now.(*server)
}

// learn asks for all calls where the keys are, and waits until b's end for the first answer.
func (v *servers) learn(b carrier.Budget) error {
	v.mu.Lock()
	l := v.loading
	if l == nil {
		l = &loading{done: make(chan struct{})}
		v.loading = l
		go v.ask(l)
	}
	v.mu.Unlock()
	end := time.NewTimer(time.Until(b.End))
	defer end.Stop()
	select {
	case <-l.done:
		return l.err
	case <-b.Done():
		return b.Err()
	case <-end.C:
		return context.DeadlineExceeded
	}
}

// ask asks until one question has an answer, or all have failed.
func (v *servers) ask(l *loading) {
	again := time.NewTicker(max(v.store.timeout/16, time.Millisecond))
	defer again.Stop()
	answers := make(chan error, mostLoading)
	ask := func() {
		ctx, cancel := context.WithTimeout(context.Background(), max(lasting, 5*v.store.timeout))
		defer cancel()
		answers <- v.load(ctx)
	}
	go ask()
	for asked, waits := 1, 1; waits > 0; {
		select {
		case l.err = <-answers:
			if waits--; l.err == nil {
				waits = 0
			}
		case <-again.C:
			if asked < mostLoading {
				asked, waits = asked+1, waits+1
				go ask()
			}
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.loading = nil
	close(l.done)
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

// gone is a context that has ended: a call that takes it does no I/O.
var gone = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// direct is for clients that keep to the context's deadline.
func direct(client Client, timeout time.Duration) process {
	w := waves.New(timeout)
	return func(b carrier.Budget, cmd redis.Cmder, a *attempt) error {
		if b.Own && b.Done() == nil {
			a.waits = waves.Patient{Context: b.Context, End: b.End, Wave: w.After(b.End.Add(-time.Until(b.End) / 4))}
			return client.Process(&a.waits, cmd)
		}
		ctx, cancel := patiently(b)
		defer cancel()
		return client.Process(ctx, cmd)
	}
}

var errPanic = errors.New("a hook panicked")

// detached is for all other clients. The goroutine lasts as long as the client's own
// timeouts. By then ctx has ended, so an abandoned command that still waits for a
// connection is not sent.
func detached(client Client, within func(carrier.Budget) (context.Context, context.CancelFunc)) process {
	return func(b carrier.Budget, cmd redis.Cmder, a *attempt) error {
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
			last, cancel := plainly(b) // only the time to wait for a connection is over
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

// ended waits until done is closed, or ctx ends, and reports whether done is.
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
