package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	// The pauses before the slots are asked for again: after a fault that means a failed
	// node, and after one that a slow node causes too.
	slotsPause     = 200 * time.Millisecond
	slotsPauseSlow = time.Second

	// slotsPatience is how long to ask after the last failure. By default a cluster
	// replaces a master after about 20 s.
	slotsPatience = 30 * time.Second

	slotsTimeout = time.Second // for one answer, if the client keeps to deadlines
	mostAsking   = 32          // with a ReadTimeout of 5 s, 25 nodes that hang are waited for
)

// slots makes a ClusterClient ask where its slots are while a node fails. go-redis itself
// asks after MOVED, ASK and READONLY, and otherwise once a minute. After the death of a
// master it is blind until then. There may be no further calls, behind an open circuit
// breaker for example. So after one failure slots asks until there is another master, or
// the old one answers.
type slots struct {
	client  *redis.ClusterClient
	failing atomic.Bool // whether there is a failure to remember

	mu    sync.Mutex // protects what follows; never held during I/O
	key   string     // of the latest call that failed
	addr  string     // of the node that got it
	until time.Time  // when to stop asking
	pause time.Duration
	asked time.Time // when the slots were last asked for
	due   time.Time // when the timer ends; zero if it is not set
	timer *time.Timer

	asking int // requests for the slots under way
}

// suspect is how soon f justifies asking for the slots, or 0 if it does not.
func suspect(f fault) time.Duration {
	switch {
	case errors.Is(f.Class, store.ErrOverloaded), errors.Is(f.Class, store.ErrTimeout) && timedOut(f.Err):
		return slotsPauseSlow
	case errors.Is(f.Class, store.ErrUnavailable), errors.Is(f.Class, store.ErrTimeout):
		return slotsPause
	}
	return 0
}

// failed notes that a call of key has failed.
func (s *slots) failed(f fault, key string) {
	pause := suspect(f)
	if pause == 0 {
		return
	}
	now := time.Now()
	addr := s.master(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing.Store(true)
	s.key, s.addr, s.pause, s.until = key, addr, pause, now.Add(slotsPatience)
	s.schedule(now)
}

// schedule sets the timer for the next asking, unless it already ends sooner. Call it
// with the lock held.
func (s *slots) schedule(now time.Time) {
	due := s.asked.Add(s.pause)
	if due.Before(now) {
		due = now
	}
	switch {
	case !s.due.IsZero() && !due.Before(s.due):
	case s.timer == nil:
		s.due, s.timer = due, time.AfterFunc(due.Sub(now), s.ask)
	default:
		s.due = due
		s.timer.Reset(due.Sub(now))
	}
}

// answered notes that a server has answered a call of key.
func (s *slots) answered(key string) {
	if !s.failing.Load() {
		return
	}
	addr := s.master(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr == s.addr {
		s.rest()
	}
}

// rest ends the asking. Call it with the lock held.
func (s *slots) rest() {
	s.failing.Store(false)
	s.until, s.due = time.Time{}, time.Time{}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// ask asks for the slots, and sets the timer again while that may bring news. It does not
// wait for requests under way: one may hang at a node for as long as the client's
// ReadTimeout. ReloadState does wait, and so do all requests behind it.
func (s *slots) ask() {
	now := time.Now()
	s.mu.Lock()
	switch {
	case s.due.IsZero(): // the timer was stopped too late
		s.mu.Unlock()
		return
	case now.After(s.until):
		s.rest()
		s.mu.Unlock()
		return
	}
	s.due, s.asked = time.Time{}, now
	s.schedule(now)
	key := s.key
	full := s.asking == mostAsking
	if !full {
		s.asking++
	}
	s.mu.Unlock()
	if full {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), slotsTimeout)
	defer cancel()
	_ = s.client.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
	closed, addr := s.closed(key), s.master(key)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking--
	if closed || key == s.key && addr != s.addr {
		s.rest()
	}
}

// master is the address of the node that the client regards as the master of key.
func (s *slots) master(key string) string {
	c, err := s.client.MasterForKey(gone, key)
	if err != nil {
		return ""
	}
	return c.Options().Addr
}

// closed reports whether the client is closed. It does no I/O, and hooks do not see it.
func (s *slots) closed(key string) bool {
	c, err := s.client.MasterForKey(gone, key)
	if err == nil {
		ctx := gone
		err = c.WithTimeout(slotsTimeout).Process(ctx, command{redis.NewCmd(ctx, "ping")})
	}
	return errors.Is(err, redis.ErrClosed)
}
