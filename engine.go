package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// limiter is embedded in the five types. They differ only in their rule.
type limiter struct {
	known
	rule       *store.Rule
	store      store.Store
	namespace  *store.Namespace
	name       string
	policyName string // by WithPolicyName, or else the name, or the limit as text
	limit      Limit
	integers   store.Limit // limit as the store reads it
	policy     Policy      // by limit
	limitFunc  func(ctx context.Context, key string) (Limit, error)
	tiers      map[string]Limit // that limitFunc chooses from, if it is known

	quick     bool     // take goes in straight line: none of these is set
	reserved  int64    // by WithReserved
	keyFunc   *keyFunc // the same in a Local, so that an All can compare them
	calls     bool     // by CountCalls
	observers []Observer
	timed     bool // by WithTimedObserver

	joint  store.Store // store, if it can be compared with that of others; else nil
	bottom store.Store // which keeps what joint is asked for
}

type known = see.Core[Limiter]

// keyFunc makes the key that is counted of the one that is asked for.
type keyFunc func(ctx context.Context, key string) (string, error)

// one is a type that embeds limiter.
type one interface {
	Limiter
	core() *limiter
}

// built returns self as a limiter by rule.
func built[L one](self L, rule *store.Rule, s store.Store, l Limit, opts []Option) (none L, err error) {
	if err := self.core().build(self, rule, s, l, opts); err != nil {
		return none, err
	}
	return self, nil
}

// build makes lim, which is embedded in self, a limiter.
func (lim *limiter) build(self Limiter, rule *store.Rule, s store.Store, l Limit, opts []Option) (err error) {
	if isnil.Is(s) {
		return fmt.Errorf("%w: the store is nil", ErrInvalidOption)
	}
	*lim = limiter{rule: rule, limit: l, store: s}
	if lim.integers, err = integers(rule, l); err != nil {
		return err
	}
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an Option is nil", ErrInvalidOption)
		}
		if err := opt(lim); err != nil {
			return err
		}
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
	return s.Prepare(rule, lim.integers, lim.limitFunc == nil)
}

// introduce lets others know lim as self.
func (lim *limiter) introduce(self Limiter) {
	lim.quick = lim.reserved == 0 && lim.keyFunc == nil && !lim.calls && lim.observers == nil && lim.limitFunc == nil && lim.integers.Rate > 0
	lim.known = see.NewCore(self, see.Known[Limiter]{
		Held: lim.rule.Held, Algorithm: lim.rule.Name, Name: lim.policyName, Calls: lim.calls, ByEvents: func() Limiter { return lim.byEvents(self) },
		UsesContext: lim.limitFunc != nil || lim.keyFunc != nil, Key: lim.keyMaker(), Kind: lim.kind(),
		Local: func(s store.Store, instances int) (Limiter, error) { return lim.local(self, s, instances) },
	})
}

// byEvents makes a limiter like self that counts the events which it is asked for.
func (lim *limiter) byEvents(self Limiter) Limiter {
	l := newOf(self)
	core := l.core()
	*core = *lim
	core.calls = false
	core.introduce(l)
	return l
}

// newOf makes a zero one of self's type.
func newOf(self Limiter) one { return reflect.New(reflect.TypeOf(self).Elem()).Interface().(one) }

// core is how a limiter is found in what users hold: see coreOf.
func (lim *limiter) core() *limiter { return lim }

// coreOf is the limiter of l if l is one of the five types. It is nil for types that embed
// one of them: those may have an AllowN of their own.
func coreOf(l Limiter) *limiter {
	if c, ok := l.(interface{ core() *limiter }); ok && see.Of(l) != nil {
		return c.core()
	}
	return nil
}

// identity names the limiter's namespace: the Period or the calendar, and the name or else the
// rate and burst. No name can be taken for a rate, which has no "=".
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

// Peek implements [Limiter].
func (lim *limiter) Peek(ctx context.Context, key string) (res Result, err error) {
	err = lim.peek(ctx, key, &res)
	return res, err
}

// AllowUpTo admits as many of n events as fit: see [AllowUpTo].
func (lim *limiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r Result, err error) {
	err = lim.ask(ctx, key, n, asking{what: toTakeUpTo}, &r)
	if r.Allowed && (lim.calls || r.Source() == SourceUnlimited) {
		return n, r, err
	}
	return r.Charged(), r, err
}

// Charge implements [Charger].
func (lim *limiter) Charge(ctx context.Context, key string, n int) (res Result, err error) {
	err = lim.ask(ctx, key, n, asking{what: toCharge}, &res)
	return res, err
}

// operation is what a limiter asks its store for.
type operation uint8

const (
	toTake operation = iota
	toTakeUpTo
	toPeek
	toCharge
	toTakeWithin // asked for of limiters; a store is asked to take under a limit with a turn
)

// take is AllowN. It fills the caller's Result in place, which is too large to be returned through
// several levels for nothing.
func (lim *limiter) take(ctx context.Context, key string, n int, res *Result) error {
	if !lim.quick || n < 1 || n > maxEvents || len(key) == 0 || len(key) > store.MaxKey || ctx.Err() != nil {
		return lim.takeWithOptions(ctx, key, n, asking{what: toTake}, res)
	}
	r, err := lim.store.Take(ctx, lim.namespace, key, lim.integers, int64(n))
	if err != nil {
		return err
	}
	charged := int64(0)
	if r.OK() {
		charged = int64(n)
	}
	lim.taken(res, r, int64(n), charged)
	return nil
}

// takeWithOptions is take of a limiter that has any, and AllowWithin. It is in straight line too: an
// observer is what most services have.
func (lim *limiter) takeWithOptions(ctx context.Context, key string, n int, how asking, res *Result) error {
	if lim.reserved > 0 {
		return lim.ask(ctx, key, n, how, res)
	}
	var since time.Time
	if lim.timed {
		since = time.Now()
	}
	key, err := lim.keyOf(ctx, key, n)
	events := lim.events(n)
	if err == nil {
		var l store.Limit
		if l, err = lim.limitOf(ctx, key); err == nil {
			if how.what == toTakeWithin {
				l = lim.limitWithin(l, how.d)
			}
			err = lim.takeBy(ctx, key, l, min(int64(events), beyond), res)
		}
	}
	lim.tell(ctx, key, events, res, err, since)
	if lim.calls {
		res.ofCall(lim, n, toTake)
	}
	return err
}

// events returns how many events a call for n charges.
func (lim *limiter) events(n int) int {
	if lim.calls {
		return min(n, 1)
	}
	return n
}

// takeBy is take by the limit l.
func (lim *limiter) takeBy(ctx context.Context, key string, l store.Limit, n int64, res *Result) error {
	if l.Rate <= 0 {
		res.withoutStore(l)
		return nil
	}
	r, err := lim.store.Take(ctx, lim.namespace, key, l, n)
	if err != nil {
		return err
	}
	charged := int64(0)
	if r.OK() {
		charged = n
	}
	lim.result(res, l, r, n, charged)
	return nil
}

// peek is Peek, in straight line as take is.
func (lim *limiter) peek(ctx context.Context, key string, res *Result) error {
	if !lim.quick || len(key) == 0 || len(key) > store.MaxKey || ctx.Err() != nil {
		return lim.ask(ctx, key, 1, asking{what: toPeek}, res)
	}
	r, err := store.Peek(ctx, lim.store, lim.namespace, key, lim.integers, 1)
	if err != nil {
		return err
	}
	lim.taken(res, r, 1, 0)
	return nil
}

// ask is a Peek, an AllowUpTo or a Charge, or any call that leaves what is reserved, which is decided as one of
// several limits is.
func (lim *limiter) ask(ctx context.Context, key string, n int, how asking, res *Result) error {
	d := begin(how, nil)
	defer d.end()
	d.add(member{core: lim}, key, n, false)
	err := lim.check(ctx, key, n)
	switch {
	case err != nil && d.watched:
		lim.tell(ctx, key, n, nil, err, d.since)
	case err == nil:
		if err = d.decide(ctx); err == nil {
			*res = d.parts[0].Result
		}
	}
	return err
}

// taken is result of a Take by the constructor's limit.
func (lim *limiter) taken(res *Result, r store.Reply, n, charged int64) {
	if !lim.rule.Burst || r.Plain() {
		lim.result(res, lim.integers, r, n, charged)
		return
	}
	bucketTaken(&lim.integers, r, n, charged, res)
	if lim.rule == &leakyBucket && r.OK() {
		res.Delay = time.Duration(bucket.DrainTime(r.Y, r.Z, lim.integers)) * time.Microsecond
	}
	res.addReceipt(lim.integers, r.X, charged)
}

// bucketTaken fills res with what [bucket.Report] says of a call without a turn. It takes the limit
// by pointer and calls nothing but the division, since each decision pays for it.
func bucketTaken(l *store.Limit, r store.Reply, n, charged int64, res *Result) {
	whole, part := r.Y, r.Z
	room := l.Burst - whole
	if part > 0 {
		room--
	}
	res.Allowed, res.Limit, res.Remaining = r.OK(), int(l.Burst), int(max(0, room-charged))
	res.ResetAfter = time.Duration(exact.MulDivUp(whole+charged, l.Period, part, l.Rate)) * time.Microsecond
	switch {
	case r.OK():
	case n > l.Burst:
		res.RetryAfter = Never
	default:
		res.RetryAfter = time.Duration(exact.MulDivUp(whole+n-l.Burst, l.Period, part, l.Rate)) * time.Microsecond
	}
}

// overdrawn makes res of the reply to an OpOverdraw.
func (lim *limiter) overdrawn(res *Result, req *store.Request, r store.Reply) {
	n := req.N
	if r.Outcome |= store.Admitted; r.Plain() {
		lim.result(res, req.Limit, r, n, n)
		return
	}
	if spent := lim.rule.Spent; spent != nil { // no more than this has been charged
		n = min(n, max(0, req.Most-spent(r)))
	}
	lim.result(res, req.Limit, r, n, n)
	if n == 0 { // the state was full, and was written all the same: as if its last event were this one
		res.report(lim.rule.Report(req.Limit, lim.rule.After(r, -1), 1, 1), true, 1, req.Limit.Burst)
		res.Delay = 0
	}
}

// mostOf is the most events that a state can hold.
func mostOf(rule *store.Rule, l store.Limit) int64 {
	if rule.Burst {
		return bucket.Most(l)
	}
	return maxEvents
}

// capacity is the most events that fit at once. Of a ban these are denials: its Burst is a time.
func (lim *limiter) capacity(l *store.Limit) int64 {
	if lim.rule == &ban {
		return l.Rate
	}
	return l.Burst
}

// result makes res of a reply on n events, of which charged were charged.
func (lim *limiter) result(res *Result, l store.Limit, r store.Reply, n, charged int64) {
	res.report(r.Report(lim.rule, l, n, charged), r.OK(), n, lim.capacity(&l))
	res.addReceipt(l, r.X, charged)
	if r.Plain() {
		res.mark = markOf(r.Outcome)
		if !res.Allowed && r.X == store.Never {
			res.RetryAfter = Never
		}
	}
}

// tell tells the observers of a decision on n events of key.
func (lim *limiter) tell(ctx context.Context, key string, n int, r *Result, err error, since time.Time) {
	if lim.observers == nil {
		return
	}
	var took time.Duration
	if lim.timed {
		took = time.Since(since)
	}
	if err != nil {
		r = &Result{}
	}
	for _, o := range lim.observers {
		o.Decided(ctx, key, n, *r, err, took)
	}
}

// callOf is the note on the Result of a call for so many events, of which one was charged.
type callOf int

// ofCall makes r, of one event, the Result of a call for n.
func (r *Result) ofCall(lim *limiter, n int, what operation) {
	switch {
	case what == toCharge && *r != (Result{}):
		r.Allowed, r.RetryAfter = true, 0
		*r = r.WithMark(NewMark(lim, SourceStore, callOf(math.MaxInt))) // which no Refund reaches
	case n > 1 && r.Allowed:
		*r = r.WithMark(NewMark(lim, SourceStore, callOf(n)))
	}
}

// keyOf is the key that is counted where key is asked for. After an error it is key.
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

// keyMaker is keyOf if a function makes the keys, or else nil.
func (lim *limiter) keyMaker() see.Key {
	if lim.keyFunc == nil {
		return nil
	}
	return lim.keyOf
}

// Refund implements [Limiter].
func (lim *limiter) Refund(ctx context.Context, key string, charged Result, n int) error {
	key, err := lim.keyOf(ctx, key, n)
	if err != nil {
		return err
	}
	if charged.Allowed && charged.uncounted() {
		return nil
	}
	l := lim.integers
	if lim.limitFunc != nil {
		if l, err = lim.read(lim.keptLimit(ctx, key)); err != nil {
			return err
		}
	}
	if lim.calls {
		under, note, _ := charged.Unmark(lim)
		if of, ok := note.(callOf); ok && n < int(of) { // the call has been made
			return nil
		}
		charged = under
	}
	if charged.n == 0 || charged.together() != nil {
		return errNothingCharged
	}
	receipt := lim.receipt(charged, l, int64(n))
	if l.Rate <= 0 { // for now: by the limit of the charge, so that it is not lost
		l = store.Limit{Rate: receipt.Rate, Period: receipt.Period, Burst: min(max(int64(charged.Limit)+lim.reserved, 1), maxEvents)}
		if lim.rule.Burst && !receipt.Overdrawn { // of a lower capacity than others were charged under since
			l.Burst = max(l.Burst, bucket.Most(l))
		}
	}
	return lim.store.Refund(ctx, lim.namespace, key, l, receipt)
}

// receipt names n of the events that charged, by lim, admitted. l is the limit of today.
func (lim *limiter) receipt(charged Result, l store.Limit, n int64) store.Receipt {
	if lim.reserved > 0 {
		if charged.Limit == 0 { // all of it was reserved
			charged.Limit = int(min(lim.reserved, max(l.Burst, 0)))
		} else {
			charged.Limit += int(lim.reserved)
		}
	}
	return charged.receipt(n)
}

// Reset implements [Limiter].
func (lim *limiter) Reset(ctx context.Context, key string) error {
	key, err := lim.keyOf(ctx, key, 1)
	if err != nil {
		return err
	}
	return lim.store.Reset(ctx, lim.namespace, key)
}

// check refuses bad input before the store sees it.
func (lim *limiter) check(ctx context.Context, key string, n int) error {
	if lim.store == nil {
		return unmade.Err
	}
	return store.CheckCall(ctx, key, n)
}

// limitOf is the limit of a key for a decision, as the store reads it.
func (lim *limiter) limitOf(ctx context.Context, key string) (store.Limit, error) {
	if lim.limitFunc == nil {
		return lim.integers, nil
	}
	l, err := lim.askLimit(ctx, key)
	return lim.read(l, err)
}

// read is l, of a limit function, as the store reads it.
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
		return store.Limit{}, fmt.Errorf("%w: %v: a %s has no burst", ErrInvalidLimit, l, rule.Name)
	}
	i := store.Limit{Rate: int64(l.Rate), Period: l.Period.Microseconds(), Burst: int64(l.Burst)}
	if l.calendar != nil {
		if rule != &fixedWindow {
			return i, fmt.Errorf("%w: %v: a %s has no calendar", ErrInvalidLimit, l, rule.Name)
		}
		i = l.calendar.In(i)
	}
	if i.Burst == 0 || i.Rate == 0 {
		i.Burst = i.Rate
	}
	if rule.Burst && !bucket.DrainsWithin(i, bucket.MaxRefill) {
		return store.Limit{}, fmt.Errorf("%w: %v: the bucket takes over 100 years to refill", ErrInvalidLimit, l)
	}
	return i, nil
}

// local makes what stands in for lim in one of so many instances while their store fails. It
// counts on s, which is expected to be in memory, and has 1/instances of each limit, those of
// tiers and of a limit function included. It has the algorithm, name and options of lim, but no
// observers. Its Limit and the names of its policies are those of lim.
//
// The error is [ErrInvalidLimit] if instances is below 1, or a limit has no such share. Of
// limits that a function gives, that is an error of the call.
func (lim *limiter) local(self Limiter, s store.Store, instances int) (Limiter, error) {
	of := func(l Limit) (Limit, error) {
		if lim.rule.Burst && l.Burst == 0 { // or else a share is rounded down
			l.Burst = max(l.Rate, 0)
		}
		if lim.rule.AnyPeriod { // a slot is whole
			if instances < 1 {
				return l, fmt.Errorf("%w: %d instances", ErrInvalidLimit, instances)
			}
			l.Rate = max(min(l.Rate, 1), l.Rate/instances)
			return l, nil
		}
		l, err := l.Share(instances)
		if err == nil {
			_, err = integers(lim.rule, l)
		}
		return l, err
	}
	own, err := of(lim.limit)
	if err != nil {
		return nil, err
	}
	for _, l := range lim.tiers {
		if _, err := of(l); err != nil {
			return nil, err
		}
	}
	asHere := func(local *limiter) error {
		local.name, local.policyName, local.keyFunc, local.calls = lim.name, lim.policyName, lim.keyFunc, lim.calls
		if lim.reserved > 0 { // 1/instances, rounded up while it leaves anything
			local.reserved = min((lim.reserved+int64(instances)-1)/int64(instances), max(0, int64(max(own.Rate, own.Burst))-1))
		}
		local.limitFunc = func(ctx context.Context, key string) (Limit, error) {
			if lim.limitFunc == nil {
				return own, nil
			}
			l, err := lim.keptLimit(ctx, key) // of the decision that it stands in for
			if err != nil || l == (Limit{}) {
				return own, err
			}
			return of(l)
		}
		return nil
	}
	// The identity is by the whole limit: that of a share has another Period for some rates.
	return built(newOf(self), lim.rule, s, lim.limit, []Option{asHere})
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
