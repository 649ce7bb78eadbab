package lease

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/batch"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func leaseOf(left int, until time.Duration) lease[int] {
	return lease[int]{left: left, most: left, size: left, until: until, grant: left}
}

// Each spend looks at the clock, whatever has been tidied.
func TestEventsAreSpentFromALeaseThatHasThemAll(t *testing.T) {
	for _, c := range []struct {
		name         string
		lease, spare lease[int]
		n, of        int // of which grant, 0 if of none
	}{
		{"nothing", lease[int]{}, lease[int]{}, 1, 0},
		{"the first", leaseOf(2, 101), leaseOf(3, 102), 1, 2},
		{"the last event", leaseOf(1, 101), lease[int]{}, 1, 1},
		{"lapsed", leaseOf(2, 100), lease[int]{}, 1, 0},
		{"both lapsed", leaseOf(2, 99), leaseOf(3, 100), 1, 0},
		{"the spare, since the first has lapsed", leaseOf(2, 100), leaseOf(3, 101), 1, 3},
		{"the spare, since the first is too small", leaseOf(2, 101), leaseOf(3, 101), 3, 3},
		{"the spare has lapsed", leaseOf(2, 101), leaseOf(3, 100), 3, 0},
		{"both are too small", leaseOf(2, 101), leaseOf(3, 101), 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := holding[int]{lease: c.lease, spare: c.spare}
			of := h.spend(100, c.n)
			if c.of == 0 {
				require.Nil(t, of)
				require.Equal(t, c.lease.left+c.spare.left, h.left+h.spare.left)
				return
			}
			require.Equal(t, c.of, of.grant)
			require.Equal(t, c.of-c.n, of.left)
			require.Equal(t, c.lease.left+c.spare.left-c.n, h.left+h.spare.left)
		})
	}
}

// All that has lapsed is given back, in whatever order it was received, and nothing else.
func TestAllThatHasLapsedGoesBackOnce(t *testing.T) {
	for _, c := range []struct {
		lease, spare lease[int]
		lapsed       int
	}{
		{lease[int]{}, lease[int]{}, 0},
		{leaseOf(2, 101), leaseOf(3, 101), 0},
		{leaseOf(2, 100), leaseOf(3, 101), 2},
		{leaseOf(2, 101), leaseOf(3, 100), 3},
		{leaseOf(2, 100), leaseOf(3, 100), 5},
		{leaseOf(2, 101), leaseOf(1, 100), 1},
		{lease[int]{until: 50}, leaseOf(3, 100), 3},
	} {
		h, sum := holding[int]{lease: c.lease, spare: c.spare}, 0
		for {
			g, n := h.lapse(100)
			if n == 0 {
				break
			}
			require.Equal(t, g, n)
			sum += n
		}
		require.Equal(t, c.lapsed, sum)
		require.Equal(t, c.lease.left+c.spare.left-sum, h.left+h.spare.left)
	}
}

// While two grants are held only what is owed is asked for, and it takes no place.
func TestWithTwoLeasesOnlyWhatIsOwedIsAskedFor(t *testing.T) {
	for _, spare := range []int{1, 3} {
		h := holding[int]{lease: leaseOf(2, 101), spare: leaseOf(spare, 101), owed: 4}
		terms := terms{life: 100, most: maxLease, overdraft: 8}
		require.Equal(t, 4, h.ask(90, 0, &terms))
		of := h.receive(answer{granted: 4, want: 4, owed: 4, sent: 90, now: 95, window: 100}, &terms)
		require.Zero(t, of.left)
		require.Zero(t, h.owed)
		require.Equal(t, []int{2, spare}, []int{h.left, h.spare.left})
	}
}

// The next grant is as large as what was spent of the last one, if that lasted for half of its
// time, and twice as large if two consecutive grants did not. If the store answers too late, it has
// one event. For a fixed window, it is at most half of what is left.
func TestHowMuchIsAskedFor(t *testing.T) {
	of := func(size, room int, usable time.Duration) lease[int] {
		return lease[int]{size: size, room: room, from: 1000, until: 1000 + usable}
	}
	for _, c := range []struct {
		last  lease[int]
		after time.Duration // of the last one
		halve bool
		want  int
	}{
		{of(0, 100, 100), 10, false, 7}, // as before, since that was all there was
		{of(8, 100, 100), 49, false, 16},
		{of(8, 100, 100), 50, false, 8},
		{of(8, 100, 100), 90, false, 8},
		{of(8, 100, 1), 10, false, 8},
		{of(8, 100, 0), 10, false, 1},
		{of(8, 100, -10), 10, false, 1},
		{of(8, 20, 100), 49, false, 16},
		{of(8, 20, 100), 49, true, 10},
		{of(8, 7, 100), 49, true, 3},
		{of(1, 3, 100), 49, true, 1},
		{of(1, 3, 100), 49, false, 2},
	} {
		h := holding[int]{lease: c.last, next: 7, quick: 1}
		require.Equal(t, c.want, h.ask(1000+c.after, 0, &terms{life: 100, most: 1000, halve: c.halve}), "%+v", c)
	}
	for size := range 4 {
		for left := range size + 1 {
			h := holding[int]{lease: lease[int]{size: size, left: left}, next: 7}
			_, unspent := h.drop()
			require.Equal(t, left, unspent)
			next := h.ask(2000, 0, &terms{life: 100, most: 1000})
			if size == 0 {
				require.Equal(t, 7, next)
			} else {
				require.Equal(t, max(1, size-left), next)
			}
		}
	}
}

// After an error grants grow as those of a new key do: by one that was spent soon after another.
func TestGrantsAfterAnErrorGrowAsThoseOfANewKey(t *testing.T) {
	var h holding[int]
	terms := &terms{life: 100, most: 1000}
	now := time.Duration(0)
	// asked is what is asked for, each time soon after the grant before.
	asked := func(times int) (sizes []int) {
		for range times {
			now++
			n := h.ask(now, 1, terms)
			sizes = append(sizes, n)
			h.receive(answer{granted: n, want: n, room: 1000, sent: now, now: now, window: 1000}, terms)
			require.NotNil(t, h.spend(now, n))
		}
		return sizes
	}
	grown := []int{1, 1, 2, 4, 8}
	require.Equal(t, grown, asked(5))
	for range 3 {
		h.failed()
		require.Equal(t, grown, asked(5))
	}
	asked(1) // of those that come soon one was counted
	h.failed()
	require.Equal(t, grown, asked(5))
}

// Grants grow after two that were spent soon. One that was not begins the count anew, and a denial
// says nothing of the demand.
func TestGrantsGrowAfterTwoThatWereSpentSoon(t *testing.T) {
	var h holding[int]
	terms := &terms{life: 100, most: 1000}
	now := time.Duration(0)
	asked := func(after time.Duration) int {
		now += after
		n := h.ask(now, 1, terms)
		h.receive(answer{granted: n, want: n, room: 1000, sent: now, now: now, window: 1000}, terms)
		require.NotNil(t, h.spend(now, n))
		return n
	}
	for _, step := range []struct {
		after  time.Duration
		denied bool
		want   int
	}{{1, false, 1}, {1, false, 1}, {1, false, 2}, {1, false, 4}, {60, false, 4}, {1, false, 4}, {1, false, 8}, {1, true, 8}, {1, false, 16}} {
		if step.denied {
			h.refused(10, 0, now, now, terms)
		}
		require.Equal(t, step.want, asked(step.after), "%+v", step)
	}
}

// No number of events overflows an int of 32 bits.
func TestNoNumberOfEventsOverflows32Bits(t *testing.T) {
	const most = 1<<31 - 1
	h := holding[int]{lease: lease[int]{size: 2 * maxLease, from: 0, until: 100}, quick: 1, owed: maxLease}
	n := h.ask(1, 0, &terms{life: 100, most: maxLease, overdraft: maxLease})
	require.Equal(t, 2*maxLease, n)
	require.LessOrEqual(t, n, most)
	require.Equal(t, 2*maxLease, h.next)
}

// generous is a store that admits all together, and tells for how much it was asked.
type generous struct {
	store.Store
	most, sum int64
}

// Decide implements [store.Store].
func (s *generous) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if requests[0].Op == store.OpTake || requests[0].Op == store.OpUpTo {
		return s.TakeAll(ctx, requests, replies)
	}
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *generous) TakeAll(_ context.Context, requests []store.Request, replies []store.Reply) error {
	for i := range requests {
		s.most, s.sum = max(s.most, requests[i].N), s.sum+requests[i].N
		replies[i] = store.Reply{Outcome: store.AdmittedPlainly, Y: math.MaxInt32, Z: 1}
	}
	return nil
}

// However many wait in the queue, no call is for more of a key than may be held, and each of them is charged once.
func TestALongQueueIsDecidedOnInParts(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	of := &seen{Store: mem}
	l, err := ratelimit.NewFixedWindow(of, ratelimit.PerHour(math.MaxInt32))
	require.NoError(t, err)
	_, err = l.Peek(t.Context(), "key")
	require.NoError(t, err)
	for _, n := range []int64{1, batch.MostEvents} {
		s := &generous{Store: mem}
		d, err := New(s, time.Second)
		require.NoError(t, err)
		ns := of.space
		shard, id := d.shardOf(ns, "key")
		shard.mu.Lock()
		e := d.entry(shard, id, ns, "key", of.limit)
		shard.mu.Unlock()
		misses := []miss{{request: store.Request{Namespace: ns, Key: "key", N: n}, limits: e.limits, shard: shard, entry: e}}
		require.False(t, misses[0].alone())
		ln := &queue{misses: misses, busy: true}
		e.queues = ln
		for range 3 * 1 << 13 {
			ln.claims = append(ln.claims, batch.Claim{Call: pending.New[batch.Verdict](), N: []int64{n}})
		}
		claims := slices.Clone(ln.claims)
		d.proceed(ln, nil)
		for _, c := range claims {
			_, err := c.Wait(t.Context(), d.patience, "key", &e.answered)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, s.most, int64(maxLease))
		require.GreaterOrEqual(t, s.sum, n*int64(len(claims)))
		require.LessOrEqual(t, s.sum, n*int64(len(claims))+2)
		require.NoError(t, d.Close(t.Context()))
	}
}

// A life as the store's clock sees it is one of which no process spends more.
func TestALifeIsNoShorterOnAClockThatNTPSlews(t *testing.T) {
	for _, life := range []time.Duration{leastLife, leastLife + 1, 2*time.Millisecond - 1, 50 * time.Millisecond, time.Second + 999, mostLife} {
		us := lifeMicros(life)
		require.GreaterOrEqual(t, shortened(time.Duration(us)*time.Microsecond), life)
		require.LessOrEqual(t, float64(us), float64(life.Microseconds())*1.00101+4)
		require.Greater(t, float64(us)*1000, float64(life)*(1+500e-6)/(1-500e-6)+1000, "clocks of ± 500 µs a second, and a cut microsecond")
	}
}

// The number of events that flow in during a time is rounded up, and no more than that is kept from
// calls at the same instant.
func TestEventsThatFlowInAreRoundedUp(t *testing.T) {
	for us, want := range map[int64]int64{50_051: 1000, 50_052: 1000, 50_053: 1001} {
		require.Equal(t, want, ahead(store.Limit{Rate: 1000, Period: 50_052}, us))
	}
}

// A caller that comes again after the reported time is not too early.
func TestTimesAreRoundedUp(t *testing.T) {
	for d := range 3 * time.Microsecond {
		require.GreaterOrEqual(t, micros(inMicros(d)), d)
		require.Less(t, micros(inMicros(d)), d+time.Microsecond)
	}
}

// A lease of a log asks for a longer one, which must not be longer than limits are.
func TestTheLongestLogThatCanBeLeased(t *testing.T) {
	const life = time.Second
	longest := store.Limit{Rate: 1e9, Burst: 1e9, Period: maxPeriod - lifeMicros(life)}
	by, leasable := strict(slidingLog, longest, life)
	require.True(t, leasable)
	require.EqualValues(t, maxPeriod, by.Period)
	longest.Period++
	_, leasable = strict(slidingLog, longest, life)
	require.False(t, leasable)
}
