package redisstore

// Ready, which makes connections in advance, and commands other than decisions.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/redisview"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// readyTimeout is the longest time of a Ready.
const readyTimeout = 5 * time.Second

// Ready opens the connections that many concurrent callers will use, up to 16 to each server. It also
// loads the scripts of the limiters made so far on each server. Call it at startup if the server is
// some milliseconds away. Without Ready, the first calls open the connections, and fail if that takes
// longer than the timeout.
//
// Ready returns by ctx's deadline, or within 5 s. Its error is ctx's own, or wraps [store.ErrStore] if
// a server cannot be reached or the password is refused. After an error, the store works as soon as its
// servers do. If the user may not run SCRIPT LOAD, the first calls load the scripts. Behind an
// AutoPipeliner, or a client that this package does not know, Ready only checks that a server answers.
func (s *Store) Ready(ctx context.Context) error {
	if s.link == nil {
		return errNotMade
	}
	limited, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err := s.warmAll(limited)
	if err == nil {
		return nil
	}
	if ended := (carrier.Budget{Context: ctx}).Over(); ended != nil {
		return ended
	}
	return classed(err)
}

// servers returns a client for each server, or none if they are not known.
func (s *Store) servers(ctx context.Context) ([]*redis.Client, error) {
	clients, err := s.link.clients(ctx)
	if err != nil {
		err = classed(err)
	}
	return clients, err
}

// classed returns err, of commands other than decisions, with its class.
func classed(err error) error {
	if isAnswer(err) {
		return answered(err)
	}
	return fmt.Errorf("%w: %v", store.ErrUnavailable, err) //nolint:errorlint // no context error may show
}

// warmAll calls [Store.warm] for each client, for one caller at a time.
func (s *Store) warmAll(ctx context.Context) error {
	select {
	case s.link.readying <- struct{}{}:
		defer func() { <-s.link.readying }()
	case <-ctx.Done(): // the calls below return the error
	}
	clients, err := s.link.clients(ctx)
	if len(clients) == 0 && err == nil { // they are not known, or all shards of a ring are down
		if _, err = s.link.command(ctx, nil, "time"); answeredBy(err) && !rejected(err) {
			err = nil
		}
	}
	var warm sync.WaitGroup
	errs := make([]error, len(clients))
	for i, c := range clients {
		warm.Go(func() { errs[i] = s.warm(ctx, c) })
	}
	warm.Wait()
	return errors.Join(append(errs, err)...)
}

// warm makes connections of c and loads the scripts on the first of them. It makes them all at the
// same time, so that none is reused. The client itself makes one before that: see [server.conn].
func (s *Store) warm(ctx context.Context, c *redis.Client) error {
	v := s.link.of(c)
	c = deadlines(c, readyTimeout)
	if err := c.Process(ctx, redis.NewCmd(ctx, "time")); !answeredBy(err) || rejected(err) {
		return fmt.Errorf("%s: %w", c.Options().Addr, err)
	}
	ends := make([]func(), min(mostConns, poolSize(c)))
	errs := make([]error, len(ends))
	var made sync.WaitGroup
	for i := range ends {
		var conn session
		conn, ends[i] = sessionOf(c)
		made.Go(func() {
			if i == 0 {
				errs[i] = s.load(ctx, conn)
			} else {
				errs[i] = conn.Process(ctx, redis.NewCmd(ctx, "time"))
			}
			if answeredBy(errs[i]) || busy(errs[i]) {
				errs[i] = nil
			}
			if stats := c.PoolStats(); int(stats.TotalConns) >= poolSize(c) && stats.IdleConns == 0 { // the pool is full, and another goroutine may wait for this connection
				ends[i]()
			}
		})
	}
	made.Wait()
	for _, end := range ends {
		end()
	}
	err := errors.Join(errs...)
	if begun := time.Now(); err == nil {
		if err = c.Process(ctx, redis.NewCmd(ctx, "time")); answeredBy(err) {
			err = nil
			v.Warmed(min(len(ends), int(c.PoolStats().IdleConns)), time.Since(begun))
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.Options().Addr, err)
	}
	return nil
}

// rejected reports whether err is the answer of a server that lets this client do nothing.
func rejected(err error) bool {
	return redisview.Unauthenticated(err) || redis.HasErrorPrefix(err, "DENIED")
}

// load loads the scripts that are known by now.
func (s *Store) load(ctx context.Context, conn session) error {
	pipe := conn.Pipeline()
	_ = pipe.Process(ctx, redis.NewCmd(ctx, "script", "load", s.reset.text))
	s.scripts.each(func(sc *script) { _ = pipe.Process(ctx, redis.NewCmd(ctx, "script", "load", sc.text)) })
	cmds, err := pipe.Exec(ctx)
	if n := len(cmds); n > 0 {
		err = cmds[n-1].Err() // if a connection breaks, all the following commands fail too
	}
	return err
}

// command runs a command other than a decision on the server of c, or on one that the client itself chooses if c is nil.
func (l *link) command(ctx context.Context, c *redis.Client, args ...any) (any, error) {
	cmd, b, a := command{redis.NewCmd(ctx, args...)}, carrier.Budget{Context: ctx}, new(loneCommand)
	b.End, _ = ctx.Deadline()
	a.writing.Begin() // so that the call waits for its answer
	if err := l.of(c).process(b, cmd, a); err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}
