package testkit

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/denycache"
)

// WithoutJoint is a store that decides on one key at a time.
type WithoutJoint struct{ store.Store }

func (WithoutJoint) Together(string, string) bool { return false }

// Away is a store that does not answer.
type Away struct{ store.Store }

func (Away) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

func (Away) Decide(context.Context, []store.Request, []store.Reply) error {
	return store.ErrUnavailable
}

// Unreliable is a store that can be down.
type Unreliable struct {
	store.Store
	Down atomic.Bool
}

func (u *Unreliable) err() error {
	if u.Down.Load() {
		return store.ErrUnavailable
	}
	return nil
}

func (u *Unreliable) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := u.err(); err != nil {
		return store.Reply{}, err
	}
	return u.Store.Take(ctx, ns, key, l, n)
}

func (u *Unreliable) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := u.err(); err != nil {
		return err
	}
	return u.Store.Decide(ctx, requests, replies)
}

func (u *Unreliable) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if err := u.err(); err != nil {
		return err
	}
	return u.Store.Refund(ctx, ns, key, l, c)
}

// ErrGone is a failure of a store.
var ErrGone = fmt.Errorf("%w: gone", store.ErrStore)

func NewDenyCache(t testing.TB, s store.Store) *denycache.Store {
	t.Helper()
	d, err := denycache.New(s)
	require.NoError(t, err)
	return d
}

func NewCoalesced(t testing.TB, s store.Store) *coalesce.Store {
	t.Helper()
	c, err := coalesce.New(s)
	require.NoError(t, err)
	return c
}

// Tally counts the calls for one key and for several.
type Tally struct {
	store.Store
	Singles, Joints int
}

func (c *Tally) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	c.Singles++
	return c.Store.Take(ctx, ns, key, l, n)
}

func (c *Tally) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if len(requests) > 1 {
		c.Joints++
	}
	return c.Store.Decide(ctx, requests, replies)
}

// OtherKey returns a limiter that asks l for the key that f makes, as a user's own limiter may.
func OtherKey(l ratelimit.Limiter, f func(ctx context.Context, key string) (string, error)) ratelimit.Limiter {
	return &otherKey{l, f}
}

type otherKey struct {
	ratelimit.Limiter
	f func(ctx context.Context, key string) (string, error)
}

func (o *otherKey) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return o.AllowN(ctx, key, 1)
}

func (o *otherKey) AllowN(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	if err = store.CheckCall(ctx, key, n); err == nil {
		if key, err = o.f(ctx, key); err == nil {
			r, err = o.Limiter.AllowN(ctx, key, n)
		}
	}
	return r, err
}

func (o *otherKey) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (r ratelimit.Result, err error) {
	if err = store.CheckCall(ctx, key, n); err == nil {
		if key, err = o.f(ctx, key); err == nil {
			r, err = ratelimit.AllowWithin(ctx, o.Limiter, key, n, d)
		}
	}
	return r, err
}

func (o *otherKey) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	if err = store.CheckCall(ctx, key, n); err == nil {
		if key, err = o.f(ctx, key); err == nil {
			granted, r, err = ratelimit.AllowUpTo(ctx, o.Limiter, key, n)
		}
	}
	return granted, r, err
}

func (o *otherKey) Peek(ctx context.Context, key string) (r ratelimit.Result, err error) {
	if key, err = o.f(ctx, key); err == nil {
		r, err = o.Limiter.Peek(ctx, key)
	}
	return r, err
}

func (o *otherKey) Charge(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	if key, err = o.f(ctx, key); err == nil {
		r, err = ratelimit.Charge(ctx, o.Limiter, key, n)
	}
	return r, err
}

func (o *otherKey) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	key, err := o.f(ctx, key)
	if err != nil {
		return err
	}
	return o.Limiter.Refund(ctx, key, charged, n)
}

func (o *otherKey) Reset(ctx context.Context, key string) error {
	key, err := o.f(ctx, key)
	if err != nil {
		return err
	}
	return o.Limiter.Reset(ctx, key)
}

func (o *otherKey) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	key, err := o.f(ctx, key)
	if err != nil {
		return dst, err
	}
	return ratelimit.AppendPolicies(ctx, dst, o.Limiter, key)
}

func (o *otherKey) Unwrap() ratelimit.Limiter { return o.Limiter }
