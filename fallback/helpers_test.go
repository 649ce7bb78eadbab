package fallback_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var (
	algorithms = ratelimit.PerSecond(1).Algorithms()

	newLimiter = ratelimittest.New
	all        = ratelimittest.All
	inMemory   = testkit.InMemory
	failover   = testkit.Failover

	allow      = testkit.Allow
	allowN     = testkit.AllowN
	admitted   = testkit.Admitted
	peek       = testkit.Peek
	overcharge = testkit.Overcharge
	wait       = testkit.Wait
)

// broken is a store that is down.
type broken struct{ store.Store }

func (broken) Prepare(*store.Rule, store.Limit, bool) error { return nil }

// Decide implements [store.Store].
func (b broken) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, b, b.Store, requests, replies)
}

func (broken) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, fmt.Errorf("%w: on purpose", ratelimit.ErrStore)
}

func (broken) Peek(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, fmt.Errorf("%w: on purpose", ratelimit.ErrStore)
}

func (broken) TakeUpTo(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, fmt.Errorf("%w: on purpose", ratelimit.ErrStore)
}
