package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is what the store needs of a go-redis client: *redis.Client (single or
// Sentinel), *redis.ClusterClient, *redis.Ring, *redis.AutoPipeliner and
// redis.UniversalClient have it. A redis.Pipeliner has it too, but runs nothing
// until Exec, so that every call fails.
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

// command is a command that no client sends twice. By default go-redis sends a
// command again, up to three times, when its reply is lost. It is one pointer, so
// that it costs nothing as a redis.Cmder.
type command struct{ *redis.Cmd }

// NoRetry tells go-redis not to send the command again.
func (command) NoRetry() bool { return true }

// Clone keeps the type, and with it NoRetry.
func (c command) Clone() redis.Cmder { return command{c.Cmd.Clone().(*redis.Cmd)} }

func newCommand(ctx context.Context, args []any) command {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3) // EVALSHA sha 1 key …
	cmd.SetStepCount(1)   // a ClusterClient asks the server for COMMAND if it is unknown
	return command{cmd}
}

// process runs cmd and returns by ctx's deadline, which is always set. If it
// returns an error, the client may still own cmd and its arguments: they must not
// be read or used again.
type process func(ctx context.Context, cmd command) error

// bounded returns the cheapest way to run a command on client that keeps to
// deadlines.
func bounded(client Client, timeout time.Duration) process {
	switch c := client.(type) {
	case *redis.Client:
		// The clone has its own options and shares the connections.
		clone := c.WithTimeout(timeout)
		clone.Options().ContextTimeoutEnabled = true
		return direct(clone)
	case *redis.AutoPipeliner:
		if !c.IsBlocking() {
			return func(ctx context.Context, cmd command) error {
				return c.Submit(ctx, cmd).WaitContext(ctx)
			}
		}
	case *redis.ClusterClient:
		// With ReadOnly it looks up each command, for up to 5 s whatever the context.
		if o := c.Options(); o.ContextTimeoutEnabled && !o.ReadOnly {
			return direct(c)
		}
	case *redis.Ring:
		if c.Options().ContextTimeoutEnabled {
			return direct(c)
		}
	}
	return detached(client)
}

// direct is for clients that keep to the context's deadline.
func direct(client Client) process {
	return func(ctx context.Context, cmd command) error { return client.Process(ctx, cmd) }
}

// detached is for all others. The goroutine lasts as long as the client's own
// timeouts; since ctx has ended by then, an abandoned command is not sent if it was
// still waiting for a connection.
func detached(client Client) process {
	return func(ctx context.Context, cmd command) error {
		done := make(chan error, 1)
		go func() {
			err := client.Process(ctx, cmd)
			if err == nil {
				err = cmd.Err() // waits, if the client only queued the command
			}
			done <- err
		}()
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
