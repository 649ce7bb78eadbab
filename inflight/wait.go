package inflight

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// ErrFull says that as many wait for slots of a key as may: see [MaxWaiting].
var ErrFull = errors.New("inflight: too many wait for slots of the key")

var errMaxWaiting = fmt.Errorf("%w: MaxWaiting is for Wait, or beside WaitUpTo: Hold never waits", ratelimit.ErrInvalidOption)

const (
	defaultMost = 1024
	leastPause  = 5 * time.Millisecond
	mostPause   = time.Second
)

// MaxWaiting bounds how many wait for slots of a key and limiter in this process, 1 to 2^31-1. The
// default is 1,024. It is for [Wait] and beside [WaitUpTo], and an error elsewhere.
func MaxWaiting(n int) Option {
	return func(h *held) error {
		if n < 1 || n > math.MaxInt32 {
			return fmt.Errorf("%w: MaxWaiting(%d), want 1 to %d", ratelimit.ErrInvalidOption, n, math.MaxInt32)
		}
		h.most = n
		return nil
	}
}

// WaitUpTo has [Hold] wait for up to d, above 0, in the line of [Wait]. It denies if d is over, at once if
// what is missing comes later, and at once if too many wait already ([MaxWaiting]). An error of the
// limiter ends it. The end of [Wait] is then that of a context with this timeout.
func WaitUpTo(d time.Duration) Option {
	return func(h *held) error {
		if d <= 0 {
			return fmt.Errorf("%w: WaitUpTo(%v)", ratelimit.ErrInvalidOption, d)
		}
		h.patience = d
		return nil
	}
}

// Wait is [Hold] that blocks until there is a slot, and all else that l asks for, and then for the
// Delay. It is never a denial.
//
// In this process those who wait for a key of l stand in a line, in order of arrival. Only the
// first asks. A Release in this process wakes it, and nobody else. For slots of other processes it
// asks again after 5 ms, and then after twice as long each time, up to 1 s. There is no order among
// processes, and Hold stands in no line.
//
// The error is [ErrFull] if too many wait already ([MaxWaiting]), that of ctx if it ends, and
// [ratelimit.ErrNever] if n is never admitted. It is [ratelimit.ErrWouldExceedDeadline] at once if
// a rate has no room before ctx's deadline. [store.ErrOverloaded] and [store.ErrUnavailable] do not
// end it.
func Wait(ctx context.Context, l ratelimit.Limiter, key string, n int, opts ...Option) (*Slot, ratelimit.Result, error) {
	none := ratelimit.Result{}
	if err := checkLimiter(l); err != nil {
		return nil, none, err
	}
	if err := store.CheckCall(ctx, key, n); err != nil {
		return nil, none, err
	}
	first := new(held)
	if err := first.apply(opts); err != nil {
		return nil, none, err
	}
	if first.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, first.patience)
		defer cancel()
	}
	w, err := lines.join(l, key, first.most)
	if err != nil {
		return nil, none, err
	}
	s, r, err := w.hold(ctx, ctx, n, opts)
	if err != nil || r.Delay <= 0 {
		return s, r, err
	}
	if err := sleep(ctx, r.Delay); err != nil {
		_ = s.Refund(ctx)
		s.Release()
		return nil, none, err
	}
	return s, r, nil
}

// wait holds a slot as soon as it is h's turn, for as long as it is patient.
func (h *held) wait(ctx context.Context, opts []Option) (*Slot, ratelimit.Result, error) {
	if !lines.some.Load() { // nobody is overtaken
		if s, r, err := h.hold(ctx); err != nil || r.Allowed || r.RetryAfter == ratelimit.Never {
			return s, r, err
		}
	}
	w, err := lines.join(h.limiter, h.key, h.most)
	if err != nil {
		return h.refuse(ctx)
	}
	w.deferred, w.impatient = h.deferred, true
	until, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	s, r, err := w.hold(ctx, until, h.asked, opts)
	switch {
	case ctx.Err() != nil && s == nil:
		return nil, ratelimit.Result{}, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, ratelimit.ErrNever):
		if !w.asked {
			return h.refuse(ctx)
		}
		return nil, w.denial, nil
	}
	return s, r, err
}

// refuse returns a denial, by a look, for one who is not to overtake those that wait.
func (h *held) refuse(ctx context.Context) (*Slot, ratelimit.Result, error) {
	r, err := h.limiter.Peek(ctx, h.key)
	if r.Allowed {
		r.Allowed, r.Remaining, r.RetryAfter, r.Delay = false, 0, leastPause, 0
	}
	return nil, r, err
}

// sleep sleeps, unless that takes too long for ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return ratelimit.ErrWouldExceedDeadline
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// line is those who wait for slots of a key.
type line struct {
	limiter ratelimit.Limiter
	key     string
	cores   []*ratelimit.Custom
	waiters []*waiter // in order of arrival; the first one asks
	pause   time.Duration
}

// waiter is one of them.
type waiter struct {
	line *line
	ask  chan struct{} // of capacity 1: not to wait any longer
	rest time.Duration // before the next question

	deferred  bool // see held
	impatient bool // an error ends the wait
	asked     bool
	denial    ratelimit.Result // of the last question
}

// hold asks in w's turn until there is a slot, or until has ended, and leaves the line.
func (w *waiter) hold(ctx, until context.Context, n int, opts []Option) (s *Slot, r ratelimit.Result, err error) {
	more := true // whether the next in the line is to ask at once
	defer func() { lines.leave(w, more) }()
	l, key := w.line.limiter, w.line.key
	for {
		if err := w.turn(until); err != nil {
			return nil, ratelimit.Result{}, err
		}
		h := new(held)
		h.begin(ctx, l, key, n)
		h.deferred = w.deferred
		if err := errors.Join(h.apply(opts), h.check()); err != nil {
			return nil, ratelimit.Result{}, err
		}
		if s, r, err = h.hold(ctx); s != nil {
			more = r.Remaining > 0
			return s, r, nil
		}
		w.asked, w.denial = err == nil, r
		if err := w.denied(until, n, r, err); err != nil {
			return nil, ratelimit.Result{}, err
		}
	}
}

// turn waits until w may ask.
func (w *waiter) turn(ctx context.Context) error {
	var ring <-chan time.Time
	if w.rest > 0 {
		timer := time.NewTimer(w.rest)
		defer timer.Stop()
		ring = timer.C
	}
	select {
	case <-w.ask:
	case <-ring:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// denied sets when w asks again, or returns why it does not.
func (w *waiter) denied(ctx context.Context, n int, r ratelimit.Result, err error) error {
	switch {
	case err != nil && w.impatient:
		return err
	case errors.Is(err, store.ErrOverloaded), errors.Is(err, store.ErrUnavailable):
		w.rest = lines.pause(w.line)
		return nil
	case err != nil:
		return err
	case r.RetryAfter == ratelimit.Never:
		return fmt.Errorf("%w: %d events with a limit of %d", ratelimit.ErrNever, n, r.Limit)
	case w.bySlots(r):
		w.rest = min(lines.pause(w.line), max(r.RetryAfter, time.Millisecond))
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= r.RetryAfter {
		return ratelimit.ErrWouldExceedDeadline
	}
	w.rest = max(r.RetryAfter, time.Millisecond)
	return nil
}

// bySlots reports whether slots are missing, by the denial r. Nobody knows when they come.
func (w *waiter) bySlots(r ratelimit.Result) bool {
	limits, parts := several(w.line.limiter), inner(w.line.limiter, r).Parts()
	if limits == nil || len(parts) != len(limits) {
		return true
	}
	for i := range parts {
		if _, ok := slotsIn(limits[i]); ok && !parts[i].Allowed && parts[i].RetryAfter > 0 {
			return true
		}
	}
	return false
}

// lines are those of this process.
var lines allLines

type allLines struct {
	some atomic.Bool // whether all has any; set under mu, and read without, since each Release does
	mu   sync.Mutex  // protects all of it, and the lines
	all  []*line     // in which somebody waits, in order of arrival
}

// join puts a waiter at the end of the line of key. The first in a line asks at once.
func (a *allLines) join(l ratelimit.Limiter, key string, most int) (*waiter, error) {
	if most == 0 {
		most = defaultMost
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ln := a.find(func(ln *line) bool { return ln.is(l, key) })
	if ln == nil {
		ln = &line{limiter: l, key: key, cores: cores(l), pause: leastPause}
		a.all = append(a.all, ln)
		a.some.Store(true)
	}
	if len(ln.waiters) >= most {
		return nil, ErrFull
	}
	w := &waiter{line: ln, ask: make(chan struct{}, 1)}
	if ln.waiters = append(ln.waiters, w); len(ln.waiters) == 1 {
		w.call()
	}
	return w, nil
}

// leave takes w out of its line. The next one asks at once if more, or if w was called and has not
// asked since.
func (a *allLines) leave(w *waiter, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ln := w.line
	first := ln.waiters[0] == w
	ln.waiters = slices.DeleteFunc(ln.waiters, func(other *waiter) bool { return other == w })
	switch {
	case len(ln.waiters) == 0:
		a.all = slices.DeleteFunc(a.all, func(other *line) bool { return other == ln })
		a.some.Store(len(a.all) > 0)
	case first && (more || len(w.ask) > 0):
		ln.waiters[0].call()
	case first:
		next := ln.waiters[0]
		ln.pause = leastPause
		time.AfterFunc(leastPause, next.call)
	}
}

// wake wakes the first who waits for key of l, or else the first of another line for slots of
// core, such as one that is for all keys.
func (a *allLines) wake(l ratelimit.Limiter, key string, core *ratelimit.Custom) {
	if !a.some.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := func(ln *line) bool { return slices.Contains(ln.cores, core) }
	for _, is := range []func(*line) bool{
		func(ln *line) bool { return ln.is(l, key) },
		func(ln *line) bool { return ln.key == key && counts(ln) },
		counts,
	} {
		if ln := a.find(is); ln != nil {
			ln.waiters[0].call()
			return
		}
	}
}

// pause is how long the first of ln waits for what it is not told of.
func (a *allLines) pause(ln *line) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := ln.pause
	ln.pause = min(2*d, mostPause)
	return d - rand.N(d/4) // so that processes do not ask together
}

func (a *allLines) find(is func(*line) bool) *line {
	if i := slices.IndexFunc(a.all, is); i >= 0 {
		return a.all[i]
	}
	return nil
}

func (ln *line) is(l ratelimit.Limiter, key string) bool {
	return ln.key == key && reflect.ValueOf(l).Comparable() && reflect.ValueOf(ln.limiter).Comparable() && ln.limiter == l
}

// call lets w ask.
func (w *waiter) call() {
	select {
	case w.ask <- struct{}{}:
	default:
	}
}

// cores are the limiters of slots in l.
func cores(l ratelimit.Limiter) (all []*ratelimit.Custom) {
	limits := several(l)
	if limits == nil {
		limits = []ratelimit.Limiter{l}
	}
	for _, limit := range limits {
		if core, ok := slotsIn(limit); ok {
			all = append(all, core)
		}
	}
	return all
}
