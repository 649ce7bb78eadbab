package config_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// hold takes a slot of key, or nil if there is none.
func hold(t *testing.T, l ratelimit.Limiter) *inflight.Slot {
	t.Helper()
	slot, r, err := inflight.Hold(t.Context(), l, "user:ann", 1)
	require.NoError(t, err)
	require.Equal(t, slot != nil, r.Allowed)
	return slot
}

// free is how many slots or events ann has left.
func free(t *testing.T, l ratelimit.Limiter, want int) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, err := l.Peek(t.Context(), "user:ann")
		require.NoError(t, err)
		return r.Remaining == want
	}, 10*time.Second, time.Millisecond, "%d are free", want) // a Release goes its own way
}

func onRealClocks(t *testing.T, test func(t *testing.T, s store.Store)) {
	t.Helper()
	t.Run("in memory", func(t *testing.T) { test(t, ratelimit.Must(memstore.New())) })
	t.Run("on Redis", func(t *testing.T) {
		client := redistest.Shared(t).Client(t)
		require.NoError(t, client.FlushAll(t.Context()).Err())
		test(t, ratelimit.Must(redisstore.New(client, redisstore.WithTimeout(10*time.Second))))
	})
}

func TestSlotsByTheTextAndThroughUpdates(t *testing.T) {
	onRealClocks(t, func(t *testing.T, s store.Store) {
		ls := build(t, s, one("in_flight: 2"))
		l := limiter(t, ls, "a")
		first, second := hold(t, l), hold(t, l)
		require.Nil(t, hold(t, l))
		policies, err := ratelimit.AppendPolicies(t.Context(), nil, l, "user:ann")
		require.NoError(t, err)
		require.Equal(t, []string{"a 2 concurrent-requests"}, names(policies))

		update(t, ls, one("in_flight: 3, life: 30s"))
		third := hold(t, l)
		require.NotNil(t, third, "there is one more, and what is held keeps its place")
		require.Nil(t, hold(t, l))

		update(t, ls, one("algorithm: fixed_window, limit: 100/d, in_flight: 1, on_failure: open"))
		require.Nil(t, hold(t, l), "nobody new comes until fewer than one is held")
		for _, slot := range []*inflight.Slot{first, second, third} {
			slot.Release()
		}
		free(t, l, 1)
		fourth := hold(t, l)
		require.NotNil(t, fourth)
		require.Nil(t, hold(t, l))
		policies, err = ratelimit.AppendPolicies(t.Context(), nil, l, "user:ann")
		require.NoError(t, err)
		require.Equal(t, []string{"a 100 requests", "a/in_flight 1 concurrent-requests"}, names(policies))

		update(t, ls, one("algorithm: fixed_window, limit: 100/d"))
		fourth.Release() // of a former text
		free(t, l, 99)   // the event stays charged, and denied ones were not
		update(t, ls, one("algorithm: fixed_window, limits: [100/d, 200/2d], in_flight: 1, on_failure: local, instances: 4"))
		free(t, l, 1)
		fifth := hold(t, l)
		require.NotNil(t, fifth)
		require.NoError(t, l.Reset(t.Context(), "user:ann"))
		require.NotNil(t, hold(t, l), "a Reset takes slots away")
	})
}

// What was charged with a slot is refunded even if the text no longer has a rate.
func TestASlotIsSettledUnderATextOfSlotsAlone(t *testing.T) {
	const both = "algorithm: fixed_window, limit: 100/d, in_flight: 2"
	for settled, want := range map[int]int{0: 100, 2: 98} {
		for _, failure := range []string{"", ", on_failure: open", ", on_failure: local, instances: 2"} {
			ls := build(t, ratelimit.Must(memstore.New()), one(both+failure))
			l := limiter(t, ls, "a")
			slot, _, err := inflight.Hold(t.Context(), l, "user:ann", 5)
			require.NoError(t, err)
			update(t, ls, one("in_flight: 2"+failure))
			require.NoError(t, slot.Settle(t.Context(), settled))
			free(t, l, 1)
			slot.Release()
			free(t, l, 2)
			update(t, ls, one(both+failure))
			r, err := l.Peek(t.Context(), "user:ann")
			require.NoError(t, err)
			require.Equal(t, want, r.Parts()[0].Remaining, "%d %s", settled, failure)

			update(t, ls, one("in_flight: 2"+failure)) // the other way round nothing was charged
			slot, _, err = inflight.Hold(t.Context(), l, "user:ann", 5)
			require.NoError(t, err)
			update(t, ls, one(both+failure))
			require.NoError(t, slot.Settle(t.Context(), settled))
			r, err = l.Peek(t.Context(), "user:ann")
			require.NoError(t, err)
			require.Equal(t, []int{want, 1}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining})
			slot.Release()
		}
	}
}

// turning calls turn at one of the moments at which it is asked for anything.
type turning struct {
	ratelimit.Limiter
	turn func()

	mu   sync.Mutex
	left int // moments before that
}

func (l *turning) moment() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left--; l.left == 0 {
		l.turn()
	}
}

// over ends the moments, and reports whether turn was called.
func (l *turning) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	turned := l.left <= 0
	l.left = 0
	return turned
}

func (l *turning) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	l.moment()
	r, err := l.Limiter.AllowN(ctx, key, n)
	l.moment()
	return r, err
}

func (l *turning) Unwrap() ratelimit.Limiter {
	l.moment()
	return l.Limiter
}

// A caller that settles or refunds events still holds the slot.
func TestASlotStaysHeldWhenItsEventsAreGivenBackAfterAnUpdate(t *testing.T) {
	const both = "algorithm: token_bucket, limit: 12/d, in_flight: 8"
	for _, actual := range []int{0, 2} {
		for _, texts := range [][2]string{{both, both + ", life: 30s"}, {both + ", on_failure: open", both}, {"in_flight: 8", both}} {
			ls := build(t, ratelimit.Must(memstore.New()), one(texts[0]))
			l := limiter(t, ls, "a")
			slot, _, err := inflight.Hold(t.Context(), l, "user:ann", 5)
			require.NoError(t, err)
			update(t, ls, one(texts[1]))
			require.NoError(t, slot.Settle(t.Context(), actual))
			r, err := l.Peek(t.Context(), "user:ann")
			require.NoError(t, err)
			require.Equal(t, 7, r.Parts()[1].Remaining, "%d of %s, then %s", actual, texts[0], texts[1])
			if texts[0] != "in_flight: 8" {
				require.Equal(t, 12-actual, r.Parts()[0].Remaining)
			}
			slot.Release()
			free(t, l, 8)
		}
	}
}

// A Charge takes no slot, so that there is none to give back.
func TestARefundOfAChargeBesideSlotsAfterAnUpdate(t *testing.T) {
	ls := build(t, ratelimit.Must(memstore.New()), one("algorithm: token_bucket, limit: 12/d, in_flight: 8"))
	l := limiter(t, ls, "a")
	charged, err := ratelimit.Charge(t.Context(), l, "user:ann", 3)
	require.NoError(t, err)
	update(t, ls, one("algorithm: token_bucket, limit: 10/d, in_flight: 7"))
	require.NoError(t, l.Refund(t.Context(), "user:ann", charged, 3))
	r, err := l.Peek(t.Context(), "user:ann")
	require.NoError(t, err)
	require.Equal(t, 10, r.Parts()[0].Remaining)
	require.Equal(t, 7, r.Parts()[1].Remaining)
}

// If a text takes effect while a request is decided, the decision follows the old text or the new
// one: it is not an error, and no additional slot or event stays charged.
func TestATextThatComesWhileASlotIsTaken(t *testing.T) {
	onRealClocks(t, func(t *testing.T, s store.Store) {
		const slots, rates, both = "in_flight: 2", "algorithm: fixed_window, limit: 100/d", "algorithm: fixed_window, limit: 100/d, in_flight: 2"
		for _, texts := range [][2]string{{slots, rates}, {rates, slots}, {slots, both}, {both, slots}, {rates, both}, {both, rates}, {slots, "in_flight: 2, life: 30s"}} {
			for moment, turned := 1, true; turned; moment++ {
				ls := build(t, s, one(texts[0]))
				l := &turning{Limiter: limiter(t, ls, "a"), left: moment}
				l.turn = func() { update(t, ls, one(texts[1])) }
				limited, err := httplimit.New(l, httplimit.WithKey(httplimit.User(func(*http.Request) string { return "ann" })))
				require.NoError(t, err)
				w := httptest.NewRecorder()
				limited(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				turned = l.over()
				require.Equal(t, http.StatusNotFound, w.Code, "%q at %d: %v", texts, moment, w.Body)
				update(t, ls, one(slots))
				free(t, l, 2)
				update(t, ls, one(rates))
				r, err := l.Peek(t.Context(), "user:ann")
				require.NoError(t, err)
				require.GreaterOrEqual(t, r.Remaining, 99)
				require.NoError(t, l.Reset(t.Context(), "user:ann"))
			}
		}
	})
}

// Whichever text has charged the events, a Settle of 0 refunds them.
func TestASlotIsSettledWhereATextWithoutSlotsHasCharged(t *testing.T) {
	const slots, rates = "in_flight: 2", "algorithm: fixed_window, limit: 100/d"
	for moment, turned := 1, true; turned; moment++ {
		ls := build(t, ratelimit.Must(memstore.New()), one(slots))
		l := &turning{Limiter: limiter(t, ls, "a"), left: moment}
		l.turn = func() { update(t, ls, one(rates)) }
		slot, r, err := inflight.Hold(t.Context(), l, "user:ann", 5)
		turned = l.over()
		if err == nil { // otherwise the text came before Hold looked for slots
			require.True(t, r.Allowed)
			require.NoError(t, slot.Settle(t.Context(), 0))
			slot.Release()
		}
		update(t, ls, one(slots))
		free(t, l, 2)
		update(t, ls, one(rates))
		free(t, l, 100)
	}
}

// names are those of policies, with their quotas and units.
func names(policies []ratelimit.Policy) (all []string) {
	for _, p := range policies {
		unit := p.Unit
		if unit == "" {
			unit = "requests"
		}
		all = append(all, p.Name+" "+strconv.Itoa(p.Quota)+" "+unit)
	}
	return all
}

func TestSlotsThatCannotBe(t *testing.T) {
	for fields, want := range map[string]string{
		"in_flight: 0":                                   `1:27: limiter "a": in_flight: "0": want a number from 1 to 2147483647`,
		"in_flight: many":                                `1:27: limiter "a": in_flight: "many": want a number from 1 to 2147483647`,
		"in_flight: 5, life: 1ms":                        `1:36: limiter "a": life: ratelimit: invalid option: life, the TTL of a slot, is 1ms, want 100ms to 24h0m0s`,
		"in_flight: 5, life: -1s":                        `1:36: limiter "a": life: "-1s": want a time, such as 30s`,
		"in_flight: 5, life: long":                       `1:36: limiter "a": life: "long": want a time, such as 30s`,
		"algorithm: fixed_window, limit: 1/s, life: 30s": `1:53: limiter "a": life: needs in_flight`,
		"in_flight: 5, algorithm: fixed_window":          `1:30: limiter "a": algorithm: needs a limit`,
		"in_flight: 5, tiers: {a: 1/s}":                  `1:30: limiter "a": tiers: needs a limit`,
		"in_flight: 5, limit: 1/s":                       `1:12: limiter "a": no algorithm: add one, such as token_bucket`,
		"in_flight: 5, store: {deny_cache: true}":        `1:30: limiter "a": store: cannot be combined with in_flight, because each slot is taken in the store`,
		"in_flight: 5, ban: {denials: 3/1m, for: 1m}":    `1:30: limiter "a": ban: cannot be combined with in_flight, because a client that finds no slot has done nothing wrong`,
	} {
		_, err := config.Parse([]byte(one(fields)))
		require.EqualError(t, err, "config: "+want, fields)
	}
	for _, name := range []string{"", "{a}"} {
		_, err := config.Parse([]byte("limiters: {" + strconv.Quote(name) + ": {in_flight: 5, life: 30s}}"))
		require.EqualError(t, err, "config: 1:12: limiter "+strconv.Quote(name)+": ratelimit: invalid option: want a name that is not empty and has no braces")
		_, err = config.Parse([]byte("limiters: {" + strconv.Quote(name) + ": {in_flight: 5}}"))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

// An All that was made before an Update adds slots to a part refunds the rate alone when a slot is settled.
func TestASlotOfAnAllStaysHeldWhenItIsSettled(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	ls := build(t, mem, one("algorithm: fixed_window, limit: 100/d"))
	a := limiter(t, ls, "a")
	all := ratelimit.Must(ratelimit.NewAll(a, ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerDay(100)))))
	update(t, ls, one("in_flight: 1"))
	slot := hold(t, all)
	require.NotNil(t, slot)
	require.NoError(t, slot.Settle(t.Context(), 0))
	require.Nil(t, hold(t, a), "the slot is still held")
}
