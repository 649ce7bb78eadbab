package redisstore

import (
	"context"
	"errors"

	"github.com/ratelimit-go/ratelimit/store"
)

// A caller leaves when its context ends. If its call had been sent, the decision comes when
// nobody is there to take it. What it charged is then given back. A call that ends by the store's
// own timeout is another case: its caller may go on by another answer, and what was charged stays.

// left is the error of a call whose caller has left a client that goes on.
type left struct {
	error
	wait func() error // until the client has ended the call
}

func (l left) Unwrap() error { return l.error }

// follow gives back what c, which has ended in err for its caller, has charged by cmd.
func (s *Store) follow(c call, cmd numbers, err error) {
	var l left
	if !errors.As(err, &l) {
		return
	}
	go func() {
		if l.wait() == nil {
			s.giveBack(&c, cmd.Val())
		}
	}()
}

// giveBack gives back what c has charged by its reply, these values.
func (s *Store) giveBack(c *call, values []int64) {
	refunds := s.refunds(c, values)
	if len(refunds) == 0 {
		return
	}
	go func() {
		for _, r := range refunds {
			b, err := s.admit(context.Background(), true)
			if err != nil {
				return
			}
			var reply [1]store.Reply
			_ = s.run(b, r, reply[:])
			s.leave(&b)
		}
	}()
}

// refunds returns the calls that give back what c has charged by its reply.
func (s *Store) refunds(c *call, values []int64) []*call {
	if c.requests == nil {
		var reply [1]store.Reply
		if c.rule == nil || parse(values, reply[:]) != nil {
			return nil
		}
		return s.refund(nil, c.rule, c.key, c.task.limit, s.charged(c, reply[0]), reply[0])
	}
	replies := make([]store.Reply, len(c.requests))
	if parse(values, replies) != nil {
		return nil
	}
	for i := range replies {
		if c.requests[i].Votes() && !replies[i].OK() {
			return nil
		}
	}
	var list []*call
	for i, r := range c.requests {
		if replies[i].OK() && r.N > 0 {
			list = s.refund(list, r.Namespace.Rule, s.key(r.Namespace, r.Key), r.Limit, r.N, replies[i])
		}
	}
	return list
}

// charged is how many events of c, a call on one key, were charged by reply so that they can be
// given back. Those of a Charge were used before, and the renewal of a slot charges nothing.
func (s *Store) charged(c *call, reply store.Reply) int64 {
	switch c.task.op {
	case "take":
	case "within":
		if c.rule.Held {
			return 0
		}
	case "upto":
		if reply.OK() {
			return max(1, min(c.task.n, reply.Available(c.rule, c.task.limit)))
		}
	default:
		return 0
	}
	if !reply.OK() {
		return 0
	}
	return c.task.n
}

// refund appends to list the Refund of n events of key that were charged under l by reply.
func (s *Store) refund(list []*call, rule *store.Rule, key string, l store.Limit, n int64, reply store.Reply) []*call {
	if n < 1 || rule.Report == nil {
		return list
	}
	receipt := reply.Receipt(rule, l, n, n)
	return append(list, &call{script: s.script(rule), key: key, task: refund(l.TurnBefore(0), receipt)})
}
