package fallback_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// standing is a store that stands still at times. What it is sent meanwhile it runs afterwards.
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

func (s *standing) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return s.Store.Take(ctx, ns, key, l, n) })
}

func (s *standing) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return s.Store.TakeUpTo(ctx, ns, key, l, n) })
}

func (s *standing) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.ask(func() (store.Reply, error) { return s.Store.Peek(ctx, ns, key, l, n) })
}

func (s *standing) ask(call func() (store.Reply, error)) (store.Reply, error) {
	var reply store.Reply
	var err error
	if late := s.run(func() { reply, err = call() }); late != nil {
		return store.Reply{}, late
	}
	return reply, err
}

// A server that stood still runs what it was sent meanwhile, and nobody knows. So the breaker asks it without a
// charge, and what is owed comes when it has answered: all that is charged in vain are the calls before the
// breaker opened.
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
