package waves_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/waves"
)

func TestAWaitEndsWithItsWave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waves.New(64 * time.Millisecond)
		until := w.Base.Add(time.Hour)
		ctx := &waves.EarlyDone{Context: context.WithValue(t.Context(), "name", "value"), End: until, Wave: w.After(w.Base.Add(300 * time.Microsecond))} //nolint:staticcheck // one key
		require.NoError(t, ctx.Err())
		require.Equal(t, "value", ctx.Value("name"))
		end, ok := ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, until, end)
		<-ctx.Done()
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		require.Equal(t, w.End(ctx.Wave), time.Now())
	})
}
