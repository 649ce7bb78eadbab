package redisstore_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// herd is callers without a pause, each on a key of its own, of a server in a bubble that is 20 ms
// away and makes 100,000 calls a second, one by one.
type herd struct {
	b       *bookkeeper
	s       *redisstore.Store
	client  *redis.Client
	served  atomic.Int64
	stop    atomic.Bool
	callers sync.WaitGroup
}

// startHerd starts it. Some callers give back what they were admitted, without waiting for that.
func startHerd(t *testing.T, callers int, releases bool) *herd {
	h := &herd{b: newBookkeeper()}
	h.b.way, h.b.cost = 10*time.Millisecond, 10*time.Microsecond
	h.client = redis.NewClient(&redis.Options{
		Dialer: h.b.dial, DialTimeout: time.Second, DialerRetries: 2, PoolSize: 20,
		Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	var err error
	h.s, err = redisstore.New(h.client)
	require.NoError(t, err)
	require.NoError(t, h.s.Ready(context.Background()))
	limit := store.Limit{Rate: mostFits, Period: 1e6, Burst: mostFits}
	for i := range callers {
		key := strconv.Itoa(i)
		h.callers.Go(func() {
			for !h.stop.Load() {
				if _, err := h.s.Take(context.Background(), bookkeeping, key, limit, 1); err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				h.served.Add(1)
				if releases {
					h.callers.Go(func() { h.release(key, limit) })
				}
			}
		})
	}
	return h
}

// release gives back what a caller was admitted. As a slot's Release does, it tries that again.
func (h *herd) release(key string, limit store.Limit) {
	for pause := 5 * time.Millisecond; !h.stop.Load(); pause *= 2 {
		if h.s.Refund(context.Background(), bookkeeping, key, limit, store.Receipt{N: 1}) == nil {
			return
		}
		time.Sleep(pause)
	}
}

// servedIn is how many calls are served in the next d.
func (h *herd) servedIn(d time.Duration) int {
	before := h.served.Load()
	time.Sleep(d)
	return int(h.served.Load() - before)
}

// suffer has the server suffer from what f does.
func (h *herd) suffer(f func(b *bookkeeper)) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	f(h.b)
}

func (h *herd) end() {
	h.stop.Store(true)
	h.callers.Wait()
	time.Sleep(10 * time.Second)
	_ = h.client.Close()
}

// A server that gets 300 times slower serves as many as it still can, as soon as it has done what was
// under way. More would all be late.
func TestASlowServerServesWhatItCan(t *testing.T) {
	for name, c := range map[string]struct {
		releases bool
		part     int // of what it can do, at least that: a call that gives back is done for each that takes
	}{"takes": {false, 2}, "takes and gives": {true, 16}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := startHerd(t, 1024, c.releases)
				defer h.end()
				h.servedIn(time.Second)
				h.suffer(func(b *bookkeeper) { b.cost = 3 * time.Millisecond })
				const batch = 8 // calls at least in a script, of which each after the first costs a quarter
				can := int(time.Second * batch / (3 * time.Millisecond * (batch + 3) / 4))
				h.servedIn(3 * time.Second) // those that give back go first
				for range effort.Of(2, 5) {
					n := h.servedIn(time.Second)
					t.Logf("%d of %d", n, can)
					require.Greater(t, n, can/c.part)
				}
			})
		})
	}
}
