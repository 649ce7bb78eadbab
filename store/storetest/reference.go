package storetest

import (
	"context"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// reference is the smallest whole store: a map and a mutex. It drops nothing but
// what is reset or refunded to nothing.
type reference struct {
	clock func() time.Time

	mu     sync.Mutex // guards all below
	states map[address]counted
	logs   map[address]store.Log
}

// counted is a state, and the limit under which it was counted.
type counted struct {
	store.State
	limit store.Limit
}

// address is the place of a key: spaces of equal rule and name are one.
type address struct{ rule, space, key string }

func newReference(clock func() time.Time) *reference {
	return &reference{clock: clock, states: map[address]counted{}, logs: map[address]store.Log{}}
}

func addressOf(sp *store.Space, key string) address { return address{sp.Rule.Name, sp.Name, key} }

func (m *reference) Take(_ context.Context, sp *store.Space, key string, l store.Limit, n int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.takeLocked(sp, addressOf(sp, key), l, m.clock().UnixMicro(), n), nil
}

func (m *reference) TakeUpTo(_ context.Context, sp *store.Space, key string, l store.Limit, n int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, now := addressOf(sp, key), m.clock().UnixMicro()
	r := m.takeLocked(sp, a, l, now, n)
	if !r.OK && n > 1 {
		r = m.takeLocked(sp, a, l, now, max(1, sp.Rule.Room(l, r)))
	}
	return r, nil
}

func (m *reference) takeLocked(sp *store.Space, a address, l store.Limit, now, n int64) store.Reply {
	if sp.Rule.NewLog != nil {
		log := m.log(sp, a)
		r := log.Step(l, now, n)
		if r.OK {
			log.Add(l, now, n)
			m.logs[a] = log
		}
		return r
	}
	s, r := sp.Rule.Step(m.state(sp, a, now), l, now, n)
	if r.OK {
		m.states[a] = counted{s, l}
	}
	return r
}

// Force implements [store.Forcer].
func (m *reference) Force(_ context.Context, sp *store.Space, key string, l store.Limit, n, most int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, now := addressOf(sp, key), m.clock().UnixMicro()
	if sp.Rule.NewLog != nil {
		log := m.log(sp, a)
		r := log.Step(l, now, n)
		r.X = log.Add(l, now, n) - l.Period
		m.logs[a] = log
		return r, nil
	}
	s, r := sp.Rule.Step(m.state(sp, a, now), l, now, n)
	if !r.OK {
		r.X, s = s.At, sp.Rule.Over(s, l, most)
	}
	m.states[a] = counted{s, l}
	return r, nil
}

func (m *reference) Peek(_ context.Context, sp *store.Space, key string, l store.Limit, n int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, now := addressOf(sp, key), m.clock().UnixMicro()
	if sp.Rule.NewLog != nil {
		return m.log(sp, a).Step(l, now, n), nil
	}
	_, r := sp.Rule.Step(m.state(sp, a, now), l, now, n)
	return r, nil
}

func (m *reference) Refund(_ context.Context, sp *store.Space, key string, l store.Limit, c store.Charge) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, now := addressOf(sp, key), m.clock().UnixMicro()
	if sp.Rule.NewLog != nil {
		log := m.log(sp, a)
		log.Refund(l, now, c)
		if log.End() == 0 {
			delete(m.logs, a)
		}
		return nil
	}
	s := m.states[a]
	if m.state(sp, a, now) == (store.State{}) { // one that has ended stays, for a late reading of the clock
		return nil
	}
	s.State = sp.Rule.Refund(s.State, l, now, c)
	if s.Whole == 0 && s.Part == 0 {
		delete(m.states, a)
		return nil
	}
	m.states[a] = s
	return nil
}

func (m *reference) Reset(_ context.Context, sp *store.Space, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := addressOf(sp, key)
	delete(m.states, a)
	delete(m.logs, a)
	return nil
}

// state returns the state at a, the zero State if it has ended.
func (m *reference) state(sp *store.Space, a address, now int64) store.State {
	if s, found := m.states[a]; found && (s.Whole > 0 || s.Part > 0) && now < s.At+sp.Rule.Life(s.State, s.limit) {
		return s.State
	}
	return store.State{}
}

// log returns the log at a, a new one if there is none.
func (m *reference) log(sp *store.Space, a address) store.Log {
	if log := m.logs[a]; log != nil {
		return log
	}
	return sp.Rule.NewLog(store.State{})
}
