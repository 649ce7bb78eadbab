package grpclimit_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Of 60 concurrent calls, five are admitted, and the others begin one ban. Later calls do not make
// it longer.
func TestABannedCallerIsToldWhenTheBanEnds(t *testing.T) {
	var now atomic.Int64 // Unix µs
	now.Store(start.UnixMicro())
	clock := func() time.Time { return time.UnixMicro(now.Load()) }
	for name, on := range map[string]func(*testing.T) (store.Store, error){
		"memory": func(*testing.T) (store.Store, error) { return memstore.New(memstore.WithClock(clock)) },
		"redis": func(t *testing.T) (store.Store, error) {
			return redisstore.New(redistest.Start(t).Client(t), redisstore.WithClock(clock), redisstore.WithTimeout(10*time.Second))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := on(t)
			require.NoError(t, err)
			ban, err := ratelimit.NewBan(bucketOn(t, s, ratelimit.PerMinute(5)), s,
				ratelimit.Penalty{Denials: 3, Within: time.Minute, For: 15 * time.Minute, Most: 24 * time.Hour})
			require.NoError(t, err)
			svc := &service{}
			client := dial(t, listen(t, svc, unaryServer(t, ban)))
			var calls sync.WaitGroup
			for range 60 {
				calls.Go(func() { call(t, client) })
			}
			calls.Wait()
			require.EqualValues(t, 5, svc.calls.Load())

			for _, left := range []time.Duration{15 * time.Minute, time.Minute} {
				now.Store(start.Add(15*time.Minute - left).UnixMicro())
				a := call(t, client)
				require.Equal(t, codes.ResourceExhausted, a.code())
				require.Equal(t, "rate limit: the client is banned", a.status.Message(), "for wrong passwords, perhaps")
				require.Equal(t, []string{"rate limit: the client is banned"}, a.violations())
				require.Equal(t, left, a.retryInfo())
				require.Empty(t, a.header["ratelimit"], "a ban has no numbers")
			}
			now.Store(start.Add(15 * time.Minute).UnixMicro())
			require.Equal(t, codes.OK, call(t, client).code())
			require.EqualValues(t, 6, svc.calls.Load())
			now.Store(start.UnixMicro())
		})
	}
}
