package main

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

// TestMain makes the test binary the program if it was started as a process of the fleet.
func TestMain(m *testing.M) {
	if os.Getenv(keyVariable) != "" {
		main()
		return
	}
	os.Exit(redistest.Main(m))
}

func TestAFleetIsAdmittedNoEventTooMany(t *testing.T) {
	effort.NeedFull(t) // it keeps all processors busy for two seconds
	t.Parallel()
	for name, addr := range map[string]func(t *testing.T) string{
		"embedded":     func(*testing.T) string { return "" },
		"redis-server": func(t *testing.T) string { return redistest.Start(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), &out, addr(t), ""))
			require.Contains(t, out.String(), ": overshoot 0\n")
			t.Log(out.String())
		})
	}
}

func TestAnOvershootIsAnError(t *testing.T) {
	require.NoError(t, report(io.Discard, []work{{Admitted: 15_000}, {Admitted: 5_000}}, time.Second))
	require.Error(t, report(io.Discard, []work{{Admitted: 15_000}, {Admitted: 5_001}}, time.Second))
}

func TestAServerThatRefusesIsAnErrorThatSaysWhy(t *testing.T) {
	server := redistest.Mini(t)
	server.RequireAuth("secret")
	_, err := startAll(t.Context(), server.Addr(), "key") // where nobody listens, it takes all of the store's time
	require.ErrorContains(t, err, "process 1: exit status 1: ")
	require.ErrorContains(t, err, ratelimit.ErrStore.Error())
}
