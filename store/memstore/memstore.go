// Package memstore keeps the state of rate limiters in this process's memory.
//
//	st, err := memstore.New()
//
// A key costs 48 bytes in a table that is 70 to 88 % full: about 62 bytes,
// whatever the key's length, since only a seeded 128-bit hash of it is kept.
// A rule that keeps a log adds 16 bytes and the log. A decision on a known key
// allocates nothing, and no call, however many keys are held, moves more than
// the 512 slots of one table or sweeps more than those of another.
//
// Keys that have gone idle leave by themselves while other keys are decided on:
// there is no goroutine and nothing to close. The number of keys is capped, at
// 16,777,216 or by [WithMaxKeys]. Beyond the cap a new key takes the place of the
// one with the least spend in force among up to eight, and the evicted key is as
// if never seen. So an attacker who rotates keys evicts those, not his own counter:
// a key goes only if all eight have spent as much as it has, which is one new key
// in 10^8 where a tenth of all have.
//
// Time is the process's monotonic clock, set on Unix time when the store is
// made and read once per decision: later steps of the wall clock change nothing.
// A process starts empty, and two processes share nothing; package redisstore is
// for limits that they share.
package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

const defaultMaxKeys = 1 << 24 // about 1 GB

// Store is a [store.Store] in memory, made by [New]. It is safe for concurrent
// use, and its methods return no errors but for a Store not made by New and for
// a 32,769th rule.
type Store struct {
	root    node
	seeds   [2]maphash.Seed  // of the two halves of a hash
	clock   func() time.Time // nil: the time since base
	base    time.Time
	start   int64 // base in Unix ns
	maxKeys int64
	rules   rules

	_       [64]byte // the fields above are only read, and by every call
	keys    atomic.Int64
	evicted atomic.Uint64
	hand    atomic.Pointer[table] // the table to be swept next
}

// Option configures a [Store].
type Option func(*Store) error

// WithMaxKeys caps the number of keys at n, 1 or more, instead of 16,777,216.
func WithMaxKeys(n int) Option {
	return func(s *Store) error {
		if n < 1 {
			return fmt.Errorf("%w: memstore: WithMaxKeys(%d), want 1 or more", store.ErrInvalidOption, n)
		}
		s.maxKeys = int64(n)
		return nil
	}
}

// WithClock makes now the store's clock, for replay and simulation. The time of
// a key never goes back: a reading that comes late counts as the latest that the
// key's state depends on. One that comes over 2 s late may count as later still, if
// keys that had ended were dropped meanwhile, so feed a log in the order of its
// times. now is called under a lock of the store, so it must not call the store.
func WithClock(now func() time.Time) Option {
	return func(s *Store) error {
		if now == nil {
			return fmt.Errorf("%w: memstore: WithClock(nil)", store.ErrInvalidOption)
		}
		s.clock = now
		return nil
	}
}

// New returns an empty store.
func New(opts ...Option) (*Store, error) {
	base := time.Now()
	s := &Store{
		seeds:   [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		base:    base,
		start:   base.UnixNano(),
		maxKeys: defaultMaxKeys,
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: memstore: nil Option", store.ErrInvalidOption)
		}
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	s.plant()
	return s, nil
}

// Len is the number of keys held now, of which some may have gone idle.
func (s *Store) Len() int { return int(s.keys.Load()) }

// Evicted is how many keys with spend in force gave way to others at the cap.
func (s *Store) Evicted() uint64 { return s.evicted.Load() }

// Take implements [store.Store].
func (s *Store) Take(_ context.Context, sp *store.Space, key string, l store.Limit, n int64) (store.Reply, error) {
	if s.maxKeys == 0 {
		return store.Reply{}, errNotMade
	}
	h := s.hash(sp, key)
	for {
		r, out := s.take(h, sp.Rule, l, n)
		switch out {
		case decided:
			return r, nil
		case sweepDue:
			s.sweepNext()
			return r, nil
		case storeFull:
			s.evictBeyond(h)
		case tooManyRules:
			return store.Reply{}, errTooManyRules
		}
	}
}

// Peek implements [store.Store].
func (s *Store) Peek(_ context.Context, sp *store.Space, key string, l store.Limit, n int64) (store.Reply, error) {
	if s.maxKeys == 0 {
		return store.Reply{}, errNotMade
	}
	h := s.hash(sp, key)
	t := s.lock(h)
	defer t.mu.Unlock()
	now, i := s.now(t), t.find(h)
	if sp.Rule.NewLog != nil {
		return t.logOrNew(i, sp.Rule).Step(l, now, n), nil
	}
	_, r := sp.Rule.Step(t.state(i, now), l, now, n)
	return r, nil
}

// Refund implements [store.Store].
func (s *Store) Refund(_ context.Context, sp *store.Space, key string, l store.Limit, c store.Charge) error {
	if s.maxKeys == 0 {
		return errNotMade
	}
	h := s.hash(sp, key)
	t := s.lock(h)
	defer t.mu.Unlock()
	if i := t.find(h); i >= 0 && !t.refund(i, sp.Rule, l, s.now(t), c) {
		s.forget(t, i)
	}
	return nil
}

// Reset implements [store.Store].
func (s *Store) Reset(_ context.Context, sp *store.Space, key string) error {
	if s.maxKeys == 0 {
		return errNotMade
	}
	h := s.hash(sp, key)
	t := s.lock(h)
	defer t.mu.Unlock()
	if i := t.find(h); i >= 0 {
		s.forget(t, i)
	}
	return nil
}

var (
	errNotMade      = fmt.Errorf("%w: memstore: Store not made by New", store.ErrStore)
	errTooManyRules = fmt.Errorf("%w: memstore: more than %d rules", store.ErrStore, maxRules)
)

// outcome is how take ended. Unless it has decided, nothing was charged.
type outcome uint8

const (
	decided      outcome = iota
	sweepDue             // decided, and some table is to be swept
	tableSplit           // the key may belong to another table now
	storeFull            // and the key's table has none to give way
	tooManyRules         // to be numbered
)

// take is Take under the lock of the key's table.
func (s *Store) take(h hash, rule *store.Rule, l store.Limit, n int64) (store.Reply, outcome) {
	t := s.lock(h)
	defer t.mu.Unlock()
	now, i := s.now(t), t.find(h)
	if rule.NewLog != nil {
		return s.takeLog(t, i, h, rule, l, now, n)
	}
	state, r := rule.Step(t.state(i, now), l, now, n)
	if !r.OK {
		return r, t.tick()
	}
	if i < 0 {
		var out outcome
		if i, out = s.insert(t, h, rule, now); i < 0 {
			return r, out
		}
	}
	t.slots[i].put(state, rule.Life(state, l))
	return r, t.tick()
}

// takeLog is take for a rule that keeps a log.
func (s *Store) takeLog(t *table, i int, h hash, rule *store.Rule, l store.Limit, now, n int64) (store.Reply, outcome) {
	log := t.logOrNew(i, rule)
	r := log.Step(l, now, n)
	if !r.OK {
		return r, t.tick()
	}
	if i < 0 {
		var out outcome
		if i, out = s.insert(t, h, rule, now); i < 0 {
			return r, out
		}
	}
	t.setLog(i, log)
	log.Add(l, now, n)
	t.slots[i].put(store.State{At: now}, log.End()-now)
	return r, t.tick()
}

// now reads the clock, in Unix µs. It is read under the lock of t, so that the
// decisions on a key are made in the order of their times.
func (s *Store) now(t *table) int64 {
	if s.clock != nil {
		return max(s.clock().UnixMicro(), t.horizon)
	}
	return max((s.start+int64(time.Since(s.base)))/1e3, t.horizon)
}

// hash is what a store knows of a key. At 128 bits two keys never meet: among
// 16 million the odds are below 1 in 2^80.
type hash struct{ hi, lo uint64 }

func (s *Store) hash(sp *store.Space, key string) hash {
	hi, lo := sp.ID()
	return hash{hi ^ maphash.String(s.seeds[0], key), lo ^ maphash.String(s.seeds[1], key)}
}

// home is the slot of size where a hash is looked for first. It takes other bits
// than the tree of tables does.
func (h hash) home(size int) int {
	i, _ := bits.Mul64(h.lo, uint64(size))
	return int(i)
}
