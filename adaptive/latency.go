package adaptive

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Latency is how long calls take: call [Latency.Observe] after each. Its [Latency.Load] is a
// signal for [New], best for the number of slots of package inflight: where too many run at once,
// each takes longer.
//
// Full is yours to say. A shortest time that is learned would be wrong where a service is
// overloaded from its start on, and would grow with each overload that lasts.
//
// Observe takes about 20 ns. A Latency is safe for concurrent use.
type Latency struct {
	full time.Duration

	mu    sync.Mutex // protects all below
	calls int        // since the last reading
	sum   float64    // ns; two calls may be more than a Duration holds
}

// NewLatency returns a signal that is 1 when calls take full on average. It must be above 0,
// otherwise the error wraps [ratelimit.ErrInvalidOption]. Take twice the time of a call that
// nothing makes wait. Then the default band of [New] keeps calls at 1.2 to 1.6 times that.
func NewLatency(full time.Duration) (*Latency, error) {
	if full <= 0 {
		return nil, fmt.Errorf("%w: NewLatency(%v): above 0", ratelimit.ErrInvalidOption, full)
	}
	return &Latency{full: full}, nil
}

// Observe tells how long a call has taken. One below 0 counts as 0.
func (l *Latency) Observe(d time.Duration) {
	if l == nil || l.full == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.sum += float64(max(0, d))
}

// Load returns the mean of the calls since the last reading, as a part of full. Without a call
// since then it is NaN, which changes nothing, and so it is for a Latency not made by NewLatency.
// Each reading begins a new mean, so use one Latency per Limit.
func (l *Latency) Load() float64 {
	if l == nil || l.full == 0 {
		return math.NaN()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	mean := l.sum / float64(l.calls) // NaN of none
	l.calls, l.sum = 0, 0
	return mean / float64(l.full)
}
