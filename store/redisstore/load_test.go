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
	slowest time.Duration // over the store's default timeout
	failed  time.Time     // when the last call failed
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
	l.slowest = max(l.slowest, took-50*time.Millisecond)
	if err != nil {
		l.failed, l.samples[class] = time.Now(), err
	}
}

func (l *load) failing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.failed) < 10*time.Millisecond
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

func (l *load) late() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, l.slowest)
}

// lastFailure is when a call failed last; the zero time if none did.
func (l *load) lastFailure() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

func (l *load) report(what string) {
	l.t.Helper()
	l.t.Logf("%s: %v, late by at most %v", what, l.counts, l.late().Round(time.Millisecond))
	for class, err := range l.samples {
		l.t.Logf("    %s: %.200v", class, err)
	}
}
