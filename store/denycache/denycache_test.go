package denycache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/bench"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func newDenyCache(t testing.TB, s store.Store, opts ...denycache.Option) *denycache.Store {
	t.Helper()
	d, err := denycache.New(s, opts...)
	require.NoError(t, err)
	return d
}

func TestADenialEndsBeforeAStoreThatTruncatesItsTimeAdmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLimiter(t, "token_bucket", newDenyCache(t, distantMemory(t)), ratelimit.Limit{Rate: 2000, Period: time.Second, Burst: 1})
		time.Sleep(900) // ns
		require.True(t, allow(t, d, "key").Allowed, "at 0 µs by the store")
		require.Equal(t, 500*time.Microsecond, allow(t, d, "key").RetryAfter)
		time.Sleep(499_300)
		require.True(t, allow(t, d, "key").Allowed, "at 500.2 µs, 499.3 after it was denied")
	})
}

func TestADenialThatMeetsARefundOrAResetUnderWayIsForgotten(t *testing.T) {
	tests := []struct {
		name           string
		denial, change timing // both end by 40 ms
		then           time.Duration
	}{
		{"sent and back during the change, before it is decided", timing{2 * ms, 1 * ms, 1 * ms}, timing{0, 10 * ms, 10 * ms}, 11 * ms},
		{"sent before, back after the change", timing{0, 1 * ms, 30 * ms}, timing{2 * ms, 5 * ms, 5 * ms}, 35 * ms},
		{"sent before, back during the change", timing{0, 1 * ms, 3 * ms}, timing{2 * ms, 5 * ms, 5 * ms}, 8 * ms},
		{"sent during, back after the change", timing{2 * ms, 1 * ms, 30 * ms}, timing{0, 5 * ms, 5 * ms}, 35 * ms},
		{"before the change", timing{0, 1 * ms, 1 * ms}, timing{5 * ms, 5 * ms, 5 * ms}, 11 * ms},
	}
	for _, tt := range tests {
		for _, what := range []string{"Refund", "Reset"} {
			synctest.Test(t, func(t *testing.T) {
				far := distantMemory(t)
				d := newLimiter(t, "fixed_window", newDenyCache(t, far), ratelimit.PerDay(1))
				charged := allow(t, d, "key")
				var wg sync.WaitGroup
				tt.denial.call(t, &wg, func(ctx context.Context) {
					r, err := d.Allow(ctx, "key")
					require.NoError(t, err)
					require.False(t, r.Allowed)
				})
				tt.change.call(t, &wg, func(ctx context.Context) {
					if what == "Refund" {
						require.NoError(t, d.Refund(ctx, "key", charged, 1))
					} else {
						require.NoError(t, d.Reset(ctx, "key"))
					}
				})
				timing{sent: tt.then}.call(t, &wg, func(ctx context.Context) {
					r, err := d.Allow(ctx, "key")
					require.NoError(t, err)
					require.True(t, r.Allowed, "%s, %s", what, tt.name)
				})
				wg.Wait()
			})
		}
	}
}

func TestADenialThatMeetsAnAdmissionUnderAnotherLimitIsForgotten(t *testing.T) {
	tests := []struct {
		name              string
		denial, admission timing
	}{
		{"which is back first", timing{0, 1 * ms, 50 * ms}, timing{20 * ms, 1 * ms, 1 * ms}},
		{"which is back last", timing{20 * ms, 1 * ms, 1 * ms}, timing{19 * ms, 10 * ms, 10 * ms}},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			slow := ratelimit.Limit{Rate: 10, Period: time.Second}
			fast := ratelimit.Limit{Rate: 1000, Period: time.Second, Burst: 10}
			begin := time.Now()
			far := distantMemory(t)
			d := newLimiter(t, "token_bucket", newDenyCache(t, far), slow, ratelimit.WithLimitFunc(
				func(context.Context, string) (ratelimit.Limit, error) {
					if time.Since(begin) == tt.admission.sent {
						return fast, nil
					}
					return slow, nil
				}))
			require.True(t, allowN(t, d, 10).Allowed)
			var wg sync.WaitGroup
			allowAt := func(w timing, want bool) {
				w.call(t, &wg, func(ctx context.Context) {
					r, err := d.Allow(ctx, "key")
					require.NoError(t, err)
					require.Equal(t, want, r.Allowed, "%s, at %v", tt.name, w.sent)
				})
			}
			allowAt(tt.denial, false)
			allowAt(tt.admission, true)
			allowAt(timing{sent: 60 * ms}, true) // since the fast limit has refilled the bucket
			wg.Wait()
		})
	}
}

func TestADenialIsForgottenByAChargeUnderAnotherLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Limit{Rate: 10, Period: time.Hour}
		d := newLimiter(t, "token_bucket", newDenyCache(t, memory(t)), limit, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
		require.True(t, allowN(t, d, 10).Allowed)
		require.False(t, allowN(t, d, 1).Allowed)
		limit.Period = time.Second // which refills the bucket
		time.Sleep(time.Second)
		_, err := ratelimit.Charge(t.Context(), d, "key", 1)
		require.NoError(t, err)
		limit.Period = time.Hour
		require.Equal(t, 9, peek(t, d).Remaining)
		require.True(t, allowN(t, d, 9).Allowed)
	})
}

func TestADenialIsForgottenByAShadowUnderAnotherLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ns := spaceOf(t, "token_bucket")
		by := func(period time.Duration) store.Limit {
			return store.Limit{Rate: 10, Period: period.Microseconds(), Burst: 10}
		}
		d := newDenyCache(t, memory(t))
		take := func(n int64) bool {
			r, err := d.Take(t.Context(), ns, "key", by(time.Hour), n)
			require.NoError(t, err)
			return r.OK()
		}
		require.True(t, take(10))
		require.False(t, take(1))
		time.Sleep(time.Second) // which refills the bucket by the other limit
		require.NoError(t, d.Decide(t.Context(), []store.Request{{Namespace: ns, Key: "key", Limit: by(time.Second), N: 1, Op: store.OpShadow}}, make([]store.Reply, 1)))
		require.True(t, take(9))
	})
}

func TestAFloodCostsRedisACallPerRetryAfter(t *testing.T) {
	t.Parallel()
	span := time.Duration(effort.Of(200, 400)) * ms
	client := redistest.Start(t).Client(t)
	commands := func() (n int) { // that the server has run for limiters
		stats, err := client.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		_, line, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
		n, _ = strconv.Atoi(line[:max(0, strings.Index(line, ","))])
		return n
	}
	flood := func(lim ratelimit.Limiter, key string) (calls int64) {
		var wg sync.WaitGroup
		var n atomic.Int64
		for range 8 {
			wg.Go(func() {
				for end := time.Now().Add(span); time.Now().Before(end); n.Add(1) {
					if _, err := lim.Allow(t.Context(), key); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return n.Load()
	}
	for _, l := range []ratelimit.Limit{ratelimit.PerSecond(10), ratelimit.PerMinute(10)} {
		s := onRedis(t, client)
		lim := newLimiter(t, "token_bucket", s, l)
		before := commands()
		without := flood(lim, "plain")
		middle := commands()
		with := flood(newLimiter(t, "token_bucket", newDenyCache(t, s), l), "cached")
		after := commands()
		t.Logf("%v, 8 callers for %v: %d calls of Allow were %d commands; with a DenyCache %d were %d",
			l, span, without, middle-before, with, after-middle)
		require.GreaterOrEqual(t, 64*int64(middle-before), without, "a script is of 64 calls at most")
		require.Less(t, after-middle, 500, "a few times per RetryAfter each of 8 callers asks")
	}
}

// Waiters ask by AllowWithin. Where no event has a turn that is to come, that is AllowN.
func TestDenialsWithoutTurnsAreRememberedForWaiters(t *testing.T) {
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		synctest.Test(t, func(t *testing.T) {
			far := distantMemory(t)
			d := newLimiter(t, algorithm, newDenyCache(t, far), ratelimit.PerHour(1))
			require.True(t, allow(t, d, "key").Allowed)
			w, err := throttle.NewWaiter(d, time.Second)
			require.NoError(t, err)
			before := far.calls.Load()
			for range 5 {
				require.False(t, allow(t, w, "key").Allowed)
			}
			want := 1
			if hasBurst(algorithm) { // the store knows when a turn comes
				want = 5
			}
			require.EqualValues(t, want, far.calls.Load()-before, algorithm)
		})
	}
}

// ---- What a local denial says.

func TestALocalDenialTellsTheTimeThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 20}
		far := distantMemory(t)
		d := newLimiter(t, "token_bucket", newDenyCache(t, far), l)
		require.True(t, allowN(t, d, 17).Allowed)
		told, err := d.AllowN(context.WithValue(t.Context(), timing{}, timing{there: 7 * ms, back: 13 * ms}), "key", 5)
		require.NoError(t, err)
		require.Equal(t, 193*ms, told.RetryAfter)
		require.Equal(t, ratelimit.SourceStore, told.Source())

		time.Sleep(50*ms + 300)
		local := allowN(t, d, 5)
		want := told
		want.RetryAfter, want.ResetAfter = told.RetryAfter-50*ms, told.ResetAfter-50*ms // rounded up
		require.Equal(t, ratelimit.SourceDenyCache, local.Source())
		require.False(t, local.Allowed)
		require.Equal(t, want.Limit, local.Limit)
		require.Equal(t, want.Remaining, local.Remaining)
		require.Equal(t, want.RetryAfter, local.RetryAfter)
		require.Equal(t, want.ResetAfter, local.ResetAfter)
		require.Zero(t, local.Delay)
		require.Equal(t, local, allowN(t, d, 20), "a larger number may have to wait longer")
		require.Equal(t, ratelimit.Never, allowN(t, d, 21).RetryAfter)
		require.Equal(t, local.ResetAfter, allowN(t, d, 21).ResetAfter)
		require.EqualValues(t, 2, far.calls.Load())

		require.True(t, allowN(t, d, 3).Allowed, "a smaller number is the store's to decide")
		require.EqualValues(t, 3, far.calls.Load())
	})
}

func TestALocalDenialEndsAThousandthBeforeTheStoresOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := distantMemory(t)
		d := newLimiter(t, "fixed_window", newDenyCache(t, far), ratelimit.PerMinute(1))
		allow(t, d, "key")
		require.Equal(t, time.Minute, allow(t, d, "key").RetryAfter)
		time.Sleep(time.Minute - 60*ms - time.Microsecond - 1)
		require.Equal(t, ratelimit.SourceDenyCache, allow(t, d, "key").Source())
		time.Sleep(time.Nanosecond)
		require.Equal(t, ratelimit.SourceStore, allow(t, d, "key").Source())
		require.EqualValues(t, 3, far.calls.Load())
		require.Equal(t, ratelimit.SourceDenyCache, allow(t, d, "key").Source(), "and begins again")
	})
}

// Two denials are under way at once.
func TestOfTwoDenialsTheOneOfFewerEventsIsRememberedThenTheLaterEnd(t *testing.T) {
	tests := []struct {
		name          string
		first, second timing
		n, m          int
		then          time.Duration
	}{
		{"fewer events, back last", timing{0, 0, 10 * ms}, timing{1 * ms, 0, 1 * ms}, 1, 3, 20 * ms},
		{"fewer events, back first", timing{0, 0, 1 * ms}, timing{0, 0, 10 * ms}, 1, 3, 20 * ms},
		{"decided earlier, back last", timing{0, 30 * ms, 10 * ms}, timing{20 * ms, 1 * ms, 1 * ms}, 1, 1, 980 * ms},
		{"decided earlier, back first", timing{0, 30 * ms, 1 * ms}, timing{20 * ms, 1 * ms, 30 * ms}, 1, 1, 980 * ms},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			d := newLimiter(t, "fixed_window", newDenyCache(t, distantMemory(t)), ratelimit.PerSecond(3))
			allowN(t, d, 3)
			var wg sync.WaitGroup
			deny := func(w timing, n int, source ratelimit.Source) {
				w.call(t, &wg, func(ctx context.Context) {
					r, err := d.AllowN(ctx, "key", n)
					require.NoError(t, err)
					require.False(t, r.Allowed)
					require.Equal(t, source, r.Source(), tt.name)
				})
			}
			deny(tt.first, tt.n, ratelimit.SourceStore)
			deny(tt.second, tt.m, ratelimit.SourceStore)
			deny(timing{sent: tt.then}, 1, ratelimit.SourceDenyCache)
			wg.Wait()
		})
	}
}

func TestADenialTakesThePlaceOfOneThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLimiter(t, "token_bucket", newDenyCache(t, distantMemory(t)), ratelimit.PerSecond(10))
		allowN(t, d, 10)
		require.Equal(t, 100*ms, allowN(t, d, 1).RetryAfter)
		time.Sleep(150 * ms)
		require.Equal(t, ratelimit.SourceStore, allowN(t, d, 5).Source())
		require.Equal(t, ratelimit.SourceDenyCache, allowN(t, d, 5).Source())
	})
}

func TestADenialThatHasEndedOnItsWayIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := newDenyCache(t, distantMemory(t))
		d := newLimiter(t, "token_bucket", cache, ratelimit.PerSecond(10))
		allowN(t, d, 10)
		r, err := d.Allow(context.WithValue(t.Context(), timing{}, timing{back: 200 * ms}), "key")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Zero(t, cache.Len())
	})
}

func TestADenialIsRememberedNoLongerThanItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := distantMemory(t)
		d := newLimiter(t, "fixed_window", newDenyCache(t, far, denycache.WithMaxAge(time.Second)), ratelimit.PerDay(1))
		allow(t, d, "key")
		allow(t, d, "key")
		time.Sleep(time.Second - 1)
		r := allow(t, d, "key")
		require.Equal(t, ratelimit.SourceDenyCache, r.Source())
		require.Equal(t, 24*time.Hour-time.Second+time.Microsecond, r.RetryAfter)
		time.Sleep(time.Nanosecond)
		require.Equal(t, ratelimit.SourceStore, allow(t, d, "key").Source())
	})
}

// Waiters ask again when the first of them may have been admitted.
func TestWaitWaitsThroughADenyCache(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			d := newLimiter(t, algorithm, newDenyCache(t, memory(t)), ratelimit.PerSecond(10))
			require.True(t, allowN(t, d, 10).Allowed)
			require.False(t, allowN(t, d, 1).Allowed)
			began := time.Now()
			r, err := ratelimit.Wait(t.Context(), d, "key", 10)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.LessOrEqual(t, time.Since(began), 2500*ms)
		})
	}
}

// ---- What is not remembered.

func TestOnlyTheStoresOwnDenialsWithAnEndAreRemembered(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	cache := newDenyCache(t, mem)
	d := newLimiter(t, "token_bucket", cache, ratelimit.PerHour(2))

	require.Equal(t, ratelimit.Never, allowN(t, d, 3).RetryAfter)
	require.Zero(t, cache.Len(), "it has no end")
	require.True(t, allowN(t, d, 2).Allowed)
	require.Zero(t, cache.Len(), "it is no denial")
	require.Equal(t, ratelimit.SourceStore, allowN(t, d, 1).Source())
	require.Equal(t, 1, cache.Len())
	require.Equal(t, ratelimit.SourceDenyCache, allowN(t, d, 1).Source())

	none := newLimiter(t, "token_bucket", cache, ratelimit.PerHour(0))
	require.Equal(t, ratelimit.Result{RetryAfter: ratelimit.Never}, allowN(t, none, 1))
	require.Equal(t, 1, cache.Len())
}

func TestNonsenseOfAStoreIsPassedOnAndForgotten(t *testing.T) {
	failure := errors.New("no answer")
	var reply store.Reply
	var err error
	answers := stub{memory(t), func(string, int64) (store.Reply, error) { return reply, err }}
	cache := newDenyCache(t, answers)
	lim, d := newLimiter(t, "fixed_window", answers, ratelimit.PerDay(1)), newLimiter(t, "fixed_window", cache, ratelimit.PerDay(1))
	for _, tt := range []struct {
		left time.Duration
		err  error
	}{
		{err: failure}, {left: time.Hour, err: failure}, {left: 0}, {left: -time.Hour}, {left: ratelimit.Never},
	} {
		reply, err = denial(tt.left), tt.err
		want, _ := lim.Allow(t.Context(), "key")
		for range 2 {
			got, err := d.Allow(t.Context(), "key")
			require.Equal(t, want, got, tt.left)
			require.Equal(t, tt.err, err)
		}
		require.Zero(t, cache.Len(), tt.left)
	}
	reply, err = denial(time.Hour), nil
	allow(t, d, "key")
	require.Equal(t, ratelimit.SourceDenyCache, allow(t, d, "key").Source())
}

func TestALimitFunctionIsAskedOnceACallAndItsLimitDecides(t *testing.T) {
	for _, algorithm := range algorithms {
		limits := []ratelimit.Limit{ratelimit.PerHour(3), ratelimit.PerHour(1), ratelimit.PerHour(1), ratelimit.PerHour(3), {}, ratelimit.PerHour(0), ratelimit.PerHour(-1)}
		var calls int
		far := distantMemory(t)
		cache := newDenyCache(t, far)
		d := newLimiter(t, algorithm, cache, ratelimit.PerHour(4), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) {
				calls++
				return limits[calls-1], nil
			}))
		require.Equal(t, 2, allowN(t, d, 1).Remaining)
		require.Equal(t, ratelimit.SourceStore, allowN(t, d, 1).Source(), "denied")
		require.Equal(t, 1, cache.Len())
		require.Equal(t, ratelimit.SourceDenyCache, allowN(t, d, 1).Source())
		require.Equal(t, 1, allowN(t, d, 1).Remaining, "the limit is raised")
		require.Zero(t, cache.Len())
		require.Equal(t, 4, allowN(t, d, 1).Limit, "the constructor's")
		require.Equal(t, ratelimit.Result{RetryAfter: ratelimit.Never}, allowN(t, d, 1))
		_, err := d.Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		require.Equal(t, len(limits), calls)
		require.EqualValues(t, 4, far.calls.Load())
	}
}

func TestADenyCacheAsksForTurnsThoughItKnowsADenial(t *testing.T) {
	limit := ratelimit.Limit{Rate: 1, Period: time.Hour, Burst: 2}
	for name, opts := range map[string][]ratelimit.Option{
		"one limit": nil,
		"a limit function": {ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			return limit, nil
		})},
	} {
		lim := newLimiter(t, "token_bucket", newDenyCache(t, memory(t)), limit, opts...)
		allowN(t, lim, 2)
		allowN(t, lim, 1)
		require.Equal(t, ratelimit.SourceDenyCache, allowN(t, lim, 1).Source(), name)
		r := allowWithin(t, lim, 1, time.Hour)
		require.True(t, r.Allowed, name)
		require.InDelta(t, time.Hour, r.Delay, float64(time.Minute))
		require.False(t, allowN(t, lim, 1).Allowed)
		require.False(t, allowWithin(t, lim, 1, time.Hour).Allowed)
	}
}

// A denial under a limit that is no longer in force must not outlive what an admission
// under another has made of the key.
func TestADenyCacheForgetsADenialUnderAnotherLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Limit{Rate: 1, Period: time.Hour, Burst: 10}
		slow := limit
		lim := newLimiter(t, "token_bucket", newDenyCache(t, memory(t)), limit,
			ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
		allowN(t, lim, 10)
		require.False(t, allowN(t, lim, 1).Allowed)
		limit = ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 10}
		time.Sleep(500 * time.Millisecond)
		require.True(t, allowWithin(t, lim, 1, 0).Allowed)
		limit = slow
		require.True(t, allowN(t, lim, 1).Allowed)
	})
}

// ---- Construction and input.

func TestBadDenyCachesAreRefused(t *testing.T) {
	mem := memory(t)
	tests := []struct {
		name string
		s    store.Store
		opt  []denycache.Option
	}{
		{"no store", nil, nil},
		{"a nil pointer", (*memstore.Store)(nil), nil},
		{"a nil option", mem, []denycache.Option{nil}},
		{"no entry", mem, []denycache.Option{denycache.WithMaxKeys(0)}},
		{"too many", mem, []denycache.Option{denycache.WithMaxKeys(1<<24 + 1)}},
		{"no age", mem, []denycache.Option{denycache.WithMaxAge(0)}},
		{"below a microsecond", mem, []denycache.Option{denycache.WithMaxAge(999)}},
	}
	for _, tt := range tests {
		d, err := denycache.New(tt.s, tt.opt...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, tt.name)
		require.Nil(t, d, tt.name)
	}
	newDenyCache(t, mem, denycache.WithMaxKeys(1<<24), denycache.WithMaxAge(math.MaxInt64))
}

func TestALimiterOnTheZeroDenyCacheIsRefused(t *testing.T) {
	var d denycache.Store
	for _, algorithm := range algorithms {
		_, err := ratelimit.New(algorithm, &d, ratelimit.PerHour(1))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, "was not made by its constructor")
	}
	require.Zero(t, d.Len())
}

func TestADenyCacheRefusesWhatItsStoreRefuses(t *testing.T) {
	_, err := ratelimit.NewTokenBucket(newDenyCache(t, new(denycache.Store)), ratelimit.PerHour(1))
	require.ErrorContains(t, err, "was not made by its constructor")
}

func TestBadInputOfADeniedKeyHasTheLimitersErrors(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	far := distantMemory(t)
	asked := 0
	lim := newLimiter(t, "token_bucket", newDenyCache(t, far), ratelimit.PerHour(1), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) {
			asked++
			return ratelimit.Limit{}, nil
		}))
	for range 3 {
		allow(t, lim, "key")
	}
	denial := allow(t, lim, "key")
	require.Equal(t, ratelimit.SourceDenyCache, denial.Source())
	tests := []struct {
		ctx context.Context
		key string
		n   int
	}{
		{t.Context(), "key", 0}, {t.Context(), "key", -1}, {t.Context(), "", 1},
		{t.Context(), strings.Repeat("k", 64<<10+1), 1}, {done, "key", 1}, {done, "", 0},
	}
	for _, tt := range tests {
		r, err := lim.AllowN(tt.ctx, tt.key, tt.n)
		require.Error(t, err)
		require.Zero(t, r)
	}
	require.Equal(t, 4, asked, "by the calls of good input")
	require.ErrorIs(t, lim.Refund(t.Context(), "key", denial, 1), ratelimit.ErrInvalidN, "it has charged nothing")
	require.EqualValues(t, 2, far.calls.Load())
}

func TestPeekAsksTheStore(t *testing.T) {
	mem := memory(t, stopped)
	d := newLimiter(t, "fixed_window", newDenyCache(t, mem), ratelimit.PerHour(1))
	for range 3 {
		allow(t, d, "key")
	}
	r, err := d.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Equal(t, ratelimit.SourceStore, r.Source())
	require.NoError(t, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(1)).Reset(t.Context(), "key"))
	r, err = d.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

// ---- Cost.

func TestADenyCacheHoldsNoMoreKeysThanItsBound(t *testing.T) {
	for _, most := range []int{1, 3, 1000, 1 << 14} {
		cache := newDenyCache(t, memory(t, stopped), denycache.WithMaxKeys(most))
		d := newLimiter(t, "fixed_window", cache, ratelimit.PerDay(1))
		held := 0
		for i := range 3 * most {
			key := strconv.Itoa(i)
			allow(t, d, key)
			allow(t, d, key)
			require.Equal(t, ratelimit.SourceDenyCache, allow(t, d, key).Source(), "the newest is held")
			if i%997 == 0 || i < 10 {
				held = max(held, cache.Len())
			}
		}
		require.LessOrEqual(t, max(held, cache.Len()), most)
		require.Greater(t, cache.Len(), most*9/10)
	}
}

// patient denies an event for a minute, or for a day if its key begins with a 1.
func patient(key string, _ int64) (store.Reply, error) {
	if key[0] == '1' {
		return denial(24 * time.Hour), nil
	}
	return denial(time.Minute), nil
}

func TestDenialsThatHaveEndedLeaveAndGiveTheirMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := newDenyCache(t, stub{memory(t), patient})
		d := newLimiter(t, "fixed_window", cache, ratelimit.PerDay(1))
		empty := heap()
		const keys = 60_000
		touch := func() { // each of 256 shards, but for one time in 10^11
			for i := range 8000 {
				_, err := d.AllowN(t.Context(), "x"+strconv.Itoa(i), 2) // is not remembered
				require.NoError(t, err)
			}
		}
		for i := range keys { // "1..." are a day's: a tenth of them
			allow(t, d, strconv.Itoa(i%10)+strconv.Itoa(i))
		}
		full, held := heap()-empty, cache.Len()
		t.Logf("%d bytes a key at %d keys", full/held, held)
		require.Greater(t, held, keys*95/100)
		require.Less(t, full/held, 250)

		time.Sleep(2 * time.Minute)
		touch()
		require.Less(t, cache.Len(), held/5)
		require.Less(t, heap()-empty, full/3)
		time.Sleep(48 * time.Hour)
		touch()
		require.Zero(t, cache.Len())
		require.Less(t, heap()-empty, 200_000)
		runtime.KeepAlive(cache)
	})
}

// heap is the bytes in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestADenyCacheAllocatesNothingForAKnownKey(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	same := func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, nil }
	for _, algorithm := range algorithms {
		for _, opts := range [][]ratelimit.Option{nil, {ratelimit.WithLimitFunc(same)}} {
			busy := newLimiter(t, algorithm, newDenyCache(t, mem), ratelimit.Limit{Rate: 1_000_000, Period: ms}, opts...)
			full := newLimiter(t, algorithm, newDenyCache(t, mem), ratelimit.PerDay(1), opts...)
			allow(t, full, "key")
			for what, d := range map[string]ratelimit.Limiter{"admitted": busy, "denied": full} {
				allow(t, d, "key")
				allocs := testing.AllocsPerRun(200, func() { allow(t, d, "key") })
				if algorithm == "sliding_log" && what == "admitted" {
					continue // its log grows
				}
				require.Zero(t, allocs, "%s, %s, %d options", algorithm, what, len(opts))
			}
		}
	}
}

// BenchmarkDenyCache measures what is known, and what a DenyCache adds to a call
// that goes on to the limiter: direct is that call without it.
//
//	go test -run '^$' -bench DenyCache -benchmem .
func BenchmarkDenyCache(b *testing.B) {
	fast := ratelimit.Limit{Rate: 1_000_000, Period: ms}
	for _, keys := range []int{1, 10_000} {
		for _, who := range []string{"direct", "passed on", "denied"} {
			b.Run(fmt.Sprintf("keys=%d/%s", keys, who), func(b *testing.B) {
				mem, err := memstore.New()
				require.NoError(b, err)
				limit := fast
				if who == "denied" {
					limit = ratelimit.PerDay(1)
				}
				s := store.Store(mem)
				if who != "direct" {
					s = newDenyCache(b, mem)
				}
				lim := newLimiter(b, "token_bucket", s, limit)
				seen := bench.SeenKeys(b, lim, keys)
				for _, key := range seen {
					allow(b, lim, key)
				}
				bench.Allow(b, lim, seen, who != "denied")
			})
		}
	}
}

// ---- Several limiters, and several events.

func TestKeysOfTwoLimitersOnOneDenyCacheDoNotMeet(t *testing.T) {
	cache := newDenyCache(t, memory(t, stopped))
	tight := newLimiter(t, "fixed_window", cache, ratelimit.PerHour(1), ratelimit.WithName("tight"))
	for _, other := range []ratelimit.Limiter{
		newLimiter(t, "fixed_window", cache, ratelimit.PerHour(1), ratelimit.WithName("other")),
		newLimiter(t, "sliding_window", cache, ratelimit.PerHour(1), ratelimit.WithName("tight")),
	} {
		for range 3 {
			allow(t, tight, "key")
		}
		require.Equal(t, ratelimit.SourceDenyCache, allow(t, tight, "key").Source())
		require.True(t, allow(t, other, "key").Allowed)
		require.Equal(t, ratelimit.SourceDenyCache, allow(t, tight, "key").Source())
	}
}

func TestAllowUpToIsDeniedLocallyWhereAllowIs(t *testing.T) {
	far := distantMemory(t)
	lim := newLimiter(t, "sliding_log", newDenyCache(t, far), ratelimit.PerHour(5))
	upTo := lim.(interface {
		AllowUpTo(ctx context.Context, key string, n int) (int, ratelimit.Result, error)
	})
	granted, _, err := upTo.AllowUpTo(t.Context(), "key", 3)
	require.NoError(t, err)
	require.Equal(t, 3, granted)
	require.False(t, allowN(t, lim, 3).Allowed)
	granted, _, err = upTo.AllowUpTo(t.Context(), "key", 3)
	require.NoError(t, err)
	require.Equal(t, 2, granted, "it is 3 that were denied")
	for _, source := range []ratelimit.Source{ratelimit.SourceStore, ratelimit.SourceDenyCache} {
		granted, r, err := upTo.AllowUpTo(t.Context(), "key", 3)
		require.NoError(t, err)
		require.Zero(t, granted)
		require.Equal(t, source, r.Source())
		require.Positive(t, r.RetryAfter)
	}
	require.Equal(t, ratelimit.SourceDenyCache, allow(t, lim, "key").Source())
}

func TestAnAllDecidesAtTheStoreAndItsLimitsLearn(t *testing.T) {
	for _, algorithm := range algorithms {
		mem := memory(t, stopped)
		cache := newDenyCache(t, mem)
		tight := newLimiter(t, algorithm, cache, ratelimit.PerHour(2))
		wide := newLimiter(t, algorithm, cache, ratelimit.PerHour(9))
		all, err := ratelimit.NewAll(tight, wide)
		require.NoError(t, err)
		require.True(t, allowN(t, all, 2).Allowed)
		for range 2 {
			r := allowN(t, all, 1)
			require.Equal(t, ratelimit.SourceStore, r.Source())
			require.False(t, r.Allowed)
			require.Len(t, r.Parts(), 2)
			require.Equal(t, 7, r.Parts()[1].Remaining, "of the limit that would admit, %s", algorithm)
		}
		require.Equal(t, ratelimit.SourceDenyCache, allowN(t, tight, 1).Source())
		require.True(t, allowN(t, wide, 7).Allowed)
		require.NoError(t, tight.Reset(t.Context(), "key"))
		require.True(t, allowN(t, tight, 2).Allowed)
	}
}

// An All of limits each of which is known to be denied costs the store nothing, and is told as by the store. If one of
// them may admit, only the store knows what it has left.
func TestAnAllOfDenialsIsDeniedLocally(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			far := &asked{Store: memory(t)}
			cache := newDenyCache(t, far)
			of := func(s store.Store) (both, one ratelimit.Limiter) {
				one = newLimiter(t, algorithm, s, ratelimit.PerHour(2))
				both, err := ratelimit.NewAll(one, newLimiter(t, "fixed_window", s, ratelimit.PerDay(3)))
				require.NoError(t, err)
				return both, one
			}
			both, one := of(cache)
			plain, _ := of(far.Store)
			require.True(t, allowN(t, both, 2).Allowed)
			require.False(t, allowN(t, both, 2).Allowed)
			for i, n := range []int{2, 1} {
				far.calls = 0
				r := allowN(t, both, n)
				require.Equal(t, i, far.calls)
				require.False(t, r.Allowed)
				for i, p := range r.Parts() {
					want := allowN(t, plain, n).Parts()[i]
					require.Equal(t, []any{want.Allowed, want.Remaining, want.RetryAfter, want.ResetAfter}, []any{p.Allowed, p.Remaining, p.RetryAfter, p.ResetAfter}, n)
				}
			}
			_, err := both.Peek(t.Context(), "key")
			require.NoError(t, err)
			far.calls = 0
			require.NoError(t, one.Reset(t.Context(), "key"))
			require.False(t, allowN(t, both, 2).Allowed)
			require.Equal(t, 1, far.calls, "it may admit again")
		})
	}
}

// asked is a store that counts how often it decides.
type asked struct {
	store.Store
	calls int
}

func (s *asked) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	s.calls++
	return s.Store.Decide(ctx, requests, replies)
}

func TestAnAllAdmittedUnderAnotherLimitEndsADenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Limit{Rate: 10, Period: time.Hour, Burst: 10}
		cache := newDenyCache(t, memory(t))
		lim := newLimiter(t, "token_bucket", cache, limit,
			ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
		all, err := ratelimit.NewAll(lim, newLimiter(t, "token_bucket", cache, ratelimit.PerHour(1000)))
		require.NoError(t, err)
		require.True(t, allowN(t, lim, 10).Allowed)
		require.False(t, allowN(t, lim, 1).Allowed)
		limit.Period = time.Second
		time.Sleep(time.Second)
		require.True(t, allowN(t, all, 1).Allowed)
		limit.Period = time.Hour
		require.True(t, allowN(t, lim, 1).Allowed)
	})
}

// A denial that another cache answers from memory ends too late by its round trip, so it is not
// remembered again.
func TestADenialFromMemoryIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const roundTrip = 200 * time.Millisecond
		began, ends := time.Now(), 10*time.Second
		far := stub{memory(t), func(string, int64) (store.Reply, error) {
			if time.Since(began) >= ends {
				return store.Reply{Outcome: store.Admitted, X: time.Now().UnixMicro()}, nil
			}
			r := denial(ends - time.Since(began))
			time.Sleep(roundTrip) // on the way back
			return r, nil
		}}
		inner, err := denycache.New(far)
		require.NoError(t, err)
		var l [2]ratelimit.Limiter
		for i := range l {
			outer, err := denycache.New(inner)
			require.NoError(t, err)
			l[i] = newLimiter(t, "fixed_window", outer, ratelimit.PerSecond(1))
			require.False(t, allow(t, l[i], "key").Allowed)
		}
		time.Sleep(time.Until(began.Add(ends)))
		for i := range l {
			require.True(t, allow(t, l[i], "key").Allowed, "%d", i)
		}
	})
}
