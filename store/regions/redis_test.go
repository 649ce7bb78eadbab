package regions_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/store/regions"
)

// pair is two regions, each with a Redis server, and links between them that can be cut.
type pair struct {
	limiters [2]ratelimit.Limiter
	shared   [2]*regions.Store
	near     [2]*redistest.Proxy // from a region to its own server
	far      [2]*redistest.Proxy // from the other one
}

func newPair(t *testing.T, algorithm string, limit ratelimit.Limit) *pair {
	p := new(pair)
	var near, far [2]store.Store
	connect := func(link *redistest.Proxy, timeout time.Duration) store.Store {
		client := redis.NewClient(&redis.Options{Addr: link.Addr(), ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		s, err := redisstore.New(client, redisstore.WithTimeout(timeout))
		require.NoError(t, err)
		return s
	}
	for i := range 2 {
		server := redistest.Start(t)
		p.near[i], p.far[i] = redistest.StartProxy(t, server.Addr()), redistest.StartProxy(t, server.Addr())
		near[i] = connect(p.near[i], 10*time.Second)
		far[i] = connect(p.far[i], 200*time.Millisecond)
	}
	for i := range 2 {
		var err error
		stores := map[string]store.Store{name(i): near[i], name(1 - i): far[1-i]}
		p.shared[i], err = regions.New(name(i), stores, regions.WithWait(300*time.Millisecond))
		require.NoError(t, err)
		p.limiters[i] = limiter(t, algorithm, p.shared[i], limit)
	}
	return p
}

// load has callers in a region ask for key until want events are admitted, or for a minute, and
// then some more. It returns how many were.
func (p *pair) load(t *testing.T, region int, key string, want int64) int64 {
	var admitted, more atomic.Int64
	var callers sync.WaitGroup
	end := time.Now().Add(time.Minute)
	for range 8 {
		callers.Go(func() {
			for time.Now().Before(end) && (admitted.Load() < want || more.Add(1) < 400) {
				r, err := p.limiters[region].Allow(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				if r.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	callers.Wait()
	return admitted.Load()
}

func TestOneRegionUsesTheWholeLimitAndItsShareWhenItIsCutOff(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			p := newPair(t, algorithm, ratelimit.PerDay(1000))
			if left := time.Until(time.Now().Truncate(24 * time.Hour).Add(24 * time.Hour)); left < 3*time.Minute {
				t.Skip("the day ends in", left)
			}
			alone := p.load(t, 0, "alone", 950)
			t.Log("alone:", alone, p.shared[0].Stats())
			require.GreaterOrEqual(t, alone, int64(950))
			require.LessOrEqual(t, alone, int64(1000+1)) // 1 that flows into a bucket in 3 minutes
			if algorithm != "token_bucket" {
				require.LessOrEqual(t, alone, int64(1000))
			}
			var cut [2]int64
			var both sync.WaitGroup
			for i, link := range p.far {
				link.Hold()
				both.Go(func() { cut[i] = p.load(t, i, "cut", 500) })
			}
			both.Wait()
			t.Log("cut:", cut, p.shared[0].Stats(), p.shared[1].Stats())
			for i := range cut {
				require.GreaterOrEqual(t, cut[i], int64(500))
				require.LessOrEqual(t, cut[i], int64(501))
				require.NotZero(t, p.shared[i].Stats().Failed)
			}
		})
	}
}

// Both regions are asked for more than there is, while links are cut and replies are lost.
func TestNoWindowIsExceededWhileLinksBreak(t *testing.T) {
	t.Parallel()
	p := newPair(t, "fixed_window", ratelimit.PerSecond(1000))
	var mu sync.Mutex
	windows := map[int64][2]int{} // of calls that began and ended in one, in each region
	var callers sync.WaitGroup
	end := time.Now().Add(time.Duration(effort.Of(3, 8, 20)) * time.Second)
	for c := range 16 {
		callers.Go(func() {
			for time.Now().Before(end) {
				began := time.Now().Unix()
				if began%3 == int64(c%2) { // one region alone in two of three seconds
					time.Sleep(10 * time.Millisecond)
					continue
				}
				r, err := p.limiters[c%2].Allow(t.Context(), "key") // an error is a lost reply
				switch {
				case err == nil && !r.Allowed:
					time.Sleep(3 * time.Millisecond)
				case err == nil && time.Now().Unix() == began:
					mu.Lock()
					of := windows[began]
					of[c%2]++
					windows[began] = of
					mu.Unlock()
				}
			}
		})
	}
	callers.Go(func() {
		for i := 0; time.Now().Before(end); i++ {
			link := i / 3 % 2
			switch i % 3 {
			case 0:
				p.far[link].Hold()
				time.Sleep(100 * time.Millisecond)
				p.far[link].Release()
			case 1:
				p.far[link].DropReplies(1, "evalsha")
			case 2:
				p.near[link].DropReplies(3, "evalsha")
			}
			time.Sleep(700 * time.Millisecond)
		}
	})
	callers.Wait()
	t.Log(windows, p.shared[0].Stats(), p.shared[1].Stats())
	require.NotEmpty(t, windows)
	most := 0
	for w, n := range windows {
		require.LessOrEqual(t, n[0]+n[1], 1000, w)
		most = max(most, n[0], n[1])
	}
	if most > 500 { // a busy machine may not ask one region for more than its half
		require.NotZero(t, p.shared[0].Stats().Moved+p.shared[1].Stats().Moved)
	}
}

// TestUseOfARegionAlone tells what one region gets in a second, where time flows.
func TestUseOfARegionAlone(t *testing.T) {
	effort.NeedLong(t)
	for _, algorithm := range algorithms {
		for _, delay := range []time.Duration{0, 5 * time.Millisecond, 40 * time.Millisecond} {
			t.Run(fmt.Sprint(algorithm, " at ", delay), func(t *testing.T) {
				p := newPair(t, algorithm, ratelimit.PerSecond(1000))
				p.far[1].Delay(delay)
				var seconds []int
				for range 4 {
					time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
					began, n := time.Now(), 0
					for i := 0; time.Since(began) < 950*time.Millisecond; i++ {
						if r, err := p.limiters[0].Allow(t.Context(), "key"); err == nil && r.Allowed {
							n++
						}
					}
					seconds = append(seconds, n)
				}
				t.Log(algorithm, delay, seconds, p.shared[0].Stats())
				require.Positive(t, slices.Min(seconds))
			})
		}
	}
}
