package grpclimit_test

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// failing is a store that is down.
type failing struct{}

func (failing) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, errDown
}

func (failing) Decide(context.Context, []store.Request, []store.Reply) error { return errDown }

func (failing) Together(string, string) bool                 { return true }
func (failing) Prepare(*store.Rule, store.Limit, bool) error { return nil }

func (failing) Refund(context.Context, *store.Namespace, string, store.Limit, store.Receipt) error {
	return errDown
}

func (failing) Reset(context.Context, *store.Namespace, string) error { return errDown }

var errDown = fmt.Errorf("%w: it is down", ratelimit.ErrStore)

// hanging is a limiter whose store does not answer before the caller gives up.
type hanging struct {
	ratelimit.Limiter
	entered chan struct{}
}

func (h hanging) AllowN(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
	select {
	case h.entered <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return ratelimit.Result{}, ctx.Err()
}
