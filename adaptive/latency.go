package adaptive

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Latency measures how long calls take: call [Latency.Observe] after each call. Its [Latency.Load]
// is a signal for [New]. It suits the number of slots of package inflight best, because calls take
// longer when too many run at the same time.
//
// You must set the latency that counts as full load. A learned minimum would be wrong for a service
// that is overloaded from the start, and would grow during each long overload.
//
// Observe takes about 20 ns. A Latency is safe for concurrent use.
type Latency struct {
	full time.Duration

	mu    sync.Mutex // protects the fields below
	calls int        // since the last reading
	sum   float64    // ns; two calls may exceed the range of a Duration
}

// NewLatency returns a signal that is 1 when calls take full on average. Choose twice the time of a
// call that does not have to wait; the default band of [New] then keeps calls at 1.2 to 1.6 times
// that time. NewLatency returns [ratelimit.ErrInvalidOption] if full is not positive.
func NewLatency(full time.Duration) (*Latency, error) {
	if full <= 0 {
		return nil, fmt.Errorf("%w: NewLatency(%v), want above 0", ratelimit.ErrInvalidOption, full)
	}
	return &Latency{full: full}, nil
}

// Observe records how long a call took. A duration below 0 counts as 0.
func (l *Latency) Observe(d time.Duration) {
	if l == nil || l.full == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.sum += float64(max(0, d))
}

// Load returns the mean of the calls since the last reading, as a part of full. It returns NaN,
// which changes nothing, if there was no call since then, or if l was not created by NewLatency.
// Each reading begins a new mean, so use one Latency per Limit.
func (l *Latency) Load() float64 {
	if l == nil || l.full == 0 {
		return math.NaN()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	mean := l.sum / float64(l.calls) // NaN if there are none
	l.calls, l.sum = 0, 0
	return mean / float64(l.full)
}
