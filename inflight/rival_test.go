package inflight_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

// A process that is alone finds all that it leaves to others, also if it leaves several slots at once, which are asked for
// at the same time, and if a rate beside the slots is used up.
func TestAProcessThatIsAloneHasNoRival(t *testing.T) {
	effort.OthersRace(t)
	for _, c := range []crowd{
		{workers: []int{80}, slots: 40, work: 500 * time.Millisecond},
		{workers: []int{40}, slots: 20, work: 2 * time.Second, rate: 12},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			inflight.ForgetShares()
			synctest.Test(t, func(t *testing.T) {
				const d = time.Minute
				rivals := 0
				var watch sync.WaitGroup
				watch.Go(func() {
					for range int(d.Seconds()) {
						time.Sleep(time.Second)
						rivals += inflight.Rivals()
					}
				})
				c.run(t, d)
				watch.Wait()
				require.Zero(t, rivals)
			})
		})
	}
}

// slowReleases is a remote store, whose Refunds take long before they begin.
type slowReleases struct {
	*remote
	first time.Duration // the first Refund takes that long, if above 0
}

func (s *slowReleases) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	d := s.first
	s.first = 0
	time.Sleep(d)
	return s.remote.Refund(ctx, ns, key, l, c)
}

// A slot that is left to others and cannot be taken yet, because its Release takes long, is not taken by another process.
func TestASlowReleaseIsNoRival(t *testing.T) {
	inflight.ForgetShares()
	synctest.Test(t, func(t *testing.T) {
		s := &slowReleases{remote: newRemote(t)}
		l, got := ratelimit.Must(inflight.New(s, 1, time.Hour)), make(chan *inflight.Slot)
		for range 3 {
			go func() { got <- wait(t.Context(), t, l, "key") }()
		}
		for i := range 2 {
			slot := <-got
			time.Sleep(10 * time.Second)
			if i == 1 { // after two long jobs, it is the turn of others
				s.first = 5 * time.Second
			}
			slot.Release()
		}
		began := time.Now()
		slot := <-got
		rivals := inflight.Rivals()
		require.Equal(t, 5*time.Second, time.Since(began))
		slot.Release()
		time.Sleep(time.Minute)
		require.Zero(t, rivals)
	})
}

// A slot whose Release fails at first is left to others after that, and nobody else has taken it if it is found.
func TestASlotIsLeftToOthersThoughItsReleaseFailsAtFirst(t *testing.T) {
	inflight.ForgetShares()
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, got := slots(t, s, 1), make(chan *inflight.Slot)
		for range 3 {
			go func() { got <- wait(t.Context(), t, l, "key") }()
		}
		first := <-got
		time.Sleep(10 * time.Second)
		first.Release()
		second := <-got
		time.Sleep(10 * time.Second)
		s.down.Store(true)
		began := time.Now()
		second.Release()
		synctest.Wait()
		s.down.Store(false)
		third := <-got
		took := time.Since(began)
		time.Sleep(3 * time.Second)
		rivals := inflight.Rivals()
		third.Release()
		time.Sleep(time.Minute)
		require.InDelta(t, time.Second, took, float64(time.Second/2))
		require.Zero(t, rivals)
	})
}

// What a fallback denies without the store was not taken by another process.
func TestADenialWithoutTheStoreIsNoRival(t *testing.T) {
	for name, around := range map[string]func(slots, rate ratelimit.Limiter) ratelimit.Limiter{
		"slots": func(slots, _ ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(fallback.New(slots, fallback.FailClosed()))
		},
		"around an All": func(slots, rate ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(slots, rate)), fallback.FailClosed()))
		},
		"inside an All": func(slots, rate ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewAll(ratelimit.Must(fallback.New(slots, fallback.FailClosed())), rate))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inflight.ForgetShares()
			synctest.Test(t, func(t *testing.T) {
				s := newRemote(t)
				rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerSecond(1000)))
				got := aTurn(t, t.Context(), around(slots(t, s, 1), rate))
				s.down.Store(true)
				time.Sleep(3 * time.Second)
				rivals := inflight.Rivals()
				s.down.Store(false)
				<-got
				require.Zero(t, rivals)
			})
		})
	}
}
