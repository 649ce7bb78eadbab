package httplimit

import (
	"sync"
	"time"
)

const maxPauses = 1024

// pauses are the times until which keys must not be used.
type pauses struct {
	mu    sync.Mutex // of what follows
	until map[string]time.Time
}

// left is how long key must not be used yet.
func (p *pauses) left(key string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, ok := p.until[key]
	if !ok {
		return 0
	}
	left := time.Until(until)
	if left <= 0 {
		delete(p.until, key)
	}
	return left
}

// add lets key pause for d. It makes no pause shorter.
func (p *pauses) add(key string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil {
		p.until = make(map[string]time.Time)
	}
	until := time.Now().Add(d)
	if old, ok := p.until[key]; ok && !until.After(old) {
		return
	} else if !ok && len(p.until) >= maxPauses {
		p.drop()
	}
	p.until[key] = until
}

// drop makes room: by those that are over, or else by the one that is first to be.
func (p *pauses) drop() {
	now, first := time.Now(), ""
	for key, until := range p.until {
		switch {
		case !until.After(now):
			delete(p.until, key)
		case first == "" || until.Before(p.until[first]):
			first = key
		}
	}
	if len(p.until) >= maxPauses {
		delete(p.until, first)
	}
}
