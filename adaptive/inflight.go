package adaptive

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// InFlight counts what is under way, such as requests: call [InFlight.Start] and
// [InFlight.Done]. Its [InFlight.Load] is a signal for [New]. It is the mean number under
// way since the last reading, as a part of the most there should be.
//
// It is a mean because a count at one instant is mostly chance. If requests come at
// random and 16 are under way on average, a count may be anything from 8 to 24.
//
// Start and Done take about 70 ns. An InFlight is safe for concurrent use.
type InFlight struct {
	most float64
	base time.Time

	mu   sync.Mutex    // protects all below
	n    int           // under way
	area float64       // ∫ n dt since the last reading, ns
	last time.Duration // since base, the end of area
	read time.Duration // since base, of the last reading
}

// NewInFlight returns a counter whose load is 1 when most are under way. most must be at
// least 1. Otherwise the error wraps [ratelimit.ErrInvalidOption].
func NewInFlight(most int) (*InFlight, error) {
	if most < 1 {
		return nil, fmt.Errorf("%w: NewInFlight(%d): 1 and more", ratelimit.ErrInvalidOption, most)
	}
	return &InFlight{most: float64(most), base: time.Now()}, nil
}

// Start counts one more. Each Start needs one [InFlight.Done], best with defer.
func (f *InFlight) Start() { f.add(1) }

// Done counts one less. If none is under way it does nothing.
func (f *InFlight) Done() { f.add(-1) }

// Load returns the mean number under way since the last reading, or since NewInFlight, as
// a part of the most there should be. It is above 1 if there were more. For an InFlight
// not made by NewInFlight it is NaN, which changes nothing. Each reading begins a new
// mean, so use one InFlight per Limit.
func (f *InFlight) Load() float64 {
	if f == nil || f.most == 0 {
		return math.NaN()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advance()
	mean := float64(f.n) // the mean if no time has passed
	if over := f.last - f.read; over > 0 {
		mean = f.area / float64(over)
	}
	f.area, f.read = 0, f.last
	return mean / f.most
}

func (f *InFlight) add(n int) {
	if f == nil || f.most == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advance()
	f.n = max(0, f.n+n)
}

// advance adds to area the time until now.
func (f *InFlight) advance() {
	now := time.Since(f.base)
	f.area += float64(f.n) * float64(now-f.last)
	f.last = now
}
