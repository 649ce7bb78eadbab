package storetest

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// reference is a complete store: a map of bytes, a mutex and a clock. Copy it to begin a store of
// your own. Replace the map by a database, and the mutex by a transaction around each call. If the
// database can expire keys, end returns when.
type reference struct {
	clock func() time.Time

	mu     sync.Mutex        // protects values; held during each call
	values map[string][]byte // by address
}

func newReference(clock func() time.Time) *reference {
	return &reference{clock: clock, values: map[string][]byte{}}
}

// address identifies the value of a key. Equal namespaces have the same ID, of 16 bytes.
func address(ns *store.Namespace, key string) string {
	hi, lo := ns.ID()
	id := binary.BigEndian.AppendUint64(nil, hi)
	return string(binary.BigEndian.AppendUint64(id, lo)) + key
}

// value is what is stored for a key. The zero value is that of a new key.
type value struct {
	state store.State
	limit store.Limit // under which state was counted
	log   store.Log   // nil if the rule needs no log
}

// parse is the inverse of bytes. It returns a new value if b is nil.
func parse(rule *store.Rule, b []byte) (v value, err error) {
	switch {
	case rule.NewLog != nil && b == nil:
		v.log = rule.NewLog(store.State{})
	case rule.NewLog != nil:
		v.log, err = rule.ParseLog(b)
	case b != nil:
		v.state, v.limit, err = store.ParseState(b)
	}
	return v, err
}

func (v value) bytes() ([]byte, error) {
	if v.log != nil {
		return v.log.AppendBinary(nil)
	}
	return store.AppendState(nil, v.state, v.limit), nil
}

// end returns when v may be deleted, in Unix µs. From then on, the key counts as new. It is
// math.MinInt64 if nothing is charged.
func (v value) end(rule *store.Rule) int64 {
	switch {
	case v.log != nil:
		return v.log.End()
	case v.state.Whole == 0 && v.state.Part == 0:
		return math.MinInt64
	}
	return v.state.At + rule.TTL(v.state, v.limit)
}

// get returns the value of a key, or a new value if it has ended.
func (m *reference) get(ns *store.Namespace, key string, now int64) (value, error) {
	v, err := parse(ns.Rule, m.values[address(ns, key)])
	if err == nil && v.end(ns.Rule) <= now {
		return parse(ns.Rule, nil)
	}
	return v, err
}

// put stores what step has returned, if anything.
func (m *reference) put(ns *store.Namespace, key string, next []byte) {
	if next != nil {
		m.values[address(ns, key)] = next
	}
}

// now reads the clock, once per call.
func (m *reference) now() int64 { return m.clock().UnixMicro() }

// step decides on n events and those reserved, and returns the value with the n events charged, for
// put. It returns nil if the reply is not OK. If most is above 0, it is an overdraft, and charges
// the events in any case.
func (m *reference) step(ns *store.Namespace, key string, l store.Limit, now, n, reserved, most int64) (next []byte, r store.Reply, err error) {
	v, err := m.get(ns, key, now)
	if err != nil {
		return nil, r, err
	}
	state := v.state
	if v.log != nil {
		r = v.log.Step(l, now, n+reserved)
	} else if state, r = ns.Rule.Step(v.state, l, now, n+reserved); r.OK() && reserved > 0 {
		state, _ = ns.Rule.Step(v.state, l, now, n)
	}
	switch {
	case !r.OK() && most == 0:
		return nil, r, nil
	case v.log != nil:
		r.X = v.log.Add(l, now, n) - l.Period // when the charge was made, by which a Refund finds it
	case !r.OK():
		r.X, state = state.At, ns.Rule.Overdrawn(state, l, most) // likewise
	}
	next, err = value{state, l, v.log}.bytes()
	return next, r, err
}

// Take implements [store.Store].
func (m *reference) Take(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, r, err := m.step(ns, key, l, m.now(), n, 0, 0)
	m.put(ns, key, next)
	return r, err
}

// Refund implements [store.Store].
func (m *reference) Refund(_ context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	v, err := m.get(ns, key, now)
	if err != nil || v.end(ns.Rule) == math.MinInt64 { // nothing is charged
		return err
	}
	if v.log != nil {
		v.log.Refund(l, now, c)
	} else {
		v.state = ns.Rule.Refund(v.state, l, now, c)
	}
	if v.end(ns.Rule) == math.MinInt64 {
		delete(m.values, address(ns, key))
		return nil
	}
	next, err := v.bytes()
	m.put(ns, key, next)
	return err
}

// Reset implements [store.Store].
func (m *reference) Reset(_ context.Context, ns *store.Namespace, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, address(ns, key))
	return nil
}

// Together implements [store.Store]. All keys are in the same map.
func (m *reference) Together(string, string) bool { return true }

// Decide implements [store.Store].
func (m *reference) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return store.InTurn(ctx, requests, replies, m.decide)
}

// decide decides on one alternative.
func (m *reference) decide(_ context.Context, requests []store.Request, replies []store.Reply) (err error) {
	now, next := m.now(), make([][]byte, len(requests))
	for i, q := range requests {
		next[i], replies[i], err = m.step(q.Namespace, q.Key, q.Limit, now, q.N, q.Reserved, q.Most)
		if err == nil && q.Op == store.OpUpTo && !replies[i].OK() && q.N > 1 {
			n := max(1, q.Namespace.Rule.Available(q.Limit, replies[i])-q.Reserved)
			next[i], replies[i], err = m.step(q.Namespace, q.Key, q.Limit, now, n, q.Reserved, 0)
		}
		if err != nil {
			return err
		}
	}
	all := store.AllOK(requests, replies)
	for i, q := range requests {
		if all && !q.Looks() {
			m.put(q.Namespace, q.Key, next[i])
		}
	}
	return nil
}

// Prepare implements [store.Store]. There is nothing to prepare.
func (m *reference) Prepare(*store.Rule, store.Limit, bool) error { return nil }
