package fallback

import (
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Answer is how a [Limiter] decides while the store fails. Use [FailOpen], [FailClosed], [FailTo]
// or [FailLocal] to create one.
type Answer struct {
	source ratelimit.Source
	local  ratelimit.Limiter
	share  bool // local will be a share of 1/shares
	shares int
	on     store.Store // the store that local counts on, if placed
	placed bool
}

// FailOpen admits every event without a bound, even if the key has a limit of 0. Its Results have
// [ratelimit.SourceFailOpen] and Allowed. All other fields are zero, because the key's state is not
// known. Refunding such a Result does nothing and is not an error.
func FailOpen() Answer { return Answer{source: ratelimit.SourceFailOpen} }

// FailClosed denies every event, except for keys that a limit function or a tier makes
// [ratelimit.Unlimited] and that no [ratelimit.Ban] covers. Its Results have
// [ratelimit.SourceFailClosed]. RetryAfter is the time until the breaker's next probe, and at least
// 1 s. Limit, Remaining and ResetAfter are 0, because they are not known.
func FailClosed() Answer { return Answer{source: ratelimit.SourceFailClosed} }

// FailTo lets l decide, a limiter of this process alone, such as one in memory. Its Results have
// [ratelimit.SourceLocal], except for bans and [ratelimit.Unlimited], where the source is l's. Most
// callers want [FailLocal], which makes that limiter.
//
// Bound: l's own bound for each instance that cannot reach the store, in addition to what the store
// admits to the others. If n instances share a store, give each a share of 1/n. The total is then
// at most twice the limit's own bound in any interval, and about n bursts. A single instance can
// have a local limiter with the store's limit. Both together then keep to one limit, to within one
// event per outage and per call that is in progress when the outage ends:
//
//   - During normal operation, l is also charged with what the store admits here, so it does not
//     start empty.
//   - After an outage, the key's next call charges the store with what l has admitted and still
//     counts, while the store decides the key's other calls. What the store has no room for stays
//     owed, and later calls try again, one at a time.
//
// It remembers 65,536 keys that owe. Beyond that, the local spend of a key becomes a free burst.
// After a lost reply, a key pays twice. A refund of what the store admitted is also refunded to l.
//
// Each admission by the store also costs a decision of l, and one or two allocations. A key that
// owes costs a second call to the store, or up to four if the limiter has no AllowUpTo method. If
// its last call got no reply, a Peek comes first. An event that is too large for l may fit the
// store, so its RetryAfter is the time until the next probe. [More].
//
// [More]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/redis.md#when-redis-does-not-answer
func FailTo(l ratelimit.Limiter) Answer {
	return Answer{source: ratelimit.SourceLocal, local: l}
}

// FailLocal is a [FailTo] with a limiter in memory, which [New] makes from the limiter of the
// store. It has the same algorithm and key function, but no observers. It has 1/n of each limit,
// including the limits of tiers and of a limit function. n is the number of instances that share the
// store, 1 or more. For a fleet that grows and shrinks, use the largest number.
func FailLocal(n int) Answer {
	return Answer{source: ratelimit.SourceLocal, share: true, shares: n}
}

// On returns p with s, normally a store in memory, in place of a memory of its own, which has up to
// 16 million keys ([memstore.WithMaxKeys] sets another number). If the fallbacks of limiters that
// share a limit have the same s, the limiters also share it while the store fails. On is for
// [FailLocal]: [New] refuses it for other answers, and refuses a nil store.
func (p Answer) On(s store.Store) Answer {
	p.on, p.placed = s, true
	return p
}

// limiter returns the local limiter of the answer, or nil if it has none.
func (p Answer) limiter(l ratelimit.Limiter) (ratelimit.Limiter, error) {
	switch {
	case p.placed && (!p.share || isnil.Is(p.on)):
		return nil, fmt.Errorf("%w: Answer.On needs a store, and works only with FailLocal", ratelimit.ErrInvalidOption)
	case p.placed:
		return see.Local(l, p.on, p.shares)
	case p.source != ratelimit.SourceLocal:
		return nil, nil
	case !p.share && isnil.Is(p.local):
		return nil, fmt.Errorf("%w: the local limiter is nil", ratelimit.ErrInvalidOption)
	case !p.share:
		return p.local, nil
	}
	mem, err := memstore.New()
	if err != nil {
		return nil, err
	}
	return see.Local(l, mem, p.shares)
}

// withoutBans returns l without its bans, as far as they can be seen.
func withoutBans(l ratelimit.Limiter) ratelimit.Limiter {
	if _, bans := see.First[*ratelimit.Ban](l); !bans {
		return l
	}
	inside := slices.Clone(see.Inside(l))
	for i := range inside {
		inside[i] = withoutBans(inside[i])
	}
	_, ban := l.(*ratelimit.Ban)
	_, several := l.(*ratelimit.All)
	switch {
	case len(inside) == 1 && (ban || see.Observing(l)):
		return inside[0]
	case several:
		if a, err := ratelimit.NewAll(inside...); err == nil {
			return a
		}
	}
	return l
}
