// Package ratelimit decides whether an event may happen now: five algorithms
// behind one [Limiter] interface, each on an in-memory store or on Redis, with
// the same decisions on both.
//
//	mem, err := memstore.New()
//	...
//	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(10))
//	...
//	r, err := limiter.Allow(ctx, "user:42")
//	switch {
//	case err != nil: // no decision is known: the caller chooses
//	case !r.Allowed: // come back after r.RetryAfter
//	}
//
// Use [FixedWindow] if a counter that starts again with each minute or hour is
// what your users expect, [SlidingWindow] for the same without the double burst
// at the edge, [SlidingLog] where the limit must hold in every window exactly,
// [TokenBucket] for a sustained rate with bursts, and [LeakyBucket] to pace work
// at a constant rate.
//
// What is built on them are limiters again: [All] for several limits at once, [Rekeyed]
// for a limit by another key, [DenyCache] for floods of denied calls on Redis, and
// [Failover] for an answer while Redis is down. [WithTiers] and [WithLimitFunc] give keys
// limits of their own, [Reserve] is for costs that are known afterwards, and [Wait]
// blocks until an event is admitted.
//
// Arithmetic is in integers from end to end, time is in whole microseconds, and
// a denial costs nothing. What a decision costs, and what each algorithm
// promises at its worst edge, stands with its type.
package ratelimit

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// Limiter decides on events of keys. All its methods are safe for concurrent
// use.
//
// A denial is a [Result], never an error. An error means that no decision is
// known (after a lost reply the charge may stand), and the Result beside it is
// zero. Errors are the package's Err values, ctx's own, or those of the function
// given to [WithLimitFunc].
type Limiter interface {
	// Allow is AllowN of 1.
	Allow(ctx context.Context, key string) (Result, error)
	// AllowN decides on n events at once: all are admitted and charged, or none.
	// A denied call costs nothing, however large n is.
	AllowN(ctx context.Context, key string, n int) (Result, error)
	// Peek answers what Allow would, and charges nothing. Its Remaining and
	// ResetAfter are the key's as it stands.
	Peek(ctx context.Context, key string) (Result, error)
	// Refund gives back n of the events that charged admitted, as far as they are
	// still charged: what has been refilled, drained or has left the window since
	// (to within 1 µs) does not come back a second time. Refund each event once: a
	// second Refund of the same events takes those of other calls.
	Refund(ctx context.Context, key string, charged Result, n int) error
	// Reset forgets key, as if it had never been seen.
	Reset(ctx context.Context, key string) error
}

// Never is the RetryAfter of an event that no waiting will admit.
const Never time.Duration = math.MaxInt64

// Result is a decision. Its durations are whole microseconds, rounded up.
// Results can be compared with ==.
type Result struct {
	Allowed    bool
	Limit      int           // the most events that could be admitted at one instant (rate, or burst)
	Remaining  int           // events that would be admitted now, 0 to Limit
	RetryAfter time.Duration // 0 if allowed; the exact wait after which the same call would be; Never if it never would
	ResetAfter time.Duration // until the key is as if never seen
	Delay      time.Duration // how long an admitted event waits for its turn: LeakyBucket, AllowWithin; 0 elsewhere

	at      int64 // when the events were charged, Unix µs of the store's clock
	period  int64 // of the limit under which they were, µs
	n, rate int32 // how many were charged, 0 if none; the Rate of that limit

	details *details // nil unless a wrapper had a part in it
}

// Errors, for use with errors.Is. Texts name the offending values.
var (
	// ErrInvalidLimit: a limit out of range, or one the algorithm cannot keep.
	ErrInvalidLimit = errors.New("ratelimit: invalid limit")
	// ErrInvalidN: a number of events below 1, or a Refund of a Result that
	// charged nothing.
	ErrInvalidN = errors.New("ratelimit: invalid number of events")
	// ErrInvalidKey: an empty key, or one longer than 64 KiB.
	ErrInvalidKey = errors.New("ratelimit: invalid key")
	// ErrInvalidOption: an unusable store, client, name or option.
	ErrInvalidOption = store.ErrInvalidOption
	// ErrStore: the store failed, and no decision is known.
	ErrStore = store.ErrStore
)

const (
	maxKey    = 64 << 10                    // bytes
	maxEvents = math.MaxInt32               // of a Rate and of a Burst
	maxRefill = 100 * 365 * 24 * 3600 * 1e6 // µs in which a bucket refills
	beyond    = int64(maxEvents) + 1        // as good as any larger number of events
)

// Option sets what is optional about a limiter.
type Option func(*limiter) error

// WithName gives the limiter a namespace of its own in its store. Limiters of
// the same algorithm and Period that share a name share their keys' spend, and
// the spend stays when Rate or Burst change. Without it the Rate and Burst are
// part of the namespace, so that limiters of different limits never share.
//
// The name must not be empty or contain braces, which Redis reads as hash tags.
func WithName(name string) Option {
	return func(lim *limiter) error {
		if name == "" || strings.ContainsAny(name, "{}") {
			return fmt.Errorf("%w: WithName(%q): a name is not empty and has no braces", ErrInvalidOption, name)
		}
		lim.name = name
		return nil
	}
}

// WithPolicyName sets what the limiter is called where people read it: the Name of its
// [Policy], [Result.DeniedBy], header fields. Without it that is its name, and without
// one its limit as text. It has no part in whose spend is whose. The title must not be
// empty.
func WithPolicyName(title string) Option {
	return func(lim *limiter) error {
		if title == "" {
			return fmt.Errorf("%w: WithPolicyName(%q)", ErrInvalidOption, title)
		}
		lim.title = title
		return nil
	}
}

// WithLimitFunc asks f for the limit of each key on each call: tiers, limits per
// user, limits that follow load. The zero Limit means the constructor's; an
// invalid one is [ErrInvalidLimit] for that call, and an error of f is returned
// as it is; nothing is consumed then. f must be safe for concurrent use.
//
// A key keeps its spend when its limit changes: it is read as at most the new
// capacity, so that a change is never a free burst above the new limit and never
// locks a key out for longer than a full refill. It keeps it for the ResetAfter of
// its last admission: from then on the key is as never seen, even if by a slower
// limit of today it would last longer, and so RetryAfter may be too long until then.
// What the window counters have counted in another Period ends with today's window.
func WithLimitFunc(f func(ctx context.Context, key string) (Limit, error)) Option {
	return func(lim *limiter) error {
		if f == nil {
			return fmt.Errorf("%w: WithLimitFunc(nil)", ErrInvalidOption)
		}
		lim.limitFunc = f
		return nil
	}
}

// New returns a limiter by the algorithm's name, for configuration files:
// "fixed_window", "sliding_window", "sliding_log", "token_bucket" or
// "leaky_bucket".
func New(algorithm string, s store.Store, l Limit, opts ...Option) (Limiter, error) {
	switch algorithm {
	case fixedWindow.rule.Name:
		return asLimiter(NewFixedWindow(s, l, opts...))
	case slidingWindow.rule.Name:
		return asLimiter(NewSlidingWindow(s, l, opts...))
	case slidingLog.rule.Name:
		return asLimiter(NewSlidingLog(s, l, opts...))
	case tokenBucket.rule.Name:
		return asLimiter(NewTokenBucket(s, l, opts...))
	case leakyBucket.rule.Name:
		return asLimiter(NewLeakyBucket(s, l, opts...))
	}
	return nil, fmt.Errorf("%w: no algorithm %q: it is one of fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket",
		ErrInvalidOption, algorithm)
}

// asLimiter keeps a nil pointer from becoming a Limiter that is not nil.
func asLimiter[L Limiter](lim L, err error) (Limiter, error) {
	if err != nil {
		return nil, err
	}
	return lim, nil
}

// algorithm is one of the five: the rule that stores run, and the report that
// makes a Result of their replies.
type algorithm struct {
	rule store.Rule
	// burst says that limits have a Burst of their own; elsewhere the capacity is
	// the Rate.
	burst bool
	// report tells what r means: charged of its n events were charged, all or
	// none.
	report func(l store.Limit, r store.Reply, n, charged int64) verdict
	// after is what r becomes once n events have been charged.
	after func(r store.Reply, n int64) store.Reply
	// spent is how many whole events the state held by r; nil for a log, which has room
	// for any number.
	spent func(r store.Reply) int64
}

// afterY and afterZ are the two after functions: a reply counts spend in Y, or in Z.
func afterY(r store.Reply, n int64) store.Reply {
	r.Y += n
	return r
}

func afterZ(r store.Reply, n int64) store.Reply {
	r.Z += n
	return r
}

// spentY and spentZ are the two spent functions.
func spentY(r store.Reply) int64 { return r.Y }
func spentZ(r store.Reply) int64 { return r.Z }

// verdict is what a report knows: an event count, and three durations in µs.
// Four fields are the most that Go keeps in registers.
type verdict struct {
	remaining, retry, reset, delay int64
}

// limiter is what the five types have in common, and all of them but their
// names: a type differs from the others in its algorithm.
type limiter struct {
	algorithm *algorithm
	store     store.Store
	space     *store.Namespace
	name      string
	title     string // by WithPolicyName, or else the name, or the limit as text
	limit     Limit
	integers  store.Limit // limit as the store reads it
	policy    Policy      // by limit
	limitFunc func(ctx context.Context, key string) (Limit, error)
	lines     *lines // nil unless calls are coalesced
}

func newLimiter(a *algorithm, s store.Store, l Limit, opts []Option) (limiter, error) {
	lim := limiter{algorithm: a, store: s, limit: l}
	if isnil.Is(s) {
		return limiter{}, fmt.Errorf("%w: the store is nil", ErrInvalidOption)
	}
	var err error
	if lim.integers, err = a.integers(l); err != nil {
		return limiter{}, err
	}
	for _, opt := range opts {
		if opt == nil {
			return limiter{}, fmt.Errorf("%w: an Option is nil", ErrInvalidOption)
		}
		if err := opt(&lim); err != nil {
			return limiter{}, err
		}
	}
	if lim.title == "" {
		lim.title = cmp.Or(lim.name, l.String())
	}
	lim.policy = lim.policyOf(l, lim.integers)
	lim.space = store.NewNamespace(&a.rule, lim.identity())
	s.Prepare(&a.rule)
	return lim, nil
}

// identity names the limiter's space: the Period, and the name or else the rate
// and burst. No name can be taken for a rate, which has no "=".
func (lim *limiter) identity() string {
	period := strconv.FormatInt(lim.integers.Period, 10)
	if lim.name != "" {
		return period + ":=" + lim.name
	}
	return fmt.Sprintf("%s:%d,%d", period, lim.integers.Rate, lim.integers.Burst)
}

// Limit returns the constructor's limit.
func (lim *limiter) Limit() Limit { return lim.limit }

// Name returns the name given by [WithName], "" if none.
func (lim *limiter) Name() string { return lim.name }

// Peek answers what Allow would, and charges nothing.
func (lim *limiter) Peek(ctx context.Context, key string) (res Result, err error) {
	err = lim.decide(ctx, key, 1, peek, nil, &res)
	return res, err
}

// AllowUpTo admits as many of n events as fit: granted of them, 0 to n. Its Result is
// that of AllowN(granted), and where nothing is granted that of Allow. What does not
// fit costs nothing.
func (lim *limiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r Result, err error) {
	err = lim.decide(ctx, key, n, takeUpTo, nil, &r)
	if r.Source() == SourceUnlimited {
		return n, r, err
	}
	return int(r.n), r, err
}

// Charge charges n events that have happened already, whether they fit or not: what
// exceeds an estimate ([Reserve]). Its Result says Allowed, and can be refunded;
// Remaining is 0 while the key is past its limit.
//
// Later calls wait until what was charged past the limit has gone:
//
//   - In the two buckets it drains as all else does, and nothing is admitted until the
//     level is below the Burst. A level ends at 2^31-1 events, and where it takes 100
//     years to drain by today's limit.
//   - In a [SlidingLog] it leaves after a Period.
//   - A window counts it in full, up to 2^31-1 events, and reads a count above its Rate
//     as its Rate. So a debt ends with a [FixedWindow]. On the next window of a
//     [SlidingWindow] it weighs as a full window does, and no more. For estimates that
//     may be far off use a bucket.
//
// Debts of several Charges add up. They can be refunded in any order, as far as they are
// still charged, also after other admissions. (A [LeakyBucket] refunds its tail only.)
//
// A Charge that finds a level or a count at its end charges nothing, and has nothing to
// refund. Under a limit of Rate 0 nothing is charged, and the Result is its denial.
func (lim *limiter) Charge(ctx context.Context, key string, n int) (res Result, err error) {
	err = lim.decide(ctx, key, n, force, nil, &res)
	return res, err
}

// operation is what a limiter asks its store for.
type operation uint8

const (
	take operation = iota
	takeUpTo
	peek
	force
	takeWithin // asked for of limiters; a store is asked to take under a limit with a Before
)

// decide is AllowN, AllowUpTo, Peek or Charge, by the limit given, if that is not nil. It
// fills the caller's Result in place, which is too large to be returned through
// several levels for nothing.
func (lim *limiter) decide(ctx context.Context, key string, n int, what operation, given *store.Limit, res *Result) error {
	if err := lim.check(ctx, key, n); err != nil {
		return err
	}
	l := lim.integers
	switch {
	case given != nil:
		l = *given
	case lim.limitFunc != nil:
		var err error
		if l, err = lim.limitOf(ctx, key); err != nil {
			return err
		}
	}
	if l.Rate <= 0 {
		res.withoutStore(l)
		return nil
	}
	if lim.lines != nil && what == take && n == 1 && l.Before == 0 {
		return lim.allowInLine(ctx, key, l, res)
	}
	events := min(int64(n), beyond)
	var r store.Reply
	var err error
	switch what {
	case take:
		r, err = lim.store.Take(ctx, lim.space, key, l, events)
	case takeUpTo:
		r, err = lim.store.TakeUpTo(ctx, lim.space, key, l, events)
		events = max(1, min(events, lim.algorithm.rule.Available(l, r)))
	case peek:
		r, err = lim.store.Peek(ctx, lim.space, key, l, events)
	case force:
		return lim.force(ctx, key, l, events, res)
	}
	if err != nil {
		return err
	}
	charged := events
	if !r.OK || what == peek {
		charged = 0
	}
	res.tell(lim.algorithm.report(l, r, events, charged), r.OK, events, l.Burst)
	res.sign(l, r.X, charged)
	return nil
}

// force is decide for events that are charged in any case.
func (lim *limiter) force(ctx context.Context, key string, l store.Limit, n int64, res *Result) error {
	most := lim.algorithm.most(l)
	n = min(n, most)
	r, err := lim.store.Overdraw(ctx, lim.space, key, l, n, most)
	if err != nil {
		return err
	}
	r.OK = true
	if spent := lim.algorithm.spent; spent != nil { // no more than this has been charged
		n = min(n, max(0, most-spent(r)))
	}
	lim.fill(res, l, r, n, n)
	if n == 0 { // the state was full, and was written all the same: as if its last event were this one
		res.tell(lim.algorithm.report(l, lim.algorithm.after(r, -1), 1, 1), true, 1, l.Burst)
		res.Delay = 0
	}
	return nil
}

// most is the most events that a state can hold.
func (a *algorithm) most(l store.Limit) int64 {
	if a.burst {
		return bucketMost(l)
	}
	return maxEvents
}

// withoutStore is the decision by a Rate of 0, or of Unlimited.
func (r *Result) withoutStore(l store.Limit) {
	if l.Rate == 0 {
		r.RetryAfter = Never
		return
	}
	r.Allowed, r.Limit, r.Remaining, r.details = true, maxEvents, maxEvents, &byLimit
}

// fill makes res of a reply on n events, of which charged were charged.
func (lim *limiter) fill(res *Result, l store.Limit, r store.Reply, n, charged int64) {
	res.tell(lim.algorithm.report(l, r, n, charged), r.OK, n, l.Burst)
	res.sign(l, r.X, charged)
}

// tell fills what users see. (It and sign are small, to be inlined.)
func (r *Result) tell(v verdict, ok bool, n, capacity int64) {
	r.Allowed = ok
	r.Limit = int(capacity)
	r.Remaining = int(v.remaining)
	if !ok {
		r.RetryAfter = time.Duration(v.retry) * time.Microsecond
		if n > capacity {
			r.RetryAfter = Never
		}
	}
	r.ResetAfter = time.Duration(v.reset) * time.Microsecond
	r.Delay = time.Duration(v.delay) * time.Microsecond
}

// sign fills what a Refund needs of an admission.
func (r *Result) sign(l store.Limit, at, charged int64) {
	if charged > 0 {
		r.at, r.period, r.n, r.rate = at, l.Period, int32(charged), int32(l.Rate)
	}
}

// Refund gives back n of the events that charged admitted, as far as they are
// still charged.
func (lim *limiter) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := lim.check(ctx, key, n); err != nil {
		return err
	}
	if charged.uncounted() {
		return nil
	}
	l, err := lim.limitOf(ctx, key)
	if err != nil {
		return err
	}
	if charged.n == 0 {
		return errNothingCharged
	}
	if l.Rate <= 0 { // for now: by the limit of the charge, so that it is not lost
		l = store.Limit{Rate: int64(charged.rate), Period: charged.period, Burst: min(max(int64(charged.Limit), 1), maxEvents)}
	}
	return lim.store.Refund(ctx, lim.space, key, l, charged.charge(int64(n)))
}

// charge names n of the events that r admitted.
func (r *Result) charge(n int64) store.Receipt {
	l, reset := store.Limit{Rate: int64(r.rate), Period: r.period, Burst: int64(r.Limit)}, r.ResetAfter.Microseconds()
	return store.Receipt{
		At:        r.at,
		Due:       r.at + reset,
		Rate:      l.Rate,
		Period:    l.Period,
		Overdrawn: drainsWithin(l, reset-1), // a full bucket would have drained before
		N:         min(n, int64(r.n)),
	}
}

// Reset forgets key, as if it had never been seen.
func (lim *limiter) Reset(ctx context.Context, key string) error {
	if err := lim.check(ctx, key, 1); err != nil {
		return err
	}
	return lim.store.Reset(ctx, lim.space, key)
}

var errNoConstructor = fmt.Errorf("%w: a limiter is made by its constructor", ErrInvalidLimit)

// check refuses bad input before the store sees it.
func (lim *limiter) check(ctx context.Context, key string, n int) error {
	if lim.store == nil {
		return errNoConstructor
	}
	return checkCall(ctx, key, n)
}

// limitOf is the limit of a key, as the store reads it.
func (lim *limiter) limitOf(ctx context.Context, key string) (store.Limit, error) {
	if lim.limitFunc == nil {
		return lim.integers, nil
	}
	l, err := lim.limitFunc(ctx, key)
	if err != nil {
		return store.Limit{}, err
	}
	if l == (Limit{}) || l == lim.limit {
		return lim.integers, nil
	}
	return lim.algorithm.integers(l)
}

// integers checks l for this algorithm and returns it as stores read it.
func (a *algorithm) integers(l Limit) (store.Limit, error) {
	if l == Unlimited() {
		return store.Limit{Rate: -1}, nil
	}
	if err := l.validate(); err != nil {
		return store.Limit{}, err
	}
	if !a.burst && l.Burst != 0 {
		return store.Limit{}, fmt.Errorf("%w: %v: a %s has no burst", ErrInvalidLimit, l, a.rule.Name)
	}
	i := store.Limit{Rate: int64(l.Rate), Period: l.Period.Microseconds(), Burst: int64(l.Burst)}
	if i.Burst == 0 || i.Rate == 0 {
		i.Burst = i.Rate
	}
	if a.burst && i.Rate > 0 && !drainsWithin(i, maxRefill) {
		return store.Limit{}, fmt.Errorf("%w: %v: the bucket takes over 100 years to refill", ErrInvalidLimit, l)
	}
	return i, nil
}

//go:embed scripts/common.lua
var commonLua string

//go:embed scripts/state.lua
var stateLua string

//go:embed scripts/driver.lua
var driverLua string

//go:embed scripts/joint.lua
var jointLua string

//go:embed scripts/batch.lua
var batchLua string

// script is a whole Redis script: what the scripts share, the parts of the
// algorithm, and the driver that runs it.
func script(algorithm ...string) string {
	return commonLua + strings.Join(algorithm, "") + driverLua
}

// batchScript is rule's script that makes many calls at once.
func batchScript(rule *store.Rule) string {
	return strings.TrimSuffix(rule.Script, driverLua) + batchLua
}

// jointScript is the script that decides on keys of several rules at once.
func jointScript(rules []*store.Rule) string {
	var text strings.Builder
	text.WriteString(commonLua + "\nlocal rules = {}\n")
	for _, rule := range rules {
		own := strings.TrimSuffix(strings.TrimPrefix(rule.Script, commonLua), driverLua)
		text.WriteString("do\n" + own + "\nrules[#rules + 1] = { plan = plan, commit = commit }\nend\n")
	}
	return text.String() + jointLua
}
