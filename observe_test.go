package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
)

// observed is l, one of the five, with observers.
func observed(t testing.TB, l ratelimit.Limiter, observers ...ratelimit.Observer) ratelimit.Limiter {
	t.Helper()
	watched := ratelimit.With(l, ratelimit.WithObserver(observers...))
	require.NotSame(t, l, watched)
	return watched
}

func timed(l ratelimit.Limiter, o ratelimit.Observer) ratelimit.Limiter {
	return ratelimit.With(l, ratelimit.WithTimedObserver(o))
}

func TestAnObserverIsToldOfEachDecision(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		var o recorder
		ctx, l := t.Context(), observed(t, newLimiter(t, algorithm, s, ratelimit.PerHour(10)), &o)

		r, err := l.Allow(ctx, "a")
		require.Equal(t, []decided{{"a", 1, r, err, 0}}, o.take())
		r, err = l.AllowN(ctx, "a", 2)
		require.Equal(t, []decided{{"a", 2, r, err, 0}}, o.take())
		r, err = ratelimit.AllowWithin(ctx, l, "a", 2, time.Hour)
		require.Equal(t, []decided{{"a", 2, r, err, 0}}, o.take())
		granted, r, err := ratelimit.AllowUpTo(ctx, l, "a", 9)
		require.Equal(t, 5, granted)
		require.Equal(t, []decided{{"a", 9, r, err, 0}}, o.take())
		require.Equal(t, 5, r.Charged())
		r, err = l.Allow(ctx, "a")
		require.False(t, r.Allowed)
		require.Equal(t, []decided{{"a", 1, r, err, 0}}, o.take())
		r, err = ratelimit.Charge(ctx, l, "a", 3)
		require.Equal(t, []decided{{"a", 3, r, err, 0}}, o.take())

		reservation, r, err := ratelimit.Reserve(ctx, l, "b", 4)
		require.Equal(t, []decided{{"b", 4, r, err, 0}}, o.take())
		_, err = reservation.Settle(ctx, 6)
		require.NoError(t, err)
		told := o.take()
		require.Len(t, told, 1)
		require.Equal(t, 2, told[0].N, "the Charge of what the estimate was short of")

		_, err = l.AllowN(ctx, "a", 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
		require.Equal(t, []decided{{"a", 0, ratelimit.Result{}, err, 0}}, o.take())

		_, err = l.Peek(ctx, "a")
		require.NoError(t, err)
		require.NoError(t, l.Refund(ctx, "b", r, 1))
		require.NoError(t, l.Reset(ctx, "a"))
		require.Empty(t, o.take(), "they decide nothing")
	})
}

func TestAnObserverIsToldOfWhatAWaitAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o recorder
		l := observed(t, inMemory(t, "sliding_log", ratelimit.PerSecond(1)), &o)
		allow(t, l, "key")
		start := time.Now()
		_, err := ratelimit.Wait(t.Context(), l, "key", 1)
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(start).Round(time.Millisecond))
		told := o.take()
		require.Len(t, told, 3, "one before, a denial and an admission")
		require.Equal(t, []bool{true, false, true}, []bool{told[0].R.Allowed, told[1].R.Allowed, told[2].R.Allowed})
	})
}

func TestAnObserverIsToldHowLongADecisionTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o, other recorder
		slow := newLimiter(t, "token_bucket", slowly{memory(t, newClock()), time.Millisecond}, ratelimit.PerHour(10))
		allow(t, timed(slow, &o), "key")
		require.Equal(t, time.Millisecond, o.take()[0].Took)
		allow(t, observed(t, slow, &o), "key")
		require.Zero(t, o.take()[0].Took)

		core := inMemory(t, "token_bucket", ratelimit.PerHour(10))
		a := all(t, timed(core, &o), slow, observed(t, slow, &other))
		allow(t, a, "key")
		require.Equal(t, 2*time.Millisecond, o.take()[0].Took, "of the whole")
		require.Zero(t, other.take()[0].Took)
	})
}

// slowly takes its time. It decides on one key at a time.
type slowly struct {
	store.Store
	d time.Duration
}

func (s slowly) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	time.Sleep(s.d)
	return s.Store.Take(ctx, ns, key, l, n)
}

func (slowly) Together(string, string) bool { return false }

func TestAnObserverOfNothingIsRefused(t *testing.T) {
	mem, one := memory(t, newClock()), new(recorder)
	for _, opt := range []ratelimit.Option{
		ratelimit.WithObserver(), ratelimit.WithObserver(nil), ratelimit.WithObserver(one, (*recorder)(nil)), ratelimit.WithTimedObserver(),
		ratelimit.WithKeyFunc(nil),
	} {
		_, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	same := ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key, nil })
	_, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), same, same)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "which of them?")
}

func TestObserversAreToldInTheirOrder(t *testing.T) {
	var order []string
	say := func(name string) ratelimit.Observer { return saying(func() { order = append(order, name) }) }
	l := observed(t, observed(t, inMemory(t, "token_bucket", ratelimit.PerHour(10)), say("a"), say("b")), say("c"))
	allow(t, l, "key")
	require.Equal(t, []string{"a", "b", "c"}, order)
}

// decided is what an Observer is told of.
type decided struct {
	Key  string
	N    int
	R    ratelimit.Result
	Err  error
	Took time.Duration
}

// recorder is an Observer that remembers.
type recorder struct {
	mu   sync.Mutex
	told []decided
}

func (r *recorder) Decided(_ context.Context, key string, n int, res ratelimit.Result, err error, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, decided{key, n, res, err, took})
}

// take is what was told since the last take.
func (r *recorder) take() []decided {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told
	r.told = nil
	return told
}

type saying func()

func (s saying) Decided(context.Context, string, int, ratelimit.Result, error, time.Duration) { s() }

// ---- In an All.

func TestAnAllOfObservedLimitsIsOneScript(t *testing.T) {
	client := redistest.Start(t).Client(t)
	s := onRedis(t, client)
	var o recorder
	var parts []ratelimit.Limiter
	for i, algorithm := range algorithms {
		l := observed(t, newLimiter(t, algorithm, s, ratelimit.PerHour(1_000+i)), &o)
		parts = append(parts, timed(l, &o))
	}
	a := all(t, parts...)
	allow(t, a, "key") // loads the script
	o.take()
	before, loaded := calls(t, client, "evalsha"), calls(t, client, "eval")
	for range 100 {
		allow(t, a, "key")
	}
	require.Equal(t, 100, calls(t, client, "evalsha")-before)
	require.Equal(t, loaded, calls(t, client, "eval"))
	require.Len(t, o.take(), 100*2*len(parts))
}

func TestAnObserverInAnAllIsToldItsOwnPartsDecision(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		var wide, narrow recorder
		a := all(t, observed(t, newLimiter(t, algorithm, s, ratelimit.PerHour(5)), &wide),
			observed(t, newLimiter(t, algorithm, s, ratelimit.PerHour(3)), &narrow))
		for _, n := range []int{1, 2} {
			r := allowN(t, a, n)
			require.Equal(t, []decided{{"key", n, r.Parts()[0], nil, 0}}, wide.take())
			require.Equal(t, []decided{{"key", n, r.Parts()[1], nil, 0}}, narrow.take())
		}
		r := allowN(t, a, 1)
		require.False(t, r.Allowed)
		for i, o := range []*recorder{&wide, &narrow} {
			told := o.take()
			require.Len(t, told, 1)
			require.Equal(t, i == 0, told[0].R.Allowed, "the wide one has room")
			require.Zero(t, told[0].R.Charged())
			require.Equal(t, r.Parts()[i], told[0].R)
		}
		_, err := a.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Empty(t, wide.take())
		_, err = a.Charge(t.Context(), "key", 2)
		require.NoError(t, err)
		require.Len(t, wide.take(), 1)
		require.Len(t, narrow.take(), 1)
	})
}

func TestAnObserverIsToldTheKeyAndTheEventsThatAreCounted(t *testing.T) {
	var inner, outer recorder
	core := observed(t, inMemory(t, "token_bucket", ratelimit.PerHour(9)), &inner)
	part := perCall(t, withKey(core, func(_ context.Context, key string) (string, error) { return "a:" + key, nil }))
	for name, l := range map[string]ratelimit.Limiter{"alone": part, "in an All": all(t, part)} {
		l, err := observe.Around(l, &outer)
		require.NoError(t, err)
		allowN(t, l, 3)
		for i, o := range []*recorder{&inner, &outer} {
			told := o.take()
			require.Len(t, told, 1, name)
			require.Equal(t, []string{"a:key", "key"}[i], told[0].Key, name)
			require.Equal(t, []int{1, 3}[i], told[0].N, name)
		}
	}
}

func TestAnObserverInAnAllIsToldOfErrors(t *testing.T) {
	errNo := errors.New("no")
	var first, failing, later recorder
	mem := memory(t, newClock())
	at := func(o *recorder, s store.Store, opts ...ratelimit.Option) ratelimit.Limiter {
		return observed(t, newLimiter(t, "token_bucket", s, ratelimit.PerHour(5), append(opts, ratelimit.WithName(fmt.Sprintf("%p", o)))...), o)
	}
	broken := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, errNo })
	a := all(t, at(&first, mem), at(&failing, mem, broken), at(&later, mem))
	_, err := a.Allow(t.Context(), "key")
	require.ErrorIs(t, err, errNo)
	require.Equal(t, []decided{{"key", 1, ratelimit.Result{}, errNo, 0}}, failing.take())
	require.Empty(t, first.take(), "no store was asked")
	require.Empty(t, later.take())

	down := &unreliable{Store: memory(t, newClock())}
	down.Down.Store(true)
	a = all(t, at(&first, mem), at(&failing, down), at(&later, down))
	_, err = a.Allow(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)
	told := first.take()
	require.Len(t, told, 1)
	require.True(t, told[0].R.Allowed)
	require.Zero(t, told[0].R.Charged(), "it was given back")
	require.ErrorIs(t, failing.take()[0].Err, ratelimit.ErrStore)
	require.ErrorIs(t, later.take()[0].Err, ratelimit.ErrStore, "asked in the same call")
}

func TestAnObserverOfAPartThatWasNotAskedIsNotTold(t *testing.T) {
	var o recorder
	blocked := inMemory(t, "token_bucket", ratelimit.PerHour(0))
	r := allowN(t, all(t, blocked, observed(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)), &o)), 1)
	require.False(t, r.Allowed)
	require.Empty(t, o.take())
}

// ---- In other wrappers.

func TestAnObserverIsToldWhatADenyCacheAnswers(t *testing.T) {
	var asked int
	var o recorder
	l := timed(newLimiter(t, "token_bucket", newDenyCache(t, memory(t, newClock())), ratelimit.PerHour(1), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) {
			asked++
			return ratelimit.PerHour(2), nil
		})), &o)
	for range 5 {
		allow(t, l, "key")
	}
	require.Equal(t, 5, asked, "once for each call")
	told := o.take()
	require.Len(t, told, 5)
	require.Equal(t, ratelimit.SourceStore, told[2].R.Source())
	require.Equal(t, ratelimit.SourceDenyCache, told[4].R.Source())
}

func TestAShareIsNotObserved(t *testing.T) {
	var o recorder
	down := &unreliable{Store: memory(t, newClock())}
	down.Down.Store(true)
	l := observed(t, newLimiter(t, "token_bucket", down, ratelimit.PerHour(4)), &o)
	f := failover(t, l, fallback.FailLocal(2))
	r := allow(t, f, "key")
	require.Equal(t, ratelimit.SourceLocal, r.Source())
	require.Equal(t, 1, r.Remaining)
	told := o.take()
	require.Len(t, told, 1)
	require.ErrorIs(t, told[0].Err, ratelimit.ErrStore)
}

func TestAnObserverAllocatesNothing(t *testing.T) {
	nothing := saying(func() {})
	for _, algorithm := range algorithms {
		// By a clock of its own: or else the speed of the calls decides how long a turn is away,
		// and so whether an All has to tell it.
		plain := newLimiter(t, algorithm, memory(t, newClock()), ratelimit.PerSecond(1_000_000))
		l := timed(observed(t, plain, nothing, nothing), nothing)
		ctx := t.Context()
		require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = l.Allow(ctx, "key") }), algorithm)
		parts, watched := all(t, plain, plain), all(t, l, l)
		require.Equal(t, testing.AllocsPerRun(1000, func() { _, _ = parts.Allow(ctx, "key") }),
			testing.AllocsPerRun(1000, func() { _, _ = watched.Allow(ctx, "key") }), algorithm)
	}
}
