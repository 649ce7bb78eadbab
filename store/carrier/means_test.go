package carrier_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
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

// While a server, near or far, answers that it cannot work now, as in a failover, each call ends by that answer. None ends in
// the middle of another attempt, after which nobody knows whether it ran.
func TestCallsOfAServerThatRefusesWorkEndByItsAnswer(t *testing.T) {
	for _, way := range []time.Duration{ms / 5, 20 * ms, 60 * ms} {
		for _, callers := range []int{1, 16} {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.way = way
				u := newUsers(t, s, s.config())
				require.NoError(t, u.do(t.Context()))
				s.refuses.Store(true)
				var other atomic.Pointer[error]
				for range callers {
					u.all.Go(func() {
						for range 20 {
							b := u.c.Begin(t.Context())
							again := &carrier.Failure{Class: store.ErrUnavailable, Err: errNo, Again: true}
							for f := again; f == again && b.Again(f); {
								if _, err := u.c.Do(b, call{}); !errors.As(err, &f) {
									f = again
								} else {
									err = b.Fail(f)
									other.Store(&err)
								}
							}
						}
					})
				}
				u.end()
				if err := other.Load(); err != nil {
					require.NoError(t, *err, "%v, %d callers", way, callers)
				}
			})
		}
	}
}
