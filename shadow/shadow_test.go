package shadow_test

import (
	"context"
	"fmt"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

var algorithms = ratelimit.PerSecond(1).Algorithms()

func onEachAlgorithm(t *testing.T, l ratelimit.Limit, test func(t *testing.T, lim ratelimit.Limiter)) {
	t.Helper()
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, inMemory(t, algorithm, l)) })
		})
	}
}

func inMemory(t testing.TB, algorithm string, l ratelimit.Limit) ratelimit.Limiter {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	lim, err := ratelimit.New(algorithm, mem, l)
	require.NoError(t, err)
	return lim
}

// told holds the arguments of one call of the report.
type told struct {
	ctx context.Context
	key string
	n   int
	r   ratelimit.Result
	err error
}

// reports collects the calls of a report, in a bubble, because a goroutine makes them.
type reports struct {
	mu   sync.Mutex
	list []told
}

func (r *reports) add(ctx context.Context, key string, n int, res ratelimit.Result, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, told{ctx, key, n, res, err})
}

// all returns the calls since the last call of all.
func (r *reports) all() []told {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.list = nil }()
	return r.list
}

// take returns the only report since the last take.
func (r *reports) take(t *testing.T) told {
	t.Helper()
	all := r.all()
	require.Len(t, all, 1)
	return all[0]
}

func limiter(t testing.TB, l ratelimit.Limiter, opts ...shadow.Option) (*shadow.Limiter, *reports) {
	t.Helper()
	told := new(reports)
	lim, err := shadow.New(l, told.add, opts...)
	require.NoError(t, err)
	return lim, told
}

func allowN(t testing.TB, l ratelimit.Limiter, n int) ratelimit.Result {
	t.Helper()
	r, err := l.AllowN(t.Context(), "key", n)
	require.NoError(t, err)
	return r
}

func peek(t testing.TB, l ratelimit.Limiter) ratelimit.Result {
	t.Helper()
	r, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	return r
}

func none(context.Context, string, int, ratelimit.Result, error) {}

func TestALimiterWithoutItsPartsIsRefused(t *testing.T) {
	lim := inMemory(t, "token_bucket", ratelimit.PerHour(1))
	var null *ratelimit.TokenBucket
	for name, refused := range map[string]func() (*shadow.Limiter, error){
		"no limiter":       func() (*shadow.Limiter, error) { return shadow.New(nil, none) },
		"a typed nil":      func() (*shadow.Limiter, error) { return shadow.New(null, none) },
		"no report":        func() (*shadow.Limiter, error) { return shadow.New(lim, nil) },
		"a nil option":     func() (*shadow.Limiter, error) { return shadow.New(lim, none, nil) },
		"below 0 percent":  func() (*shadow.Limiter, error) { return shadow.New(lim, none, shadow.WithEnforcement(-0.1)) },
		"over 100 percent": func() (*shadow.Limiter, error) { return shadow.New(lim, none, shadow.WithEnforcement(100.1)) },
		"no number":        func() (*shadow.Limiter, error) { return shadow.New(lim, none, shadow.WithEnforcement(math.NaN())) },
	} {
		l, err := refused()
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		require.Nil(t, l, name)
	}
	_, err := shadow.New(lim, nil)
	require.ErrorContains(t, err, "shadow.New: the report is nil")
}

func TestTheZeroValueAnswersWithAnError(t *testing.T) {
	ctx, l := t.Context(), new(shadow.Limiter)
	_, err := l.Allow(ctx, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = l.Peek(ctx, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, l.Refund(ctx, "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, l.Reset(ctx, "key"), ratelimit.ErrInvalidLimit)
	_, err = l.AppendPolicies(ctx, nil, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestDeniedCallsAreReportedAndAdmitted(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(2), func(t *testing.T, inner ratelimit.Limiter) {
		lim, reports := limiter(t, inner)
		for i := range 5 {
			r := allowN(t, lim, 1)
			told := reports.take(t)
			require.Equal(t, i < 2, told.r.Allowed)
			require.Equal(t, i >= 2, told.r.RetryAfter > 0)
			require.NoError(t, told.err)
			require.Equal(t, "key", told.key)
			require.Equal(t, 1, told.n)

			require.Equal(t, max(0, 1-i), told.r.Remaining)
			for _, r := range []ratelimit.Result{r, peek(t, lim)} {
				require.Equal(t, ratelimit.Result{Allowed: true}, shown(r), "nothing of the trial shows")
				require.False(t, r.Counted())
				require.Zero(t, r.Charged())
			}
			require.Empty(t, reports.all(), "Peek is not reported")
		}
		allowN(t, lim, 7)
		told := reports.take(t)
		require.Equal(t, 7, told.n)
		require.Equal(t, ratelimit.Never, told.r.RetryAfter)
	})
}

func TestTheTurnsOfALeakyBucketAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, reports := limiter(t, inMemory(t, "leaky_bucket", ratelimit.PerHour(2)))
		allowN(t, lim, 1)
		reports.take(t)
		require.Zero(t, allowN(t, lim, 1).Delay)
		require.Positive(t, reports.take(t).r.Delay)
		require.NoError(t, lim.SetEnforcement(100))
		require.NoError(t, lim.Reset(t.Context(), "key"))
		allowN(t, lim, 1)
		require.Positive(t, allowN(t, lim, 1).Delay)
	})
}

// shown returns a Result with only the exported fields of r.
func shown(r ratelimit.Result) ratelimit.Result {
	return ratelimit.Result{Allowed: r.Allowed, Limit: r.Limit, Remaining: r.Remaining, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, Delay: r.Delay}
}

func TestErrorsAreReportedAndTheEventPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, reports := limiter(t, ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore))
		r := allowN(t, lim, 3)
		require.Equal(t, ratelimit.Result{Allowed: true}, shown(r))
		require.NoError(t, lim.Refund(t.Context(), "key", r, 3), "nothing was charged")
		told := reports.take(t)
		require.ErrorIs(t, told.err, ratelimit.ErrStore)
		require.Zero(t, told.r)
		require.Equal(t, 3, told.n)
		require.Equal(t, shown(r), peek(t, lim))
		require.ErrorIs(t, lim.Reset(t.Context(), "key"), ratelimit.ErrStore)

		require.NoError(t, lim.SetEnforcement(100))
		r, err := lim.Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrStore)
		require.Zero(t, r)
		require.ErrorIs(t, reports.take(t).err, ratelimit.ErrStore)
		_, err = lim.Peek(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrStore)
	})
}

func TestBadInputIsAnErrorAndNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		lim, reports := limiter(t, inMemory(t, "token_bucket", ratelimit.PerHour(1)))
		for range 2 {
			_, err := lim.AllowN(t.Context(), "key", 0)
			require.ErrorIs(t, err, ratelimit.ErrInvalidN)
			_, err = lim.Allow(t.Context(), "")
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			_, err = lim.Peek(t.Context(), "")
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			_, err = lim.Allow(ended, "key")
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, lim.Reset(t.Context(), ""), ratelimit.ErrInvalidKey)
			require.Empty(t, reports.all())
			require.NoError(t, lim.SetEnforcement(100))
		}
	})
}

// ending ends the caller's context during each decision.
type ending struct {
	ratelimit.Limiter
	cancel context.CancelFunc
}

func (e ending) AllowN(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
	e.cancel()
	return ratelimit.Result{}, ctx.Err()
}

func TestACallerWhoIsGoneIsToldSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		lim, reports := limiter(t, ending{cancel: cancel})
		r, err := lim.Allow(ctx, "key")
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, r)
		require.ErrorIs(t, reports.take(t).err, context.Canceled)
	})
}

func TestARefundGivesBackWhatWasCharged(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(2), func(t *testing.T, inner ratelimit.Limiter) {
		lim, _ := limiter(t, inner)
		allowN(t, lim, 1)
		charged := allowN(t, lim, 1)
		denied := allowN(t, lim, 1)
		require.NoError(t, lim.Refund(t.Context(), "key", denied, 1), "nothing was charged")
		require.Zero(t, peek(t, inner).Remaining)
		require.NoError(t, lim.Refund(t.Context(), "key", charged, 1))
		require.Equal(t, 1, peek(t, inner).Remaining)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", charged, 0), ratelimit.ErrInvalidN)
		require.ErrorIs(t, lim.Refund(t.Context(), "", charged, 1), ratelimit.ErrInvalidKey)
		allowN(t, lim, 1)
		require.NoError(t, lim.SetEnforcement(100))
		enforced := allowN(t, lim, 1)
		require.False(t, enforced.Allowed)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", enforced, 1), ratelimit.ErrInvalidN)
	})
	lim, _ := limiter(t, ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore))
	require.ErrorIs(t, lim.Refund(t.Context(), "key", ratelimit.Result{Allowed: true}, 1), ratelimit.ErrStore)
}

func TestEnforcedKeysGetTheDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, reports := limiter(t, inMemory(t, "token_bucket", ratelimit.PerHour(1)), shadow.WithEnforcement(100))
		allowN(t, lim, 1)
		reports.take(t)
		r := allowN(t, lim, 1)
		require.False(t, r.Allowed)
		require.Equal(t, reports.take(t).r, r)
		require.False(t, peek(t, lim).Allowed)
		require.NoError(t, lim.Reset(t.Context(), "key"))
		require.True(t, peek(t, lim).Allowed)
	})
}

func TestTheShareIsChangedAtRunTime(t *testing.T) {
	lim, _ := limiter(t, ratelimittest.Static(ratelimit.Result{}, nil), shadow.WithEnforcement(100))
	require.False(t, allowN(t, lim, 1).Allowed)
	require.NoError(t, lim.SetEnforcement(0))
	require.True(t, allowN(t, lim, 1).Allowed)
	require.NoError(t, lim.SetEnforcement(12.5))
	for _, wrong := range []float64{-1, 101, math.Inf(1), math.NaN()} {
		require.ErrorIs(t, lim.SetEnforcement(wrong), ratelimit.ErrInvalidOption)
	}
}

func TestOnlyTheKeysOfTheShareAreEnforced(t *testing.T) {
	lim, _ := limiter(t, ratelimittest.Static(ratelimit.Result{}, nil), shadow.WithEnforcement(30))
	for i := range 1000 {
		key := fmt.Sprint("user:", i)
		r, err := lim.Allow(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, lim.Enforced(key), !r.Allowed)
	}
}

// If this test fails, a new version enforces other keys than the previous version in the same
// fleet. The new version is wrong then.
func TestTheShareOfAKeyIsTheSameForEver(t *testing.T) {
	lim, _ := limiter(t, ratelimittest.Static(ratelimit.Result{}, nil))
	for key, at := range map[string]float64{"user:1": 30.037, "user:2": 35.712, "192.0.2.1": 56.159, "k": 17.047} {
		require.NoError(t, lim.SetEnforcement(at-0.001))
		require.False(t, lim.Enforced(key), "%q below %v", key, at)
		require.NoError(t, lim.SetEnforcement(at+0.001))
		require.True(t, lim.Enforced(key), "%q from %v on", key, at)
	}
}

func TestAHigherShareOnlyAddsKeys(t *testing.T) {
	lim, _ := limiter(t, ratelimittest.Static(ratelimit.Result{}, nil))
	keys := keysOf("user:%d", 1000)
	enforced := make([]bool, len(keys))
	for step := range 401 {
		require.NoError(t, lim.SetEnforcement(float64(step)/4))
		lost := 0
		for i, key := range keys {
			now := lim.Enforced(key)
			if enforced[i] && !now {
				lost++
			}
			enforced[i] = now
		}
		require.Zero(t, lost, "at %d/4 percent", step)
		if step == 0 {
			require.NotContains(t, enforced, true)
		}
	}
	require.NotContains(t, enforced, false, "100 percent are all")
}

func keysOf(format string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf(format, i)
	}
	return keys
}

// share returns how many of the keys are enforced.
func share(lim *shadow.Limiter, keys []string) (n int) {
	for _, key := range keys {
		if lim.Enforced(key) {
			n++
		}
	}
	return n
}

func TestTheShareIsAsLargeAsItShouldBe(t *testing.T) {
	for _, format := range []string{"%d", "user:%d", "203.0.113.%d", "%08d-tenant", "%020d"} {
		lim, _ := limiter(t, ratelimittest.Static(ratelimit.Result{}, nil))
		for _, n := range []int{1000, 50_000} {
			keys := keysOf(format, n)
			for _, percent := range []float64{1, 10, 50, 90, 99} {
				require.NoError(t, lim.SetEnforcement(percent))
				p := percent / 100
				sigma := math.Sqrt(float64(n) * p * (1 - p))
				require.InDelta(t, float64(n)*p, share(lim, keys), 4*sigma, "%d of %s, %v percent", n, format, percent)
			}
		}
	}
}

func TestPoliciesOfAKeyThatIsNotEnforcedAreUnlimited(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	inner := levels.New(t, "token_bucket", mem, "api", ratelimit.PerHour(2), ratelimit.PerDay(9))
	lim, _ := limiter(t, inner)
	before := make([]ratelimit.Policy, 1, 8)
	want, err := ratelimit.AppendPolicies(t.Context(), before, inner, "key")
	require.NoError(t, err)
	require.Len(t, want, 3)
	want = slices.Clone(want)
	for _, enforced := range []bool{false, true} {
		got, err := ratelimit.AppendPolicies(t.Context(), before, lim, "key")
		require.NoError(t, err)
		if !enforced {
			unlimited := ratelimit.Policy{Limit: ratelimit.Unlimited(), Quota: math.MaxInt32}
			first, second := unlimited, unlimited
			first.Name, second.Name = "api/h", "api/d"
			require.Equal(t, []ratelimit.Policy{{}, first, second}, got)
		} else {
			require.Equal(t, want, got)
		}
		require.NoError(t, lim.SetEnforcement(100))
	}
}

// Clients do not see a limit that is only tried out.
func TestATrialDoesNotShowInHeaderFields(t *testing.T) {
	lim, _ := limiter(t, inMemory(t, "token_bucket", ratelimit.PerHour(2)))
	middleware, err := httplimit.New(lim)
	require.NoError(t, err)
	h := middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	serve := func() http.Header {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Header()
	}
	for range 4 {
		require.Empty(t, serve())
	}
	require.NoError(t, lim.SetEnforcement(100))
	require.NotEmpty(t, serve())
}

func TestAShadowIsLookedThrough(t *testing.T) {
	inner := inMemory(t, "token_bucket", ratelimit.PerHour(2))
	lim, _ := limiter(t, inner)
	require.Same(t, inner, lim.Unwrap())
}

// far is a store with a round-trip time.
type far struct{ store.Store }

const roundTrip = 10 * time.Millisecond

func (s far) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	time.Sleep(roundTrip)
	return s.Store.Take(ctx, ns, key, l, n)
}

// No call waits in a queue if its key is not enforced, even if the wrapped limiter has no room.
func TestThoseWhoAreLetThroughDoNotWaitForOneAnother(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			mem, err := memstore.New()
			require.NoError(t, err)
			inner, err := ratelimit.New(algorithm, far{mem}, ratelimit.PerHour(5))
			require.NoError(t, err)
			lim, _ := limiter(t, inner)
			began := time.Now()
			var wg sync.WaitGroup
			for range 200 {
				wg.Go(func() {
					r, err := ratelimit.Wait(t.Context(), lim, "key", 1)
					require.NoError(t, err)
					require.True(t, r.Allowed)
				})
			}
			wg.Wait()
			require.LessOrEqual(t, time.Since(began), 8*roundTrip, algorithm)
		})
	}
}

// ---- The report.

func TestAReportThatPanicsHarmsNoRequestAndIsLoggedOnce(t *testing.T) {
	var text strings.Builder
	log.SetOutput(&text)
	defer log.SetOutput(os.Stderr)
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		lim, err := shadow.New(inMemory(t, "token_bucket", ratelimit.PerHour(2)), func(context.Context, string, int, ratelimit.Result, error) {
			if calls++; calls == 3 {
				runtime.Goexit() // as a test that fails does
			}
			panic("planted")
		})
		require.NoError(t, err)
		for range 5 {
			require.True(t, allowN(t, lim, 1).Allowed)
		}
		synctest.Wait()
		require.Equal(t, 5, calls)
	})
	require.Equal(t, 1, strings.Count(text.String(), "shadow: a report panicked: planted"))
}

func TestAReportThatBlocksHarmsNoRequestAndWhatIsDroppedIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var order []int
		lim, err := shadow.New(inMemory(t, "token_bucket", ratelimit.PerHour(2)), func(_ context.Context, _ string, n int, _ ratelimit.Result, _ error) {
			<-release
			order = append(order, n)
		})
		require.NoError(t, err)
		allowN(t, lim, 1)
		synctest.Wait() // it is being reported
		const waiting = 1024
		for i := range waiting + 50 {
			require.True(t, allowN(t, lim, 2+i).Allowed)
		}
		require.EqualValues(t, 50, lim.Dropped())
		close(release)
		synctest.Wait()
		want := make([]int, waiting+1)
		for i := range want {
			want[i] = 1 + i
		}
		require.Equal(t, want, order)
		allowN(t, lim, 7)
		synctest.Wait()
		require.Equal(t, 7, order[len(order)-1])
		require.EqualValues(t, 50, lim.Dropped())
	}) // and no goroutine is left: a bubble waits for all
}

type named struct{}

func TestAReportHasTheCallersValuesAndOutlivesTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, reports := limiter(t, inMemory(t, "token_bucket", ratelimit.PerHour(2)))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), named{}, "trace"))
		_, err := lim.Allow(ctx, "key")
		require.NoError(t, err)
		cancel()
		told := reports.take(t)
		require.Equal(t, "trace", told.ctx.Value(named{}))
		require.NoError(t, told.ctx.Err())
	})
}

// A middleware finds the address in the request, which the handler may change in the meantime.
func TestAReportHasTheAddressThatWasFoundByTheDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, reports := limiter(t, inMemory(t, "token_bucket", ratelimit.PerHour(2)))
		request := []string{"192.0.2.1", "unix", "192.0.2.2"}
		for i := range request {
			ctx := clientaddr.NewContextFunc(t.Context(), &request[i], func(from *string) netip.Addr {
				addr, _ := netip.ParseAddr(*from)
				return addr
			})
			_, err := lim.AllowWithin(ctx, "key", 1, 0)
			require.NoError(t, err)
			found, known := clientaddr.FromContext(ctx)
			request[i] = "192.0.2.66"
			told := reports.take(t)
			addr, ok := clientaddr.FromContext(told.ctx)
			require.Equal(t, known, ok)
			require.Equal(t, found, addr)
		}
	})
}

func TestTheShareChangesWhileCallersDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var admitted, denied atomic.Int64
		lim, err := shadow.New(inMemory(t, "token_bucket", ratelimit.PerHour(100)), func(_ context.Context, _ string, _ int, r ratelimit.Result, _ error) {
			if r.Allowed {
				admitted.Add(1)
			} else {
				denied.Add(1)
			}
		})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 500 {
					if _, err := lim.Allow(t.Context(), "key"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range 500 {
			require.NoError(t, lim.SetEnforcement(float64(i%101)))
		}
		wg.Wait()
		synctest.Wait()
		require.EqualValues(t, 2000, admitted.Load()+denied.Load()+lim.Dropped())
		require.LessOrEqual(t, admitted.Load(), int64(100), "what is charged is as without a shadow")
		require.LessOrEqual(t, denied.Load(), int64(1900))
	})
}

// BenchmarkAllow measures a decision alone and in shadow, enforced and not. The decisions follow
// each other immediately, or with time for the report in between.
func BenchmarkAllow(b *testing.B) {
	for name, inner := range map[string]ratelimit.Limiter{
		"denied":   ratelimittest.Static(ratelimit.Result{}, nil),
		"admitted": inMemory(b, "token_bucket", ratelimit.Limit{Rate: 1_000_000, Period: time.Millisecond}),
	} {
		let, err := shadow.New(inner, none, shadow.WithEnforcement(1e-9))
		require.NoError(b, err)
		enforced, err := shadow.New(inner, none, shadow.WithEnforcement(100))
		require.NoError(b, err)
		for where, l := range map[string]ratelimit.Limiter{"alone": inner, "let through": let, "enforced": enforced} {
			for _, pause := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%s/pause=%v", name, where, pause), func(b *testing.B) {
					b.ReportAllocs()
					ctx := b.Context()
					for b.Loop() {
						_, _ = l.Allow(ctx, "user:1234567890ab")
						if pause {
							runtime.Gosched()
						}
					}
				})
			}
		}
	}
}
