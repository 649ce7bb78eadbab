//go:build unix

package inflight_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

// A process that is stopped for two lives loses its slots to others, and finds that out when it
// goes on.
func TestAProcessThatIsStoppedFindsItsSlotsLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l, err := onRedis(server.Client(t), 10*time.Second) // so that ours live on a busy machine too
	require.NoError(t, err)
	p := start(t, server.Addr(), time.Second)
	require.Eventually(t, func() bool { return p.kept.Load() > 10 && free(t, l) == 0 }, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	var ours []*inflight.Slot
	require.Eventually(t, func() bool {
		slot, _, err := inflight.Hold(t.Context(), l, "key", 1)
		if err == nil && slot != nil {
			ours = append(ours, slot)
		}
		return len(ours) == 5
	}, 20*time.Second, 10*time.Millisecond)
	all := time.Now()
	time.Sleep(time.Second)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	require.Eventually(t, func() bool { return p.lost.Load() > 0 }, 20*time.Second, time.Millisecond)
	time.Sleep(500 * time.Millisecond)
	require.Less(t, p.last.Load(), all.UnixNano(), "turns that ended with a slot, while others held all")
	kept := p.kept.Load()
	for _, slot := range ours {
		require.False(t, slot.Lost())
		slot.Release()
	}
	require.Eventually(t, func() bool { return p.kept.Load() > kept }, 20*time.Second, time.Millisecond)
}
