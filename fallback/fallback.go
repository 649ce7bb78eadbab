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
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/kept"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
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
	traits

	limiter ratelimit.Limiter
	source  ratelimit.Source // of the answer
	local   ratelimit.Limiter
	counts  ratelimit.Limiter // local without its bans, which say nothing of what a key has spent
	asks    bool              // whether one decision may ask a limit function more than once
	frees   bool              // whether keys may be Unlimited, which is admitted while the breaker is open
	breaker breaker
	mark    *ratelimit.Mark  // on its answers
	plain   *ratelimit.Mark  // on those of the local limiter whose source stays
	made    ratelimit.Result // its answer without a local limiter, except RetryAfter
	owed    debts
}

type traits = see.Traits

var errNothingCharged = fmt.Errorf("%w: the Result to refund has charged nothing", ratelimit.ErrInvalidN)

// Option configures a [Limiter].
type Option func(*Limiter) error

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
	f := &Limiter{traits: traits{Mirrors: true}, limiter: l, source: p.source}
	f.breaker.failures, f.breaker.pause = defaultFailures, defaultPause
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
	f.breaker.begin()
	return f, nil
}

// Owes reports whether the local limiter has admitted events of key that the store is yet
// to be charged with ([FailTo]). A program that changes to another answer should ask this
// limiter about key until Owes is false. Otherwise those events are forgotten.
func (f *Limiter) Owes(key string) bool { return f.owed.owes(key, f.breaker.now()) }

// Unwrap returns the wrapped limiter.
func (f *Limiter) Unwrap() ratelimit.Limiter { return f.limiter }

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

// askStore hands back what the key owes, and then asks the limiter.
func (f *Limiter) askStore(ctx context.Context, q question) (ratelimit.Result, error) {
	if err := f.handBack(ctx, q.key); err != nil {
		return ratelimit.Result{}, err
	}
	r, err := q.ask(ctx, f.limiter)
	return r, unasked(r, err)
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
		r.RetryAfter = f.breaker.retryAfter()
		return r, nil
	}
	if r, err = q.ask(ctx, f.local); err != nil {
		return ratelimit.Result{}, err
	}
	if r.RetryAfter == ratelimit.Never && r.Limit > 0 && r.Source() != ratelimit.SourceZeroRate { // too large for a share
		r.RetryAfter = f.breaker.retryAfter()
	}
	if q.method != peek && r.Allowed && !uncounted(r) {
		f.owed.add(q.key, charge{q.n, 1}, f.breaker.now(), r.ResetAfter)
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

// lasting returns ctx, without its end if that has come: what the store has done must be
// recorded even then.
func lasting(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
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
		f.owed.add(key, charge{n, 0}, f.breaker.now(), r.ResetAfter)
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
