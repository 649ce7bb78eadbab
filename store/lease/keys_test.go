package lease_test

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// heap is how many bytes are in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestMemoryOfAKey(t *testing.T) {
	effort.OneGoroutine(t)
	const keys = 20_000
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("%016d", i)
	}
	s := memory(t, memstore.WithMaxKeys(1))
	d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Minute)
	before := heap()
	for _, key := range names {
		for range 4 { // it holds a lease that was fetched ahead
			_, err := d.Allow(t.Context(), key)
			require.NoError(t, err)
		}
	}
	require.Equal(t, keys, d.Stats().Keys)
	bytes := (heap() - before) / keys
	t.Logf("%d bytes a key, of which 16 are its own; %+v", bytes, d.Stats())
	require.LessOrEqual(t, bytes, 16+mostBytes)
	runtime.KeepAlive(names)
	closeLease(t, d)
	require.Less(t, heap()-before, keys*50)
}

// mostBytes is what package lease says of a key.
const mostBytes = 520

// Keys that are not asked for any more are forgotten, so that any number of them can come.
func TestKeysThatAreNotAskedForAreForgotten(t *testing.T) {
	effort.OneGoroutine(t)
	synctest.Test(t, func(t *testing.T) {
		const most = 10_000
		d := newLease(t, newLimiter(t, "fixed_window", memory(t, memstore.WithMaxKeys(1)), window), life, lease.WithMaxKeys(most))
		largest, begin, base := 0, 0, 0
		total := effort.Of(100_000, 300_000, 1_000_000)
		for i := range total {
			_, err := d.Allow(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
			if i%20_000 == 0 {
				synctest.Wait()
				largest = max(largest, d.Stats().Keys)
				if base = heap(); i == 20_000 {
					begin = base
				}
			}
		}
		t.Logf("%d keys at most; the heap has %d bytes more", largest, base-begin)
		require.LessOrEqual(t, largest, most)
		require.Positive(t, largest)
		require.Less(t, base-begin, 4<<20)
		time.Sleep(5*life + most*2*time.Microsecond)
		synctest.Wait()
		require.Zero(t, d.Stats().Keys)
		require.False(t, d.Armed())
		closeLease(t, d)
	})
}

// Beyond the cap keys are decided on by the store.
func TestBeyondTheCapTheStoreDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life, lease.WithMaxKeys(2))
		for i := range 5 {
			r, err := d.Allow(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		require.Len(t, asked(s.reset(), "Take"), 3)
		require.Equal(t, 2, d.Stats().Keys)
		time.Sleep(5 * life)
		_, err := d.Allow(t.Context(), "5")
		require.NoError(t, err)
		require.Len(t, asked(s.reset(), "TakeUpTo"), 1, "the others have left")
		closeLease(t, d)
	})
}

// A decision on what is held allocates nothing.
func TestADecisionOnWhatIsHeldAllocatesNothing(t *testing.T) {
	effort.OneGoroutine(t)
	for _, algorithm := range algorithms {
		limit := ratelimit.PerHour(2_000_000_000)
		d := newLease(t, newLimiter(t, algorithm, memory(t, stopped), limit), time.Minute)
		for i := 0; i%1000 > 0 || d.Stats().Held < 20_000; i++ {
			require.True(t, allow(t, d).Allowed)
			require.Less(t, i, 1_000_000, "leases do not grow")
		}
		ctx, lost := t.Context(), 0
		allocs := testing.AllocsPerRun(10_000, func() {
			if r, err := d.Allow(ctx, "key"); err != nil || !r.Allowed {
				lost++
			}
			runtime.Gosched() // also to what it may have begun
		})
		require.Zero(t, allocs, algorithm)
		require.Zero(t, lost)
		closeLease(t, d)

		d = newLease(t, newLimiter(t, algorithm, memory(t, stopped), ratelimit.PerHour(1000)), time.Minute)
		for allow(t, d).Allowed {
		}
		require.Zero(t, testing.AllocsPerRun(1_000, func() { _, _ = d.Allow(ctx, "key") }), "a denial")
		closeLease(t, d)
	}
}

// That is also so while the next lease is to be fetched, and no worker is free to do so.
func TestDecisionsAllocateNothingWhileALeaseIsToBeFetched(t *testing.T) {
	effort.OneGoroutine(t)
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life)
		_, back := occupy(t, d, s)
		hold(t, d, 60)
		for d.Stats().Held > 14 {
			require.True(t, allow(t, d).Allowed)
		}
		ctx := t.Context()
		require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = d.Allow(ctx, "key") }))
		close(back)
		closeLease(t, d)
	})
}

// Many callers of many keys, while others look, reset, give back and close.
func TestManyCallersAtOnce(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, algorithm := range algorithms {
		var opts []lease.Option
		if algorithm != "sliding_window" {
			opts = append(opts, lease.WithOverdraft(3))
		}
		d := newLease(t, newLimiter(t, algorithm, memory(t), ratelimit.PerSecond(20_000)), time.Millisecond, append(opts, lease.WithMaxKeys(50))...)
		var asking sync.WaitGroup
		ctx := t.Context()
		for c := range 16 {
			asking.Go(func() {
				for i := range 1_000 {
					key := strconv.Itoa((i*7 + c) % 60)
					var r ratelimit.Result
					var err error
					switch (i + c) % 10 {
					case 0:
						_, err = d.Peek(ctx, key)
					case 1:
						_, r, err = d.AllowUpTo(ctx, key, 3)
					case 2:
						r, err = d.AllowN(ctx, key, 2)
					case 3:
						if i%50 == 0 {
							err = d.Reset(ctx, key)
						}
						_ = d.Stats()
					case 4:
						r, err = d.Charge(ctx, key, 1)
					default:
						r, err = d.Allow(ctx, key)
					}
					if err == nil && r.Charged() > 0 && i%3 == 0 {
						err = d.Refund(ctx, key, r, r.Charged())
					}
					if err != nil {
						t.Error(err)
					}
					if c == 0 && i == 900 {
						if err := d.Close(ctx); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		asking.Wait()
		closeLease(t, d)
	}
	for limit := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		require.True(t, time.Now().Before(limit), "goroutines are left")
	}
}

// A background call that begins while the store is closed ends too, because Close waits for it.
func TestCloseWhileALeaseIsRenewed(t *testing.T) {
	const callers = 4
	for i := range effort.Of(300, 1_000) {
		synctest.Test(t, func(t *testing.T) { // which fails if Close hangs
			d := newLease(t, newLimiter(t, "token_bucket", memory(t), ratelimit.PerSecond(20_000)), time.Millisecond)
			var asking sync.WaitGroup
			for range callers {
				asking.Go(func() {
					for range 30 {
						allow(t, d)
					}
				})
			}
			for range i % 40 {
				runtime.Gosched()
			}
			closeLease(t, d)
			asking.Wait()
		})
	}
}

// BenchmarkSweep sweeps as many keys as there may be.
func BenchmarkSweep(b *testing.B) {
	d := newLease(b, newLimiter(b, "fixed_window", memory(b), window), time.Minute)
	for i := range 1 << 16 {
		if _, err := d.Allow(b.Context(), strconv.Itoa(i)); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		d.Sweep()
	}
	_ = d.Close(b.Context())
}
