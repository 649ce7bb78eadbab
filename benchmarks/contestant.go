package main

import (
	"regexp"
	"runtime/debug"
	"time"
)

// contestant is a rate limiter that keeps its keys in memory, and how to open it for a
// workload.
type contestant struct {
	name      string // as in the tables
	module    string // whose version the report prints
	algorithm string
	ours      bool
	forgets   bool // idle keys leave by themselves, so it is worth waiting for
	open      func(workload) (limiter, error)
}

// limiter is an open contestant. Each decision costs every contestant the same indirect
// call. Other answers of a library than "allowed" are computed and dropped.
type limiter struct {
	decide func(key string) (allowed bool, err error)
	close  func()
}

// workload is what a contestant is opened for.
type workload struct {
	outcome outcome
	keys    int           // how many there will be
	window  time.Duration // of a brief workload
}

// outcome is how the decisions on keys that were seen once end.
type outcome int

const (
	allowed outcome = iota // each is admitted, and what it spends stays spent
	denied                 // each is denied
	brief                  // each is admitted, and a key goes idle within two windows
)

const year = 365 * 24 * time.Hour

// quota is a limit in terms that every contestant can express.
type quota struct {
	events int           // that a new key is admitted at once
	each   time.Duration // until a bucket that is not full has room for one more event
	window time.Duration // for the events, in algorithms that count in windows
}

// quota is the limit of a workload. The periods are long, so that a key is still known,
// and not yet fresh, when its turn comes again.
func (w workload) quota() quota {
	switch w.outcome {
	case denied:
		return quota{events: 1, each: year, window: year}
	case brief:
		return quota{events: 100_000, each: w.window, window: w.window}
	default: // a bucket refills in 95 years, which in nanoseconds fits 64 bits
		return quota{events: 200_000_000, each: 15 * time.Second, window: year}
	}
}

// contestants are all that keep keys in memory, ours first.
func contestants() []contestant {
	return append(ours(),
		xTimeRateMutex, xTimeRateSyncMap, goLimiter, throttledMemory, ululeMemory,
		httprateCounter, tollboothBuckets, slidingWindowMap, failsafeSyncMap, handLog)
}

// matching returns those of all whose names match.
func matching[C interface{ label() string }](all []C, name *regexp.Regexp) []C {
	var chosen []C
	for _, c := range all {
		if name.MatchString(c.label()) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

func (c contestant) label() string { return c.name }

// version returns the version of a module in this program, or "" if it has none.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, dep := range info.Deps {
		if dep.Path == module && dep.Replace == nil {
			return dep.Version
		}
	}
	return ""
}

func nothing() {}
