// Package order knows wrappers that must not stand inside of some others. A wrapper says so
// by what it embeds, so that constructors see it without importing it.
package order

import "reflect"

// Answers is embedded in a wrapper that answers for the limiter inside, whatever that
// decides. Inside a fallback it would hide failures of the store, or be overruled by it.
type Answers struct{}

func (Answers) answers() {}

// Sleeps is embedded in a wrapper that sleeps. Inside others it would hold what they hold.
type Sleeps struct{ Answers }

func (Sleeps) sleeps() {}

// DoesAnswer reports whether l embeds Answers or Sleeps.
func DoesAnswer(l any) bool {
	_, ok := l.(interface{ answers() })
	return ok
}

// DoesSleep reports whether l embeds Sleeps.
func DoesSleep(l any) bool {
	_, ok := l.(interface{ sleeps() })
	return ok
}

// Remembers is embedded in a wrapper that answers as the limiter inside would, only sooner.
type Remembers struct{ self any }

// NewRemembers returns the Remembers of self.
func NewRemembers(self any) Remembers { return Remembers{self} }

func (r Remembers) remembers() any { return r.self }

// DoesRemember reports whether l embeds Remembers. A type that embeds l in turn does not: it
// may answer otherwise.
func DoesRemember(l any) bool {
	r, ok := l.(interface{ remembers() any })
	return ok && reflect.TypeOf(r.remembers()) == reflect.TypeOf(l)
}
