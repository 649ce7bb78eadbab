package regions_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/regions"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// faraway is a store at a distance, which tests can have do something else.
type faraway struct {
	store.Store
	calls  atomic.Int64
	before func(ctx context.Context, op string) error
	after  func(op string)
}

func (f *faraway) run(ctx context.Context, op string, do func() error) error {
	f.calls.Add(1)
	if f.before != nil {
		if err := f.before(ctx, op); err != nil {
			return err
		}
	}
	err := do()
	if f.after != nil {
		f.after(op)
	}
	return err
}

// Decide implements [store.Store].
func (f *faraway) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, f, f.Store, requests, replies)
}

func (f *faraway) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	err = f.run(ctx, "peek", func() error { r, err = store.Peek(ctx, f.Store, ns, key, l, n); return err })
	return r, err
}

func (f *faraway) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	err = f.run(ctx, "debit", func() error { r, err = store.TakeUpTo(ctx, f.Store, ns, key, l, n); return err })
	return r, err
}

func (f *faraway) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	return f.run(ctx, "credit", func() error { return f.Store.Refund(ctx, ns, key, l, c) })
}

// two is a region, and another one of which it takes.
type two struct {
	ratelimit.Limiter
	shared     *regions.Store
	own, other ratelimit.Limiter // the shares
	near, far  *faraway
}

// newTwo is two regions that have so much each.
func newTwo(t testing.TB, algorithm string, each ratelimit.Limit, opts ...regions.Option) *two {
	t.Helper()
	x := &two{near: &faraway{Store: memory(t)}, far: &faraway{Store: memory(t)}}
	x.own, x.other = limiter(t, algorithm, x.near, each), limiter(t, algorithm, x.far, each)
	x.shared, x.Limiter = first(t, algorithm, each, []store.Store{x.near, x.far}, opts...)
	return x
}

// first is the first of some regions that have so much each.
func first(t testing.TB, algorithm string, each ratelimit.Limit, stores []store.Store, opts ...regions.Option) (*regions.Store, ratelimit.Limiter) {
	t.Helper()
	named := map[string]store.Store{}
	for i, s := range stores {
		named[name(i)] = s
	}
	shared, err := regions.New("a", named, opts...)
	require.NoError(t, err)
	return shared, limiter(t, algorithm, shared, times(len(stores), each))
}

// times is n times a limit.
func times(n int, l ratelimit.Limit) ratelimit.Limit {
	l.Rate, l.Burst = n*l.Rate, n*l.Burst
	return l
}

// use has n single events of key decided, and returns how many were admitted.
func use(t testing.TB, l ratelimit.Limiter, key string, n int) (admitted int) {
	t.Helper()
	for range n {
		r, err := l.Allow(t.Context(), key)
		require.NoError(t, err)
		if r.Allowed {
			admitted++
		}
	}
	return admitted
}

func remaining(t testing.TB, l ratelimit.Limiter, key string) int {
	t.Helper()
	r, err := l.Peek(t.Context(), key)
	require.NoError(t, err)
	return r.Remaining
}
func TestNewRefusesWhatHasNoStores(t *testing.T) {
	a, b := memory(t), memory(t)
	front, err := coalesce.New(a)
	require.NoError(t, err)
	stores := map[string]store.Store{"a": a, "b": b}
	for name, test := range map[string]struct {
		here   string
		stores map[string]store.Store
		opts   []regions.Option
		text   string
	}{
		"none":           {"a", nil, nil, "0 regions"},
		"alone":          {"a", map[string]store.Store{"a": a}, nil, "1 regions"},
		"elsewhere":      {"c", stores, nil, `the region "c" is not among the stores`},
		"nil":            {"a", map[string]store.Store{"a": nil, "b": b}, nil, `"a" is nil`},
		"typed nil":      {"a", map[string]store.Store{"a": a, "b": (*memstore.Store)(nil)}, nil, `"b" is nil`},
		"itself":         {"a", map[string]store.Store{"a": a, "b": a}, nil, "the same store"},
		"before itself":  {"a", map[string]store.Store{"a": a, "b": front}, nil, "the same store"},
		"nil option":     {"a", stores, []regions.Option{nil}, "nil"},
		"no wait":        {"a", stores, []regions.Option{regions.WithWait(0)}, "WithWait(0s)"},
		"long wait":      {"a", stores, []regions.Option{regions.WithWait(time.Hour)}, "WithWait(1h0m0s)"},
		"a few weights":  {"a", stores, []regions.Option{regions.WithWeights(map[string]int{"a": 1})}, "1 regions have a weight"},
		"other weights":  {"a", stores, []regions.Option{regions.WithWeights(map[string]int{"a": 1, "c": 1})}, `"b" has no weight`},
		"weight of 0":    {"a", stores, []regions.Option{regions.WithWeights(map[string]int{"a": 1, "b": 0})}, `0 for "b"`},
		"a great weight": {"a", stores, []regions.Option{regions.WithWeights(map[string]int{"a": 1_000_001, "b": 1})}, `1000001 for "a"`},
	} {
		s, err := regions.New(test.here, test.stores, test.opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		require.ErrorContains(t, err, test.text, name)
		require.Nil(t, s, name)
	}
}

// A call here may ask several stores, so that nothing before it takes the timeout of one for its own.
func TestAStoreOfRegionsHasNoTimeoutOfOneOfThem(t *testing.T) {
	one := testkit.Hanging{Store: ratelimit.Must(memstore.New())}
	require.Positive(t, see.Timeout(one))
	both, err := regions.New("a", map[string]store.Store{"a": one, "b": testkit.Hanging{Store: ratelimit.Must(memstore.New())}})
	require.NoError(t, err)
	require.Zero(t, see.Timeout(both))
	before, err := lease.New(both, time.Second)
	require.NoError(t, err)
	require.Zero(t, see.Timeout(before))
}

func TestLimitsThatCannotBeSharedAreRefused(t *testing.T) {
	stores := map[string]store.Store{"a": memory(t), "b": memory(t), "c": memory(t)}
	shared, err := regions.New("b", stores, regions.WithWeights(map[string]int{"a": 1, "b": 1, "c": 98}))
	require.NoError(t, err)
	long := 10 * 365 * 24 * time.Hour
	for text, test := range map[string]struct {
		algorithm string
		limit     ratelimit.Limit
	}{
		"algorithm sliding_log cannot":                           {"sliding_log", ratelimit.PerHour(10)},
		"algorithm leaky_bucket cannot":                          {"leaky_bucket", ratelimit.PerHour(10)},
		"a limit of 2 with a burst of 2":                         {"fixed_window", ratelimit.PerHour(2)},
		"a limit of 9 with a burst of 5":                         {"token_bucket", ratelimit.Limit{Rate: 9, Period: time.Hour, Burst: 5}},
		"a limit of 2 with a burst of 9":                         {"token_bucket", ratelimit.Limit{Rate: 2, Period: time.Hour, Burst: 9}},
		`share of region "c", a burst of 26 at 2 per 87600h0m0s`: {"token_bucket", ratelimit.Limit{Rate: 4, Period: long, Burst: 30}},
		"the regions.Store was not made by":                      {"fixed_window", ratelimit.PerHour(10)},
	} {
		s := shared
		if strings.Contains(text, "made by") {
			s = new(regions.Store)
		}
		_, err = ratelimit.New(test.algorithm, s, test.limit)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, text)
		require.ErrorContains(t, err, text)
	}
	limit := ratelimit.PerHour(3)
	l := limiter(t, "fixed_window", shared, limit, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
	r, err := l.Allow(t.Context(), "key")
	require.NoError(t, err)
	for _, limit = range []ratelimit.Limit{ratelimit.PerHour(0), ratelimit.Unlimited()} {
		_, err := l.Allow(t.Context(), "key")
		require.NoError(t, err, "no store is asked")
	}
	limit = ratelimit.PerHour(2)
	_, err = l.Allow(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, _, err = ratelimit.AllowUpTo(t.Context(), l, "key", 2)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = l.Peek(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = ratelimit.Charge(t.Context(), l, "key", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorIs(t, l.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidOption)
	_, err = ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: l, Key: "key", N: 1}, ratelimit.Ask{Limiter: l, Key: "another", N: 1})
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	limit = ratelimit.PerHour(3)
	require.NoError(t, l.Refund(t.Context(), "key", r, 1))
	require.Equal(t, 1, remaining(t, l, "key"))
	require.NoError(t, l.Reset(t.Context(), "key"))
}

// The shares of a limit add up to it, and none is without an event.
func TestSharesAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range effort.Of(1_000, 5_000, 20_000) {
		stores, weights := map[string]store.Store{}, map[string]int{}
		for j := range 2 + rng.IntN(5) {
			stores[name(j)], weights[name(j)] = memory(t), 1+rng.IntN(1<<rng.IntN(20))
		}
		limit := ratelimit.Limit{Period: time.Hour, Rate: len(stores) + rng.IntN(1<<(1+rng.IntN(30)))}
		algorithm, least := algorithms[i%3], 1
		if algorithm == "token_bucket" {
			least = 2
			limit.Burst = 2*len(stores) + rng.IntN(min(1<<(1+rng.IntN(30)), max(800_000, limit.Rate)))
		}
		left, sum := 0, 0
		for _, w := range weights {
			sum += w
		}
		for here := range stores {
			shared, err := regions.New(here, stores, regions.WithWeights(weights))
			require.NoError(t, err)
			l := limiter(t, algorithm, shared, limit)
			r, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.GreaterOrEqual(t, r.Remaining, least)
			require.Equal(t, capacity(limit), r.Limit, "of all regions")
			left += r.Remaining
			rest := float64(capacity(limit) - least*len(stores))
			require.InDelta(t, rest*float64(weights[here])/float64(sum), r.Remaining-least, 1.001, "by weight")
		}
		require.Equal(t, capacity(limit), left, "%v %v", limit, weights)
	}
}

type counter struct{ admitted, denied, charged int }

func (c *counter) Decided(_ context.Context, _ string, _ int, r ratelimit.Result, _ error, _ time.Duration) {
	if c.charged += r.Charged(); r.Allowed {
		c.admitted++
	} else {
		c.denied++
	}
}

func TestEventsThatAShareLacksAreFetchedFromAnother(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			x := newTwo(t, algorithm, ratelimit.PerDay(100))
			require.Equal(t, 100, use(t, x, "key", 100))
			require.Zero(t, x.far.calls.Load(), "not while there is room here")
			require.Equal(t, 1, use(t, x, "key", 1))
			require.Equal(t, 50, remaining(t, x.other, "key"))
			require.Equal(t, 49, remaining(t, x, "key"))
			require.Equal(t, 99, use(t, x, "key", 99))
			require.Zero(t, use(t, x, "key", 10))
			require.Zero(t, remaining(t, x.other, "key"))
			require.EqualValues(t, 100, x.shared.Stats().Moved)
			require.Zero(t, use(t, x.other, "key", 10))
			require.Equal(t, 100, use(t, x.other, "another key", 110))
		})
	}
}

func TestACallForSeveralFetchesWhatItNeeds(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			ctx, x := t.Context(), newTwo(t, algorithm, ratelimit.PerDay(100))
			r, err := x.AllowN(ctx, "key", 101)
			require.NoError(t, err)
			require.Equal(t, ratelimit.Never, r.RetryAfter, "no share can hold that")
			require.Zero(t, x.shared.Stats())
			require.Equal(t, 90, use(t, x, "key", 90))
			r, err = x.AllowN(ctx, "key", 90)
			require.NoError(t, err)
			require.True(t, r.Allowed, "10 are here")
			require.Equal(t, 20, remaining(t, x.other, "key"))
			require.NoError(t, x.Refund(ctx, "key", r, 90))
			require.Equal(t, 90, remaining(t, x, "key"), "it stays here")
			r, err = x.AllowN(ctx, "key", 98) // the last two of a bucket cannot be credited
			require.NoError(t, err)
			require.True(t, r.Allowed)
			here, there := remaining(t, x, "key"), remaining(t, x.other, "key")
			granted, r, err := ratelimit.AllowUpTo(ctx, x.Limiter, "key", 100)
			require.NoError(t, err)
			require.Equal(t, here, granted)
			require.Equal(t, here, r.Charged())
			require.Equal(t, there-there/2, remaining(t, x, "key"), "half of what is there, for the next call")
			granted, _, err = ratelimit.AllowUpTo(ctx, x.Limiter, "key", 100)
			require.NoError(t, err)
			require.Equal(t, there-there/2, granted)
			charged, err := ratelimit.Charge(ctx, x.Limiter, "key", 7)
			require.NoError(t, err)
			require.Equal(t, 7, charged.Charged())
			require.Equal(t, there/4, remaining(t, x.other, "key"))
			require.NoError(t, x.Reset(ctx, "key"))
			require.Equal(t, 100, remaining(t, x, "key"))
			require.Equal(t, there/4, remaining(t, x.other, "key"), "it was taken")
		})
	}
}

func TestNothingIsMovedThatCannotBeCredited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "token_bucket", ratelimit.PerDay(100))
		require.Equal(t, 100, use(t, x, "key", 100))
		r, err := x.AllowN(t.Context(), "key", 100)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Zero(t, x.far.calls.Load(), "no credit makes a whole Burst")
		time.Sleep(time.Second)
		r, err = x.AllowN(t.Context(), "key", 98)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	})
}

func TestNothingIsMovedIntoAWindowOfAnotherCalendar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // from 1 January 2000 on
		limit := ratelimit.PerMonth(200).From(15)
		by := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil })
		stores := map[string]store.Store{"a": memory(t), "b": memory(t)}
		shared, err := regions.New("a", stores)
		require.NoError(t, err)
		elsewhere, err := regions.New("b", stores)
		require.NoError(t, err)
		l, other := limiter(t, "fixed_window", shared, limit, by), limiter(t, "fixed_window", elsewhere, limit, by)
		r, err := l.AllowN(t.Context(), "key", 100)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		limit = ratelimit.PerMonth(200)
		for range 5 {
			require.Zero(t, use(t, l, "key", 1))
			time.Sleep(time.Second)
		}
		require.Equal(t, 100, remaining(t, other, "key"))
		time.Sleep(14 * 24 * time.Hour) // the count ends with the window that began on the 15th
		require.Equal(t, 1, use(t, l, "key", 1))
	})
}

// AllowWithin takes a token of another region before it waits for one of its own.
func TestTurnsAreThoseOfTheOwnShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, x := t.Context(), newTwo(t, "token_bucket", ratelimit.PerSecond(10))
		require.Equal(t, 10, use(t, x, "key", 10))
		r, err := ratelimit.AllowWithin(ctx, x.Limiter, "key", 1, time.Second)
		require.NoError(t, err)
		require.Equal(t, 100*time.Millisecond, r.Delay, "its turn comes in time")
		require.Zero(t, x.far.calls.Load())
		r, err = ratelimit.AllowWithin(ctx, x.Limiter, "key", 1, 150*time.Millisecond)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, 5, remaining(t, x.other, "key"))
	})
}

// Debits and credits of different windows, on clocks that are off, credit nothing.
func TestACreditIsOfTheWindowOfItsDebit(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window"} {
		now, off := epoch+second/2, int64(0)
		ahead := &faraway{Store: memory(t, memstore.WithClock(func() time.Time { return time.UnixMicro(now + off) }))}
		here := memory(t, memstore.WithClock(func() time.Time { return time.UnixMicro(now) }))
		own, other := limiter(t, algorithm, here, ratelimit.PerSecond(10)), limiter(t, algorithm, ahead, ratelimit.PerSecond(10))
		shared, l := first(t, algorithm, ratelimit.PerSecond(10), []store.Store{here, ahead})

		off = skew
		now = epoch + 9*second/10 // the other one is in the next window
		require.Equal(t, 10, use(t, l, "ahead", 11), algorithm)
		require.Equal(t, 10, remaining(t, other, "ahead"), "nothing is debited in vain")

		off, now = 0, epoch+second/2
		ahead.before = func(_ context.Context, op string) error {
			if op == "debit" {
				now = epoch + second
			}
			return nil
		}
		shared.Forget()
		require.Equal(t, 10, use(t, l, "late debit", 10))
		r, err := l.Allow(t.Context(), "late debit")
		require.NoError(t, err)
		require.Equal(t, algorithm == "fixed_window", r.Allowed, "by the new window alone")
		require.Equal(t, 5, remaining(t, other, "late debit"))
		if algorithm == "sliding_window" {
			require.Zero(t, remaining(t, own, "late debit"), "nothing is credited")
		}

		now = epoch + second/2
		ahead.before, ahead.after = nil, func(op string) {
			if op == "debit" {
				now = epoch + second
			}
		}
		shared.Forget()
		require.Equal(t, 11, use(t, l, "late credit", 11))
		left := map[string]int{"fixed_window": 9, "sliding_window": 4} // 5 of 10 are credited to the window that ends
		require.Equal(t, left[algorithm], remaining(t, own, "late credit"))
		left = map[string]int{"fixed_window": 10, "sliding_window": 5}
		require.Equal(t, left[algorithm], remaining(t, other, "late credit"))
	}
}

// Several regions together have what a call needs.
func TestSeveralRegionsGive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stores []store.Store
		var shares []ratelimit.Limiter
		for range 4 {
			stores = append(stores, memory(t))
			shares = append(shares, limiter(t, "fixed_window", stores[len(stores)-1], ratelimit.PerDay(10)))
		}
		_, l := first(t, "fixed_window", ratelimit.PerDay(10), stores)
		require.Equal(t, 10, use(t, l, "key", 10))
		for i, other := range shares[1:] {
			require.Equal(t, 5+i, use(t, other, "key", 5+i)) // 5, 4 and 3 are left
		}
		r, err := l.AllowN(t.Context(), "key", 10)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		left := 0
		for _, s := range shares {
			left += remaining(t, s, "key")
		}
		require.Equal(t, 2, left)
		r, err = l.AllowN(t.Context(), "key", 3)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Equal(t, 2, use(t, l, "key", 3), "nothing was lost")
	})
}

// Keys may have limits of their own, which may change.
func TestLimitsByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := map[string]store.Store{"a": memory(t), "b": memory(t)}
		limits := map[string]ratelimit.Limit{"none": ratelimit.PerDay(0), "hour": ratelimit.PerHour(10), "odd": ratelimit.PerDay(41)}
		by := ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) { return limits[key], nil })
		var shared [2]*regions.Store
		var l [2]ratelimit.Limiter
		for i := range l {
			var err error
			shared[i], err = regions.New(name(i), stores)
			require.NoError(t, err)
			l[i] = limiter(t, "fixed_window", shared[i], ratelimit.PerDay(20), by)
		}
		for key, want := range map[string]int{"none": 0, "hour": 10, "odd": 41, "key": 20} {
			require.Equal(t, want, use(t, l[0], key, 60), key)
			require.Zero(t, use(t, l[1], key, 60), key)
		}
		time.Sleep(time.Second)
		limits["key"] = ratelimit.PerDay(30)
		require.Equal(t, 10, use(t, l[1], "key", 60), "the limit has grown")
		limits["key"] = ratelimit.PerDay(25)
		require.Zero(t, use(t, l[0], "key", 60))
	})
}

func TestRegionsUnderTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, err := regions.New("a", map[string]store.Store{"a": memory(t), "b": memory(t)})
		require.NoError(t, err)
		plan := ""
		l := limiter(t, "token_bucket", shared, ratelimit.PerDay(10), ratelimit.WithTiers(
			func(context.Context, string) (string, error) { return plan, nil },
			map[string]ratelimit.Limit{"gold": ratelimit.PerDay(100), "staff": ratelimit.Unlimited()}))
		require.Equal(t, 10, use(t, l, "key", 20))
		plan = "staff"
		require.Equal(t, 200, use(t, l, "key", 200))
		time.Sleep(time.Second)
		plan = "gold"
		require.Equal(t, 90, use(t, l, "key", 200), "10 are spent")
	})
}

// While the Rate is 0 a bucket gives back under the highest Burst that there is, of which no share
// would be a limit.
func TestARefundOfARegionWhileTheRateIs0(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, err := regions.New("a", map[string]store.Store{"a": memory(t), "b": memory(t)})
		require.NoError(t, err)
		now := ratelimit.PerDay(5)
		l := limiter(t, "token_bucket", shared, now, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return now, nil }))
		r, err := l.Allow(t.Context(), "key")
		require.NoError(t, err)
		now = ratelimit.PerDay(20)
		require.Equal(t, 9, use(t, l, "key", 9))
		before := remaining(t, l, "key")
		now = ratelimit.PerDay(0)
		require.NoError(t, l.Refund(t.Context(), "key", r, 1))
		now = ratelimit.PerDay(20)
		require.Equal(t, before+1, remaining(t, l, "key"))
	})
}

func TestOneCallOfAKeyFetchesAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "fixed_window", ratelimit.PerDay(10))
		require.Equal(t, 10, use(t, x, "key", 10))
		x.far.before = func(context.Context, string) error { time.Sleep(50 * time.Millisecond); return nil }
		began := time.Now()
		var callers sync.WaitGroup
		callers.Go(func() { require.Equal(t, 1, use(t, x, "key", 1)) })
		synctest.Wait()
		require.Zero(t, use(t, x, "key", 5))
		require.Equal(t, began, time.Now(), "at once")
		callers.Wait()
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		require.EqualValues(t, 2, x.far.calls.Load())
	})
}

// slow takes a time, or until ctx ends.
func slow(d time.Duration) func(context.Context, string) error {
	return func(ctx context.Context, _ string) error {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", store.ErrStore, ctx.Err())
		case <-time.After(d):
			return nil
		}
	}
}

func TestTheWaitForOthersIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		takes, deadline, want time.Duration
		lost                  int
	}{
		"by WithWait":             {time.Hour, time.Hour, 200 * time.Millisecond, 0},
		"by ctx":                  {time.Hour, 50 * time.Millisecond, 50 * time.Millisecond, 0},
		"no debit that is lost":   {120 * time.Millisecond, time.Hour, 120 * time.Millisecond, 0},
		"nor by the end of ctx":   {60 * time.Millisecond, 100 * time.Millisecond, 60 * time.Millisecond, 0},
		"there is time for both":  {80 * time.Millisecond, time.Hour, 160 * time.Millisecond, 5},
		"there is just the time":  {100 * time.Millisecond, time.Hour, 200 * time.Millisecond, 5},
		"there is time in ctx":    {40 * time.Millisecond, 100 * time.Millisecond, 80 * time.Millisecond, 5},
		"a little less than half": {99 * time.Millisecond, 200 * time.Millisecond, 198 * time.Millisecond, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := newTwo(t, "fixed_window", ratelimit.PerDay(10), regions.WithWait(200*time.Millisecond))
			require.Equal(t, 10, use(t, x, "key", 10))
			x.far.before = slow(test.takes)
			ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
			defer cancel()
			began := time.Now()
			_, err := x.Allow(ctx, "key")
			require.NoError(t, err, name)
			require.Equal(t, test.want, time.Since(began), name)
			x.far.before = nil
			if name != "there is just the time" { // either may win
				require.Equal(t, 10-test.lost, remaining(t, x.other, "key"), name)
			}
		})
	}
}

// The wait is that of a call, however many of its limits deny.
func TestSeveralLimitsWaitForOthersTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "fixed_window", ratelimit.PerDay(10), regions.WithWait(200*time.Millisecond))
		all, err := ratelimit.NewAll(x.Limiter, limiter(t, "token_bucket", x.shared, ratelimit.PerDay(20)))
		require.NoError(t, err)
		require.Equal(t, 10, use(t, all, "key", 10))
		x.far.before = slow(80 * time.Millisecond)
		began := time.Now()
		require.Zero(t, use(t, all, "key", 1), "there is time for one of them")
		require.Equal(t, 160*time.Millisecond+40*time.Millisecond, time.Since(began))
		time.Sleep(time.Second)
		require.Equal(t, 1, use(t, all, "key", 1), "and now for the other one")
	})
}

// A caller who leaves while another region gives does not lose what that gives.
func TestADebitIsCreditedAfterItsCallerHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "fixed_window", ratelimit.PerDay(10))
		require.Equal(t, 10, use(t, x, "key", 10))
		ctx, cancel := context.WithCancel(t.Context())
		x.far.before = func(ctx context.Context, op string) error {
			if op == "debit" {
				cancel()
			}
			return ctx.Err()
		}
		x.near.before = func(ctx context.Context, _ string) error { return ctx.Err() }
		r, err := x.Allow(ctx, "key")
		require.NoError(t, err)
		require.False(t, r.Allowed, "what is known")
		require.Equal(t, 5, remaining(t, x.own, "key"))
		require.Zero(t, x.shared.Stats().Failed)
	})
}

func TestNobodyIsAskedForAWhileAfterNothingWasFound(t *testing.T) {
	for algorithm, pause := range map[string]time.Duration{"fixed_window": 100 * time.Millisecond, "token_bucket": 10 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			limit := ratelimit.PerSecond(100)
			if algorithm == "fixed_window" {
				limit = ratelimit.PerDay(100)
			}
			x := newTwo(t, algorithm, limit)
			require.Equal(t, 100, use(t, x.other, "key", 100))
			require.Equal(t, 100, use(t, x, "key", 110))
			require.EqualValues(t, 1, x.shared.Stats().Fetches)
			require.Equal(t, 1, x.shared.Pauses())
			time.Sleep(pause - 1)
			use(t, x.own, "key", 1)
			require.Zero(t, use(t, x, "key", 1))
			require.EqualValues(t, 1, x.shared.Stats().Fetches)
			time.Sleep(time.Nanosecond)
			use(t, x.own, "key", 1)
			require.NoError(t, x.other.Reset(t.Context(), "key"))
			require.Equal(t, 1, use(t, x, "key", 1))
			require.EqualValues(t, 2, x.shared.Stats().Fetches)
			require.Zero(t, x.shared.Pauses())
		})
	}
}

func TestRotatingKeysTakeBoundedMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "fixed_window", ratelimit.PerDay(1))
		for i := range regions.MaxPauses + 1000 {
			key := fmt.Sprint(i)
			require.Equal(t, 2, use(t, x, key, 3))
		}
		require.Equal(t, regions.MaxPauses, x.shared.Pauses())
	})
}

func TestAPanicEndsTheFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "fixed_window", ratelimit.PerDay(10))
		require.Equal(t, 10, use(t, x, "key", 10))
		x.far.before = func(context.Context, string) error { panic("no") }
		require.Panics(t, func() { _, _ = x.Allow(t.Context(), "key") })
		x.far.before = nil
		time.Sleep(time.Second)
		require.Equal(t, 1, use(t, x, "key", 1))
	})
}

// Three regions whose shares differ, under -race: what all admit is the limit.
func TestRegionsAtOnce(t *testing.T) {
	for n := range 2 * len(algorithms) {
		algorithm, processes := algorithms[n/2], 1+n%2
		weights := map[string]int{"a": 7, "b": 1, "c": 2}
		now := time.UnixMicro(epoch + 12*3600*second)
		stores := make(map[string]store.Store)
		for name := range weights {
			stores[name] = memory(t, memstore.WithClock(func() time.Time { return now }))
		}
		var admitted atomic.Int64
		var callers sync.WaitGroup
		var shares []ratelimit.Limiter
		for name := range stores {
			for range processes {
				shared, err := regions.New(name, stores, regions.WithWeights(weights))
				require.NoError(t, err)
				l := limiter(t, algorithm, shared, ratelimit.PerDay(1000))
				shares = append(shares, l)
				for range 4 {
					callers.Go(func() {
						for range 300 {
							r, err := l.Allow(context.Background(), "key")
							if err != nil {
								t.Error(err)
							}
							if r.Allowed {
								admitted.Add(1)
							}
						}
					})
				}
			}
		}
		callers.Wait()
		left := 0
		for i := 0; i < len(shares); i += processes {
			left += remaining(t, shares[i], "key")
		}
		sum := int(admitted.Load()) + left
		require.LessOrEqual(t, sum, 1000, algorithm)
		if processes == 1 { // two that fetch at once may find less charged than they have fetched
			require.Equal(t, 1000, sum, "%s: nothing was lost", algorithm)
		}
	}
}

// capacity is the most events that fit at once.
func capacity(l ratelimit.Limit) int { return cmp.Or(l.Burst, l.Rate) }

// TestInsideOfOthers has the wrappers of this module around a limit that regions share.
func TestInsideOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, x := t.Context(), newTwo(t, "fixed_window", ratelimit.PerDay(10))
		seen := new(counter)
		observed, err := observe.Around(x.Limiter, seen)
		require.NoError(t, err)
		day, err := ratelimit.NewFixedWindow(memory(t), ratelimit.PerDay(18), ratelimit.WithPolicyName("day"))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(observed, day)
		require.NoError(t, err)
		l, err := fallback.New(all, fallback.FailLocal(2))
		require.NoError(t, err)
		require.Equal(t, 18, use(t, l, "key", 20))
		r, err := l.Allow(ctx, "key")
		require.NoError(t, err)
		require.Equal(t, "day", r.DeniedBy())
		require.Equal(t, 2, remaining(t, x.own, "key")+remaining(t, x.other, "key"), "what the day has denied came back")
		require.Equal(t, 21, seen.admitted)
		require.Zero(t, seen.denied)

		x.far.before, x.near.before = failing("peek"), failing("peek")
		require.Equal(t, 10, use(t, l, "another", 11), "a fetch that fails is no failure of the store")
		r, err = l.Allow(ctx, "another")
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceStore, r.Source())

		x = newTwo(t, "token_bucket", ratelimit.PerSecond(10))
		waiter, err := throttle.NewWaiter(x, time.Second)
		require.NoError(t, err)
		require.Equal(t, 20+10, use(t, waiter, "key", 30), "20 at once, and 10 that were waited for")
	})
}

// Limits on one store are decided in one call of it, and fetched for each on its own.
func TestSeveralLimitsOfRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, x := t.Context(), newTwo(t, "fixed_window", ratelimit.PerDay(10))
		tokens := limiter(t, "token_bucket", x.shared, ratelimit.PerDay(60))
		all, err := ratelimit.NewAll(x.Limiter, tokens)
		require.NoError(t, err)
		require.Equal(t, 20, use(t, all, "key", 25))
		require.EqualValues(t, 0, remaining(t, x.other, "key"))
		require.Equal(t, 60-20, remaining(t, tokens, "key")+30, "what is denied costs nothing")

		ask := func(n int) ratelimit.Result {
			r, err := ratelimit.Decide(ctx, ratelimit.Ask{Limiter: x.Limiter, Key: "other", N: 1}, ratelimit.Ask{Limiter: tokens, Key: "other", N: n})
			require.NoError(t, err)
			return r
		}
		r := ask(25)
		require.True(t, r.Allowed)
		require.Equal(t, []int{20, 60}, []int{r.Parts()[0].Limit, r.Parts()[1].Limit})
		require.Equal(t, []int{9, 5}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining})
		require.True(t, ask(25).Allowed, "20 more are fetched")
		r = ask(31)
		require.False(t, r.Allowed)
		require.Equal(t, ratelimit.Never, r.RetryAfter, "no share holds that")
		r, err = ratelimit.Decide(ctx, ratelimit.Ask{Limiter: x.Limiter, Key: "fresh", N: 1}, ratelimit.Ask{Limiter: tokens, Key: "fresh", N: 31})
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Zero(t, r.Parts()[0].ResetAfter, "nothing is charged")
		fetched := x.shared.Stats().Fetches
		require.False(t, ask(20).Allowed)
		require.Equal(t, fetched+1, x.shared.Stats().Fetches, "for tokens alone")
		require.Equal(t, 8, remaining(t, x, "other"))

		x = newTwo(t, "fixed_window", ratelimit.PerDay(2))
		trial := limiter(t, "token_bucket", x.shared, ratelimit.PerDay(4))
		for i := range 5 {
			r, err := ratelimit.Decide(ctx, ratelimit.Ask{Limiter: x.Limiter, Key: "key", N: 1}, ratelimit.Ask{Limiter: trial, Key: "key", N: 2, Shadow: true})
			require.NoError(t, err)
			require.Equal(t, i < 4, r.Allowed)
			require.Equal(t, i < 1, r.Parts()[1].Allowed, "of the others one more can be given back")
		}
		r, err = ratelimit.Decide(ctx, ratelimit.Ask{Limiter: x.Limiter, Key: "new", N: 1}, ratelimit.Ask{Limiter: trial, Key: "new", Look: true})
		require.NoError(t, err)
		require.Equal(t, 2, r.Parts()[1].Remaining, "a look")
		r, err = ratelimit.Decide(ctx, ratelimit.Ask{Limiter: x.Limiter, Key: "much", N: 1}, ratelimit.Ask{Limiter: trial, Key: "much", N: 3, Shadow: true})
		require.NoError(t, err)
		require.Positive(t, r.ResetAfter, "one is charged")
	})
}

// A debt is that of the own share, and what is told of it.
func TestDebtsAreOfTheOwnShare(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			ctx, x := t.Context(), newTwo(t, algorithm, ratelimit.PerHour(60))
			same := func(charge func(l ratelimit.Limiter) ratelimit.Result) (ours, theirs ratelimit.Result) {
				ours, theirs = charge(x.Limiter), charge(x.other)
				require.Equal(t, theirs.Remaining, ours.Remaining, algorithm)
				require.Equal(t, theirs.ResetAfter, ours.ResetAfter, algorithm)
				require.Equal(t, theirs.Charged(), ours.Charged(), algorithm)
				require.Equal(t, 120, ours.Limit)
				return ours, theirs
			}
			for _, n := range []int{1, 40, 50, 70} {
				time.Sleep(time.Minute)
				ours, theirs := same(func(l ratelimit.Limiter) ratelimit.Result {
					r, err := ratelimit.Charge(ctx, l, "key", n)
					require.NoError(t, err)
					return r
				})
				require.NoError(t, x.Refund(ctx, "key", ours, 1+n/2))
				require.NoError(t, x.other.Refund(ctx, "key", theirs, 1+n/2))
				same(func(l ratelimit.Limiter) ratelimit.Result {
					r, err := l.Peek(ctx, "key")
					require.NoError(t, err)
					return r
				})
			}
			time.Sleep(3 * time.Hour)
			require.Equal(t, 60, remaining(t, x, "key"))

			var charged [2]ratelimit.Result
			for i, l := range []ratelimit.Limiter{x.Limiter, x.other} {
				var err error
				charged[i], err = l.AllowN(ctx, "key", 10)
				require.NoError(t, err)
				require.Equal(t, 10, use(t, l, "key", 10))
			}
			time.Sleep(5 * time.Minute) // of a bucket 5 of the first 10 come back
			require.NoError(t, x.Refund(ctx, "key", charged[0], 10))
			require.NoError(t, x.other.Refund(ctx, "key", charged[1], 10))
			require.Equal(t, remaining(t, x.other, "key"), remaining(t, x, "key"), algorithm)
			if algorithm == "token_bucket" {
				require.Equal(t, 50, remaining(t, x, "key"))
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "token_bucket", ratelimit.Limit{Rate: 1, Period: 10 * 365 * 24 * time.Hour, Burst: 3})
		r, err := ratelimit.Charge(t.Context(), x.Limiter, "key", 1_000)
		require.NoError(t, err)
		require.Equal(t, 100*365*24*time.Hour, r.ResetAfter, "it holds what drains in 100 years")
		r, err = ratelimit.Charge(t.Context(), x.Limiter, "key", 5)
		require.NoError(t, err)
		require.Equal(t, 100*365*24*time.Hour, r.ResetAfter)
	})
}

// Stores stand before it, and behind.
func TestBetweenOtherStores(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) { // a lease before it
			ctx := t.Context()
			stores := map[string]store.Store{"a": memory(t), "b": memory(t)}
			admitted, ends := 0, time.Now().Add(3*time.Second)
			var l [2]ratelimit.Limiter
			var leases [2]*lease.Store
			for i := range l {
				shared, err := regions.New(name(i), stores)
				require.NoError(t, err)
				leases[i], err = lease.New(shared, 50*time.Millisecond)
				require.NoError(t, err)
				l[i] = limiter(t, algorithm, leases[i], ratelimit.Limit{Rate: 1000, Period: 10 * time.Second})
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for i := 0; time.Now().Before(ends); i++ {
				if r, err := l[rng.IntN(9)/8].Allow(ctx, "key"); err == nil && r.Allowed {
					admitted++
				}
				time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
			}
			most := map[string]int{"fixed_window": 1000, "sliding_window": 1000, "token_bucket": 1000 + 300}[algorithm]
			require.LessOrEqual(t, admitted, most, algorithm)
			require.GreaterOrEqual(t, admitted, most-most/20, algorithm)
			require.Greater(t, leases[0].Stats().Local, int64(admitted/2), algorithm)
			for i := range leases {
				require.NoError(t, leases[i].Close(ctx))
			}
		})
		synctest.Test(t, func(t *testing.T) { // a coalescer before, and caches of denials behind
			x := &two{near: &faraway{Store: memory(t)}, far: &faraway{Store: memory(t)}}
			cached, err := denycache.New(x.near)
			require.NoError(t, err)
			x.shared, x.Limiter = first(t, algorithm, ratelimit.PerDay(10), []store.Store{cached, x.far})
			together, err := coalesce.New(x.shared)
			require.NoError(t, err)
			l := limiter(t, algorithm, together, ratelimit.PerDay(20))
			require.Equal(t, 20, use(t, l, "key", 25))
			r, err := l.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, ratelimit.SourceDenyCache, r.Source())
			require.Equal(t, 20, r.Limit)
		})
		synctest.Test(t, func(t *testing.T) { // a cache of denials before it does not know that others have room
			x := newTwo(t, algorithm, ratelimit.PerDay(10))
			cached, err := denycache.New(x.shared)
			require.NoError(t, err)
			l := limiter(t, algorithm, cached, ratelimit.PerDay(20))
			x.far.before = failing("peek")
			require.Equal(t, 10, use(t, l, "key", 15))
			x.far.before = nil
			time.Sleep(time.Second)
			require.Equal(t, 10, use(t, l, "key", 15))
		})
	}
}

// Clients are told of the limit of all regions, and of what is left in their own.
func TestServedByHTTP(t *testing.T) {
	x := newTwo(t, "fixed_window", ratelimit.PerHour(2))
	h, err := httplimit.New(x.Limiter)
	require.NoError(t, err)
	served := h(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	codes := map[int]int{}
	for i := range 6 {
		w := httptest.NewRecorder()
		served.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		codes[w.Code]++
		require.Equal(t, `"shared";q=4;w=3600`, w.Header().Get("RateLimit-Policy"))
		if i == 0 {
			require.Regexp(t, `^"shared";r=1;t=`, w.Header().Get("RateLimit"))
		}
	}
	require.Equal(t, map[int]int{http.StatusOK: 4, http.StatusTooManyRequests: 2}, codes)
}

// A share can hold only so many events. What it could not hold must not be reported as charged,
// because a Refund of that would refund the charges of others.
func TestEventsThatAShareCannotHoldAreNotRefunded(t *testing.T) {
	year := 365 * 24 * time.Hour
	for _, tt := range []struct {
		algorithm string
		each      ratelimit.Limit
		most      int // that a share can hold
	}{
		{"token_bucket", ratelimit.Limit{Rate: 1, Period: year, Burst: 2}, 100},
		{"fixed_window", ratelimit.PerHour(10), math.MaxInt32},
		{"sliding_window", ratelimit.PerHour(10), math.MaxInt32},
	} {
		t.Run(tt.algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTwo(t, tt.algorithm, tt.each)
				first := testkit.Overcharge(t, x.Limiter, tt.most-10)
				require.Equal(t, tt.most-10, first.Charged())
				second := testkit.Overcharge(t, x.Limiter, 80)
				require.Equal(t, 10, second.Charged())
				require.Zero(t, second.Remaining)
				third := testkit.Overcharge(t, x.Limiter, 80)
				require.Zero(t, third.Charged())
				require.ErrorIs(t, x.Refund(t.Context(), "key", third, 80), ratelimit.ErrInvalidN)
				require.NoError(t, x.Refund(t.Context(), "key", second, 80))
				require.Equal(t, 10, testkit.Overcharge(t, x.Limiter, 80).Charged(), "the first ones are still there")
			})
		})
	}
}
