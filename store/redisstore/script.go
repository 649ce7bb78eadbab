package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
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
	name  string
	at    int
	mixed bool // the reply may hold texts of errors, and not integers alone
}

// one is an operation on one key.
func one(name string) operation { return operation{name: name, at: keyArg + 1} }

// script is a script and its name on the server, each boxed once for all calls.
type script struct {
	text, sha any
	limit     atomic.Pointer[boxed]
}

// boxed is a limit as arguments. Most calls of a script have the limit of the one before.
type boxed struct {
	limit               store.Limit
	rate, period, burst any
}

// boxed returns l as arguments.
func (sc *script) boxed(l store.Limit) *boxed {
	l.Before = 0 // it is another argument
	b := sc.limit.Load()
	if b == nil || b.limit != l {
		b = &boxed{l, l.Rate, l.Period, l.Burst}
		sc.limit.Store(b)
	}
	return b
}

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
		cmd, f := s.try(b, sc, op, args)
		if f == nil {
			return parse(cmd.(numbers).Val(), replies)
		}
		if before != nil && timeUp(f.err) && errors.Is(f.class, store.ErrUnavailable) {
			f = before // it gives the reason, not only that time was short
			f.again = false
		}
		if !f.again || !rest(b, pause) {
			return failure(b, *f)
		}
		before, args = f, anew(op, args)
	}
}

// anew is args for another attempt: the client may still own those of the first.
func anew(op operation, args []any) []any {
	args = slices.Clone(args)
	args[op.at] = nil
	return args
}

// try makes one attempt, which is two commands if the server does not have the script.
func (s *Store) try(b budget, sc *script, op operation, args []any) (redis.Cmder, *fault) {
	cmd, f := s.send(b, op, args)
	if f != nil && redis.HasErrorPrefix(f.err, "NOSCRIPT") {
		// Nothing ran, and EVAL never answers NOSCRIPT.
		args = anew(op, args)
		args[0], args[1] = eval, sc.text
		b.loads = true
		cmd, f = s.send(b, op, args)
	}
	return cmd, f
}

// send sends one command, and returns it with its reply. Its operation may be in args
// already. If it fails, the client may keep args.
func (s *Store) send(b budget, op operation, args []any) (redis.Cmder, *fault) {
	sent, ok := args[op.at].(*sending)
	if !ok {
		sent = &sending{op: op.name}
		args[op.at] = sent
	}
	var cmd redis.Cmder
	if op.mixed {
		cmd = newCommand(b, args)
	} else {
		cmd = newNumbers(b, args)
	}
	key := args[keyArg].(string)
	err := s.link.process(b, cmd, sent)
	if err == nil || errors.Is(err, redis.Nil) {
		s.link.answered(key)
		return cmd, nil
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
func parse(list []int64, replies []store.Reply) error {
	if len(list) != 4*len(replies) {
		return fmt.Errorf("%w: the reply is %d integers, not %d", store.ErrStore, len(list), 4*len(replies))
	}
	for i := range replies {
		var err error
		if replies[i], err = decision([4]int64(list[4*i:])); err != nil {
			return err
		}
	}
	return nil
}

// decision reads one decision of a script's reply.
func decision(v [4]int64) (store.Reply, error) {
	if v[0] != 0 && v[0] != 1 {
		return store.Reply{}, fmt.Errorf("%w: a decision of the reply begins with %d, not with 0 or 1", store.ErrStore, v[0])
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
