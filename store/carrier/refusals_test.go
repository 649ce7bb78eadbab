package carrier

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
)

// latest is a jitter that takes most of what it may.
func latest(most time.Duration) time.Duration { return most }

// heldLoops are callers who come back at once, and are held.
func (r *retriers) heldLoops() {
	r.holds.Store(true)
	r.seen.Store(1<<countBits<<20 | 2*freely) // in a period that does not end
}

// A call is refused if it cannot be served in time, by what is known, and only then. So nobody waits in vain, and
// nobody is turned away from a server that has room.
func TestCallsThatCannotBeServedInTimeAreRefused(t *testing.T) {
	const admitted, tooFar, tooLate, noRoom = "admitted", "too far", "too late", "no room"
	for _, c := range []struct {
		left      time.Duration // of a deadline; 0: the store's own timeout
		way, trip time.Duration
		inside    int64
		ahead     bool
		room      int64 // each of the others waits 1 ms longer than the one before
		want      string
	}{
		{left: 20 * ms, way: 20 * ms, room: 1, want: admitted},
		{left: 20*ms - 1, way: 20 * ms, room: 1, want: tooFar},
		{way: 240 * ms, room: 1, want: admitted},
		{left: 20*ms - 1, way: 20 * ms, ahead: true, want: admitted}, // a refund counts, even if its reply comes too late

		// Of the store's own time a quarter is for the wait.
		{inside: 49, room: 10, trip: 300 * ms, want: admitted},
		{inside: 69, room: 10, want: admitted},
		{inside: 70, room: 10, want: noRoom},

		// A deadline must leave time for the trip, but not for one who need not wait: trips may be shorter now.
		{left: 50 * ms, inside: 9, room: 10, trip: 200 * ms, want: admitted},
		{left: 50 * ms, inside: 10, room: 10, trip: 200 * ms, want: tooLate},
		{left: 50 * ms, inside: 19, room: 10, trip: 40 * ms, want: admitted},
		{left: 50 * ms, inside: 20, room: 10, trip: 40 * ms, want: tooLate},
		{left: 50 * ms, inside: 70, room: 10, trip: 40 * ms, want: noRoom}, // nobody else is admitted either

		// However fast the server is, memory is not without bound.
		{inside: 1<<14 - 1, room: 1 << 15, want: admitted},
		{inside: 1 << 14, room: 1 << 15, want: noRoom},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := full(t)
			e := &p.forecast
			p.timeout, p.refusal.jitter = 240*ms, latest
			p.distance.probed = time.Now()
			p.refusal.retriers.heldLoops()
			e.distance.Store(int64(c.way))
			e.tripTime.Store(int64(c.trip))
			e.admitted.Store(c.inside)
			e.room.Store(c.room)
			e.perCall.Store(int64(ms))
			begun, ctx, wait, inside, seen := time.Now(), t.Context(), time.Duration(0), c.inside, p.refusal.retriers.seen.Load()
			if c.left > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, begun.Add(c.left))
				defer cancel()
			}
			b := p.Begin(ctx)
			b.Ahead = c.ahead
			got := admitted
			switch f := p.admitOrHold(&b, p.takeProbe); f {
			case nil:
				if !c.ahead {
					inside++
				}
			case failFar:
				got, wait = tooFar, b.Left
			default:
				if got, wait = noRoom, b.Left/2; ctx.Err() != nil {
					got, wait = tooLate, b.Left
				}
			}
			require.Equal(t, c.want, got, "%+v", c)
			require.Equal(t, inside, e.admitted.Load())
			require.GreaterOrEqual(t, time.Since(begun), wait)
			require.LessOrEqual(t, time.Since(begun), wait+waves.MostApart)
			require.Equal(t, got == tooFar, p.Stats().TooShort == 1)
			require.Equal(t, got == noRoom, p.refusal.retriers.seen.Load() > seen, "nobody else may come back at once")
			time.Sleep(time.Second) // so that all timers have run
		})
	}
}

// A deadline of the caller's own that leaves no time for those before it ends the call, and not the store: the error is
// the context's, at its end. Who has the store's own time is told that there is no room.
func TestACallersOwnDeadlineIsNotAFailureOfTheStore(t *testing.T) {
	const left = 10 * ms
	carried := func(after time.Duration, end func(c *Carried[int])) func(p *Carrier[int]) {
		return func(p *Carrier[int]) {
			time.Sleep(after)
			synctest.Wait() // it is in the queue
			p.mu.Lock()
			bt := p.others.batches[0]
			tr := &Trip[int]{begun: time.Now()}
			if after == 0 {
				p.conns.busy, p.quickTrip = 1, left+1
			}
			p.fill(tr)
			p.mu.Unlock()
			for i := range bt.calls {
				end(&bt.calls[i])
			}
			bt.trip = tr
			bt.ended.Store(true)
			close(bt.done)
		}
	}
	for name, meets := range map[string]func(p *Carrier[int]){
		"others wait before it": func(p *Carrier[int]) {
			p.forecast.admitted.Store(20)
			p.forecast.room.Store(10)
			p.forecast.perCall.Store(int64(ms))
			p.forecast.tripTime.Store(int64(p.timeout))
		},
		"a trip takes longer":    carried(0, func(*Carried[int]) {}),
		"another one gave it up": carried(left-ms/4, func(c *Carried[int]) { c.err = errGivenUp }), // and there is no time to try again
	} {
		for _, own := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				p := full(t)
				p.forecast.admitted.Store(0)
				defer func() { p.mu.Lock(); p.conns.busy = 0; p.mu.Unlock() }()
				p.occupy()
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				if !own {
					p.timeout = left
					ctx = context.WithoutCancel(ctx)
				}
				met := make(chan struct{})
				go func() {
					defer close(met)
					meets(p)
				}()
				if name == "others wait before it" {
					<-met
				}
				begun := time.Now()
				_, err := p.call(ctx, 0)
				<-met
				if own {
					require.Equal(t, context.DeadlineExceeded, err, name)
					require.Equal(t, left, time.Since(begun), name)
					require.Zero(t, p.Stats().Overloaded)
				} else if name != "others wait before it" { // it may wait
					require.ErrorIs(t, err, store.ErrOverloaded, name)
					require.EqualValues(t, 1, p.Stats().Overloaded)
				}
			})
		}
	}
}

// A refused call is told that nothing was sent, and why.
func TestTheErrorOfARefusedCall(t *testing.T) {
	for want, state := range map[string]func(p *Carrier[int]){
		"ratelimit: store failed: overloaded: nothing was sent: no connection was free in time": func(*Carrier[int]) {},
		"ratelimit: store failed: timeout: nothing was sent: a round trip takes longer than the call has left": func(p *Carrier[int]) {
			p.forecast.distance.Store(int64(p.timeout + 1))
			p.distance.probed = time.Now()
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := full(t)
			state(p)
			b := p.Begin(t.Context())
			require.EqualError(t, p.Admit(&b), want)
			time.Sleep(time.Second)
		})
	}
	require.ErrorIs(t, failFull, store.ErrOverloaded)
	require.ErrorIs(t, failFar, store.ErrTimeout)
}

// A store that has failed is the reason, however near a caller's own deadline is. Callers that come back at once are held then, too.
func TestACallersOwnDeadlineHidesNoOutage(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for what, outage := range map[string]func(p *Carrier[int]){
		"all connections are waiting for a server that does not answer": func(*Carrier[int]) { time.Sleep(time.Hour) },
		"no connection was made: dial: refused":                         func(p *Carrier[int]) { p.pulse.noteDial(refused) },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := full(t)
			outage(p)
			p.refusal.jitter = latest
			p.refusal.retriers.heldLoops()
			p.forecast.admitted.Store(20)
			p.forecast.room.Store(10)
			p.forecast.perCall.Store(int64(ms))
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
			defer cancel()
			b := p.Begin(ctx)
			err := p.Admit(&b)
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorContains(t, err, what)
			require.GreaterOrEqual(t, time.Since(begun), 5*ms)
			require.NoError(t, ctx.Err(), "the reason comes before the end of its context")
			time.Sleep(time.Second)
		})
	}
}

// Calls that are too short for the way are not sent, but for one now and then: nobody else may find out that the
// way has become shorter.
func TestNowAndThenACallLooksForAShorterWay(t *testing.T) {
	for _, c := range []struct {
		trips     int
		way, last time.Duration // when a trip last probed
		want      bool
	}{
		{0, 40 * ms, 249 * ms, false}, {0, 40 * ms, 250 * ms, true}, // the timeout
		{0, 600 * ms, 599 * ms, false}, {0, 600 * ms, 600 * ms, true},
		{0, time.Minute, 999 * ms, false}, {0, time.Minute, 1000 * ms, true},
		{1, 40 * ms, time.Hour, false}, // it will tell
	} {
		p, now := full(t), time.Now()
		p.trips, p.distance = c.trips, distance{least: c.way, since: now, probed: now.Add(-c.last)}
		require.Equal(t, c.want, p.takeProbe(now), "%+v", c)
		require.False(t, p.takeProbe(now), "one is enough")
	}
}

// What a call has to expect is told by what is known: room for as many as go at once, of which one more goes when a trip
// has taken its share. A trip can be as short as the short ones of late, and if none is under way, the server is not busy.
func TestTheForecastFollowsWhatIsKnown(t *testing.T) {
	p := full(t)
	p.window.calls, p.usualTrip, p.quickTrip, p.distance.least = 160, 20*ms, 12*ms, 10*ms
	for trips, want := range map[int]time.Duration{0: 0, 1: 12 * ms, 2: 12 * ms} {
		p.trips = trips
		p.count()
		e := &p.forecast
		require.EqualValues(t, 160, e.room.Load())
		require.Equal(t, 20*ms/160, time.Duration(e.perCall.Load()))
		require.Equal(t, want, time.Duration(e.tripTime.Load()))
		require.Equal(t, 10*ms, time.Duration(e.distance.Load()))
	}
}

// Those who are held cost memory, so not all of an endless crowd are.
func TestNotMoreThanSoManyAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := refusalDelay{waves: waves.New(64 * ms), jitter: latest}
		r.retriers.heldLoops()
		for others, want := range map[int64]time.Duration{0: 32 * ms, mostHeld - 1: 32 * ms, mostHeld: 0} {
			r.holding.Store(others)
			begun := time.Now()
			r.hold(&Budget{Context: context.Background(), End: begun.Add(64 * ms), Left: 64 * ms, Own: true})
			require.Equal(t, want, time.Since(begun).Truncate(2*ms))
			require.Equal(t, others, r.holding.Load())
		}
	})
}

// A crowd that comes back when it is told is held, and seldom tried again. What comes when nobody is told says how many
// others there are: half as many again are no crowd. After a rest nothing older counts.
func TestHowManyRefusedCallsAreToldAtOnce(t *testing.T) {
	const rest = -1
	type period struct{ calls, atOnce int }
	held := func(periods, calls int) (all []period) {
		for range periods {
			all = append(all, period{calls, min(calls, freely)})
		}
		return all
	}
	trace := []period{{freely, freely}, {freely + 1, freely}} // that one comes back, by what is known
	add := func(more ...period) { trace = append(trace, more...) }
	add(held(leastTry-2, 9*freely)...)
	add(held(1, 2*freely)...)
	for next := 2 * leastTry; ; next = min(2*next, longestTry) {
		add(period{4*freely + 1, 4 * freely}) // 2 and a half of it, and those who are free
		add(held(next-2, 9*freely)...)
		add(held(1, 2*freely)...)
		if len(trace) > 4*longestTry {
			break
		}
	}
	add(period{4 * freely, 4 * freely}, period{4 * freely, 4 * freely}) // arrivals, who do not come back
	add(period{4*freely + 1, 4 * freely})
	add(held(leastTry-1, 8)...)                                       // the tries begin anew
	add(period{freely + 13, freely + 12}, period{7, 7}, period{7, 7}) // 8 and a half of it
	add(period{rest, 0}, period{freely + 1, freely})
	add(period{rest, 0}, period{freely + 1, freely}) // nor for how long they were held
	add(held(leastTry-1, 2*freely)...)
	add(period{4*freely + 1, 4 * freely})
	add(period{rest, 0}, period{10, 10}, period{freely + 1, freely}) // nor that they were
	add(held(leastTry-1, 2*freely)...)
	add(period{4 * freely, 4 * freely})

	var l retriers
	for i, p := range trace {
		atOnce := 0
		for range p.calls {
			if l.immediately(time.Duration(i) * periodLength) {
				atOnce++
			}
		}
		require.Equal(t, p.atOnce, atOnce, "period %d: %v", i, trace[max(0, i-9):i+1])
	}
}
