package redisstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// load is what callers of a store saw.
type load struct {
	t       testing.TB
	mu      sync.Mutex
	counts  map[string]int
	samples map[string]error
	slowest time.Duration // that a call took
	failed  []time.Time   // when calls failed
	served  time.Time     // the last call that succeeded began then
	stop    atomic.Bool
	callers sync.WaitGroup
}

// start lets callers call s without a pause, on one key, until end.
func start(t testing.TB, s *redisstore.Store, key string, callers int) *load {
	l := &load{t: t, counts: map[string]int{}, samples: map[string]error{}}
	for i := range callers {
		l.callers.Go(func() {
			for !l.stop.Load() {
				l.call(func() error {
					_, err := s.Take(context.Background(), space, key, limit, 1)
					return err
				})
				if i > 0 && l.failing() {
					time.Sleep(time.Millisecond) // refusals come fast
				}
			}
		})
	}
	return l
}

func (l *load) call(f func() error) {
	start := time.Now()
	err := f()
	took := time.Since(start)
	class := classOf(l.t, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[class]++
	l.slowest = max(l.slowest, took)
	if err == nil {
		l.served = start
		return
	}
	l.failed = append(l.failed, time.Now())
	l.samples[class] = err
}

// servedSince reports whether a call has succeeded that began after at.
func (l *load) servedSince(at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.served.After(at)
}

func (l *load) failing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.failed) > 0 && time.Since(l.failed[len(l.failed)-1]) < 10*time.Millisecond
}

func (l *load) end() {
	l.stop.Store(true)
	l.callers.Wait()
}

// run is start and end.
func run(t testing.TB, s *redisstore.Store, callers int, d time.Duration) *load {
	l := start(t, s, "k", callers)
	time.Sleep(d)
	l.end()
	return l
}

func (l *load) count(class string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[class]
}

func (l *load) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, c := range l.counts {
		n += c
	}
	return n
}

func (l *load) late() time.Duration { return l.lateAfter(redisstore.DefaultTimeout) }

// lateAfter is late of a store with this timeout.
func (l *load) lateAfter(timeout time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, l.slowest-timeout)
}

// recovered is how long calls failed after a fault at since: until there was no failure
// for a second.
func (l *load) recovered(since time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := since
	for _, at := range l.failed {
		if at.After(last) && at.Sub(last) < time.Second {
			last = at
		}
	}
	return last.Sub(since).Round(time.Millisecond)
}

func (l *load) report(what string) {
	l.t.Helper()
	l.t.Logf("%s: %v, late by at most %v", what, l.counts, l.late().Round(time.Millisecond))
	for class, err := range l.samples {
		l.t.Logf("    %s: %.200v", class, err)
	}
}
