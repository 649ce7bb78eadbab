// Package options applies the options of a constructor.
package options

import (
	"fmt"

	"github.com/ratelimit-go/ratelimit/store"
)

// Apply applies opts to x, until one returns an error. It returns [store.ErrInvalidOption] if one is nil.
func Apply[T any, O ~func(T) error](x T, opts []O) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an Option is nil", store.ErrInvalidOption)
		}
		if err := opt(x); err != nil {
			return err
		}
	}
	return nil
}
