package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/ratelimit-go/ratelimit/store"
)

// call is a call in progress: a list of requests, or a Refund or a Reset of one key. It has copies of everything that it
// needs, because its caller may leave before it ends.
type call struct {
	op       op
	requests []store.Request
	receipt  store.Receipt // of a refund
	replies  []store.Reply
	charged  []int64 // events, by request
	rows     []*row  // by request, in the batch that decides on the call
	done     bool    // the call was decided on, and what it charged is written
	err      error   // the error of this call alone

	one oneRequest
}

// oneRequest holds the lists of a call with one request, the most frequent kind, in the same allocation.
type oneRequest struct {
	request [1]store.Request
	reply   [1]store.Reply
	charged [1]int64
	row     [1]*row
}

type op uint8

const (
	decide op = iota
	refund
	reset
)

func newCall(requests []store.Request) *call {
	c := new(call)
	n := len(requests)
	if n == 1 {
		o := &c.one
		o.request[0] = requests[0]
		c.requests, c.replies, c.charged, c.rows = o.request[:], o.reply[:], o.charged[:], o.row[:]
		return c
	}
	c.requests, c.replies, c.charged, c.rows = slices.Clone(requests), make([]store.Reply, n), make([]int64, n), make([]*row, n)
	return c
}

const maxPlainKey = 128 // bytes; longer keys are hashed, because an index has no room for them

// address returns the key of the row for key: key or its hash, followed by the limiter, so that SQL finds all rows of
// a key by the index.
func address(ns *store.Namespace, key string) []byte {
	b := make([]byte, 0, 18+max(min(len(key), maxPlainKey), sha256.Size))
	if len(key) <= maxPlainKey && strings.IndexByte(key, 0) < 0 {
		b = append(append(b, '='), key...)
	} else {
		sum := sha256.Sum256([]byte(key))
		b = append(append(b, '#'), sum[:]...)
	}
	hi, lo := ns.ID()
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(append(b, 0), hi), lo)
}

// row is the row of a key in a transaction. Its value is empty if nothing is charged.
type row struct {
	key  []byte
	rule *store.Rule

	there bool   // the table has the row
	old   []byte // the value in the table
	err   error  // old is not a value

	state   store.State
	limit   store.Limit // under which state was counted
	log     store.Log   // nil if the rule needs none
	shift   int64       // µs, added to all times of log, because the server's clock was set back by that much
	changed bool
	lost    bool // nothing was written, because others were faster or hold the row
}

// read sets the value from what the table has. A key whose value has ended is new.
func (r *row) read(now int64) {
	r.err, r.changed = nil, false // of an earlier attempt
	switch {
	case len(r.old) == 0:
		r.clear()
		return
	case r.rule.NewLog != nil:
		r.log, r.shift, r.err = parseLog(r.rule, r.old)
	default:
		r.state, r.limit, r.err = store.ParseState(r.old)
	}
	if r.err == nil && r.end() <= now {
		r.clear()
	}
}

// shifted is the first byte of a value that consists of a shift and a log.
const shifted = 3

func parseLog(rule *store.Rule, b []byte) (log store.Log, shift int64, err error) {
	if b[0] == shifted {
		by, size := binary.Varint(b[1:])
		if size <= 0 || by < -maxTime || by > maxTime {
			return nil, 0, fmt.Errorf("%w: the shift of a log is out of range", store.ErrCorrupt)
		}
		b, shift = b[1+size:], by
	}
	log, err = rule.ParseLog(b)
	return log, shift, err
}

const maxTime = 1 << 60 // µs; two of them can be added without overflow

// clear makes r the row of a new key.
func (r *row) clear() {
	r.state, r.log, r.shift = store.State{}, nil, 0
	if r.rule.NewLog != nil {
		r.log = r.rule.NewLog(store.State{})
	}
}

// end returns when the value may be dropped, in Unix µs, or math.MinInt64 if nothing is charged.
func (r *row) end() int64 {
	switch {
	case r.log != nil:
		end := r.log.End()
		if end != math.MinInt64 {
			end += r.shift
		}
		return end
	case r.state.Whole == 0 && r.state.Part == 0:
		return math.MinInt64
	}
	return r.state.At + r.rule.TTL(r.state, r.limit)
}

// value returns the value to be written, and its end.
func (r *row) value() (b []byte, end int64, err error) {
	b = make([]byte, 0, 32)
	switch end = r.end(); {
	case end == math.MinInt64:
	case r.log == nil:
		b = store.AppendState(b, r.state, r.limit)
	default:
		if r.shift != 0 {
			b = binary.AppendVarint(append(b, shifted), r.shift)
		}
		if b, err = r.log.AppendBinary(b); err != nil {
			err = fmt.Errorf("%w: %w", store.ErrStore, err)
		}
	}
	return b, end, err
}

// step decides on q for n events. next is the state in which they are charged, unless the key has a log.
func (r *row) step(q *store.Request, now, n int64) (next store.State, reply store.Reply) {
	if r.log != nil {
		if reply = r.log.Step(q.Limit, now-r.shift, n+q.Reserved); reply.OK() || n+q.Reserved > q.Limit.Rate {
			reply.X += r.shift // a time
		}
		return next, reply
	}
	next, reply = r.rule.Step(r.state, q.Limit, now, n+q.Reserved)
	if q.Reserved > 0 {
		next, _ = r.rule.Step(r.state, q.Limit, now, n)
	}
	return next, reply
}

// charge keeps the result of step for n events.
func (r *row) charge(q *store.Request, next store.State, now, n int64, reply *store.Reply) {
	r.changed = true
	if r.log == nil {
		r.state, r.limit = next, q.Limit
		return
	}
	end := r.log.Add(q.Limit, now-r.shift, n)
	if q.Op == store.OpOverdraw {
		reply.X = end - q.Limit.Period + r.shift
	}
}

// setBack counts r from now on if its time is later than now, because its server's clock was set back.
func (r *row) setBack(q *store.Request, now int64) {
	switch {
	case r.end() == math.MinInt64:
	case r.log == nil:
		r.state.At = min(r.state.At, now)
	case r.rule.SetBack != nil:
		r.changed = r.rule.SetBack(r.log, q.Limit, now) && !q.Looks() || r.changed
	default:
		newest := r.log.Step(q.Limit, now-r.shift, q.Limit.Rate+1).X // now, if that is later
		r.shift = now - newest
	}
}

// decide decides on c at now, and charges its rows. The time of a state is later than now only if a clock was set back.
// If setBack is true, that was the server's own clock, and the state is counted from now on.
func (c *call) decide(now int64, setBack bool) error {
	clear(c.charged) // of an earlier attempt
	switch c.op {
	case reset:
		r := c.rows[0]
		r.clear()
		r.err, r.changed = nil, true
		return nil
	case refund:
		r, q := c.rows[0], &c.requests[0]
		switch {
		case r.err != nil || r.end() == math.MinInt64:
			return r.err
		case r.log != nil:
			receipt := c.receipt // which stays, for another attempt
			receipt.At -= r.shift
			r.log.Refund(q.Limit, now-r.shift, receipt)
			r.changed = true
		default:
			before := r.state
			r.state = r.rule.Refund(r.state, q.Limit, now, c.receipt)
			r.changed = r.changed || r.state != before
		}
		return nil
	}
	from := 0
	return store.InTurn(context.Background(), c.requests, c.replies, func(_ context.Context, requests []store.Request, replies []store.Reply) error {
		rows, charged := c.rows[from:], c.charged[from:]
		from += len(requests)
		return decideList(rows, requests, replies, charged, now, setBack)
	})
}

// ask returns how many events q would charge, the state after that, and the reply. If the clock was set back, the row
// moves, which is written unless q writes nothing.
func (r *row) ask(q *store.Request, now int64, setBack bool) (n int64, state store.State, reply store.Reply) {
	state0, shift0 := r.state, r.shift
	if setBack {
		r.setBack(q, now)
	}
	n = q.N
	state, reply = r.step(q, now, n)
	if q.Op == store.OpUpTo && !reply.OK() {
		n = max(1, r.rule.Available(q.Limit, reply)-q.Reserved)
		state, reply = r.step(q, now, n)
	}
	if q.Op == store.OpOverdraw && !reply.OK() && r.log == nil {
		reply.X, state = state.At, r.rule.Overdrawn(state, q.Limit, q.Most)
	}
	moved := r.state != state0 || r.shift != shift0
	r.changed = r.changed || moved && q.Op != store.OpLook && (q.Op != store.OpGate || !reply.OK())
	return n, state, reply
}

// decideList decides on the requests of one alternative.
func decideList(rows []*row, requests []store.Request, replies []store.Reply, charged []int64, now int64, setBack bool) error {
	var few [4]store.State // on the stack
	next := few[:0]
	for i := range requests {
		if rows[i].err != nil {
			return rows[i].err
		}
		n, state, reply := rows[i].ask(&requests[i], now, setBack)
		charged[i], replies[i], next = n, reply, append(next, state)
	}
	all := store.AllOK(requests, replies)
	for i := range requests {
		q := &requests[i]
		if all && (q.Op == store.OpOverdraw || replies[i].OK() && !q.Looks()) {
			rows[i].charge(q, next[i], now, charged[i], &replies[i])
		} else {
			charged[i] = 0
		}
	}
	return nil
}
