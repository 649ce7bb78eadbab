// Package faults tells which errors of a store concern only a key, and which the store as a whole.
package faults

import (
	"errors"

	"github.com/ratelimit-go/ratelimit/store"
)

// OfKey reports whether err concerns only a key or its limit: a corrupt state, or clocks that differ too much for a
// calendar. The store has answered, and decides on others.
func OfKey(err error) bool {
	return errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrClock)
}

// OfStore reports whether err concerns the store as a whole. An error of one key and a full queue of this process do
// not, and are neither failures nor successes of the store.
func OfStore(err error) bool {
	return errors.Is(err, store.ErrStore) && !OfKey(err) && !errors.Is(err, store.ErrOverloaded)
}
