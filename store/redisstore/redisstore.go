// Package redisstore keeps the state of rate limiters in Redis, so that any
// number of processes share it. It works with every kind of go-redis client:
// single, Sentinel, Cluster, Ring and auto-pipelined.
//
// A decision is one EVALSHA on one key in one round trip. The script is sent in
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
// # Errors and timeouts
//
// A call returns within the store's timeout ([WithTimeout], 50 ms), or by the
// deadline of its context if that is nearer, even if the server hangs and whatever
// timeouts the client has. The context's own end is answered with ctx.Err();
// every other failure, the store's timeout too, wraps [store.ErrStore] and is
// never a context error. A context that is cancelled without a deadline may end a
// call as late as the timeout does: a *redis.Client does not look up from a socket.
//
// A call runs at most once on the server: a command whose reply was lost is not
// sent again, although the client would do so with its own commands. The error
// then says that the outcome is unknown, and the charge may stand. Only answers
// that prove that nothing ran are followed up: NOSCRIPT here, and MOVED, ASK and
// READONLY by a ClusterClient. All others (LOADING, CLUSTERDOWN, TRYAGAIN, a
// refused connection) fail the call at once, or when its time is up while the
// client dials.
//
// Some clients do not keep to deadlines: a ClusterClient or Ring without
// ContextTimeoutEnabled, a ClusterClient that reads from replicas, the blocking
// face of an AutoPipeliner, and any client that this package does not know. With
// them each call runs in a goroutine of its own, and one that is abandoned ends
// when the client gives up. An AutoPipeliner still sends what was queued when its
// caller gave up, so set its MaxQueuedCommands.
//
// # Cluster
//
// The key of a state ends in a hash tag made of the user's key alone, so that
// several limits of one user share a slot. User keys with braces, or longer than
// 128 bytes, appear as a SHA-256: no user key sets the tag of another.
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
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	defaultPrefix  = "rl"
	defaultTimeout = 50 * time.Millisecond

	// layout is the version of what the scripts store. It is part of every key,
	// so that two versions of this library never read each other's state.
	layout = "1"

	maxPlainKey = 128 // bytes; longer user keys are hashed

	// maxTime is how far from 1970 the clock may be, in µs: 231 years. Lua's integers
	// are exact to 285, and states lie some years ahead.
	maxTime = 231 * 365 * 24 * 3600 * 1e6
)

// resetScript is UNLINK as a script, because a ClusterClient splits the plain
// command by key into commands of its own making, which it retries.
const resetScript = `return {redis.call('UNLINK', KEYS[1]), 0, 0, 0}`

// Store keeps state in Redis. It is safe for concurrent use and has nothing to
// close: the client stays the caller's.
type Store struct {
	process process
	prefix  string // up to the name of the rule
	timeout time.Duration
	clock   func() time.Time // nil: the server's TIME

	reset   *script
	scripts sync.Map // of *script by *store.Rule; rules are few and never change
}

var _ store.Store = (*Store)(nil)

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
// reached shows in the first call. Hooks that are added to client later are not
// sure to be seen. A nil client is [store.ErrInvalidOption].
func New(client Client, opts ...Option) (*Store, error) {
	if isNil(client) {
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
	s.prefix += ":" + layout + ":"
	s.process = bounded(client, s.timeout)
	return s, nil
}

// isNil reports whether client is nil, or an interface that holds nil.
func isNil(client Client) bool {
	if client == nil {
		return true
	}
	switch v := reflect.ValueOf(client); v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice:
		return v.IsNil()
	default:
		return false
	}
}

// Take implements [store.Store].
func (s *Store) Take(ctx context.Context, sp *store.Space, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(ctx, sp, key, "take", l, n)
}

// TakeUpTo implements [store.Store].
func (s *Store) TakeUpTo(ctx context.Context, sp *store.Space, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(ctx, sp, key, "upto", l, n)
}

// Peek implements [store.Store].
func (s *Store) Peek(ctx context.Context, sp *store.Space, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(ctx, sp, key, "peek", l, n)
}

// Refund implements [store.Store].
func (s *Store) Refund(ctx context.Context, sp *store.Space, key string, l store.Limit, c store.Charge) error {
	_, err := s.call(ctx, sp, key, "refund", l, c.N, c.At, c.Due, c.Rate, c.Period)
	return err
}

// call runs an operation of sp's rule, with the arguments of scripts/driver.lua.
func (s *Store) call(ctx context.Context, sp *store.Space, key, op string, l store.Limit, n int64, more ...any) (store.Reply, error) {
	now, err := s.now()
	if err != nil {
		return store.Reply{}, err
	}
	sc := s.script(sp.Rule)
	args := []any{evalsha, sc.sha, 1, s.key(sp, key), op, now, l.Rate, l.Period, l.Burst, n}
	return s.run(ctx, sc, append(args, more...))
}

// Reset implements [store.Store].
func (s *Store) Reset(ctx context.Context, sp *store.Space, key string) error {
	_, err := s.run(ctx, s.reset, []any{evalsha, s.reset.sha, 1, s.key(sp, key)})
	return err
}

// key is the Redis key of key's state. Different user keys have different ones:
// neither names nor plain keys have braces, and '=' and '#' keep plain and hashed
// keys apart.
func (s *Store) key(sp *store.Space, key string) string {
	if len(key) > maxPlainKey || strings.ContainsAny(key, "{}") {
		sum := sha256.Sum256([]byte(key))
		return s.prefix + sp.Rule.Name + ":" + sp.Name + ":{#" + hex.EncodeToString(sum[:]) + "}"
	}
	return s.prefix + sp.Rule.Name + ":" + sp.Name + ":{=" + key + "}"
}

// now is the clock's argument of a script: Unix µs, or "" for the server's TIME.
func (s *Store) now() (any, error) {
	if s.clock == nil {
		return "", nil
	}
	t := s.clock()
	if us := t.UnixMicro(); us > -maxTime && us < maxTime {
		return us, nil
	}
	return nil, fmt.Errorf("%w: the clock reads %v: Lua counts µs from 1740 to 2199", store.ErrStore, t)
}
