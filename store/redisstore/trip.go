package redisstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// trip is several calls on one connection. It makes the connection if there is none.
// Without calls, it does only that.
type trip struct {
	list     []*batch
	first    [1]*batch // where list begins
	calls    int       // that go with it
	begun    time.Time
	paused   time.Duration // of this process, when it began
	end      time.Time     // of the last of them
	made     bool          // it has taken one of the ready connections
	twice    bool          // the server had to be told a script
	sending  sending
	panicked any // the value that a hook panicked with, or errExit

	batches int  // whose callers wait; protected by pipeline.mu, as are
	left    bool // all callers have left
	ended   bool
	gone    []*call // whose callers have left since their contexts ended
}

// leave notes that a caller has left, and reports whether the calls were written. If they
// were not, they will not be: the others go again.
func (t *trip) leave() (sent bool) {
	return !t.sending.state.CompareAndSwap(unsent, givenUp) && t.sending.state.Load() == written
}

// fail ends those calls with err that have no error yet.
func (t *trip) fail(err error) {
	for _, bt := range t.list {
		for i := range bt.calls {
			if c := &bt.calls[i]; c.err == nil {
				c.err = err
			}
		}
	}
}

// group is the calls of a trip that share a script.
type group struct {
	calls    []*call
	requests int // of all calls
	op       operation
}

// fail ends those calls with err that have no error yet.
func (g *group) fail(err error) {
	for _, c := range g.calls {
		if c.err == nil {
			c.err = err
		}
	}
}

const (
	// mostTogether is the most requests in a script, but for those of a single call. With 64
	// the server does nothing else for about 0.3 ms.
	mostTogether = 64

	// notTogether is how long calls have a script each, after a server has refused a
	// script of several keys.
	notTogether = time.Minute
)

// refusesBatches reports whether err is the answer of a server that may accept one key
// but not several. Either they are on different nodes, or the user may not use all of
// them. It proves that nothing ran.
func refusesBatches(err error) bool {
	return redis.HasErrorPrefix(err, "CROSSSLOT") || redis.HasErrorPrefix(err, "NOPERM")
}

// send makes the calls of t and ends its batches. It returns the error of the connection,
// or the server's last answer.
func (p *pipeline) send(t *trip) (err error) {
	t.panicked = errExit // unless it is made
	defer func() {
		if r := recover(); r != nil {
			t.panicked = r
		}
		if t.panicked != nil {
			err = errPanic
		}
		if t.sending.state.Load() == givenUp {
			t.fail(errGivenUp)
		}
		for _, bt := range t.list {
			if bt.ended.CompareAndSwap(false, true) {
				if bt.timer.Stop() {
					bt.unread.Store(int64(len(bt.calls)))
				}
				close(bt.done)
			}
		}
	}()
	err = p.carry(t)
	t.panicked = nil
	return err
}

// carry makes the calls of t.
func (p *pipeline) carry(t *trip) error {
	groups := p.groups(t)
	values := context.Background()
	if t.calls == 1 { // hooks see the values of a caller's context
		values = context.WithoutCancel(groups[0].calls[0].ctx)
	}
	t.sending.waits = waiting{values, t.begun.Add(max(lasting, lastingTimes*p.timeout)), p.waves.After(t.end.Add(t.begun.Sub(t.end) / 4))}
	ctx := context.Context(&t.sending.waits)
	switch len(groups) {
	case 0:
		return p.client.Process(ctx, command{redis.NewCmd(ctx, "time")})
	case 1: // costs less than a pipeline
		return p.exec(ctx, t, groups, func(ctx context.Context, cmds []redis.Cmder) { _ = p.client.Process(ctx, cmds[0]) })
	}
	conn, end := p.conn()
	defer end()
	return p.exec(ctx, t, groups, func(ctx context.Context, cmds []redis.Cmder) {
		pipe := conn.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...)
		_, err := pipe.Exec(ctx)
		failed := func(cmd redis.Cmder) bool { return cmd.Err() != nil }
		if err != nil && !slices.ContainsFunc(cmds, failed) { // conn has ended after an answer, such as READONLY: no command is told
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
	})
}

// groups returns the scripts of t.
func (p *pipeline) groups(t *trip) (list []group) {
	p.mu.Lock()
	apart := p.apart.After(t.begun)
	p.mu.Unlock()
	for _, bt := range t.list {
	next:
		for i := range bt.calls {
			c := &bt.calls[i]
			if !c.goes {
				continue
			}
			room := 1
			if c.script.shared && !c.apart && !apart {
				room = min(t.calls, mostTogether)
				for j := range list {
					if g := &list[j]; g.calls[0].script == c.script && g.calls[0].slot == c.slot && !g.calls[0].apart && g.requests+c.size() <= mostTogether {
						g.calls, g.requests = append(g.calls, c), g.requests+c.size()
						continue next
					}
				}
			}
			list = append(list, group{calls: append(make([]*call, 0, room), c), requests: c.size(), op: operation{sending: &t.sending}})
		}
	}
	return list
}

// exec runs the groups, in one round trip if the server has their scripts. It returns the
// error of the connection, or the server's last answer.
func (p *pipeline) exec(ctx context.Context, t *trip, groups []group, run func(context.Context, []redis.Cmder)) (err error) {
	for name := any(evalsha); len(groups) > 0; name = eval {
		cmds := make([]redis.Cmder, len(groups))
		for i := range groups {
			if cmds[i], err = groups[i].command(ctx, p.store, name); err != nil {
				for i := range groups {
					groups[i].fail(err)
				}
				return err
			}
		}
		run(ctx, cmds)
		var again []group
		for i := range groups {
			g := &groups[i]
			switch err = cmds[i].Err(); { // if a connection breaks, all the following fail too
			case err == nil:
				g.end(cmds[i])
			case name == evalsha && redis.HasErrorPrefix(err, "NOSCRIPT"):
				again = append(again, *g)
			case len(g.calls) > 1 && refusesBatches(err):
				p.mu.Lock()
				p.apart = time.Now().Add(notTogether)
				p.mu.Unlock()
				g.fail(errApart)
			default:
				g.end(cmds[i])
			}
		}
		if groups = again; groups != nil { // it has a connection, and a script is told once for all
			end, _ := ctx.Deadline()
			ctx, t.twice = patient{context.WithoutCancel(ctx), end}, true
		}
	}
	return err
}

// end hands the reply to the calls.
func (g *group) end(cmd redis.Cmder) {
	err := cmd.Err()
	switch cmd := cmd.(type) {
	case numbers:
		g.calls[0].values = cmd.Val()
	case *mixed:
		switch {
		case err != nil:
		case g.op.sending.state.Load() == givenUp: // it was sent as a look, which has no reply
			err = errGivenUp
		default:
			err = g.read(cmd.reply.Bytes())
		}
	}
	if err != nil {
		g.fail(err)
	}
}

// read reads the reply of scripts/groups.lua to several calls: of each request four elements. They
// are integers, but the first of a call is a text if that failed.
func (g *group) read(reply []byte) error {
	r := reader{reply}
	n, _, ok := r.next('*')
	if !ok || n != int64(4*g.requests) {
		return fmt.Errorf("%w: not a list of %d: %.100q", errReply, 4*g.requests, reply)
	}
	values := make([]int64, n)
	at := 0
	for _, c := range g.calls {
		c.values = values[at : at+4*c.size()]
		for i := range c.values {
			v, text, ok := r.next(':')
			switch {
			case !ok || text != "" && i > 0:
				return fmt.Errorf("%w: element %d is not an integer: %.100q", errReply, at+i, reply)
			case text != "":
				c.err = refusal(text)
			}
			c.values[i] = v
		}
		at += len(c.values)
	}
	return nil
}

// refusal is the error of a script, or of one call in its reply.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError makes it a [redis.Error].
func (refusal) RedisError() {}

// reader reads RESP.
type reader struct{ rest []byte }

// next reads an element of this kind, which is followed by a number, or a text.
func (r *reader) next(kind byte) (n int64, text string, ok bool) {
	line, rest, ok := bytes.Cut(r.rest, []byte("\r\n"))
	if !ok || len(line) < 2 {
		return 0, "", false
	}
	n, err := strconv.ParseInt(string(line[1:]), 10, 64)
	r.rest = rest
	switch {
	case err != nil:
		return 0, "", false
	case line[0] == kind:
		return n, "", true
	case line[0] != '$' || n < 1 || n > int64(len(rest))-2:
		return 0, "", false
	}
	r.rest = rest[n+2:]
	return 0, string(rest[:n]), true
}

// command returns the calls of g as an EVAL or EVALSHA.
func (g *group) command(ctx context.Context, s *Store, name any) (redis.Cmder, error) {
	args, err := s.arguments(nil, g.calls, name, &g.op)
	if len(g.calls) == 1 {
		return newNumbers(ctx, args), err
	}
	return newMixed(ctx, args, g.requests), err
}

// conn returns a connection to send several calls over, and a function that ends its use.
// A pipeline of the client itself would have a pool of its own. In a first handshake
// go-redis (9.23) changes settings that a client shares with its Conns, without a common
// lock. So each Conn belongs to a clone that nothing else uses. A client with hooks has
// no such clones.
func (p *pipeline) conn() (conn *redis.Conn, end func()) {
	if p.hooks {
		conn = p.client.Conn()
		return conn, func() { _ = conn.Close() }
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var clone *redis.Client
	if n := len(p.clones); n > 0 {
		clone, p.clones = p.clones[n-1], p.clones[:n-1]
	} else {
		clone = p.client.WithTimeout(p.client.Options().ReadTimeout)
	}
	conn = clone.Conn()
	return conn, func() {
		_ = conn.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clones = append(p.clones, clone) // there are no more clones than trips
	}
}
