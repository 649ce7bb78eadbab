package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// A model of the specification: each limit is asked alone how many events it has room
// for, and charged alone if all have room for n.
func TestAllDecidesAsItsLimitsDoAloneOrNotAtAll(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	c := newClock()
	redisOf := func(client redisstore.Client) store.Store {
		return onRedis(t, client, redisstore.WithClock(c.Now))
	}
	stores := map[string]store.Store{
		"memory":                    memory(t, c),
		"Redis":                     redisOf(redistest.Shared(t).Client(t)),
		"miniredis":                 redisOf(redistest.Mini(t).Client(t)),
		"memory, one after another": withoutJoint{Store: memory(t, c)},
	}
	for name, s := range stores {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 7))
			for round := range effort.Of(6, 12, 30) {
				var parts, alone []ratelimit.Limiter
				for i := range 1 + rng.IntN(4) {
					algorithm := algorithms[rng.IntN(len(algorithms))]
					l := ratelimit.Limit{Rate: 1 + rng.IntN(12), Period: time.Duration(1+rng.IntN(5)) * time.Hour}
					id := ratelimit.WithName(fmt.Sprint(round, " ", i))
					own := newLimiter(t, algorithm, s, l, id)
					reference := newLimiter(t, algorithm, memory(t, c), l, id)
					if rng.IntN(3) == 0 {
						own, reference = onOneKey(t, own, "other"), onOneKey(t, reference, "other")
					}
					parts, alone = append(parts, own), append(alone, reference)
				}
				a := all(t, parts...)
				var admissions []ratelimit.Result
				for range 40 {
					n := 1 + rng.IntN(4)
					// What is charged and given back is the tail of a leaky bucket's queue.
					if len(admissions) > 0 && rng.IntN(6) == 0 && name != "memory, one after another" {
						last := admissions[len(admissions)-1]
						admissions = admissions[:len(admissions)-1]
						require.NoError(t, a.Refund(t.Context(), "key", last, 1))
						for i, l := range alone {
							require.NoError(t, l.Refund(t.Context(), "key", last.Parts()[i].Result, 1))
						}
					}
					r := requireAllAsAlone(t, a, alone, n, name != "memory, one after another")
					if r.Allowed {
						admissions = append(admissions, r)
					}
					c.Advance(time.Duration(rng.Int64N(int64(40 * time.Minute))))
				}
			}
		})
	}
}

// requireAllAsAlone asks a for n events, and compares it with its limits alone.
func requireAllAsAlone(t *testing.T, a *ratelimit.All, alone []ratelimit.Limiter, n int, together bool) ratelimit.Result {
	t.Helper()
	ctx, fits := t.Context(), true
	for _, l := range alone {
		p, err := l.Peek(ctx, "key")
		require.NoError(t, err)
		fits = fits && p.Remaining >= n
	}
	r, err := a.AllowN(ctx, "key", n)
	require.NoError(t, err)
	require.Equal(t, fits, r.Allowed)
	require.Len(t, r.Parts(), len(alone))
	least, longest := 1<<31-1, time.Duration(0)
	for i, l := range alone {
		part := r.Parts()[i]
		if part.Result == (ratelimit.Result{}) {
			require.False(t, r.Allowed || together, "every limit was asked")
			continue
		}
		want, err := l.Peek(ctx, "key")
		require.NoError(t, err)
		if fits || want.Remaining < n { // a denial charges nothing
			want, err = l.AllowN(ctx, "key", n)
			require.NoError(t, err)
			require.Equal(t, want, part.Result)
		} else {
			require.True(t, part.Allowed)
			require.Equal(t, want.Remaining, part.Remaining)
		}
		least, longest = min(least, part.Remaining), max(longest, part.RetryAfter)
	}
	require.Equal(t, least, r.Remaining)
	require.Equal(t, longest, r.RetryAfter)
	require.Equal(t, fits, r.DeniedBy() == "")
	return r
}

func TestAllPeeksAtEachLimit(t *testing.T) {
	a := levels.New(t, "token_bucket", memory(t, newClock()), "api", ratelimit.PerSecond(2), ratelimit.PerHour(3))
	for range 3 {
		r, err := a.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, 2, r.Remaining)
		require.ErrorIs(t, a.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN, "a Peek has charged none")
	}
	require.True(t, allowN(t, a, 2).Allowed)
	r, err := a.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, "api/s", r.DeniedBy())
	require.Len(t, r.Parts(), 2)
	require.Equal(t, 1, r.Parts()[1].Remaining)
}

func TestAllIsOneScriptOnOneKey(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, 0)
	for name, client := range map[string]redis.UniversalClient{"server": server.Client(t), "cluster": cluster.Client(t)} {
		s := onRedis(t, client)
		var levels []ratelimit.Limiter
		for i, algorithm := range algorithms {
			levels = append(levels, newLimiter(t, algorithm, s, ratelimit.PerHour(100+i)))
		}
		a := all(t, levels...)
		for i := range 20 { // the first ones load the scripts
			user := fmt.Sprint("user ", i)
			require.NoError(t, a.Refund(t.Context(), user, allow(t, a, user), 1))
		}
		before := calls(t, client, "evalsha") + calls(t, client, "eval")
		for i := range 20 {
			r := allow(t, a, fmt.Sprint("user ", i))
			require.True(t, r.Allowed)
			require.NoError(t, a.Refund(t.Context(), fmt.Sprint("user ", i), r, 1))
		}
		refunds := 20 * len(levels)
		require.Equal(t, 20+refunds, calls(t, client, "evalsha")+calls(t, client, "eval")-before, name)
	}
}

func TestAllOfDifferentKeysOfAClusterGivesBack(t *testing.T) {
	t.Parallel()
	s := onRedis(t, redistest.StartCluster(t, 3, 0).Client(t))
	user := newLimiter(t, "fixed_window", s, ratelimit.Limit{Rate: 10, Period: 24 * time.Hour * 3650})
	global := newLimiter(t, "fixed_window", s, ratelimit.Limit{Rate: 3, Period: 24 * time.Hour * 3650})
	a := all(t, user, onOneKey(t, global, "everybody"))
	for range 3 {
		require.True(t, allow(t, a, "user").Allowed)
	}
	for range 4 {
		r := allow(t, a, "user")
		require.False(t, r.Allowed)
		require.Equal(t, "3/3650d", r.DeniedBy())
		require.Equal(t, 7, r.Remaining+r.Parts()[0].Remaining, "given back")
	}
	require.Equal(t, 6, allow(t, user, "user").Remaining)
}

func TestAllAcrossStoresGivesBackWhatALaterOneDenies(t *testing.T) {
	c := newClock()
	near := newLimiter(t, "token_bucket", memory(t, c), ratelimit.PerHour(10))
	far := newLimiter(t, "sliding_log", redisServer(t, redisstore.WithClock(c.Now)), ratelimit.PerHour(4))
	broken := errors.New("broken")
	a := all(t, near, far)
	require.True(t, allowN(t, a, 3).Allowed)
	for range 5 {
		r := allowN(t, a, 2)
		require.Equal(t, "4/h", r.DeniedBy())
		require.Equal(t, 7, r.Parts()[0].Remaining)
	}
	require.True(t, allowN(t, a, 1).Allowed)
	require.Equal(t, 5, allowN(t, near, 1).Remaining)

	_, err := all(t, near, ratelimittest.Static(ratelimit.Result{}, broken)).Allow(t.Context(), "key")
	require.ErrorIs(t, err, broken)
	require.Equal(t, 4, allowN(t, near, 1).Remaining, "an error gives back too")
	ctx, cancel := context.WithCancel(t.Context())
	last := stopping{ratelimittest.Static(ratelimit.Result{}, nil), cancel}
	r, err := all(t, near, last).Allow(ctx, "key")
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Eventually(t, func() bool { return peek(t, near, "key").Remaining == 4 }, time.Minute, time.Millisecond, "also when the caller has gone")
}

// stopping ends its caller's context.
type stopping struct {
	ratelimit.Limiter
	stop func()
}

func (s stopping) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	s.stop()
	return s.Limiter.AllowN(context.WithoutCancel(ctx), key, n)
}

func TestAllOfTheSameKeyTwiceChargesTwice(t *testing.T) {
	for _, s := range []store.Store{memory(t, newClock()), redisServer(t, redisstore.WithClock(newClock().Now)), withoutJoint{Store: memory(t, newClock())}} {
		for _, algorithm := range algorithms {
			lim := newLimiter(t, algorithm, s, ratelimit.PerHour(5))
			a := all(t, lim, lim)
			r := allowN(t, a, 2)
			require.True(t, r.Allowed, algorithm)
			require.Equal(t, 1, r.Remaining)
			require.False(t, allowN(t, a, 1).Allowed)
			require.Equal(t, 1, r.Parts()[1].Remaining)
			require.NoError(t, a.Refund(t.Context(), "key", r, 1))
			if s.Together("k", "k") || algorithm != "leaky_bucket" { // whose first charge is not the tail
				require.Equal(t, 2, allowN(t, lim, 1).Remaining, algorithm)
			}

			// Two limiters that share state, of different limits.
			wide := newLimiter(t, algorithm, s, ratelimit.PerHour(9), ratelimit.WithName("shared"))
			tight := newLimiter(t, algorithm, s, ratelimit.PerHour(3), ratelimit.WithName("shared"))
			b := all(t, wide, tight)
			require.True(t, allowN(t, b, 1).Allowed)
			require.False(t, allowN(t, b, 1).Allowed, "1 of 3 is left, and 2 are needed")
			require.Equal(t, 0, allowN(t, tight, 1).Remaining)
		}
	}
}

func TestAllPeeksAsItWouldDecideAlsoOnOneKeyTwice(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		lim := newLimiter(t, algorithm, s, ratelimit.PerHour(7))
		wide := newLimiter(t, algorithm, s, ratelimit.PerHour(9), ratelimit.WithName("shared"))
		tight := newLimiter(t, algorithm, s, ratelimit.PerHour(3), ratelimit.WithName("shared"))
		mid := newLimiter(t, algorithm, s, ratelimit.PerHour(6), ratelimit.WithName("shared"))
		most := newLimiter(t, algorithm, s, ratelimit.PerHour(8), ratelimit.WithName("shared"))
		one := newLimiter(t, algorithm, s, ratelimit.PerHour(1), ratelimit.WithName("one"))
		for i, a := range []ratelimit.Limiter{
			all(t, lim, lim, lim), all(t, wide, tight), all(t, tight, wide), all(t, tight, mid, wide), all(t, most, wide, most), all(t, wide, most, wide), all(t, one, one),
		} {
			for range 4 {
				told, r := peek(t, a, "key"), allowN(t, a, 1)
				require.Equal(t, r.Allowed, told.Allowed)
				if i == 0 { // of one limit: the others are decided one after the other
					require.Equal(t, r.RetryAfter, told.RetryAfter)
					for p := range r.Parts() {
						require.Equal(t, r.Parts()[p].Allowed, told.Parts()[p].Allowed)
						require.Equal(t, r.Parts()[p].RetryAfter, told.Parts()[p].RetryAfter)
					}
				}
				c.Advance(time.Second)
			}
			require.NoError(t, a.Reset(t.Context(), "key"))
		}
		blocked := newLimiter(t, algorithm, s, ratelimit.PerHour(0), ratelimit.WithName("shared"))
		allowN(t, tight, 2)
		require.True(t, peek(t, all(t, blocked, tight), "key").Parts()[1].Allowed, "a Rate of 0 charges nothing before it")
	})
	s := memory(t, newClock())
	slow := newLimiter(t, "token_bucket", s, ratelimit.Limit{Rate: 1, Period: time.Hour, Burst: 4}, ratelimit.WithName("shared"))
	fast := newLimiter(t, "token_bucket", s, ratelimit.Limit{Rate: 2, Period: time.Hour, Burst: 3}, ratelimit.WithName("shared"))
	allowN(t, slow, 2)
	require.False(t, peek(t, all(t, slow, fast), "key").Allowed)
	require.False(t, allow(t, all(t, slow, fast), "key").Allowed)
}

func TestAllAsksForKeysAndLimitsOnce(t *testing.T) {
	keys, limits := 0, 0
	for _, s := range []store.Store{memory(t, newClock()), withoutJoint{Store: memory(t, newClock())}} {
		lim := newLimiter(t, "token_bucket", s, ratelimit.PerHour(5), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) {
				if limits++; limits > 1 {
					return ratelimit.Limit{}, errors.New("asked again")
				}
				return ratelimit.PerHour(4), nil
			}))
		k := withKey(lim, func(_ context.Context, key string) (string, error) {
			keys++
			return key, nil
		})
		a := all(t, k, ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil))
		for _, ask := range []func(context.Context, string) (ratelimit.Result, error){a.Peek, a.Allow} {
			keys, limits = 0, 0
			r, err := ask(t.Context(), "key")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Equal(t, 1, keys)
			require.Equal(t, 1, limits)
		}
		limits = 0
		require.True(t, allowN(t, all(t, failover(t, k, fallback.FailOpen())), 1).Allowed)
		require.Equal(t, 1, limits, "also inside of others, as long as each has one policy")
		require.NoError(t, lim.Reset(t.Context(), "key"))
		limits = 0
		require.Equal(t, 4, peek(t, lim, "key").Remaining, "given back, though the limit is not known any more")
	}
}

func TestAllDelaysNothingThatItDenies(t *testing.T) {
	mem := memory(t, newClock())
	a := all(t, newLimiter(t, "leaky_bucket", mem, ratelimit.PerHour(5)), newLimiter(t, "fixed_window", mem, ratelimit.PerHour(1)))
	require.Zero(t, allowN(t, a, 1).Delay)
	for _, r := range []ratelimit.Result{peek(t, a, "key"), allowN(t, a, 1)} {
		require.False(t, r.Allowed)
		require.Zero(t, r.Delay)
		require.Positive(t, r.Parts()[0].Delay, "that of the queue alone")
	}
}

// awayLimit is a limit on a store that does not answer.
func awayLimit(t *testing.T) ratelimit.Limiter {
	return newLimiter(t, "token_bucket", away{Store: memory(t, newClock())}, ratelimit.PerHour(4))
}

func TestUncountedLimitsDoNotAffectTheResult(t *testing.T) {
	mem := memory(t, newClock())
	lim := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(9))
	whole := ratelimit.Result{Allowed: true, Limit: 9, Remaining: 8, ResetAfter: time.Hour / 9}
	free := newLimiter(t, "token_bucket", mem, ratelimit.Unlimited())
	list, err := accesslist.NewList("=key")
	require.NoError(t, err)
	listed, err := accesslist.New(lim, accesslist.WithLists(accesslist.Lists{Allow: list}))
	require.NoError(t, err)
	closed := failover(t, awayLimit(t), fallback.FailClosed())
	for name, uncounted := range map[string]ratelimit.Limiter{
		"a switch":            ratelimittest.Static(ratelimit.Result{Allowed: true}, nil),
		"one with a time":     ratelimittest.Static(ratelimit.Result{Allowed: true, ResetAfter: 2 * time.Hour}, nil),
		"one that fails open": failover(t, awayLimit(t), fallback.FailOpen()),
		"one without a limit": free,
		"a list":              listed,
	} {
		for _, a := range []ratelimit.Limiter{all(t, uncounted, lim), all(t, lim, uncounted)} {
			r := allowN(t, a, 1)
			require.Equal(t, whole, ratelimit.Result{Allowed: r.Allowed, Limit: r.Limit, Remaining: r.Remaining, ResetAfter: r.ResetAfter}, name)
			require.NoError(t, a.Refund(t.Context(), "key", r, 1))
		}
	}
	r := allowN(t, all(t, lim, closed), 1)
	require.Equal(t, []int{9, 9}, []int{r.Limit, r.Remaining}, "of a denial, too")
	for name, nothing := range map[string]ratelimit.Limiter{
		"an outage":  all(t, closed, free),
		"two":        all(t, failover(t, awayLimit(t), fallback.FailOpen()), closed),
		"a switch":   all(t, ratelimittest.Static(ratelimit.Result{Allowed: true}, nil), free),
		"one itself": all(t, ratelimittest.Static(ratelimit.Result{Allowed: true, ResetAfter: time.Hour}, nil)),
	} {
		r := allowN(t, nothing, 1)
		require.False(t, r.Counted() && r.Allowed)
		require.Equal(t, []int{0, 0}, []int{r.Limit, r.Remaining}, name)
		require.Zero(t, r.ResetAfter, name)
	}
	for _, unlimited := range []ratelimit.Limiter{all(t, free, listed), all(t, listed), all(t, free)} {
		r := allowN(t, unlimited, 1)
		require.Equal(t, []int{math.MaxInt32, math.MaxInt32}, []int{r.Limit, r.Remaining})
	}
}

// letThrough is a wrapper that turns denials into admissions, as shadow and throttle have.
type letThrough struct{ ratelimit.Limiter }

func (l letThrough) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := l.Limiter.AllowN(ctx, key, n)
	r.Allowed = true
	return r, err
}

func TestAllGivesNothingBackTwice(t *testing.T) {
	mem := memory(t, newClock())
	lim := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(9))
	inner := onOneKey(t, all(t, lim, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(10))), "key")
	allowN(t, inner, 5)
	for _, a := range []ratelimit.Limiter{
		all(t, inner, ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil)),
		all(t, letThrough{inner}, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(0))),
		all(t, inner, letThrough{newLimiter(t, "fixed_window", mem, ratelimit.PerHour(0))}, ratelimittest.Static(ratelimit.Result{RetryAfter: 1}, nil)),
	} {
		l := letThrough{a}
		r := allowN(t, l, 2)
		require.Equal(t, 4, peek(t, lim, "key").Remaining, "given back")
		require.ErrorIs(t, l.Refund(t.Context(), "key", r, 2), ratelimit.ErrInvalidN)
		require.Equal(t, 4, peek(t, lim, "key").Remaining, "once")
	}
}

func TestAllTellsALimitOfSeveralWithoutTheChargeThatItGaveBack(t *testing.T) {
	mem := memory(t, newClock())
	inner := all(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(9)),
		newLimiter(t, "token_bucket", mem, ratelimit.PerHour(4), ratelimit.WithTiers(
			func(context.Context, string) (string, error) { return "free", nil },
			map[string]ratelimit.Limit{"free": ratelimit.Unlimited()})))
	denied := ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil)
	r := allowN(t, all(t, onOneKey(t, inner, "key"), denied), 2)
	require.Len(t, r.Parts(), 3)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 9, Remaining: 9}, r.Parts()[0].Result)
	require.Equal(t, ratelimit.SourceUnlimited, r.Parts()[1].Source())
	require.ErrorIs(t, inner.Refund(t.Context(), "key", r.Parts()[0].Result, 2), ratelimit.ErrInvalidN)

	through := onOneKey(t, letThrough{inner}, "key")
	r = allowN(t, all(t, through, denied), 10)
	require.Equal(t, 9, r.Parts()[0].Remaining, "which was never charged")
}

func TestARefundToALimitThatWasChargedTwiceGivesBackWhatIsStillCharged(t *testing.T) {
	c := newClock()
	for _, s := range []store.Store{memory(t, c), redisServer(t, redisstore.WithClock(c.Now)), withoutJoint{Store: memory(t, c)}} {
		lim := newLimiter(t, "token_bucket", s, ratelimit.PerHour(10))
		a := all(t, lim, lim)
		r := allowN(t, a, 5)
		require.True(t, r.Allowed)
		c.Advance(36 * time.Minute) // 4 of the 10 are left
		require.True(t, allowN(t, lim, 6).Allowed)
		require.NoError(t, a.Refund(t.Context(), "key", r, 5))
		require.Equal(t, 4, peek(t, lim, "key").Remaining)
	}
}

func TestAllPeeksNoFurtherThanItWouldDecide(t *testing.T) {
	mem := memory(t, newClock())
	up := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(9))
	full := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(2))
	allowN(t, full, 2)
	down := ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore)
	for _, a := range []ratelimit.Limiter{
		all(t, full, down),
		all(t, up, down, full), // which is asked together with the first
		all(t, down, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(0))),
	} {
		r, told := allowN(t, a, 1), peek(t, a, "key")
		require.False(t, r.Allowed)
		require.Equal(t, r.RetryAfter, told.RetryAfter)
	}
	_, err := all(t, up, down).Peek(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)
}

func TestAllOfStaticAnswers(t *testing.T) {
	r := allowN(t, all(t, ratelimittest.Static(ratelimit.Result{}, nil)), 1)
	require.False(t, r.Allowed)
	require.Zero(t, r.Remaining)
	require.Zero(t, r.Limit)
}

func TestAllChargesWhatHasARate(t *testing.T) {
	mem := memory(t, newClock())
	lim := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5))
	blocked := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(0))
	a := all(t, lim, blocked)
	r := overcharge(t, a, 2)
	require.Zero(t, r.RetryAfter)
	require.Empty(t, r.DeniedBy())
	require.Equal(t, 3, peek(t, lim, "key").Remaining)
	require.NoError(t, a.Refund(t.Context(), "key", r, 2))
	require.Equal(t, 5, peek(t, lim, "key").Remaining)

	r, err := all(t, blocked, blocked).Charge(t.Context(), "key", 1)
	require.NoError(t, err)
	require.False(t, r.Allowed, "as that of one limit")
	require.Equal(t, ratelimit.Never, r.RetryAfter)
}

func TestAllWithoutAStore(t *testing.T) {
	free := newLimiter(t, "token_bucket", failing{}, ratelimit.Unlimited())
	blocked := newLimiter(t, "token_bucket", failing{}, ratelimit.PerHour(0), ratelimit.WithName("blocked"))
	lim := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5))

	r := allowN(t, all(t, free, free), 100)
	require.True(t, r.Allowed)
	require.Equal(t, ratelimit.SourceUnlimited, r.Source())
	require.Equal(t, 1<<31-1, r.Remaining)

	a := all(t, free, lim)
	r = allowN(t, a, 2)
	require.Equal(t, ratelimit.SourceStore, r.Source())
	require.Equal(t, 3, r.Remaining)
	require.Equal(t, 5, r.Limit)
	require.NoError(t, a.Refund(t.Context(), "key", r, 2))

	r = allowN(t, all(t, newLimiter(t, "token_bucket", failing{}, ratelimit.PerHour(1)), blocked), 1)
	require.False(t, r.Allowed)
	require.Equal(t, ratelimit.Never, r.RetryAfter)
	require.Equal(t, "blocked", r.DeniedBy())
	require.Equal(t, []bool{true, false}, []bool{r.Parts()[0].Result == ratelimit.Result{}, r.Parts()[1].Result == ratelimit.Result{}}, "not asked, asked")
}

func TestAllOfWrappers(t *testing.T) {
	mem := memory(t, newClock())
	several := levels.New(t, "sliding_window", mem, "api", ratelimit.PerMinute(5), ratelimit.PerHour(9))
	safe, err := fallback.New(several, fallback.FailOpen())
	require.NoError(t, err)
	bucket := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(7))
	a := all(t, bucket, safe)
	r := allowN(t, a, 2)
	require.Len(t, r.Parts(), 3, "those of the limits within")
	require.Equal(t, []int{5, 3, 7}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining, r.Parts()[2].Remaining})
	require.Len(t, policiesOf(t, a, "key"), 1+3)
	require.NoError(t, a.Refund(t.Context(), "key", r, 1))
	r = allowN(t, a, 5)
	require.Equal(t, "api/m", r.DeniedBy())
	require.Equal(t, 6, allowN(t, bucket, 0+1).Remaining+1, "1 of 7 is charged, and now 2")

	open, err := fallback.New(ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailOpen())
	require.NoError(t, err)
	r = allowN(t, all(t, bucket, open), 1)
	require.True(t, r.Allowed)
	require.Equal(t, ratelimit.SourceFailOpen, r.Source())
	require.Equal(t, 4, r.Remaining, "what is known")
	closed, err := fallback.New(ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailClosed())
	require.NoError(t, err)
	for _, a := range []*ratelimit.All{all(t, open, closed), all(t, closed, open), all(t, bucket, closed)} {
		r = allowN(t, a, 1)
		require.False(t, r.Allowed)
		require.Equal(t, ratelimit.SourceFailClosed, r.Source(), "refused for an outage, whatever comes first")
	}
	r = allowN(t, all(t, open, newLimiter(t, "token_bucket", mem, ratelimit.Unlimited())), 1)
	require.Equal(t, ratelimit.SourceFailOpen, r.Source())
	require.Equal(t, []int{0, 0}, []int{r.Limit, r.Remaining}, "nothing is known")
	flat := all(t, bucket, several)
	require.Len(t, allowN(t, flat, 1).Parts(), 3)
}

// opened says what it wraps.
type opened struct{ ratelimit.Limiter }

func (o opened) Unwrap() ratelimit.Limiter { return o.Limiter }

// What counts in one place under two keys lets a key of the one use up a key of the other.
func TestAllRefusesOneLimitUnderDifferentKeys(t *testing.T) {
	mem := memory(t, newClock())
	bucket := func(opts ...ratelimit.Option) ratelimit.Limiter {
		return newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5), opts...)
	}
	same := onOneKey(t, bucket(), "tenant")
	other := newLimiter(t, "sliding_log", mem, ratelimit.PerHour(7))
	listed, err := accesslist.New(same)
	require.NoError(t, err)
	for name, parts := range map[string][]ratelimit.Limiter{
		"another key and none":         {bucket(), onOneKey(t, bucket(), "tenant")},
		"two":                          {onOneKey(t, bucket(), "user"), other, onOneKey(t, bucket(), "tenant")},
		"inside of one with an Unwrap": {bucket(), opened{onOneKey(t, bucket(), "tenant")}},
		"inside of a fallback":         {failover(t, same, fallback.FailOpen()), bucket()},
		"inside of a list":             {bucket(), listed},
		"a nested All":                 {all(t, bucket(), other), same},
		"of one name":                  {bucket(ratelimit.WithName("x")), onOneKey(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(9), ratelimit.WithName("x")), "tenant")},
	} {
		_, err := ratelimit.NewAll(parts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		require.ErrorContains(t, err, "WithName", name)
	}
	for name, parts := range map[string][]ratelimit.Limiter{
		"named":                      {bucket(ratelimit.WithName("user")), onOneKey(t, bucket(ratelimit.WithName("tenant")), "tenant")},
		"one named":                  {bucket(), onOneKey(t, bucket(ratelimit.WithName("tenant")), "tenant")},
		"two stores":                 {bucket(), onOneKey(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)), "tenant")},
		"twice under one key":        {bucket(), bucket()},
		"twice under one other":      {same, same, failover(t, same, fallback.FailOpen())},
		"of different limits":        {bucket(), onOneKey(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(6)), "tenant")},
		"of different algorithms":    {bucket(), onOneKey(t, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(5)), "tenant")},
		"twice, once with each call": {perCall(t, same), same},
	} {
		a, err := ratelimit.NewAll(parts...)
		require.NoError(t, err, name)
		_, err = see.Local(ratelimit.Limiter(a), mem, 2)
		switch name {
		case "twice under one other": // a fallback has no share
		case "two stores": // which are one then
			require.ErrorContains(t, err, "WithName")
		default:
			require.NoError(t, err, "a share of %s", name)
		}
	}
}

func TestAllDecidesTogetherOnDifferentKeys(t *testing.T) {
	counting := &tally{Store: memory(t, newClock())}
	user := newLimiter(t, "token_bucket", counting, ratelimit.PerHour(9))
	tenant := newLimiter(t, "token_bucket", counting, ratelimit.PerHour(5), ratelimit.WithName("tenant"))
	require.Equal(t, 3, allowN(t, all(t, user, onOneKey(t, tenant, "tenant")), 2).Remaining)
	require.Equal(t, 1, counting.Joints)
	require.Equal(t, 3, peek(t, tenant, "tenant").Remaining)
	_, err := all(t, user, onOneKey(t, tenant, "")).Allow(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
}

func TestAllChecksItsInput(t *testing.T) {
	ctx, lim := t.Context(), newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5))
	many := make([]ratelimit.Limiter, 17)
	for i := range many {
		many[i] = lim
	}
	for _, limiters := range [][]ratelimit.Limiter{{}, {nil}, {(*ratelimit.TokenBucket)(nil)}, {lim, (*ratelimit.All)(nil)}, {lim, new(ratelimit.All)}, many} {
		_, err := ratelimit.NewAll(limiters...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	_, err := new(ratelimit.All).Allow(ctx, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = new(ratelimit.All).AppendPolicies(ctx, nil, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	one, err := all(t, lim).AppendPolicies(ctx, nil, "key")
	require.NoError(t, err)
	require.Len(t, one, 1)

	a := all(t, lim, lim)
	_, err = a.AllowN(ctx, "key", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	_, err = a.Allow(ctx, "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.ErrorIs(t, a.Refund(ctx, "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidN)
	require.ErrorIs(t, a.Refund(ctx, "key", allowN(t, lim, 1), 1), ratelimit.ErrInvalidN, "the Result of another limiter")

	wrong := errors.New("no such user")
	named := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5), ratelimit.WithName("named"))
	k := withKey(named, func(_ context.Context, key string) (string, error) {
		if key == "empty" {
			return "", nil
		}
		return "", wrong
	})
	for _, l := range []ratelimit.Limiter{k, all(t, lim, k), all(t, k, lim)} {
		_, err = l.Allow(ctx, "key")
		require.ErrorIs(t, err, wrong)
		_, err = l.Peek(ctx, "key")
		require.ErrorIs(t, err, wrong)
		_, err = l.Allow(ctx, "empty")
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	}
	require.Equal(t, 3, allowN(t, lim, 1).Remaining, "nothing was consumed")
	require.ErrorIs(t, all(t, lim, k).Reset(ctx, "key"), wrong)
	require.Equal(t, 4, allowN(t, lim, 1).Remaining, "the others are reset")
}

// Callers of many limits at once, which lock the same tables in different orders.
func TestAllUnderConcurrency(t *testing.T) {
	for name, newStore := range map[string]func(t testing.TB) store.Store{
		"memory":    func(t testing.TB) store.Store { return newMemory(t) },
		"tiny caps": func(t testing.TB) store.Store { return newMemory(t, memstore.WithMaxKeys(3)) },
		"Redis":     func(t testing.TB) store.Store { return redisServer(t) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			const years, everybody = 24 * time.Hour * 3650, 120
			user := newLimiter(t, "token_bucket", s, ratelimit.Limit{Rate: 50, Period: years})
			global := onOneKey(t, newLimiter(t, "sliding_log", s, ratelimit.Limit{Rate: everybody, Period: years}), "everybody")
			var admitted [4]atomic.Int64
			var wg sync.WaitGroup
			for caller := range 8 {
				a := all(t, user, global)
				if caller%2 == 0 {
					a = all(t, global, user)
				}
				wg.Go(func() {
					for i := range 60 {
						k := (caller + i) % len(admitted)
						r, err := a.Allow(context.Background(), fmt.Sprint("user ", k))
						if err != nil {
							t.Error(err)
							return
						}
						if r.Allowed {
							admitted[k].Add(1)
						}
					}
				})
			}
			wg.Wait()
			if name == "tiny caps" { // which forgets keys, and must not hang
				return
			}
			sum := 0
			for k := range admitted {
				n := int(admitted[k].Load())
				require.Equal(t, 50-n, peek(t, user, fmt.Sprint("user ", k)).Remaining, "what was denied was not charged")
				sum += n
			}
			require.Equal(t, everybody, sum)
		})
	}
}

func newMemory(t testing.TB, opts ...memstore.Option) store.Store {
	t.Helper()
	s, err := memstore.New(opts...)
	require.NoError(t, err)
	return s
}

// New keys fill tables, which split while several of them are locked.
func TestAllOfManyKeysInMemory(t *testing.T) {
	t.Parallel()
	effort.OthersRace(t)
	const callers = 4
	users := effort.Of(4_000, 20_000)
	for _, capacity := range []int{1 << 20, 5000, 100, 7, 1} {
		mem, err := memstore.New(memstore.WithMaxKeys(capacity))
		require.NoError(t, err)
		a := all(t,
			newLimiter(t, "fixed_window", mem, ratelimit.Limit{Rate: callers, Period: 24 * time.Hour * 3650}),
			newLimiter(t, "sliding_log", mem, ratelimit.Limit{Rate: callers, Period: 24 * time.Hour * 3650}),
			newLimiter(t, "leaky_bucket", mem, ratelimit.Limit{Rate: callers, Period: 24 * time.Hour * 3650}))
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for i := range users {
					if r, err := a.Allow(context.Background(), fmt.Sprint(i)); err != nil || !r.Allowed {
						t.Error(r, err)
						return
					}
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(t, mem.Len(), capacity)
		if capacity >= 3*users {
			require.Equal(t, 3*users, mem.Len())
			require.Zero(t, mem.Evicted())
			for i := range users {
				require.Equal(t, 0, peek(t, a, fmt.Sprint(i)).Remaining)
			}
		}
	}
}

func BenchmarkSeveralLimits(b *testing.B) {
	mem := newMemory(b)
	rate := ratelimit.Limit{Rate: 1 << 30, Period: time.Hour}
	var levels []ratelimit.Limiter
	for i := range 4 {
		levels = append(levels, newLimiter(b, "token_bucket", mem, rate, ratelimit.WithName(fmt.Sprint(i))))
	}
	for n := 1; n <= len(levels); n++ {
		limiters := map[string]ratelimit.Limiter{"together": all(b, levels[:n]...)}
		if n == 1 {
			limiters["alone"] = levels[0]
		}
		for name, lim := range limiters {
			b.Run(fmt.Sprintf("%d limits %s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := lim.Allow(context.Background(), "user:42"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// A script of several limits reads the same clock as those of one.
func TestAllOnTheServersTime(t *testing.T) {
	s := redisServer(t)
	const decade = 3650 * 24 * time.Hour
	var limiters []ratelimit.Limiter
	for _, algorithm := range algorithms {
		limiters = append(limiters, newLimiter(t, algorithm, s, ratelimit.Limit{Rate: 100, Period: decade}))
	}
	for _, lim := range limiters {
		allowN(t, lim, 30)
	}
	r := allowN(t, all(t, limiters...), 30)
	for i, lim := range limiters {
		alone := peek(t, lim, "key")
		require.Equal(t, 40, r.Parts()[i].Remaining)
		require.Equal(t, 40, alone.Remaining)
		require.InDelta(t, r.Parts()[i].ResetAfter, alone.ResetAfter, float64(20*time.Second), algorithms[i])
		require.NoError(t, lim.Reset(t.Context(), "key"))
	}
}

// The limits that deny say how many events fit: the one with the least, wherever it stands, but
// not one that has less left and does not deny, as a limit of calls.
func TestAllowUpToOfAnAllFitsTheTightestThatDenies(t *testing.T) {
	mem := memory(t, newClock())
	limit := func(algorithm string, n int, opts ...ratelimit.Option) ratelimit.Limiter {
		return newLimiter(t, algorithm, mem, ratelimit.PerHour(n), opts...)
	}
	tight, mid, wide := limit("fixed_window", 2), limit("fixed_window", 5), limit("fixed_window", 7)
	calls, tokens := limit("token_bucket", 3, ratelimit.CountCalls()), limit("token_bucket", 6)
	for _, c := range []struct {
		want  int
		parts []ratelimit.Limiter
	}{
		{2, []ratelimit.Limiter{tight, mid, wide}},
		{2, []ratelimit.Limiter{wide, tight, mid}},
		{6, []ratelimit.Limiter{tokens, calls}},
		{6, []ratelimit.Limiter{calls, tokens}},
	} {
		a := all(t, c.parts...)
		granted, _, err := ratelimit.AllowUpTo(t.Context(), a, "key", 9)
		require.NoError(t, err)
		require.Equal(t, c.want, granted)
		require.NoError(t, a.Reset(t.Context(), "key"))
	}
}

// The wait is that for one event, and not for all that were asked for, which may never come.
func TestAllowUpToOfAnAllThatGrantsNothingIsDeniedAsAllowIs(t *testing.T) {
	for _, asked := range []int{1, 2, 9} {
		mem := memory(t, newClock())
		a := all(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(3)), newLimiter(t, "sliding_log", mem, ratelimit.PerHour(5)))
		require.True(t, allowN(t, a, 3).Allowed)
		granted, r, err := ratelimit.AllowUpTo(t.Context(), a, "key", asked)
		require.NoError(t, err)
		require.Zero(t, granted)
		require.Equal(t, allowN(t, a, 1).String(), r.String(), asked)

		gone := &unseen{Limiter: a}
		granted, r, err = ratelimit.AllowUpTo(t.Context(), gone, "key", asked)
		require.NoError(t, err)
		require.Zero(t, granted)
		require.Equal(t, allowN(t, a, asked).String(), r.String(), asked)
		require.Equal(t, min(asked-1, 1), gone.looks, asked)
	}
}

// ownAll is a type of a user's own that embeds an All.
type ownAll struct {
	*ratelimit.All
	calls int
}

func (a *ownAll) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	a.calls++
	return a.All.AllowN(ctx, key, n)
}

func TestATypeThatEmbedsAnAllIsAskedItself(t *testing.T) {
	own := &ownAll{All: ratelimit.Must(ratelimit.NewAll(testkit.InMemory(t, "token_bucket", ratelimit.PerHour(3))))}
	r, err := ratelimit.Must(ratelimit.NewAll(own)).AllowN(t.Context(), "key", 2)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Equal(t, 1, own.calls)
}
