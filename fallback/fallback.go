// Package fallback decides while the store of a limiter fails: it lets events through,
// refuses them, or asks a local limiter.
//
//	limiter, err := fallback.New(bucket, fallback.FailLocal(4)) // of 4 instances
//
// The right [Answer] depends on what the limit protects. Use [FailOpen] where an outage of the
// store must not become an outage of the service. Use [FailClosed] where one event too many
// costs more than a refusal. Use [FailLocal] or [FailTo] where the limit should roughly
// hold all the same.
package fallback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/kept"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Limiter wraps a [ratelimit.Limiter] and gives an [Answer] while its store fails.
// [ratelimit.Result.Source] tells such answers from those of the store. After 5 failures in a
// row a circuit breaker opens, and calls no longer go to the store: an answer then takes some
// 100 ns. Every second one call is a probe, which begins with a Peek. One that succeeds closes
// the breaker. See [WithBreaker] and [WithOnChange].
//
// It goes around a [ratelimit.All] as a whole.
//
// Bound: that of the answer. See [FailOpen], [FailClosed] and [FailTo].
//
// A failure is an error that wraps [ratelimit.ErrStore]. A lost reply is one too, and its
// charge may stand. Denials, invalid input, errors of a limit function and the end of the
// caller's ctx are none. Let the limit function answer while its database fails, as package
// plancache does. Give the store a shorter timeout than the callers' deadlines: until the breaker
// opens, and in a probe, a call takes that long.
//
// Three errors are answered and are no failures: [store.ErrCorrupt], which concerns one key,
// [store.ErrClock], and [store.ErrOverloaded], since the store still decides other calls. What
// a lease or a deny cache answers from memory is neither a failure nor a success.
//
// It takes a few hundred bytes. A local limiter takes some 40 bytes a key, also without an outage,
// and up to 6 MB for keys that are not handed back yet: see [Answer.On]. It has nothing to close.
// It is safe for concurrent use. Make it by [New].
type Limiter struct {
	limiter  ratelimit.Limiter
	source   ratelimit.Source // of the answer
	local    ratelimit.Limiter
	counts   ratelimit.Limiter // local without its bans, which say nothing of what a key has spent
	asks     bool              // whether one decision may ask a limit function more than once
	frees    bool              // whether keys may be Unlimited, which is admitted while the breaker is open
	failures uint32
	pause    time.Duration // from opening to the probe

	breaker  *gobreaker.CircuitBreaker[ratelimit.Result]
	changes  changes
	base     time.Time        // of the times below, which are monotonic
	probeAt  atomic.Int64     // ns since base; 0 unless the breaker is open
	halfOpen atomic.Bool      // whether the breaker is
	failing  atomic.Bool      // whether the last call of the store has failed
	mark     *ratelimit.Mark  // on its answers
	plain    *ratelimit.Mark  // on those of the local limiter whose source stays
	made     ratelimit.Result // its answer without a local limiter, except RetryAfter
	owed     debts

	mirrors //nolint:unused // package see looks for it
}

// mirrors says that a local limiter is charged with what the store admits.
type mirrors = see.Mirrors //nolint:unused // see package see

const (
	defaultFailures = 5
	defaultPause    = time.Second
	leastRetryAfter = time.Second
	longestPause    = 100 * 365 * 24 * time.Hour // so that it can be added to a time, and rounded up
)

var (
	errOpen = fmt.Errorf("%w: the circuit breaker is open", store.ErrUnavailable)
	// errUnasked means that the call was decided without the store.
	errUnasked        = errors.New("fallback: the store was not asked")
	errNothingCharged = fmt.Errorf("%w: the Result to refund has charged nothing", ratelimit.ErrInvalidN)
)

// Answer is what a [Limiter] answers while the store fails. Make one by [FailOpen], [FailClosed],
// [FailTo] or [FailLocal].
type Answer struct {
	source ratelimit.Source
	local  ratelimit.Limiter
	share  bool // local will be a share of 1/shares
	shares int
	on     store.Store // on which it counts, if placed
	placed bool
}

// FailOpen lets every event through without a bound, even if the key has a limit of 0. Its
// Results have [ratelimit.SourceFailOpen] and Allowed. All other fields are zero, since the
// key's state is not known. Refunding such a Result is no error and does nothing.
func FailOpen() Answer { return Answer{source: ratelimit.SourceFailOpen} }

// FailClosed refuses every event, except of keys that a limit function or a tier makes
// [ratelimit.Unlimited], without a [ratelimit.Ban] around. Its Results have [ratelimit.SourceFailClosed]. RetryAfter is
// the time until the breaker's next probe, and at least 1 s. Limit, Remaining and
// ResetAfter are 0, since they are not known.
func FailClosed() Answer { return Answer{source: ratelimit.SourceFailClosed} }

// FailTo lets l decide, a limiter of this process alone, such as one in memory. Its Results
// have [ratelimit.SourceLocal], or what l says of a ban and of [ratelimit.Unlimited]. Most callers want
// [FailLocal], which makes that limiter.
//
// Bound: l's own for each instance that cannot reach the store, on top of what the store admits
// to the others. If n instances share a store, give each a share of 1/n. Then that is at most
// twice the limit's own bound, in any interval, and about n bursts. A single instance can have a local limiter with the store's limit.
// Both together then keep to one limit, to within one event for each outage and for each call under
// way when it ends:
//
//   - l starts warm, since it is also charged with what the store admits here.
//   - After the outage the key's next call hands back what l has admitted and still holds
//     against it, while the store decides its other calls. What the store has no room for stays
//     owed, and later calls try again, one at a time.
//
// It remembers 65,536 keys that owe. Beyond that the local spend of one becomes a free burst.
// After a lost reply a key pays twice. A refund of what the store admitted is also given back
// to l.
//
// Each admission by the store also costs a decision of l, and one or two allocations. A key
// that owes costs a second call of the store, or up to four if the limiter has no AllowUpTo
// method. An event that is too large for l may fit the store. So its RetryAfter is the time to
// the next probe. [More].
//
// [More]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/redis.md#when-redis-does-not-answer
func FailTo(l ratelimit.Limiter) Answer {
	return Answer{source: ratelimit.SourceLocal, local: l}
}

// FailLocal is [FailTo] with a limiter in memory, which [New] makes after that of the store. It
// has its algorithm, key function and 1/n of each limit, including those of tiers and of a limit
// function, but no observers. The number of instances that share the store is n, 1 or more: of a
// fleet that grows and shrinks the largest.
func FailLocal(n int) Answer {
	return Answer{source: ratelimit.SourceLocal, share: true, shares: n}
}

// On is a with s, which is expected to be in memory, in place of a memory of its own, which has up to
// 16 million keys: [memstore.WithMaxKeys] sets another number. Limiters that have a limit in common then have it in common while the store fails, too. It is for
// [FailLocal]: [New] refuses other answers with a store, and a nil one.
func (p Answer) On(s store.Store) Answer {
	p.on, p.placed = s, true
	return p
}

// Option configures a [Limiter].
type Option func(*Limiter) error

// WithBreaker opens the circuit breaker after this many failures in a row, 1 to 2^31-1. A
// probe follows when it has been open for probeAfter, above 0, and as long again after each
// probe that fails. The defaults are 5 and 1 s.
func WithBreaker(failures int, probeAfter time.Duration) Option {
	return func(f *Limiter) error {
		if failures < 1 || failures > math.MaxInt32 || probeAfter <= 0 {
			return fmt.Errorf("%w: WithBreaker(%d, %v)", ratelimit.ErrInvalidOption, failures, probeAfter)
		}
		f.failures, f.pause = uint32(failures), min(probeAfter, longestPause)
		return nil
	}
}

// New returns a limiter that decides as l does, and as p says while l's store fails.
//
// It returns [ratelimit.ErrInvalidOption] if l, the local limiter or an option is nil, or
// an option is out of range. The same goes for a p not made by its constructor, and with
// FailLocal for an l that is none of the five types or slots, nor an All or a Ban of such. If a limit has no such share,
// the error is [ratelimit.ErrInvalidLimit].
//
// A shadow, an accesslist and the limiters of package throttle go around a fallback. New
// refuses them in l and in the local limiter: they answer for the store themselves, or
// sleep while they hold the breaker. It also finds them in an All, and in wrappers that
// have a method Unwrap() ratelimit.Limiter. Give such a method to your own.
func New(l ratelimit.Limiter, p Answer, opts ...Option) (*Limiter, error) {
	switch {
	case isnil.Is(l):
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	case p.source == ratelimit.SourceStore:
		return nil, fmt.Errorf("%w: no failure policy", ratelimit.ErrInvalidOption)
	}
	for _, inside := range []ratelimit.Limiter{l, p.local} {
		if out, ok := see.Answering(inside); ok {
			return nil, fmt.Errorf("%w: a %T in a fallback: put the %[2]T around the fallback", ratelimit.ErrInvalidOption, out)
		}
	}
	f := &Limiter{limiter: l, source: p.source, failures: defaultFailures, pause: defaultPause, base: time.Now()}
	f.changes.since = f.base
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(f); err != nil {
			return nil, err
		}
	}
	var err error
	if f.local, err = p.limiter(l); err != nil {
		return nil, err
	}
	f.counts = withoutBans(f.local)
	_, bans := see.First[*ratelimit.Ban](l) // which are asked of the store also for who is Unlimited
	f.frees = p.source == ratelimit.SourceFailClosed && !bans && !see.ByKey(l)
	f.asks = f.frees || f.local != nil && !see.ByKey(l)
	f.mark = ratelimit.NewMark(f, p.source, new(answered))
	f.plain = ratelimit.NewMark(f, ratelimit.SourceStore, new(answered))
	f.made = ratelimit.Result{Allowed: p.source == ratelimit.SourceFailOpen}.WithMark(f.mark)
	f.owed.seeds = keyhash.New()
	f.breaker = f.newBreaker()
	return f, nil
}

// limiter returns the local limiter of the answer, or nil if it has none.
func (p Answer) limiter(l ratelimit.Limiter) (ratelimit.Limiter, error) {
	switch {
	case p.placed && (!p.share || isnil.Is(p.on)):
		return nil, fmt.Errorf("%w: On is for FailLocal, and wants a store", ratelimit.ErrInvalidOption)
	case p.placed:
		return see.Local(l, p.on, p.shares)
	case p.source != ratelimit.SourceLocal:
		return nil, nil
	case !p.share && isnil.Is(p.local):
		return nil, fmt.Errorf("%w: the local limiter is nil", ratelimit.ErrInvalidOption)
	case !p.share:
		return p.local, nil
	}
	mem, err := memstore.New()
	if err != nil {
		return nil, err
	}
	return see.Local(l, mem, p.shares)
}

// withoutBans is l without the bans that it has, as far as can be seen.
func withoutBans(l ratelimit.Limiter) ratelimit.Limiter {
	if _, bans := see.First[*ratelimit.Ban](l); !bans {
		return l
	}
	inside := slices.Clone(see.Inside(l))
	for i := range inside {
		inside[i] = withoutBans(inside[i])
	}
	_, ban := l.(*ratelimit.Ban)
	_, several := l.(*ratelimit.All)
	switch {
	case len(inside) == 1 && (ban || see.LookingOn(l)):
		return inside[0]
	case several:
		if a, err := ratelimit.NewAll(inside...); err == nil {
			return a
		}
	}
	return l
}

// Owes reports whether the local limiter has admitted events of key that the store is yet
// to be charged with ([FailTo]). A program that changes to another answer should ask this
// limiter about key until Owes is false. Otherwise those events are forgotten.
func (f *Limiter) Owes(key string) bool { return f.owed.owes(key, f.now()) }

// Unwrap returns the wrapped limiter.
func (f *Limiter) Unwrap() ratelimit.Limiter { return f.limiter }

// now returns the time since base.
func (f *Limiter) now() time.Duration { return time.Since(f.base) }

// untilProbe returns how long the breaker stays open, 0 if it is not.
func (f *Limiter) untilProbe() time.Duration {
	at := f.probeAt.Load()
	if at == 0 {
		return 0
	}
	return max(0, time.Duration(at)-f.now())
}

// retryAfter returns the time until the store may be asked again, in whole µs.
func (f *Limiter) retryAfter() time.Duration {
	until := f.untilProbe()
	if rest := until % time.Microsecond; rest > 0 {
		until += time.Microsecond - rest
	}
	return max(until, leastRetryAfter)
}

// question is what a call asks of a limiter.
type question struct {
	key    string
	n      int
	method method
	within time.Duration
}

type method uint8

const (
	allow method = iota
	allowWithin
	peek // of one event
)

func (q question) ask(ctx context.Context, l ratelimit.Limiter) (ratelimit.Result, error) {
	switch q.method {
	case peek:
		return l.Peek(ctx, q.key)
	case allowWithin:
		return ratelimit.AllowWithin(ctx, l, q.key, q.n, q.within)
	}
	return l.AllowN(ctx, q.key, q.n)
}

// Allow is AllowN of 1.
func (f *Limiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return f.decide(ctx, question{key: key, n: 1})
}

// AllowN decides on n events at once. [ratelimit.Result.Source] says which limiter has
// decided. Errors are those of invalid input, of limit functions, of the local limiter, and
// ctx's own.
func (f *Limiter) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return f.decide(ctx, question{key: key, n: n})
}

// AllowWithin decides on n events whose turn must come within d: see
// [ratelimit.AllowWithin]. With a local limiter, what the store admits ahead of its turn is
// charged to the local one only as far as that has room. What the local one admits ahead of
// its turn is not handed back.
func (f *Limiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	return f.decide(ctx, question{key, n, allowWithin, d})
}

// Peek returns what Allow would. It charges only what the key owes to the store after an
// outage ([FailTo]).
func (f *Limiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return f.decide(ctx, question{key: key, n: 1, method: peek})
}

func (f *Limiter) decide(ctx context.Context, q question) (ratelimit.Result, error) {
	if err := f.check(ctx, q.key, q.n); err != nil {
		return ratelimit.Result{}, err
	}
	ctx = f.context(ctx)
	r, err := f.call(ctx, q.key, func() (ratelimit.Result, error) { return f.askStore(ctx, q) })
	switch {
	case f.frees && errors.Is(err, errOpen) && f.unlimited(ctx, q.key):
		return q.ask(ctx, f.limiter) // which asks no store
	case errors.Is(err, ratelimit.ErrStore):
		return f.answer(ctx, q)
	case err != nil:
		return ratelimit.Result{}, err
	case q.method != peek:
		return f.mirror(ctx, q.key, q.n, r, ratelimit.AllowUpTo), nil
	}
	return r, nil
}

// context is ctx for one decision, which the local limiter makes too. A limit function is asked
// once for both, and for what the key owes.
func (f *Limiter) context(ctx context.Context) context.Context {
	if !f.asks {
		return ctx
	}
	return kept.New[ratelimit.Limit](ctx, true)
}

// unlimited reports whether all limits of key are.
func (f *Limiter) unlimited(ctx context.Context, key string) bool {
	policies, err := ratelimit.AppendPolicies(ctx, nil, f.limiter, key)
	limited := func(p ratelimit.Policy) bool { return p.Limit != ratelimit.Unlimited() }
	return err == nil && len(policies) > 0 && !slices.ContainsFunc(policies, limited)
}

// check refuses invalid input, even if the limiter will not be asked.
func (f *Limiter) check(ctx context.Context, key string, n int) error {
	if f.limiter == nil {
		return unmade.Err
	}
	return store.CheckCall(ctx, key, n)
}

// call runs do, which calls the limiter for key, if the breaker is closed or do is the probe.
func (f *Limiter) call(ctx context.Context, key string, do func() (ratelimit.Result, error)) (r ratelimit.Result, err error) {
	if f.untilProbe() > 0 { // the breaker would say the same, behind its lock
		return ratelimit.Result{}, errOpen
	}
	defer f.changes.tell() // also if the limiter panics
	if f.probeAt.Load() != 0 || f.halfOpen.Load() || f.failing.Load() {
		r, err = f.callCarefully(ctx, key, do)
	} else { // the breaker is closed, and all is well
		r, err = f.breaker.Execute(do)
	}
	switch {
	case err == nil:
		if f.failing.Load() { // to write each time would cost
			f.failing.Store(false)
		}
	case errors.Is(err, errUnasked):
		err = nil
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		err = errOpen
	case ofTheStore(err):
		f.failing.Store(true)
	}
	return r, err
}

// callCarefully has the breaker run do. It does not see a runtime.Goexit, and would wait for ever for the end of
// that probe. So it is told of a panic.
func (f *Limiter) callCarefully(ctx context.Context, key string, do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	gone := false
	defer func() {
		if gone {
			_ = recover() // and the goroutine ends
		}
	}()
	return f.breaker.Execute(func() (ratelimit.Result, error) {
		gone = true
		defer func() {
			p := recover()
			if gone = gone && p == nil; gone {
				p = "runtime.Goexit"
			}
			if p != nil {
				panic(p)
			}
		}()
		r, err := f.lookAndDo(ctx, key, do)
		gone = false
		return r, err
	})
}

// lookAndDo runs do. While the store may be standing still it is looked at first: it would run afterwards whatever
// it was sent, and nobody would know.
func (f *Limiter) lookAndDo(ctx context.Context, key string, do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	looked := false
	if f.halfOpen.Load() || f.failing.Load() && f.owed.owes(key, f.now()) {
		err := f.look(ctx, key)
		looked = err == nil
		if ofTheStore(err) || errors.Is(err, store.ErrOverloaded) || !looked && ctx.Err() != nil { // or it has answered
			return ratelimit.Result{}, err
		}
	}
	r, err := do()
	if looked && errors.Is(err, errUnasked) {
		err = nil
	}
	return r, err
}

// askStore hands back what the key owes, and then asks the limiter.
func (f *Limiter) askStore(ctx context.Context, q question) (ratelimit.Result, error) {
	if err := f.handBack(ctx, q.key); err != nil {
		return ratelimit.Result{}, err
	}
	r, err := q.ask(ctx, f.limiter)
	return r, unasked(r, err)
}

// look asks the store, as the Peek of a lease or a deny cache does too. These can answer a key without the store
// for so long that nothing else would ever end a probe.
func (f *Limiter) look(ctx context.Context, key string) error {
	r, err := f.limiter.Peek(ctx, key)
	return unasked(r, err)
}

// unasked returns err, or errUnasked if the store had no part in r, so that the breaker
// learns nothing from it.
func unasked(r ratelimit.Result, err error) error {
	if err != nil {
		return err
	}
	switch r.Source() {
	case ratelimit.SourceStore, ratelimit.SourceBan:
		return nil
	}
	return errUnasked
}

// answered is the note on Results that were made in place of the store's.
type answered struct{ _ byte }

// answer decides in place of the store.
func (f *Limiter) answer(ctx context.Context, q question) (r ratelimit.Result, err error) {
	switch f.source {
	case ratelimit.SourceFailOpen:
		return f.made, nil
	case ratelimit.SourceFailClosed:
		r = f.made
		r.RetryAfter = f.retryAfter()
		return r, nil
	}
	if r, err = q.ask(ctx, f.local); err != nil {
		return ratelimit.Result{}, err
	}
	if r.RetryAfter == ratelimit.Never && r.Limit > 0 && r.Source() != ratelimit.SourceZeroRate { // too large for a share
		r.RetryAfter = f.retryAfter()
	}
	if q.method != peek && r.Allowed && !uncounted(r) {
		f.owed.add(q.key, charge{q.n, 1}, f.now(), r.ResetAfter)
	}
	return f.says(r), nil
}

// says is local as the answer of the local limiter, which keeps what that says of a ban and of Unlimited.
func (f *Limiter) says(local ratelimit.Result) ratelimit.Result {
	if s := local.Source(); s == ratelimit.SourceBan || s == ratelimit.SourceUnlimited {
		return local.WithMark(f.plain)
	}
	return local.WithMark(f.mark)
}

// mirrored is the note on admissions of the store that the local limiter was also charged
// with.
type mirrored struct {
	mark  ratelimit.Mark // whose note it is: one allocation for both
	local ratelimit.Result
	short int // events that local was not charged with
}

// upTo charges a limiter with as many of n events as it has room for.
type upTo func(ctx context.Context, l ratelimit.Limiter, key string, n int) (granted int, r ratelimit.Result, err error)

// mirror charges n events, which the store has decided on as r, to the local limiter too,
// as far as it has room. Errors are ignored: the local limiter would only start cold.
func (f *Limiter) mirror(ctx context.Context, key string, n int, r ratelimit.Result, charge upTo) ratelimit.Result {
	if f.local == nil || !r.Allowed || uncounted(r) {
		return r
	}
	granted, local, err := charge(lasting(ctx), f.local, key, n)
	if err != nil || granted == 0 {
		return r
	}
	m := &mirrored{local: local, short: n - granted}
	m.mark = *ratelimit.NewMark(f, ratelimit.SourceStore, m)
	return r.WithMark(&m.mark)
}

// chargeUpTo is upTo by a Charge, of no call and no slot: it is for a call that has been charged with these. Others
// that do so at the same time see the same room.
func (f *Limiter) chargeUpTo(ctx context.Context, l ratelimit.Limiter, key string, n int) (int, ratelimit.Result, error) {
	p, err := f.counts.Peek(ctx, key)
	if err != nil {
		return 0, p, err
	}
	for _, part := range each(f.counts, p) {
		if limit := see.Behind(part.Limiter); part.Counted() && !limit.Calls && !limit.Held {
			n = min(n, part.Remaining)
		}
	}
	if n == 0 {
		return 0, p, nil
	}
	r, err := ratelimit.Charge(ctx, l, key, n)
	return n, r, err
}

// uncounted reports whether no limit counts r, so that it pays no debt.
func uncounted(r ratelimit.Result) bool {
	s := r.Source()
	return s == ratelimit.SourceUnlimited || s == ratelimit.SourceList
}

// lasting returns ctx, without its end if that has come: what the store has done must be
// recorded even then.
func lasting(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// handBack charges the limiter with what the local one has admitted to key in its place and
// still holds against it. The store may know a part of that already. So at worst the key
// pays that part twice, and never more than it has spent locally.
func (f *Limiter) handBack(ctx context.Context, key string) error {
	if f.owed.keys.Load() == 0 {
		return nil
	}
	owed := f.owed.take(key, f.now())
	if owed == (charge{}) { // or another call hands it back: the store is well, and decides this one
		return nil
	}
	var paid charge
	defer func() { f.owed.paid(key, paid) }()

	due := owed
	if p, err := f.counts.Peek(ctx, key); err == nil {
		if uncounted(p) || p.Limit == 0 { // by the current limit, which may change
			return nil
		}
		due = due.still(held(f.counts, p))
	}
	granted, err := f.pay(ctx, key, due)
	if err != nil {
		return err // after a lost reply it may be charged again, which is better than not at all
	}
	paid = charge{owed.events - due.events + granted.events, owed.calls - due.calls + granted.calls}
	return nil
}

// still is as much of c as is held. Of what nobody counts, which is below 0, it is the same part.
func (c charge) still(held charge) charge {
	part := func(n, of, whole int) int {
		if whole == 0 {
			return n
		}
		return int(exact.MulDivUp(int64(n), int64(of), 0, int64(whole)))
	}
	all := charge{min(c.events, held.events), min(c.calls, held.calls)}
	switch {
	case held.events < 0 && held.calls < 0:
		return c
	case held.events < 0:
		all.events = part(c.events, all.calls, c.calls)
	case held.calls < 0:
		all.calls = part(c.calls, all.events, c.events)
	}
	return all
}

// held is what a local limiter holds against a key, by its Peek p: of several limits the one that holds
// the most. What none of them counts is -1.
func held(local ratelimit.Limiter, p ratelimit.Result) charge {
	most := charge{-1, -1}
	for _, part := range each(local, p) {
		n, l := part.Limit-part.Remaining, see.Behind(part.Limiter)
		if !part.Counted() {
			n = 0
		}
		switch {
		case l.Held: // whoever holds a slot takes it up again
		case l.Calls:
			most.calls = max(most.calls, n)
		default:
			most.events = max(most.events, n)
		}
	}
	return most
}

// owing is one of the limits of a limiter, as it is charged with what is owed.
type owing struct {
	ratelimit.Limiter
	calls bool
}

// owingOf are those of l, without slots: whoever holds one takes it up again. What is around others by another
// package may make keys or numbers of its own, and is asked itself.
func owingOf(l ratelimit.Limiter) (limits []owing) {
	k := see.Of(l)
	switch {
	case k == nil && !see.LookingOn(l), k != nil && k.Algorithm != "" && !k.Calls:
		return []owing{{l, false}}
	case k != nil && k.Held:
		return nil
	case k != nil && k.Calls:
		return []owing{{k.ByEvents(), true}}
	}
	for _, inner := range see.Inside(l) {
		limits = append(limits, owingOf(inner)...)
	}
	return limits
}

// payTries is how often the limiter is asked for what is owed, and once more for each limit: a denial says
// for how much there is room.
const payTries = 3

// pay charges the limiter with as much of due as there is room for.
func (f *Limiter) pay(ctx context.Context, key string, due charge) (granted charge, err error) {
	limits := owingOf(f.limiter)
	if len(limits) == 1 && !limits[0].calls && due.events > 0 {
		n, r, err := ratelimit.AllowUpTo(ctx, limits[0].Limiter, key, due.events)
		if err != nil || uncounted(r) {
			n = 0
		}
		return charge{n, due.calls}, err
	}
	for range payTries + len(limits) {
		asks, most := make([]ratelimit.Ask, len(limits)), 0
		for i, l := range limits {
			n := *l.part(&due)
			asks[i] = ratelimit.Ask{Limiter: l.Limiter, Key: key, N: n, Look: n == 0}
			most = max(most, n)
		}
		if most == 0 {
			return due, nil
		}
		r, err := ratelimit.Decide(ctx, asks...)
		switch {
		case err != nil, r.Allowed && uncounted(r):
			return charge{}, err
		case r.Allowed:
			return due, nil
		}
		for i, part := range each(f.limiter, r) {
			if !part.Allowed && part.Counted() && part.Result != (ratelimit.Result{}) { // or it was not asked
				n := limits[min(i, len(limits)-1)].part(&due)
				*n = min(*n, part.Remaining)
			}
		}
	}
	return charge{}, nil
}

// part is the part of c that l is charged with.
func (l *owing) part(c *charge) *int {
	if l.calls {
		return &c.calls
	}
	return &c.events
}

// each is the parts of r, which is of l, or r if it is of one limit.
func each(l ratelimit.Limiter, r ratelimit.Result) []ratelimit.Part {
	if parts := r.Parts(); parts != nil {
		return parts
	}
	return []ratelimit.Part{{Result: r, Limiter: l}}
}

// Charge charges n events that have happened already, whether they fit or not. While the
// store fails it charges nothing, and the error wraps [ratelimit.ErrStore]. While the
// breaker is open the error is [store.ErrUnavailable].
//
// With [FailTo] it charges the local limiter instead. These events are handed back like
// those that it has admitted, but not what goes beyond its limit.
func (f *Limiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := f.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	ctx = f.context(ctx)
	r, err := f.call(ctx, key, func() (ratelimit.Result, error) {
		r, err := ratelimit.Charge(ctx, f.limiter, key, n)
		return r, unasked(r, err)
	})
	switch {
	case err == nil:
		return f.mirror(ctx, key, n, r, f.chargeUpTo), nil
	case !errors.Is(err, ratelimit.ErrStore) || f.local == nil:
		return r, err
	}
	if r, err = ratelimit.Charge(ctx, f.local, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	if !uncounted(r) {
		f.owed.add(key, charge{n, 0}, f.now(), r.ResetAfter)
	}
	return f.says(r), nil
}

// Refund gives back n of the events that charged admitted, to the limiter that admitted
// them. It does nothing if that was [FailOpen]. The store alone answers here.
// If the store fails the error wraps [ratelimit.ErrStore], and while the breaker is open it
// is [store.ErrUnavailable].
func (f *Limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if err := f.check(ctx, key, n); err != nil {
		return err
	}
	if !charged.Allowed {
		return errNothingCharged
	}
	under, note, _ := charged.Unmark(f)
	_, ours := note.(*answered)
	m, besides := note.(*mirrored)
	alone := see.PartOf(ctx) == see.Mirrored // the slots of the store are given back by themselves
	if alone {
		ctx = see.Only(ctx, see.Slots)
	}
	switch {
	case alone && !see.Held(f.local):
		return nil
	case ours:
		return f.refundAnswer(ctx, key, under, n)
	case !alone:
		if err := f.refundStore(ctx, key, under, n); err != nil {
			return err
		}
	}
	if besides && n > m.short { // what the local limiter was not charged with is refunded first
		_ = f.local.Refund(lasting(ctx), key, m.local, n-m.short)
	}
	return nil
}

// refundStore gives back what the limiter admitted.
func (f *Limiter) refundStore(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if free(charged) { // which needs no store, so that an open breaker does not matter
		return f.limiter.Refund(ctx, key, charged, n)
	}
	_, err := f.call(ctx, key, func() (ratelimit.Result, error) {
		err := f.limiter.Refund(ctx, key, charged, n)
		if err == nil { // a lease takes it back by itself, and does not say so
			err = errUnasked
		}
		return ratelimit.Result{}, err
	})
	return err
}

// free reports whether no limit was charged for r, so that a Refund needs no store.
func free(r ratelimit.Result) bool {
	return r.Source() != ratelimit.SourceStore &&
		!slices.ContainsFunc(each(nil, r), func(p ratelimit.Part) bool { return p.Charged() > 0 })
}

// refundAnswer gives back what was admitted in place of the store.
func (f *Limiter) refundAnswer(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if f.local == nil {
		return nil
	}
	if err := f.local.Refund(ctx, key, charged, n); err != nil {
		return err
	}
	if see.PartOf(ctx) == see.Slots || uncounted(charged) { // what they were charged with is still owed, and what nobody counts never was
		return nil
	}
	if c := charged.Charged(); c > 0 { // 0 if the local limiter does not say
		n = min(n, c)
	}
	f.owed.forgive(key, n)
	return nil
}

// Reset forgets key at the store and at the local limiter. If one of them fails, the other
// is still reset, and the error is returned.
func (f *Limiter) Reset(ctx context.Context, key string) error {
	if err := f.check(ctx, key, 1); err != nil {
		return err
	}
	_, err := f.call(ctx, key, func() (ratelimit.Result, error) { return ratelimit.Result{}, f.limiter.Reset(ctx, key) })
	if f.local != nil { // which then holds nothing, so nothing is owed
		err = errors.Join(err, f.local.Reset(lasting(ctx), key))
	}
	return err
}

// AppendPolicies appends the policies of the wrapped limiter.
func (f *Limiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if f.limiter == nil {
		return dst, unmade.Err
	}
	return ratelimit.AppendPolicies(ctx, dst, f.limiter, key)
}

// AppendLocalPolicies appends the policies of the local limiter, which are enforced while it
// decides, and nothing if there is none.
func (f *Limiter) AppendLocalPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, f.local, key)
}

var (
	_ ratelimit.Limiter        = (*Limiter)(nil)
	_ ratelimit.PolicyAppender = (*Limiter)(nil)
	_ ratelimit.Charger        = (*Limiter)(nil)
	_ ratelimit.Delayer        = (*Limiter)(nil)
)
