package fallback_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/store"
)

func state(f *fallback.Limiter) fallback.State {
	s, _ := f.State()
	return s
}

func TestTheStateOfTheBreakerHasATime(t *testing.T) {
	_, since := new(fallback.Limiter).State()
	require.Zero(t, since)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailOpen(), fallback.WithBreaker(2, time.Second))
		requireSince := func(want fallback.State, d time.Duration) {
			t.Helper()
			s, since := lim.State()
			require.Equal(t, want, s)
			require.Equal(t, d, since.Sub(start))
		}
		time.Sleep(time.Minute)
		requireSince(fallback.StateClosed, 0)
		inner.down.Store(true)
		allow(t, lim, "key")
		time.Sleep(time.Second)
		allow(t, lim, "key")
		time.Sleep(time.Second / 2)
		requireSince(fallback.StateOpen, time.Minute+time.Second)
		time.Sleep(time.Second)
		requireSince(fallback.StateHalfOpen, time.Minute+2500*time.Millisecond) // when somebody asks
		inner.down.Store(false)
		allow(t, lim, "key")
		requireSince(fallback.StateClosed, time.Minute+2500*time.Millisecond)
	})
}

func TestChangesOfTheStateAreReportedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var told []string
		var lim *fallback.Limiter
		changed := func(s fallback.State, since time.Time) {
			told = append(told, fmt.Sprint(s, " after ", since.Sub(start)))
			if s == fallback.StateOpen {
				require.Equal(t, fallback.StateOpen, state(lim), "it holds no lock")
				allow(t, lim, "key")
			}
		}
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim = failover(t, inner, fallback.FailOpen(), fallback.WithBreaker(2, time.Second), fallback.WithOnChange(changed))
		inner.down.Store(true)
		allow(t, lim, "key")
		require.Empty(t, told)
		allow(t, lim, "key")
		require.Equal(t, []string{"open after 0s"}, told, "before the caller is answered")
		time.Sleep(time.Second)
		allow(t, lim, "key")
		require.Equal(t, []string{"open after 0s", "half_open after 1s", "open after 1s"}, told)
		told = nil
		time.Sleep(time.Second)
		inner.down.Store(false)
		allow(t, lim, "key")
		require.Equal(t, []string{"half_open after 2s", "closed after 2s"}, told)
		inner.down.Store(true)
		allow(t, lim, "key")
		allow(t, lim, "key")
		time.Sleep(time.Second)
		told = nil
		require.Equal(t, fallback.StateHalfOpen, state(lim))
		require.Equal(t, []string{"half_open after 3s"}, told)
	})
	_, err := fallback.New(down(t, "token_bucket", ratelimit.PerHour(1)), fallback.FailOpen(), fallback.WithOnChange(nil))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// A slow listener does not hold up other callers, and misses nothing.
func TestASlowListenerHoldsUpItsCallerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []fallback.State
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(1_000_000))}
		lim := failover(t, inner, fallback.FailOpen(), fallback.WithBreaker(1, time.Second),
			fallback.WithOnChange(func(s fallback.State, _ time.Time) {
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				told = append(told, s)
			}))
		inner.down.Store(true)
		var callers sync.WaitGroup
		callers.Go(func() { allow(t, lim, "key") })
		synctest.Wait()
		start := time.Now()
		for i := range 10 {
			time.Sleep(time.Second)
			inner.down.Store(i%2 == 0)
			for range 20 {
				allow(t, lim, "key")
			}
		}
		require.Equal(t, 10*time.Second, time.Since(start))
		callers.Wait()
		want := []fallback.State{fallback.StateOpen}
		for i := range 10 {
			switch {
			case i%2 == 0 && i > 0: // closed until it fails
				want = append(want, fallback.StateOpen)
			default:
				want = append(want, fallback.StateHalfOpen, map[bool]fallback.State{true: fallback.StateOpen, false: fallback.StateClosed}[i%2 == 0])
			}
		}
		require.Equal(t, want, told)
	})
}

// A listener that panics does so in its caller, and the next change is told all the same.
func TestAListenerThatPanicsIsCalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailOpen(), fallback.WithBreaker(1, time.Second),
			fallback.WithOnChange(func(fallback.State, time.Time) {
				if calls++; calls == 1 {
					panic("no")
				}
			}))
		inner.down.Store(true)
		require.Panics(t, func() { allow(t, lim, "key") })
		time.Sleep(time.Second)
		inner.down.Store(false)
		allow(t, lim, "key")
		require.Equal(t, 3, calls)
	})
}

// Changes that nobody listens for are not kept.
func TestUnreportedChangesAreBounded(t *testing.T) {
	for _, asked := range []bool{false, true} { // for which there is one change more
		synctest.Test(t, func(t *testing.T) {
			told, hold := 0, make(chan struct{})
			inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
			lim := failover(t, inner, fallback.FailOpen(), fallback.WithBreaker(1, time.Second),
				fallback.WithOnChange(func(fallback.State, time.Time) { <-hold; told++ }))
			inner.down.Store(true)
			var caller sync.WaitGroup
			caller.Go(func() { allow(t, lim, "key") })
			synctest.Wait()
			for range 1_000 {
				time.Sleep(time.Second)
				allow(t, lim, "key")
			}
			if time.Sleep(time.Second); asked {
				require.Equal(t, fallback.StateHalfOpen, state(lim))
			}
			close(hold)
			caller.Wait()
			require.Equal(t, 1+64, told)
		})
	}
}

func TestAStateIsAWordInLogs(t *testing.T) {
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("circuit breaker", "state", fallback.StateHalfOpen, "source", ratelimit.SourceFailOpen)
	require.Contains(t, out.String(), `"state":"half_open","source":"fail_open"`)
}

// A connection that breaks fails all calls on it at once. While others serve, that is one event, and the store decides
// the next calls. If nobody serves, each call counts, even those that began while others were still served.
func TestCallsThatFailTogetherOpenNoBreakerWhileOthersSucceed(t *testing.T) {
	for name, c := range map[string]struct {
		serves bool          // whether other calls succeed while the calls are in progress
		after  time.Duration // of that, until they fail
		want   fallback.State
	}{
		"beside others":    {true, time.Millisecond, fallback.StateClosed},
		"a server hangs":   {true, 50 * time.Millisecond, fallback.StateOpen},
		"nobody is served": {false, time.Millisecond, fallback.StateOpen},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(1000))}
				lim := failover(t, inner, fallback.FailOpen())
				require.Equal(t, ratelimit.SourceStore, source(t, lim))
				cut := make(chan struct{})
				inner.before = func(context.Context) error {
					<-cut
					return store.ErrTimeout
				}
				var callers sync.WaitGroup
				for range 64 {
					callers.Go(func() {
						r, err := lim.Allow(t.Context(), "key")
						require.NoError(t, err)
						require.Equal(t, ratelimit.SourceFailOpen, r.Source())
					})
				}
				synctest.Wait()
				inner.before = nil
				if c.serves {
					time.Sleep(time.Second)
					for range 8 {
						require.Equal(t, ratelimit.SourceStore, source(t, lim))
					}
				}
				time.Sleep(c.after)
				close(cut)
				callers.Wait()
				require.Equal(t, c.want, state(lim))
			})
		})
	}
}
