package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"time"
)

var errOutcome = errors.New("not as measured")

// check returns what is wrong with a decision, if anything.
func check(ok bool, err error, want bool) error {
	if err != nil {
		return err
	}
	if ok != want {
		return fmt.Errorf("%w: allowed is %v, want %v", errOutcome, ok, want)
	}
	return nil
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// timed is how long f takes, in ns per one of its n decisions.
func timed(n int, f func() error) (float64, error) {
	start := time.Now()
	err := f()
	return float64(time.Since(start).Nanoseconds()) / float64(n), err
}

// allocating is the number of decisions for which allocations are counted.
const allocating = 1000

// allocated is how many allocations a decision makes on known keys.
func allocated(lim limiter, keys []string, want bool) (float64, error) {
	return allocations(func() error { return pass(lim, keys, 0, allocating, want) })
}

// allocations is how many allocations f makes for each of its decisions, of which there
// must be allocating.
func allocations(f func() error) (float64, error) {
	var before, after runtime.MemStats
	if err := f(); err != nil { // warms up
		return math.NaN(), err
	}
	runtime.ReadMemStats(&before)
	err := f()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / allocating, err
}

// settle collects all garbage, including what finalizers and stopped goroutines still
// hold.
func settle() {
	for range 3 {
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
	}
}

// heap is what is allocated after two collections, in bytes.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// withoutGC collects garbage, and then turns the collector off during f, so that no
// contestant pays for another's heap.
func withoutGC(f func() error) error {
	settle()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	return f()
}
