package inflight

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	leastPoll   = 50 * time.Millisecond // the longest pause, if slots are held for a short time
	mostPause   = time.Second
)

// MaxWaiting bounds how many wait for slots of a key and limiter in this process, 1 to 2^31-1. The
// default is 1,024. It is for [Wait] and beside [WaitUpTo], and an error elsewhere.
func MaxWaiting(n int) Option {
	return func(s *settings) error {
		if n < 1 || n > math.MaxInt32 {
			return fmt.Errorf("%w: MaxWaiting(%d), want 1 to %d", ratelimit.ErrInvalidOption, n, math.MaxInt32)
		}
		s.most = n
		return nil
	}
}

// WaitUpTo has [Hold] wait for up to d, above 0, in the queue of [Wait]. It denies if d is over, at once if
// what is missing comes later, and at once if too many wait already ([MaxWaiting]). An error of the
// limiter ends it. A call of the store that is under way then is waited for. The end of [Wait] is
// that of a context with this timeout.
func WaitUpTo(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return fmt.Errorf("%w: WaitUpTo(%v)", ratelimit.ErrInvalidOption, d)
		}
		s.patience = d
		return nil
	}
}

// Wait is [Hold] that blocks until there is a slot, and all else that l asks for, and then for the
// Delay. It is never a denial.
//
// In this process those who wait for a key of l wait in a queue, and ask in order of arrival. One asks
// for each slot that is known to be free: by a Release in this process, or by the last answer. For
// slots of other processes the first asks again after 5 ms, and then after twice as long each time, up
// to a quarter of the time for which slots are held, which is taken as 50 ms to 1 s. A queue that gets
// nothing for more than 3 s asks less often, up to once a second.
//
// There is no order among processes, but each gets its share: from time to time a process leaves a slot
// to the others, for the time between two of their questions. Nobody who waits in it asks for that slot
// meanwhile. Hold without [WaitUpTo] waits in no queue, and leaves nothing to others.
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
	var set settings
	if err := set.apply(opts); err != nil {
		return nil, none, err
	}
	if set.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, set.patience)
		defer cancel()
	}
	w, _ := queues.join(ctx, l, key, n, set.most)
	if w == nil {
		return nil, none, ErrFull
	}
	s, r, err := w.acquire(ctx, ctx, n, set)
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
func (h *hold) wait(ctx context.Context) (*Slot, ratelimit.Result, error) {
	if !queues.some.Load() { // nobody is overtaken
		h.waited = true
		if s, r, err := h.acquire(ctx); err != nil || r.Allowed || r.RetryAfter == ratelimit.Never {
			return s, r, err
		}
	}
	until, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	w, denial := queues.join(until, h.limiter, h.key, h.n, h.most)
	if w == nil {
		return h.refuse(ctx, denial)
	}
	w.deferred, w.impatient = h.deferred, true
	s, r, err := w.acquire(ctx, until, h.n, h.settings)
	late := until.Err() != nil && errors.Is(err, until.Err()) || errors.Is(err, ratelimit.ErrWouldExceedDeadline)
	switch {
	case ctx.Err() != nil && s == nil:
		return nil, ratelimit.Result{}, ctx.Err()
	case late, errors.Is(err, ratelimit.ErrNever):
		return h.refuse(ctx, queues.last(w))
	}
	return s, r, err
}

// refuse returns a denial for one who is not to overtake those that wait: the last one of their queue, or by a
// look if there was none.
func (h *hold) refuse(ctx context.Context, denial *ratelimit.Result) (*Slot, ratelimit.Result, error) {
	if denial != nil {
		return nil, *denial, nil
	}
	r, err := h.limiter.Peek(ctx, h.key)
	if r.Allowed {
		r.Allowed, r.Remaining, r.RetryAfter, r.Delay = false, 0, leastPause, 0
		r.ResetAfter = max(r.ResetAfter, leastPause)
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
