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
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// farStore is a store at a distance.
type farStore struct {
	store.Store
	way   time.Duration // one way
	asked atomic.Int64
}

func (f *farStore) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	f.asked.Add(1)
	time.Sleep(f.way)
	defer time.Sleep(f.way)
	return f.Store.Take(ctx, ns, key, l, n)
}

// inFarBubble runs test with a limiter on a store at a distance.
func inFarBubble(t *testing.T, algorithm string, l ratelimit.Limit, way time.Duration, test func(t *testing.T, lim ratelimit.Limiter, s *farStore)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, err := memstore.New()
		require.NoError(t, err)
		s := &farStore{Store: m, way: way}
		test(t, newLimiter(t, algorithm, s, l), s)
	})
}

// waitAll is how long waits wait, all at once.
func waitAll(t *testing.T, lim ratelimit.Limiter, waits int) time.Duration {
	t.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for range waits {
		wg.Go(func() {
			_, err := ratelimit.Wait(t.Context(), lim, "key", 1)
			require.NoError(t, err)
		})
		synctest.Wait()
	}
	wg.Wait()
	return time.Since(began)
}

// ownType is a limiter of somebody else's, around another.
type ownType struct{ ratelimit.Limiter }

// Answers that take longer than the bucket does to drain show no Delay. To ask one by one
// then would be the rate of the answers: 40 s here.
func TestALeakyBucketFarAwayIsNotAskedOneByOne(t *testing.T) {
	t.Parallel()
	limit := ratelimit.Limit{Rate: 1000, Period: time.Second, Burst: 100}
	inFarBubble(t, "leaky_bucket", limit, 5*time.Millisecond, func(t *testing.T, lim ratelimit.Limiter, s *farStore) {
		require.LessOrEqual(t, waitAll(t, lim, 4000), 5*time.Second)
		require.LessOrEqual(t, s.asked.Load(), int64(4800))
	})
}

// One at a time fits into it, so that each turn is known by when it is empty.
func TestALeakyBucketForOneIsAskedOnceEach(t *testing.T) {
	limit := ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 1}
	inFarBubble(t, "leaky_bucket", limit, 250*time.Microsecond, func(t *testing.T, lim ratelimit.Limiter, s *farStore) {
		require.LessOrEqual(t, waitAll(t, lim, 400), 4*time.Second*100/97)
		require.LessOrEqual(t, s.asked.Load(), int64(480))
	})
}

// Only its RetryAfter is believed.
func TestALimiterOfAnotherTypeIsAskedTwiceForEachEvent(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		limit := ratelimit.Limit{Rate: 1, Period: 10 * time.Millisecond}
		inFarBubble(t, algorithm, limit, 250*time.Microsecond, func(t *testing.T, lim ratelimit.Limiter, s *farStore) {
			waitAll(t, ownType{lim}, 400)
			require.LessOrEqual(t, s.asked.Load(), int64(800), algorithm)
		})
	}
}

// Nor need it be asked one by one while it has room: that would take 40 s.
func TestALimiterOfAnotherTypeFarAwayIsNotAskedOneByOne(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms[:effort.Of(2, 4)] {
		inFarBubble(t, algorithm, ratelimit.PerMinute(4000), 5*time.Millisecond, func(t *testing.T, lim ratelimit.Limiter, s *farStore) {
			require.LessOrEqual(t, waitAll(t, ownType{lim}, 4000), 2*time.Second, algorithm)
			require.EqualValues(t, 4000, s.asked.Load(), algorithm)
		})
	}
}

// Of twice as many callers as the rate serves in time, far away, those are asked for who
// still have the time. Otherwise each comes to the front as its time ends, and nobody is served.
func TestCallersWithDeadlinesBeyondTheRateAreServedAtTheRate(t *testing.T) {
	t.Parallel()
	for i := range effort.Of(20, 40) {
		first, second := algorithms[i%5], append([]string{"none"}, algorithms...)[i/5%4]
		own := i >= 20
		synctest.Test(t, func(t *testing.T) {
			l := inMemory(t, first, ratelimit.PerSecond(500))
			if second != "none" {
				l = all(t, l, inMemory(t, second, ratelimit.PerDay(3_000_000), ratelimit.WithName("large")))
			}
			far := &remote{Limiter: l, way: 10 * time.Millisecond}
			l = known{far}
			if own {
				l = far
			}
			began, served := time.Now(), [4]atomic.Int64{}
			var wg sync.WaitGroup
			for range 1024 {
				wg.Go(func() {
					for time.Since(began) < 3*time.Second {
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						if _, err := ratelimit.Wait(ctx, l, "key", 1); err == nil {
							served[min(3, time.Since(began)/time.Second)].Add(1)
						} else {
							time.Sleep(5 * time.Millisecond)
						}
						cancel()
					}
				})
			}
			wg.Wait()
			for _, n := range []int64{served[1].Load(), served[2].Load()} {
				require.GreaterOrEqual(t, n, int64(425), "of 500 in a second: %s and %s, own %t", first, second, own)
			}
		})
	}
}

// A log gives back in heaps what was taken in heaps. The steps between them are no steps from
// event to event: who waits for one more of them loses what is due meanwhile.
func TestPermitsThatComeInHeapsAreNotWaitedForOneHeapEach(t *testing.T) {
	for _, way := range []time.Duration{250 * time.Microsecond, 5 * time.Millisecond} {
		inFarBubble(t, "sliding_log", ratelimit.PerSecond(10), way, func(t *testing.T, lim ratelimit.Limiter, s *farStore) {
			other, err := ratelimit.NewTokenBucket(s, ratelimit.PerSecond(1000), ratelimit.WithName("other"))
			require.NoError(t, err)
			all, err := ratelimit.NewAll(lim, other)
			require.NoError(t, err)
			require.LessOrEqual(t, waitAll(t, all, 400), 39*time.Second*100/80)
		})
	}
}

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
