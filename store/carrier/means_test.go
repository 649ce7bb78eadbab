package carrier_test

import (
	"context"
	"errors"
	"testing"
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
