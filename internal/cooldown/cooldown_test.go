package cooldown

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func nothing() {}

func TestCooldownsAreBoundedAndForgetTheSoonest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		require.Zero(t, s.Left("never seen"))
		s.Add("longest", time.Hour)
		for i := range 3 * maxKeys {
			s.Add(fmt.Sprint(i), time.Minute)
		}
		require.Len(t, s.until, maxKeys)
		require.EqualValues(t, maxKeys, s.keys.Load())
		require.Equal(t, time.Hour, s.Left("longest"))
		require.Zero(t, s.Left("never seen"))
	})
}

func TestACooldownIsMadeNoShorterAndIsForgottenWhenItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		s.Add("key", time.Minute)
		for _, d := range []time.Duration{time.Second, 0, -time.Hour} {
			s.Add("key", d)
			s.Add("other", min(d, 0))
		}
		require.Equal(t, time.Minute, s.Left("key"))
		require.Len(t, s.until, 1)
		time.Sleep(time.Minute)
		require.Zero(t, s.Left("key"))
		require.Empty(t, s.until)
		require.Zero(t, s.keys.Load())
	})
}

func TestAWaitEndsWithTheCooldownOrTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		require.NoError(t, s.Wait(t.Context(), "key", nothing))
		s.Add("key", time.Minute)
		began := time.Now()

		early, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, s.Wait(early, "key", nothing), ratelimit.ErrWouldExceedDeadline)
		require.Zero(t, time.Since(began), "at once")

		cancelled, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		require.ErrorIs(t, s.Wait(cancelled, "key", nothing), context.Canceled)
		require.Equal(t, 10*time.Second, time.Since(began))

		time.AfterFunc(40*time.Second, func() { s.Add("key", time.Minute) }) // longer, meanwhile
		require.NoError(t, s.Wait(t.Context(), "key", nothing))
		require.Equal(t, 110*time.Second, time.Since(began))
	})
}

// waiting is how many wait for the end of key's cooldown.
func (s *Set) waiting(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[key] == nil {
		return 0
	}
	return s.queues[key].Len()
}

func TestThoseWhoWaitGoOnInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		s.Add("key", time.Minute)
		gone, leave := context.WithCancel(t.Context())
		short, cancel := context.WithTimeout(t.Context(), 80*time.Second)
		defer cancel()
		order := make(chan int, 100)
		for i := range 100 {
			ctx := t.Context()
			switch i % 10 {
			case 0:
				ctx = gone
			case 5:
				ctx = short
			}
			go func() {
				placed := func() {
					if s.waiting("key") != i+1 {
						t.Error("no place yet")
					}
				}
				if s.Wait(ctx, "key", placed) == nil {
					order <- i
				}
			}()
			synctest.Wait()
		}
		time.AfterFunc(30*time.Second, func() { leave(); s.Add("key", time.Minute) }) // longer, meanwhile
		time.Sleep(60 * time.Second)
		synctest.Wait()
		require.Equal(t, 80, s.waiting("key"), "the deadlines of ten are too soon now")
		require.Zero(t, len(order))
		time.Sleep(30*time.Second + 100*apart)
		synctest.Wait()
		require.Equal(t, 80, len(order))
		for last := -1; len(order) > 0; {
			i := <-order
			require.Greater(t, i, last)
			last = i
		}
		require.Zero(t, s.waiting("key"))
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Empty(t, s.queues)
		require.Empty(t, s.until)
	})
}

// While a queue goes on nobody in it waits for a clock: a cooldown that begins then is told.
func TestAWaitThatBecomesTooLongWhileTheQueueContinuesEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		s.Add("key", time.Second)
		for i := range 10 {
			go func() {
				if s.Wait(t.Context(), "key", nothing) == nil && i == 0 {
					s.Add("key", time.Minute)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, s.Wait(ctx, "key", nothing), ratelimit.ErrWouldExceedDeadline)
		require.Less(t, time.Since(began), 2*time.Second)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Zero(t, s.waiting("key"))
	})
}

func TestAWaitIsReadUpToTheLongestDuration(t *testing.T) {
	now := time.Date(2026, 11, 29, 10, 0, 0, 500, time.UTC)
	longest := time.Duration(math.MaxInt64).Truncate(time.Second)
	for text, want := range map[string]time.Duration{
		"0": 0, "30": 30 * time.Second, " 30\t": 30 * time.Second, "0.0": 0, "0.001": time.Second, "1.5": 2 * time.Second,
		"315360000": decade, "315360000.1": decade + time.Second, "315360001": decade + time.Second,
		fmt.Sprint(now.Unix()): 0, fmt.Sprint(now.Unix() + 1): time.Second - 500, fmt.Sprint(now.UnixMilli() + 2): 2*time.Millisecond - 500,
		fmt.Sprint(now.Add(decade).Unix()): decade - 500, fmt.Sprint(now.Add(-decade).Unix() + 1): 0,
		fmt.Sprint(now.Add(decade).Unix() + 1):  time.Duration(now.Add(decade).Unix()+1) * time.Second,
		fmt.Sprint(now.Add(-decade).Unix() - 1): time.Duration(now.Add(-decade).Unix()-1) * time.Second,
		fmt.Sprint(now.Add(decade).UnixMilli()): decade - 500, fmt.Sprint(now.Add(decade).UnixMilli() + 1): longest,
		fmt.Sprint(now.Add(-decade).UnixMilli() + 1): 0, fmt.Sprint(now.Add(-decade).UnixMilli() - 1): longest,
		"9223372036": longest, "9223372037": longest, "18446744073709551615.9": longest, "18446744073709551616": longest, "99999999999999999999999": longest,
		"6m0s": 6 * time.Minute, "120ms": 120 * time.Millisecond, " 1.5s ": 1500 * time.Millisecond, "0s": 0, "1h2m3s": time.Hour + 2*time.Minute + 3*time.Second,
		"2562047h": 2562047 * time.Hour, "2026-11-29T10:00:30Z": 30*time.Second - 500, "2026-11-29T11:00:30.25+01:00": 30250*time.Millisecond - 500,
		"2026-11-29T09:00:00Z": 0, "0000-01-01T00:00:00Z": 0, "9999-12-31T23:59:59Z": math.MaxInt64,
	} {
		d, ok := ParseWait(text, now)
		require.True(t, ok, text)
		require.Equal(t, want, d, text)
	}
	for _, text := range []string{"", " ", "-5", "+5", "1.", ".5", "1.-5", "1.5.0", "1. 5", "1e3", "1.5e3", "0x10", "soon", "5 s",
		"-6m0s", "+5s", ".5s", "6m0", "99999999h", "1d", "2026-11-29", "2026-11-29T10:00:30", "2026-13-29T10:00:30Z"} {
		_, ok := ParseWait(text, now)
		require.False(t, ok, text)
	}
}
