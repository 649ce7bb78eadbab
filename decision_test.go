package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
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
		last := decide(t, ratelimit.Ask{Limiter: real, Key: "last", N: 3}, ratelimit.Ask{Limiter: trial, Key: "last", N: 3, Shadow: true})
		require.Equal(t, []int{10, 7}, []int{last.Limit, last.Remaining}, "wherever it stands")
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
			require.Equal(t, []int{4, 0}, []int{counted.Joints, counted.Singles})
		}
	}
	down := newLimiter(t, "token_bucket", away{Store: memory(t, newClock())}, ratelimit.PerHour(1))
	real := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	r := decide(t, ratelimit.Ask{Limiter: down, Key: "key", N: 1, Shadow: true}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
	require.True(t, r.Allowed, "a trial that fails is no error")
	require.Zero(t, r.Parts()[0].Result)
	noLimit := errors.New("no limit")
	broken := inMemory(t, "token_bucket", ratelimit.PerHour(9), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, noLimit }))
	r = decide(t, ratelimit.Ask{Limiter: broken, Key: "key", N: 1, Shadow: true}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
	require.True(t, r.Allowed)
	require.Zero(t, r.Parts()[0].Result)
	_, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: broken, Key: "key", N: 1}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
	require.ErrorIs(t, err, noLimit)
	require.Equal(t, 8, peek(t, real, "key").Remaining)
}

func TestAnAskMayOnlyLook(t *testing.T) {
	for _, s := range []store.Store{memory(t, newClock()), withoutJoint{Store: memory(t, newClock())}, redisServer(t)} {
		var o recorder
		l := observed(t, newLimiter(t, "sliding_window", s, ratelimit.PerDay(2)), &o)
		other := newLimiter(t, "token_bucket", s, ratelimit.PerDay(5))
		allowN(t, l, 2)
		o.take()
		for _, key := range []string{"key", "other"} {
			r := decide(t, ratelimit.Ask{Limiter: l, Key: key, Look: true}, ratelimit.Ask{Limiter: other, Key: "key", N: 1})
			require.True(t, r.Allowed)
			require.Equal(t, peek(t, l, key).Remaining, r.Parts()[0].Remaining)
			require.Equal(t, key == "other", r.Parts()[0].Allowed)
			require.Equal(t, 5, r.Limit)
		}
		require.Empty(t, o.take(), "a look decides nothing")
		r := decide(t, ratelimit.Ask{Limiter: l, Key: "new", Look: true}, ratelimit.Ask{Limiter: l, Key: "new", N: 2})
		require.Equal(t, 0, peek(t, l, "new").Remaining)
		require.True(t, r.Allowed)
		require.False(t, r.Parts()[0].Allowed, "it looks at what the other has left")
		allow(t, l, "last")
		require.True(t, decide(t, ratelimit.Ask{Limiter: l, Key: "last", Look: true}).Parts()[0].Allowed, "as an Allow would be")
		only := decide(t, ratelimit.Ask{Limiter: l, Key: "new", Look: true})
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
		{ctx, []ratelimit.Ask{one, {Limiter: l, Look: true}}, ratelimit.ErrInvalidKey},
		{ctx, []ratelimit.Ask{one, {Limiter: l, Key: "key"}}, ratelimit.ErrInvalidN}, // or a limit would be off where N is forgotten
		{ctx, []ratelimit.Ask{one, {Limiter: l, Key: "key", N: 1, Look: true}}, ratelimit.ErrInvalidN},
		{ctx, []ratelimit.Ask{one, {Limiter: l, Key: "key", N: -1}}, ratelimit.ErrInvalidN},
		{ended, []ratelimit.Ask{one}, context.Canceled},
	} {
		r, err := ratelimit.Decide(c.ctx, c.asks...)
		require.ErrorIs(t, err, c.want, i)
		require.Zero(t, r)
	}
	require.Equal(t, 5, peek(t, l, "key").Remaining, "nothing was charged")
	_, err = ratelimit.Decide(ctx)
	require.ErrorContains(t, err, "with 0 limits")
	_, err = ratelimit.Decide(ctx, many...)
	require.ErrorContains(t, err, "with 17 limits")
	most := decide(t, many[1:]...)
	require.Len(t, most.Parts(), 16)
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
func TestChargesAreRefundedAlthoughTheCallerHasLeft(t *testing.T) {
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
				return ratelimit.Ask{Limiter: l, Key: "key", N: n, Look: n == 0, Shadow: shadow}
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
	require.Zero(t, r.Parts()[0].Result)
	require.Zero(t, r.Parts()[1].Result)
	_, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: first, Key: "key", N: 1, Shadow: true},
		ratelimit.Ask{Limiter: second, Key: "key", Look: true}, ratelimit.Ask{Limiter: real, Key: "key", N: 1})
	require.ErrorIs(t, err, ratelimit.ErrStore, "a look is no shadow")
	require.Equal(t, 9, peek(t, real, "key").Remaining)
}

// counted is a store that counts the calls which decide.
type counted struct {
	store.Store
	calls *int
}

func (c counted) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	*c.calls++
	return c.Store.Decide(ctx, requests, replies)
}

func (c counted) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	*c.calls++
	return c.Store.Take(ctx, ns, key, l, n)
}

// On Redis each call of the store is a round trip.
func TestSeveralLimitsOfAStoreAreOneCallOfIt(t *testing.T) {
	calls := 0
	s := counted{memory(t, newClock()), &calls}
	var limits []ratelimit.Limiter
	for i, algorithm := range algorithms {
		limits = append(limits, newLimiter(t, algorithm, s, ratelimit.PerHour(5+i)))
	}
	a := all(t, limits...)
	for name, call := range map[string]func(){
		"AllowN":      func() { allowN(t, a, 2) },
		"a denial":    func() { require.False(t, allowN(t, a, 6).Allowed) },
		"Peek":        func() { peek(t, a, "key") },
		"AllowWithin": func() { _, _ = a.AllowWithin(t.Context(), "key", 1, time.Hour) },
	} {
		calls = 0
		call()
		require.Equal(t, 1, calls, name)
	}
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

func TestAnAllOfLimitsOfOneOtherKeyCountsThatOne(t *testing.T) {
	mem := memory(t, newClock())
	var parts []ratelimit.Limiter
	for _, name := range []string{"a", "b"} {
		parts = append(parts, onOneKey(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5), ratelimit.WithName(name)), "tenant"))
	}
	a := all(t, parts...)
	require.Equal(t, []int{4, 3}, []int{allow(t, a, "ann").Remaining, allow(t, a, "bob").Remaining})
}

// uncomparable is a store that cannot be compared with others, so that nobody knows whether two
// limits are on one.
type uncomparable struct {
	store.Store
	_ []int
}

func TestAnAllOnAStoreThatCannotBeComparedAsksInOrder(t *testing.T) {
	s := uncomparable{Store: memory(t, newClock())}
	high := newLimiter(t, "token_bucket", s, ratelimit.PerHour(5))
	a := all(t, high, newLimiter(t, "sliding_window", s, ratelimit.PerHour(2)))
	require.True(t, allowN(t, a, 2).Allowed)
	require.Equal(t, "2/h", allowN(t, a, 1).DeniedBy())
	require.Equal(t, 3, peek(t, high, "key").Remaining, "given back")
}

// ofOthers is a limiter that is not built on this package: its Results say nothing of a charge.
type ofOthers struct {
	ratelimit.Limiter
	left int
}

func (l *ofOthers) AllowN(_ context.Context, _ string, n int) (ratelimit.Result, error) {
	if n > l.left {
		return ratelimit.Result{Limit: 5, Remaining: l.left, RetryAfter: time.Second}, nil
	}
	l.left -= n
	return ratelimit.Result{Allowed: true, Limit: 5, Remaining: l.left}, nil
}

func (l *ofOthers) Refund(_ context.Context, _ string, _ ratelimit.Result, n int) error {
	l.left += n
	return nil
}

// What they have admitted is given back to them, and a denial, which has charged nothing, is not.
func TestLimitersOfOthersGetBackWhatTheyHaveCharged(t *testing.T) {
	l, other := &ofOthers{left: 5}, inMemory(t, "token_bucket", ratelimit.PerHour(5))
	asks := []ratelimit.Ask{{Limiter: l, Key: "key", N: 3}, {Limiter: other, Key: "key", N: 3}}
	r := decide(t, asks...)
	require.Equal(t, 2, l.left)
	require.NoError(t, ratelimit.GiveBack(t.Context(), r, asks...))
	require.Equal(t, 5, l.left)
	require.False(t, allowN(t, all(t, other, l), 6).Allowed)
	require.False(t, allowN(t, all(t, l, other), 6).Allowed)
	require.Equal(t, 5, l.left)
}

// A look charges nothing, so there is nothing to refund if another one fails.
func TestWhatOnlyLookedGetsNothingBack(t *testing.T) {
	refunds, down := &refunded{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(5))}, &unreliable{Store: memory(t, newClock())}
	r := decide(t, ratelimit.Ask{Limiter: refunds, Key: "key", Look: true})
	require.Equal(t, peek(t, refunds, "key"), r.Parts()[0].Result)
	down.Down.Store(true)
	_, err := ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: refunds, Key: "key", Look: true},
		ratelimit.Ask{Limiter: newLimiter(t, "token_bucket", down, ratelimit.PerHour(5)), Key: "key", Look: true})
	require.ErrorIs(t, err, ratelimit.ErrStore)
	require.Zero(t, refunds.calls)
}

// refunded counts the Refunds.
type refunded struct {
	ratelimit.Limiter
	calls int
}

func (l *refunded) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	l.calls++
	return l.Limiter.Refund(ctx, key, charged, n)
}

// panicking is a limiter with a user's function that panics.
type panicking struct{ ratelimit.Limiter }

func (panicking) AllowN(context.Context, string, int) (ratelimit.Result, error) { panic("broken") }

// A slot in memory would be lost for ever: net/http goes on after a panic.
func TestChargesAreRefundedIfALaterLimitPanics(t *testing.T) {
	near := inMemory(t, "token_bucket", ratelimit.PerHour(5))
	last := panicking{ratelimittest.Static(ratelimit.Result{}, nil)}
	for _, ask := range []func(){
		func() { _, _ = all(t, near, last).AllowN(t.Context(), "key", 2) },
		func() { _, _ = newBan(t, all(t, near, last), newMemory(t), quarter).AllowN(t.Context(), "key", 2) },
		func() {
			_, _ = ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: near, Key: "key", N: 2}, ratelimit.Ask{Limiter: last, Key: "key", N: 1})
		},
	} {
		require.PanicsWithValue(t, "broken", ask)
		require.Equal(t, 5, peek(t, near, "key").Remaining)
	}
}

// failsTogether is a store that does not decide on several keys, but leaves replies.
type failsTogether struct{ store.Store }

// Decide implements [store.Store].
func (s failsTogether) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s failsTogether) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	_ = s.Store.Decide(ctx, requests, replies)
	return store.ErrUnavailable
}

func TestTheResultOfAnAllBesideAnErrorIsZero(t *testing.T) {
	s := failsTogether{memory(t, newClock())}
	for _, opts := range [][]ratelimit.Option{nil, {ratelimit.WithObserver(saying(func() {}))}} {
		r, err := all(t, newLimiter(t, "token_bucket", s, ratelimit.PerHour(5), opts...),
			newLimiter(t, "fixed_window", s, ratelimit.PerHour(5), opts...)).Allow(t.Context(), "key")
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.Zero(t, r)
	}
}

// Most Alls are of limits without options, which are decided without a look at each of them, and
// two of them are told in the Result alone. That is only faster: an All whose limits are observed,
// and a Decide, say the same.
func TestAnAllDecidesAlikeOnEachOfItsWays(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range 150 {
		c := newClock()
		var ways [3]alike
		limits := 2 + round%3/2 // most often 2
		for w := range ways {
			ways[w] = alike{s: memory(t, c)}
		}
		for i := range limits {
			algorithm, opts := algorithms[rng.IntN(len(algorithms))], []ratelimit.Option{ratelimit.WithName(fmt.Sprint(i))}
			if rng.IntN(3) == 0 || round%10 == 0 {
				opts = append(opts, ratelimit.CountCalls())
			}
			l := ratelimit.Limit{Rate: 1 + rng.IntN(9), Period: time.Duration(2+rng.IntN(3)) * time.Second}
			if rng.IntN(12) == 0 {
				l = []ratelimit.Limit{ratelimit.PerHour(0), ratelimit.Unlimited()}[rng.IntN(2)]
			}
			if hasBurst(algorithm) && l.Rate > 0 && rng.IntN(2) == 0 {
				l.Burst = l.Rate + 2
			}
			for w := range ways {
				one := newLimiter(t, algorithm, ways[w].s, l, opts...)
				if w == 1 {
					one = observed(t, one, saying(func() {}))
				}
				ways[w].limits = append(ways[w].limits, one)
			}
		}
		for w := range ways {
			ways[w].all, ways[w].decides = all(t, ways[w].limits...), w == 2
		}
		for range 30 {
			ways[0].requireStep(t, c, rng, ways[1:])
		}
	}
}

// alike is an All that is asked as others are.
type alike struct {
	s       store.Store
	limits  []ratelimit.Limiter
	all     *ratelimit.All
	decides bool // by Decide
	last    ratelimit.Result
	n       int // of last
}

func (a *alike) asks(n int) []ratelimit.Ask {
	asks := make([]ratelimit.Ask, len(a.limits))
	for i, l := range a.limits {
		asks[i] = ratelimit.Ask{Limiter: l, Key: "key", N: n}
	}
	return asks
}

func (a *alike) allowN(ctx context.Context, n int) (r ratelimit.Result, err error) {
	if a.decides {
		r, err = ratelimit.Decide(ctx, a.asks(n)...)
	} else {
		r, err = a.all.AllowN(ctx, "key", n)
	}
	a.last, a.n = r, n
	return r, err
}

func (a *alike) refund(ctx context.Context, n int) error {
	if a.decides {
		return ratelimit.GiveBack(ctx, a.last, a.asks(n)...)
	}
	return a.all.Refund(ctx, "key", a.last, n)
}

// requireStep does the same at random to all of the ways, which then tell the same.
func (a *alike) requireStep(t *testing.T, c *clock, rng *rand.Rand, others []alike) {
	t.Helper()
	ctx, what, n := t.Context(), rng.IntN(12), 1+rng.IntN(3)
	if rng.IntN(20) == 0 {
		n = []int{math.MaxInt32, math.MaxInt}[rng.IntN(2)]
	}
	if what == 0 { // the clock of one limit is ahead
		c.Advance(300 * time.Millisecond)
	}
	act := func(a *alike) (told []any) {
		tell := func(r ratelimit.Result, err error) {
			require.NoError(t, err)
			told = append(told, r.Counted(), r.Charged(), r.DeniedBy(), r.Source(), r.String(), visible(r), r.ResetAfter, len(r.Parts()))
			for _, p := range r.Parts() {
				told = append(told, visible(p.Result), p.ResetAfter, p.Source(), p.Charged())
			}
		}
		switch what {
		case 0:
			_, err := a.limits[0].Allow(ctx, "key")
			require.NoError(t, err)
		case 1:
			tell(a.all.Peek(ctx, "key"))
		case 2:
			tell(a.all.AllowWithin(ctx, "key", n, time.Second))
		case 3:
			if a.last.Allowed {
				require.NoError(t, a.refund(ctx, min(a.n, n)))
				a.last.Allowed = false
			}
		case 4:
			_, err := a.all.Charge(ctx, "key", min(n, 3))
			require.NoError(t, err)
		default:
			tell(a.allowN(ctx, n))
		}
		return told
	}
	want := act(a)
	for i := range others {
		require.Equal(t, want, act(&others[i]), "%d events on way %d of %v", n, i+1, a.limits)
	}
	if what == 0 {
		c.Advance(-300 * time.Millisecond)
	}
	c.Advance(time.Duration(rng.IntN(700)) * time.Millisecond)
}

// A shadow charges what fits, so a look that comes after it sees less than one before it.
func TestALookSeesWhatTheAsksBeforeItHaveCharged(t *testing.T) {
	for _, algorithm := range algorithms {
		l := newLimiter(t, algorithm, memory(t, newClock()), ratelimit.PerHour(5))
		look := ratelimit.Ask{Limiter: l, Key: "key", Look: true}
		r := decide(t, look, ratelimit.Ask{Limiter: l, Key: "key", N: 4, Shadow: true}, look, ratelimit.Ask{Limiter: l, Key: "key", N: 1, Shadow: true}, look)
		left := []int{r.Parts()[0].Remaining, r.Parts()[2].Remaining, r.Parts()[4].Remaining}
		require.Equal(t, []int{5, 1, 0}, left, algorithm)
		require.False(t, r.Parts()[4].Allowed)
	}
}

// A leaky bucket refunds only its last events, so what was charged last must go back first.
func TestADeniedDecideChargesNothingToALeakyBucketAskedTwice(t *testing.T) {
	mem, other := ratelimit.Must(memstore.New()), ratelimit.Must(memstore.New())
	x := ratelimit.Must(ratelimit.NewLeakyBucket(mem, ratelimit.PerHour(10), ratelimit.WithName("x")))
	plan := ratelimit.Must(ratelimit.NewLeakyBucket(mem, ratelimit.PerHour(10), ratelimit.WithName("plan")))
	far := ratelimit.Must(ratelimit.NewLeakyBucket(other, ratelimit.PerHour(1)))
	all, err := ratelimit.NewAll(x, ratelimit.Must(ratelimit.NewFirst(plan)), plan, far)
	require.NoError(t, err)
	for _, admitted := range []bool{true, false, false} {
		r, err := all.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, admitted, r.Allowed)
		left, err := plan.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 8, left.Remaining)
	}
}

// An All and a Decide ask limiters of one store together, and so not always in their order.
func TestALeakyBucketChargedTwiceGetsAllBack(t *testing.T) {
	mem := memory(t, newClock())
	x := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), ratelimit.WithName("x")))
	plan := ratelimit.Must(ratelimit.NewLeakyBucket(mem, ratelimit.PerHour(10), ratelimit.WithName("plan")))
	faster := ratelimit.Must(ratelimit.NewLeakyBucket(mem, ratelimit.PerHour(20), ratelimit.WithName("plan")))
	inside := ratelimit.Must(ratelimit.NewFirst(plan))
	for _, limiters := range [][]ratelimit.Limiter{{plan, plan}, {x, inside, plan}, {plan, inside, plan}, {inside, plan, inside}, {plan, faster, plan}, {x, plan, faster, inside, plan}} {
		all := ratelimit.Must(ratelimit.NewAll(limiters...))
		r, err := all.AllowN(t.Context(), "key", 2)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, all.Refund(t.Context(), "key", r, 2))
		require.Equal(t, 10, peek(t, plan, "key").Remaining, "All %T", limiters)
		for shadow := range 1 << len(limiters) {
			asks := make([]ratelimit.Ask, len(limiters))
			for i, l := range limiters {
				asks[i] = ratelimit.Ask{Limiter: l, Key: "key", N: 2, Shadow: shadow>>i&1 == 1}
			}
			r := decide(t, asks...)
			require.True(t, r.Allowed)
			require.NoError(t, ratelimit.GiveBack(t.Context(), r, asks...))
			require.Equal(t, 10, peek(t, plan, "key").Remaining, "Decide %+v", asks)
		}
	}
}

// apart is a store that cannot decide on several keys at once, such as a cluster whose slot moves.
type apart struct {
	store.Store
	refused int
}

func (a *apart) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if len(requests) > 1 {
		a.refused++
		return fmt.Errorf("%w: %w", see.ErrApart, store.ErrUnavailable)
	}
	return a.Store.Decide(ctx, requests, replies)
}

// The charges of a leaky bucket go back from the last one on, also if each limit of the most that there may be is
// charged by a call of its own.
func TestAllThatWasChargedOneAfterTheOtherGoesBack(t *testing.T) {
	s := &apart{Store: ratelimit.Must(memstore.New())}
	leaky := newLimiter(t, "leaky_bucket", s, ratelimit.PerHour(10), ratelimit.WithName("leaky"))
	for at := range 15 {
		var asks []ratelimit.Ask
		for i := range 14 {
			asks = append(asks, ratelimit.Ask{Limiter: newLimiter(t, "fixed_window", s, ratelimit.PerHour(100), ratelimit.WithName(fmt.Sprint(i))), Key: "key", N: 1})
		}
		asks = slices.Insert(asks, at, ratelimit.Ask{Limiter: leaky, Key: "key", N: 2}, ratelimit.Ask{Limiter: leaky, Key: "key", N: 3})
		r, err := ratelimit.Decide(t.Context(), asks...)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, ratelimit.GiveBack(t.Context(), r, asks...))
		require.Equal(t, 10, peek(t, leaky, "key").Remaining, "the bucket is limit %d", at)
		require.True(t, decide(t, asks[0], asks[15]).Allowed)
		require.NoError(t, leaky.Reset(t.Context(), "key"))
	}
}

// A Peek of several limits that one of them denies also reports those after a limit whose store fails.
func TestAPeekThatIsDeniedLooksAtTheOthers(t *testing.T) {
	none, room := testkit.InMemory(t, "fixed_window", ratelimit.PerHour(1)), testkit.InMemory(t, "fixed_window", ratelimit.PerHour(3))
	testkit.AllowN(t, none, 1)
	all := ratelimit.Must(ratelimit.NewAll(none, newLimiter(t, "fixed_window", testkit.Away{Store: ratelimit.Must(memstore.New())}, ratelimit.PerHour(2)), room))
	r := peek(t, all, "key")
	require.False(t, r.Allowed)
	require.Equal(t, 3, r.Parts()[2].Remaining)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := all.Peek(ctx, "key")
	require.Equal(t, context.Canceled, err)
}

// Two asks that are more together than the limit ever admits are never admitted, and each of their parts says so.
func TestAsksThatAreTooMuchTogetherAreNeverAdmitted(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		l := newLimiter(t, algorithm, s, ratelimit.PerHour(5))
		for range 2 {
			r := decide(t, ratelimit.Ask{Limiter: l, Key: "key", N: 3}, ratelimit.Ask{Limiter: l, Key: "key", N: 3})
			require.Equal(t, ratelimit.Never, r.RetryAfter)
			for i, p := range r.Parts() {
				require.Equal(t, ratelimit.Never, p.RetryAfter, "part %d", i)
			}
			require.True(t, decide(t, ratelimit.Ask{Limiter: l, Key: "key", N: 1}).Allowed)
		}
	})
}

func TestAnAllThatIsDecidedApartIsRefusedOnce(t *testing.T) {
	s := &apart{Store: ratelimit.Must(memstore.New())}
	all := ratelimit.Must(ratelimit.NewAll(newLimiter(t, "fixed_window", s, ratelimit.PerHour(2)), newLimiter(t, "token_bucket", s, ratelimit.PerHour(1))))
	for i, want := range []bool{true, false} {
		r, err := all.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, want, r.Allowed)
		require.Equal(t, i+1, s.refused)
	}
	require.Equal(t, 1, peek(t, all, "key").Parts()[0].Remaining, "the denial has charged nothing")
}

func TestAnAskMayReserveTheMostEvents(t *testing.T) {
	l := testkit.InMemory(t, "fixed_window", ratelimit.PerHour(5))
	r := decide(t, ratelimit.Ask{Limiter: l, Key: "key", N: 1, Reserved: math.MaxInt32})
	require.False(t, r.Allowed)
}

// hesitant is a store that hangs in Decides and Refunds, the one until ctx ends, and the other for its own timeout.
type hesitant struct {
	store.Store
	decides, refunds bool
}

func (h hesitant) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if h.decides {
		<-ctx.Done()
		return store.Reply{}, ctx.Err()
	}
	return h.Store.Take(ctx, ns, key, l, n)
}

func (h hesitant) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if h.refunds {
		time.Sleep(time.Second)
	}
	return h.Store.Refund(ctx, ns, key, l, c)
}

// A caller whose time is up does not wait until what was charged has gone back, be it after a denial or an error.
func TestACallReturnsInTimeAlthoughItsChargesHaveToGoBack(t *testing.T) {
	t.Parallel()
	mem := memory(t, newClock())
	for _, foreign := range []bool{false, true} {
		for _, denied := range []bool{false, true} {
			name := fmt.Sprint(foreign, denied)
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					slow, last := hesitant{Store: mem, refunds: true}, hesitant{Store: mem, decides: !denied}
					day, err := ratelimit.NewFixedWindow(slow, ratelimit.PerDay(9), ratelimit.WithName(name))
					require.NoError(t, err)
					second := ratelimit.Limiter(day)
					if foreign {
						second = opened{day}
					}
					first := ratelimit.Must(ratelimit.NewFixedWindow(slow, ratelimit.PerHour(9), ratelimit.WithName(name)))
					all := all(t, first, second, ratelimit.Must(ratelimit.NewFixedWindow(last, ratelimit.PerMinute(2))))
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					start := time.Now()
					r, err := all.AllowN(ctx, "key", 3)
					if require.Equal(t, 100*time.Millisecond, time.Since(start)); denied {
						require.NoError(t, err)
						require.False(t, r.Allowed)
						for _, part := range r.Parts() {
							require.Zero(t, part.Charged(), "it is on its way back")
						}
					} else {
						require.ErrorIs(t, err, context.DeadlineExceeded)
					}
					time.Sleep(3 * time.Second)
					require.Equal(t, 9, peek(t, first, "key").Remaining)
					require.Equal(t, 9, peek(t, day, "key").Remaining)
				})
			})
		}
	}
}

// fragile is a store whose Refund panics.
type fragile struct{ store.Store }

func (fragile) Refund(context.Context, *store.Namespace, string, store.Limit, store.Receipt) error {
	panic("planted")
}

// A store that panics while charges go back panics for the caller.
func TestAStoreThatPanicsWhileChargesGoBack(t *testing.T) {
	t.Parallel()
	mem := memory(t, newClock())
	first := ratelimit.Must(ratelimit.NewFixedWindow(fragile{mem}, ratelimit.PerHour(9)))
	all := all(t, first, ratelimit.Must(ratelimit.NewFixedWindow(hesitant{Store: mem}, ratelimit.PerMinute(1))))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, ctx := range []context.Context{ctx, context.WithoutCancel(ctx)} {
		require.PanicsWithValue(t, "planted", func() { _, _ = all.AllowN(ctx, "key", 2) })
	}
}

// A store that panics after the call has returned does not end the program.
func TestAStoreThatPanicsWhileChargesGoBackLater(t *testing.T) {
	t.Parallel()
	mem := memory(t, newClock())
	synctest.Test(t, func(t *testing.T) {
		first := ratelimit.Must(ratelimit.NewFixedWindow(fragile{mem}, ratelimit.PerHour(9)))
		all := all(t, first, ratelimit.Must(ratelimit.NewFixedWindow(hesitant{Store: mem, decides: true}, ratelimit.PerMinute(9))))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := all.Allow(ctx, "key")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
	})
}
