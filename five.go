package ratelimit

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/store"
)

// five is what regions ask of the limiter, a *five.Limiter[Result]. It is nil if that is counted
// by another key, or counts calls.
func (lim *limiter) five() any {
	if lim.keyFunc != nil || lim.calls {
		return nil
	}
	return &five.Limiter[Result]{
		Algorithm: lim.rule.Name,
		Limit:     lim.integers,
		Within:    func(by store.Limit, d time.Duration) store.Limit { return limitWithin(lim.rule, by, d) },
		LimitOf:   lim.limitOf,
		By:        lim.by,
		Space:     lim.space(),
		Look:      lim.look,
		Credit: func(ctx context.Context, key string, debit Result, n int, by store.Limit) error {
			return lim.credit(ctx, key, debit.receipt(int64(n)), by)
		},
	}
}

// space is what the limiter shares with others that have the same state.
func (lim *limiter) space() any {
	if lim.bottom == nil {
		return nil
	}
	hi, lo := lim.namespace.ID()
	return struct {
		store  store.Store
		hi, lo uint64
	}{lim.bottom, hi, lo}
}

// look tells how a key of a window or a token bucket stands.
func (lim *limiter) look(ctx context.Context, key string, by store.Limit) (l five.Look, err error) {
	r, err := bottom(lim.store).Peek(ctx, lim.namespace, key, by, 1) // which tells what it counts
	if err != nil {
		return l, err
	}
	l.Left, l.Credit = int(r.Available(lim.rule, by)), lim.creditable(by, r)
	if !lim.rule.Burst && r.Y >= 0 { // X is the time
		l.Window, _ = window(by, r.X)
	}
	return l, nil
}

var operations = [...]operation{five.Take: take, five.TakeUpTo: takeUpTo}

// by decides by a limit, and tells the observers.
func (lim *limiter) by(ctx context.Context, op five.Operation, key string, n int, by store.Limit) (r Result, err error) {
	since := lim.now()
	err = lim.decide(ctx, key, n, operations[op], &by, &r)
	lim.tell(ctx, key, n, &r, err, since)
	return r, err
}
