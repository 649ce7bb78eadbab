package ratelimit

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Policy is a limit that a limiter enforces, as clients may be told of it: Quota
// events per Window.
type Policy struct {
	Name  string // by [WithPolicyName], or else the limiter's [WithName], or its limit as text
	Limit Limit  // of the key
	// Quota is the most events at one instant: the Rate, or a bucket's Burst. That of Unlimited
	// is 2^31-1.
	Quota int
	// Window is the time in which the Quota comes back: the Period, or a bucket's
	// Burst·Period/Rate in whole µs, rounded up. It is 0 for Unlimited, a Rate of 0, and
	// calendars.
	Window time.Duration
}

// PolicyAppender is a [Limiter] that can say which policies it enforces. All of this module
// are.
type PolicyAppender interface {
	// AppendPolicies appends the policies of key to dst, one for each limit, in the order of
	// [Result.Parts]. Errors are those of a limit function and [ErrInvalidLimit].
	AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error)
}

// AppendPolicies appends what l says of key if it is a [PolicyAppender], and otherwise nothing.
func AppendPolicies(ctx context.Context, dst []Policy, l Limiter, key string) ([]Policy, error) {
	if d, ok := l.(PolicyAppender); ok {
		return d.AppendPolicies(ctx, dst, key)
	}
	return dst, nil
}

// AppendPolicies appends the limiter's policy for key.
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
	l, err := lim.limitFunc(ctx, key)
	if err != nil {
		return dst, err
	}
	if l == (Limit{}) || l == lim.limit {
		return append(dst, lim.policy), nil
	}
	integers, err := integers(lim.rule, l)
	if err != nil {
		return dst, err
	}
	return append(dst, lim.policyOf(l, integers)), nil
}

// policyOf is the policy by limit l, which is integers to the store.
func (lim *limiter) policyOf(l Limit, integers store.Limit) Policy {
	p := Policy{Name: lim.policyName, Limit: l, Quota: int(integers.Burst), Window: l.Period}
	switch {
	case l == Unlimited():
		p.Quota, p.Window = maxEvents, 0
	case l.Rate == 0 || l.calendar != nil:
		p.Window = 0
	case lim.rule.Burst:
		p.Window = time.Duration(drainTime(integers.Burst, 0, integers)) * time.Microsecond
	}
	return p
}

var _ PolicyAppender = (*limiter)(nil)
