package queue_test

import (
	"context"
	"errors"
	"sync"
	"testing/synctest"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/store"
)

// algorithm is a limiter of one key, to the ns, that shares no code with the library's: rate events per period. fits returns the earliest time
// when n events fit if no other call comes.
type algorithm interface {
	fits(now time.Time, n int) time.Time
	charge(now time.Time, n int)
	refund(turn time.Time, n int)
	left(now time.Time) int
	empty(now time.Time) time.Time // when all that is charged is gone
}

// bucket is the level of both buckets, stored as the time when it is empty.
type bucket struct {
	step  time.Duration
	burst int
	leaky bool
	end   time.Time
}

func (b *bucket) empty(now time.Time) time.Time { return latest(b.end, now) }

func (b *bucket) fits(now time.Time, n int) time.Time {
	return latest(now, b.empty(now).Add(-time.Duration(b.burst-n)*b.step))
}

func (b *bucket) charge(now time.Time, n int) { b.end = b.empty(now).Add(time.Duration(n) * b.step) }

// refund refunds only the last turn of a leaky bucket, because later callers have their turns
// already.
func (b *bucket) refund(turn time.Time, n int) {
	if back := time.Duration(n) * b.step; !b.leaky || b.end.Equal(turn.Add(back)) {
		b.end = b.end.Add(-back)
	}
}

func (b *bucket) left(now time.Time) int {
	return max(0, int((time.Duration(b.burst)*b.step-b.empty(now).Sub(now))/b.step))
}

// events is the state of the three windows: the time of each charged event.
type events struct {
	period time.Duration
	rate   int
	at     []time.Time
	weight func(age, sinceWindow time.Duration) float64 // of one event; it never grows
}

func (e *events) sum(now time.Time) (sum float64) {
	since := now.Sub(now.Truncate(e.period))
	for _, at := range e.at {
		sum += e.weight(now.Sub(at), since)
	}
	return sum
}

func (e *events) left(now time.Time) int { return max(0, int(float64(e.rate)-e.sum(now)+1e-9)) }

func (e *events) fits(now time.Time, n int) time.Time {
	low, high := time.Duration(0), 2*e.period
	for low < high {
		if middle := (low + high) / 2; e.left(now.Add(middle)) >= n {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return now.Add(low)
}

func (e *events) empty(now time.Time) time.Time { return e.fits(now, e.rate) }

func (e *events) charge(now time.Time, n int) {
	kept := e.at[:0]
	for _, at := range e.at {
		if now.Sub(at) < 2*e.period {
			kept = append(kept, at)
		}
	}
	e.at = kept
	for range n {
		e.at = append(e.at, now)
	}
}

func (e *events) refund(charged time.Time, n int) {
	for i := 0; i < len(e.at) && n > 0; {
		if e.at[i].Equal(charged) {
			e.at, n = append(e.at[:i], e.at[i+1:]...), n-1
		} else {
			i++
		}
	}
}

func newAlgorithm(name string, rate int, period time.Duration) algorithm {
	switch name {
	case "token_bucket", "leaky_bucket":
		return &bucket{step: period / time.Duration(rate), burst: rate, leaky: name == "leaky_bucket"}
	case "fixed_window":
		return &events{period: period, rate: rate, weight: func(age, since time.Duration) float64 {
			if age <= since {
				return 1
			}
			return 0
		}}
	case "sliding_window":
		return &events{period: period, rate: rate, weight: func(age, since time.Duration) float64 {
			switch {
			case age <= since:
				return 1
			case age <= since+period:
				return float64(period-since) / float64(period)
			}
			return 0
		}}
	}
	return &events{period: period, rate: rate, weight: func(age, _ time.Duration) float64 {
		if age < period {
			return 1
		}
		return 0
	}}
}

// limiter answers for an algorithm, after a round trip.
type limiter struct {
	name    string
	silent  bool // it gives nothing but RetryAfter and Delay
	foreign bool // nobody knows its algorithm
	joint   bool // it decides together with a limit that has room for all
	way     func() time.Duration
	fail    func() error // the question is lost, without a charge
	lose    func() error // the answer is lost

	mu       sync.Mutex
	state    algorithm
	limit    int
	asked    int
	underWay int // questions that have no answer yet
	most     int // of those at once
	admitted int
	charged  int // events, less those that were given back
	lost     int // events whose answer was lost
}

// permit is an admission by a limiter.
type permit struct {
	n    int
	turn time.Time
}

func newLimiter(name string, rate int, period time.Duration) *limiter {
	l := &limiter{name: name, limit: rate, state: newAlgorithm(name, rate, period)}
	l.way = func() time.Duration { return 0 }
	return l
}

func (l *limiter) kind() queue.Kind {
	if l.joint {
		l := limiter{name: l.name}
		return queue.Joint(l.kind(), queue.Bucket)
	}
	switch {
	case l.foreign, l.silent:
		return queue.Unknown
	case l.name == "token_bucket":
		return queue.Bucket
	case l.name == "leaky_bucket":
		return queue.Leaky
	}
	return queue.Plain
}

// decide does what AllowWithin of such a limiter does.
func (l *limiter) decide(n int, d time.Duration) (queue.Answer, permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	turn := l.state.fits(now, n)
	if l.name == "leaky_bucket" {
		turn = latest(turn, l.state.empty(now))
	}
	a := queue.Answer{Limit: l.limit, Remaining: l.state.left(now)}
	allowed := n <= l.limit && !turn.After(now)
	switch l.name {
	case "token_bucket":
		allowed = n <= l.limit && turn.Sub(now) <= d
	case "leaky_bucket":
		allowed = n <= l.limit && !l.state.fits(now, n).After(now) && turn.Sub(now) <= d
	default:
		d = 0
	}
	var p permit
	switch {
	case allowed:
		a.Allowed, a.Delay = true, turn.Sub(now)
		l.state.charge(now, n)
		l.admitted, l.charged = l.admitted+1, l.charged+n
		a.Remaining = l.state.left(now)
		p = permit{n, turn}
	case n > l.limit:
		a.RetryAfter = queue.Never
	default:
		a.RetryAfter = max(turn.Sub(now)-d, l.state.fits(now, n).Sub(now), 1)
		if l.name == "token_bucket" {
			a.RetryAfter = turn.Sub(now) - d
		}
	}
	switch a.ResetAfter = l.state.empty(now).Sub(now); {
	case l.silent:
		a.Remaining, a.ResetAfter = 0, 0
	case l.joint:
		own := a
		a.Part(queue.Plain, 1, queue.Answer{Limit: 1_000_000, Remaining: 990_000, ResetAfter: 24 * time.Hour})
		a.Part(queue.Unknown, 1, own)
		a.ResetAfter = 24 * time.Hour
	}
	return a, p
}

func (l *limiter) questions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// reset empties the limiter, which then counts its questions anew.
func (l *limiter) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = 0
	switch s := l.state.(type) {
	case *bucket:
		s.end = time.Time{}
	case *events:
		s.at = nil
	}
}

// asker asks a limiter on behalf of one call.
type asker struct {
	*limiter
	n    int
	held permit
}

func (a *asker) Ask(_ context.Context, d time.Duration) (queue.Answer, error) {
	a.mu.Lock()
	a.asked++
	a.underWay++
	a.most = max(a.most, a.underWay)
	a.mu.Unlock()
	time.Sleep(a.way())
	defer func() {
		time.Sleep(a.way())
		a.mu.Lock()
		a.underWay--
		a.mu.Unlock()
	}()
	if a.fail != nil {
		if err := a.fail(); err != nil {
			return queue.Answer{}, err
		}
	}
	var decision queue.Answer
	decision, a.held = a.decide(a.n, d)
	if a.lose != nil {
		if err := a.lose(); err != nil {
			a.mu.Lock()
			a.lost += a.held.n
			a.mu.Unlock()
			return queue.Answer{}, err
		}
	}
	return decision, nil
}

func (a *asker) Refund(context.Context) error {
	time.Sleep(a.way())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.refund(a.held.turn, a.held.n)
	a.charged -= a.held.n
	return nil
}

func (a *asker) MayHandOn() bool { return true }
func (a *asker) Permit() any     { return a.held }
func (a *asker) Take(p any)      { a.held = p.(permit) }

// answer is how a wait ended.
type answer struct {
	queue.Answer
	err   error
	n     int
	end   time.Time
	turn  time.Time // that the limiter gave
	began time.Time
	ended time.Time
}

// wait waits as the callers of this package do.
func (l *limiter) wait(ctx context.Context, n int, end time.Time, timed bool) answer {
	began := time.Now()
	a := &asker{limiter: l, n: n}
	w := queue.Waiter{Limiter: l, Key: "key", N: n, Kind: l.kind(), Asker: a}
	switch {
	case timed:
		w.Max = max(1, end.Sub(began))
	case !end.IsZero():
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(1))
		defer cancel()
	}
	err := w.Wait(ctx)
	return answer{w.Answer, err, n, end, a.held.turn, began, time.Now()}
}

// callers has the calls of a limiter, in order of arrival. Use it in a bubble.
type callers struct {
	*limiter
	began   time.Time
	before  int // events that were charged already
	mu      sync.Mutex
	answers []answer // by arrival
	wg      sync.WaitGroup
}

func newCallers(l *limiter) *callers {
	return &callers{limiter: l, began: time.Now(), before: l.charged}
}

// join adds a call. When join returns, the call waits in the queue, or asks.
func (cs *callers) join(ctx context.Context, n int, end time.Time, timed bool) {
	cs.mu.Lock()
	i := len(cs.answers)
	cs.answers = append(cs.answers, answer{})
	cs.mu.Unlock()
	cs.wg.Go(func() {
		a := cs.wait(ctx, n, end, timed)
		cs.mu.Lock()
		defer cs.mu.Unlock()
		cs.answers[i] = a
	})
	synctest.Wait()
}

// ideal returns how long n single events take for a caller that asks as soon as the next one fits.
func ideal(name string, rate int, period time.Duration, n int) time.Duration {
	s, began := newAlgorithm(name, rate, period), time.Now()
	now := began
	for range n {
		now = s.fits(now, 1)
		if name == "leaky_bucket" {
			now = latest(now, s.empty(now))
		}
		s.charge(now, 1)
	}
	return now.Sub(began)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

var (
	errAway = store.ErrUnavailable
	errLost = errors.New("the answer is lost")
)
