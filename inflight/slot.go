package inflight

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// ErrLost is the cause of the end of a [Slot.Context]: the slot ended before its Release, since
// it could not be renewed in time.
var ErrLost = errors.New("inflight: the slot is lost")

// Slot is a slot that is held, or several, of an All that has several limits of slots. Give it
// back by Release.
type Slot struct{ held *held }

// held is a Slot without the Slot: what its timer refers to, so that a Slot that nothing else can
// reach is found.
type held struct {
	limiter  ratelimit.Limiter // as it was asked
	ctx      context.Context   // has its values, and no end
	key      string
	core     *ratelimit.Custom   // limiter, if that is nothing else and has slots
	changes  bool                // what is inside of limiter may change while it is asked
	cores    []*ratelimit.Custom // what it has of slots when it is asked; nil unless it changes
	asked    int                 // events
	events   int                 // of those that are not settled
	charged  ratelimit.Result    // by them
	local    bool                // some of it by a local limiter, whose slots are to be given back
	mirrored bool                // or perhaps a local limiter is charged with some of it besides
	deferred bool                // nothing looks whether it is forgotten
	own      Slot                // then it is this one
	longest  time.Time           // when it ends; zero for no such time
	onEnd    func(Ending)
	counters *Counters // that count it; nil if none do
	most     int       // MaxWaiting; 0 unless set
	patience time.Duration
	waited   bool // or would have, if there was no slot
	full     bool // one of its slots was the last one that was free
	yields   bool // its slots to other processes, once they are given back
	since    time.Time

	mu        sync.Mutex
	places    []place  // who has set busy may change them, under mu
	first     [1]place // of places, in one allocation
	busy      bool     // with renewals, or with giving back
	state     state
	late      bool          // it was lost, or over before its Release
	pause     time.Duration // before it is given back again; 0 unless that has failed
	forgotten bool          // the next turn ends it
	work      context.Context
	cancel    context.CancelCauseFunc
	timer     *time.Timer // of the next turn; nil if there is none
	cleanup   runtime.Cleanup
}

type state uint8

const (
	holding state = iota
	lost
	over
)

// place is one slot of one limiter.
type place struct {
	limiter ratelimit.Limiter // to which it is given back
	answer  ratelimit.Result  // of limiter
	core    *ratelimit.Custom // by which it is renewed
	toTake  bool              // it was let through in an outage, with others of an All
	life    time.Duration
	until   time.Time // when it ends at the earliest
}

// Ending says how a Slot has ended, for [OnEnd].
type Ending struct {
	Key    string
	Held   time.Duration
	Reason Reason
}

// Reason is why a Slot has ended.
type Reason uint8

// The reasons.
const (
	Released  Reason = iota // by Release
	Lost                    // it could not be renewed; Release comes afterwards
	TooLong                 // [Longest] was over
	Forgotten               // nothing could reach the Slot any more
)

// Option sets what is optional about a Slot.
type Option func(*held) error

// Longest ends the slot after d, as a lost one, whatever the work does.
func Longest(d time.Duration) Option {
	return func(h *held) error {
		if d <= 0 {
			return fmt.Errorf("%w: Longest(%v)", ratelimit.ErrInvalidOption, d)
		}
		h.longest = time.Now().Add(d)
		return nil
	}
}

// OnEnd tells f once how the slot has ended, and of a loss before. f must return soon.
func OnEnd(f func(Ending)) Option {
	return func(h *held) error {
		if f == nil {
			return fmt.Errorf("%w: OnEnd(nil)", ratelimit.ErrInvalidOption)
		}
		h.onEnd = f
		return nil
	}
}

// Hold takes a slot of key, and holds it until Release. l is a limiter of [New], or an All that
// has some, also inside a fallback. Of an All it decides on all limits at once: n events of
// those that count rates, and a slot of each that counts slots, or nothing.
//
// It never waits, unless it is told [WaitUpTo].
//
// The Slot is nil if the Result is a denial or there is an error. Then its Settle and Refund are an
// [ratelimit.ErrInvalidOption], and its other methods do nothing.
// If ctx ends while the store is asked, the error is that of ctx, and what was taken and charged all
// the same is given back. Afterwards the end of ctx changes nothing.
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
		return h.wait(ctx, opts)
	}
	return h.hold(ctx)
}

// begin makes h a question for n events of l.
func (h *held) begin(ctx context.Context, l ratelimit.Limiter, key string, n int) {
	*h = held{} // which costs less than one with what follows
	h.limiter, h.ctx, h.key = l, context.WithoutCancel(ctx), key
	h.asked, h.events = n, n
}

// check refuses a limiter without slots.
func (h *held) check() error {
	err := checkLimiter(h.limiter)
	if err == nil {
		h.core, _ = h.limiter.(*ratelimit.Custom)
	}
	return err
}

// recordOf returns that of a spent slot, which was of the same limiter, or a new one. A slot may still be on
// its way back.
func recordOf(spent *sync.Pool) *held {
	if spent == nil {
		return new(held)
	}
	s, ok := spent.Get().(*Slot)
	if !ok || !s.held.gone() {
		return new(held)
	}
	return s.held
}

// gone reports whether h is given back, and nothing will use it any more.
func (h *held) gone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state == over && !h.busy && len(h.places) == 0 && h.timer == nil && h.work == nil
}

// hold takes the slot, and plans what follows.
func (h *held) hold(ctx context.Context) (*Slot, ratelimit.Result, error) {
	h.changes = h.core == nil && !see.Fixed(h.limiter)
	if h.told() || !h.atHand() {
		h.since = time.Now()
	}
	r, err := h.take(ctx, h.asked)
	if err != nil || !r.Allowed {
		return nil, r, err
	}
	lasts := h.longest.IsZero() && h.inMemory() // until its Release
	if lasts && h.deferred {
		h.own.held = h
		return &h.own, r, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !lasts {
		h.plan()
	}
	if h.deferred {
		h.own.held = h
		return &h.own, r, nil
	}
	s := &Slot{h}
	h.cleanup = runtime.AddCleanup(s, (*held).forget, h)
	return s, r, nil
}

func (h *held) apply(opts []Option) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(h); err != nil {
			return err
		}
	}
	return nil
}

// Check returns the error that [Hold] would return because of opts, and whether it would wait ([WaitUpTo]).
func Check(opts ...Option) (waits bool, err error) {
	h := new(held)
	err = h.applyToHold(opts)
	return h.patience > 0, err
}

func (h *held) applyToHold(opts []Option) error {
	if err := h.apply(opts); err != nil || h.most == 0 || h.patience > 0 {
		return err
	}
	return errMaxWaiting
}

// take asks for the slot. The question goes on if ctx ends, since its answer must be known. It is
// asked again, once, if the limiter has changed meanwhile: nobody could tell whose slots were taken.
func (h *held) take(ctx context.Context, n int) (r ratelimit.Result, err error) {
	if h.changes {
		h.cores = cores(h.limiter)
	}
	if ctx.Done() == nil || h.atHand() {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		if r, err = h.limiter.AllowN(h.ctx, h.key, n); err == nil && r.Allowed && !h.placed(r) {
			return h.take(ctx, n)
		}
		return r, err
	}
	answered := h.ask(n)
	select {
	case a := <-answered:
		if a.panic != nil {
			panic(a.panic)
		}
		if a.err == nil && a.r.Allowed && !h.placed(a.r) {
			return h.take(ctx, n)
		}
		return a.r, a.err
	case <-ctx.Done():
		go func() {
			if a := <-answered; a.err == nil && a.panic == nil && a.r.Allowed && h.placed(a.r) {
				_ = (&Slot{h}).Refund(h.ctx) // nobody else can
				h.end(Released)
			}
		}()
		return r, ctx.Err()
	}
}

// answer is that of a limiter, or its panic.
type answer struct {
	r     ratelimit.Result
	err   error
	panic any
}

// ask asks for the slot on a goroutine of its own.
func (h *held) ask(n int) <-chan answer {
	answered := make(chan answer, 1)
	go func() {
		a := answer{panic: errors.New("inflight: the limiter has ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				a.panic = p
			}
			answered <- a
		}()
		a.r, a.err = h.limiter.AllowN(h.ctx, h.key, n)
		a.panic = nil
	}()
	return answered
}

// atHand is whether the slots are in this process's memory, where no call waits.
func (h *held) atHand() bool {
	return h.core != nil && h.core.Limit().Period == forever
}

// inMemory is whether all slots were taken in this process's memory, where giving back takes no time.
func (h *held) inMemory() bool {
	for i := range h.places {
		if h.places[i].life != forever || h.places[i].toTake {
			return false
		}
	}
	return true
}

// placed notes the slots of r. Those of an All are its parts; in an outage nothing is known of
// parts, and each slot is still to be taken. If the limiter has changed it gives back r.
func (h *held) placed(r ratelimit.Result) bool {
	h.charged = r
	h.placeAll(r)
	if h.changes && !slices.Equal(h.cores, cores(h.limiter)) {
		h.changes, h.places, h.mirrored, h.full = false, nil, false, false // once: it may change at each look
		_ = h.limiter.Refund(h.ctx, h.key, r, h.asked)
		return false
	}
	switch {
	case h.counters == nil:
	case len(h.places) == 0:
		h.counters = nil
	default:
		h.counters.held.Add(1)
	}
	return true
}

func (h *held) placeAll(r ratelimit.Result) {
	if h.core != nil {
		h.place(h.core, h.core, r, false)
		return
	}
	limits := several(h.limiter)
	if limits == nil {
		h.placeOf(h.limiter, r, false)
		return
	}
	all := inner(h.limiter, r)
	h.mirrored, h.local = true, all.Source() == ratelimit.SourceLocal
	if replaced(h.limiter, r) {
		for _, l := range limits {
			h.placeOf(l, ratelimit.Result{}, true)
		}
		return
	}
	for _, p := range all.Parts() {
		h.placeOf(p.Limiter, p.Result, false)
	}
}

// placeOf notes the slot of l, which has answered r, if l has slots and has charged one.
func (h *held) placeOf(l ratelimit.Limiter, r ratelimit.Result, outage bool) {
	if core, ok := slotsIn(l); ok {
		h.place(l, core, r, outage)
	}
}

// place notes the slot of l, whose slots are core's.
func (h *held) place(l ratelimit.Limiter, core *ratelimit.Custom, r ratelimit.Result, outage bool) {
	p := place{limiter: l, answer: r, core: core, life: core.Limit().Period, toTake: outage}
	p.until = h.since.Add(p.life)
	if p.charged().Charged() > 0 || p.standsIn() {
		h.full = h.full || p.charged().Remaining == 0
		if h.places == nil {
			h.places = h.first[:0]
		}
		h.places = append(h.places, p)
	}
}

// inner is what the limiter inside of l, of which a shadow may be a part, has decided where l
// has answered r.
func inner(l ratelimit.Limiter, r ratelimit.Result) ratelimit.Result {
	for {
		if _, bare := l.(*ratelimit.Custom); bare { // which is quick to see
			return r
		}
		r = tried(l, r)
		w, ok := l.(interface{ Unwrap() ratelimit.Limiter })
		if !ok {
			return r
		}
		l = w.Unwrap()
	}
}

// tried is what a shadow l has decided where it has answered r. It is r if l is none.
func tried(l ratelimit.Limiter, r ratelimit.Result) ratelimit.Result {
	if w, ok := l.(interface {
		Inner(ratelimit.Result) ratelimit.Result
	}); ok {
		return w.Inner(r)
	}
	return r
}

// several are the limits of an All, also inside a wrapper, and nil of a single limit.
func several(l ratelimit.Limiter) []ratelimit.Limiter {
	for {
		switch w := l.(type) {
		case *ratelimit.Custom: // which is quick to see
			return nil
		case interface{ Unwrap() []ratelimit.Limiter }:
			return w.Unwrap()
		case interface{ Unwrap() ratelimit.Limiter }:
			l = w.Unwrap()
		default:
			return nil
		}
	}
}

// slotsIn returns the limiter of slots that l is, or is around.
func slotsIn(l ratelimit.Limiter) (*ratelimit.Custom, bool) {
	found, ok := see.First[*ratelimit.Custom](l)
	if !ok || !see.Held(found) {
		return nil, false
	}
	return found.(*ratelimit.Custom), true
}

// Has reports whether l counts slots, so that [Hold] can hold one: it is a limiter of [New], or
// has one inside.
func Has(l ratelimit.Limiter) bool { return see.Held(l) }

// checkLimiter refuses what has no slots, or has them where they cannot be told apart.
func checkLimiter(l ratelimit.Limiter) error {
	if !see.Held(l) {
		return fmt.Errorf("%w: a %T has no slots: they are those of inflight.New", ratelimit.ErrInvalidOption, l)
	}
	for _, part := range several(l) {
		if several(part) != nil && see.Held(part) {
			return fmt.Errorf("%w: an All around a %T around an All that has slots", ratelimit.ErrInvalidOption, part)
		}
	}
	return nil
}

// plan plans the next turn, of a slot that may end by itself.
func (h *held) plan() {
	now := time.Now()
	due := h.longest
	first := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	for i := range h.places {
		p := &h.places[i]
		switch {
		case h.pause > 0 && h.pause < p.life/3:
			first(now.Add(h.pause))
			continue
		case p.life == forever:
			if p.toTake {
				first(now.Add(mostPause))
			}
			continue
		}
		// Renewals of a short time go together: a store carries them in one round trip.
		first(now.Add(p.life / 3).Truncate(p.life / 30))
		if h.state == holding && p.counted() { // or it is found to be lost
			first(p.until)
		}
	}
	switch {
	case due.IsZero(): // all are in memory now
	case h.timer == nil:
		h.timer = time.AfterFunc(due.Sub(now), h.turn)
	default:
		h.timer.Reset(due.Sub(now))
	}
}

// Release gives back the slot, and of an All the slots alone, not the events that were charged
// with them. It returns at once: a slot in memory is free then, and one on Redis a trip later.
// It goes before calls that want a slot. What cannot be sent is sent again after 5 ms, and less
// often in an outage. Further calls do nothing.
func (s *Slot) Release() {
	if s != nil {
		s.held.end(Released)
	}
}

// Settle replaces the n events of Hold, an estimate, by the actual cost, 0 or more. It gives back
// what was too much, or charges what was too little, also when ctx has ended. With 0 it is Refund.
// It concerns what is counted beside the slot, before or after Release. See
// [ratelimit.Reservation.Settle] for what that means. [ratelimit.ErrSettled] and
// [ratelimit.ErrInvalidN] change nothing.
func (s *Slot) Settle(ctx context.Context, actual int) error {
	switch {
	case actual == 0:
		return s.Refund(ctx)
	case s != nil && actual < 0:
		return fmt.Errorf("%w: an actual cost of %d", ratelimit.ErrInvalidN, actual)
	}
	h, estimate, err := s.settle()
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	switch {
	case actual > estimate:
		_, err := ratelimit.Charge(ctx, h.limiter, h.key, actual-estimate)
		return err
	case actual < estimate:
		return h.limiter.Refund(ctx, h.key, h.charged, estimate-actual)
	}
	return nil
}

// Refund gives back the events that were charged beside the slot, all of them, also when ctx has
// ended. It is Settle(ctx, 0), for a call that is not to count. The slot stays held.
func (s *Slot) Refund(ctx context.Context) error {
	h, events, err := s.settle()
	if err != nil || several(h.limiter) == nil && h.charged.Parts() == nil { // of slots alone, then and now
		return err
	}
	return h.limiter.Refund(see.Only(context.WithoutCancel(ctx), see.Rates), h.key, h.charged, events)
}

// settle returns the events that were not settled, and settles them.
func (s *Slot) settle() (h *held, events int, err error) {
	if s == nil {
		return nil, 0, fmt.Errorf("%w: the Slot is nil: the limiter has none, or has denied it", ratelimit.ErrInvalidOption)
	}
	h = s.held
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.events == 0 {
		return nil, 0, ratelimit.ErrSettled
	}
	events, h.events = h.events, 0
	return h, events, nil
}

// Lost reports whether the slot ended before its Release. It asks the clock: after a pause of
// the process it is right before the Context has noticed.
func (s *Slot) Lost() bool {
	if s == nil {
		return false
	}
	h := s.held
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.late || h.state == holding && h.passed(time.Now())
}

// Context returns a context that ends with the Slot: with the cause [ErrLost] if it is lost. It
// has the values of Hold's, and not its end. For a nil Slot it has ended.
func (s *Slot) Context() context.Context {
	if s == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrLost)
		return ctx
	}
	h := s.held
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.work == nil {
		h.work, h.cancel = context.WithCancelCause(h.ctx)
		switch h.state {
		case lost:
			h.cancel(ErrLost)
		case over:
			h.cancel(context.Canceled)
		}
	}
	return h.work
}

// Token is a number that grows from one taking of a key to the next, or stays if the slot before
// was given back within the same µs. A resource that refuses a smaller one than it has seen is safe
// from a process that was stopped and goes on after its slot is lost. It is smaller if the store's
// clock was set back while no slot of the key was held. It is 0 for a nil Slot, or one that was let
// through in an outage. Of several slots it is the first's.
func (s *Slot) Token() int64 {
	if s == nil {
		return 0
	}
	h := s.held
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.places) == 0 {
		return 0
	}
	return h.places[0].core.ChargedAt(h.places[0].charged())
}

// passed is whether a slot may have ended by now. The wall clock counts too: the other one stands
// still while the machine sleeps.
func (h *held) passed(now time.Time) bool {
	if !h.longest.IsZero() && !now.Before(h.longest) {
		return true
	}
	for i := range h.places {
		if p := &h.places[i]; p.life < forever && p.counted() && (!now.Before(p.until) || !now.Round(0).Before(p.until.Round(0))) {
			return true
		}
	}
	return false
}

// forget ends a slot that nothing can reach. It leaves that to the next renewal if there are any: a
// cleanup runs outside of the bubble of a synctest, and cannot touch a timer inside.
func (h *held) forget() {
	h.mu.Lock()
	if h.timer != nil && !h.inMemory() {
		h.forgotten = true
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	h.end(Forgotten)
}

// end ends the slot, once.
func (h *held) end(why Reason) {
	h.mu.Lock()
	if h.state == over {
		h.mu.Unlock()
		return
	}
	h.state, h.late = over, h.late || why == TooLong
	if h.cancel != nil {
		if why == TooLong {
			h.cancel(ErrLost)
		}
		h.cancel(context.Canceled)
	}
	busy := h.busy
	h.busy = true
	if h.timer != nil && why != Forgotten { // see forget
		h.timer.Stop()
	}
	h.cleanup.Stop()
	h.yield()
	h.mu.Unlock()
	h.tell(why)
	switch {
	case busy: // who renews will give back
	case h.inMemory():
		h.giveBack()
	default:
		go h.giveBack()
	}
}

// yield decides whether other processes are to have the slots of one who has waited.
func (h *held) yield() {
	if !h.waited || h.inMemory() {
		return
	}
	var few [4]*ratelimit.Custom
	cores := few[:0]
	for i := range h.places {
		if p := &h.places[i]; p.life < forever && p.counted() {
			cores = append(cores, p.core)
		}
	}
	h.yields = len(cores) > 0 && lines.yield(h.key, cores, time.Since(h.since), h.full)
}

// lose tells of a loss, once. The slot goes on being renewed, so that what still runs is counted
// as far as it can be.
func (h *held) lose() {
	h.mu.Lock()
	first := h.state == holding
	if first {
		h.state, h.late = lost, true
		if h.cancel != nil {
			h.cancel(ErrLost)
		}
	}
	h.mu.Unlock()
	if first {
		h.tell(Lost)
	}
}

// told is whether anybody is told of the end.
func (h *held) told() bool { return h.onEnd != nil || h.counters != nil }

// tell tells of a loss, or of the end.
func (h *held) tell(why Reason) {
	if !h.told() {
		return
	}
	e := Ending{h.key, time.Since(h.since), why}
	if h.counters != nil {
		h.counters.end(e)
	}
	if h.onEnd != nil {
		h.onEnd(e)
	}
}

// giveBack gives back the places, for who has set busy. What could not be sent is
// tried again, until it ends by itself.
func (h *held) giveBack() {
	if h.mirrored {
		h.giveBackMirrored()
	}
	var left []place
	for _, p := range h.places {
		if p.charged().Charged() == 0 { // let through in an outage
			h.giveBackLocal()
			lines.wake(h.key, p.core, h.yields)
			continue
		}
		err := p.limiter.Refund(h.ctx, h.key, p.answer, h.asked) // fewer would not be the whole call
		gone := err == nil || errors.Is(err, ratelimit.ErrInvalidN) || p.life < forever && !time.Now().Before(p.until)
		if !gone { // also if a function of the limiter has failed
			left = append(left, p)
		}
		if err == nil || h.yields {
			lines.wake(h.key, p.core, h.yields)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.longest, h.places, h.busy, h.yields = time.Time{}, left, false, false
	if len(left) > 0 {
		h.pause = min(max(leastPause, 2*h.pause), time.Minute)
		h.plan()
	}
}

// giveBackMirrored gives back what a local limiter was charged with besides, of an All: its slots.
func (h *held) giveBackMirrored() {
	r, l := h.charged, h.limiter
	for h.mirrored = false; ; {
		r = tried(l, r)
		if under, _, marked := r.Unmark(l); marked {
			if see.Mirroring(l) {
				_ = l.Refund(see.Only(h.ctx, see.Mirrored), h.key, r, h.asked)
			}
			r = under
		}
		w, ok := l.(interface{ Unwrap() ratelimit.Limiter })
		if !ok {
			return
		}
		l = w.Unwrap()
	}
}

// giveBackLocal gives back what a local limiter has let through in an outage, of an All: its slots
// and not its rates.
func (h *held) giveBackLocal() {
	if !h.local {
		return
	}
	h.local = false
	_ = h.limiter.Refund(see.Only(h.ctx, see.Slots), h.key, h.charged, h.asked)
}

// turn renews the places, ends what is held for too long, or tries again to give back.
func (h *held) turn() {
	h.mu.Lock()
	forgotten := h.forgotten && h.state != over
	busy, ended, unlost := h.busy, h.state == over, h.state == holding
	h.busy = !forgotten
	h.mu.Unlock()
	switch {
	case forgotten:
		h.end(Forgotten)
		return
	case busy:
		return // giving back, which plans what is left
	case ended:
		h.giveBack()
		return
	}
	gone, shortest := false, forever
	for i := range h.places {
		shortest = min(shortest, h.places[i].life)
	}
	for i := range h.places { // which leaves time to renew the shortest again
		if p := &h.places[i]; p.due(time.Now()) {
			gone = !h.renew(p, shortest/4, unlost) || gone
		}
	}
	h.mu.Lock()
	ended = h.state == over
	now := time.Now()
	gone = gone || h.passed(now)
	tooLong := !h.longest.IsZero() && !now.Before(h.longest)
	h.busy = ended
	if !ended && !tooLong {
		h.plan()
	}
	h.mu.Unlock()
	switch {
	case ended:
		h.giveBack()
	case tooLong:
		h.end(TooLong)
	case gone:
		h.lose()
	}
}

// due is whether p is to be renewed: at a third of its life, or in each turn if the store does not count it.
func (p *place) due(now time.Time) bool {
	return !p.counted() || p.until.Sub(now) <= p.life*7/10
}

// renew renews a place within most, and reports whether it is still held, or may be. If it is not lost
// before, a renewal ends when it is.
func (h *held) renew(p *place, most time.Duration, unlost bool) bool {
	began := time.Now()
	end := began.Add(most)
	if unlost && p.counted() && p.until.Before(end) {
		end = p.until
	}
	ctx, cancel := context.WithDeadline(h.ctx, end)
	defer cancel()
	var r ratelimit.Result
	var err error
	switch {
	case p.counted():
		r, err = p.core.Renew(ctx, h.key, p.charged())
	case p.standsIn():
		r, err = p.core.Allow(ctx, h.key)
	} // or no slot was needed
	if err != nil { // it may be held until its end has come
		return true
	}
	if !r.Allowed {
		return !p.counted()
	}
	switch {
	case p.toTake:
		h.giveBackLocal()
	case standIn(p.charged()):
		_ = p.limiter.Refund(h.ctx, h.key, p.answer, h.asked)
	}
	h.mu.Lock()
	if p.standsIn() || p.core.ChargedAt(r) != p.core.ChargedAt(p.charged()) { // another slot
		p.answer = r
	}
	p.toTake, p.until = false, began.Add(p.life)
	h.mu.Unlock()
	return true
}

// charged is what core has answered.
func (p *place) charged() ratelimit.Result { return inner(p.limiter, p.answer) }

// counted is whether the store counts p.
func (p *place) counted() bool {
	charged := p.charged()
	return charged.Charged() > 0 && charged.Source() == ratelimit.SourceStore
}

// standsIn is whether p was let through without the store, in an outage.
func (p *place) standsIn() bool { return p.toTake || standIn(p.charged()) }

// replaced reports whether a limiter around the limits in l has answered r in their place, in an outage,
// and not one beside the slots for itself.
func replaced(l ratelimit.Limiter, r ratelimit.Result) bool {
	for {
		w, ok := l.(interface{ Unwrap() ratelimit.Limiter })
		if !ok {
			return false
		}
		r = tried(l, r)
		under, _, marked := r.Unmark(l)
		if marked && standIn(r) && !standIn(under) {
			return true
		}
		l, r = w.Unwrap(), under
	}
}

func standIn(r ratelimit.Result) bool {
	s := r.Source()
	return s == ratelimit.SourceFailOpen || s == ratelimit.SourceLocal
}
