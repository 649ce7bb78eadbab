// Package see looks through limiters around limiters. It is the one place that does: ratelimit
// and the packages beside it ask it, and it imports none of them.
//
// A limiter around one other has a method Unwrap() L, and one around several has
// Unwrap() []L, as errors have. L is ratelimit.Limiter.
package see

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/store"
)

// Answers is embedded in a limiter that answers for the one inside, whatever that
// decides. Inside a fallback it would hide failures of the store, or be overruled by it.
type Answers struct{}

func (Answers) answers() {}

// Sleeps is embedded in a limiter that sleeps until another one admits. Inside others it would hold what
// they hold. It has no Unwrap: only Names looks behind it.
type Sleeps[L any] struct {
	Answers
	until L
}

// SleepsUntil returns the Sleeps of a limiter that sleeps until l admits.
func SleepsUntil[L any](l L) Sleeps[L] { return Sleeps[L]{until: l} }

func (s Sleeps[L]) sleeps() L { return s.until }

// Transparent is embedded in a limiter that only looks on: its local limiter is that of the one
// inside.
type Transparent struct{}

func (Transparent) transparent() {}

// LookingOn reports whether l embeds Transparent.
func LookingOn[L any](l L) bool {
	_, ok := any(l).(interface{ transparent() })
	return ok
}

// Mirrors is embedded in a limiter that charges another one besides, which stands in for it in an outage.
type Mirrors struct{}

func (Mirrors) mirrors() {}

// Mirroring reports whether l embeds Mirrors.
func Mirroring[L any](l L) bool {
	_, ok := any(l).(interface{ mirrors() })
	return ok
}

// First returns the outermost limiter that is a Kind: l, or what is found inside of it.
func First[Kind, L any](l L) (found L, ok bool) {
	if isnil.Is(l) {
		return found, false
	}
	if _, ok = any(l).(Kind); ok {
		return l, true
	}
	for _, inside := range Inside(l) {
		if found, ok = First[Kind](inside); ok {
			break
		}
	}
	return found, ok
}

// Inside returns what l is around: nothing if it does not say.
func Inside[L any](l L) []L {
	switch w := any(l).(type) {
	case interface{ Unwrap() L }:
		if inner := w.Unwrap(); !isnil.Is(inner) {
			return []L{inner}
		}
	case interface{ Unwrap() []L }:
		return w.Unwrap()
	}
	return nil
}

// Bottom is the store behind those that stand before s, and s itself if there is none.
func Bottom(s store.Store) store.Store {
	for inside := Inside(s); len(inside) > 0; inside = Inside(s) {
		s = inside[0]
	}
	return s
}

// Waits is embedded in a store whose calls may take longer than those of the store behind it.
type Waits struct{}

func (Waits) waits() {}

// Timeout is how long a call of s takes at most, by what the store behind it says. It is 0 if that says
// nothing, or is behind one that Waits.
func Timeout(s store.Store) time.Duration {
	if _, waits := First[interface{ waits() }](s); waits {
		return 0
	}
	if t, ok := Bottom(s).(interface{ Timeout() time.Duration }); ok {
		return t.Timeout()
	}
	return 0
}

// Answering returns what embeds Answers or Sleeps.
func Answering[L any](l L) (found L, ok bool) { return First[interface{ answers() }](l) }

// Sleeping returns what embeds Sleeps.
func Sleeping[L any](l L) (found L, ok bool) { return First[interface{ sleeps() L }](l) }

// Deferred is embedded in a limiter that stands for the one Inside, and of whose slots each is given back
// by a defer. So none can be forgotten, and nothing need look for one that is. Spent has slots that were
// given back, and that nobody else has: new ones are made of them.
type Deferred[L any] struct {
	Inside L
	Spent  *sync.Pool
}

func (d Deferred[L]) deferred() (L, *sync.Pool) { return d.Inside, d.Spent }

// Deferring returns the limiter inside of l, and its spent slots, if l embeds Deferred, or else l.
func Deferring[L any](l L) (inside L, spent *sync.Pool) {
	if d, ok := any(l).(interface{ deferred() (L, *sync.Pool) }); ok {
		return d.deferred()
	}
	return l, nil
}

// Known is what the packages of this module know of a type of package ratelimit, beyond its
// methods. L is ratelimit.Limiter.
type Known[L any] struct {
	Algorithm   string     // by its name; "" of several limits
	Name        string     // of its policy, or of a ban
	Held        bool       // whether it counts slots that are held: see store.Rule
	Calls       bool       // whether it counts calls, not their events
	ByEvents    func() L   // makes the same limit, if it does, which counts the events that it is asked for
	UsesContext bool       // whether a function of a limit or of a key gets the contexts of calls
	Kind        queue.Kind // how it admits events that have to wait
	Key         Key        // nil if it counts the key that it is asked for
	// Local makes what stands in for the limiter in one of so many instances while their store
	// fails: a limiter on s, of 1/instances of each of its limits.
	Local func(s store.Store, instances int) (L, error)

	self L // as users hold it
}

// Core is embedded in the types of package ratelimit.
type Core[L any] struct{ known *Known[L] }

// NewCore returns the Core of self.
func NewCore[L any](self L, k Known[L]) Core[L] {
	k.self = self
	return Core[L]{&k}
}

func (c Core[L]) core() *Known[L] { return c.known }

// Of returns what is known of l, nil if it is no type of package ratelimit. A type that embeds
// one is none: it may have an AllowN of its own.
func Of[L any](l L) *Known[L] {
	if isnil.Is(l) {
		return nil
	}
	if c, ok := any(l).(interface{ core() *Known[L] }); ok {
		if k := c.core(); k != nil && reflect.TypeOf(k.self) == reflect.TypeOf(l) { // not ==: l may be a copy
			return k
		}
	}
	return nil
}

// Algorithm returns the name of the algorithm that decides for l, behind limiters around one
// other, and "" if that is not known.
func Algorithm[L any](l L) string { return Behind(l).Algorithm }

// Queues is how those who wait for a limiter stand in queues.
type Queues struct {
	Kind queue.Kind // how it admits them
	key  Key        // of a queue; nil if that is the key that they ask for
}

// QueuesOf returns those of l, behind limiters around one other. delays is whether l can be asked
// for those whose turn comes in time.
func QueuesOf[L any](l L, delays bool) Queues {
	k := Behind(l)
	if k.Kind == queue.Unknown && !delays {
		return Queues{queue.Foreign, k.Key}
	}
	return Queues{k.Kind, k.Key}
}

// Key is that of the queue of n events of key: the key, or what functions make of it. If one of
// them fails it is the key, and the limiter says so, if it asks them.
func (q Queues) Key(ctx context.Context, key string, n int) string {
	if q.key == nil {
		return key
	}
	made, err := q.key(ctx, key, n)
	if err != nil {
		return key
	}
	return made
}

// Behind returns what is known of the limiter that decides for l, behind limiters around one other.
func Behind[L any](l L) *Known[L] {
	for !isnil.Is(l) {
		if k := Of(l); k != nil {
			return k
		}
		w, ok := any(l).(interface{ Unwrap() L })
		if !ok {
			break
		}
		l = w.Unwrap()
	}
	return new(Known[L])
}

// Calls reports whether l, or a limit inside, counts calls, so that a queue counts calls of n events.
func Calls[L any](l L) bool {
	return !all(l, func(l L) bool { k := Of(l); return k == nil || !k.Calls })
}

// Queue returns how part, one of the limits of l, admits events, and how many of its events are one of
// a queue of calls of n. The kind is not known if l is of another package: it may ask in its own way.
func Queue[L any](l, part L, n int) (kind queue.Kind, unit int) {
	k, unit := Behind(part), 1
	if n > 1 && !k.Calls && Calls(l) {
		unit = n
	}
	if isnil.Is(Behind(l).self) {
		return queue.Unknown, unit
	}
	return k.Kind, unit
}

// Leases is embedded in a store that takes events of another one ahead, and so gets nothing by
// asking for those whose turn comes later.
type Leases struct{}

func (Leases) leases() {}

// Leased reports whether s, or a store that it stands before, embeds Leases.
func Leased(s store.Store) bool {
	_, ok := First[interface{ leases() }](s)
	return ok
}

// ByKey reports whether l decides by the key alone and not by the context, as far as can be
// seen. What answers for others may be a list of addresses.
func ByKey[L any](l L) bool {
	return all(l, func(l L) bool {
		_, answers := any(l).(interface{ answers() })
		k := Of(l)
		return !answers && (k == nil || !k.UsesContext)
	})
}

// Key makes the key that is counted, for n events.
type Key func(ctx context.Context, key string, n int) (string, error)

// KeyOf is the Key of l, nil if it has none.
func KeyOf[L any](l L) Key { return Behind(l).Key }

// Keys is the Key of several that decide together: all that they make, or nil if none makes any.
func Keys(each ...Key) Key {
	if !slices.ContainsFunc(each, func(k Key) bool { return k != nil }) {
		return nil
	}
	return func(ctx context.Context, key string, n int) (_ string, err error) {
		made := make([]string, len(each))
		for i, k := range each {
			if made[i] = key; k != nil {
				if made[i], err = k(ctx, key, n); err != nil {
					return "", err
				}
			}
		}
		return fmt.Sprintf("%q", made), nil
	}
}

// all reports whether it is so of l, and of all that is inside of it.
func all[L any](l L, so func(L) bool) bool {
	return so(l) && !slices.ContainsFunc(Inside(l), func(inner L) bool { return !all(inner, so) })
}

// Held reports whether l, or a limiter inside, counts slots that are held. Nothing says when one
// of them will be free.
func Held[L any](l L) bool {
	for !isnil.Is(l) {
		if k := Of(l); k != nil && k.Algorithm != "" { // a single limit
			return k.Held
		}
		w, ok := any(l).(interface{ Unwrap() L })
		if !ok {
			return slices.ContainsFunc(Inside(l), Held[L])
		}
		l = w.Unwrap()
	}
	return false
}

// ErrHeld says that slots are asked for where nobody would hold them. Their RetryAfter is the end of
// their life, and they are given back long before.
var ErrHeld = fmt.Errorf("%w: slots are held, which inflight.Wait does", store.ErrInvalidOption)

// Fixed reports whether nothing in l can change: a limit of package ratelimit, or an All of such.
func Fixed[L any](l L) bool { return all(l, func(l L) bool { return Of(l) != nil }) }

// Part is what a Refund is to give back of limits that were charged together.
type Part uint8

// The parts.
const (
	Everything Part = iota
	Rates           // all but the slots that are held
	Slots           // these alone
	Mirrored        // these alone, of what a limiter that Mirrors has charged besides, or in place of the store
)

type partKey struct{}

// Only returns a context whose Refunds give back that part.
func Only(ctx context.Context, p Part) context.Context { return context.WithValue(ctx, partKey{}, p) }

// PartOf returns the part that Refunds of ctx are to give back.
func PartOf(ctx context.Context) Part {
	p, _ := ctx.Value(partKey{}).(Part)
	return p
}

// IgnoresContext reports whether l is known not to use the context. It does not look into
// limiters of other packages, which may use it themselves.
func IgnoresContext[L any](l L) bool {
	return all(l, func(l L) bool {
		k := Of(l)
		return k != nil && !k.UsesContext
	})
}

// Local returns the local limiter of l: see Known.
func Local[L any](l L, s store.Store, instances int) (local L, err error) {
	if isnil.Is(l) {
		return local, fmt.Errorf("%w: the limiter is nil", store.ErrInvalidOption)
	}
	if LookingOn(l) {
		return Local(Inside(l)[0], s, instances)
	}
	k := Of(l)
	if k == nil {
		return local, fmt.Errorf("%w: a %T has no share: make its local limiter yourself", store.ErrInvalidOption, l)
	}
	return k.Local(s, instances)
}

// Names returns the names of the limits in l, as far as they are known, and of bans beside others: of all
// that can deny.
func Names[L any](l L) []string { return names(nil, l, false) }

func names[L any](dst []string, l L, beside bool) []string {
	if k := Of(l); k != nil && (k.Algorithm != "" || beside && k.Name != "") {
		dst = append(dst, k.Name)
		if k.Algorithm != "" {
			return dst
		}
	}
	inside := Inside(l)
	if s, ok := any(l).(interface{ sleeps() L }); ok {
		inside = []L{s.sleeps()}
	}
	for _, inner := range inside {
		dst = names(dst, inner, beside || len(inside) > 1)
	}
	return dst
}
