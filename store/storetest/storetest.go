// Package storetest is the conformance suite for stores. A store that passes it decides as package
// ratelimit promises, for every algorithm and every limit, and as all other stores do:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t testing.TB, clock func() time.Time) store.Store {
//			return mystore.New(mystore.WithClock(clock))
//		})
//	}
//
// The suite compares decisions with a slow and plain model, which does not share the library's
// arithmetic. model.go has the model's contract, and the file of each algorithm has what the
// algorithm promises, in exact fractions. The suite also compares them, in every field, with a
// reference store, which keeps bytes in a map. Copy it from reference.go to begin a store of your
// own.
package storetest

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// Open returns an empty store that reads the time only from clock. It is called many times, and
// should release resources with t.Cleanup. Stores on the same server are empty if they have
// different prefixes.
type Open func(t testing.TB, clock func() time.Time) store.Store

// Option configures [Run].
type Option func(*suite)

// Traces sets how many random traces of each kind are run per algorithm, 1 or more. The default is
// 300. A trace has up to 60 calls.
func Traces(n int) Option { return func(s *suite) { s.traces = n } }

// ExpiresInRealTime is for a store that expires keys by its own clock, which cannot be set, such as
// a server with TTLs. The suite then uses only windows of a minute and more, and repeats a check
// that fails after that clock may have expired state.
func ExpiresInRealTime() Option { return func(s *suite) { s.realTime = true } }

// SetBack is for a store whose clock can be set back, such as a server's. Random traces then set it
// back, and expect the store to re-anchor as package store describes. Slots of package inflight must
// then end in time, which is what SetBack of a [store.Rule] is for. Nothing else is checked, so run the
// suite without SetBack too.
func SetBack() Option { return func(s *suite) { s.setBack = true } }

// Without leaves out algorithms that the store cannot keep, by their names as in [ratelimit.New]. A
// store that cannot keep a log leaves out "sliding_log". An unknown name fails the test.
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
	for _, c := range s.checksOfStores() {
		t.Run(c.name, func(t *testing.T) { s.run(t, algorithm{}, c) })
	}
}

// check is a statement about stores, and its test.
type check struct {
	name string
	run  func(t testing.TB, s *suite, a algorithm)
}

// traceChecks are the checks that play random traces against the model.
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
	{"calls that goroutines make for two limits at once lose no event", concurrentDecides},
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
	{"the first of several lists that is admitted is charged, and no other", decidedInTurn},
	{"several limits have their turns in time or are not charged", turnsTogether},
}

// checksOfSetBack are run once on a store whose clock can be set back.
var checksOfSetBack = []check{
	{"slots that nobody renews end a lifetime after the clock was set back, and renewed ones stay", slotsEnd},
}

type suite struct {
	open       Open
	algorithms []algorithm
	without    []string // algorithms
	traces     int
	realTime   bool
	setBack    bool
	alone      bool // whether Results are not compared with those of the reference store
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

// checks returns the checks to run for each algorithm.
func (s *suite) checks() []check {
	if s.setBack {
		return traceChecks
	}
	return checks
}

// checksOfStores returns the checks to run once.
func (s *suite) checksOfStores() []check {
	switch {
	case !s.setBack:
		return checksOfStores
	case slices.Contains(s.without, "sliding_log"): // the store cannot keep a log
		return nil
	}
	return checksOfSetBack
}

// leaveOut removes what the store cannot keep.
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

// part runs f, a check or a part of one. It runs f again if the store may have lost state because
// of its own clock. State with 1 µs to live is kept for the next millisecond, and even a short part
// can take longer than that on a busy machine. Each part is independent: it uses its t and s, and
// only stores and keys that it has made.
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
