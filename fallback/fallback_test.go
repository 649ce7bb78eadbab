package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/bench"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// faulty is a limiter whose store fails on demand. It counts the calls that reach
// the store, failed or not.
type faulty struct {
	ratelimit.Limiter
	down  atomic.Bool
	calls atomic.Int64
	// before, if set, is what each call does first; its error is the call's.
	before func(ctx context.Context) error
}

// comeBack ends an outage, and lets the time pass after which a breaker probes.
func (f *faulty) comeBack() {
	f.down.Store(false)
	time.Sleep(time.Second)
}

func (f *faulty) reach(ctx context.Context) error {
	f.calls.Add(1)
	if f.before != nil {
		if err := f.before(ctx); err != nil {
			return err
		}
	}
	if f.down.Load() {
		return fmt.Errorf("%w: on purpose", ratelimit.ErrStore)
	}
	return nil
}

func (f *faulty) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := f.reach(ctx); err != nil {
		return ratelimit.Result{}, err
	}
	return f.Limiter.AllowN(ctx, key, n)
}

func (f *faulty) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if err := f.reach(ctx); err != nil {
		return ratelimit.Result{}, err
	}
	return f.Limiter.Peek(ctx, key)
}

func (f *faulty) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if err := f.reach(ctx); err != nil {
		return err
	}
	return f.Limiter.Refund(ctx, key, charged, n)
}

func (f *faulty) Reset(ctx context.Context, key string) error {
	if err := f.reach(ctx); err != nil {
		return err
	}
	return f.Limiter.Reset(ctx, key)
}

// policies are the three, the local limiter admitting 2 events a minute.
func policies(t testing.TB) map[ratelimit.Source]fallback.Answer {
	return map[ratelimit.Source]fallback.Answer{
		ratelimit.SourceFailOpen:   fallback.FailOpen(),
		ratelimit.SourceFailClosed: fallback.FailClosed(),
		ratelimit.SourceLocal:      fallback.FailTo(inMemory(t, "sliding_log", ratelimit.PerMinute(2))),
	}
}

// withFaulty runs a test in a bubble for each policy, with a bucket of 10 an hour
// whose store the test makes fail.
func withFaulty(t *testing.T, test func(t *testing.T, inner *faulty, source ratelimit.Source, p fallback.Answer)) {
	t.Helper()
	for _, source := range []ratelimit.Source{ratelimit.SourceFailOpen, ratelimit.SourceFailClosed, ratelimit.SourceLocal} {
		t.Run(source.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
				test(t, inner, source, policies(t)[source])
			})
		})
	}
}

func source(t testing.TB, lim ratelimit.Limiter) ratelimit.Source {
	t.Helper()
	return allowN(t, lim, 1).Source()
}

// ---- Construction and input.

func TestAFallbackWithoutItsPartsIsRefused(t *testing.T) {
	tooMany := math.MaxInt32
	tooMany++ // below 0 where an int has 32 bits
	good := inMemory(t, "token_bucket", ratelimit.PerSecond(1))
	tests := []struct {
		name string
		l    ratelimit.Limiter
		p    fallback.Answer
		opts []fallback.Option
	}{
		{name: "no limiter", p: fallback.FailOpen()},
		{name: "a limiter that is a nil pointer", l: (*ratelimit.TokenBucket)(nil), p: fallback.FailOpen()},
		{name: "no policy", l: good},
		{name: "no local limiter", l: good, p: fallback.FailTo(nil)},
		{name: "a local limiter that is a nil pointer", l: good, p: fallback.FailTo((*ratelimit.SlidingLog)(nil))},
		{name: "a nil option", l: good, p: fallback.FailOpen(), opts: []fallback.Option{nil}},
		{name: "no failures", l: good, p: fallback.FailOpen(), opts: []fallback.Option{fallback.WithBreaker(0, time.Second)}},
		{name: "too many failures", l: good, p: fallback.FailOpen(), opts: []fallback.Option{fallback.WithBreaker(tooMany, time.Second)}},
		{name: "a probe at once", l: good, p: fallback.FailOpen(), opts: []fallback.Option{fallback.WithBreaker(1, 0)}},
	}
	for _, tt := range tests {
		f, err := fallback.New(tt.l, tt.p, tt.opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, tt.name)
		require.Nil(t, f, tt.name)
	}
	_, err := fallback.New(good, fallback.FailOpen(), fallback.WithBreaker(math.MaxInt32, 1))
	require.NoError(t, err)
	var zero fallback.Limiter
	_, err = zero.Allow(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestBadInputIsAnErrorInAnOutageToo(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	withFaulty(t, func(t *testing.T, inner *faulty, _ ratelimit.Source, p fallback.Answer) {
		lim := failover(t, inner, p, fallback.WithBreaker(1, time.Second))
		admitted := allowN(t, lim, 1)
		inner.down.Store(true)
		allowN(t, lim, 1)
		calls := inner.calls.Load()
		for want, call := range map[error]func() (ratelimit.Result, error){
			ratelimit.ErrInvalidN:   func() (ratelimit.Result, error) { return lim.AllowN(t.Context(), "key", 0) },
			ratelimit.ErrInvalidKey: func() (ratelimit.Result, error) { return lim.Peek(t.Context(), "") },
			context.Canceled:        func() (ratelimit.Result, error) { return lim.Allow(done, "key") },
		} {
			r, err := call()
			require.ErrorIs(t, err, want)
			require.Zero(t, r)
		}
		_, err := lim.Allow(t.Context(), strings.Repeat("k", 64<<10+1))
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", admitted, 0), ratelimit.ErrInvalidN)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidN)
		require.ErrorIs(t, lim.Reset(t.Context(), ""), ratelimit.ErrInvalidKey)
		require.Equal(t, calls, inner.calls.Load())
	})
}

// ---- The breaker.

func TestTheFirstFailuresAreAnsweredByThePolicyAndThenTheStoreIsLeftAlone(t *testing.T) {
	withFaulty(t, func(t *testing.T, inner *faulty, want ratelimit.Source, p fallback.Answer) {
		lim := failover(t, inner, p)
		require.Equal(t, ratelimit.SourceStore, source(t, lim))
		inner.down.Store(true)
		for range 4 {
			require.Equal(t, want, source(t, lim))
		}
		inner.down.Store(false)
		require.Equal(t, ratelimit.SourceStore, source(t, lim), "4 failures do not open it")
		inner.down.Store(true)
		inner.calls.Store(0)
		for range 100 {
			require.Equal(t, want, source(t, lim))
		}
		require.EqualValues(t, 5, inner.calls.Load(), "5 in a row do")
	})
}

func TestAProbeASecondAsksAFailingStore(t *testing.T) {
	withFaulty(t, func(t *testing.T, inner *faulty, want ratelimit.Source, p fallback.Answer) {
		lim := failover(t, inner, p, fallback.WithBreaker(1, time.Second))
		inner.down.Store(true)
		for i := range 4 {
			for range 10 {
				require.Equal(t, want, source(t, lim))
			}
			require.EqualValues(t, i+1, inner.calls.Load())
			time.Sleep(time.Second - 1)
			require.Equal(t, want, source(t, lim))
			require.EqualValues(t, i+1, inner.calls.Load())
			time.Sleep(time.Nanosecond)
		}
		inner.down.Store(false)
		for range 3 {
			require.Equal(t, ratelimit.SourceStore, source(t, lim))
		}
	})
}

func TestOneOf1000CallersIsTheProbe(t *testing.T) {
	withFaulty(t, func(t *testing.T, inner *faulty, want ratelimit.Source, p fallback.Answer) {
		lim := failover(t, inner, p, fallback.WithBreaker(1, time.Second))
		inner.down.Store(true)
		allowN(t, lim, 1)
		time.Sleep(time.Second)
		inner.down.Store(false)
		inner.calls.Store(0)
		answer := make(chan struct{})
		inner.before = func(context.Context) error { <-answer; return nil }

		var bySource [5]atomic.Int64
		var callers sync.WaitGroup
		for range 1000 {
			callers.Go(func() { bySource[source(t, lim)].Add(1) })
		}
		synctest.Wait()
		require.EqualValues(t, 1, inner.calls.Load())
		require.EqualValues(t, 999, bySource[want].Load(), "all others are answered while it is under way")
		close(answer)
		callers.Wait()
		require.EqualValues(t, 1, bySource[ratelimit.SourceStore].Load())
		require.Equal(t, ratelimit.SourceStore, source(t, lim))
	})
}

// Anything that is not a failure may count as a success or as nothing.
func TestErrorsThatAreNotTheStoresNeverOpenTheBreaker(t *testing.T) {
	type call func(t *testing.T, lim ratelimit.Limiter, inner *faulty) error
	allow := func(t *testing.T, lim ratelimit.Limiter) error {
		_, err := lim.Allow(t.Context(), "key")
		return err
	}
	failure := errors.New("no such user")
	tests := map[string]struct {
		call   call
		resets bool // the count of failures in a row
	}{
		"an admission": {resets: true, call: func(t *testing.T, lim ratelimit.Limiter, _ *faulty) error { return allow(t, lim) }},
		"a denial": {resets: true, call: func(t *testing.T, lim ratelimit.Limiter, _ *faulty) error {
			r, err := lim.AllowN(t.Context(), "key", 11)
			require.False(t, r.Allowed)
			return err
		}},
		"the caller's cancel": {call: func(t *testing.T, _ ratelimit.Limiter, inner *faulty) error {
			inner.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			return context.Canceled
		}},
		"the caller's deadline": {call: func(t *testing.T, _ ratelimit.Limiter, inner *faulty) error {
			inner.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			return context.DeadlineExceeded
		}},
		"an error of a limit function": {call: func(t *testing.T, lim ratelimit.Limiter, inner *faulty) error {
			inner.before = func(context.Context) error { return failure }
			require.Equal(t, failure, allow(t, lim))
			return nil
		}},
		"an invalid limit": {call: func(t *testing.T, lim ratelimit.Limiter, inner *faulty) error {
			inner.before = func(context.Context) error { return ratelimit.ErrInvalidLimit }
			require.ErrorIs(t, allow(t, lim), ratelimit.ErrInvalidLimit)
			return nil
		}},
		"invalid input": {call: func(t *testing.T, lim ratelimit.Limiter, _ *faulty) error {
			_, err := lim.AllowN(t.Context(), "key", 0)
			require.ErrorIs(t, err, ratelimit.ErrInvalidN)
			return nil
		}},
		"a panic": {call: func(t *testing.T, lim ratelimit.Limiter, inner *faulty) error {
			inner.before = func(context.Context) error { panic("limit function") }
			require.Panics(t, func() { _ = allow(t, lim) })
			return nil
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			withFaulty(t, func(t *testing.T, inner *faulty, degraded ratelimit.Source, p fallback.Answer) {
				lim := failover(t, inner, p, fallback.WithBreaker(2, time.Minute))
				makeCall := func() {
					switch want := tt.call(t, lim, inner); {
					case errors.Is(want, context.Canceled):
						ctx, cancel := context.WithCancel(t.Context())
						time.AfterFunc(time.Millisecond, cancel)
						_, err := lim.Allow(ctx, "key")
						require.Equal(t, want, err)
					case errors.Is(want, context.DeadlineExceeded):
						ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
						defer cancel()
						_, err := lim.Allow(ctx, "key")
						require.Equal(t, want, err)
					default:
						require.NoError(t, want)
					}
					inner.before = nil
				}
				for range 10 {
					makeCall()
				}
				calls := inner.calls.Load()
				require.NotEqual(t, degraded, source(t, lim))
				require.Equal(t, calls+1, inner.calls.Load())

				fail := func() {
					inner.down.Store(true)
					require.Equal(t, degraded, source(t, lim))
					inner.down.Store(false)
				}
				fail()
				makeCall()
				fail()
				calls = inner.calls.Load()
				_, err := lim.Peek(t.Context(), "key")
				require.NoError(t, err)
				asked := inner.calls.Load() > calls
				require.Equal(t, tt.resets, asked, "between two failures it does not count, unless it is a success")
			})
		})
	}
}

func TestAProbeThatEndsWithItsCallerLeavesTheProbeToTheNextOne(t *testing.T) {
	withFaulty(t, func(t *testing.T, inner *faulty, want ratelimit.Source, p fallback.Answer) {
		lim := failover(t, inner, p, fallback.WithBreaker(1, time.Second))
		inner.down.Store(true)
		allowN(t, lim, 1)
		time.Sleep(time.Second)
		inner.down.Store(false)

		inner.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := lim.Allow(ctx, "key")
		require.Equal(t, context.DeadlineExceeded, err)
		inner.before = func(context.Context) error { panic("limit function") }
		require.Panics(t, func() { _, _ = lim.Allow(t.Context(), "key") })
		inner.before = func(context.Context) error { runtime.Goexit(); return nil }
		var gone sync.WaitGroup
		gone.Go(func() { _, _ = lim.Allow(t.Context(), "key") })
		gone.Wait()
		inner.before = nil
		require.Equal(t, ratelimit.SourceStore, source(t, lim))
		require.Equal(t, ratelimit.SourceStore, source(t, lim))
	})
}

// A Rate of 0 is decided without the store, which may still be down.
func TestADecisionThatDidNotNeedTheStoreDoesNotCloseTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		inner := inMemory(t, "token_bucket", ratelimit.PerHour(10), ratelimit.WithLimitFunc(
			func(_ context.Context, key string) (ratelimit.Limit, error) {
				switch {
				case key == "blocked":
					return ratelimit.PerHour(0), nil
				case down.Load():
					return ratelimit.Limit{}, ratelimit.ErrStore
				}
				return ratelimit.Limit{}, nil
			}))
		lim := failover(t, inner, fallback.FailClosed(), fallback.WithBreaker(2, time.Second))
		down.Store(true)
		require.Equal(t, ratelimit.SourceFailClosed, source(t, lim))
		require.Equal(t, ratelimit.SourceFailClosed, source(t, lim))
		time.Sleep(time.Second)
		require.Equal(t, ratelimit.Result{RetryAfter: ratelimit.Never}, allow(t, lim, "blocked"))
		require.Equal(t, ratelimit.SourceFailClosed, source(t, lim), "the probe")
		down.Store(false)
		require.Equal(t, ratelimit.SourceFailClosed, source(t, lim), "it has failed")
		time.Sleep(time.Second)
		require.Equal(t, ratelimit.SourceStore, source(t, lim))
	})
}

// ---- The policies.

func TestFailOpenAdmitsAndKnowsNothingElse(t *testing.T) {
	withFaulty(t, func(t *testing.T, inner *faulty, policy ratelimit.Source, p fallback.Answer) {
		if policy != ratelimit.SourceFailOpen {
			return
		}
		lim := failover(t, inner, p)
		inner.down.Store(true)
		for range 20 {
			r := allowN(t, lim, 1_000_000)
			require.Equal(t, ratelimit.SourceFailOpen, r.Source())
			require.True(t, r.Allowed)
			require.Zero(t, r.Limit+r.Remaining+int(r.RetryAfter+r.ResetAfter+r.Delay))
			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, r, peek)
			require.NoError(t, lim.Refund(t.Context(), "key", r, 1), "nothing was charged")
		}
	})
}

// A caller that wants no probe at all may ask for one in 290 years.
func TestAProbeThatIsFarAwayIsNotSaidToBeNear(t *testing.T) {
	for _, after := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Microsecond, 100 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
			inner.down.Store(true)
			lim := failover(t, inner, fallback.FailClosed(), fallback.WithBreaker(1, after))
			for range 3 {
				r := allowN(t, lim, 1)
				require.Greater(t, r.RetryAfter, 99*365*24*time.Hour)
				require.Zero(t, r.RetryAfter%time.Microsecond)
				time.Sleep(time.Second + 1)
			}
			require.EqualValues(t, 1, inner.calls.Load())
		})
	}
}

func TestFailClosedSaysWhenTheNextProbeIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailClosed(), fallback.WithBreaker(2, 10*time.Second))
		inner.down.Store(true)
		refused := func(want time.Duration) {
			t.Helper()
			r := allowN(t, lim, 1)
			require.Equal(t, want, r.RetryAfter)
			require.Equal(t, ratelimit.SourceFailClosed, r.Source())
			require.Zero(t, r.Limit+r.Remaining+int(r.ResetAfter+r.Delay))
			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.False(t, peek.Allowed)
			require.ErrorIs(t, lim.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN)
		}
		r := allowN(t, lim, 1)
		require.Equal(t, time.Second, r.RetryAfter, "the breaker is closed")
		refused(10 * time.Second)
		time.Sleep(3*time.Second + 1)
		refused(7 * time.Second) // rounded up to the µs
		time.Sleep(6500 * time.Millisecond)
		refused(time.Second)
		time.Sleep(500 * time.Millisecond)
		refused(10 * time.Second) // the probe has failed
	})
}

func TestWaitWaitsForTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		share := fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(2)))
		for _, p := range []fallback.Answer{fallback.FailClosed(), share} {
			lim := failover(t, inner, p, fallback.WithBreaker(1, 5*time.Second))
			inner.down.Store(true)
			allowN(t, lim, 3)
			inner.down.Store(false)
			took, r, err := wait(t, t.Context(), lim, 3) // more than the share ever admits
			require.NoError(t, err)
			require.Equal(t, ratelimit.SourceStore, r.Source())
			require.InDelta(t, 5*time.Second, took, float64(10*time.Millisecond))
		}
	})
}

func TestTheLocalLimiterDecidesInAnOutage(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			limit := ratelimit.PerMinute(4)
			inner := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerMinute(8))}
			twin := inMemory(t, algorithm, limit)
			lim := failover(t, inner, fallback.FailTo(inMemory(t, algorithm, limit)))
			inner.down.Store(true)
			for i := range 7 {
				want, got := allowN(t, twin, 1), allowN(t, lim, 1)
				require.Equal(t, ratelimit.SourceLocal, got.Source())
				require.Equal(t, []any{want.Allowed, want.Limit, want.Remaining, want.RetryAfter, want.ResetAfter, want.Delay},
					[]any{got.Allowed, got.Limit, got.Remaining, got.RetryAfter, got.ResetAfter, got.Delay}, "%s %d", algorithm, i)
			}
			r := allowN(t, lim, 5)
			require.False(t, r.Allowed)
			require.Equal(t, time.Second, r.RetryAfter, "too large for the share, perhaps not for the store")
		})
	}
}

func TestARateOf0IsStillNeverInAnOutage(t *testing.T) {
	inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerMinute(8))}
	inner.down.Store(true)
	lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerMinute(0))))
	require.Equal(t, ratelimit.Never, allowN(t, lim, 1).RetryAfter)
	lim = failover(t, inner, fallback.FailTo(ratelimittest.Static(
		ratelimit.Result{RetryAfter: ratelimit.Never}.WithMark(ratelimit.NewMark(t, ratelimit.SourceStore, nil)), nil)))
	require.Equal(t, ratelimit.Never, allowN(t, lim, 1).RetryAfter, "of another package")
	lim = failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerMinute(1))))
	require.Equal(t, time.Second, allowN(t, lim, 2).RetryAfter, "too large for a share of 1")
}

func TestAPeekInAnOutageSaysNeverOfARateOf0BesideALimitThatIsUsedUp(t *testing.T) {
	limit := ratelimit.PerDay(5)
	limits := func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }
	s := onSwitch(t)
	s.down = true
	l := all(t, newLimiter(t, "token_bucket", s, ratelimit.PerDay(1)),
		newLimiter(t, "token_bucket", s, limit, ratelimit.WithLimitFunc(limits)))
	lim := failover(t, l, fallback.FailLocal(1), fallback.WithBreaker(1, time.Hour))
	require.True(t, allowN(t, lim, 1).Allowed)
	limit = ratelimit.PerDay(0)
	require.Equal(t, ratelimit.Never, allowN(t, lim, 1).RetryAfter)
	require.Equal(t, ratelimit.Never, peek(t, lim, "key").RetryAfter)
}

func TestErrorsOfTheLocalLimiterAreErrors(t *testing.T) {
	inner, local := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerMinute(8))}, &faulty{}
	local.down.Store(true)
	inner.down.Store(true)
	lim := failover(t, inner, fallback.FailTo(local))
	r, err := lim.Allow(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)
	require.Zero(t, r)

	inner.down.Store(false)
	require.Equal(t, ratelimit.SourceStore, source(t, lim), "without a warm start the store still decides")
}

// ---- The warm start.

func TestAnOutageFindsTheLocalLimiterWarm(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			inner := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerHour(100))}
			lim := failover(t, inner, fallback.FailTo(inMemory(t, algorithm, ratelimit.PerHour(10))))
			for range 6 {
				allowN(t, lim, 1)
			}
			require.False(t, allowN(t, lim, 1000).Allowed)
			_, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			inner.down.Store(true)
			require.Equal(t, 4, admitted(t, lim, 10), algorithm)
		})
	}
}

func TestAdmissionsOfUnlimitedLimitsAreNotMirrored(t *testing.T) {
	local := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	unlimited := all(t, inMemory(t, "token_bucket", ratelimit.Unlimited()), inMemory(t, "sliding_log", ratelimit.Unlimited()))
	lim := failover(t, unlimited, fallback.FailTo(local))
	require.NoError(t, lim.Refund(t.Context(), "key", allowN(t, lim, 4), 4))
	allowN(t, lim, 4)
	overcharge(t, lim, 4)
	require.Equal(t, 10, peek(t, local, "key").Remaining)
}

func TestAChargeThatIsLargerThanTheShareUsesItUp(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			inner := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerHour(100))}
			lim := failover(t, inner, fallback.FailTo(inMemory(t, algorithm, ratelimit.PerHour(10))))
			allowN(t, lim, 3)
			allowN(t, lim, 40)
			inner.down.Store(true)
			require.Zero(t, admitted(t, lim, 10), algorithm)
		})
	}
}

// A corrupt value, or a time written by a wrong clock, is not an outage of the store, which has
// answered and answers for other keys.
func TestAKeyWithACorruptStateOpensTheBreakerForNoOther(t *testing.T) {
	for _, class := range []error{store.ErrCorrupt, store.ErrClock} {
		t.Run(class.Error(), func(t *testing.T) { opensForNoOther(t, class) })
	}
}

func opensForNoOther(t *testing.T, class error) {
	withFaulty(t, func(t *testing.T, inner *faulty, degraded ratelimit.Source, p fallback.Answer) {
		corrupt := func(context.Context) error { return class }
		lim := failover(t, inner, p, fallback.WithBreaker(2, time.Minute))
		for range 10 {
			inner.before = corrupt
			require.Equal(t, degraded, source(t, lim))
			inner.before = nil
		}
		other, err := lim.Peek(t.Context(), "other")
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceStore, other.Source())

		inner.down.Store(true)
		require.Equal(t, degraded, source(t, lim))
		require.Equal(t, degraded, source(t, lim))
		inner.down.Store(false)
		time.Sleep(time.Minute)
		inner.before = corrupt // in the probe
		require.Equal(t, degraded, source(t, lim))
		inner.before = nil
		other, err = lim.Peek(t.Context(), "other")
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceStore, other.Source(), "the next call is the probe")

		inner.down.Store(true)
		source(t, lim)
		source(t, lim)
		inner.down.Store(false)
		time.Sleep(time.Minute)
		inner.before = func(context.Context) error { inner.before = nil; return class } // when it is looked at
		require.NoError(t, lim.Reset(t.Context(), "key"), "which mends it")
	})
}

// A full queue of this process says nothing about the store. The policy answers the calls that
// found no room, however many, and the store decides all others.
func TestAFullQueueOfThisProcessIsNoOutage(t *testing.T) {
	full := func(context.Context) error { return fmt.Errorf("%w: no connection was free", store.ErrOverloaded) }
	withFaulty(t, func(t *testing.T, inner *faulty, degraded ratelimit.Source, p fallback.Answer) {
		lim := failover(t, inner, p, fallback.WithBreaker(2, time.Minute))
		for range 10 {
			inner.before = full
			require.Equal(t, degraded, source(t, lim))
			require.ErrorIs(t, lim.Reset(t.Context(), "third"), store.ErrOverloaded)
			inner.before = nil
		}
		require.EqualValues(t, 20, inner.calls.Load(), "each call asks the store")
		peek := func() ratelimit.Source {
			r, err := lim.Peek(t.Context(), "other")
			require.NoError(t, err)
			return r.Source()
		}
		require.Equal(t, ratelimit.SourceStore, peek())

		fail := func() {
			inner.before = nil
			inner.down.Store(true)
			require.Equal(t, degraded, peek())
			inner.down.Store(false)
		}
		fail()
		inner.before = full
		require.Equal(t, degraded, peek())
		fail()
		calls := inner.calls.Load()
		require.Equal(t, degraded, peek())
		require.Equal(t, calls, inner.calls.Load(), "two failures open it, and what came between them was no success")

		time.Sleep(time.Minute)
		inner.before = full // in the probe
		require.Equal(t, degraded, peek())
		inner.before = nil
		require.Equal(t, ratelimit.SourceStore, peek(), "the next call is the probe")
		require.Equal(t, ratelimit.SourceStore, peek())
	})
}

// An error that no policy handles is returned while the breaker is open.
func TestAnOpenBreakerSaysThatTheStoreIsUnavailable(t *testing.T) {
	withFaulty(t, func(t *testing.T, inner *faulty, _ ratelimit.Source, p fallback.Answer) {
		lim := failover(t, inner, p, fallback.WithBreaker(1, time.Minute))
		admitted := allowN(t, lim, 1)
		inner.down.Store(true)
		require.NotErrorIs(t, lim.Reset(t.Context(), "key"), store.ErrUnavailable, "this one has asked")
		require.ErrorIs(t, lim.Reset(t.Context(), "key"), store.ErrUnavailable)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", admitted, 1), store.ErrUnavailable)
		if _, err := lim.Charge(t.Context(), "key", 1); err != nil { // Local charges its own
			require.ErrorIs(t, err, store.ErrUnavailable)
		}
		time.Sleep(time.Minute)
		answer := make(chan struct{})
		inner.before = func(context.Context) error { <-answer; return nil }
		var probe sync.WaitGroup
		probe.Go(func() { _ = lim.Reset(t.Context(), "key") })
		synctest.Wait()
		require.ErrorIs(t, lim.Reset(t.Context(), "key"), store.ErrUnavailable, "while another call is the probe")
		close(answer)
		probe.Wait()
	})
}

// hasty is a limiter whose caller is gone when it has decided.
type hasty struct {
	*faulty
	cancel context.CancelFunc
}

func (h hasty) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	defer h.cancel()
	return h.faulty.AllowN(ctx, key, n)
}

func (h hasty) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	defer h.cancel()
	return h.faulty.Refund(ctx, key, charged, n)
}

func TestDecisionsAreMirroredEvenIfTheCallerHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		local := inMemory(t, "token_bucket", ratelimit.PerHour(5))
		h := &hasty{inner, cancel}
		lim := failover(t, h, fallback.FailTo(local))
		left := func() int {
			peek, err := local.Peek(t.Context(), "key")
			require.NoError(t, err)
			return peek.Remaining
		}
		r, err := lim.AllowN(ctx, "key", 3)
		require.NoError(t, err)
		require.Error(t, ctx.Err())
		require.Equal(t, 2, left())
		ctx, h.cancel = context.WithCancel(t.Context())
		require.NoError(t, lim.Refund(ctx, "key", r, 3))
		require.Error(t, ctx.Err())
		require.Equal(t, 5, left())
	})
}

// The first one's fallback has a fallback too, each with its own part in a Result.
func TestFallbacksNest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		second := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		third := inMemory(t, "token_bucket", ratelimit.PerHour(10))
		for name, lim := range map[string]ratelimit.Limiter{
			"on the right": failover(t, first, fallback.FailTo(failover(t, second, fallback.FailTo(third)))),
			"on the left":  failover(t, failover(t, first, fallback.FailTo(second)), fallback.FailTo(third)),
			"without end":  failover(t, failover(t, first, fallback.FailTo(second)), fallback.FailOpen()),
		} {
			for _, down := range [][2]bool{{false, false}, {true, false}, {true, true}} {
				first.down.Store(down[0])
				second.down.Store(down[1])
				r := allowN(t, lim, 4)
				require.True(t, r.Allowed)
				require.Equal(t, down[0], r.Source() != ratelimit.SourceStore, name)
				require.NoError(t, lim.Refund(t.Context(), "key", r, 4))
				for _, l := range []ratelimit.Limiter{first.Limiter, second.Limiter, third} {
					peek, err := l.Peek(t.Context(), "key")
					require.NoError(t, err)
					require.Equal(t, 10, peek.Remaining, "%s, %v", name, down)
				}
			}
		}
	})
}

// ---- What it costs.

func TestAnAnswerInAndAfterAnOutageAllocatesNothing(t *testing.T) {
	for want, p := range policies(t) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(1))}
		lim := failover(t, inner, p, fallback.WithBreaker(1, time.Hour))
		healthy := testing.AllocsPerRun(1000, func() { _, _ = lim.Allow(t.Context(), "key") })
		require.Zero(t, healthy, "%v, a denial of the store", want)
		inner.down.Store(true)
		require.Equal(t, want, source(t, lim))
		require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = lim.Allow(t.Context(), "key") }), want.String())

		lim = failover(t, inner, p, fallback.WithBreaker(1, time.Nanosecond))
		require.Equal(t, want, source(t, lim))
		inner.down.Store(false)
		require.Eventually(t, func() bool { return source(t, lim) == ratelimit.SourceStore }, time.Minute, time.Millisecond)
		require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = lim.Allow(t.Context(), "key") }), "%v, after the outage", want)
	}
}

// BenchmarkFallback measures what the wrapper adds to a limiter in memory
// (healthy, to be compared with bare), and a call while the breaker is open.
//
//	go test -run '^$' -bench Fallback -benchmem ./fallback
func BenchmarkFallback(b *testing.B) {
	limit := ratelimit.Limit{Rate: 1_000_000, Period: time.Millisecond}
	bucket := func() ratelimit.Limiter { return inMemory(b, "token_bucket", limit) }
	b.Run("bare", func(b *testing.B) { bench.Allow(b, bucket(), []string{"user:42"}, true) })
	for _, tt := range []struct {
		name   string
		policy fallback.Answer
	}{
		{"open", fallback.FailOpen()},
		{"closed", fallback.FailClosed()},
		{"local", fallback.FailTo(bucket())},
	} {
		inner := &faulty{Limiter: bucket()}
		b.Run(tt.name+"/healthy", func(b *testing.B) {
			bench.Allow(b, failover(b, bucket(), tt.policy), []string{"user:42"}, true)
		})
		b.Run(tt.name+"/outage", func(b *testing.B) {
			lim := failover(b, inner, tt.policy, fallback.WithBreaker(1, time.Hour))
			inner.down.Store(true)
			allow(b, lim, "user:42")
			bench.Allow(b, lim, []string{"user:42"}, tt.name != "closed")
		})
	}
}

func allowWithin(t testing.TB, lim ratelimit.Delayer) ratelimit.Result {
	t.Helper()
	r, err := lim.AllowWithin(t.Context(), "key", 1, time.Minute)
	require.NoError(t, err)
	return r
}

func TestAnOutageIsAnsweredByThePolicyToThoseWhoWaitToo(t *testing.T) {
	withFaulty(t, func(t *testing.T, inner *faulty, source ratelimit.Source, p fallback.Answer) {
		lim := failover(t, inner, p)
		require.Equal(t, ratelimit.SourceStore, allowWithin(t, lim).Source())
		inner.down.Store(true)
		r := allowWithin(t, lim)
		require.Equal(t, source, r.Source())
		require.Equal(t, source != ratelimit.SourceFailClosed, r.Allowed)
	})
}

// foreign is a wrapper of a third party.
type foreign struct{ ratelimit.Limiter }

func (f foreign) Unwrap() ratelimit.Limiter { return f.Limiter }

// A probe that sleeps would keep the breaker half open: every other key was refused for 29 s. A
// wrapper that decides in place of its store would hide failures, and FailOpen would overrule a
// deny list.
func TestLimitersThatSleepOrReplaceTheStoreAreRefusedAtAnyDepth(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	bucket, other := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5)), newLimiter(t, "sliding_log", mem, ratelimit.PerHour(7))
	waiter, err := throttle.NewWaiter(bucket, time.Minute)
	require.NoError(t, err)
	slowdown, err := throttle.NewSlowdown(bucket, throttle.Slow{Step: time.Second, Max: time.Second})
	require.NoError(t, err)
	tried, err := shadow.New(bucket, func(context.Context, string, int, ratelimit.Result, error) {})
	require.NoError(t, err)
	listed, err := accesslist.New(bucket)
	require.NoError(t, err)
	around := func(l ratelimit.Limiter) ratelimit.Limiter {
		r, err := observe.Around(l, nobody{})
		require.NoError(t, err)
		return r
	}
	for _, inside := range []ratelimit.Limiter{waiter, slowdown, tried, listed} {
		text := fmt.Sprintf("put the %T around", inside)
		deep := []ratelimit.Limiter{inside, around(inside), foreign{inside}, foreign{around(inside)}}
		if inside != ratelimit.Limiter(waiter) {
			deep = append(deep, all(t, other, inside), foreign{all(t, other, all(t, around(inside)))})
		}
		for _, l := range deep {
			_, err := fallback.New(l, fallback.FailOpen())
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%T", l)
			require.ErrorContains(t, err, text)
			_, err = fallback.New(bucket, fallback.FailTo(l))
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%T", l)
			require.ErrorContains(t, err, text)
		}
	}
	_, err = fallback.New(all(t, around(bucket), foreign{other}), fallback.FailTo(around(all(t, bucket, other))))
	require.NoError(t, err)
}
