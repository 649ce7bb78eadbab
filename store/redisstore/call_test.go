package redisstore

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
		wave := w.After(w.Base.Add(300 * time.Microsecond))
		b := budget{Context: context.WithValue(t.Context(), "name", "value"), end: w.Base.Add(time.Hour), own: true} //nolint:staticcheck // one key
		ctx := &waiting{b.Context, b.end, wave}
		require.NoError(t, ctx.Err())
		require.Equal(t, "value", ctx.Value("name"))
		end, ok := ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, b.end, end)
		<-ctx.Done()
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		require.Equal(t, w.End(wave), time.Now())
	})
}

// A call without a Done of its own leaves by the same time as one that has one.
func TestThePatienceOfAWaveEndsWithinAQuarterAndASixtyFourthOfTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, timeout := range []time.Duration{time.Microsecond, time.Millisecond, 50 * time.Millisecond, time.Minute} {
			w := waves.New(timeout)
			for range 100 {
				time.Sleep(timeout / 37)
				b := budget{Context: context.Background(), end: time.Now().Add(timeout), own: true}
				ctx := new(sending).waitsWith(w, b)
				until := time.Now().Add(timeout - timeout/4)
				over := w.End(ctx.(*waiting).wave)
				require.False(t, over.Before(until.Add(-1)), "%v", timeout)
				require.False(t, over.After(until.Add(1+min(timeout/64, 8*time.Millisecond))), "%v", timeout)
			}
			time.Sleep(2 * timeout) // so that all timers have run
		}
	})
}
