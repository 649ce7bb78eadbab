package coalesce_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// noRefunds is a store whose refunds do something else.
type noRefunds struct {
	*slow
	by func()
}

func (s noRefunds) Refund(context.Context, *store.Namespace, string, store.Limit, store.Receipt) error {
	s.by()
	return nil
}

// leave has a caller leave while its call is made together with others.
func leave(t *testing.T, by func()) {
	synctest.Test(t, func(t *testing.T) {
		lim := newLimiter(t, "token_bucket", coalesced(t, noRefunds{newSlow(t), by}), ratelimit.PerDay(50))
		go func() { _, _ = lim.Allow(context.Background(), "hot") }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), roundTrip*3/2)
		defer cancel()
		_, err := lim.Allow(ctx, "hot")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		r, err := lim.Allow(ctx, "hot")
		require.NoError(t, err, "the key is stuck")
		require.True(t, r.Allowed)
	})
}

func TestARefundThatEndsItsGoroutineLeavesNoKeyStuck(t *testing.T) { leave(t, runtime.Goexit) }

func TestARefundThatPanicsEndsNothingElse(t *testing.T) {
	leave(t, func() { panic("planted") })
}
