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
	// How long after the cluster's slots were asked for they are asked for again: for what
	// is seen when a node fails, and for what is also seen when one is slow.
	slotsPause     = 200 * time.Millisecond
	slotsPauseSlow = time.Second

	// slotsPatience is for how long after the last failure: by default, a cluster replaces
	// a master after some 20 s.
	slotsPatience = 30 * time.Second

	slotsTimeout = time.Second // for one answer, if the client keeps to deadlines
	mostAsking   = 32          // with a ReadTimeout of 5 s, 25 nodes that hang are waited for
)

// slots makes a ClusterClient ask where its slots are while a node fails. go-redis itself
// asks after MOVED, ASK and READONLY, and otherwise once a minute: after the death of a
// master it is blind until then. Since nobody calls behind an open circuit breaker, one
// failure is enough to ask until there is another master, or the old one answers.
type slots struct {
	client  *redis.ClusterClient
	failing atomic.Bool // whether there is a failure to remember

	mu    sync.Mutex // protects what follows; never held during I/O
	key   string     // of the latest call that failed
	addr  string     // of the node that it went to
	until time.Time  // to ask again and again
	pause time.Duration
	asked time.Time // last
	due   time.Time // when the timer ends; zero if it is not set
	timer *time.Timer

	asking int // how many ask now
}

// suspect is how soon f makes it worth asking where the slots are, 0 if it does not.
func suspect(f fault) time.Duration {
	switch {
	case errors.Is(f.class, store.ErrOverloaded), errors.Is(f.class, store.ErrTimeout) && timedOut(f.err):
		return slotsPauseSlow
	case errors.Is(f.class, store.ErrUnavailable), errors.Is(f.class, store.ErrTimeout):
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

// schedule sets the timer, if that makes it end sooner. Call it with the lock.
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

// rest ends the asking. Call it with the lock.
func (s *slots) rest() {
	s.failing.Store(false)
	s.until, s.due = time.Time{}, time.Time{}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// ask asks for the slots, and for as long as that may bring news sets the timer again. It
// does not wait for those that ask already: one may be at a node that hangs, for as long
// as the client's ReadTimeout. (So does ReloadState, and all that ask behind it.)
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

// master is the address of the node that the client takes for the master of key.
func (s *slots) master(key string) string {
	c, err := s.client.MasterForKey(ended(), key)
	if err != nil {
		return ""
	}
	return c.Options().Addr
}

// closed reports whether the client is closed. It does no I/O, and hooks do not see it.
func (s *slots) closed(key string) bool {
	c, err := s.client.MasterForKey(ended(), key)
	if err == nil {
		ctx := ended()
		err = c.WithTimeout(slotsTimeout).Process(ctx, command{redis.NewCmd(ctx, "ping")})
	}
	return errors.Is(err, redis.ErrClosed)
}
