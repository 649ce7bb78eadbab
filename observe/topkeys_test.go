package observe_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
)

func newTopKeys(t testing.TB, k int, opts ...observe.TopOption) *observe.TopKeys {
	t.Helper()
	top, err := observe.NewTopKeys(k, opts...)
	require.NoError(t, err)
	return top
}

// denials makes n denials, one of each key in turn.
func denials(o ratelimit.Observer, n int, key func() string) {
	for range n {
		o.Decided(context.Background(), key(), 1, ratelimit.Result{}, nil, 0)
	}
}

func always(key string) func() string { return func() string { return key } }

func TestTopKeysCountsDenialsOnly(t *testing.T) {
	top := newTopKeys(t, 0)
	limiter := observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(2)), top)
	for range 5 {
		_, err := limiter.Allow(t.Context(), "user:1")
		require.NoError(t, err)
	}
	_, err := limiter.AllowN(t.Context(), "user:2", 1000)
	require.NoError(t, err)
	_, err = limiter.Allow(t.Context(), "")
	require.Error(t, err)
	top.Decided(t.Context(), "user:3", 1, ratelimit.Result{}, store.ErrTimeout, 0)

	got := top.Top(10)
	require.EqualValues(t, 4, got.Denials)
	require.Equal(t, []observe.TopKey{{Key: "user:1", Count: 3}, {Key: "user:2", Count: 1}}, got.Keys)
	require.Len(t, top.Top(1).Keys, 1)
	require.Empty(t, top.Top(0).Keys)
	require.Empty(t, top.Top(-1).Keys)
}

// The keys that ask most are not always those that are denied most. Both are forgotten together.
func TestTopKeysFindsAskersToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		top := newTopKeys(t, 16, observe.WithAskers())
		limiter := observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(5)), top)
		for key, n := range map[string]int{"small": 4, "greedy": 9} {
			for range n {
				_, err := limiter.Allow(t.Context(), key)
				require.NoError(t, err)
			}
		}
		for range 3 { // each counts as one call, whatever its n
			_, err := limiter.AllowN(t.Context(), "large", 1000)
			require.NoError(t, err)
		}
		top.Decided(t.Context(), "failed", 1, ratelimit.Result{}, store.ErrTimeout, 0)
		denied := []observe.TopKey{{Key: "greedy", Count: 4}, {Key: "large", Count: 3}}
		asked := []observe.TopKey{{Key: "greedy", Count: 9}, {Key: "small", Count: 4}, {Key: "large", Count: 3}}
		require.Equal(t, observe.Top{Since: top.Top(0).Since, Denials: 7, Keys: denied, Calls: 16, Askers: asked}, top.Top(10))
		require.Equal(t, asked[:1], top.Top(1).Askers)
		time.Sleep(time.Minute)
		_, err := limiter.Allow(t.Context(), "small")
		require.NoError(t, err)
		require.EqualValues(t, 17, top.Top(10).Calls)
		require.Equal(t, observe.TopKey{Key: "small", Count: 5}, top.Top(10).Askers[1])
		time.Sleep(time.Minute)
		require.Equal(t, []observe.TopKey{{Key: "small", Count: 1}}, top.Top(10).Askers)
		_, err = limiter.Allow(t.Context(), "small")
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		require.Zero(t, top.Top(10).Calls)
		require.Empty(t, top.Top(10).Askers)
	})
	_, err := observe.NewTopKeys(0, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

func TestTopKeysHas16To65536Entries(t *testing.T) {
	for _, k := range []int{-1, 1, 15, 65_537} {
		_, err := observe.NewTopKeys(k)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	for _, k := range []int{16, 65_536} {
		_, err := observe.NewTopKeys(k)
		require.NoError(t, err)
	}
}

// traffic holds sequences of keys.
var traffic = map[string]func(rng *rand.Rand) func() string{
	"Zipf 1.1": zipf(1.1),
	"Zipf 1.5": zipf(1.5),
	"20 abusers in noise": func(rng *rand.Rand) func() string {
		return func() string {
			if rng.IntN(10) == 0 { // a tenth of all: each abuser is one in 200
				return fmt.Sprint("abuser ", rng.IntN(20))
			}
			return fmt.Sprint("noise ", rng.Uint32())
		}
	},
	"each key once": func(*rand.Rand) func() string {
		i := 0
		return func() string { i++; return fmt.Sprint("key ", i) }
	},
	"an abuser after each key once": func(*rand.Rand) func() string {
		i := 0
		return func() string {
			if i++; i%100 == 0 {
				return "abuser"
			}
			return fmt.Sprint("key ", i)
		}
	},
}

func zipf(s float64) func(rng *rand.Rand) func() string {
	return func(rng *rand.Rand) func() string {
		z := rand.NewZipf(rng, s, 1, 1<<20)
		return func() string { return fmt.Sprint("key ", z.Uint64()) }
	}
}

// requirePromise compares top with the true counts.
func requirePromise(t testing.TB, top *observe.TopKeys, k int, counts map[string]int64) {
	t.Helper()
	got, found := top.Top(2*k), make(map[string]bool)
	var total int64
	for _, n := range counts {
		total += n
	}
	require.Equal(t, total, got.Denials)
	for _, row := range got.Keys {
		require.False(t, found[row.Key], "two rows of %s", row.Key)
		found[row.Key] = true
		if n := counts[row.Key]; row.Count < n || row.Count-row.Error > n {
			t.Fatalf("%+v, was denied %d times", row, n)
		}
	}
	for key, n := range counts {
		if n > total/int64(k) && !found[key] {
			t.Fatalf("%s was denied %d times of %d", key, n, total)
		}
	}
}

func TestTopKeysKeepsItsPromise(t *testing.T) {
	effort.OneGoroutine(t)
	entries := []int{256, 16, 4096}
	if testing.Short() || !effort.Full() {
		entries = entries[:1]
	}
	for name, keys := range traffic {
		for _, k := range entries {
			t.Run(fmt.Sprint(name, "/", k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					top, key, counts := newTopKeys(t, k), keys(rand.New(rand.NewPCG(1, 2))), make(map[string]int64)
					counted := func() string {
						k := key()
						counts[k]++
						return k
					}
					denials(top, 60_000, counted)
					requirePromise(t, top, k, counts)
					time.Sleep(time.Minute) // both minutes count
					denials(top, 30_000, counted)
					requirePromise(t, top, k, counts)
				})
			})
		}
	}
}

func TestTopKeysFindsAbusersInNoise(t *testing.T) {
	top := newTopKeys(t, 256)
	denials(top, 200_000, traffic["20 abusers in noise"](rand.New(rand.NewPCG(1, 2))))
	for _, row := range top.Top(20).Keys {
		require.True(t, strings.HasPrefix(row.Key, "abuser"), "%+v", row)
	}
}

func TestTopKeysForgetsAfterTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		top, began := newTopKeys(t, 16), time.Now()
		denials(top, 5, always("early"))
		time.Sleep(time.Minute)
		require.EqualValues(t, 5, top.Top(10).Denials)
		denials(top, 3, always("late"))
		require.Equal(t, []observe.TopKey{{Key: "early", Count: 5}, {Key: "late", Count: 3}}, top.Top(10).Keys)
		require.True(t, began.Equal(top.Top(1).Since))
		time.Sleep(time.Minute)
		require.Equal(t, []observe.TopKey{{Key: "late", Count: 3}}, top.Top(10).Keys)
		require.True(t, began.Add(time.Minute).Equal(top.Top(1).Since))
		denials(top, 1, always("late"))
		time.Sleep(2 * time.Minute)
		require.Empty(t, top.Top(10).Keys)
		require.Zero(t, top.Top(10).Denials)
		denials(top, 2, always("late"))
		denials(top, 1, always("other"))
		require.Equal(t, []observe.TopKey{{Key: "late", Count: 2}, {Key: "other", Count: 1}}, top.Top(10).Keys)
	})
}

func TestTopKeysKeepsLongKeysApart(t *testing.T) {
	top, long := newTopKeys(t, 16), strings.Repeat("x", 64<<10)
	denials(top, 2, always(long[1:]+"a"))
	denials(top, 1, always(long[1:]+"b"))
	require.Equal(t, []observe.TopKey{{Key: long[:128], Count: 2}, {Key: long[:128], Count: 1}}, top.Top(10).Keys)
}

func TestADenialAllocatesNothing(t *testing.T) {
	top, keys := newTopKeys(t, 64), make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("key %d %s", i, strings.Repeat("x", 200))
	}
	i := 0
	next := func() string { i++; return keys[i%len(keys)] }
	denials(top, 2*len(keys), next)
	require.Zero(t, testing.AllocsPerRun(1000, func() { denials(top, 100, next) }))
}

// TestTopKeysIsBounded denies keys that never come again, 10,000,000 of them in a long run.
//
//	RATELIMIT_LONG=1 go test -run TopKeysIsBounded ./observe
func TestTopKeysIsBounded(t *testing.T) {
	effort.OneGoroutine(t)
	top, i := newTopKeys(t, 256), 0
	next := func() string { i++; return fmt.Sprint("key ", i) }
	denials(top, 10_000, next)
	heap := heapBytes()
	n := effort.Of(300_000, 600_000, 10_000_000)
	denials(top, n, next)
	require.Less(t, heapBytes(), heap+1<<14)
	got := top.Top(1000)
	require.EqualValues(t, 10_000+n, got.Denials)
	require.Len(t, got.Keys, 256)
	for _, row := range got.Keys {
		require.LessOrEqual(t, row.Count-row.Error, int64(1))
	}
}

func TestTopKeysIsExactUnderConcurrency(t *testing.T) {
	const callers, each = 8, 10_000
	top := newTopKeys(t, 16)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			denials(top, each, always(fmt.Sprint("key ", c%4)))
			top.Top(3)
		})
	}
	wg.Wait()
	got := top.Top(10)
	require.EqualValues(t, callers*each, got.Denials)
	for _, row := range got.Keys {
		require.EqualValues(t, callers*each/4, row.Count)
		require.Zero(t, row.Error)
	}
}
