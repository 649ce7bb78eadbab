package shadow_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/shadow"
)

func TestTurnsAreReportedAndOfEnforcedKeysKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, percent := range []float64{0, 100} {
			inner := inMemory(t, "leaky_bucket", ratelimit.PerDay(24))
			var list reports
			lim, err := shadow.New(inner, list.add, shadow.WithEnforcement(percent))
			require.NoError(t, err)
			for _, c := range []struct {
				d       time.Duration
				allowed bool
				delay   time.Duration
			}{{0, true, 0}, {time.Minute, false, 0}, {time.Hour, true, time.Hour}} {
				r, err := ratelimit.AllowWithin(t.Context(), lim, "key", 1, c.d)
				require.NoError(t, err)
				require.Equal(t, c.allowed || percent == 0, r.Allowed)
				told := list.take(t)
				require.Equal(t, c.allowed, told.r.Allowed)
				require.InDelta(t, c.delay, told.r.Delay, float64(time.Minute))
				if percent == 0 {
					require.Zero(t, r.Delay)
				} else {
					require.Equal(t, told.r, r)
				}
			}
			_, err = ratelimit.AllowWithin(t.Context(), lim, "key", 0, time.Hour)
			require.ErrorIs(t, err, ratelimit.ErrInvalidN)
			require.Empty(t, list.all())
			_, err = ratelimit.AllowWithin(context.Background(), new(shadow.Limiter), "key", 1, time.Hour)
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		}
	})
}
