// Package denycache spares a store the calls for keys that it has already denied.
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
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store stands before another [store.Store] and remembers its denials. Once the store has
// denied n events of a key until a time t, calls of that key for n or more are denied in this
// process. That lasts until t and takes no round trip. So a flood against one key costs the
// store a call or two per RetryAfter.
//
// Use it before a store on Redis; before memory it saves nothing, nor before package regions,
// where others may have room. One Store serves many limiters.
//
// Bound: it denies nothing that the store would admit. RetryAfter is taken as shorter by 1 µs
// and a thousandth, since NTP lets each of two clocks be wrong by 500 µs a second. It can deny
// too much, until t at most or for [WithMaxAge], after
//
//   - a Refund, a Reset or another limit by others, or one that reached the store late;
//   - a change of the limit while calls of the key are under way, or to a slower one;
//   - a step of the store's clock, or its loss of the key.
//
// A local denial has the Source deny_cache, and the Remaining of the store's. RetryAfter is too
// long by the time that the store's answer took. Peek and AllowWithin of the buckets ask the store. An All is
// denied here if each of its limits is: what another one has left only the store can tell.
//
// A denied key costs 130 to 220 bytes, and the first few hundred up to 900. There are at most
// 65,536, or [WithMaxKeys]. A local denial takes some 100 ns, and a call that goes on as much
// longer. There is no goroutine and nothing to close.
//
// Time is this process's monotonic clock, so the store's cannot be simulated. It is safe for
// concurrent use. Make it by [New].
type Store struct {
	store.Store // Together
	denials     *denials.Table
}

type settings struct {
	maxKeys int
	maxAge  time.Duration
}

const (
	defaultMaxKeys = 1 << 16
	maxMaxKeys     = 1 << 24
	forever        = 100 * 365 * 24 * time.Hour // in which each bucket refills
)

// Option configures a [Store].
type Option func(*settings) error

// WithMaxKeys bounds the keys that are remembered to n, 1 to 16,777,216. The default is
// 65,536, which take 9 to 14 MB. Beyond n a denial that has ended is removed, or the one of
// a few that ends first. The next call of its key asks the store again.
func WithMaxKeys(n int) Option {
	return func(s *settings) error {
		if n < 1 || n > maxMaxKeys {
			return fmt.Errorf("%w: WithMaxKeys(%d), want 1 to %d", store.ErrInvalidOption, n, maxMaxKeys)
		}
		s.maxKeys = n
		return nil
	}
}

// WithMaxAge asks the store again age after it has denied, 1 µs or more, even if RetryAfter
// is longer. That bounds how long a Refund or a Reset by another process goes unnoticed. It
// costs a call per age and denied key.
func WithMaxAge(age time.Duration) Option {
	return func(s *settings) error {
		if age < time.Microsecond {
			return fmt.Errorf("%w: WithMaxAge(%v), want 1µs or more", store.ErrInvalidOption, age)
		}
		s.maxAge = age
		return nil
	}
}

// New returns a store that asks s only what it does not know to be denied. Its error is
// [store.ErrInvalidOption]: s is nil, or an option is nil or out of range.
func New(s store.Store, opts ...Option) (*Store, error) {
	if isnil.Is(s) {
		return nil, fmt.Errorf("%w: the store is nil", store.ErrInvalidOption)
	}
	by := settings{maxKeys: defaultMaxKeys, maxAge: forever}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", store.ErrInvalidOption)
		}
		if err := opt(&by); err != nil {
			return nil, err
		}
	}
	return &Store{Store: s, denials: denials.New(by.maxKeys, by.maxAge)}, nil
}

// Prepare implements [store.Store].
func (s *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if s.denials == nil {
		return unmade.Err
	}
	if rule.Held {
		return fmt.Errorf("%w: denials of %s are not kept: a slot may be given back at any time", store.ErrInvalidOption, rule.Name)
	}
	return s.Store.Prepare(rule, l, fixed)
}

// Take denies n events that are known to be denied, and asks the store about all others.
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	q := denials.Ask(l, n)
	if r, known := s.denials.Recall(ns, key, &q); known {
		return r, nil
	}
	r, err := s.Store.Take(ctx, ns, key, l, n)
	s.learn(ns.Rule, store.OpTake, &q, r, err)
	return r, err
}

// Decide denies requests that are all known to be denied, an OpUpTo where Take of one event is. Otherwise it
// asks the store about all of them, whose replies say something of each other, and learns of these.
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
	err = store.ErrStore // if it panics
	defer func() {
		for i := range questions {
			s.learn(requests[i].Namespace.Rule, requests[i].Op, &questions[i], replies[i], err)
		}
	}()
	return s.Store.Decide(ctx, requests, replies)
}

// learn remembers a denial. After anything else, which may have made room under other limits, it forgets
// denials under these.
func (s *Store) learn(rule *store.Rule, op store.Op, q *denials.Question, r store.Reply, err error) {
	switch {
	case err == nil && r.Outcome == store.NotAsked:
	case err != nil || r.OK() || op == store.OpOverdraw:
		s.denials.ForgetOtherLimits(q)
	case q.Turn || q.N > q.Limit.Burst: // it may fit with another turn, or never
	case r.Plain(): // it may fit sooner, or is from memory, where it costs nothing to ask again
	default:
		s.denials.Remember(q, r.Report(rule, q.Limit, q.N, 0))
	}
}

// Refund gives back to the store, and forgets the denial of key.
func (s *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	defer s.denials.BeginChange(ns, key).End()
	return s.Store.Refund(ctx, ns, key, l, c)
}

// Reset forgets key at the store, and the denial of key.
func (s *Store) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	defer s.denials.BeginChange(ns, key).End()
	return s.Store.Reset(ctx, ns, key)
}

// Unwrap returns the store that is asked.
func (s *Store) Unwrap() store.Store { return s.Store }

// Len returns the number of keys remembered now. Some of their denials may have ended.
func (s *Store) Len() int { return s.denials.Len() }

var _ store.Store = (*Store)(nil)
