package inflight

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Option sets what is optional about a Slot.
type Option func(*settings) error

// settings are what Options set.
type settings struct {
	longest  time.Duration // 0 if it has no end
	onEnd    func(Ending)
	counters *Counters // that count it; nil if none do
	most     int       // MaxWaiting; 0 unless set
	patience time.Duration
}

// Longest ends the slot after d, as a lost one, whatever the work does.
func Longest(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return fmt.Errorf("%w: Longest(%v)", ratelimit.ErrInvalidOption, d)
		}
		s.longest = d
		return nil
	}
}

// OnEnd tells f once how the slot has ended, and of a loss before. f must return soon.
func OnEnd(f func(Ending)) Option {
	return func(s *settings) error {
		if f == nil {
			return fmt.Errorf("%w: OnEnd(nil)", ratelimit.ErrInvalidOption)
		}
		s.onEnd = f
		return nil
	}
}

func (s *settings) apply(opts []Option) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(s); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) applyToHold(opts []Option) error {
	if err := s.apply(opts); err != nil || s.most == 0 || s.patience > 0 {
		return err
	}
	return errMaxWaiting
}

// Check returns the error that [Hold] would return because of opts, and whether it would wait ([WaitUpTo]).
func Check(opts ...Option) (waits bool, err error) {
	s := new(settings)
	err = s.applyToHold(opts)
	return s.patience > 0, err
}

// hold is a Slot without the Slot: what its timer refers to, so that a Slot that nothing else can
// reach is found.
type hold struct {
	question
	settings
	waited   bool      // or would have, if there was no slot
	deferred bool      // nothing looks whether it is forgotten
	own      Slot      // then it is this one
	since    time.Time // when it was asked for; zero if nobody wants to know

	mu        sync.Mutex
	heldSlots      // who has set busy may change them, under mu
	events    int  // that were charged with them, and are not settled
	busy      bool // with renewals, or with giving back
	late      bool // it was lost, or over before its Release
	ended     bool
	forgotten bool          // the next tick ends it
	yields    bool          // its slots to other processes, once they are given back
	pause     time.Duration // before it is given back again; 0 unless that has failed
	work      context.Context
	cancel    context.CancelCauseFunc
	timer     *time.Timer // of the next tick; nil if there is none
	cleanup   runtime.Cleanup
}

// Hold takes a slot of key, and holds it until Release. l is a limiter of [New], or an All that
// has some, also inside a fallback. Of an All it decides on all limits at once: n events of
// those that count rates, and a slot of each that counts slots, or nothing.
//
// It never waits, unless it is told [WaitUpTo].
//
// The Slot is nil if the Result is a denial or there is an error. Then its Settle and Refund are an
// [ratelimit.ErrInvalidOption], and its other methods do nothing.
// If ctx has ended, nothing is asked. If it ends while the store is asked, the error is that of ctx, and what
// was taken and charged all the same is given back. Afterwards the end of ctx changes nothing.
func Hold(ctx context.Context, l ratelimit.Limiter, key string, n int, opts ...Option) (*Slot, ratelimit.Result, error) {
	l, spent := see.Deferring(l)
	h := recordOf(spent)
	core := h.core
	h.begin(ctx, l, key, n)
	h.core, h.deferred = core, spent != nil
	err := h.applyToHold(opts)
	if err == nil && core == nil {
		err = h.check()
	}
	if err != nil {
		return nil, ratelimit.Result{}, err
	}
	if h.patience > 0 {
		return h.wait(ctx)
	}
	return h.acquire(ctx)
}

// begin makes h a question for n events of l.
func (h *hold) begin(ctx context.Context, l ratelimit.Limiter, key string, n int) {
	*h = hold{} // which costs less than one with what follows
	h.limiter, h.ctx, h.key = l, context.WithoutCancel(ctx), key
	h.n, h.events = n, n
}

// recordOf returns that of a spent slot, which was of the same limiter, or a new one. A slot may still be on
// its way back.
func recordOf(spent *sync.Pool) *hold {
	if spent == nil {
		return new(hold)
	}
	s, ok := spent.Get().(*Slot)
	if !ok || !s.hold.gone() {
		return new(hold)
	}
	return s.hold
}

// gone reports whether h is given back, and nothing will use it any more.
func (h *hold) gone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended && !h.busy && len(h.taken) == 0 && h.timer == nil && h.work == nil
}

// acquire takes the slot, and plans what follows.
func (h *hold) acquire(ctx context.Context) (*Slot, ratelimit.Result, error) {
	if h.longest > 0 || h.told() || !h.atHand() {
		h.since = time.Now()
	}
	r, err := h.take(ctx, h.core == nil && !see.Fixed(h.limiter))
	if err != nil || !r.Allowed {
		return nil, r, err
	}
	if h.longest > 0 || !h.inMemory() { // or it lasts until its Release
		h.mu.Lock()
		h.plan()
		h.mu.Unlock()
	}
	if h.deferred {
		h.own.hold = h
		return &h.own, r, nil
	}
	s := &Slot{h}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanup = runtime.AddCleanup(s, (*hold).forget, h)
	return s, r, nil
}

// take asks for the slots. The question goes on if ctx ends, since its answer must be known. If the limiter
// changes, it is asked again, once, when it has changed meanwhile: nobody could tell whose slots were taken.
func (h *hold) take(ctx context.Context, changes bool) (r ratelimit.Result, err error) {
	h.before = nil
	if changes {
		h.before = cores(h.limiter)
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if ctx.Done() == nil || h.atHand() {
		r, err = h.limiter.AllowN(h.ctx, h.key, h.n)
	} else {
		answered := h.ask()
		select {
		case a := <-answered:
			if a.panic != nil {
				panic(a.panic)
			}
			r, err = a.r, a.err
		case <-ctx.Done():
			go func() {
				if a := <-answered; a.err == nil && a.panic == nil && a.r.Allowed && h.noted(a.r) {
					_ = (&Slot{h}).Refund(h.ctx) // nobody else can
					h.end(Released)
				}
			}()
			return r, ctx.Err()
		}
	}
	if err == nil && r.Allowed && !h.noted(r) {
		return h.take(ctx, false)
	}
	return r, err
}

// noted notes the slots of r. If the limiter has changed it gives back r.
func (h *hold) noted(r ratelimit.Result) bool {
	h.note(&h.question, r, h.since)
	if h.before != nil && !slices.Equal(h.before, cores(h.limiter)) {
		h.heldSlots = heldSlots{}
		_ = h.limiter.Refund(h.ctx, h.key, r, h.n)
		return false
	}
	switch {
	case h.counters == nil:
	case len(h.taken) == 0:
		h.counters = nil
	default:
		h.counters.held.Add(1)
	}
	return true
}
