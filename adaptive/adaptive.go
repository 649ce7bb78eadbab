// Package adaptive has a limit that follows a load signal between a floor and a ceiling.
// It admits what the process can bear now, not what was once guessed.
//
//	limit, err := adaptive.New(ratelimit.PerSecond(100), ratelimit.PerSecond(2000), adaptive.CPU())
//	...
//	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(2000),
//		ratelimit.WithName("api"), ratelimit.WithLimitFunc(limit.ForKey))
//
// The signal is any func() float64. [CPU], [SchedulerLatency], [InFlight] and [Latency] are ready to
// use.
package adaptive

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
)

// Limit is a limit that follows a load. Make it with [New], and give its [Limit.ForKey] to
// [ratelimit.WithLimitFunc].
//
// The load is 0 for idle and 1 for fully loaded, and may be above 1. It is read once an
// interval ([WithInterval]). After two readings in a row above the band ([WithBand]) the Rate
// shrinks by a fifth, unless the load is falling. After two below it, the Rate grows by a
// twentieth ([WithSteps]). A step is at least one event. A reading inside the band changes
// nothing.
//
// Bound: the Rate is never below the floor's or above the ceiling's, and no single reading
// changes it. For a ceiling of ten times the floor the way down takes 22 readings, and the way
// up 98: 11 s and 49 s.
//
// While callers ask for less than the limit, it grows to the ceiling. So a sudden flood meets
// the ceiling for as long as the way down takes. Keys keep what they have spent. All have the
// same limit; for tiers, scale [Limit.Current] in a function of your own. Processes each have a
// limit by their own load.
//
// Give a small limit a longer Period: below a Rate of 20 a step of one event may jump over the
// band. [More].
//
// It is safe for concurrent use, starts no goroutine and has nothing to close. One caller per
// interval reads the signal; the others take about 30 ns. It takes about 200 bytes.
//
// [More]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/composing.md#a-limit-that-follows-the-load
type Limit struct {
	floor, ceiling ratelimit.Limit
	signal         func() float64
	low, high      float64
	down, up       float64
	interval       time.Duration
	start          int

	base  time.Time     // of due; monotonic
	due   atomic.Int64  // ns since base, from which on the signal is read again
	state atomic.Uint64 // Rate and Burst, 32 bits each

	mu    sync.Mutex // held while the signal is read; protects all below
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

	agreement = 2       // readings in a row that make a step, or prevent one
	falling   = 1. / 50 // the least part of itself by which a load must fall to count as falling
)

// Option is an optional setting of [New].
type Option func(*Limit) error

// WithBand sets the band of loads in which the limit stays: above high it shrinks, below
// low it grows. It must be that 0 < low < high, both finite. The default is 0.6 to 0.8.
func WithBand(low, high float64) Option {
	return func(l *Limit) error {
		if !(0 < low && low < high && high <= math.MaxFloat64) {
			return fmt.Errorf("%w: WithBand(%v, %v): 0 < low < high", ratelimit.ErrInvalidOption, low, high)
		}
		l.low, l.high = low, high
		return nil
	}
}

// WithSteps sets the parts by which the Rate shrinks and grows in a step. Both must be
// above 0. No step may jump over the band: 1-down must be at least low/high, and 1+up at
// most high/low. The defaults are 0.2 and 0.05.
func WithSteps(down, up float64) Option {
	return func(l *Limit) error {
		if !(down > 0 && up > 0) {
			return fmt.Errorf("%w: WithSteps(%v, %v): both are above 0", ratelimit.ErrInvalidOption, down, up)
		}
		l.down, l.up = down, up
		return nil
	}
}

// WithInterval sets how often the signal is read at most, 1 ms to 1 h. The default is 500
// ms. The first call after an interval reads it. The interval should be longer than the
// load takes to follow the limit.
func WithInterval(d time.Duration) Option {
	return func(l *Limit) error {
		if d < minInterval || d > maxInterval {
			return fmt.Errorf("%w: WithInterval(%v): 1ms to 1h", ratelimit.ErrInvalidOption, d)
		}
		l.interval = d
		return nil
	}
}

// WithStart sets the first Rate, from the floor's to the ceiling's. The default is the
// ceiling's.
func WithStart(rate int) Option {
	return func(l *Limit) error {
		if rate < l.floor.Rate || rate > l.ceiling.Rate {
			return fmt.Errorf("%w: WithStart(%d): %d to %d", ratelimit.ErrInvalidOption, rate, l.floor.Rate, l.ceiling.Rate)
		}
		l.start = rate
		return nil
	}
}

// New returns a limit that moves between floor and ceiling. They must have the same
// Period, and the floor's Rate must be at least 0 and below the ceiling's. If either has
// a Burst, the Burst moves in proportion to the Rate; a Burst of 0 then means the Rate.
// If the limiter's algorithm refuses the limit, each call fails: windows refuse a Burst,
// and a bucket must refill within 100 years.
//
// One caller at a time reads the signal and waits for it, so it should take microseconds.
// A reading of NaN changes nothing. One below 0 counts as 0, and +Inf is above any band.
// If signal panics, so does the call that reads it. The panic counts as NaN, and the
// signal is read again after the interval.
//
// Errors wrap [ratelimit.ErrInvalidLimit] or [ratelimit.ErrInvalidOption]. Unlimited is
// an invalid floor or ceiling.
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
	// This compares products, since 0.8·0.75 is nearer to 0.6 than the quotient 0.6/0.8
	// to 0.75.
	if l.high*(1-l.down) < l.low*(1-1e-9) || l.low*(1+l.up) > l.high*(1+1e-9) {
		return fmt.Errorf("%w: steps of -%v and +%v jump over the band from %v to %v",
			ratelimit.ErrInvalidOption, l.down, l.up, l.low, l.high)
	}
	return nil
}

// checkRange reports whether a limit can move from floor to ceiling.
func checkRange(floor, ceiling ratelimit.Limit) error {
	for _, end := range []ratelimit.Limit{floor, ceiling} {
		if err := end.Validate(); err != nil {
			return err
		}
	}
	switch {
	case floor == ratelimit.Unlimited() || ceiling == ratelimit.Unlimited():
		return fmt.Errorf("%w: from %v to %v: there is no step to or from unlimited", ratelimit.ErrInvalidLimit, floor, ceiling)
	case period(floor) != period(ceiling):
		return fmt.Errorf("%w: from %v to %v: the periods differ", ratelimit.ErrInvalidLimit, floor, ceiling)
	case floor.Rate >= ceiling.Rate || capacity(floor) > capacity(ceiling):
		return fmt.Errorf("%w: from %v to %v: the floor is not below the ceiling", ratelimit.ErrInvalidLimit, floor, ceiling)
	}
	return nil
}

// period is l without its events: its Period and calendar.
func period(l ratelimit.Limit) ratelimit.Limit {
	l.Rate, l.Burst = 0, 0
	return l
}

// capacity is the Burst of l as the buckets read it.
func capacity(l ratelimit.Limit) int {
	if l.Burst == 0 {
		return l.Rate
	}
	return l.Burst
}

// ForKey is [Limit.Current] in the form that [ratelimit.WithLimitFunc] needs. It is the
// same for every key. It returns an error only for a Limit not made by New, which wraps
// [ratelimit.ErrInvalidLimit].
func (l *Limit) ForKey(context.Context, string) (ratelimit.Limit, error) {
	if l == nil || l.signal == nil {
		return ratelimit.Limit{}, unmade.Err
	}
	return l.Current(), nil
}

// Current returns the limit of now, and reads the signal first if that is due. It makes
// at most one reading and one step, however long ago the last call was. For a Limit not
// made by New it returns the zero Limit.
func (l *Limit) Current() ratelimit.Limit {
	if l == nil || l.signal == nil {
		return ratelimit.Limit{}
	}
	if now := int64(time.Since(l.base)); now >= l.due.Load() {
		l.read(now)
	}
	s := l.state.Load()
	now := l.floor // its Period or calendar
	now.Rate, now.Burst = int(s>>32), int(s&math.MaxUint32)
	return now
}

// read reads the signal, unless another caller is reading it or has just read it.
func (l *Limit) read(now int64) {
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	if now < l.due.Load() {
		return
	}
	// This is set before the reading, so that calls do not repeat a reading that panics.
	l.due.Store(now + int64(l.interval))
	if load := l.signal(); !math.IsNaN(load) {
		l.follow(load)
	}
}

// follow counts a reading, and makes a step if it is the second on its side.
//
// Steps are in proportion to the Rate. If the load is too, a step that is narrower than
// the band cannot jump over it, wherever floor and ceiling are. An additive step depends
// on their distance: with a twentieth of it the limit oscillated for ever. A step as
// large as the distance to the band follows all noise.
//
// Two readings are needed because the second shows what the last step has done. They drop
// single spikes, which a moving average remembers. Over eight models of servers the limit
// turned 2.5 times in 100 readings and moved by 9 % on average. With a moving average it
// turned 3.5 times and moved by 9 %. With AIMD it turned 5 to 46 times and moved by 19 to
// 147 % (go test -v -run Steadier ./adaptive).
//
// There is no step down while the load falls, because a backlog outlasts a Rate that is
// already low enough. In models of a queue that loses 60 % of its capacity, the limit
// stays above 72 % of what is left, and is back at it within 5 s. Without this rule it
// fell to 22 %, and took up to 36 s (go test -v -run Drop ./adaptive).
func (l *Limit) follow(load float64) {
	if load < l.load*(1-falling) {
		l.falls++
	} else {
		l.falls = 0
	}
	l.load = load
	switch {
	case load > l.high && l.falls >= agreement: // it is already falling
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

// set makes rate the current one, with the Burst in proportion.
func (l *Limit) set(rate int) {
	burst := int64(l.floor.Burst)
	if rise := int64(l.ceiling.Burst) - burst; rise > 0 { // the product is below 2^62
		burst += rise * int64(rate-l.floor.Rate) / int64(l.ceiling.Rate-l.floor.Rate)
	}
	l.state.Store(uint64(rate)<<32 | uint64(burst))
}
