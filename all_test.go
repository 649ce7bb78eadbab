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
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// A model of the specification: each limit is asked alone how many events it has room
// for, and charged alone if all have room for n.
func TestAllDecidesAsItsLimitsDoAloneOrNotAtAll(t *testing.T) {
	t.Parallel()
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

func TestAllSaysWhichLimitDenied(t *testing.T) {
	c := newClock()
	mem := memory(t, c)
	second := newLimiter(t, "fixed_window", mem, ratelimit.PerSecond(2))
	hour := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(3), ratelimit.WithName("hourly"))
	a := all(t, second, hour)
	require.Equal(t, 1, allowN(t, a, 1).Remaining)
	require.Equal(t, 0, allowN(t, a, 1).Remaining)
	r := allowN(t, a, 1)
	require.False(t, r.Allowed)
	require.Equal(t, "2/s", r.DeniedBy())
	require.Equal(t, time.Second, r.RetryAfter)
	require.Equal(t, time.Hour, r.ResetAfter)
	require.Equal(t, 2, r.Limit)
	require.True(t, r.Parts()[1].Allowed)
	require.Equal(t, 1, r.Parts()[1].Remaining, "none of the hour's was charged")
	c.Advance(time.Second)
	r = allowN(t, a, 2)
	require.Equal(t, "hourly", r.DeniedBy())
	require.Equal(t, 3, r.Limit)
	require.Equal(t, 1, r.Remaining)
	require.Equal(t, time.Hour-time.Second, r.RetryAfter)
	r = allowN(t, a, 3)
	require.Equal(t, "2/s", r.DeniedBy(), "never is longer than an hour")
	require.Equal(t, ratelimit.Never, r.RetryAfter)
	require.Equal(t, []string{"2/s", "hourly"}, []string{policiesOf(t, a, "k")[1].Name, policiesOf(t, a, "k")[2].Name})
	require.NoError(t, a.Reset(t.Context(), "key"))
	require.Equal(t, 3, allowN(t, hour, 1).Remaining+1)
}

// outspoken is a limiter of another package, which says its limits and nothing else.
type outspoken struct{ ratelimit.Limiter }

func (s outspoken) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, s.Limiter, key)
}

// What a limiter of another package does not say of its denial comes from its limits.
func TestADenialThatSaysNoNameHasThatOfItsLimit(t *testing.T) {
	mem := memory(t, newClock())
	limit := func(name string) ratelimit.Limiter {
		l := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(1), ratelimit.WithName(name))
		allowN(t, l, 1)
		return l
	}
	banned := newBan(t, limit("banned"), mem, ratelimit.Penalty{Denials: 1, Within: time.Hour, For: time.Hour})
	allowN(t, banned, 1)
	require.Equal(t, ratelimit.SourceBan, allowN(t, banned, 1).Source())
	for want, l := range map[string]ratelimit.Limiter{
		"said": outspoken{limit("said")}, "inside": newBan(t, outspoken{limit("inside")}, mem, quarter), "": struct{ ratelimit.Limiter }{banned},
	} {
		r := allowN(t, all(t, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(9)), l), 1)
		require.False(t, r.Allowed)
		require.Equal(t, want, r.DeniedBy())
	}
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
	require.Equal(t, 3, allowN(t, near, 1).Remaining, "also when the caller has gone")
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
		for i, a := range []ratelimit.Limiter{all(t, lim, lim, lim), all(t, wide, tight), all(t, tight, wide), all(t, tight, mid, wide)} {
			for range 3 {
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

func TestAllTellsWhatIsLeftOfALimitThatWasGivenBack(t *testing.T) {
	lim := newLimiter(t, "token_bucket", withoutJoint{Store: memory(t, newClock())}, ratelimit.PerHour(5))
	never := ratelimittest.Static(ratelimit.Result{RetryAfter: ratelimit.Never}, nil)
	fresh := allowN(t, all(t, lim, never), 1).Parts()[0].Result
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 5, Remaining: 5}, fresh)
	allowN(t, lim, 3)
	spent := allowN(t, all(t, lim, never), 1).Parts()[0].Result
	require.Equal(t, 2, spent.Remaining)
	require.GreaterOrEqual(t, spent.ResetAfter, peek(t, lim, "key").ResetAfter, "the key is not as never seen")

	let := ratelimittest.Static(ratelimit.Result{Allowed: true, Limit: 5, Remaining: 3}, nil) // any number
	r := allowN(t, all(t, let, never), math.MaxInt)
	require.Equal(t, 3, r.Parts()[0].Remaining, "which charges nobody")
	full := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5))
	allowN(t, full, 5)
	slow, err := throttle.NewSlowdown(full, throttle.Slow{Step: time.Second, Max: time.Second})
	require.NoError(t, err)
	r = allowN(t, all(t, slow, never), 1)
	require.True(t, r.Parts()[0].Allowed)
	require.Zero(t, r.Parts()[0].Remaining, "which was let through, and never charged")
}

// deaf does not give back.
type deaf struct{ ratelimit.Limiter }

func (deaf) Refund(context.Context, string, ratelimit.Result, int) error { return errGone }

func TestAllTellsWhatStaysCharged(t *testing.T) {
	lim := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5))
	r := allowN(t, all(t, deaf{lim}, ratelimittest.Static(ratelimit.Result{RetryAfter: 1}, nil)), 2)
	require.False(t, r.Allowed)
	require.Equal(t, 3, r.Parts()[0].Remaining)
	require.Equal(t, 3, peek(t, lim, "key").Remaining)
}

func TestTheSourceOfADenialIsThatOfTheLimitThatDenied(t *testing.T) {
	full := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(5))
	allowN(t, full, 5)
	for name, c := range map[string]struct {
		a    ratelimit.Limiter
		want ratelimit.Source
	}{
		"after one that fails open":             {all(t, failover(t, awayLimit(t), fallback.FailOpen()), full), ratelimit.SourceStore},
		"before one that fails open":            {all(t, full, failover(t, awayLimit(t), fallback.FailOpen())), ratelimit.SourceStore},
		"after a local one that admits":         {all(t, failover(t, awayLimit(t), fallback.FailLocal(1)), full), ratelimit.SourceStore},
		"for longer than one of an outage":      {all(t, failover(t, awayLimit(t), fallback.FailOpen()), full, failover(t, awayLimit(t), fallback.FailClosed())), ratelimit.SourceStore},
		"an outage, after one of the store":     {all(t, failover(t, awayLimit(t), fallback.FailOpen()), failover(t, awayLimit(t), fallback.FailClosed()), full), ratelimit.SourceFailClosed},
		"a Rate of 0, after an outage":          {all(t, failover(t, awayLimit(t), fallback.FailOpen()), inMemory(t, "token_bucket", ratelimit.PerHour(0))), ratelimit.SourceZeroRate},
		"a Rate of 0, which decides for itself": {all(t, full, inMemory(t, "token_bucket", ratelimit.PerHour(0))), ratelimit.SourceZeroRate},
	} {
		require.Equal(t, c.want, allowN(t, c.a, 1).Source(), name)
		if c.want != ratelimit.SourceFailClosed { // a Peek asks the full one as well
			require.Equal(t, c.want, peek(t, c.a, "key").Source(), "a Peek: %s", name)
		}
	}
}

// awayLimit is a limit on a store that does not answer.
func awayLimit(t *testing.T) ratelimit.Limiter {
	return newLimiter(t, "token_bucket", away{Store: memory(t, newClock())}, ratelimit.PerHour(4))
}

func TestWhatIsNotCountedHasNoSayInTheWhole(t *testing.T) {
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

// Who answers for several limits at once has one Part, and each Part says whose it is.
func TestAPartNamesTheLimiterThatDecided(t *testing.T) {
	outage := func(name string) ratelimit.Limiter {
		return newLimiter(t, "fixed_window", banOutage{}, ratelimit.PerHour(5), ratelimit.WithName(name))
	}
	safe := failover(t, all(t, outage("a"), outage("b")), fallback.FailOpen())
	mem := memory(t, newClock())
	one := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(5), ratelimit.WithName("one"))
	two := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(3), ratelimit.WithName("two"), ratelimit.WithPolicyName("plan"))
	three := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(9))
	ban := newBan(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(7), ratelimit.WithName("banned")), mem, quarter)
	denied := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(1), ratelimit.WithName("spent"))
	allow(t, denied, "key")
	_, err := ban.Strike(t.Context(), "key", 1000)
	require.NoError(t, err)
	for _, c := range []struct {
		limiters []ratelimit.Limiter
		of       []ratelimit.Limiter
		names    []string
		denier   string
	}{
		{[]ratelimit.Limiter{one, two}, []ratelimit.Limiter{one, two}, []string{"one", "plan"}, ""},
		{[]ratelimit.Limiter{one, two, three}, []ratelimit.Limiter{one, two, three}, []string{"one", "plan", "9/h"}, ""},
		{[]ratelimit.Limiter{all(t, one, two), three}, []ratelimit.Limiter{one, two, three}, []string{"one", "plan", "9/h"}, ""},
		{[]ratelimit.Limiter{failover(t, all(t, one, two), fallback.FailOpen()), three}, []ratelimit.Limiter{one, two, three}, []string{"one", "plan", "9/h"}, ""},
		{[]ratelimit.Limiter{safe, one}, []ratelimit.Limiter{safe, one}, []string{"a", "one"}, ""},
		{[]ratelimit.Limiter{one, ban}, []ratelimit.Limiter{one, ban}, []string{"one", "ban"}, "ban"},
		{[]ratelimit.Limiter{denied, two}, []ratelimit.Limiter{denied, two}, []string{"spent", "plan"}, "spent"},
		{[]ratelimit.Limiter{one, two, denied}, []ratelimit.Limiter{one, two, denied}, []string{"one", "plan", "spent"}, "spent"},
		{[]ratelimit.Limiter{safe, denied}, []ratelimit.Limiter{safe, denied}, []string{"a", "spent"}, "spent"},
		{[]ratelimit.Limiter{one}, []ratelimit.Limiter{one}, []string{"one"}, ""},
	} {
		asks := make([]ratelimit.Ask, len(c.limiters))
		for i, l := range c.limiters {
			asks[i] = ratelimit.Ask{Limiter: l, Key: "key", N: 1}
		}
		whole := all(t, c.limiters...)
		for _, r := range []ratelimit.Result{peek(t, whole, "key"), decide(t, asks...), allowN(t, whole, 1)} {
			require.Len(t, r.Parts(), len(c.of), "%v", r)
			require.Equal(t, c.denier, r.DeniedBy())
			for i, part := range r.Parts() {
				require.Same(t, c.of[i], part.Limiter)
				require.Equal(t, c.names[i], part.Name())
				require.Equal(t, c.names[i] == c.denier, !part.Allowed && part.Result != (ratelimit.Result{}))
			}
			require.NoError(t, one.Reset(t.Context(), "key"))
			require.NoError(t, two.Reset(t.Context(), "key"))
		}
	}
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
	require.ErrorContains(t, err, "of 0 limits")
	_, err = ratelimit.Decide(ctx, many...)
	require.ErrorContains(t, err, "of 17 limits")
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

// panicking is a limiter with a user's function that panics.
type panicking struct{ ratelimit.Limiter }

func (panicking) AllowN(context.Context, string, int) (ratelimit.Result, error) { panic("broken") }

// A slot in memory would be lost for ever: net/http goes on after a panic.
func TestWhatALaterLimitPanicsOverIsGivenBack(t *testing.T) {
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

// unseen is a limiter at which nobody can look.
type unseen struct {
	ratelimit.Limiter
	looks int
}

func (u *unseen) Peek(context.Context, string) (ratelimit.Result, error) {
	u.looks++
	return ratelimit.Result{}, ratelimit.ErrStore
}

// Of two limits that deny for as long, the name and the numbers are of the same one.
func TestADenialIsToldOfOneLimit(t *testing.T) {
	for _, s := range []store.Store{memory(t, newClock()), withoutJoint{Store: memory(t, newClock())}} {
		var parts []ratelimit.Limiter
		for name, rate := range []int{3, 2, 100} {
			parts = append(parts, newLimiter(t, "fixed_window", s, ratelimit.PerHour(rate), ratelimit.WithName(fmt.Sprint("limit ", name))))
		}
		r := allowN(t, all(t, parts...), 4)
		require.Equal(t, `denied by "limit 0", 3 of 3 left, never admitted`, r.String())
	}
}

// twoPlans is a limiter of two policies that decides by one of them, as a user may write one.
type twoPlans struct{ ratelimit.Limiter }

func (l twoPlans) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	dst, err := ratelimit.AppendPolicies(ctx, dst, l.Limiter, key)
	return append(dst, ratelimit.Policy{Name: "other plan"}), err
}

// Its Result is one Part, which is its own where it is to give back.
func TestALimiterOfSeveralPoliciesGetsItsOwnResultBack(t *testing.T) {
	mem := memory(t, newClock())
	plan := twoPlans{newLimiter(t, "token_bucket", mem, ratelimit.PerHour(9))}
	a := all(t, plan, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(99)))
	require.NoError(t, a.Refund(t.Context(), "key", allowN(t, a, 5), 5))
	require.Equal(t, 9, peek(t, plan, "key").Remaining)
	asks := []ratelimit.Ask{{Limiter: plan, Key: "key", N: 4}}
	require.NoError(t, ratelimit.GiveBack(t.Context(), decide(t, asks...), asks...))
	require.Equal(t, 9, peek(t, plan, "key").Remaining)

	r := settle(t, reserve(t, a, 5), 2)
	require.Len(t, r.Parts(), 2)
	require.Equal(t, 7, r.Remaining)
	require.Equal(t, 2, r.Parts()[0].Charged())
	require.NoError(t, a.Refund(t.Context(), "key", r, 5))
	require.Equal(t, 9, peek(t, plan, "key").Remaining, "no more than is still charged")
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

// Of several that admit the Source is that of the one that people should hear of first: whose store
// did not answer, then whose limit has counted, then what no limit counts.
func TestTheSourceOfAnAdmissionIsTheOneToHearOf(t *testing.T) {
	ranks := [][]ratelimit.Source{
		{ratelimit.SourceUnlimited}, {ratelimit.SourceList}, {ratelimit.SourceZeroRate}, {ratelimit.SourceStore, ratelimit.SourceLease},
		{ratelimit.SourceFailOpen, ratelimit.SourceFailClosed, ratelimit.SourceLocal, ratelimit.SourceDenyCache, ratelimit.SourceBan},
	}
	by := func(s ratelimit.Source) ratelimit.Limiter {
		return ratelimittest.Static(ratelimit.Result{Allowed: true, Limit: 5}.WithMark(ratelimit.NewMark(t, s, nil)), nil)
	}
	for i, rank := range ranks {
		for _, first := range rank {
			require.Equal(t, first, allowN(t, all(t, by(first)), 1).Source())
			for _, lower := range ranks[:i] {
				for _, second := range lower {
					require.Equal(t, first, allowN(t, all(t, by(first), by(second)), 1).Source(), second)
					require.Equal(t, first, allowN(t, all(t, by(second), by(first)), 1).Source(), second)
				}
			}
			for _, other := range rank { // the first of equal ones
				require.Equal(t, first, allowN(t, all(t, by(first), by(other)), 1).Source())
			}
		}
	}
}
