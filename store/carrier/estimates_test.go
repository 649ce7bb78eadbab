package carrier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
)

const ms = time.Millisecond

// The shortest trip of late counts, and what is longer is forgotten after two spans.
func TestTheDistanceIsThatOfARoundTripAlone(t *testing.T) {
	var d distance
	now := time.Unix(1_000, 0)
	trip := func(alone bool, took time.Duration) {
		now = now.Add(ms)
		begun := now
		if alone {
			d.probed = begun
		}
		now = now.Add(took)
		d.add(begun, now)
	}
	require.Zero(t, d.is())
	trip(false, 40*ms)
	require.Equal(t, 40*ms, d.is(), "anything is better than nothing")
	trip(true, 20*ms)
	require.Equal(t, 20*ms, d.is())
	trip(false, 30*ms)
	require.Equal(t, 20*ms, d.is(), "it may have waited for others")
	trip(false, 24*ms)
	trip(false, 12*ms)
	require.Equal(t, 12*ms, d.is(), "whoever is faster did not wait")
	require.False(t, d.due(now.Add(lately)), "it was seen just now")
	require.True(t, d.due(now.Add(2*lately)))

	// The way is longer now.
	for range 2 {
		now = now.Add(lately)
		trip(true, 30*ms)
	}
	require.Equal(t, 30*ms, d.is())
	now = now.Add(time.Hour)
	trip(true, 50*ms)
	require.Equal(t, 50*ms, d.is(), "after a rest nothing older counts")
}

// What was short counts until the end of the span after its own, and no longer than that when few call. Far
// away a span is longer, since there are fewer trips in a second.
func TestTheDistanceIsOfLate(t *testing.T) {
	type trip struct{ rest, took, want time.Duration } // rest is from the end of one trip to that of the next
	for name, trips := range map[string][]trip{
		"near":         {{0, 2, 2}, {1000, 3, 2}, {1000, 4, 2}, {1000, 5, 2}, {999, 6, 4}, {500, 3, 3}},
		"after a rest": {{0, 2, 2}, {2001, 6, 6}, {999, 5, 5}, {2500, 9, 9}, {500, 9, 9}},
		"far":          {{0, 100, 100}, {3200, 110, 100}, {3200, 120, 100}, {3201, 130, 120}},
		"in no time":   {{0, 0, 0}, {1, 1, 0}},
	} {
		var d distance
		now := time.Unix(1_000, 0)
		for i, trip := range trips {
			now = now.Add(trip.rest * ms)
			d.probed = now.Add(-trip.took * ms)
			d.add(d.probed, now)
			require.Equal(t, max(trip.want*ms, 1), d.is(), "%s, trip %d", name, i) // 0: not known
		}
	}
}

// A trip beside others may have waited for them. If it took longer than the way by a quarter, it is no
// reason to put the next trip alone off.
func TestATripBesideOthersCountsIfItDidNotWait(t *testing.T) {
	now := time.Unix(1_000, 0)
	for took, counts := range map[time.Duration]bool{19 * ms: true, 24 * ms: true, 25 * ms: false, 29 * ms: false} {
		d := distance{least: 20 * ms, since: now.Add(-lately), probed: now.Add(-lately)}
		d.add(now.Add(-took), now)
		require.Equal(t, counts, d.probed.Equal(now), "%v", took)
		require.Equal(t, min(took, 20*ms), d.is())
	}
}

// Trips have at least leastTripSize calls each if the window has so many, and at most mostTripSize.
func TestAFewTripsShareTheWindow(t *testing.T) {
	for _, c := range []struct{ calls, most, trips, batch int }{
		{8, 2, 1, 8}, {15, 2, 1, 15}, {16, 2, 2, 8}, {128, 1, 1, 128}, {128, 2, 2, 64}, {128, 16, 16, 8},
		{256, 2, 2, 128}, {300, 2, 2, 128}, {100, 16, 12, 8}, {2048, 16, 16, 128},
	} {
		w := window{calls: c.calls}
		require.Equal(t, c.trips, w.trips(c.most), "%+v", c)
		require.Equal(t, c.batch, w.tripSize(c.most), "%+v", c)
	}
}

// Up to where nothing was lost the window doubles, and it feels its way from there.
func TestAWindowDoublesUpToWhereItWasLost(t *testing.T) {
	const most, may = mostConns, 25 * ms
	w := newWindow()
	now := time.Unix(1_000, 0)
	for i, step := range []struct {
		took time.Duration // 0: its callers have all left
		want int
	}{
		{may, 256}, {1, 512}, {1, 1024}, {1, 2048}, {1, 2048}, // as many as there may be
		{may + 1, 1536}, {1, 1920}, {1, 2048},
		{may + 1, 1536}, {may + 1, 1152}, {1, 1440}, {1, 1800},
		{0, 120}, {1, 240}, {1, 480}, {1, 960}, {1, 1920}, {1, 2048},
		{0, 120}, {0, 8}, {may + 1, 16}, {1, 32}, {1, 64}, {1, 120}, {may + 1, 120}, {1, 150},
	} {
		begun := now.Add(1)
		now = begun.Add(max(step.took, 1))
		if step.took > 0 {
			w.learn(w.tripSize(most), most, begun, now, may)
		} else {
			w.lose(most, begun, now)
		}
		require.Equal(t, step.want, w.calls, "step %d", i)
	}
}

// A server that takes a fixed time for each call is given as many as it answers without a
// long wait. The window finds that from both sides, and again after each change.
func TestTheWindowFindsWhatAServerCanDo(t *testing.T) {
	for _, c := range []struct {
		way, each time.Duration
		most      int
	}{
		{100 * time.Microsecond, 5 * time.Microsecond, nearTrips},
		{100 * time.Microsecond, 27 * time.Microsecond, nearTrips},
		{100 * time.Microsecond, 135 * time.Microsecond, nearTrips},
		{100 * time.Microsecond, 2 * ms, nearTrips},
		{20 * ms, 27 * time.Microsecond, mostConns},
		{75 * ms, 27 * time.Microsecond, mostConns},
	} {
		t.Run(fmt.Sprintf("%v away, %v for a call", c.way, c.each), func(t *testing.T) {
			w := newWindow()
			now := time.Unix(1_000, 0)
			may := c.way + max(slack, c.way/4)
			rounds := func(each time.Duration, n int) {
				for range n { // all trips of a round wait for each other
					begun, size, trips := now, w.tripSize(c.most), w.trips(c.most)
					now = begun.Add(c.way + time.Duration(size*trips)*each)
					for range trips {
						w.learn(size, c.most, begun, now, may)
					}
				}
			}
			least, most := leastTripSize*(c.most-nearTrips+1), mostTripSize*c.most
			fits := func(each time.Duration) (low, high int) {
				n := int((may - c.way) / each)
				return min(max(n/2, least), most), min(max(2*n, least), most)
			}
			check := func(each time.Duration) {
				rounds(each, 60)
				low, high := fits(each)
				require.GreaterOrEqual(t, w.calls, low)
				require.LessOrEqual(t, w.calls, high)
			}
			check(c.each)
			check(10 * c.each)
			check(c.each)
			rounds(time.Second, 60) // the server stands
			require.Equal(t, least, w.calls)
			check(c.each)
		})
	}
}

// Trips that are not full say nothing about more.
func TestTheWindowDoesNotGrowWithoutNeed(t *testing.T) {
	w := newWindow()
	now := time.Unix(1_000, 0)
	w.learn(w.tripSize(nearTrips)-1, nearTrips, now, now.Add(ms), 4*ms)
	require.Equal(t, firstWindow, w.calls)
	w.learn(1, nearTrips, now, now.Add(5*ms), 4*ms)
	require.Equal(t, firstWindow*3/4, w.calls)
	w.learn(1, nearTrips, now, now.Add(6*ms), 4*ms)
	require.Equal(t, firstWindow*3/4, w.calls, "it began before the change")
}

// More was under way than the server answers in time. The window begins anew, and is soon back if that
// has passed.
func TestAWindowWhoseCallersHaveAllLeftBeginsAnew(t *testing.T) {
	w := newWindow()
	now := time.Unix(1_000, 0)
	round := func(most int, took time.Duration) {
		begun := now
		now = now.Add(took)
		for range w.trips(most) {
			w.learn(w.tripSize(most), most, begun, now, 25*ms)
		}
	}
	round(mostConns, 30*ms)
	for range 2 {
		round(mostConns, 20*ms)
	}
	require.Equal(t, mostTripSize*mostConns, w.calls)
	begun := now
	now = now.Add(250 * ms)
	for range mostConns { // all of them
		w.lose(mostConns, begun, now)
	}
	require.Equal(t, least(mostConns), w.calls)
	was := w
	w.lose(mostConns, now.Add(ms), now.Add(250*ms))
	require.Equal(t, leastTripSize, w.calls, "that was too much too")
	now = now.Add(251 * ms)
	for range 3 {
		round(mostConns, 200*ms)
	}
	require.Equal(t, least(mostConns), w.calls, "it does not stay so small for trips that are only long")

	w = was
	for trips := 0; w.calls < mostTripSize*mostConns; trips++ {
		require.Less(t, trips, 5)
		now = now.Add(20 * ms)
		w.learn(w.tripSize(mostConns), mostConns, now.Add(-20*ms), now, 25*ms)
	}
}

// A process that stands still reads its replies late. That says nothing of the server, unless it lasts as
// long as calls can wait.
func TestAPauseOfTheProcessIsNotTheServers(t *testing.T) {
	for _, c := range []struct {
		timer bool // is late
		took  time.Duration
		want  int
	}{
		{false, 20 * ms, firstWindow}, {false, 60 * ms, least(mostConns)},
		{true, 60 * ms, firstWindow}, {true, 130 * ms, least(mostConns)},
	} {
		p, now := made(t, plain()), time.Now()
		p.distance.add(now.Add(-20*ms), now)
		p.begin(true)
		if c.timer {
			require.True(t, p.pauses.startTimer(now))
		}
		p.finish(&Trip[int]{connected: true, calls: 1, begun: now}, nil, now.Add(c.took), 0)
		require.Equal(t, c.want, p.window.calls, "%+v", c)
	}
}

// Nor does it begin anew because its callers have left meanwhile.
func TestAPauseOfTheProcessLosesNoTrip(t *testing.T) {
	for paused, want := range map[bool]int{false: least(mostConns), true: firstWindow} {
		p, begun := made(t, plain()), time.Now().Add(-time.Second)
		p.distance.add(begun.Add(-20*ms), begun)
		p.begin(true)
		if paused {
			p.pauses.startTimer(begun)
		}
		p.abandon(&Trip[int]{connected: true, calls: 1, begun: begun})
		require.Equal(t, want, p.window.calls)
	}
}

func TestAPauseOfTheProcessCountsOnce(t *testing.T) {
	var p pauses
	now := time.Unix(1_000, 0)
	require.Zero(t, p.until(now), "there is no timer")
	require.True(t, p.startTimer(now))
	require.False(t, p.startTimer(now), "one is enough")
	require.Zero(t, p.until(now.Add(tick)))
	require.Equal(t, 40*ms, p.until(now.Add(tick+40*ms)))
	require.Equal(t, 50*ms, p.until(now.Add(tick+50*ms)), "nothing counts twice")
}

// If all calls go alone, one of those that are in progress at the same time counts like a full trip, if they fill the window: a fast
// one makes it larger and a slow one smaller. It begins anew if the store's own timeout is over, unless this process stood still.
func TestACallSpeaksForThoseThatAllGoAlone(t *testing.T) {
	const before = 160
	for _, c := range []struct {
		err          error
		own          bool
		took, paused time.Duration
		running      int
		want         int
	}{
		{nil, true, 7 * ms, 0, 145, 2 * before}, {nil, true, 7 * ms, 0, 144, before},
		{answer("ERR no"), true, 7 * ms, 0, 145, 2 * before},
		{nil, true, 14 * ms, 0, 145, 2 * before}, {nil, true, 14*ms + 1, 0, 145, before * 3 / 4},
		{context.DeadlineExceeded, true, 250 * ms, 0, 145, least(mostConns)}, {context.DeadlineExceeded, false, 250 * ms, 0, 145, before},
		{context.DeadlineExceeded, true, 250 * ms, 125*ms - 1, 145, least(mostConns)}, {context.DeadlineExceeded, true, 250 * ms, 125 * ms, 145, before},
		{io.EOF, true, 250 * ms, 0, 145, before},
	} {
		synctest.Test(t, func(t *testing.T) {
			config := plain()
			config.Send = nil
			p, now := made(t, config), time.Now()
			p.distance, p.window.calls = distance{least: 10 * ms, since: now, probed: now}, before
			p.pauses.total, p.paused = 3*time.Second, 3*time.Second
			time.Sleep(ms)
			_, _, began := p.enter(p.Begin(t.Context()), 0)
			p.mu.Lock()
			p.trips = c.running
			p.mu.Unlock()
			time.Sleep(c.took)
			p.mu.Lock()
			p.pauses.total += c.paused
			p.mu.Unlock()
			for range 2 { // the second one began no later
				p.measure(began, c.err, c.own)
				require.Equal(t, c.want, p.window.calls, "%+v", c)
			}
			if p.answered(c.err) {
				require.Equal(t, min(c.took, 10*ms), p.distance.is())
			}
			p.mu.Lock()
			p.trips = 0
			p.mu.Unlock()
			time.Sleep(tick)
		})
	}
}

// How long a trip took that all have left says how long the server stood still, and not how much time a
// call must have left to go.
func TestATripThatAllHaveLeftIsNoMeasureForOthers(t *testing.T) {
	p, now := made(t, plain()), time.Now()
	end := func(took time.Duration, left bool) time.Duration {
		p.begin(true)
		trip := &Trip[int]{connected: true, calls: 1, begun: now.Add(-took)}
		if left {
			p.abandon(trip)
		}
		p.finish(trip, nil, now, 0)
		return p.quickTrip
	}
	for range 8 {
		end(20*ms, false)
	}
	before := p.quickTrip
	require.Equal(t, before, end(time.Second, true))
	require.Greater(t, end(time.Second, false), before)
}

// Callers who have something better to do are told at once, however many they are. Those
// who come back at once are held, nearly always.
func TestCallersWhoRetryAtOnceAreHeldAndOthersAreNot(t *testing.T) {
	effort.OthersRace(t)
	synctest.Test(t, func(t *testing.T) {
		for _, rate := range []int{100, 1_000, 10_000, 50_000} { // arrivals in a period
			r := refusalDelay{waves: waves.New(50 * ms)}
			held := 0
			for period := range 400 {
				for i := range rate {
					now := time.Duration(period)*periodLength + periodLength*time.Duration(i)/time.Duration(rate)
					if !r.retriers.immediately(now) && period > 10 {
						held++
					}
				}
			}
			require.Zero(t, held, "%d a period", rate)
		}

		// Each of the callers calls again some time after it was told, or when it was held for
		// 38 ms. At most 16 call in a µs.
		const step = time.Microsecond
		for pause, most := range map[time.Duration]int{0: 20, 10 * ms: 2} { // of the refusals if nobody was held
			for _, callers := range []int{2_000, effort.Of(4_000, 16_000)} {
				r := refusalDelay{waves: waves.New(50 * ms)}
				next := make([]time.Duration, callers)
				told, atOnce := 0, 0
				for now := time.Duration(0); now < 2*time.Second; now += 500 * step {
					for i := range next {
						for n := 0; next[i] <= now && n < 4; n++ { // a processor makes no more
							if told++; r.retriers.immediately(now) {
								atOnce++
								next[i] = now + pause
							} else {
								next[i] = now + pause + 38*ms
							}
						}
					}
				}
				t.Logf("%d callers with a pause of %v: %d refusals, %d at once", callers, pause, told, atOnce)
				loop := callers * int(2*time.Second/max(pause, 125*step))
				require.Less(t, told, loop/most)
			}
		}
	})
}

func TestRefusedCallersAreToldBeforeTheirTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := refusalDelay{waves: waves.New(64 * ms), jitter: rand.N[time.Duration]}
		r.retriers.holds.Store(true)
		r.retriers.seen.Store(2<<countBits | 2*freely)
		ended := make(chan time.Duration, 100)
		for range 100 {
			go func() {
				begun := time.Now()
				r.hold(&Budget{Context: context.Background(), End: begun.Add(64 * ms), Left: 64 * ms, Own: true})
				ended <- time.Since(begun)
			}()
		}
		seen := map[time.Duration]bool{}
		for range 100 {
			took := <-ended
			require.GreaterOrEqual(t, took, 32*ms)
			require.LessOrEqual(t, took, 65*ms)
			seen[took] = true
		}
		require.Greater(t, len(seen), 16, "they do not come back together")
		require.Zero(t, r.holding.Load())

		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		begun := time.Now()
		r.wait(&Budget{Context: ctx}, begun.Add(time.Hour))
		require.Equal(t, 10*ms, time.Since(begun))
		time.Sleep(2 * time.Hour) // so that all timers have run
	})
}

func TestCallsJoinTheLastBatchThatHasRoom(t *testing.T) {
	var q queue[int]
	now := time.Unix(1_000, 0)
	join := func(most int) *batch[int] {
		b := q.last(now, most, ms)
		if b == nil {
			b = &batch[int]{queue: &q, begun: now}
			q.batches = append(q.batches, b)
		}
		b.calls = append(b.calls, Carried[int]{})
		b.living++
		q.living++
		return b
	}
	first := join(2)
	require.Same(t, first, join(2))
	second := join(2)
	require.NotSame(t, first, second, "the first is full")
	now = now.Add(ms)
	third := join(2)
	require.NotSame(t, second, third, "it has waited too long")
	third.ended.Store(true)
	require.NotSame(t, third, join(2))
	require.Equal(t, 5, q.living)
	require.Nil(t, q.take(1), "nobody overtakes")
	require.Same(t, first, q.take(2))
	second.drop(1)
	require.Equal(t, 2, q.living)
	require.Same(t, third, q.take(2), "the second is empty")
	require.NotNil(t, q.take(2))
	require.Nil(t, q.take(2))
	require.Zero(t, q.living)

	for range 100 { // those that have ended do not fill memory
		now = now.Add(time.Second)
		join(1).drop(1)
	}
	require.LessOrEqual(t, len(q.batches), 17)
}

// Each trip has room for as many that go ahead as for others, so neither kind waits for all of the
// other. While more go ahead than that, every second trip is without others. A batch goes as a whole.
func TestThoseThatGoAheadAndTheOthersShareEachTrip(t *testing.T) {
	for _, c := range []struct {
		others, ahead int
		want          []int
	}{
		{24, 3, []int{3 + 8, 8, 8}},
		{8, 9, []int{9, 8}},
		{8, 24, []int{16, 8 + 8}},
		{24, 24, []int{16, 8 + 8, 8, 8}},
		{12, 128, []int{16, 8 + 8, 16, 8 + 4, 16, 16, 16, 16, 16}},
		{24, 0, []int{8, 8, 8}},
		{0, 12, []int{12}},
	} {
		p := full(t)
		p.timeout = time.Hour // nothing ends meanwhile
		p.window.calls = 8 * p.tripsByDistance()
		p.occupy()
		b := p.Begin(t.Context())
		for range c.others {
			p.enter(b, 0)
		}
		b.Ahead = true
		for range c.ahead {
			p.enter(b, 0)
		}
		p.mu.Lock()
		var carried []int
		for p.waiting() > 0 {
			trip := &Trip[int]{begun: time.Now()}
			p.fill(trip)
			carried = append(carried, trip.calls)
		}
		p.mu.Unlock()
		require.Equal(t, c.want, carried, "%d, and %d ahead", c.others, c.ahead)
	}
}

// However many calls go ahead, they delay the others no more than three times as many others would: these have half of
// every second trip.
func TestThoseThatGoAheadTakeNoRoomFromOthers(t *testing.T) {
	p := full(t)
	p.forecast.admitted.Store(0)
	admit := func(ahead bool) (Budget, error) {
		b := p.Begin(t.Context())
		b.Ahead = ahead
		return b, p.Admit(&b)
	}
	for range 2 * mostAdmitted {
		_, err := admit(true)
		require.NoError(t, err)
	}
	b := p.Begin(t.Context())
	require.NoError(t, p.Admit(&b))
	require.EqualValues(t, 2*mostAdmitted+1, p.Stats().UnderWay)
	e := &p.forecast
	e.perCall.Store(int64(p.timeout / 40)) // so 10 may wait
	e.admitted.Store(1)
	e.room.Store(2 + 3*2 - 10)
	_, err := admit(false)
	require.NoError(t, err)
	e.room.Store(3 + 3*3 - 11)
	_, err = admit(false)
	require.ErrorIs(t, err, store.ErrOverloaded, "they are served beside three times as many")
	e.admitted.Store(1)
	b.Leave()
	b.Ahead = true
	b.Leave()
	require.EqualValues(t, 2*mostAdmitted-1, p.Stats().UnderWay)
	require.Zero(t, p.forecast.admitted.Load())
}

func TestARefusalAllocatesNothing(t *testing.T) {
	p, ctx := full(t), context.Background()
	allocs := testing.AllocsPerRun(500, func() {
		b := p.Begin(ctx)
		if err := p.Admit(&b); !errors.Is(err, store.ErrOverloaded) {
			t.Fatal(err)
		}
	})
	require.Less(t, allocs, 0.1) // a timer of the process may run
	require.EqualValues(t, mostAdmitted, p.Stats().UnderWay)
	require.EqualValues(t, 501, p.Stats().Overloaded)
}

// What gives room to others is not refused for want of room: they wait for it. It goes before
// them.
func TestCallsThatMakeRoomGoAhead(t *testing.T) {
	p := full(t)
	p.timeout = time.Hour // nothing ends meanwhile
	p.occupy()
	b := p.Begin(t.Context())
	asks, _, _ := p.enter(b, 0)
	require.ErrorIs(t, p.Admit(&b), store.ErrOverloaded)
	b.Ahead = true
	require.NoError(t, p.Admit(&b))
	ahead, _, _ := p.enter(b, 0)
	trip := &Trip[int]{begun: time.Now()}
	p.mu.Lock()
	p.fill(trip)
	p.mu.Unlock()
	require.Len(t, trip.list, 2)
	require.Same(t, ahead, trip.list[0])
	require.Same(t, asks, trip.list[1])
}

// A call beside one whose time was up is tried again. If it has no time for that either, its
// error has a class as all others: this server has never answered.
func TestACallThatAnotherHasGivenUpHasAClass(t *testing.T) {
	now := time.Now()
	bt := &batch[int]{calls: []Carried[int]{{goes: true}}, done: make(chan struct{}), err: errGivenUp, begun: now}
	close(bt.done)
	p := made(t, plain())
	_, err := p.wait(Budget{Context: context.Background(), End: now.Add(time.Second)}, bt, 0)
	require.True(t, failure(t, err).Again)
	require.ErrorIs(t, err, store.ErrUnavailable)
}

// A call that was left out has not been sent, whatever becomes of those that went.
func TestACallThatWasLeftOutWasNotSent(t *testing.T) {
	p := made(t, plain())
	bt := &batch[int]{calls: []Carried[int]{{goes: true}, {left: true}}, done: make(chan struct{}), err: context.DeadlineExceeded, sent: true}
	close(bt.done)
	_, err := p.wait(p.Begin(t.Context()), bt, 0)
	require.ErrorIs(t, err, store.ErrTimeout)
	_, err = p.wait(p.Begin(t.Context()), bt, 1)
	require.NotErrorIs(t, err, store.ErrTimeout)
	require.ErrorContains(t, err, "nothing was sent")
}

// A trip that made its connection takes longer than the way. If it was shorter than all of late,
// the way is no longer what it was.
func TestATripThatMadeItsConnectionShortensTheDistance(t *testing.T) {
	p, now := made(t, plain()), time.Now()
	end := func(took time.Duration, err error) time.Duration {
		p.mu.Lock()
		p.begin(false)
		p.mu.Unlock()
		now = now.Add(time.Second)
		p.finish(&Trip[int]{begun: now.Add(-took)}, err, now, 0)
		return p.distance.is()
	}
	p.distance.add(now.Add(-170*ms), now)
	require.Equal(t, 170*ms, end(200*ms, nil))
	require.Equal(t, 170*ms, end(2*ms, context.DeadlineExceeded))
	require.Equal(t, 2*ms, end(2*ms, nil))
	require.Equal(t, int64(2*ms), p.forecast.distance.Load(), "and calls that have more time are not refused")
}

// A call that is tried again goes with calls that have more time, and ends at most 8 ms later than
// it should, however long the timeout is.
func TestACallThatGoesWithLaterOnesIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := plain()
		config.Timeout = 5 * time.Second
		p := made(t, config)
		defer p.occupy()()
		b := p.Begin(t.Context())
		time.Sleep(100 * ms)
		bt, i, _ := p.enter(b, 0)
		require.NotNil(t, bt)
		_, err := p.wait(b, bt, i)
		require.Error(t, err)
		require.LessOrEqual(t, time.Since(b.End), waves.MostApart)
	})
}

// Near a server many calls share two trips, and each of a few has its own.
func TestEachOfAFewCallsHasATrip(t *testing.T) {
	p := &Carrier[int]{window: newWindow(), conns: conns{most: mostConns}, distance: distance{least: 50 * time.Microsecond}}
	for calls, trips := range map[int64]int{1: 2, 2: 2, 3: 3, 4: 4, 5: 2, 1000: 2} {
		p.forecast.admitted.Store(calls)
		require.Equal(t, trips, p.mostTrips(), "%d calls", calls)
	}
	p.conns.most = 3
	p.forecast.admitted.Store(4)
	require.Equal(t, 3, p.mostTrips(), "of a small pool")
}
