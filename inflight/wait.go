package inflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// ErrFull is returned if the maximum number of callers already waits for slots of a key: see
// [MaxWaiting].
var ErrFull = errors.New("inflight: too many callers are waiting for slots of the key")

var errMaxWaiting = fmt.Errorf("%w: MaxWaiting has no effect, because Hold does not wait without WaitUpTo", ratelimit.ErrInvalidOption)

const (
	defaultMost = 1024
	leastPause  = 5 * time.Millisecond
	leastPoll   = 50 * time.Millisecond // the longest pause if slots are held for up to four times as long
	mostPause   = time.Second
)

// MaxWaiting limits how many callers wait for slots of a key and limiter in this process, 1 to
// 2^31-1. The default is 1,024. Beyond that, a caller only gets a slot if there is room for those
// that wait as well, because they may only wait for the store's answer. It is for [Wait], and for
// [Hold] together with [WaitUpTo]. Otherwise it is an error.
func MaxWaiting(n int) Option {
	return options.Checked(options.Within("MaxWaiting", n, 1, math.MaxInt32), func(s *settings) { s.most = n })
}

// WaitUpTo makes [Hold] wait for up to d, above 0, in the queue of [Wait]. Hold denies when d is
// over. It denies immediately if what is missing comes later than that, or if too many callers
// already wait ([MaxWaiting]). An error of the limiter ends the wait. A call to the store that is
// in progress when d is over is waited for. In [Wait], WaitUpTo is a timeout of the context.
func WaitUpTo(d time.Duration) Option {
	return options.Checked(options.Positive("WaitUpTo", d), func(s *settings) { s.patience = d })
}

// Wait is like [Hold], but blocks until there is a slot and room for everything else that l asks
// for, and then for the Delay, which the Result still has: do not sleep for it again. It never returns
// a denial.
//
// In one process, the waiters for a key of l form a queue and ask in order of arrival. One waiter
// asks for each slot that a Release in this process or the last answer has reported as free. To find
// slots released by other processes, the first waiter asks again after 5 ms. The pause then doubles
// each time, up to a quarter of the time for which slots are held, within 50 ms to 1 s. A queue
// that gets nothing for more than 3 s asks less often, down to once per second.
//
// There is no order between processes, but each gets its share. From time to time, a process leaves
// a slot to the others: between two of their requests, its own waiters do not ask for that slot.
// Hold without [WaitUpTo] does not queue, and leaves nothing to others.
//
// Wait returns [ErrFull] if too many callers already wait ([MaxWaiting]), ctx's error if ctx ends,
// and [ratelimit.ErrNever] if n is never admitted. It returns [ratelimit.ErrWouldExceedDeadline]
// immediately if a rate has no room before ctx's deadline. [store.ErrOverloaded] and
// [store.ErrUnavailable] do not end the wait.
func Wait(ctx context.Context, l ratelimit.Limiter, key string, n int, opts ...Option) (*Slot, ratelimit.Result, error) {
	none := ratelimit.Result{}
	if err := checkLimiter(l); err != nil {
		return nil, none, err
	}
	if err := store.CheckCall(ctx, key, n); err != nil {
		return nil, none, err
	}
	var set settings
	if err := options.Apply(&set, opts); err != nil {
		return nil, none, err
	}
	if set.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, set.patience)
		defer cancel()
	}
	var s *Slot
	var r ratelimit.Result
	var err error
	if w, denial := queues.join(ctx, l, key, n, set.most); w != nil {
		s, r, err = w.acquire(ctx, ctx, n, set)
	} else {
		h := new(hold)
		h.begin(ctx, l, key, n)
		h.settings = set
		if s, r, err = h.withoutPlace(ctx, denial); s == nil {
			return nil, none, cmp.Or(ctx.Err(), ErrFull)
		}
	}
	if err != nil || r.Delay <= 0 {
		return s, r, err
	}
	if err := sleep(ctx, r.Delay); err != nil {
		_ = s.refund(ctx)
		s.Release()
		return nil, none, err
	}
	return s, r, nil
}

// wait waits in the queue for a slot, up to the time of WaitUpTo.
func (h *hold) wait(ctx context.Context) (*Slot, ratelimit.Result, error) {
	if !queues.waitedFor(h.limiter, h.key) { // nobody is overtaken
		h.waited = true
		if s, r, err := h.acquire(ctx); err != nil || r.Allowed || r.RetryAfter == ratelimit.Never {
			return s, r, err
		}
	}
	until, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	w, denial := queues.join(until, h.limiter, h.key, h.n, h.most)
	if w == nil {
		return h.withoutPlace(ctx, denial)
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

// withoutPlace is for a caller that finds no place in the queue, whose last denial is denial. If nobody was denied, those in
// it may only wait for an answer, and if there is room for them as well, the caller overtakes nobody.
func (h *hold) withoutPlace(ctx context.Context, denial *ratelimit.Result) (*Slot, ratelimit.Result, error) {
	if denial != nil {
		return nil, *denial, nil
	}
	r, err := h.limiter.Peek(ctx, h.key)
	if err == nil && r.Allowed && h.fits(&r) {
		return h.acquire(ctx)
	}
	return nil, refusal(r), err
}

// fits reports whether each limit that r, of a Peek, has counted has room for h and for as many others as may wait.
func (h *hold) fits(r *ratelimit.Result) bool {
	most := cmp.Or(h.most, defaultMost)
	room := func(l ratelimit.Limiter, r *ratelimit.Result) bool {
		n := see.Events(l, h.n) // a slot, or a call, is one
		return r.Limit == 0 || (r.Remaining-n)/most >= n
	}
	parts := r.Parts()
	if parts == nil {
		return room(h.limiter, r)
	}
	for i := range parts {
		if !room(parts[i].Limiter, &parts[i].Result) {
			return false
		}
	}
	return true
}

// refuse returns a denial for a caller that must not overtake waiters: the last denial in their
// queue or, if there is none, one made from a Peek.
func (h *hold) refuse(ctx context.Context, denial *ratelimit.Result) (*Slot, ratelimit.Result, error) {
	if denial != nil {
		return nil, *denial, nil
	}
	r, err := h.limiter.Peek(ctx, h.key)
	return nil, refusal(r), err
}

// refusal returns r, of a Peek, as a denial.
func refusal(r ratelimit.Result) ratelimit.Result {
	if r.Allowed {
		r.Allowed, r.Remaining, r.RetryAfter, r.Delay = false, 0, leastPause, 0
		r.ResetAfter = max(r.ResetAfter, leastPause)
	}
	return r
}

// sleep sleeps for d, unless that exceeds the deadline of ctx.
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
