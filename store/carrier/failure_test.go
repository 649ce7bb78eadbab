package carrier

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
)

var (
	errBusy   = errors.New("busy")
	errUnsent = errors.New("unsent")
	errClosed = errors.New("closed")
)

// What is known of a call decides its class, whether it is tried again, and what its error says.
func TestTheClassOfAFailure(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	reading := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	const unsent, unknown = "nothing was sent", "no reply (timeout 250ms), so the outcome is unknown"
	for _, c := range []struct {
		err                  error
		sent                 bool
		silent, taken, cause bool
		class                error
		what                 string
		again                bool
	}{
		{err: errBusy, class: store.ErrOverloaded, what: unsent, again: true},
		{err: errBusy, sent: true, class: store.ErrOverloaded, what: unsent, again: true},
		{err: errBusy, silent: true, class: store.ErrUnavailable, what: unsent + ": all connections are waiting for a server that does not answer", again: true},
		{err: errBusy, cause: true, class: store.ErrUnavailable, what: unsent + ": no connection was made", again: true},
		{err: context.DeadlineExceeded, class: store.ErrUnavailable, what: unsent + ": no connection was made"},
		{err: context.Canceled, taken: true, class: store.ErrOverloaded, what: unsent + ": no connection was free"},
		{err: context.DeadlineExceeded, taken: true, silent: true, class: store.ErrUnavailable, what: unsent + ": all connections are waiting for a server that does not answer"},
		{err: context.DeadlineExceeded, taken: true, cause: true, class: store.ErrUnavailable, what: unsent + ": no connection was made"},
		{err: errUnconnected, class: store.ErrUnavailable, what: unsent},
		{err: errUnconnected, cause: true, class: store.ErrUnavailable, what: unsent + ": no connection was made"},
		{err: errClosed, class: store.ErrUnavailable, what: unsent},
		{err: errClosed, sent: true, class: store.ErrTimeout, what: unknown},
		{err: errUnsent, class: store.ErrUnavailable, what: unsent, again: true},
		{err: errUnsent, sent: true, class: store.ErrUnavailable, what: unsent, again: true},
		{err: refused, class: store.ErrUnavailable, what: unsent, again: true},
		{err: refused, sent: true, class: store.ErrUnavailable, what: unsent, again: true},
		{err: io.EOF, class: store.ErrUnavailable, what: unsent, again: true},
		{err: io.EOF, sent: true, class: store.ErrTimeout, what: unknown},
		{err: reading, sent: true, class: store.ErrTimeout, what: unknown},
		{err: context.DeadlineExceeded, sent: true, class: store.ErrTimeout, what: unknown},
	} {
		config := plain()
		config.Means = func(err error) Meaning {
			switch err {
			case errBusy: //nolint:errorlint // as they are
				return Busy
			case errUnsent:
				return Unsent
			case errClosed:
				return Closed
			}
			return meaning(err)
		}
		config.Pool = func() (idle, total int) {
			if c.taken {
				return 0, 20
			}
			return 0, 19
		}
		p := made(t, config)
		if !c.silent {
			p.pulse.beat()
		}
		want := c.err
		if c.cause {
			want = errors.New("why")
			p.pulse.cause.Store(&want)
		}
		err := p.Explain(c.err, c.sent)
		f := failure(t, err)
		require.Equal(t, c.class, f.Class, "%+v", c)
		require.Equal(t, c.what, f.What, "%+v", c)
		require.Equal(t, want, f.Err)
		require.Equal(t, c.again, f.Again, "%+v", c)
		require.EqualError(t, err, c.class.Error()+": "+c.what+": "+want.Error())
		require.ErrorIs(t, err, c.class)
		require.ErrorIs(t, err, store.ErrStore)
		require.Equal(t, !contextEnded(want), errors.Is(err, want), "the end of a context is not the caller's")
		require.Equal(t, dialFailed(c.err) || c.cause, p.pulse.cause.Load() != nil)
	}
	p := made(t, plain())
	require.True(t, p.silent())
	require.Equal(t, answer("no"), p.Explain(answer("no"), true))
	require.False(t, p.silent())
	require.EqualError(t, &Failure{Class: store.ErrCorrupt, Err: io.EOF}, store.ErrCorrupt.Error()+": EOF")
}

// A call is tried again after a pause that doubles from 1 to 32 ms, and less than half of which is chance, while it has time.
func TestThePauseBeforeAnotherAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for jitter, most := range map[string]func(time.Duration) time.Duration{
			"none": func(time.Duration) time.Duration { return 0 },
			"all":  func(most time.Duration) time.Duration { return most - 1 },
		} {
			config := plain()
			config.Jitter = most
			p := made(t, config)
			b := p.Begin(t.Context())
			again := &Failure{Class: store.ErrUnavailable, Err: io.EOF, Again: true}
			for _, want := range []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 32 * ms} {
				if jitter == "none" {
					want /= 2
				}
				begun := time.Now()
				require.True(t, b.Again(again))
				require.Equal(t, want, time.Since(begun), jitter)
			}
			require.False(t, b.Again(&Failure{Class: store.ErrUnavailable, Err: io.EOF}))
			b.End = time.Now().Add(16 * ms)
			begun := time.Now()
			require.False(t, b.Again(again), "there is no time")
			require.Equal(t, begun, time.Now())
			ctx, leave := context.WithTimeout(t.Context(), 3*ms)
			b = p.Begin(ctx)
			b.End, b.pause = b.End.Add(time.Hour), lastPause
			require.False(t, b.Again(again), "its caller leaves")
			leave()
		}
	})
}

// The error of a call says why its first attempts failed, not only that there was no time for the last one.
func TestTheErrorOfACallGivesTheReason(t *testing.T) {
	reason := &Failure{Class: store.ErrUnavailable, Err: answer("LOADING"), Again: true}
	for _, c := range []struct {
		last    *Failure
		reasons bool
	}{
		{failSilent, true}, {failFull, false},
		{&Failure{Class: store.ErrUnavailable, Err: errUnconnected}, true},
		{&Failure{Class: store.ErrUnavailable, Err: context.DeadlineExceeded}, true},
		{&Failure{Class: store.ErrTimeout, Err: context.DeadlineExceeded}, false},
		{&Failure{Class: store.ErrUnavailable, Err: errGivenUp, Again: true}, true},
		{&Failure{Class: store.ErrUnavailable, Err: io.EOF, Again: true}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := made(t, plain())
			b := p.Begin(t.Context())
			require.Equal(t, c.last, b.Fail(c.last))
			require.True(t, b.Again(&Failure{Class: store.ErrOverloaded, Err: errGivenUp, Again: true}))
			require.Equal(t, c.last, b.Fail(c.last), "that one says nothing")
			require.True(t, b.Again(reason))
			want := c.last
			if c.reasons {
				want = reason
			}
			require.Equal(t, want, b.Fail(c.last), "%+v", c.last)
		})
	}
}

// If the context has ended, that is the error of the call, even before its timer has run.
func TestTheEndOfItsContextIsTheErrorOfACall(t *testing.T) {
	p := made(t, plain())
	gone, leave := context.WithCancel(t.Context())
	leave()
	over := noDone{context.Background(), time.Now()}
	for ctx, want := range map[context.Context]error{gone: context.Canceled, over: context.DeadlineExceeded} {
		b := p.Begin(ctx)
		require.Equal(t, want, b.Over())
		require.Equal(t, want, b.Fail(failSilent))
		f := &Failure{Class: store.ErrTimeout, Err: io.EOF, sent: true}
		require.Equal(t, f, b.Fail(f), "he left for another reason, and what runs is not given back")
		f.ctxError = io.ErrClosedPipe
		require.Equal(t, io.ErrClosedPipe, b.Fail(f))
	}
	b := p.Begin(noDone{context.Background(), time.Now().Add(time.Hour)})
	require.NoError(t, b.Over())
	require.Zero(t, p.Stats().Overloaded)
	require.Equal(t, failFull, b.Fail(failFull))
	require.EqualValues(t, 1, p.Stats().Overloaded)
}

// A caller whose context ends afterwards still learns that the outcome is not known.
func TestAFailureOfACallThatWasSentOutlastsItsContext(t *testing.T) {
	config := plain()
	config.Send, config.Alone = nil, func(_ Budget, call int) (int, bool, error) { return call, true, io.EOF }
	p := made(t, config)
	ctx, cancel := context.WithCancel(t.Context())
	b := p.Begin(ctx)
	require.NoError(t, p.Admit(&b))
	defer b.Leave()
	_, err := p.Do(b, 0)
	f := failure(t, err)
	cancel()
	require.ErrorIs(t, b.Fail(f), io.EOF)
}

// As long as no connection can be made, a server is silent, however lately it has answered.
func TestAServerThatCannotBeDialedIsSilentUntilItAnswers(t *testing.T) {
	p := pulse{base: time.Now()}
	p.beat()
	require.False(t, p.silent(time.Hour))
	require.True(t, p.noteDial(&net.OpError{Op: "dial", Err: errClosed}))
	require.True(t, p.silent(time.Hour))
	p.beat()
	require.False(t, p.silent(time.Hour))
}
