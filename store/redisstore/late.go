package redisstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// A caller leaves when its context ends. If its call had been sent, the decision comes when
// nobody is there to take it. What it charged is then given back. A call that ends by the store's
// own timeout is another case: its caller may go on by another answer, and what was charged stays.

// left is the error of a call whose caller has left a client that goes on.
type left struct {
	error
	wait func(ctx context.Context) (ended bool, err error) // until the client has ended the call, or ctx ends
}

func (l left) Unwrap() error { return l.error }

// lateOf returns a function that waits for the values of cmd, which has ended in err for its caller. It is nil if there
// is nothing to wait for.
func lateOf(cmd numbers, err error) func() ([]int64, error) {
	var l left
	if !errors.As(err, &l) {
		return nil
	}
	return func() ([]int64, error) {
		_, err := l.wait(context.Background())
		return cmd.Val(), err
	}
}

// giveBack gives back what c has charged.
func (s *Store) giveBack(c call) {
	go func() {
		if c.late != nil {
			var err error
			if c.values, err = c.late(); err != nil {
				return
			}
		}
		for _, r := range s.refunds(&c, c.values) {
			for pause := time.Millisecond; ; pause *= 8 {
				err := s.giveBackBy(r)
				if err == nil || errors.Is(err, store.ErrTimeout) || pause > time.Second { // a timeout may have run
					break
				}
				time.Sleep(pause)
			}
		}
	}()
}

func (s *Store) giveBackBy(r *call) error {
	b, v, err := s.admit(context.Background(), true, r.first.key)
	if err != nil {
		return err
	}
	defer b.Leave()
	var reply [1]store.Reply
	return s.decide(b, v, r, reply[:])
}

// refunds returns the calls that give back what c has charged by its reply.
func (s *Store) refunds(c *call, values []int64) (list []*call) {
	replies := make([]store.Reply, c.size())
	if parse(values, replies) != nil {
		return nil
	}
	for i := range replies {
		if c.request(i).votes() && !replies[i].OK() {
			return nil
		}
	}
	for i := range replies {
		r := c.request(i)
		n := r.charged(replies[i])
		if n < 1 || r.rule.Report == nil {
			continue
		}
		back := &call{first: *r}
		back.first.op, back.first.n = refund(replies[i].Receipt(r.rule, r.limit, n, n)), n
		list = append(list, back)
	}
	return list
}

// votes reports whether a denial of r keeps all else from being charged.
func (r *request) votes() bool { return r.is("take") || r.is("gate") || r.is("upto") }

// is reports whether the operation of r has this name.
func (r *request) is(name string) bool {
	op, _, _ := strings.Cut(r.op, " ")
	return op == name
}

// charged is how many events were charged by reply so that they can be given back, if all that vote are
// OK. Those of a Charge were used before, and the renewal of a slot charges nothing.
func (r *request) charged(reply store.Reply) int64 {
	renews := r.rule.Held && r.op != "take" && r.op != "shadow"
	switch {
	case !reply.OK() || renews:
	case r.is("upto"):
		return max(1, min(r.n, reply.Available(r.rule, r.limit)))
	case r.is("take"), r.is("shadow"):
		return r.n
	}
	return 0
}
