package inflight

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// model is what the slots of a key are, without any cleverness.
type model struct {
	now, last time.Duration
	ends      map[time.Duration]time.Duration // of the slots, by number
}

func (m *model) forgetEnded() {
	for number, end := range m.ends {
		if end <= m.now {
			delete(m.ends, number)
		}
	}
}

// sorted are the ends from now on.
func (m *model) sorted() (left []time.Duration) {
	m.forgetEnded()
	for _, end := range m.ends {
		left = append(left, end-m.now)
	}
	slices.Sort(left)
	return left
}

func (m *model) longest() time.Duration {
	if left := m.sorted(); len(left) > 0 {
		return left[len(left)-1]
	}
	return 0
}

// ask is Allow, Renew of a number, or Peek.
func (m *model) ask(rate int, life, number time.Duration, look bool) (r ratelimit.Result, taken time.Duration) {
	r.Limit = rate
	left := m.sorted()
	_, held := m.ends[number]
	switch {
	case held:
		taken = number
	case len(left) < rate:
		if taken = m.now; len(left) > 0 {
			taken = max(m.now, m.last+1)
		}
	default:
		r.RetryAfter = left[len(left)-rate] * time.Microsecond
		r.ResetAfter = m.longest() * time.Microsecond
		return r, 0
	}
	r.Allowed = true
	if look {
		r.Remaining, r.ResetAfter = max(0, rate-len(left)), m.longest()*time.Microsecond
		return r, 0
	}
	if !held {
		m.last = taken
	}
	m.ends[taken] = m.now + life
	longest := max(m.longest(), life)
	if held && len(left) > 0 { // a renewal is told from before
		longest = max(left[len(left)-1], life)
	}
	r.Remaining, r.ResetAfter = max(0, rate-len(m.ends)), longest*time.Microsecond
	return r, taken
}

func (m *model) refund(number time.Duration) {
	m.forgetEnded()
	if delete(m.ends, number); len(m.ends) == 0 {
		m.last = 0
	}
}

// The rule decides alike in memory, on Redis and in the model: takes, renewals and refunds of what
// is held, has ended or was given back, looks, two lives, and a number of slots that changes.
func TestTheRuleDecidesAsItsModel(t *testing.T) {
	server, patient := redistest.Start(t), redisstore.WithTimeout(time.Minute) // on a busy machine, too
	for seed := range uint64(effort.Of(3, 20, 400)) {
		clock := ratelimittest.NewClock(time.Unix(1_800_000_000, 0))
		real, err := redisstore.New(server.Client(t), redisstore.WithClock(clock.Now), redisstore.WithPrefix(redistest.Prefix(t)), patient)
		require.NoError(t, err)
		mini, err := redisstore.New(redistest.Mini(t).Client(t), redisstore.WithClock(clock.Now), patient)
		require.NoError(t, err)
		play(t, seed, clock, []store.Store{clock.Memory(t), real, mini})
	}
}

func play(t *testing.T, seed uint64, clock *ratelimittest.Clock, stores []store.Store) {
	random := rand.New(rand.NewPCG(seed, 30))
	rate := 3
	limits := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
		return ratelimit.PerHour(rate), nil // whose Period means nothing
	})
	lives := []time.Duration{30 * time.Second, 60 * time.Second}
	limiters := make([][]*ratelimit.Custom, len(stores)) // by store and life
	for i, s := range stores {
		for _, life := range lives {
			l, err := ratelimit.NewCustom(rule, s, ratelimit.Limit{Rate: 3, Period: life}, ratelimit.WithName("one"), limits, ratelimit.CountCalls())
			require.NoError(t, err)
			limiters[i] = append(limiters[i], l)
		}
	}
	m := &model{ends: map[time.Duration]time.Duration{}}
	taken := make([][]ratelimit.Result, len(stores)) // admissions
	var numbers []time.Duration                      // of the same
	ctx, key := t.Context(), fmt.Sprint("key", seed)
	for step := range 200 {
		m.now = time.Duration(clock.Now().UnixMicro())
		life := random.IntN(2)
		what, which := random.IntN(6), 0
		if what >= 4 && len(numbers) == 0 {
			what = 0
		}
		if len(numbers) > 0 {
			which = max(0, len(numbers)-1-random.IntN(6))
		}
		var want ratelimit.Result
		var number time.Duration
		switch what {
		case 0, 1:
			want, number = m.ask(rate, lives[life]/time.Microsecond, 0, false)
		case 2:
			unit := []time.Duration{time.Microsecond, 5 * time.Second}[seed%2] // to the very end of a slot, too
			clock.Advance(time.Duration(random.Int64N(int64(15 * time.Second))).Truncate(unit))
			continue
		case 3:
			if want, _ = m.ask(rate, 0, 0, true); random.IntN(3) == 0 {
				rate = 1 + random.IntN(4)
				continue
			}
		case 4:
			want, number = m.ask(rate, lives[life]/time.Microsecond, numbers[which], false)
		case 5:
			m.refund(numbers[which])
		}
		for i := range stores {
			l := limiters[i][life]
			var got ratelimit.Result
			var err error
			switch what {
			case 0, 1:
				got, err = l.Allow(ctx, key)
			case 3:
				got, err = l.Peek(ctx, key)
			case 4:
				got, err = l.Renew(ctx, key, taken[i][which])
			case 5:
				err = l.Refund(ctx, key, taken[i][which], 1)
			}
			require.NoError(t, err)
			if what == 5 {
				continue
			}
			require.Equal(t, int64(number), l.ChargedAt(got), "store %d, step %d, seed %d", i, step, seed)
			require.Equal(t, [...]any{want.Allowed, want.Limit, want.Remaining, want.RetryAfter, want.ResetAfter},
				[...]any{got.Allowed, got.Limit, got.Remaining, got.RetryAfter, got.ResetAfter}, "store %d, step %d of kind %d, seed %d", i, step, what, seed)
			if number != 0 {
				taken[i] = append(taken[i], got)
			}
		}
		if number != 0 {
			numbers = append(numbers, number)
		}
	}
}

// A rule of one's own that holds nothing is a rate, and stays charged after a Release.
func TestAnotherRuleBesideSlotsIsARate(t *testing.T) {
	own := *rule
	own.Name, own.Held = "own", false
	clock := ratelimittest.NewClock(time.Unix(1_800_000_000, 0))
	s := clock.Memory(t)
	rate := ratelimit.Must(ratelimit.NewCustom(&own, s, ratelimit.PerHour(3)))
	atOnce := ratelimit.Must(New(s, 3, time.Minute))
	slot, _, err := Hold(t.Context(), ratelimit.Must(ratelimit.NewAll(rate, atOnce)), "key", 1)
	require.NoError(t, err)
	slot.Release()
	for l, left := range map[*ratelimit.Custom]int{rate: 2, atOnce: 3} {
		r, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, left, r.Remaining)
	}
}

// A slot is found however long after others it was taken, even if an int has 32 bits.
func TestSlotsTakenFarApartAreToldApart(t *testing.T) {
	l, s := store.Limit{Rate: 100, Period: 1 << 50}, newSlotLog()
	var numbers []int64
	for now := int64(1_800_000_000_000_000); len(numbers) < 100; now += 1 << 32 / 3 { // 24 minutes
		numbers = append(numbers, s.Step(l, now, 1).X)
		s.Add(l, now, 1)
	}
	for i, number := range numbers {
		at, held := s.find(number)
		require.True(t, held)
		require.Equal(t, i, at)
		_, held = s.find(number + 1<<32)
		require.False(t, held)
	}
}

// A slot can be renewed before its end. From then on it is not held, and another one is taken.
func TestASlotIsRenewedBeforeItsEnd(t *testing.T) {
	for late, same := range map[int64]bool{-1: true, 0: false, 1: false} {
		l, s, now := store.Limit{Rate: 1, Period: 500}, newSlotLog(), int64(1_800_000_000_000_000)
		first := s.Step(l, now, 1).X
		s.Add(l, now, 1)
		now += l.Period + late
		l = l.TurnBefore(first)
		r := s.Step(l, now, 1)
		s.Add(l, now, 1)
		require.True(t, r.OK())
		require.Equal(t, same, r.X == first)
		require.EqualValues(t, 0, r.Y)
		require.Equal(t, []entry{{r.X, now + l.Period}}, s.all)
	}
}

// What a store reports about the slots of a key is correct, even if several are taken together: how
// many are held, when the last one ends, and when there is room again. Slots that have ended do not
// use memory for long.
func TestReportsOfSlotsAreCorrect(t *testing.T) {
	random := rand.New(rand.NewPCG(30, 33))
	s, now := newSlotLog(), int64(1_800_000_000_000_000)
	ends := map[int64]int64{} // of those that are held, by number
	for range 2000 {
		now += random.Int64N(4) * 100
		maps.DeleteFunc(ends, func(_, end int64) bool { return end <= now })
		require.EqualValues(t, len(ends), s.Used(now))
		n, l := 1+random.Int64N(3), store.Limit{Rate: 5, Period: 500 + random.Int64N(3)*500}
		r := s.Step(l, now, n)
		require.EqualValues(t, len(ends), r.Y)
		require.Equal(t, len(ends)+int(n) <= 5, r.OK())
		if !r.OK() {
			require.False(t, s.Step(l, now+r.X-1, n).OK())
			require.True(t, s.Step(l, now+r.X, n).OK(), "at RetryAfter there is room")
			if random.IntN(2) == 0 {
				one := slices.Sorted(maps.Keys(ends))[0]
				s.Refund(l, now, store.Receipt{At: one, N: 1})
				delete(ends, one)
				require.Len(t, s.all, len(ends))
			}
			continue
		}
		for number := r.X; number < r.X+n; number++ {
			require.NotContains(t, ends, number)
			ends[number] = now + l.Period
		}
		require.Equal(t, slices.Max(slices.Collect(maps.Values(ends))), s.Add(l, now, n))
		require.LessOrEqual(t, len(s.all), 5)
		b, err := s.AppendBinary(nil)
		require.NoError(t, err)
		_, err = parse(b)
		require.NoError(t, err)
	}
}

// These are the functions that stores call. The State is always that of a new key, because the
// slots are in a log.
func TestTheRuleAnswersItsStores(t *testing.T) {
	l := store.Limit{Rate: 3, Period: 1000}
	for held, left := range []int64{3, 2, 1, 0, 0} {
		require.Equal(t, left, rule.Available(l, rule.After(store.Reply{Y: 1}, int64(held)-1)))
	}
	require.Equal(t, store.State{Whole: 2}, rule.Refund(store.State{Whole: 2}, l, 1, store.Receipt{At: 1, N: 1}))
	require.EqualValues(t, 2, rule.Used(store.State{Whole: 2}, 1, 0))
	require.EqualValues(t, 7, rule.TTL(store.State{Period: 7}, l))
	b, err := rule.NewLog(store.State{}).AppendBinary(nil)
	require.NoError(t, err)
	_, err = rule.ParseLog(b)
	require.NoError(t, err)
}

// Slots end a life from now if the server's clock was set back by more than a second since the last one was taken. Until
// then those with a longer life keep it.
func TestEndsAreLimitedAfterAClockWasSetBack(t *testing.T) {
	const life, now = 10_000_000, 1_800_000_000_000_000
	l := store.Limit{Rate: 3, Period: life}
	for back, cut := range map[int64]bool{-time.Hour.Microseconds(): false, 0: false, 1_000_000: false, 1_000_001: true, time.Hour.Microseconds(): true} {
		before := []entry{{now + back - 1, now + life - 1}, {now + back, now + life + 1}}
		s := &slotLog{last: now + back, all: slices.Clone(before)}
		require.Equal(t, cut, rule.SetBack(s, l, now), "by %d µs", back)
		want := slices.Clone(before)
		if cut {
			want[1].end = now + life
		}
		require.Equal(t, want, s.all, "by %d µs", back)
		require.False(t, rule.SetBack(s, l, now), "by %d µs: once", back)
	}
}

// A store of bytes reads back what it has written, and refuses what nobody has.
func TestSlotsAsBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(30, 32))
	l, now := store.Limit{Rate: 5, Period: 1000}, int64(1_800_000_000_000_000)
	s := newSlotLog()
	for range 1000 {
		now += random.Int64N(4) * 100
		if r := s.Step(l, now, 1); r.OK() {
			s.Add(l, now, 1)
		} else if random.IntN(2) == 0 {
			s.Refund(l, now, store.Receipt{At: s.all[random.IntN(len(s.all))].number, N: 1})
		}
		b, err := s.AppendBinary([]byte("before"))
		require.NoError(t, err)
		require.Equal(t, "before", string(b[:6]))
		b = b[6:]
		read, err := parse(b)
		require.NoError(t, err)
		require.Equal(t, s.last, read.(*slotLog).last)
		require.Equal(t, len(s.all), len(read.(*slotLog).all))
		require.True(t, slices.Equal(s.all, read.(*slotLog).all))
		require.Equal(t, s.Step(l, now, 1), read.Step(l, now, 1))
		for cut := 1; cut < 16 && cut <= len(b); cut++ {
			_, err := parse(b[:len(b)-cut])
			require.ErrorIs(t, err, store.ErrCorrupt)
		}
	}
	for name, s := range map[string]slotLog{
		"a number above the last": {last: 1, all: []entry{{2, 3}}},
		"twice the same":          {last: 5, all: []entry{{2, 3}, {2, 3}}},
		"an end beyond all time":  {last: 5, all: []entry{{2, 1<<60 + 1}}},
		"one before all time":     {last: 5, all: []entry{{2, -1<<60 - 1}}},
	} {
		b, err := s.AppendBinary(nil)
		require.NoError(t, err)
		_, err = parse(b)
		require.ErrorIs(t, err, store.ErrCorrupt, name)
	}
	for _, end := range []int64{1 << 60, -1 << 60} {
		b, err := (&slotLog{last: 2, all: []entry{{2, end}}}).AppendBinary(nil)
		require.NoError(t, err)
		_, err = parse(b)
		require.NoError(t, err)
	}
}
