package inflight_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
)

func TestCountersSayHowManyAreHeldAndHowTheyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 3)
		c := new(inflight.Counters)
		released, long := hold(t, l, inflight.CountIn(c)), hold(t, l, inflight.CountIn(c), inflight.Longest(5*time.Second))
		hold(t, l).Release() // nobody counts it
		synctest.Wait()
		require.Equal(t, inflight.Stats{Held: 2}, c.Stats())
		time.Sleep(2 * time.Second)
		released.Release()
		released.Release()
		require.Equal(t, inflight.Stats{Held: 1, Released: 1, Took: 2 * time.Second}, c.Stats(), "at once")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Equal(t, inflight.Stats{Released: 1, TooLong: 1, Took: 7 * time.Second}, c.Stats())
		long.Release()

		lost := hold(t, l, inflight.CountIn(c))
		s.down.Store(true)
		time.Sleep(4 * time.Second)
		require.True(t, lost.Lost())
		synctest.Wait()
		require.Equal(t, inflight.Stats{Held: 1, Released: 1, Lost: 1, TooLong: 1, Took: 7 * time.Second}, c.Stats(), "its work goes on")
		s.down.Store(false)
		time.Sleep(time.Second)
		lost.Release()
		synctest.Wait()
		require.Equal(t, inflight.Stats{Released: 2, Lost: 1, TooLong: 1, Took: 12 * time.Second}, c.Stats())
	})
}

func TestCallsWithoutASlotAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = time.Second
		c := new(inflight.Counters)
		l := slots(t, s, 1, ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) {
			if key == "admin" {
				return ratelimit.Unlimited(), nil
			}
			return ratelimit.PerSecond(1), nil
		}))
		rate, _ := rates(s)
		for _, l := range []ratelimit.Limiter{l, ratelimit.Must(fallback.New(l, fallback.FailOpen())), ratelimit.Must(ratelimit.NewAll(l, rate))} {
			exempt, r, err := inflight.Hold(t.Context(), l, "admin", 1, inflight.CountIn(c))
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Zero(t, c.Stats())
			require.Zero(t, exempt.Token())
			exempt.Release()
		}

		gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, _, err := inflight.Hold(gone, l, "key", 1, inflight.CountIn(c))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		require.Equal(t, inflight.Stats{Released: 1, Took: time.Second}, c.Stats(), "it was taken, and given back")

		one := hold(t, l)
		_, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.CountIn(c))
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Zero(t, c.Stats().Held, "a denial")
		one.Release()
		synctest.Wait()
		time.Sleep(time.Minute)
	})
}

// A slot that was admitted in an outage is held too, and so are both slots of an All.
func TestASlotCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		c := new(inflight.Counters)
		all, err := ratelimit.NewAll(slots(t, s, 2, ratelimit.WithName("each")), slots(t, s, 5, ratelimit.WithName("total")))
		require.NoError(t, err)
		open, err := fallback.New(all, fallback.FailOpen())
		require.NoError(t, err)
		for _, down := range []bool{false, true} {
			s.down.Store(down)
			held := hold(t, open, inflight.CountIn(c))
			require.EqualValues(t, 1, c.Stats().Held)
			held.Release()
			synctest.Wait()
			require.Zero(t, c.Stats().Held)
		}
		require.EqualValues(t, 2, c.Stats().Released)
	})
}
