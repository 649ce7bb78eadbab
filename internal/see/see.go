// Package see looks through limiters around limiters. It is the one place that does: ratelimit
// and the packages beside it ask it, and it imports none of them.
//
// A limiter around one other has a method Unwrap() L, and one around several has
// Unwrap() []L, as errors have. L is ratelimit.Limiter.
package see

import (
	"fmt"
	"reflect"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// Answers is embedded in a limiter that answers for the one inside, whatever that
// decides. Inside a fallback it would hide failures of the store, or be overruled by it.
type Answers struct{}

func (Answers) answers() {}

// Sleeps is embedded in a limiter that sleeps. Inside others it would hold what they hold.
type Sleeps struct{ Answers }

func (Sleeps) sleeps() {}

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

// Answering returns what embeds Answers or Sleeps.
func Answering[L any](l L) (found L, ok bool) { return First[interface{ answers() }](l) }

// Sleeping returns what embeds Sleeps.
func Sleeping[L any](l L) (found L, ok bool) { return First[interface{ sleeps() }](l) }

// Algorithm returns the name of the algorithm that decides for l, behind limiters around one
// other, and "" if that is not known.
func Algorithm[L any](l L) string {
	for !isnil.Is(l) {
		if a, ok := any(l).(interface{ Algorithm() string }); ok && Ours(l) {
			return a.Algorithm()
		}
		w, ok := any(l).(interface{ Unwrap() L })
		if !ok {
			break
		}
		l = w.Unwrap()
	}
	return ""
}

// ByKey reports whether l decides by the key alone and not by the context, as far as can be
// seen. What answers for others may be a list of addresses.
func ByKey[L any](l L) bool {
	if _, answers := any(l).(interface{ answers() }); answers {
		return false
	}
	if u, ok := any(l).(usesContext); ok && Ours(l) && u.UsesContext() {
		return false
	}
	for _, inner := range Inside(l) {
		if !ByKey(inner) {
			return false
		}
	}
	return true
}

// IgnoresContext reports whether l is known not to use the context. It does not look into
// limiters of other packages, which may use it themselves.
func IgnoresContext[L any](l L) bool {
	u, ok := any(l).(usesContext)
	if !ok || !Ours(l) || u.UsesContext() {
		return false
	}
	for _, inner := range Inside(l) {
		if !IgnoresContext(inner) {
			return false
		}
	}
	return true
}

type usesContext interface{ UsesContext() bool }

// Ours reports whether l is a type of package ratelimit, and none that embeds one: that may
// have an AllowN of its own.
func Ours(l any) bool {
	t := reflect.TypeOf(l)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath() == "github.com/ratelimit-go/ratelimit"
}

// Local returns what l's method Local does: see ratelimit.TokenBucket.
func Local[L any](l L, s store.Store, instances int) (local L, err error) {
	if isnil.Is(l) {
		return local, fmt.Errorf("%w: the limiter is nil", store.ErrInvalidOption)
	}
	for DoesRemember(l) {
		l = any(l).(interface{ Unwrap() L }).Unwrap()
	}
	known, ok := any(l).(interface {
		Local(s store.Store, instances int) (L, error)
	})
	if !ok || !Ours(l) {
		return local, fmt.Errorf("%w: a %T has no share: make its local limiter yourself", store.ErrInvalidOption, l)
	}
	return known.Local(s, instances)
}
