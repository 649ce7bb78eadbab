// Package storetest is the conformance suite for stores. A store that passes it decides
// as the laws of package ratelimit say, for every algorithm and every limit, and as all
// other stores do:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t testing.TB, clock func() time.Time) store.Store {
//			return mystore.New(mystore.WithClock(clock))
//		})
//	}
//
// The suite compares decisions with a slow and plain model, which knows what each algorithm
// promises and not how the library computes it: model.go, in exact fractions. It also compares
// them, in every field, with a reference store, which keeps bytes in a map. Copy it from
// reference.go to begin a store of your own.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// Open returns an empty store that reads the time only from clock. It is called many
// times, and releases resources with t.Cleanup. Stores on one server are empty if they
// have different prefixes.
type Open func(t testing.TB, clock func() time.Time) store.Store

// Option is an optional setting of [Run].
type Option func(*suite)

// Traces sets how many random traces of each kind are run for each algorithm, 1 or more. The
// default is 300. A trace has up to 60 calls.
func Traces(n int) Option { return func(s *suite) { s.traces = n } }

// ExpiresInRealTime is for a store that forgets keys by a clock of its own that cannot be
// set, such as a server with TTLs. The suite then uses only windows of a minute and more.
// If a check fails after that clock may have expired state, it is run again.
func ExpiresInRealTime() Option { return func(s *suite) { s.realTime = true } }

// SetBack is for a store whose clock can be set back, such as a server's. Random traces then set it
// back, and expect that the store re-anchors as package store says. Nothing else is checked: run
// the suite without it too.
func SetBack() Option { return func(s *suite) { s.setBack = true } }

// Without leaves out algorithms that the store cannot keep, by their names as in
// [ratelimit.New]. A store with no place for a log leaves out "sliding_log". An unknown
// name fails the test.
func Without(names ...string) Option {
	return func(s *suite) { s.without = append(s.without, names...) }
}

// Run runs the suite on the stores that open returns.
func Run(t *testing.T, open Open, opts ...Option) {
	s := newSuite(open, opts...)
	if err := s.leaveOut(); err != nil {
		t.Fatal(err)
	}
	for _, a := range s.algorithms {
		t.Run(a.name, func(t *testing.T) {
			for _, c := range s.checks() {
				t.Run(c.name, func(t *testing.T) { s.run(t, a, c) })
			}
		})
	}
	if s.setBack {
		return
	}
	for _, c := range checksOfStores {
		t.Run(c.name, func(t *testing.T) { s.run(t, algorithm{}, c) })
	}
}

// check is a statement about stores, and its test.
type check struct {
	name string
	run  func(t testing.TB, s *suite, a algorithm)
}

// traceChecks are those that play random traces against the model.
var traceChecks = []check{
	{"random traces agree with exact arithmetic", tracesAgree},
	{"random traces with changing limits agree with exact arithmetic", changingTracesAgree},
}

// checks are run for each algorithm.
var checks = append(slices.Clone(traceChecks), []check{
	{"a trace answers the same without its denials and Peeks", denialsChangeNothing},
	{"at one instant exactly the capacity is admitted", exactlyTheCapacity},
	{"a denied call is admitted at RetryAfter and not 1 µs before", retryAfterIsExact},
	{"at ResetAfter a key is as never seen, and not 1 µs before", resetAfterIsExact},
	{"more than the capacity is never admitted and costs nothing", tooManyCostNothing},
	{"Peek answers what Take would", peekAnswersAsTake},
	{"no interval admits more than the bound", boundHolds},
	{"a long run admits what exact arithmetic admits", longRun},
	{"a late reading of the clock mints nothing", lateReadingsMintNothing},
	{"a refund gives back only what is still charged", refunds},
	{"what ends when 1970 begins can be refunded as all else", endsAtZero},
	{"a changed limit keeps the spend and locks nobody out", limitChanges},
	{"a refund after a changed limit mints nothing", refundsAfterChange},
	{"after Reset a key is as never seen", resetForgets},
	{"64 goroutines share exactly the capacity", concurrentTakes},
	{"what goroutines refund is there again, exactly", concurrentRefunds},
	{"bad input never reaches the store", badInput},
	{"a rate of 0 denies everything and never reaches the store", rateOfZero},
	{"what is charged past the limit counts", debts},
	{"what was worked out by hand for it", storiesHold},
	{"each of several requests has its own turn", turnsOfRequests},
	{"a call that can wait is admitted at RetryAfter and not 1 µs before", retryAfterWithinIsExact},
	{"no interval has more turns than the bound", turnsKeepTheBound},
}...)

// checksOfStores are run once, with all algorithms on one store.
var checksOfStores = []check{
	{"different limiters never share a key", limitersAreApart},
	{"limiters of one name share across rates and bursts", namesShare},
	{"equal keys share a bucket, and only equal ones", keysAreExact},
	{"several limits are charged together or not at all", decidedTogether},
	{"shadows and looks have no say in what is charged together", decidedByTheCall},
	{"a gate that denies keeps all from being charged", decidedByGates},
	{"several limits have their turns in time or are not charged", turnsTogether},
}

type suite struct {
	open       Open
	algorithms []algorithm
	without    []string // algorithms
	traces     int
	realTime   bool
	setBack    bool
	alone      bool // Results are not compared with those of the reference store
	late       *atomic.Bool
}

func newSuite(open Open, opts ...Option) *suite {
	s := &suite{open: open, algorithms: algorithms, traces: 300, late: new(atomic.Bool)}
	for _, opt := range opts {
		opt(s)
	}
	if testing.Short() && s.traces > 0 {
		s.traces = (s.traces + 9) / 10
	}
	return s
}

// checks are those to run for each algorithm.
func (s *suite) checks() []check {
	if s.setBack {
		return traceChecks
	}
	return checks
}

// leaveOut leaves out what the store cannot keep.
func (s *suite) leaveOut() error {
	var left []algorithm
	for _, name := range s.without {
		if !slices.ContainsFunc(algorithms, func(a algorithm) bool { return a.name == name }) {
			return fmt.Errorf("Without(%q): there is no such algorithm", name)
		}
	}
	for _, a := range s.algorithms {
		if !slices.Contains(s.without, a.name) {
			left = append(left, a)
		}
	}
	switch {
	case len(left) == 0:
		return errors.New("Without leaves no algorithm")
	case s.traces < 1:
		return fmt.Errorf("Traces(%d), want 1 or more", s.traces)
	}
	s.algorithms = left
	return nil
}

func (s *suite) run(t testing.TB, a algorithm, c check) {
	t.Helper()
	s.part(t, func(t testing.TB, s *suite) { c.run(t, s, a) })
}

// part runs f, a check or a part of one. It runs f again if the store may have lost state
// to its own clock. State with 1 µs to live is kept for the next millisecond. A short
// part can be decided sooner on a busy machine. Each part stands on its own: it uses its
// t and s, and only stores and keys that it has made.
func (s *suite) part(t testing.TB, f func(t testing.TB, s *suite)) {
	t.Helper()
	if !s.realTime {
		f(t, s)
		return
	}
	const attempts, patience = 10, time.Minute // a busy server loses state while it is busy
	began := time.Now()
	for i := 1; ; i++ {
		this := *s
		this.late = new(atomic.Bool)
		messages, failed := try(t, func(t testing.TB) { f(t, &this) })
		if !failed {
			return
		}
		if !this.late.Load() || i >= attempts && time.Since(began) > patience {
			t.Fatalf("attempt %d, state may have expired: %v\n%s", i, this.late.Load(), messages)
		}
	}
}

// attempt is a test that can fail without failing its parent.
type attempt struct {
	testing.TB
	messages strings.Builder
	failed   bool
}

// try runs f to its end or its first Fatal.
func try(t testing.TB, f func(testing.TB)) (messages string, failed bool) {
	a := &attempt{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(a)
	}()
	<-done
	return a.messages.String(), a.failed
}

func (a *attempt) Errorf(format string, args ...any) {
	a.failed = true
	fmt.Fprintf(&a.messages, format+"\n", args...)
}

func (a *attempt) Error(args ...any) { a.Errorf("%s", fmt.Sprintln(args...)) }

func (a *attempt) Fail() { a.failed = true }

func (a *attempt) Failed() bool { return a.failed }

func (a *attempt) FailNow() {
	a.failed = true
	runtime.Goexit()
}

func (a *attempt) Fatalf(format string, args ...any) {
	a.Errorf(format, args...)
	runtime.Goexit()
}

func (a *attempt) Fatal(args ...any) { a.Fatalf("%s", fmt.Sprintln(args...)) }

// epoch is when the suite's time starts: the beginning of a minute, an hour and a day in
// UTC.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clock is a clock that is set by hand. Its readings are never whole microseconds; a
// store drops the rest.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.us.Store(epoch.UnixMicro())
	return c
}

func (c *clock) read() time.Time         { return time.UnixMicro(c.us.Load()).Add(999 * time.Nanosecond) }
func (c *clock) set(us int64)            { c.us.Store(us) }
func (c *clock) advance(d time.Duration) { c.us.Add(d.Microseconds()) }

// bench is a store under test, with its clock.
type bench struct {
	*clock
	t     testing.TB
	suite *suite
	store store.Store
}

func (s *suite) bench(t testing.TB) *bench {
	t.Helper()
	c := newClock()
	return &bench{clock: c, t: t, suite: s, store: s.open(t, c.read)}
}

// limiter returns a limiter on the store of b. l must be valid.
func (b *bench) limiter(algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	b.t.Helper()
	lim, err := ratelimit.New(algorithm, b.store, l, opts...)
	if err != nil {
		b.t.Fatalf("New(%q, %v): %v", algorithm, l, err)
	}
	if b.suite.realTime {
		lim = &watch{Limiter: lim, late: b.suite.late, ends: map[string]time.Time{}}
	}
	return lim
}

// key is one key of one limiter. Its calls must not fail.
type key struct {
	*bench
	lim  ratelimit.Limiter
	name string
}

// key returns a key of a limiter of l.
func (b *bench) key(algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) *key {
	b.t.Helper()
	return &key{bench: b, lim: b.limiter(algorithm, l, opts...), name: "key"}
}

// at sets the clock to d after [epoch].
func (k *key) at(d time.Duration) *key {
	k.set(epoch.UnixMicro() + d.Microseconds())
	return k
}

func (k *key) allow(n int) ratelimit.Result {
	k.t.Helper()
	r, err := k.lim.AllowN(context.Background(), k.name, n)
	if err != nil {
		k.t.Fatalf("AllowN(%d): %v", n, err)
	}
	return r
}

func (k *key) allowWithin(n int, d time.Duration) ratelimit.Result {
	k.t.Helper()
	r, err := ratelimit.AllowWithin(context.Background(), k.lim, k.name, n, d)
	if err != nil {
		k.t.Fatalf("AllowWithin(%d, %v): %v", n, d, err)
	}
	return r
}

func (k *key) peek() ratelimit.Result {
	k.t.Helper()
	r, err := k.lim.Peek(context.Background(), k.name)
	if err != nil {
		k.t.Fatalf("Peek: %v", err)
	}
	return r
}

// take admits n events.
func (k *key) take(n int) ratelimit.Result {
	k.t.Helper()
	r := k.allow(n)
	if !r.Allowed {
		k.t.Fatalf("AllowN(%d) is denied: %+v", n, r)
	}
	return r
}

// deny expects n events to be denied.
func (k *key) deny(n int) ratelimit.Result {
	k.t.Helper()
	r := k.allow(n)
	if r.Allowed {
		k.t.Fatalf("AllowN(%d) is admitted: %+v", n, r)
	}
	return r
}

func (k *key) refund(r ratelimit.Result, n int) {
	k.t.Helper()
	if err := k.lim.Refund(context.Background(), k.name, r, n); err != nil {
		k.t.Fatalf("Refund(%+v, %d): %v", r, n, err)
	}
}

func (k *key) reset() {
	k.t.Helper()
	if err := k.lim.Reset(context.Background(), k.name); err != nil {
		k.t.Fatalf("Reset: %v", err)
	}
}

// has expects n events to be left.
func (k *key) has(n int) {
	k.t.Helper()
	if r := k.peek(); r.Remaining != n {
		k.t.Fatalf("Remaining is %d, want %d: %+v", r.Remaining, n, r)
	}
}

// resetsAfter expects the key to be fully reset after d.
func (k *key) resetsAfter(d time.Duration) {
	k.t.Helper()
	if r := k.peek(); r.ResetAfter != d {
		k.t.Fatalf("ResetAfter is %v, want %v: %+v", r.ResetAfter, d, r)
	}
}

// watch is a limiter that notices if the store may have forgotten a key that is in force
// by the suite's clock.
type watch struct {
	ratelimit.Limiter
	late *atomic.Bool

	mu   sync.Mutex
	ends map[string]time.Time // of each key, in real time
}

func (w *watch) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return w.AllowN(ctx, key, 1)
}

func (w *watch) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return w.charged(key, func() (ratelimit.Result, error) { return w.Limiter.AllowN(ctx, key, n) })
}

func (w *watch) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	r, err = w.charged(key, func() (ratelimit.Result, error) {
		granted, r, err = w.Limiter.(upTo).AllowUpTo(ctx, key, n)
		return r, err
	})
	return granted, r, err
}

func (w *watch) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return w.charged(key, func() (ratelimit.Result, error) { return w.Limiter.(ratelimit.Charger).Charge(ctx, key, n) })
}

// AllowWithin implements [ratelimit.Delayer].
func (w *watch) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	return w.charged(key, func() (ratelimit.Result, error) { return ratelimit.AllowWithin(ctx, w.Limiter, key, n, d) })
}

// charged watches a call that may charge key.
func (w *watch) charged(key string, call func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	start := time.Now()
	r, err := call()
	w.check(key)
	if r.Allowed {
		w.end(key, start.Add(r.ResetAfter))
	}
	return r, err
}

func (w *watch) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	r, err := w.Limiter.Peek(ctx, key)
	w.check(key)
	return r, err
}

func (w *watch) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	start := time.Now()
	err := w.Limiter.Refund(ctx, key, charged, n)
	w.check(key)
	if err != nil {
		return err
	}
	if r, err := w.Limiter.Peek(ctx, key); err == nil {
		w.end(key, start.Add(r.ResetAfter)) // no later than before
	}
	return nil
}

func (w *watch) Reset(ctx context.Context, key string) error {
	w.mu.Lock()
	delete(w.ends, key)
	w.mu.Unlock()
	return w.Limiter.Reset(ctx, key)
}

func (w *watch) end(key string, end time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends[key] = end
}

// slack is by how much the server's clock may differ from what it was, for it can be set.
const slack = 100 * time.Millisecond

func (w *watch) check(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end, found := w.ends[key]; found && !time.Now().Add(slack).Before(end) {
		w.late.Store(true)
	}
}
