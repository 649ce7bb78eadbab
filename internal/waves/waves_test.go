package waves_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/waves"
)

func TestWaitsOfOneWaveShareATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waves.New(64 * time.Millisecond)
		first, same := w.After(w.Base.Add(300*time.Microsecond)), w.After(w.Base.Add(900*time.Microsecond))
		require.Same(t, first, same)
		next := w.After(w.Base.Add(time.Millisecond))
		require.NotSame(t, first, next)
		for _, wave := range []*waves.Wave{first, next} {
			<-wave.Over
			require.Equal(t, w.End(wave), time.Now())
		}
	})
}

// A caller may come with a deadline that passed before there were waves.
func TestAWaitForATimeBeforeTheBeginningIsSoonOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waves.New(64 * time.Millisecond)
		for _, before := range []time.Duration{1, time.Second, 24 * time.Hour, time.Since(time.Time{})} {
			wave := w.After(w.Base.Add(-before))
			<-wave.Over
			require.LessOrEqual(t, time.Since(w.Base), time.Millisecond, "%v", before)
		}
	})
}
