package inflight

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Option configures a Slot.
type Option func(*settings) error

// settings are set by Options.
type settings struct {
	longest  time.Duration // 0 if there is no maximum
	onEnd    func(Ending)
	counters *Counters // nil if the Slot is not counted
	most     int       // MaxWaiting; 0 unless set
	patience time.Duration
}

// Longest ends the slot after d, above 0, as if it were lost, even if the work continues.
func Longest(d time.Duration) Option {
	return options.Checked(options.Positive("Longest", d), func(s *settings) { s.longest = d })
}

// OnEnd calls f when the slot ends. If the slot is lost before that, f is called at that time too. f
// must return quickly. A slot in memory that has ended is free for what f begins. A panic of f is one
// of Release, if that ends the slot, and otherwise it is dropped.
func OnEnd(f func(Ending)) Option {
	return options.Checked(options.Given("OnEnd", f != nil), func(s *settings) { s.onEnd = f })
}

func (s *settings) applyToHold(opts []Option) error {
	if err := options.Apply(s, opts); err != nil || s.most == 0 || s.patience > 0 {
		return err
	}
	return errMaxWaiting
}

// Check returns the error that [Hold] would return for opts, and whether Hold would wait
// ([WaitUpTo]).
func Check(opts ...Option) (waits bool, err error) {
	s := new(settings)
	err = s.applyToHold(opts)
	return s.patience > 0, err
}

// hold is everything of a Slot that its timer refers to. It does not refer to the Slot, so that a
// Slot that nothing else refers to can be found.
type hold struct {
	question
	settings
	waited   bool      // whether it waited, or would have without a free slot
	deferred bool      // whether the Release is deferred, so that no cleanup is needed
	slot     Slot      // the Slot to return if deferred
	since    time.Time // when it was requested; zero if nothing needs to know

	mu         sync.Mutex
	heldSlots       // the goroutine that has set busy may change them, under mu
	events     int  // charged together with the slots, and not settled yet
	busy       bool // a goroutine renews or releases the slots
	lost       bool // the slot was lost, or had expired before its Release
	ended      bool
	unreleased bool          // [Flush] waits for it
	forgotten  bool          // the next tick ends it
	pause      time.Duration // before the next attempt to release; 0 unless one has failed
	work       context.Context
	cancel     context.CancelCauseFunc
	timer      *time.Timer // for the next tick; nil if there is none
	cleanup    runtime.Cleanup
}

// Hold takes a slot of key, and holds it until Release. l is a limiter made by [New], or an All
// that contains some, even inside a fallback. An All decides on all limits together: it charges n
// events to the limits that count rates, and takes a slot of each limit that counts slots, or does
// nothing.
//
// Hold never waits, unless [WaitUpTo] is given.
//
// The Slot is nil if the Result is a denial or if there is an error. The Settle of a nil Slot
// returns [ratelimit.ErrInvalidOption], and its other methods do nothing. If ctx has ended, the
// store is not asked. If ctx ends during the call to the store, Hold returns ctx's error, and
// whatever was taken and charged is released and refunded. After Hold has returned, the end of ctx
// has no effect.
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

// begin initializes h for n events of l.
func (h *hold) begin(ctx context.Context, l ratelimit.Limiter, key string, n int) {
	*h = hold{} // faster than a literal with the values below
	h.limiter, h.ctx, h.key = l, context.WithoutCancel(ctx), key
	h.n, h.events = n, n
}

// recordOf reuses a spent slot, which belonged to the same limiter, or returns a new one. A spent
// slot that is still being released cannot be reused.
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

// gone reports whether h has been released, and nothing will use it again.
func (h *hold) gone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended && !h.busy && len(h.taken) == 0 && h.timer == nil && h.work == nil
}

// acquire takes the slot, and schedules what follows.
func (h *hold) acquire(ctx context.Context) (*Slot, ratelimit.Result, error) {
	if h.longest > 0 || h.notifies() || !h.atHand() {
		h.since = time.Now()
	}
	r, err := h.take(ctx, h.core == nil && !see.Fixed(h.limiter))
	if err != nil || !r.Allowed {
		return nil, r, err
	}
	if h.longest > 0 || !h.inMemory() { // otherwise it lasts until its Release
		h.mu.Lock()
		h.plan()
		h.mu.Unlock()
	}
	if h.deferred {
		h.slot.hold = h
		return &h.slot, r, nil
	}
	s := &Slot{h}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanup = runtime.AddCleanup(s, (*hold).forget, h)
	return s, r, nil
}

// take asks for the slots. If ctx ends, the request continues, because its result must be known. If
// the limiter has changed in the meantime, take asks again, once, because it would be unclear whose
// slots were taken.
func (h *hold) take(ctx context.Context, changes bool) (r ratelimit.Result, err error) {
	h.coresBefore = nil
	if changes {
		h.coresBefore = cores(h.limiter)
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
			unreleased.Add(1) // until it is known whether there is a slot to give back
			go func() {
				defer unreleased.Add(-1)
				if a := <-answered; a.err == nil && a.panic == nil && a.r.Allowed {
					h.abandon(a.r)
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

// abandon releases the slots of r, an admission, and refunds its events, because the caller has left.
func (h *hold) abandon(r ratelimit.Result) {
	_ = unlessItPanics(func() error {
		if !h.noted(r) {
			return nil
		}
		defer h.end(Released) // even if the refund panics
		return (&Slot{h}).refund(h.ctx)
	})
}

// noted records the slots of r. If the limiter has changed, it refunds r.
func (h *hold) noted(r ratelimit.Result) bool {
	h.note(&h.question, r, h.since)
	if h.coresBefore != nil && !slices.Equal(h.coresBefore, cores(h.limiter)) {
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
