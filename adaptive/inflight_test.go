package adaptive_test

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/adaptive"
)

func newInFlight(t testing.TB, most int) *adaptive.InFlight {
	t.Helper()
	f, err := adaptive.NewInFlight(most)
	require.NoError(t, err)
	return f
}

func TestInFlightIsTheMeanOverTheTimeSinceTheLastReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInFlight(t, 4)
		require.Zero(t, f.Load())
		f.Start()
		f.Start()
		require.Equal(t, 0.5, f.Load(), "at one instant: as it is")
		time.Sleep(time.Second)
		f.Start()
		f.Start()
		time.Sleep(3 * time.Second)
		require.Equal(t, (2.+3*4)/4/4, f.Load())
		f.Done()
		time.Sleep(time.Second)
		require.Equal(t, 0.75, f.Load(), "of the last second alone")
		f.Done()
		f.Done()
		f.Done()
		time.Sleep(time.Second)
		require.Zero(t, f.Load())
	})
}

func TestMoreInFlightThanTheMostIsMoreThanOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInFlight(t, 2)
		for range 5 {
			f.Start()
		}
		time.Sleep(time.Hour)
		require.Equal(t, 2.5, f.Load())
	})
}

func TestDoneWithoutStartDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInFlight(t, 2)
		f.Done()
		f.Start()
		time.Sleep(time.Second)
		require.Equal(t, 0.5, f.Load())
	})
}

func TestAnInFlightIsMadeByItsConstructor(t *testing.T) {
	for _, most := range []int{0, -1, math.MinInt} {
		f, err := adaptive.NewInFlight(most)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.Nil(t, f)
	}
	for _, f := range []*adaptive.InFlight{nil, new(adaptive.InFlight)} {
		f.Start()
		require.True(t, math.IsNaN(f.Load()))
		f.Done()
	}
}

func TestConcurrentStartsAndDonesEndAtNone(t *testing.T) {
	f := newInFlight(t, 1)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 1000 {
				f.Start()
				f.Load()
				f.Done()
			}
		})
	}
	wg.Wait()
	f.Load()
	f.Load()
	require.Zero(t, f.Load())
}

func TestALimitFollowsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInFlight(t, 10)
		l := newLimit(t, f.Load)
		for range 7 {
			f.Start()
		}
		require.Equal(t, 1000, after(l, 10))
		for range 2 {
			f.Start()
		}
		require.Equal(t, 800, after(l, 2))
	})
}
