// Package order knows wrappers that must not stand inside of some others. A wrapper says so
// by what it embeds, so that constructors see it without importing it.
package order

import (
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// Answers is embedded in a wrapper that answers for the limiter inside, whatever that
// decides. Inside a fallback it would hide failures of the store, or be overruled by it.
type Answers struct{}

func (Answers) answers() {}

// Sleeps is embedded in a wrapper that sleeps. Inside others it would hold what they hold.
type Sleeps struct{ Answers }

func (Sleeps) sleeps() {}

// Parts is embedded in a limiter around several others, which are L.
type Parts[L any] struct{ all []L }

// NewParts returns the Parts that are all.
func NewParts[L any](all []L) Parts[L] { return Parts[L]{slices.Clone(all)} }

func (p Parts[L]) parts() []L { return p.all }

// Answering returns what embeds Answers or Sleeps: l, or what is found in it through methods
// Unwrap() L and through Parts.
func Answering[L any](l L) (found L, ok bool) { return find[interface{ answers() }](l) }

// Sleeping returns what embeds Sleeps, as Answering does.
func Sleeping[L any](l L) (found L, ok bool) { return find[interface{ sleeps() }](l) }

// find returns the outermost that is a Kind.
func find[Kind, L any](l L) (found L, ok bool) {
	if isnil.Is(l) {
		return found, false
	}
	if _, ok = any(l).(Kind); ok {
		return l, true
	}
	switch in := any(l).(type) {
	case interface{ Unwrap() L }:
		return find[Kind](in.Unwrap())
	case interface{ parts() []L }:
		for _, part := range in.parts() {
			if found, ok = find[Kind](part); ok {
				break
			}
		}
	}
	return found, ok
}
