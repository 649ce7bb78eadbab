// Package memstore keeps the state of rate limiters in the memory of the process.
//
//	st, err := memstore.New()
//
// A key takes 38 to 43 bytes, whatever its length, because only 96 bits of a seeded hash of it are
// kept. It takes up to 32 bytes more if almost every key has its own limit. A key of a sliding log
// with several events in force takes about 200 bytes more, and 7 bytes per event. A decision on a
// known key allocates nothing unless its log grows.
//
// Idle keys are dropped while other keys are decided on, so there is no goroutine and nothing to
// close. The number of keys is limited ([WithMaxKeys]).
//
// Callers of different keys rarely contend, because a lock protects a table of about 400 keys.
// Callers of one hot key do contend: each decision holds the lock for about 20 ns. If a
// key must take more than about 10 million decisions per second, divide it into several keys, each
// with a part of the limit. Repeated denials of a key need no lock while its state does not change.
//
// If each call has a different limit, a decision takes 3.7 to 5.3 times as long, because it
// searches up to 544 known limits.
//
// The store uses the process's monotonic clock, set to Unix time when the store is created. Later
// steps of the wall clock have no effect. A process starts with an empty store and shares nothing;
// to share limits, use package redisstore.
package memstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/store"
)

const defaultMaxKeys = 1 << 24

// Store is a [store.Store] in memory. Use [New] to create one. It is safe for concurrent use. Its
// methods return errors only if the Store was not created by New, or for more than 32,768
// [store.Rule]s.
type Store struct {
	root    node
	secret  secret
	clock   func() int64 // Unix µs; nil: the time since base
	base    time.Time
	start   int64 // base in Unix ns
	maxKeys int64
	rules   rules

	_       [64]byte // the fields above are read by every call, and never written
	keys    atomic.Int64
	evicted atomic.Uint64
	hand    atomic.Pointer[table] // the table to sweep next
}

// Option configures a [Store].
type Option func(*Store) error

// WithMaxKeys limits the number of keys to n, which must be at least 1. The default is 16,777,216,
// which is about 0.7 GB. Choose n above the number of keys that you expect in one Period of your
// limits, and watch [Store.Evicted]: if it is above 0, keys are forgotten early.
//
// At the maximum, a new key replaces one of up to eight other keys, the one with the least spend in
// force. The replaced key is forgotten, and regains its full limit. Memory is therefore bounded,
// and users are still admitted during a flood of keys.
//
// A key that has spent more than the keys of a flood keeps its spend, so attackers who rotate keys
// evict those, and not their own counters. If at most a tenth of all keys have spent more than the
// flood's keys, only one new key in 10^8 finds eight of them. A key that has spent no more than the
// flood's keys is not protected. For example, with thousands of fresh keys that spend five events
// each, an attacker can regain an event for a key that spends fewer than five events in the
// meantime.
func WithMaxKeys(n int) Option {
	return options.Checked(options.AtLeast("memstore: WithMaxKeys", n, 1), func(s *Store) { s.maxKeys = int64(n) })
}

// WithClock makes the store use now as its clock, for replay and simulation. Replay a log in the
// order of its times. The time of a key never goes back: a late reading counts as the latest time
// that the key's state depends on. A reading more than 2 s late may count as a later time still, if
// ended keys were dropped in the meantime.
func WithClock(now func() time.Time) Option {
	return options.Checked(options.Given("memstore: WithClock", now != nil), func(s *Store) {
		s.clock = func() int64 { return now().UnixMicro() }
	})
}

// New returns an empty store.
func New(opts ...Option) (*Store, error) {
	base := time.Now()
	s := &Store{
		secret:  newSecret(),
		base:    base,
		start:   base.UnixNano(),
		maxKeys: defaultMaxKeys,
	}
	if err := options.Apply(s, opts); err != nil {
		return nil, err
	}
	s.plant()
	return s, nil
}

// Len returns the current number of keys. Some of them may be idle.
func (s *Store) Len() int { return int(s.keys.Load()) }

// Evicted returns how many keys with spend in force were replaced because the store had its maximum
// number of keys.
func (s *Store) Evicted() uint64 { return s.evicted.Load() }

// Take implements [store.Store]. It decides the common case in straight-line code: a key whose
// state was counted under l's Rate and Period, or with a log. All other cases are left to takeAny.
func (s *Store) Take(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if s.maxKeys == 0 {
		return store.Reply{}, errNotMade
	}
	h, reading := s.secret.hash(ns, key), s.now()
	t := s.root.leaf(h)
	if version := t.version.Load(); version%2 != 0 {
		if r, ok := t.denies(version, h, ns.Rule, l, reading, n); ok {
			return r, nil
		}
	}
	t.mu.Lock()
	if mayPanic(ns.Rule) {
		return s.takeAny(t, h, reading, ns.Rule, l, n)
	}
	i, now := -1, max(reading, t.horizon)
	if t.covers(h) {
		i = t.find(h)
	}
	var r store.Reply
	switch {
	case i >= 0 && t.log(i) != nil:
		r = t.takeFromLog(i, l, now, n)
	case i >= 0 && t.counting(i).under(l.Rate, l.Period):
		var next store.State
		if next, r = ns.Rule.Step(t.slots[i].state(l.Period), l, now, n); r.OK() {
			if next.Period != l.Period { // a log begins
				return s.takeAny(t, h, reading, ns.Rule, l, n)
			}
			t.set(i, next)
		} else {
			t.deny(i, l, now)
		}
	default:
		return s.takeAny(t, h, reading, ns.Rule, l, n)
	}
	due := t.tick() == sweepDue
	t.mu.Unlock()
	if due {
		s.sweepNext(reading)
	}
	return r, nil
}

// mayPanic reports whether rule is not built in. If such a rule panics, tables must be unlocked, which calls
// of other rules do not pay for.
func mayPanic(rule *store.Rule) bool { return rule.Plain == "" }

// takeUpTo is Decide for an OpUpTo. It calls takeAny with -n, because a function shared by both
// would cost each decision 4 ns.
func (s *Store) takeUpTo(r *store.Request) (store.Reply, error) {
	if s.maxKeys == 0 {
		return store.Reply{}, errNotMade
	}
	h, reading := s.secret.hash(r.Namespace, r.Key), s.now()
	return s.takeAny(s.lock(h), h, reading, r.Namespace.Rule, r.Limit, -r.N)
}

// takeAny is Take, or takeUpTo if n is negative, for a key whose table t is locked, unless the
// table has just been split.
func (s *Store) takeAny(t *table, h hash, reading int64, rule *store.Rule, l store.Limit, n int64) (store.Reply, error) {
	t = s.covering(t, h)
	locked := true
	defer func() {
		if locked { // the rule has panicked
			t.mu.Unlock()
		}
	}()
	for ; ; t, locked = s.lock(h), true {
		now := max(reading, t.horizon)
		var r store.Reply
		var out outcome
		i, n := t.find(h), n
		if n < 0 {
			n = t.fitting(i, rule, l, now, -n)
		}
		switch {
		case i < 0:
			r, out = s.takeNew(t, h, rule, l, now, n)
		case t.log(i) != nil:
			r = t.takeFromLog(i, l, now, n)
			out = t.tick()
		default:
			r = t.takeFromState(i, rule, l, now, n)
			out = t.tick()
		}
		t.mu.Unlock()
		locked = false
		switch out {
		case decided:
			return r, nil
		case sweepDue:
			s.sweepNext(reading)
			return r, nil
		case storeFull:
			s.evictBeyond(h, reading)
		case tooManyRules:
			return store.Reply{}, errTooManyRules
		}
	}
}

// takeFromState decides on n events at now by the state in slot i, and charges them if they are
// admitted.
func (t *table) takeFromState(i int, rule *store.Rule, l store.Limit, now, n int64) store.Reply {
	by := t.counting(i)
	state := t.slots[i].state(by.period)
	if !by.under(l.Rate, l.Period) {
		state = t.slots[i].unlessEnded(rule, by, now)
	}
	next, r := rule.Step(state, l, now, n)
	switch {
	case !r.OK() && by.under(l.Rate, l.Period):
		t.deny(i, l, now)
	case !r.OK():
	case next == (store.State{}):
		t.setLog(i, rule.NewLog(state))
		t.addToLog(i, l, now, n)
	default:
		t.put(i, next, l.Rate)
	}
	return r
}

// peek is Decide for an OpLook.
func (s *Store) peek(q *store.Request) (store.Reply, error) {
	if s.maxKeys == 0 {
		return store.Reply{}, errNotMade
	}
	h, reading := s.secret.hash(q.Namespace, q.Key), s.now()
	t := s.lock(h)
	i, now := t.counted(h, q.Limit), max(reading, t.horizon)
	if i < 0 {
		defer t.mu.Unlock()
		return t.peek(t.find(h), q.Namespace.Rule, q.Limit, now, q.N), nil
	}
	state := t.slots[i].state(q.Limit.Period)
	t.mu.Unlock()
	_, r := q.Namespace.Rule.Step(state, q.Limit, now, q.N) // Step ignores what has ended
	return r, nil
}

// fitting returns how many of n events fit, or 1 if none does.
func (t *table) fitting(i int, rule *store.Rule, l store.Limit, now, n int64) int64 {
	if n > 1 {
		if r := t.peek(i, rule, l, now, n); !r.OK() {
			return max(1, rule.Available(l, r))
		}
	}
	return n
}

// peek returns the decision on n events of the key in slot i; i is -1 if t does not hold the key.
func (t *table) peek(i int, rule *store.Rule, l store.Limit, now, n int64) store.Reply {
	if log := t.log(i); log != nil {
		return log.Step(l, now, n)
	}
	_, r := rule.Step(t.state(i, rule, now), l, now, n)
	return r
}

// Refund implements [store.Store].
func (s *Store) Refund(_ context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if s.maxKeys == 0 {
		return errNotMade
	}
	reading, h := s.now(), s.secret.hash(ns, key)
	t := s.lock(h)
	defer t.mu.Unlock()
	if i := t.find(h); i >= 0 && !t.refund(i, ns.Rule, l, max(reading, t.horizon), c) {
		s.forget(t, i)
	}
	return nil
}

// Reset implements [store.Store].
func (s *Store) Reset(_ context.Context, ns *store.Namespace, key string) error {
	if s.maxKeys == 0 {
		return errNotMade
	}
	h := s.secret.hash(ns, key)
	t := s.lock(h)
	defer t.mu.Unlock()
	if i := t.find(h); i >= 0 {
		s.forget(t, i)
	}
	return nil
}

var (
	errNotMade      = fmt.Errorf("%w: memstore: the Store was not made by New", store.ErrStore)
	errTooManyRules = fmt.Errorf("%w: memstore: more than %d rules", store.ErrStore, maxRules)
)

// outcome is the outcome of a Take. Nothing was charged unless it is decided or sweepDue.
type outcome uint8

const (
	decided      outcome = iota
	sweepDue             // decided, and a table is due for a sweep
	tableSplit           // the key may now belong to another table
	storeFull            // the store is full, and the key's table has no key to evict
	tooManyRules         // the store cannot number another rule
)

// takeNew is Take for a key that t does not hold. t is locked.
func (s *Store) takeNew(t *table, h hash, rule *store.Rule, l store.Limit, now, n int64) (store.Reply, outcome) {
	state, r := rule.Step(store.State{}, l, now, n)
	if !r.OK() {
		return r, t.tick()
	}
	i, out := s.insert(t, h, rule, l, now)
	if out == tableSplit {
		t.next.Load().mu.Unlock()
	}
	if i < 0 {
		return r, out
	}
	if state != (store.State{}) {
		t.put(i, state, l.Rate)
	} else {
		t.setLog(i, rule.NewLog(state))
		t.addToLog(i, l, now, n)
	}
	return r, t.tick()
}

// now reads the clock, in Unix µs. It is called before a table is locked. A call that then waits
// for the lock uses the time of the state if that is later.
func (s *Store) now() int64 {
	if s.clock != nil {
		return s.clock()
	}
	return (s.start + int64(time.Since(s.base))) / 1e3
}
