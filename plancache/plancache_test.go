package plancache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/plancache"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// database is a function of a key that takes some time, and whose answer the test sets.
type database struct {
	mu      sync.Mutex
	answer  string
	err     error
	takes   time.Duration
	queries int
}

var errDown = errors.New("the database is down")

func (d *database) planOf(ctx context.Context, _ string) (string, error) {
	d.mu.Lock()
	d.queries++
	answer, err, takes := d.answer, d.err, d.takes
	d.mu.Unlock()
	select {
	case <-time.After(takes):
		return answer, err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (d *database) set(answer string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer, d.err = answer, err
}

func (d *database) asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queries
}

func cache(t testing.TB, d *database, ttl time.Duration, opts ...plancache.Option) *plancache.Cache[string] {
	t.Helper()
	c, err := plancache.New(d.planOf, ttl, opts...)
	require.NoError(t, err)
	return c
}

func get(t testing.TB, c *plancache.Cache[string], key string) string {
	t.Helper()
	answer, err := c.Get(t.Context(), key)
	require.NoError(t, err)
	return answer
}

func TestCallsAtOneTimeAreOneQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "pro", takes: time.Millisecond}
		c := cache(t, d, time.Minute)
		for range 3 { // when nothing is known, and each time that the answer is too old
			before := d.asked()
			for range 100 {
				go func() { require.Equal(t, "pro", get(t, c, "ann")) }()
			}
			time.Sleep(time.Second)
			require.Equal(t, before+1, d.asked())
			time.Sleep(time.Minute)
		}
		require.Equal(t, plancache.Stats{Queries: 3, Keys: 1}, c.Stats())
	})
}

func TestAnAnswerIsAtMostTheTTLOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "free"}
		c := cache(t, d, time.Minute)
		require.Equal(t, "free", get(t, c, "ann"))
		d.set("pro", nil)
		time.Sleep(time.Minute - 1)
		require.Equal(t, "free", get(t, c, "ann"))
		require.Equal(t, "pro", get(t, c, "bob"), "each key has its own")
		time.Sleep(time.Nanosecond)
		require.Equal(t, "pro", get(t, c, "ann"))
		require.Equal(t, plancache.Stats{Hits: 1, Queries: 3, Keys: 2}, c.Stats())
	})
}

func TestWhileTheFunctionFailsTheLastAnswerIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "pro", takes: time.Millisecond}
		c := cache(t, d, time.Minute, plancache.WithStale(time.Hour))
		require.Equal(t, "pro", get(t, c, "ann"))
		d.set("", errDown)
		asked := time.Now().Add(-time.Millisecond)

		time.Sleep(time.Minute)
		began := time.Now()
		require.Equal(t, "pro", get(t, c, "ann"), "also for the call that has asked")
		require.Equal(t, time.Millisecond, time.Since(began))
		for range 100 { // ten calls a second, none of which waits
			began := time.Now()
			require.Equal(t, "pro", get(t, c, "ann"))
			require.Zero(t, time.Since(began))
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, d.asked(), 12, "once a second")
		require.GreaterOrEqual(t, d.asked(), 10)

		time.Sleep(time.Until(asked.Add(time.Hour + time.Minute - 1)))
		require.Equal(t, "pro", get(t, c, "ann"))
		time.Sleep(time.Nanosecond)
		_, err := c.Get(t.Context(), "ann")
		require.Equal(t, errDown, err)

		d.set("free", nil)
		time.Sleep(time.Second)
		require.Equal(t, "free", get(t, c, "ann"))
		require.Equal(t, int64(d.asked()-2), c.Stats().Failures)
	})
}

// If an answer is known, calls wait for a hanging database for a limited time, once per query.
func TestWhileTheFunctionHangsTheLastAnswerIsServed(t *testing.T) {
	const patience = 50 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "pro"}
		c := cache(t, d, time.Minute, plancache.WithStale(time.Hour))
		require.Equal(t, "pro", get(t, c, "ann"))
		asked := time.Now()
		d.mu.Lock()
		d.takes = time.Hour
		d.mu.Unlock()
		time.Sleep(time.Minute)
		for range 3 { // queries, of 5 s and a pause
			began := time.Now()
			go func() {
				time.Sleep(patience / 2)
				require.Equal(t, "pro", get(t, c, "ann"))
				require.LessOrEqual(t, time.Since(began), patience, "with the one that has asked")
			}()
			require.Equal(t, "pro", get(t, c, "ann"))
			require.LessOrEqual(t, time.Since(began), patience)
			for range 50 { // none of which waits
				time.Sleep(100 * time.Millisecond)
				began := time.Now()
				require.Equal(t, "pro", get(t, c, "ann"))
				require.Zero(t, time.Since(began))
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, 4, d.asked())
		s := c.Stats()
		require.Equal(t, int64(3*52), s.Stale)
		require.Zero(t, s.Hits)

		began := time.Now()
		_, err := c.Get(t.Context(), "bob")
		require.Equal(t, context.DeadlineExceeded, err, "of whom nothing is known")
		require.Equal(t, 5*time.Second, time.Since(began))

		time.Sleep(time.Until(asked.Add(time.Hour + time.Minute)))
		_, err = c.Get(t.Context(), "ann")
		require.Equal(t, context.DeadlineExceeded, err, "it is an hour too old")
	})
}

// An answer that comes late is cached from then on.
func TestASlowAnswerIsServedOnceItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "free", takes: 200 * time.Millisecond}
		c := cache(t, d, time.Minute)
		require.Equal(t, "free", get(t, c, "ann"))
		d.set("pro", nil)
		time.Sleep(time.Minute)
		require.Equal(t, "free", get(t, c, "ann"))
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, "pro", get(t, c, "ann"))
	})
}

func TestAKeyWithoutAnAnswerHasTheErrorForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{err: errDown}
		c := cache(t, d, time.Minute)
		for range 10 {
			_, err := c.Get(t.Context(), "ann")
			require.Equal(t, errDown, err)
		}
		require.Equal(t, 1, d.asked())
		d.set("pro", nil)
		time.Sleep(time.Second)
		require.Equal(t, "pro", get(t, c, "ann"))

		c = cache(t, d, time.Minute, plancache.WithStale(math.MaxInt64))
		require.Equal(t, "pro", get(t, c, "ann"))
		d.set("", errDown)
		time.Sleep(24 * time.Hour)
		require.Equal(t, "pro", get(t, c, "ann"), "for ever")
		d.set("pro", nil)

		c = cache(t, d, time.Minute, plancache.WithStale(0))
		require.Equal(t, "pro", get(t, c, "ann"))
		d.set("", errDown)
		time.Sleep(time.Minute)
		_, err := c.Get(t.Context(), "ann")
		require.Equal(t, errDown, err, "nothing is served longer")
	})
}

func TestACallerThatLeavesEndsNobodysQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "pro", takes: time.Second}
		c := cache(t, d, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := c.Get(ctx, "ann") // which makes the query
			require.Equal(t, context.Canceled, err)
		}()
		synctest.Wait()
		go func() { require.Equal(t, "pro", get(t, c, "ann")) }()
		synctest.Wait()
		cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, "pro", get(t, c, "ann"))
		require.Equal(t, 1, d.asked())
	})
}

func TestAQueryEndsAtItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "pro", takes: time.Hour}
		c := cache(t, d, time.Minute, plancache.WithTimeout(time.Second))
		began := time.Now()
		_, err := c.Get(t.Context(), "ann")
		require.Equal(t, context.DeadlineExceeded, err)
		require.Equal(t, time.Second, time.Since(began))
	})
}

func TestAFunctionThatPanicsOrLeavesIsAnError(t *testing.T) {
	for _, f := range []func(context.Context, string) (string, error){
		func(context.Context, string) (string, error) { panic("on purpose") },
		func(context.Context, string) (string, error) { runtime.Goexit(); return "", nil },
	} {
		c, err := plancache.New(f, time.Minute)
		require.NoError(t, err)
		_, err = c.Get(t.Context(), "ann")
		require.ErrorContains(t, err, "panicked")
		require.Equal(t, int64(1), c.Stats().Failures)
	}
}

func TestACallWithoutAContextHarmsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache(t, &database{answer: "pro"}, time.Hour)
		require.Panics(t, func() { _, _ = c.Get(nil, "ann") }) //nolint:staticcheck // on purpose
		require.Equal(t, "pro", get(t, c, "ann"))
	})
}

func TestItRemembersSoManyKeysAndForgetsThoseNotAskedFor(t *testing.T) {
	d := &database{answer: "pro"}
	c := cache(t, d, time.Hour, plancache.WithMaxKeys(10))
	for i := range 100 {
		get(t, c, fmt.Sprint("key:", i))
		get(t, c, "ann")
		require.LessOrEqual(t, c.Stats().Keys, 10)
	}
	require.Equal(t, 101, d.asked(), "ann was never forgotten")
	get(t, c, "key:1")
	require.Equal(t, 102, d.asked())
}

// So many other keys in the meantime that a key is displaced change nothing: its calls share one query.
func TestCallsAtOneTimeAreOneQueryWhileOtherKeysComeInNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "pro", takes: time.Second}
		c := cache(t, d, time.Minute, plancache.WithMaxKeys(10))
		const times, others = 5, 20
		for i := range times {
			go func() { require.Equal(t, "pro", get(t, c, "ann")) }()
			synctest.Wait()
			for j := range others {
				go get(t, c, fmt.Sprint(i, " of ", j))
			}
			synctest.Wait()
			require.LessOrEqual(t, c.Stats().Keys, 10)
		}
		c.Forget("ann") // also a query in progress that was displaced
		go get(t, c, "ann")
		time.Sleep(2 * time.Second)
		require.Equal(t, "pro", get(t, c, "ann"))
		require.Equal(t, 1+times*others+1, d.asked())
	})
}

func TestForgetAsksAgain(t *testing.T) {
	d := &database{answer: "free"}
	c := cache(t, d, time.Hour)
	require.Equal(t, "free", get(t, c, "ann"))
	d.set("pro", nil)
	require.Equal(t, "free", get(t, c, "ann"))
	c.Forget("ann")
	require.Equal(t, "pro", get(t, c, "ann"))

	c = cache(t, d, time.Hour, plancache.WithMaxKeys(4))
	for _, key := range []string{"ann", "bob", "cid", "bob"} { // the first two are old then, and bob young again
		get(t, c, key)
	}
	require.Equal(t, 3, c.Stats().Keys)
	before := d.asked()
	c.Forget("ann")
	get(t, c, "ann")
	require.Equal(t, before+1, d.asked())
}

// Many callers of a few keys, some of which are forgotten. Run this with the race detector.
func TestManyCallersAtOnce(t *testing.T) {
	c, err := plancache.New(func(_ context.Context, key string) (string, error) { return key, nil }, time.Microsecond, plancache.WithMaxKeys(4))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				key := fmt.Sprint((i + j) % 7)
				answer, err := c.Get(t.Context(), key)
				if err != nil || answer != key {
					t.Errorf("%q of %q, %v", answer, key, err)
				}
				if j%50 == 0 {
					c.Forget(key)
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, c.Stats().Keys, 4)
}

func TestAnAnswerFromMemoryAllocatesNothing(t *testing.T) {
	c := cache(t, &database{answer: "pro"}, time.Hour)
	require.Equal(t, "pro", get(t, c, "ann"))
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = c.Get(t.Context(), "ann") }))
}

func TestBadInput(t *testing.T) {
	f := (&database{}).planOf
	for name, made := range map[string]func() (*plancache.Cache[string], error){
		"no function":  func() (*plancache.Cache[string], error) { return plancache.New[string](nil, time.Minute) },
		"no ttl":       func() (*plancache.Cache[string], error) { return plancache.New(f, 0) },
		"a nil Option": func() (*plancache.Cache[string], error) { return plancache.New(f, time.Minute, nil) },
		"one key": func() (*plancache.Cache[string], error) {
			return plancache.New(f, time.Minute, plancache.WithMaxKeys(1))
		},
		"stale below 0": func() (*plancache.Cache[string], error) {
			return plancache.New(f, time.Minute, plancache.WithStale(-1))
		},
		"no timeout": func() (*plancache.Cache[string], error) {
			return plancache.New(f, time.Minute, plancache.WithTimeout(0))
		},
	} {
		c, err := made()
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		require.Nil(t, c, name)
	}
	_, err := new(plancache.Cache[string]).Get(t.Context(), "ann")
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// While the database of plans is down, a limiter keeps the plans that it knows. For other keys, it
// uses its own limit, if the program says so.
func TestALimiterGoesOnWhileTheDatabaseOfPlansIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "pro"}
		plans := cache(t, d, time.Minute)
		orFree := func(ctx context.Context, key string) (string, error) {
			plan, err := plans.Get(ctx, key)
			if err != nil && key != "strict" {
				return "", nil
			}
			return plan, err
		}
		mem, err := memstore.New()
		require.NoError(t, err)
		l, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(2), ratelimit.WithTiers(orFree, map[string]ratelimit.Limit{"pro": ratelimit.PerHour(100)}))
		require.NoError(t, err)
		limitOf := func(key string) int {
			r, err := l.Allow(t.Context(), key)
			require.NoError(t, err)
			return r.Limit
		}
		require.Equal(t, 100, limitOf("ann"))
		d.set("", errDown)
		time.Sleep(30 * time.Minute)
		require.Equal(t, 100, limitOf("ann"))
		require.Equal(t, 2, limitOf("bob"))
		_, err = l.Allow(t.Context(), "strict")
		require.Equal(t, errDown, err)
	})
}

// An answer is never older than ttl plus WithStale, however short they are.
func TestAnAnswerIsNotServedBeyondAShortStaleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{answer: "gold"}
		c := cache(t, d, time.Second, plancache.WithStale(20*time.Millisecond))
		answer, err := c.Get(t.Context(), "ann")
		require.NoError(t, err)
		require.Equal(t, "gold", answer)
		d.mu.Lock()
		d.answer, d.takes = "free", 100*time.Millisecond
		d.mu.Unlock()
		time.Sleep(time.Second + 10*time.Millisecond)
		answer, err = c.Get(t.Context(), "ann")
		require.NoError(t, err)
		require.Equal(t, "free", answer)
	})
}

// Clients may choose the keys, so a long one takes no more memory than a short one, nor does one that was
// cut from a long text, such as the line of a request.
func TestKeysTakeLittleMemoryHoweverLongTheyAre(t *testing.T) {
	c := cache(t, &database{}, time.Hour)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range 64 {
		text := fmt.Sprintf("%08d", i) + strings.Repeat(" ", 1<<20)
		for _, key := range []string{text[:8], text} {
			_, err := c.Get(t.Context(), key)
			require.NoError(t, err)
		}
	}
	require.Less(t, heap(), before+16<<20)
	require.Equal(t, 128, c.Stats().Keys)
}
