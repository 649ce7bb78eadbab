// Package options makes the options of constructors, and applies them.
package options

import (
	"cmp"
	"fmt"
	"time"

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

// Set returns an option that calls set.
func Set[T any](set func(T)) func(T) error { return Checked(nil, set) }

// Checked returns an option that calls set or, if its value is not valid, returns invalid. The functions
// below return such errors, which wrap [store.ErrInvalidOption].
func Checked[T any](invalid error, set func(T)) func(T) error {
	return func(x T) error {
		if invalid == nil {
			set(x)
		}
		return invalid
	}
}

// Given checks that the function or pointer of the option with that name is not nil.
func Given(option string, notNil bool) error {
	if !notNil {
		return fmt.Errorf("%w: %s(nil)", store.ErrInvalidOption, option)
	}
	return nil
}

// Within checks that v is between least and most.
func Within[V cmp.Ordered](option string, v, least, most V) error {
	if v < least || v > most {
		return fmt.Errorf("%w: %s(%v), want %v to %v", store.ErrInvalidOption, option, v, least, most)
	}
	return nil
}

// AtLeast checks that v is least or more.
func AtLeast[V cmp.Ordered](option string, v, least V) error {
	if v < least {
		return fmt.Errorf("%w: %s(%v), want %v or more", store.ErrInvalidOption, option, v, least)
	}
	return nil
}

// Positive checks that d is above 0.
func Positive(option string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%w: %s(%v), want above 0", store.ErrInvalidOption, option, d)
	}
	return nil
}
