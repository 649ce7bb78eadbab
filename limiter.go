// Package ratelimit decides whether an event may happen now. It has five algorithms behind one
// [Limiter] interface, each in memory or on Redis, with the same decisions on both.
//
//	mem := ratelimit.Must(memstore.New())
//	limiter := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(100), ratelimit.WithName("api")))
//	...
//	r, err := limiter.Allow(ctx, "user:42")
//	switch {
//	case err != nil: // no decision is known: the caller chooses
//	case !r.Allowed: // come back after r.RetryAfter
//	}
//
// Use [TokenBucket] if you have no reason for another algorithm:
//
//   - [FixedWindow] for quotas that people follow, or are billed by.
//   - [SlidingLog] where the limit must hold in every period, exactly.
//   - [SlidingWindow] for limits of 100 or more, with fewer bursts at the edge of two periods.
//   - [LeakyBucket] to send at a steady pace.
//
// Name the limiters that share a store ([WithName]): two equal ones without names are one.
//
// # Four kinds of things
//
// What belongs to a limit is an [Option]. What spares calls to the store is a store. What changes
// the answer is a limiter around a limiter. Keep this order:
//
//	accesslist  throttle.Waiter  shadow  fallback  Ban  All  observe.Around   limiters around a limiter
//	FixedWindow SlidingWindow SlidingLog TokenBucket LeakyBucket  inflight    the decision, with Options
//	lease  coalesce  regions  denycache                                       stores before a store
//	memstore  redisstore  yours                                               stores
//
// Functions such as [AllowUpTo] take any Limiter.
package ratelimit

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/script"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Limiter decides on events of keys. It is safe for concurrent use.
//
// A denial is a [Result], never an error. An error means that no decision is known (after a
// lost reply the charge may stand), and the Result beside it is zero. It is one of the
// package's Err values, ctx's own, or that of a function given to an [Option].
type Limiter interface {
	// Allow is AllowN of 1.
	Allow(ctx context.Context, key string) (Result, error)
	// AllowN admits and charges n events at once, or none.
	AllowN(ctx context.Context, key string, n int) (Result, error)
	// Peek answers what Allow would, and charges nothing.
	Peek(ctx context.Context, key string) (Result, error)
	// Refund gives back n of the events that charged admitted, if they are still charged: not
	// what was refilled, drained or has left the window since (to within 1 µs). Refund each
	// event once, where it was charged: or else it takes those of other calls.
	Refund(ctx context.Context, key string, charged Result, n int) error
	// Reset forgets the state of key.
	Reset(ctx context.Context, key string) error
}

// Never is the RetryAfter of an event that no waiting will admit.
const Never time.Duration = math.MaxInt64

// Errors, for use with errors.Is. Texts name the offending values.
var (
	ErrInvalidLimit  = store.ErrInvalidLimit  // out of range, or more than the algorithm can keep
	ErrInvalidN      = store.ErrInvalidN      // a number of events below 1, or a Refund of nothing
	ErrInvalidKey    = store.ErrInvalidKey    // an empty key, or one longer than 64 KiB
	ErrInvalidOption = store.ErrInvalidOption // an unusable store, client, name or option
	ErrStore         = store.ErrStore         // the store failed, and no decision is known

	// Of [Wait]: no waiting will admit that many events, or only after ctx's deadline.
	ErrNever               = errors.New("ratelimit: never admitted")
	ErrWouldExceedDeadline = fmt.Errorf("ratelimit: the permit would come too late: %w", context.DeadlineExceeded)

	ErrSettled = errors.New("ratelimit: the reservation is settled") // of a second [Reservation.Settle]
)

// Must returns v, and panics if err is not nil: for constructors of constants.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

const (
	maxEvents = math.MaxInt32        // of a Rate and of a Burst
	beyond    = int64(maxEvents) + 1 // as good as any larger number of events
)

// kinds are the five, in the order of the documentation. This is the one list of them.
var kinds = []struct {
	rule  *store.Rule
	waits queue.Kind // how it admits those who wait
	make  func() one
}{
	{&fixedWindow, queue.Plain, func() one { return new(FixedWindow) }},
	{&slidingWindow, queue.Plain, func() one { return new(SlidingWindow) }},
	{&slidingLog, queue.Plain, func() one { return new(SlidingLog) }},
	{&tokenBucket, queue.Bucket, func() one { return new(TokenBucket) }},
	{&leakyBucket, queue.Leaky, func() one { return new(LeakyBucket) }},
}

// New returns a limiter by the name of its algorithm: "fixed_window", "sliding_window",
// "sliding_log", "token_bucket" or "leaky_bucket". Errors: [ErrInvalidLimit] and
// [ErrInvalidOption], as of all constructors.
func New(algorithm string, s store.Store, l Limit, opts ...Option) (Limiter, error) {
	for i := range kinds {
		if k := &kinds[i]; k.rule.Name == algorithm {
			return built(k.make(), k.rule, s, l, opts)
		}
	}
	return nil, errNoAlgorithm(algorithm)
}

func errNoAlgorithm(name string) error {
	all := make([]string, len(kinds))
	for i := range kinds {
		all[i] = kinds[i].rule.Name
	}
	return fmt.Errorf("%w: no algorithm %q: it is one of %s", ErrInvalidOption, name, strings.Join(all, ", "))
}

// Custom is a limiter by another algorithm than the five, such as that of package inflight.
type Custom struct{ limiter }

// NewCustom returns a limiter by rule, which [NewRule] has made.
func NewCustom(rule *store.Rule, s store.Store, l Limit, opts ...Option) (*Custom, error) {
	if rule == nil || rule.Name == "" || rule.Step == nil || rule.Script == nil {
		return nil, fmt.Errorf("%w: a rule is made by NewRule, of a store.Rule with a Name and a Step", ErrInvalidOption)
	}
	for i := range kinds {
		if kinds[i].rule.Name == rule.Name {
			return nil, fmt.Errorf("%w: another rule has the name %q", ErrInvalidOption, rule.Name)
		}
	}
	return built(new(Custom), rule, s, l, opts)
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

// Renew asks again for one event that charged has admitted. The rule sees when that was in the
// Before of its Limit. Observers are not told.
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
	if l.Rate <= 0 { // for now: what is charged keeps its place
		l = store.Limit{Rate: int64(charged.rate), Period: c.integers.Period, Burst: int64(charged.rate)}
	}
	err = c.takeBy(ctx, key, l.TurnBefore(charged.at), 1, &res)
	return res, err
}

// ChargedAt is the Before of a Renew: when charged was charged, in Unix µs, or what the rule says
// in its place; 0 if nothing was.
func (c *Custom) ChargedAt(charged Result) int64 {
	if charged.n == 0 || charged.together() != nil {
		return 0
	}
	return charged.at
}

//go:embed scripts/*.lua
var scripts embed.FS

var lua = script.Files{FS: scripts}

// NewRule returns rule with its Lua for Redis: plan, commit, available and refund, as in
// scripts/slidinglog.lua.
func NewRule(rule store.Rule, text string) *store.Rule {
	rule = lua.Rule(rule, "", "\n"+text)
	return &rule
}

// upToTries is how often AllowUpTo asks. A denial says how many events there is room for.
// So the second try fits, unless other calls come between.
const upToTries = 3

// AllowUpTo admits as many of n events as there is room for. Its Result is that of
// AllowN(granted), or of Allow if nothing is granted. A limiter without that method is asked by
// AllowN, up to three times, and by Peek where nothing is granted.
func AllowUpTo(ctx context.Context, l Limiter, key string, n int) (granted int, r Result, err error) {
	if isnil.Is(l) {
		return 0, Result{}, errNilLimiter
	}
	if l, ok := l.(interface {
		AllowUpTo(ctx context.Context, key string, n int) (int, Result, error)
	}); ok {
		return l.AllowUpTo(ctx, key, n)
	}
	for range upToTries {
		r, err = l.AllowN(ctx, key, n)
		if err != nil {
			return 0, Result{}, err
		}
		if r.Allowed {
			return n, r, nil
		}
		if room := r.room(); room > 0 {
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

var errNothingCharged = fmt.Errorf("%w: the Result to refund has charged nothing", ErrInvalidN)

// Policy is a limit as clients may be told of it: Quota events per Window.
type Policy struct {
	Name  string // by [WithPolicyName], or else [WithName], or the limit as text
	Limit Limit  // of the key
	Quota int    // the most events at one instant: the Rate, or a bucket's Burst; 2^31-1 for Unlimited
	// Window is the time in which the Quota comes back: the Period, or a bucket's
	// Burst·Period/Rate, rounded up. It is 0 for Unlimited, a Rate of 0, calendars and slots.
	Window time.Duration
	Unit   string // "" for requests, "concurrent-requests" for slots (package inflight)
}

// PolicyAppender is a [Limiter] that says which policies it enforces, as all of this module do.
type PolicyAppender interface {
	AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error)
}

// AppendPolicies appends the policies of key to dst, one for each limit, in the order of
// [Result.Parts]; none if l is no [PolicyAppender].
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
	if l == (Limit{}) {
		l = lim.limit
	}
	return append(dst, lim.policyOf(l, integers)), nil
}

// policyOf is the policy by limit l, which is integers to the store.
func (lim *limiter) policyOf(l Limit, integers store.Limit) Policy {
	p := Policy{Name: lim.policyName, Limit: l, Quota: int(integers.Burst), Window: l.Period, Unit: lim.rule.Unit}
	switch {
	case l == Unlimited():
		p.Quota, p.Window = maxEvents, 0
	case l.Rate == 0 || l.calendar != nil || lim.rule.AnyPeriod:
		p.Window = 0
	case lim.rule.Burst:
		p.Window = time.Duration(bucket.DrainTime(integers.Burst, 0, integers)) * time.Microsecond
	}
	return p
}

var _ PolicyAppender = (*limiter)(nil)
