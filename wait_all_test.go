package ratelimit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// The ResetAfter of an All is that of its longest limit, and its Remaining that of another.
func TestWaitersOfSeveralLimitsWaitForTheOneThatIsExhausted(t *testing.T) {
	for _, opaque := range []bool{false, true} {
		for _, algorithm := range algorithms {
			synctest.Test(t, func(t *testing.T) {
				s, err := memstore.New()
				require.NoError(t, err)
				far := &farStore{Store: s, way: 200 * time.Microsecond}
				var lim ratelimit.Limiter = all(t,
					newLimiter(t, algorithm, far, ratelimit.PerSecond(10)), newLimiter(t, "token_bucket", far, ratelimit.PerDay(100_000)))
				if opaque {
					lim = ownType{lim}
				}
				require.LessOrEqual(t, waitAll(t, lim, 200), 23*time.Second, algorithm)
			})
		}
	}
}
