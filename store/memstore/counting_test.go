package memstore_test

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Each state keeps the limit that it was counted under, even while keys change their limits all the
// time. The memory for limits that no key has any longer is bounded.
func TestAStateComesBackWithItsLimit(t *testing.T) {
	effort.OneGoroutine(t)
	last := store.Limit{} // of the key that is asked for
	rule := &store.Rule{
		Name: "last",
		Step: func(s store.State, l store.Limit, now, _ int64) (store.State, store.Reply) {
			return store.State{At: now, Period: l.Period, Whole: 1}, store.Reply{Outcome: store.Admitted, Y: s.Period}
		},
		Available: func(store.Limit, store.Reply) int64 { return 1 },
		TTL: func(s store.State, l store.Limit) int64 {
			if last.Rate != 0 && (l.Rate != last.Rate || l.Period != last.Period || s.Period != last.Period) {
				t.Errorf("counted under %d per %d, want %v", l.Rate, l.Period, last)
			}
			return 1e12
		},
		Used: func(store.State, int64, int64) int64 { return 1 },
	}
	now := time.Unix(1_767_225_600, 0)
	s := newStore(t, memstore.WithClock(func() time.Time { return now }))
	ns, ctx, random := store.NewNamespace(rule, ""), t.Context(), rand.New(rand.NewPCG(5, 6))
	limits := map[string]store.Limit{}
	visit := func(keys, different int) {
		key, n := strconv.Itoa(random.IntN(keys)), 1+random.Int64N(int64(different))
		l := store.Limit{Rate: n, Period: 1e6 * n, Burst: n}
		last = limits[key]
		r, err := s.Take(ctx, ns, key, l, 1)
		before := last.Period
		last, limits[key] = store.Limit{}, l
		if err != nil || r.Y != before || len(limits) != s.Len() { // require would take longer than the store
			t.Fatalf("%v, %d after %d, %d keys of %d", err, r.Y, before, s.Len(), len(limits))
		}
	}
	const keys = 40_000 // more than the first tables hold
	for range effort.Of(2, 5) * keys {
		visit(keys, 10_000)
	}
	require.NoError(t, s.Check())
	require.Greater(t, s.Countings(), s.Len()/2)
	require.Less(t, s.Countings(), 3*s.Len()/2)

	for key := range limits { // all under a limit that is new
		last = limits[key]
		_, err := s.Take(ctx, ns, key, store.Limit{Rate: 20_000, Period: 2e10, Burst: 1}, 1)
		require.NoError(t, err)
		last, limits[key] = store.Limit{}, store.Limit{Rate: 20_000, Period: 2e10}
	}
	s.SweepAll()
	require.Zero(t, s.Countings())
	for range keys {
		visit(keys, 3)
	}
	require.NoError(t, s.Check())
}
