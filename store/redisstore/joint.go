package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// Together implements [store.Store]. On a single server all keys are together. Keys of
// one user key always are, because it is their hash tag. On a cluster, a ring, and behind
// an unknown client, no others are.
func (s *Store) Together(key, other string) bool {
	if s.link == nil {
		return key == other
	}
	_, single := s.link.client.(*redis.Client)
	return single || key == other
}

// TakeAll implements [store.Store]. It is a group of a script of the rules of the requests.
func (s *Store) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	b, err := s.admit(ctx, false)
	if err != nil {
		return err
	}
	defer s.leave(&b)
	return s.decide(b, s.groupOf(requests), replies)
}

// groupOf is the call of a TakeAll.
func (s *Store) groupOf(requests []store.Request) *call {
	c := new(call)
	if len(requests) > 1 {
		c.more = make([]request, len(requests)-1)
	}
	for i := range requests {
		of := &requests[i]
		name := "take"
		switch {
		case of.Gate:
			name = "gate"
		case of.N == 0:
			name = "look"
		case of.Shadow:
			name = "shadow"
		}
		s.ask(c.request(i), of.Namespace, of.Key, operationOf(name, of.Limit), of.Limit, max(1, of.N))
	}
	return c
}
