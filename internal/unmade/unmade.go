// Package unmade has the one error of values that no constructor has made.
package unmade

import "github.com/ratelimit-go/ratelimit/store"

// Err is what methods of such a value return. It is [store.ErrInvalidOption], and for the
// limiters also what they say of a bad limit.
var Err error = unmade{}

type unmade struct{}

func (unmade) Error() string { return "ratelimit: a value that its constructor has not made" }

func (unmade) Unwrap() []error { return []error{store.ErrInvalidOption, store.ErrInvalidLimit} }
