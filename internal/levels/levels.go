// Package levels makes several limits on the same keys, for tests.
package levels

import (
	"testing"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limittext"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

// New returns an All of limits, with policies named like "api/s" and "api/h".
func New(t testing.TB, algorithm string, s store.Store, name string, limits ...ratelimit.Limit) *ratelimit.All {
	t.Helper()
	limiters := make([]ratelimit.Limiter, len(limits))
	for i, l := range limits {
		limiters[i] = ratelimittest.New(t, algorithm, s, l, ratelimit.WithName(name), ratelimit.WithPolicyName(name+"/"+limittext.Period(l.String())))
	}
	return ratelimittest.All(t, limiters...)
}
