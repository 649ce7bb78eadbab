package storetest

import (
	"context"
	"errors"
	"fmt"
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

// address is the place of a key: namespaces of equal rule and name are one.
type address struct{ rule, namespace, key string }

func newReference(clock func() time.Time) *reference {
	return &reference{clock: clock, states: map[address]counted{}, logs: map[address]store.Log{}}
}

func addressOf(ns *store.Namespace, key string) address { return address{ns.Rule.Name, ns.Name, key} }

func (m *reference) Take(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.takeLocked(ns, addressOf(ns, key), l, m.clock().UnixMicro(), n), nil
}

func (m *reference) TakeUpTo(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, now := addressOf(ns, key), m.clock().UnixMicro()
	r := m.takeLocked(ns, a, l, now, n)
	if !r.OK && n > 1 {
		r = m.takeLocked(ns, a, l, now, max(1, ns.Rule.Available(l, r)))
	}
	return r, nil
}

func (m *reference) takeLocked(ns *store.Namespace, a address, l store.Limit, now, n int64) store.Reply {
	if ns.Rule.NewLog != nil {
		log := m.log(ns, a)
		r := log.Step(l, now, n)
		if r.OK {
			log.Add(l, now, n)
			m.logs[a] = log
		}
		return r
	}
	s, r := ns.Rule.Step(m.state(ns, a, now), l, now, n)
	if r.OK {
		m.states[a] = counted{s, l}
	}
	return r
}

// Overdraw implements [store.Store].
func (m *reference) Overdraw(_ context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, now := addressOf(ns, key), m.clock().UnixMicro()
	if ns.Rule.NewLog != nil {
		log := m.log(ns, a)
		r := log.Step(l, now, n)
		r.X = log.Add(l, now, n) - l.Period
		m.logs[a] = log
		return r, nil
	}
	s, r := ns.Rule.Step(m.state(ns, a, now), l, now, n)
	if !r.OK {
		r.X, s = s.At, ns.Rule.Overdrawn(s, l, most)
	}
	m.states[a] = counted{s, l}
	return r, nil
}

// Together implements [store.Store]: the reference decides on one key at a time.
func (m *reference) Together(string, string) bool { return false }

// TakeAll is not called, since no keys are together.
func (m *reference) TakeAll(context.Context, []store.Request, []store.Reply) error {
	return fmt.Errorf("%w: %w", store.ErrStore, errors.ErrUnsupported)
}

// Prepare implements [store.Store].
func (m *reference) Prepare(*store.Rule) {}

func (m *reference) Peek(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, now := addressOf(ns, key), m.clock().UnixMicro()
	if ns.Rule.NewLog != nil {
		return m.log(ns, a).Step(l, now, n), nil
	}
	_, r := ns.Rule.Step(m.state(ns, a, now), l, now, n)
	return r, nil
}

func (m *reference) Refund(_ context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, now := addressOf(ns, key), m.clock().UnixMicro()
	if ns.Rule.NewLog != nil {
		log := m.log(ns, a)
		log.Refund(l, now, c)
		if log.End() == 0 {
			delete(m.logs, a)
		}
		return nil
	}
	s := m.states[a]
	if m.state(ns, a, now) == (store.State{}) { // one that has ended stays, for a late reading of the clock
		return nil
	}
	s.State = ns.Rule.Refund(s.State, l, now, c)
	if s.Whole == 0 && s.Part == 0 {
		delete(m.states, a)
		return nil
	}
	m.states[a] = s
	return nil
}

func (m *reference) Reset(_ context.Context, ns *store.Namespace, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := addressOf(ns, key)
	delete(m.states, a)
	delete(m.logs, a)
	return nil
}

// state returns the state at a, the zero State if it has ended.
func (m *reference) state(ns *store.Namespace, a address, now int64) store.State {
	if s, found := m.states[a]; found && (s.Whole > 0 || s.Part > 0) && now < s.At+ns.Rule.TTL(s.State, s.limit) {
		return s.State
	}
	return store.State{}
}

// log returns the log at a, a new one if there is none.
func (m *reference) log(ns *store.Namespace, a address) store.Log {
	if log := m.logs[a]; log != nil {
		return log
	}
	return ns.Rule.NewLog(store.State{})
}
