// Package adaptive has a limit that follows a load signal between a floor and a ceiling:
// what the process can bear rather than what somebody once guessed.
//
//	limit, err := adaptive.New(ratelimit.PerSecond(100), ratelimit.PerSecond(2000), adaptive.CPU())
//	...
//	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(2000),
//		ratelimit.WithName("api"), ratelimit.WithLimitFunc(limit.ForKey))
//
// The signal is any func() float64. Ready ones are [CPU], [SchedulerLatency] and
// [InFlight].
package adaptive

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Limit is a limit that follows a load. Give its [Limit.ForKey] to
// [ratelimit.WithLimitFunc].
//
// The load is 0 for idle and 1 for fully loaded, and may be above. It is read once an
// interval ([WithInterval]). Two readings in a row above the band ([WithBand]) shrink the
// Rate by a fifth, two below it grow it by a twentieth ([WithSteps]), and by one event at
// least; then the count of readings begins anew. A reading inside the band leaves the Rate
// as it is and ends a row, and so does one above it, if the load has fallen twice in a row
// by a fiftieth or more.
//
// Bounds: the Rate is never below the floor's or above the ceiling's, and one reading alone
// moves nothing. The way from the ceiling to the floor takes some 2·ln(ceiling/floor)/0.22
// readings at which the load does not fall, and back 2·ln(ceiling/floor)/0.049: 22 and 98,
// which are 11 s and 49 s, if the ceiling is ten times the floor. A Rate below 20 goes by
// one event, which is more than a twentieth, and may leap over the band: give a small limit
// a longer Period.
//
// Why steps in proportion: where the load is in proportion to the Rate, a step that is
// narrower than the band cannot leap over it, wherever floor and ceiling are. An additive
// increase depends on how far they are apart (by a twentieth of it the limit went up and
// down for ever), and a step as large as the distance to the band follows all noise. Why
// two readings: the second shows what the last step has done, and single spikes are
// dropped, which a moving average remembers. On average over eight models of servers the
// limit turned 2.5 times in 100 readings and moved by 9 %; with an average in place of the
// two readings 3.5 times and 9 %, by AIMD 5 to 46 times and 19 to 147 % (go test -v -run
// Steadier ./adaptive). Where a load climbs much more steeply than the Rate, as that of a
// noisy queue at its end, the limit keeps moving, in the model by a third: a wider band and
// smaller steps calm it.
//
// Why no step down while the load falls: a backlog is there long after the Rate is low
// enough. In models of a queue that loses 60 % of its capacity the limit stays above 72 %
// of what is left, and is back at it within 5 s. Without this it fell to 22 %, and took up
// to 36 s (go test -v -run Drop ./adaptive).
//
// A change leaves the limiter's identity and the spend of its keys as they are. A key has
// at once the room of the new limit, less what it has spent: shrinking can deny a key that
// had room, for a full refill at most, and growing is no free burst above the new limit. A
// RetryAfter is that of the limit at its call. All keys have the same limit; for tiers, let
// a function of one's own scale [Limit.Current].
//
// While callers ask for less than the limit the load is low, and the limit grows to the
// ceiling: so the ceiling is what a sudden flood meets, for as long as the way down takes.
// Where processes share a store, each has a limit of its own, by its own load.
//
// It starts no goroutine and has nothing to close: the caller whose turn has come reads the
// signal, and the others go on with the limit as it stands, by a reading of the clock and
// two atomic loads: some 30 ns. Memory: some 200 bytes, whatever the number of keys. It is
// safe for concurrent use. Make it by [New].
type Limit struct {
	floor, ceiling ratelimit.Limit
	signal         func() float64
	low, high      float64
	down, up       float64
	interval       time.Duration
	start          int

	base  time.Time     // of due; monotonic
	due   atomic.Int64  // ns since base from which the signal is read again
	state atomic.Uint64 // Rate and Burst, 32 bits each

	mu    sync.Mutex // held while the signal is read; covers what follows
	run   int        // readings in a row below the band; negative: above it
	load  float64    // of the last reading
	falls int        // readings in a row at which it was lower than before
}

const (
	defaultInterval = 500 * time.Millisecond
	minInterval     = time.Millisecond
	maxInterval     = time.Hour

	defaultLow, defaultHigh = 0.6, 0.8
	defaultDown, defaultUp  = 0.2, 0.05

	agreement = 2       // readings in a row that make a step, or keep from one
	falling   = 1. / 50 // the part of itself that a falling load loses at least
)

// Option sets what is optional about a Limit.
type Option func(*Limit) error

// WithBand sets the band of loads in which the limit stays: above high it shrinks, below
// low it grows. 0 < low < high, both finite. Without it they are 0.6 and 0.8.
func WithBand(low, high float64) Option {
	return func(l *Limit) error {
		if !(0 < low && low < high && high <= math.MaxFloat64) {
			return fmt.Errorf("%w: WithBand(%v, %v): 0 < low < high", ratelimit.ErrInvalidOption, low, high)
		}
		l.low, l.high = low, high
		return nil
	}
}

// WithSteps sets by which part of itself the Rate shrinks in a step, and by which it grows.
// Both are above 0, and no step leaps over the band: 1-down is at least low/high, and 1+up
// at most high/low. Without it they are 0.2 and 0.05.
func WithSteps(down, up float64) Option {
	return func(l *Limit) error {
		if !(down > 0 && up > 0) {
			return fmt.Errorf("%w: WithSteps(%v, %v): both are above 0", ratelimit.ErrInvalidOption, down, up)
		}
		l.down, l.up = down, up
		return nil
	}
}

// WithInterval sets how often the signal is read at most: 1 ms to 1 h. It is read by the
// first call that comes when so much time has passed since the last reading began. It
// should be longer than the load takes to follow the limit. Without it it is 500 ms.
func WithInterval(d time.Duration) Option {
	return func(l *Limit) error {
		if d < minInterval || d > maxInterval {
			return fmt.Errorf("%w: WithInterval(%v): 1ms to 1h", ratelimit.ErrInvalidOption, d)
		}
		l.interval = d
		return nil
	}
}

// WithStart sets the Rate to begin with, from the floor's to the ceiling's. Without it it
// is the ceiling's.
func WithStart(rate int) Option {
	return func(l *Limit) error {
		if rate < l.floor.Rate || rate > l.ceiling.Rate {
			return fmt.Errorf("%w: WithStart(%d): %d to %d", ratelimit.ErrInvalidOption, rate, l.floor.Rate, l.ceiling.Rate)
		}
		l.start = rate
		return nil
	}
}

// New returns a limit that moves between floor and ceiling, which have the same Period; the
// floor's Rate is below the ceiling's, and 0 and more. Where they have a Burst, it moves
// along with the Rate, in proportion; 0 stands for the Rate, as elsewhere, if one of them
// has a Burst. What the limiter's algorithm refuses is an error of each call: a Burst in
// the windows, and a bucket that takes over 100 years to refill.
//
// The signal is read by one caller at a time, which waits for it: it should take
// microseconds. A reading of NaN is none: it changes nothing. Below 0 is as 0, and +Inf
// above any band. If signal panics, so does the call that has read it; it counts as NaN,
// and is read again after the interval.
//
// Errors wrap [ratelimit.ErrInvalidLimit] (of floor and ceiling, Unlimited included) or
// [ratelimit.ErrInvalidOption].
func New(floor, ceiling ratelimit.Limit, signal func() float64, opts ...Option) (*Limit, error) {
	if err := checkRange(floor, ceiling); err != nil {
		return nil, err
	}
	if signal == nil {
		return nil, fmt.Errorf("%w: the signal is nil", ratelimit.ErrInvalidOption)
	}
	l := &Limit{
		floor: floor, ceiling: ceiling, signal: signal, start: ceiling.Rate,
		low: defaultLow, high: defaultHigh, down: defaultDown, up: defaultUp,
		interval: defaultInterval, base: time.Now(),
	}
	if floor.Burst != 0 || ceiling.Burst != 0 {
		l.floor.Burst, l.ceiling.Burst = capacity(floor), capacity(ceiling)
	}
	if err := l.apply(opts); err != nil {
		return nil, err
	}
	l.due.Store(int64(l.interval))
	l.set(l.start)
	return l, nil
}

func (l *Limit) apply(opts []Option) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(l); err != nil {
			return err
		}
	}
	// The products, not the quotients: 0.8·0.75 is nearer to 0.6 than 0.6/0.8 to 0.75.
	if l.high*(1-l.down) < l.low*(1-1e-9) || l.low*(1+l.up) > l.high*(1+1e-9) {
		return fmt.Errorf("%w: steps of -%v and +%v leap over the band from %v to %v",
			ratelimit.ErrInvalidOption, l.down, l.up, l.low, l.high)
	}
	return nil
}

// checkRange says whether there is a way from floor to ceiling.
func checkRange(floor, ceiling ratelimit.Limit) error {
	for _, end := range []ratelimit.Limit{floor, ceiling} {
		if err := end.Validate(); err != nil {
			return err
		}
	}
	switch {
	case floor == ratelimit.Unlimited() || ceiling == ratelimit.Unlimited():
		return fmt.Errorf("%w: from %v to %v: there is no step to or from unlimited", ratelimit.ErrInvalidLimit, floor, ceiling)
	case floor.Period != ceiling.Period:
		return fmt.Errorf("%w: from %v to %v: the periods differ", ratelimit.ErrInvalidLimit, floor, ceiling)
	case floor.Rate >= ceiling.Rate || capacity(floor) > capacity(ceiling):
		return fmt.Errorf("%w: from %v to %v: that is not up", ratelimit.ErrInvalidLimit, floor, ceiling)
	}
	return nil
}

// capacity is the Burst of l as the buckets read it.
func capacity(l ratelimit.Limit) int {
	if l.Burst == 0 {
		return l.Rate
	}
	return l.Burst
}

var errNoConstructor = fmt.Errorf("%w: an adaptive limit is made by New", ratelimit.ErrInvalidLimit)

// ForKey is [Limit.Current] as [ratelimit.WithLimitFunc] wants it. It is the same for every
// key. It is an error, which wraps [ratelimit.ErrInvalidLimit], only of a Limit that New
// has not made.
func (l *Limit) ForKey(context.Context, string) (ratelimit.Limit, error) {
	if l == nil || l.signal == nil {
		return ratelimit.Limit{}, errNoConstructor
	}
	return l.Current(), nil
}

// Current is the limit of now. It reads the signal first if that is due. However long the
// last call is past, it is one reading, and at most one step. That of a Limit that New has
// not made is the zero Limit.
func (l *Limit) Current() ratelimit.Limit {
	if l == nil || l.signal == nil {
		return ratelimit.Limit{}
	}
	if now := int64(time.Since(l.base)); now >= l.due.Load() {
		l.read(now)
	}
	s := l.state.Load()
	return ratelimit.Limit{Rate: int(s >> 32), Period: l.floor.Period, Burst: int(s & math.MaxUint32)}
}

// read reads the signal, unless another caller does or has just done so.
func (l *Limit) read(now int64) {
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	if now < l.due.Load() {
		return
	}
	// Before the reading: so one that panics is not read again by each call.
	l.due.Store(now + int64(l.interval))
	if load := l.signal(); !math.IsNaN(load) {
		l.follow(load)
	}
}

// follow counts a reading, and makes a step if it is the second on its side.
func (l *Limit) follow(load float64) {
	if load < l.load*(1-falling) {
		l.falls++
	} else {
		l.falls = 0
	}
	l.load = load
	switch {
	case load > l.high && l.falls >= agreement: // it is on its way
		l.run = 0
	case load > l.high:
		l.run = min(l.run, 0) - 1
	case load < l.low:
		l.run = max(l.run, 0) + 1
	default:
		l.run = 0
	}
	rate := int(l.state.Load() >> 32)
	switch l.run {
	case agreement:
		l.run = 0
		l.set(rate + min(part(rate, l.up), l.ceiling.Rate-rate))
	case -agreement:
		l.run = 0
		l.set(max(rate-part(rate, l.down), l.floor.Rate))
	}
}

// part is the step of a rate: at least one event, and at most 2^31-1.
func part(rate int, of float64) int {
	return int(min(max(1, float64(rate)*of), math.MaxInt32))
}

// set makes rate the current one, and the Burst that goes with it.
func (l *Limit) set(rate int) {
	burst := int64(l.floor.Burst)
	if rise := int64(l.ceiling.Burst) - burst; rise > 0 { // the product is below 2^62
		burst += rise * int64(rate-l.floor.Rate) / int64(l.ceiling.Rate-l.floor.Rate)
	}
	l.state.Store(uint64(rate)<<32 | uint64(burst))
}
