package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	eval    = "eval"
	evalsha = "evalsha"

	keyArg = 3 // where the first key stands in an EVALSHA
)

// operation is what a script is to do, and its place in the EVALSHA.
type operation struct {
	name string
	at   int
}

// one is an operation on one key.
func one(name string) operation { return operation{name, keyArg + 1} }

// script is a script and its name on the server, each boxed once for all calls.
type script struct{ text, sha any }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

func (s *Store) script(rule *store.Rule) *script {
	if sc, ok := s.scripts.Load(rule); ok {
		return sc.(*script)
	}
	sc, _ := s.scripts.LoadOrStore(rule, newScript(rule.Script))
	return sc.(*script)
}

// The pause before a refused call is sent again doubles each time. The first is some
// round trips long, and the last does not disturb a server that loads.
const (
	firstPause = time.Millisecond
	lastPause  = 32 * time.Millisecond
)

// run runs operation op of a script within b, and puts its decisions into replies. args
// is a whole EVALSHA command, in which run sets op. While there is proof that nothing
// ran, and time, it tries again.
func (s *Store) run(b budget, sc *script, op operation, args []any, replies []store.Reply) error {
	if err := b.Err(); err != nil {
		return err
	}
	var before *fault
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		val, f := s.try(b, sc, op, args)
		if f == nil {
			return parse(val, replies)
		}
		if before != nil && timeUp(f.err) && errors.Is(f.class, store.ErrUnavailable) {
			f = before // it gives the reason, not only that time was short
			f.again = false
		}
		if !f.again || !rest(b, pause) {
			return failure(b, *f)
		}
		before, args = f, slices.Clone(args)
	}
}

// try makes one attempt, which is two commands if the server does not have the script.
func (s *Store) try(b budget, sc *script, op operation, args []any) (any, *fault) {
	val, f := s.send(b, op, args)
	if f != nil && redis.HasErrorPrefix(f.err, "NOSCRIPT") {
		// Nothing ran, and EVAL never answers NOSCRIPT.
		args = slices.Clone(args)
		args[0], args[1] = eval, sc.text
		b.loads = true
		val, f = s.send(b, op, args)
	}
	return val, f
}

// send sends one command. If it fails, the client may keep args.
func (s *Store) send(b budget, op operation, args []any) (any, *fault) {
	sent := &sending{op: op.name}
	args[op.at] = sent
	cmd := newCommand(b, args)
	key := args[keyArg].(string)
	err := s.link.process(b, cmd, sent)
	if err == nil || errors.Is(err, redis.Nil) {
		s.link.answered(key)
		return cmd.Val(), nil
	}
	var f fault
	var answer redis.Error
	if errors.As(err, &answer) {
		s.link.pulse.beat()
		f = answered(err, answer.Error())
	} else {
		f = s.unanswered(err, sent.abandon(), key)
	}
	s.link.failed(f, key)
	return nil, &f
}

// rest waits for about d, and reports whether there is still time in b.
func rest(b budget, d time.Duration) bool {
	d = d/2 + rand.N(d/2+1) // so that callers refused together do not return together
	if time.Until(b.end) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.Done():
		return false
	}
}

// parse reads a script's reply, four integers for each decision.
func parse(val any, replies []store.Reply) error {
	list, err := decisions(val, len(replies))
	if err != nil {
		return err
	}
	for i := range replies {
		if replies[i], err = decision(list, i); err != nil {
			return err
		}
	}
	return nil
}

// decisions returns the elements of a script's reply, which has n decisions.
func decisions(val any, n int) ([]any, error) {
	list, ok := val.([]any)
	if !ok || len(list) != 4*n {
		return nil, fmt.Errorf("%w: reply is %T of %d elements, not a list of %d", store.ErrStore, val, len(list), 4*n)
	}
	return list, nil
}

// decision returns decision i of a script's reply.
func decision(list []any, i int) (store.Reply, error) {
	var v [4]int64
	for j := range v {
		var ok bool
		if v[j], ok = list[4*i+j].(int64); !ok {
			return store.Reply{}, fmt.Errorf("%w: element %d of the reply is %T, not an integer", store.ErrStore, 4*i+j, list[4*i+j])
		}
	}
	if v[0] != 0 && v[0] != 1 {
		return store.Reply{}, fmt.Errorf("%w: decision %d of the reply begins with %d, not with 0 or 1", store.ErrStore, i, v[0])
	}
	return store.Reply{OK: v[0] == 1, X: v[1], Y: v[2], Z: v[3]}, nil
}

// failure is the error of a call with ctx that ended in f.
func failure(ctx context.Context, f fault) error {
	if err := over(ctx); err != nil {
		return err
	}
	return f.error()
}

// over is ctx's error, even if a socket's timer ran out before ctx's own.
func over(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return nil
}
