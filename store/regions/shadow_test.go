package regions_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A call with a shadow whose share denies is charged once, also if room is fetched for the shadow, which then admits.
func TestAShadowThatFetchesChargesTheOthersOnce(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, x := t.Context(), newTwo(t, algorithm, ratelimit.PerDay(100))
				trial := limiter(t, algorithm, x.shared, ratelimit.PerHour(20)) // 10 in each region
				calls, tried := 0, 0
				for range 4 {
					r, err := ratelimit.Decide(ctx, ratelimit.Ask{Limiter: x.Limiter, Key: "key", N: 1}, ratelimit.Ask{Limiter: trial, Key: "key", N: 6, Shadow: true})
					require.NoError(t, err)
					require.True(t, r.Allowed)
					if calls++; r.Parts()[1].Allowed {
						tried++
					}
					require.Equal(t, 100-calls, remaining(t, x.own, "key"), "after %d calls of one event each: %v", calls, r.Parts()[1].Result)
				}
				require.Equal(t, 3, tried, "of 4 times 6 events, with a limit of 20")
			})
		})
	}
}
