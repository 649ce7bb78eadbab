package lease_test

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
	"github.com/ratelimit-go/ratelimit/store/lease"
)

// fleet is some processes of 8 callers on one key of a store 1 ms away.
type fleet struct {
	leased, waits bool
	all           time.Duration // the period of a second limit, which admits a little more; 0 if there is none
	algorithm     string
	rate          int // a second, of the whole fleet
}

// run returns how many calls were admitted in 4 seconds, and of how many the store was asked.
func (f fleet) run(t *testing.T) (jobs, asked int) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		s.set(time.Millisecond, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		var callers sync.WaitGroup
		var admitted atomic.Int64
		var leases []*lease.Store
		for range 3 {
			var front store.Store = s
			if f.leased {
				d, err := lease.New(s, life)
				require.NoError(t, err)
				leases, front = append(leases, d), d
			}
			l := f.limiter(t, front)
			for range 8 {
				callers.Go(func() { f.call(ctx, l, &admitted) })
			}
		}
		callers.Wait()
		for _, d := range leases {
			require.NoError(t, d.Close(t.Context()))
		}
		jobs, asked = int(admitted.Load()), len(s.reset())
	})
	return jobs, asked
}

func (f fleet) limiter(t *testing.T, s store.Store) ratelimit.Limiter {
	l := newLimiter(t, f.algorithm, s, ratelimit.PerSecond(f.rate))
	if f.all == 0 {
		return l
	}
	second := ratelimit.Limit{Rate: int(f.all.Seconds() * 7 / 6 * float64(f.rate)), Period: f.all}
	all, err := ratelimit.NewAll(l, newLimiter(t, f.algorithm, s, second))
	require.NoError(t, err)
	return all
}

// call calls as soon as it may, or three quarters as often as the limit admits.
func (f fleet) call(ctx context.Context, l ratelimit.Limiter, admitted *atomic.Int64) {
	for ctx.Err() == nil {
		var r ratelimit.Result
		var err error
		if f.waits {
			r, err = ratelimit.Wait(ctx, l, "key", 1)
		} else {
			r, err = l.Allow(ctx, "key")
			time.Sleep(32 * time.Second / time.Duration(f.rate))
		}
		if err != nil { // it is too late
			return
		}
		if r.Allowed {
			admitted.Add(1)
		}
	}
}

// Leases save round trips even if callers wait, and if limits are decided together.
func TestAFleetOnLeasesAsksRarely(t *testing.T) {
	tests := []struct {
		fleet
		most float64 // calls of the store for one that is admitted, as a multiple of those without leases
	}{
		{fleet{algorithm: "token_bucket", rate: 1000, waits: true}, 0.3},                       // 0.10
		{fleet{algorithm: "token_bucket", rate: 1000, waits: true, all: time.Minute}, 0.5},     // 0.21
		{fleet{algorithm: "fixed_window", rate: 1000, waits: true}, 0.2},                       // 0.02
		{fleet{algorithm: "fixed_window", rate: 1000, waits: true, all: time.Minute}, 0.2},     // 0.04
		{fleet{algorithm: "token_bucket", rate: 100, waits: true}, 0.6},                        // 0.4
		{fleet{algorithm: "token_bucket", rate: 100, waits: true, all: time.Minute}, 0.8},      // 0.6
		{fleet{algorithm: "token_bucket", rate: 10_000, waits: true, all: time.Minute}, 0.1},   // 0.02
		{fleet{algorithm: "sliding_window", rate: 1000, waits: true, all: time.Minute}, 0.4},   // 0.15
		{fleet{algorithm: "sliding_log", rate: 1000, waits: true, all: time.Minute}, 0.2},      // 0.03
		{fleet{algorithm: "sliding_log", rate: 1000, all: time.Minute}, 0.4},                   // 0.15
		{fleet{algorithm: "token_bucket", rate: 100, all: time.Minute}, 0.8},                   // 0.5
		{fleet{algorithm: "token_bucket", rate: 1000, waits: true, all: 2 * time.Second}, 0.5}, // 0.2: both are at their limit
	}
	for _, test := range tests[:effort.Of(4, len(tests))] {
		f := test.fleet
		plainJobs, plainAsked := f.run(t)
		f.leased = true
		jobs, asked := f.run(t)
		perJob, plain := float64(asked)/float64(jobs), float64(plainAsked)/float64(plainJobs)
		t.Logf("%+v: %d admitted by %d calls, without leases %d by %d: %.2f", f, jobs, asked, plainJobs, plainAsked, perJob/plain)
		require.Less(t, perJob, test.most*plain)
		require.Greater(t, float64(jobs), 0.93*float64(plainJobs))
	}
}

// A waiter has what is held, although the store is away.
func TestAWaiterHasWhatIsHeld(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t)}
			d := newLease(t, newLimiter(t, algorithm, s, ratelimit.PerSecond(1000)), life)
			hold(t, d, 4)
			s.reset()
			s.set(0, func(string) error { return store.ErrUnavailable })
			for range 3 {
				_, err := ratelimit.Wait(t.Context(), d.limiting, "key", 1)
				require.NoError(t, err)
			}
			s.set(0, nil)
			closeLease(t, d)
		})
	})
}
