package observe

import (
	"context"
	"errors"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// classes are the classes of errors, in the order in which they are tried. The last one is for
// errors that match none of the others.
var classes = [...]struct {
	name string
	errs []error
}{
	{"invalid", []error{ratelimit.ErrInvalidN, ratelimit.ErrInvalidKey, ratelimit.ErrInvalidLimit, ratelimit.ErrInvalidOption}},
	{"canceled", []error{context.Canceled}},
	{"deadline", []error{context.DeadlineExceeded}},
	{"overloaded", []error{store.ErrOverloaded}},
	{"unavailable", []error{store.ErrUnavailable}},
	{"timeout", []error{store.ErrTimeout}},
	{"out_of_memory", []error{store.ErrOutOfMemory}},
	{"corrupt", []error{store.ErrCorrupt}},
	{"clock", []error{store.ErrClock}},
	{"store", []error{store.ErrStore}},
	{"other", nil},
}

// ErrorClass returns the class of a limiter's error, for logs and labels. It is one of eleven:
//
//	invalid        ErrInvalidN, ErrInvalidKey, ErrInvalidLimit, ErrInvalidOption
//	canceled       context.Canceled: the caller went away; what ran may have been charged
//	deadline       context.DeadlineExceeded: the caller's deadline passed; the same
//	overloaded     store.ErrOverloaded
//	unavailable    store.ErrUnavailable
//	timeout        store.ErrTimeout: the call may have been charged
//	out_of_memory  store.ErrOutOfMemory
//	corrupt        store.ErrCorrupt
//	clock          store.ErrClock: check NTP, not the store
//	store          any other ErrStore, such as a wrong password
//	other          any other error, such as one from a function given to WithLimitFunc
//
// It returns "" for nil.
func ErrorClass(err error) string {
	if err == nil {
		return ""
	}
	return classes[classOf(err)].name
}

func classOf(err error) int {
	for i := range classes {
		for _, target := range classes[i].errs {
			if errors.Is(err, target) {
				return i
			}
		}
	}
	return len(classes) - 1
}
