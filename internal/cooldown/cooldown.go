// Package cooldown remembers which keys a client must not use, and until when, because the server
// said so.
package cooldown

import (
	"container/list"
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
	maxKeys = 4096
	sampled = 8 // keys that are looked at when there are too many

	// apart is how long a waiter waits after the waiter before it, so that both reach the limiter's
	// queue in order.
	apart = 20 * time.Microsecond
)

// Set holds the cooldowns of at most 4,096 keys. Beyond that, it samples a few keys and forgets the
// one whose cooldown ends first. It is safe for concurrent use. The zero Set is empty.
type Set struct {
	keys atomic.Int64 // len(until), so that an empty set takes no lock

	mu     sync.Mutex // protects all below; never held while waiting
	until  map[string]time.Time
	queues map[string]*list.List // lists of *waiter, in order of arrival
}

// waiter is one waiter in the queue of a key.
type waiter struct {
	turn  chan struct{} // closed when it is first in the queue
	again chan struct{} // of capacity 1: another cooldown has begun, which may be too long for the waiter
}

// Left returns how long the cooldown of key lasts. It is 0 or less if there is none.
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

// Add begins a cooldown of d for key, and reports whether key had none. It never shortens one.
func (s *Set) Add(key string, d time.Duration) (began bool) {
	if d <= 0 {
		return false
	}
	now := time.Now()
	until := now.Add(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = make(map[string]time.Time)
	}
	before, found := s.until[key]
	if !found && len(s.until) >= maxKeys {
		s.drop()
	}
	if until.After(before) {
		s.until[key] = until
	}
	s.keys.Store(int64(len(s.until)))
	if began = !before.After(now); began {
		s.tell(key)
	}
	return began
}

// tell makes all waiters of key check again. Without a cooldown, those behind the first one have no
// timer. The caller holds the lock.
func (s *Set) tell(key string) {
	queue := s.queues[key]
	if queue == nil {
		return
	}
	for e := queue.Front(); e != nil; e = e.Next() {
		select {
		case e.Value.(*waiter).again <- struct{}{}:
		default:
		}
	}
}

// Len returns how many keys have a cooldown.
func (s *Set) Len() int {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, until := range s.until {
		if until.After(now) {
			n++
		}
	}
	return n
}

// drop makes room for a key. The caller holds the lock.
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

// Wait waits until key has no cooldown. Waiters continue in order of arrival. If the wait would
// exceed the deadline of ctx, it returns [ratelimit.ErrWouldExceedDeadline] immediately. Otherwise
// the error is that of ctx. It calls giveBack once, when the caller is in the queue, for events
// that another caller may then have.
func (s *Set) Wait(ctx context.Context, key string, giveBack func()) error {
	if s.Left(key) <= 0 {
		giveBack()
		return nil
	}
	place := s.join(key)
	defer s.leave(key, place)
	giveBack()
	w := place.Value.(*waiter)
	turn, first := w.turn, false
	for {
		left := s.Left(key)
		if first && left <= 0 {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && left > 0 && left >= time.Until(deadline) {
			return ratelimit.ErrWouldExceedDeadline
		}
		timer := time.NewTimer(left)
		over := timer.C
		if left <= 0 { // others go first
			over = nil
		}
		select {
		case <-over:
		case <-w.again:
		case <-turn:
			turn, first = nil, true
			time.Sleep(apart)
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// join enters the queue of key, at its end.
func (s *Set) join(key string) *list.Element {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queues[key]
	if queue == nil {
		if s.queues == nil {
			s.queues = make(map[string]*list.List)
		}
		queue = list.New()
		s.queues[key] = queue
	}
	w := &waiter{make(chan struct{}), make(chan struct{}, 1)}
	if queue.Len() == 0 {
		close(w.turn)
	}
	return queue.PushBack(w)
}

// leave removes place from its queue. If it was first, the next one continues.
func (s *Set) leave(key string, place *list.Element) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queues[key]
	first := place == queue.Front()
	queue.Remove(place)
	if next := queue.Front(); next == nil {
		delete(s.queues, key)
	} else if first {
		close(next.Value.(*waiter).turn)
	}
}

const (
	// maxSeconds is the largest number of seconds that a time.Duration can hold.
	maxSeconds = uint64(math.MaxInt64 / time.Second)

	// decade is the longest wait that is believed, and how far a time may be from now.
	decade = 10 * 365 * 24 * time.Hour
)

// ParseWait returns how long from now a field such as Retry-After asks to wait. A number is in
// seconds, rounded up. Many services write a time in Unix seconds or milliseconds instead, so a
// number above ten years is such a time if that is within ten years of now. Otherwise it is the
// wait itself, limited to the longest time.Duration. Text that is not a number can be a duration,
// such as 6m0s or 120ms, or an RFC 3339 time.
func ParseWait(text string, now time.Time) (d time.Duration, ok bool) {
	text = strings.TrimSpace(text)
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, false
	}
	n, ok := parseSeconds(text)
	if !ok {
		if d, err := time.ParseDuration(text); err == nil {
			return d, true
		}
		at, err := time.Parse(time.RFC3339, text)
		return max(at.Sub(now), 0), err == nil
	}
	wait := time.Duration(min(n, maxSeconds)) * time.Second
	if wait <= decade {
		return wait, true
	}
	for _, at := range []time.Time{time.Unix(int64(min(n, maxSeconds)), 0), time.UnixMilli(int64(n))} {
		if d := at.Sub(now); d.Abs() <= decade {
			return max(d, 0), true
		}
	}
	return wait, true
}

// parseSeconds reads a number, rounded up and limited to 1,000 maxSeconds.
func parseSeconds(text string) (n uint64, ok bool) {
	whole, fraction, pointed := strings.Cut(text, ".")
	n, err := strconv.ParseUint(whole, 10, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange): // outside the range, n is the largest uint64
		return 0, false
	case pointed && (fraction == "" || strings.Trim(fraction, "0123456789") != ""):
		return 0, false
	}
	n = min(n, maxSeconds*1000)
	if strings.Trim(fraction, "0") != "" {
		n++
	}
	return n, true
}
