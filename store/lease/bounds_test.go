package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// late is a store whose calls take a time each way.
type late struct {
	store.Store
	way time.Duration
}

func (s late) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	time.Sleep(s.way)
	defer time.Sleep(s.way)
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s late) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	time.Sleep(s.way)
	defer time.Sleep(s.way)
	return s.Store.Decide(ctx, requests, replies)
}

// Each limit keeps its bound, whoever asks for it alone or together with another one: processes that come and go,
// of which some are never closed.
func TestSeveralLimitsKeepTheirBounds(t *testing.T) {
	const length = 4 * time.Second
	for _, algorithm := range leased {
		t.Run(algorithm, func(t *testing.T) {
			largest := 0.0
			for seed := range uint64(effort.Of(8, 60, 600)) {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 9))
					mem, err := memstore.New()
					require.NoError(t, err)
					s := late{mem, time.Duration(random.IntN(5)) * time.Millisecond}
					life := time.Duration(10+random.IntN(190)) * time.Millisecond
					limits := []ratelimit.Limit{{Rate: 100 + random.IntN(400), Period: time.Second}, {Rate: 200 + random.IntN(800), Period: 2 * time.Second}}
					var overdraft int
					if algorithm != slidingWindow {
						overdraft = random.IntN(2) * random.IntN(5)
					}
					var mu sync.Mutex
					var admitted [2][]time.Duration
					begun := time.Now()
					var group sync.WaitGroup
					processes := 0
					process := func() {
						processes++
						var opts []Option
						if overdraft > 0 {
							opts = append(opts, WithOverdraft(overdraft))
						}
						d, err := New(s, life, opts...)
						require.NoError(t, err)
						var ask []ratelimit.Limiter
						for i, l := range limits {
							one, err := ratelimit.New(algorithm, d, l, ratelimit.WithName(fmt.Sprint(i)))
							require.NoError(t, err)
							ask = append(ask, one)
						}
						all, err := ratelimit.NewAll(ask...)
						require.NoError(t, err)
						ask = append(ask, all, all)
						until := time.Duration(random.Int64N(int64(2 * length)))
						closes := random.IntN(2) == 0
						for range 6 {
							of, mean := random.IntN(len(ask)), time.Duration(1+random.IntN(20))*time.Millisecond
							waits := time.Duration(random.Int64N(int64(2 * mean)))
							group.Go(func() {
								for time.Since(begun) < min(until, length) {
									r, err := ask[of].Allow(t.Context(), "key")
									require.NoError(t, err)
									if r.Allowed {
										mu.Lock()
										for i := range admitted {
											if of == i || of > 1 {
												admitted[i] = append(admitted[i], time.Since(begun))
											}
										}
										mu.Unlock()
									}
									time.Sleep(waits)
								}
							})
						}
						group.Go(func() {
							time.Sleep(until)
							if closes {
								require.NoError(t, d.Close(t.Context()))
							}
						})
					}
					for range 1 + random.IntN(4) {
						process()
						time.Sleep(time.Duration(random.Int64N(int64(length / 4))))
					}
					group.Wait()
					time.Sleep(10 * life) // the timers have run
					for i, times := range admitted {
						slices.Sort(times)
						// A call returns one way after the store has decided, or after two more calls for others.
						l, slack := limits[i], 5*s.way
						most, bound := 0.0, float64(l.Rate+overdraft*processes)
						switch algorithm {
						case fixedWindow:
							for from := -time.Duration(begun.UnixNano() % int64(l.Period)); from < length; from += l.Period {
								n := 0
								for _, at := range times {
									if at >= from+slack && at < from+l.Period {
										n++
									}
								}
								most = max(most, float64(n))
							}
						case slidingLog:
							most = densest(times, l.Period-slack)
						default:
							most = meter(times, l.Rate, l.Period)
							bound += float64(l.Rate) * (slack + 2*time.Microsecond).Seconds() / l.Period.Seconds()
						}
						require.LessOrEqual(t, most, bound, "seed %d, limit %d: %v, a life of %v", seed, i, l, life)
						largest = max(largest, most/bound)
					}
				})
			}
			t.Logf("the largest part of the bound is %.2f", largest)
			require.Greater(t, largest, 0.8, "the callers are too tame")
		})
	}
}
