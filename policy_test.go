package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestUnlimitedAdmitsWithoutTheStore(t *testing.T) {
	ctx := t.Context()
	for _, algorithm := range algorithms {
		lim, err := ratelimit.New(algorithm, failing{}, ratelimit.Unlimited())
		require.NoError(t, err)
		for _, n := range []int{1, 1 << 30} {
			r, err := lim.AllowN(ctx, "key", n)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, 1<<31-1, r.Limit)
			require.Equal(t, 1<<31-1, r.Remaining)
			require.Zero(t, r.RetryAfter+r.ResetAfter+r.Delay)
			require.Equal(t, ratelimit.SourceUnlimited, r.Source())
			require.NoError(t, lim.Refund(ctx, "key", r, n), "nothing was charged, and nothing is given back")
		}
		granted, r, err := lim.(interface {
			AllowUpTo(context.Context, string, int) (int, ratelimit.Result, error)
		}).AllowUpTo(ctx, "key", 7)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, 7, granted)
		_, err = lim.AllowN(ctx, "key", 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	}
}

func TestUnlimitedIsATier(t *testing.T) {
	limit := ratelimit.PerHour(3)
	lim, err := ratelimit.NewTokenBucket(memory(t, newClock()), ratelimit.PerHour(3), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
	require.NoError(t, err)
	require.True(t, allowN(t, lim, 3).Allowed)
	require.False(t, allowN(t, lim, 1).Allowed)
	limit = ratelimit.Unlimited()
	require.True(t, allowN(t, lim, 100).Allowed)
	limit = ratelimit.PerHour(4)
	require.True(t, allowN(t, lim, 1).Allowed, "the spend of before is kept")
	require.False(t, allowN(t, lim, 1).Allowed)
}

func TestUnlimitedHasAText(t *testing.T) {
	l, err := ratelimit.ParseLimit("unlimited")
	require.NoError(t, err)
	require.Equal(t, ratelimit.Unlimited(), l)
	require.Equal(t, "unlimited", l.String())
	text, err := json.Marshal(l)
	require.NoError(t, err)
	require.JSONEq(t, `"unlimited"`, string(text))
	share, err := l.Share(3)
	require.NoError(t, err)
	require.Equal(t, l, share)
	for _, text := range []string{"Unlimited", "unlimited ", "-1/s", "unlimited/s"} {
		_, err := ratelimit.ParseLimit(text)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, text)
	}
	for _, l := range []ratelimit.Limit{{Rate: -1, Period: time.Second}, {Rate: -1, Burst: 1}, {Rate: -2}} {
		_, err := ratelimit.NewTokenBucket(memory(t, newClock()), l)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	}
}

func TestFailoverOfUnlimitedAsksNobody(t *testing.T) {
	lim, err := ratelimit.NewTokenBucket(failing{}, ratelimit.Unlimited())
	require.NoError(t, err)
	f, err := fallback.New(lim, fallback.FailTo(ratelimittest.Static(ratelimit.Result{}, errors.New("asked"))))
	require.NoError(t, err)
	r, err := f.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, f.Refund(t.Context(), "key", r, 1))
}

func TestPolicies(t *testing.T) {
	for text, want := range map[string]ratelimit.Policy{
		"100/m":         {Quota: 100, Window: time.Minute},
		"10/s burst 20": {Quota: 20, Window: 2 * time.Second},
		"3/s burst 10":  {Quota: 10, Window: 3_333_334 * time.Microsecond},
		"1/15m burst 4": {Quota: 4, Window: time.Hour},
		"0/s":           {Quota: 0},
		"0/s burst 5":   {Quota: 0},
		"unlimited":     {Quota: 1<<31 - 1},
		"2147483647/ms": {Quota: 1<<31 - 1, Window: time.Millisecond},
	} {
		l, err := ratelimit.ParseLimit(text)
		require.NoError(t, err)
		for _, algorithm := range algorithms {
			if l.Burst > 0 && !hasBurst(algorithm) {
				continue
			}
			lim, err := ratelimit.New(algorithm, newDenyCache(t, memory(t, newClock())), l)
			require.NoError(t, err)
			want.Limit, want.Name = l, text
			require.Equal(t, []ratelimit.Policy{{}, want}, policiesOf(t, lim, "key"), "%s %s", algorithm, text)
			f, err := fallback.New(lim, fallback.FailOpen())
			require.NoError(t, err)
			require.Equal(t, []ratelimit.Policy{{}, want}, policiesOf(t, f, "key"))
		}
	}
}

func TestThePolicyOfACalendarHasNoWindow(t *testing.T) {
	p := policiesOf(t, inMemory(t, "fixed_window", ratelimit.PerMonth(5)), "key")[1]
	require.Equal(t, ratelimit.Policy{Name: "5/month", Limit: ratelimit.PerMonth(5), Quota: 5}, p)
}

func TestThePolicyIsThatOfTheKey(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	wrong := errors.New("no tier")
	lim, err := ratelimit.NewSlidingWindow(mem, ratelimit.PerMinute(5), ratelimit.WithName("api"), ratelimit.WithLimitFunc(
		func(_ context.Context, key string) (ratelimit.Limit, error) {
			switch key {
			case "gold":
				return ratelimit.PerHour(1000), nil
			case "bad":
				return ratelimit.Limit{Rate: 1}, nil
			case "unknown":
				return ratelimit.Limit{}, wrong
			}
			return ratelimit.Limit{}, nil
		}))
	require.NoError(t, err)
	require.Equal(t, ratelimit.Policy{Name: "api", Limit: ratelimit.PerHour(1000), Quota: 1000, Window: time.Hour}, policiesOf(t, lim, "gold")[1])
	require.Equal(t, ratelimit.Policy{Name: "api", Limit: ratelimit.PerMinute(5), Quota: 5, Window: time.Minute}, policiesOf(t, lim, "any")[1])
	titled, err := ratelimit.NewSlidingWindow(mem, ratelimit.PerMinute(5), ratelimit.WithName("api"), ratelimit.WithPolicyName("searches"))
	require.NoError(t, err)
	require.Equal(t, "searches", policiesOf(t, titled, "any")[1].Name)
	require.Equal(t, "api", titled.Name())
	require.Equal(t, 4, allow(t, lim, "any").Remaining)
	require.Equal(t, 3, allow(t, titled, "any").Remaining, "one name, one spend")
	_, err = ratelimit.NewSlidingWindow(mem, ratelimit.PerMinute(5), ratelimit.WithPolicyName(""))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	before := make([]ratelimit.Policy, 1)
	after, err := lim.AppendPolicies(t.Context(), before, "bad")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.Equal(t, before, after)
	_, err = lim.AppendPolicies(t.Context(), nil, "unknown")
	require.ErrorIs(t, err, wrong)
	_, err = new(ratelimit.TokenBucket).AppendPolicies(t.Context(), nil, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

// policiesOf are those of key behind one that is there already.
func policiesOf(t *testing.T, l ratelimit.Limiter, key string) []ratelimit.Policy {
	t.Helper()
	list, err := ratelimit.AppendPolicies(t.Context(), make([]ratelimit.Policy, 1), l, key)
	require.NoError(t, err)
	return list
}

func TestStaticAnswersTheSame(t *testing.T) {
	ctx := t.Context()
	want := ratelimit.Result{Allowed: true, Limit: 3, Remaining: 2}
	lim := ratelimittest.Static(want, nil)
	for range 5 {
		r, err := lim.AllowN(ctx, "key", 100)
		require.NoError(t, err)
		require.Equal(t, want, r)
		r, err = lim.Peek(ctx, "key")
		require.NoError(t, err)
		require.Equal(t, want, r)
		require.NoError(t, lim.Refund(ctx, "key", r, 1))
		require.NoError(t, lim.Reset(ctx, "key"))
	}
	require.Equal(t, make([]ratelimit.Policy, 1), policiesOf(t, lim, "key"))
	_, err := lim.AllowN(ctx, "key", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	_, err = lim.Allow(ctx, "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.ErrorIs(t, lim.Refund(ctx, "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidN)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = lim.Allow(ended, "key")
	require.ErrorIs(t, err, context.Canceled)

	broken := ratelimittest.Static(want, ratelimit.ErrStore)
	r, err := broken.Allow(ctx, "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)
	require.Zero(t, r)
	require.ErrorIs(t, broken.Reset(ctx, "key"), ratelimit.ErrStore)
}

func TestAListThatHasDeniedIsALimitOf0(t *testing.T) {
	l := inMemory(t, "token_bucket", ratelimit.PerHour(5))
	list := ratelimit.NewMark(t, ratelimit.SourceList, nil)
	require.NoError(t, l.Refund(t.Context(), "key", ratelimit.Result{Allowed: true, Limit: 1}.WithMark(list), 1), "it has charged nobody")
	require.ErrorIs(t, l.Refund(t.Context(), "key", ratelimit.Result{Allowed: true}.WithMark(list), 1), ratelimit.ErrInvalidN,
		"where another lets through what it denies")
}
