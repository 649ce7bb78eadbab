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
