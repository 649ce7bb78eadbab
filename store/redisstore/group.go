package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// Together implements [store.Store]. On a single server, it returns true for all keys. Keys of one
// user key are always together, because they have the same hash tag. On a cluster, so are keys with
// the same tag ([WithHashTags]). On a ring, and behind an unknown client, no other keys are.
func (s *Store) Together(key, other string) bool {
	if s.link == nil {
		return key == other
	}
	_, single := s.link.client.(*redis.Client)
	return single || key == other || s.tags != nil && tagOf(s.tags, key) == tagOf(s.tags, other)
}

// Decide implements [store.Store]. The requests are a call, in a script of their rules.
func (s *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	switch {
	case s.link == nil:
		return errNotMade
	case len(requests) == 0:
		return nil
	}
	redisKey := s.where(requests[0].Namespace, requests[0].Key)
	b, v, err := s.admit(ctx, false, redisKey)
	if err != nil {
		return s.failed(redisKey, err)
	}
	defer b.Leave()
	var c call
	s.fillAll(&c, requests, redisKey)
	return s.failed(redisKey, s.decide(b, v, &c, replies))
}

// fillAll makes c the call for requests. redisKey is the key of the first one in Redis, or empty.
func (s *Store) fillAll(c *call, requests []store.Request, redisKey string) {
	if len(requests) > 1 {
		c.more = make([]request, len(requests)-1)
	}
	for i := range requests {
		of := &requests[i]
		r := c.request(i)
		s.fill(r, redisKey, of.Namespace, of.Key, operationOf(of), of.Limit, of.N)
		r.reserved, r.orElse = of.Reserved, i > 0 && of.Else
		redisKey = ""
	}
}
