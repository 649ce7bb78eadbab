package bucket

import (
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
)

// TestALevelFallsExactly uses products on both sides of 2^64, and so many events that no level is
// left, as with a fast limit and a key that was idle for a long time.
func TestALevelFallsExactly(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	year := int64(365 * 24 * time.Hour / time.Microsecond)
	check := func(dt, rate, period int64) {
		t.Helper()
		whole, part := Drained(dt, rate, period)
		q, r := new(big.Int).DivMod(new(big.Int).Mul(big.NewInt(dt), big.NewInt(rate)), big.NewInt(period), new(big.Int))
		if !q.IsInt64() {
			q.SetInt64(math.MaxInt64)
			r.SetInt64(part)
		}
		require.Equal(t, [2]int64{q.Int64(), r.Int64()}, [2]int64{whole, part}, "%d µs of %d/%d µs", dt, rate, period)
	}
	for range 1000 {
		rate := 1<<30 + rng.Int64N(1<<30)
		just := int64(math.MaxUint64/uint64(rate)) + 1 // the low word of the product is below the rate
		check(just, rate, 10*year)
		check(just-1, rate, 10*year)
		check(rng.Int64N(100*year), rate, 1000+rng.Int64N(10*year))

		short := 1000 + rng.Int64N(1000)
		many, _ := bits.Div64(uint64(short), 0, uint64(rate)) // µs in which some 2^64 events drain
		check(int64(many), rate, short)
		check(int64(many)+1, rate, short)
	}
}

// TestTheSpendOfABucketIsItsLevel compares the estimate by which keys are evicted with the level.
// It is at most one event above the level, with or without a debt.
func TestTheSpendOfABucketIsItsLevel(t *testing.T) {
	l := store.Limit{Rate: 3, Period: 1e6, Burst: 10}
	for _, s := range []store.State{{Whole: 5}, {Whole: 4, Part: 999_999}, {Whole: 30 | Debt, Part: 1}, {Part: 1}} {
		s.At, s.Period = 1e15, l.Period
		life := TTL(s, l)
		for i := range int64(1000) {
			now := s.At + life*i/1000
			_, whole, _ := Level(s, l, now)
			spend := Used(s, s.At+life, now)
			require.True(t, whole <= spend && spend <= whole+1, "%+v after %d of %d µs: %d, at a level of %d", s, now-s.At, life, spend, whole)
		}
		require.Zero(t, Used(s, s.At+life, s.At+life), "at the end of %+v", s)
	}
}

// TestADrainTimeIsExact uses levels whose parts carry into the high word.
func TestADrainTimeIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const period = int64(10 * 365 * 24 * time.Hour / time.Microsecond)
	for hi := range int64(1000) {
		// whole·period + part is hi·2^64.
		whole, part := bits.Div64(uint64(hi), 0, uint64(period))
		for _, part := range []int64{max(0, int64(part)-1), int64(part), min(int64(part)+1, period-1)} {
			l := store.Limit{Rate: hi + 1 + rng.Int64N(1<<30), Period: period}
			n := new(big.Int).Mul(new(big.Int).SetUint64(whole), big.NewInt(period))
			n.Add(n, big.NewInt(part+l.Rate-1)).Div(n, big.NewInt(l.Rate))
			require.Equal(t, n.Int64(), DrainTime(int64(whole), part, l), "%d and %d/%d events at %d", whole, part, period, l.Rate)
		}
	}
}

func TestAChargeLeftAtMostTheMostEventsBehind(t *testing.T) {
	for _, tt := range []struct{ rate, whole, part int64 }{
		{math.MaxInt32 - 1, math.MaxInt32 - 1, 0},
		{math.MaxInt32, math.MaxInt32, 0},
		{math.MaxInt32 + 1, math.MaxInt32, 999},
	} {
		c := store.Receipt{At: 1e15, Due: 1e15 + 1000, Rate: tt.rate, Period: 1000}
		require.Equal(t, store.State{At: c.At, Period: 1000, Whole: tt.whole, Part: tt.part}, Charged(c, false))
		require.Equal(t, store.State{At: c.At, Period: 1000, Whole: tt.whole + Debt, Part: tt.part}, Charged(c, true))
	}
}

// TestWhatADebtLeftLetTheNextEventIn has a debt of 12 events, of which one drains per second, and a
// state that another event has changed since.
func TestWhatADebtLeftLetTheNextEventIn(t *testing.T) {
	l := store.Limit{Rate: 1, Period: 1e6, Burst: 10}
	c := store.Receipt{At: 1e15, Due: 1e15 + 12e6, Rate: 1, Period: 1e6, Overdrawn: true, N: 12}
	for after, want := range map[int64]store.State{
		1_000_000: {Whole: 9},
		2_500_000: {Whole: 9},
		3_000_000: {Whole: 9},
		3_250_000: {Whole: 8, Part: 750_000},
	} {
		s := store.State{At: c.At + after, Period: l.Period, Whole: 5}
		want.At, want.Period = s.At, s.Period
		require.Equal(t, want, leftOf(c, s, l), "after %d µs", after)
		s.Whole += Debt
		require.Equal(t, Charged(c, true), leftOf(c, s, l), "the debt lasts")
	}
	c.Overdrawn = false
	require.Equal(t, Charged(c, false), leftOf(c, store.State{At: c.At + 1e6, Period: l.Period, Whole: 5}, l))
}

func TestADebtOfLessThanAnEventIsNone(t *testing.T) {
	l := store.Limit{Rate: 1, Period: 1e6, Burst: 10}
	c := store.Receipt{At: 1e15, Due: 1e15 + 12e6, Rate: 1, Period: 1e6, Overdrawn: true, N: 12}
	s := store.State{At: c.At, Period: l.Period, Whole: 12 + Debt, Part: 1}
	require.Equal(t, store.State{At: s.At, Period: s.Period, Part: 1}, Refund(s, l, s.At, c))
}

func TestARefundOfAllLeavesNoState(t *testing.T) {
	l := store.Limit{Rate: 1, Period: 1e6, Burst: 10}
	c := store.Receipt{At: 1e15, Due: 1e15 + 5e6, Rate: 1, Period: 1e6, N: 5}
	for _, whole := range []int64{5, 4} { // of 4, another refund has left
		s := store.State{At: c.At, Period: l.Period, Whole: whole}
		require.Zero(t, Refund(s, l, s.At, c), "of %d", whole)
	}
}

func TestALevelHoldsWhatDrainsIn100Years(t *testing.T) {
	l := store.Limit{Rate: 1, Period: MaxRefill / 20, Burst: 10}
	for s, want := range map[store.State]bool{
		{Whole: 20}:          true,
		{Whole: 19, Part: 1}: true,
		{Whole: 20, Part: 1}: false,
		{Whole: 21}:          false,
	} {
		require.Equal(t, want, Holds(s, l), "%+v", s)
	}
}
