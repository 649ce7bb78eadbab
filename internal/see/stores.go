package see

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// Leased reports whether s, or a store behind it, uses leases.
func Leased(s store.Store) bool {
	_, ok := first(s, func(s store.Store) bool { return traitsOf(s).Leases })
	return ok
}

// Divided reports whether s, or a store behind it, divides.
func Divided(s store.Store) bool {
	_, ok := first(s, func(s store.Store) bool { return traitsOf(s).Divides })
	return ok
}

// Bottom returns the innermost store that s wraps, or s itself if it wraps none.
func Bottom(s store.Store) store.Store {
	for inside := Inside(s); len(inside) > 0; inside = Inside(s) {
		s = inside[0]
	}
	return s
}

// Timeout returns how long a call of s takes at most, according to the innermost store. It is 0 if
// that is not known, or if a store in between waits.
func Timeout(s store.Store) time.Duration {
	if _, waits := first(s, func(s store.Store) bool { return traitsOf(s).Waits }); waits {
		return 0
	}
	if t, ok := Bottom(s).(interface{ Timeout() time.Duration }); ok {
		return t.Timeout()
	}
	return 0
}

// ServerIn returns a function that names the server of a key in s, or nil if s, behind its caches, does not tell its
// servers apart.
func ServerIn(s store.Store) func(key string) string {
	if of, ok := Bottom(s).(interface{ ServerOf(key string) string }); ok {
		return of.ServerOf
	}
	return nil
}

// Servers calls add with the name of each server that has a state of key, for a call of n events. A
// name is "" if the server is not known. It does no I/O.
type Servers func(ctx context.Context, key string, n int, add func(server string))

// ServersOf returns the Servers of s, which counts by the key that k makes, or by the key itself if
// k is nil. They are nil if s, behind its caches, does not tell its servers apart.
func ServersOf(s store.Store, k Key) Servers {
	serverOf := ServerIn(s)
	if serverOf == nil {
		return nil
	}
	return func(ctx context.Context, key string, n int, add func(string)) {
		if k != nil && serverOf(key) != "" { // most stores are a single server, and k may be slow
			made, err := k(ctx, key, n)
			if err != nil {
				return // the limiter returns the error
			}
			key = made
		}
		add(serverOf(key))
	}
}

// ServersIn returns the Servers of all limits in l, or nil if no store in it tells them apart. A limiter
// of another module may have a method Servers.
func ServersIn[L any](l L) (of Servers) {
	if k := Of(l); k != nil {
		of = k.Servers
	} else if own, ok := any(l).(interface {
		Servers(ctx context.Context, key string, n int, add func(server string))
	}); ok {
		of = own.Servers
	}
	for _, inside := range Inside(l) {
		of = both(of, ServersIn(inside))
	}
	return of
}

func both(a, b Servers) Servers {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(ctx context.Context, key string, n int, add func(string)) {
		a(ctx, key, n, add)
		b(ctx, key, n, add)
	}
}

// At returns err, a failure of the server that is named, which [ServerOf] finds in it.
func At(server string, err error) error { return failure{err, server} }

type failure struct {
	error
	server string
}

func (f failure) Unwrap() error { return f.error }

// Server returns the server that failed.
func (f failure) Server() string { return f.server }

// ServerOf returns the server that failed with err, or "" if that is not known. An error of another
// module may have a method Server.
func ServerOf(err error) string {
	var f interface{ Server() string }
	if errors.As(err, &f) {
		return f.Server()
	}
	return ""
}
