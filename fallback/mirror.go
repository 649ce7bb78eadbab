package fallback

import (
	"context"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

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
