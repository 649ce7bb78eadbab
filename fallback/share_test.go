package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// anHourForOne bans a key for an hour for one denial.
var anHourForOne = ratelimit.Penalty{Denials: 1, Within: time.Hour, For: time.Hour}

func TestALocalShareIsMadeOfTheLimiterItself(t *testing.T) {
	tiers := ratelimit.WithTiers(func(_ context.Context, key string) (string, error) { return key, nil },
		map[string]ratelimit.Limit{"paid": ratelimit.PerHour(400)})
	for _, algorithm := range algorithms {
		inner := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerHour(40), tiers)}
		_, err := fallback.New(inner, fallback.FailLocal(4))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "of a limiter that is not known")

		synctest.Test(t, func(t *testing.T) {
			lim := failover(t, down(t, algorithm, ratelimit.PerHour(40), tiers), fallback.FailLocal(4))
			for key, want := range map[string]int{"free": 10, "paid": 100} {
				n := 0
				for range 200 {
					r, err := lim.Allow(t.Context(), key)
					require.NoError(t, err)
					require.Equal(t, ratelimit.SourceLocal, r.Source())
					if r.Allowed {
						n++
					}
				}
				require.Equal(t, want, n, "%s, %s", algorithm, key)
			}
		})
		for _, n := range []int{0, -1} {
			_, err = fallback.New(inMemory(t, algorithm, ratelimit.PerHour(40)), fallback.FailLocal(n))
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		}
	}
}

// A tier of which a share is less than an event is found at once, and not in the outage.
func TestEachTierHasAShare(t *testing.T) {
	tiers := ratelimit.WithTiers(func(_ context.Context, key string) (string, error) { return key, nil },
		map[string]ratelimit.Limit{"paid": ratelimit.PerHour(400), "trial": ratelimit.PerMonth(2)})
	_, err := fallback.New(inMemory(t, "fixed_window", ratelimit.PerHour(40), tiers), fallback.FailLocal(4))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestTheLocalPoliciesAreThoseOfTheLocalLimiter(t *testing.T) {
	policies := func(p fallback.Answer) []ratelimit.Policy {
		lim := failover(t, inMemory(t, "fixed_window", ratelimit.PerHour(40)), p)
		got, err := lim.AppendLocalPolicies(t.Context(), []ratelimit.Policy{{Name: "before"}}, "key")
		require.NoError(t, err)
		require.Equal(t, "before", got[0].Name)
		return got[1:]
	}
	of, err := failover(t, inMemory(t, "fixed_window", ratelimit.PerHour(40)), fallback.FailLocal(4)).AppendPolicies(t.Context(), nil, "key")
	require.NoError(t, err)
	require.Equal(t, 40, of[0].Quota, "and the others are those of the limiter inside")
	_, err = new(fallback.Limiter).AppendPolicies(t.Context(), nil, "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	got := policies(fallback.FailLocal(4))
	require.Len(t, got, 1)
	require.Equal(t, 10, got[0].Quota)
	require.Equal(t, time.Hour, got[0].Window)
	require.Empty(t, policies(fallback.FailOpen()))
	got, err = new(fallback.Limiter).AppendLocalPolicies(t.Context(), nil, "key")
	require.NoError(t, err)
	require.Empty(t, got)
}

// down is a limiter on a store that is down.
func down(t *testing.T, algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	return newLimiter(t, algorithm, broken{}, l, opts...)
}

func TestTheStateOfTheBreakerCanBeAsked(t *testing.T) {
	require.Equal(t, fallback.StateClosed, state(new(fallback.Limiter)))
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailOpen(), fallback.WithBreaker(2, time.Second))
		require.Equal(t, fallback.StateClosed, state(lim))
		inner.down.Store(true)
		allow(t, lim, "key")
		require.Equal(t, "closed", state(lim).String(), "one failure is not enough")
		allow(t, lim, "key")
		require.Equal(t, "open", state(lim).String())
		time.Sleep(time.Second)
		require.Equal(t, "half_open", state(lim).String())
		inner.down.Store(false)
		allow(t, lim, "key")
		require.Equal(t, fallback.StateClosed, state(lim))
	})
}

// The breaker learns from what the store says alone.
func TestDecisionsWithoutTheStoreDoNotCloseTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.PerHour(0)
		lim := failover(t, newLimiter(t, "token_bucket", broken{}, ratelimit.PerHour(5), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return limit, nil })), fallback.FailOpen(), fallback.WithBreaker(2, time.Second))
		for _, limit = range []ratelimit.Limit{ratelimit.PerHour(5), ratelimit.PerHour(0), ratelimit.Unlimited(), ratelimit.PerHour(5)} {
			allow(t, lim, "key")
		}
		require.Equal(t, fallback.StateOpen, state(lim), "two failures in a row")
		time.Sleep(time.Second)
		for _, limit = range []ratelimit.Limit{ratelimit.PerHour(0), ratelimit.Unlimited()} {
			allow(t, lim, "key")
			require.Equal(t, fallback.StateHalfOpen, state(lim))
		}
	})
}

// The store has answered, though it is not the limit that it has denied which decides.
func TestADenialByTheStoreBeforeAnAdmissionWithoutItClosesTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &testkit.Unreliable{Store: ratelimit.Must(memstore.New())}
		limited := newLimiter(t, "token_bucket", s, ratelimit.PerHour(1))
		free := newLimiter(t, "token_bucket", s, ratelimit.Unlimited())
		lim := failover(t, ratelimit.Must(ratelimit.NewFirst(limited, free)), fallback.FailOpen(), fallback.WithBreaker(1, time.Second))
		require.Equal(t, ratelimit.SourceStore, source(t, lim))
		s.Down.Store(true)
		require.Equal(t, ratelimit.SourceFailOpen, source(t, lim))
		time.Sleep(time.Second)
		require.Equal(t, ratelimit.SourceFailOpen, source(t, lim))
		require.Equal(t, fallback.StateOpen, state(lim), "the probe has failed")
		s.Down.Store(false)
		time.Sleep(time.Second)
		require.Equal(t, ratelimit.SourceUnlimited, source(t, lim))
		require.Equal(t, fallback.StateClosed, state(lim))
	})
}

// A limit of 0 denies without the store, and the Peek of an All asks the others all the same.
func TestAPeekThatTheStoreHasNotAnsweredClosesNoBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.PerHour(5)
		first := inMemory(t, "token_bucket", ratelimit.PerHour(5), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
		lim := failover(t, all(t, first, ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore)),
			fallback.FailOpen(), fallback.WithBreaker(1, time.Second))
		allow(t, lim, "key")
		require.Equal(t, fallback.StateOpen, state(lim))
		time.Sleep(time.Second)
		limit = ratelimit.PerHour(0)
		require.Equal(t, ratelimit.SourceZeroRate, peek(t, lim, "key").Source())
		require.Equal(t, fallback.StateHalfOpen, state(lim))
	})
}

// A Result that no limit has counted is refunded without the store.
func TestARefundOfWhatNoLimitHasCountedClosesNoBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Unlimited()
		lim := failover(t, newLimiter(t, "token_bucket", broken{}, ratelimit.PerHour(5), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return limit, nil })), fallback.FailOpen(), fallback.WithBreaker(1, time.Second))
		free := allow(t, lim, "key")
		limit = ratelimit.PerHour(5)
		allow(t, lim, "key")
		require.Equal(t, fallback.StateOpen, state(lim))
		time.Sleep(time.Second)
		require.NoError(t, lim.Refund(t.Context(), "key", free, 1))
		require.Equal(t, fallback.StateHalfOpen, state(lim))
	})
}

// A key can be unlimited or have a limit of 0 for a while when the store is back. It still owes
// what it was admitted in the outage.
func TestADebtIsNotPaidByALimitThatCountsNothing(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, meanwhile := range []ratelimit.Limit{ratelimit.Unlimited(), ratelimit.PerDay(0)} {
			for _, alike := range []bool{true, false} { // whether the local limit changes too
				synctest.Test(t, func(t *testing.T) {
					limit := ratelimit.PerDay(10)
					changes := []ratelimit.Option{ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil })}
					inner := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerDay(10), changes...)}
					if !alike {
						changes = nil
					}
					lim := failover(t, inner, fallback.FailTo(inMemory(t, algorithm, ratelimit.PerDay(10), changes...)))
					inner.down.Store(true)
					require.Equal(t, 10, admitted(t, lim, 11))
					inner.down.Store(false)
					time.Sleep(2 * time.Second)
					limit = meanwhile
					require.Equal(t, meanwhile == ratelimit.Unlimited(), allow(t, lim, "key").Allowed)
					require.True(t, lim.Owes("key"))
					limit = ratelimit.PerDay(10)
					require.Zero(t, admitted(t, lim, 1), "%s, %v meanwhile", algorithm, meanwhile)
					require.False(t, lim.Owes("key"))
				})
			}
		}
	}
}

// A wrapper that only observes does not prevent a share.
func TestALocalShareOfWhatIsObserved(t *testing.T) {
	inner := inMemory(t, "fixed_window", ratelimit.PerDay(10))
	watched, err := observe.Around(inner, nobody{})
	require.NoError(t, err)
	mem, err := memstore.New()
	require.NoError(t, err)
	_, err = fallback.New(watched, fallback.FailLocal(2).On(mem))
	require.NoError(t, err)
	for _, answer := range []fallback.Answer{
		fallback.FailLocal(2).On(nil), fallback.FailOpen().On(mem), fallback.FailTo(inner).On(mem), fallback.FailLocal(2).On((*memstore.Store)(nil)),
	} {
		_, err = fallback.New(inner, answer)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

func TestALimitFunctionIsAskedOnceForTheStoreAndTheLocalLimiter(t *testing.T) {
	calls := 0
	limits := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
		calls++
		return ratelimit.PerMinute(100), nil
	})
	for _, algorithm := range algorithms {
		for name, s := range map[string]store.Store{"up": ratelimittest.NewClock(time.Now()).Memory(t), "down": broken{}} {
			l, err := fallback.New(newLimiter(t, algorithm, s, ratelimit.PerMinute(1), limits), fallback.FailLocal(2), fallback.WithBreaker(1, time.Hour))
			require.NoError(t, err)
			for range 3 { // if it is down, the breaker is open after the first
				calls = 0
				require.True(t, allow(t, l, "key").Allowed)
				require.Equal(t, 1, calls, "%s, %s", algorithm, name)
			}
			calls = 0
			overcharge(t, l, 1)
			require.Equal(t, 1, calls, "%s, %s: a Charge", algorithm, name)
		}
	}
}

// A local limiter cannot find out what a key's limit is.
func TestAFailureOfALimitFunctionIsNotTheStores(t *testing.T) {
	wrong := errors.New("the database of plans is down")
	limits := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, wrong })
	for _, answer := range []fallback.Answer{fallback.FailOpen(), fallback.FailClosed(), fallback.FailLocal(1)} {
		for _, s := range []store.Store{ratelimittest.NewClock(time.Now()).Memory(t), broken{}} {
			l := failover(t, newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1), limits), answer)
			for range 10 {
				_, err := l.Allow(t.Context(), "key")
				require.Equal(t, wrong, err)
			}
			state, _ := l.State()
			require.Equal(t, fallback.StateClosed, state)
		}
	}
}

// A limit function is asked once for a decision, whatever that takes: a look at the local limiter,
// what the key owes, and the decision itself.
func TestAKeyThatOwesHasItsLimitAskedForOnce(t *testing.T) {
	asked := 0
	limit := func(context.Context, string) (ratelimit.Limit, error) {
		asked++
		return ratelimit.PerHour(10), nil
	}
	s := onSwitch(t)
	lim := failover(t, newLimiter(t, "token_bucket", s, ratelimit.PerHour(5), ratelimit.WithLimitFunc(limit)), fallback.FailLocal(1))
	s.down = true
	for range 3 {
		require.Equal(t, ratelimit.SourceLocal, allow(t, lim, "key").Source())
	}
	s.down = false
	require.True(t, lim.Owes("key"))
	asked = 0
	r := allow(t, lim, "key")
	require.Equal(t, ratelimit.SourceStore, r.Source())
	require.Equal(t, 6, r.Remaining)
	require.Equal(t, 1, asked)
	require.False(t, lim.Owes("key"))
	allow(t, lim, "key")
	require.Equal(t, 2, asked, "each decision asks anew")
}

// While the breaker is open, who is Unlimited needs no store, and is not refused.
func TestUnlimitedKeysAreNotRefused(t *testing.T) {
	asked := 0
	limits := func(_ context.Context, key string) (ratelimit.Limit, error) {
		asked++
		switch key {
		case "staff":
			return ratelimit.Unlimited(), nil
		case "unknown":
			return ratelimit.Limit{}, errors.New("no database")
		}
		return ratelimit.PerHour(5), nil
	}
	s := onSwitch(t)
	s.down = true
	plan := newLimiter(t, "token_bucket", s, ratelimit.PerHour(5), ratelimit.WithLimitFunc(limits), ratelimit.WithName("plan"))
	other := newLimiter(t, "token_bucket", s, ratelimit.PerHour(5), ratelimit.WithName("other"))
	ban, err := ratelimit.NewBan(plan, s, ratelimit.Penalty{Denials: 3, Within: time.Hour, For: time.Hour})
	require.NoError(t, err)
	for _, c := range []struct {
		limiter ratelimit.Limiter
		key     string
		source  ratelimit.Source
	}{
		{plan, "staff", ratelimit.SourceUnlimited},
		{plan, "customer", ratelimit.SourceFailClosed},
		{plan, "unknown", ratelimit.SourceFailClosed},
		{all(t, plan, other), "staff", ratelimit.SourceFailClosed},
		{ban, "staff", ratelimit.SourceFailClosed},
	} {
		lim := failover(t, c.limiter, fallback.FailClosed(), fallback.WithBreaker(1, time.Hour))
		require.False(t, allow(t, lim, "customer").Allowed)
		require.Equal(t, fallback.StateOpen, state(lim))
		asked, s.calls = 0, 0
		require.Equal(t, c.source, allow(t, lim, c.key).Source(), "%T of %s", c.limiter, c.key)
		require.Equal(t, c.source, peek(t, lim, c.key).Source())
		require.LessOrEqual(t, asked, 2, "once for each decision")
		require.Zero(t, s.calls)
	}
}

// Events that no limit counts have no numbers at a local limiter either, and are not owed.
func TestUnlimitedKeysAreNotCountedLocally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := onSwitch(t)
		limit := ratelimit.PerDay(6)
		limits := func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }
		plan := newLimiter(t, "fixed_window", s, limit, ratelimit.WithLimitFunc(limits))
		for name, l := range map[string]ratelimit.Limiter{
			"one": plan, "several": all(t, plan, newLimiter(t, "token_bucket", s, ratelimit.Unlimited())),
		} {
			s.down, limit = true, ratelimit.PerDay(6)
			lim := failover(t, l, fallback.FailLocal(2), fallback.WithBreaker(1, time.Minute))
			require.Equal(t, ratelimit.SourceLocal, allow(t, lim, name).Source())
			limit = ratelimit.Unlimited()
			charged, err := lim.Charge(t.Context(), name, 3)
			require.NoError(t, err)
			for _, r := range []ratelimit.Result{peek(t, lim, name), allow(t, lim, name), charged} {
				require.True(t, r.Allowed)
				require.Equal(t, ratelimit.SourceUnlimited, r.Source(), name)
				require.False(t, r.Counted(), name)
			}
			require.NoError(t, lim.Refund(t.Context(), name, allow(t, lim, name), 1))
			s.down, limit = false, ratelimit.PerDay(6)
			time.Sleep(time.Minute)
			require.Equal(t, 5, peek(t, lim, name).Remaining, "%s: the one that was counted", name)
		}
	})
}

// Nor is it owed, and its Refund forgives nothing of what others owe.
func TestARefundOfWhoWasUnlimitedForgivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := onSwitch(t)
		limit := ratelimit.PerDay(10)
		limits := func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }
		plan := newLimiter(t, "fixed_window", s, limit, ratelimit.WithLimitFunc(limits))
		lim := failover(t, plan, fallback.FailLocal(1), fallback.WithBreaker(1, time.Minute))
		require.Equal(t, ratelimit.SourceStore, allowN(t, lim, 2).Source())
		s.down = true
		require.Equal(t, ratelimit.SourceLocal, allowN(t, lim, 1).Source())
		limit = ratelimit.Unlimited()
		free := allowN(t, lim, 3)
		_, err := lim.Charge(t.Context(), "key", 3)
		require.NoError(t, err)
		s.down, limit = false, ratelimit.PerDay(10)
		time.Sleep(time.Minute)
		require.Equal(t, 7, peek(t, lim, "key").Remaining)
		s.down = true
		allow(t, lim, "another") // the breaker opens
		require.Equal(t, ratelimit.SourceLocal, allowN(t, lim, 2).Source())
		require.NoError(t, lim.Refund(t.Context(), "key", free, 3))
		s.down = false
		time.Sleep(time.Minute)
		require.Equal(t, 5, peek(t, lim, "key").Remaining)
	})
}

// A ban by the local limiter is one: it has no numbers of a limit.
func TestABanWhileTheStoreFailsIsABan(t *testing.T) {
	s := onSwitch(t)
	s.down = true
	ban, err := ratelimit.NewBan(newLimiter(t, "token_bucket", s, ratelimit.PerHour(1)), s, anHourForOne)
	require.NoError(t, err)
	lim := failover(t, ban, fallback.FailLocal(1))
	require.Equal(t, ratelimit.SourceLocal, allow(t, lim, "key").Source())
	for range 2 { // the denial that begins it, and one by it
		r := allow(t, lim, "key")
		require.False(t, r.Allowed)
		require.Equal(t, ratelimit.SourceBan, r.Source())
		require.False(t, r.Counted())
	}
	require.Equal(t, ratelimit.SourceBan, peek(t, lim, "key").Source())
}

// A key that the store has always admitted is not banned in an outage, although it has spent more than its share.
func TestWhatTheStoreAdmitsIsNoReasonForALocalBan(t *testing.T) {
	s := onSwitch(t)
	ban, err := ratelimit.NewBan(newLimiter(t, "fixed_window", s, ratelimit.PerDay(10)), s, anHourForOne)
	require.NoError(t, err)
	lim := failover(t, all(t, newLimiter(t, "fixed_window", s, ratelimit.PerHour(100)), ban), fallback.FailLocal(2))
	for range 10 {
		require.Equal(t, ratelimit.SourceStore, allow(t, lim, "key").Source())
	}
	s.down = true
	r := peek(t, lim, "key")
	require.False(t, r.Allowed)
	require.Equal(t, ratelimit.SourceLocal, r.Source())
}

// Nor is it banned after the outage, because the store has no room for all that it owes.
func TestWhatAKeyOwesIsNoReasonForABan(t *testing.T) {
	s := onSwitch(t)
	ban, err := ratelimit.NewBan(newLimiter(t, "fixed_window", s, ratelimit.PerDay(10)), s, anHourForOne)
	require.NoError(t, err)
	own := ratelimit.Must(ratelimit.NewAround(ban, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) { return c.Inside(ctx) }))
	lim := failover(t, all(t, newLimiter(t, "fixed_window", s, ratelimit.PerHour(100)), own),
		fallback.FailTo(inMemory(t, "fixed_window", ratelimit.PerDay(50))), fallback.WithBreaker(100, time.Second))
	allow(t, ban, "key")
	s.down = true
	for range 10 {
		require.Equal(t, ratelimit.SourceLocal, allow(t, lim, "key").Source())
	}
	s.down = false
	r := peek(t, lim, "key")
	require.False(t, r.Allowed)
	require.Equal(t, ratelimit.SourceStore, r.Source())
}

// What a key has spent before its local ban is also owed during the ban.
func TestAKeyThatIsBannedLocallyOwesWhatItHasSpent(t *testing.T) {
	for name, around := range map[string]func(ban ratelimit.Limiter, s store.Store) ratelimit.Limiter{
		"a ban": func(ban ratelimit.Limiter, _ store.Store) ratelimit.Limiter { return ban },
		"an All around it": func(ban ratelimit.Limiter, s store.Store) ratelimit.Limiter {
			return all(t, newLimiter(t, "fixed_window", s, ratelimit.PerSecond(9)), ban)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := onSwitch(t)
			s.down = true
			ban, err := ratelimit.NewBan(newLimiter(t, "token_bucket", s, ratelimit.PerDay(5)), s, anHourForOne)
			require.NoError(t, err)
			lim := failover(t, around(ban, s), fallback.FailLocal(1))
			require.Equal(t, 5, admitted(t, lim, 7))
			require.Equal(t, ratelimit.SourceBan, peek(t, lim, "key").Source())
			s.down = false
			time.Sleep(time.Second)
			require.Zero(t, admitted(t, lim, 1), name)
			require.False(t, lim.Owes("key"))
		})
	}
}

// turning is a wrapper whose limiter changes.
type turning struct {
	see.Wrapper
	ratelimit.Limiter
}

func (l *turning) Unwrap() ratelimit.Limiter { return l.Limiter }

// A local limiter may get a ban later, such as one that follows a file.
func TestAKeyThatIsBannedByALocalLimiterThatChangesOwesWhatItHasSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := onSwitch(t)
		bucket := inMemory(t, "token_bucket", ratelimit.PerDay(5))
		local := &turning{see.Has(see.Traits{Changes: true, Observes: true}), bucket}
		lim := failover(t, newLimiter(t, "token_bucket", s, ratelimit.PerDay(5)), fallback.FailTo(local))
		local.Limiter = ratelimit.Must(ratelimit.NewBan(bucket, ratelimit.Must(memstore.New()), anHourForOne))
		s.down = true
		require.Equal(t, 5, admitted(t, lim, 7))
		require.Equal(t, ratelimit.SourceBan, peek(t, lim, "key").Source())
		s.down = false
		time.Sleep(time.Second)
		require.Zero(t, admitted(t, lim, 1))
		require.False(t, lim.Owes("key"))
	})
}

// What a wrapper of another package does not tell is no lack of limits.
func TestAKeyWhoseLimitsAreNotToldIsNotUnlimited(t *testing.T) {
	limits := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Unlimited(), nil })
	inner := foreign{all(t, newLimiter(t, "token_bucket", broken{}, ratelimit.PerHour(5)), newLimiter(t, "token_bucket", broken{}, ratelimit.PerHour(5), limits))}
	lim := failover(t, inner, fallback.FailClosed(), fallback.WithBreaker(1, time.Hour))
	for range 2 {
		require.Equal(t, ratelimit.SourceFailClosed, source(t, lim))
	}
}

// A Charge belongs to a call that is already charged, so a local limiter that counts calls does not
// count it.
func TestAChargeIsNoCallOfTheLocalLimiter(t *testing.T) {
	s := onSwitch(t)
	l := all(t, newLimiter(t, "fixed_window", s, ratelimit.PerDay(10), ratelimit.CountCalls()),
		newLimiter(t, "fixed_window", s, ratelimit.PerDay(1000), ratelimit.WithName("tokens")))
	lim := failover(t, l, fallback.FailLocal(1), fallback.WithBreaker(1, time.Hour))
	for range 3 {
		reserved, _, err := ratelimit.Reserve(t.Context(), lim, "key", 10)
		require.NoError(t, err)
		r, err := reserved.Settle(t.Context(), 30)
		require.NoError(t, err)
		require.NoError(t, lim.Refund(t.Context(), "key", r, 5))
	}
	s.down = true
	allow(t, lim, "another")
	r := peek(t, lim, "key")
	require.Equal(t, ratelimit.SourceLocal, r.Source())
	require.Equal(t, []int{7, 925}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining})
}

// In an outage, it is owed without a call.
func TestAChargeInAnOutageIsOwedWithoutACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBreakable(t)
		plan := newLimiter(t, "fixed_window", s, ratelimit.PerDay(10), ratelimit.CountCalls())
		tokens := newLimiter(t, "fixed_window", s, ratelimit.PerDay(100), ratelimit.WithName("tokens"))
		lim := failover(t, all(t, plan, tokens), fallback.FailTo(inMemory(t, "fixed_window", ratelimit.PerDay(50))))
		s.down.Store(true)
		overcharge(t, lim, 4)
		s.down.Store(false)
		time.Sleep(time.Second)
		require.True(t, allow(t, lim, "key").Allowed)
		require.Equal(t, []int{9, 95}, []int{peek(t, plan, "key").Remaining, peek(t, tokens, "key").Remaining})
	})
}

// switched is a store that can be down.
type switched struct {
	store.Store
	down  bool
	calls int
}

func onSwitch(t *testing.T) *switched {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	return &switched{Store: mem}
}

func (s *switched) err() error {
	if s.calls++; s.down {
		return fmt.Errorf("%w: on purpose", ratelimit.ErrStore)
	}
	return nil
}

// Decide implements [store.Store].
func (s *switched) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *switched) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := s.err(); err != nil {
		return store.Reply{}, err
	}
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *switched) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := s.err(); err != nil {
		return store.Reply{}, err
	}
	return store.TakeUpTo(ctx, s.Store, ns, key, l, n)
}

func (s *switched) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := s.err(); err != nil {
		return store.Reply{}, err
	}
	return store.Peek(ctx, s.Store, ns, key, l, n)
}

func (s *switched) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := s.err(); err != nil {
		return err
	}
	return s.Store.Decide(ctx, requests, replies)
}
