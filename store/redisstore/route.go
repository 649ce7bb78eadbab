package redisstore

// Which server a call goes to: where a ring or a cluster has the key, how a cluster is asked for its slots, and asked
// again while one of its masters fails.

import (
	"context"
	"errors"
	"net"
	"strings"
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
	client   Client
	store    *Store
	whole    *server       // the server of a *redis.Client; for others all servers, among which the client itself chooses
	known    sync.Map      // *server by *redis.Client, if the kind of client has an owner for each key
	readying chan struct{} // held by one Ready, because two could wait for each other's connections

	overloaded, tooShort atomic.Int64 // of servers that are gone
}

func newLink(s *Store, client Client) *link {
	l := &link{kind: kindOf(client, s.timeout), client: client, store: s, readying: make(chan struct{}, 1)}
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
	if err != nil && l.slots != nil {
		if err = l.slots.learn(b); err == nil {
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

// mostSent is how many times a call goes where the nodes of a cluster send it, before the client itself finds its server.
// go-redis has the same number.
const mostSent = 3

// redirected returns the server that c goes to after a node of a cluster has sent it there, or nil if err is not such an answer,
// or the server is not known. It then goes together with other calls, unlike a call that the client makes.
func (l *link) redirected(c *call, err error) (v *server) {
	c.asking = false
	host, port, asks := redirection(err)
	if l.slots == nil || port == "" || c.viaClient || c.sent == mostSent {
		return nil
	}
	if host == "" { // it is that of all nodes
		if owner, err := l.owner(c.first.key); err == nil {
			host, _, _ = net.SplitHostPort(owner.Options().Addr)
		}
	}
	addr := net.JoinHostPort(host, port)
	l.known.Range(func(client, known any) bool {
		if client := client.(*redis.Client); client.Options().Addr == addr && open(gone, client) == nil {
			v = known.(*server)
		}
		return v == nil
	})
	if v != nil {
		l.slots.client.ReloadState(gone)
		c.sent++
		c.asking, c.unshared = asks, c.unshared || asks
	}
	return v
}

// redirection returns the host, which may be empty, and the port in a MOVED or an ASK, and whether it is an ASK. For other
// errors, the port is "". A node writes an IPv6 address without brackets.
func redirection(err error) (host, port string, asks bool) {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return "", "", false
	}
	words := strings.Fields(answer.Error())
	if asks = len(words) == 3 && words[0] == "ASK"; !asks && (len(words) != 3 || words[0] != "MOVED") {
		return "", "", false
	}
	colon := max(0, strings.LastIndexByte(words[2], ':'))
	return strings.Trim(words[2][:colon], "[]"), strings.TrimPrefix(words[2][colon:], ":"), asks
}

// each calls f with each server.
func (l *link) each(f func(*server)) {
	f(l.whole)
	l.known.Range(func(_, v any) bool {
		f(v.(*server))
		return true
	})
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
	mu.Lock()
	defer mu.Unlock()
	return clients[:len(clients):len(clients)], err
}

const (
	// The pauses before the slots are asked for again: after a fault that only a failed
	// node causes, and after one that a slow node can cause too.
	slotsPause     = 200 * time.Millisecond
	slotsPauseSlow = time.Second

	// slotsPatience is how long to ask after the last failure. By default a cluster
	// replaces a master after about 20 s.
	slotsPatience = 30 * time.Second

	mostAsking = 32 // requests in progress; with a ReadTimeout of 5 s, 25 of them can hang
)

// slots makes a ClusterClient ask where its slots are: before the first calls, which wait for the
// answer, and while a node fails. By itself, go-redis asks after MOVED, ASK and READONLY, and otherwise
// once a minute, so it can take a minute to notice that a master has died. There may be no further
// calls, for example behind an open circuit breaker. Therefore, after one failure, slots asks until
// there is another master, or the old one answers.
type slots struct {
	client  *redis.ClusterClient
	timeout time.Duration // of the store
	failing atomic.Bool   // whether there is a failure to remember

	mu     sync.Mutex    // protects what follows; never held during I/O
	first  *slotsAnswer  // the answer that calls wait for while no slots are known, or nil
	key    string        // of the latest call that failed
	addr   string        // of the node that got it
	until  time.Time     // when to stop asking
	pause  time.Duration // before the slots are asked for again; 0 if they are not
	asked  time.Time     // when the slots were last asked for
	timer  *time.Timer
	asking int // requests for the slots in progress
}

type slotsAnswer struct {
	known chan struct{} // closed when err is known
	err   error
}

// learn asks where the slots are, once for all calls, and waits for the first answer until b's end. Because a node may
// hang, other nodes are asked meanwhile.
func (s *slots) learn(b carrier.Budget) error {
	s.mu.Lock()
	if s.first == nil {
		s.first = &slotsAnswer{known: make(chan struct{})}
		s.want(max(s.timeout/16, time.Millisecond))
	}
	first := s.first
	s.mu.Unlock()
	ctx, cancel := contextOf(b)
	defer cancel()
	select {
	case <-first.known:
		return first.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// suspect returns how soon f justifies asking for the slots, or 0 if it does not.
func suspect(f fault) time.Duration {
	switch {
	case errors.Is(f.Class, store.ErrOverloaded), errors.Is(f.Class, store.ErrTimeout) && timedOut(f.Err):
		return slotsPauseSlow
	case errors.Is(f.Class, store.ErrUnavailable), errors.Is(f.Class, store.ErrTimeout):
		return slotsPause
	}
	return 0
}

// failed records that a call for key has failed.
func (s *slots) failed(f fault, key string) {
	pause := suspect(f)
	if pause == 0 {
		return
	}
	addr := s.master(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing.Store(true)
	s.key, s.addr, s.until = key, addr, time.Now().Add(slotsPatience)
	s.want(pause)
}

// answered records that a server has answered a call for key.
func (s *slots) answered(key string) {
	if !s.failing.Load() {
		return
	}
	addr := s.master(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr == s.addr {
		s.stop(nil)
	}
}

// want makes pause the time between requests for the slots, unless it is shorter already. Call it with the lock held.
func (s *slots) want(pause time.Duration) {
	if s.pause > 0 && s.pause <= pause {
		return
	}
	s.pause = pause
	next := time.Until(s.asked.Add(pause))
	if s.timer == nil {
		s.timer = time.AfterFunc(next, s.ask)
	} else {
		s.timer.Reset(next)
	}
}

// stop stops asking for the slots, and gives err to the calls that wait. Call it with the lock held.
func (s *slots) stop(err error) {
	s.failing.Store(false)
	s.pause, s.until = 0, time.Time{}
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.first != nil {
		s.first.err = err
		close(s.first.known)
		s.first = nil
	}
}

// ask asks for the slots, and sets the timer again while the answer may change. It does not wait for
// requests in progress, because one may hang at a node for the client's ReadTimeout. ReloadState would
// wait for them, and so would all requests behind it.
func (s *slots) ask() {
	now := time.Now()
	s.mu.Lock()
	switch {
	case s.pause == 0: // the timer was stopped too late
		s.mu.Unlock()
		return
	case s.first == nil && now.After(s.until):
		s.stop(nil)
		s.mu.Unlock()
		return
	}
	s.asked = now
	s.timer.Reset(s.pause)
	key := s.key
	full := s.asking == mostAsking
	if !full {
		s.asking++
	}
	s.mu.Unlock()
	if full {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), max(lasting, 5*s.timeout))
	defer cancel()
	err := s.client.ForEachMaster(ctx, open)
	addr := s.master(key)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking--
	known := s.first != nil && (err == nil || s.asking == 0)
	if known || errors.Is(err, redis.ErrClosed) || key == s.key && addr != s.addr {
		s.stop(err)
	}
}

// master returns the address of the node that the client regards as the master of key.
func (s *slots) master(key string) string {
	c, err := s.client.MasterForKey(gone, key)
	if err != nil {
		return ""
	}
	return c.Options().Addr
}

// open returns redis.ErrClosed if c is closed. It does no I/O, and hooks do not see it.
func open(_ context.Context, c *redis.Client) error {
	if err := c.WithTimeout(lasting).Process(gone, command{redis.NewCmd(gone, "ping")}); errors.Is(err, redis.ErrClosed) {
		return err
	}
	return nil
}
