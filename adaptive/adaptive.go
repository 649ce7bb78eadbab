// Package adaptive provides a limit that follows a load signal between a floor and a ceiling. It
// admits what the process can handle now, instead of a fixed guess.
//
//	limit, err := adaptive.New(ratelimit.PerSecond(100), ratelimit.PerSecond(2000), adaptive.CPU())
//	...
//	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(2000),
//		ratelimit.WithName("api"), ratelimit.WithLimitFunc(limit.ForKey))
//
// The signal can be any func() float64. [CPU], [SchedulerLatency], [InFlight] and [Latency] are
// ready to use.
package adaptive

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
)

// Limit is a limit that follows a load. Use [New] to create one, and pass its [Limit.ForKey] to
// [ratelimit.WithLimitFunc].
//
// A load of 0 means idle and 1 fully loaded; it may be above 1. The load is read once per interval
// ([WithInterval]). Two consecutive readings above the band ([WithBand]) cut the Rate by 20%,
// unless the load is already falling, and two below it raise the Rate by 5% ([WithSteps]). A step
// changes the Rate by at least one event. A reading inside the band changes nothing.
//
// Bound: the Rate is never below the floor's or above the ceiling's, and no single reading changes
// it. If the ceiling is ten times the floor, the way down takes 22 readings (11 s), and the way up
// 98 (49 s).
//
// While callers ask for less than the limit, it grows to the ceiling. A sudden flood therefore
// meets the ceiling until the limit has stepped down. When the limit changes, keys keep what they
// have spent. All keys have the same limit; for tiers, scale [Limit.Current] in your own function.
// Each process has its own limit, by its own load.
//
// If the limit is small, choose a longer Period, because below a Rate of 20, a step of one event
// may jump over the band. See [More].
//
// A Limit takes about 200 bytes, is safe for concurrent use, starts no goroutine and need not be
// closed. One caller per interval reads the signal; the others take about 30 ns.
//
// [More]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/composing.md#a-limit-that-follows-the-load
type Limit struct {
	floor, ceiling ratelimit.Limit
	signal         func() float64
	low, high      float64
	down, up       float64
	interval       time.Duration
	start          int

	base  time.Time     // the origin of due; monotonic
	due   atomic.Int64  // when the signal is to be read again, ns since base
	state atomic.Uint64 // Rate and Burst, 32 bits each

	mu    sync.Mutex // held while the signal is read; protects the fields below
	run   int        // consecutive readings below the band; negative: above it
	load  float64    // of the last reading
	falls int        // consecutive readings that were lower than the one before
}

const (
	defaultInterval = 500 * time.Millisecond
	minInterval     = time.Millisecond
	maxInterval     = time.Hour

	defaultLow, defaultHigh = 0.6, 0.8
	defaultDown, defaultUp  = 0.2, 0.05

	agreement = 2       // consecutive readings that cause a step, or prevent one
	falling   = 1. / 50 // the part of itself by which a load must fall at least, to count as falling
)

// Option configures a [Limit].
type Option func(*Limit) error

// WithBand sets the band of loads in which the limit stays as it is: above high it shrinks, and
// below low it grows. Both must be finite, with 0 < low < high. The default is 0.6 to 0.8.
func WithBand(low, high float64) Option {
	return func(l *Limit) error {
		if !(0 < low && low < high && high <= math.MaxFloat64) {
			return fmt.Errorf("%w: WithBand(%v, %v), want 0 < low < high", ratelimit.ErrInvalidOption, low, high)
		}
		l.low, l.high = low, high
		return nil
	}
}

// WithSteps sets the parts of the Rate by which it shrinks and grows in a step. Both must be above
// 0. A step must not jump over the band: 1-down must be at least low/high, and 1+up at most
// high/low. The defaults are 0.2 and 0.05.
func WithSteps(down, up float64) Option {
	return func(l *Limit) error {
		if !(down > 0 && up > 0) {
			return fmt.Errorf("%w: WithSteps(%v, %v), want both above 0", ratelimit.ErrInvalidOption, down, up)
		}
		l.down, l.up = down, up
		return nil
	}
}

// WithInterval sets the shortest time between two readings of the signal, 1 ms to 1 h. The default
// is 500 ms. The first call after an interval reads the signal. The interval should be longer than
// the load takes to follow the limit.
func WithInterval(d time.Duration) Option {
	return func(l *Limit) error {
		if d < minInterval || d > maxInterval {
			return fmt.Errorf("%w: WithInterval(%v), want 1ms to 1h", ratelimit.ErrInvalidOption, d)
		}
		l.interval = d
		return nil
	}
}

// WithStart sets the initial Rate, from the floor's to the ceiling's. The default is the ceiling's.
func WithStart(rate int) Option {
	return func(l *Limit) error {
		if rate < l.floor.Rate || rate > l.ceiling.Rate {
			return fmt.Errorf("%w: WithStart(%d), want %d to %d", ratelimit.ErrInvalidOption, rate, l.floor.Rate, l.ceiling.Rate)
		}
		l.start = rate
		return nil
	}
}

// New returns a limit that moves between floor and ceiling. They must have the same Period, and the
// floor's Rate must be at least 0 and below the ceiling's. If either has a Burst, the Burst moves
// in proportion to the Rate, and a Burst of 0 then means the Rate. If the limiter's algorithm
// refuses the limit, every call fails: windows refuse a Burst, and a bucket must refill within 100
// years.
//
// One caller at a time reads the signal and waits for it, so a reading should take microseconds. A
// reading of NaN changes nothing, a reading below 0 counts as 0, and +Inf is above any band. If
// signal panics, the call that reads it panics too. The panic counts as a reading of NaN, and the
// signal is read again after the interval.
//
// New returns [ratelimit.ErrInvalidLimit] if floor or ceiling is invalid or Unlimited, or if they
// do not fit together. It returns [ratelimit.ErrInvalidOption] if signal or an option is nil, or if
// an option is out of range.
func New(floor, ceiling ratelimit.Limit, signal func() float64, opts ...Option) (*Limit, error) {
	if err := checkRange(floor, ceiling); err != nil {
		return nil, err
	}
	if signal == nil {
		return nil, fmt.Errorf("%w: adaptive.New: the signal is nil", ratelimit.ErrInvalidOption)
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
	if err := options.Apply(l, opts); err != nil {
		return err
	}
	// This compares products because 0.8·0.75 is closer to 0.6 than the quotient 0.6/0.8 is
	// to 0.75.
	if l.high*(1-l.down) < l.low*(1-1e-9) || l.low*(1+l.up) > l.high*(1+1e-9) {
		return fmt.Errorf("%w: steps of -%v and +%v can jump over the band from %v to %v: make the steps smaller or the band wider",
			ratelimit.ErrInvalidOption, l.down, l.up, l.low, l.high)
	}
	return nil
}

// checkRange returns an error if a limit cannot move from floor to ceiling.
func checkRange(floor, ceiling ratelimit.Limit) error {
	for _, end := range []ratelimit.Limit{floor, ceiling} {
		if err := end.Validate(); err != nil {
			return err
		}
	}
	switch {
	case floor == ratelimit.Unlimited() || ceiling == ratelimit.Unlimited():
		return fmt.Errorf("%w: from %v to %v: neither floor nor ceiling can be unlimited", ratelimit.ErrInvalidLimit, floor, ceiling)
	case period(floor) != period(ceiling):
		return fmt.Errorf("%w: from %v to %v: the periods differ", ratelimit.ErrInvalidLimit, floor, ceiling)
	case floor.Rate >= ceiling.Rate || capacity(floor) > capacity(ceiling):
		return fmt.Errorf("%w: from %v to %v: the floor is not below the ceiling", ratelimit.ErrInvalidLimit, floor, ceiling)
	}
	return nil
}

// period returns l without its events: only its Period and calendar.
func period(l ratelimit.Limit) ratelimit.Limit {
	l.Rate, l.Burst = 0, 0
	return l
}

// capacity returns the Burst of l as the buckets interpret it.
func capacity(l ratelimit.Limit) int { return cmp.Or(l.Burst, l.Rate) }

// ForKey calls [Limit.Current]. It has the signature that [ratelimit.WithLimitFunc] needs, and
// returns the same limit for every key. It returns [ratelimit.ErrInvalidLimit] only if l was not
// created by New.
func (l *Limit) ForKey(context.Context, string) (ratelimit.Limit, error) {
	if l == nil || l.signal == nil {
		return ratelimit.Limit{}, unmade.Err
	}
	return l.Current(), nil
}

// Current returns the current limit. It first reads the signal if a reading is due, but makes at
// most one reading and one step, even if the last call was long ago. It returns the zero Limit if l
// was not created by New.
func (l *Limit) Current() ratelimit.Limit {
	if l == nil || l.signal == nil {
		return ratelimit.Limit{}
	}
	if now := int64(time.Since(l.base)); now >= l.due.Load() {
		l.read(now)
	}
	s := l.state.Load()
	now := l.floor // for its Period or calendar
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
	// due is set before the reading, so that calls do not repeat a reading that panics.
	l.due.Store(now + int64(l.interval))
	if load := l.signal(); !math.IsNaN(load) {
		l.follow(load)
	}
}

// follow counts a reading, and makes a step if it is the second in a row on its side of the band.
//
// Steps are in proportion to the Rate. If the load is too, a step that is narrower than the band
// cannot jump over it, wherever floor and ceiling are. An additive step depends on the distance
// between them: with a step of a twentieth of it, the limit oscillated forever. A step as large as
// the distance to the band follows all noise.
//
// Two readings are needed because the second one shows the effect of the last step. They also
// ignore single spikes, which a moving average remembers. Over eight models of servers, the limit
// turned 2.5 times in 100 readings and moved by 9% on average. With a moving average, it turned 3.5
// times and moved by 9%. With AIMD, it turned 5 to 46 times and moved by 19 to 147% (go test -v
// -run Steadier ./adaptive).
//
// While the load falls, there is no step down, because a backlog outlasts a Rate that is already
// low enough. In models of a queue that loses 60% of its capacity, the limit stays above 72% of the
// remaining capacity, and is back at it within 5 s. Without this rule, it fell to 22%, and took up
// to 36 s (go test -v -run Drop ./adaptive).
func (l *Limit) follow(load float64) {
	if load < l.load*(1-falling) {
		l.falls++
	} else {
		l.falls = 0
	}
	l.load = load
	switch {
	case load > l.high && l.falls >= agreement: // the load is already falling
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

// part returns the step of a rate: at least one event, and at most 2^31-1.
func part(rate int, of float64) int {
	return int(min(max(1, float64(rate)*of), math.MaxInt32))
}

// set sets the current rate, with the Burst in proportion.
func (l *Limit) set(rate int) {
	burst := int64(l.floor.Burst)
	if rise := int64(l.ceiling.Burst) - burst; rise > 0 { // the product is below 2^62
		burst += rise * int64(rate-l.floor.Rate) / int64(l.ceiling.Rate-l.floor.Rate)
	}
	if rate > 0 && l.ceiling.Burst > 0 { // a Burst of 0 would mean the Rate, which may be more than the ceiling's Burst
		burst = max(burst, 1)
	}
	l.state.Store(uint64(rate)<<32 | uint64(burst))
}
