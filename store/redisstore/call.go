package redisstore

import (
	"strconv"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// call is a list of requests, of which all are charged or none: a group of scripts/groups.lua. A list with
// alternatives (orElse) is a group for each of them, of which the first that has room is charged. A call
// for one limit has one request.
type call struct {
	script    *script
	first     request
	more      []request
	slot      int  // of its first key, on a cluster
	unshared  bool // must not share a script with other calls
	asking    bool // goes to the server that its slot is moving to, after an ASKING
	sent      int  // how many times nodes of a cluster have sent it to another node
	viaClient bool // is made by the client itself, which finds the server
	rested    int  // how many connections it has found closed

	values []int64 // of the reply
	err    error
	late   func() ([]int64, error) // waits for the values of a client that is still making the call, or nil
}

// size returns how many requests c has.
func (c *call) size() int { return 1 + len(c.more) }

// alternative returns how many requests of c, from the i-th on, are one alternative.
func (c *call) alternative(i int) (n int) {
	for n = 1; i+n < c.size() && !c.request(i+n).orElse; n++ {
	}
	return n
}

func (c *call) request(i int) *request {
	if i == 0 {
		return &c.first
	}
	return &c.more[i-1]
}

// differsInKeysOnly reports whether c and d differ only in their keys.
func (c *call) differsInKeysOnly(d *call) bool {
	if c.size() != d.size() {
		return false
	}
	for i := range c.size() {
		if q, r := c.request(i), d.request(i); q.number != r.number || q.op != r.op || q.n != r.n || q.reserved != r.reserved || q.limit != r.limit || q.orElse || r.orElse {
			return false
		}
	}
	return true
}

// sharesKey reports whether c and d have a key in common.
func (c *call) sharesKey(d *call) bool {
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

	reserved int64
	orElse   bool // begins an alternative
}

// count returns n as an argument, with the reserved events if there are any.
func (r *request) count() any {
	if r.reserved > 0 {
		return string(strconv.AppendInt(append(strconv.AppendInt(nil, r.n, 10), '+'), r.reserved, 10))
	}
	return r.n
}

// operations are the names of the operations whose argument is the Before of the limit.
var operations = [...]string{store.OpTake: "take", store.OpShadow: "shadow", store.OpLook: "look", store.OpGate: "gate"}

// operationOf returns the operation of r, with its argument.
func operationOf(r *store.Request) string {
	switch r.Op {
	case store.OpUpTo:
		return "upto"
	case store.OpOverdraw:
		return "charge " + strconv.FormatInt(r.Most, 10)
	}
	return within(operations[r.Op], r.Limit)
}

// within returns the operation of this name under l.
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

// takes has the texts of plain takes by the first rules.
var takes = [...]any{"0", "1", "2", "3", "4"}

// what returns the text for r's rule and operation in scripts/groups.lua.
func (r *request) what() any {
	switch {
	case r.op != "take":
		return strconv.Itoa(r.number) + " " + r.op
	case r.number < len(takes):
		return takes[r.number]
	}
	return strconv.Itoa(r.number)
}

// renews reports whether a take under l renews a slot.
func renews(ns *store.Namespace, l store.Limit) bool { return ns.Rule.Held && l.Before() > 0 }

// loneCommand has what a command for one key needs, in one allocation.
type loneCommand struct {
	writing carrier.Writing
	waits   waves.EarlyDone // the context of the command, if the caller's has no end
	op      operation
	args    [10]any
}

// operation is the argument that names the operation of a command. go-redis marshals it when it writes the command.
type operation struct {
	name    string
	writing *carrier.Writing
	bytes   [len("groups")]byte // what MarshalBinary returns, here to save an allocation
}

// MarshalBinary returns the operation. If the callers have left, it returns "none", which changes
// nothing. A command that waits in a client's queue may be sent later, when it must not charge for
// events that its callers have already decided on.
func (o *operation) MarshalBinary() ([]byte, error) {
	if o.writing.Begin() {
		return append(o.bytes[:0], o.name...), nil
	}
	return append(o.bytes[:0], "none"...), nil
}

// String is for hooks that print commands.
func (o *operation) String() string { return o.name }
