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

// Traits is embedded in a limiter, or in a store, that is around others. It says of it what its methods
// do not.
type Traits struct {
	Answers bool // for the one inside, whatever that decides; inside a fallback it would hide failures of the store, or be overruled
	LooksOn bool // and changes nothing: its local limiter is that of the one inside
	Mirrors bool // it charges another limiter besides, which stands in for it in an outage
	Sleeps  bool // until the one behind admits; inside others it would hold what they hold
	Waits   bool // a call of the store may take longer than one of the store behind it
	Leases  bool // the store takes events ahead, and so gets nothing by asking for those whose turn comes later
	Divides bool // the store has only a part of each limit, and does not know what remains of the whole

	Behind any // the limiter that it is around, if it has no Unwrap: Names and Deferring look there
	// Spent has slots of the one behind that were given back, and that nobody else has: new ones are
	// made of them. Each is given back by a defer, so that nothing need look for one that is forgotten.
	Spent *sync.Pool
}

func (t *Traits) traits() *Traits { return t }

var plain Traits

// traitsOf returns those of a limiter or a store, or none if it does not say.
func traitsOf(x any) *Traits {
	if t, ok := x.(interface{ traits() *Traits }); ok {
		return t.traits()
	}
	return &plain
}

// LookingOn reports whether l only looks on.
func LookingOn[L any](l L) bool { return traitsOf(l).LooksOn }

// Mirroring reports whether l mirrors.
func Mirroring[L any](l L) bool { return traitsOf(l).Mirrors }

// Answering returns what answers for others, l or what is found inside of it.
func Answering[L any](l L) (found L, ok bool) {
	return first(l, func(l L) bool { t := traitsOf(l); return t.Answers || t.Sleeps })
}

// Sleeping returns what sleeps, l or what is found inside of it.
func Sleeping[L any](l L) (found L, ok bool) {
	return first(l, func(l L) bool { return traitsOf(l).Sleeps })
}

// Leased reports whether s, or a store that it stands before, leases.
func Leased(s store.Store) bool {
	_, ok := first(s, func(s store.Store) bool { return traitsOf(s).Leases })
	return ok
}

// Divided reports whether s, or a store that it stands before, divides.
func Divided(s store.Store) bool {
	_, ok := first(s, func(s store.Store) bool { return traitsOf(s).Divides })
	return ok
}

// Deferring returns the limiter behind l, and its spent slots, if l has such, or else l.
func Deferring[L any](l L) (behind L, spent *sync.Pool) {
	if t := traitsOf(l); t.Spent != nil {
		return t.Behind.(L), t.Spent
	}
	return l, nil
}

// First returns the outermost limiter that is a Kind: l, or what is found inside of it.
func First[Kind, L any](l L) (found L, ok bool) {
	return first(l, func(l L) bool { _, is := any(l).(Kind); return is })
}

// first returns the outermost limiter of which it is so.
func first[L any](l L, so func(L) bool) (found L, ok bool) {
	if isnil.Is(l) {
		return found, false
	}
	if so(l) {
		return l, true
	}
	for _, inside := range Inside(l) {
		if found, ok = first(inside, so); ok {
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

// Timeout is how long a call of s takes at most, by what the store behind it says. It is 0 if that says
// nothing, or is behind one that waits.
func Timeout(s store.Store) time.Duration {
	if _, waits := first(s, func(s store.Store) bool { return traitsOf(s).Waits }); waits {
		return 0
	}
	if t, ok := Bottom(s).(interface{ Timeout() time.Duration }); ok {
		return t.Timeout()
	}
	return 0
}

// Known is what the packages of this module know of a type of package ratelimit, beyond its
// methods. L is ratelimit.Limiter.
type Known[L any] struct {
	Algorithm    string     // by its name; "" of several limits
	Name         string     // of its policy, or of a ban
	Alternatives bool       // whether one of the limits inside decides for all
	Held         bool       // whether it counts slots that are held: see store.Rule
	Calls        bool       // whether it counts calls, not their events
	ByEvents     func() L   // makes the same limit, if it does, which counts the events that it is asked for
	UsesContext  bool       // whether a function of a limit or of a key gets the contexts of calls
	Kind         queue.Kind // how it admits events that have to wait
	Key          Key        // nil if it counts the key that it is asked for
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

// Alternatives reports whether l, or a limiter inside, is decided by one of several, so that what its limits say
// apart does not say when it admits.
func Alternatives[L any](l L) bool {
	return !all(l, func(l L) bool { k := Of(l); return k == nil || !k.Alternatives })
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

// ByKey reports whether l decides by the key alone and not by the context, as far as can be
// seen. What answers for others may be a list of addresses.
func ByKey[L any](l L) bool {
	return all(l, func(l L) bool {
		t, k := traitsOf(l), Of(l)
		return !t.Answers && !t.Sleeps && (k == nil || !k.UsesContext)
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
	if behind, ok := traitsOf(l).Behind.(L); ok {
		inside = []L{behind}
	}
	for _, inner := range inside {
		dst = names(dst, inner, beside || len(inside) > 1)
	}
	return dst
}
