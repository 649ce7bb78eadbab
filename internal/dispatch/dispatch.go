// Package dispatch helps test stores that have one method per operation.
package dispatch

import (
	"context"

	"github.com/ratelimit-go/ratelimit/store"
)

// Decide decides with the methods of s, which wraps inner: Take, TakeUpTo, Peek and Overdraw for a
// list of one request that reserves nothing, and TakeAll for longer lists. If s does not have the method, inner decides.
func Decide(ctx context.Context, s any, inner store.Store, requests []store.Request, replies []store.Reply) (err error) {
	r := &requests[0]
	if len(requests) == 1 && r.Reserved == 0 {
		switch r.Op {
		case store.OpTake:
			if s, ok := s.(interface {
				Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error)
			}); ok {
				replies[0], err = s.Take(ctx, r.Namespace, r.Key, r.Limit, r.N)
				return err
			}
		case store.OpUpTo:
			if s, ok := s.(interface {
				TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error)
			}); ok {
				replies[0], err = s.TakeUpTo(ctx, r.Namespace, r.Key, r.Limit, r.N)
				return err
			}
		case store.OpLook:
			if s, ok := s.(interface {
				Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error)
			}); ok {
				replies[0], err = s.Peek(ctx, r.Namespace, r.Key, r.Limit, r.N)
				return err
			}
		case store.OpOverdraw:
			if s, ok := s.(interface {
				Overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error)
			}); ok {
				replies[0], err = s.Overdraw(ctx, r.Namespace, r.Key, r.Limit, r.N, r.Most)
				return err
			}
		}
	} else if s, ok := s.(interface {
		TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error
	}); ok {
		return s.TakeAll(ctx, requests, replies)
	}
	return inner.Decide(ctx, requests, replies)
}
