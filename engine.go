package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// limiter is embedded in the types of all algorithms. They differ only in their rule.
type limiter struct {
	known
	rule       *store.Rule
	store      store.Store
	namespace  *store.Namespace
	name       string
	policyName string // set by WithPolicyName, or else the name, or the limit as text
	limit      Limit
	integers   store.Limit // limit as the store reads it
	policy     Policy      // for limit
	limitFunc  func(ctx context.Context, key string) (Limit, error)
	tiers      map[string]Limit // that limitFunc chooses from, if set by WithTiers

	quick    bool  // whether take can use its fast path, because no option changes a call
	reserved int64 // set by WithReserved
	// takeLeaving is a Take that leaves the reserved events, or nil. It is set by WithReserved, so that
	// programs without that option do not link it.
	takeLeaving func(ctx context.Context, lim *limiter, key string, l store.Limit, n int64) (store.Reply, error)

	keyFunc   *keyFunc // a pointer, shared with local limiters, so that an All can compare it
	calls     bool     // set by CountCalls
	observers []Observer
	timed     bool // set by WithTimedObserver

	joint  store.Store // the store if it is comparable, so that limiters can be decided together, or else nil
	bottom store.Store // the store below the caches of joint, which keeps the counts
}

type known = see.Core[Limiter]

// keyFunc returns the key to count by for the key of a call.
type keyFunc func(ctx context.Context, key string) (string, error)

// one is implemented by the types that embed limiter.
type one interface {
	Limiter
	core() *limiter
}

// built makes self a limiter with rule, and returns it.
func built[L one](self L, rule *store.Rule, s store.Store, l Limit, opts []Option) (none L, err error) {
	if err := self.core().build(self, rule, s, l, opts); err != nil {
		return none, err
	}
	return self, nil
}

// build initializes lim, which is embedded in self.
func (lim *limiter) build(self Limiter, rule *store.Rule, s store.Store, l Limit, opts []Option) (err error) {
	if isnil.Is(s) {
		return fmt.Errorf("%w: the store is nil", ErrInvalidOption)
	}
	*lim = limiter{rule: rule, limit: l, store: s}
	if lim.integers, err = integers(rule, l); err != nil {
		return err
	}
	if err := options.Apply(lim, opts); err != nil {
		return err
	}
	if err := lim.checkReserved(); err != nil {
		return err
	}
	lim.policyName = cmp.Or(lim.policyName, lim.name, l.String())
	lim.policy = lim.policyOf(l, lim.integers)
	lim.namespace = store.NewNamespace(rule, lim.identity())
	lim.introduce(self)
	if reflect.ValueOf(s).Comparable() {
		lim.joint, lim.bottom = s, see.Bottom(s)
	}
	return lim.prepare()
}

// prepare lets the store refuse the limit, or what WithReserved leaves of it.
func (lim *limiter) prepare() error {
	fixed, l := lim.limitFunc == nil, lim.integers
	if !fixed || lim.reserved == 0 {
		return lim.store.Prepare(lim.rule, l, fixed)
	}
	l.Burst -= lim.reserved
	if err := lim.store.Prepare(lim.rule, l, fixed); err != nil {
		return fmt.Errorf("WithReserved(%d) leaves %d events of %v: %w", lim.reserved, l.Burst, lim.limit, err)
	}
	return nil
}

// introduce sets what other packages know of lim, which is embedded in self.
func (lim *limiter) introduce(self Limiter) {
	lim.quick = lim.reserved == 0 && lim.keyFunc == nil && !lim.calls && lim.observers == nil && lim.limitFunc == nil && lim.integers.Rate > 0
	lim.known = see.NewCore(self, see.Known[Limiter]{
		Held: lim.rule.Held, Algorithm: lim.rule.Name, Name: lim.policyName, Calls: lim.calls, ByEvents: func() Limiter { return lim.byEvents(self) },
		UsesContext: lim.limitFunc != nil || lim.keyFunc != nil, Key: lim.keyMaker(), Kind: lim.kind(),
		Servers: see.ServersOf(lim.store, lim.keyMaker()),
		Local:   func(s store.Store, instances int) (Limiter, error) { return lim.local(self, s, instances) },
	})
}

// byEvents returns a copy of self that counts events, and not calls.
func (lim *limiter) byEvents(self Limiter) Limiter {
	l := newOf(self)
	core := l.core()
	*core = *lim
	core.calls = false
	core.introduce(l)
	return l
}

// newOf returns a new zero value of self's type.
func newOf(self Limiter) one { return reflect.New(reflect.TypeOf(self).Elem()).Interface().(one) }

// core returns lim. By this method, coreOf finds it in the types that users hold.
func (lim *limiter) core() *limiter { return lim }

// coreOf returns the limiter of l if l is one of the five types. It returns nil for types that
// embed one of them, because they may have an AllowN of their own.
func coreOf(l Limiter) *limiter {
	if c, ok := l.(interface{ core() *limiter }); ok && see.Of(l) != nil {
		return c.core()
	}
	return nil
}

// identity returns the name of the limiter's namespace: the Period or the calendar, and the name or
// else the rate and burst. The "=" tells a name from a rate.
func (lim *limiter) identity() string {
	period := strconv.FormatInt(lim.integers.Period, 10)
	if lim.rule.AnyPeriod {
		period = "any"
	}
	if c := lim.integers.Calendar(); c != nil { // such as month/31/America/Sao_Paulo
		period = fmt.Sprintf("%v/%d/%s", c.Unit(), c.From(), c.Zone())
	}
	if lim.name != "" {
		return period + ":=" + lim.name
	}
	return fmt.Sprintf("%s:%d,%d", period, lim.integers.Rate, lim.integers.Burst)
}

// Limit returns the limit given to the constructor.
func (lim *limiter) Limit() Limit { return lim.limit }

// Name returns the name set by [WithName].
func (lim *limiter) Name() string { return lim.name }

// notify notifies the observers of a decision on n events of key.
func (lim *limiter) notify(ctx context.Context, key string, n int, r *Result, err error, since time.Time) {
	if lim.observers == nil {
		return
	}
	var took time.Duration
	if lim.timed {
		took = max(time.Since(since), 1) // a coarse clock may not have advanced
	}
	if err != nil {
		r = &Result{}
	}
	for _, o := range lim.observers {
		o.Decided(ctx, key, n, *r, err, took)
	}
}

// keyOf returns the key to count by for key. With an error, it returns key itself.
func (lim *limiter) keyOf(ctx context.Context, key string, n int) (string, error) {
	if err := lim.check(ctx, key, n); err != nil || lim.keyFunc == nil {
		return key, err
	}
	counted, err := (*lim.keyFunc)(ctx, key)
	if err == nil {
		err = store.CheckCall(ctx, counted, n)
	}
	if err != nil {
		return key, err
	}
	return counted, nil
}

// keyMaker returns keyOf if the limiter has a key function, and nil otherwise.
func (lim *limiter) keyMaker() see.Key {
	if lim.keyFunc == nil {
		return nil
	}
	return lim.keyOf
}

// check refuses bad input before the store sees it.
func (lim *limiter) check(ctx context.Context, key string, n int) error {
	return unmade.Check(ctx, lim.store != nil, key, n)
}

// limitOf returns the limit of a key for a decision, as the store reads it.
func (lim *limiter) limitOf(ctx context.Context, key string) (store.Limit, error) {
	if lim.limitFunc == nil {
		return lim.integers, nil
	}
	l, err := lim.askLimit(ctx, key)
	return lim.read(l, err)
}

// read returns l, the result of a limit function, as the store reads it.
func (lim *limiter) read(l Limit, err error) (store.Limit, error) {
	if err != nil {
		return store.Limit{}, err
	}
	if l == (Limit{}) || l == lim.limit {
		return lim.integers, nil
	}
	i, err := integers(lim.rule, l)
	if lim.rule.AnyPeriod {
		i.Period = lim.integers.Period
	}
	return i, err
}

// integers checks l for an algorithm and returns it as stores read it.
func integers(rule *store.Rule, l Limit) (store.Limit, error) {
	if l == Unlimited() {
		return store.Limit{Rate: -1}, nil
	}
	if err := l.Validate(); err != nil {
		return store.Limit{}, err
	}
	if !rule.Burst && l.Burst != 0 {
		return store.Limit{}, fmt.Errorf("%w: %v: a %s cannot have a burst", ErrInvalidLimit, l, rule.Name)
	}
	i := store.Limit{Rate: int64(l.Rate), Period: l.Period.Microseconds(), Burst: int64(l.Burst)}
	if l.calendar != nil {
		if rule != &fixedWindow {
			return i, fmt.Errorf("%w: %v: a %s cannot count by calendar: use a fixed_window", ErrInvalidLimit, l, rule.Name)
		}
		i = l.calendar.In(i)
	}
	if i.Burst == 0 || i.Rate == 0 {
		i.Burst = i.Rate
	}
	if rule.Burst && !bucket.DrainsWithin(i, bucket.MaxRefill) {
		return store.Limit{}, fmt.Errorf("%w: %v: the bucket would take more than 100 years to refill", ErrInvalidLimit, l)
	}
	return i, nil
}
