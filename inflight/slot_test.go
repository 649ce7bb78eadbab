package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
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
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/store/regions"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// remote is a store that is not of this process, as far as limiters can see: it takes a while, and
// can fail, before or after it has done what it was asked.
type remote struct {
	store.Store
	way    time.Duration
	down   atomic.Bool
	hangs  atomic.Bool // until its callers have enough
	mute   atomic.Bool // whether replies are lost
	called atomic.Int64
	looks  atomic.Int64
	after  func() // each Refund; nil for nothing
}

func newRemote(t *testing.T) *remote {
	s, err := memstore.New()
	require.NoError(t, err)
	return &remote{Store: s}
}

func (r *remote) call(ctx context.Context) error {
	r.called.Add(1)
	if r.way > 0 {
		select {
		case <-time.After(r.way):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if r.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if r.down.Load() {
		return store.ErrUnavailable
	}
	return nil
}

// Decide implements [store.Store].
func (r *remote) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, r, r.Store, requests, replies)
}

func (r *remote) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	r.looks.Add(1)
	return store.Peek(ctx, r.Store, ns, key, l, n)
}

func (r *remote) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (reply store.Reply, err error) {
	if err = r.call(ctx); err != nil {
		return reply, err
	}
	reply, err = r.Store.Take(ctx, ns, key, l, n)
	if r.mute.Load() {
		return store.Reply{}, store.ErrTimeout
	}
	return reply, err
}

func (r *remote) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if err := r.call(ctx); err != nil {
		return err
	}
	err := r.Store.Refund(ctx, ns, key, l, c)
	if r.after != nil {
		r.after()
	}
	if r.mute.Load() {
		return store.ErrTimeout
	}
	return err
}

func (r *remote) Together(string, string) bool { return false }

// slots is a limiter of n slots with a life of 3 s.
func slots(t *testing.T, s store.Store, n int, opts ...ratelimit.Option) *ratelimit.Custom {
	t.Helper()
	l, err := inflight.New(s, n, 3*time.Second, opts...)
	require.NoError(t, err)
	return l
}

func hold(t *testing.T, l ratelimit.Limiter, opts ...inflight.Option) *inflight.Slot {
	t.Helper()
	s, r, err := inflight.Hold(t.Context(), l, "key", 1, opts...)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NotNil(t, s)
	return s
}

// free is how many slots are left.
func free(t *testing.T, l ratelimit.Limiter) int {
	t.Helper()
	r, err := l.Peek(context.Background(), "key")
	require.NoError(t, err)
	return r.Remaining
}

func TestASlotIsHeldUntilItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 2)
		a, b := hold(t, l), hold(t, l)
		time.Sleep(time.Minute)
		require.InDelta(t, 2*60, s.called.Load(), 20, "each is renewed at a third of its life")
		none, r, err := inflight.Hold(t.Context(), l, "key", 1)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Nil(t, none)
		none.Release()
		require.LessOrEqual(t, r.RetryAfter, 3*time.Second)
		require.False(t, a.Lost())
		require.NoError(t, a.Context().Err())
		a.Release()
		a.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
		require.ErrorIs(t, context.Cause(a.Context()), context.Canceled)
		require.NoError(t, b.Context().Err())
		b.Release()
		synctest.Wait()
		called := s.called.Load()
		time.Sleep(time.Hour)
		require.Equal(t, called, s.called.Load(), "nothing is renewed while nothing is held")
		require.Equal(t, 2, free(t, l))
	})
}

func TestASlotOfAProcessThatDiedIsFreeAfterItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 1)
		r, err := l.Allow(t.Context(), "key") // and then it dies
		require.NoError(t, err)
		require.True(t, r.Allowed)
		time.Sleep(3*time.Second - time.Microsecond)
		require.Zero(t, free(t, l))
		time.Sleep(time.Microsecond)
		require.Equal(t, 1, free(t, l))
	})
}

func TestInMemoryASlotHasNoLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		l := slots(t, s, 1)
		held := hold(t, l)
		time.Sleep(365 * 24 * time.Hour)
		require.Zero(t, free(t, l))
		require.False(t, held.Lost())
		held.Release()
		require.Equal(t, 1, free(t, l), "at once")
	})
}

func TestAReleaseIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		a := hold(t, l)
		s.down.Store(true)
		a.Release()
		synctest.Wait()
		s.down.Store(false)
		require.Zero(t, free(t, l))
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, free(t, l), "soon")

		a = hold(t, l)
		s.down.Store(true)
		called := s.called.Load()
		a.Release()
		time.Sleep(2 * time.Second)
		require.LessOrEqual(t, s.called.Load()-called, int64(10), "not so often in a long outage")
		s.down.Store(false)
		time.Sleep(400 * time.Millisecond) // and a third of a life after the last time at most
		synctest.Wait()
		require.Equal(t, 1, free(t, l))

		b := hold(t, l)
		s.mute.Store(true)
		b.Release() // and whose reply is lost: it is given back once
		synctest.Wait()
		s.mute.Store(false)
		c := hold(t, l)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, free(t, l))
		c.Release()
		synctest.Wait()
		require.Equal(t, 1, free(t, l))
	})
}

func TestCallersThatLeaveWhileTheStoreIsAskedLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 20 * time.Millisecond
		l := slots(t, s, 1)
		for _, after := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			began := time.Now()
			held, r, err := inflight.Hold(ctx, l, "key", 1)
			require.LessOrEqual(t, time.Since(began), 20*time.Millisecond)
			if after < 20*time.Millisecond {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			if err == nil {
				require.True(t, r.Allowed)
				held.Release()
			}
			cancel()
			time.Sleep(time.Second)
			require.Equal(t, 1, free(t, l), "after %v", after)
		}
	})
}

func TestASlotThatNothingCanReachIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s    store.Store
		opts []inflight.Option
	}{
		"memory":             {newRemote(t).Store, nil},
		"elsewhere":          {newRemote(t), nil},
		"memory for an hour": {newRemote(t).Store, []inflight.Option{inflight.Longest(time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 1000
			l := slots(t, c.s, n)
			var told atomic.Int64
			var counters inflight.Counters
			for range n {
				hold(t, l, append(c.opts, inflight.CountIn(&counters), inflight.OnEnd(func(e inflight.Ending) {
					if e.Reason == inflight.Forgotten {
						told.Add(1)
					}
				}))...)
			}
			require.Eventually(t, func() bool {
				runtime.GC()
				return free(t, l) == n && told.Load() == n // elsewhere, slots are given back meanwhile
			}, time.Minute, 10*time.Millisecond)
			require.EqualValues(t, n, counters.Stats().Forgotten)
			require.Zero(t, counters.Stats().Held)
		})
	}
}

// A slot that is forgotten in a synctest bubble is released from outside, where nothing can stop a
// timer.
func TestASlotIsForgottenInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		l := slots(t, newRemote(t).Store, n)
		for range n {
			hold(t, l, inflight.Longest(time.Hour))
		}
		for free(t, l) < n {
			runtime.GC()
		}
		time.Sleep(2 * time.Hour)
		require.Equal(t, n, free(t, l))
	})
}

// A spent slot is used again when nothing refers to it: not while it is on its way back, and not if its context
// was asked for.
func TestASpentSlotIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside := newRemote(t)
		far, near := slots(t, inside, 2), slots(t, inside.Store, 2)
		for name, l := range map[string]*ratelimit.Custom{"far": far, "near": near} {
			spent := &sync.Pool{}
			deferring := &struct {
				see.Wrapper
				ratelimit.Limiter
			}{see.Has(see.Traits{Behind: l, Spent: spent}), l}
			a := hold(t, deferring)
			if name == "near" {
				a.Context()
			}
			inside.down.Store(true)
			a.Release()
			synctest.Wait()
			inside.down.Store(false)
			spent.Put(a)
			b := hold(t, deferring)
			require.ErrorIs(t, context.Cause(a.Context()), context.Canceled, name)
			time.Sleep(100 * time.Millisecond)
			require.Equal(t, 1, free(t, l), name)
			b.Release()
			synctest.Wait()
			require.Equal(t, 2, free(t, l), name)
		}
	})
}

// notCharged is a limiter that takes nothing back.
type notCharged struct {
	ratelimit.Limiter
	refunds *atomic.Int64
}

func (n notCharged) Unwrap() ratelimit.Limiter { return n.Limiter }

func (n notCharged) Refund(context.Context, string, ratelimit.Result, int) error {
	n.refunds.Add(1)
	return ratelimit.ErrInvalidN
}

// A limiter that reports that nothing was charged is not asked again.
func TestUnchargedSlotsAreReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refunds atomic.Int64
		hold(t, notCharged{slots(t, newRemote(t).Store, 1), &refunds}).Release()
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, refunds.Load())
	})
}

// A slot that a key no longer needs is neither lost nor taken after an outage.
func TestAKeyMayBecomeUnlimited(t *testing.T) {
	for _, outage := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var limit atomic.Pointer[ratelimit.Limit]
			limit.Store(new(ratelimit.Limit))
			s := newRemote(t)
			l := slots(t, s, 1, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return *limit.Load(), nil }))
			s.down.Store(outage)
			held := hold(t, ratelimit.Must(fallback.New(l, fallback.FailOpen())))
			s.down.Store(false)
			unlimited := ratelimit.Unlimited()
			limit.Store(&unlimited)
			time.Sleep(time.Minute)
			require.False(t, held.Lost())
			held.Release()
			synctest.Wait()
		})
	}
}

// A slot and an event of a rate are decided together, and Release gives back the slot alone.
func TestSlotsAndRatesAreDecidedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []store.Store{newRemote(t), newRemote(t).Store} {
			atOnce := slots(t, s, 2, ratelimit.WithName("at_once"))
			tokens, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1000), ratelimit.WithName("tokens"))
			require.NoError(t, err)
			l, err := ratelimit.NewAll(tokens, atOnce)
			require.NoError(t, err)
			held, r, err := inflight.Hold(t.Context(), l, "key", 600)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, 400, r.Parts()[0].Remaining)
			require.Equal(t, 1, r.Parts()[1].Remaining)

			_, r, err = inflight.Hold(t.Context(), l, "key", 600)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Equal(t, "tokens", r.DeniedBy())
			require.Equal(t, 1, free(t, atOnce), "all or none")
			time.Sleep(time.Minute)
			require.Equal(t, 1, free(t, atOnce))
			held.Release()
			synctest.Wait()
			require.Equal(t, 2, free(t, atOnce))
			require.Equal(t, 400, free(t, tokens))
		}
	})
}

func TestTokensAreSettledBesideASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		atOnce := slots(t, s, 2, ratelimit.WithName("at_once"))
		tokens, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(1000), ratelimit.WithName("tokens"))
		require.NoError(t, err)
		l, err := ratelimit.NewAll(tokens, atOnce)
		require.NoError(t, err)
		for actual, left := range map[int]int{0: 1000, 100: 900, 1: 999, 300: 700, 600: 400} {
			require.NoError(t, l.Reset(t.Context(), "key"))
			held, r, err := inflight.Hold(t.Context(), l, "key", 300)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.ErrorIs(t, held.Settle(t.Context(), -1), ratelimit.ErrInvalidN)
			ended, end := context.WithCancel(t.Context())
			end()
			require.NoError(t, held.Settle(ended, actual))
			require.ErrorIs(t, held.Settle(t.Context(), actual), ratelimit.ErrSettled)
			require.Equal(t, left, free(t, tokens))
			require.Equal(t, 1, free(t, atOnce))
			held.Release()
			synctest.Wait()
			require.Equal(t, left, free(t, tokens))
			require.Equal(t, 2, free(t, atOnce))
		}
	})
}

// At no instant are more slots held than there are, while stores fail and callers leave.
func TestNeverMoreThanThereAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = time.Millisecond
		var l [4]*ratelimit.Custom // as of four processes
		for i := range l {
			l[i] = slots(t, s, 5, ratelimit.WithName("one"))
		}
		var inside, most, turns atomic.Int64
		var all sync.WaitGroup
		end := time.Now().Add(time.Duration(effort.Of(20, 80, 240)) * time.Second)
		for i := range 64 {
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 5))
				for time.Now().Before(end) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(5000))*time.Microsecond)
					held, r, err := inflight.Hold(ctx, l[i%4], "key", 1)
					cancel()
					if err != nil || !r.Allowed {
						time.Sleep(time.Duration(1+random.IntN(20)) * time.Millisecond)
						continue
					}
					work := held.Context()
					now := inside.Add(1)
					most.Store(max(most.Load(), now))
					turns.Add(1)
					select {
					case <-time.After(time.Duration(random.IntN(8000)) * time.Millisecond):
					case <-work.Done():
					}
					inside.Add(-1)
					if random.IntN(50) > 0 {
						held.Release()
					} // or it is forgotten
				}
			})
		}
		all.Go(func() {
			random := rand.New(rand.NewPCG(0, 5))
			for time.Now().Before(end) {
				fault := []*atomic.Bool{&s.down, &s.mute}[random.IntN(2)]
				time.Sleep(time.Duration(random.IntN(10000)) * time.Millisecond)
				fault.Store(true)
				time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
				fault.Store(false)
				runtime.GC()
			}
		})
		all.Wait()
		require.LessOrEqual(t, most.Load(), int64(5))
		require.Greater(t, turns.Load(), int64(5), "the first five and others: how many more is a matter of the faults")
		runtime.GC()
		time.Sleep(10 * time.Second)
		require.Equal(t, 5, free(t, l[0]))
	})
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	s := newRemote(t)
	for _, c := range []struct {
		n    int
		life time.Duration
	}{{0, time.Minute}, {-1, time.Minute}, {1, 0}, {1, time.Millisecond}, {1, 25 * time.Hour}} {
		_, err := inflight.New(s, c.n, c.life)
		require.True(t, errors.Is(err, ratelimit.ErrInvalidLimit) || errors.Is(err, ratelimit.ErrInvalidOption), fmt.Sprint(c))
	}
	for _, life := range []time.Duration{100 * time.Millisecond, 24 * time.Hour} {
		_, err := inflight.New(s, 1, life)
		require.NoError(t, err)
	}
	bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerMinute(5))
	require.NoError(t, err)
	inner, err := ratelimit.NewAll(bucket, slots(t, s, 3))
	require.NoError(t, err)
	wrapped, err := fallback.New(inner, fallback.FailOpen())
	require.NoError(t, err)
	nested, err := ratelimit.NewAll(wrapped, bucket)
	require.NoError(t, err)
	embedded := struct{ *ratelimit.Custom }{slots(t, s, 3)} // which may have an AllowN of its own
	for _, l := range []ratelimit.Limiter{bucket, nil, nested, embedded} {
		_, _, err = inflight.Hold(t.Context(), l, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	l := slots(t, s, 1)
	both, err := ratelimit.NewAll(l, bucket)
	require.NoError(t, err)
	for _, l := range []ratelimit.Limiter{l, both} {
		_, err = ratelimit.Wait(t.Context(), l, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		_, err = throttle.NewWaiter(l, time.Second)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		_, err = throttle.NewSlowdown(l, throttle.Slow{Step: time.Second, Max: time.Minute})
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	for _, opt := range []inflight.Option{nil, inflight.Longest(0), inflight.OnEnd(nil), inflight.CountIn(nil)} {
		_, _, err = inflight.Hold(t.Context(), l, "key", 1, opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	_, _, err = inflight.Hold(t.Context(), l, "", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.Equal(t, 1, free(t, l))
}

// A slot that is released makes room at any time, and has its own number, so no cache in front of
// the store may answer for it.
func TestStoresInFrontRefuseSlots(t *testing.T) {
	s := newRemote(t)
	cache, err := denycache.New(s)
	require.NoError(t, err)
	coalesced, err := coalesce.New(s)
	require.NoError(t, err)
	leased, err := lease.New(s, time.Second)
	require.NoError(t, err)
	spread, err := regions.New("a", map[string]store.Store{"a": s, "b": newRemote(t)})
	require.NoError(t, err)
	for _, front := range []store.Store{cache, coalesced, leased, spread} {
		_, err := inflight.New(front, 5, time.Minute)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%T", front)
	}
}

// A crowd takes slots beside a rate that is leased, of one Redis. Never do too many hold one, and none is left.
func TestACrowdTakesSlotsBesideALeasedRate(t *testing.T) {
	redis, err := redisstore.New(redistest.Start(t).Client(t), redisstore.WithTimeout(20*time.Second))
	require.NoError(t, err)
	leases, err := lease.New(redis, 50*time.Millisecond)
	require.NoError(t, err)
	defer func() { require.NoError(t, leases.Close(context.Background())) }()
	rate := ratelimit.Must(ratelimit.NewTokenBucket(leases, ratelimit.PerSecond(1_000_000), ratelimit.WithName("rate")))
	atOnce := ratelimit.Must(inflight.New(redis, 5, time.Minute, ratelimit.WithName("at_once")))
	both := ratelimit.Must(ratelimit.NewAll(rate, atOnce))
	var held [16]atomic.Int64
	var admitted, denied, others atomic.Int64
	var callers sync.WaitGroup
	for i := range effort.Of(1024, 8192) {
		callers.Go(func() {
			key, inside := fmt.Sprint(i%len(held)), &held[i%len(held)]
			switch slot, r, err := inflight.Hold(context.Background(), both, key, 1); {
			case errors.Is(err, store.ErrOverloaded): // nothing was taken
				others.Add(1)
			case err != nil:
				t.Error(err)
			case !r.Allowed:
				denied.Add(1)
			default:
				admitted.Add(1)
				if n := inside.Add(1); n > 5 {
					t.Error(n, "hold a slot")
				}
				runtime.Gosched()
				inside.Add(-1)
				slot.Release()
			}
		})
	}
	callers.Wait()
	t.Log(admitted.Load(), "were admitted,", denied.Load(), "denied,", others.Load(), "overloaded")
	require.GreaterOrEqual(t, admitted.Load(), int64(5*len(held)))
	for i := range held {
		require.Eventually(t, func() bool {
			r, err := atOnce.Peek(t.Context(), fmt.Sprint(i))
			return err == nil && r.Remaining == 5
		}, time.Minute, time.Millisecond)
	}
}

// If a shadow admits a call, only what was charged is held.
func TestAShadowHoldsWhatItHasCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []store.Store{newRemote(t), newRemote(t).Store} {
			rate, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1000), ratelimit.WithName("rate"))
			require.NoError(t, err)
			atOnce := slots(t, s, 2, ratelimit.WithName("at_once"))
			tried, err := shadow.New(atOnce, func(context.Context, string, int, ratelimit.Result, error) {})
			require.NoError(t, err)
			all, err := ratelimit.NewAll(rate, atOnce)
			require.NoError(t, err)
			around, err := shadow.New(all, func(context.Context, string, int, ratelimit.Result, error) {})
			require.NoError(t, err)
			within, err := ratelimit.NewAll(rate, tried)
			require.NoError(t, err)
			for _, l := range []ratelimit.Limiter{tried, around, within} {
				a, b := hold(t, l), hold(t, l)
				c := hold(t, l) // which is let through
				time.Sleep(time.Minute)
				require.Zero(t, free(t, atOnce))
				require.False(t, a.Lost() || b.Lost() || c.Lost())
				c.Release()
				synctest.Wait()
				require.Zero(t, free(t, atOnce))
				a.Release()
				b.Release()
				synctest.Wait()
				require.Equal(t, 2, free(t, atOnce))
			}
		}
	})
}

// Refund, or a Settle of 0, gives back what was charged beside the slot, and Release the slot.
func TestRefundLeavesTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		rate, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1000), ratelimit.WithName("rate"))
		require.NoError(t, err)
		calls, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1000), ratelimit.WithName("calls"), ratelimit.CountCalls())
		require.NoError(t, err)
		atOnce := slots(t, s, 2, ratelimit.WithName("at_once"))
		all, err := ratelimit.NewAll(rate, calls, atOnce)
		require.NoError(t, err)
		safe, err := fallback.New(all, fallback.FailLocal(2))
		require.NoError(t, err)
		for _, l := range []ratelimit.Limiter{all, safe, atOnce} {
			held, _, err := inflight.Hold(t.Context(), l, "key", 7)
			require.NoError(t, err)
			require.NoError(t, held.Settle(t.Context(), 0))
			require.ErrorIs(t, held.Settle(t.Context(), 0), ratelimit.ErrSettled)
			require.Equal(t, 1000, free(t, rate))
			require.Equal(t, 1000, free(t, calls))
			require.Equal(t, 1, free(t, atOnce))
			held.Release()
			synctest.Wait()
			require.Equal(t, 2, free(t, atOnce))
			require.Equal(t, 1000, free(t, rate))
		}
		var none *inflight.Slot
		require.ErrorIs(t, none.Settle(t.Context(), 0), ratelimit.ErrInvalidOption)
	})
}

// In an outage too, where a local limiter of another form may have answered.
func TestARefundIsToWhoeverHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		rate, _ := rates(s)
		here, _ := rates(s.Store)
		l := ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 2))), fallback.FailTo(here)))
		s.down.Store(true)
		held := hold(t, l)
		require.Equal(t, 99, free(t, here))
		require.NoError(t, held.Settle(t.Context(), 0))
		require.Equal(t, 100, free(t, here))
		held.Release()
		synctest.Wait()
	})
}

func TestInMemoryAReleaseFreesTheSlotsOfAnAllAtOnce(t *testing.T) {
	s := ratelimit.Must(memstore.New())
	rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerSecond(1_000_000), ratelimit.WithName("rate")))
	for _, l := range []ratelimit.Limiter{ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 1))), ratelimit.Must(ratelimit.NewAll(slots(t, s, 1)))} {
		for range 100 {
			hold(t, l).Release()
		}
	}
}

func TestAReservationOfSlotsIsRefused(t *testing.T) {
	s := ratelimit.Must(memstore.New())
	rate := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerSecond(10), ratelimit.WithName("rate")))
	for _, l := range []ratelimit.Limiter{slots(t, s, 1), ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 1)))} {
		_, _, err := ratelimit.Reserve(t.Context(), l, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.Equal(t, 1, free(t, l), "nothing is taken")
	}
}

// breaks is a limiter that ends its caller's goroutine.
type breaks struct {
	ratelimit.Limiter
	by func()
}

func (b breaks) Unwrap() ratelimit.Limiter { return b.Limiter }

func (b breaks) AllowN(context.Context, string, int) (ratelimit.Result, error) {
	b.by()
	return ratelimit.Result{}, nil
}

// A context that may end has the limiter asked on another goroutine. Its panic is the caller's all the same.
func TestAPanicOfALimiterIsItsCallers(t *testing.T) {
	inside := slots(t, newRemote(t), 1)
	for _, ctx := range []context.Context{context.Background(), t.Context()} {
		require.PanicsWithValue(t, "broken", func() {
			_, _, _ = inflight.Hold(ctx, breaks{inside, func() { panic("broken") }}, "key", 1)
		})
	}
	require.Panics(t, func() { _, _, _ = inflight.Hold(t.Context(), breaks{inside, runtime.Goexit}, "key", 1) })
}

// The Context of a slot that has ended has ended too, and so has that of a nil Slot.
func TestASlotThatIsOverSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		released, lost := hold(t, slots(t, s, 2)), hold(t, slots(t, s, 2))
		released.Release()
		s.down.Store(true)
		time.Sleep(time.Minute)
		require.ErrorIs(t, context.Cause(released.Context()), context.Canceled)
		require.False(t, released.Lost())
		require.ErrorIs(t, context.Cause(lost.Context()), inflight.ErrLost)
		require.True(t, lost.Lost())
		var none *inflight.Slot
		require.ErrorIs(t, context.Cause(none.Context()), inflight.ErrLost)
		require.False(t, none.Lost())
		require.Zero(t, none.Token())
		require.ErrorIs(t, none.Settle(t.Context(), 1), ratelimit.ErrInvalidOption)
		require.ErrorIs(t, none.Settle(t.Context(), 0), ratelimit.ErrInvalidOption)
	})
}

// A slot may be over before Hold returns.
func TestASlotThatIsOverAtOnceIsFree(t *testing.T) {
	l := slots(t, newRemote(t), 1)
	for range 1000 {
		held := make(chan *inflight.Slot)
		go func() {
			slot, _, err := inflight.Hold(context.Background(), l, "key", 1, inflight.Longest(time.Nanosecond))
			if err != nil {
				t.Error(err)
			}
			held <- slot
		}()
		(<-held).Release()
	}
	require.Eventually(t, func() bool { return free(t, l) == 1 }, 10*time.Second, time.Millisecond)
}

// The local limiter may have no slots at all. A Release gives back none of its events.
func TestAReleaseInAnOutageGivesBackNoRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		rate, _ := rates(s)
		here, _ := rates(s.Store)
		l := ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(rate, slots(t, s, 2))), fallback.FailTo(here)))
		s.down.Store(true)
		hold(t, l).Release()
		synctest.Wait()
		require.Equal(t, 99, free(t, here))
	})
}

// A Settle above the estimate charges the limiter of a First that the estimate was charged to, and not the first one with room.
func TestSettleChargesTheLimiterOfAFirstThatPaidTheEstimate(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	limit := func(name string, n int) *ratelimit.FixedWindow {
		return ratelimit.Must(ratelimit.NewFixedWindow(mem, ratelimit.PerDay(n), ratelimit.WithName(name)))
	}
	plan, credits := limit("plan", 10), limit("credits", 100)
	first := ratelimit.Must(ratelimit.NewFirst(plan, credits))
	slots := ratelimit.Must(inflight.New(mem, 2, time.Minute))
	for name, l := range map[string]ratelimit.Limiter{
		"all":      ratelimit.Must(ratelimit.NewAll(first, slots)),
		"fallback": ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewAll(slots, first)), fallback.FailClosed())),
	} {
		t.Run(name, func(t *testing.T) {
			slot, _, err := inflight.Hold(t.Context(), l, name, 12) // too much for the plan
			require.NoError(t, err)
			defer slot.Release()
			require.NoError(t, slot.Settle(t.Context(), 15))
			for paid, left := range map[*ratelimit.FixedWindow]int{plan: 10, credits: 85} {
				r, err := paid.Peek(t.Context(), name)
				require.NoError(t, err)
				require.Equal(t, left, r.Remaining, paid.Name())
			}
		})
	}
}
