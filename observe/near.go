package observe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
)

// maxNear is how many keys each of the two sets of a Near holds.
const maxNear = 16384

// Near tells when a key has used a share of its limit, such as 80 %, so that somebody can be warned
// before they are denied. It is a [ratelimit.Observer]. Of several limits that decide together it
// looks at each. What no limit counts is not looked at.
//
// It tells once for a key and window: after that it is silent until ResetAfter of the Result that
// it told of has passed. That is the end of the window of a [ratelimit.FixedWindow], and for the
// others when the key would be whole again. Each process tells for itself, and again after it has
// been started anew.
//
// A decision below the share costs the hook and 15 ns, and one of several limits some 100 ns and
// an allocation more. One above it costs 100 ns. It remembers the last 16,384 to 32,768 keys that it
// told of, in up to 3 MB. If there are more, some are told of again.
//
// It is safe for concurrent use. Make it by [NewNear].
type Near struct {
	percent int64
	tell    func(ctx context.Context, key string, r ratelimit.Result)
	seeds   keyhash.Seeds
	base    time.Time

	mu        sync.Mutex                     // protects what follows; not held to tell
	now, last map[keyhash.Hash]time.Duration // since base, until when they are silent
}

// NewNear returns a Near that calls tell when a key has used so many percent of its limit, 1 to
// 100. It gives it the Result of that limit. The caller is answered after tell, which must be fast
// and safe for concurrent use. Otherwise the error is [ratelimit.ErrInvalidOption].
func NewNear(percent int, tell func(ctx context.Context, key string, r ratelimit.Result)) (*Near, error) {
	switch {
	case percent < 1 || percent > 100:
		return nil, fmt.Errorf("%w: NewNear of %d %%, want 1 to 100", ratelimit.ErrInvalidOption, percent)
	case isnil.Is(tell):
		return nil, fmt.Errorf("%w: NewNear without a function", ratelimit.ErrInvalidOption)
	}
	return &Near{
		percent: int64(percent), tell: tell, seeds: keyhash.New(), base: time.Now(),
		now: make(map[keyhash.Hash]time.Duration), last: make(map[keyhash.Hash]time.Duration),
	}, nil
}

// Decided tells of key if it has used so much of a limit. It is for [Around].
func (n *Near) Decided(ctx context.Context, key string, _ int, r ratelimit.Result, err error, _ time.Duration) {
	if err != nil {
		return
	}
	parts := r.Parts()
	if parts == nil {
		n.look(ctx, key, &r, 0)
	}
	for i := range parts {
		n.look(ctx, key, &parts[i].Result, i)
	}
}

// look tells of r, of limit i, if it is near and new.
func (n *Near) look(ctx context.Context, key string, r *ratelimit.Result, i int) {
	used := int64(r.Limit) - int64(r.Remaining)
	if r.Limit <= 0 || 100*used < n.percent*int64(r.Limit) || !n.isNew(key, i, r.ResetAfter) {
		return
	}
	n.tell(ctx, key, *r)
}

// isNew remembers that limit i of key is told of for so long, and says whether it was not yet.
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
