package regions_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/regions"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
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

func (f *faraway) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	err = f.run(ctx, "peek", func() error { r, err = f.Store.Peek(ctx, ns, key, l, n); return err })
	return r, err
}

func (f *faraway) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	err = f.run(ctx, "debit", func() error { r, err = f.Store.TakeUpTo(ctx, ns, key, l, n); return err })
	return r, err
}

func (f *faraway) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	return f.run(ctx, "credit", func() error { return f.Store.Refund(ctx, ns, key, l, c) })
}

// two is a region, and another one of which it takes.
type two struct {
	*regions.Limiter
	own, other ratelimit.Limiter
	near, far  *faraway
}

func newTwo(t testing.TB, algorithm string, limit ratelimit.Limit, opts ...regions.Option) *two {
	t.Helper()
	x := &two{near: &faraway{Store: memory(t)}, far: &faraway{Store: memory(t)}}
	x.own, x.other = share(t, algorithm, x.near, limit), share(t, algorithm, x.far, limit)
	var err error
	x.Limiter, err = regions.New(x.own, []ratelimit.Limiter{x.other}, opts...)
	require.NoError(t, err)
	return x
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

func TestNewRefusesWhatIsNoShare(t *testing.T) {
	limit := ratelimit.PerHour(10)
	make := func(algorithm string, l ratelimit.Limit) ratelimit.Limiter { return share(t, algorithm, memory(t), l) }
	own, mem := make("fixed_window", limit), memory(t)
	all, err := ratelimit.NewAll(own)
	require.NoError(t, err)
	calls, err := ratelimit.NewFixedWindow(memory(t), limit, ratelimit.CountCalls())
	require.NoError(t, err)
	for name, args := range map[string]struct {
		own    ratelimit.Limiter
		others []ratelimit.Limiter
		opts   []regions.Option
		text   string
	}{
		"nil":               {nil, []ratelimit.Limiter{own}, nil, "nil"},
		"typed nil":         {(*ratelimit.FixedWindow)(nil), []ratelimit.Limiter{own}, nil, "nil"},
		"another is nil":    {own, []ratelimit.Limiter{nil}, nil, "nil"},
		"alone":             {own, nil, nil, "no other"},
		"All":               {all, []ratelimit.Limiter{make("fixed_window", limit)}, nil, "*ratelimit.All is no share"},
		"calls":             {calls, []ratelimit.Limiter{make("fixed_window", limit)}, nil, "no share"},
		"another is an All": {make("fixed_window", limit), []ratelimit.Limiter{all}, nil, "no share"},
		"log":               {make("sliding_log", limit), []ratelimit.Limiter{make("sliding_log", limit)}, nil, "a sliding_log is no share"},
		"queue":             {make("leaky_bucket", limit), []ratelimit.Limiter{make("leaky_bucket", limit)}, nil, "a leaky_bucket is no share"},
		"algorithms":        {own, []ratelimit.Limiter{make("sliding_window", limit)}, nil, "one algorithm and Period"},
		"periods":           {own, []ratelimit.Limiter{make("fixed_window", ratelimit.PerMinute(10))}, nil, "one algorithm and Period"},
		"burst of 1":        {make("token_bucket", ratelimit.Limit{Rate: 9, Period: time.Hour, Burst: 1}), []ratelimit.Limiter{own}, nil, "burst of 1"},
		"itself":            {own, []ratelimit.Limiter{own}, nil, "same state"},
		"its equal":         {share(t, "fixed_window", mem, limit), []ratelimit.Limiter{share(t, "fixed_window", mem, limit)}, nil, "same state"},
		"two others":        {make("fixed_window", limit), []ratelimit.Limiter{own, own}, nil, "same state"},
		"nil option":        {own, []ratelimit.Limiter{make("fixed_window", limit)}, []regions.Option{nil}, "nil"},
		"no wait":           {own, []ratelimit.Limiter{make("fixed_window", limit)}, []regions.Option{regions.WithWait(0)}, "WithWait(0s)"},
		"long wait":         {own, []ratelimit.Limiter{make("fixed_window", limit)}, []regions.Option{regions.WithWait(time.Hour)}, "WithWait(1h0m0s)"},
	} {
		l, err := regions.New(args.own, args.others, args.opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		require.ErrorContains(t, err, args.text, name)
		require.Nil(t, l, name)
	}
	observed, err := ratelimit.NewFixedWindow(memory(t), limit, ratelimit.WithObserver(new(counter)))
	require.NoError(t, err)
	_, err = regions.New(observed, []ratelimit.Limiter{make("fixed_window", ratelimit.PerHour(3))})
	require.NoError(t, err, "observed, and of another rate")
	x := newTwo(t, "fixed_window", limit)
	require.Equal(t, x.own, x.Unwrap())
}

type counter struct{ admitted, denied, charged int }

func (c *counter) Decided(_ context.Context, _ string, _ int, r ratelimit.Result, _ error, _ time.Duration) {
	if c.charged += r.Charged(); r.Allowed {
		c.admitted++
	} else {
		c.denied++
	}
}

func TestBadInputTakesNothing(t *testing.T) {
	var zero regions.Limiter
	ctx := t.Context()
	for name, l := range map[string]*regions.Limiter{"zero": &zero, "made": newTwo(t, "fixed_window", ratelimit.PerHour(1)).Limiter} {
		done, cancel := context.WithCancel(ctx)
		cancel()
		want := func(err, is error) {
			t.Helper()
			if name == "zero" {
				is = ratelimit.ErrInvalidLimit
			}
			require.ErrorIs(t, err, is, name)
		}
		_, err := l.AllowN(ctx, "key", 0)
		want(err, ratelimit.ErrInvalidN)
		_, err = l.Allow(ctx, "")
		want(err, ratelimit.ErrInvalidKey)
		_, err = l.Allow(done, "key")
		want(err, context.Canceled)
		_, _, err = l.AllowUpTo(ctx, "key", 0)
		want(err, ratelimit.ErrInvalidN)
		_, err = l.AllowWithin(ctx, "", 1, 0)
		want(err, ratelimit.ErrInvalidKey)
		_, err = l.Peek(ctx, "")
		want(err, ratelimit.ErrInvalidKey)
		_, err = l.Charge(ctx, "key", 0)
		want(err, ratelimit.ErrInvalidN)
		want(l.Refund(ctx, "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidN)
		want(l.Reset(ctx, ""), ratelimit.ErrInvalidKey)
		require.Zero(t, l.Stats())
	}
	_, err := zero.AppendPolicies(ctx, nil, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestWhatOneShareDeniesIsFetchedFromAnother(t *testing.T) {
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
			require.EqualValues(t, 100, x.Stats().Moved)
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
			require.Zero(t, x.far.calls.Load())
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
			granted, r, err := x.AllowUpTo(ctx, "key", 100)
			require.NoError(t, err)
			require.Equal(t, here, granted)
			require.Equal(t, here, r.Charged())
			granted, _, err = x.AllowUpTo(ctx, "key", 100)
			require.NoError(t, err)
			require.Equal(t, there-there/2, granted, "half of what is there")
			charged, err := x.Charge(ctx, "key", 7)
			require.NoError(t, err)
			require.Equal(t, 7, charged.Charged())
			require.Equal(t, there/2, remaining(t, x.other, "key"))
			require.NoError(t, x.Reset(ctx, "key"))
			require.Equal(t, 100, remaining(t, x, "key"))
			require.Equal(t, there/2, remaining(t, x.other, "key"), "it was taken")
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
		limit := ratelimit.PerMonth(100).From(15)
		by := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil })
		own := share(t, "fixed_window", memory(t), ratelimit.PerMonth(100), by)
		other := share(t, "fixed_window", memory(t), ratelimit.PerMonth(100), by)
		l, err := regions.New(own, []ratelimit.Limiter{other})
		require.NoError(t, err)
		require.Equal(t, 100, use(t, own, "key", 100))
		limit = ratelimit.PerMonth(100)
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
		r, err := x.AllowWithin(ctx, "key", 1, time.Second)
		require.NoError(t, err)
		require.Equal(t, 100*time.Millisecond, r.Delay, "its turn comes in time")
		require.Zero(t, x.far.calls.Load())
		r, err = x.AllowWithin(ctx, "key", 1, 150*time.Millisecond)
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
		own := share(t, algorithm, memory(t, memstore.WithClock(func() time.Time { return time.UnixMicro(now) })), ratelimit.PerSecond(10))
		other := share(t, algorithm, ahead, ratelimit.PerSecond(10))
		l, err := regions.New(own, []ratelimit.Limiter{other})
		require.NoError(t, err)

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
		l.Forget()
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
		l.Forget()
		require.Equal(t, 11, use(t, l, "late credit", 11))
		left := map[string]int{"fixed_window": 9, "sliding_window": 4} // 5 of 10 are credited to the window that ends
		require.Equal(t, left[algorithm], remaining(t, own, "late credit"))
		left = map[string]int{"fixed_window": 10, "sliding_window": 5}
		require.Equal(t, left[algorithm], remaining(t, other, "late credit"))
	}
}

var errDown = fmt.Errorf("%w: down", store.ErrUnavailable)

// failing returns a hook that fails calls of an operation.
func failing(of string) func(context.Context, string) error {
	return func(_ context.Context, op string) error {
		if op == of {
			return errDown
		}
		return nil
	}
}

func TestErrorsOfOthersAreNotTheCallers(t *testing.T) {
	for _, op := range []string{"peek", "debit"} {
		synctest.Test(t, func(t *testing.T) {
			x := newTwo(t, "fixed_window", ratelimit.PerDay(10))
			x.far.before = failing(op)
			require.Equal(t, 10, use(t, x, "key", 11))
			require.EqualValues(t, 1, x.Stats().Failed)
			calls := x.far.calls.Load()
			require.Equal(t, 10, use(t, x, "another key", 11))
			require.Equal(t, calls, x.far.calls.Load(), "it rests for all keys")
			x.far.before = nil
			time.Sleep(time.Second)
			require.Equal(t, 5, use(t, x, "key", 5))
			require.Equal(t, 5, use(t, x, "another key", 5))
		})
	}
}

// What fails for one key, or for want of room in this process, says nothing about a region.
func TestAnErrorOfAKeyRestsNoRegion(t *testing.T) {
	for name, fault := range map[string]struct{ limits, store error }{
		"limit function": {limits: errors.New("no such plan")},
		"slow plans":     {limits: context.DeadlineExceeded},
		"corrupt":        {store: fmt.Errorf("%w: on purpose", store.ErrCorrupt)},
		"clock":          {store: fmt.Errorf("%w: on purpose", store.ErrClock)},
		"overloaded":     {store: fmt.Errorf("%w: on purpose", store.ErrOverloaded)},
	} {
		synctest.Test(t, func(t *testing.T) {
			far := &faraway{Store: memory(t)}
			bad := true
			other, err := ratelimit.NewFixedWindow(far, ratelimit.PerDay(10), ratelimit.WithLimitFunc(
				func(context.Context, string) (ratelimit.Limit, error) {
					if bad {
						return ratelimit.PerDay(10), fault.limits
					}
					return ratelimit.PerDay(10), nil
				}))
			require.NoError(t, err)
			far.before = func(context.Context, string) error {
				if bad {
					return fault.store
				}
				return nil
			}
			l, err := regions.New(share(t, "fixed_window", memory(t), ratelimit.PerDay(10)), []ratelimit.Limiter{other})
			require.NoError(t, err)
			require.Equal(t, 10, use(t, l, "bad", 11), name)
			bad = false
			require.Equal(t, 20, use(t, l, "good", 21), name)

			far.before = failing("peek")
			require.Equal(t, 10, use(t, l, "rests", 11), name)
			time.Sleep(time.Second)
			bad, far.before = true, func(context.Context, string) error { return fault.store }
			require.Zero(t, use(t, l, "bad", 1), name)
			bad, far.before = false, nil
			require.Equal(t, 20, use(t, l, "better", 21), "%s: it was no probe of the region", name)
		})
	}
}

// Only a region that had all of the wait is left alone for being slow.
func TestASlowRegionIsNotTakenForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.PerDay(12)
		hung, slower := &faraway{Store: memory(t)}, &faraway{Store: memory(t), before: slow(90 * time.Millisecond)}
		l, err := regions.New(share(t, "fixed_window", memory(t), limit), []ratelimit.Limiter{
			share(t, "fixed_window", slower, limit), share(t, "fixed_window", hung, limit),
		}, regions.WithWait(200*time.Millisecond))
		require.NoError(t, err)
		hung.before = slow(time.Hour)
		require.Equal(t, 12, use(t, l, "key", 12))
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = l.Allow(short, "key") // which asks the one that hangs
		require.NoError(t, err)
		require.EqualValues(t, 1, hung.calls.Load())
		require.Zero(t, slower.calls.Load(), "no time is left")
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 1, use(t, l, "key", 1), "half of the slower one's")
		require.EqualValues(t, 1, hung.calls.Load(), "there was no need")
		require.Equal(t, 5, use(t, l, "key", 6), "the one that hangs has taken all the time")
		time.Sleep(100 * time.Millisecond)
		require.EqualValues(t, 2, hung.calls.Load())
		require.Equal(t, 3, use(t, l, "key", 3), "it rests, and the slower one does not")
		require.EqualValues(t, 2, hung.calls.Load())
	})
}

// A region is not left alone for what its caller or another region has left of the wait.
func TestARegionIsNotBlamedForTooLittleTime(t *testing.T) {
	ms := time.Millisecond
	for name, first := range map[string]func(ctx context.Context, l ratelimit.Limiter, other *faraway) (context.Context, context.CancelFunc){
		"a short ctx": func(ctx context.Context, _ ratelimit.Limiter, _ *faraway) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 100*ms)
		},
		"a canceled ctx": func(ctx context.Context, _ ratelimit.Limiter, _ *faraway) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*ms, cancel)
			return ctx, cancel
		},
		"after another": func(ctx context.Context, empty ratelimit.Limiter, other *faraway) (context.Context, context.CancelFunc) {
			require.Equal(t, 10, use(t, empty, "key", 10))
			other.before = slow(120 * ms)
			return ctx, func() {}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			limit := ratelimit.PerDay(10)
			other, asked := &faraway{Store: memory(t)}, &faraway{Store: memory(t), before: slow(60 * ms)}
			empty := share(t, "fixed_window", other, limit)
			others := []ratelimit.Limiter{share(t, "fixed_window", asked, limit)}
			if name == "after another" {
				others = append(others, empty) // which is the first to be asked
			}
			l, err := regions.New(share(t, "fixed_window", memory(t), limit), others, regions.WithWait(200*ms))
			require.NoError(t, err)
			require.Equal(t, 10, use(t, l, "key", 10))
			ctx, cancel := first(t.Context(), empty, other)
			defer cancel()
			r, err := l.Allow(ctx, "key")
			require.NoError(t, err)
			require.False(t, r.Allowed, name)
			require.EqualValues(t, 1, asked.calls.Load(), name)
			require.EqualValues(t, 1, l.Stats().Failed, name)
			time.Sleep(100 * ms)
			require.Equal(t, 1, use(t, l, "key", 1), name)
		})
	}
}

// Several regions together have what a call needs.
func TestSeveralRegionsGive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shares []ratelimit.Limiter
		for range 4 {
			shares = append(shares, share(t, "fixed_window", memory(t), ratelimit.PerDay(10)))
		}
		l, err := regions.New(shares[0], shares[1:])
		require.NoError(t, err)
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

// What is lost between debit and credit is lost to all.
func TestALostCreditIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "fixed_window", ratelimit.PerDay(10))
		x.near.before = failing("credit")
		require.Equal(t, 10, use(t, x, "key", 11))
		require.Equal(t, regions.Stats{Fetches: 1, Failed: 1}, x.Stats())
		x.near.before = nil
		require.Equal(t, 5, remaining(t, x.other, "key"))
		time.Sleep(time.Second)
		require.Equal(t, 5, use(t, x, "key", 20))
	})
}

func TestErrorsOfTheOwnShareAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := errors.New("no limits")
		failing := false
		own, err := ratelimit.NewFixedWindow(memory(t), ratelimit.PerDay(1), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			if failing {
				return ratelimit.Limit{}, limits
			}
			return ratelimit.PerDay(3), nil
		}))
		require.NoError(t, err)
		l, err := regions.New(own, []ratelimit.Limiter{share(t, "fixed_window", memory(t), ratelimit.PerDay(4))})
		require.NoError(t, err)
		require.Equal(t, 7, use(t, l, "key", 10))
		failing = true
		_, err = l.Allow(t.Context(), "key")
		require.ErrorIs(t, err, limits)
	})
}

// Keys may have limits of their own. A share of another Period gives nothing, nor one without end.
func TestLimitsByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := map[string]ratelimit.Limit{"none": ratelimit.PerDay(0), "hour": ratelimit.PerHour(10), "unlimited": ratelimit.Unlimited(), "more": ratelimit.PerDay(40)}
		other, err := ratelimit.NewFixedWindow(memory(t), ratelimit.PerDay(10), ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) {
			return limits[key], nil
		}))
		require.NoError(t, err)
		l, err := regions.New(share(t, "fixed_window", memory(t), ratelimit.PerDay(10)), []ratelimit.Limiter{other})
		require.NoError(t, err)
		for key, want := range map[string]int{"none": 10, "hour": 10, "unlimited": 10, "more": 50, "key": 20} {
			require.Equal(t, want, use(t, l, key, 60), key)
		}
		require.Equal(t, 10, remaining(t, other, "hour"), "nothing is debited in vain")
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
		require.Zero(t, x.Stats().Failed)
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
			require.EqualValues(t, 1, x.Stats().Fetches)
			require.Equal(t, 1, x.Pauses())
			time.Sleep(pause - 1)
			use(t, x.own, "key", 1)
			require.Zero(t, use(t, x, "key", 1))
			require.EqualValues(t, 1, x.Stats().Fetches)
			time.Sleep(time.Nanosecond)
			use(t, x.own, "key", 1)
			require.NoError(t, x.other.Reset(t.Context(), "key"))
			require.Equal(t, 1, use(t, x, "key", 1))
			require.EqualValues(t, 2, x.Stats().Fetches)
			require.Zero(t, x.Pauses())
		})
	}
}

func TestRotatingKeysTakeBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTwo(t, "fixed_window", ratelimit.PerDay(1))
		for i := range regions.MaxPauses + 1000 {
			key := fmt.Sprint(i)
			require.Equal(t, 2, use(t, x, key, 3))
		}
		require.Equal(t, regions.MaxPauses, x.Pauses())
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
		limits := []ratelimit.Limit{ratelimit.PerDay(700), ratelimit.PerDay(100), ratelimit.PerDay(200)}
		now := time.UnixMicro(epoch + 12*3600*second)
		shares := make([]ratelimit.Limiter, len(limits))
		for i, limit := range limits {
			shares[i] = share(t, algorithm, memory(t, memstore.WithClock(func() time.Time { return now })), limit)
		}
		var admitted atomic.Int64
		var callers sync.WaitGroup
		for i := range shares {
			others := append(append([]ratelimit.Limiter{}, shares[:i]...), shares[i+1:]...)
			for range processes {
				l, err := regions.New(shares[i], others)
				require.NoError(t, err)
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
		for i := range shares {
			left += remaining(t, shares[i], "key")
		}
		sum := int(admitted.Load()) + left
		require.LessOrEqual(t, sum, 1000, algorithm)
		if processes == 1 { // two that fetch at once may find less charged than they have fetched
			require.Equal(t, 1000, sum, "%s: nothing was lost", algorithm)
		}
	}
}

// A credit gives back what was told, whatever the state is, and never more.
func TestACreditGivesBackWhatItIsToldTo(t *testing.T) {
	test := func(t *testing.T, states int, s, elsewhere store.Store, now *int64) {
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range states {
			algorithm, key := algorithms[i%3], fmt.Sprint("key ", i)
			limit := ratelimit.Limit{Rate: 1 + rng.IntN(1<<(1+rng.IntN(20))), Period: time.Second << rng.IntN(12)}
			if algorithm == "token_bucket" {
				limit.Burst = 2 + rng.IntN(1<<(1+rng.IntN(20)))
			}
			l := share(t, algorithm, s, limit)
			of := see.Of[ratelimit.Limiter](l).Five().(*five.Limiter[ratelimit.Result])
			ctx := t.Context()
			for range 1 + rng.IntN(4) { // a state of some age, which may be a debt
				_, err := l.AllowN(ctx, key, 1+rng.IntN(capacity(limit)))
				require.NoError(t, err)
				if rng.IntN(4) == 0 {
					_, err = ratelimit.Charge(ctx, l, key, 1+rng.IntN(2*capacity(limit)))
					require.NoError(t, err)
				}
				*now += rng.Int64N(limit.Period.Microseconds() / 3)
			}
			debit, err := ratelimit.Charge(ctx, share(t, algorithm, elsewhere, limit), key, capacity(limit))
			require.NoError(t, err)
			before, err := of.Look(ctx, key, of.Limit)
			require.NoError(t, err)
			if before.Credit == 0 {
				continue
			}
			n := min(capacity(limit), 1+rng.IntN(before.Credit))
			require.NoError(t, of.Credit(ctx, key, debit, n, of.Limit))
			after, err := of.Look(ctx, key, of.Limit)
			require.NoError(t, err)
			if years50 := 50 * 365 * 24 * time.Hour; algorithm == "token_bucket" && int64(n) > int64(limit.Rate)*int64(years50/limit.Period) {
				require.GreaterOrEqual(t, after.Credit, before.Credit-n, "what refills in more may get back less")
				continue
			}
			require.Equal(t, before.Credit-n, after.Credit, "%s %+v, a state of %+v, and %d", algorithm, limit, before, n)
			require.LessOrEqual(t, after.Left, before.Left+n)
		}
	}
	t.Run("in memory", func(t *testing.T) {
		now := epoch
		clock := func() time.Time { return time.UnixMicro(now) }
		test(t, effort.Of(20_000, 500_000), memory(t, memstore.WithClock(clock)), memory(t, memstore.WithClock(clock)), &now)
	})
	t.Run("on Redis", func(t *testing.T) {
		now := epoch
		clock := func() time.Time { return time.UnixMicro(now) }
		s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithClock(clock), redisstore.WithTimeout(time.Minute), redisstore.WithPrefix(redistest.Prefix(t)))
		require.NoError(t, err)
		test(t, effort.Of(600, 10_000), s, memory(t, memstore.WithClock(clock)), &now)
	})
}

// capacity is the most events that fit at once.
func capacity(l ratelimit.Limit) int { return cmp.Or(l.Burst, l.Rate) }

// TestInsideOfOthers has the wrappers of this module around a region.
func TestInsideOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, x := t.Context(), newTwo(t, "fixed_window", ratelimit.PerDay(10))
		seen := new(counter)
		observed, err := observe.Around(x, seen)
		require.NoError(t, err)
		day, err := ratelimit.NewFixedWindow(memory(t), ratelimit.PerDay(18), ratelimit.WithPolicyName("day"))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(observed, day)
		require.NoError(t, err)
		_, err = fallback.New(all, fallback.FailLocal(2))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "what is its share?")
		l, err := fallback.New(all, fallback.FailClosed())
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

func TestServedByHTTP(t *testing.T) {
	x := newTwo(t, "fixed_window", ratelimit.PerDay(2))
	h, err := httplimit.New(x)
	require.NoError(t, err)
	served := h(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	codes := map[int]int{}
	for range 6 {
		w := httptest.NewRecorder()
		served.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		codes[w.Code]++
		require.NotEmpty(t, w.Header().Get("RateLimit"))
	}
	require.Equal(t, map[int]int{http.StatusOK: 4, http.StatusTooManyRequests: 2}, codes)
}
