package pending_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/store"
)

func TestACallHasTheFirstAnswer(t *testing.T) {
	wrong := errors.New("wrong")
	c := pending.New[int]()
	require.True(t, c.Answer(7, wrong))
	require.False(t, c.Answer(8, nil))
	answer, err := c.Wait(t.Context(), new(pending.Patience), "key", nil)
	require.Equal(t, 7, answer)
	require.Equal(t, wrong, err)
}

func TestACallThatHasLeftHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := pending.New[int](), pending.New[int]()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := first.Wait(ctx, new(pending.Patience), "key", nil)
			require.ErrorIs(t, err, context.Canceled)
		}()
		cancel()
		synctest.Wait()
		require.False(t, first.Answer(7, nil))
		require.True(t, first.Done())
		require.False(t, second.Done())
	})
}

func TestAPanicIsTheCallers(t *testing.T) {
	c := pending.New[int]()
	c.Panic("planted")
	require.PanicsWithValue(t, "planted", func() { _, _ = c.Wait(t.Context(), new(pending.Patience), "key", nil) })
}

// A caller that waits for several calls to a store leaves when one of them should have ended.
func TestACallThatTakesLongerThanTheTimeoutIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, last := pending.PatienceWith(testkit.Hanging{}), new(pending.Answered)
		c, t0 := pending.New[int](), time.Now()
		_, err := c.Wait(t.Context(), p, "key", last)
		require.ErrorIs(t, err, store.ErrTimeout)
		require.GreaterOrEqual(t, time.Since(t0), 170*time.Millisecond)
		require.LessOrEqual(t, time.Since(t0), 170*time.Millisecond+160*time.Millisecond/64)
		require.False(t, c.Answer(7, nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = pending.New[int]().Wait(ctx, p, "key", last)
		require.Equal(t, context.DeadlineExceeded, err)
		c, t0 = pending.New[int](), time.Now()
		for i := range 3 {
			time.AfterFunc(time.Duration(i)*150*time.Millisecond, func() { p.Heard(last, nil) })
		}
		_, err = c.Wait(t.Context(), p, "key", last)
		require.ErrorIs(t, err, store.ErrTimeout)
		require.GreaterOrEqual(t, time.Since(t0), 300*time.Millisecond+170*time.Millisecond, "it has answered others")
		time.Sleep(time.Second) // the timers have run
	})
}

// A store that has said what is wrong with a key has answered, as late as it may be.
func TestAnErrorThatIsAnAnswerIsHeard(t *testing.T) {
	for err, heard := range map[error]bool{
		store.ErrCorrupt: true, store.ErrClock: true, store.ErrOutOfMemory: true,
		store.ErrStore: false, store.ErrTimeout: false, store.ErrUnavailable: false, store.ErrOverloaded: false,
		context.Canceled: false,
	} {
		synctest.Test(t, func(t *testing.T) {
			p, last, c := pending.PatienceWith(testkit.Hanging{}), new(pending.Answered), pending.New[int]()
			time.AfterFunc(100*time.Millisecond, func() { p.Heard(last, err) })
			time.AfterFunc(200*time.Millisecond, func() { c.Answer(7, nil) })
			_, late := c.Wait(t.Context(), p, "key", last)
			require.Equal(t, heard, late == nil, "%v: %v", err, late)
			time.Sleep(time.Second) // the timers have run
		})
	}
}

// times is a store that says how long its calls take.
type times struct {
	store.Store
	out time.Duration
}

func (s times) Timeout() time.Duration { return s.out }

// A timeout that is practically infinite must not count as passed.
func TestOfATimeoutWithoutAnEndThePatienceHasNone(t *testing.T) {
	for _, timeout := range []time.Duration{math.MaxInt64, math.MaxInt64/17*16 + 17, math.MaxInt64 / 17 * 16, 100 * 365 * 24 * time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			p := pending.PatienceWith(times{out: timeout})
			c, last := pending.New[int](), new(pending.Answered)
			time.AfterFunc(time.Minute, func() { c.Answer(7, nil) })
			answer, err := c.Wait(t.Context(), p, "key", last)
			require.NoError(t, err, "%v", timeout)
			require.Equal(t, 7, answer)
		})
	}
}

// If a caller leaves while another goroutine answers, exactly one of them succeeds.
func TestAnAnswerIsGivenOrNot(t *testing.T) {
	for range 2000 {
		c := pending.New[int]()
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan bool)
		go func() { given <- c.Answer(7, nil) }()
		go cancel()
		answer, err := c.Wait(ctx, new(pending.Patience), "key", nil)
		require.Equal(t, <-given, err == nil)
		require.Equal(t, err == nil, answer == 7)
	}
}
