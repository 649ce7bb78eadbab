// Package pgstore keeps the state of rate limiters in Postgres, so that any number of processes
// share it. It uses pgx v5 and needs Postgres 14 or later.
//
//	st, err := pgstore.New(pool)
//	...
//	err = st.Migrate(ctx) // or hand Schema to your migration tool
//
// Decisions run in Go, by the same code as in memory, and use the server's clock. A decision on several limits is
// one transaction over any keys. [The guide for operators] explains how calls share transactions, and has the
// permissions, the costs and the sizes. A pooler such as PgBouncer may be in transaction mode.
//
// Calls that write also delete rows whose state has ended, a few at a time. There is no goroutine and nothing to
// close: the pool stays yours.
//
// # Errors
//
// A call returns within the store's timeout ([WithTimeout], 250 ms by default) or by its context's deadline,
// whichever is earlier, even if the server hangs or another transaction has locked the row. If the context ends,
// the error is ctx.Err(), and the call's charge is refunded. Every other error wraps [store.ErrStore]. After
// [store.ErrTimeout], the events may be charged, because the answer to a COMMIT was lost. After all other errors,
// nothing is charged. The store retries a call that has certainly charged nothing, such as one that met a
// deadlock, while there is time. Calls that cannot be answered in time are refused ([store.ErrOverloaded]).
//
// [The guide for operators]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/postgres.md
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

const (
	defaultTable = "ratelimit"

	// defaultTimeout is longer than the goroutines of a busy process wait for a processor.
	defaultTimeout = 250 * time.Millisecond

	// lasting is the least time for which a connection may wait for the server, whatever the timeout.
	lasting = time.Second
)

// Store keeps state in Postgres. It is made by [New] and safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	name     []string // the identifiers of the table, perhaps after that of its schema
	timeout  time.Duration
	clock    func() time.Time // nil: the server's
	setBack  bool             // whether the clock can be set back, as the server's can
	unlogged bool
	sql      statements
	carrier  *carrier.Carrier[*call]

	renewed     atomic.Int64  // when the pool was last reset, Unix ns
	noWaitUntil atomic.Int64  // when trips may wait again for rows that others hold, Unix ns
	prepares    atomic.Bool   // whether some statements are prepared
	written     atomic.Uint64 // rows written so far: see sweep
	page        atomic.Uint64 // the next page to sweep
}

// Option is an optional setting of [New].
type Option func(*Store) error

// WithTable sets the name of the table, "ratelimit" by default. "schema.table" is the table of a schema. Without a
// schema, the search path of the connections applies. Two stores on one database share the state of equal
// limiters if and only if their tables are the same.
func WithTable(name string) Option {
	return func(s *Store) error {
		parts, err := tableName(name)
		s.name = parts
		return err
	}
}

// WithTimeout sets how long a call may take, including the wait for a connection. It must be positive, and at most
// a day. The default is 250 ms. A nearer deadline of the call's context comes first.
func WithTimeout(d time.Duration) Option {
	return func(s *Store) error {
		if d <= 0 || d > 24*time.Hour {
			return fmt.Errorf("%w: WithTimeout(%v), want above 0 and at most 24h", store.ErrInvalidOption, d)
		}
		s.timeout = d
		return nil
	}
}

// WithClock makes decisions use now instead of the server's clock, for tests. All stores of a table must use a
// clock of the same kind.
//
// Stored time never goes back: a caller whose clock is ahead by s delays the others by at most s, up to a minute.
// Clocks that differ by more lose the state of keys early.
func WithClock(now func() time.Time) Option {
	return func(s *Store) error {
		if now == nil {
			return fmt.Errorf("%w: WithClock(nil)", store.ErrInvalidOption)
		}
		s.clock, s.setBack = now, false
		return nil
	}
}

// WithUnlogged makes [Store.Schema] and [Store.Migrate] create the table as UNLOGGED. Decisions then write nothing
// to the write-ahead log, which makes them faster. After a crash of the server, the table is empty, and every key has its
// whole limit again. It is also empty on a replica that takes over. The option changes nothing for a table that exists.
func WithUnlogged() Option {
	return func(s *Store) error {
		s.unlogged = true
		return nil
	}
}

// New returns a store that uses pool. It does no I/O. It returns [store.ErrInvalidOption] if pool is nil or an
// option cannot be used.
func New(pool *pgxpool.Pool, opts ...Option) (*Store, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: the pool is nil", store.ErrInvalidOption)
	}
	s := &Store{pool: pool, name: []string{defaultTable}, timeout: defaultTimeout, setBack: true}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", store.ErrInvalidOption)
		}
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	s.sql = s.statements()
	s.page.Store(rand.Uint64())
	config := pool.Config()
	s.prepares.Store(prepares(config.ConnConfig))
	var err error
	s.carrier, err = carrier.New(s.config(pool, config))
	return s, err
}

// config is what the carrier knows of the pool, and what it does with it.
func (s *Store) config(pool *pgxpool.Pool, config *pgxpool.Config) carrier.Config[*call] {
	return carrier.Config[*call]{
		Timeout: s.timeout, Conns: int(config.MaxConns), DialTimeout: config.ConnConfig.ConnectTimeout,
		Slack: s.timeout, // as much as there may be: a commit waits for the disk, and may wait for a row
		Send:  s.send, Alone: s.alone, Means: meaning, GiveBack: s.giveBack,
		Pool: func() (idle, total int) {
			stat := pool.Stat()
			return int(stat.IdleConns()), int(stat.TotalConns())
		},
		Dial: func(ctx context.Context) error { return dial(ctx, config) },
	}
}

// dial makes a connection as a pool of this configuration does, and closes it: why none can be made, a pool does not say
// while it waits.
func dial(ctx context.Context, config *pgxpool.Config) error {
	of := config.ConnConfig.Copy()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, of); err != nil {
			return err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, of)
	if err == nil {
		_ = conn.Close(ctx)
	}
	return err
}

// errNotMade is the error of a Store without a pool.
var errNotMade = fmt.Errorf("%w: pgstore: the Store was not made by New", store.ErrStore)

// Take implements [store.Store].
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	requests := [1]store.Request{{Namespace: ns, Key: key, Limit: l, N: n}}
	var replies [1]store.Reply
	err := s.Decide(ctx, requests[:], replies[:])
	return replies[0], err
}

// Decide implements [store.Store]. All keys and all alternatives are decided in one transaction.
func (s *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if len(requests) == 0 {
		return nil
	}
	c, err := s.do(ctx, renews(&requests[0]), func() *call { return newCall(requests) })
	if err != nil {
		return err
	}
	copy(replies, c.replies)
	return nil
}

// renews reports whether q renews a slot that is held.
func renews(q *store.Request) bool { return q.Namespace.Rule.Held && q.Limit.Before() > 0 }

// returns reports whether what q has charged goes back if its caller has left.
func returns(q *store.Request) bool {
	return q.Op != store.OpOverdraw && !renews(q) && q.Namespace.Rule.Report != nil
}

// Refund implements [store.Store].
func (s *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, receipt store.Receipt) error {
	_, err := s.do(ctx, true, func() *call {
		c := newCall([]store.Request{{Namespace: ns, Key: key, Limit: l}})
		c.op, c.receipt = refund, receipt
		return c
	})
	return err
}

// Reset implements [store.Store]. The row stays without a value, until it is deleted with those that have ended.
func (s *Store) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	_, err := s.do(ctx, false, func() *call {
		c := newCall([]store.Request{{Namespace: ns, Key: key}})
		c.op = reset
		return c
	})
	return err
}

// Together implements [store.Store]. All keys are in one table.
func (s *Store) Together(string, string) bool { return true }

// Prepare implements [store.Store]. There is nothing to prepare.
func (s *Store) Prepare(*store.Rule, store.Limit, bool) error {
	if s.carrier == nil {
		return fmt.Errorf("%w: %w", store.ErrInvalidOption, errNotMade)
	}
	return nil
}

// Timeout returns how long a call takes at most: see [WithTimeout].
func (s *Store) Timeout() time.Duration { return s.timeout }

// do makes a call and returns it with its replies. Calls that go ahead make room for others. If nothing has run for
// certain and there is time, do tries again with a new call, because the previous one may still be in use.
func (s *Store) do(ctx context.Context, ahead bool, newCall func() *call) (*call, error) {
	if s.carrier == nil {
		return nil, errNotMade
	}
	b := s.carrier.Begin(ctx)
	b.Ahead = ahead
	if err := b.Err(); err != nil {
		return nil, err
	}
	if err := s.carrier.Admit(&b); err != nil {
		return nil, err
	}
	defer b.Leave()
	for {
		c, err := s.carrier.Do(b, newCall())
		if err == nil {
			return c, nil
		}
		if errors.Is(err, errHeld) && !b.Together { // calls that go together wait for the row
			b.Together = true
			continue
		}
		f := failureOf(err)
		if !b.Again(f) {
			return nil, b.Fail(f)
		}
	}
}

// giveBack refunds what c has charged, because its caller has left.
func (s *Store) giveBack(c *call) {
	if !c.done {
		return
	}
	go func() {
		defer func() { _ = recover() }() // the clock has panicked, and there is no caller to panic for
		for i, n := range c.charged {
			q := &c.requests[i]
			if n < 1 || !returns(q) {
				continue
			}
			receipt := c.replies[i].Receipt(q.Namespace.Rule, q.Limit, n, n)
			for pause := time.Millisecond; pause < time.Second; pause *= 8 {
				err := s.Refund(context.Background(), q.Namespace, q.Key, q.Limit, receipt)
				if err == nil || errors.Is(err, store.ErrTimeout) { // after a timeout, the refund may have run
					break
				}
				time.Sleep(pause)
			}
		}
	}()
}
