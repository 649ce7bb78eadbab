// Package fallback decides while the store of a limiter fails. It admits events, denies them, or
// asks a local limiter.
//
//	limiter, err := fallback.New(bucket, fallback.FailLocal(4)) // of 4 instances
//
// The right [Answer] depends on what the limit protects. Use [FailOpen] if an outage of the store
// must not become an outage of the service. Use [FailClosed] if one event too many costs more than
// a denial. Use [FailLocal] or [FailTo] if the limit should still roughly hold.
package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/kept"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
)

// Limiter wraps a [ratelimit.Limiter] and decides with an [Answer] while its store fails.
// [ratelimit.Result.Source] distinguishes these decisions from those of the store. After 5
// consecutive failures a circuit breaker opens, and calls no longer go to the store: a decision
// then takes about 100 ns. Each second, one call becomes a probe, which begins with a Peek. A probe
// that succeeds closes the breaker. See [WithBreaker] and [WithOnChange]. If the store is a Cluster or
// a Ring, each of its servers has a breaker of its own, and the keys of the others are not affected.
//
// Wrap a [ratelimit.All] as a whole.
//
// Bound: that of the answer. See [FailOpen], [FailClosed] and [FailTo].
//
// A failure is an error that wraps [ratelimit.ErrStore]. This includes lost replies, although their
// charge may stand. Denials, invalid input, errors of a limit function and the end of the caller's
// ctx are not failures. A limit function should keep working while its database fails, as with
// package plancache. Give the store a shorter timeout than the callers' deadlines, because until
// the breaker opens, and in a probe, a call takes that long. Failures do not count while other calls
// succeed, so that a connection that breaks under many calls does not open the breaker.
//
// Three errors are replaced by the answer and are not failures: [store.ErrCorrupt], which concerns
// one key, [store.ErrClock], and [store.ErrOverloaded], because the store still decides other
// calls. What a lease or a deny cache answers from memory is neither a failure nor a success.
//
// A Limiter takes a few hundred bytes, and as many for each server. A local limiter takes about 40
// bytes per key, even without an outage, and up to 6 MB for keys that still owe: see [Answer.On]. A
// Limiter has nothing to close and is safe for concurrent use. Use [New] to create one.
type Limiter struct {
	wrapper

	limiter  ratelimit.Limiter
	source   ratelimit.Source // of the answer
	local    ratelimit.Limiter
	fixed    facts // the facts, unless changes
	changes  bool  // whether what is inside the limiter, or the local one, may change
	breakers breakers
	mark     *ratelimit.Mark  // on answers in place of the store
	plain    *ratelimit.Mark  // on answers of the local limiter that keep their source
	result   ratelimit.Result // the answer without a local limiter, except for RetryAfter
	owed     debts
}

type wrapper = see.Wrapper

var errNothingCharged = fmt.Errorf("%w: the Result of a denial cannot be refunded, because it charged nothing", ratelimit.ErrInvalidN)

// Option configures a [Limiter].
type Option func(*Limiter) error

// New returns a limiter that decides like l, or like p while l's store fails.
//
// It returns [ratelimit.ErrInvalidOption] if l, the local limiter or an option is nil, if an option
// is out of range, or if p was not made by one of its constructors. For FailLocal, l must be a
// built-in algorithm, a limiter of package inflight, an All or Ban of these, or observe.Around any
// of them. If a limit cannot be divided into shares, the error is [ratelimit.ErrInvalidLimit].
//
// Put a shadow, an accesslist and the limiters of package throttle outside a fallback. New refuses
// them inside l and inside the local limiter, because they decide in place of the store, or sleep
// while the breaker waits for them. New also finds them in an All, and in wrappers that have a
// method Unwrap() ratelimit.Limiter. Give your own wrappers such a method.
func New(l ratelimit.Limiter, p Answer, opts ...Option) (*Limiter, error) {
	switch {
	case isnil.Is(l):
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	case p.source == ratelimit.SourceStore:
		return nil, fmt.Errorf("%w: the zero Answer: use FailOpen, FailClosed, FailTo or FailLocal", ratelimit.ErrInvalidOption)
	}
	for _, inside := range []ratelimit.Limiter{l, p.local} {
		if out, ok := see.Answering(inside); ok {
			return nil, fmt.Errorf("%w: a fallback cannot contain a %T: put the %[2]T around the fallback", ratelimit.ErrInvalidOption, out)
		}
	}
	f := &Limiter{wrapper: see.Has(see.Traits{Mirrors: true}), limiter: l, source: p.source}
	f.breakers.failures, f.breakers.pause = defaultFailures, defaultPause
	if err := options.Apply(f, opts); err != nil {
		return nil, err
	}
	var err error
	if f.local, err = p.limiter(l); err != nil {
		return nil, err
	}
	f.fixed, f.changes = f.inspect(), see.Changing(l) || f.local != nil && see.Changing(f.local)
	f.mark = ratelimit.NewMark(f, p.source, new(answerNote))
	f.plain = ratelimit.NewMark(f, ratelimit.SourceStore, new(answerNote))
	f.result = ratelimit.Result{Allowed: p.source == ratelimit.SourceFailOpen}.WithMark(f.mark)
	f.owed.seeds = keyhash.New()
	f.breakers.begin()
	return f, nil
}

// Owes reports whether the local limiter has admitted events of key that the store has not been
// charged with yet ([FailTo]). Before a program changes to another answer, it should ask this
// limiter about key until Owes returns false. Otherwise those events are forgotten.
func (f *Limiter) Owes(key string) bool { return f.owed.owes(key, f.breakers.now()) }

// Unwrap returns the wrapped limiter.
func (f *Limiter) Unwrap() ratelimit.Limiter { return f.limiter }

// question is what a call asks a limiter.
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
	peek     // asks about one event
	overdraw // charges events that have already happened
)

func (q question) ask(ctx context.Context, l ratelimit.Limiter) (ratelimit.Result, error) {
	switch q.method {
	case peek:
		return l.Peek(ctx, q.key)
	case allowWithin:
		return ratelimit.AllowWithin(ctx, l, q.key, q.n, q.within)
	case overdraw:
		return ratelimit.Charge(ctx, l, q.key, q.n)
	}
	return l.AllowN(ctx, q.key, q.n)
}

// Allow is shorthand for AllowN with n = 1.
func (f *Limiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return f.decide(ctx, question{key: key, n: 1})
}

// AllowN decides on n events together. [ratelimit.Result.Source] reports which limiter decided. It
// returns errors of invalid input, of limit functions and of the local limiter, and ctx's error.
func (f *Limiter) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return f.decide(ctx, question{key: key, n: n})
}

// AllowWithin decides on n events that may have to wait for at most d: see [ratelimit.AllowWithin].
// With a local limiter, events that the store admits ahead of their time are charged to the local
// limiter only as far as it has room. Events that the local limiter admits ahead of their time are
// not charged to the store later.
func (f *Limiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	return f.decide(ctx, question{key, n, allowWithin, d})
}

// Peek returns what Allow would return. It charges nothing except what the key owes to the store
// after an outage ([FailTo]).
func (f *Limiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return f.decide(ctx, question{key: key, n: 1, method: peek})
}

func (f *Limiter) decide(ctx context.Context, q question) (ratelimit.Result, error) {
	if err := f.check(ctx, q.key, q.n); err != nil {
		return ratelimit.Result{}, err
	}
	facts := f.facts()
	ctx = facts.context(ctx)
	c := f.breakers.circuit(ctx, facts, q.key, q.n)
	r, err := f.call(ctx, c, q.key, func() (ratelimit.Result, error) { return f.askStore(ctx, c, q) })
	switch {
	case errors.Is(err, errOpen) && facts.admitsUnlimited && f.unlimited(ctx, q.key):
		return q.ask(ctx, f.limiter) // without asking the store
	case errors.Is(err, ratelimit.ErrStore):
		return f.answer(ctx, c, q, err)
	case err != nil:
		return ratelimit.Result{}, err
	case q.method != peek:
		return f.mirror(ctx, q.key, q.n, r, ratelimit.AllowUpTo), nil
	}
	return r, nil
}

// context returns ctx for one decision, including that of the local limiter. A limit function is
// called once for both, and for what the key owes.
func (s *facts) context(ctx context.Context) context.Context {
	if !s.asksTwice {
		return ctx
	}
	return kept.New[ratelimit.Limit](ctx, true)
}

// facts are known of the limiter and of the local one without asking them.
type facts struct {
	counter         ratelimit.Limiter // the local limiter without its bans, which do not show how much a key has spent
	asksTwice       bool              // whether one decision may call a limit function more than once
	admitsUnlimited bool              // whether keys may be Unlimited, which are admitted even while the breaker is open
	servers         see.Servers       // nil if it is not known which server has a key
	mixed           bool              // whether servers leaves a limit out, such as one in memory, that may decide without the others
}

func (f *Limiter) inspect() (s facts) {
	s.counter = withoutBans(f.local)
	_, bans := see.First[*ratelimit.Ban](f.limiter) // the store must be asked for bans, even of unlimited keys
	s.admitsUnlimited = f.source == ratelimit.SourceFailClosed && !bans && !see.ByKey(f.limiter)
	if s.servers = see.ServersIn(f.limiter); s.servers != nil {
		s.mixed = tellsNoServer(f.limiter)
	}
	s.asksTwice = s.admitsUnlimited || f.local != nil && !see.ByKey(f.limiter)
	return s
}

func (f *Limiter) facts() facts {
	if f.changes {
		return f.inspect()
	}
	return f.fixed
}

// unlimited reports whether all limits of key are Unlimited.
func (f *Limiter) unlimited(ctx context.Context, key string) bool {
	policies, err := ratelimit.AppendPolicies(ctx, nil, f.limiter, key)
	limited := func(p ratelimit.Policy) bool { return p.Limit != ratelimit.Unlimited() }
	return err == nil && len(policies) > 0 && !slices.ContainsFunc(policies, limited)
}

// check refuses invalid input even if the limiter is not asked.
func (f *Limiter) check(ctx context.Context, key string, n int) error {
	return unmade.Check(ctx, f.limiter != nil, key, n)
}

// askStore charges the limiter with what the key owes, and then asks it.
func (f *Limiter) askStore(ctx context.Context, c circuit, q question) (ratelimit.Result, error) {
	if err := f.payDebt(ctx, q.key); err != nil {
		return ratelimit.Result{}, err
	}
	r, err := q.ask(ctx, f.limiter)
	if err = unasked(r, err); err == nil && c.partly {
		err = f.partlyHeard(ctx, q.key, q.n, r, false)
	}
	return r, err
}

// answerNote is the note on Results made in place of the store's.
type answerNote struct{ _ byte }

// answer decides in place of the store, which has failed with failed.
func (f *Limiter) answer(ctx context.Context, c circuit, q question, failed error) (r ratelimit.Result, err error) {
	switch f.source {
	case ratelimit.SourceFailOpen:
		return f.result, nil
	case ratelimit.SourceFailClosed:
		r = f.result
		r.RetryAfter = c.retryAfter()
		return r, nil
	}
	if r, err = q.ask(ctx, f.local); err != nil {
		return ratelimit.Result{}, err
	}
	if r.RetryAfter == ratelimit.Never && r.Limit > 0 && r.Source() != ratelimit.SourceZeroRate { // too large for a share
		r.RetryAfter = c.retryAfter()
	}
	if q.method != peek && r.Allowed && !uncounted(r) {
		n := q.n
		if see.Held(f.local) { // slots alone are charged one, which is refunded at the end
			n = min(n, r.Charged())
		}
		f.owed.add(q.key, charge{n, 1}, failed, f.breakers.now(), r.ResetAfter)
	}
	return f.markLocal(r), nil
}

// markLocal returns local, an answer of the local limiter, with f's source. The sources of bans and of
// Unlimited are kept.
func (f *Limiter) markLocal(local ratelimit.Result) ratelimit.Result {
	if s := local.Source(); s == ratelimit.SourceBan || s == ratelimit.SourceUnlimited {
		return local.WithMark(f.plain)
	}
	return local.WithMark(f.mark)
}

// lasting returns ctx, without its end if it has ended: what the store has done must be recorded
// even then.
func lasting(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// Charge charges n events that have already happened, whether they fit or not. While the store
// fails it charges nothing and returns an error that wraps [ratelimit.ErrStore]. While the breaker
// is open, that error is [store.ErrUnavailable].
//
// With [FailTo] it then charges the local limiter instead. The store is charged with these events
// later, as with those that the local limiter admits, but not with any that exceed the local limit.
func (f *Limiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := f.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	facts := f.facts()
	ctx = facts.context(ctx)
	q := question{key: key, n: n, method: overdraw}
	c := f.breakers.circuit(ctx, facts, key, n)
	r, err := f.call(ctx, c, key, func() (ratelimit.Result, error) { return f.askStore(ctx, c, q) })
	switch {
	case err == nil:
		return f.mirror(ctx, key, n, r, f.chargeUpTo), nil
	case !errors.Is(err, ratelimit.ErrStore) || f.local == nil:
		return r, err
	}
	failed := err
	if r, err = q.ask(ctx, f.local); err != nil {
		return ratelimit.Result{}, err
	}
	if !uncounted(r) {
		f.owed.add(key, charge{n, 0}, failed, f.breakers.now(), r.ResetAfter)
	}
	return f.markLocal(r), nil
}

// Refund refunds n of the events that charged admitted, to the limiter that admitted them. It does
// nothing if that was [FailOpen]. There is no fallback for refunds to the store: if the store
// fails, the error wraps [ratelimit.ErrStore], and while the breaker is open it is
// [store.ErrUnavailable]. The local limiter releases slots even then.
func (f *Limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if err := f.check(ctx, key, n); err != nil {
		return err
	}
	if !charged.Allowed {
		return errNothingCharged
	}
	under, note, _ := charged.Unmark(f)
	_, ours := note.(*answerNote)
	m, besides := note.(*mirrored)
	alone := see.PartOf(ctx) == see.Mirrored // the slots of the store are released separately
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
			if besides && see.Held(f.local) && see.PartOf(ctx) != see.Rates { // its holder has left, and a Refund of it can be repeated
				_ = f.local.Refund(see.Only(lasting(ctx), see.Slots), key, m.local, n)
			}
			return err
		}
	}
	if besides && n > m.short { // events that the local limiter was not charged with are refunded first
		_ = f.local.Refund(lasting(ctx), key, m.local, n-m.short)
	}
	return nil
}

// refundStore refunds what the limiter admitted.
func (f *Limiter) refundStore(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if free(charged) { // needs no store, so it works even if the breaker is open
		return f.limiter.Refund(ctx, key, charged, n)
	}
	_, err := f.call(ctx, f.breakers.circuit(ctx, f.facts(), key, n), key, func() (ratelimit.Result, error) {
		err := f.limiter.Refund(ctx, key, charged, n)
		if err == nil { // a lease refunds in memory, which cannot be seen here
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

// refundAnswer refunds what was admitted in place of the store.
func (f *Limiter) refundAnswer(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if f.local == nil {
		return nil
	}
	if err := f.local.Refund(ctx, key, charged, n); err != nil {
		return err
	}
	if see.PartOf(ctx) == see.Slots || uncounted(charged) { // what was charged together with slots is still owed, and uncounted events never were
		return nil
	}
	if c := charged.Charged(); c > 0 { // 0 if the local limiter does not report it
		n = min(n, c)
	}
	f.owed.forgive(key, n)
	return nil
}

// Reset resets key at the store and at the local limiter. If one of them fails, the other is still
// reset, and the error is returned.
func (f *Limiter) Reset(ctx context.Context, key string) error {
	if err := f.check(ctx, key, 1); err != nil {
		return err
	}
	_, err := f.call(ctx, f.breakers.circuit(ctx, f.facts(), key, 1), key, func() (ratelimit.Result, error) { return ratelimit.Result{}, f.limiter.Reset(ctx, key) })
	if f.local == nil {
		return err
	}
	failed := f.local.Reset(lasting(ctx), key)
	if failed == nil {
		f.owed.forget(key)
	}
	return errors.Join(err, failed)
}

// AppendPolicies appends the policies of the wrapped limiter.
func (f *Limiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if f.limiter == nil {
		return dst, unmade.Err
	}
	return ratelimit.AppendPolicies(ctx, dst, f.limiter, key)
}

// AppendLocalPolicies appends the policies of the local limiter, which are enforced while it
// decides. It appends nothing if there is no local limiter.
func (f *Limiter) AppendLocalPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, f.local, key)
}

var (
	_ ratelimit.Limiter        = (*Limiter)(nil)
	_ ratelimit.PolicyAppender = (*Limiter)(nil)
	_ ratelimit.Charger        = (*Limiter)(nil)
	_ ratelimit.Delayer        = (*Limiter)(nil)
)
