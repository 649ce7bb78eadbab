package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

// together makes calls that wait together, and returns their batch and how each can be waited
// for.
func together(t *testing.T, ctxs ...context.Context) (bt *batch, wait []func() *fault) {
	t.Helper()
	s, err := New(redistest.Start(t).Client(t), WithTimeout(time.Minute)) // one batch on a busy machine too
	require.NoError(t, err)
	p := s.link.pipeline
	free := sync.OnceFunc(s.Occupy())
	for _, ctx := range ctxs {
		b, c := s.budget(ctx), s.resetOf("k")
		joined, i, _ := p.enter(b, c)
		require.NotNil(t, joined)
		require.True(t, bt == nil || bt == joined)
		bt = joined
		wait = append(wait, func() *fault {
			_, f := p.wait(b, joined, i, "k")
			return f
		})
	}
	t.Cleanup(free)
	wait = append(wait, func() *fault { free(); return nil })
	return bt, wait
}

func TestABatchIsUsedAgainWhenAllCallersHaveReadIt(t *testing.T) {
	ctx := t.Context()
	bt, wait := together(t, ctx, ctx)
	wait[2]() // there is room again
	<-bt.done
	require.Nil(t, wait[0]())
	require.Len(t, bt.calls, 2)
	require.Nil(t, wait[1]())
	require.Empty(t, bt.calls)
	require.Equal(t, []call{{}, {}}, bt.calls[:2], "nothing of them is kept meanwhile")
	require.Zero(t, bt.living)
	require.False(t, bt.ended.Load())
}

func TestABatchWhoseCallerHasLeftIsNotUsedAgain(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	bt, wait := together(t, t.Context(), gone)
	leave()
	require.NotNil(t, wait[1]())
	wait[2]()
	<-bt.done
	require.Nil(t, wait[0]())
	require.Len(t, bt.calls, 2)
}
