package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"encoding/hex"
	"errors"
	"fmt"
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

// script is a script and its name on the server, each boxed once for all calls.
type script struct {
	text, sha any
	holder    string // of slots
	limit     atomic.Pointer[boxed]
	batch     *script // the one that makes several of its calls, or nil
}

// boxed is a limit as arguments. Most calls of a script have the limit of the one before.
type boxed struct {
	limit               store.Limit
	rate, period, burst any
}

// boxed returns l as arguments.
func (sc *script) boxed(l store.Limit) *boxed {
	l = l.TurnBefore(0) // it is another argument
	b := sc.limit.Load()
	if b == nil || b.limit != l {
		b = &boxed{l, l.Rate, l.Period, l.Burst}
		if sc.holder != "" {
			b.period = heldPeriod(l, sc.holder)
		}
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
	made := newScript(rule.Script)
	if rule.Held {
		made.holder = s.holder()
	}
	if rule.BatchScript != nil {
		made.batch = newScript(rule.BatchScript(rule))
	}
	sc, _ := s.scripts.LoadOrStore(rule, made)
	return sc.(*script)
}

// arguments returns c as an EVAL or EVALSHA. It appends to args those of a call on one key.
func (s *Store) arguments(c *call, args []any, name any, op *operation) ([]any, error) {
	text := c.script.sha
	if name == eval {
		text = c.script.text
	}
	if c.args != nil {
		args = slices.Clone(c.args)
		args[0], args[1], args[c.at] = name, text, op
		return args, nil
	}
	args = c.task.appendTo(s, c.script, append(args, name, text, 1, c.key, op))
	if s.clock == nil {
		return args, nil
	}
	now, err := s.now()
	return append(args, now), err
}

// appendTo appends the arguments to args.
func (t *task) appendTo(s *Store, sc *script, args []any) []any {
	l := sc.boxed(t.limit)
	period := l.period
	if t.limit.Calendar() != nil {
		period = s.period(&t.limit)
	}
	return append(append(args, l.rate, period, l.burst, t.n), t.more...)
}

// The pause before a refused call is sent again doubles each time. The first is some
// round trips long, and the last does not disturb a server that loads.
const (
	firstPause = time.Millisecond
	lastPause  = 32 * time.Millisecond
)

// run makes c within b, and puts its decisions into replies. While there is proof that
// nothing ran, and time, it tries again.
func (s *Store) run(b budget, c *call, replies []store.Reply) error {
	if err := b.Err(); err != nil {
		return err
	}
	var before *fault
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		values, f := s.try(b, c)
		if f == nil {
			return parse(values, replies)
		}
		if before != nil && (timeUp(f.err) || errors.Is(f.err, errQueued) || errors.Is(f.err, errUnmade)) && errors.Is(f.class, store.ErrUnavailable) {
			f = before // it gives the reason, not only that time was short
			f.again = false
		}
		if errors.Is(f.err, errApart) {
			c.apart = true
			continue
		}
		if errors.Is(f.err, errRested) && time.Now().Before(b.end) { // that connection is closed now, so this ends
			continue
		}
		if !f.again || !s.rest(b, pause) {
			return s.failure(b, f)
		}
		if !errors.Is(f.err, errGivenUp) { // which says nothing of the server
			before = f
		}
	}
}

// try makes one attempt.
func (s *Store) try(b budget, c *call) ([]int64, *fault) {
	p := s.link.pipeline
	if p == nil {
		return s.send(b, c)
	}
	bt, i, began := p.enter(b, c)
	if bt != nil {
		return p.wait(b, bt, i, c.key)
	}
	err := errPanic
	defer func() { p.exit(began, err) }()
	values, f := s.send(b, c)
	if err = nil; f != nil {
		err = f.err
	}
	return values, f
}

// send makes c by a command of its own, or two if the server does not have the script.
func (s *Store) send(b budget, c *call) ([]int64, *fault) {
	values, f := s.sendBy(b, c, evalsha)
	if f != nil && redis.HasErrorPrefix(f.err, "NOSCRIPT") {
		// Nothing ran, and EVAL never answers NOSCRIPT.
		values, f = s.sendBy(b, c, eval)
	}
	return values, f
}

func (s *Store) sendBy(b budget, c *call, name any) ([]int64, *fault) {
	a := new(attempt) // if the call fails, the client may keep it
	a.op = operation{name: c.task.op.(string), sending: &a.sending}
	args, err := s.arguments(c, a.args[:0], name, &a.op)
	if err != nil {
		return nil, s.failed(c.key, err, false)
	}
	cmd := newNumbers(b, args)
	err = s.link.process(b, cmd, &a.sending)
	if err == nil {
		s.link.answered(c.key)
		return cmd.Val(), nil
	}
	sent := !isAnswer(err) && a.sending.giveUp()
	if sent && over(b) != nil {
		s.follow(*c, cmd, err)
	}
	return nil, s.failed(c.key, err, sent)
}

// failed returns the fault of a call of key, which was sent or not.
func (s *Store) failed(key string, err error, sent bool) *fault {
	if errors.Is(err, errReading) {
		return &fault{class: store.ErrStore, err: err, made: err}
	}
	var f fault
	var answer redis.Error
	if errors.As(err, &answer) {
		s.link.pulse.beat()
		f = answered(err, answer.Error())
	} else {
		s.link.pulse.undialed(err)
		f = s.unanswered(err, sent, key)
	}
	s.link.failed(f, key)
	return &f
}

// rest waits for about d, and reports whether there is still time in b.
func (s *Store) rest(b budget, d time.Duration) bool {
	d = d/2 + s.jitter(d/2+1) // so that callers refused together do not return together
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
		v := list[4*i : 4*i+4]
		if v[0] != 0 && v[0] != 1 {
			return fmt.Errorf("%w: a decision of the reply begins with %d, not with 0 or 1", store.ErrStore, v[0])
		}
		replies[i] = store.Reply{Outcome: store.AdmittedIf(v[0] == 1), X: v[1], Y: v[2], Z: v[3]}
	}
	return nil
}

// failure is the error of a call with ctx that ended in f, and counts it.
func (s *Store) failure(ctx context.Context, f *fault) error {
	if err := over(ctx); err != nil {
		return err
	}
	if p := s.link.pipeline; p != nil && errors.Is(f.class, store.ErrOverloaded) {
		p.refusals.full.Add(1)
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
