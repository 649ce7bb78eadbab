// Package store is the contract between the rate-limiting algorithms and the stores that keep their
// state. All numbers are integers. Times are Unix microseconds of the store's clock, and durations
// are microseconds.
//
// An algorithm is a [Rule], a pure function of the state, which exists in two forms. The Go form is
// for stores that read the state into the process, like memstore. The Lua form is for stores that
// run the code where the state is, like redisstore. A [Store] runs rules and knows nothing else
// about them.
//
// To write your own store, implement [Store] and run the tests of package storetest. Start from the
// store in its reference.go, which keeps bytes.
//
// # Time
//
// Each call reads the time once, from one clock that all callers of a key share. If a reading is
// older than the stored state, rules and logs use the time of the state.
//
// If the clock of a store can be set back, the store must re-anchor. When At of a State is later
// than now, the next take or overdraft, or the next gate that denies, sets At to now, and writes the
// State even if it denies. The spend stays, and ages from now. The times in a Log stay as they are: the
// store keeps with it how far to shift them, so that the newest event is now. If the Rule has a SetBack,
// the store calls that instead. Run storetest with its SetBack too. The clock of memstore is never set
// back.
package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
)

// The errors of limiters and stores, for errors.Is. Package ratelimit exports the same values with
// more documentation.
var (
	// ErrInvalidLimit means that a limit is out of range.
	ErrInvalidLimit = errors.New("ratelimit: invalid limit")
	// ErrInvalidN means that a number of events is below 1, or that a Refund has nothing to refund.
	ErrInvalidN = errors.New("ratelimit: invalid number of events")
	// ErrInvalidKey means that a key is empty, or longer than 64 KiB.
	ErrInvalidKey = errors.New("ratelimit: invalid key")
	// ErrStore means that a store failed, so there is no decision. If the reply was lost, the
	// events may have been charged.
	ErrStore = errors.New("ratelimit: store failed")
	// ErrInvalidOption means that an option, client or store given to a constructor cannot be used.
	ErrInvalidOption = errors.New("ratelimit: invalid option")
)

// The classes of ErrStore, for errors.Is. Each of them wraps [ErrStore]. After an ErrTimeout it is
// unknown whether the call ran, unless its text says that nothing was sent; after the others, it did
// not run. A failure without a class is just ErrStore, such as a rejected password, or a script that
// the server cannot run.
var (
	// ErrUnavailable means that the store cannot be reached, or cannot work at the moment, because
	// it restarts, fails over, or moves data.
	ErrUnavailable = fmt.Errorf("%w: unavailable", ErrStore)
	// ErrTimeout means that there was no answer in time. The call may have run. It is the store's
	// own timeout, never context.DeadlineExceeded.
	ErrTimeout = fmt.Errorf("%w: timeout", ErrStore)
	// ErrOverloaded means that this process could not serve the call in time: it was refused, or
	// found no connection before its time was up. Nothing was sent.
	ErrOverloaded = fmt.Errorf("%w: overloaded", ErrStore)
	// ErrOutOfMemory means that the store has no room for the state of another key.
	ErrOutOfMemory = fmt.Errorf("%w: out of memory", ErrStore)
	// ErrCorrupt means that the value stored for the key is not a state. Reset removes it.
	ErrCorrupt = fmt.Errorf("%w: corrupt state", ErrStore)
	// ErrClock means that the clocks of the caller and of the store's server, or of two callers,
	// differ by more than two windows of a calendar. Synchronize the clocks with NTP. Limits
	// without a calendar still work.
	ErrClock = fmt.Errorf("%w: clocks differ", ErrStore)
)

// MaxKey is the maximum length of a key, in bytes.
const MaxKey = 64 << 10

// CheckCall returns the error that a limiter returns for invalid input: [ErrInvalidN],
// [ErrInvalidKey], or ctx's error. It is for limiters that wrap others.
func CheckCall(ctx context.Context, key string, n int) error {
	switch {
	case n <= 0:
		return fmt.Errorf("%w: %d, want at least 1", ErrInvalidN, n)
	case key == "" || len(key) > MaxKey:
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidKey, len(key), MaxKey)
	}
	return ctx.Err()
}

// Store keeps the state of keys and runs rules on it. It is safe for concurrent use. Each method is
// atomic: between its read and its write, no other call touches the same keys of the same
// namespaces. Limiters check the arguments first: n is 1 to 2^31, l is valid, and key is not empty.
// Errors wrap [ErrStore], or are ctx's error. A store that wraps another one can embed it, because
// no method is optional. It should have a method Unwrap() Store, and a store of a remote server a
// method Timeout() time.Duration, the longest time that a call takes: the caches in front of it then
// wait no longer for it. A store of several servers should have a method ServerOf(key string) string,
// which names the server that has the states of key without I/O, or returns "" if it is not known: a
// fallback then has a circuit breaker for each server.
//
// # What a store keeps
//
// For each key of each [Namespace], a store keeps at most one value. If the [Rule] has a NewLog,
// the value is a [Log], from the first event or from when Step requests one. Otherwise it is a
// [State], with the Rate and Period of the [Limit] under which it was counted. The store writes the
// value when it charges events, and after a Refund. A denial writes nothing, and does not extend
// the lifetime of a value.
//
// A State ends at At + TTL, by the limit under which it was counted, and a Log at its End. A Refund
// may make the end earlier, but never later. After the end, the key is new, even if the value still
// exists. A store must delete the value if a Refund leaves nothing: Whole and Part of the State are
// 0, or End of the Log is math.MinInt64. If a store deletes it sooner, the key has its whole limit
// again.
type Store interface {
	// Take decides on n events under l and, if they are admitted, charges them. It is Decide of
	// one request, by a shorter path.
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
	// Refund refunds what is still charged of c.
	Refund(ctx context.Context, ns *Namespace, key string, l Limit, c Receipt) error
	// Reset resets key.
	Reset(ctx context.Context, ns *Namespace, key string) error

	// Together reports whether Decide can decide on both keys in one list. A store that decides on
	// one key at a time returns false. Limits are then charged one after the other, and refunded if
	// one of them denies.
	Together(key, other string) bool

	// Prepare announces a rule that the store will run, and the limit. Each new limiter calls it.
	// If fixed is false, keys may have other limits, from a limit function. The Rate is 0 or below
	// for a limit that never asks the store. Prepare returns [ErrInvalidOption] if the store cannot
	// run the rule or the limit. It does no I/O. A store without anything to prepare does nothing.
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

// Op is the operation of a [Request].
type Op uint8

// The operations. The zero Op is OpTake.
const (
	// OpTake charges N events if they fit.
	OpTake Op = iota
	// OpShadow is like OpTake, but its denial does not prevent others from being charged.
	OpShadow
	// OpLook answers as OpTake would, but charges nothing, and its denial does not prevent others
	// from being charged.
	OpLook
	// OpGate is like OpLook, but its denial prevents all others from being charged. It may be all that
	// asks about a key for a long time, so it re-anchors as a take does.
	OpGate
	// OpUpTo charges as many of N events as fit: Available of the reply, by the rule, but at most
	// N. If none fits, it answers like OpTake of one event. It must be the only request in its
	// list.
	OpUpTo
	// OpOverdraw charges N events whether they fit or not. It answers as OpTake would, with OK if
	// they fit. In either case, X of the reply is the time of the charge: At of the new state, or
	// the new End of a log minus the Period. A plain reply means that all N are charged. Most is
	// the largest number of events that the state may then hold, at most 2^31-1: see Overdrawn of
	// [Rule]. OpOverdraw must be the only request in its list.
	OpOverdraw
)

// Votes reports whether a denial of r denies the whole list.
func (r *Request) Votes() bool { return r.Op == OpTake || r.Op == OpGate || r.Op == OpUpTo }

// Looks reports whether r charges nothing.
func (r *Request) Looks() bool { return r.Op == OpLook || r.Op == OpGate }

// AllOK reports whether all requests that vote are OK in their replies, so that the list is
// charged.
func AllOK(requests []Request, replies []Reply) bool {
	for i := range requests {
		if requests[i].Votes() && !replies[i].OK() {
			return false
		}
	}
	return true
}

// Alternatives reports whether a request after the first one has an Else.
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

// TakeUpTo calls s.Decide with an OpUpTo.
func TakeUpTo(ctx context.Context, s Store, ns *Namespace, key string, l Limit, n int64) (Reply, error) {
	return Decide(ctx, s, Request{Namespace: ns, Key: key, Limit: l, N: n, Op: OpUpTo})
}

// Peek calls s.Decide with an OpLook.
func Peek(ctx context.Context, s Store, ns *Namespace, key string, l Limit, n int64) (Reply, error) {
	return Decide(ctx, s, Request{Namespace: ns, Key: key, Limit: l, N: n, Op: OpLook})
}

// Overdraw calls s.Decide with an OpOverdraw.
func Overdraw(ctx context.Context, s Store, ns *Namespace, key string, l Limit, n, most int64) (Reply, error) {
	return Decide(ctx, s, Request{Namespace: ns, Key: key, Limit: l, N: n, Op: OpOverdraw, Most: most})
}

// one is a list of one request. A store must not keep it.
type one struct {
	requests [1]Request
	replies  [1]Reply
}

var ones = sync.Pool{New: func() any { return new(one) }}

// Decide calls Decide of s with a list of r alone.
func Decide(ctx context.Context, s Store, r Request) (reply Reply, err error) {
	list := ones.Get().(*one)
	list.requests[0] = r
	if err = s.Decide(ctx, list.requests[:], list.replies[:]); err == nil {
		reply = list.replies[0]
	}
	*list = one{}
	ones.Put(list)
	return reply, err
}

// Limit is a valid limit in integers, with its Burst filled in.
type Limit struct {
	Rate   int64 // events per Period, 1 to 2^31-1
	Period int64 // µs, 1,000 to 10 years
	Burst  int64 // the largest number of events at one instant, 1 to 2^31-1; Rate for the window algorithms

	// extra is Before if it is above 0, and minus the number of the Calendar if it is below 0. No
	// limit has both. They share a field, because Go keeps only structs of up to four fields in
	// registers, and a fifth field would make each decision in memory a quarter slower.
	extra int64
}

// Before returns the delay that a call accepts, plus 1 µs: its events must be due within less than that
// many µs from now. It is 0 for a call that states no delay. A leaky bucket then admits what is due at any
// time, and a token bucket only what is due now. It is always 0 for windows and logs, and a rule of another
// package may use it for a number of its own. It is a property of the call, not of the key. A store passes
// it to the rule or its script with each Take and Request, and does nothing else with it.
func (l Limit) Before() int64 { return max(0, l.extra) }

// TurnBefore returns l for a call with this [Limit.Before], 0 to 100 years and 1 µs. A limit with a
// [Calendar] is returned unchanged, because its events are never due later.
func (l Limit) TurnBefore(us int64) Limit {
	if l.extra >= 0 {
		l.extra = us
	}
	return l
}

// State is what a key has spent. The zero State is that of a new key, and so is any State whose
// Whole and Part are 0. The rule defines the meaning of the fields. They are always within the
// ranges below, so a store can pack them.
type State struct {
	At     int64 // the time of the state, Unix µs, -2^60 to 2^60
	Period int64 // the Period of the limit under which it was counted, µs, 1,000 to 10 years
	Whole  int64 // events spent, 0 to 2^32-1
	Part   int64 // the remainder of the spend, in the rule's own unit, 0 to 2^49-1
}

// Rule is an algorithm. Its functions are pure: they read no clock, take no lock, do no I/O and
// allocate nothing.
//
// All of them accept a clock reading that is too old. Because the time of a state never goes back,
// the time used is the later of now and the state's own time.
type Rule struct {
	// Name is the algorithm's name in configuration files and in Redis keys.
	Name string

	// Step decides on n events at now, and returns the state in which they are charged. The caller
	// keeps that state if and only if the reply is OK.
	Step func(s State, l Limit, now, n int64) (State, Reply)
	// Burst reports whether limits have their own Burst, and events may have to wait. Otherwise,
	// the Burst is the Rate.
	Burst bool
	// LastOnly reports whether Refund refunds only the last events that were charged.
	LastOnly bool
	// AnyPeriod reports whether limits that differ only in their Period share the states of their
	// keys. If it is true, the limit of a key has the Period given to the constructor.
	AnyPeriod bool
	// Held reports whether a Refund can make room for others at any time, as with slots that are
	// held. Denials can then not be remembered, and events not be taken for others, so caches in
	// front of the store reject the rule.
	Held bool
	// Unit is what the Rate counts, for qu in the RateLimit-Policy field of HTTP. It is "" for
	// requests.
	Unit string

	// Available, Report and After implement the methods of [Reply] with these names. They are not
	// called for plain replies.
	Available func(l Limit, r Reply) int64
	Report    func(l Limit, r Reply, n, charged int64) Report
	After     func(r Reply, n int64) Reply
	// Spent returns how many whole events the state of r holds. It is nil for a log, which has room
	// for any number.
	Spent func(r Reply) int64
	// Overdrawn returns the state to keep if events are charged although they do not fit. next is
	// what Step returned for them. The result holds at most most events. Overdrawn is nil for logs,
	// to which the events are added.
	Overdrawn func(next State, l Limit, most int64) State
	// Refund returns s without what is still charged of c, and with the same At and Period. It is
	// called only with a State that was kept, never with a zero one.
	Refund func(s State, l Limit, now int64, c Receipt) State
	// TTL returns for how long after s.At the state matters, in µs. l must have the Rate and the
	// Period under which the state was counted. After s.At + TTL, the store treats the key as new,
	// even if the state would last longer under the current limit.
	TTL func(s State, l Limit) int64
	// Used returns how many events of s still count at now. After the instant end, none do.
	Used func(s State, end, now int64) int64

	// NewLog, if not nil, makes a log that begins as s, for what a State cannot hold. Step requests
	// a log by admitting events with the zero State. The store then adds the events to a new log.
	// From then on, it asks the log instead of Step, Refund, TTL and Used.
	NewLog func(s State) Log
	// ParseLog is the inverse of AppendBinary of the rule's logs. It returns [ErrCorrupt] if b is
	// not a log, or if a number is out of range. It does not keep b. It is nil if NewLog is nil.
	ParseLog func(b []byte) (Log, error)
	// SetBack re-anchors log, one of the rule's logs, because the store's clock was set back to now, and
	// reports whether it has changed anything. A store whose clock can be set back calls it before each
	// Step, in place of shifting the log, and keeps the change unless the call only looks. It is nil if the
	// times of a log may be shifted. Callers know slots by their times, so these must stay.
	SetBack func(log Log, l Limit, now int64) (changed bool)

	// Lua is the same rule in Lua, and Plain is its plain case, or "". See scripts/state.lua and
	// scripts/plain.lua for what they define.
	Lua, Plain string
	// Script makes the Redis script that decides on groups of requests of these rules, one of which
	// is this rule. scripts/groups.lua describes KEYS, ARGV and the reply. The script numbers the
	// rules from 1. Script is nil for a rule without Lua.
	Script func(rules []*Rule) string
}

// Log is the state of one key, for a rule that needs more than a [State]. After its End, the key is
// treated as new, even if the log would last longer under another limit. The store's lock protects
// it.
type Log interface {
	// Step decides on n events at now and changes nothing.
	Step(l Limit, now, n int64) Reply
	// Add charges n events at now, which Step has just admitted. It returns the new End.
	Add(l Limit, now, n int64) (end int64)
	// Refund refunds what is still charged of c.
	Refund(l Limit, now int64, c Receipt)
	// End returns the instant after which the log may be forgotten, in Unix µs, computed for the
	// Period of the last Add. It is math.MinInt64 if nothing is charged, because 0 is a valid
	// instant.
	End() int64
	// Used returns how many events count at now.
	Used(now int64) int64
	// AppendBinary appends the log as bytes to b, for ParseLog of its [Rule]. The logs of package
	// ratelimit never return an error.
	AppendBinary(b []byte) ([]byte, error)
}

// Namespace holds the keys of one limiter. Two namespaces of one store share state only if their
// rules have the same name and they have the same Name.
type Namespace struct {
	Rule *Rule
	Name string // unique for the algorithm, its Period and the limiter's name

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

// ID returns a hash of the rule's name and of Name, which is equal for equal namespaces. A store
// that hashes keys must include it.
func (ns *Namespace) ID() (hi, lo uint64) { return ns.id[0], ns.id[1] }
