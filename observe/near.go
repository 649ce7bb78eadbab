package observe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// maxNear is the maximum number of keys in each of the two sets of a Near.
const maxNear = 16384

// Near calls a function when a key has used a share of its limit, such as 80%, so that users can be
// warned before they are denied. It is a [ratelimit.Observer]. If several limits decide together,
// it looks at each of them, except for slots (package inflight). It ignores decisions that no limit counts.
//
// Near calls the function once per key and window: after a call, it is silent until the ResetAfter
// of the reported Result has passed. For a [ratelimit.FixedWindow] that is the end of the window,
// and for the other algorithms the time when the key would have its full limit again. Each process
// reports on its own, and again after a restart.
//
// A decision below the share costs the hook and 15 ns. If several limits decide together, it costs
// about 100 ns more, and an allocation. A decision above the share costs 100 ns. Near remembers the
// last 16,384 to 32,768 keys that it reported, in up to 3 MB. If there are more, some are reported
// again.
//
// A Near is safe for concurrent use. Use [NewNear] to create one.
type Near struct {
	percent int64
	tell    func(ctx context.Context, key string, r ratelimit.Result)
	seeds   keyhash.Seeds
	base    time.Time

	mu        sync.Mutex                     // protects the fields below; not held during tell
	now, last map[keyhash.Hash]time.Duration // when their silence ends, since base
}

// NewNear returns a Near that calls tell when a key has used the given percentage of a limit, 1 to
// 100, with the Result of that limit. The caller gets its decision only after tell has returned, so
// tell must be fast. It must be safe for concurrent use. NewNear returns
// [ratelimit.ErrInvalidOption] if the percentage is out of range or tell is nil.
func NewNear(percent int, tell func(ctx context.Context, key string, r ratelimit.Result)) (*Near, error) {
	switch {
	case percent < 1 || percent > 100:
		return nil, fmt.Errorf("%w: NewNear with %d percent, want 1 to 100", ratelimit.ErrInvalidOption, percent)
	case isnil.Is(tell):
		return nil, fmt.Errorf("%w: NewNear: the function is nil", ratelimit.ErrInvalidOption)
	}
	return &Near{
		percent: int64(percent), tell: tell, seeds: keyhash.New(), base: time.Now(),
		now: make(map[keyhash.Hash]time.Duration), last: make(map[keyhash.Hash]time.Duration),
	}, nil
}

// Decided calls tell if key has used the share of a limit. It implements [ratelimit.Observer].
func (n *Near) Decided(ctx context.Context, key string, _ int, r ratelimit.Result, err error, _ time.Duration) {
	if err != nil {
		return
	}
	parts := r.Parts()
	if parts == nil {
		n.check(ctx, key, &r, 0)
	}
	for i := range parts {
		if !see.Held(parts[i].Limiter) { // slots are used up whenever they are in use
			n.check(ctx, key, &parts[i].Result, i)
		}
	}
}

// check calls tell with r, the Result of limit i, if the limit is nearly used up and this is new.
func (n *Near) check(ctx context.Context, key string, r *ratelimit.Result, i int) {
	used := int64(r.Limit) - int64(r.Remaining)
	if r.Limit <= 0 || 100*used < n.percent*int64(r.Limit) || !n.isNew(key, i, r.ResetAfter) {
		return
	}
	n.tell(ctx, key, *r)
}

// isNew remembers that limit i of key is silent for a time, and reports whether it was not silent
// yet.
func (n *Near) isNew(key string, i int, silent time.Duration) bool {
	id := n.seeds.Hash(key)
	id.Lo ^= uint64(i)
	n.mu.Lock()
	defer n.mu.Unlock()
	t := time.Since(n.base)
	if t < max(n.now[id], n.last[id]) {
		return false
	}
	if len(n.now) >= maxNear {
		n.now, n.last = n.last, n.now
		clear(n.now)
	}
	n.now[id] = t + min(silent, ratelimit.Never-t)
	return true
}

var _ ratelimit.Observer = (*Near)(nil)
