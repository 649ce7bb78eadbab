package inflight_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
)

// more is the number of callers of which only one may wait for slots.
const more = 300

// burst has callers of take come at once, and returns how many of them got a slot. They keep it until all have
// come.
func burst(callers int, take func(ctx context.Context) (*inflight.Slot, ratelimit.Result, error)) (got int) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for range callers {
		all.Go(func() {
			slot, _, _ := take(context.Background())
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			if slot != nil {
				got++
			}
			slot.Release()
		})
	}
	all.Wait()
	time.Sleep(time.Second)
	return got
}

// Callers that come while others only wait for the answer of a store far away are not refused free slots.
func TestWhoNeedNotWaitTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 20 * time.Millisecond
		few, many := slots(t, s, 1, ratelimit.WithName("few")), slots(t, s, 1000, ratelimit.WithName("many"))
		most := inflight.MaxWaiting(200)
		wait := func(ctx context.Context) (*inflight.Slot, ratelimit.Result, error) {
			return inflight.Wait(ctx, many, "key", 1, most)
		}
		waitUpTo := func(ctx context.Context) (*inflight.Slot, ratelimit.Result, error) {
			return inflight.Hold(ctx, many, "key", 1, inflight.WaitUpTo(time.Second/2), most)
		}
		require.Equal(t, more, burst(more, waitUpTo))
		require.Zero(t, s.looks.Load(), "nobody waits")
		require.Equal(t, more, burst(more, wait))
		held := hold(t, few)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _, _ = inflight.Wait(ctx, few, "key", 1) }()
		synctest.Wait()
		looks := s.looks.Load()
		require.Equal(t, more, burst(more, waitUpTo), "somebody waits for slots of another limiter")
		require.Equal(t, looks, s.looks.Load(), "and needs not be looked for")
		cancel()
		held.Release()
		time.Sleep(time.Second)
	})
}

// Who finds no place does not overtake those that wait if there is not room for all, in each of the limits.
func TestWhoFindsNoPlaceOvertakesNobody(t *testing.T) {
	for name, c := range map[string]struct {
		slots, rate int  // per hour; 0 for slots alone
		away        bool // whether the rate's store is away, and the rate fails open
		got         int  // of 6 callers, of whom 4 may wait
	}{
		"room for those that wait":          {slots: 4, got: 4},
		"room for another one":              {slots: 5, got: 6},
		"a rate for those that wait":        {slots: 100, rate: 4, got: 4},
		"a rate for another one":            {slots: 100, rate: 5, got: 6},
		"slots for those that wait, a rate": {slots: 4, rate: 100, got: 4},
		"a rate that fails open":            {slots: 100, rate: 4, away: true, got: 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRemote(t)
				s.way = 20 * time.Millisecond
				var l ratelimit.Limiter = slots(t, s, c.slots)
				if c.rate > 0 {
					var rate ratelimit.Limiter = ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerHour(c.rate)))
					if c.away {
						rate = ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewFixedWindow(testkit.Away{Store: s}, ratelimit.PerHour(c.rate))), fallback.FailOpen()))
					}
					l = ratelimit.Must(ratelimit.NewAll(l, rate))
				}
				require.Equal(t, c.got, burst(6, func(ctx context.Context) (*inflight.Slot, ratelimit.Result, error) {
					return inflight.Wait(ctx, l, "key", 1, inflight.MaxWaiting(4))
				}))
			})
		})
	}
}

// A call takes one slot, however many events it is.
func TestWhoNeedNotWaitTakesNoPlaceWithManyEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 20 * time.Millisecond
		many := slots(t, s, 1000)
		tokens := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerHour(1_000_000_000)))
		for name, l := range map[string]ratelimit.Limiter{"slots": many, "slots and tokens": ratelimit.Must(ratelimit.NewAll(many, tokens))} {
			require.Equal(t, 30, burst(30, func(ctx context.Context) (*inflight.Slot, ratelimit.Result, error) {
				return inflight.Wait(ctx, l, "key", 1000, inflight.MaxWaiting(20))
			}), name)
		}
	})
}
