package fallback_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// standing is a store that hangs at times, and afterwards executes everything it was sent.
type standing struct {
	store.Store
	mu    sync.Mutex
	still bool
	sent  []func()
}

func (s *standing) run(call func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.still {
		call()
		return nil
	}
	s.sent = append(s.sent, call)
	s.mu.Unlock()
	time.Sleep(250 * time.Millisecond)
	s.mu.Lock()
	return store.ErrTimeout
}

func (s *standing) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range s.sent {
		call()
	}
	s.still, s.sent = false, nil
}

// Decide implements [store.Store].
func (s *standing) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *standing) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return s.Store.Take(ctx, ns, key, l, n) })
}

func (s *standing) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return store.TakeUpTo(ctx, s.Store, ns, key, l, n) })
}

func (s *standing) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return store.Peek(ctx, s.Store, ns, key, l, n) })
}

func (s *standing) Overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return store.Overdraw(ctx, s.Store, ns, key, l, n, most) })
}

func (s *standing) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) (err error) {
	if late := s.run(func() { err = s.Store.Refund(ctx, ns, key, l, c) }); late != nil {
		return late
	}
	return err
}

func (s *standing) Reset(ctx context.Context, ns *store.Namespace, key string) (err error) {
	if late := s.run(func() { err = s.Store.Reset(ctx, ns, key) }); late != nil {
		return late
	}
	return err
}

func (s *standing) ask(call func() (store.Reply, error)) (store.Reply, error) {
	var reply store.Reply
	var err error
	if late := s.run(func() { reply, err = call() }); late != nil {
		return store.Reply{}, late
	}
	return reply, err
}

// A server that hung executes everything it was sent in the meantime, and nobody learns the result.
// The breaker therefore asks it without a charge, and what is owed is charged after it has
// answered. Only the calls before the breaker opened are charged for nothing.
func TestAStoreThatStoodStillIsChargedWithWhatWasAdmitted(t *testing.T) {
	for _, callers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			mem, err := memstore.New()
			require.NoError(t, err)
			s := &standing{Store: mem}
			const most = 1000
			inner, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(most))
			require.NoError(t, err)
			lim, err := fallback.New(inner, fallback.FailLocal(1))
			require.NoError(t, err)
			admitted := 0
			ask := func(times int) {
				var wg sync.WaitGroup
				var mu sync.Mutex
				for range callers {
					wg.Go(func() {
						for range times {
							r, err := lim.Allow(t.Context(), "key")
							require.NoError(t, err)
							require.True(t, r.Allowed)
							mu.Lock()
							admitted++
							mu.Unlock()
							time.Sleep(500 * time.Millisecond)
						}
					})
				}
				wg.Wait()
			}
			ask(4)
			s.mu.Lock()
			s.still = true
			s.mu.Unlock()
			ask(30)
			s.goOn()
			ask(8)
			require.Equal(t, fallback.StateClosed, state(lim))
			require.False(t, lim.Owes("key"))
			r, err := inner.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.GreaterOrEqual(t, most-r.Remaining, admitted)
			require.LessOrEqual(t, most-r.Remaining, admitted+4+callers, "five failures open the breaker")
		})
	}
}

// shards are two stores that look like one, as with a cluster: standing has the key "hangs".
type shards struct {
	store.Store
	standing *standing
}

func (s *shards) of(key string) store.Store {
	if key == "hangs" {
		return s.standing
	}
	return s.Store
}

// Decide implements [store.Store].
func (s *shards) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return s.of(requests[0].Key).Decide(ctx, requests, replies)
}

func (s *shards) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.of(key).Take(ctx, ns, key, l, n)
}

// A shard that hangs, or is slow, opens no breaker while others serve. Its keys' debts are paid once all the same.
func TestAShardThatStoodStillIsPaidOnce(t *testing.T) {
	ask := map[string]func(ctx context.Context, l *fallback.Limiter) (ratelimit.Result, error){
		"Allow": func(ctx context.Context, l *fallback.Limiter) (ratelimit.Result, error) { return l.Allow(ctx, "hangs") },
		"Charge": func(ctx context.Context, l *fallback.Limiter) (ratelimit.Result, error) {
			return l.Charge(ctx, "hangs", 1)
		},
	}
	for name, ask := range ask {
		for _, share := range []int{1, 100} { // 100 has room for 10
			t.Run(fmt.Sprintf("%s, a share of 1/%d", name, share), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &shards{ratelimit.Must(memstore.New()), &standing{Store: ratelimit.Must(memstore.New())}}
					const most = 1000
					inner := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(most)))
					lim := ratelimit.Must(fallback.New(inner, fallback.FailLocal(share)))
					admitted := 0
					for i := range 60 {
						s.standing.still = i >= 2 && i < 50
						if i == 50 {
							s.standing.goOn()
						}
						if r, err := ask(t.Context(), lim); err == nil && r.Allowed {
							admitted++
						}
						require.Equal(t, ratelimit.SourceStore, allow(t, lim, "serves").Source())
					}
					require.True(t, allow(t, lim, "hangs").Allowed)
					require.False(t, lim.Owes("hangs"))
					charged := most - peek(t, inner, "hangs").Remaining
					if name != "Charge" || share == 1 { // events of a Charge that exceed the share are not owed
						require.GreaterOrEqual(t, charged, admitted+1)
					}
					require.LessOrEqual(t, charged, admitted+1+1, "the first call that was not answered")
				})
			})
		}
	}
}

// What is owed for calls that were never sent is paid without a Peek. If that payment is not answered, it is sent again
// only when the store has answered a Peek, even if the local limiter has no room and adds nothing.
func TestAPaymentWithoutAReplyIsRepeatedAfterAPeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shards{ratelimit.Must(memstore.New()), &standing{Store: ratelimit.Must(memstore.New())}}
		inner := &faulty{Limiter: ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(100)))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "fixed_window", ratelimit.PerDay(3))))
		inner.before = func(context.Context) error { return store.ErrUnavailable }
		for range 4 { // fewer failures than open the breaker
			allow(t, lim, "hangs")
		}
		inner.before, s.standing.still = nil, true
		for range 10 {
			require.Equal(t, ratelimit.SourceStore, allow(t, lim, "serves").Source())
			require.False(t, allow(t, lim, "hangs").Allowed)
		}
		s.standing.goOn()
		require.Equal(t, 100-3, peek(t, inner, "hangs").Remaining)
		require.Equal(t, 100-3-3-1, allow(t, lim, "hangs").Remaining)
		require.False(t, lim.Owes("hangs"))
	})
}

// The last call of another key got no answer, so the store is looked at before a key pays what it owes.
func TestAfterAFailureOfAnotherKeyAPeekComesBeforeAPayment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &standing{Store: ratelimit.Must(memstore.New())}
		inner := &faulty{Limiter: ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(100)))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "fixed_window", ratelimit.PerDay(3))))
		inner.before = func(context.Context) error { return store.ErrUnavailable }
		for range 3 { // fewer failures than open the breaker
			allow(t, lim, "key")
		}
		inner.before = nil
		require.Equal(t, ratelimit.SourceStore, allow(t, lim, "other").Source())
		s.still = true
		require.Equal(t, ratelimit.SourceLocal, allow(t, lim, "other").Source())
		require.False(t, allow(t, lim, "key").Allowed)
		s.goOn()
		require.Equal(t, 100, peek(t, inner, "key").Remaining)
		require.Equal(t, 100-3-1, allow(t, lim, "key").Remaining)
	})
}

// A payment for which there is no room has been answered, and one that was not sent needs no answer.
func TestAPaymentThatWasAnsweredIsRepeatedWithoutAPeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBreakable(t)
		lim := failover(t, newLimiter(t, "fixed_window", s, ratelimit.PerDay(3)), fallback.FailTo(inMemory(t, "fixed_window", ratelimit.PerDay(5))))
		s.down.Store(true)
		require.Equal(t, 5, admitted(t, lim, 5))
		s.down.Store(false)
		time.Sleep(time.Second)
		require.False(t, allow(t, lim, "key").Allowed)
		for _, unsent := range []bool{false, true} {
			if unsent {
				s.down.Store(true)
				require.Equal(t, ratelimit.SourceLocal, allow(t, lim, "key").Source())
				s.down.Store(false)
				require.Equal(t, ratelimit.SourceStore, allow(t, lim, "other").Source())
			}
			peeks := s.peeks.Load()
			require.Equal(t, ratelimit.SourceStore, allow(t, lim, "key").Source())
			require.True(t, lim.Owes("key"))
			require.Equal(t, peeks, s.peeks.Load(), unsent)
		}
	})
}

// The plan of a First has room now and then, and the store of its credits hangs. What a payment is to charge to the credits
// is charged once.
func TestTheSecondLimiterOfAFirstIsPaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &standing{Store: ratelimit.Must(memstore.New())}
		plan := newLimiter(t, "token_bucket", ratelimit.Must(memstore.New()), ratelimit.Limit{Rate: 1, Period: time.Second})
		credits := newLimiter(t, "fixed_window", s, ratelimit.PerDay(1000))
		lim := failover(t, ratelimit.Must(ratelimit.NewFirst(plan, credits)), fallback.FailTo(inMemory(t, "fixed_window", ratelimit.PerDay(100))))
		require.True(t, allow(t, lim, "key").Allowed)
		s.still = true
		for range 4 { // fewer failures than open the breaker
			require.True(t, allowN(t, lim, 10).Allowed)
		}
		for range 20 {
			time.Sleep(2 * time.Second)
			require.Equal(t, ratelimit.SourceStore, allow(t, lim, "other").Source())
			require.True(t, allow(t, lim, "key").Allowed)
		}
		s.goOn()
		require.Equal(t, 10, 1000-peek(t, credits, "key").Remaining, "the first call that was not answered")
	})
}

// Whatever the probe is, it changes nothing at a store that hangs. Each of these calls counts as
// failed.
func TestNoProbeIsRunAfterwards(t *testing.T) {
	for name, probe := range map[string]func(ctx context.Context, l *fallback.Limiter, charged ratelimit.Result) error{
		"Charge": func(ctx context.Context, l *fallback.Limiter, _ ratelimit.Result) error {
			_, err := l.Charge(ctx, "key", 3)
			return err
		},
		"Refund": func(ctx context.Context, l *fallback.Limiter, charged ratelimit.Result) error {
			return l.Refund(ctx, "key", charged, 2)
		},
		"Reset": func(ctx context.Context, l *fallback.Limiter, _ ratelimit.Result) error { return l.Reset(ctx, "key") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &standing{Store: ratelimit.Must(memstore.New())}
				inner := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(10)))
				lim := failover(t, inner, fallback.FailClosed(), fallback.WithBreaker(1, time.Second))
				charged := allowN(t, lim, 5)
				s.still = true
				allow(t, lim, "another")
				require.Equal(t, fallback.StateOpen, state(lim))
				time.Sleep(time.Second)
				require.ErrorIs(t, probe(t.Context(), lim, charged), ratelimit.ErrStore)
				require.Equal(t, fallback.StateOpen, state(lim))
				s.goOn()
				require.Equal(t, 5, peek(t, inner, "key").Remaining)
				time.Sleep(time.Second)
				require.NoError(t, probe(t.Context(), lim, charged))
				require.NotEqual(t, 5, peek(t, inner, "key").Remaining)
				require.Equal(t, fallback.StateClosed, state(lim))
			})
		})
	}
}

// A call that began before the breaker opened may still succeed. The probe begins with a Peek all the same.
func TestAProbeBeginsWithAPeekWhateverCameBefore(t *testing.T) {
	for name, asked := range map[string]bool{"": false, "the state was asked": true} {
		synctest.Test(t, func(t *testing.T) {
			inner, answer := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}, make(chan struct{})
			lim := failover(t, inner, fallback.FailClosed(), fallback.WithBreaker(1, time.Second))
			inner.before = func(context.Context) error { <-answer; return nil }
			var slow sync.WaitGroup
			slow.Go(func() { require.Equal(t, ratelimit.SourceStore, source(t, lim)) })
			synctest.Wait()
			inner.before = nil
			inner.down.Store(true)
			require.Equal(t, ratelimit.SourceFailClosed, source(t, lim))
			inner.down.Store(false)
			close(answer)
			slow.Wait()
			time.Sleep(time.Second)
			if asked {
				require.Equal(t, fallback.StateHalfOpen, state(lim))
			}
			inner.calls.Store(0)
			require.Equal(t, ratelimit.SourceStore, source(t, lim))
			require.EqualValues(t, 2, inner.calls.Load(), name)
		})
	}
}

// Where a limit counts calls, each call of an outage is charged to it, and each event to the others.
func TestCallsOfAnOutageAreChargedOneByOne(t *testing.T) {
	const (
		calls = 5
		each  = 100
	)
	for name, inside := range map[string]func(s store.Store, log, bucket ratelimit.Limiter) ratelimit.Limiter{
		"calls alone":  func(_ store.Store, log, _ ratelimit.Limiter) ratelimit.Limiter { return log },
		"events alone": func(_ store.Store, _, bucket ratelimit.Limiter) ratelimit.Limiter { return bucket },
		"both":         func(_ store.Store, log, bucket ratelimit.Limiter) ratelimit.Limiter { return all(t, log, bucket) },
		"observed": func(_ store.Store, log, bucket ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(observe.Around(all(t, bucket, log), nobody{}))
		},
		"banned": func(s store.Store, log, bucket ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewBan(all(t, bucket, log), s, ratelimit.Penalty{Denials: 9, Within: time.Minute, For: time.Hour}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newBreakable(t)
				log := ratelimit.Must(ratelimit.NewSlidingLog(s, ratelimit.PerDay(20), ratelimit.CountCalls()))
				bucket := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(2000)))
				left := func(l ratelimit.Limiter) int {
					r, err := l.Peek(t.Context(), "key")
					require.NoError(t, err)
					return r.Remaining
				}
				lim := ratelimit.Must(fallback.New(inside(s, log, bucket), fallback.FailLocal(2)))
				ask := func() ratelimit.Result {
					r, err := lim.AllowN(t.Context(), "key", each)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					return r
				}
				s.down.Store(true)
				for range calls {
					ask()
				}
				require.NoError(t, lim.Refund(t.Context(), "key", ask(), each))
				require.NoError(t, lim.Refund(t.Context(), "key", ask(), each-1), "the call stands")
				s.down.Store(false)
				time.Sleep(time.Second)
				ask()
				require.False(t, lim.Owes("key"))
				logged, charged := calls+2, (calls+1)*each+1
				if name == "events alone" {
					logged = 0
				}
				if name == "calls alone" {
					charged = 0
				}
				require.Equal(t, 20-logged, left(log))
				require.Equal(t, 2000-charged, left(bucket))
			})
		})
	}
}

// Of calls and events as many are paid as there is room for, each by itself.
func TestCallsThatHaveNoRoomStayOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBreakable(t)
		log := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(10), ratelimit.CountCalls()))
		bucket := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerHour(2000)))
		for range 7 { // by others
			_, err := log.Allow(t.Context(), "key")
			require.NoError(t, err)
		}
		lim := ratelimit.Must(fallback.New(all(t, log, bucket), fallback.FailLocal(2)))
		s.down.Store(true)
		for range 5 {
			r, err := lim.AllowN(t.Context(), "key", 100)
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		s.down.Store(false)
		time.Sleep(time.Second)
		r, err := lim.AllowN(t.Context(), "key", 100)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Equal(t, ratelimit.SourceStore, r.Source())
		r, err = bucket.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 2000-500, r.Remaining)
		require.True(t, lim.Owes("key"), "two of the calls")
		require.NoError(t, log.Reset(t.Context(), "key"))
		_, err = lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		r, err = log.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 10-2, r.Remaining)
		require.False(t, lim.Owes("key"))
	})
}

// prefixed is a limiter of another package around one that counts other keys.
type prefixed struct{ ratelimit.Limiter }

func (p prefixed) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return p.Limiter.AllowN(ctx, "tenant:"+key, n)
}

func (p prefixed) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return p.Limiter.Peek(ctx, "tenant:"+key)
}

func (p prefixed) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	return p.Limiter.Refund(ctx, "tenant:"+key, charged, n)
}

func (p prefixed) Unwrap() ratelimit.Limiter { return p.Limiter }

func TestDebtsAreChargedThroughLimitersOfOtherPackages(t *testing.T) {
	local := func() ratelimit.Limiter { return inMemory(t, "fixed_window", ratelimit.PerDay(50)) }
	for name, l := range map[string]ratelimit.Limiter{
		"a local limiter": local(),
		"one around a ban": prefixed{ratelimit.Must(ratelimit.NewBan(local(), ratelimit.Must(memstore.New()),
			ratelimit.Penalty{Denials: 1, Within: time.Hour, For: time.Hour}))},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newBreakable(t)
			day := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(100)))
			lim := ratelimit.Must(fallback.New(prefixed{day}, fallback.FailTo(l)))
			s.down.Store(true)
			for range 5 {
				require.True(t, allow(t, lim, "key").Allowed)
			}
			s.down.Store(false)
			time.Sleep(time.Second)
			require.True(t, allow(t, lim, "key").Allowed)
			for key, want := range map[string]int{"key": 100, "tenant:key": 100 - 6} {
				r, err := day.Peek(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, want, r.Remaining, name)
			}
		})
	}
}

// A wrapper of another package has several limits, of which one has room for less than is owed, or the calls beside it have.
func TestALimiterOfSeveralLimitsPaysWhatAllHaveRoomFor(t *testing.T) {
	for name, c := range map[string]struct {
		few, plan int // how many they admit: events, and calls
		want      [3]int
	}{
		"events": {3, 100, [3]int{0, 97, 95}},
		"calls":  {100, 3, [3]int{95, 95, 0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newBreakable(t)
			limit := func(name string, n int, opts ...ratelimit.Option) ratelimit.Limiter {
				return newLimiter(t, "fixed_window", s, ratelimit.PerDay(n), append(opts, ratelimit.WithName(name))...)
			}
			few, many, plan := limit("few", c.few), limit("many", 100), limit("plan", c.plan, ratelimit.CountCalls())
			lim := failover(t, all(t, prefixed{all(t, few, many)}, plan), fallback.FailTo(inMemory(t, "fixed_window", ratelimit.PerDay(50))))
			s.down.Store(true)
			require.Equal(t, 5, admitted(t, lim, 5))
			s.down.Store(false)
			time.Sleep(time.Second)
			require.False(t, allow(t, lim, "key").Allowed)
			require.True(t, lim.Owes("key"))
			require.Equal(t, c.want, [3]int{peek(t, few, "tenant:key").Remaining, peek(t, many, "tenant:key").Remaining, peek(t, plan, "key").Remaining}, name)
		})
	}
}

// gated is a store whose next TakeAll waits.
type gated struct {
	*breakable
	waits   atomic.Bool
	in, out chan struct{}
}

// Decide implements [store.Store].
func (g *gated) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, g, g.Store, requests, replies)
}

func (g *gated) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if g.waits.CompareAndSwap(true, false) {
		close(g.in)
		<-g.out
	}
	return g.breakable.Decide(ctx, requests, replies)
}

// What is refunded while it is being charged to the store is still paid, and the debt never becomes
// negative.
func TestARefundOfWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &gated{breakable: newBreakable(t), in: make(chan struct{}), out: make(chan struct{})}
		events := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(100)))
		calls := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerHour(50), ratelimit.CountCalls()))
		lim := ratelimit.Must(fallback.New(all(t, events, calls), fallback.FailLocal(1)))
		askN := func(n int) ratelimit.Result {
			r, err := lim.AllowN(t.Context(), "key", n)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			return r
		}
		s.down.Store(true)
		owed := askN(5)
		s.down.Store(false)
		s.waits.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() { askN(1) })
		<-s.in
		require.Equal(t, ratelimit.SourceStore, askN(2).Source(), "the store decides others")
		s.down.Store(true)
		require.Equal(t, ratelimit.SourceLocal, askN(3).Source())
		s.down.Store(false)
		require.NoError(t, lim.Refund(t.Context(), "key", owed, 5))
		close(s.out)
		wg.Wait()
		askN(1)
		require.False(t, lim.Owes("key"))
	})
}

// Each store tells of its own limits alone how much room there is.
func TestDebtsToSeveralStoresAreChargedToEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limits []ratelimit.Limiter
		var stores []*breakable
		for i := range 5 {
			s := newBreakable(t)
			l := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(100), ratelimit.WithName(strconv.Itoa(i))))
			_, err := l.AllowN(t.Context(), "key", 40+10*i) // so that there is room for 60, 50, 40, 30 and 20
			require.NoError(t, err)
			stores, limits = append(stores, s), append(limits, l)
		}
		lim := ratelimit.Must(fallback.New(all(t, limits...), fallback.FailLocal(1)))
		set := func(down bool) {
			for _, s := range stores {
				s.down.Store(down)
			}
		}
		set(true)
		_, err := lim.AllowN(t.Context(), "key", 90)
		require.NoError(t, err)
		set(false)
		time.Sleep(time.Second)
		r, err := lim.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		for i, l := range limits {
			r, err = l.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, 40-10*i, r.Remaining)
		}
	})
}
