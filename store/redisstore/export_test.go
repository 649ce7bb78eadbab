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
	var batch []*waiter
	for _, c := range claims {
		batch = append(batch, &waiter{budget: s.budget(context.Background()), key: s.key(c.Namespace, c.Key), limit: c.Limit, n: c.N})
	}
	s.takeEach(s.queue(claims[0].Namespace.Rule).script, batch)
	for _, c := range batch {
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
