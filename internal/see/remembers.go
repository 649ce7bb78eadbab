package see

import "reflect"

// Remembers is embedded in a limiter that answers as the one inside would, only sooner.
type Remembers struct{ self any }

// NewRemembers returns the Remembers of self.
func NewRemembers(self any) Remembers { return Remembers{self} }

func (r Remembers) remembers() any { return r.self }

// Remembering returns what embeds Remembers, also within another type.
func Remembering[L any](l L) (found L, ok bool) { return First[interface{ remembers() any }](l) }

// DoesRemember reports whether l embeds Remembers. A type that embeds l in turn does not: it
// may answer otherwise.
func DoesRemember(l any) bool {
	r, ok := l.(interface{ remembers() any })
	return ok && reflect.TypeOf(r.remembers()) == reflect.TypeOf(l)
}
