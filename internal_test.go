package ratelimit

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// FuzzStep holds the transitions to what a Result promises, from any state that a
// store could hold under any limit, of the same Period or another one: it is not
// only the states that traces lead to that matter.
func FuzzStep(f *testing.F) {
	year := int64(365 * 24 * time.Hour / time.Microsecond)
	f.Add(uint8(0), int64(3), int64(1e6), int64(3), int64(1e6), int64(5e15), int64(2), int64(0), int64(17), int64(1), int64(0), false)
	f.Add(uint8(1), int64(999_983), int64(86_400e6), int64(0), int64(86_400e6), int64(5e15), int64(999_983), int64(999_983), int64(86_399e6), int64(7), int64(0), false)
	f.Add(uint8(1), int64(10), int64(60e6), int64(0), int64(1e6), int64(5e15), int64(10), int64(9), int64(100_000), int64(4), int64(0), false)
	f.Add(uint8(2), int64(2_147_483_647), year, int64(2_147_483_647), year, int64(1), int64(2_147_483_647), int64(12345), int64(77e12), int64(1e9), int64(0), false)
	f.Add(uint8(3), int64(1), 10*year, int64(10), int64(1000), int64(5e15), int64(9), int64(999), int64(1), int64(2), int64(0), false)
	f.Add(uint8(6), int64(10), int64(60e6), int64(10), int64(60e6), int64(5e15), int64(10), int64(7), int64(1), int64(3), int64(30e6), false)
	f.Add(uint8(2), int64(1), 10*year, int64(1), 10*year, int64(5e15), int64(9), int64(7), int64(1), int64(1), 100*year, true)
	f.Add(uint8(3), int64(10), int64(60e6), int64(10), int64(60e6), int64(5e15), int64(5), int64(7), int64(1), int64(3), int64(29e6), false)
	f.Add(uint8(3), int64(-57), int64(59_999_948), int64(-6), int64(999_957), int64(5e15+37), int64(-10), int64(-117), int64(99_862), int64(-108), int64(0), false)
	f.Add(uint8(6), int64(-57), int64(59_999_948), int64(87), int64(999_899), int64(5e15+122), int64(-30), int64(-39), int64(99_862), int64(-108), int64(0), false)
	f.Add(uint8(2), int64(10), int64(60e6), int64(10), int64(60e6), int64(5e15), int64(0), int64(0), int64(-30e6), int64(1), int64(0), false)
	f.Fuzz(func(t *testing.T, which uint8, rate, period, burst, statePeriod, at, whole, part, after, n, before int64, ahead bool) {
		a := []*store.Rule{&fixedWindow, &slidingWindow, &tokenBucket, &leakyBucket}[which%4]
		const most = 1<<31 - 1
		l := store.Limit{Rate: within(rate, 1, most), Period: within(period, 1000, 10*year)}
		s := store.State{At: within(at, -1<<50, 1<<52), Period: within(statePeriod, 1000, 10*year), Whole: within(whole, 0, most)}
		l.Burst = l.Rate
		switch {
		case a.Burst:
			l.Burst = within(burst, 1, most)
			s.Part = within(part, 0, s.Period-1)
			if !bucket.DrainsWithin(l, bucket.MaxRefill) {
				t.Skip("a bucket that its constructor refuses")
			}
			l = l.TurnBefore(within(before, 0, bucket.MaxRefill+1))
			if ahead { // of its turn, or a debt
				s.Whole |= bucket.Debt
			}
		case which%4 == 1:
			s.Part = within(part, 0, most)
		}
		now, n := s.At+within(after, -l.Period, 3*max(l.Period, s.Period)), within(n, 1, l.Burst)

		next, r := a.Step(s, l, now, n)
		v := a.Report(l, r, n, 0)
		at0 := max(now, s.At)
		if s.Whole == 0 && s.Part == 0 {
			at0 = now
		}
		admits := func(later, n int64, l store.Limit) bool {
			_, r := a.Step(s, l, at0+later, n)
			return r.OK()
		}
		fits := func(later, n int64) bool { return admits(later, n, l) }
		plain := l
		plain = plain.TurnBefore(0) // by which Remaining and ResetAfter are told
		if l.Before() == 0 {
			require.Equal(t, v.Remaining, a.Available(l, r))
		}
		require.True(t, v.Remaining == 0 || admits(0, v.Remaining, plain), "Remaining %d", v.Remaining)
		require.False(t, admits(0, v.Remaining+1, plain), "Remaining %d", v.Remaining)
		if r.OK() {
			require.Equal(t, store.State{At: at0, Period: l.Period, Whole: next.Whole, Part: next.Part}, next)
			level := next.Whole &^ bucket.Debt
			require.True(t, level >= n && level <= most && next.Part >= 0 && next.Part < 1<<49, "%+v", next)
			charged := a.Report(l, r, n, n)
			require.Equal(t, max(0, v.Remaining-n), charged.Remaining)
			require.Equal(t, charged.Remaining, a.Available(plain, a.After(r, n)), "the reply once they are charged")
			require.Equal(t, v.Delay, charged.Delay)
			require.True(t, l.Before() == 0 || v.Delay < l.Before(), "a turn after %d µs, within %d", v.Delay, l.Before)
			if next.Whole > level {
				require.Greater(t, level+min(1, next.Part), l.Burst, "past the capacity")
				require.LessOrEqual(t, level+min(1, next.Part), bucket.Most(l))
				require.True(t, admits(v.Delay, n, plain) && !admits(v.Delay-1, n, plain), "its turn comes after Delay %d", v.Delay)
			}
			require.LessOrEqual(t, a.TTL(next, l), charged.Reset)
			_, r := a.Step(next, plain, at0+charged.Reset, l.Burst)
			require.True(t, r.OK(), "as never seen at ResetAfter")
			if which%4 == 1 { // its true count may be above the Rate, to which decisions read it
				next.Part = min(next.Part, l.Rate)
			}
			life := a.TTL(next, l)
			require.Zero(t, a.Used(next, at0+life, at0+life), "once it has ended")
			require.Equal(t, a.Used(next, at0+life, at0), a.Used(next, at0+life, at0-l.Period), "a late reading")
			for _, later := range []int64{0, life / 3, life / 2, life - 1, life} {
				_, r := a.Step(next, plain, at0+later, 1)
				if next.Whole > level { // as far as Remaining knows
					continue
				}
				used := l.Burst - a.Report(plain, r, 1, 0).Remaining
				// A bucket's end is rounded up to a µs, in which some events may drain.
				require.InDelta(t, used, a.Used(next, at0+life, at0+later), float64(2+l.Rate/l.Period),
					"in force after %d of %d µs", later, life)
			}
			return
		}
		if l.Before() == 0 { // as in a Charge
			debt, held := a.Overdrawn(next, l, mostOf(a, l)), min(n, mostOf(a, l)-a.Spent(r))
			require.True(t, debt.At == at0 && debt.Period == l.Period && debt.Whole < 1<<32 && debt.Part >= 0 && debt.Part < 1<<49, "%+v", debt)
			_, owed := a.Step(debt, l, at0, 1)
			require.False(t, owed.OK())
			require.Zero(t, a.Report(l, owed, 1, 0).Remaining)
			life := a.TTL(debt, l)
			require.LessOrEqual(t, life, max(2*l.Period, bucket.MaxRefill+l.Period), "the part of an event that is above the most drains too")
			require.Equal(t, life, a.Report(l, owed, 1, 0).Reset)
			if held > 0 {
				given := a.Refund(debt, l, at0, store.Receipt{
					At: at0, Due: at0 + life, Rate: l.Rate, Period: l.Period, Overdrawn: bucket.DrainsWithin(l, life-1), N: held})
				_, r := a.Step(given, l, at0, 1)
				require.Equal(t, v.Remaining, a.Report(l, r, 1, 0).Remaining, "as before the debt: %+v", given)
			}
		}
		require.Positive(t, v.Retry)
		require.True(t, fits(v.Retry, n), "admitted at RetryAfter %d", v.Retry)
		require.False(t, fits(v.Retry-1, n), "and not before")
		require.True(t, admits(v.Reset, l.Burst, plain), "as never seen at ResetAfter %d", v.Reset)
	})
}

// within maps any integer into a range, and those in it to themselves.
func within(v, low, high int64) int64 {
	if low <= v && v <= high {
		return v
	}
	size := uint64(high-low) + 1
	return low + int64(uint64(v-low)%size)
}

// With returns a copy of l, one of the five, that has more options: as if its constructor had got
// them. It is l itself if it is none of the five, or an option is refused.
func With(l Limiter, opts ...Option) Limiter {
	core := coreOf(l)
	if core == nil {
		return l
	}
	moved := reflect.New(reflect.TypeOf(l).Elem())
	moved.Elem().Set(reflect.ValueOf(l).Elem())
	copied := moved.Interface().(interface {
		Limiter
		core() *limiter
	})
	lim := copied.core()
	for _, opt := range opts {
		if err := opt(lim); err != nil {
			return l
		}
	}
	lim.introduce(copied)
	return copied
}

// Of a ban, as stores see it: a key that is banned has room for nothing, denials are kept no longer
// than they count, and the longest ban is not counted again, however often it begins.
func TestTheStateOfABan(t *testing.T) {
	l := store.Limit{Rate: 2, Period: 60e6, Burst: 60}
	strikes := l.TurnBefore(5e6 + 1)
	s, r := banStep(store.State{}, strikes, 1e15, 1)
	require.True(t, r.OK())
	require.EqualValues(t, 5e6, ban.TTL(s, l))
	require.Equal(t, "ban", ban.Name, "as its keys on Redis say")
	_, looked := banStep(s, l, 1e15, 1)
	require.EqualValues(t, 1, ban.Available(l, looked))
	require.Zero(t, ban.Available(l, ban.After(looked, 1)))
	require.Equal(t, s, ban.Refund(s, l, 1e15, store.Receipt{N: 1}), "a denial is not given back")
	require.Equal(t, s, ban.Overdrawn(s, l, 9))
	require.Positive(t, ban.Used(s, s.At+5e6, s.At))
	_, r = banStep(s, strikes, 1e15-1, 1)
	require.EqualValues(t, 1e15, r.X, "a late reading")
	s, _ = banStep(s, strikes, 1e15, 1)
	banned, r := banStep(s, l, 1e15+1, 1)
	require.False(t, r.OK())
	require.Zero(t, ban.Available(l, r))
	require.Equal(t, s, banned)
	for i := range int64(5) {
		again, r := banStep(s, strikes, s.At+60e6, 2)
		require.True(t, r.OK())
		require.Equal(t, s.Whole, again.Whole, i)
		s = again
	}
}

// A store in front makes of a reply the one that would follow it: see [store.Reply.After].
func TestEventsChargedAfterAReplyAreNotAvailable(t *testing.T) {
	for i := range kinds {
		rule := kinds[i].rule
		l, err := integers(rule, PerHour(5))
		require.NoError(t, err)
		r := store.Reply{Outcome: store.Admitted, X: 1e15}
		require.EqualValues(t, 5, r.Available(rule, l), rule.Name)
		require.EqualValues(t, 3, r.After(rule, 2).Available(rule, l), rule.Name)
	}
}

// A queue is told what it cannot see: that another than the limit's store has decided, and that
// nobody counts what is admitted.
func TestWhatAQueueIsTold(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	a := &asker{limiter: Must(NewTokenBucket(mem, PerHour(5))), key: "key", n: 1}
	for _, c := range []struct {
		r         Result
		elsewhere bool
		remaining int
	}{
		{Result{Allowed: true, Limit: 5, Remaining: 3}, false, 3},
		{Result{Allowed: true, Limit: 1}, false, 0},
		{Result{Allowed: true}, false, maxEvents},
		{Result{}, false, 0},
		{Result{Limit: 5, Remaining: 3}.WithMark(NewMark(a, SourceLocal, nil)), true, 3},
	} {
		a.result = c.r
		d := a.answer()
		require.Equal(t, c.elsewhere, d.Elsewhere)
		require.Equal(t, c.remaining, d.Remaining)
	}

	// Of several limits it is told each one's Delay.
	other := Must(NewTokenBucket(mem, PerHour(2)))
	parts := []Part{
		{Result{Allowed: true, Limit: 5, Remaining: 3, ResetAfter: 24 * time.Minute}, a.limiter},
		{Result{Allowed: true, Limit: 2, ResetAfter: 90 * time.Minute, Delay: 30 * time.Minute}, other},
	}
	r := Result{Allowed: true, mark: NewMark(nil, SourceStore, join(parts, 0))}
	a = &asker{limiter: Must(NewAll(a.limiter, other)), key: "key", n: 1, result: r}
	want := queue.Answer{Allowed: true, Remaining: maxEvents}
	for _, p := range parts {
		want.Part(queue.Bucket, 1, queue.Answer{Limit: p.Limit, Remaining: p.Remaining, ResetAfter: p.ResetAfter, Delay: p.Delay})
	}
	require.Equal(t, want, a.answer())
}
