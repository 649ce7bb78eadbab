package redisstore

// Which server a call goes to: where a ring or a cluster has the key, how a cluster is asked for that, and asked again
// while one of its masters fails.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// link is a client, as the store uses it.
type link struct {
	kind
	client Client
	store  *Store
	whole  *server       // of a *redis.Client; of others all servers, to which the client itself finds the way
	known  sync.Map      // *server by *redis.Client, of a kind that has an owner for each key
	turn   chan struct{} // of one Ready: two would each wait for the connections that the other holds

	overloaded, tooShort atomic.Int64 // of servers that are gone

	mu      sync.Mutex // protects what follows
	loading *loading
}

// loading is a question where the keys of a cluster are.
type loading struct {
	done chan struct{} // closed when err is known
	err  error
}

// mostLoading is how often a question is asked: the node that was asked may hang, and others may not.
const mostLoading = 8

func newLink(s *Store, client Client) *link {
	l := &link{kind: kindOf(client, s.timeout), client: client, store: s, turn: make(chan struct{}, 1)}
	if l.single != nil {
		l.whole = s.server(l.single)
	} else {
		l.whole = s.unknown(l.send)
	}
	return l
}

// server returns key's server. On a cluster and a ring it may not be known.
func (l *link) server(b carrier.Budget, key string) (*server, error) {
	if l.owner == nil {
		return l.whole, nil
	}
	c, err := l.owner(key)
	if err != nil && l.locate != nil {
		if err = l.learn(b); err == nil {
			c, err = l.owner(key)
		}
	}
	if err != nil {
		return nil, err
	}
	return l.of(c), nil
}

// of returns the server of c. c is the store's client, the client of one of its servers, or nil for a server that the
// store's client chooses. A new server may replace another one, which is then removed.
func (l *link) of(c *redis.Client) *server {
	if l.owner == nil || c == nil {
		return l.whole
	}
	if known, ok := l.known.Load(c); ok {
		return known.(*server)
	}
	now, loaded := l.known.LoadOrStore(c, l.store.server(c))
	if !loaded {
		l.known.Range(func(of, old any) bool {
			if old.(*server).Idle() && l.known.CompareAndDelete(of, old) {
				stats := old.(*server).Stats()
				l.overloaded.Add(stats.Overloaded)
				l.tooShort.Add(stats.TooShort)
			}
			return true
		})
	}
	return now.(*server)
}

// each calls f with each server.
func (l *link) each(f func(*server)) {
	f(l.whole)
	l.known.Range(func(_, v any) bool {
		f(v.(*server))
		return true
	})
}

// learn asks for all calls where the keys are, and waits until b's end for the first answer.
func (l *link) learn(b carrier.Budget) error {
	l.mu.Lock()
	q := l.loading
	if q == nil {
		q = &loading{done: make(chan struct{})}
		l.loading = q
		go l.ask(q)
	}
	l.mu.Unlock()
	end := time.NewTimer(time.Until(b.End))
	defer end.Stop()
	select {
	case <-q.done:
		return q.err
	case <-b.Done():
		return b.Err()
	case <-end.C:
		return context.DeadlineExceeded
	}
}

// ask asks until one question has an answer, or all have failed.
func (l *link) ask(q *loading) {
	again := time.NewTicker(max(l.store.timeout/16, time.Millisecond))
	defer again.Stop()
	answers := make(chan error, mostLoading)
	ask := func() {
		ctx, cancel := context.WithTimeout(context.Background(), max(lasting, 5*l.store.timeout))
		defer cancel()
		answers <- l.locate(ctx)
	}
	go ask()
	for asked, waits := 1, 1; waits > 0; {
		select {
		case q.err = <-answers:
			if waits--; q.err == nil {
				waits = 0
			}
		case <-again.C:
			if asked < mostLoading {
				asked, waits = asked+1, waits+1
				go ask()
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loading = nil
	close(q.done)
}

// clients returns a client for each server. It returns none if they are not known. It does not wait for a client
// that asks a hanging server where the others are.
func (l *link) clients(ctx context.Context) ([]*redis.Client, error) {
	switch {
	case l.single != nil:
		return []*redis.Client{l.single}, nil
	case l.visit == nil:
		return nil, nil
	}
	var mu sync.Mutex
	var clients []*redis.Client
	done := make(chan error, 1)
	go func() {
		done <- l.visit(ctx, func(_ context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			clients = append(clients, c)
			return nil
		})
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("%w: %v", store.ErrUnavailable, err) //nolint:errorlint // no context error may show
	}
	mu.Lock()
	defer mu.Unlock()
	return clients[:len(clients):len(clients)], err
}

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
