package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

func TestTurnsAreOfTheTextInForce(t *testing.T) {
	for _, more := range []string{"", ", on_failure: closed, store: {deny_cache: true}", ", store: {coalescing: true}"} {
		onEach(t, func(t *testing.T, s store.Store) {
			ls := build(t, s, one("algorithm: leaky_bucket, limit: 24/d"+more))
			l := limiter(t, ls, "a")
			within := func(d time.Duration) ratelimit.Result {
				r, err := ratelimit.AllowWithin(t.Context(), l, "key", 1, d)
				require.NoError(t, err)
				return r
			}
			require.True(t, within(0).Allowed)
			require.False(t, within(time.Minute).Allowed, more)
			require.InDelta(t, time.Hour, within(time.Hour).Delay, float64(time.Minute))
			update(t, ls, one("algorithm: leaky_bucket, limit: 48/d"+more))
			require.InDelta(t, time.Hour, within(time.Hour).Delay, float64(time.Minute), "two of them, half an hour each")
		})
	}
}
