package carrier

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type valued struct{}

// served returns a carrier whose trips are made by send.
func served(t *testing.T, timeout time.Duration, send func(ctx context.Context, t *Trip[int]) error) *Carrier[int] {
	config := plain()
	config.Timeout, config.Send = timeout, send
	return made(t, config)
}

// done ends all calls, and answers each by itself.
func done(_ context.Context, t *Trip[int]) error {
	t.Writing().Begin()
	for c := range t.Calls {
		c.End(nil)
	}
	return nil
}

// carried returns a trip that begins now, with batches of so many calls, which are 1, 2 and so on.
func carried(p *Carrier[int], sizes ...int) *Trip[int] {
	now, n := time.Now(), 0
	tr := &Trip[int]{connected: true, begun: now, end: now.Add(p.timeout)}
	for _, size := range sizes {
		bt := &batch[int]{queue: &p.others, begun: now, done: make(chan struct{}), timer: time.AfterFunc(time.Hour, func() {}), trip: tr}
		for range size {
			n++
			bt.calls = append(bt.calls, Carried[int]{Call: n, goes: true, ctx: context.WithValue(context.Background(), valued{}, "caller's")})
		}
		tr.calls += size
		tr.list = append(tr.list, bt)
	}
	return tr
}

// A trip waits for a connection while its callers do, for three quarters of their time, and for the server longer than any
// of them. If it has one call, it has the values of its caller's context.
func TestATripWaitsWhileItsCallersDo(t *testing.T) {
	for _, c := range []struct {
		sizes   []int
		timeout time.Duration
		value   any
		lasts   time.Duration
	}{
		{nil, 250 * ms, nil, 1250 * ms},
		{[]int{1}, 250 * ms, "caller's", 1250 * ms},
		{[]int{1}, 100 * ms, "caller's", time.Second},
		{[]int{2}, 2 * time.Second, nil, 10 * time.Second},
		{[]int{1, 2, 1}, 250 * ms, nil, 1250 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			p := served(t, c.timeout, func(ctx context.Context, tr *Trip[int]) error {
				n := 0
				for carried := range tr.Calls {
					n++
					require.Equal(t, n, carried.Call, "in their order")
				}
				require.Equal(t, n, tr.Len())
				require.Equal(t, c.value, ctx.Value(valued{}))
				end, _ := ctx.Deadline()
				require.Equal(t, c.lasts, end.Sub(begun))
				<-ctx.Done()
				over := time.Since(begun) - c.timeout*3/4
				require.GreaterOrEqual(t, over, time.Duration(0))
				require.LessOrEqual(t, over, c.timeout/spread)
				return io.EOF
			})
			tr := carried(p, c.sizes...)
			require.Equal(t, io.EOF, p.send(tr))
			for _, bt := range tr.list {
				<-bt.done
				for i := range bt.calls {
					require.Equal(t, io.EOF, bt.calls[i].err, "no other end is known")
				}
			}
			time.Sleep(time.Hour)
		})
	}
}

// Whoever waits for years wants to wait long for the server as well.
func TestATripOfALongTimeoutWaitsLong(t *testing.T) {
	for _, timeout := range []time.Duration{math.MaxInt64 / 4, math.MaxInt64} {
		p := served(t, timeout, func(ctx context.Context, tr *Trip[int]) error {
			end, _ := ctx.Deadline()
			require.Greater(t, time.Until(end), 100*365*24*time.Hour)
			return done(ctx, tr)
		})
		require.NoError(t, p.send(carried(p, 1)))
	}
}

// A call that Send has ended has its own end, and the others have that of the trip. What Send forgets may have run.
func TestEachCallOfATripHasItsEnd(t *testing.T) {
	for returned, want := range map[error]error{io.EOF: io.EOF, answer("no"): answer("no"), nil: errNoEnd} {
		p := served(t, time.Second, func(_ context.Context, tr *Trip[int]) error {
			tr.Writing().Begin()
			for c := range tr.Calls {
				switch c.Call {
				case 1:
					c.End(io.ErrClosedPipe)
				case 3:
					c.End(nil)
				}
			}
			return returned
		})
		tr := carried(p, 2, 2)
		require.Equal(t, returned, p.send(tr))
		for i, want := range []error{io.ErrClosedPipe, want, nil, want} {
			require.Equal(t, want, tr.list[i/2].calls[i%2].err)
			call, err := p.wait(p.Begin(t.Context()), tr.list[i/2], i%2)
			switch want {
			case nil:
				require.NoError(t, err)
				require.Equal(t, 3, call)
			case errNoEnd: //nolint:errorlint // that
				require.ErrorIs(t, err, errNoEnd)
				require.False(t, failure(t, err).Again)
			}
		}
	}
}

// A Send that panics does so for each caller of the trip.
func TestEachCallerOfATripHasThePanicOfSend(t *testing.T) {
	for _, sizes := range [][]int{nil, {1}, {3}, {1, 2}} {
		p := served(t, time.Second, func(context.Context, *Trip[int]) error { panic("planted") })
		tr := carried(p, sizes...)
		require.Equal(t, errPanic, p.send(tr))
		for _, bt := range tr.list {
			for i := range bt.calls {
				require.PanicsWithValue(t, "planted", func() { _, _ = p.wait(p.Begin(t.Context()), bt, i) })
			}
		}
	}
}

// Send may end its goroutine, as a test that fails does. That is a panic of the trip's callers, and the carrier goes on.
func TestASendThatEndsItsGoroutineEndsOneTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := true
		p := served(t, time.Second, func(ctx context.Context, tr *Trip[int]) error {
			if ends {
				runtime.Goexit()
			}
			return done(ctx, tr)
		})
		calls := func() { _, _ = p.call(t.Context(), 1) }
		for range 2 * mostConns {
			require.PanicsWithError(t, ErrExit.Error(), calls)
		}
		ends = false
		require.NotPanics(t, calls)
		synctest.Wait()
		require.Zero(t, p.Stats().Trips)
		time.Sleep(time.Hour)
	})
}

// If a caller has left before the trip was written, nothing of it is done, and no call has an answer: those
// who stay go again. Errors that are known before remain.
func TestAnAbandonedTripHasNoAnswer(t *testing.T) {
	for _, sizes := range [][]int{{1}, {2}, {1, 2}, {2, 1, 2}} {
		for state, want := range map[uint32]error{written: nil, givenUp: errGivenUp} {
			p := served(t, time.Second, func(_ context.Context, tr *Trip[int]) error {
				tr.writing.state.Store(state)
				require.Equal(t, state == written, tr.Writing().Begin())
				require.Equal(t, state == givenUp, tr.Writing().GivenUp())
				for c := range tr.Calls {
					if c.Call == 1 {
						c.End(io.ErrClosedPipe)
					} else {
						c.End(nil)
					}
				}
				return nil
			})
			tr := carried(p, sizes...)
			require.NoError(t, p.send(tr))
			for i, bt := range tr.list {
				for j := range bt.calls {
					if i == 0 && j == 0 {
						require.Equal(t, io.ErrClosedPipe, bt.calls[j].err)
					} else {
						require.Equal(t, want, bt.calls[j].err)
						_, err := p.wait(p.Begin(t.Context()), bt, j)
						require.Equal(t, want != nil, errors.Is(err, errGivenUp) && failure(t, err).Again)
					}
				}
			}
		}
	}
}

// A batch whose time was up has ended. Of one that ends with its trip the room is used again when all have read it,
// unless its timer may still be about to end it.
func TestABatchEndsOnce(t *testing.T) {
	p := served(t, time.Second, done)
	tr := carried(p, 2, 1, 3)
	tr.list[0].ended.Store(true)
	close(tr.list[0].done)
	tr.list[1].timer.Stop()
	require.NoError(t, p.send(tr))
	for i, unread := range []int64{0, 0, 3} {
		<-tr.list[i].done
		require.Equal(t, unread, tr.list[i].unread.Load())
		require.True(t, tr.list[i].ended.Load())
	}
}

// A caller may leave until the trip is written. Only what was written may be charged.
func TestCallersThatLeaveLearnWhetherTheTripWasWritten(t *testing.T) {
	for state, want := range map[uint32]uint32{unsent: givenUp, written: written, givenUp: givenUp} {
		tr := new(Trip[int])
		tr.writing.state.Store(state)
		require.Equal(t, state == written, tr.leave())
		require.Equal(t, want, tr.writing.state.Load())
	}
}

// What was written may run, and what was given up must not be written.
func TestWritingBeginsUnlessItWasGivenUp(t *testing.T) {
	w := new(Writing)
	require.False(t, w.Begun())
	require.True(t, w.Begin())
	require.True(t, w.Begin(), "the connection was lost")
	require.True(t, w.Begun())
	require.False(t, w.GivenUp())
	require.True(t, w.GiveUp())
	require.False(t, w.Begin())
	require.True(t, w.GivenUp())
	require.False(t, new(Writing).GiveUp())
}

// All trips begin that may: when calls come, when one ends, and when all have left one. Connections are made one at a
// time, as calls come or trips end: a connection that is soon free is as good.
func TestAllTripsBeginThatMay(t *testing.T) {
	good := func(p *Carrier[int], tr *Trip[int]) { p.finish(tr, nil, time.Now(), 0) }
	broken := func(p *Carrier[int], tr *Trip[int]) { p.finish(tr, io.EOF, time.Now(), 0) }
	left := func(p *Carrier[int], tr *Trip[int]) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.abandon(tr)
	}
	for what, c := range map[string]struct {
		event func(p *Carrier[int], tr *Trip[int])
		ready int
		want  int
	}{
		"calls come":                     {nil, 2, 2},
		"calls come, no connection":      {nil, 0, 1},
		"a trip ends":                    {good, 1, 2},
		"a trip ends, and no connection": {broken, 1, 1},
		"a trip is left":                 {left, 1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			hold := make(chan struct{})
			p, now := served(t, 250*ms, func(context.Context, *Trip[int]) error { <-hold; return io.EOF }), time.Now()
			p.forecast.admitted.Store(100)
			p.distance = distance{least: 1, since: now, probed: now}
			p.conns.reached, p.conns.used, p.window.calls, p.trips = true, now, 16, mostConns
			for range 20 {
				_, _, _ = p.enter(p.Begin(t.Context()), 0)
			}
			p.mu.Lock()
			p.trips, p.conns.ready = 0, c.ready
			if c.event == nil {
				p.start(now)
				p.mu.Unlock()
			} else {
				p.conns.ready++
				p.begin(true)
				tr := &Trip[int]{connected: true, begun: now, end: now.Add(p.timeout), calls: 1}
				p.mu.Unlock()
				c.event(p, tr)
			}
			require.Equal(t, c.want, p.Stats().Trips, what)
			time.Sleep(time.Second)
			close(hold)
			time.Sleep(time.Hour)
		})
	}
}

// A connection that is in the pool beyond those in use has its handshake: the dial of it does not hang.
func TestAHandshakeIsNoHangingDial(t *testing.T) {
	for _, c := range []struct {
		made              bool
		busy, total, want int
	}{{true, 0, 1, 1}, {false, 0, 1, 0}, {false, 0, 0, 1}, {false, 1, 2, 0}, {false, 1, 1, 1}} {
		config := plain()
		config.Pool = func() (idle, total int) { return 0, c.total }
		p := made(t, config)
		p.conns.busy, p.conns.dials.vain = c.busy, 1
		if c.made {
			p.conns.ready = 1
		}
		p.begin(c.made)
		p.abandon(&Trip[int]{connected: c.made, begun: time.Now()})
		require.Equal(t, c.want, p.conns.dials.vain, "%+v", c)
	}
}

// If others have all connections, a call waits for them, and no dial hangs. One that rests needs no dial.
func TestAPoolThatOthersUseUpIsNoDialThatHangs(t *testing.T) {
	for _, c := range []struct {
		idle, total int
		want        bool
	}{{0, 20, true}, {0, 11, true}, {0, 10, false}, {0, 0, false}, {1, 10, true}} {
		config := plain()
		config.Pool = func() (idle, total int) { return c.idle, c.total }
		p, now := made(t, config), time.Now()
		for range 10 {
			p.conns.dials.begin(now)
		}
		require.Equal(t, c.want, p.conns.mayDial(now), "%+v", c)
		require.Equal(t, c.total == 20, p.conns.taken())
	}
}

// Why a trip could make no connection is what calls are told that wait for one.
func TestATripSaysWhyItHasNoConnection(t *testing.T) {
	p := far(t)
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	p.dialFailed(&Trip[int]{begun: time.Now()}, refused, time.Now())
	require.Equal(t, refused, *p.pulse.cause.Load())
}

// Who waits in a batch that is used again does so no longer than others.
func TestABatchThatIsUsedAgainEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := far(t)
		p.mu.Lock()
		bt := p.open(&p.others, time.Now())
		bt.timer.Stop()
		bt.clear()
		p.read.New = func() any { return bt } // as if it had been put there: a pool may lose it
		require.Same(t, bt, p.open(&p.others, time.Now()))
		p.mu.Unlock()
		time.Sleep(p.timeout - 1)
		require.False(t, bt.ended.Load())
		<-bt.done
		time.Sleep(time.Second)
	})
}

// together makes calls that wait together, and returns their batch, how each can be waited for, and how they go.
func together(t *testing.T, ctxs ...context.Context) (bt *batch[int], wait []func() error, free func()) {
	t.Helper()
	p := served(t, time.Minute, done) // one batch on a busy machine too
	free = p.occupy()
	for _, ctx := range ctxs {
		b := p.Begin(ctx)
		joined, i, _ := p.enter(b, 7)
		require.NotNil(t, joined)
		require.True(t, bt == nil || bt == joined)
		bt = joined
		wait = append(wait, func() error {
			_, err := p.wait(b, joined, i)
			return err
		})
	}
	return bt, wait, free
}

func TestABatchIsUsedAgainWhenAllCallersHaveReadIt(t *testing.T) {
	ctx := t.Context()
	bt, wait, free := together(t, ctx, ctx)
	free()
	<-bt.done
	require.NoError(t, wait[0]())
	require.Len(t, bt.calls, 2)
	require.NoError(t, wait[1]())
	require.Empty(t, bt.calls)
	require.Equal(t, []Carried[int]{{}, {}}, bt.calls[:2], "nothing of them is kept meanwhile")
	require.Zero(t, bt.living)
	require.False(t, bt.ended.Load())
}

func TestABatchWhoseCallerHasLeftIsNotUsedAgain(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	bt, wait, free := together(t, t.Context(), gone)
	leave()
	require.Error(t, wait[1]())
	free()
	<-bt.done
	require.NoError(t, wait[0]())
	require.Len(t, bt.calls, 2)
}

// The trip of a caller that leaves may end at the same time. What ran is refunded then, too.
func TestACallWhoseTripHasEndedIsRefunded(t *testing.T) {
	config, back := plain(), []int(nil)
	config.GiveBack = func(call int) { back = append(back, call) }
	p := made(t, config)
	tr := carried(p, 2)
	tr.ended, tr.list[0].calls[1].err = true, answer("ERR no")
	p.forsake(tr.list[0], 0)
	p.forsake(tr.list[0], 1)
	require.Equal(t, []int{1}, back)
	require.Empty(t, tr.gone)
}

// A trip takes nobody whose time is up, though his timer has not fired yet.
func TestATripTakesNobodyWhoseTimeIsUp(t *testing.T) {
	for left, want := range map[time.Duration]int{time.Hour: 1, -time.Microsecond: 0} {
		p, now := far(t), time.Now()
		p.occupy()
		bt, _, _ := p.enter(Budget{Context: t.Context(), End: now.Add(left), Left: left}, 0)
		tr := &Trip[int]{begun: now}
		p.fill(tr)
		require.Len(t, tr.list, want)
		require.Equal(t, want == 1, bt.trip == tr)
	}
}
