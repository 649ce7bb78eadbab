package ratelimit

import "reflect"

// Share is the limit of one of n instances.
func (l Limit) Share(n int) (Limit, error) { return l.share(n) }

// With returns a copy of l, one of the five, that has more options: as if its constructor had got
// them. It is l itself if it is none of the five, or an option is refused.
func With(l Limiter, opts ...Option) Limiter {
	core := coreOf(l)
	if core == nil {
		return l
	}
	moved := reflect.New(reflect.TypeOf(l).Elem())
	moved.Elem().Set(reflect.ValueOf(l).Elem())
	copied := moved.Interface().(interface {
		Limiter
		core() *limiter
	})
	lim := copied.core()
	for _, opt := range opts {
		if err := opt(lim); err != nil {
			return l
		}
	}
	lim.introduce(copied)
	return copied
}
