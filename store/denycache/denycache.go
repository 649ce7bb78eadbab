// Package denycache answers repeated denials in memory, without asking the store.
//
//	cached, err := denycache.New(redis)
//	...
//	limiter, err := ratelimit.NewTokenBucket(cached, ratelimit.PerMinute(100))
package denycache

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/denials"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store wraps another [store.Store] and remembers its denials. If the store has denied n events of
// a key until a time t, calls of that key for n or more events are denied in this process until t,
// without a round trip. A flood against one key then costs the store one or two calls per
// RetryAfter.
//
// Use it in front of a store on Redis. It saves nothing in front of memory, or of package regions,
// where another region may have room. One Store can serve many limiters.
//
// Bound: it never denies what the store would admit. It shortens each RetryAfter by 1 µs and a
// thousandth, because NTP lets each of two clocks be wrong by 500 µs per second. It can deny too
// much, until t or for [WithMaxAge], after
//
//   - a Refund, a Reset or a different limit in another process, or one that reached the store late.
//     Behind package lease, where processes return what they do not use, set WithMaxAge to its TTL
//   - a change of the limit while calls of the key are in progress, or to a slower limit
//   - a step of the store's clock, or if the store loses the key
//
// A local denial has the Source deny_cache, and Remaining as reported by the store. Its RetryAfter
// is too long by the time that the store's answer took. Peek, and AllowWithin of a bucket, ask the
// store. An All is denied locally only if each of its limits is.
//
// A denied key takes 130 to 220 bytes, and up to 900 for the first few hundred. There are at most
// 65,536 ([WithMaxKeys]). A local denial takes about 100 ns, which other calls take in addition.
// There is no goroutine and nothing to close.
//
// Time is this process's monotonic clock, so the store must not simulate time. A Store is safe for
// concurrent use. Use [New] to create one.
type Store struct {
	inner   // Together
	denials *denials.Table
}

type inner = store.Store

type settings struct {
	maxKeys int
	maxAge  time.Duration
}

const (
	defaultMaxKeys = 1 << 16
	maxMaxKeys     = 1 << 24
	forever        = 100 * 365 * 24 * time.Hour // within which every bucket refills
)

// Option configures a [Store].
type Option func(*settings) error

// WithMaxKeys limits the number of keys that are remembered to n, 1 to 16,777,216. The default is
// 65,536, which take 9 to 14 MB. Beyond n, a few denials are sampled, and one that has ended or
// that ends first is removed. The next call of its key asks the store again.
func WithMaxKeys(n int) Option {
	return options.Checked(options.Within("WithMaxKeys", n, 1, maxMaxKeys), func(s *settings) { s.maxKeys = n })
}

// WithMaxAge makes the Store ask the wrapped store again when a denial is older than age, 1 µs or
// more, even if RetryAfter is longer. This bounds how long a Refund or a Reset in another process
// goes unnoticed, and costs one call per age and denied key.
func WithMaxAge(age time.Duration) Option {
	return options.Checked(options.AtLeast("WithMaxAge", age, time.Microsecond), func(s *settings) { s.maxAge = age })
}

// New returns a store that asks s unless a call is known to be denied. It returns
// [store.ErrInvalidOption] if s or an option is nil, or if an option is out of range.
func New(s store.Store, opts ...Option) (*Store, error) {
	if isnil.Is(s) {
		return nil, fmt.Errorf("%w: the store is nil", store.ErrInvalidOption)
	}
	by := settings{maxKeys: defaultMaxKeys, maxAge: forever}
	if err := options.Apply(&by, opts); err != nil {
		return nil, err
	}
	return &Store{inner: s, denials: denials.New(by.maxKeys, by.maxAge)}, nil
}

// Prepare implements [store.Store].
func (s *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if s.denials == nil {
		return unmade.Err
	}
	if rule.Held {
		return fmt.Errorf("%w: denycache cannot remember denials of %s, because a slot may be released at any time", store.ErrInvalidOption, rule.Name)
	}
	return s.inner.Prepare(rule, l, fixed)
}

// Take denies n events if they are known to be denied. Otherwise it asks the store.
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	q := denials.Ask(l, n)
	if r, known := s.denials.Recall(ns, key, &q); known {
		return r, nil
	}
	r, err := s.inner.Take(ctx, ns, key, l, n)
	s.learn(ns.Rule, store.OpTake, &q, r, err)
	return r, err
}

// Decide denies requests that are all known to be denied; an OpUpTo is if one event is. Otherwise
// it asks the store about all of them, because their replies depend on each other, and remembers
// denials among the replies.
func (s *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) (err error) {
	var few [4]denials.Question // on the stack
	questions, denied := few[:0], true
	for i := range requests {
		r := &requests[i]
		q := denials.Ask(r.Limit, r.N+r.Reserved)
		if r.Op == store.OpUpTo {
			q.N = 1 + r.Reserved
		}
		reply, known := s.denials.Recall(r.Namespace, r.Key, &q)
		replies[i], questions = reply, append(questions, q)
		denied = denied && known && (r.Op == store.OpTake || r.Op == store.OpUpTo)
	}
	if denied {
		return nil
	}
	err = store.ErrStore // in case it panics
	defer func() {
		for i := range questions {
			s.learn(requests[i].Namespace.Rule, requests[i].Op, &questions[i], replies[i], err)
		}
	}()
	return s.inner.Decide(ctx, requests, replies)
}

// learn remembers a denial. Anything else may have made room under other limits, so denials under
// other limits are forgotten.
func (s *Store) learn(rule *store.Rule, op store.Op, q *denials.Question, r store.Reply, err error) {
	switch {
	case err == nil && r.Outcome == store.NotAsked:
	case err != nil || r.OK() || op == store.OpOverdraw:
		s.denials.ForgetOtherLimits(q)
	case q.Turn || q.N > q.Limit.Burst: // the call may be admitted with another turn, or is never admitted
	case r.Plain(): // the call may be admitted sooner, or the reply comes from memory, where asking again costs nothing
	default:
		s.denials.Remember(q, r.Report(rule, q.Limit, q.N, 0))
	}
}

// Refund refunds to the store, and forgets the denial of key.
func (s *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	defer s.denials.BeginChange(ns, key).End()
	return s.inner.Refund(ctx, ns, key, l, c)
}

// Reset resets key at the store, and forgets its denial.
func (s *Store) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	defer s.denials.BeginChange(ns, key).End()
	return s.inner.Reset(ctx, ns, key)
}

// Unwrap returns the wrapped store.
func (s *Store) Unwrap() store.Store { return s.inner }

var _ store.Store = (*Store)(nil)
