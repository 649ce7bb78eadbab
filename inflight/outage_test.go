package inflight_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Local slots are given back once, however often the store is tried.
func TestLocalSlotsAreGivenBackOnce(t *testing.T) {
	for name, outage := range map[string]bool{"besides": false, "in an outage": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, local := newRemote(t), newRemote(t)
				rate, _ := rates(s)
				inside := ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 4, ratelimit.WithName("a")), slots(t, s, 4, ratelimit.WithName("b"))))
				here, _ := rates(local)
				l := ratelimit.Must(fallback.New(inside, fallback.FailTo(ratelimit.Must(ratelimit.NewAll(here, slots(t, local, 4))))))
				s.down.Store(outage)
				var gives atomic.Int64
				local.after = func() { gives.Add(1) }
				held := hold(t, l)
				s.down.Store(true)
				held.Release()
				time.Sleep(time.Second)
				require.EqualValues(t, 1, gives.Load())
				s.down.Store(false)
				time.Sleep(time.Minute)
				require.EqualValues(t, 1, gives.Load())
			})
		})
	}
}

// withALocalShare runs test with four slots of s, alone and beside a rate, whose local share, here, has two. l is the
// fallback around them.
func withALocalShare(t *testing.T, test func(t *testing.T, s *remote, l, atOnce, here ratelimit.Limiter)) {
	t.Helper()
	for name, several := range map[string]bool{"alone": false, "beside a rate": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, local := newRemote(t), ratelimit.Must(memstore.New())
				atOnce := slots(t, s, 4, ratelimit.WithName("at_once"))
				var inside ratelimit.Limiter = atOnce
				if several {
					rate, _ := rates(s)
					inside = ratelimit.Must(ratelimit.NewAll(rate, atOnce))
				}
				l := ratelimit.Must(fallback.New(inside, fallback.FailLocal(2).On(local)))
				here := slots(t, local, 2, ratelimit.WithName("at_once"))
				test(t, s, l, atOnce, here)
			})
		})
	}
}

// A slot that a local limiter has admitted is released there as soon as the store counts it, so
// that the next outage begins with all local slots.
func TestSlotsThatTheStoreCountsAreReleasedLocally(t *testing.T) {
	withALocalShare(t, func(t *testing.T, s *remote, l, atOnce, here ratelimit.Limiter) {
		s.down.Store(true)
		held := hold(t, l)
		require.Equal(t, 1, free(t, here))
		s.down.Store(false)
		time.Sleep(2 * time.Second) // less than a life
		require.Equal(t, 3, free(t, atOnce))
		require.Equal(t, 2, free(t, here))
		held.Release()
		synctest.Wait()
		require.Equal(t, 4, free(t, atOnce))
	})
}

// A slot that the store has admitted leaves the local share with its Release, even if the store then fails.
func TestASlotThatIsReleasedInAnOutageIsFreeLocally(t *testing.T) {
	withALocalShare(t, func(t *testing.T, s *remote, l, atOnce, here ratelimit.Limiter) {
		first, second := hold(t, l), hold(t, l)
		s.down.Store(true)
		first.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, here))
		third := hold(t, l)
		time.Sleep(100 * time.Millisecond) // the Release is repeated
		require.Equal(t, 0, free(t, here))
		s.down.Store(false)
		time.Sleep(2 * time.Second)
		second.Release()
		third.Release()
		synctest.Wait()
		require.Equal(t, []int{4, 2}, []int{free(t, atOnce), free(t, here)})
	})
}

// In an outage, a local All may charge rates although the store counts only slots.
func TestALocalRateIsSettledBesideASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, mem := newRemote(t), ratelimit.Must(memstore.New())
		rate, _ := rates(mem)
		local := ratelimit.Must(ratelimit.NewAll(rate, slots(t, mem, 2)))
		l := ratelimit.Must(fallback.New(slots(t, s, 4), fallback.FailTo(local)))
		s.down.Store(true)
		held := hold(t, l)
		defer held.Release()
		require.Equal(t, 99, free(t, rate))
		require.NoError(t, held.Settle(t.Context(), 0))
		require.Equal(t, 100, free(t, rate))
	})
}

// If the store has lost a slot, another one is taken in its place. The local slot, which does not expire in memory,
// is released all the same.
func TestTheLocalSlotOfASlotThatTheStoreHasLostIsReleased(t *testing.T) {
	inside := func(rate, slots ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewAll(rate, slots))
	}
	for name, limiter := range map[string]func(rate, slots, here, local ratelimit.Limiter) ratelimit.Limiter{
		"alone": func(_, slots, _, local ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(fallback.New(slots, fallback.FailTo(local)))
		},
		"around an All": func(rate, slots, here, local ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(fallback.New(inside(rate, slots), fallback.FailTo(inside(here, local))))
		},
		"inside an All": func(rate, slots, _, local ratelimit.Limiter) ratelimit.Limiter {
			return inside(rate, ratelimit.Must(fallback.New(slots, fallback.FailTo(local))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, mem := newRemote(t), ratelimit.Must(memstore.New())
				rate, _ := rates(s)
				here, _ := rates(mem)
				atOnce, local := slots(t, s, 4), slots(t, mem, 2)
				held := hold(t, limiter(rate, atOnce, here, local))
				require.Equal(t, 1, free(t, local))
				require.NoError(t, atOnce.Reset(t.Context(), "key"))
				time.Sleep(3 * time.Second)
				require.Equal(t, 3, free(t, atOnce))
				require.False(t, held.Lost())
				held.Release()
				synctest.Wait()
				require.Equal(t, []int{4, 2}, []int{free(t, atOnce), free(t, local)})
			})
		})
	}
}

func TestAnOutageIsAnsweredAndSlotsAreTakenUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answer := range []fallback.Answer{fallback.FailOpen(), fallback.FailLocal(2)} {
			s := newRemote(t)
			inner := slots(t, s, 4)
			l, err := fallback.New(inner, answer)
			require.NoError(t, err)
			s.down.Store(true)
			held := hold(t, l)
			s.down.Store(false)
			require.Equal(t, 4, free(t, inner))
			time.Sleep(1100 * time.Millisecond)
			require.Equal(t, 3, free(t, inner))
			time.Sleep(time.Minute)
			require.False(t, held.Lost())
			require.Equal(t, 3, free(t, inner))
			held.Release()
			synctest.Wait()
			require.Equal(t, 4, free(t, inner))
			time.Sleep(time.Minute)
			require.Equal(t, 4, free(t, inner))
		}
	})
}

// standing is a store that hangs at times, and then runs what it was sent.
type standing struct {
	*remote
	still atomic.Bool
	mu    sync.Mutex
	sent  []func()
}

// Decide implements [store.Store].
func (s *standing) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *standing) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return s.remote.Take(ctx, ns, key, l, n) })
}

func (s *standing) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return s.remote.Peek(ctx, ns, key, l, n) })
}

func (s *standing) ask(call func() (store.Reply, error)) (store.Reply, error) {
	if !s.still.Load() {
		return call()
	}
	s.mu.Lock()
	s.sent = append(s.sent, func() { _, _ = call() })
	s.mu.Unlock()
	time.Sleep(250 * time.Millisecond)
	return store.Reply{}, store.ErrTimeout
}

// However often a slot that was admitted in an outage was to be taken up at a store that hangs, it is one slot there.
func TestASlotOfAnOutageIsTakenUpOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &standing{remote: newRemote(t)}
		inner := slots(t, s, 4)
		l := ratelimit.Must(fallback.New(inner, fallback.FailLocal(2)))
		s.down.Store(true)
		held := hold(t, l)
		s.down.Store(false)
		s.still.Store(true)
		time.Sleep(time.Minute)
		s.still.Store(false)
		s.mu.Lock()
		for _, call := range s.sent {
			call()
		}
		s.mu.Unlock()
		require.Equal(t, 4, free(t, inner))
		time.Sleep(2 * time.Second) // less than a life
		require.Equal(t, 3, free(t, inner))
		held.Release()
		synctest.Wait()
		require.Equal(t, 4, free(t, inner))
	})
}

// More events than a local share ever has are waited for until the store is back, beside slots too.
func TestMoreThanALocalShareIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		tokens := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerMinute(20)))
		l := ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(slots(t, s, 20), tokens)), fallback.FailLocal(4)))
		s.down.Store(true)
		time.AfterFunc(3*time.Second, func() { s.down.Store(false) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		slot, r, err := inflight.Wait(ctx, l, "key", 10)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Less(t, time.Since(began), 10*time.Second)
		slot.Release()
	})
}

func TestALocalLimiterHasASlotAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n, share := range map[int]int{1: 1, 2: 1, 7: 1, 8: 2} {
			s := newRemote(t)
			s.down.Store(true)
			l, err := fallback.New(slots(t, s, n), fallback.FailLocal(4))
			require.NoError(t, err)
			for range share {
				hold(t, l)
			}
			_, r, err := inflight.Hold(t.Context(), l, "key", 1)
			require.NoError(t, err)
			require.False(t, r.Allowed, "of %d", n)
		}
	})
}

// The same of an All: Release gives back the slot alone, whoever has decided.
func TestAnAllInsideAFallbackHoldsItsSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answer := range []fallback.Answer{fallback.FailOpen(), fallback.FailLocal(2)} {
			for _, outage := range []bool{false, true} {
				s := newRemote(t)
				atOnce := slots(t, s, 4, ratelimit.WithName("at_once"))
				rate, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(100), ratelimit.WithName("rate"))
				require.NoError(t, err)
				all, err := ratelimit.NewAll(rate, atOnce)
				require.NoError(t, err)
				l, err := fallback.New(all, answer)
				require.NoError(t, err)
				s.down.Store(outage)
				held := hold(t, l)
				s.down.Store(false)
				time.Sleep(10 * time.Second)
				require.False(t, held.Lost())
				require.Equal(t, 3, free(t, atOnce))
				before := free(t, rate)
				held.Release()
				synctest.Wait()
				require.Equal(t, 4, free(t, atOnce))
				require.Equal(t, before, free(t, rate))
			}
		}
	})
}

// Slots in memory were let through too, beside those of a store that was away. They are taken up with them.
func TestSlotsInMemoryAreTakenUpAgainToo(t *testing.T) {
	for _, answer := range []fallback.Answer{fallback.FailOpen(), fallback.FailLocal(2)} {
		synctest.Test(t, func(t *testing.T) {
			s := newRemote(t)
			rate, _ := rates(s)
			far, near := slots(t, s, 4, ratelimit.WithName("far")), slots(t, ratelimit.Must(memstore.New()), 4)
			for _, besides := range []ratelimit.Limiter{far, rate} {
				l := ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(besides, near)), answer))
				s.down.Store(true)
				held := hold(t, l)
				s.down.Store(false)
				time.Sleep(2 * time.Second)
				require.Equal(t, 3, free(t, near))
				if held.Release(); besides == far {
					synctest.Wait()
				} // or else it is in memory alone, and free at once
				require.Equal(t, 4, free(t, near))
			}
		})
	}
}

// In an outage the local slots of an All are given back by Release, and not its rates.
func TestLocalSlotsAreFreeAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		local, err := memstore.New()
		require.NoError(t, err)
		rate, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1000), ratelimit.WithName("rate"))
		require.NoError(t, err)
		atOnce := slots(t, s, 4, ratelimit.WithName("at_once"))
		all, err := ratelimit.NewAll(rate, atOnce)
		require.NoError(t, err)
		l, err := fallback.New(all, fallback.FailLocal(2).On(local))
		require.NoError(t, err)
		s.down.Store(true)
		for range 20 { // in no time, of which no life ends
			a, b := hold(t, l), hold(t, l)
			_, r, err := inflight.Hold(t.Context(), l, "key", 1)
			require.NoError(t, err)
			require.False(t, r.Allowed, "a share of 4 is 2")
			require.Equal(t, "at_once", r.DeniedBy())
			a.Release()
			b.Release()
			synctest.Wait()
		}
		s.down.Store(false)
		time.Sleep(time.Second) // the breaker
		hold(t, l).Release()
		synctest.Wait()
		require.Equal(t, 4, free(t, atOnce), "nothing is held for what the local limiter has let through")
		require.Equal(t, 1000-40-1, free(t, rate))
	})
}

// In an outage too: what is held stands in for slots of the store, and is taken up by it afterwards.
func TestAShadowAroundAFallbackHoldsWhatItHasCharged(t *testing.T) {
	for name, answer := range map[string]fallback.Answer{"FailOpen": fallback.FailOpen(), "FailLocal": fallback.FailLocal(2)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, local := newRemote(t), ratelimit.Must(memstore.New())
				if name == "FailLocal" {
					answer = answer.On(local)
				}
				rate, _ := rates(s)
				atOnce := slots(t, s, 4, ratelimit.WithName("at_once"))
				here := slots(t, local, 2, ratelimit.WithName("at_once"))
				l := besides["observe"](s, besides["shadow"](s, ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(rate, atOnce)), answer))))
				s.down.Store(true)
				hold(t, l).Release()
				synctest.Wait()
				require.Equal(t, 2, free(t, here))
				slot := hold(t, l)
				s.down.Store(false)
				time.Sleep(2 * time.Second) // less than a life
				require.Equal(t, []int{3, 2}, []int{free(t, atOnce), free(t, here)})
				slot.Release()
				synctest.Wait()
				require.Equal(t, 4, free(t, atOnce))
			})
		})
	}
}
