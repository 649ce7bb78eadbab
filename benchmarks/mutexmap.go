package main

import "sync"

// mutexMap gives a limiter without keys one instance per key, as its users do. It is a
// map under a mutex, which is released before the instance decides.
type mutexMap[L any] struct {
	mu   sync.Mutex
	m    map[string]L
	make func() L
}

func newMutexMap[L any](newLimiter func() L) *mutexMap[L] {
	return &mutexMap[L]{m: map[string]L{}, make: newLimiter}
}

func (m *mutexMap[L]) of(key string) L {
	m.mu.Lock()
	defer m.mu.Unlock()
	lim, ok := m.m[key]
	if !ok {
		lim = m.make()
		m.m[key] = lim
	}
	return lim
}
