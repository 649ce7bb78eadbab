// Package pause remembers which keys a client must leave alone, and until when, since the
// other side has said so.
package pause

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

const (
	most    = 4096 // keys
	sampled = 8    // keys that are looked at when there are too many
)

// Set is the pauses of keys, of 4,096 at most: beyond that it forgets the one that ends
// the soonest of some that it looks at. It is safe for concurrent use. The zero Set has none.
type Set struct {
	keys atomic.Int64 // len(until), so that nobody takes the lock without need

	mu    sync.Mutex // of until; never held while waiting
	until map[string]time.Time
}

// Left is how long key must be left alone yet, at most 0 if it need not.
func (s *Set) Left(key string) time.Duration {
	if s.keys.Load() == 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	until, found := s.until[key]
	if !found {
		return 0
	}
	left := time.Until(until)
	if left <= 0 {
		delete(s.until, key)
		s.keys.Store(int64(len(s.until)))
	}
	return left
}

// Add lets key pause for d. It makes no pause shorter.
func (s *Set) Add(key string, d time.Duration) {
	if d <= 0 {
		return
	}
	until := time.Now().Add(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = make(map[string]time.Time)
	}
	before, found := s.until[key]
	if !found && len(s.until) >= most {
		s.drop()
	}
	if until.After(before) {
		s.until[key] = until
	}
	s.keys.Store(int64(len(s.until)))
}

// drop makes room. Call it with the lock.
func (s *Set) drop() {
	var victim string
	var soonest time.Time
	seen := 0
	for key, until := range s.until { // in no particular order
		if seen == 0 || until.Before(soonest) {
			victim, soonest = key, until
		}
		if seen++; seen == sampled {
			break
		}
	}
	delete(s.until, victim)
}

// Wait waits until key has no pause. A wait beyond the deadline of ctx is not begun, and is
// [ratelimit.ErrWouldExceedDeadline]; else the error is that of ctx.
func (s *Set) Wait(ctx context.Context, key string) error {
	for left := s.Left(key); left > 0; left = s.Left(key) {
		if deadline, ok := ctx.Deadline(); ok && left >= time.Until(deadline) {
			return ratelimit.ErrWouldExceedDeadline
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return nil
}

// maxSeconds is the most that a time.Duration can be.
const maxSeconds = uint64(math.MaxInt64 / time.Second)

// ParseSeconds reads a whole number of seconds, such as that of Retry-After. What is too
// large for a time.Duration is the most that it can be.
func ParseSeconds(text string) (d time.Duration, ok bool) {
	s, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // beyond the range s is the largest there is
		return 0, false
	}
	return time.Duration(min(s, maxSeconds)) * time.Second, true
}
