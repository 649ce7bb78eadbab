package observe

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ratelimit-go/ratelimit"
)

const (
	sources   = int(ratelimit.SourceBan) + 1
	tenths    = 11 // values of headroom, 0 to 10
	uncounted = tenths
	maxNames  = 32 // in DeniedBy

	outcomeAllowed = "allowed"
	outcomeDenied  = "denied"
	otherName      = "other"
)

// durationBounds are the upper bounds of [Durations]: from a store in memory to a Redis far away.
var durationBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	1 * time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
}

// Counters count the decisions of one limiter. They are a [ratelimit.Observer]. Handlers and
// metrics collectors read them with [Counters.Snapshot].
//
// Counters have a fixed size, about 2 KB, whatever the keys. A decision costs about 15
// ns, including 6 ns for the hook of [ratelimit.WithObserver], and allocates nothing. The numbers
// only grow, until the process ends.
//
// Counters are safe for concurrent use. Use [NewCounters] to create them.
type Counters struct {
	limiter string

	// Most decisions are on one event. These are in a single counter, so that they cost one
	// addition.
	allowed [sources][tenths + 1]atomic.Int64 // calls, by headroom; the last element: uncounted
	denied  [sources]atomic.Int64             // calls
	more    [2][sources]atomic.Int64          // events beyond one per call: of admissions, of denials
	none    [2][sources]atomic.Int64          // calls for no event; they are in no other counter
	errors  [len(classes)]atomic.Int64

	names    atomic.Pointer[map[string]*atomic.Int64] // the map is replaced, never changed
	newName  sync.Mutex                               // held to replace names
	other    atomic.Int64                             // denials by names beyond maxNames, and by "other"
	expected atomic.Bool                              // whether other has a row before it counts anything
	took     [len(durationBounds) + 1]atomic.Int64
	tookTime atomic.Int64 // sum of the durations, ns
}

// NewCounters returns Counters for a limiter with the given name. Metrics use the name as the value
// of their label "limiter", so it should be short and unique.
func NewCounters(limiter string) *Counters {
	return &Counters{limiter: limiter}
}

// Expect gives each of the limits a row in [Snapshot] before it denies anything, so that a rate
// over time includes its first denials. [Around] calls it if several limits decide. A name that is
// not valid UTF-8 is quoted with [strconv.QuoteToASCII].
func (c *Counters) Expect(limits ...string) {
	for _, name := range limits {
		if c.named(name) == &c.other {
			c.expected.Store(true)
		}
	}
}

// Decided counts a decision. It implements [ratelimit.Observer].
func (c *Counters) Decided(_ context.Context, _ string, n int, r ratelimit.Result, err error, took time.Duration) {
	if took > 0 {
		c.measure(took)
	}
	if err != nil {
		c.errors[classOf(err)].Add(1)
		return
	}
	n = min(n, math.MaxInt32) // n may come from a client, and a growing sum must not overflow
	source := min(r.Source(), ratelimit.Source(sources-1))
	if !r.Allowed {
		c.count(&c.denied[source], 1, source, n)
		if name := r.DeniedBy(); name != "" {
			c.named(name).Add(1)
		}
		return
	}
	c.count(&c.allowed[source][headroom(&r, source)], 0, source, admitted(&r, n))
}

// count counts a call for n events. Limiters of other packages may decide on no events, or on a
// negative number; adding these would let a sum fall.
func (c *Counters) count(calls *atomic.Int64, outcome int, source ratelimit.Source, n int) {
	if n < 1 {
		c.none[outcome][source].Add(1)
		return
	}
	calls.Add(1)
	if n > 1 {
		c.more[outcome][source].Add(int64(n) - 1)
	}
}

// admitted returns how many of n events r, an admission, has charged. AllowUpTo may grant fewer
// than n, and a limit that counts calls is charged one.
func admitted(r *ratelimit.Result, n int) int {
	if charged := r.Charged(); charged > 0 && charged < n {
		return charged
	}
	return n
}

// headroom returns what is left after the admission r, in tenths of its Limit, rounded up.
func headroom(r *ratelimit.Result, source ratelimit.Source) int {
	if source != ratelimit.SourceStore && !r.Counted() || r.Limit <= 0 {
		return uncounted
	}
	// A loop is faster than a division, because the processor predicts its branches.
	left, limit := 10*int64(min(r.Remaining, math.MaxInt32)), int64(min(r.Limit, math.MaxInt32))
	tenth := 10
	for tenth > 0 && left <= int64(tenth-1)*limit {
		tenth--
	}
	return tenth
}

func (c *Counters) measure(took time.Duration) {
	i := 0
	for i < len(durationBounds) && took > durationBounds[i] {
		i++
	}
	c.took[i].Add(1)
	c.tookTime.Add(int64(took))
}

// known returns the counters of denials by name.
func (c *Counters) known() map[string]*atomic.Int64 {
	if names := c.names.Load(); names != nil {
		return *names
	}
	return nil
}

// named returns the counter of denials by the limit with the given name.
func (c *Counters) named(name string) *atomic.Int64 {
	if count, ok := c.known()[name]; ok {
		return count
	}
	if !utf8.ValidString(name) { // from a limiter of another package; one bad name would hide all metrics
		return c.named(strconv.QuoteToASCII(name))
	}
	if name == otherName || len(c.known()) >= maxNames {
		return &c.other
	}
	c.newName.Lock()
	defer c.newName.Unlock()
	names := c.known()
	if count, ok := names[name]; ok { // another caller has added it
		return count
	}
	if len(names) >= maxNames {
		return &c.other
	}
	names = maps.Clone(names)
	if names == nil {
		names = make(map[string]*atomic.Int64)
	}
	count := new(atomic.Int64)
	names[strings.Clone(name)] = count
	c.names.Store(&names)
	return count
}

// Snapshot holds the numbers that [Counters] have counted so far. All are totals since the Counters
// were created.
type Snapshot struct {
	Limiter string `json:"limiter"`
	// Decisions has a row for each possible outcome and source, even if nothing was counted, so
	// that a rate over time includes the first decision. Admissions come first, then denials, each
	// ordered by source.
	Decisions []Decisions `json:"decisions"`
	// Errors has a row for each of the eleven classes, in the order of [ErrorClass].
	Errors []Errors `json:"errors"`
	// Headroom counts the calls that were admitted and counted by a limit, by the share of Limit
	// that they left: [0] nothing, [i] more than i-1 tenths and up to i tenths.
	Headroom [tenths]int64 `json:"headroom"`
	// DeniedBy counts denials by the limit that denied, if several limits decided together. It is
	// sorted by name. Limits passed to [Counters.Expect] have a row from the start. Only the first
	// 32 names have rows of their own; the last row, "other", counts the denials by all further
	// ones.
	DeniedBy []DeniedBy `json:"denied_by"`
	// Durations counts how long decisions took, including those that returned errors. It stays
	// empty without [Around] or [ratelimit.WithTimedObserver].
	Durations Durations `json:"durations"`
}

// Decisions counts the decisions with one outcome and source.
type Decisions struct {
	Outcome string `json:"outcome"` // "allowed" or "denied"
	Source  string `json:"source"`  // the String of a [ratelimit.Source]
	Calls   int64  `json:"calls"`
	// Events is the number of events that the calls asked for, not counting any n below 1. If an
	// admission charged fewer events, those are counted: the events that [ratelimit.AllowUpTo]
	// granted, and one with [ratelimit.CountCalls]. A denial by a limit with CountCalls counts all
	// events that were asked for, but with [ratelimit.WithObserver], each call counts as one event.
	// A limiter of another package does not report what it charged ([ratelimit.Result.Charged]), so
	// all events are counted.
	Events int64 `json:"events"`
}

// Errors counts the calls that returned an error of one class.
type Errors struct {
	Class string `json:"class"` // see [ErrorClass]
	Calls int64  `json:"calls"`
}

// DeniedBy counts the calls that one limit denied.
type DeniedBy struct {
	Name  string `json:"name"` // see [ratelimit.Result.DeniedBy], or "other"
	Calls int64  `json:"calls"`
}

// Durations is a histogram. In JSON, its durations are in nanoseconds.
type Durations struct {
	Buckets []Bucket      `json:"buckets"` // in ascending order
	Count   int64         `json:"count"`   // of all durations, including those above the last bound
	Sum     time.Duration `json:"sum"`
}

// Bucket counts the durations above the previous bound and up to Bound.
type Bucket struct {
	Bound time.Duration `json:"bound"`
	Count int64         `json:"count"`
}

// Snapshot returns the current numbers. Each number is exact, but decisions that are made at the
// same time may be in some of them and not yet in others.
func (c *Counters) Snapshot() Snapshot {
	s := Snapshot{Limiter: c.limiter, DeniedBy: c.deniedBy(), Durations: c.durations()}
	for source := range sources {
		var calls int64
		for left := range c.allowed[source] {
			n := c.allowed[source][left].Load()
			calls += n
			if left != uncounted {
				s.Headroom[left] += n
			}
		}
		s.add(outcomeAllowed, source, calls, c.more[0][source].Load(), c.none[0][source].Load())
	}
	for source := range sources {
		s.add(outcomeDenied, source, c.denied[source].Load(), c.more[1][source].Load(), c.none[1][source].Load())
	}
	for i := range classes {
		s.Errors = append(s.Errors, Errors{classes[i].name, c.errors[i].Load()})
	}
	return s
}

// add appends a row, unless it is empty and always will be. The arguments are the number of calls
// for at least one event, of their events beyond one per call, and of calls for no event.
func (s *Snapshot) add(outcome string, source int, calls, more, none int64) {
	if calls+none != 0 || canBe(outcome, ratelimit.Source(source)) {
		s.Decisions = append(s.Decisions, Decisions{outcome, ratelimit.Source(source).String(), calls + none, calls + more})
	}
}

// canBe reports whether the limiters of this module make decisions with the outcome and source.
func canBe(outcome string, source ratelimit.Source) bool {
	switch source {
	case ratelimit.SourceFailOpen, ratelimit.SourceUnlimited:
		return outcome == outcomeAllowed
	case ratelimit.SourceFailClosed, ratelimit.SourceDenyCache, ratelimit.SourceZeroRate, ratelimit.SourceBan:
		return outcome == outcomeDenied
	}
	return true
}

func (c *Counters) deniedBy() []DeniedBy {
	names := c.known()
	rows := make([]DeniedBy, 0, len(names)+1)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		rows = append(rows, DeniedBy{name, names[name].Load()})
	}
	if n := c.other.Load(); n > 0 || c.expected.Load() {
		rows = append(rows, DeniedBy{otherName, n})
	}
	return rows
}

func (c *Counters) durations() Durations {
	d := Durations{Sum: time.Duration(c.tookTime.Load()), Buckets: make([]Bucket, len(durationBounds))}
	for i, bound := range durationBounds {
		d.Buckets[i] = Bucket{bound, c.took[i].Load()}
		d.Count += d.Buckets[i].Count
	}
	d.Count += c.took[len(durationBounds)].Load()
	return d
}

// String returns the Snapshot as JSON, which makes Counters an expvar.Var. This line shows them
// under /debug/vars:
//
//	expvar.Publish("ratelimit", counters)
func (c *Counters) String() string {
	text, err := json.Marshal(c.Snapshot())
	if err != nil {
		return "null"
	}
	return string(text)
}

var _ ratelimit.Observer = (*Counters)(nil)
