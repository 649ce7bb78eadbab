// Package isnil detects nil values inside interfaces that are not nil.
package isnil

import "reflect"

// Is reports whether x is nil, or holds a nil pointer, func, map, slice or channel.
func Is(x any) bool {
	if x == nil {
		return true
	}
	switch v := reflect.ValueOf(x); v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		return v.IsNil()
	}
	return false
}
