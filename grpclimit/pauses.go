package grpclimit

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	maxPauses = 4096 // keys
	sampled   = 8    // keys that are looked at when there are too many
)

// pauses are the times before which servers do not want to be called, by key.
type pauses struct {
	longest time.Duration
	keys    atomic.Int64 // len(until), so that nobody takes the lock without need

	mu    sync.Mutex // of until; never held while waiting
	until map[string]time.Time
}

// left is how long key has to wait, at most 0 if it has not.
func (p *pauses) left(key string) time.Duration {
	if p.keys.Load() == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	until, found := p.until[key]
	if !found {
		return 0
	}
	left := time.Until(until)
	if left <= 0 {
		delete(p.until, key)
		p.keys.Store(int64(len(p.until)))
	}
	return left
}

// add makes key wait for d from now, if it does not have to wait longer already.
func (p *pauses) add(key string, d time.Duration) {
	until := time.Now().Add(min(d, p.longest))
	p.mu.Lock()
	defer p.mu.Unlock()
	before, found := p.until[key]
	if !found && len(p.until) >= maxPauses {
		p.drop()
	}
	if until.After(before) {
		p.until[key] = until
	}
	p.keys.Store(int64(len(p.until)))
}

// drop makes room. Call it with the lock.
func (p *pauses) drop() {
	var victim string
	var soonest time.Time
	seen := 0
	for key, until := range p.until { // in no particular order
		if seen == 0 || until.Before(soonest) {
			victim, soonest = key, until
		}
		if seen++; seen == sampled {
			break
		}
	}
	delete(p.until, victim)
}

// retryAfter is how long a server asks to be left alone: RetryInfo of its status, or
// else retry-after of the metadata in whole seconds, and 0 if it says neither.
func retryAfter(s *status.Status, mds []metadata.MD) time.Duration {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().IsValid() {
			return info.GetRetryDelay().AsDuration()
		}
	}
	const most = int64(1<<63-1) / int64(time.Second)
	for _, md := range mds {
		for _, text := range md.Get(retryAfterHeader) {
			if after, err := strconv.ParseInt(text, 10, 64); err == nil {
				return time.Duration(min(after, most)) * time.Second
			}
		}
	}
	return 0
}
