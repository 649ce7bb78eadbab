package redisstore

// A round trip: the scripts of its calls, and their replies.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// bundle has the calls of a trip that share a script.
type bundle struct {
	calls    []*call
	requests int // of all calls
	op       operation
}

// fail gives err to the calls that have no error yet.
func (g *bundle) fail(err error) {
	for _, c := range g.calls {
		if c.err == nil {
			c.err = err
		}
	}
}

var errRefusedBundle = errors.New("the server refused a script with several calls")

const (
	// mostTogether is the most requests in a script, unless a single call has more. 64 requests
	// keep the server from other work for about 0.3 ms.
	mostTogether = 64

	// notTogether is how long each call has a script of its own after a server has refused a
	// script with several keys.
	notTogether = time.Minute
)

// refusesBundles reports whether err is the answer of a server that may accept one key but not
// several, because the keys are on different nodes, or because the user may not use all of them. Such
// an answer proves that nothing ran.
func refusesBundles(err error) bool {
	return redis.HasErrorPrefix(err, "CROSSSLOT") || redis.HasErrorPrefix(err, "NOPERM")
}

// send makes the calls of t.
func (v *server) send(ctx context.Context, t *carrier.Trip[call]) error {
	twice, err := v.sendBundles(ctx, v.bundles(t))
	if twice {
		t.Twice()
	}
	for c := range t.Calls {
		c.End(c.Call.err)
	}
	if isAnswer(err) {
		return nil
	}
	return err
}

// sendBundles makes the calls of the bundles. It returns the error of the connection, or the server's last answer, and
// whether it took two round trips because the server did not have all scripts.
func (v *server) sendBundles(ctx context.Context, bundles []bundle) (twice bool, err error) {
	switch {
	case len(bundles) == 0:
		return false, v.client.Process(ctx, command{redis.NewCmd(ctx, "time")})
	case len(bundles) == 1 && !bundles[0].asking(): // costs less than a pipeline
		return v.exec(ctx, bundles, func(ctx context.Context, cmds []redis.Cmder) { _ = v.client.Process(ctx, cmds[0]) })
	}
	conn, end := v.conn()
	defer end()
	return v.exec(ctx, bundles, func(ctx context.Context, cmds []redis.Cmder) {
		pipe := conn.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...)
		_, err := pipe.Exec(ctx)
		failed := func(cmd redis.Cmder) bool { return cmd.Err() != nil }
		if err != nil && !slices.ContainsFunc(cmds, failed) { // an answer such as READONLY has ended conn, but no command has the error
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
	})
}

// bundles returns the scripts of t.
func (v *server) bundles(t *carrier.Trip[call]) (list []bundle) {
	v.mu.Lock()
	apart := v.apart.After(time.Now())
	v.mu.Unlock()
	for c := range t.Calls {
		list = join(list, &c.Call, t.Len(), apart, t.Writing())
	}
	for i := range list {
		gather(list[i].calls)
	}
	return list
}

// join adds c, one of n calls, to a bundle of list that it may share, or to a new one, and returns the list. If apart
// is true, no calls share a bundle.
func join(list []bundle, c *call, n int, apart bool, w *carrier.Writing) []bundle {
	room := 1
	if c.script.shared && !c.unshared && !apart {
		room = min(n, mostTogether)
		for j := range list {
			if g := &list[j]; g.calls[0].script == c.script && g.calls[0].slot == c.slot && !g.calls[0].unshared && g.requests+c.size() <= mostTogether {
				g.calls, g.requests = append(g.calls, c), g.requests+c.size()
				return list
			}
		}
	}
	return append(list, bundle{calls: append(make([]*call, 0, room), c), requests: c.size(), op: operation{writing: w}})
}

// exec runs the bundles, in one round trip if the server has their scripts. It returns the
// error of the connection, or the server's last answer.
func (v *server) exec(ctx context.Context, bundles []bundle, run func(context.Context, []redis.Cmder)) (twice bool, err error) {
	for name := any(evalsha); len(bundles) > 0; name = eval {
		cmds := make([]redis.Cmder, len(bundles))
		for i := range bundles {
			if cmds[i], err = bundles[i].command(ctx, v.store, name); err != nil {
				for i := range bundles {
					bundles[i].fail(err)
				}
				return twice, err
			}
		}
		run(ctx, withAsking(ctx, bundles, cmds))
		var again []bundle
		for i := range bundles {
			g := &bundles[i]
			switch err = cmds[i].Err(); { // if a connection breaks, all the following fail too
			case err == nil:
				g.end(cmds[i])
			case name == evalsha && redis.HasErrorPrefix(err, "NOSCRIPT"):
				again = append(again, *g)
			case len(g.calls) > 1 && refusesBundles(err):
				v.mu.Lock()
				v.apart = time.Now().Add(notTogether)
				v.mu.Unlock()
				g.fail(errRefusedBundle)
			default:
				g.end(cmds[i])
			}
		}
		if bundles = again; bundles != nil { // the trip has a connection, and the scripts are for later calls too
			end, _ := ctx.Deadline()
			ctx = earlyDone{context.WithoutCancel(ctx), end}
			twice = true
		}
	}
	return twice, err
}

// asking reports whether g needs an ASKING. It then has one call.
func (g *bundle) asking() bool { return g.calls[0].asking }

// withAsking returns the commands of bundles with an ASKING before each that needs it.
func withAsking(ctx context.Context, bundles []bundle, cmds []redis.Cmder) []redis.Cmder {
	if !slices.ContainsFunc(bundles, func(g bundle) bool { return g.asking() }) {
		return cmds
	}
	var list []redis.Cmder
	for i, cmd := range cmds {
		if bundles[i].asking() {
			list = append(list, command{redis.NewCmd(ctx, "asking")})
		}
		list = append(list, cmd)
	}
	return list
}

// end hands the reply to the calls.
func (g *bundle) end(cmd redis.Cmder) {
	err := cmd.Err()
	switch shared, ok := cmd.(*mixed); {
	case err != nil:
	case !ok:
		g.calls[0].values, err = valuesOf(cmd)
	case g.op.writing.GivenUp(): // it was sent as none, which has no reply
	default:
		err = g.read(shared.reply.Bytes())
	}
	if err != nil {
		g.fail(err)
	}
}

// read reads the reply of scripts/groups.lua to several calls. It has four elements per request. They
// are integers, except that the first element of a failed call is a text.
func (g *bundle) read(reply []byte) error {
	r := reader{reply}
	n, _, ok := r.next('*')
	if !ok || n != int64(4*g.requests) {
		return fmt.Errorf("%w: want a list of %d: %.100q", errReply, 4*g.requests, reply)
	}
	values := make([]int64, n)
	at := 0
	for _, c := range g.calls {
		c.values = values[at : at+4*c.size()]
		for i := range c.values {
			v, text, ok := r.next(':')
			switch {
			case !ok || text != "" && i > 0 && (i%4 > 0 || !c.request(i/4).orElse):
				return fmt.Errorf("%w: element %d is not an integer: %.100q", errReply, at+i, reply)
			case text != "" && c.err == nil:
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

// RedisError makes refusal a [redis.Error].
func (refusal) RedisError() {}

// reader reads RESP.
type reader struct{ rest []byte }

// next reads an element: a number, which follows the byte kind, or a text.
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
func (g *bundle) command(ctx context.Context, s *Store, name any) (redis.Cmder, error) {
	args, err := s.arguments(nil, g.calls, name, &g.op)
	if len(g.calls) == 1 {
		return newAlone(ctx, args, g.calls[0]), err
	}
	return newMixed(ctx, args, g.requests), err
}
