package ratelimit_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func newFirst(t *testing.T, limiters ...ratelimit.Limiter) *ratelimit.First {
	t.Helper()
	f, err := ratelimit.NewFirst(limiters...)
	require.NoError(t, err)
	return f
}

func left(t *testing.T, l ratelimit.Limiter, key string) int {
	t.Helper()
	return peek(t, l, key).Remaining
}

func TestTheFirstThatAdmitsIsChargedAlone(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *ratelimittest.Clock) {
		counted := &tally{Store: s}
		plan := newLimiter(t, algorithm, counted, ratelimit.PerMinute(3), ratelimit.WithName("plan"))
		perDay := newLimiter(t, algorithm, counted, ratelimit.PerDay(4), ratelimit.WithName("day"))
		extra := newLimiter(t, algorithm, counted, ratelimit.PerHour(5), ratelimit.WithName("extra"))
		both, err := ratelimit.NewAll(perDay, extra)
		require.NoError(t, err)
		first := newFirst(t, plan, both)
		for i, want := range []string{"plan", "plan", "plan", "day", "day", "day", "day"} {
			r, err := first.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, i+1, counted.Joints, "one call of the store")
			charged := ""
			for _, p := range r.Parts() {
				if p.Allowed && charged == "" {
					charged = p.Name()
				}
			}
			require.Equal(t, want, charged)
			require.Equal(t, 1, r.Charged())
		}
		require.Zero(t, counted.Singles)
		require.Zero(t, left(t, plan, "key"))
		require.Equal(t, 1, left(t, extra, "key"))

		r, err := first.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Equal(t, 8, counted.Joints, "one call of the store")
		own, err := plan.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, own.RetryAfter, r.RetryAfter, "the shortest")
		require.Equal(t, "plan", r.DeniedBy())
		require.Equal(t, 1, left(t, extra, "key"), "a denial charges nothing")
		c.Advance(r.RetryAfter - time.Microsecond)
		again, err := first.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, again.Allowed)
		c.Advance(time.Microsecond)
		again, err = first.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, again.Allowed)
	})
}

func TestARefundGoesToTheLimiterThatWasCharged(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *ratelimittest.Clock) {
		one := newLimiter(t, algorithm, s, ratelimit.PerDay(1), ratelimit.WithName("one"))
		two := newLimiter(t, algorithm, s, ratelimit.PerDay(5), ratelimit.WithName("two"))
		first := newFirst(t, one, two)
		r, err := first.AllowN(t.Context(), "key", 4)
		require.NoError(t, err)
		require.Equal(t, 1, left(t, two, "key"))
		require.NoError(t, first.Refund(t.Context(), "key", r, 2))
		require.Equal(t, 3, left(t, two, "key"))
		require.Equal(t, 1, left(t, one, "key"))

		denied, err := first.AllowN(t.Context(), "key", 4)
		require.NoError(t, err)
		require.False(t, denied.Allowed)
		require.ErrorIs(t, first.Refund(t.Context(), "key", denied, 1), ratelimit.ErrInvalidN)
		require.ErrorIs(t, first.Refund(t.Context(), "key", ratelimit.Result{Allowed: true}, 1), ratelimit.ErrInvalidN)

		granted, r, err := ratelimit.AllowUpTo(t.Context(), first, "key", 9)
		require.NoError(t, err)
		require.Equal(t, 3, granted, "the most that one of them has")
		require.Equal(t, 3, r.Charged())
		require.NoError(t, first.Reset(t.Context(), "key"))
		require.Equal(t, 5, left(t, two, "key"))
	})
}

func TestASettleGoesToTheLimiterThatWasCharged(t *testing.T) {
	s := memory(t, newClock())
	plan := newLimiter(t, "token_bucket", s, ratelimit.PerDay(10), ratelimit.WithName("plan"))
	credits := newLimiter(t, "token_bucket", s, ratelimit.PerDay(100), ratelimit.WithName("credits"))
	first := newFirst(t, plan, credits)
	small, _, err := ratelimit.Reserve(t.Context(), first, "key", 8)
	require.NoError(t, err)
	large, _, err := ratelimit.Reserve(t.Context(), first, "key", 20)
	require.NoError(t, err)
	r, err := small.Settle(t.Context(), 13) // 5 more than was estimated, and 3 more than the plan has
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Equal(t, 80, left(t, credits, "key"), "what the plan owes, the plan owes")
	require.Zero(t, left(t, plan, "key"))
	r, err = large.Settle(t.Context(), 5)
	require.NoError(t, err)
	require.Equal(t, 95, r.Remaining)
	require.Equal(t, 95, left(t, credits, "key"))
}

func TestAFirstChargesWhereThereIsRoom(t *testing.T) {
	s := memory(t, newClock())
	a := newLimiter(t, "token_bucket", s, ratelimit.PerDay(5), ratelimit.WithName("a"))
	b := newLimiter(t, "token_bucket", s, ratelimit.PerDay(5), ratelimit.WithName("b"))
	first := newFirst(t, a, b)
	for i, want := range [][2]int{{2, 5}, {2, 2}, {2, 0}} {
		r, err := ratelimit.Charge(t.Context(), first, "key", 3)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, want, [2]int{left(t, a, "key"), left(t, b, "key")}, "charge %d", i)
	}
	_, err := ratelimit.Charge(t.Context(), first, "key", 2)
	require.NoError(t, err)
	require.Zero(t, left(t, a, "key"), "which has just as many left")
}

// A limit that counts calls is not charged, so it needs no room for the events.
func TestAFirstChargesWhereThereIsRoomBesideCountedCalls(t *testing.T) {
	s := memory(t, newClock())
	requests := newLimiter(t, "token_bucket", s, ratelimit.PerDay(60), ratelimit.WithName("requests"), ratelimit.CountCalls())
	tokens := newLimiter(t, "token_bucket", s, ratelimit.PerDay(1000), ratelimit.WithName("tokens"))
	credits := newLimiter(t, "token_bucket", s, ratelimit.PerDay(1000), ratelimit.WithName("credits"))
	first := newFirst(t, all(t, requests, tokens), credits)
	for _, want := range [][2]int{{400, 1000}, {400, 400}} {
		_, err := ratelimit.Charge(t.Context(), first, "key", 600)
		require.NoError(t, err)
		require.Equal(t, want, [2]int{left(t, tokens, "key"), left(t, credits, "key")})
	}
}

// What is around a First does not change which of its limiters a Settle charges.
func TestASettleThroughOtherLimitersGoesToTheLimiterThatWasCharged(t *testing.T) {
	for what, around := range map[string]func(t *testing.T, first, other ratelimit.Limiter) ratelimit.Limiter{
		"an All":  func(t *testing.T, first, other ratelimit.Limiter) ratelimit.Limiter { return all(t, other, first) },
		"a First": func(t *testing.T, first, other ratelimit.Limiter) ratelimit.Limiter { return newFirst(t, first, other) },
		"a First last": func(t *testing.T, first, other ratelimit.Limiter) ratelimit.Limiter {
			return newFirst(t, newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerDay(1)), first)
		},
		"an own answer": func(t *testing.T, first, _ ratelimit.Limiter) ratelimit.Limiter {
			a, err := ratelimit.NewAround(first, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
				r, err := c.Inside(ctx)
				return ratelimit.Result{Allowed: r.Allowed}, err
			})
			require.NoError(t, err)
			return a
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := memory(t, newClock())
			plan := newLimiter(t, "token_bucket", s, ratelimit.PerDay(10), ratelimit.WithName("plan"))
			credits := newLimiter(t, "token_bucket", s, ratelimit.PerDay(100), ratelimit.WithName("credits"))
			other := newLimiter(t, "token_bucket", s, ratelimit.PerDay(1000), ratelimit.WithName("other"))
			reserved, r, err := ratelimit.Reserve(t.Context(), around(t, newFirst(t, plan, credits), other), "key", 8)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			_, err = reserved.Settle(t.Context(), 13)
			require.NoError(t, err)
			require.Equal(t, [2]int{0, 100}, [2]int{left(t, plan, "key"), left(t, credits, "key")})
		})
	}
}

// What nobody knows to be charged to a limiter is settled where there is room.
func TestASettleOfWhatIsNotKnownToBeChargedGoesWhereThereIsRoom(t *testing.T) {
	for what, c := range map[string]struct {
		around   func(first *ratelimit.First) ratelimit.Limiter
		reserved int
		want     [2]int
	}{
		"a limiter of another package": {func(first *ratelimit.First) ratelimit.Limiter { return &silent{first} }, 8, [2]int{2, 95}},
		"a denial that was let through": {func(first *ratelimit.First) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewAround(first, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
				r, err := c.Inside(ctx)
				r.Allowed = true
				return r, err
			}))
		}, 200, [2]int{0, 95}},
	} {
		t.Run(what, func(t *testing.T) {
			s := memory(t, newClock())
			plan := newLimiter(t, "token_bucket", s, ratelimit.PerDay(10), ratelimit.WithName("plan"))
			credits := newLimiter(t, "token_bucket", s, ratelimit.PerDay(100), ratelimit.WithName("credits"))
			first := newFirst(t, plan, credits)
			if c.reserved > 100 {
				allowN(t, plan, 10)
			}
			reserved, _, err := ratelimit.Reserve(t.Context(), c.around(first), "key", c.reserved)
			require.NoError(t, err)
			_, err = reserved.Settle(t.Context(), c.reserved+5)
			require.NoError(t, err)
			require.Equal(t, c.want, [2]int{left(t, plan, "key"), left(t, credits, "key")})
		})
	}
}

// silent is a limiter of another package, whose Results do not tell which limiter was charged.
type silent struct{ *ratelimit.First }

func (l *silent) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := l.First.AllowN(ctx, key, n)
	return ratelimit.Result{Allowed: r.Allowed}.WithMark(ratelimit.NewMark(l, ratelimit.SourceStore, nil)), err
}

// Limits on several stores, and those of other packages, are asked one after the other.
func TestAFirstOfSeveralStoresAsksInTurn(t *testing.T) {
	a := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerDay(1))
	behind := &tally{Store: memory(t, newClock())}
	b := newLimiter(t, "token_bucket", behind, ratelimit.PerDay(1))
	first := newFirst(t, a, b)
	r, err := first.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Zero(t, behind.Singles)
	require.Zero(t, r.Parts()[1].Result, "not asked")
	r, err = first.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.False(t, r.Parts()[0].Allowed)
	require.True(t, r.Parts()[1].Allowed)

	other := &ofOthers{Limiter: a, left: 1}
	first = newFirst(t, other, b)
	r = allow(t, first, "another")
	require.True(t, r.Allowed)
	require.Zero(t, other.left)
	require.NoError(t, first.Refund(t.Context(), "another", r, 1))
	require.Equal(t, 1, other.left)
}

// What fails behind a limiter that admits is never asked, and what fails before one ends the call.
func TestAnErrorOfALimiterThatIsNotNeededDoesNotMatter(t *testing.T) {
	s := memory(t, newClock())
	broken, asked := errors.New("no such plan"), 0
	failing := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
		asked++
		return ratelimit.Limit{}, broken
	})
	good := newLimiter(t, "token_bucket", s, ratelimit.PerDay(1), ratelimit.WithName("good"))
	bad := newLimiter(t, "token_bucket", s, ratelimit.PerDay(1), ratelimit.WithName("bad"), failing)
	r, err := newFirst(t, good, bad).Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
	_, err = newFirst(t, good, bad).Allow(t.Context(), "key")
	require.ErrorIs(t, err, broken)
	require.Equal(t, 2, asked, "once for each call")
	_, err = newFirst(t, bad, good).Allow(t.Context(), "another")
	require.ErrorIs(t, err, broken)
	require.Equal(t, 1, left(t, good, "another"))
}

func TestLimitsWithoutAStoreStandInAFirst(t *testing.T) {
	calls := 0
	s := counted{memory(t, newClock()), &calls}
	none := newLimiter(t, "token_bucket", s, ratelimit.PerDay(0), ratelimit.WithName("none"))
	one := newLimiter(t, "token_bucket", s, ratelimit.PerDay(1), ratelimit.WithName("one"))
	two := newLimiter(t, "token_bucket", s, ratelimit.PerDay(1), ratelimit.WithName("two"))
	free := newLimiter(t, "token_bucket", s, ratelimit.Unlimited(), ratelimit.WithName("free"))
	first := newFirst(t, none, one, two, free)
	for i, source := range []ratelimit.Source{ratelimit.SourceStore, ratelimit.SourceStore, ratelimit.SourceUnlimited} {
		r, err := first.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, source, r.Source(), "call %d", i)
		require.Equal(t, i+1, calls)
	}
	r, err := newFirst(t, none).Allow(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, ratelimit.Never, r.RetryAfter)
	require.Equal(t, 3, calls, "nobody is asked")
}

func TestAFirstRefusesLimitersThatOverruleOthers(t *testing.T) {
	s := memory(t, newClock())
	bucket := newLimiter(t, "token_bucket", s, ratelimit.PerDay(5))
	ban, err := ratelimit.NewBan(bucket, s, ratelimit.Penalty{Denials: 3, Within: time.Minute, For: time.Minute, Most: time.Hour})
	require.NoError(t, err)
	listed, err := accesslist.New(bucket)
	require.NoError(t, err)
	waiter, err := throttle.NewWaiter(bucket, time.Second)
	require.NoError(t, err)
	other, err := ratelimit.NewTokenBucket(s, ratelimit.PerDay(5), ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "all", nil }))
	require.NoError(t, err)
	many := make([]ratelimit.Limiter, 17)
	for i := range many {
		many[i] = bucket
	}
	for what, limiters := range map[string][]ratelimit.Limiter{
		"none": nil, "nil": {nil}, "a ban": {bucket, ban}, "a list": {listed}, "a waiter": {waiter}, "one space under two keys": {bucket, other}, "17": many,
	} {
		_, err := ratelimit.NewFirst(limiters...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, what)
	}
	_, err = ratelimit.NewFirst(new(ratelimit.All))
	require.Error(t, err)
	_, err = ratelimit.NewFirst(many[:16]...)
	require.NoError(t, err)
	_, err = see.Local[ratelimit.Limiter](newFirst(t, bucket), s, 2)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "no share of it")
}

func TestAPeekAtAFirstSaysWhatAllowWould(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *ratelimittest.Clock) {
		one := newLimiter(t, algorithm, s, ratelimit.PerDay(1), ratelimit.WithName("one"))
		two := newLimiter(t, algorithm, s, ratelimit.PerDay(1), ratelimit.WithName("two"))
		first := newFirst(t, one, two)
		for _, want := range []bool{true, true, false} {
			require.Equal(t, want, peek(t, first, "key").Allowed)
			require.Equal(t, want, peek(t, first, "key").Allowed, "and charges nothing")
			require.Equal(t, want, allow(t, first, "key").Allowed)
		}
	})
}

// The one that has room the soonest says when to come back. Of several, the first one.
func TestADenialOfAFirstIsThatOfTheSoonest(t *testing.T) {
	s := memory(t, newClock())
	var limits []ratelimit.Limiter
	for name, l := range map[string]ratelimit.Limit{"day": ratelimit.PerDay(1), "minute": ratelimit.PerMinute(1), "another": ratelimit.PerMinute(1)} {
		limits = append(limits, newLimiter(t, "token_bucket", s, l, ratelimit.WithName(name)))
	}
	slices.SortFunc(limits, func(a, b ratelimit.Limiter) int { return strings.Compare(see.Names(b)[0], see.Names(a)[0]) })
	first := newFirst(t, limits[1], limits[0], limits[2]) // the day, the minute, another
	for range limits {
		require.True(t, allow(t, first, "key").Allowed)
	}
	r := allow(t, first, "key")
	require.Equal(t, time.Minute, r.RetryAfter)
	require.Equal(t, "minute", r.DeniedBy())
}

func TestThePoliciesOfAFirstAreThoseOfItsLimiters(t *testing.T) {
	s := memory(t, newClock())
	before := ratelimit.Policy{Name: "before"}
	policies, err := ratelimit.AppendPolicies(t.Context(), []ratelimit.Policy{before},
		newFirst(t, newLimiter(t, "token_bucket", s, ratelimit.PerDay(1)), newLimiter(t, "fixed_window", s, ratelimit.PerHour(2))), "key")
	require.NoError(t, err)
	require.Equal(t, before, policies[0])
	require.Equal(t, []int{1, 2}, []int{policies[1].Quota, policies[2].Quota})
	broken := errors.New("no such plan")
	failing := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, broken })
	policies, err = ratelimit.AppendPolicies(t.Context(), []ratelimit.Policy{before},
		newFirst(t, newLimiter(t, "token_bucket", s, ratelimit.PerDay(1)), newLimiter(t, "fixed_window", s, ratelimit.PerHour(2), failing)), "key")
	require.ErrorIs(t, err, broken)
	require.Equal(t, []ratelimit.Policy{before}, policies)
	_, err = ratelimit.AppendPolicies(t.Context(), nil, new(ratelimit.First), "key")
	require.Error(t, err)
}

// An Observer of one of the limiters is told what that has decided, if it was asked.
func TestObserversOfAFirstAreToldWhatWasDecided(t *testing.T) {
	s := memory(t, newClock())
	var o [3]recorder
	var limits []ratelimit.Limiter
	for i := range o {
		limits = append(limits, observed(t, newLimiter(t, "token_bucket", s, ratelimit.PerDay(1), ratelimit.WithName(string(rune('a'+i)))), &o[i]))
	}
	first := newFirst(t, limits...)
	for _, told := range [][]int{{1, 0, 0}, {1, 1, 0}, {1, 1, 1}, {1, 1, 1}} {
		r := allow(t, first, "key")
		for i := range o {
			decisions := o[i].take()
			require.Len(t, decisions, told[i])
			if told[i] == 1 {
				require.Equal(t, decided{"key", 1, r.Parts()[i].Result, nil, 0}, decisions[0])
			}
		}
	}
}

// A queue of waiters does not take the pace of one limiter for that of all.
func TestWaitersOfAFirstAreServedByAllItsLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		one := newLimiter(t, "token_bucket", mem, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1}, ratelimit.WithName("one"))
		two := newLimiter(t, "fixed_window", mem, ratelimit.Limit{Rate: 3, Period: 10 * time.Second}, ratelimit.WithName("two"))
		first := newFirst(t, one, two)
		began, group := time.Now(), sync.WaitGroup{}
		for range 10 { // one at once and each second, and three in each window
			group.Go(func() {
				_, err := ratelimit.Wait(t.Context(), first, "key", 1)
				assert.NoError(t, err)
			})
		}
		group.Wait()
		require.Less(t, time.Since(began), 9*time.Second)
		require.Zero(t, peek(t, two, "key").Remaining+left(t, one, "key"))
	})
}

// The Limit of one limiter does not end the wait for events that another one admits.
func TestAWaiterOfAFirstIsNotRefusedByTheLimitOfAnotherLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		small := newLimiter(t, "token_bucket", mem, ratelimit.PerSecond(1), ratelimit.WithName("small"))
		large := newLimiter(t, "token_bucket", mem, ratelimit.PerMinute(20), ratelimit.WithName("large"))
		first := newFirst(t, small, large)
		require.True(t, allowN(t, first, 20).Allowed)
		require.True(t, allow(t, first, "key").Allowed)
		var group sync.WaitGroup
		for _, n := range []int{1, 1, 1, 20} {
			group.Go(func() {
				_, err := ratelimit.Wait(t.Context(), first, "key", n)
				assert.NoError(t, err, "%d events", n)
			})
			synctest.Wait()
		}
		group.Wait()
	})
}

// A queue that counts calls does not take the events that a limit has left for calls.
func TestAWaiterOfAFirstBesideCountedCallsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		requests := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(1000), ratelimit.WithName("requests"), ratelimit.CountCalls())
		first := newFirst(t,
			newLimiter(t, "sliding_log", mem, ratelimit.PerMinute(100), ratelimit.WithName("plan")),
			newLimiter(t, "fixed_window", mem, ratelimit.PerMinute(50), ratelimit.WithName("credits")))
		for name, l := range map[string]ratelimit.Limiter{"calls first": ratelimit.Must(ratelimit.NewAll(requests, first)), "calls last": ratelimit.Must(ratelimit.NewAll(first, requests))} {
			var group sync.WaitGroup
			for range 8 { // 40 of 100 and 50 at once, and then 100 and 50 a minute
				group.Go(func() {
					_, err := ratelimit.Wait(t.Context(), l, name, 40)
					assert.NoError(t, err, name)
				})
			}
			group.Wait()
		}
	})
}

// A store that cannot decide on keys together is asked for one limiter after the other.
func TestAFirstOnAStoreWithoutListsAsksInTurn(t *testing.T) {
	s := withoutJoint{Store: memory(t, newClock())}
	first := newFirst(t, newLimiter(t, "token_bucket", s, ratelimit.PerDay(1), ratelimit.WithName("a")), newLimiter(t, "token_bucket", s, ratelimit.PerDay(1), ratelimit.WithName("b")))
	for _, want := range []bool{true, true, false} {
		r, err := first.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, want, r.Allowed)
	}
}

// A store that cannot decide on several keys at present refuses a call of a First once, and the functions of its
// limits are not asked again.
func TestAFirstThatIsDecidedApart(t *testing.T) {
	s, asked, broken := &apart{Store: memory(t, newClock())}, 0, errors.New("no such plan")
	day := ratelimit.PerDay(1)
	counts := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { asked++; return day, nil })
	fails := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return day, broken })
	first := newFirst(t, newLimiter(t, "token_bucket", s, day),
		all(t, newLimiter(t, "token_bucket", s, day, ratelimit.WithName("b"), counts), newLimiter(t, "token_bucket", s, day, ratelimit.WithName("c"))),
		newLimiter(t, "token_bucket", s, day, ratelimit.WithName("d"), fails))
	for i, want := range []error{nil, nil, broken} {
		r, err := first.Allow(t.Context(), "key")
		require.Equal(t, want, err, "call %d", i)
		require.Equal(t, want == nil, r.Allowed)
		require.Equal(t, []int{i + 1, i + 1}, []int{s.refused, asked}, "call %d", i)
	}
}

// sameKeyOnly is a store that decides only on equal keys together, as a cluster does.
type sameKeyOnly struct{ store.Store }

func (sameKeyOnly) Together(key, other string) bool { return key == other }

// A call that a First cannot make together changes no later call, of any limiter.
func TestAFirstThatAsksInTurnChangesNoOtherCall(t *testing.T) {
	mem := memory(t, newClock())
	elsewhere := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "elsewhere", nil })
	first := newFirst(t, newLimiter(t, "token_bucket", sameKeyOnly{mem}, ratelimit.PerDay(1000)),
		newLimiter(t, "token_bucket", sameKeyOnly{mem}, ratelimit.PerDay(1000), ratelimit.WithName("elsewhere"), elsewhere, ratelimit.WithReserved(500)))
	free := newLimiter(t, "token_bucket", mem, ratelimit.PerDay(2000), ratelimit.WithName("free"))
	spent := newLimiter(t, "token_bucket", mem, ratelimit.PerDay(1), ratelimit.WithName("spent"))
	require.True(t, allow(t, spent, "key").Allowed)
	both := all(t, free, spent)
	for range 100 {
		require.True(t, allow(t, first, "key").Allowed)
		require.False(t, allow(t, both, "key").Allowed)
	}
	require.Equal(t, 2000, left(t, free, "key"))
}

// Two limits of an All that share their counts are decided one after the other.
func TestAFirstOfLimitsThatShareTheirCountsAsksInTurn(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *ratelimittest.Clock) {
		wide := newLimiter(t, algorithm, s, ratelimit.PerDay(5), ratelimit.WithName("shared"))
		narrow := newLimiter(t, algorithm, s, ratelimit.PerDay(4), ratelimit.WithName("shared"))
		last := newLimiter(t, algorithm, s, ratelimit.PerDay(1), ratelimit.WithName("last"))
		first := newFirst(t, all(t, wide, narrow), last)
		for i, want := range []bool{true, true, true, false} { // two are charged of 4, then of 2, and then the last
			r, err := first.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, want, r.Allowed, "call %d", i)
		}
		require.Equal(t, 1, left(t, wide, "key"))
	})
}

func TestWaitersOfAFirstShareTheQueueOfTheKeyThatIsCounted(t *testing.T) {
	tenant := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "tenant", nil })
	first := newFirst(t, newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerDay(1), tenant))
	keyOf := see.KeyOf[ratelimit.Limiter](first)
	require.NotNil(t, keyOf)
	ann, err := keyOf(t.Context(), "ann", 1)
	require.NoError(t, err)
	bob, err := keyOf(t.Context(), "bob", 1)
	require.NoError(t, err)
	require.Equal(t, ann, bob)
}

// A limit function may cost a lookup.
func TestTheFunctionsOfAFirstAreAskedOnceForACall(t *testing.T) {
	for name, s := range map[string]store.Store{"together": memory(t, newClock()), "apart": &apart{Store: memory(t, newClock())}, "in turn": sameKeyOnly{memory(t, newClock())}} {
		asked := map[string]int{}
		lim := func(what string, l ratelimit.Limit) ratelimit.Limiter {
			return newLimiter(t, "token_bucket", s, l, ratelimit.WithName(what),
				ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { asked["key of "+what]++; return what, nil }),
				ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { asked["limit of "+what]++; return l, nil }))
		}
		first := newFirst(t, lim("a", ratelimit.PerDay(1)), all(t, lim("b", ratelimit.PerDay(1)), lim("c", ratelimit.PerDay(2))), lim("d", ratelimit.PerDay(2)))
		for i, want := range []bool{true, true, true, true, false} {
			clear(asked)
			r, err := first.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, want, r.Allowed, "%s, call %d", name, i)
			for what, times := range asked {
				require.LessOrEqual(t, times, 1, "%s, call %d: %s", name, i, what)
			}
		}
	}
}

// Whether they are asked together or one after the other, and share their counts or not.
func TestAPeekAtSeveralLimitsTellsWhenTheyAdmit(t *testing.T) {
	for seed := range uint64(effort.Of(200, 1000, 20_000)) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := newClock()
		stores := []store.Store{memory(t, c), memory(t, c)}
		one := func() ratelimit.Limiter {
			l := ratelimit.Limit{Rate: 3, Period: 10 * time.Second}
			name := []string{"x", "y", "z"}[rng.IntN(3)]
			return newLimiter(t, algorithms[rng.IntN(len(algorithms))], stores[rng.IntN(2)], l, ratelimit.WithName(name), ratelimit.WithReserved(rng.IntN(2)))
		}
		several := func() ratelimit.Limiter { return all(t, one(), one(), one()) }
		for what, lim := range map[string]ratelimit.Limiter{"All": several(), "First": newFirst(t, several(), one(), several())} {
			for range 12 {
				allow(t, lim, "key")
				c.Advance(time.Duration(rng.IntN(400)) * time.Millisecond)
			}
			p := peek(t, lim, "key")
			if p.Allowed || p.RetryAfter == ratelimit.Never {
				continue
			}
			c.Advance(p.RetryAfter - time.Microsecond)
			require.False(t, allow(t, lim, "key").Allowed, "%s, seed %d: after 1 µs less than %v", what, seed, p.RetryAfter)
			c.Advance(time.Microsecond)
			require.True(t, allow(t, lim, "key").Allowed, "%s, seed %d: after %v", what, seed, p.RetryAfter)
		}
	}
}
