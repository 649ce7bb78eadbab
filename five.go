package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/store"
)

// five is the part as other packages of this module see it.
func (p *part) five() *five.Limiter[Result] {
	lim := p.core
	return &five.Limiter[Result]{
		Algorithm: lim.algorithm.rule.Name,
		Coalesced: lim.coalesced,
		Tiered:    lim.limitFunc != nil,
		Limit:     lim.integers,
		Before:    lim.algorithm.before,
		LimitOf:   lim.limitOf,
		By:        p.by,
		RefundBy: func(ctx context.Context, key string, charged Result, n int, by store.Limit) error {
			return lim.store.Refund(ctx, lim.namespace, key, by, charged.receipt(int64(n)))
		},
		PartOf: func(r Result, n int) Result {
			r.n = int32(min(int64(n), int64(r.n)))
			return r
		},
	}
}

var operations = [...]operation{five.Take: take, five.TakeUpTo: takeUpTo, five.Peek: peek, five.Overdraw: overdraw}

// by decides by a limit, and tells the observers.
func (p *part) by(ctx context.Context, op five.Operation, key string, n int, by store.Limit) (r Result, err error) {
	since := p.now()
	err = p.core.decide(ctx, key, n, operations[op], &by, &r)
	if op != five.Peek {
		for _, o := range p.observers {
			o.tell(ctx, key, n, r, err, since)
		}
	}
	return r, err
}
