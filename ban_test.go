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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// banOnAll runs test on memory, on Redis and on miniredis, by a clock that the test moves.
func banOnAll(t *testing.T, test func(t *testing.T, s store.Store, c *ratelimittest.Clock)) {
	t.Run("memory", func(t *testing.T) {
		c := ratelimittest.NewClock(time.Now().Truncate(time.Hour))
		test(t, c.Memory(t), c)
	})
	t.Run("redis", func(t *testing.T) {
		c := ratelimittest.NewClock(time.Now().Truncate(time.Hour))
		test(t, redisServer(t, redisstore.WithClock(c.Now)), c)
	})
	t.Run("miniredis", func(t *testing.T) {
		c := ratelimittest.NewClock(time.Now().Truncate(time.Hour))
		test(t, onRedis(t, redistest.Mini(t).Client(t), redisstore.WithClock(c.Now)), c)
	})
}

func newBan(t testing.TB, l ratelimit.Limiter, s store.Store, p ratelimit.Penalty, opts ...ratelimit.Option) *ratelimit.Ban {
	t.Helper()
	b, err := ratelimit.NewBan(l, s, p, opts...)
	require.NoError(t, err)
	return b
}

var quarter = ratelimit.Penalty{Denials: 3, Within: time.Minute, For: 15 * time.Minute}

func bannedFor(d time.Duration) func(*testing.T, ratelimit.Result) {
	return func(t *testing.T, r ratelimit.Result) {
		t.Helper()
		require.False(t, r.Allowed)
		require.Equal(t, ratelimit.SourceBan, r.Source())
		require.Equal(t, d, r.RetryAfter)
		require.False(t, r.Counted())
		require.Zero(t, r.Charged())
	}
}

func TestABanBeginsWithTheLastDenialAndStands(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		window := newLimiter(t, "fixed_window", s, ratelimit.PerMinute(2))
		b := newBan(t, window, s, quarter)
		require.True(t, allow(t, b, "key").Allowed)
		r := allow(t, b, "key")
		require.True(t, r.Allowed)
		require.Equal(t, 1, r.Charged())
		for range 2 {
			r := allow(t, b, "key")
			require.False(t, r.Allowed)
			require.Equal(t, ratelimit.SourceStore, r.Source())
			require.Equal(t, time.Minute, r.RetryAfter)
			require.Equal(t, ratelimit.SourceStore, peek(t, b, "key").Source(), "a look is no offense")
		}
		bannedFor(15*time.Minute)(t, allow(t, b, "key"))
		require.True(t, allow(t, b, "other").Allowed)
		for range 14 { // also in the next minutes, when the limit would admit
			c.Advance(time.Minute)
			left := peek(t, b, "key").RetryAfter
			bannedFor(left)(t, allow(t, b, "key"))
			bannedFor(left)(t, peek(t, b, "key"))
		}
		require.Equal(t, 2, peek(t, window, "key").Remaining, "what is banned is not charged")
		c.Advance(time.Minute - 1)
		bannedFor(time.Microsecond)(t, allow(t, b, "key"))
		c.Advance(time.Microsecond)
		require.True(t, allow(t, b, "key").Allowed)
	})
}

// A strike of a banned key tells when its ban ends, however many denials it has, and whatever they are compared with:
// Denials, or the seconds of For.
func TestAStrikeOfABannedKeyTellsWhenTheBanEnds(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		for i, p := range []ratelimit.Penalty{
			{Denials: 3, Within: time.Minute, For: 10 * time.Second, Most: 40 * time.Second},
			{Denials: 40, Within: time.Minute, For: 10 * time.Second},
			{Denials: 3, Within: time.Minute, For: time.Second},
			{Denials: 1, Within: time.Minute, For: 24 * time.Hour},
		} {
			var told toldOf
			b := newBan(t, newLimiter(t, "token_bucket", s, ratelimit.PerMinute(2)), s, p, ratelimit.WithName(fmt.Sprint(i)), ratelimit.WithObserver(&told))
			strike := func(n int) ratelimit.Result {
				r, err := b.Strike(t.Context(), "key", n)
				require.NoError(t, err)
				require.Equal(t, n, told.n)
				require.Equal(t, p.Denials, told.result.Limit, "%+v", p)
				require.LessOrEqual(t, told.result.Remaining, told.result.Limit)
				return r
			}
			if p.Denials > 1 {
				require.True(t, strike(p.Denials-1).Allowed)
			}
			bannedFor(p.For)(t, strike(math.MaxInt32))
			c.Advance(p.For / 4)
			for _, n := range []int{1, 2, p.Denials, 11, 41, 90_000, math.MaxInt32} {
				bannedFor(p.For-p.For/4)(t, strike(n))
				require.Equal(t, p.For-p.For/4, told.result.RetryAfter)
			}
			c.Advance(p.For - p.For/4)
			require.True(t, peek(t, b, "key").Allowed)
		}
	})
}

// toldOf is what an observer was last told of.
type toldOf struct {
	n      int
	result ratelimit.Result
}

func (o *toldOf) Decided(_ context.Context, _ string, n int, r ratelimit.Result, _ error, _ time.Duration) {
	o.n, o.result = n, r
}

// The clients that a ban is for ask with many connections.
func TestOfSixtyDenialsAtOnceOneBanBegins(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, _ *ratelimittest.Clock) {
		p := quarter
		p.Most = 24 * time.Hour
		b := newBan(t, newLimiter(t, "token_bucket", s, ratelimit.PerMinute(2)), s, p)
		var wg sync.WaitGroup
		var banned, admitted atomic.Int64
		for range 60 {
			wg.Go(func() {
				switch r, err := b.Allow(context.Background(), "key"); {
				case err != nil:
					t.Error(err)
				case r.Allowed:
					admitted.Add(1)
				case r.Source() == ratelimit.SourceBan:
					banned.Add(1)
				}
			})
		}
		wg.Wait()
		require.Equal(t, int64(2), admitted.Load())
		require.Equal(t, int64(60-2-2), banned.Load())
		bannedFor(15*time.Minute)(t, peek(t, b, "key"))
	})
}

func TestBansGrowAndAreForgotten(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		b := newBan(t, ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil), s,
			ratelimit.Penalty{Denials: 2, Within: time.Minute, For: 15 * time.Minute, Most: 2 * time.Hour})
		offend := func() ratelimit.Result {
			require.Equal(t, ratelimit.SourceStore, allow(t, b, "key").Source())
			return allow(t, b, "key")
		}
		for _, minutes := range []time.Duration{15, 30, 60, 120, 120, 120} {
			bannedFor(minutes*time.Minute)(t, offend())
			c.Advance(minutes * time.Minute)
		}
		c.Advance(2*time.Hour - time.Microsecond)
		bannedFor(2*time.Hour)(t, offend())
		c.Advance(2 * time.Hour)
		require.Equal(t, ratelimit.SourceStore, allow(t, b, "key").Source())
		c.Advance(2*time.Hour - time.Microsecond) // after a denial
		bannedFor(2*time.Hour)(t, offend())
		c.Advance(4 * time.Hour)
		bannedFor(15*time.Minute)(t, offend())
		c.Advance(15 * time.Minute)
		bannedFor(30*time.Minute)(t, offend())
		require.NoError(t, b.Reset(t.Context(), "key"))
		bannedFor(15*time.Minute)(t, offend())
	})
}

// A ban and what the limiter inside has counted are forgotten apart.
func TestABanIsLiftedAlone(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		window := newLimiter(t, "fixed_window", s, ratelimit.PerDay(2))
		p := quarter
		p.Most = 24 * time.Hour
		b := newBan(t, window, s, p)
		ban := func() {
			for r := allow(t, b, "key"); r.Source() != ratelimit.SourceBan; r = allow(t, b, "key") {
			}
		}
		for range 2 { // it is not remembered: the second is not longer
			ban()
			bannedFor(15*time.Minute)(t, peek(t, b, "key"))
			require.NoError(t, b.Lift(t.Context(), "key"))
			require.Equal(t, ratelimit.SourceStore, peek(t, b, "key").Source())
			require.Zero(t, peek(t, window, "key").Remaining, "the window stays spent")
		}
		_, err := b.Strike(t.Context(), "key", 2)
		require.NoError(t, err)
		require.NoError(t, b.Lift(t.Context(), "key"))
		r, err := b.Strike(t.Context(), "key", 2)
		require.NoError(t, err)
		require.True(t, r.Allowed, "denials that count are forgotten")

		ban()
		require.NoError(t, b.Unwrap().Reset(t.Context(), "key"))
		bannedFor(15*time.Minute)(t, peek(t, b, "key"))
		require.Equal(t, 2, peek(t, window, "key").Remaining)
	})
	require.ErrorIs(t, new(ratelimit.Ban).Lift(t.Context(), "key"), ratelimit.ErrInvalidOption)
	b := newBan(t, ratelimittest.Static(ratelimit.Result{}, nil), ratelimit.Must(memstore.New()), quarter)
	require.ErrorIs(t, b.Lift(t.Context(), ""), ratelimit.ErrInvalidKey)
}

// A ban may be over before the call that began it can tell of it.
func TestABanThatIsLiftedAtOnceDeniesNothing(t *testing.T) {
	var b *ratelimit.Ban
	lift := saying(func() { require.NoError(t, b.Lift(t.Context(), "key")) })
	mem := ratelimit.Must(memstore.New())
	b = newBan(t, newLimiter(t, "fixed_window", mem, ratelimit.PerMinute(2)), mem, quarter, ratelimit.WithObserver(lift))
	r, err := b.Strike(t.Context(), "key", quarter.Denials)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true}, r)
}

func TestDenialsCountFromTheFirstFor(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		b := newBan(t, ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil), s, quarter)
		for range 5 { // two in a minute are none too many
			allow(t, b, "key")
			c.Advance(time.Minute - time.Microsecond)
			require.Equal(t, ratelimit.SourceStore, allow(t, b, "key").Source())
			c.Advance(time.Microsecond)
		}
		for range 2 {
			require.Equal(t, ratelimit.SourceStore, allow(t, b, "key").Source())
		}
		c.Advance(time.Minute - time.Microsecond)
		bannedFor(15*time.Minute)(t, allow(t, b, "key"))
	})
}

// banModel is a Ban told in another way: by what has happened.
type banModel struct {
	p       ratelimit.Penalty
	first   time.Time // of the denials that count
	denials int
	until   time.Time // end of the last ban
	length  time.Duration
	quiet   time.Time // since when nothing has happened
}

func (m *banModel) left(now time.Time) time.Duration { return max(0, m.until.Sub(now)) }

func (m *banModel) strike(now time.Time, n int) {
	if m.left(now) > 0 {
		return
	}
	if !now.Before(m.first.Add(m.p.Within)) {
		m.denials = 0
	}
	if m.length > 0 && !now.Before(m.quiet.Add(m.p.Most)) && m.denials == 0 {
		m.length = 0
	}
	if m.denials == 0 {
		m.first = now
	}
	m.denials += n
	m.quiet = now
	if m.denials >= m.p.Denials {
		m.length = min(max(m.p.For, 2*m.length), m.p.Most)
		m.denials, m.until, m.first = 0, now.Add(m.length), time.Time{}
		m.quiet = m.until
	}
}

// expect is what a call finds that has been told to the model.
func (m *banModel) expect(t *testing.T, r ratelimit.Result, now time.Time) {
	t.Helper()
	require.Equal(t, m.left(now) == 0, r.Source() != ratelimit.SourceBan)
	if m.left(now) > 0 {
		bannedFor(m.left(now))(t, r)
	}
}

// The times are minutes, so that a server does not forget by its own clock what the test has not
// yet looked at.
func TestEachStoreBansAsAModelDoes(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		for trace := range effort.Of(3, 12, 100) {
			rng := rand.New(rand.NewPCG(7, uint64(trace)))
			some := func() time.Duration { return time.Duration(1+rng.IntN(60)) * time.Minute }
			p := ratelimit.Penalty{Denials: 1 + rng.IntN(4), Within: some(), For: some()}
			p.Most = p.For + time.Duration(rng.IntN(300))*time.Minute
			denier := ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil)
			b := newBan(t, denier, s, p, ratelimit.WithName(fmt.Sprint("trace", trace)))
			m := &banModel{p: p}
			for range 60 {
				banAsAModel(t, b, m, c, rng)
			}
		}
	})
}

// banAsAModel makes one call, and lets time pass.
func banAsAModel(t *testing.T, b *ratelimit.Ban, m *banModel, c *ratelimittest.Clock, rng *rand.Rand) {
	switch n := 1 + rng.IntN(2); rng.IntN(8) {
	case 0:
		require.NoError(t, b.Reset(t.Context(), "key"))
		*m = banModel{p: m.p}
	case 1, 2:
		m.strike(c.Now(), 1)
		m.expect(t, allow(t, b, "key"), c.Now()) // denied by the limit or, from this denial on, by the ban
	default:
		counts := m.left(c.Now()) == 0
		m.strike(c.Now(), n)
		r, err := b.Strike(t.Context(), "key", n)
		require.NoError(t, err)
		m.expect(t, r, c.Now())
		if counts && rng.IntN(3) == 0 { // a reading that comes late
			late := time.Duration(1+rng.Int64N(3600e6)) * time.Microsecond
			c.Advance(-late)
			r = peek(t, b, "key")
			c.Advance(late)
			m.expect(t, r, c.Now())
		}
	}
	switch left := m.left(c.Now()); {
	case left > 0 && rng.IntN(3) == 0:
		c.Advance(left - time.Microsecond)
		bannedFor(time.Microsecond)(t, peek(t, b, "key"))
		c.Advance(time.Microsecond)
	case rng.IntN(4) == 0: // the very end of something
		c.Advance([]time.Duration{m.p.Within, m.p.Within - time.Microsecond, m.p.Most, m.p.Most - time.Microsecond}[rng.IntN(4)])
	default:
		c.Advance(time.Duration(rng.Int64N(int64(m.p.Most))).Truncate(time.Microsecond))
	}
	m.expect(t, peek(t, b, "key"), c.Now())
}

// A ban, and the limits of an All behind it, are one script.
func TestABanAndItsLimitsAreOneCallOfTheStore(t *testing.T) {
	c := ratelimittest.NewClock(time.Now())
	s := &banCalls{Store: c.Memory(t)}
	perMinute := newLimiter(t, "token_bucket", s, ratelimit.PerMinute(2), ratelimit.WithName("a"))
	perHour := newLimiter(t, "sliding_log", s, ratelimit.PerHour(2), ratelimit.WithName("b"))
	for name, l := range map[string]ratelimit.Limiter{"one": perMinute, "two": all(t, perMinute, perHour)} {
		require.NoError(t, l.Reset(t.Context(), name))
		b := newBan(t, l, s, quarter)
		calls := func() int64 {
			defer s.calls.Store(0)
			return s.calls.Load()
		}
		calls()
		first := allow(t, b, name)
		require.True(t, first.Allowed)
		require.Equal(t, int64(1), calls())
		require.NoError(t, b.Refund(t.Context(), name, first, 1))
		require.Equal(t, 2, peek(t, l, name).Remaining, "the Result is that of the limiter inside")
		for range 2 {
			require.Equal(t, allow(t, b, name).Limit, 2)
		}
		calls()
		allow(t, b, name)
		require.Equal(t, int64(2), calls(), "a denial is counted")
		allow(t, b, name)
		allow(t, b, name)
		calls()
		bannedFor(15*time.Minute)(t, allow(t, b, name))
		require.Equal(t, int64(1), calls())
	}
}

// banCalls is a store that counts its calls.
type banCalls struct {
	store.Store
	calls atomic.Int64
}

// Decide implements [store.Store].
func (s *banCalls) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *banCalls) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.calls.Add(1)
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *banCalls) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.calls.Add(1)
	return store.Peek(ctx, s.Store, ns, key, l, n)
}

func (s *banCalls) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	s.calls.Add(1)
	return s.Store.Refund(ctx, ns, key, l, c)
}

func (s *banCalls) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	s.calls.Add(1)
	return s.Store.Decide(ctx, requests, replies)
}

// Whoever takes as many events as fit is not denied, also if other limits or wrappers are around the Ban.
func TestEventsThatDoNotFitAreNoOffense(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, _ *ratelimittest.Clock) {
		once := ratelimit.Penalty{Denials: 1, Within: time.Hour, For: time.Hour}
		b := newBan(t, newLimiter(t, "fixed_window", s, ratelimit.PerMinute(10)), s, once)
		for name, l := range map[string]ratelimit.Limiter{
			"an All":     all(t, newLimiter(t, "fixed_window", s, ratelimit.PerHour(100)), b),
			"a fallback": failover(t, b, fallback.FailOpen()),
		} {
			granted, r, err := ratelimit.AllowUpTo(t.Context(), l, name, 20)
			require.NoError(t, err)
			require.Equal(t, 10, granted, name)
			require.True(t, r.Allowed)
			granted, r, err = ratelimit.AllowUpTo(t.Context(), l, name, 20)
			require.NoError(t, err)
			require.Zero(t, granted)
			require.Equal(t, ratelimit.SourceStore, r.Source(), name)
			bannedFor(time.Hour)(t, allow(t, b, name))
		}
	})
}

func TestCallsOfABannedKeyAreDenied(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		bucket := newLimiter(t, "leaky_bucket", s, ratelimit.PerMinute(60))
		b := newBan(t, bucket, s, quarter)
		r, err := b.Strike(t.Context(), "key", 2)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		granted, r, err := b.AllowUpTo(t.Context(), "key", 100)
		require.NoError(t, err)
		require.Equal(t, 60, granted)
		require.Equal(t, 60, r.Charged())
		granted, r, err = b.AllowUpTo(t.Context(), "key", 100)
		require.NoError(t, err)
		require.Zero(t, granted)
		require.Equal(t, ratelimit.SourceStore, r.Source(), "no offense")
		bannedFor(15*time.Minute)(t, allow(t, b, "key"))
		c.Advance(time.Minute)

		within, err := b.AllowWithin(t.Context(), "key", 1, time.Hour)
		require.NoError(t, err)
		bannedFor(14*time.Minute)(t, within)
		granted, r, err = ratelimit.AllowUpTo(t.Context(), b, "key", 5)
		require.NoError(t, err)
		require.Zero(t, granted)
		bannedFor(14*time.Minute)(t, r)
		r, err = b.Strike(t.Context(), "key", 2)
		require.NoError(t, err)
		bannedFor(14*time.Minute)(t, r)
		r, err = ratelimit.Charge(t.Context(), b, "key", 60)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, 0, peek(t, bucket, "key").Remaining)
		require.NoError(t, b.Reset(t.Context(), "key"))
		require.True(t, allow(t, b, "key").Allowed)
	})
}

func TestABanOfAnotherKeyAndOnAnotherStore(t *testing.T) {
	c := ratelimittest.NewClock(time.Now())
	network := ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key[:4], nil })
	b := newBan(t, newLimiter(t, "fixed_window", c.Memory(t), ratelimit.PerMinute(1)), c.Memory(t), quarter, network)
	for _, key := range []string{"net1-a", "net1-b", "net1-c"} {
		require.True(t, allow(t, b, key).Allowed)
		require.False(t, allow(t, b, key).Allowed)
	}
	bannedFor(15*time.Minute)(t, allow(t, b, "net1-d"))
	require.True(t, allow(t, b, "net2-a").Allowed)
}

func TestAnOutageAndAListAreNoOffenses(t *testing.T) {
	c := ratelimittest.NewClock(time.Now())
	s := c.Memory(t)
	closed := failover(t, newLimiter(t, "fixed_window", banOutage{}, ratelimit.PerMinute(1)), fallback.FailClosed())
	b := newBan(t, closed, s, quarter)
	for range 10 {
		require.Equal(t, ratelimit.SourceFailClosed, allow(t, b, "key").Source())
	}
}

// banOutage is a store that is down.
type banOutage struct{ store.Store }

func (banOutage) Prepare(*store.Rule, store.Limit, bool) error { return nil }
func (banOutage) Together(key, other string) bool              { return true }

// Decide implements [store.Store].
func (s banOutage) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (banOutage) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, ratelimit.ErrStore
}

func (banOutage) Peek(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, ratelimit.ErrStore
}

func (banOutage) TakeAll(context.Context, []store.Request, []store.Reply) error {
	return ratelimit.ErrStore
}

func TestWhileTheStoreIsDownALocalLimiterBans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &banDecisions{}
		bucket := newLimiter(t, "token_bucket", banOutage{}, ratelimit.PerMinute(4))
		b := newBan(t, bucket, banOutage{}, quarter, ratelimit.WithObserver(told))
		_, err := b.Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrStore)
		safe := failover(t, b, fallback.FailLocal(2))
		for range 2 {
			require.True(t, allow(t, safe, "key").Allowed)
		}
		for range 2 {
			require.Equal(t, ratelimit.SourceLocal, allow(t, safe, "key").Source())
		}
		require.Equal(t, ratelimit.SourceBan, allow(t, safe, "key").Source())
		time.Sleep(14 * time.Minute)
		r := allow(t, safe, "key")
		require.False(t, r.Allowed)
		require.Equal(t, time.Minute, r.RetryAfter)
		require.Zero(t, told.decisions.Load(), "a local limiter has no observers")
	})
}

func TestALocalLimiterBansTheKeysOfTheBan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := newLimiter(t, "token_bucket", banOutage{}, ratelimit.PerMinute(1))
		network := ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key[:4], nil })
		safe := failover(t, newBan(t, bucket, banOutage{}, quarter, network), fallback.FailLocal(1))
		for _, key := range []string{"net1-a", "net1-b", "net1-c"} {
			require.True(t, allow(t, safe, key).Allowed)
			require.False(t, allow(t, safe, key).Allowed)
		}
		require.Equal(t, ratelimit.SourceBan, allow(t, safe, "net1-d").Source())
		require.True(t, allow(t, safe, "net2-a").Allowed)
	})
}

// The slice of options is the caller's, who may use it again.
func TestALocalLimiterBansByTheOptionsThatTheBanWasMadeWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		by := func(length int) ratelimit.Option {
			return ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key[:length], nil })
		}
		opts := []ratelimit.Option{by(4)}
		b := newBan(t, newLimiter(t, "token_bucket", banOutage{}, ratelimit.PerMinute(1)), banOutage{}, quarter, opts...)
		opts[0] = by(6)
		safe := failover(t, b, fallback.FailLocal(1))
		for _, key := range []string{"net1-a", "net1-b", "net1-c"} {
			require.True(t, allow(t, safe, key).Allowed)
			require.False(t, allow(t, safe, key).Allowed)
		}
		require.Equal(t, ratelimit.SourceBan, allow(t, safe, "net1-d").Source())
	})
}

type banDecisions struct{ decisions, denials atomic.Int64 }

func (c *banDecisions) Decided(_ context.Context, _ string, _ int, r ratelimit.Result, err error, _ time.Duration) {
	c.decisions.Add(1)
	if err == nil && !r.Allowed {
		c.denials.Add(1)
	}
}

func TestTheObserversOfABanAreToldOfDenials(t *testing.T) {
	c := ratelimittest.NewClock(time.Now())
	s, told := c.Memory(t), &banDecisions{}
	b := newBan(t, newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1)), s, quarter, ratelimit.WithObserver(told))
	for range 10 {
		allow(t, b, "key")
	}
	require.Equal(t, int64(3), told.decisions.Load())
	require.Zero(t, told.denials.Load())
}

func TestABanInAnAllChargesNothing(t *testing.T) {
	c := ratelimittest.NewClock(time.Now())
	s := c.Memory(t)
	outer := newLimiter(t, "fixed_window", s, ratelimit.PerMinute(10), ratelimit.WithName("outer"))
	b := newBan(t, newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1), ratelimit.WithName("inner")), s, quarter)
	both := all(t, outer, b)
	for range 9 {
		allow(t, both, "key")
	}
	r := allow(t, both, "key")
	require.False(t, r.Allowed)
	require.Equal(t, ratelimit.SourceBan, r.Source())
	require.Equal(t, 15*time.Minute, r.RetryAfter)
	require.Equal(t, 9, peek(t, outer, "key").Remaining)
}

// The limits inside do not deny then, so a ban is told by its own name.
func TestABanHasANameInAnAll(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	named := func(name string, n int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewSlidingLog(mem, ratelimit.PerHour(n), ratelimit.WithName(name)))
	}
	both := ratelimit.Must(ratelimit.NewAll(named("user", 5), named("address", 2)))
	for _, c := range []struct {
		inside ratelimit.Limiter
		opts   []ratelimit.Option
		want   string
	}{
		{both, nil, "ban"},
		{both, []ratelimit.Option{ratelimit.WithName("jail")}, "jail"},
		{both, []ratelimit.Option{ratelimit.WithName("jail"), ratelimit.WithPolicyName("abuse")}, "abuse"},
		{named("address", 2), []ratelimit.Option{ratelimit.WithName("jail")}, "jail"},
	} {
		require.NoError(t, both.Reset(t.Context(), "key"))
		once := ratelimit.Penalty{Denials: 1, Within: time.Minute, For: time.Minute}
		b := newBan(t, c.inside, mem, once, c.opts...)
		all := ratelimit.Must(ratelimit.NewAll(named("other", 100), b))
		var r ratelimit.Result
		for range 4 {
			r, err = all.Allow(t.Context(), "key")
			require.NoError(t, err)
		}
		require.Equal(t, ratelimit.SourceBan, r.Source())
		require.Equal(t, c.want, r.DeniedBy())
		require.NoError(t, b.Lift(t.Context(), "key"))
	}
}

func TestWaitDoesNotWaitForABanPastTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		b := newBan(t, newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1)), s, quarter)
		_, err = b.Strike(t.Context(), "key", 3)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = ratelimit.Wait(ctx, b, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
	})
}

func TestPenaltiesThatCannotBe(t *testing.T) {
	const decade = 10 * 365 * 24 * time.Hour
	s := ratelimittest.NewClock(time.Now()).Memory(t)
	l := newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1))
	for name, change := range map[string]func(p *ratelimit.Penalty){
		"no denials":         func(p *ratelimit.Penalty) { p.Denials = 0 },
		"too many":           func(p *ratelimit.Penalty) { p.Denials = 1 << 16 },
		"no time":            func(p *ratelimit.Penalty) { p.Within = 0 },
		"not whole":          func(p *ratelimit.Penalty) { p.Within = time.Minute + 1 },
		"no ban":             func(p *ratelimit.Penalty) { p.For = 0 },
		"half a second":      func(p *ratelimit.Penalty) { p.For = 500 * time.Millisecond },
		"for ever":           func(p *ratelimit.Penalty) { p.For = ratelimit.Never / time.Second * time.Second },
		"the most below For": func(p *ratelimit.Penalty) { p.Most = p.For - time.Second },
		"half a µs at most":  func(p *ratelimit.Penalty) { p.Most = p.For + 500 },
		"at most for ever":   func(p *ratelimit.Penalty) { p.Most = decade + time.Second },
	} {
		p := quarter
		change(&p)
		_, err := ratelimit.NewBan(l, s, p)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
	}
	for _, p := range []ratelimit.Penalty{
		{Denials: 1, Within: time.Millisecond, For: time.Second, Most: time.Second},
		{Denials: 1<<16 - 1, Within: decade, For: decade, Most: decade},
	} {
		newBan(t, l, s, p)
	}
	for name, option := range map[string]ratelimit.Option{
		"nil": nil, "calls": ratelimit.CountCalls(), "reserved": ratelimit.WithReserved(1),
		"limits": ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, nil }),
	} {
		_, err := ratelimit.NewBan(l, s, quarter, option)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
	}
	_, err := ratelimit.NewBan(nil, s, quarter)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = ratelimit.NewBan(l, nil, quarter)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	none := new(ratelimit.Ban)
	_, err = none.Allow(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	b := newBan(t, l, s, quarter)
	_, err = b.Strike(t.Context(), "key", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	_, err = b.Allow(t.Context(), "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	granted, r, err := b.AllowUpTo(t.Context(), "", 5)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.Zero(t, granted)
	require.Zero(t, r)

	many := make([]ratelimit.Limiter, 16)
	for i := range many {
		many[i] = l
	}
	_, err = ratelimit.NewBan(all(t, many...), s, quarter)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, "an All of 16 limits, want at most 15")
	require.True(t, allow(t, newBan(t, all(t, many[1:2]...), s, quarter), "other").Allowed)
	require.False(t, allow(t, newBan(t, all(t, many[1:]...), s, quarter), "other").Allowed, "15 of 1 in a minute")
}

// The ResetAfter of a ban is the time after which the key is as if never seen: the next ban is then
// a first one again.
func TestABanIsForgottenAfterItsReset(t *testing.T) {
	for _, early := range []time.Duration{0, time.Microsecond} {
		banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
			p := ratelimit.Penalty{Denials: 1, Within: time.Minute, For: time.Minute, Most: time.Hour}
			b := newBan(t, ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil), s, p)
			r := allow(t, b, "key")
			bannedFor(time.Minute)(t, r)
			c.Advance(r.ResetAfter - early)
			bannedFor(map[bool]time.Duration{true: 2 * time.Minute, false: time.Minute}[early > 0])(t, allow(t, b, "key"))
		})
	}
}

// A late reading of the clock neither shortens a ban nor begins it in the past, and time before
// 1970 is as good as any other.
func TestABanAtStrangeTimes(t *testing.T) {
	denies := ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil)
	c := newClock()
	b := newBan(t, denies, memory(t, c), ratelimit.Penalty{Denials: 2, Within: time.Minute, For: time.Minute})
	allow(t, b, "key")
	c.Advance(-10 * time.Second)
	bannedFor(time.Minute)(t, allow(t, b, "key"))

	c.Advance(-80 * 365 * 24 * time.Hour)
	b = newBan(t, denies, memory(t, c), ratelimit.Penalty{Denials: 2, Within: time.Minute, For: time.Minute})
	require.Equal(t, ratelimit.SourceStore, allow(t, b, "key").Source())
	bannedFor(time.Minute)(t, allow(t, b, "key"))
	c.Advance(time.Minute)
	require.Equal(t, ratelimit.SourceStore, allow(t, b, "key").Source())
}

// What denies without asking the store, as a tier of nothing, counts too.
func TestABanAroundARateOfZero(t *testing.T) {
	banOnAll(t, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		none := newLimiter(t, "token_bucket", s, ratelimit.PerMinute(0))
		for name, l := range map[string]ratelimit.Limiter{"one": none, "all": all(t, newLimiter(t, "sliding_log", s, ratelimit.PerMinute(9)), none)} {
			b := newBan(t, l, s, quarter, ratelimit.WithName(name))
			for range 2 {
				r := allow(t, b, "key")
				require.False(t, r.Allowed)
				require.Equal(t, ratelimit.SourceZeroRate, r.Source(), name)
				require.Equal(t, ratelimit.Never, r.RetryAfter)
			}
			for range 2 {
				bannedFor(15*time.Minute)(t, allow(t, b, "key"))
				bannedFor(15*time.Minute)(t, peek(t, b, "key"))
			}
			c.Advance(15 * time.Minute)
			require.Equal(t, ratelimit.Never, allow(t, b, "key").RetryAfter)
		}
	})
	gone := newBan(t, newLimiter(t, "token_bucket", banOutage{}, ratelimit.PerMinute(0)), banOutage{}, quarter)
	require.Equal(t, ratelimit.Never, allow(t, gone, "key").RetryAfter, "an outage admits nobody")
}

// Who cannot ask whether a key is banned does not know that it is not: without package fallback
// that is an error.
func TestABanThatCannotBeAskedForAdmitsNobody(t *testing.T) {
	mem, wrong := memory(t, newClock()), errors.New("no such key")
	l := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5))
	keys := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "", wrong })
	_, err := newBan(t, l, mem, quarter, keys).Allow(t.Context(), "key")
	require.ErrorIs(t, err, wrong)
	for _, on := range []store.Store{away{Store: mem}, withoutJoint{Store: away{Store: mem}}} {
		_, err = newBan(t, l, on, quarter).Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrStore)
	}
	require.Equal(t, 5, peek(t, l, "key").Remaining)
}

func TestABanAsksAndGivesBackAsItsLimiterDoes(t *testing.T) {
	mem := memory(t, newClock())
	b := newBan(t, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(5), ratelimit.CountCalls()), mem, quarter)
	r := allowN(t, b, 7)
	require.NoError(t, b.Refund(t.Context(), "key", r, 3))
	require.Equal(t, 4, peek(t, b, "key").Remaining, "the call has been made")
	require.NoError(t, b.Refund(t.Context(), "key", r, 7))
	require.Equal(t, 5, peek(t, b, "key").Remaining)

	b = newBan(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5)), mem, quarter)
	allowN(t, b, 4)
	require.True(t, peek(t, b, "key").Allowed, "one event has room")
}

func TestABanBesideALimitIsAmongWhatCanDeny(t *testing.T) {
	mem := memory(t, newClock())
	limit := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5), ratelimit.WithName("limit"))
	ban := newBan(t, limit, mem, quarter, ratelimit.WithPolicyName("door"))
	other := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5), ratelimit.WithName("other"))
	require.Equal(t, []string{"door", "limit", "other"}, see.Names[ratelimit.Limiter](all(t, ban, other)))
	require.Equal(t, []string{"limit"}, see.Names[ratelimit.Limiter](ban), "alone it is not named")
}
