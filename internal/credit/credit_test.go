package credit_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/credit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// looker keeps what it was last asked for.
type looker struct {
	store.Store
	ns    *store.Namespace
	limit store.Limit
	last  store.Reply
}

// Decide implements [store.Store].
func (s *looker) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *looker) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	r, err = store.Peek(ctx, s.Store, ns, key, l, n)
	s.ns, s.limit, s.last = ns, l, r
	return r, err
}

// What was charged on another store is given back, whatever the state is, and never more.
func TestACreditGivesBackWhatItIsToldTo(t *testing.T) {
	test := func(t *testing.T, states int, on store.Store, now *int64) {
		ctx, rng, s := t.Context(), rand.New(rand.NewPCG(1, 2)), &looker{Store: on}
		for i := range states {
			algorithm, key := []string{"fixed_window", "sliding_window", "token_bucket"}[i%3], fmt.Sprint("key ", i)
			limit := ratelimit.Limit{Rate: 1 + rng.IntN(1<<(1+rng.IntN(20))), Period: time.Second << rng.IntN(12)}
			if algorithm == "token_bucket" {
				limit.Burst = 2 + rng.IntN(1<<(1+rng.IntN(20)))
			}
			capacity := cmp.Or(limit.Burst, limit.Rate)
			l, err := ratelimit.New(algorithm, s, limit)
			require.NoError(t, err)
			for range 1 + rng.IntN(4) { // a state of some age, which may be a debt
				_, err := l.AllowN(ctx, key, 1+rng.IntN(capacity))
				require.NoError(t, err)
				if rng.IntN(4) == 0 {
					_, err = ratelimit.Charge(ctx, l, key, 1+rng.IntN(2*capacity))
					require.NoError(t, err)
				}
				*now += rng.Int64N(limit.Period.Microseconds() / 3)
			}
			look := func() (left int, most int64) {
				r, err := l.Peek(ctx, key)
				require.NoError(t, err)
				return r.Remaining, credit.Most(s.ns.Rule, s.limit, s.last)
			}
			before, most := look()
			if most == 0 {
				continue
			}
			n := min(int64(capacity), 1+rng.Int64N(most))
			_, end := s.limit.Window(*now)
			debit := credit.Receipt(s.ns.Rule, s.limit, store.NewReceipt(s.limit, *now, end-*now, n))
			require.NoError(t, s.Refund(ctx, s.ns, key, s.limit, debit))
			left, after := look()
			if years50 := 50 * 365 * 24 * time.Hour; algorithm == "token_bucket" && n > int64(limit.Rate)*int64(years50/limit.Period) {
				require.GreaterOrEqual(t, after, most-n, "what refills in more may get back less")
				continue
			}
			require.Equal(t, most-n, after, "%s %+v, %d of %d", algorithm, limit, n, most)
			require.LessOrEqual(t, left, before+int(n))
		}
	}
	now := int64(1_700_000_000_000_000)
	clock := func() time.Time { return time.UnixMicro(now) }
	t.Run("in memory", func(t *testing.T) {
		s, err := memstore.New(memstore.WithClock(clock))
		require.NoError(t, err)
		test(t, effort.Of(20_000, 100_000, 500_000), s, &now)
	})
	t.Run("on Redis", func(t *testing.T) {
		s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithClock(clock), redisstore.WithTimeout(time.Minute), redisstore.WithPrefix(redistest.Prefix(t)))
		require.NoError(t, err)
		test(t, effort.Of(600, 3_000, 10_000), s, &now)
	})
}

func TestRulesWithoutCreditCreditNothing(t *testing.T) {
	for _, algorithm := range []string{"sliding_log", "leaky_bucket"} {
		mem, err := memstore.New()
		require.NoError(t, err)
		s := &looker{Store: mem}
		l, err := ratelimit.New(algorithm, s, ratelimit.PerHour(10))
		require.NoError(t, err)
		_, err = l.AllowN(t.Context(), "key", 5)
		require.NoError(t, err)
		_, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Zero(t, credit.Most(s.ns.Rule, s.limit, s.last), algorithm)
	}
	require.Zero(t, credit.Most(&store.Rule{Spent: func(store.Reply) int64 { return 5 }}, store.Limit{}, store.Reply{Outcome: store.AdmittedPlainly}))
}
