package carrier_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// If Means panics, its caller panics too, and the carrier keeps working.
func TestAPanicOfMeansLosesNoTrip(t *testing.T) {
	odd := errors.New("odd")
	cr, err := carrier.New(carrier.Config[int]{
		Timeout: time.Second, Conns: 4,
		Means: func(err error) carrier.Meaning {
			if errors.Is(err, odd) {
				panic("planted")
			}
			return carrier.Unknown
		},
		Alone: func(_ carrier.Budget, call int) (int, bool, error) {
			if call == 1 {
				return call, true, odd
			}
			return call, true, nil
		},
	})
	require.NoError(t, err)
	do := func(call int) {
		b := cr.Begin(context.Background())
		require.NoError(t, cr.Admit(&b))
		defer b.Leave()
		_, _ = cr.Do(b, call)
	}
	for range 10 {
		require.PanicsWithValue(t, "planted", func() { do(1) })
	}
	do(2)
	require.Zero(t, cr.Stats().Trips)
	require.Zero(t, cr.Stats().Busy)
}

// The same holds for the error of a trip, which Means gets on a goroutine of the carrier.
func TestAPanicOfMeansReachesTheCallersOfATrip(t *testing.T) {
	odd := errors.New("odd")
	for want, end := range map[any]func(){"planted": func() { panic("planted") }, carrier.ErrExit: runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			cr, err := carrier.New(carrier.Config[int]{
				Timeout: time.Second, Conns: 4,
				Means: func(err error) carrier.Meaning {
					if errors.Is(err, odd) {
						end()
					}
					return carrier.Unknown
				},
				Send: func(_ context.Context, trip *carrier.Trip[int]) (err error) {
					trip.Writing().Begin()
					for c := range trip.Calls {
						if c.End(nil); c.Call == 1 {
							err = odd // the calls have their replies, but the connection is broken
						}
					}
					return err
				},
			})
			require.NoError(t, err)
			do := func(call int) error {
				b := cr.Begin(t.Context())
				require.NoError(t, cr.Admit(&b))
				defer b.Leave()
				_, err := cr.Do(b, call)
				return err
			}
			for range 10 {
				require.PanicsWithValue(t, want, func() { _ = do(1) })
			}
			require.NoError(t, do(2))
			synctest.Wait()
			require.Zero(t, cr.Stats().Trips)
			time.Sleep(time.Hour)
		})
	}
}
