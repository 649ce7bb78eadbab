// Package five lets packages beside the root ask of the five types what their methods do
// not say. The root sets its variables in its init, since this package cannot import it.
package five

import (
	"context"

	"github.com/ratelimit-go/ratelimit/store"
)

// AlgorithmOf returns the name of the algorithm that decides for the ratelimit.Limiter l, ""
// if that is not known. It looks through limiters that have a method Unwrap.
var AlgorithmOf func(l any) string

// ByKey reports whether the ratelimit.Limiter l decides by the key alone, and not by the
// context, as far as can be seen. It looks through limiters as AlgorithmOf does.
var ByKey func(l any) bool

// Of returns l as one of the five types, nil if it is none.
var Of func(l any) *Limiter

// Limiter is one of the five types.
type Limiter struct {
	// Coalesced is whether single events are.
	Coalesced bool
	// LimitOf asks the limit function. It is nil if there is none.
	LimitOf func(ctx context.Context, key string) (store.Limit, error)
	// AllowBy is AllowN by a limit that LimitOf has returned. It is a
	//
	//	func(ctx context.Context, key string, n int, by store.Limit) (ratelimit.Result, error)
	AllowBy any
}
