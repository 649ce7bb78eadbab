package redisstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestAStoreThatNewHasNotMadeAnswersErrors(t *testing.T) {
	s, ctx := new(redisstore.Store), t.Context()
	ask := func(n string, err error) {
		require.ErrorIs(t, err, store.ErrStore, n)
		require.ErrorContains(t, err, "not made by New", n)
	}
	_, err := s.Take(ctx, space, "k", limit, 1)
	ask("Take", err)
	_, err = store.TakeUpTo(ctx, s, space, "k", limit, 1)
	ask("TakeUpTo", err)
	_, err = store.Overdraw(ctx, s, space, "k", limit, 1, 1)
	ask("Force", err)
	_, err = store.Peek(ctx, s, space, "k", limit, 1)
	ask("Peek", err)
	ask("Refund", s.Refund(ctx, space, "k", limit, store.Receipt{N: 1}))
	ask("Reset", s.Reset(ctx, space, "k"))
	ask("TakeAll", s.Decide(ctx, []store.Request{{Namespace: space, Key: "k", Limit: limit, N: 1}}, make([]store.Reply, 1)))
	ask("TakeAll of none", s.Decide(ctx, nil, nil))
	ask("Ready", s.Ready(ctx))
	for _, held := range []bool{false, true} {
		err = s.Prepare(&store.Rule{Name: "rule", Held: held}, limit, true)
		require.ErrorIs(t, err, store.ErrInvalidOption, "a limiter that can never work")
		require.ErrorContains(t, err, "not made by New")
	}
	require.True(t, s.Together("a", "a"))
	require.False(t, s.Together("a", "b"))
}
