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
	forever   = 10 * 365 * 24 * time.Hour // of a slot in memory
)

// New returns a limiter of n slots for each key, 1 to 2^31-1, over all processes that share s.
// Allow takes a slot, and a Refund of its Result gives it back. Most callers want [Hold], which
// also renews it.
//
// life is how long a slot outlives a process that dies, 100 ms to 24 h. A slot that is not
// renewed is free again then. In memory it ends with the process, and life does nothing.
//
// A call takes one slot, whatever its n. Of a Limit that a limit function or a tier gives, only
// the Rate counts. Limiters of one name and store share their slots, whatever their lives and n. If
// a Redis server's clock is set back, a slot ends one life of the limiter that is asked later at most:
// see [Time], and give limiters of one name the same life.
// The errors are [ratelimit.ErrInvalidLimit] and [ratelimit.ErrInvalidOption].
//
// [Time]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/promises.md#time
func New(s store.Store, n int, life time.Duration, opts ...ratelimit.Option) (*ratelimit.Custom, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: %d slots, want 1 or more", ratelimit.ErrInvalidLimit, n)
	}
	if life < leastLife || life > mostLife {
		return nil, fmt.Errorf("%w: a life of %v: it is %v to %v", ratelimit.ErrInvalidOption, life, leastLife, mostLife)
	}
	if _, here := s.(*memstore.Store); here {
		life = forever
	}
	opts = append(slices.Clip(opts), ratelimit.CountCalls())
	return ratelimit.NewCustom(rule, s, ratelimit.Limit{Rate: n, Period: life}, opts...)
}
