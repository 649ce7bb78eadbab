// Package store is the contract between the rate-limiting algorithms and the
// places that keep their state. It speaks integers only: times are Unix
// microseconds of the store's clock, durations are microseconds.
//
// An algorithm is a [Rule]: a pure transition told in Go for stores that bring
// the state to the code (memstore), and the same transition told in Lua for
// stores that take the code to the state (redisstore). A [Store] runs rules and
// knows nothing else about them. To write a third store, implement [Store] and
// pass package storetest. Its reference.go is a store to begin with: it keeps bytes.
//
// # What a store keeps
//
// For each key of each [Namespace] a store keeps one value. It keeps nothing for a key that
// was never seen. The value is one of two:
//
//   - a [State], with the Rate and the Period of the [Limit] under which it was counted. The
//     Period is also the State's own. [AppendState] and [ParseState] turn them into bytes.
//   - a [Log], if the [Rule] has a NewLog. AppendBinary and ParseLog turn it into bytes. A
//     store keeps a log from the first event on, made by NewLog of the zero State. Or it
//     keeps a State until Step asks for a log, as memstore does.
//
// A value is written when a decision is OK, or by an Overdraw or a Refund. A denial writes
// nothing, and does not keep a value for longer.
//
// A value ends: a State at At + TTL, by the limit under which it was counted, and a Log at
// its End. A Refund may bring the end forward and never puts it off. From then on the
// store must take the key as never seen, whether it still has the value or not, since
// today's limit may be another one. So the value may be dropped then. It must be dropped
// where a Refund leaves nothing: Whole and Part of the State are 0, or End of the Log is. A
// store that drops a value sooner gives the key a whole limit again.
//
// Time is read once for each call, from one clock for all callers of a key. A reading may
// come late: rules and logs count it as the time of the value. If the clock itself
// is set back, no event leaves until the clock has caught up. A store whose clock can be
// set back re-anchors instead: if At of a State is later than now, the next Take or
// Overdraw sets it to now, and writes that even if it denies. The spend stays, and ages
// from now on. A Log cannot be re-anchored. The clock of memstore is never set back, and
// redisstore re-anchors in its scripts, logs included.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of stores, for errors.Is. Package ratelimit exports the same values.
var (
	// ErrStore says that a store failed, so that no decision is known. After a
	// lost reply the charge may stand.
	ErrStore = errors.New("ratelimit: store failed")
	// ErrInvalidOption says that a constructor was given an unusable option,
	// client or store.
	ErrInvalidOption = errors.New("ratelimit: invalid option")
)

// The classes of ErrStore, for errors.Is: each of them is [ErrStore] too. Only
// after ErrTimeout is it unknown whether the call ran; after the others it did
// not. A failure of no class (a refused password, a script that the server cannot
// run) is ErrStore alone.
var (
	// ErrUnavailable says that the store cannot be reached, or refuses to work for
	// now: it restarts, fails over, or moves data.
	ErrUnavailable = fmt.Errorf("%w: unavailable", ErrStore)
	// ErrTimeout says that no answer came, in time or at all: whether the call ran is
	// not known. It is the store's own timeout, never context.DeadlineExceeded.
	ErrTimeout = fmt.Errorf("%w: timeout", ErrStore)
	// ErrOverloaded says that the call waited in this process, for a connection or in
	// a queue, until its time was up.
	ErrOverloaded = fmt.Errorf("%w: overloaded", ErrStore)
	// ErrOutOfMemory says that the store has no room for the state of one more key.
	ErrOutOfMemory = fmt.Errorf("%w: out of memory", ErrStore)
	// ErrCorrupt says that what is stored for the key is not a state. Reset mends it.
	ErrCorrupt = fmt.Errorf("%w: corrupt state", ErrStore)
)

// Store keeps the state of keys and runs rules on it. Its methods are safe for
// concurrent use, and each is atomic: no other call on the same key of the same
// namespace happens between its reading and its writing.
//
// A store that is embedded in another one, to count its calls say, keeps all of its
// methods: none is optional.
//
// The arguments have been checked: n is at least 1 and at most 2^31, l is valid,
// key is not empty. Errors wrap [ErrStore], or are ctx's own.
type Store interface {
	// Take decides on n events under l and, if they are admitted, charges them.
	Take(ctx context.Context, ns *Namespace, key string, l Limit, n int64) (Reply, error)
	// TakeUpTo is Take of as many of n events as fit, which are the rule's Available in the
	// reply, at most n; where none does, it answers as Take of one.
	TakeUpTo(ctx context.Context, ns *Namespace, key string, l Limit, n int64) (Reply, error)
	// Peek answers what Take would, and changes nothing.
	Peek(ctx context.Context, ns *Namespace, key string, l Limit, n int64) (Reply, error)
	// Refund gives back what is still charged of c.
	Refund(ctx context.Context, ns *Namespace, key string, l Limit, c Receipt) error
	// Overdraw charges n events, whether they fit or not, and replies what Take would
	// have, which is OK if they fitted. X of the reply is when they were charged, OK or not:
	// At of the new state, or the new End of a log less the Period. most is the most events
	// that the state may hold then, at most 2^31-1: see Overdrawn of [Rule].
	Overdraw(ctx context.Context, ns *Namespace, key string, l Limit, n, most int64) (Reply, error)
	// Reset forgets key.
	Reset(ctx context.Context, ns *Namespace, key string) error

	// Together reports whether TakeAll can decide on both keys in one call. A store that
	// decides on one key at a time answers false. Limits are then charged one after the
	// other, and given back if one of them denies.
	Together(key, other string) bool
	// TakeAll decides on each of the requests as Take would, and charges all of them if
	// all are OK, and otherwise none. It does so at one instant: no other call happens
	// between its reading and its writing. The requests are of different keys or
	// namespaces, and of keys that are Together. It puts the replies into replies, which is
	// as long as requests. On an error they mean nothing.
	TakeAll(ctx context.Context, requests []Request, replies []Reply) error

	// Prepare tells the store of a rule that it will run. Each limiter does so when it is
	// made. A store that need not know does nothing. It does no I/O.
	Prepare(rule *Rule)
}

// Request is one of several decisions that are made together: on N events of Key.
type Request struct {
	Namespace *Namespace
	Key       string
	Limit     Limit
	N         int64
}

// Limit is a limit in integers, valid and with its Burst filled in.
type Limit struct {
	Rate   int64 // events per Period, 1 to 2^31-1
	Period int64 // µs, 1,000 to 10 years
	Burst  int64 // the most events at one instant, 1 to 2^31-1; Rate for the window algorithms

	// Before, if it is above 0, is of one call and not of the key: the turn of its events
	// must come sooner than so many µs from now, up to 100 years and 1 µs. It is 0 where
	// turns do not matter, and always for windows and logs. A store hands it to the rule,
	// or to its script, with each Take and Request: it knows nothing else about it.
	Before int64
}

// State is what a key has spent. The zero State is a key never seen, and a
// State of which Whole and Part are 0 means the same. What the fields mean is
// the rule's own; the ranges below always hold, so that a store can pack them.
type State struct {
	At     int64 // the time of the state, Unix µs, -2^60 to 2^60
	Period int64 // the Period of the limit that it was counted under, µs, 1,000 to 10 years
	Whole  int64 // events spent, 0 to 2^32-1
	Part   int64 // the rest of the spend, in the rule's own unit, 0 to 2^49-1
}

// Reply is a decision: whether the events are admitted, and the key as it stood
// before they were, in three integers whose meaning is the rule's own.
type Reply struct {
	OK      bool
	X, Y, Z int64
}

// Receipt names an admission of the past, to give back some of it.
type Receipt struct {
	At        int64 // when it was admitted, Unix µs of the store's clock
	Due       int64 // At + ResetAfter: when the key would have been as never seen
	Rate      int64 // of the limit under which it was admitted
	Period    int64 // of that limit, µs
	Overdrawn bool  // whether it left a bucket above its Burst: then no Burst of today cuts it
	N         int64 // how many of its events to give back, 1 to 2^31-1
}

// Rule is an algorithm. Its functions are pure: they read no clock, take no
// lock, do no I/O and allocate nothing.
//
// All of them take a late reading of the clock for what it is: the time of a
// state never goes back, so now is the later of now and the state's own time.
type Rule struct {
	// Name is the algorithm's name in configuration files and in Redis keys.
	Name string

	// Step decides on n events at now, and returns the state in which they are
	// charged. The caller keeps that state if and only if the reply is OK.
	Step func(s State, l Limit, now, n int64) (State, Reply)
	// Available is how many events would have been admitted by the decision that r is, 0
	// or more.
	Available func(l Limit, r Reply) int64
	// Overdrawn returns next, the state that Step has returned for a decision that was not
	// OK, as it is to be kept if the events are charged all the same: with at most most
	// of them. Logs have none: what is charged is added to the log.
	Overdrawn func(next State, l Limit, most int64) State
	// Refund returns s without what is still charged of c, At and Period as they
	// are. It is called on a State that was kept, never on a zero one.
	Refund func(s State, l Limit, now int64, c Receipt) State
	// TTL is for how long after s.At the state matters, in µs, where l has the Rate
	// and the Period that it was counted under. From s.At + TTL on the store takes
	// it as never seen: today's limit may differ, by which it would last longer.
	TTL func(s State, l Limit) int64
	// Used is how many events of s are in force at now, given the instant end
	// from which on none is.
	Used func(s State, end, now int64) int64

	// NewLog, if not nil, makes a log that begins as s, for what a State cannot
	// hold. Step says that it takes one by admitting events with the zero State: the
	// store then adds them to a new log, and asks it from then on in place of Step,
	// Refund, TTL and Used.
	NewLog func(s State) Log
	// ParseLog is the inverse of AppendBinary of the rule's logs. Bytes that are not a log,
	// and numbers out of range, are [ErrCorrupt]. It does not keep b. It is nil if NewLog is.
	ParseLog func(b []byte) (Log, error)

	// Script is the same rule in Lua, with its driver: a whole Redis script.
	// KEYS[1] is the key of the state; ARGV and the reply are described in
	// scripts/driver.lua.
	Script string
	// JointScript makes the script that decides on keys of several rules at once, of which
	// this is one. Each key is a KEYS; ARGV and the reply are described in
	// scripts/joint.lua. The rules are numbered from 1 there. nil if there is none.
	JointScript func(rules []*Rule) string
	// BatchScript makes the script that makes many calls of this rule at once, each decided on
	// and charged on its own. ARGV and the reply are described in scripts/batch.lua. nil
	// if there is none.
	BatchScript func(rule *Rule) string
}

// Log is the state of one key where that is more than [State] holds. From its End
// on it is as never seen, even if it would last longer by another limit. It is used
// under the store's lock.
type Log interface {
	// Step decides on n events at now and changes nothing.
	Step(l Limit, now, n int64) Reply
	// Add charges n events at now, which Step has just admitted, and returns the
	// new End.
	Add(l Limit, now, n int64) (end int64)
	// Refund gives back what is still charged of c.
	Refund(l Limit, now int64, c Receipt)
	// End is the instant from which on the log may be forgotten, Unix µs, for
	// the Period of the last Add; 0 if nothing is charged.
	End() int64
	// Used is how many events are in force at now.
	Used(now int64) int64
	// AppendBinary appends the log as bytes to b, for ParseLog of its [Rule]. The error is
	// always nil in the logs of package ratelimit.
	AppendBinary(b []byte) ([]byte, error)
}

// Namespace is where the keys of one limiter live: two namespaces of one store never
// touch each other's state unless their rule and name are equal.
type Namespace struct {
	Rule *Rule
	Name string // unique to the algorithm, its Period and the limiter's name

	id [2]uint64
}

// NewNamespace returns the namespace of rule with this name.
func NewNamespace(rule *Rule, name string) *Namespace {
	sum := sha256.Sum256([]byte(rule.Name + "\x00" + name))
	return &Namespace{Rule: rule, Name: name, id: [2]uint64{
		binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16]),
	}}
}

// Equal reports whether the namespaces keep the same state for equal keys.
func (ns *Namespace) Equal(other *Namespace) bool { return ns.id == other.id }

// ID is a hash of the rule's name and of Name, equal for equal namespaces. A store
// that hashes keys mixes it in.
func (ns *Namespace) ID() (hi, lo uint64) { return ns.id[0], ns.id[1] }
