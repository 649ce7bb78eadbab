package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Penalty defines when a [Ban] begins, and how long it lasts.
type Penalty struct {
	// Denials is the number of denials that begin a ban, 1 to 65,535. Within is the time, counted from
	// the first of them, in which they must occur: 1 ms to 10 years, in whole microseconds.
	Denials int
	Within  time.Duration
	// For is the length of the first ban, 1 s to 10 years, in whole seconds. Each further ban is twice
	// as long, up to Most, which must be between For and 10 years, in whole microseconds; 0 means For. Bans are
	// remembered until Most has passed since the end of the last ban and since the last denial.
	For, Most time.Duration
}

// Ban is a [Limiter] that wraps another limiter and bans a key after a number of denials: while the ban
// lasts, all events of the key are denied.
//
// Every denial counts, including the denial of a correct password and the denials that [Wait] sees (to
// wait, use the wrapped limiter). Denials by a list, or by a fallback that fails closed, do not count. If
// the limit is [Unlimited], only Strike counts.
//
// Calls for a banned key neither extend the ban nor are charged. Their Results have [SourceBan] and a
// RetryAfter until the end of the ban. Peek reports a ban, and Lift ends it.
//
// Bound: the bound of the wrapped limiter. Before a ban begins, the first Denials - 1 denials, and
// those decided at the same time, are returned as they are.
//
// A call that is admitted or banned costs as much as an [All] with one more limit, and a denial costs a
// second call. From its first denial, a key takes about 40 bytes in memory and 150 in Redis, for Within,
// and after a ban for Most.
type Ban struct {
	known
	limiter Limiter
	all     *All // limiter if it is an *All, or else nil
	members []member
	penalty Penalty
	denials limiter // counts denials, and during a ban denies every call
	opts    []Option
}

// NewBan returns a limiter that decides as l does and bans keys according to p. It keeps the bans in s,
// which should be the store of l. Bans with the same name and Within on the same store are shared. The options are
// [WithName] ("ban" by default), [WithPolicyName], [WithKeyFunc], and [WithObserver] or
// [WithTimedObserver], whose observers are notified of each denial that counts. NewBan returns
// [ErrInvalidOption] for other options, and if l sleeps, or is an All of 16 limits.
func NewBan(l Limiter, s store.Store, p Penalty, opts ...Option) (*Ban, error) {
	members, err := membersOf(l)
	if err != nil {
		return nil, err
	}
	if len(members) >= maxLimits {
		return nil, fmt.Errorf("%w: a Ban cannot contain an All of %d limits, want at most %d", ErrInvalidOption, len(members), maxLimits-1)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	b := &Ban{limiter: l, members: members, penalty: p, opts: slices.Clone(opts)}
	b.all, _ = l.(*All)
	k := &b.denials
	if err := k.build(b, &ban, s, Limit{Rate: p.Denials, Period: p.Within}, append([]Option{WithName("ban")}, opts...)); err != nil {
		return nil, err
	}
	if k.limitFunc != nil || k.calls {
		return nil, fmt.Errorf("%w: a Ban cannot have WithLimitFunc, WithTiers or CountCalls: set them on the limiter inside it", ErrInvalidOption)
	}
	k.integers.Period, k.integers.Burst = max(p.Most, p.For).Microseconds(), int64(p.For/time.Second)
	b.known = see.NewCore[Limiter](b, see.Known[Limiter]{Name: k.policyName, UsesContext: k.keyFunc != nil, Key: see.Keys(k.keyMaker(), see.KeyOf(l)), Kinds: b.kind, Local: b.local,
		Servers: see.ServersOf(s, k.keyMaker())})
	return b, nil
}

// kind returns how b admits waiters.
func (b *Ban) kind() queue.Kind { return queue.Joint(queuesOf(b.limiter).Kind, queue.Plain) }

// Validate returns [ErrInvalidOption] if a field of p is out of range.
func (p Penalty) Validate() error {
	switch {
	case p.Denials < 1 || p.Denials > mostDenials:
		return fmt.Errorf("%w: Penalty.Denials is %d, want 1 to %d", ErrInvalidOption, p.Denials, mostDenials)
	case p.Within < minPeriod || p.Within > maxPeriod || p.Within%time.Microsecond != 0:
		return fmt.Errorf("%w: Penalty.Within is %v, want 1ms to 10 years, in whole microseconds", ErrInvalidOption, p.Within)
	case p.For < time.Second || p.For > maxPeriod || p.For%time.Second != 0:
		return fmt.Errorf("%w: Penalty.For is %v, want 1s to 10 years, in whole seconds", ErrInvalidOption, p.For)
	case p.Most != 0 && p.Most < p.For || p.Most > maxPeriod || p.Most%time.Microsecond != 0:
		return fmt.Errorf("%w: Penalty.Most is %v, want 0, or %v to 10 years, in whole microseconds", ErrInvalidOption, p.Most, p.For)
	}
	return nil
}

// local returns a Ban around the local limiter of b.limiter. It has the whole Penalty, because the local
// limiter, whose denials it counts, already has only a share of the limit.
func (b *Ban) local(s store.Store, instances int) (Limiter, error) {
	l, err := see.Local(b.limiter, s, instances)
	if err != nil {
		return nil, err
	}
	here, err := NewBan(l, s, b.penalty, b.opts...)
	if err != nil {
		return nil, err
	}
	here.denials.observers, here.denials.timed = nil, false
	return here, nil
}

// Unwrap returns the wrapped limiter.
func (b *Ban) Unwrap() Limiter { return b.limiter }

// banner is implemented by Ban, which is found by its method as an All is by [several].
type banner interface{ banName() string }

func (b *Ban) banName() string { return b.denials.policyName }

// Allow implements [Limiter].
func (b *Ban) Allow(ctx context.Context, key string) (res Result, err error) {
	err = b.decide(ctx, key, 1, asking{what: toTake}, &res)
	return res, err
}

// AllowN implements [Limiter].
func (b *Ban) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = b.decide(ctx, key, n, asking{what: toTake}, &res)
	return res, err
}

// AllowWithin implements [Delayer].
func (b *Ban) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (res Result, err error) {
	err = b.decide(ctx, key, n, asking{toTakeWithin, d}, &res)
	return res, err
}

// Peek implements [Limiter]. A denied Peek does not count toward a ban.
func (b *Ban) Peek(ctx context.Context, key string) (res Result, err error) {
	err = b.decide(ctx, key, 1, asking{what: toPeek}, &res)
	return res, err
}

// AllowUpTo admits as many of n events as fit, and none for a banned key. If it admits none, that does
// not count toward a ban.
func (b *Ban) AllowUpTo(ctx context.Context, key string, n int) (granted int, r Result, err error) {
	if err := b.check(ctx, key, n); err != nil {
		return 0, r, err
	}
	if banned, err := b.banned(ctx, key, &r); banned || err != nil {
		return 0, r, err
	}
	return AllowUpTo(ctx, b.limiter, key, n)
}

// Strike counts n denials of key, 1 or more, that you have observed yourself, such as wrong passwords.
// The Result is a denial if the key is now banned.
func (b *Ban) Strike(ctx context.Context, key string, n int) (Result, error) {
	if err := b.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	r := Result{Allowed: true}
	return r, b.strike(ctx, key, n, &r)
}

// Charge charges the wrapped limiter, whether the key is banned or not.
func (b *Ban) Charge(ctx context.Context, key string, n int) (Result, error) {
	if err := b.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	return Charge(ctx, b.limiter, key, n)
}

// Refund implements [Limiter].
func (b *Ban) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := b.check(ctx, key, n); err != nil {
		return err
	}
	return b.limiter.Refund(ctx, key, charged, n)
}

// Lift forgets the bans of key and the denials that count toward one. It does not change the wrapped
// limiter.
func (b *Ban) Lift(ctx context.Context, key string) error { return b.denials.Reset(ctx, key) }

// Reset calls Lift, and resets key in the wrapped limiter. If one of them fails, the other is still done.
// To reset only the wrapped limiter, call Reset on the limiter that Unwrap returns.
func (b *Ban) Reset(ctx context.Context, key string) error {
	if err := b.check(ctx, key, 1); err != nil {
		return err
	}
	return errors.Join(b.Lift(ctx, key), b.limiter.Reset(ctx, key))
}

// AppendPolicies implements [PolicyAppender].
func (b *Ban) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	if b.limiter == nil {
		return dst, unmade.Err
	}
	return AppendPolicies(ctx, dst, b.limiter, key)
}

func (b *Ban) check(ctx context.Context, key string, n int) error {
	return unmade.Check(ctx, b.limiter != nil, key, n)
}

// decide implements AllowN, AllowWithin and Peek. One decision is on the ban and on the limiter's members.
func (b *Ban) decide(ctx context.Context, key string, n int, how asking, res *Result) error {
	if err := b.check(ctx, key, n); err != nil {
		return err
	}
	banned, err := b.ask(ctx, key, n, how, res)
	if err == nil && !banned && !res.Allowed && how.what != toPeek {
		b.offend(ctx, key, res)
	}
	return err
}

// ask makes res the denial of a ban or, if the key is not banned, the decision of the limiter.
func (b *Ban) ask(ctx context.Context, key string, n int, how asking, res *Result) (banned bool, err error) {
	d := begin(how, b.all)
	defer d.end()
	d.addGate(&b.denials, key)
	for i := range b.members {
		d.add(b.members[i], key, n, false)
	}
	if err = d.decide(ctx); err != nil {
		return false, err
	}
	if d.entries[0].decided && !d.parts[0].Allowed {
		b.deny(&d.parts[0].Result, res)
		return true, nil
	}
	d.behindGate(ctx, res) // if a Rate of 0 has denied, the ban was not asked, but strike finds it
	return false, nil
}

// banned reports whether key is banned, and if so, makes res the denial.
func (b *Ban) banned(ctx context.Context, key string, res *Result) (bool, error) {
	d := begin(asking{what: toTake}, nil)
	defer d.end()
	d.addGate(&b.denials, key)
	err := d.decide(ctx)
	if err == nil && d.denied {
		b.deny(&d.parts[0].Result, res)
	}
	return d.denied, err
}

var byBan = Mark{source: SourceBan}

// deny makes res the denial by a ban, from the denial r of the limiter that counts denials.
func (b *Ban) deny(r, res *Result) {
	*res = Result{RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter}
	res.mark = &byBan
}

// offend counts a denial of the limiter. If the denial begins a ban, offend turns it into the denial
// of the ban. If the denial cannot be counted, it is left unchanged.
func (b *Ban) offend(ctx context.Context, key string, denial *Result) {
	switch denial.Source() {
	case SourceList, SourceFailClosed:
		return
	}
	if see.Tries(ctx) {
		return
	}
	_ = b.strike(context.WithoutCancel(ctx), key, 1, denial)
}

// strike counts n denials. If the key is banned then, strike makes res the denial of the ban.
func (b *Ban) strike(ctx context.Context, key string, n int, res *Result) error {
	k := &b.denials
	var since time.Time
	if k.timed {
		since = time.Now()
	}
	counted, err := k.keyOf(ctx, key, n)
	var r Result
	if err == nil {
		events := min(n, b.penalty.Denials) // this many begin a ban, and more would not change it
		err = k.takeBy(ctx, counted, k.integers.TurnBefore(b.penalty.Within.Microseconds()+1), int64(events), &r)
	}
	k.notify(ctx, counted, n, &r, err, since)
	switch {
	case err != nil:
		return err
	case !r.Allowed: // another call has begun the ban meanwhile
		b.deny(&r, res)
	case r.Remaining == 0:
		_, err = b.banned(ctx, key, res)
	}
	return err
}

// ban is the rule that counts denials until they begin a ban. Its [store.Limit] has
//
//	Rate    how many denials begin a ban
//	Period  the length of the longest ban, in µs
//	Burst   the length of the first ban, in seconds
//	Before  1 more than the time within which the denials must occur, in µs; 0 in a look
//
// and its State
//
//	At      the time of the last denial that counted
//	Whole   the number of remembered bans, and the number of denials: see banOf
//	Part    how long after At the denials count or, if there are none, the ban lasts, in µs
//	Period  how long bans are remembered, in µs
var ban = lua.Rule(store.Rule{
	Name:      "ban",
	Step:      banStep,
	Available: windowAvailable,
	Overdrawn: func(next store.State, _ store.Limit, _ int64) store.State { return next },
	Refund:    func(s store.State, _ store.Limit, _ int64, _ store.Receipt) store.State { return s },
	TTL:       func(s store.State, _ store.Limit) int64 { return banLife(s) },
	Used:      wholeUsed,
	LastOnly:  true,
	Report: func(l store.Limit, r store.Reply, _, charged int64) store.Report {
		v := store.Report{Remaining: max(0, l.Rate-r.Y-charged), Retry: r.Z, Reset: r.Z}
		if !r.OK() {
			v.Reset += l.Period
		}
		return v
	},
	After: afterY,
}, "", lua.Of("ban", "state"))

const mostDenials = 1<<16 - 1

// banOf returns the two numbers in s.Whole.
func banOf(s store.State) (bans, denials int64) { return s.Whole >> 16, s.Whole & mostDenials }

// banLife returns how long s still matters after its At.
func banLife(s store.State) int64 {
	switch bans, denials := banOf(s); {
	case denials == 0:
		return s.Part + s.Period
	case bans > 0:
		return max(s.Part, s.Period)
	}
	return s.Part
}

// banStep replies now, the number of denials that count, and how long they count or the ban lasts.
func banStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	r := store.Reply{X: now}
	var bans int64
	if s.Whole > 0 {
		r.X = max(now, s.At)
	}
	if s.Whole > 0 && r.X-s.At < banLife(s) {
		bans, r.Y = banOf(s)
		r.Z = max(0, s.At+s.Part-r.X)
		switch {
		case r.Y == 0 && r.Z > 0:
			r.Y = l.Rate
			return s, r
		case r.Z == 0:
			r.Y = 0
		}
	}
	r.Outcome = store.Admitted
	denials, left := r.Y+n, r.Z
	if r.Y == 0 {
		left = max(0, l.Before()-1)
	}
	if denials >= l.Rate {
		denials, left = 0, l.Burst*1e6
		for range bans {
			left = min(2*left, l.Period)
		}
		if bans == 0 || left < l.Period {
			bans++
		}
	}
	return store.State{At: r.X, Period: l.Period, Whole: bans<<16 | denials, Part: left}, r
}

var _ complete = (*Ban)(nil)
