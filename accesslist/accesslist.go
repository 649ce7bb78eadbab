// Package accesslist puts an allow list and a deny list in front of a limiter: keys,
// and IP addresses by their prefixes, that are never limited, and such that are always
// denied.
//
//	deny, err := accesslist.NewList("192.0.2.0/24", "=user:666")
//	...
//	limiter, err := accesslist.New(bucket, accesslist.WithLists(accesslist.Lists{Deny: deny}))
//	...
//	limiter.Replace(accesslist.Lists{Deny: newer}) // while it is in use
package accesslist

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/order"
)

// Lists are the two lists of a Limiter. A key on both is denied, whichever entry is
// the longer.
type Lists struct {
	Allow *List // what is let through uncounted
	Deny  *List
}

// Limiter is a [ratelimit.Limiter] that asks another one only about keys that are on
// no list.
//
// A key on the deny list has a limit of 0: it is denied with a RetryAfter of
// [ratelimit.Never], and Limit, Remaining and ResetAfter are 0. A key on the allow list
// has the limit [ratelimit.Unlimited]: it is let through uncounted, Limit and Remaining
// are 2^31-1, and ResetAfter is 0. Source is [ratelimit.SourceList]. Neither asks the
// inner limiter, nor changes what it holds of the key, which is in force again
// when the key leaves the lists. Bad input is an error, and so is a ctx that has ended.
//
// The address of a key is the key itself if it is one as [netip.ParseAddr] reads it, in
// whatever spelling, or what the function of [WithAddr] says. Its zone does not count,
// and an IPv4 address mapped to IPv6 is the IPv4 one. An address with a port is none.
//
// Bound: what the inner limiter admits, and without bound what the allow list does.
// Replace is in force for every call that begins after it: the two lists
// change at once, and calls that have begun keep to the lists they have found.
//
// A call reads one atomic pointer and takes no lock. With 100,000 prefixes the lists cost
// it some 45 ns for an IPv4 address, 120 ns for IPv6 and 10 ns for other keys, the
// greater part for parsing the key, which is left out while no list has prefixes. Nothing is
// allocated, but for keys that resemble an address and are none.
//
// It is safe for concurrent use, starts no goroutine and has nothing to close. Make it
// by [New].
type Limiter struct {
	place //nolint:unused // package order looks for it

	limiter ratelimit.Limiter
	allowed ratelimit.Result // of a key on the allow list
	denied  ratelimit.Result // of a key on the deny list
	addr    func(key string) (netip.Addr, bool)
	lists   atomic.Pointer[Lists]
}

type place = order.Answers //nolint:unused // likewise

// Option sets what is optional about a Limiter.
type Option func(*Limiter) error

// WithLists gives the lists to begin with. Without it both are empty.
func WithLists(lists Lists) Option {
	return func(l *Limiter) error {
		l.Replace(lists)
		return nil
	}
}

// WithAddr asks f for the address of a key, and whether it has one, in place of
// reading the key as an address. f is called by each method but Refund and Reset while a
// list has prefixes, and must be safe for concurrent use.
func WithAddr(f func(key string) (netip.Addr, bool)) Option {
	return func(l *Limiter) error {
		if f == nil {
			return fmt.Errorf("%w: WithAddr(nil)", ratelimit.ErrInvalidOption)
		}
		l.addr = f
		return nil
	}
}

// New returns a limiter that decides as l does on keys that are on no list. Its error
// is [ratelimit.ErrInvalidOption]: l or an option is nil.
func New(l ratelimit.Limiter, opts ...Option) (*Limiter, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	lim := &Limiter{limiter: l, addr: addrOf}
	lim.lists.Store(new(Lists))
	mark := ratelimit.NewMark(lim, ratelimit.SourceList, nil)
	lim.allowed = ratelimit.Result{Allowed: true, Limit: math.MaxInt32, Remaining: math.MaxInt32}.With(mark)
	lim.denied = ratelimit.Result{RetryAfter: ratelimit.Never}.With(mark)
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(lim); err != nil {
			return nil, err
		}
	}
	return lim, nil
}

// Replace puts lists in the place of both lists.
func (l *Limiter) Replace(lists Lists) { l.lists.Store(&lists) }

// Lists are those in force, for a Replace that keeps one of them.
func (l *Limiter) Lists() Lists {
	if lists := l.lists.Load(); lists != nil {
		return *lists
	}
	return Lists{}
}

var errNoConstructor = fmt.Errorf("%w: a limiter is made by its constructor", ratelimit.ErrInvalidLimit)

// verdict is what the lists say of a key.
type verdict uint8

const (
	unlisted verdict = iota
	onAllowList
	onDenyList
)

// of is the verdict on key.
func (l *Limiter) of(key string) verdict {
	lists := l.lists.Load()
	var a netip.Addr
	if lists.Deny.hasPrefixes() || lists.Allow.hasPrefixes() {
		if found, ok := l.addr(key); ok {
			a = found.Unmap().WithZone("")
		}
	}
	switch {
	case lists.Deny.has(key, a):
		return onDenyList
	case lists.Allow.has(key, a):
		return onAllowList
	}
	return unlisted
}

// decide answers for a key on a list; listed is false if key is on none.
func (l *Limiter) decide(ctx context.Context, key string, n int) (r ratelimit.Result, listed bool, err error) {
	if l.limiter == nil {
		return r, true, errNoConstructor
	}
	v := l.of(key)
	if v == unlisted {
		return r, false, nil
	}
	if err := ratelimit.CheckCall(ctx, key, n); err != nil {
		return r, true, err
	}
	if v == onDenyList {
		return l.denied, true, nil
	}
	return l.allowed, true, nil
}

// Allow is AllowN of 1.
func (l *Limiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN decides on n events at once, by the lists or by the inner limiter.
func (l *Limiter) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if r, listed, err := l.decide(ctx, key, n); listed {
		return r, err
	}
	return l.limiter.AllowN(ctx, key, n)
}

// AllowUpTo admits as many of n events as fit: all if the key is on the allow list, and
// none if it is on the deny list.
func (l *Limiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	r, listed, err := l.decide(ctx, key, n)
	switch {
	case !listed:
		return ratelimit.AllowUpTo(ctx, l.limiter, key, n)
	case r.Allowed:
		granted = n
	}
	return granted, r, err
}

// AllowWithin decides on n events whose turn must come within d, by the lists or by the
// inner limiter. What the allow list lets through has a Delay of 0.
func (l *Limiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	if r, listed, err := l.decide(ctx, key, n); listed {
		return r, err
	}
	return ratelimit.AllowWithin(ctx, l.limiter, key, n, d)
}

// Peek answers what Allow would, and charges nothing.
func (l *Limiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if r, listed, err := l.decide(ctx, key, 1); listed {
		return r, err
	}
	return l.limiter.Peek(ctx, key)
}

// Charge charges n events that have happened already to the inner limiter. Those of a key
// on a list are not charged.
func (l *Limiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if r, listed, err := l.decide(ctx, key, n); listed {
		return r, err
	}
	return ratelimit.Charge(ctx, l.limiter, key, n)
}

// Refund gives back n of the events that charged admitted to the inner limiter, also if
// the key is on a list by now. What the allow list let through was charged to none, also
// if the key is on no list by now: then it is no error and does nothing.
func (l *Limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if l.limiter == nil {
		return errNoConstructor
	}
	if charged.Allowed && charged.Source() == ratelimit.SourceList {
		return ratelimit.CheckCall(ctx, key, n)
	}
	return l.limiter.Refund(ctx, key, charged, n)
}

// Reset forgets key at the inner limiter, whether it is on a list or not. Lists stay.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if l.limiter == nil {
		return errNoConstructor
	}
	return l.limiter.Reset(ctx, key)
}

// AppendPolicies appends the policies of the inner limiter. For a key on the allow list it
// appends one with the limit "unlimited", and for one on the deny list one with "0/s".
func (l *Limiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if l.limiter == nil {
		return dst, errNoConstructor
	}
	switch l.of(key) {
	case onAllowList:
		return append(dst, allowPolicy), nil
	case onDenyList:
		return append(dst, denyPolicy), nil
	}
	return ratelimit.AppendPolicies(ctx, dst, l.limiter, key)
}

// The policies of the lists, named after their limits.
var (
	allowPolicy = ratelimit.Policy{
		Name: ratelimit.Unlimited().String(), Limit: ratelimit.Unlimited(), Quota: math.MaxInt32,
	}
	denyPolicy = ratelimit.Policy{Name: ratelimit.PerSecond(0).String(), Limit: ratelimit.PerSecond(0)}
)

// Unwrap returns the inner limiter.
func (l *Limiter) Unwrap() ratelimit.Limiter { return l.limiter }

var (
	_ ratelimit.Limiter   = (*Limiter)(nil)
	_ ratelimit.Describer = (*Limiter)(nil)
	_ ratelimit.Charger   = (*Limiter)(nil)
	_ ratelimit.Delayer   = (*Limiter)(nil)
)

const maxAddr = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")

// addrOf reads key as an address. netip.ParseAddr allocates an error for what is none,
// and remembers each zone that it sees, so that it sees neither.
func addrOf(key string) (netip.Addr, bool) {
	text, zone, zoned := strings.Cut(key, "%")
	if zoned && (zone == "" || !strings.Contains(text, ":")) { // IPv4 has none
		return netip.Addr{}, false
	}
	if len(text) > maxAddr || !addrLike(text) {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(text)
	return a, err == nil
}

// addrLike is whether text has the characters of an address.
func addrLike(text string) bool {
	separators := 0
	for i := range len(text) {
		switch c := text[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
		case c == '.', c == ':':
			separators++
		default:
			return false
		}
	}
	return separators >= 2
}
