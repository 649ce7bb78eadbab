package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// The scheduler chooses which worker sends which job, but not when a job is sent.

func TestRunPrintsAJobEach50Milliseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out))

		var times []string
		for line := range strings.Lines(out.String()) {
			at, rest, _ := strings.Cut(line, " ms  ")
			require.Regexp(t, `^worker [123] sends job [ 1]\d\n$`, rest)
			times = append(times, strings.TrimSpace(at))
		}
		require.Equal(t, strings.Fields("0 50 100 150 200 250 300 350 400 450 500 550"), times)
	})
}

func TestJobsAreExactly50MillisecondsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := newLog()
		require.NoError(t, work(t.Context(), newLimiter(t), sent.add))

		require.Len(t, sent.times, jobs)
		for i, at := range sent.times {
			require.Equal(t, time.Duration(i)*50*time.Millisecond, at)
		}
		slices.Sort(sent.jobs)
		require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, sent.jobs)
	})
}

func TestASupplierThatIsSlowIsNotSentABurstAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := newLog()
		err := work(t.Context(), newLimiter(t), func(ctx context.Context, worker, job int) error {
			defer time.Sleep(time.Second)
			return sent.add(ctx, worker, job)
		})
		require.NoError(t, err)
		for i := 1; i < jobs; i++ {
			require.GreaterOrEqual(t, sent.times[i]-sent.times[i-1], 50*time.Millisecond)
		}
	})
}

func TestCancellingStopsTheWorkersThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(120*time.Millisecond, cancel)
		limiter, sent := newLimiter(t), newLog()

		err := work(ctx, limiter, sent.add)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 120*time.Millisecond, time.Since(sent.began))
		require.Len(t, sent.times, 3)
	})
}

func TestADeadlineThatCannotBeKeptIsKnownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 80*time.Millisecond)
		defer cancel()
		sent := newLog()

		err := work(ctx, newLimiter(t), sent.add)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.Zero(t, time.Since(sent.began))
	})
}

func TestAnErrorOfTheSupplierIsTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("the supplier is out of stock")
		err := work(t.Context(), newLimiter(t), func(context.Context, int, int) error { return broken })
		require.Equal(t, broken, err)
	})
}

func newLimiter(t *testing.T) ratelimit.Limiter {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	limiter, err := ratelimit.NewLeakyBucket(mem, ratelimit.PerSecond(20))
	require.NoError(t, err)
	return limiter
}

// sendLog records what was sent, and how long after the beginning.
type sendLog struct {
	began time.Time
	mu    sync.Mutex // protects the fields below
	times []time.Duration
	jobs  []int
}

func newLog() *sendLog { return &sendLog{began: time.Now()} }

func (l *sendLog) add(_ context.Context, _, job int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(l.times, time.Since(l.began))
	l.jobs = append(l.jobs, job)
	return nil
}
