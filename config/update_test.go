package config_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// one is a text of one limiter, "a".
func one(fields string) string { return "limiters: {a: {" + fields + "}}" }

func update(t testing.TB, ls *config.Limiters, text string) {
	t.Helper()
	require.NoError(t, ls.Update(parse(t, text)))
}

func TestALimiterFollowsAnUpdateAndKeepsTheSpend(t *testing.T) {
	// 4 of 10 are spent; left is what the key has under the second text.
	tests := []struct {
		name, before, after string
		left                int
	}{
		{"another rate", "algorithm: sliding_window, limit: 10/h", "algorithm: sliding_window, limit: 15/h", 11},
		{"a rate below the spend", "algorithm: sliding_log, limit: 10/h", "algorithm: sliding_log, limit: 3/h", 0},
		{"another burst", "algorithm: token_bucket, limit: 1/h burst 10", "algorithm: token_bucket, limit: 1/h burst 12", 8},
		{"a tier", "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limit: 10/d, tiers: {key: 20/d}", 16},
		{"a tier of another period", "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limit: 10/d, tiers: {key: 20/30d}", 16},
		{"one more limit", "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limits: [10/d, 20/30d]", 6},
		{"one limit less", "algorithm: fixed_window, limits: [10/d, 20/30d]", "algorithm: fixed_window, limit: 12/d", 8},
		{"a failure policy", "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limit: 10/d, on_failure: local, instances: 2", 6},
		{"a deny cache and coalescing", "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limit: 10/d, store: {deny_cache: true, coalescing: true}", 6},
		{"a lease", "algorithm: fixed_window, limit: 10/h", "algorithm: fixed_window, limit: 10/h, store: {lease: 10m}", 6},
		{"another period: a new count", "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limit: 10/2d", 10},
		{"another rate by the calendar", "algorithm: fixed_window, limit: 10/month in Asia/Kolkata", "algorithm: fixed_window, limit: 15/month in Asia/Kolkata", 11},
		{"a calendar among others", "algorithm: fixed_window, limit: 10/month in Asia/Kolkata", "algorithm: fixed_window, limits: [20/month, 10/month in Asia/Kolkata, 20/31d]", 6},
		{"another zone: a new count", "algorithm: fixed_window, limit: 10/month in Asia/Kolkata", "algorithm: fixed_window, limit: 10/month in Asia/Tokyo", 10},
		{"calendar days: a new count", "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limit: 10/day in UTC", 10},
		{"another algorithm: a new count", "algorithm: fixed_window, limit: 10/d", "algorithm: sliding_window, limit: 10/d", 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s store.Store) {
				ls := build(t, s, one(tt.before))
				l := limiter(t, ls, "a")
				require.Equal(t, 4, admitted(t, l, "key", 4))
				update(t, ls, one(tt.after))
				require.Same(t, l, limiter(t, ls, "a"))
				require.Equal(t, tt.left, admitted(t, l, "key", 30))

				update(t, ls, one(tt.before))
				untouched := tt.left == 0 || tt.left == 10 // the first text's count is still at 4
				require.Equal(t, untouched, allow(t, l, "key").Allowed, "and back: what has been spent")
			})
		})
	}
}

func TestAnUpdateMakesTheSameLimitersAsAStart(t *testing.T) {
	onEach(t, func(t *testing.T, s store.Store) {
		ls := build(t, s, one("algorithm: token_bucket, limit: 5/h"))
		old := limiter(t, ls, "a")
		next := one("algorithm: token_bucket, limit: 8/d burst 3, tiers: {free: 2/h}")
		update(t, ls, next)
		started := limiter(t, build(t, s, next), "a")
		for _, key := range []string{"free:1", "pro:1"} {
			require.Equal(t, 2, admitted(t, old, key, 2))
			require.Equal(t, policies(t, old, key), policies(t, started, key))
			left, err := old.Peek(t.Context(), key)
			require.NoError(t, err)
			same, err := started.Peek(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, left, same, key)
		}
	})
}

func TestUpdateAddsLimitersAndTakesAwayThoseThatNobodyUses(t *testing.T) {
	ls := build(t, memory(t), whole)
	api := limiter(t, ls, "api")
	update(t, ls, "limiters: {api: {algorithm: fixed_window, limit: 1/d}, new: {algorithm: fixed_window, limit: 2/d}}")
	require.Equal(t, []string{"api", "new"}, ls.Names())
	require.Equal(t, 2, admitted(t, limiter(t, ls, "new"), "key", 3))
	require.Equal(t, 1, admitted(t, api, "key", 3))
	_, err := ls.Limiter("search")
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)

	update(t, ls, whole+"  new: {algorithm: fixed_window, limit: 2/d}\n")
	require.Equal(t, 20, admitted(t, limiter(t, ls, "search"), "key", 21), "it is back")
}

func TestAnUpdateThatFailsChangesNothing(t *testing.T) {
	ls, err := parse(t, one("algorithm: fixed_window, limit: 2/d")+"\n").Build(memory(t))
	require.NoError(t, err)
	l := limiter(t, ls, "a")

	err = ls.Update(parse(t, "limiters: {b: {algorithm: fixed_window, limit: 9/d}}"))
	require.EqualError(t, err, ratelimit.ErrInvalidOption.Error()+`: limiter "a" is in use, but missing from the new configuration: keep it there`)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	err = ls.Update(parse(t, "limiters:\n a: {algorithm: fixed_window, limit: 9/d}\n b: {algorithm: fixed_window, limit: 9/d, tiers: {x: 1/s}}"))
	require.ErrorContains(t, err, `config: 3:2: limiter "b": `)
	require.ErrorIs(t, ls.Update(nil), ratelimit.ErrInvalidOption)
	require.ErrorIs(t, ls.Update(new(config.Config)), ratelimit.ErrInvalidOption)

	require.Equal(t, []string{"a"}, ls.Names())
	require.Equal(t, 2, admitted(t, l, "key", 3))
}

func TestADeniedKeyOfADenyCacheIsFreeAtOnceWhenItsLimitIsRaised(t *testing.T) {
	ls := build(t, memory(t), one("algorithm: fixed_window, limit: 2/d, store: {deny_cache: true}"))
	l := limiter(t, ls, "a")
	require.Equal(t, 2, admitted(t, l, "key", 4))
	require.Equal(t, ratelimit.SourceDenyCache, allow(t, l, "key").Source())
	update(t, ls, "# the same, in another line\n"+one("algorithm: fixed_window, limit: 2/d, store: {deny_cache: true}"))
	require.Equal(t, ratelimit.SourceDenyCache, allow(t, l, "key").Source(), "nothing has changed")
	update(t, ls, one("algorithm: fixed_window, limit: 5/d, store: {deny_cache: true}"))
	require.Equal(t, 3, admitted(t, l, "key", 4))
}

func TestARefundAfterAnUpdateReachesTheCountsThatWereCharged(t *testing.T) {
	// 4 events are charged by the first text and refunded under the second.
	const window = "algorithm: fixed_window, "
	for name, tt := range map[string]struct{ before, after string }{
		"one more behind":    {window + "limit: 10/d", window + "limits: [10/d, 20/30d]"},
		"one more in front":  {window + "limits: [10/d, 30/60d]", window + "limits: [20/30d, 10/d, 30/60d]"},
		"another order":      {window + "limits: [10/d, 20/30d]", window + "limits: [20/30d, 10/d]"},
		"one less":           {window + "limits: [10/d, 20/30d]", window + "limit: 10/d, store: {deny_cache: true}"},
		"another in between": {window + "limits: [10/d, 20/30d]", window + "limits: [10/d, 15/7d]"},
		"another algorithm":  {window + "limit: 10/d", "algorithm: sliding_log, limits: [10/d, 20/30d]"},
		"another rate":       {window + "limit: 9/d, store: {deny_cache: true}", window + "limit: 10/d, store: {deny_cache: true}"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s store.Store) {
				ls := build(t, s, one(tt.before))
				l := limiter(t, ls, "a")
				r, err := l.AllowN(t.Context(), "key", 4)
				require.NoError(t, err)
				update(t, ls, one(tt.after))
				for allow(t, l, "key").Allowed { // and a denial, of which a deny cache knows
				}
				require.NoError(t, l.Refund(t.Context(), "key", r, 4))
				if name != "another algorithm" {
					require.Equal(t, 4, admitted(t, l, "key", 20))
				}
				update(t, ls, one(tt.before))
				if name == "another algorithm" {
					require.Equal(t, 10, admitted(t, l, "key", 20))
				}
			})
		})
	}
}

// ---- While the store fails.

// frail is a store that can be made to fail.
type frail struct {
	store.Store
	down   bool
	resets int
}

func (f *frail) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	f.resets++
	return f.Store.Reset(ctx, ns, key)
}

func (f *frail) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if f.down {
		return store.Reply{}, ratelimit.ErrStore
	}
	return f.Store.Take(ctx, ns, key, l, n)
}

func (f *frail) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if f.down {
		return ratelimit.ErrStore
	}
	return f.Store.Decide(ctx, requests, replies)
}

// slow is a store whose calls of Take take a second, and are counted.
type slow struct {
	store.Store
	takes, decides atomic.Int32
}

func (s *slow) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.takes.Add(1)
	time.Sleep(time.Second)
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *slow) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	s.decides.Add(1)
	time.Sleep(time.Second)
	return s.Store.Decide(ctx, requests, replies)
}

func TestCoalescedCallersAskTheStoreTogether(t *testing.T) {
	for fields, calls := range map[string]struct{ takes, decides, left int32 }{
		"limit: 9/d":                                       {8, 0, 1},
		"limit: 9/d, store: {coalescing: true}":            {1, 1, 1}, // the others come by one TakeUpTo
		"limits: [100/d, 50/h]":                            {0, 8, 42},
		"limits: [100/d, 50/h], store: {coalescing: true}": {0, 2, 42},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &slow{Store: memory(t)}
			l := limiter(t, build(t, s, one("algorithm: token_bucket, "+fields)), "a")
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { _, _ = l.Allow(t.Context(), "key") })
			}
			wg.Wait()
			require.Equal(t, calls.takes, s.takes.Load(), fields)
			require.Equal(t, calls.decides, s.decides.Load(), fields)
			require.EqualValues(t, calls.left, peek(t, l, "key").Remaining, fields)
		})
	}
}

func TestWhileTheStoreFailsThePolicyOfTheTextInForceAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &frail{Store: memory(t)}
		const text = "algorithm: fixed_window, limit: 8/d, tiers: {free: 4/d}"
		ls := build(t, s, one(text))
		l := limiter(t, ls, "a")
		s.down = true
		_, err := l.Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrStore)

		update(t, ls, one(text+", on_failure: open"))
		let := allow(t, l, "key")
		require.Equal(t, ratelimit.SourceFailOpen, let.Source())
		require.True(t, let.Allowed)

		update(t, ls, one(text+", on_failure: closed"))
		require.Equal(t, ratelimit.SourceFailClosed, allow(t, l, "key").Source())
		require.NoError(t, l.Refund(t.Context(), "key", let, 1), "it was never charged")

		update(t, ls, one(text+", on_failure: local, instances: 4"))
		require.Equal(t, ratelimit.SourceLocal, allow(t, l, "other").Source())
		require.Equal(t, 2, admitted(t, l, "key", 3))
		require.Equal(t, 1, admitted(t, l, "free:1", 3))
		update(t, ls, one(text+", on_failure: local, instances: 1"))
		require.Equal(t, 6, admitted(t, l, "key", 8), "a share of 8/d, with 2 spent")

		s.down = false
		time.Sleep(2 * time.Second)
		require.Zero(t, admitted(t, l, "key", 1), "the store is charged with what was let through locally")
	})
}

func TestTheDebtsOfAnOutageOutliveUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &frail{Store: memory(t)}
		local := one("algorithm: fixed_window, limit: 8/d, on_failure: local, instances: 1")
		ls := build(t, s, local)
		l := limiter(t, ls, "a")
		s.down = true
		admission := allow(t, l, "key")
		require.Equal(t, 4, admitted(t, l, "key", 4))

		update(t, ls, one("algorithm: fixed_window, limit: 9/d"))
		require.NoError(t, l.Refund(t.Context(), "key", admission, 1), "to the local limiter")
		update(t, ls, local)
		s.down = false
		time.Sleep(2 * time.Second)
		require.Equal(t, 4, admitted(t, l, "key", 8), "4 of 8 were let through in the outage and kept")
	})
}

func TestLocalAdmissionsAreOwedUnderTheNextPolicyToo(t *testing.T) {
	const text = "algorithm: sliding_window, limit: 10/h"
	for _, next := range []string{"closed", "open", "error"} {
		synctest.Test(t, func(t *testing.T) {
			s := &frail{Store: memory(t)}
			ls := build(t, s, one(text+", on_failure: local, instances: 1"))
			l := limiter(t, ls, "a")
			s.down = true
			require.Equal(t, 10, admitted(t, l, "key", 11))

			update(t, ls, one(text+", on_failure: "+next))
			require.Zero(t, admitted(t, l, "key", 10), next)
			if r, err := l.Allow(t.Context(), "other"); next == "error" {
				require.ErrorIs(t, err, ratelimit.ErrStore)
			} else {
				require.Equal(t, "fail_"+next, r.Source().String(), "who owes nothing follows at once")
			}

			s.down = false
			time.Sleep(2 * time.Second)
			require.Zero(t, admitted(t, l, "key", 10), next)
			s.down = true
			if next == "closed" {
				require.Equal(t, ratelimit.SourceFailClosed, allow(t, l, "key").Source(), "it has paid")
			}
		})
	}
}

func TestResetForgetsWhatLocalHasAdmittedUnderTheNextPolicyToo(t *testing.T) {
	const text = "algorithm: sliding_window, limit: 10/h"
	for _, next := range []string{"closed", "open", "error"} {
		synctest.Test(t, func(t *testing.T) {
			s := &frail{Store: memory(t)}
			ls := build(t, s, one(text+", on_failure: local, instances: 1"))
			l := limiter(t, ls, "a")
			require.Equal(t, 4, admitted(t, l, "key", 4), "which are charged to the local limiter too")
			update(t, ls, one(text+", on_failure: "+next))
			require.NoError(t, l.Reset(t.Context(), "key"))
			update(t, ls, one(text+", on_failure: local, instances: 1"))
			s.down = true
			require.Equal(t, 10, admitted(t, l, "key", 11), next)

			update(t, ls, one(text+", on_failure: "+next))
			s.down = false
			time.Sleep(2 * time.Second)
			require.NoError(t, l.Reset(t.Context(), "key"))
			require.Equal(t, 10, admitted(t, l, "key", 11), next)
		})
	}
}

// An Update that takes a limit away leaves its count, and the next one may want it again.
func TestResetReachesTheCountsOfFormerTexts(t *testing.T) {
	const day, both, log = "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limits: [10/d, 20/2d]", "algorithm: sliding_log, limit: 15/7d"
	onEach(t, func(t *testing.T, s store.Store) {
		ls := build(t, s, one(both))
		l := limiter(t, ls, "a")
		require.Equal(t, 10, admitted(t, l, "key", 11))
		require.Equal(t, 10, admitted(t, l, "other", 11))
		update(t, ls, one(log+", on_failure: closed"))
		require.Equal(t, 15, admitted(t, l, "key", 16))
		update(t, ls, one(day+", store: {deny_cache: true}"))
		require.NoError(t, l.Reset(t.Context(), "key"))
		require.Equal(t, 10, admitted(t, l, "key", 11))
		update(t, ls, one(log))
		require.Equal(t, 15, admitted(t, l, "key", 16))
		require.NoError(t, l.Reset(t.Context(), "key"))
		update(t, ls, one(both))
		require.Equal(t, 10, admitted(t, l, "key", 11))
		require.Zero(t, admitted(t, l, "other", 11), "which was not reset")
		require.ErrorIs(t, l.Reset(t.Context(), ""), ratelimit.ErrInvalidKey)
	})
}

func TestResetReachesTheBanOfAFormerText(t *testing.T) {
	const limit = "algorithm: fixed_window, limit: 1/d"
	const banned = limit + ", ban: {denials: 1/10m, for: 1h}"
	onEach(t, func(t *testing.T, s store.Store) {
		ls := build(t, s, one(banned))
		l := limiter(t, ls, "a")
		require.Equal(t, 1, admitted(t, l, "key", 2))
		update(t, ls, one(limit))
		require.NoError(t, l.Reset(t.Context(), "key"))
		update(t, ls, one(banned))
		require.Equal(t, 1, admitted(t, l, "key", 2))
	})
}

// Callers that wait for a limit of an All are queued as the text in force says, and not as the one under which the All
// was made.
func TestAnAllOfALimiterThatChangesHasItsQueue(t *testing.T) {
	const bucket, window = "algorithm: token_bucket, limit: 10/2s", "algorithm: sliding_window, limit: 10/2s"
	for _, first := range []string{bucket, window} {
		synctest.Test(t, func(t *testing.T) {
			s := ratelimit.Must(memstore.New())
			ls := build(t, s, one(first))
			all := ratelimit.Must(ratelimit.NewAll(limiter(t, ls, "a"), ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerSecond(1000)))))
			update(t, ls, one(window))
			ctx, cancel := context.WithCancel(t.Context())
			var others sync.WaitGroup
			for range 110 {
				others.Go(func() { _, _ = ratelimit.Wait(ctx, all, "key", 1) })
			}
			synctest.Wait()
			time.Sleep(2100 * time.Millisecond)
			mine, stop := context.WithTimeout(t.Context(), 35*time.Second)
			defer stop()
			_, err := ratelimit.Wait(mine, all, "key", 1)
			require.NoError(t, err, first)
			cancel()
			others.Wait()
		})
	}
}

func TestResetReachesWhatLocalCountedByFormerTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &frail{Store: memory(t)}
		const day, week = "algorithm: fixed_window, limit: 10/d", "algorithm: fixed_window, limit: 15/7d"
		const local = ", on_failure: local, instances: 1"
		ls := build(t, s, one(day+local))
		l := limiter(t, ls, "a")
		require.Equal(t, 4, admitted(t, l, "key", 4))
		s.down = true
		require.Equal(t, 6, admitted(t, l, "key", 11))
		update(t, ls, one(week+", on_failure: closed"))
		update(t, ls, one(week+local))
		require.Equal(t, 15, admitted(t, l, "key", 16))
		s.down = false
		time.Sleep(2 * time.Second)
		require.NoError(t, l.Reset(t.Context(), "key"))
		require.Equal(t, 2, s.resets, "of each count once")
		update(t, ls, one(day+local))
		require.Equal(t, 10, admitted(t, l, "key", 11), "nothing is owed")
	})
}

func TestALocalRefundAfterAnUpdateReachesTheCountsThatWereCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &frail{Store: memory(t)}
		text := func(limits string) string {
			return one("algorithm: fixed_window, limits: " + limits + ", on_failure: local, instances: 1")
		}
		ls := build(t, s, text("[10/d, 20/30d]"))
		l := limiter(t, ls, "a")
		both, err := l.AllowN(t.Context(), "key", 3)
		require.NoError(t, err)
		s.down = true
		local, err := l.AllowN(t.Context(), "key", 4)
		require.NoError(t, err)
		update(t, ls, text("[15/7d, 20/30d, 10/d]"))
		require.NoError(t, l.Refund(t.Context(), "key", local, 4))
		require.Equal(t, 7, admitted(t, l, "key", 20), "3 are the store's")

		s.down = false
		time.Sleep(2 * time.Second)
		require.NoError(t, l.Refund(t.Context(), "key", both, 3))
		require.Equal(t, 3, admitted(t, l, "key", 20))
	})
}

// ---- Concurrency.

func TestEachDecisionIsByOneTextWhileUpdatesGoOn(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	texts := []string{
		one("algorithm: fixed_window, limits: [100/s, 2000/m]"),
		one("algorithm: token_bucket, limit: 300/s, store: {deny_cache: true}, on_failure: local, instances: 2"),
		one("algorithm: sliding_log, limit: 400/s, tiers: {x: 500/s}, store: {coalescing: true}, on_failure: open"),
	}
	ls := build(t, elsewhere{mem}, texts[0])
	l := limiter(t, ls, "a")
	good := map[string]bool{
		"a/s 100/s, a/m 2000/m": true, "a 300/s": true, "a 400/s": true,
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for caller := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				key := fmt.Sprint("key", (caller+i)%3)
				r, err := l.Allow(context.Background(), key)
				if err == nil && r.Allowed {
					_ = l.Refund(context.Background(), key, r, 1)
				}
				if err != nil || !good[policies(t, l, key)] {
					t.Errorf("%v %v", err, policies(t, l, key))
					return
				}
				if _, err := ls.Limiter("a"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 300 {
		require.NoError(t, ls.Update(parse(t, texts[i%len(texts)])))
	}
	close(done)
	wg.Wait()
}

func TestChangesOfTheRateDuringTrafficAdmitNoMoreThanTheHighestRate(t *testing.T) {
	ls := build(t, memory(t), one("algorithm: fixed_window, limit: 100/d"))
	l := limiter(t, ls, "a")
	texts := []*config.Config{
		parse(t, one("algorithm: fixed_window, limit: 50/d, store: {deny_cache: true}")),
		parse(t, one("algorithm: fixed_window, limit: 100/d, store: {coalescing: true}")),
		parse(t, one("algorithm: fixed_window, limits: [70/d, 90/2d]")),
	}
	admissions := make([]int, 4)
	var wg sync.WaitGroup
	for caller := range admissions {
		wg.Go(func() {
			for i := range 500 {
				if i%10 == 0 && ls.Update(texts[(caller+i/10)%len(texts)]) != nil {
					t.Error("an update failed")
				}
				if r, err := l.Allow(context.Background(), "key"); err == nil && r.Allowed {
					admissions[caller]++
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, ls.Update(texts[1]))
	for allow(t, l, "key").Allowed {
		admissions[0]++
	}
	require.Equal(t, 100, admissions[0]+admissions[1]+admissions[2]+admissions[3])
}
