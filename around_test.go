package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

type decider = func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error)

func newAround(t testing.TB, l ratelimit.Limiter, f decider) *ratelimit.Around {
	t.Helper()
	a, err := ratelimit.NewAround(l, f)
	require.NoError(t, err)
	return a
}

func TestAWrapperIsAskedForEachCall(t *testing.T) {
	var calls []ratelimit.Call
	l := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	a := newAround(t, l, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		calls = append(calls, ratelimit.Call{Key: c.Key, N: c.N, Peek: c.Peek, Charge: c.Charge})
		return c.Inside(ctx)
	})
	ctx := t.Context()
	allow(t, a, "a")
	allowN(t, a, 2)
	_, err := a.AllowWithin(ctx, "b", 1, time.Second)
	require.NoError(t, err)
	granted, r, err := a.AllowUpTo(ctx, "key", 20)
	require.NoError(t, err)
	require.Equal(t, 8, granted)
	require.Equal(t, 8, r.Charged())
	require.False(t, peek(t, a, "key").Allowed)
	_, err = a.Charge(ctx, "key", 3)
	require.NoError(t, err)
	require.Equal(t, []ratelimit.Call{{Key: "a", N: 1}, {Key: "key", N: 2}, {Key: "b", N: 1}, {Key: "key", N: 20}, {Key: "key", N: 1, Peek: true}, {Key: "key", N: 3, Charge: true}}, calls)
	require.NoError(t, a.Reset(ctx, "key"))
	require.Equal(t, 10, peek(t, l, "key").Remaining)
	policies, err := ratelimit.AppendPolicies(ctx, nil, a, "key")
	require.NoError(t, err)
	require.Equal(t, "10/h", policies[0].Name)
	require.Same(t, l, a.Unwrap())
	calls = nil
	_, err = a.AllowN(ctx, "key", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	_, err = a.Allow(ctx, "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err = a.Allow(gone, "key")
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, calls, "what is no call")
}

func TestAWrapperThatDeniesOrFailsRefundsTheCharge(t *testing.T) {
	l := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	boom := errors.New("boom")
	for name, f := range map[string]decider{
		"a denial": func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
			_, err = c.Inside(ctx)
			return ratelimit.Result{RetryAfter: time.Second}, err
		},
		"the Result as a denial": func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
			r, err = c.Inside(ctx)
			r.Allowed, r.RetryAfter = false, time.Second
			return r, err
		},
		"an error": func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
			r, _ = c.Inside(ctx)
			return r, boom
		},
		"a panic": func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
			_, _ = c.Inside(ctx)
			panic(boom)
		},
		"a late turn": func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
			r, err := c.Inside(ctx)
			r.Delay = time.Hour
			return r, err
		},
	} {
		a := newAround(t, l, f)
		for what, call := range map[string]func(ctx context.Context) (ratelimit.Result, error){
			"AllowN":      func(ctx context.Context) (ratelimit.Result, error) { return a.AllowN(ctx, "key", 3) },
			"AllowWithin": func(ctx context.Context) (ratelimit.Result, error) { return a.AllowWithin(ctx, "key", 3, time.Minute) },
			"AllowUpTo": func(ctx context.Context) (ratelimit.Result, error) {
				granted, r, err := a.AllowUpTo(ctx, "key", 30)
				require.Equal(t, name == "a late turn", granted > 0)
				return r, err
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			func() {
				defer func() { require.Equal(t, name == "a panic", recover() != nil) }()
				r, err := call(ctx)
				require.Equal(t, name == "an error", err != nil)
				if name == "a late turn" && what != "AllowWithin" {
					require.NoError(t, a.Refund(ctx, "key", r, 30))
				} else {
					require.False(t, r.Allowed)
					require.Zero(t, r.Charged())
					require.ErrorIs(t, a.Refund(ctx, "key", r, 1), ratelimit.ErrInvalidN)
				}
			}()
			cancel()
			require.Equal(t, 10, peek(t, l, "key").Remaining, "%s of %s", name, what)
		}
	}
}

func TestARefundGoesToWhatTheLimiterInsideHasCharged(t *testing.T) {
	l := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	others := ratelimit.NewMark(new(byte), ratelimit.SourceStore, nil)
	free := ratelimit.NewMark(new(byte), ratelimit.SourceUnlimited, nil)
	for name, c := range map[string]struct {
		f       decider
		charged int
	}{
		"as it is": {func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) { return c.Inside(ctx) }, 3},
		"another number": {func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
			r, err = c.Inside(ctx)
			r.Remaining /= 2
			return r, err
		}, 3},
		"a mark": {func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
			r, err = c.Inside(ctx)
			return r.WithMark(others), err
		}, 3},
		"another Result": {func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
			_, err := c.Inside(ctx)
			return ratelimit.Result{Allowed: true}, err
		}, 3},
		"a mark of no limit": {func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
			r, err = c.Inside(ctx)
			return r.WithMark(free), err
		}, 3},
		"another Result of no limit": {func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
			_, err := c.Inside(ctx)
			return ratelimit.Result{Allowed: true, Limit: 99, Remaining: 99}.WithMark(free), err
		}, 3},
		"without the limiter": {func(context.Context, ratelimit.Call) (ratelimit.Result, error) {
			return ratelimit.Result{Allowed: true}, nil
		}, 0},
	} {
		a := newAround(t, l, c.f)
		r := allowN(t, a, 3)
		require.True(t, r.Allowed, name)
		require.Equal(t, 10-c.charged, peek(t, l, "key").Remaining, name)
		require.Equal(t, c.charged, a.Inner(r).Charged(), name)
		require.NoError(t, a.Refund(t.Context(), "key", r, 3), name)
		require.Equal(t, 10, peek(t, l, "key").Remaining, name)
		require.ErrorIs(t, a.Refund(t.Context(), "key", r, 0), ratelimit.ErrInvalidN, name)

		in := all(t, a, inMemory(t, "fixed_window", ratelimit.PerHour(1)))
		allowN(t, in, 1)
		require.False(t, allowN(t, in, 1).Allowed)
		require.Equal(t, 10-min(1, c.charged), peek(t, l, "key").Remaining, "%s, in an All that denies", name)
		require.NoError(t, l.Reset(t.Context(), "key"))
	}
	// What was denied inside and is admitted all the same has charged nothing.
	lenient := newAround(t, l, func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
		r, err = c.Inside(ctx)
		r.Allowed, r.RetryAfter = true, 0
		return r, err
	})
	allowN(t, l, 9)
	granted, r, err := lenient.AllowUpTo(t.Context(), "key", 5)
	require.NoError(t, err)
	require.Equal(t, 1, granted)
	require.Equal(t, 1, r.Charged())
	r = allowN(t, lenient, 5)
	require.True(t, r.Allowed)
	require.NoError(t, lenient.Refund(t.Context(), "key", r, 5))
	require.Zero(t, peek(t, l, "key").Remaining)
}

func TestARefundReachesTheChargeWhateverFieldsChange(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *ratelimittest.Clock) {
		one := newLimiter(t, algorithm, s, ratelimit.PerHour(10), ratelimit.WithName("one"))
		two := newLimiter(t, algorithm, s, ratelimit.PerDay(10), ratelimit.WithName("two"))
		for _, l := range []ratelimit.Limiter{one, all(t, one, two), newFirst(t, one, two)} {
			for what, change := range map[string]func(r *ratelimit.Result){
				"Limit":      func(r *ratelimit.Result) { r.Limit = 1 },
				"Remaining":  func(r *ratelimit.Result) { r.Remaining = 0 },
				"ResetAfter": func(r *ratelimit.Result) { r.ResetAfter += time.Minute },
				"no reset":   func(r *ratelimit.Result) { r.ResetAfter = 0 },
				"Delay":      func(r *ratelimit.Result) { r.Delay = time.Second },
			} {
				a := newAround(t, l, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
					r, err := c.Inside(ctx)
					change(&r)
					return r, err
				})
				r := allowN(t, a, 3)
				require.NoError(t, a.Refund(t.Context(), "key", r, 3))
				require.Equal(t, [2]int{10, 10}, [2]int{left(t, one, "key"), left(t, two, "key")}, "%T: %s", l, what)
				granted, r, err := a.AllowUpTo(t.Context(), "key", 30)
				require.NoError(t, err)
				require.Equal(t, 10, granted, "%T: %s", l, what)
				require.NoError(t, a.Refund(t.Context(), "key", r, granted))
				require.Equal(t, [2]int{10, 10}, [2]int{left(t, one, "key"), left(t, two, "key")}, "%T: %s", l, what)
			}
		}
	})
}

func TestAWrapperGrantsWhatWasChargedUnlessItDecidesItself(t *testing.T) {
	for name, c := range map[string]struct {
		l       ratelimit.Limiter
		own     bool
		granted int
	}{
		"another Limit":             {inMemory(t, "token_bucket", ratelimit.PerHour(1)), false, 1},
		"a Result of its own":       {inMemory(t, "token_bucket", ratelimit.PerHour(1)), true, 5},
		"of another package":        {two{ratelimittest.Static(ratelimit.Result{}, nil)}, true, 5},
		"as another package has it": {two{ratelimittest.Static(ratelimit.Result{}, nil)}, false, 2},
	} {
		a := newAround(t, c.l, func(ctx context.Context, call ratelimit.Call) (ratelimit.Result, error) {
			r, err := call.Inside(ctx)
			if c.own {
				return ratelimit.Result{Allowed: true, Limit: 9}, err
			}
			if r.Limit > 0 {
				r.Limit = 9
			}
			return r, err
		})
		granted, _, err := a.AllowUpTo(t.Context(), "key", 5)
		require.NoError(t, err)
		require.Equal(t, c.granted, granted, name)
	}
}

// two has room for two events.
type two struct{ ratelimit.Limiter }

func (two) AllowUpTo(context.Context, string, int) (int, ratelimit.Result, error) {
	return 2, ratelimit.Result{Allowed: true}, nil
}

func TestACallAsksInsideOnce(t *testing.T) {
	l := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	var kept ratelimit.Call
	a := newAround(t, l, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		kept = c
		first, err := c.Inside(ctx)
		require.NoError(t, err)
		again, err := c.Inside(ctx)
		require.Equal(t, first, again)
		return again, err
	})
	require.Equal(t, 9, allowN(t, a, 1).Remaining)
	_, err := kept.Inside(t.Context())
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "it has been answered")
	_, err = ratelimit.Call{}.Inside(t.Context())
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.Equal(t, 9, peek(t, l, "key").Remaining)
}

func TestAWrapperWithoutALimiterOrAFunctionIsRefused(t *testing.T) {
	inside := func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) { return c.Inside(ctx) }
	_, err := ratelimit.NewAround(nil, inside)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = ratelimit.NewAround(inMemory(t, "token_bucket", ratelimit.PerHour(10)), nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	for _, a := range []*ratelimit.Around{nil, {}} {
		for _, call := range []func() error{
			func() error { _, err := a.Allow(t.Context(), "key"); return err },
			func() error { _, err := a.Peek(t.Context(), "key"); return err },
			func() error { _, err := a.Charge(t.Context(), "key", 1); return err },
			func() error { return a.Refund(t.Context(), "key", ratelimit.Result{}, 1) },
			func() error { return a.Reset(t.Context(), "key") },
			func() error { _, err := a.AppendPolicies(t.Context(), nil, "key"); return err },
		} {
			require.ErrorIs(t, call(), ratelimit.ErrInvalidOption)
		}
		require.Nil(t, a.Unwrap())
	}
}

// A limiter of another package knows what it has charged by the whole Result.
func TestAForeignLimiterInsideGetsItsOwnResultBack(t *testing.T) {
	own := ratelimit.Result{Allowed: true, Limit: 5, Remaining: 3}
	var back []ratelimit.Result
	l := foreign{ratelimittest.Static(own, nil), &back}
	a := newAround(t, l, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		_, err := c.Inside(ctx)
		return ratelimit.Result{Allowed: c.N < 3, RetryAfter: 1}, err
	})
	require.NoError(t, a.Refund(t.Context(), "key", allowN(t, a, 1), 1))
	allowN(t, a, 3)
	require.Equal(t, []ratelimit.Result{own, own}, back)
}

type foreign struct {
	ratelimit.Limiter
	back *[]ratelimit.Result
}

func (f foreign) Refund(_ context.Context, _ string, charged ratelimit.Result, _ int) error {
	*f.back = append(*f.back, charged)
	return nil
}

func TestAWrapperInMemoryAllocatesNothing(t *testing.T) {
	a := newAround(t, inMemory(t, "token_bucket", ratelimit.PerHour(1e6)), func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		return c.Inside(ctx)
	})
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = a.Allow(context.Background(), "key") }))
}

func TestAWrapperThatNewAroundHasNotMadeSaysNothingOfAResult(t *testing.T) {
	r := ratelimit.Result{Allowed: true, Limit: 3}
	require.Equal(t, r, (*ratelimit.Around)(nil).Inner(r))
	require.Equal(t, r, new(ratelimit.Around).Inner(r))
}

func TestAnErrorGrantsNothing(t *testing.T) {
	l := ratelimit.Must(ratelimit.NewAround(testkit.InMemory(t, "token_bucket", ratelimit.PerHour(5)),
		func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) { return c.Inside(ctx) }))
	for key, n := range map[string]int{"": 1, "key": 0} {
		granted, r, err := l.AllowUpTo(t.Context(), key, n)
		require.Error(t, err)
		require.Zero(t, granted)
		require.Zero(t, r)
	}
}

// noted is a limiter that refunds only what has its note.
type noted struct{ ratelimit.Limiter }

func (l *noted) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := l.Limiter.AllowN(ctx, key, n)
	return r.WithMark(ratelimit.NewMark(l, ratelimit.SourceStore, nil)), err
}

func (l *noted) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	under, _, ok := charged.Unmark(l)
	if !ok {
		return errors.New("the note is missing")
	}
	return l.Limiter.Refund(ctx, key, under, n)
}

func TestARefundHasTheNotesOfTheLimiterInside(t *testing.T) {
	inside := &noted{testkit.InMemory(t, "token_bucket", ratelimit.PerHour(5))}
	a := ratelimit.Must(ratelimit.NewAround(inside, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		r, err := c.Inside(ctx)
		r, _, _ = r.Unmark(inside)
		return r, err
	}))
	r, err := a.AllowN(t.Context(), "key", 2)
	require.NoError(t, err)
	require.NoError(t, a.Refund(t.Context(), "key", r, 2))
	require.Equal(t, 5, peek(t, inside.Limiter, "key").Remaining)
}
