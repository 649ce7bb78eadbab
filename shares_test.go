package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// tenants share one limit, as the recipe of docs/composing.md says: each tenant first its share, and then what
// the others leave while their shares stay reserved.
type tenants struct {
	share ratelimit.Limiter // of each
	all   *ratelimit.First
	names []string
	rate  map[string]int // events an hour
}

const lentAtOnce = 30

func newTenants(t *testing.T, s store.Store, id string, weights []int) *tenants {
	t.Helper()
	ts := &tenants{rate: map[string]int{}}
	sum := 0
	for i, w := range weights {
		name := string(rune('A'+i%26)) + string(rune('a'+i/26))
		ts.names, ts.rate[name] = append(ts.names, name), w
		sum += w
	}
	everybody := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "everybody", nil })
	whole := ratelimit.Limit{Rate: sum, Period: time.Hour, Burst: sum + lentAtOnce}
	total := newLimiter(t, "token_bucket", s, whole, ratelimit.WithName("total"+id), everybody)
	lent := newLimiter(t, "token_bucket", s, whole, ratelimit.WithName("total"+id), everybody, ratelimit.WithReserved(sum))
	ts.share = newLimiter(t, "token_bucket", s, ratelimit.PerHour(1), ratelimit.WithName("share"+id), ratelimit.WithLimitFunc(
		func(_ context.Context, key string) (ratelimit.Limit, error) {
			return ratelimit.PerHour(ts.rate[key]), nil
		}))
	ts.all = newFirst(t, all(t, ts.share, total), lent)
	return ts
}

// TestFairSharesLendWhatIsIdle proves the recipe on traffic of tenants that come and go: whoever asks within its
// share is admitted, whatever the others do; what the others leave is lent, so that the whole limit is admitted
// while anybody wants it; and never more than that.
func TestFairSharesLendWhatIsIdle(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	for name, open := range map[string]func(t *testing.T, c *ratelimittest.Clock) store.Store{
		"memory": func(t *testing.T, c *ratelimittest.Clock) store.Store { return memory(t, c) },
		"Redis": func(t *testing.T, c *ratelimittest.Clock) store.Store {
			return redisServer(t, redisstore.WithClock(c.Now))
		},
	} {
		t.Run(name, func(t *testing.T) {
			rounds := effort.Of(12, 40, 400)
			if name == "Redis" {
				rounds = effort.Of(2, 4, 40)
			}
			for round := range rounds {
				rng := rand.New(rand.NewPCG(uint64(round), 9))
				c := newClock()
				weights := make([]int, 2+rng.IntN(49))
				for i := range weights {
					weights[i] = 1 + rng.IntN(9)
				}
				ts := newTenants(t, open(t, c), fmt.Sprint(round), weights)
				ts.run(t, c, rng)
			}
		})
	}
}

func (ts *tenants) run(t *testing.T, c *ratelimittest.Clock, rng *rand.Rand) {
	sum, admitted, began, active := 0, 0, c.Now(), map[string]bool{}
	for _, rate := range ts.rate {
		sum += rate
	}
	ask := func(name string, n int) bool {
		own, err := ts.share.Peek(t.Context(), name)
		require.NoError(t, err)
		r, err := ts.all.AllowN(t.Context(), name, n)
		require.NoError(t, err)
		require.True(t, r.Allowed || own.Remaining < n, "%s asks for %d, and has %d of its share", name, n, own.Remaining)
		if r.Allowed {
			admitted += n
		}
		return r.Allowed
	}
	for range 10 {
		for _, name := range ts.names { // they come and go
			if rng.IntN(3) == 0 {
				active[name] = !active[name]
			}
		}
		greedy := ts.names[rng.IntN(len(ts.names))] // wants all that it can get
		for range 20 {
			for ask(greedy, 1) {
			}
			flown := int(int64(sum) * c.Now().Sub(began).Microseconds() / time.Hour.Microseconds())
			require.GreaterOrEqual(t, admitted, lentAtOnce-1+flown, "all but what stays ready for the shares of others")
			require.LessOrEqual(t, admitted, sum+lentAtOnce+flown+1, "the limit")
			c.Advance(time.Duration(1+rng.IntN(144_000_000)) * time.Microsecond) // keys expire by the server's own clock, hours later
			everybody := rng.IntN(4) == 0                                        // asks for all of its share at once
			for _, name := range ts.names {
				if everybody {
					ask(name, max(1, left(t, ts.share, name)))
				} else if active[name] && rng.IntN(2) == 0 {
					ask(name, 1+rng.IntN(ts.rate[name]))
				}
			}
		}
	}
}
