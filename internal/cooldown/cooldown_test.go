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
		require.NoError(t, s.Wait(t.Context(), "key"))
		s.Add("key", time.Minute)
		began := time.Now()

		early, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, s.Wait(early, "key"), ratelimit.ErrWouldExceedDeadline)
		require.Zero(t, time.Since(began), "at once")

		cancelled, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		require.ErrorIs(t, s.Wait(cancelled, "key"), context.Canceled)
		require.Equal(t, 10*time.Second, time.Since(began))

		time.AfterFunc(40*time.Second, func() { s.Add("key", time.Minute) }) // longer, meanwhile
		require.NoError(t, s.Wait(t.Context(), "key"))
		require.Equal(t, 110*time.Second, time.Since(began))
	})
}

func TestSecondsAreReadUpToTheLongestDuration(t *testing.T) {
	longest := time.Duration(math.MaxInt64).Truncate(time.Second)
	for text, want := range map[string]time.Duration{
		"0": 0, "30": 30 * time.Second, " 30\t": 30 * time.Second,
		"9223372036": longest, "9223372037": longest, "18446744073709551616": longest, "99999999999999999999999": longest,
	} {
		d, ok := ParseSeconds(text)
		require.True(t, ok, text)
		require.Equal(t, want, d, text)
	}
	for _, text := range []string{"", " ", "-5", "+5", "1.5", "1e3", "0x10", "soon", "5 s"} {
		_, ok := ParseSeconds(text)
		require.False(t, ok, text)
	}
}
