package redisstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// client is a client that does this.
type client func(ctx context.Context, cmd redis.Cmder) error

func (c client) Process(ctx context.Context, cmd redis.Cmder) error { return c(ctx, cmd) }

// A call without a Done of its own leaves by the same time as one that has one.
func TestThePatienceOfAWaveEndsWithinAQuarterAndASixtyFourthOfTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, timeout := range []time.Duration{time.Microsecond, time.Millisecond, 50 * time.Millisecond, time.Minute} {
			var a loneCommand
			var over time.Time
			process := inline(client(func(ctx context.Context, _ redis.Cmder) error {
				<-ctx.Done()
				over = time.Now()
				return ctx.Err()
			}), timeout)
			for range 100 {
				time.Sleep(timeout / 37)
				until := time.Now().Add(timeout - timeout/4)
				b := carrier.Budget{Context: context.Background(), End: time.Now().Add(timeout), Own: true}
				require.Error(t, process(b, nil, &a))
				require.False(t, over.Before(until.Add(-1)), "%v", timeout)
				require.False(t, over.After(until.Add(1+min(timeout/64, 8*time.Millisecond))), "%v", timeout)
			}
			time.Sleep(2 * timeout) // so that all timers have run
		}
	})
}
