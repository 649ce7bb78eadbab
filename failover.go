package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// Failover is a Limiter for when the store fails: in place of the error, a policy
// answers ([FailOpen], [FailClosed], [FailLocal]), and [Result.Source] says so.
// After some failures in a row a circuit breaker opens, and from then on the
// store is left alone: an answer takes some 100 ns, but for one call at a time,
// the probe, after each second ([WithBreaker]). The probe that succeeds closes the
// breaker.
//
// A failure is an error that wraps [ErrStore], a lost reply included, of which
// the charge may stand. Nothing else is one, nor opens the breaker: not a denial,
// invalid input, an error of a limit function, or the end of the caller's ctx, even
// while the store hangs. So give the store a timeout that is shorter than the
// callers' deadlines; until the breaker opens, and in a probe, a call takes that long.
//
// Two errors are answered by the policy without the breaker taking notice. A corrupt
// state ([store.ErrCorrupt]) ails one key. A call that found no room in this process
// ([store.ErrOverloaded]) says nothing about the store, which goes on to decide on all others.
//
// Bounds stand with the policies. Memory: a few hundred bytes, and with FailLocal
// up to 6 MB for keys that are not handed back yet. It starts no goroutine and has
// nothing to close. Its time is the process's own.
//
// It is safe for concurrent use. Make it by [NewFailover].
type Failover struct {
	limiter  Limiter
	policy   FailurePolicy
	failures uint32
	pause    time.Duration // from opening to the probe

	breaker *gobreaker.CircuitBreaker[Result]
	base    time.Time    // of the times below, which are monotonic
	probeAt atomic.Int64 // ns since base; 0 unless the breaker is open
	mark    *details     // of all Results that the policy makes of nothing
	owed    debts
}

const (
	defaultFailures = 5
	defaultPause    = time.Second
	leastRetryAfter = time.Second
)

var (
	errOpen = fmt.Errorf("%w: the circuit breaker is open", store.ErrUnavailable)
	// errHandingBack: another call is at the store to settle what the key owes.
	errHandingBack = fmt.Errorf("%w: the key is being handed back", ErrStore)
	// errUnasked: the call came to its decision without the store.
	errUnasked = errors.New("ratelimit: the store was not asked")
)

// FailurePolicy is what a [Failover] answers while the store fails. Policies are
// made by [FailOpen], [FailClosed] and [FailLocal].
type FailurePolicy struct {
	source Source
	local  Limiter
}

// FailOpen lets every event through, with no bound, and whatever the limit of its
// key, even 0. The Results have [SourceFailOpen] and, since the key's state is not
// known, no other field but Allowed. To Refund one is no error and does nothing.
func FailOpen() FailurePolicy { return FailurePolicy{source: SourceFailOpen} }

// FailClosed refuses every event. The Results have [SourceFailClosed] and a
// RetryAfter, which is the time until the breaker's next probe and at least 1 s;
// Limit, Remaining and ResetAfter are 0, since they are not known.
func FailClosed() FailurePolicy { return FailurePolicy{source: SourceFailClosed} }

// FailLocal lets local decide, which is a limiter of this process alone, such as
// one in memory. Its Results have [SourceLocal]. Where n instances share a store,
// give each a [Limit.Share] of 1/n.
//
// Bound: local's own, for each instance that does not reach the store, on top of
// what the store's limiter admits to the others. So n instances with shares of 1/n
// admit in any interval, whoever of them reaches the store and when, at most twice
// what the limit's own bound says (and see [Limit.Share] about n bursts). One
// instance whose local limiter has the limit of the store's keeps to one limit's
// bound across outages, give or take an event for each of them and for each call
// under way, as long as the store loses nothing. Two things see to that:
//
//   - A warm start: local is charged with what the store admits here (as far as
//     it has room), so that an outage finds it with this instance's own spend.
//   - No free burst after it: what local has admitted to a key in the outage, and
//     still holds against it, is charged to the store by the key's next call, before
//     that call is decided. What the store has no room for stays owed for as long as
//     local holds it, and is tried again with each call. Of a key that owes, one
//     call at a time goes to the store, and local answers the others.
//
// Each instance hands back what it has admitted itself, so that what the others
// owe comes with their next calls of the key. It remembers 65,536 keys; beyond
// that it forgets those that owe the least of some that it looks at, which have their
// local spend as a free burst then. A lost reply makes a key pay twice. What is paid late
// counts from then on, for up to a Period after local would have forgotten it.
//
// A refund of what the store admitted is also given back to local. Where local had no
// room for s of the events, a Refund of n gives it back n-s, and nothing below that. What
// local has admitted and has been handed back is refunded to local only.
//
// It costs a decision of local, and an allocation, with each admission of the store,
// and a second call of the store where a key owes (up to four where the limiter has
// no AllowUpTo(ctx, key, n) (granted int, r Result, err error), which charges as
// many of n events as there is room for). An event that is too large for local may
// fit the store, so that its RetryAfter is the time to the next probe, not [Never].
func FailLocal(local Limiter) FailurePolicy {
	return FailurePolicy{source: SourceLocal, local: local}
}

// FailoverOption sets what is optional about a Failover.
type FailoverOption func(*Failover) error

// WithBreaker opens the circuit breaker after so many failures in a row, 1 to
// 2^31-1, and lets a probe through when it has been open for probeAfter, above 0,
// and as long again after each probe that fails. Without it they are 5 and 1 s.
func WithBreaker(failures int, probeAfter time.Duration) FailoverOption {
	return func(f *Failover) error {
		if failures < 1 || failures > math.MaxInt32 || probeAfter <= 0 {
			return fmt.Errorf("%w: WithBreaker(%d, %v)", ErrInvalidOption, failures, probeAfter)
		}
		f.failures, f.pause = uint32(failures), probeAfter
		return nil
	}
}

// NewFailover returns a limiter that decides as l does, and as p says while l's
// store fails. Its error is [ErrInvalidOption]: l, the local limiter or an option is
// nil, p is not made by its constructor, or an option is out of range.
func NewFailover(l Limiter, p FailurePolicy, opts ...FailoverOption) (*Failover, error) {
	switch {
	case isnil.Is(l):
		return nil, errNilLimiter
	case p.source == SourceStore:
		return nil, fmt.Errorf("%w: no failure policy", ErrInvalidOption)
	case p.source == SourceLocal && isnil.Is(p.local):
		return nil, fmt.Errorf("%w: the local limiter is nil", ErrInvalidOption)
	}
	f := &Failover{limiter: l, policy: p, failures: defaultFailures, pause: defaultPause, base: time.Now()}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: a FailoverOption is nil", ErrInvalidOption)
		}
		if err := opt(f); err != nil {
			return nil, err
		}
	}
	f.mark = &details{source: p.source, by: f, byPolicy: true}
	f.owed.seeds = newKeySeeds()
	f.breaker = f.newBreaker()
	return f, nil
}

func (f *Failover) newBreaker() *gobreaker.CircuitBreaker[Result] {
	return gobreaker.NewCircuitBreaker[Result](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     max(f.pause-1, 1), // it is over when more than that has passed, by 1 ns
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= f.failures },
		IsExcluded:  func(err error) bool { return err != nil && !ofTheStore(err) },
		OnStateChange: func(_ string, _, to gobreaker.State) { // under the breaker's lock
			probeAt := time.Duration(0)
			if to == gobreaker.StateOpen {
				probeAt = f.now() + f.pause
			}
			f.probeAt.Store(int64(probeAt))
		},
	})
}

// ofTheStore is whether err tells of the store as a whole. A corrupt state does not, nor
// does a queue of this process that is full: neither is a failure, nor a success.
func ofTheStore(err error) bool {
	return errors.Is(err, ErrStore) && !errors.Is(err, errHandingBack) &&
		!errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrOverloaded)
}

// now is the time since base.
func (f *Failover) now() time.Duration { return time.Since(f.base) }

// untilProbe is how long the breaker stays open, 0 if it is not.
func (f *Failover) untilProbe() time.Duration {
	at := f.probeAt.Load()
	if at == 0 {
		return 0
	}
	return max(0, time.Duration(at)-f.now())
}

// retryAfter is the time until the store may be asked again, in whole µs.
func (f *Failover) retryAfter() time.Duration {
	until := f.untilProbe()
	if rest := until % time.Microsecond; rest > 0 {
		until += time.Microsecond - rest
	}
	return max(until, leastRetryAfter)
}

// Allow is AllowN of 1.
func (f *Failover) Allow(ctx context.Context, key string) (Result, error) {
	return f.decide(ctx, key, 1, asking{what: take})
}

// AllowN decides on n events at once. [Result.Source] says who has decided. What
// is left of errors are those of invalid input, of limit functions and of the local
// limiter, and ctx's own.
func (f *Failover) AllowN(ctx context.Context, key string, n int) (Result, error) {
	return f.decide(ctx, key, n, asking{what: take})
}

// Peek answers what Allow would, and charges nothing but what the key owes to the
// store after an outage ([FailLocal]).
func (f *Failover) Peek(ctx context.Context, key string) (Result, error) {
	return f.decide(ctx, key, 1, asking{what: peek})
}

// decide is AllowN, AllowWithin or Peek.
func (f *Failover) decide(ctx context.Context, key string, n int, how asking) (Result, error) {
	if err := f.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	r, err := f.ask(func() (Result, error) { return f.call(ctx, key, n, how) })
	switch {
	case errors.Is(err, ErrStore):
		return f.answer(ctx, key, n, how)
	case err != nil:
		return Result{}, err
	case how.what != peek && r.Allowed && f.policy.local != nil && !r.uncounted():
		return f.mirror(ctx, key, n, r), nil
	}
	return r, nil
}

// check refuses bad input, also while the limiter is not asked.
func (f *Failover) check(ctx context.Context, key string, n int) error {
	if f.limiter == nil {
		return fmt.Errorf("%w: a Failover is made by its constructor", ErrInvalidOption)
	}
	return checkCall(ctx, key, n)
}

// ask lets do call the limiter, if the breaker is closed or do is the probe.
func (f *Failover) ask(do func() (Result, error)) (Result, error) {
	if f.untilProbe() > 0 { // the breaker would say the same, behind its lock
		return Result{}, errOpen
	}
	r, err := f.breaker.Execute(do)
	switch {
	case err == nil:
	case errors.Is(err, errUnasked):
		err = nil
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		err = errOpen
	}
	return r, err
}

// call is one decision of the limiter, after what the key owes.
func (f *Failover) call(ctx context.Context, key string, n int, how asking) (r Result, err error) {
	if err := f.settle(ctx, key); err != nil {
		return Result{}, err
	}
	r, err = how.ask(ctx, f.limiter, key, n)
	if err == nil && !asked(r) {
		err = errUnasked
	}
	return r, err
}

// asked is whether the store had a part in r, from which the breaker may learn. A
// Rate of 0 and caches deny without it.
func asked(r Result) bool {
	rateOf0 := !r.Allowed && r.Limit == 0 && r.RetryAfter == Never
	return r.Source() == SourceStore && !rateOf0
}

// answer is the policy's.
func (f *Failover) answer(ctx context.Context, key string, n int, how asking) (r Result, err error) {
	switch f.policy.source {
	case SourceFailOpen:
		return Result{Allowed: true, details: f.mark}, nil
	case SourceFailClosed:
		return Result{RetryAfter: f.retryAfter(), details: f.mark}, nil
	}
	if r, err = how.ask(ctx, f.policy.local, key, n); err != nil {
		return Result{}, err
	}
	if r.RetryAfter == Never && r.Limit > 0 { // too large for a share
		r.RetryAfter = f.retryAfter()
	}
	if how.what != peek && r.Allowed {
		f.owed.add(key, n, f.now(), r.ResetAfter)
	}
	r.details = f.marked(r.details)
	return r, nil
}

// marked is the details of a local Result that has d.
func (f *Failover) marked(d *details) *details {
	if d == nil {
		return f.mark
	}
	marked := *d
	marked.source, marked.by, marked.byPolicy, marked.under = f.policy.source, f, true, d
	return &marked
}

// mirror charges n events, which the store has admitted as r, to the local limiter
// too, as far as it has room for them. Its own errors are no matter: it would only
// start cold.
func (f *Failover) mirror(ctx context.Context, key string, n int, r Result) Result {
	granted, local, err := AllowUpTo(lasting(ctx), f.policy.local, key, n)
	if err != nil || granted == 0 {
		return r
	}
	d := details{source: r.Source()}
	if r.details != nil {
		d = *r.details
	}
	d.by, d.byPolicy, d.under, d.mirror, d.short = f, false, r.details, local, n-granted
	r.details = &d
	return r
}

// lasting is ctx, without its end if that has come: what the store has done is not
// to be forgotten for it.
func lasting(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// upToTries is how often allowUpTo asks: a denial says how many events there is
// room for, so that the second try fits unless other calls come between.
const upToTries = 3

// AllowUpTo charges as many of n events as l has room for.
func AllowUpTo(ctx context.Context, l Limiter, key string, n int) (granted int, r Result, err error) {
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
		if n = min(n, r.Remaining); n == 0 {
			break
		}
	}
	return 0, r, nil
}

// settle charges to the limiter what the local one has admitted to key in its
// place and still holds against it. Of what it holds the store may know a part from
// before, so that at worst the key pays some of it twice, and never more than it has
// spent locally.
func (f *Failover) settle(ctx context.Context, key string) error {
	if f.owed.keys.Load() == 0 {
		return nil
	}
	events, err := f.owed.take(key, f.now())
	if events == 0 || err != nil {
		return err
	}
	paid := 0
	defer func() { f.owed.settle(key, paid) }()

	due := events
	if p, err := f.policy.local.Peek(ctx, key); err == nil {
		due = min(due, p.Limit-p.Remaining)
	}
	granted := 0
	if due > 0 {
		if granted, _, err = AllowUpTo(ctx, f.limiter, key, due); err != nil {
			return err // after a lost reply it may be charged again: rather that than not at all
		}
	}
	paid = events - due + granted
	return nil
}

// Charge charges n events that have happened already, whether they fit or not. While
// the store fails, that is an error that wraps [ErrStore] and charges nobody; while the
// breaker is open it is [store.ErrUnavailable]. But with [FailLocal] it charges the local
// limiter, from which they are handed back as all that it has admitted. What is charged
// past its limit is not handed back.
func (f *Failover) Charge(ctx context.Context, key string, n int) (Result, error) {
	if err := f.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	r, err := f.ask(func() (Result, error) {
		r, err := Charge(ctx, f.limiter, key, n)
		if err == nil && !asked(r) {
			err = errUnasked
		}
		return r, err
	})
	switch {
	case err == nil && r.Allowed && f.policy.local != nil && !r.uncounted():
		return f.mirror(ctx, key, n, r), nil
	case err == nil || !errors.Is(err, ErrStore) || f.policy.local == nil:
		return r, err
	}
	if r, err = Charge(ctx, f.policy.local, key, n); err != nil {
		return Result{}, err
	}
	f.owed.add(key, n, f.now(), r.ResetAfter)
	r.details = f.marked(r.details)
	return r, nil
}

// Refund gives back n of the events that charged admitted, to whoever admitted
// them: the store, the local limiter, or nobody if that was [FailOpen]. It is an
// error that wraps [ErrStore] if the store fails, and [store.ErrUnavailable] if the
// breaker is open; no policy answers in its place.
func (f *Failover) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := f.check(ctx, key, n); err != nil {
		return err
	}
	if !charged.Allowed {
		return errNothingCharged
	}
	d := charged.details
	if d == nil || d.by != f {
		return f.refund(ctx, key, charged, n)
	}
	charged.details = d.under
	if d.byPolicy {
		return f.refundAnswer(ctx, key, charged, n)
	}
	if err := f.refund(ctx, key, charged, n); err != nil {
		return err
	}
	if n > d.short { // what the mirror lacks is refunded first
		_ = f.policy.local.Refund(lasting(ctx), key, d.mirror, n-d.short)
	}
	return nil
}

// refund gives back to the store.
func (f *Failover) refund(ctx context.Context, key string, charged Result, n int) error {
	_, err := f.ask(func() (Result, error) { return Result{}, f.limiter.Refund(ctx, key, charged, n) })
	return err
}

// refundAnswer gives back what the policy admitted.
func (f *Failover) refundAnswer(ctx context.Context, key string, charged Result, n int) error {
	if f.policy.local == nil {
		return nil
	}
	if err := f.policy.local.Refund(ctx, key, charged, n); err != nil {
		return err
	}
	if charged.n > 0 { // 0 if it is not one of the five types that has charged
		n = min(n, int(charged.n))
	}
	f.owed.forgive(key, n)
	return nil
}

// Reset forgets key at the store and at the local limiter, also at the one if the
// other fails: then it is an error.
func (f *Failover) Reset(ctx context.Context, key string) error {
	if err := f.check(ctx, key, 1); err != nil {
		return err
	}
	_, err := f.ask(func() (Result, error) { return Result{}, f.limiter.Reset(ctx, key) })
	if f.policy.local != nil { // which holds nothing then, so that nothing is owed
		err = errors.Join(err, f.policy.local.Reset(ctx, key))
	}
	return err
}

// maxDebts is how many keys are remembered at once, some 6 MB.
const maxDebts = 1 << 16

// debts are the events that the local limiter has admitted, key by key, until the
// store is charged with them.
type debts struct {
	seeds keySeeds
	keys  atomic.Int64 // len(byKey), so that without debts nobody takes the lock

	mu    sync.Mutex // of what follows; never held during a call of a limiter
	byKey map[keyHash]debt
	until time.Duration // the latest of all
}

// debt is what a key owes.
type debt struct {
	events   int
	until    time.Duration // from then on the local limiter has forgotten them
	settling bool          // a call is at the store for them
}

// add remembers n events of key, admitted now, of which the local limiter knows for
// the time life. (What of them is still in force is asked when they are settled:
// concurrent calls come here in another order than they were decided in.)
func (d *debts) add(key string, n int, now, life time.Duration) {
	id := d.seeds.hash(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byKey == nil {
		d.byKey = make(map[keyHash]debt)
	}
	owed, found := d.byKey[id]
	if !found && len(d.byKey) >= maxDebts {
		d.dropLeast(now)
	}
	if now >= owed.until {
		owed.events = 0
	}
	owed.events += min(n, maxEvents-owed.events)
	owed.until = max(owed.until, now+min(life, math.MaxInt64-now))
	d.until = max(d.until, owed.until)
	d.byKey[id] = owed
	d.keys.Store(int64(len(d.byKey)))
}

// dropLeast makes room by the key that owes the least of some. Without the lock.
func (d *debts) dropLeast(now time.Duration) {
	const sampled = 8 // as many as memstore looks at
	var victim keyHash
	least, seen := math.MaxInt, 0
	for id, owed := range d.byKey { // in no particular order
		if now >= owed.until {
			owed.events = 0
		}
		if owed.events < least {
			victim, least = id, owed.events
		}
		if seen++; seen == sampled {
			break
		}
	}
	delete(d.byKey, victim)
}

// take is what key owes, for the caller to settle; or errHandingBack if another
// call is about it.
func (d *debts) take(key string, now time.Duration) (events int, err error) {
	id := d.seeds.hash(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	if now >= d.until { // all have decayed
		d.byKey = nil
		d.keys.Store(0)
		return 0, nil
	}
	owed, found := d.byKey[id]
	if !found {
		return 0, nil
	}
	if owed.settling {
		return 0, errHandingBack
	}
	owed.settling = true
	d.byKey[id] = owed
	return owed.events, nil
}

// settle ends what take began: paid events of key are no longer owed.
func (d *debts) settle(key string, paid int) {
	d.change(key, func(owed *debt) { owed.settling, owed.events = false, owed.events-paid })
}

// forgive takes n events off what key owes.
func (d *debts) forgive(key string, n int) {
	if d.keys.Load() == 0 {
		return
	}
	d.change(key, func(owed *debt) { owed.events -= n })
}

// change changes what key owes, if anything, and forgets the key when that is paid.
func (d *debts) change(key string, by func(*debt)) {
	id := d.seeds.hash(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	owed, found := d.byKey[id]
	if !found {
		return
	}
	by(&owed)
	if d.byKey[id] = owed; owed.events <= 0 && !owed.settling {
		delete(d.byKey, id)
	}
	d.keys.Store(int64(len(d.byKey)))
}
