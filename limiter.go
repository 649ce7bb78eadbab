// Package ratelimit decides whether an event may happen now. It has five algorithms behind one
// [Limiter] interface. Each algorithm runs in memory, on Redis or on Postgres, and makes the same
// decisions on all of them.
//
//	mem := ratelimit.Must(memstore.New())
//	limiter := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(100), ratelimit.WithName("api")))
//	...
//	r, err := limiter.Allow(ctx, "user:42")
//	switch {
//	case err != nil: // the store failed: admit or refuse, as your service prefers
//	case !r.Allowed: // come back after r.RetryAfter
//	}
//
// [TokenBucket] is the default. Choose another algorithm for a reason:
//
//   - [FixedWindow] counts quotas that users can follow, or are billed by.
//   - [SlidingLog] is exact over any period.
//   - [SlidingWindow] admits fewer bursts at the edge of two periods, for limits of 100 or more.
//   - [LeakyBucket] spaces events evenly.
//
// Name the limiters that share a store ([WithName]), because two unnamed limiters with the same
// algorithm and limit share their counts.
//
// # How the pieces fit
//
// A call passes through the pieces from top to bottom. Only an algorithm and a store are required,
// and an [Option] configures a single limit. This is the usual order:
//
//	wrappers    change the result   accesslist, throttle.Waiter, shadow, fallback, Ban, First, All, observe.Around
//	algorithm   makes the decision  FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket, inflight
//	caches      save round trips    lease, coalesce, denycache, and regions, which joins stores
//	store       keeps the counts    memstore, redisstore, pgstore, or your own
//
// Functions such as [AllowUpTo] accept any Limiter. To read the code, begin with its [map].
//
// [map]: https://github.com/ratelimit-go/ratelimit/blob/main/.github/CONTRIBUTING.md#where-things-are
package ratelimit

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/script"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Limiter decides whether the events of a key are admitted. It is safe for concurrent use.
//
// A denial is a [Result], never an error. An error means that no decision is known: after a
// lost reply, the events may have been charged. The Result is then zero. The error wraps one of
// the package's Err values, or is ctx.Err() or the error of a function given to an [Option].
type Limiter interface {
	// Allow calls AllowN with n = 1.
	Allow(ctx context.Context, key string) (Result, error)
	// AllowN admits and charges n events at the same time, or none of them.
	AllowN(ctx context.Context, key string, n int) (Result, error)
	// Peek returns what Allow would return, and charges nothing.
	Peek(ctx context.Context, key string) (Result, error)
	// Refund refunds n of the events that were admitted by the decision charged, as far as they
	// are still charged. It does not refund events that have been refilled, have drained or have
	// left the window since (to within 1 µs). Refund each event only once, to the limiter that
	// charged it, because a second refund would refund events of other calls.
	Refund(ctx context.Context, key string, charged Result, n int) error
	// Reset forgets the state of key.
	Reset(ctx context.Context, key string) error
}

// Never is the RetryAfter of a call that is never admitted, however long it waits.
const Never time.Duration = math.MaxInt64

// Errors to compare with errors.Is. Their messages name the offending values.
var (
	ErrInvalidLimit  = store.ErrInvalidLimit  // out of range, or more than the algorithm can keep
	ErrInvalidN      = store.ErrInvalidN      // a number of events below 1, or a Refund of nothing
	ErrInvalidKey    = store.ErrInvalidKey    // an empty key, or one longer than 64 KiB
	ErrInvalidOption = store.ErrInvalidOption // an unusable store, client, name or option
	ErrStore         = store.ErrStore         // the store failed, and no decision is known

	// Errors of [Wait]: that many events are never admitted, or only after the deadline of ctx.
	ErrNever               = errors.New("ratelimit: waiting will not help")
	ErrWouldExceedDeadline = fmt.Errorf("ratelimit: the wait would exceed the deadline: %w", context.DeadlineExceeded)

	ErrSettled = errors.New("ratelimit: the reservation was already settled") // of a second Settle
)

// Must returns v, and panics if err is not nil. Use it for limits that are fixed in the code, as
// you would use regexp.MustCompile.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

const (
	maxEvents = math.MaxInt32        // the largest Rate and Burst
	beyond    = int64(maxEvents) + 1 // stands for any larger number of events
)

// kind is a built-in algorithm.
type kind struct {
	rule  *store.Rule
	waits queue.Kind // how the algorithm admits waiters
	make  func() one
}

// kinds are the five built-in algorithms, in the order of the documentation. There is no other list
// of them.
var kinds = []*kind{
	{&fixedWindow, queue.Plain, func() one { return new(FixedWindow) }},
	{&slidingWindow, queue.Plain, func() one { return new(SlidingWindow) }},
	{&slidingLog, queue.Plain, func() one { return new(SlidingLog) }},
	{&tokenBucket, queue.Bucket, func() one { return new(TokenBucket) }},
	{&leakyBucket, queue.Leaky, func() one { return new(LeakyBucket) }},
}

// New returns a limiter with the named algorithm: "fixed_window", "sliding_window",
// "sliding_log", "token_bucket" or "leaky_bucket". Like all constructors, it returns
// [ErrInvalidLimit] or [ErrInvalidOption] if an argument is invalid.
func New(algorithm string, s store.Store, l Limit, opts ...Option) (Limiter, error) {
	k, err := kindOf(algorithm)
	if err != nil {
		return nil, err
	}
	return built(k.make(), k.rule, s, l, opts)
}

// kindOf returns the built-in algorithm with that name.
func kindOf(algorithm string) (*kind, error) {
	var all []string
	for _, k := range kinds {
		if k.rule.Name == algorithm {
			return k, nil
		}
		all = append(all, k.rule.Name)
	}
	return nil, fmt.Errorf("%w: unknown algorithm %q: want one of %s", ErrInvalidOption, algorithm, strings.Join(all, ", "))
}

// Custom is a limiter with an algorithm that is not one of the five, such as package inflight's.
type Custom struct{ limiter }

// NewCustom returns a limiter with the algorithm rule, which must be made by [NewRule], even if it never
// runs on Redis. It returns [ErrInvalidOption] if the rule lacks a function, or if its Name is that of a built-in algorithm,
// contains braces or is not UTF-8. A rule with a NewLog needs a ParseLog too, and any other rule Overdrawn and Spent.
func NewCustom(rule *store.Rule, s store.Store, l Limit, opts ...Option) (*Custom, error) {
	if rule == nil || rule.Name == "" || rule.Step == nil || rule.Script == nil {
		return nil, fmt.Errorf("%w: the rule was not made by NewRule from a store.Rule with a Name and a Step", ErrInvalidOption)
	}
	if strings.ContainsAny(rule.Name, "{}") || !utf8.ValidString(rule.Name) { // it is in the keys of Redis, before the hash tag
		return nil, fmt.Errorf("%w: the rule's name is %q, want UTF-8 without braces", ErrInvalidOption, rule.Name)
	}
	if _, err := kindOf(rule.Name); err == nil || rule.Name == ban.Name {
		return nil, fmt.Errorf("%w: a built-in algorithm has the name %q: give the rule another one", ErrInvalidOption, rule.Name)
	}
	if name := missing(rule); name != "" { // stores call it late, and with a lock held
		return nil, fmt.Errorf("%w: the rule %q has no %s", ErrInvalidOption, rule.Name, name)
	}
	return built(new(Custom), rule, s, l, opts)
}

// missing returns the name of a function that r needs and lacks, or "".
func missing(r *store.Rule) string {
	log := r.NewLog != nil
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"Available", r.Available == nil}, {"Report", r.Report == nil}, {"After", r.After == nil},
		{"Refund", r.Refund == nil}, {"TTL", r.TTL == nil}, {"Used", r.Used == nil}, {"ParseLog", log && r.ParseLog == nil},
		{"Overdrawn", !log && r.Overdrawn == nil}, {"Spent", !log && r.Spent == nil},
	} {
		if f.missing {
			return f.name
		}
	}
	return ""
}

// Allow implements [Limiter].
func (c *Custom) Allow(ctx context.Context, key string) (res Result, err error) {
	err = c.take(ctx, key, 1, &res)
	return res, err
}

// AllowN implements [Limiter].
func (c *Custom) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = c.take(ctx, key, n, &res)
	return res, err
}

// Renew asks again for one event that was admitted by the decision charged. The rule finds the time of
// that decision in the Before of its Limit. Observers are not notified.
func (c *Custom) Renew(ctx context.Context, key string, charged Result) (res Result, err error) {
	if charged.n == 0 || charged.together() != nil {
		return res, errNothingCharged
	}
	if key, err = c.keyOf(ctx, key, 1); err != nil {
		return res, err
	}
	l, err := c.limitOf(ctx, key)
	if err != nil {
		return res, err
	}
	if l.Rate <= 0 { // 0 or unlimited for now, but a slot that is held keeps its place
		l = store.Limit{Rate: int64(charged.rate), Period: c.integers.Period, Burst: int64(charged.rate)}
	}
	err = c.takeBy(ctx, key, l.TurnBefore(charged.at), 1, &res)
	return res, err
}

// ChargedAt returns the Before of a Renew: the time at which charged was charged, in Unix µs, or the
// value that the rule replies in its place. It returns 0 if nothing was charged.
func (c *Custom) ChargedAt(charged Result) int64 {
	if charged.n == 0 || charged.together() != nil {
		return 0
	}
	return charged.at
}

//go:embed scripts/*.lua
var scripts embed.FS

var lua = script.Files{FS: scripts}

// NewRule returns rule together with text, the same algorithm in Lua for Redis. A script that runs text
// begins with scripts/common.lua, and op is the name of its operation. The text declares four local
// functions. Only plan and commit are needed for every op:
//
//	plan(key, l, now, callers, n)  decides on n events, and writes nothing. It returns ok, x, y and z of the
//	                               store.Reply, and what commit writes if the events are charged, or nil
//	commit(key, planned)           writes what plan returned, with a TTL
//	available(l, x, y, z)          is Available of the rule, for the op upto
//	refund(key, l, now, c)         is Refund of the rule, and writes the key, for the op refund
//
// The limit l has a rate, a period and a burst. For the op charge, it also has most, and plan returns what
// to write even if it denies. c has the fields of a [store.Receipt]: at, due, rate, period and n. Times are
// Unix µs. The text chooses the form of the value on Redis, which need not be that of a [store.State].
//
// If the value is of a later time than now, there are two cases. If callers is true, now is the clock of a
// caller, which may be behind the clocks of others: decide at the time of the value. Otherwise, the server's
// clock was set back: move the value to now, and return it with moved set to true, even if plan denies.
//
// Package storetest tests stores, and not rules of your own. Make two limiters, in memory and on Redis, with
// one clock (WithClock of both stores), and compare the Results of random calls.
func NewRule(rule store.Rule, text string) *store.Rule {
	rule = lua.Rule(rule, "", "\n"+text)
	return &rule
}

// upToTries is how often AllowUpTo asks a single limit. A denial reports how many events there is room for.
// Unless other calls come in between, the second try therefore fits. Of several limits that are asked one
// after the other, a denial reports only the room of the first that denies.
const upToTries = 3

// AllowUpTo admits as many of n events as fit, and returns their number. The Result is that of
// AllowN(granted), or of Allow if granted is 0. If l has no method AllowUpTo, the function calls AllowN
// up to three times, or once more than there are limits, and Peek if nothing is granted. Its denials do not
// count toward a [Ban] inside l.
func AllowUpTo(ctx context.Context, l Limiter, key string, n int) (granted int, r Result, err error) {
	if isnil.Is(l) {
		return 0, Result{}, errNilLimiter
	}
	if l, ok := l.(interface {
		AllowUpTo(ctx context.Context, key string, n int) (int, Result, error)
	}); ok {
		return l.AllowUpTo(ctx, key, n)
	}
	ctx = see.Trying(ctx)
	for tries := 1; tries <= max(upToTries, len(r.Parts())+1); tries++ {
		r, err = l.AllowN(ctx, key, n)
		if err != nil {
			return 0, Result{}, err
		}
		if r.Allowed {
			return n, r, nil
		}
		if room := r.room(n); room > 0 {
			n = min(n, room)
			continue
		}
		if n > 1 { // r may say Never, where one event only has to wait
			if one, err := l.Peek(ctx, key); err == nil && !one.Allowed {
				r = one
			}
		}
		break
	}
	return 0, r, nil
}

var errNilLimiter = fmt.Errorf("%w: the limiter is nil", ErrInvalidOption)

var errNothingCharged = fmt.Errorf("%w: nothing can be refunded, because the Result charged no events", ErrInvalidN)

// Policy describes a limit to clients: Quota events per Window.
type Policy struct {
	Name  string // set by [WithPolicyName], or else by [WithName], or the limit as text
	Limit Limit  // the limit of the key
	Quota int    // the most events at one instant: the Rate, or a bucket's Burst; 2^31-1 for Unlimited
	// Window is the time in which the whole Quota becomes available again: the Period, or a bucket's
	// Burst·Period/Rate, rounded up. It is 0 for Unlimited, a Rate of 0, calendars and slots.
	Window time.Duration
	Unit   string // "" for requests, "concurrent-requests" for slots (package inflight)
}

// PolicyAppender is implemented by limiters that report which policies they enforce. All limiters of this
// module do, except a ratelimittest.Static.
type PolicyAppender interface {
	AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error)
}

// AppendPolicies appends the policies of key to dst, one for each limit, in the order of the limits. It
// appends nothing if l does not implement [PolicyAppender].
func AppendPolicies(ctx context.Context, dst []Policy, l Limiter, key string) ([]Policy, error) {
	if d, ok := l.(PolicyAppender); ok {
		return d.AppendPolicies(ctx, dst, key)
	}
	return dst, nil
}

// AppendPolicies implements [PolicyAppender].
func (lim *limiter) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	if lim.store == nil {
		return dst, unmade.Err
	}
	if lim.limitFunc == nil {
		return append(dst, lim.policy), nil
	}
	key, err := lim.keyOf(ctx, key, 1)
	if err != nil {
		return dst, err
	}
	l, err := lim.keptLimit(ctx, key)
	integers, err := lim.read(l, err)
	if err != nil {
		return dst, err
	}
	return append(dst, lim.policyOf(cmp.Or(l, lim.limit), integers)), nil
}

// policyOf returns the policy of limit l, which the store reads as integers.
func (lim *limiter) policyOf(l Limit, integers store.Limit) Policy {
	quota := max(0, integers.Burst-lim.reserved)
	p := Policy{Name: lim.policyName, Limit: l, Quota: int(quota), Window: l.Period, Unit: lim.rule.Unit}
	switch {
	case l == Unlimited():
		p.Quota, p.Window = maxEvents, 0
	case l.Rate == 0 || l.calendar != nil || lim.rule.AnyPeriod:
		p.Window = 0
	case lim.rule.Burst:
		p.Window = time.Duration(bucket.DrainTime(quota, 0, integers)) * time.Microsecond
	}
	return p
}

// complete is what each limiter of this package is.
type complete interface {
	Limiter
	PolicyAppender
	Charger
	Delayer
}

var _ complete = (*Custom)(nil)
