package suite_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// 2 requests a second, each of 1,200 tokens: that is no more than the limit.
func TestCallsThatAreCountedAreWaitedForInTheirOrder(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		for _, tokens := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				l := inMemory(t, algorithm, ratelimit.PerSecond(2), ratelimit.WithName("requests"), ratelimit.CountCalls())
				if tokens {
					l = all(t, l, inMemory(t, algorithm, ratelimit.PerMinute(1_000_000), ratelimit.WithName("tokens")))
				}
				waiter, err := throttle.NewWaiter(l, time.Minute)
				require.NoError(t, err)
				began := time.Now()
				var order []int
				var mu sync.Mutex
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						var r ratelimit.Result
						var err error
						if i%2 == 0 {
							r, err = ratelimit.Wait(t.Context(), l, "key", 1200)
						} else {
							r, err = waiter.AllowN(t.Context(), "key", 1200)
						}
						mu.Lock()
						defer mu.Unlock()
						if order = append(order, i); err != nil || !r.Allowed {
							t.Error(algorithm, tokens, i, r, err)
						}
					})
					synctest.Wait()
				}
				wg.Wait()
				require.IsIncreasing(t, order)
				require.LessOrEqual(t, time.Since(began), 6100*time.Millisecond)
			})
		}
	}
}

// Of two calls for 40,000 of 60,000 tokens a minute the second waits, whatever the requests have room for.
func TestTokensBesideRequestsAreWaitedForAtTheirRate(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			far := &remote{Limiter: all(t,
				inMemory(t, "token_bucket", ratelimit.PerSecond(1000), ratelimit.WithName("requests"), ratelimit.CountCalls()),
				inMemory(t, algorithm, ratelimit.PerMinute(60_000), ratelimit.WithName("tokens"))), way: 10 * time.Millisecond}
			began := time.Now()
			var wg sync.WaitGroup
			for range 30 {
				wg.Go(func() {
					if _, err := ratelimit.Wait(t.Context(), known{far}, "key", 6000); err != nil {
						t.Error(algorithm, err)
					}
				})
			}
			wg.Wait()
			require.LessOrEqual(t, time.Since(began), 190*time.Second, algorithm)
			require.LessOrEqual(t, far.asked.Load(), int64(110), algorithm)
		})
	}
}

// 39 questions are under way when the store is away for a moment.
func TestAnOutageIsOnePauseForAllWhoAsk(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			l := known{&remote{Limiter: inMemory(t, algorithm, ratelimit.PerSecond(10_000)), way: 5 * time.Millisecond, fail: func(asked int64) error {
				if asked > 1 && asked <= 40 {
					time.Sleep(10 * time.Millisecond)
					return store.ErrUnavailable
				}
				return nil
			}}}
			var wg sync.WaitGroup
			for range 40 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					if _, err := ratelimit.Wait(ctx, l, "key", 1); err != nil {
						t.Error(algorithm, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// The first wants all, and hangs up. That its turn would have come in 40 s is nothing to those behind.
func TestAWaitForManyEventsIsForgottenWhenTheCallerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := inMemory(t, "token_bucket", ratelimit.Limit{Rate: 4, Period: 40 * time.Second})
		require.True(t, allowN(t, l, 4).Allowed)
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _ = ratelimit.Wait(ctx, l, "key", 4) }()
		synctest.Wait()
		second := make(chan error, 1)
		go func() { // in 10 s
			_, err := ratelimit.Wait(t.Context(), l, "key", 1)
			second <- err
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		late, cancel := context.WithTimeout(t.Context(), 21*time.Second)
		defer cancel()
		_, err := ratelimit.Wait(late, l, "key", 1)
		require.NoError(t, err)
		require.NoError(t, <-second)
	})
}

// 2 a day, the first nearly a day ago: the mean says half a day, and there is room in 10 s.
func TestAGuessIsNotSleptFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := inMemory(t, "sliding_log", ratelimit.PerDay(2))
		require.True(t, allowN(t, l, 1).Allowed)
		time.Sleep(24*time.Hour - 10*time.Second)
		far := known{&remote{Limiter: l, way: 5 * time.Millisecond}}
		began, last := time.Now(), atomic.Int64{}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := ratelimit.Wait(t.Context(), far, "key", 1)
				require.NoError(t, err)
				last.Store(int64(time.Since(began)))
			})
		}
		wg.Wait()
		require.Less(t, time.Duration(last.Load()), 11*time.Second)
	})
}
