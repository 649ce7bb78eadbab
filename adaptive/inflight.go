package adaptive

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// InFlight counts what is in progress, such as requests: call [InFlight.Start] and [InFlight.Done].
// Its [InFlight.Load] is a signal for [New]: the mean number in progress since the last reading, as
// a part of a maximum.
//
// It is a mean because a count at one instant is mostly chance. If requests arrive at random and 16
// are in progress on average, a count may be anything from 8 to 24.
//
// Start and Done take about 70 ns. An InFlight is safe for concurrent use.
type InFlight struct {
	most float64
	base time.Time

	mu   sync.Mutex    // protects the fields below
	n    int           // in progress
	area float64       // ∫ n dt since the last reading, ns
	last time.Duration // the end of area, since base
	read time.Duration // time of the last reading, since base
}

// NewInFlight returns a counter whose load is 1 when most are in progress. It returns
// [ratelimit.ErrInvalidOption] if most is below 1.
func NewInFlight(most int) (*InFlight, error) {
	if most < 1 {
		return nil, fmt.Errorf("%w: NewInFlight(%d), want at least 1", ratelimit.ErrInvalidOption, most)
	}
	return &InFlight{most: float64(most), base: time.Now()}, nil
}

// Start counts one more in progress. Each Start needs a call of [InFlight.Done], best with defer.
func (f *InFlight) Start() { f.add(1) }

// Done counts one less in progress. It has no effect if none is in progress.
func (f *InFlight) Done() { f.add(-1) }

// Load returns the mean number in progress since the last reading, or since NewInFlight, as a part
// of the maximum. It is above 1 if there were more. If f was not created by NewInFlight, Load
// returns NaN, which changes nothing. Each reading begins a new mean, so use one InFlight per
// Limit.
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

// advance adds the time until now to area.
func (f *InFlight) advance() {
	now := time.Since(f.base)
	f.area += float64(f.n) * float64(now-f.last)
	f.last = now
}
