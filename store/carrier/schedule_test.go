package carrier

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
)

// The farther away the server is, the more trips are under way at once. While nobody knows, as many as there may be.
func TestThereAreMoreTripsFarAway(t *testing.T) {
	for way, want := range map[time.Duration]int{0: 16, 1: 2, tripStep - 1: 2, tripStep: 3, 3 * tripStep: 5, time.Second: 16} {
		p := Carrier[int]{conns: conns{most: mostConns}, distance: distance{least: way}}
		require.Equal(t, want, p.tripsByDistance(), "%v away", way)
	}
}

// There are as many trips as callers wait for, and of those that they have left as many again, but no more than
// connections. The first connection of a client with hooks is made alone.
func TestNoMoreTripsBeginThanMay(t *testing.T) {
	for _, c := range []struct {
		size, trips, late int
		unreached         bool
		want              bool
	}{
		{100, 15, 0, false, false}, {100, 16, 0, false, true},
		{100, 15, 16, false, false}, {100, 15, 17, false, true}, {100, 0, 32, false, true},
		{20, 10, 9, false, false}, {20, 10, 10, false, true}, {20, 0, 20, false, true},
		{100, 0, 0, true, false}, {100, 1, 0, true, true}, {100, 0, 1, true, true},
	} {
		p := far(t)
		p.conns.size, p.conns.reached, p.trips, p.late = c.size, !c.unreached, c.trips, c.late
		require.Equal(t, c.want, p.full(), "%+v", c)
	}
	for first, want := range map[bool]bool{false: false, true: true} {
		config := plain()
		config.OneFirst = first
		p := made(t, config)
		p.trips = 1
		require.Equal(t, want, p.full())
	}
}

// A call goes alone if it takes nothing from others by that: a trip may begin, nobody waits, and it will have its reply
// before its time is up, when the connection would be closed.
func TestACallGoesAloneIfItTakesNothingFromOthers(t *testing.T) {
	alone := func(change func(p *Carrier[int], b *Budget, now time.Time)) bool {
		p := far(t)
		b, now := p.Begin(t.Context()), p.distance.probed
		change(p, &b, now)
		return p.alone(b, now)
	}
	for what, change := range map[string]func(p *Carrier[int], b *Budget, now time.Time){
		"all is well":             func(*Carrier[int], *Budget, time.Time) {},
		"just time for two trips": func(_ *Carrier[int], b *Budget, _ time.Time) { b.Left = 24*ms + 1 },
		"a last trip may begin":   func(p *Carrier[int], _ *Budget, _ time.Time) { p.trips = 15 },
		"used a while ago":        func(p *Carrier[int], _ *Budget, now time.Time) { p.conns.used = now.Add(-rested) },
		"another began before":    func(p *Carrier[int], _ *Budget, now time.Time) { p.trips, p.began = 1, now.Add(-12*ms/16) },
		"another, near the server": func(p *Carrier[int], _ *Budget, now time.Time) {
			p.trips, p.began, p.distance.least, p.window.calls = 1, now, slack-1, 1000
		},
	} {
		require.True(t, alone(change), what)
	}
	for what, change := range map[string]func(p *Carrier[int], b *Budget, now time.Time){
		"no time for two trips":       func(_ *Carrier[int], b *Budget, _ time.Time) { b.Left = 24 * ms },
		"nor for the way":             func(p *Carrier[int], b *Budget, _ time.Time) { p.usualTrip, b.Left = 1, 20*ms },
		"nobody knows the way":        func(p *Carrier[int], _ *Budget, _ time.Time) { p.distance = distance{} },
		"others wait":                 func(p *Carrier[int], _ *Budget, _ time.Time) { p.others.living = 1 },
		"others wait to go ahead":     func(p *Carrier[int], _ *Budget, _ time.Time) { p.ahead.living = 1 },
		"no connection is ready":      func(p *Carrier[int], _ *Budget, _ time.Time) { p.conns.ready = 0 },
		"no trip may begin":           func(p *Carrier[int], _ *Budget, _ time.Time) { p.trips = 16 },
		"the connections may be gone": func(p *Carrier[int], _ *Budget, now time.Time) { p.conns.used = now.Add(-rested - 1) },
		"it is to go with others":     func(_ *Carrier[int], b *Budget, _ time.Time) { b.Together = true },
		"another began just now":      func(p *Carrier[int], _ *Budget, now time.Time) { p.trips, p.began = 1, now.Add(-12*ms/16+1) },
	} {
		require.False(t, alone(change), what)
	}
}

// Far away the beginnings of trips that are not full are spread over the time of one.
func TestFarAwayCallsWaitForOthers(t *testing.T) {
	p := far(t)
	now := p.distance.probed
	p.began = now.Add(-ms / 2)
	require.Zero(t, p.gathering(now), "no trip is under way")
	p.trips = 1
	p.others.living = p.tripSize() - 1
	require.Equal(t, 12*ms/16-ms/2, p.gathering(now))
	p.distance.least = slack
	require.Equal(t, 12*ms/16-ms/2, p.gathering(now))
	p.others.living++
	require.Zero(t, p.gathering(now), "they fill one")
	p.others.living = 1
	p.distance.least = slack - 1
	require.Zero(t, p.gathering(now), "near")
}

// What goes alone is counted as a trip like others, and its end may give back the connection, or be the sign that all are lost.
func TestTheAccountOfACallThatGoesAlone(t *testing.T) {
	for _, c := range []struct {
		err      error
		answered bool // others were, meanwhile
		ready    int
	}{
		{nil, false, 3}, {answer("ERR no"), false, 3},
		{context.DeadlineExceeded, true, 2}, {context.DeadlineExceeded, false, 0}, {io.EOF, true, 0}, {io.EOF, false, 0},
		{context.Canceled, true, 2}, {&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, true, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := far(t)
			pulse := &p.pulse
			p.conns.ready = 3
			time.Sleep(time.Hour)
			p.conns.used = time.Now()
			bt, _, began := p.enter(p.Begin(t.Context()), 0)
			require.Nil(t, bt)
			require.Equal(t, []int{1, 2, 1}, []int{p.trips, p.conns.ready, p.conns.busy})
			require.Equal(t, began, p.began, "others gather behind it")
			require.Equal(t, began, p.distance.probed)
			require.False(t, p.silent(), "nobody has asked for an hour")
			time.Sleep(7 * ms)
			if c.answered {
				pulse.beat()
			}
			p.finishAlone(began, c.err)
			require.Equal(t, []int{0, c.ready, 0}, []int{p.trips, p.conns.ready, p.conns.busy}, "%+v", c)
			want := 10 * ms
			if p.answered(c.err) {
				want = 7 * ms
			}
			require.Equal(t, want, p.distance.is())
			require.Equal(t, want, time.Duration(p.forecast.distance.Load()))
		})
	}
}

// The server is asked when a trip begins and none is under way. One that must make its connection does not count: it may
// never reach the server, and a server that cannot be reached would never be called silent.
func TestWhenTheServerIsAsked(t *testing.T) {
	for _, c := range []struct {
		made        bool
		trips, late int
		want        bool
	}{{true, 0, 0, true}, {true, 1, 0, false}, {true, 0, 1, false}, {true, 1, 1, false}, {false, 0, 0, false}, {false, 1, 0, false}} {
		p := far(t)
		p.pulse.asked.Store(0)
		p.conns.ready, p.trips, p.late = 2, c.trips, c.late
		p.begin(c.made)
		require.Equal(t, c.want, p.pulse.asked.Load() != 0, "%+v", c)
		taken := 0
		if c.made {
			taken = 1
		}
		require.Equal(t, []int{c.trips + 1, 2 - taken, taken}, []int{p.trips, p.conns.ready, p.conns.busy})
		p.over(c.made)
		require.Equal(t, []int{c.trips, 2 - taken, 0}, []int{p.trips, p.conns.ready, p.conns.busy})
	}
}

// After a long rest the server has not been asked, so it has not been silent either, even if no connection is left.
func TestTheServerIsAskedAfterARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := far(t)
		time.Sleep(time.Hour)
		p.trips = mostConns // so that none begins
		require.True(t, p.silent())
		p.conns.ready = 0
		_, _, _ = p.enter(p.Begin(t.Context()), 0)
		require.True(t, p.silent(), "there was no rest: all connections are lost")
		p.conns.ready = 1
		_, _, _ = p.enter(p.Begin(t.Context()), 0)
		require.False(t, p.silent())
		require.Zero(t, p.conns.ready, "nobody relies on a connection that has rested")
		time.Sleep(time.Second)
	})
}

func TestConnectionsAreReliedOnForAMinute(t *testing.T) {
	for rests, want := range map[time.Duration]bool{time.Minute: false, time.Minute + 1: true} {
		now := time.Now()
		c := conns{ready: 1, used: now.Add(-rests)}
		require.Equal(t, want, c.forgetIdle(now))
		require.Equal(t, want, c.ready == 0)
		require.False(t, c.forgetIdle(now) && want, "there are none any more")
	}
}

// A server counts as silent after a second, or twice the timeout if that is longer.
func TestAServerIsSilentIfItHasNotAnsweredForLong(t *testing.T) {
	for timeout, silence := range map[time.Duration]time.Duration{250 * ms: time.Second, 2 * time.Second: 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			p := far(t)
			p.timeout = timeout
			time.Sleep(ms)
			p.pulse.beat()
			time.Sleep(silence)
			require.False(t, p.silent(), timeout)
			time.Sleep(time.Nanosecond)
			require.True(t, p.silent(), timeout)
		})
	}
}

// Hanging dials leave half of the pool to others, until a connection works.
func TestDialsLeaveHalfOfAPoolUntilAConnectionWorks(t *testing.T) {
	for size, most := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 20: 10} {
		now, c := time.Now(), conns{dials: newDials(size, time.Minute)}
		for range 2 {
			for i := range size {
				require.Equal(t, i < most, c.dials.may(now), "%d of %d", i, size)
				c.dials.begin(now)
			}
			c.release(true, false, now)
		}
	}
}

// The other half of the pool follows one by one, over the time that a dial lasts, but at least one each second.
func TestTheOtherDialsFollowOneByOne(t *testing.T) {
	for _, c := range []struct {
		size           int
		timeout, pause time.Duration
	}{{20, 5 * time.Second, 500 * ms}, {20, time.Minute, time.Second}, {3, time.Second, 500 * ms}, {2, 500 * ms, 500 * ms}, {1, 500 * ms, 500 * ms}, {20, 0, time.Second}, {2, -1, time.Second}} {
		now, d := time.Now(), newDials(c.size, c.timeout)
		for d.vain <= c.size && d.may(now) {
			d.begin(now)
		}
		for range 3 {
			require.False(t, d.may(now.Add(c.pause-1)), "%+v", c)
			now = now.Add(c.pause)
			require.True(t, d.may(now), "%+v", c)
			d.begin(now)
		}
	}
}

// A client whose dials have failed refuses to dial for a while. Calls then wait for a connection in use, if there is one.
func TestAfterAFailedDialCallsWaitForConnectionsInUse(t *testing.T) {
	for _, c := range []struct {
		busy int
		ago  time.Duration
		want bool
	}{{0, 0, true}, {1, 0, false}, {1, untilDial - 1, false}, {1, untilDial, true}} {
		p, now := far(t), time.Now()
		p.conns.busy, p.conns.failed = c.busy, now.Add(-c.ago)
		require.Equal(t, c.want, p.conns.mayDial(now), "%+v", c)
	}
}

// What Ready has found out holds for the calls that follow.
func TestAWarmedStoreKnowsItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := plain()
		config.OneFirst = true
		p := made(t, config)
		time.Sleep(time.Hour)
		require.True(t, p.silent())
		p.Warmed(7, 30*ms)
		require.False(t, p.silent())
		require.True(t, p.conns.reached)
		require.Equal(t, 7, p.conns.ready)
		require.Equal(t, 30*ms, p.distance.is())
		require.Equal(t, 30*ms, p.Stats().RoundTrip)
		require.False(t, p.distance.due(time.Now()))
		require.True(t, p.alone(p.Begin(t.Context()), time.Now()))
	})
}

// The error of a call that was not sent says what it has waited for: a connection in use, or one that could not be made
// meanwhile.
func TestUnsentCallsReportWhatTheyWaitedFor(t *testing.T) {
	for _, c := range []struct {
		ready, busy int
		failed      time.Duration // since the call came
		want        error
	}{
		{0, 0, -1, errQueued}, {0, 0, 0, errUnconnected}, {0, 0, 1, errUnconnected},
		{1, 0, 1, errQueued}, {0, 1, 1, errQueued}, {1, 1, 1, errQueued},
	} {
		p := far(t)
		bt := &batch[int]{begun: time.Now()}
		p.conns.ready, p.conns.busy, p.conns.failed = c.ready, c.busy, bt.begun.Add(c.failed)
		require.Equal(t, c.want, p.unsentError(bt), "%+v", c)
	}
}

// A queue whose calls had no turn is empty when their time is up, whether they stayed or not. So no trip takes a
// call that was told that nothing was sent.
func TestAnEndedCallLeavesTheQueue(t *testing.T) {
	for left := range 3 {
		synctest.Test(t, func(t *testing.T) {
			p := far(t)
			p.trips = mostConns
			b, told := p.Begin(t.Context()), make(chan error)
			leaver, leave := context.WithCancel(t.Context())
			for i := range 2 {
				b := b
				if i < left {
					b.Context = leaver
				}
				bt, n, _ := p.enter(b, 0)
				go func() {
					_, err := p.wait(b, bt, n)
					told <- err
				}()
			}
			require.Equal(t, 2, p.Stats().Waiting)
			synctest.Wait()
			leave()
			for range left {
				<-told
			}
			require.Equal(t, 2-left, p.Stats().Waiting)
			for range 2 - left {
				require.ErrorIs(t, <-told, errQueued)
			}
			time.Sleep(time.Second)
			require.Zero(t, p.Stats().Waiting)
			require.Equal(t, 1, p.others.dead)
		})
	}
}

// Who leaves, and whose time is up, is told whether the call was written: only then the events may be charged. If it was
// not, it has waited for others, or for a server that does not answer. A trip that all have left is no longer waited for.
func TestCallsThatLeaveLearnWhetherTheyWereWritten(t *testing.T) {
	for _, c := range []struct {
		sent, made, silent bool
		want               error
	}{
		{true, true, false, context.DeadlineExceeded}, {true, true, true, context.DeadlineExceeded},
		{false, true, false, errQueued}, {false, true, true, errQueued},
		{false, false, false, errQueued}, {false, false, true, context.DeadlineExceeded},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := far(t)
			p.trips = mostConns
			ctx, leave := context.WithCancel(t.Context())
			first, _, begun := p.enter(Budget{Context: ctx, End: time.Now().Add(p.timeout), Left: p.timeout, Own: true}, 0)
			time.Sleep(p.timeout / 16)
			second, _, _ := p.enter(p.Begin(t.Context()), 0)
			require.NotSame(t, first, second, "it came too late to end together")
			tr := &Trip[int]{connected: c.made, begun: time.Now()}
			p.mu.Lock()
			p.fill(tr)
			if c.made {
				p.conns.busy = 1
			}
			if c.silent {
				p.pulse.last.Store(0)
			}
			p.mu.Unlock()
			require.Equal(t, 2, tr.calls)
			state := unsent
			if c.sent {
				state = written
			}
			tr.writing.state.Store(uint32(state))

			leave()
			err, sent := p.outcome(Budget{Context: ctx, End: begun.Add(p.timeout), Own: true}, first, 0)
			require.Equal(t, c.want, err, "%+v", c)
			require.Equal(t, c.sent, sent)
			require.True(t, first.calls[0].left)
			require.Equal(t, !c.sent, tr.writing.state.Load() == givenUp)
			tr.writing.state.Store(uint32(state)) // as if he had stayed

			<-first.done
			synctest.Wait()
			require.Equal(t, []int{mostConns, 0}, []int{p.Stats().Trips, p.Stats().Late}, "others wait for it")
			<-second.done
			synctest.Wait()
			require.Equal(t, []int{mostConns - 1, 1}, []int{p.Stats().Trips, p.Stats().Late})
			for _, bt := range []*batch[int]{first, second} {
				require.True(t, bt.ended.Load())
				err, sent := bt.outcome(0)
				require.Equal(t, c.want, err, "%+v", c)
				require.Equal(t, c.sent, sent)
			}
			time.Sleep(time.Second)
		})
	}
}

// A call whose caller has left before its trip began does not go: he was told that nothing was sent.
func TestACallThatWasLeftInTheQueueDoesNotGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which the second call comes at once
		p := far(t)
		p.trips, p.conns.ready, p.conns.failed = mostConns, 0, time.Now().Add(time.Hour)
		gone, leave := context.WithCancel(t.Context())
		leave()
		bt, _, _ := p.enter(p.Begin(gone), 0)
		_, _, _ = p.enter(p.Begin(t.Context()), 0)
		for _, want := range []error{errUnconnected, errQueued} { // he has left already
			err, sent := p.outcome(p.Begin(gone), bt, 0)
			require.Equal(t, want, err)
			require.False(t, sent)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		tr := &Trip[int]{begun: time.Now()}
		p.fill(tr)
		require.Equal(t, 1, tr.calls)
		require.Equal(t, []bool{false, true}, []bool{bt.calls[0].goes, bt.calls[1].goes})
		bt.err, bt.sent = context.DeadlineExceeded, true
		_, sent := bt.outcome(0)
		require.False(t, sent)
	})
}

// noDone is a context with a deadline that does not end.
type noDone struct {
	context.Context
	end time.Time
}

func (noDone) Done() <-chan struct{}         { return nil }
func (c noDone) Deadline() (time.Time, bool) { return c.end, true }

// A call returns by its own time, or a little later, whatever the others of its batch have. Those that have all the time
// need no timer of their own.
func TestACarriedCallEndsByItsOwnTime(t *testing.T) {
	type key struct{}
	for _, timeout := range []time.Duration{64 * ms, 250 * ms, 5 * time.Second} {
		for what, ctx := range map[string]func(t *testing.T) (context.Context, context.CancelFunc){
			"a deadline": func(t *testing.T) (context.Context, context.CancelFunc) {
				return context.WithTimeout(t.Context(), timeout/2)
			},
			"a deadline that does not end": func(*testing.T) (context.Context, context.CancelFunc) {
				return noDone{context.Background(), time.Now().Add(timeout / 2)}, func() {}
			},
			"no time of its own": func(*testing.T) (context.Context, context.CancelFunc) {
				return context.WithValue(context.Background(), key{}, 1), func() {}
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				p := far(t)
				p.timeout, p.trips = timeout, mostConns
				for _, before := range []time.Duration{0, timeout / 16} { // it has been tried before, for example
					ctx, cancel := ctx(t)
					defer cancel()
					b := p.Begin(ctx)
					time.Sleep(before)
					bt, i, _ := p.enter(b, 0)
					_, err := p.wait(b, bt, i)
					require.Error(t, err)
					require.GreaterOrEqual(t, time.Since(b.End), time.Duration(0), what)
					require.LessOrEqual(t, time.Since(b.End), min(timeout/spread, waves.MostApart), "%s of %v", what, timeout)
					time.Sleep(timeout)
				}
			})
		}
	}
}

// An answer is a sign of life, even if the connection of the trip then breaks.
func TestEachAnswerIsASignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := far(t)
		time.Sleep(time.Hour)
		now := time.Now()
		bt := &batch[int]{calls: []Carried[int]{{goes: true, Call: 1}, {goes: true, err: io.EOF}}, done: make(chan struct{}), begun: now, trip: &Trip[int]{}}
		close(bt.done)
		_, err := p.wait(p.Begin(t.Context()), bt, 1)
		require.ErrorIs(t, err, io.EOF)
		require.ErrorIs(t, err, store.ErrUnavailable, "nothing was sent")
		bt.trip.writing.state.Store(written)
		_, err = p.wait(p.Begin(t.Context()), bt, 1)
		require.ErrorIs(t, err, store.ErrTimeout, "it may have run")
		require.True(t, p.silent())
		call, err := p.wait(p.Begin(t.Context()), bt, 0)
		require.NoError(t, err)
		require.Equal(t, 1, call)
		require.False(t, p.silent())
		time.Sleep(time.Hour)
		bt.calls[1].err = answer("no")
		_, err = p.wait(p.Begin(t.Context()), bt, 1)
		require.Equal(t, answer("no"), err)
		require.False(t, p.silent())
	})
}

// A trip is held up by others if it takes longer than the way by a quarter, or by the server's slack near it. What this process
// took for itself is not the server's, unless it is half of the time that a call has.
func TestWhenATripWasHeldUp(t *testing.T) {
	for _, c := range []struct{ way, timeout, delay, paused, may, slack time.Duration }{
		{2 * ms, 250 * ms, 0, 0, 2*ms + slack, 0}, {2 * ms, 16 * ms, 0, 0, 4 * ms, 0}, {40 * ms, 250 * ms, 0, 0, 50 * ms, 0},
		{40 * ms, 16 * ms, 0, 0, 50 * ms, 0}, {40 * ms, 250 * ms, 3 * ms, 0, 56 * ms, 0}, {40 * ms, 250 * ms, 0, 30 * ms, 80 * ms, 0},
		{40 * ms, 250 * ms, 0, 90 * ms, 125 * ms, 0}, {200 * ms, 250 * ms, 0, 30 * ms, 250 * ms, 0},
		{2 * ms, 250 * ms, 0, 0, 22 * ms, 20 * ms}, {2 * ms, 16 * ms, 0, 0, 4 * ms, 20 * ms},
	} {
		for over, want := range map[time.Duration]int{0: 1000, 1: 750} {
			p := far(t)
			if c.slack > 0 {
				p.config.Slack = c.slack
			}
			now := p.distance.probed
			took := c.may + over
			p.timeout, p.distance.least, p.delay = c.timeout, c.way, c.delay
			p.pauses.total = time.Second + c.paused
			p.window.calls = 1000
			p.learn(&Trip[int]{calls: 1, begun: now.Add(-took), paused: time.Second}, now, took, c.delay)
			require.Equal(t, want, p.window.calls, "%+v, and %v", c, over)
		}
	}
	config := plain()
	config.Slack = 1
	require.EqualValues(t, 1, made(t, config).config.Slack, "the default is for none")
}

// The estimates follow what trips take: that of all by a quarter of the difference, and that of the short ones quickly down
// and slowly up. No trip counts for more than a call has time.
func TestEstimatesFollowTheTimeOfTrips(t *testing.T) {
	p := full(t)
	p.distance = distance{least: 10 * ms, since: time.Now()}
	for i, c := range []struct {
		calls         int
		took          time.Duration
		left          bool
		length, quick time.Duration
	}{
		{0, 40 * ms, false, 0, 0},
		{1, 32 * ms, false, 32 * ms, 16 * ms}, {1, 64 * ms, false, 40 * ms, 19 * ms}, {1, 8 * ms, false, 32 * ms, 13500 * time.Microsecond},
		{1, 96 * ms, true, 48 * ms, 13500 * time.Microsecond}, {0, 96 * ms, false, 48 * ms, 13500 * time.Microsecond},
		{1, time.Minute, true, p.timeout * 3 / 4, 13500 * time.Microsecond},
	} {
		now := time.Now()
		p.learn(&Trip[int]{calls: c.calls, left: c.left, begun: now.Add(-c.took)}, now, c.took, 0)
		require.Equal(t, []time.Duration{c.length, c.quick}, []time.Duration{p.usualTrip, p.quickTrip}, "%d", i)
	}
	p.delay = 0
	p.learn(new(Trip[int]), time.Now(), ms, 16*ms)
	p.learn(new(Trip[int]), time.Now(), ms, 10*ms)
	require.Equal(t, 3*ms, p.delay)
}

// While trips are under way a call that would be answered too late does not go. If none is, nobody knows what one takes
// now, and only those do not go whose time is up.
func TestLateCallsDoNotGo(t *testing.T) {
	for _, c := range []struct {
		busy, late int
		answered   bool // of late
		need       time.Duration
	}{
		{0, 0, false, 0}, {0, 0, true, 0}, {1, 0, false, 12 * ms}, {0, 1, false, 0}, {0, 1, true, 12 * ms}, {1, 1, true, 12 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := far(t)
			p.trips = mostConns
			if time.Sleep(time.Hour); c.answered {
				p.pulse.beat()
			}
			time.Sleep(p.timeout - 1)
			now := time.Now()
			for _, left := range []time.Duration{c.need - 1, c.need, time.Hour} {
				_, _, _ = p.enter(Budget{Context: t.Context(), End: now.Add(left), Left: left}, 0)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.conns.busy, p.late = c.busy, c.late
			tr, bt := &Trip[int]{begun: now, end: now}, p.others.batches[0]
			defer bt.timer.Stop()
			p.fill(tr)
			require.Equal(t, 2, tr.calls, "%+v", c)
			require.Equal(t, []bool{false, true, true}, []bool{bt.calls[0].goes, bt.calls[1].goes, bt.calls[2].goes})
			require.ErrorIs(t, bt.calls[0].err, errQueued)
			require.Equal(t, now.Add(p.timeout), tr.end)
		})
	}
}

// Dials that did not hang, or were not waited for, take no place from others.
func TestWhichDialsMayHang(t *testing.T) {
	for _, c := range []struct {
		err  error
		life time.Duration
		left bool
		vain int
	}{
		{errors.New("refused"), time.Second, false, 1}, {errors.New("refused"), time.Second, true, 2},
		{context.DeadlineExceeded, time.Second, false, 2}, {context.DeadlineExceeded, 4 * time.Millisecond, false, 1}, {context.DeadlineExceeded, leastDial, false, 1}, {context.DeadlineExceeded, leastDial + 1, false, 2},
	} {
		p := far(t)
		now := time.Now()
		p.conns.dials.vain, p.diagnosing = 2, true
		p.dialFailed(&Trip[int]{begun: now, end: now.Add(c.life), left: c.left}, c.err, now)
		require.Equal(t, c.vain, p.conns.dials.vain, "%+v", c)
		require.Equal(t, now, p.conns.failed)
	}
}

// A trip takes batches as they are, each kind up to a full trip, but the first however large it is: the window may have
// shrunk meanwhile.
func TestWhichBatchesGoTogether(t *testing.T) {
	for _, c := range []struct{ ahead, others, want []int }{
		{nil, []int{5, 5}, []int{5, 5}},
		{nil, []int{5, 3, 1}, []int{8, 1}},
		{nil, []int{7, 1, 1}, []int{8, 1}},
		{nil, []int{9, 1}, []int{9, 1}},
		{[]int{5}, []int{5, 3, 1}, []int{13, 1}},
		{[]int{5, 3, 2}, []int{9, 7}, []int{10, 9, 7}},
	} {
		p := far(t)
		now := time.Now()
		join := func(q *queue[int], sizes []int) {
			for _, n := range sizes {
				bt := &batch[int]{queue: q, begun: now, calls: make([]Carried[int], n), living: n}
				for i := range bt.calls {
					bt.calls[i].end = time.Hour
				}
				q.batches = append(q.batches, bt)
				q.living += n
			}
		}
		join(&p.ahead, c.ahead)
		join(&p.others, c.others)
		var got []int
		for p.waiting() > 0 {
			tr := &Trip[int]{begun: now}
			p.fill(tr)
			require.Equal(t, len(tr.list), tr.batches)
			got = append(got, tr.calls)
		}
		require.Equal(t, c.want, got, "%v, and %v ahead", c.others, c.ahead)
	}
}

// A trip begins if a connection is ready or may be made. One that has to make it takes calls only if no other is soon back.
// A trip that looks for the way goes alone and without calls.
func TestATripBeginsIfAConnectionIsReadyOrMayBeMade(t *testing.T) {
	for what, c := range map[string]struct {
		ready, busy, calls int
		probed, began      time.Duration // ago
		hanging            bool          // dials
		made               bool
		want               int // calls that go; -1: no trip
		later              bool
	}{
		"a few":                           {ready: 2, calls: 3, made: true, want: 3},
		"a full one":                      {ready: 1, busy: 1, calls: 8, began: 5 * ms, made: true, want: 8},
		"others may come":                 {ready: 1, busy: 1, calls: 7, want: -1, later: true},
		"nobody has come":                 {ready: 1, busy: 1, calls: 7, began: 12 * ms / 16, made: true, want: 7},
		"a look":                          {ready: 1, calls: 8, probed: 2 * lately, made: true, want: 0},
		"a look when the others are back": {ready: 1, busy: 1, calls: 8, probed: 2 * lately, want: -1},
		"few need no look":                {ready: 1, calls: 7, probed: 2 * lately, made: true, want: 7},
		"the first connection":            {calls: 9, probed: 2 * lately, want: 8},
		"one more connection":             {busy: 1, calls: 9, probed: 2 * lately, want: 0},
		"a connection need not gather":    {busy: 1, calls: 3, want: 0},
		"dials hang":                      {calls: 9, hanging: true, want: -1, later: true},
		"ready ones do not":               {ready: 1, calls: 8, hanging: true, made: true, want: 8},
		"nobody":                          {ready: 1, want: -1},
	} {
		p := far(t)
		p.trips = mostConns
		for range c.calls {
			_, _, _ = p.enter(p.Begin(t.Context()), 0)
		}
		p.mu.Lock()
		now := p.distance.probed.Add(20 * ms)
		p.distance.probed, p.began = now.Add(-c.probed), now.Add(-c.began)
		p.conns.ready, p.conns.busy, p.trips, p.pauses.total = c.ready, c.busy, c.busy, time.Second
		if c.hanging {
			p.conns.dials.vain, p.conns.dials.last = p.conns.dials.free, now
		}
		vain, began := p.conns.dials.vain, p.began
		tr := p.next(now)
		require.Equal(t, c.want < 0, tr == nil, what)
		require.Equal(t, c.later, !p.due.IsZero(), what)
		if tr != nil {
			require.Equal(t, []any{c.made, c.want, now, time.Second}, []any{tr.connected, tr.calls, tr.begun, tr.paused}, what)
			require.False(t, tr.end.Before(now.Add(p.timeout-ms)), what)
			require.Equal(t, c.busy+1, p.trips)
			require.Equal(t, c.made, p.conns.ready == c.ready-1)
			require.Equal(t, c.made, p.conns.dials.vain == vain, what)
			require.False(t, p.pauses.due.IsZero())
			if c.want < 8 {
				began = now
			}
			require.Equal(t, began, p.began, what)
			if c.made && c.want == 0 {
				require.Equal(t, now, p.distance.probed)
			}
		}
		p.trips = 2 * mostConns // so that no timer begins one
		p.mu.Unlock()
	}
}

// The end of a trip gives back what it had, once, whether its callers have left before or not.
func TestTheAccountOfATrip(t *testing.T) {
	for _, c := range []struct {
		made, left, twice bool
		err               error
		ready             int // of 3
		learns            bool
	}{
		{made: true, ready: 4, learns: true}, {made: true, left: true, ready: 4, learns: true}, {made: true, twice: true, ready: 4},
		{made: true, err: answer("ERR no"), ready: 4, learns: true}, {ready: 4}, {left: true, ready: 4},
		{made: true, err: io.EOF}, {made: true, err: context.DeadlineExceeded}, {made: true, left: true, err: context.DeadlineExceeded},
		{err: io.EOF, ready: 3}, {left: true, err: context.DeadlineExceeded, ready: 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := far(t)
			p.diagnosing = true
			time.Sleep(time.Hour)
			p.conns.ready, p.usualTrip = 3, 0
			if c.made {
				p.conns.ready++
			}
			p.begin(c.made)
			now := time.Now()
			tr := &Trip[int]{connected: c.made, begun: now.Add(-5 * ms), end: now.Add(time.Second), calls: 1}
			if c.twice {
				tr.Twice()
			}
			if c.left {
				p.abandon(tr)
				p.abandon(tr)
				require.Equal(t, []int{0, 1, 0}, []int{p.trips, p.late, p.conns.busy})
			}
			p.pulse.last.Store(0)
			require.Nil(t, p.finish(tr, c.err, now, 0))
			p.abandon(tr)
			require.Equal(t, []int{0, 0, 0, c.ready}, []int{p.trips, p.late, p.conns.busy, p.conns.ready}, "%+v", c)
			require.Equal(t, p.answered(c.err), !p.silent())
			require.Equal(t, c.learns, p.usualTrip > 0)
			require.Equal(t, p.answered(c.err), p.distance.is() == 5*ms, "a shorter way is a shorter way")
			require.Equal(t, !c.made && !p.answered(c.err), p.conns.failed.Equal(now), "%+v", c)
			require.Zero(t, p.conns.dials.vain)
		})
	}
}

// If this process stood still for half of the time that a call has, its callers have not left for the server's sake.
func TestAProcessThatStoodStillLosesNoWindow(t *testing.T) {
	for paused, want := range map[time.Duration]int{124 * ms: least(mostConns), 125 * ms: firstWindow} {
		p := far(t)
		p.pauses.total = 3*time.Second + paused
		p.begin(true)
		p.conns.dials.vain = 1
		p.abandon(&Trip[int]{connected: true, calls: 1, begun: time.Now(), paused: 3 * time.Second})
		require.Equal(t, want, p.window.calls)
		p.begin(false)
		p.abandon(&Trip[int]{calls: 1, begun: time.Now()})
		require.Equal(t, 1, p.conns.dials.vain, "nothing shows that a handshake is under way")
	}
}

// While trips are under way a timer watches this process, and no longer.
func TestThisProcessIsWatchedWhileTripsAreUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := far(t)
		watched := func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			require.Zero(t, p.pauses.total)
			return !p.pauses.due.IsZero()
		}
		p.trips = 1
		p.watchPauses(time.Now())
		time.Sleep(10*tick + 1)
		require.True(t, watched())
		p.mu.Lock()
		p.trips = 0
		p.mu.Unlock()
		time.Sleep(tick)
		require.False(t, watched())
		time.Sleep(10 * tick)
		require.False(t, watched())
		synctest.Wait()
		p.pauses.due = time.Now().Add(-30 * ms)
		p.tick()
		require.Equal(t, 30*ms, p.pauses.total)
	})
}

func TestThisProcessIsWatchedIfAllCallsGoAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := plain()
		config.Send = nil
		p := made(t, config)
		_, _, began := p.enter(p.Begin(t.Context()), 0)
		require.Equal(t, began.Add(tick), p.pauses.due)
		p.finishAlone(began, nil)
		time.Sleep(tick)
		synctest.Wait()
		require.Zero(t, p.pauses)
	})
}

// Why no connection is made is asked once at a time, if go-redis does not say it.
func TestWhyNoConnectionIsMadeIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials int
		var answer error
		config := plain()
		config.Dial = func(context.Context) error {
			dials++
			time.Sleep(10 * ms)
			return answer
		}
		p := made(t, config)
		diagnosed := func(err error, want int) error {
			dials = 0
			for range 2 {
				p.mu.Lock()
				p.diagnose(err)
				p.mu.Unlock()
			}
			time.Sleep(20 * ms)
			synctest.Wait()
			require.Equal(t, want, dials, err)
			if cause := p.pulse.cause.Swap(nil); cause != nil {
				return *cause
			}
			return nil
		}
		refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
		require.Equal(t, refused, diagnosed(refused, 0))
		require.NoError(t, diagnosed(io.EOF, 0))
		require.NoError(t, diagnosed(context.DeadlineExceeded, 1))
		answer = refused
		require.Equal(t, refused, diagnosed(context.DeadlineExceeded, 1))
		require.Equal(t, refused, diagnosed(context.DeadlineExceeded, 1), "and asked again")
	})
}

// A Dial that panics, or ends its goroutine, is why no connection is made. The next one is asked again.
func TestADialThatPanicsIsWhyNoConnectionIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dial func()
		config := plain()
		config.Dial = func(context.Context) error {
			dial()
			return nil
		}
		p := made(t, config)
		for range 2 {
			for what, fault := range map[string]func(){"carrier: Dial panicked: planted": func() { panic("planted") }, "carrier: Dial panicked": runtime.Goexit} {
				dial = fault
				p.mu.Lock()
				p.diagnose(context.DeadlineExceeded)
				p.mu.Unlock()
				synctest.Wait()
				require.EqualError(t, *p.pulse.cause.Swap(nil), what)
			}
		}
	})
}

// A trip without calls has no caller whose time is up, and is not waited for any longer than others.
func TestAProbeIsNotWaitedForWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := far(t)
		p.trips = mostConns
		for range p.tripSize() {
			_, _, _ = p.enter(p.Begin(t.Context()), 0)
		}
		p.mu.Lock()
		p.trips, p.distance.probed = 0, time.Now().Add(-2*lately)
		look := p.next(time.Now())
		require.Zero(t, look.calls)
		p.watch(&Trip[int]{connected: true, calls: 1})
		p.trips += mostConns // so that no other begins
		p.mu.Unlock()
		time.Sleep(p.timeout - ms)
		require.Zero(t, p.Stats().Late)
		time.Sleep(ms)
		synctest.Wait()
		require.Equal(t, 1, p.Stats().Late)
		require.True(t, look.left)
		time.Sleep(time.Second)
	})
}

// Calls for which no connection may be made yet look again until one may, though none comes or ends meanwhile.
func TestCallsThatMayNotDialLookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, sent := time.Now(), make(chan time.Duration, 100)
		config := plain()
		config.Send = func(context.Context, *Trip[int]) error {
			sent <- time.Since(begun)
			return io.EOF
		}
		p := made(t, config)
		p.conns.dials.vain, p.conns.dials.last, p.conns.dials.pause = p.conns.dials.free, begun, 3*untilDial
		b := p.Begin(t.Context())
		bt, i, _ := p.enter(b, 0)
		require.Equal(t, 3*untilDial, <-sent)
		_, err := p.wait(b, bt, i)
		require.Error(t, err)
		time.Sleep(time.Minute)
	})
}

// A call that waits for others on a connection that breaks does not wait for them any longer: it looks when it may dial.
func TestACallWhoseConnectionBreaksDoesNotGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, sent := time.Now(), make(chan time.Duration, 100)
		p := far(t)
		p.config.Send = func(context.Context, *Trip[int]) error {
			sent <- time.Since(begun)
			return io.EOF
		}
		p.window.calls, p.usualTrip, p.began = 2*leastTripSize, 180*ms, begun
		p.conns.ready = 2
		p.begin(true)
		b := p.Begin(t.Context())
		bt, i, _ := p.enter(b, 0)
		require.Equal(t, begun.Add(90*ms), p.due)
		p.conns.dials.vain, p.conns.dials.last, p.conns.dials.pause = p.conns.dials.free, begun, 2*untilDial
		p.finish(&Trip[int]{connected: true, calls: 1, begun: begun, end: begun.Add(p.timeout)}, io.EOF, begun, 0)
		require.Equal(t, 2*untilDial, <-sent)
		_, err := p.wait(b, bt, i)
		require.Error(t, err)
		time.Sleep(time.Minute)
	})
}
