// Code generated from internal/isnil by go generate ./internal/copies; DO NOT EDIT.

// Package isnil finds what is nil inside an interface that is not.
package isnil

import "reflect"

// Is says whether x is nil, or holds a nil pointer, func, map, slice or channel.
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
