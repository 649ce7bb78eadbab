// Package redisstore keeps the state of rate limiters in Redis, so that any
// number of processes share it. It works with every kind of go-redis client:
// single, Sentinel, Cluster, Ring and auto-pipelined.
//
// A decision is one EVALSHA on one key in one round trip, and so is one of several limits
// (All of package ratelimit) on as many keys, if they are on one server. The script is sent in
// full only when the server does not have it (NOSCRIPT), which is once per
// server and again after a SCRIPT FLUSH, a restart or a failover. Every key
// carries its own TTL, so idle keys go by themselves. The least versions are
// Redis 6.2 and Valkey 7.2.
//
// # Time
//
// The time of a decision is the server's TIME, read inside the script, so the
// callers' clocks do not matter. [WithClock] puts the caller's clock in its
// place, for servers that refuse TIME in scripts and for tests. Stored time never
// goes back there: a caller whose clock is ahead by s delays the others by at
// most s. Keys still expire by the server's clock, so a caller whose clock stands
// still or runs slow loses state early.
//
// # Timeouts
//
// A call returns within the store's timeout ([WithTimeout], 50 ms), or by the
// deadline of its context if that is nearer, even if the server hangs and whatever
// timeouts the client has. The context's own end is answered with ctx.Err(). A context
// that is cancelled without a deadline may end a call as late as the timeout does: a
// *redis.Client does not look up from a socket.
//
// The last quarter of the store's timeout is the server's: a call that still has no
// connection by then fails, and leaves the connections to those that have the time
// to use them.
//
// A server that is farther away than nine tenths of the timeout cannot serve: with the
// default that is 45 ms. [Store.Check] measures the round trip and says so. A new
// connection takes some round trips more; [Store.Ready] makes connections before the
// first call.
//
// # Errors
//
// Every failure but the context's own end wraps [store.ErrStore], and is never a
// context error. Its class says what is known:
//
//   - [store.ErrUnavailable]: nothing ran. No connection could be made, or the server
//     refused until the time was up (LOADING, READONLY, CLUSTERDOWN, MASTERDOWN,
//     TRYAGAIN, NOREPLICAS, BUSY, too many clients), or it refuses writes (MISCONF).
//   - [store.ErrTimeout]: the command was written and no reply came, in time or at all
//     (a connection that broke). Whether it ran is unknown; the charge may stand.
//   - [store.ErrOverloaded]: nothing ran. All connections of the pool were busy, or the
//     client's queue was full, and a server has answered in the last second (or in twice
//     the timeout, if that is longer). Where none has, it is ErrUnavailable.
//   - [store.ErrOutOfMemory]: nothing ran. The server is at its maxmemory and evicts
//     nothing.
//   - [store.ErrCorrupt]: nothing ran. The key holds something that no limiter wrote.
//   - none of them: nothing ran, and nothing will until somebody mends it (a wrong
//     password, a missing permission, a server without scripts).
//
// While a client dials, its first calls do not yet know why there is no connection:
// whether it is ErrUnavailable or ErrOverloaded is then told by the size of the pool. So
// for a second after a server has begun to hang both are seen. An AutoPipeliner does not say
// what it has sent, so nearly all that goes wrong behind one is ErrTimeout.
//
// A call runs at most once on the server: a command whose reply was lost is not
// sent again, although the client would do so with its own commands. What proves that
// nothing ran (NOSCRIPT, the refusals above, a connection that could not be made) is
// followed by another attempt, after 1 to 32 ms, for as long as there is time.
//
// A call that was given up while it waited in a client charges nothing when it is
// sent at last: it has become a Peek.
//
// # Clients
//
// A *redis.Client whose ContextTimeoutEnabled is false does not keep to deadlines, so
// the store uses a clone of it (WithTimeout) that does and shares its connections.
// go-redis gives such a clone none of the hooks: for tracing, set
// ContextTimeoutEnabled, and the store uses the client itself.
//
// Hooks of a client with ContextTimeoutEnabled see a call that goes alone as a command
// (ProcessHook), with the values of its caller's context. Calls that go together
// ("Many callers") they see as a pipeline (ProcessPipelineHook), whose context has no
// caller's values. A TIME is sent where a connection is made ahead.
//
// A ClusterClient or Ring without ContextTimeoutEnabled, a ClusterClient that reads
// from replicas, the blocking face of an AutoPipeliner, and any client that this
// package does not know, cost a goroutine for each call under way. One that is
// abandoned ends when the client gives up.
//
// An AutoPipeliner (experimental in go-redis) should be the limiter's own: go-redis
// retries no command of a batch in which one must not be retried. Set its
// MaxQueuedCommands. One connection that dies unnoticed holds up its batches for the
// client's ReadTimeout, 5 s unless it is set. The store notices that after twice its own
// timeout; all calls until then are [store.ErrTimeout]. Until the batch has ended,
// each call then goes in a pipeline of its own, on another connection and at the cost of a
// goroutine.
//
// Over TLS 1.3 set Protocol to 2 in the client's options. By RESP3, its default, go-redis
// (9.23) takes what a server sends after a handshake for the beginning of a push
// notification, so that the first call on a connection that was made ahead of it
// (MinIdleConns, or while the server hung) may wait until its deadline, and fail as
// [store.ErrUnavailable].
//
// # Many callers
//
// With a *redis.Client, a call goes alone while a connection is free. At most 16
// connections are used at once, or PoolSize if that is less. Calls beyond them wait for
// the next connection that comes free, and go together: up to 64 commands in one round
// trip, each with its own reply. So few connections serve many callers, and few have to
// be made again when all break. Where a round trip takes more than an eighth of the
// timeout, calls gather for up to a sixteenth of it, so that none waits for a whole one.
//
// A connection is made in time of its own, a second or ten times the timeout: it outlives
// the call that wanted it. Where callers wait, a late reply does not close the connection either.
// Callers return in time all the same.
//
// A call that cannot be answered in time, for all who wait before it, is refused at once:
// that is [store.ErrOverloaded]. If a connection breaks, each of the up to 64 calls on it
// is [store.ErrTimeout].
//
// With a ClusterClient or Ring each call goes alone.
//
// [WithBatching] also decides several calls in one script, for a fraction of the
// server's time.
//
// # Cluster
//
// The key of a state ends in a hash tag made of the user's key alone, so that
// several limits of one user share a slot. User keys with braces, or longer than
// 128 bytes, appear as a SHA-256: no user key sets the tag of another.
//
// When a node cannot be reached, or answers that its state has changed, the store
// makes a ClusterClient ask for the slots: in a goroutine, at most five times a second,
// and once a second if calls only time out. It goes on, also if nobody calls (as behind an
// open circuit breaker), until the key has another master, or its master answers, or 30 s
// have passed since the last failure. Left alone, the client is blind to a
// failover for up to a minute. An AutoPipeliner of a ClusterClient cannot be told.
//
// # Sentinel
//
// A dial of a host that is cut off lasts for the client's DialTimeout, 5 s by default.
// go-redis dials apart from the calls, and a dial holds a place in the pool, also when
// another master has been named. So the store lets dials that hang take half of the places
// at once, and gives out the others one by one: the new master is reached after
// DialTimeout / (PoolSize / 2), 0.5 s for 20 places. Whoever else uses the client takes all.
// Set a DialTimeout of 500 ms, as [Store.Check] advises.
//
// # Permissions
//
// The least that a user of the server needs, here with the default prefix, is
//
//	~rl:* +evalsha +eval +time +get +set +del +unlink +pexpire +llen +lindex +lset +rpush +lpop +ltrim
//
// [WithClock] does without time. A ClusterClient also needs +cluster|slots, and a Ring
// +ping. [Store.Check] names what is missing; it looks at more with +info, and with
// +config|get where INFO does not tell.
//
// # What is lost
//
// The state is as durable as the server's writes. Those that a server loses in a
// crash, a failover or an eviction under maxmemory are events that may be admitted
// again.
package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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

	// layout is the version of what the scripts store. It is part of every key,
	// so that two versions of this library never read each other's state.
	layout = "2"

	maxPlainKey = 128 // bytes; longer user keys are hashed

	// maxTime is how far from 1970 the clock may be, in µs: 231 years. Lua's integers
	// are exact to 285, and states lie some years ahead.
	maxTime = 231 * 365 * 24 * 3600 * 1e6
)

// resetScript is UNLINK as a script, because a ClusterClient splits the plain
// command by key into commands of its own making, which it retries.
const resetScript = `if ARGV[1] == 'reset' then redis.call('UNLINK', KEYS[1]) end return {0, 0, 0, 0}`

// Store keeps state in Redis, and is made by [New]. It is safe for concurrent use and
// has nothing to close: the client stays the caller's.
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

// WithPrefix sets what every key starts with, "rl" by default. Two stores on one
// server share the state of equal limiters if and only if their prefixes are
// equal, provided that no prefix continues another with a colon ("a" and "a:1:b"
// could meet). Braces are [store.ErrInvalidOption]: the hash tag is the user's key.
func WithPrefix(prefix string) Option {
	return func(s *Store) error {
		if strings.ContainsAny(prefix, "{}") {
			return fmt.Errorf("%w: prefix %q has a brace", store.ErrInvalidOption, prefix)
		}
		s.prefix = prefix
		return nil
	}
}

// WithTimeout sets how long a call may take, 50 ms by default, the wait for a
// connection included. A nearer deadline of the call's context comes first. It
// must be positive.
func WithTimeout(d time.Duration) Option {
	return func(s *Store) error {
		if d <= 0 {
			return fmt.Errorf("%w: timeout %v is not positive", store.ErrInvalidOption, d)
		}
		s.timeout = d
		return nil
	}
}

// WithClock makes the caller's clock the time of decisions, in place of the
// server's. All stores with the same prefix must agree on one or the other. A
// reading outside the years 1740 to 2199 is [store.ErrStore].
func WithClock(now func() time.Time) Option {
	return func(s *Store) error {
		if now == nil {
			return fmt.Errorf("%w: clock is nil", store.ErrInvalidOption)
		}
		s.clock = now
		return nil
	}
}

// New returns a store that uses client. It does no I/O: a server that cannot be
// reached shows in the first call, or in [Store.Check]. A nil client is
// [store.ErrInvalidOption].
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

// errNotMade is the answer of a Store that has no client.
var errNotMade = fmt.Errorf("%w: redisstore: Store not made by New", store.ErrStore)

// Take implements [store.Store].
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if l.Before > 0 {
		return s.call(s.budget(ctx), ns, key, "within", l, n, l.Before)
	}
	if s.batching && ns.Rule.BatchScript != nil {
		return s.takeInBatch(s.budget(ctx), ns, key, l, n)
	}
	return s.call(s.budget(ctx), ns, key, "take", l, n)
}

// TakeUpTo implements [store.Store].
func (s *Store) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(s.budget(ctx), ns, key, "upto", l, n)
}

// Overdraw implements [store.Store].
func (s *Store) Overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	return s.call(s.budget(ctx), ns, key, "charge", l, n, most)
}

// Peek implements [store.Store].
func (s *Store) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(s.budget(ctx), ns, key, "peek", l, n)
}

// Refund implements [store.Store].
func (s *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	over := 0
	if c.Overdrawn {
		over = 1
	}
	_, err := s.call(s.budget(ctx), ns, key, "refund", l, c.N, c.At, c.Due, c.Rate, c.Period, over)
	return err
}

// call runs an operation of ns's rule, with the arguments of scripts/driver.lua.
func (s *Store) call(b budget, ns *store.Namespace, key, op string, l store.Limit, n int64, more ...any) (store.Reply, error) {
	if s.link == nil {
		return store.Reply{}, errNotMade
	}
	sc := s.script(ns.Rule)
	args := append(make([]any, 0, 14), evalsha, sc.sha, 1, s.key(ns, key), nil, l.Rate, l.Period, l.Burst, n)
	args = append(args, more...)
	if s.clock != nil {
		now, err := s.now()
		if err != nil {
			return store.Reply{}, err
		}
		args = append(args, now)
	}
	var reply [1]store.Reply
	err := s.run(b, sc, one(op), args, reply[:])
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

// key is the Redis key of key's state. Different user keys have different ones:
// neither names nor plain keys have braces, and '=' and '#' keep plain and hashed
// keys apart.
func (s *Store) key(ns *store.Namespace, key string) string {
	if len(key) > maxPlainKey || strings.ContainsAny(key, "{}") {
		sum := sha256.Sum256([]byte(key))
		return s.prefix + ns.Rule.Name + ":" + ns.Name + ":{#" + hex.EncodeToString(sum[:]) + "}"
	}
	return s.prefix + ns.Rule.Name + ":" + ns.Name + ":{=" + key + "}"
}

// now is the caller's clock in Unix µs.
func (s *Store) now() (int64, error) {
	t := s.clock()
	if us := t.UnixMicro(); us > -maxTime && us < maxTime {
		return us, nil
	}
	return 0, fmt.Errorf("%w: the clock reads %v: Lua counts µs from 1740 to 2199", store.ErrStore, t)
}
