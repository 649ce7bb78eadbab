// Package store is the contract between the rate-limiting algorithms and the stores that keep
// their state. All its numbers are integers. Times are Unix microseconds of the store's clock,
// and durations are microseconds.
//
// An algorithm is a [Rule]: a pure transition, written twice. The Go form is for stores that
// bring the state to the code, as memstore does. The Lua form is for stores that take the code
// to the state, as redisstore does. A [Store] runs rules and knows nothing else about them.
//
// To write a third store, implement [Store] and pass package storetest. Begin with the store in
// its reference.go, which keeps bytes.
//
// # Time
//
// Each call reads the time once, from one clock that all callers of a key share. A reading may
// come late; rules and logs then use the time of the value.
//
// A store whose clock can be set back must re-anchor. If At of a State is later than now, the
// next take or overdraft sets it to now, and writes that even if it denies. The spend stays, and
// ages from now on. A Log cannot be re-anchored: no event leaves until the clock has caught up.
// The clock of memstore is never set back. The scripts of redisstore re-anchor, logs included.
package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
)

// Errors of limiters and stores, for errors.Is. Package ratelimit exports the same values, and
// says more of them.
var (
	// ErrInvalidLimit is that of a limit out of range.
	ErrInvalidLimit = errors.New("ratelimit: invalid limit")
	// ErrInvalidN is that of a number of events below 1, or a Refund of nothing.
	ErrInvalidN = errors.New("ratelimit: invalid number of events")
	// ErrInvalidKey is that of a key that is empty, or longer than 64 KiB.
	ErrInvalidKey = errors.New("ratelimit: invalid key")
	// ErrStore means that a store failed, so that no decision is known. If the reply was
	// lost, the events may have been charged.
	ErrStore = errors.New("ratelimit: store failed")
	// ErrInvalidOption means that a constructor was given an unusable option, client or
	// store.
	ErrInvalidOption = errors.New("ratelimit: invalid option")
)

// The classes of ErrStore, for errors.Is: each of them is [ErrStore] too. Only ErrTimeout
// leaves it unknown whether the call ran; after the others it did not. A failure of no
// class is ErrStore alone, such as a refused password or a script that the server cannot
// run.
var (
	// ErrUnavailable means that the store cannot be reached, or refuses to work for now:
	// it restarts, fails over, or moves data.
	ErrUnavailable = fmt.Errorf("%w: unavailable", ErrStore)
	// ErrTimeout means that no answer came, in time or at all. The call may have run. It
	// is the store's own timeout, never context.DeadlineExceeded.
	ErrTimeout = fmt.Errorf("%w: timeout", ErrStore)
	// ErrOverloaded means that the call waited in this process until its time was up, for
	// a connection or in a queue.
	ErrOverloaded = fmt.Errorf("%w: overloaded", ErrStore)
	// ErrOutOfMemory means that the store has no room for the state of one more key.
	ErrOutOfMemory = fmt.Errorf("%w: out of memory", ErrStore)
	// ErrCorrupt means that the value stored for the key is not a state. Reset repairs
	// it.
	ErrCorrupt = fmt.Errorf("%w: corrupt state", ErrStore)
	// ErrClock means that the clocks of the caller and of the store's server, or of two
	// callers, differ by more than two windows of a calendar. Repair the clocks, by NTP;
	// limits that have no calendar go on.
	ErrClock = fmt.Errorf("%w: clocks differ", ErrStore)
)

// MaxKey is the length of the longest key, in bytes.
const MaxKey = 64 << 10

// CheckCall returns the error of a limiter for bad input: [ErrInvalidN], [ErrInvalidKey], or
// that of ctx. It is for limiters around others.
func CheckCall(ctx context.Context, key string, n int) error {
	switch {
	case n <= 0:
		return fmt.Errorf("%w: %d", ErrInvalidN, n)
	case key == "" || len(key) > MaxKey:
		return fmt.Errorf("%w: %d bytes: 1 to %d are allowed", ErrInvalidKey, len(key), MaxKey)
	}
	return ctx.Err()
}

// Store keeps the state of keys and runs rules on it. It is safe for concurrent use. Each
// method is atomic: between its read and its write, no other call touches the same keys of the
// same namespaces. Limiters check the arguments first: n is 1 to 2^31, l is valid, and key is
// not empty. Errors wrap [ErrStore], or are those of ctx. A store before another can embed it:
// no method is optional.
//
// # What a store keeps
//
// For each key of each [Namespace] a store keeps at most one value. It is a [Log] if the [Rule]
// has a NewLog, from the first event on or from when Step asks for it. Otherwise it is a
// [State], with the Rate and the Period of the [Limit] under which it was counted. The store
// writes it when it charges events, and after a Refund. A denial writes nothing,
// and does not extend the life of a value.
//
// A State ends at At + TTL by the limit under which it was counted, and a Log at its End. A
// Refund may bring the end forward, and never puts it off. From its end on the key is new, even
// if the value is still there. A store must drop the value if a Refund leaves nothing: Whole
// and Part of the State are 0, or End of the Log is math.MinInt64. If it drops one sooner, the
// key has its whole limit again.
type Store interface {
	// Take decides on n events under l and, if they are admitted, charges them. It is Decide of
	// one request, in straight line.
	Take(ctx context.Context, ns *Namespace, key string, l Limit, n int64) (Reply, error)
	// Decide decides on a list of requests, each as its [Op] says. If all that vote are OK, it
	// charges each that is OK, and none otherwise. The requests differ in key or namespace. If
	// they are several, their keys are Together, and none of them is OpUpTo or OpOverdraw. Decide
	// sets replies, which is as long as requests. On an error replies mean nothing.
	//
	// A request with Else begins an alternative, which ends before the next Else or with the list.
	// The alternatives are decided in their order, each as a list of its own that may have keys in
	// common with the others, until all that vote in one are OK. The replies of those after it are
	// [NotAsked]. No alternative has an OpUpTo or an OpOverdraw. A store that cannot decide on
	// alternatives in one call uses [InTurn].
	Decide(ctx context.Context, requests []Request, replies []Reply) error
	// Refund gives back what is still charged of c.
	Refund(ctx context.Context, ns *Namespace, key string, l Limit, c Receipt) error
	// Reset forgets key.
	Reset(ctx context.Context, ns *Namespace, key string) error

	// Together reports whether Decide can decide on both keys in one list. A store that
	// decides on one key at a time returns false. Limits are then charged one after the
	// other, and given back if one of them denies.
	Together(key, other string) bool

	// Prepare tells the store of a rule that it will run, and under which limit. Each new
	// limiter calls it. If fixed is false, keys may have other limits, by a limit function. The
	// Rate is 0, or below, for a limit that asks no store. The error is [ErrInvalidOption], for a
	// rule or a limit of which the store can make nothing. It does no I/O, and a store with
	// nothing to prepare does nothing.
	Prepare(rule *Rule, l Limit, fixed bool) error
}

// Request asks about N events of Key, 1 to 2^31.
type Request struct {
	Namespace *Namespace
	Key       string
	Limit     Limit
	N         int64
	Op        Op
	Most      int64 // of OpOverdraw
	// Reserved is how many events must still fit after those of the request, or 0. The request is
	// decided as one of N + Reserved events would be, which is at most 2^31, and its reply is the
	// reply to that. It charges N. An OpUpTo charges as many of N as fit besides Reserved. An
	// OpOverdraw has none.
	Reserved int64
	Else     bool // begins an alternative: see Decide
}

// Op is what a [Request] asks.
type Op uint8

// The operations. The zero Op is OpTake.
const (
	// OpTake charges N events if they fit.
	OpTake Op = iota
	// OpShadow is OpTake, but its denial keeps nothing else from being charged.
	OpShadow
	// OpLook answers as OpTake would. It charges nothing, and its denial keeps nothing else from
	// being charged.
	OpLook
	// OpGate is OpLook, but its denial keeps everything else from being charged.
	OpGate
	// OpUpTo charges as many of N events as fit: the rule's Available of the reply, at most N. If
	// none fits, it answers as OpTake of one event. It stands alone in its list.
	OpUpTo
	// OpOverdraw charges N events whether they fit or not. It answers as OpTake would, OK if they
	// fit. In either case X of the reply is the time of the charge: At of the new state, or the
	// new End of a log less the Period. A plain reply says that all N are charged. Most is the
	// most events that the state may then hold, at most 2^31-1: see Overdrawn of [Rule]. It stands
	// alone in its list.
	OpOverdraw
)

// Votes reports whether a denial of r denies the whole list.
func (r *Request) Votes() bool { return r.Op == OpTake || r.Op == OpGate || r.Op == OpUpTo }

// Looks reports whether r charges nothing.
func (r *Request) Looks() bool { return r.Op == OpLook || r.Op == OpGate }

// AllOK reports whether all of requests that vote are OK by their replies, so that the list is charged.
func AllOK(requests []Request, replies []Reply) bool {
	for i := range requests {
		if requests[i].Votes() && !replies[i].OK() {
			return false
		}
	}
	return true
}

// Alternatives reports whether requests has an Else after the first one.
func Alternatives(requests []Request) bool {
	for i := 1; i < len(requests); i++ {
		if requests[i].Else {
			return true
		}
	}
	return false
}

// InTurn calls decide for each alternative in requests, until one is admitted: see Decide of [Store].
func InTurn(ctx context.Context, requests []Request, replies []Reply, decide func(context.Context, []Request, []Reply) error) error {
	for from, to := 0, 0; from < len(requests); from = to {
		for to = from + 1; to < len(requests) && !requests[to].Else; {
			to++
		}
		if err := decide(ctx, requests[from:to], replies[from:to]); err != nil {
			return err
		}
		if AllOK(requests[from:to], replies[from:to]) {
			for i := to; i < len(replies); i++ {
				replies[i] = Reply{Outcome: NotAsked}
			}
			return nil
		}
	}
	return nil
}

// TakeUpTo calls Decide of s with an OpUpTo.
func TakeUpTo(ctx context.Context, s Store, ns *Namespace, key string, l Limit, n int64) (Reply, error) {
	return decide(ctx, s, Request{Namespace: ns, Key: key, Limit: l, N: n, Op: OpUpTo})
}

// Peek calls Decide of s with an OpLook.
func Peek(ctx context.Context, s Store, ns *Namespace, key string, l Limit, n int64) (Reply, error) {
	return decide(ctx, s, Request{Namespace: ns, Key: key, Limit: l, N: n, Op: OpLook})
}

// Overdraw calls Decide of s with an OpOverdraw.
func Overdraw(ctx context.Context, s Store, ns *Namespace, key string, l Limit, n, most int64) (Reply, error) {
	return decide(ctx, s, Request{Namespace: ns, Key: key, Limit: l, N: n, Op: OpOverdraw, Most: most})
}

// one is a list of one request. A store does not keep it.
type one struct {
	requests [1]Request
	replies  [1]Reply
}

var ones = sync.Pool{New: func() any { return new(one) }}

func decide(ctx context.Context, s Store, r Request) (reply Reply, err error) {
	list := ones.Get().(*one)
	list.requests[0] = r
	if err = s.Decide(ctx, list.requests[:], list.replies[:]); err == nil {
		reply = list.replies[0]
	}
	*list = one{}
	ones.Put(list)
	return reply, err
}

// Limit is a limit in integers, valid and with its Burst filled in.
type Limit struct {
	Rate   int64 // events per Period, 1 to 2^31-1
	Period int64 // µs, 1,000 to 10 years
	Burst  int64 // the most events at one instant, 1 to 2^31-1; Rate for the window algorithms

	// Above 0 it is Before, and below 0 less the number of the Calendar: no limit has both.
	// In one field, since Go keeps a struct of up to four in registers. A fifth would cost each
	// decision in memory a quarter of its time.
	extra int64
}

// Before belongs to one call, not to the key. If it is above 0, the turn of the call's events must
// come sooner than so many µs from now. It is 0 if turns do not matter, and always for windows
// and logs. A store passes it on to the rule or its script, with each Take and Request, and
// does nothing else with it.
func (l Limit) Before() int64 { return max(0, l.extra) }

// TurnBefore returns l for a call with this [Limit.Before], 0 to 100 years and 1 µs. With 0 any
// turn will do. A limit with a [Calendar] has no turns, and stays as it is.
func (l Limit) TurnBefore(us int64) Limit {
	if l.extra >= 0 {
		l.extra = us
	}
	return l
}

// State is what a key has spent. The zero State is that of a new key. A State whose Whole
// and Part are 0 means the same. The rule defines what the fields mean. The ranges below
// always hold, so a store can pack them.
type State struct {
	At     int64 // the time of the state, Unix µs, -2^60 to 2^60
	Period int64 // the Period of the limit that it was counted under, µs, 1,000 to 10 years
	Whole  int64 // events spent, 0 to 2^32-1
	Part   int64 // the rest of the spend, in the rule's own unit, 0 to 2^49-1
}

// Rule is an algorithm. Its functions are pure: they read no clock, take no lock, do no
// I/O and allocate nothing.
//
// They all accept a late reading of the clock. The time of a state never goes back, so
// now is the later of now and the state's own time.
type Rule struct {
	// Name is the algorithm's name in configuration files and in Redis keys.
	Name string

	// Step decides on n events at now, and returns the state in which they are
	// charged. The caller keeps that state if and only if the reply is OK.
	Step func(s State, l Limit, now, n int64) (State, Reply)
	// Burst says that limits have a Burst of their own, and events turns. Elsewhere the
	// Burst is the Rate.
	Burst bool
	// LastOnly says that Refund gives back only the last events that were charged.
	LastOnly bool
	// AnyPeriod says that the Period is no part of where a limiter counts: limits that differ in
	// it share the states of their keys. A limit of one key has the Period of the constructor's.
	AnyPeriod bool
	// Held says that a Refund makes room for others at any time, as of slots that are held. So no
	// denial can be kept, and no event be taken for others. Stores in front refuse the rule.
	Held bool
	// Unit is what the Rate counts, as of qu in the RateLimit-Policy field of HTTP; "" of requests.
	Unit string

	// What the rule's replies mean: Available, Report and After are for the methods of [Reply]
	// of these names. They see no plain reply.
	Available func(l Limit, r Reply) int64
	Report    func(l Limit, r Reply, n, charged int64) Report
	After     func(r Reply, n int64) Reply
	// Spent is how many whole events the state held by r. It is nil for a log, which has room
	// for any number.
	Spent func(r Reply) int64
	// Overdrawn returns the state to keep if events are charged although they do not fit.
	// next is what Step returned for them; the result holds at most most events. It is
	// nil for logs: what is charged is added to the log.
	Overdrawn func(next State, l Limit, most int64) State
	// Refund returns s without what is still charged of c, and leaves At and Period as
	// they are. It is called on a State that was kept, never on a zero one.
	Refund func(s State, l Limit, now int64, c Receipt) State
	// TTL is how long after s.At the state matters, in µs. l must have the Rate and the
	// Period under which the state was counted. From s.At + TTL on the store treats the
	// key as new: under today's limit the state might last longer.
	TTL func(s State, l Limit) int64
	// Used is how many events of s are in force at now. From the instant end on, none
	// are.
	Used func(s State, end, now int64) int64

	// NewLog, if not nil, makes a log that begins as s, for what a State cannot hold.
	// Step requests one by admitting events with the zero State. The store then adds the
	// events to a new log. From then on it asks the log instead of Step, Refund, TTL and
	// Used.
	NewLog func(s State) Log
	// ParseLog is the inverse of AppendBinary of the rule's logs. It returns [ErrCorrupt]
	// for bytes that are not a log and for numbers out of range. It does not keep b. It
	// is nil if NewLog is nil.
	ParseLog func(b []byte) (Log, error)

	// Lua is the same rule in Lua, and Plain its plain case, or "": scripts/state.lua and
	// scripts/plain.lua say what they define.
	Lua, Plain string
	// Script makes the Redis script that decides on groups of requests of these rules, this
	// one among them. scripts/groups.lua describes KEYS, ARGV and the reply. There the rules
	// are numbered from 1. It is nil for a rule that has no Lua.
	Script func(rules []*Rule) string
}

// Log is the state of one key, for a rule that needs more than a [State]. From its End on
// the key is treated as new, even if another limit would let the log last longer. The
// store's lock protects it.
type Log interface {
	// Step decides on n events at now and changes nothing.
	Step(l Limit, now, n int64) Reply
	// Add charges n events at now, which Step has just admitted. It returns the new End.
	Add(l Limit, now, n int64) (end int64)
	// Refund gives back what is still charged of c.
	Refund(l Limit, now int64, c Receipt)
	// End is the instant from which on the log may be forgotten, in Unix µs. It is
	// computed for the Period of the last Add. It is math.MinInt64 if nothing is charged: 0
	// is an instant like others.
	End() int64
	// Used is how many events are in force at now.
	Used(now int64) int64
	// AppendBinary appends the log as bytes to b, for ParseLog of its [Rule]. The logs of
	// package ratelimit never return an error.
	AppendBinary(b []byte) ([]byte, error)
}

// Namespace holds the keys of one limiter. Two namespaces of one store share state only
// if their rules have the same name and their own names are equal.
type Namespace struct {
	Rule *Rule
	Name string // unique to the algorithm, its Period and the limiter's name

	id [2]uint64
}

// NewNamespace returns the namespace of rule with this name.
func NewNamespace(rule *Rule, name string) *Namespace {
	h := fnv.New128a() // names come from programs, not from attackers
	_, _ = h.Write([]byte(rule.Name + "\x00" + name))
	sum := h.Sum(nil)
	return &Namespace{Rule: rule, Name: name, id: [2]uint64{
		binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:]),
	}}
}

// Equal reports whether ns and other keep the same state for equal keys.
func (ns *Namespace) Equal(other *Namespace) bool { return ns.id == other.id }

// ID is a hash of the rule's name and of Name, equal for equal namespaces. A store that
// hashes keys must include it.
func (ns *Namespace) ID() (hi, lo uint64) { return ns.id[0], ns.id[1] }
