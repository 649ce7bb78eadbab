// Package unmade has the error of values that were not made by a constructor.
package unmade

import (
	"context"

	"github.com/ratelimit-go/ratelimit/store"
)

// Err is the error of the methods of such a value. It is [store.ErrInvalidOption], which limiters
// also return for an invalid configuration.
var Err error = unmade{}

type unmade struct{}

func (unmade) Error() string { return "ratelimit: the value was not made by its constructor" }

func (unmade) Unwrap() []error { return []error{store.ErrInvalidOption, store.ErrInvalidLimit} }

// Check returns Err unless the value was made, and otherwise what [store.CheckCall] does.
func Check(ctx context.Context, made bool, key string, n int) error {
	if !made {
		return Err
	}
	return store.CheckCall(ctx, key, n)
}
