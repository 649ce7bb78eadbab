package ratelimit_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// TestWhatAnEstimateMeans counts what docs/promises.md says: requests come at random (a
// Poisson process) at the rate of the limit on average. One too many is admitted although
// the limiter has admitted Rate of them within the last Period; one too few is denied
// although it has not.
func TestWhatAnEstimateMeans(t *testing.T) {
	const rate, requests = 100, 200_000
	for _, algorithm := range algorithms {
		c, rng := newClock(), rand.New(rand.NewPCG(3, 4))
		limiter := newLimiter(t, algorithm, memory(t, c), ratelimit.PerMinute(rate))
		var admitted []time.Time // the last of them
		var allowed, denied, tooMany, tooFew float64
		for range requests {
			c.Advance(time.Duration(rng.ExpFloat64() * float64(time.Minute/rate)))
			for len(admitted) > 0 && !admitted[0].After(c.Now().Add(-time.Minute)) {
				admitted = admitted[1:]
			}
			full := len(admitted) >= rate
			if allow(t, limiter, "key").Allowed {
				allowed++
				admitted = append(admitted, c.Now())
				if full {
					tooMany++
				}
			} else {
				denied++
				if !full {
					tooFew++
				}
			}
		}
		t.Logf("%-15s %4.1f %% of the admitted are too many, %4.1f %% of the denials needless, %4.1f %% denied",
			algorithm, 100*tooMany/allowed, 100*tooFew/denied, 100*denied/requests)
		switch algorithm {
		case "sliding_log":
			require.Zero(t, tooMany+tooFew)
		case "sliding_window":
			require.Less(t, tooMany/allowed, 0.2)
		default:
			require.Zero(t, tooFew, algorithm)
		}
	}
}
