// Package redisstore keeps the state of rate limiters in Redis, for any number of processes. It works
// with every go-redis client: single, Sentinel, Cluster, Ring and auto-pipelined. It requires Redis
// 6.2 or Valkey 7.2, or later.
//
// A decision is one EVALSHA in one round trip, and uses the server's clock. A decision on several
// limits is one too if their keys are on one server. On a cluster or a ring, the limits need the
// same key or hash tag ([WithHashTags]). If a server loses state in a crash, a failover or an
// eviction, it may admit the same events again.
//
// Set ContextTimeoutEnabled in the client's options, and make the store before you use the client.
// [The guide for operators] has other settings and permissions. Package redischeck checks them.
//
// A call returns within the store's timeout ([WithTimeout], 250 ms by default) or by its context's
// deadline, whichever is earlier, even if the server hangs. Give callers twice the timeout, because
// a fallback does not count a call that ends at its own deadline as a failure.
//
// # Errors
//
// If the context ends, the error is ctx.Err(), and the call's charge is refunded, unless it was a
// Charge. Every other error wraps [store.ErrStore]. After [store.ErrTimeout], the events may be
// charged, unless the error says that nothing was sent. After all other errors, nothing is charged.
// The store retries calls that certainly did not run, and no others. Calls that cannot be answered
// in time are refused ([store.ErrOverloaded]).
//
// [The guide for operators]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/redis.md
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/redisview"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

const (
	defaultPrefix = "rl"

	// defaultTimeout is longer than goroutines of a busy process wait for a processor.
	defaultTimeout = 250 * time.Millisecond

	// layout is the version of what the scripts store. It is part of every key, so two
	// versions of this library never read each other's state.
	layout = "2"

	// maxTime is how far from 1970 the clock may be, in µs: 231 years. Lua's integers are exact for
	// 285 years, and the times in states are up to some years ahead.
	maxTime = 231 * 365 * 24 * 3600 * 1e6
)

// resetScript is UNLINK as a script. A ClusterClient would split the plain command by key
// into new commands, and retry them.
const resetScript = `if ARGV[1] == 'reset' then redis.call('UNLINK', KEYS[1]) end return {0, 0, 0, 0}`

// Store keeps state in Redis. It is made by [New] and safe for concurrent use. There is
// nothing to close: the client stays the caller's.
//
// The Redis key of a state ends in a hash tag that is made only of the user's key, so several limits of
// one user share a slot ([WithHashTags] uses other tags). User keys with braces, or longer than 128
// bytes, appear as a SHA-256, so no user key can set the tag of another.
type Store struct {
	shown
	link    *link
	prefix  string // up to the name of the rule
	timeout time.Duration
	clock   func() time.Time // nil: the server's TIME
	tags    []string         // the hash tags of all keys; nil if each user's key is its own tag
	label   string           // of holder
	holder  func() string    // returns the text that names the holder of slots

	reset   *script
	scripts script // of no rule; the scripts of rules, which are few and never change, are made from it

	jitter func(most time.Duration) time.Duration // replaces the jitter of carriers, unless it is nil
}

// shown is for package redischeck.
type shown = redisview.Shown

// Option is an optional setting of [New].
type Option func(*Store) error

// WithPrefix sets the beginning of every key, "rl" by default. Two stores on one server share the
// state of equal limiters if and only if their prefixes are equal. No prefix should extend another one
// by a colon and more, because keys of "a" and "a:1:b" could be equal. WithPrefix returns
// [store.ErrInvalidOption] if the prefix has a brace, because the hash tag must be the user's key.
func WithPrefix(prefix string) Option {
	return func(s *Store) error {
		if strings.ContainsAny(prefix, "{}") {
			return fmt.Errorf("%w: WithPrefix(%q): the prefix must not contain braces", store.ErrInvalidOption, prefix)
		}
		s.prefix = prefix
		return nil
	}
}

// WithTimeout sets how long a call may take, including the wait for a connection. It must be
// positive, and at most a day. The default is 250 ms. An earlier deadline of the call's context takes
// precedence. The last quarter of the timeout is kept for the server, so a call that has no connection
// by then fails.
//
// If the timeout is too short, a busy process mistakes its own delays for a slow server. If it is
// long, callers wait that long when an outage begins. docs/redis.md explains how to choose it.
func WithTimeout(d time.Duration) Option {
	return func(s *Store) error {
		if d <= 0 || d > 24*time.Hour {
			return fmt.Errorf("%w: WithTimeout(%v), want above 0 and at most 24h", store.ErrInvalidOption, d)
		}
		s.timeout = d
		return nil
	}
}

// WithClock makes decisions use now instead of the server's clock, for tests and for servers that
// refuse TIME in scripts. All stores with the same prefix must use a clock of the same kind. If now
// returns a time outside the years 1740 to 2199, calls return [store.ErrStore].
//
// Stored time never goes back, so a caller whose clock is ahead by s delays the others by at most s.
// For a limit by calendar, a clock must not be ahead by more than two windows ([store.ErrClock]). Keys
// still expire by the server's clock, so state is lost early if the caller's clock is slow or stopped.
func WithClock(now func() time.Time) Option {
	return options.Checked(options.Given("WithClock", now != nil), func(s *Store) { s.clock = now })
}

// New returns a store that uses client. It does not connect: an unreachable server is reported by the
// first call, or by [Store.Ready]. New adds a hook to the client, which checks before each write over TLS
// whether the server has closed the connection. New closes idle connections over TLS that were made
// before. It returns [store.ErrInvalidOption] if client is nil.
func New(client Client, opts ...Option) (*Store, error) {
	if isnil.Is(client) {
		return nil, fmt.Errorf("%w: the client is nil", store.ErrInvalidOption)
	}
	s := &Store{prefix: defaultPrefix, timeout: defaultTimeout, reset: newScript(resetScript)}
	if err := options.Apply(s, opts); err != nil {
		return nil, err
	}
	if err := s.checkTags(client); err != nil {
		return nil, err
	}
	prefix := s.prefix
	s.prefix += ":" + layout + ":"
	s.holder = sync.OnceValue(func() string { return holder(s.label) })
	watch(client)
	s.link = newLink(s, client)
	s.shown = redisview.Show(redisview.View{
		Client: client, Prefix: prefix, Keys: s.prefix, Clock: s.clock, Servers: s.servers, Owner: s.link.owner, Ask: s.link.command,
	})
	return s, nil
}

// errNotMade is the error of a Store without a client.
var errNotMade = fmt.Errorf("%w: redisstore: the Store was not made by New", store.ErrStore)

// Take implements [store.Store].
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.one(ctx, renews(ns, l), ns, key, within("take", l), l, n)
}

// Refund implements [store.Store].
func (s *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	_, err := s.one(ctx, true, ns, key, refund(c), l, c.N)
	return err
}

// period returns the Period of r in the form of scripts/groups.lua. A calendar adds the edges of windows
// around the caller's time, and slots add their holder.
func (s *Store) period(r *request) any {
	if r.rule.Held {
		return periodOfHolder(r.limit, s.holder())
	}
	c := r.limit.Calendar()
	if c == nil {
		return r.limit.Period
	}
	now := time.Now
	if s.clock != nil {
		now = s.clock
	}
	text := strconv.AppendInt(nil, r.limit.Period, 10)
	for _, edge := range c.Edges(now().UnixMicro()) {
		text = strconv.AppendInt(append(text, ' '), edge, 10)
	}
	return string(text)
}

// Timeout returns the longest time that a call takes: see [WithTimeout].
func (s *Store) Timeout() time.Duration { return s.timeout }

// ServerOf returns the address of the server that has the states of key, as far as the client of a
// cluster or a ring knows it. It returns "" for other clients. Package fallback has a circuit breaker
// for each server.
func (s *Store) ServerOf(key string) string { return s.serverOf(s.tail(key)) }

// serverOf returns the address of the server of a key in Redis, or "" if it is not known.
func (s *Store) serverOf(redisKey string) string {
	if s.link == nil || s.link.owner == nil {
		return ""
	}
	c, err := s.link.owner(redisKey)
	if err != nil {
		return ""
	}
	return c.Options().Addr
}

// failed returns err, the error of a call for redisKey, with the server that has failed. If redisKey is empty, the client
// does not tell several servers apart (see where), and err names none.
func (s *Store) failed(redisKey string, err error) error {
	if redisKey == "" || !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOverloaded) {
		return err
	}
	return see.At(s.serverOf(redisKey), err)
}

// admit returns the budget of a call with ctx that begins now, and the server of redisKey. It returns an error if
// the call is refused. It comes before everything else, so that a refusal costs little. A call that was admitted must
// Leave. Calls that go ahead make room for others, and there are never more of them than events that were admitted.
func (s *Store) admit(ctx context.Context, ahead bool, redisKey string) (b carrier.Budget, v *server, err error) {
	if s.link == nil {
		return b, nil, errNotMade
	}
	b = s.link.whole.Begin(ctx)
	b.Ahead = ahead
	if err = b.Err(); err != nil {
		return b, nil, err
	}
	if v, _ = s.link.server(b, redisKey); v == nil { // not known yet, so the call's attempts look for it
		return b, nil, s.link.whole.Admit(&b)
	}
	return b, v, v.Admit(&b)
}

// one admits an operation on a key, ahead of others or not, and runs it.
func (s *Store) one(ctx context.Context, ahead bool, ns *store.Namespace, key, op string, l store.Limit, n int64) (store.Reply, error) {
	redisKey := s.where(ns, key)
	b, v, err := s.admit(ctx, ahead, redisKey)
	if err != nil {
		return store.Reply{}, s.failed(redisKey, err)
	}
	defer b.Leave()
	var c call
	var reply [1]store.Reply
	s.fill(&c.first, redisKey, ns, key, op, l, n)
	if err = s.decide(b, v, &c, reply[:]); err != nil {
		return store.Reply{}, s.failed(redisKey, err)
	}
	return reply[0], nil
}

// fill makes r the request for n events of key. If redisKey is empty, it is not made yet. The delay that the call accepts
// ([store.Limit.Before]) is in op.
func (s *Store) fill(r *request, redisKey string, ns *store.Namespace, key, op string, l store.Limit, n int64) {
	if redisKey == "" {
		redisKey = s.key(ns, key)
	}
	r.rule, r.op, r.key, r.limit, r.n = ns.Rule, op, redisKey, l.TurnBefore(0), n
}

// decide finds the script of c, and runs c.
func (s *Store) decide(b carrier.Budget, v *server, c *call, replies []store.Reply) (err error) {
	if c.script, err = s.scriptOf(c); err != nil {
		return err
	}
	if s.link.slots != nil {
		c.slot = slotOf(c.first.key)
	}
	return s.run(b, v, c, replies)
}

// Prepare implements [store.Store].
func (s *Store) Prepare(rule *store.Rule, _ store.Limit, _ bool) error {
	if s.link == nil {
		return fmt.Errorf("%w: %w", store.ErrInvalidOption, errNotMade)
	}
	if rule.Script != nil {
		s.scripts.with(rule)
	}
	return nil
}

// Reset implements [store.Store].
func (s *Store) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	redisKey := s.where(ns, key)
	b, v, err := s.admit(ctx, false, redisKey)
	if err != nil {
		return s.failed(redisKey, err)
	}
	defer b.Leave()
	var reply [1]store.Reply
	return s.failed(redisKey, s.run(b, v, s.resetOf(s.key(ns, key)), reply[:]))
}

// resetOf returns the call that resets a key in Redis.
func (s *Store) resetOf(key string) *call {
	return &call{script: s.reset, first: request{rule: noRule, op: "reset", key: key}}
}

// noRule is the rule of a Reset.
var noRule = new(store.Rule)

var errReading = errors.New("want a year from 1740 to 2199, in which Lua counts µs exactly")

// now reads the caller's clock, in Unix µs.
func (s *Store) now() (int64, error) {
	t := s.clock()
	if us := t.UnixMicro(); us > -maxTime && us < maxTime {
		return us, nil
	}
	return 0, fmt.Errorf("the clock reads %v: %w", t, errReading)
}

// Stats has the counters of a [Store] for its calls to all servers. Overloaded and TooShort only grow.
type Stats struct {
	UnderWay   int64         // calls that have not returned
	Overloaded int64         // calls that ended with [store.ErrOverloaded], and were not sent
	TooShort   int64         // calls that had less time than a round trip, and were not sent
	RoundTrip  time.Duration // the shortest recent one to the farthest server; 0 if not known
}

// Stats returns the current counters.
func (s *Store) Stats() Stats {
	if s.link == nil {
		return Stats{}
	}
	st := Stats{Overloaded: s.link.overloaded.Load(), TooShort: s.link.tooShort.Load()}
	s.link.each(func(v *server) {
		of := v.Stats()
		st.UnderWay += of.UnderWay
		st.Overloaded += of.Overloaded
		st.TooShort += of.TooShort
		st.RoundTrip = max(st.RoundTrip, of.RoundTrip)
	})
	return st
}
