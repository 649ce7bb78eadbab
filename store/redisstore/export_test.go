package redisstore

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// RedisKey is the Redis key of key's state.
func (s *Store) RedisKey(ns *store.Namespace, key string) string { return s.key(ns, key) }

// CheckVersion is what Check says of a server whose INFO is this.
func CheckVersion(info string) []string { return checkVersion(parseInfo(info)) }

// Settings is what Check says of the client.
func (s *Store) Settings() []string { return s.link.settings() }

// TakeEach makes claims of one rule in one batch. alone tells which of those that
// failed would go on alone.
func (s *Store) TakeEach(claims []store.Request) (replies []store.Reply, errs []error, alone []bool) {
	b := s.Batch(claims[0].Namespace)
	for _, c := range claims {
		b.Take(c.Key, c.Limit, c.N)
	}
	return b.Make()
}

// Batch is calls to make in one script.
type Batch struct {
	s     *Store
	ns    *store.Namespace
	calls []*waiter
}

func (s *Store) Batch(ns *store.Namespace) *Batch { return &Batch{s: s, ns: ns} }

func (b *Batch) add(key string, t task) {
	b.calls = append(b.calls, &waiter{budget: b.s.budget(context.Background()), task: t, key: b.s.key(b.ns, key)})
}

func (b *Batch) Take(key string, l store.Limit, n int64)     { b.add(key, take(l, n)) }
func (b *Batch) TakeUpTo(key string, l store.Limit, n int64) { b.add(key, task{"upto", l, n, nil}) }
func (b *Batch) Peek(key string, l store.Limit, n int64)     { b.add(key, task{"peek", l, n, nil}) }
func (b *Batch) Overdraw(key string, l store.Limit, n, most int64) {
	b.add(key, task{"charge", l, n, []any{most}})
}
func (b *Batch) Refund(key string, l store.Limit, c store.Receipt) { b.add(key, refund(l, c)) }

// Make makes the calls. alone tells which of those that failed would go on alone.
func (b *Batch) Make() (replies []store.Reply, errs []error, alone []bool) {
	b.s.callEach(b.s.queue(b.ns.Rule).script, b.calls)
	for _, c := range b.calls {
		err := c.err
		if c.fault != nil {
			err = c.fault.error()
		}
		replies, errs, alone = append(replies, c.reply), append(errs, err), append(alone, c.alone)
	}
	return replies, errs, alone
}

// Waiting is how many calls of rule wait for a batch.
func (s *Store) Waiting(rule *store.Rule) int {
	q := s.queue(rule)
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// Flights is how many calls and batches of rule are under way.
func (s *Store) Flights(rule *store.Rule) int {
	q := s.queue(rule)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.flights
}

// Occupy has as many calls of rule under way as there may be, until it is called back.
func (s *Store) Occupy(rule *store.Rule) (release func()) {
	q := s.queue(rule)
	for q.begin() {
	}
	return func() {
		for range maxFlights {
			s.land(q)
		}
	}
}

// Boards reports whether a batch takes a caller with this much time left who waits.
func Boards(left time.Duration) bool {
	q := &queue{flights: maxFlights}
	c := &waiter{budget: budget{Context: context.Background(), end: time.Now().Add(left)}}
	return q.join(c) == nil && len(q.board(nil)) == 1 && c.done.Load()
}

// CheckTrip is what Check says of a round trip and a timeout.
func CheckTrip(trip, timeout time.Duration) []string { return tripFindings(trip, timeout) }

// Passengers is how many calls are in the line of a *redis.Client, with those who have left.
func (s *Store) Passengers() int {
	a := s.link.airline
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.waiting)
}

// Warmed has the store count on so many connections, and on trips that take so long.
func (s *Store) Warmed(conns int, trip time.Duration) { s.link.airline.warmed(conns, trip) }

// MayDial reports whether a call may begin for which no connection is ready.
func (s *Store) MayDial() bool {
	a := s.link.airline
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mayDial(time.Now())
}
