// Package see looks into limiters that wrap others. It is the only place that does: package
// ratelimit and its siblings use it, and it imports none of them.
//
// A limiter that wraps one other has a method Unwrap() L, and one that wraps several has Unwrap()
// []L, as errors have. L is ratelimit.Limiter.
package see

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/store"
)

// Wrapper is embedded in a limiter or store that wraps others, and shows none of its Traits outside
// this module.
type Wrapper struct{ traits Traits }

// Has returns a Wrapper with these Traits.
func Has(t Traits) Wrapper { return Wrapper{t} }

func (w *Wrapper) wrapper() *Traits { return &w.traits }

// Traits describes what the methods of a wrapper do not show.
type Traits struct {
	Answers  bool // decides in place of the one inside, so inside a fallback it would hide failures of the store, or be overruled
	Observes bool // observes and changes nothing, so its local limiter is that of the one inside
	Changes  bool // what it wraps may change, so what is seen of that holds for one call only
	Mirrors  bool // also charges another limiter, which decides in its place in an outage
	Sleeps   bool // sleeps until the limiter behind admits; inside others, it would hold what they hold
	Waits    bool // a call of this store may take longer than one of the store behind it
	Leases   bool // the store takes events ahead, so it gains nothing from events that may have to wait
	Divides  bool // the store has only a part of each limit, so it does not know what remains of the whole

	Behind any // the wrapped limiter, if there is no Unwrap; used by Through and Deferring
	// Spent holds released slots of the limiter behind that nothing else refers to; new slots reuse
	// them. Each of these slots is released by a defer, so no cleanup for forgotten slots is
	// needed.
	Spent *sync.Pool
}

var plain Traits

// traitsOf returns the traits of a limiter or a store, or the zero Traits if it has none.
func traitsOf(x any) *Traits {
	if w, ok := x.(interface{ wrapper() *Traits }); ok {
		return w.wrapper()
	}
	return &plain
}

// Observing reports whether l only observes.
func Observing[L any](l L) bool { return traitsOf(l).Observes }

// Changing reports whether what is inside l may change.
func Changing[L any](l L) bool {
	_, changes := first(l, func(l L) bool { return traitsOf(l).Changes })
	return changes
}

// Mirroring reports whether l also charges another limiter.
func Mirroring[L any](l L) bool { return traitsOf(l).Mirrors }

// Answering returns the limiter that decides in place of others: l, or one inside it.
func Answering[L any](l L) (found L, ok bool) {
	return first(l, func(l L) bool { t := traitsOf(l); return t.Answers || t.Sleeps })
}

// Sleeping returns the limiter that sleeps: l, or one inside it.
func Sleeping[L any](l L) (found L, ok bool) {
	return first(l, func(l L) bool { return traitsOf(l).Sleeps })
}

// Deferring returns the limiter behind l and its spent slots, if l has them, and otherwise l.
func Deferring[L any](l L) (behind L, spent *sync.Pool) {
	if t := traitsOf(l); t.Spent != nil {
		return t.Behind.(L), t.Spent
	}
	return l, nil
}

// First returns the outermost limiter that is a Kind: l, or one inside it.
func First[Kind, L any](l L) (found L, ok bool) {
	return first(l, func(l L) bool { _, is := any(l).(Kind); return is })
}

// first returns the outermost limiter for which so returns true.
func first[L any](l L, so func(L) bool) (found L, ok bool) {
	for !isnil.Is(l) {
		if so(l) {
			return l, true
		}
		if w, one := any(l).(interface{ Unwrap() L }); one { // Inside would allocate
			l = w.Unwrap()
			continue
		}
		for _, inside := range Inside(l) {
			if found, ok = first(inside, so); ok {
				break
			}
		}
		return found, ok
	}
	return found, false
}

// Inside returns the limiters that l wraps, or none if it has no Unwrap.
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

// Through returns the limiters that l wraps, and the one behind it if there is no Unwrap.
func Through[L any](l L) []L {
	if behind, ok := traitsOf(l).Behind.(L); ok {
		return []L{behind}
	}
	return Inside(l)
}

// Known is what the packages of this module know about a type of package ratelimit, in addition to
// its methods. L is ratelimit.Limiter.
type Known[L any] struct {
	Algorithm    string            // the name of the algorithm; "" for several limits
	Name         string            // the name of its policy, or of a ban
	Alternatives bool              // whether one of the limits inside decides for all
	Held         bool              // whether it counts slots that are held: see store.Rule
	Calls        bool              // whether it counts calls instead of events
	ByEvents     func() L          // if Calls, returns the same limit, but counting events
	UsesContext  bool              // whether a limit or key function gets the contexts of calls
	Kind         queue.Kind        // how it admits events that have to wait
	Kinds        func() queue.Kind // returns Kind; NewCore calls it once, unless what is inside may change
	Key          Key               // nil if it counts the key that it is asked for
	Servers      Servers           // nil if its store does not tell
	// Local makes the limiter that decides in one of so many instances while their store fails: a
	// limiter on s, with 1/instances of each of its limits.
	Local func(s store.Store, instances int) (L, error)

	self L // the value that users hold
}

// Core is embedded in the types of package ratelimit.
type Core[L any] struct{ known *Known[L] }

// NewCore returns the Core of self.
func NewCore[L any](self L, k Known[L]) Core[L] {
	if k.Kinds != nil && !Changing(self) {
		k.Kind, k.Kinds = k.Kinds(), nil
	}
	k.self = self
	return Core[L]{&k}
}

func (c Core[L]) core() any { return c.known }

// hasCore has a Core. It has no type parameter, because a type assertion to a generic type takes longer.
type hasCore interface{ core() any }

// Of returns what is known about l, or nil if l is not a type of package ratelimit. A type that
// embeds one is not, because it may have its own AllowN.
func Of[L any](l L) *Known[L] {
	if isnil.Is(l) {
		return nil
	}
	if c, ok := any(l).(hasCore); ok {
		if k, _ := c.core().(*Known[L]); k != nil && reflect.TypeOf(k.self) == reflect.TypeOf(l) { // not ==: l may be a copy
			return k
		}
	}
	return nil
}

// Algorithm returns the name of the algorithm that decides for l, behind any wrappers of a single
// limiter, or "" if that is not known.
func Algorithm[L any](l L) string { return Behind(l).Algorithm }

// Queues describes how callers that wait for a limiter form queues.
type Queues struct {
	Kind queue.Kind // how the limiter admits them
	key  Key        // of a queue; nil if it is the key that callers ask for
}

// QueuesOf returns the Queues of l, behind any wrappers of a single limiter. delays reports whether
// l can be asked for events that may wait up to a given time.
func QueuesOf[Delayer, L any](l L) Queues {
	k := Behind(l)
	kind := k.kind()
	if kind == queue.Unknown {
		if _, delays := any(l).(Delayer); !delays {
			return Queues{queue.Foreign, k.Key}
		}
	}
	return Queues{kind, k.Key}
}

func (k *Known[L]) kind() queue.Kind {
	if k.Kinds != nil {
		return k.Kinds()
	}
	return k.Kind
}

// Key returns the key of the queue for n events of key, which is key, or what functions make of it.
// If one of them fails, it is key, and the limiter returns the error when it calls the function.
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

// Behind returns what is known about the limiter that decides for l, behind any wrappers of a
// single limiter.
func Behind[L any](l L) *Known[L] {
	for {
		if k := Of(l); k != nil {
			return k
		}
		w, ok := any(l).(interface{ Unwrap() L })
		if !ok || isnil.Is(l) {
			return new(Known[L])
		}
		l = w.Unwrap()
	}
}

// Calls reports whether l, or a limit inside it, counts calls, so that a queue counts calls of n
// events.
func Calls[L any](l L) bool {
	return !all(l, func(l L) bool { k := Of(l); return k == nil || !k.Calls })
}

// Events returns how many events a call for n of them is in the queue of l.
func Events[L any](l L, n int) int {
	if n > 1 && Calls(l) {
		return 1
	}
	return n
}

// Alternatives reports whether one of several limiters decides in l, or in a limiter inside, so that the parts
// of a Result do not show when l admits.
func Alternatives[L any](l L) bool {
	return !all(l, func(l L) bool { k := Of(l); return k == nil || !k.Alternatives })
}

// Queue returns how part, one of the limits of l, admits events, and how many of its events make up
// one unit of a queue of calls of n. The kind is unknown if l is of another package, because it may
// ask in its own way.
func Queue[L any](l, part L, n int) (kind queue.Kind, unit int) {
	k, unit := Behind(part), 1
	if n > 1 && !k.Calls && Calls(l) {
		unit = n
	}
	if isnil.Is(Behind(l).self) {
		return queue.Unknown, unit
	}
	return k.kind(), unit
}

// ByKey reports whether l decides by the key alone and not by the context, as far as can be seen. A
// limiter that decides in place of others may be a list of addresses.
func ByKey[L any](l L) bool {
	return all(l, func(l L) bool {
		t, k := traitsOf(l), Of(l)
		return !t.Answers && !t.Sleeps && (k == nil || !k.UsesContext)
	})
}

// Key makes the key that is counted, for n events.
type Key func(ctx context.Context, key string, n int) (string, error)

// KeyOf returns the Key of l, or nil if it has none.
func KeyOf[L any](l L) Key { return Behind(l).Key }

// Keys returns the Key of several limits that decide together. It contains all of their keys, and
// is nil if all are nil.
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

// all reports whether so returns true for l and for every limiter inside it.
func all[L any](l L, so func(L) bool) bool {
	return so(l) && !slices.ContainsFunc(Inside(l), func(inner L) bool { return !all(inner, so) })
}

// OnlyHeld reports whether l is known to count slots that are held, and nothing else.
func OnlyHeld[L any](l L) bool {
	return Held(l) && all(l, func(l L) bool { k := Of(l); return k != nil && (k.Held || k.Algorithm == "") })
}

// Held reports whether l, or a limiter inside it, counts slots that are held. Nothing shows when a
// slot will be released.
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

// ErrHeld is returned if slots are asked for where nothing would hold them. A waiter cannot use
// their RetryAfter, which is when they expire, because they are usually released long before.
var ErrHeld = fmt.Errorf("%w: the limiter counts slots, and only inflight.Hold and inflight.Wait can hold them", store.ErrInvalidOption)

// NoWait returns the error of somebody who would wait for l, if l counts slots, or if it sleeps, or contains a limiter
// that does: the wait would last beyond the maximum of that limiter.
func NoWait[L any](l L) error {
	if sleeper, sleeps := Sleeping(l); sleeps {
		return fmt.Errorf("%w: a wait for a %T would ignore its maximum: call its AllowN, which waits", store.ErrInvalidOption, sleeper)
	}
	if Held(l) {
		return ErrHeld
	}
	return nil
}

// ErrApart is the error of a store that cannot decide on several keys in one call at present, and has
// decided nothing. It decides on each of them alone.
var ErrApart = errors.New("at present, each key must be decided alone")

// Fixed reports whether nothing in l can change: it is a limit of package ratelimit, or an All of
// them.
func Fixed[L any](l L) bool { return all(l, func(l L) bool { return Of(l) != nil }) }

// Part selects what a Refund refunds of limits that were charged together.
type Part uint8

// The parts.
const (
	Everything Part = iota
	Rates           // all except the slots that are held
	Slots           // only the slots that are held
	Mirrored        // only the slots that a limiter with Mirrors has charged in addition, or in place of the store
)

type partKey struct{}

// Only returns a context whose Refunds refund only that part.
func Only(ctx context.Context, p Part) context.Context { return context.WithValue(ctx, partKey{}, p) }

// PartOf returns the part that Refunds with ctx refund.
func PartOf(ctx context.Context) Part {
	p, _ := ctx.Value(partKey{}).(Part)
	return p
}

type settlingKey struct{}

// Settling returns a context whose Charge adds to what was charged, which is a ratelimit.Result.
func Settling(ctx context.Context, charged any) context.Context {
	return context.WithValue(ctx, settlingKey{}, charged)
}

// Settled returns the Result to which a Charge with ctx adds, or the zero R if there is none.
func Settled[R any](ctx context.Context) R {
	charged, _ := ctx.Value(settlingKey{}).(R)
	return charged
}

type tryingKey struct{}

// Trying returns a context whose calls find out how much room there is. Their denials are not those of a caller, and do
// not count toward a ban.
func Trying(ctx context.Context) context.Context { return context.WithValue(ctx, tryingKey{}, true) }

// Tries reports whether ctx is of Trying.
func Tries(ctx context.Context) bool { return ctx.Value(tryingKey{}) != nil }

// IgnoresContext reports whether l is known not to use the context. Limiters of other packages may
// use it.
func IgnoresContext[L any](l L) bool {
	return all(l, func(l L) bool { k := Of(l); return k != nil && !k.UsesContext })
}

// Local returns the local limiter for l: see Known.
func Local[L any](l L, s store.Store, instances int) (local L, err error) {
	if isnil.Is(l) {
		return local, fmt.Errorf("%w: the limiter is nil", store.ErrInvalidOption)
	}
	if Observing(l) {
		return Local(Inside(l)[0], s, instances)
	}
	k := Of(l)
	if k == nil {
		return local, fmt.Errorf("%w: FailLocal cannot divide a %T into shares: use FailTo with a local limiter of your own", store.ErrInvalidOption, l)
	}
	return k.Local(s, instances)
}

// Names returns the names of all limits in l that can deny, as far as they are known. This includes
// bans that are combined with other limits.
func Names[L any](l L) []string { return names(nil, l, false) }

func names[L any](dst []string, l L, beside bool) []string {
	if k := Of(l); k != nil && (k.Algorithm != "" || beside && k.Name != "") {
		dst = append(dst, k.Name)
		if k.Algorithm != "" {
			return dst
		}
	}
	inside := Through(l)
	for _, inner := range inside {
		dst = names(dst, inner, beside || len(inside) > 1)
	}
	return dst
}
