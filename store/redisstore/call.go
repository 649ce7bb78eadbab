package redisstore

import (
	"strconv"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// call is a group of requests on its way: all are charged, or none. A call for one limit is a
// group of one.
type call struct {
	script *script
	first  request
	more   []request
	slot   int  // of a cluster
	apart  bool // never in one script with others
	around bool // past its server: the client itself knows the way
	rested int  // connections that it has found closed

	values []int64 // of the reply
	err    error
	late   func() ([]int64, error) // waits for the values of a client that goes on; nil if there is none
}

// size is how many requests c has.
func (c *call) size() int { return 1 + len(c.more) }

// alternative is how many requests of c, from the i-th on, are one alternative.
func (c *call) alternative(i int) (n int) {
	for n = 1; i+n < c.size() && !c.request(i+n).otherwise; n++ {
	}
	return n
}

func (c *call) request(i int) *request {
	if i == 0 {
		return &c.first
	}
	return &c.more[i-1]
}

// asks reports whether c asks the same as d, of other keys.
func (c *call) asks(d *call) bool {
	if c.size() != d.size() {
		return false
	}
	for i := range c.size() {
		if q, r := c.request(i), d.request(i); q.number != r.number || q.op != r.op || q.n != r.n || q.reserved != r.reserved || q.limit != r.limit || q.otherwise || r.otherwise {
			return false
		}
	}
	return true
}

// meets reports whether c and d have a key in common.
func (c *call) meets(d *call) bool {
	for i := range c.size() {
		for j := range d.size() {
			if c.request(i).key == d.request(j).key {
				return true
			}
		}
	}
	return false
}

// request is a decision on a key, with its arguments as in scripts/groups.lua.
type request struct {
	rule   *store.Rule
	number int    // of the rule, among those of the script
	op     string // with its arguments
	key    string // in Redis
	limit  store.Limit
	n      int64

	reserved  int64
	otherwise bool // begins an alternative
}

// count is n as an argument.
func (r *request) count() any {
	if r.reserved > 0 {
		return string(strconv.AppendInt(append(strconv.AppendInt(nil, r.n, 10), '+'), r.reserved, 10))
	}
	return r.n
}

// operations are the names of those whose argument is the turn.
var operations = [...]string{store.OpTake: "take", store.OpShadow: "shadow", store.OpLook: "look", store.OpGate: "gate"}

// operationOf is the operation of r.
func operationOf(r *store.Request) string {
	switch r.Op {
	case store.OpUpTo:
		return "upto"
	case store.OpOverdraw:
		return "charge " + strconv.FormatInt(r.Most, 10)
	}
	return within(operations[r.Op], r.Limit)
}

// within is the operation of this name under l.
func within(name string, l store.Limit) string {
	if before := l.Before(); before > 0 {
		return name + " " + strconv.FormatInt(before, 10)
	}
	return name
}

func refund(c store.Receipt) string {
	over := " 0"
	if c.Overdrawn {
		over = " 1"
	}
	text := append(make([]byte, 0, 80), "refund"...)
	for _, x := range [...]int64{c.At, c.Due, c.Rate, c.Period} {
		text = strconv.AppendInt(append(text, ' '), x, 10)
	}
	return string(append(text, over...))
}

// takes are the texts of plain takes by the first rules.
var takes = [...]any{"0", "1", "2", "3", "4"}

// what returns the text for r's rule and operation in a group.
func (r *request) what() any {
	switch {
	case r.op != "take":
		return strconv.Itoa(r.number) + " " + r.op
	case r.number < len(takes):
		return takes[r.number]
	}
	return strconv.Itoa(r.number)
}

// renews reports whether l is asked for a slot that is held.
func renews(ns *store.Namespace, l store.Limit) bool { return ns.Rule.Held && l.Before() > 0 }

// attempt is what a command for one key needs, in one allocation.
type attempt struct {
	writing carrier.Writing
	waits   waves.EarlyDone // the context that it is sent with, if its own has no end
	op      operation
	args    [10]any
}

// operation is the argument of a command that names its operation. go-redis asks for its bytes when it writes it.
type operation struct {
	name    string
	writing *carrier.Writing
	bytes   [len("groups")]byte // what MarshalBinary returns, here to save an allocation
}

// MarshalBinary returns the operation. If the callers have left, it returns "none", which
// changes nothing. Such a command may still wait in a client's queue, and be sent later. It
// must not charge for an event that its caller has already decided on.
func (o *operation) MarshalBinary() ([]byte, error) {
	if o.writing.Begin() {
		return append(o.bytes[:0], o.name...), nil
	}
	return append(o.bytes[:0], "none"...), nil
}

// String is for hooks that print commands.
func (o *operation) String() string { return o.name }
