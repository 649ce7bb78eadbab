package inflight

import (
	"cmp"
	"container/list"
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
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// mostAsking is how many waiters of a queue ask at the same time. Asking one at a time would leave
// slots unused if the store is far away, and asking all at once would overload it.
const mostAsking = 128

// mostOffers is how many queues are offered a free slot until one of them can use it.
const mostOffers = 4

// queues are the queues of this process.
var queues = allQueues{byID: map[queueID]*queue{}, bySlots: map[slotsID]*share{}}

type allQueues struct {
	anyShares atomic.Bool // whether there are shares; set under mu, but read without it, because each Release reads it

	mu      sync.Mutex // protects all below, the queues and the shares
	byID    map[queueID]*queue
	bySlots map[slotsID]*share
}

type queueID struct {
	limiter ratelimit.Limiter
	key     string
	counted string // from see.Queues, so that a function of the context can give each user a queue
}

// slotsID identifies the slots of a key. If a function makes the key that is counted, they may
// belong to any key, and are found under "".
type slotsID struct {
	core *ratelimit.Custom
	key  string
}

// queue is a queue of waiters for slots of a key.
type queue struct {
	id      queueID
	listed  bool // whether allQueues.byID has it
	waitFor map[slotsID]*list.Element

	idle    list.List // *waiter values that are not asking, in order of arrival
	asking  int       // how many waiters are asking the store
	arrived int       // how many have arrived so far
	free    int       // slots that were free according to the last answer, and that nobody asks for yet
	offers  []offer   // slots that were released here, and that nobody asks for yet

	pause time.Duration // before the next request, if no slot is known to be free; it grows
	rest  time.Duration // the time until that request, after the last denial
	timer *time.Timer   // for that request; nil at first
	armed bool          // whether timer is set

	served time.Time // when the last waiter got a slot; at first, when the first one arrived

	denial   ratelimit.Result // the last denial
	deniedAt time.Time        // zero if there was none
}

// offer is a slot that was released.
type offer struct {
	slots      slotsID
	offersLeft int  // to how many more queues it may be offered
	yielded    bool // whether it was left to other processes before
}

// waiter is one waiter of a queue.
type waiter struct {
	queue     *queue
	arrived   int
	until     time.Time     // when it leaves at the latest; zero if never
	place     *list.Element // among the idle ones; nil while it is asking
	ask       chan struct{} // of capacity 1: tells the waiter to ask
	offer     offer         // the slot that it asks for
	served    bool
	ratesFull bool // whether slots were left, but rates had no room for another call

	deferred  bool // see hold
	impatient bool // whether an error ends the wait
	asked     bool
	denial    ratelimit.Result // of its last request, at deniedAt
	deniedAt  time.Time
	parts     []ratelimit.Part // of the denial by an All, if known
	rest      time.Duration    // after the denial
	exactly   bool             // whether to wait exactly that long, and not less
}

// acquire asks in turn until w has a slot or until has ended, and leaves the queue.
func (w *waiter) acquire(ctx, until context.Context, n int, set settings) (s *Slot, r ratelimit.Result, err error) {
	free, next := 0, true // see leave
	defer func() { queues.leave(w, free, next) }()
	for {
		select {
		case <-w.ask:
		case <-until.Done():
		}
		if err := until.Err(); err != nil {
			return nil, ratelimit.Result{}, err
		}
		if s, r, free, next, err = w.askOnce(ctx, until, n, set); s != nil || err != nil {
			return s, r, err
		}
		queues.requeue(w)
	}
}

// askOnce returns a Slot, or the reason why w stops waiting, or neither if w has to ask again. It also returns how many
// slots others may ask for immediately, and whether the next waiter asks in place of w.
func (w *waiter) askOnce(ctx, until context.Context, n int, set settings) (s *Slot, r ratelimit.Result, free int, next bool, err error) {
	l := w.queue.id.limiter
	h := new(hold)
	h.begin(ctx, l, w.queue.id.key, n)
	h.settings, h.deferred, h.waited = set, w.deferred, true
	if err := h.check(); err != nil {
		return nil, ratelimit.Result{}, 0, true, err
	}
	if s, r, err = h.acquire(ctx); s != nil {
		w.served, w.ratesFull = true, r.Remaining == 0 && !h.lastFree
		if free = r.Remaining; r.Limit == 0 { // everything is admitted, by a fallback or a shadow
			free = math.MaxInt32
		}
		return s, r, free, false, nil
	}
	w.asked, w.denial, w.deniedAt = err == nil, r, time.Now()
	w.parts = innermost(l, r).Parts()
	stop := w.denied(until, n, r, err)
	return nil, ratelimit.Result{}, 0, stop == nil || err == nil || until.Err() != nil, stop
}

// denied sets when the queue asks again if nothing else happens, or returns the reason why w stops
// waiting.
func (w *waiter) denied(ctx context.Context, n int, r ratelimit.Result, err error) error {
	w.rest, w.exactly = max(r.RetryAfter, time.Millisecond), false
	switch {
	case err != nil && w.impatient:
		return err
	case errors.Is(err, store.ErrOverloaded), errors.Is(err, store.ErrUnavailable):
		w.rest = mostPause
		return nil
	case err != nil:
		return err
	case r.RetryAfter == ratelimit.Never:
		return fmt.Errorf("%w: %d events exceed the limit of %d", ratelimit.ErrNever, n, r.Limit)
	}
	slots, rates := w.missing()
	rates = min(rates, r.RetryAfter) // a fallback reports when it will ask the store for more than a share
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= rates {
		return ratelimit.ErrWouldExceedDeadline
	}
	w.exactly = !slots
	return nil
}

// missing reports whether slots are missing according to the last denial, and for how long rates
// have no room. When a slot will be released is not known.
func (w *waiter) missing() (slots bool, rates time.Duration) {
	if w.parts == nil {
		return true, 0
	}
	for i := range w.parts {
		if _, ok := slotsIn(w.parts[i].Limiter); !ok {
			rates = max(rates, w.parts[i].RetryAfter)
		} else if w.parts[i].RetryAfter > 0 {
			slots = true
		}
	}
	return slots, rates
}

// lacks reports whether w was denied for lack of slots of core, and whether their store has said so.
func (w *waiter) lacks(core *ratelimit.Custom) (lacks, counted bool) {
	if w.parts == nil {
		return true, w.denial.Source() == ratelimit.SourceStore
	}
	for i := range w.parts {
		if c, ok := slotsIn(w.parts[i].Limiter); ok && c == core {
			return w.parts[i].RetryAfter > 0, w.parts[i].Source() == ratelimit.SourceStore
		}
	}
	return true, false
}

// join adds a waiter for n slots to the end of the queue of key. The first in a queue asks
// immediately. If the queue already has most waiters, join returns no waiter, and the last denial
// if there was one.
func (a *allQueues) join(until context.Context, l ratelimit.Limiter, key string, n, most int) (*waiter, *ratelimit.Result) {
	id := queueID{l, key, see.QueuesOf[ratelimit.Delayer](l).Key(until, key, n)}
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.queueOf(id)
	if q.asking+q.idle.Len() >= cmp.Or(most, defaultMost) {
		return nil, q.lastDenial()
	}
	q.arrived++
	w := &waiter{queue: q, arrived: q.arrived, ask: make(chan struct{}, 1)}
	w.until, _ = until.Deadline()
	if q.asking+q.idle.Len() == 0 {
		for slots := range q.waitFor {
			a.hurry(slots, a.bySlots[slots], w)
		}
	}
	w.place = q.idle.PushBack(w)
	a.letAsk(q)
	return w, nil
}

// waitedFor reports whether callers here wait for slots of key that l wants, or have left some to other processes.
func (a *allQueues) waitedFor(l ratelimit.Limiter, key string) bool {
	if !a.anyShares.Load() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(cores(l), func(core *ratelimit.Custom) bool { return a.bySlots[slotsOf(core, key)] != nil })
}

// queueOf returns the queue of id, and creates it if there is none.
func (a *allQueues) queueOf(id queueID) *queue {
	listed := canBeKey(id)
	if listed && a.byID[id] != nil {
		return a.byID[id]
	}
	q := &queue{id: id, listed: listed, waitFor: map[slotsID]*list.Element{}, pause: leastPause, rest: leastPause, served: time.Now()}
	if listed {
		a.byID[id] = q
	}
	for _, core := range cores(id.limiter) {
		slots := slotsOf(core, id.key)
		q.waitFor[slots] = a.shareOf(slots).queues.PushBack(q)
	}
	if a.yielded(q, slotsID{}) == 0 {
		q.free = 1
	}
	if a.contended(q) {
		q.pause = a.longestPauseOf(q)
	}
	return q
}

// canBeKey reports whether id can be the key of a map. A limiter that contains NaN is not even
// equal to itself.
func canBeKey(id queueID) bool {
	v := reflect.ValueOf(id.limiter)
	return v.Kind() == reflect.Pointer || v.Comparable() && id == id //nolint:gocritic,staticcheck // NaN
}

// remove removes a queue in which nobody waits.
func (a *allQueues) remove(q *queue) {
	if q.listed {
		delete(a.byID, q.id)
	}
	for slots, e := range q.waitFor {
		s := a.bySlots[slots]
		s.queues.Remove(e)
		a.forget(slots, s)
	}
}

// letAsk lets those waiters ask that may. If none may, one of them asks after q.rest.
func (a *allQueues) letAsk(q *queue) {
	for q.free+len(q.offers) > 0 && q.asking < mostAsking && q.idle.Len() > 0 {
		w := q.idle.Remove(q.idle.Front()).(*waiter)
		w.place = nil
		if w.offer = (offer{}); len(q.offers) > 0 {
			w.offer, q.offers = q.offers[0], q.offers[1:]
		} else {
			q.free--
		}
		q.asking++
		w.ask <- struct{}{}
	}
	rests := q.asking == 0 && q.idle.Len() > 0
	switch {
	case rests && q.timer == nil:
		q.timer = time.AfterFunc(q.rest, func() { a.restOver(q) })
	case rests && !q.armed:
		q.timer.Reset(q.rest)
	case !rests && q.armed:
		q.timer.Stop()
	}
	if q.armed = rests; q.asking+q.idle.Len() == 0 {
		a.remove(q)
		for _, o := range q.offers {
			a.offer(o)
		}
	}
}

// offer offers a slot to one queue, which then becomes the last to be offered the next slot.
func (a *allQueues) offer(o offer) {
	for s := a.bySlots[o.slots]; s != nil && o.offersLeft > 0 && s.queues.Len() > 0; {
		o.offersLeft--
		q := s.queues.Front().Value.(*queue)
		s.queues.MoveToBack(s.queues.Front())
		if len(q.offers) < q.asking+q.idle.Len() && a.yielded(q, o.slots) == 0 { // or else it would take what is left
			q.offers = append(q.offers, o)
			a.letAsk(q)
			return
		}
	}
}

// restOver lets one waiter ask when q.rest is over.
func (a *allQueues) restOver(q *queue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !q.armed:
	case a.yielded(q, slotsID{}) > 0:
		q.timer.Reset(q.rest)
	default:
		q.free = max(q.free, 1)
		a.letAsk(q)
	}
}

// requeue returns w, which was denied, to its place in the queue.
func (a *allQueues) requeue(w *waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := w.queue
	if q.asking--; w.asked {
		q.denial, q.deniedAt = w.denial, w.deniedAt
	}
	q.free = 0                      // according to the denial
	q.rest = min(w.rest, mostPause) // limited, because w may leave, and the key may be reset
	if !w.exactly {
		q.rest = min(w.rest, q.pause-rand.N(q.pause/4)) // random, so that processes do not ask together
		if q.asking == 0 {
			q.pause = min(2*q.pause, a.longestPauseOf(q))
		}
	}
	next := q.idle.Front()
	for next != nil && next.Value.(*waiter).arrived < w.arrived {
		next = next.Next()
	}
	if next == nil {
		w.place = q.idle.PushBack(w)
	} else {
		w.place = q.idle.InsertBefore(w, next)
	}
	lacks, counted := w.lacks(w.offer.slots.core)
	if lacks && counted && w.asked {
		a.gone(w.offer)
	}
	if a.letAsk(q); !lacks { // other queues may use the slot
		a.offer(w.offer)
	}
}

// leave removes w from its queue. If w was not idle, up to free other waiters may ask immediately,
// and if next is true, one in w's place.
func (a *allQueues) leave(w *waiter, free int, next bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := w.queue
	if w.place != nil {
		q.idle.Remove(w.place)
		a.letAsk(q)
		return
	}
	q.asking--
	if w.served {
		q.served = time.Now()
	}
	q.pause = min(q.pause, a.longestPauseOf(q))
	if q.rest = q.pause - rand.N(q.pause/4); !w.served || w.ratesFull {
		q.rest = leastPause // to find out the current state
	}
	q.free = max(q.free, free-q.asking-a.yielded(q, slotsID{}))
	switch {
	case next && w.offer.slots.core != nil:
		q.offers = append(q.offers, w.offer)
	case next:
		q.free++
	}
	a.letAsk(q)
}

// last returns the last denial of w or in its queue, as it would be now, or nil.
func (a *allQueues) last(w *waiter) *ratelimit.Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.asked && w.deniedAt.After(w.queue.deniedAt) {
		return aged(w.denial, w.deniedAt)
	}
	return w.queue.lastDenial()
}

func (q *queue) lastDenial() *ratelimit.Result { return aged(q.denial, q.deniedAt) }

// aged returns r, a denial at time at, as it would be now.
func aged(r ratelimit.Result, at time.Time) *ratelimit.Result {
	switch {
	case at.IsZero():
		return nil
	case r.RetryAfter == ratelimit.Never:
		return &r
	}
	since := time.Since(at)
	r.RetryAfter = max(r.RetryAfter-since, leastPause)
	r.ResetAfter = max(r.ResetAfter-since, r.RetryAfter)
	return &r
}
