package inflight_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A panic of OnEnd keeps no slot.
func TestAPanicOfOnEndLeavesNoSlotTaken(t *testing.T) {
	one := ratelimit.Must(inflight.New(ratelimit.Must(memstore.New()), 1, time.Minute))
	var panicked atomic.Bool
	limit := ratelimit.Must(httplimit.New(one, httplimit.WithKey(httplimit.Global()), httplimit.WithSlots(inflight.OnEnd(func(inflight.Ending) {
		if !panicked.Swap(true) {
			panic("planted")
		}
	}))))
	server := httptest.NewUnstartedServer(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()
	var codes []int
	for range 4 {
		res, err := http.Get(server.URL)
		if err != nil {
			codes = append(codes, 0)
			continue
		}
		res.Body.Close()
		codes = append(codes, res.StatusCode)
	}
	require.Equal(t, []int{200, 200, 200}, codes[1:], "%v", codes)
}

// A slot in memory is free for what OnEnd begins.
func TestTheSlotIsFreeInOnEnd(t *testing.T) {
	one := ratelimit.Must(inflight.New(ratelimit.Must(memstore.New()), 1, time.Minute))
	var allowed bool
	slot, _, err := inflight.Hold(t.Context(), one, "key", 1, inflight.OnEnd(func(inflight.Ending) {
		r, err := one.Peek(t.Context(), "key")
		require.NoError(t, err)
		allowed = r.Allowed
	}))
	require.NoError(t, err)
	slot.Release()
	require.True(t, allowed)
}

// A limit function that panics ends the request that it is called for. In a renewal, it costs the slot.
func TestAPanicInARenewalCostsTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		s := newRemote(t)
		one := slots(t, s, 1, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			if calls.Add(1) > 1 {
				panic("planted")
			}
			return ratelimit.Limit{}, nil
		}))
		slot, _, err := inflight.Hold(t.Context(), one, "key", 1)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Greater(t, calls.Load(), int64(1))
		require.True(t, slot.Lost())
		slot.Release()
		synctest.Wait()
	})
}
