package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func decide(t testing.TB, asks ...ratelimit.Ask) ratelimit.Result {
	t.Helper()
	r, err := ratelimit.Decide(t.Context(), asks...)
	require.NoError(t, err)
	return r
}

func TestADecideIsAllOrNoneOnKeysAndNumbersOfItsOwn(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		requests := newLimiter(t, algorithm, s, ratelimit.PerHour(5), ratelimit.WithName("requests"))
		tokens := newLimiter(t, algorithm, s, ratelimit.PerHour(20), ratelimit.WithName("tokens"))
		asks := []ratelimit.Ask{{Limiter: requests, Key: "key:7", N: 1}, {Limiter: tokens, Key: "org:3", N: 9}}
		r := decide(t, asks...)
		require.True(t, r.Allowed)
		require.Equal(t, []int{4, 11}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining})
		require.Equal(t, []int{1, 9, 9}, []int{r.Parts()[0].Charged(), r.Parts()[1].Charged(), r.Charged()})
		require.Equal(t, []int{5, 4}, []int{r.Limit, r.Remaining}, "those of the least")

		asks[1].N = 12
		denied := decide(t, asks...)
		require.False(t, denied.Allowed)
		require.Equal(t, "tokens", denied.DeniedBy())
		require.Equal(t, 4, peek(t, requests, "key:7").Remaining, "nothing was charged")
		require.ErrorIs(t, ratelimit.GiveBack(t.Context(), denied, asks...), ratelimit.ErrInvalidN)

		asks[0].N, asks[1].N = 0, 4 // the tail of a queue
		require.NoError(t, ratelimit.GiveBack(t.Context(), r, asks...))
		require.Equal(t, 4, peek(t, requests, "key:7").Remaining)
		require.Equal(t, 15, peek(t, tokens, "org:3").Remaining)
	})
}

func TestADecideChargesOneLimitUnderSeveralKeysAndOneKeyTwice(t *testing.T) {
	for _, s := range []store.Store{memory(t, newClock()), withoutJoint{Store: memory(t, newClock())}, redisServer(t)} {
		l := newLimiter(t, "fixed_window", s, ratelimit.PerDay(10))
		asks := []ratelimit.Ask{{Limiter: l, Key: "a", N: 3}, {Limiter: l, Key: "b", N: 5}, {Limiter: l, Key: "a", N: 4}}
		r := decide(t, asks...)
		require.True(t, r.Allowed)
		require.Equal(t, []int{3, 5}, []int{peek(t, l, "a").Remaining, peek(t, l, "b").Remaining})
		require.False(t, decide(t, asks[0], ratelimit.Ask{Limiter: l, Key: "a", N: 1}).Allowed, "4 of 3")
		require.Equal(t, 3, peek(t, l, "a").Remaining)
		require.NoError(t, ratelimit.GiveBack(t.Context(), r, asks...))
		require.Equal(t, []int{10, 10}, []int{peek(t, l, "a").Remaining, peek(t, l, "b").Remaining})
	}
}

// A limit on trial beside others, in the same call of the store: it is charged with them if it
// fits, and nothing that people read of the decision is of it.
func TestAShadowHasNoSay(t *testing.T) {
	inOrder := withoutJoint{Store: memory(t, newClock())}
	for _, s := range []store.Store{&tally{Store: memory(t, newClock())}, inOrder, redisServer(t)} {
		real := newLimiter(t, "fixed_window", s, ratelimit.PerDay(10), ratelimit.WithName("real"))
		trial := newLimiter(t, "fixed_window", s, ratelimit.PerHour(3), ratelimit.WithName("trial"))
		ask := func(n int) ratelimit.Result {
			return decide(t, ratelimit.Ask{Limiter: trial, Key: "key", N: n, Shadow: true}, ratelimit.Ask{Limiter: real, Key: "key", N: n})
		}
		r := ask(2)
		require.True(t, r.Allowed)
		require.Equal(t, []int{10, 8}, []int{r.Limit, r.Remaining})
		require.Equal(t, 1, r.Parts()[0].Remaining)
		r = ask(2)
		require.True(t, r.Allowed)
		require.Empty(t, r.DeniedBy())
		require.Zero(t, r.RetryAfter)
		require.False(t, r.Parts()[0].Allowed)
		require.Positive(t, r.Parts()[0].RetryAfter)
		require.Equal(t, []int{1, 6}, []int{peek(t, trial, "key").Remaining, peek(t, real, "key").Remaining})
		require.NoError(t, ratelimit.GiveBack(t.Context(), r, ratelimit.Ask{Limiter: trial, Key: "key", N: 2, Shadow: true}, ratelimit.Ask{Limiter: real, Key: "key", N: 2}))
		require.Equal(t, []int{1, 8}, []int{peek(t, trial, "key").Remaining, peek(t, real, "key").Remaining}, "it was not charged")
		r = ask(9)
		require.Equal(t, "real", r.DeniedBy())
		require.Equal(t, 1, peek(t, trial, "key").Remaining, "what the other denies is not charged to it")
		if counted, ok := s.(*tally); ok {
			require.Equal(t, []int{3, 0}, []int{counted.Joints, counted.Singles})
		}
	}
	down := newLimiter(t, "token_bucket", away{Store: memory(t, newClock())}, ratelimit.PerHour(1))
	real := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	r := decide(t, ratelimit.Ask{Limiter: down, Key: "key", N: 1, Shadow: true}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
	require.True(t, r.Allowed, "a trial that fails is no error")
	require.Equal(t, ratelimit.Result{}, r.Parts()[0])
	noLimit := errors.New("no limit")
	broken := inMemory(t, "token_bucket", ratelimit.PerHour(9), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, noLimit }))
	require.True(t, decide(t, ratelimit.Ask{Limiter: broken, Key: "key", N: 1, Shadow: true}, ratelimit.Ask{Limiter: real, Key: "key", N: 1}).Allowed)
	_, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: broken, Key: "key", N: 1}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
	require.ErrorIs(t, err, noLimit)
	require.Equal(t, 8, peek(t, real, "key").Remaining)
}

func TestAnAskOfNothingLooks(t *testing.T) {
	for _, s := range []store.Store{memory(t, newClock()), withoutJoint{Store: memory(t, newClock())}, redisServer(t)} {
		var o recorder
		l := observed(t, newLimiter(t, "sliding_window", s, ratelimit.PerDay(2)), &o)
		other := newLimiter(t, "token_bucket", s, ratelimit.PerDay(5))
		allowN(t, l, 2)
		o.take()
		for _, key := range []string{"key", "other"} {
			r := decide(t, ratelimit.Ask{Limiter: l, Key: key}, ratelimit.Ask{Limiter: other, Key: "key", N: 1})
			require.True(t, r.Allowed)
			require.Equal(t, peek(t, l, key).Remaining, r.Parts()[0].Remaining)
			require.Equal(t, key == "other", r.Parts()[0].Allowed)
			require.Equal(t, 5, r.Limit)
		}
		require.Empty(t, o.take(), "a look decides nothing")
		r := decide(t, ratelimit.Ask{Limiter: l, Key: "new"}, ratelimit.Ask{Limiter: l, Key: "new", N: 2})
		require.Equal(t, 0, peek(t, l, "new").Remaining)
		require.True(t, r.Allowed)
		only := decide(t, ratelimit.Ask{Limiter: l, Key: "new"})
		require.True(t, only.Allowed)
		require.Zero(t, only.Charged())
		require.False(t, only.Parts()[0].Allowed)
	}
}

func TestADecideOfAnAllAndOfOtherLimiters(t *testing.T) {
	mem := memory(t, newClock())
	calls := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(5), ratelimit.CountCalls(), ratelimit.WithName("calls"))
	tokens := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(30), ratelimit.WithName("tokens"))
	safe := failover(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(40)), fallback.FailOpen())
	asks := []ratelimit.Ask{{Limiter: all(t, calls, tokens), Key: "key", N: 7}, {Limiter: safe, Key: "other", N: 3}}
	r := decide(t, asks...)
	require.Len(t, r.Parts(), 3)
	require.Equal(t, []int{4, 23, 37}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining, r.Parts()[2].Remaining})
	require.NoError(t, ratelimit.GiveBack(t.Context(), r, asks...))
	require.Equal(t, []int{5, 30, 40}, []int{peek(t, calls, "key").Remaining, peek(t, tokens, "key").Remaining, peek(t, safe, "other").Remaining})
	denied := decide(t, asks[1], ratelimit.Ask{Limiter: calls, Key: "key", N: 1}, ratelimit.Ask{Limiter: tokens, Key: "key", N: 31})
	require.Equal(t, "tokens", denied.DeniedBy())
	require.Equal(t, 40, peek(t, safe, "other").Remaining, "given back")
}

func TestADecideChecksItsInput(t *testing.T) {
	ctx, l := t.Context(), inMemory(t, "token_bucket", ratelimit.PerHour(5))
	waiter, err := throttle.NewWaiter(l, time.Second)
	require.NoError(t, err)
	one := ratelimit.Ask{Limiter: l, Key: "key", N: 1}
	many := make([]ratelimit.Ask, 17)
	for i := range many {
		many[i] = one
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for i, c := range []struct {
		ctx  context.Context
		asks []ratelimit.Ask
		want error
	}{
		{ctx, nil, ratelimit.ErrInvalidOption},
		{ctx, many, ratelimit.ErrInvalidOption},
		{ctx, []ratelimit.Ask{one, {Limiter: all(t, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l), Key: "key", N: 1}}, ratelimit.ErrInvalidOption},
		{ctx, []ratelimit.Ask{one, {Key: "key", N: 1}}, ratelimit.ErrInvalidOption},
		{ctx, []ratelimit.Ask{one, {Limiter: (*ratelimit.TokenBucket)(nil), Key: "key", N: 1}}, ratelimit.ErrInvalidOption},
		{ctx, []ratelimit.Ask{one, {Limiter: new(ratelimit.All), Key: "key", N: 1}}, ratelimit.ErrInvalidOption},
		{ctx, []ratelimit.Ask{one, {Limiter: new(ratelimit.TokenBucket), Key: "key", N: 1}}, ratelimit.ErrInvalidLimit},
		{ctx, []ratelimit.Ask{one, {Limiter: waiter, Key: "key", N: 1}}, ratelimit.ErrInvalidOption},
		{ctx, []ratelimit.Ask{one, {Limiter: l, N: 1}}, ratelimit.ErrInvalidKey},
		{ctx, []ratelimit.Ask{one, {Limiter: l, N: 0}}, ratelimit.ErrInvalidKey},
		{ctx, []ratelimit.Ask{one, {Limiter: l, Key: "key", N: -1}}, ratelimit.ErrInvalidN},
		{ended, []ratelimit.Ask{one}, context.Canceled},
	} {
		r, err := ratelimit.Decide(c.ctx, c.asks...)
		require.ErrorIs(t, err, c.want, i)
		require.Zero(t, r)
	}
	require.Equal(t, 5, peek(t, l, "key").Remaining, "nothing was charged")
	never := decide(t, one, ratelimit.Ask{Limiter: l, Key: "other", N: math.MaxInt})
	require.Equal(t, ratelimit.Never, never.RetryAfter)

	r := decide(t, one, one)
	for _, asks := range [][]ratelimit.Ask{nil, {one}, {one, one, one}} {
		require.ErrorIs(t, ratelimit.GiveBack(ctx, r, asks...), ratelimit.ErrInvalidN)
	}
	require.ErrorIs(t, ratelimit.GiveBack(ctx, allowN(t, l, 1), one), ratelimit.ErrInvalidN, "the Result of one limiter")
	require.ErrorIs(t, ratelimit.GiveBack(ctx, r, one, ratelimit.Ask{Limiter: l, N: 1}), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, ratelimit.GiveBack(ctx, r, one, ratelimit.Ask{}), ratelimit.ErrInvalidOption)
	require.ErrorIs(t, ratelimit.GiveBack(ctx, r, one, ratelimit.Ask{Limiter: l, Key: "key", N: -1}), ratelimit.ErrInvalidN)
	require.Equal(t, 2, peek(t, l, "key").Remaining)
	none := decide(t, ratelimit.Ask{Limiter: ratelimittest.Static(ratelimit.Result{Allowed: true}, nil), Key: "key", N: 2})
	require.True(t, none.Allowed)
}

func TestDecidesUnderConcurrency(t *testing.T) {
	for _, s := range []store.Store{newMemory(t), redisServer(t)} {
		key := newLimiter(t, "token_bucket", s, ratelimit.Limit{Rate: 60, Period: 3650 * 24 * time.Hour}, ratelimit.WithName("key"))
		whole := newLimiter(t, "sliding_log", s, ratelimit.Limit{Rate: 200, Period: 3650 * 24 * time.Hour}, ratelimit.WithName("whole"))
		var mu sync.Mutex
		events, of := 0, map[string]int{}
		var wg sync.WaitGroup
		for caller := range 8 {
			wg.Go(func() {
				for i := range 60 {
					k, n := fmt.Sprint(i%4), 1+(caller+i)%3
					r, err := ratelimit.Decide(context.Background(), ratelimit.Ask{Limiter: whole, Key: "all", N: n}, ratelimit.Ask{Limiter: key, Key: k, N: n})
					if err != nil {
						t.Error(err)
					}
					if r.Allowed {
						mu.Lock()
						events, of[k] = events+n, of[k]+n
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, 200-events, peek(t, whole, "all").Remaining)
		for k, n := range of {
			require.Equal(t, 60-n, peek(t, key, k).Remaining)
		}
		require.Greater(t, events, 196)
	}
}

// Whoever hangs up has not used what was asked for on its behalf.
func TestWhatWasDecidedIsGivenBackThoughTheCallerHasLeft(t *testing.T) {
	l := newLimiter(t, "token_bucket", redisServer(t), ratelimit.PerDay(10))
	ctx, cancel := context.WithCancel(t.Context())
	asks := []ratelimit.Ask{{Limiter: l, Key: "key", N: 3}, {Limiter: l, Key: "other", N: 2}}
	r, err := ratelimit.Decide(ctx, asks...)
	require.NoError(t, err)
	cancel()
	require.NoError(t, ratelimit.GiveBack(ctx, r, asks...))
	require.Equal(t, 10, peek(t, l, "key").Remaining)
	require.Equal(t, 10, peek(t, l, "other").Remaining)
}

// Shadows and looks of a state that others charge as well are asked after them, wherever they
// stand.
func TestLooksAndShadowsOnOneStateComeLast(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		for name, s := range map[string]store.Store{"together": s, "apart": withoutJoint{Store: s}} {
			l := newLimiter(t, algorithm, s, ratelimit.PerDay(7), ratelimit.WithName(name))
			ask := func(n int, shadow bool) ratelimit.Ask {
				return ratelimit.Ask{Limiter: l, Key: "key", N: n, Shadow: shadow}
			}
			asks := []ratelimit.Ask{ask(0, false), ask(3, true), ask(3, true), ask(2, false)}
			r := decide(t, asks...)
			require.True(t, r.Allowed)
			require.Equal(t, 2, r.Charged(), "of what has a say")
			require.True(t, r.Parts()[0].Allowed, "it has looked")
			require.True(t, r.Parts()[1].Allowed)
			require.False(t, r.Parts()[2].Allowed, "one shadow denies no other")
			require.Equal(t, 2, peek(t, l, "key").Remaining)
			require.True(t, decide(t, ask(2, true), ask(1, false), ask(1, false)).Allowed, "a shadow takes no room")
			require.Zero(t, peek(t, l, "key").Remaining)
			require.NoError(t, l.Reset(t.Context(), "key"))

			r = decide(t, asks...)
			require.NoError(t, ratelimit.GiveBack(t.Context(), r, asks...))
			require.Equal(t, 7, peek(t, l, "key").Remaining, "the last to be charged is given back first")
		}
	})
}

func TestGiveBackOfSomeEventsLeavesTheirCallCharged(t *testing.T) {
	l := inMemory(t, "fixed_window", ratelimit.PerDay(9), ratelimit.CountCalls())
	ask := ratelimit.Ask{Limiter: l, Key: "key", N: 10}
	r := decide(t, ask)
	ask.N = 4
	require.NoError(t, ratelimit.GiveBack(t.Context(), r, ask))
	require.Equal(t, 8, peek(t, l, "key").Remaining)
	ask.N = 10
	require.NoError(t, ratelimit.GiveBack(t.Context(), r, ask))
	require.Equal(t, 9, peek(t, l, "key").Remaining)
}

func TestShadowsThatFailTogetherDenyNothing(t *testing.T) {
	down := away{Store: memory(t, newClock())}
	first := newLimiter(t, "token_bucket", down, ratelimit.PerHour(1), ratelimit.WithName("first"))
	second := newLimiter(t, "token_bucket", down, ratelimit.PerHour(1), ratelimit.WithName("second"))
	real := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	r := decide(t, ratelimit.Ask{Limiter: first, Key: "key", N: 1, Shadow: true},
		ratelimit.Ask{Limiter: second, Key: "key", N: 1, Shadow: true}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
	require.True(t, r.Allowed)
	require.Equal(t, []ratelimit.Result{{}, {}}, r.Parts()[:2])
	_, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: first, Key: "key", N: 1, Shadow: true},
		ratelimit.Ask{Limiter: second, Key: "key"}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
	require.ErrorIs(t, err, ratelimit.ErrStore, "a look is no shadow")
	require.Equal(t, 9, peek(t, real, "key").Remaining)
}

// failsAlone is a store that decides on several keys, but not on one.
type failsAlone struct{ store.Store }

func (failsAlone) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, store.ErrTimeout
}

func TestAnObserverIsToldOfTheErrorOfALimitThatIsAskedApart(t *testing.T) {
	s := failsAlone{memory(t, newClock())}
	var o recorder
	name := ratelimit.WithName("one")
	low := newLimiter(t, "fixed_window", s, ratelimit.PerDay(5), name)
	high := newLimiter(t, "fixed_window", s, ratelimit.PerDay(9), name, ratelimit.WithObserver(&o))
	other := newLimiter(t, "fixed_window", s, ratelimit.PerDay(9))
	_, err := all(t, low, high, other).Allow(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrTimeout)
	told := o.take()
	require.Len(t, told, 1)
	require.ErrorIs(t, told[0].Err, store.ErrTimeout)
	require.Equal(t, 5, peek(t, low, "key").Remaining)
}
