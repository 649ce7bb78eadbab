// Package five is what package regions asks of one of the five types, beyond their methods. It
// finds that by package see.
package five

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// Limiter is one of the five types. R is ratelimit.Result, which cannot be named here.
type Limiter[R any] struct {
	Algorithm string

	Limit store.Limit // of the constructor
	// Within is by for events that can wait for d.
	Within func(by store.Limit, d time.Duration) store.Limit
	// LimitOf is the limit of a key. It asks the limit function, if there is one.
	LimitOf func(ctx context.Context, key string) (store.Limit, error)
	// By decides by a limit of the caller, such as one that LimitOf has returned. Observers
	// are told of it.
	By func(ctx context.Context, op Operation, key string, n int, by store.Limit) (R, error)

	// Space is equal for limiters that share their state, and nil if that cannot be known.
	Space any
	// Look tells how a key stands. It changes nothing, and observers are not told. It and
	// Credit are for windows and token buckets.
	Look func(ctx context.Context, key string, by store.Limit) (Look, error)
	// Credit gives back n events, no more than Look has told, whoever charged them: debit has
	// charged as many on another store. A window that is not the debit's gives nothing back.
	Credit func(ctx context.Context, key string, debit R, n int, by store.Limit) error
}

// Look is how a key stands.
type Look struct {
	Left   int   // events that would be admitted now
	Credit int   // events that a Credit can give back
	Window int64 // when the current window has begun, Unix µs; 0 without windows
}

// Operation is what By does.
type Operation uint8

// They are the methods of these names, and Take is AllowN.
const (
	Take Operation = iota
	TakeUpTo
)
