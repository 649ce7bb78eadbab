package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// commands is how many scripts a server has run.
func commands(t *testing.T, client *redis.Client) (n int) {
	t.Helper()
	stats, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		n, err = strconv.Atoi(m[1])
		require.NoError(t, err)
	}
	return n
}

// Takes and gives leave nothing behind, however many there are.
func TestTakesAndGivesDoNotDrift(t *testing.T) {
	client := redistest.Start(t).Client(t)
	for name, s := range map[string]struct {
		store.Store
		rounds int
	}{
		"memory": {ratelimit.Must(memstore.New()), effort.Of(50_000, 200_000, 1_000_000)},
		"redis":  {ratelimit.Must(redisstore.New(client, redisstore.WithTimeout(10*time.Second))), effort.Of(5_000, 20_000, 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			const callers, n = 16, 5
			l, err := inflight.New(s, n, time.Minute, ratelimit.WithName("slots"))
			require.NoError(t, err)
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for range s.rounds / callers {
						r, err := l.Allow(context.Background(), "k")
						if err == nil && r.Allowed {
							err = l.Refund(context.Background(), "k", r, 1)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			r, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, n, r.Remaining)
		})
	}
	keys, err := client.Keys(t.Context(), "*in_flight*").Result()
	require.NoError(t, err)
	require.Empty(t, keys, "the key is gone")
}

// A slot is renewed at a third of its life, and renewals of many go together.
func TestRenewalsAreNoMoreThanTheyMustBe(t *testing.T) {
	effort.NeedFull(t)
	const holds, life, held = 10_000, 3 * time.Second, 10 * time.Second
	client := redistest.Start(t).Client(t)
	s := ratelimit.Must(redisstore.New(client, redisstore.WithTimeout(time.Minute)))
	l, err := inflight.New(s, holds, life, ratelimit.WithName("slots"))
	require.NoError(t, err)
	slots := make([]*inflight.Slot, holds)
	var all sync.WaitGroup
	for first := range 64 {
		all.Go(func() {
			for i := first; i < holds; i += 64 {
				err := store.ErrOverloaded // what others do may be more than the machine can
				for errors.Is(err, store.ErrOverloaded) {
					slots[i], _, err = inflight.Hold(context.Background(), l, fmt.Sprint("k", i%100), 1)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	before := commands(t, client)
	time.Sleep(held)
	after, lost := commands(t, client), 0
	for _, slot := range slots {
		if slot.Lost() { // the machine is busy with something else
			lost++
		}
		slot.Release()
	}
	renewals := holds * float64(held) / float64(life/3)
	t.Logf("%d scripts for %.0f renewals; %d were late", after-before, renewals, lost)
	require.LessOrEqual(t, float64(after-before), 1.1*renewals)
}

// BenchmarkSlots takes a slot and gives it back, beside an event of a SlidingLog; and denials of
// both.
func BenchmarkSlots(b *testing.B) {
	const n = 8
	for name, s := range map[string]store.Store{
		"memory": ratelimit.Must(memstore.New()),
		"redis":  ratelimit.Must(redisstore.New(redistest.Shared(b).Client(b))),
	} {
		slots, err := inflight.New(s, n, time.Minute, ratelimit.WithName("slots"))
		require.NoError(b, err)
		log, err := ratelimit.NewSlidingLog(s, ratelimit.Limit{Rate: n, Period: time.Minute}, ratelimit.WithName("log"))
		require.NoError(b, err)
		for _, of := range []struct {
			name string
			l    ratelimit.Limiter
		}{{"slots", slots}, {"log", log}} {
			b.Run(name+"/given_back/"+of.name, func(b *testing.B) {
				for b.Loop() {
					r, err := of.l.Allow(b.Context(), "k")
					if err != nil || !r.Allowed {
						b.Fatal(r, err)
					}
					_ = of.l.Refund(b.Context(), "k", r, 1)
				}
			})
			b.Run(name+"/denied/"+of.name, func(b *testing.B) {
				for range n {
					_, _ = of.l.Allow(b.Context(), "full")
				}
				for b.Loop() {
					if r, err := of.l.Allow(b.Context(), "full"); err != nil || r.Allowed {
						b.Fatal(r, err)
					}
				}
			})
		}
		b.Run(name+"/held", func(b *testing.B) {
			for b.Loop() {
				slot, _, err := inflight.Hold(b.Context(), slots, "k", 1)
				if err != nil || slot == nil {
					b.Fatal(err)
				}
				slot.Release()
			}
		})
	}
}
