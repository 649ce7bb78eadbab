package fallback

import (
	"context"
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

var errNothingCharged = fmt.Errorf("%w: the Result to refund has charged nothing", ratelimit.ErrInvalidN)

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
