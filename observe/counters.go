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
	tenths    = 11 // of headroom, 0 to 10
	uncounted = tenths
	maxNames  = 32 // in DeniedBy

	outcomeAllowed = "allowed"
	outcomeDenied  = "denied"
	otherName      = "other"
)

// durationBounds are the upper bounds of [Durations]: from memory to a Redis that is far away.
var durationBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	1 * time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
}

// Counters count the decisions of one limiter. They are a [ratelimit.Observer]. What reads
// them is [Counters.Snapshot]: a handler, or a collector of metrics.
//
// They hold fewer than 100 numbers, whatever the keys, in some 2 KB. A decision costs some 15 ns,
// of which 6 are the hook of [ratelimit.WithObserver], and no allocation. The numbers only grow, until
// the process ends.
//
// They are safe for concurrent use. Make them by [NewCounters].
type Counters struct {
	limiter string

	// Most decisions are on one event. They are in one counter only, so that they cost one
	// addition.
	allowed [sources][tenths + 1]atomic.Int64 // calls, by what is left; the last: uncounted
	denied  [sources]atomic.Int64             // calls
	more    [2][sources]atomic.Int64          // events beyond one a call: of admissions, of denials
	none    [2][sources]atomic.Int64          // calls for no event, which are in no other counter
	errors  [len(classes)]atomic.Int64

	names    atomic.Pointer[map[string]*atomic.Int64] // never changed, but replaced
	newName  sync.Mutex                               // held to replace names
	other    atomic.Int64                             // denials by names that found no room
	took     [len(durationBounds) + 1]atomic.Int64
	tookTime atomic.Int64 // their sum, ns
}

// NewCounters returns Counters of a limiter with this name. The name is what metrics have as
// the label "limiter", so that it should be short, and differ from that of others.
func NewCounters(limiter string) *Counters {
	return &Counters{limiter: limiter}
}

// Expect gives each of these limits a row in [Snapshot] before it denies anything, so that a rate
// over time sees its first denials. [Around] calls it where several limits decide. A
// name that is not UTF-8 is quoted, as by [strconv.QuoteToASCII].
func (c *Counters) Expect(limits ...string) {
	for _, name := range limits {
		c.named(name)
	}
}

// Decided counts a decision. It is for [Around].
func (c *Counters) Decided(_ context.Context, _ string, n int, r ratelimit.Result, err error, took time.Duration) {
	if took > 0 {
		c.measure(took)
	}
	if err != nil {
		c.errors[classOf(err)].Add(1)
		return
	}
	n = min(n, math.MaxInt32) // n can be a stranger's, and what only grows must not overflow
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

// count counts a call for n events. Other limiters than ours may decide on none, or on fewer;
// taking these from a sum would let it fall.
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

// admitted is how many of n events r, an admission, has charged: AllowUpTo may grant fewer,
// and a limit that counts calls is charged one.
func admitted(r *ratelimit.Result, n int) int {
	if charged := r.Charged(); charged > 0 && charged < n {
		return charged
	}
	return n
}

// headroom is what is left after the admission r, in tenths of its Limit, rounded up.
func headroom(r *ratelimit.Result, source ratelimit.Source) int {
	if source != ratelimit.SourceStore && !r.Counted() || r.Limit <= 0 {
		return uncounted
	}
	// Not by a division: the processor would wait for it, and guesses the branches of a loop.
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

// known are the counters of denials by name.
func (c *Counters) known() map[string]*atomic.Int64 {
	if names := c.names.Load(); names != nil {
		return *names
	}
	return nil
}

// named is the counter of denials by the limit of this name.
func (c *Counters) named(name string) *atomic.Int64 {
	if count, ok := c.known()[name]; ok {
		return count
	}
	if !utf8.ValidString(name) { // of a limiter that is not ours; one bad name would hide all metrics
		return c.named(strconv.QuoteToASCII(name))
	}
	if name == otherName || len(c.known()) >= maxNames {
		return &c.other
	}
	c.newName.Lock()
	defer c.newName.Unlock()
	names := c.known()
	if count, ok := names[name]; ok { // meanwhile
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

// Snapshot is what [Counters] have counted up to now. All numbers are totals since they
// were made.
type Snapshot struct {
	Limiter string `json:"limiter"`
	// Decisions has a row for each outcome and source that can be, counted or not, so that
	// a rate over time sees the first of them: admissions, then denials, each by source.
	Decisions []Decisions `json:"decisions"`
	// Errors has a row for each of the eleven classes, in the order of [ErrorClass].
	Errors []Errors `json:"errors"`
	// Headroom counts the calls that were admitted and counted by a limit, by the share of
	// Limit that they left: [0] nothing, [i] more than i-1 tenths and up to i tenths.
	Headroom [tenths]int64 `json:"headroom"`
	// DeniedBy counts denials by the limit that denied, where several decided together, in
	// the order of their names. Limits that are known by [Counters.Expect] have a row from the
	// start. It has the first 32 names. Then "other" is for the rest, and is the last row.
	DeniedBy []DeniedBy `json:"denied_by"`
	// Durations are how long decisions took, errors included. Nothing is counted there
	// without [Around] or [ratelimit.WithTimedObserver].
	Durations Durations `json:"durations"`
}

// Decisions are those of one outcome and source.
type Decisions struct {
	Outcome string `json:"outcome"` // "allowed" or "denied"
	Source  string `json:"source"`  // text of a [ratelimit.Source]
	Calls   int64  `json:"calls"`
	// Events are what the calls asked for, none for n below 1. Of an admission that charged
	// fewer they are those: of [ratelimit.AllowUpTo] what it granted, and of
	// [ratelimit.CountCalls] one. What that denies counts as asked; [ratelimit.WithObserver]
	// counts each call as one event. A limiter of another package does not say what it charged
	// ([ratelimit.Result.Charged]), and counts as asked.
	Events int64 `json:"events"`
}

// Errors are the calls that ended with an error of one class.
type Errors struct {
	Class string `json:"class"` // of [ErrorClass]
	Calls int64  `json:"calls"`
}

// DeniedBy are the calls that one limit denied.
type DeniedBy struct {
	Name  string `json:"name"` // of [ratelimit.Result.DeniedBy], or "other"
	Calls int64  `json:"calls"`
}

// Durations are a histogram. In JSON they are nanoseconds.
type Durations struct {
	Buckets []Bucket      `json:"buckets"` // in ascending order
	Count   int64         `json:"count"`   // of all, those above the last bound included
	Sum     time.Duration `json:"sum"`
}

// Bucket counts the durations up to Bound that are above the bound before.
type Bucket struct {
	Bound time.Duration `json:"bound"`
	Count int64         `json:"count"`
}

// Snapshot returns what has been counted. Each number is exact. Decisions made meanwhile may
// be in some of them and not yet in others.
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

// add appends a row, unless there is nothing in it and never will be. calls are those for an
// event, of which more events were asked; none are those for none.
func (s *Snapshot) add(outcome string, source int, calls, more, none int64) {
	if calls+none != 0 || canBe(outcome, ratelimit.Source(source)) {
		s.Decisions = append(s.Decisions, Decisions{outcome, ratelimit.Source(source).String(), calls + none, calls + more})
	}
}

// canBe says whether the limiters of this module make such decisions.
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
	if n := c.other.Load(); n > 0 {
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

// String is the Snapshot as JSON. So Counters are an expvar.Var, and one line shows them
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
