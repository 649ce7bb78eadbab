package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

var algorithms = []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"}

func TestManyInstancesAdmitTheLimit(t *testing.T) {
	for _, algorithm := range algorithms {
		mem, err := memstore.New()
		require.NoError(t, err)
		l, err := ratelimit.New(algorithm, mem, ratelimit.PerDay(100_000_000))
		require.NoError(t, err)
		_ = l
		limit := ratelimit.PerDay(5_000)
		var leases []*lease.Limiter
		for range 4 {
			l, err := ratelimit.New(algorithm, mem, limit, ratelimit.WithName("x"))
			require.NoError(t, err)
			d, err := lease.New(l, 20*time.Second)
			require.NoError(t, err)
			leases = append(leases, d)
		}
		var admitted atomic.Int64
		var callers sync.WaitGroup
		for c := range 64 {
			callers.Go(func() {
				for range 2_000 {
					r, err := leases[c%4].Allow(context.Background(), "key")
					if err != nil {
						t.Error(err)
					}
					if r.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		for _, d := range leases {
			require.NoError(t, d.Close(t.Context()))
			t.Logf("%s: %+v", algorithm, d.Stats())
		}
		p, err := ratelimit.New(algorithm, mem, limit, ratelimit.WithName("x"))
		require.NoError(t, err)
		r, err := p.Peek(t.Context(), "key")
		require.NoError(t, err)
		t.Log(algorithm, admitted.Load(), r)
		require.LessOrEqual(t, admitted.Load(), int64(5_000))
	}
}

func BenchmarkHeld(b *testing.B) {
	mem, _ := memstore.New()
	l, _ := ratelimit.New("token_bucket", mem, ratelimit.Limit{Rate: 1_000_000, Period: time.Millisecond})
	d, err := lease.New(l, time.Millisecond)
	require.Error(b, err)
	l, _ = ratelimit.New("token_bucket", mem, ratelimit.Limit{Rate: 1_000_000, Period: time.Millisecond, Burst: 1_000_000_000})
	d, err = lease.New(l, time.Millisecond)
	require.NoError(b, err)
	for name, lim := range map[string]ratelimit.Limiter{"plain": l, "leased": d} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := b.Context()
			for b.Loop() {
				if r, err := lim.Allow(ctx, "user:42"); !r.Allowed || err != nil {
					b.Fatal(r, err)
				}
			}
		})
	}
	b.Logf("%+v", d.Stats())
}
