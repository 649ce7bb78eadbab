package ratelimit

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit/store"
)

// Custom is a limiter by an algorithm that is none of the five, such as that of package
// inflight, with all that they have.
type Custom struct{ limiter }

// NewCustom returns a limiter by rule, which [NewRule] has made. Errors: [ErrInvalidLimit],
// [ErrInvalidOption].
func NewCustom(rule *store.Rule, s store.Store, l Limit, opts ...Option) (*Custom, error) {
	if rule == nil || rule.Name == "" || rule.Step == nil || rule.Script == "" {
		return nil, fmt.Errorf("%w: a rule is made by NewRule, of a store.Rule with a Name and a Step", ErrInvalidOption)
	}
	for i := range kinds {
		if kinds[i].rule.Name == rule.Name {
			return nil, fmt.Errorf("%w: another rule has the name %q", ErrInvalidOption, rule.Name)
		}
	}
	return built(new(Custom), rule, s, l, opts)
}

// Allow implements [Limiter].
func (c *Custom) Allow(ctx context.Context, key string) (res Result, err error) {
	err = c.decide(ctx, key, 1, take, nil, &res)
	return res, err
}

// AllowN implements [Limiter].
func (c *Custom) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = c.decide(ctx, key, n, take, nil, &res)
	return res, err
}

// Renew asks again for one event that charged has admitted. The rule sees when that was in the
// Before of its Limit. Observers are not told. Errors: those of Allow, and [ErrInvalidN] if
// nothing was charged.
func (c *Custom) Renew(ctx context.Context, key string, charged Result) (res Result, err error) {
	if charged.n == 0 || charged.together() != nil {
		return res, errNothingCharged
	}
	if key, err = c.keyOf(ctx, key, 1); err != nil {
		return res, err
	}
	l, err := c.limitOf(ctx, key)
	if err != nil {
		return res, err
	}
	if l.Rate <= 0 { // for now: what is charged keeps its place
		l = store.Limit{Rate: int64(charged.rate), Period: c.integers.Period, Burst: int64(charged.rate)}
	}
	l = l.TurnBefore(charged.at)
	err = c.decide(ctx, key, 1, take, &l, &res)
	return res, err
}

// ChargedAt is the Before of a Renew: when charged was charged, in Unix µs of the store's clock,
// or what the rule says in its place; 0 if nothing was.
func (c *Custom) ChargedAt(charged Result) int64 {
	if charged.n == 0 || charged.together() != nil {
		return 0
	}
	return charged.at
}

// NewRule returns rule with its scripts for Redis, made of its transition in Lua: plan, commit,
// available and refund, as in scripts/slidinglog.lua.
func NewRule(rule store.Rule, lua string) *store.Rule {
	rule.Script, rule.JointScript, rule.BatchScript = around("\n"+lua), jointScript, batchScript
	return &rule
}
