// Package redisstore keeps the state of rate limiters in Redis, so that any number of
// processes share it. It works with every go-redis client: single, Sentinel, Cluster,
// Ring and auto-pipelined. The least versions are Redis 6.2 and Valkey 7.2. The guide for
// operators is docs/redis.md in the repository.
//
// A decision is one EVALSHA in one round trip. So is a decision of several limits (All of
// package ratelimit) if their keys are on one server. Decisions use the server's clock.
// Every key has a TTL, so idle keys expire. Writes that a server loses in a crash,
// failover or eviction are events that may be admitted again.
//
// # Timeouts
//
// A call returns within the store's timeout ([WithTimeout], 50 ms by default) or by its
// context's deadline, whichever is nearer, even if the server hangs. A cancelled context
// may end a call only at the timeout: a *redis.Client does not interrupt a read.
//
// The round trip must take less than nine tenths of the timeout. [Store.Check] measures
// it, and [Store.Ready] makes connections before the first call.
//
// # Errors
//
// If the context ends, the error is ctx.Err(). Every other error wraps [store.ErrStore].
// Its class says what is known:
//
//   - [store.ErrUnavailable]: nothing ran. There was no connection, or the server refused
//     (for example LOADING, READONLY, CLUSTERDOWN or MISCONF).
//   - [store.ErrTimeout]: no reply came. The call may have run, and its events may be
//     charged. Behind an AutoPipeliner nearly all failures are of this class.
//   - [store.ErrOverloaded]: nothing ran. The connections or the client's queue were
//     busy, although a server has answered lately.
//   - [store.ErrOutOfMemory]: nothing ran. The server is at its maxmemory and evicts
//     nothing.
//   - [store.ErrCorrupt]: nothing ran. The key holds a value that no limiter wrote.
//   - none of them: nothing ran, and the setup needs repair, for example a wrong
//     password, or a clock that is more than two windows of a calendar away from the
//     server's.
//
// A call runs at most once on the server: a command whose reply is lost is not sent
// again. If it is certain that nothing ran, the store tries again after 1 to 32 ms, while
// there is time.
//
// # Clients
//
// The store uses at most 16 connections of a *redis.Client at once. Further calls wait
// for one, and then go together, up to 64 in one round trip. [WithBatching] decides them
// in one script.
//
// Set ContextTimeoutEnabled in the client's options. Without it, a *redis.Client is used
// without its hooks (tracing), and a ClusterClient or Ring costs a goroutine for each
// call. Over TLS 1.3 set Protocol to 2, or a call on a new connection may hang until its
// deadline. With Sentinel set a DialTimeout of 500 ms. An AutoPipeliner should be used by
// the limiter alone; set its MaxQueuedCommands. [Store.Check] finds most of these
// settings.
//
// # Permissions
//
// With the default prefix, a user needs at least
//
//	~rl:* +evalsha +eval +time +get +set +del +unlink +pexpire +llen +lindex +lset +rpush +lpop +ltrim
//
// [WithClock] does without time. A ClusterClient also needs +cluster|slots, and a Ring
// +ping. [Store.Check] reports what is missing. It also uses +info and +config|get if
// allowed.
package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	defaultPrefix  = "rl"
	defaultTimeout = 50 * time.Millisecond

	// layout is the version of what the scripts store. It is part of every key, so two
	// versions of this library never read each other's state.
	layout = "2"

	maxPlainKey = 128 // bytes; longer user keys are hashed

	// maxTime is how far from 1970 the clock may be, in µs: 231 years. Lua's integers are
	// exact to 285, and states lie some years ahead.
	maxTime = 231 * 365 * 24 * 3600 * 1e6
)

// resetScript is UNLINK as a script. A ClusterClient would split the plain command by key
// into new commands, and retry those.
const resetScript = `if ARGV[1] == 'reset' then redis.call('UNLINK', KEYS[1]) end return {0, 0, 0, 0}`

// Store keeps state in Redis. It is made by [New] and safe for concurrent use. There is
// nothing to close: the client stays the caller's.
//
// The Redis key of a state ends in a hash tag made of the user's key alone, so several
// limits of one user share a slot. User keys with braces, or longer than 128 bytes,
// appear as a SHA-256, so no user key can set the tag of another.
type Store struct {
	link    *link
	prefix  string // up to the name of the rule
	timeout time.Duration
	clock   func() time.Time // nil: the server's TIME

	reset   *script
	scripts sync.Map // of *script by *store.Rule; rules are few and never change
	joint   sync.Map // of *script by ruleSet

	batching bool
	queues   sync.Map // of *queue by *store.Rule, if batching
}

// Option is an optional setting of [New].
type Option func(*Store) error

// WithPrefix sets the beginning of every key, "rl" by default. Two stores on one server
// share the state of equal limiters if and only if their prefixes are equal. No prefix
// should continue another with a colon: keys of "a" and "a:1:b" could meet. A prefix with
// a brace is [store.ErrInvalidOption], because the hash tag must be the user's key.
func WithPrefix(prefix string) Option {
	return func(s *Store) error {
		if strings.ContainsAny(prefix, "{}") {
			return fmt.Errorf("%w: prefix %q has a brace", store.ErrInvalidOption, prefix)
		}
		s.prefix = prefix
		return nil
	}
}

// WithTimeout sets how long a call may take, including the wait for a connection. It must
// be positive; the default is 50 ms. A nearer deadline of the call's context comes first.
// The last quarter of the timeout is kept for the server: a call that has no connection
// by then fails.
func WithTimeout(d time.Duration) Option {
	return func(s *Store) error {
		if d <= 0 {
			return fmt.Errorf("%w: timeout %v is not positive", store.ErrInvalidOption, d)
		}
		s.timeout = d
		return nil
	}
}

// WithClock makes decisions use now instead of the server's clock, for tests and for
// servers that refuse TIME in scripts. All stores with the same prefix must use a clock
// of the same kind. A reading outside the years 1740 to 2199 is [store.ErrStore].
//
// Stored time never goes back: a caller whose clock is ahead by s delays the others by at
// most s. (By a calendar it must not be ahead by more than two windows: see Errors.) Keys still expire by the server's clock, so state is lost early if the caller's
// clock is slow or stands still.
func WithClock(now func() time.Time) Option {
	return func(s *Store) error {
		if now == nil {
			return fmt.Errorf("%w: clock is nil", store.ErrInvalidOption)
		}
		s.clock = now
		return nil
	}
}

// New returns a store that uses client. It does no I/O: an unreachable server shows in
// the first call, or in [Store.Check]. A nil client is [store.ErrInvalidOption].
func New(client Client, opts ...Option) (*Store, error) {
	if isnil.Is(client) {
		return nil, fmt.Errorf("%w: client is nil", store.ErrInvalidOption)
	}
	s := &Store{prefix: defaultPrefix, timeout: defaultTimeout, reset: newScript(resetScript)}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: option is nil", store.ErrInvalidOption)
		}
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	if _, single := client.(*redis.Client); s.batching && !single {
		return nil, fmt.Errorf("%w: batching needs a *redis.Client: a script of many keys cannot run behind a %T", store.ErrInvalidOption, client)
	}
	s.prefix += ":" + layout + ":"
	s.link = newLink(client, s.timeout)
	return s, nil
}

// errNotMade is the error of a Store without a client.
var errNotMade = fmt.Errorf("%w: redisstore: Store not made by New", store.ErrStore)

// Take implements [store.Store].
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(ctx, ns, key, take(l, n))
}

// TakeUpTo implements [store.Store].
func (s *Store) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(ctx, ns, key, task{"upto", l, n, nil})
}

// Overdraw implements [store.Store].
func (s *Store) Overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	return s.call(ctx, ns, key, task{"charge", l, n, []any{most}})
}

// Peek implements [store.Store].
func (s *Store) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(ctx, ns, key, task{"peek", l, n, nil})
}

// Refund implements [store.Store].
func (s *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	_, err := s.call(ctx, ns, key, refund(l, c))
	return err
}

// task is an operation of a rule, with its arguments as in scripts/driver.lua.
type task struct {
	op    string
	limit store.Limit
	n     int64
	more  []any
}

func take(l store.Limit, n int64) task {
	if l.Before > 0 {
		return task{"within", l, n, []any{l.Before}}
	}
	return task{"take", l, n, nil}
}

func refund(l store.Limit, c store.Receipt) task {
	over := 0
	if c.Overdrawn {
		over = 1
	}
	return task{"refund", l, c.N, []any{c.At, c.Due, c.Rate, c.Period, over}}
}

// appendTo appends the arguments to args.
func (t *task) appendTo(s *Store, sc *script, args []any) []any {
	l := sc.boxed(t.limit)
	period := l.period
	if t.limit.Before < 0 { // of a calendar
		period = s.period(&t.limit)
	}
	return append(append(args, l.rate, period, l.burst, t.n), t.more...)
}

// period is the Period of l as scripts/driver.lua has it: of a calendar with the edges around
// the caller's time.
func (s *Store) period(l *store.Limit) any {
	c := l.Calendar()
	if c == nil {
		return l.Period
	}
	now := time.Now
	if s.clock != nil {
		now = s.clock
	}
	text := strconv.AppendInt(nil, l.Period, 10)
	for _, edge := range c.Edges(now().UnixMicro()) {
		text = strconv.AppendInt(append(text, ' '), edge, 10)
	}
	return string(text)
}

// call runs t on key, in a batch if others are under way and the store makes batches.
func (s *Store) call(ctx context.Context, ns *store.Namespace, key string, t task) (store.Reply, error) {
	if s.batching && ns.Rule.BatchScript != nil {
		return s.callInBatch(s.budget(ctx), ns, key, t)
	}
	return s.callAlone(s.budget(ctx), ns, key, t)
}

// attempt is what the first attempt of a call on one key needs, in one allocation.
type attempt struct {
	sending sending
	args    [15]any
}

// callAlone runs t on key.
func (s *Store) callAlone(b budget, ns *store.Namespace, key string, t task) (store.Reply, error) {
	if s.link == nil {
		return store.Reply{}, errNotMade
	}
	sc := s.script(ns.Rule)
	a := &attempt{sending: sending{op: t.op}}
	args := t.appendTo(s, sc, append(a.args[:0], evalsha, sc.sha, 1, s.key(ns, key), &a.sending))
	if s.clock != nil {
		now, err := s.now()
		if err != nil {
			return store.Reply{}, err
		}
		args = append(args, now)
	}
	var reply [1]store.Reply
	err := s.run(b, sc, one(t.op), args, reply[:])
	return reply[0], err
}

// Reset implements [store.Store].
func (s *Store) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	if s.link == nil {
		return errNotMade
	}
	var reply [1]store.Reply
	return s.run(s.budget(ctx), s.reset, one("reset"), []any{evalsha, s.reset.sha, 1, s.key(ns, key), nil}, reply[:])
}

// key returns the Redis key of key's state. Different user keys have different ones.
// Names and plain keys have no braces, and '=' and '#' keep plain and hashed keys apart.
func (s *Store) key(ns *store.Namespace, key string) string {
	if len(key) > maxPlainKey || strings.ContainsAny(key, "{}") {
		sum := sha256.Sum256([]byte(key))
		return s.prefix + ns.Rule.Name + ":" + ns.Name + ":{#" + hex.EncodeToString(sum[:]) + "}"
	}
	return s.prefix + ns.Rule.Name + ":" + ns.Name + ":{=" + key + "}"
}

// now reads the caller's clock, in Unix µs.
func (s *Store) now() (int64, error) {
	t := s.clock()
	if us := t.UnixMicro(); us > -maxTime && us < maxTime {
		return us, nil
	}
	return 0, fmt.Errorf("%w: the clock reads %v: Lua counts µs from 1740 to 2199", store.ErrStore, t)
}
