package inflight

import (
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const (
	leastLife = 100 * time.Millisecond
	mostLife  = 24 * time.Hour
	forever   = 10 * 365 * 24 * time.Hour // for a slot in memory
)

// New returns a limiter of n slots for each key, 1 to 2^31-1, across all processes that share s.
// Allow takes a slot, and a Refund of its Result releases it. Most callers want [Hold], which also
// renews the slot.
//
// life is the lifetime of a slot, 100 ms to 24 h: a slot that is not renewed is free again after
// that time, for example if its process dies. In memory, a slot ends with the process, and life has
// no effect.
//
// A call takes one slot, whatever its n. If a limit function or a tier returns a Limit, only its
// Rate counts. Limiters with the same name and store share their slots, even if their lives or n
// differ. If a server's clock is set back, a slot ends later, by at most the life of the
// limiter that is asked next (see [Time]). Give limiters with the same name the same life. New
// returns [ratelimit.ErrInvalidLimit] or [ratelimit.ErrInvalidOption].
//
// [Time]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/promises.md#time
func New(s store.Store, n int, life time.Duration, opts ...ratelimit.Option) (*ratelimit.Custom, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: %d slots, want 1 or more", ratelimit.ErrInvalidLimit, n)
	}
	if life < leastLife || life > mostLife {
		return nil, fmt.Errorf("%w: life, the TTL of a slot, is %v, want %v to %v", ratelimit.ErrInvalidOption, life, leastLife, mostLife)
	}
	if _, here := s.(*memstore.Store); here {
		life = forever
	}
	opts = append(slices.Clip(opts), ratelimit.CountCalls())
	return ratelimit.NewCustom(rule, s, ratelimit.Limit{Rate: n, Period: life}, opts...)
}
