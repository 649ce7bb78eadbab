package main

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

// TestMain makes the test binary the program if parent has started it as such.
func TestMain(m *testing.M) {
	if os.Getenv(keyVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestTwoProcessesAreAdmittedTheLimitTogether(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out, "", ""))
		require.Regexp(t, `^process 1 tried 100 events, \d+ admitted
process 2 tried 100 events, \d+ admitted
together 100 admitted, at a limit of 100/h
$`, out.String())
	})
	t.Run("redis-server", func(t *testing.T) {
		server := redistest.Start(t)
		for range 2 { // runs share nothing
			require.NoError(t, run(t.Context(), io.Discard, server.Addr(), ""))
		}
		keys, err := server.Client(t).DBSize(t.Context()).Result()
		require.NoError(t, err)
		require.Zero(t, keys, "keys that the runs left behind")
	})
}

func TestAServerThatRefusesIsAnError(t *testing.T) {
	require.ErrorIs(t, run(t.Context(), io.Discard, refusing(t), ""), ratelimit.ErrStore)
}

func TestAFailedProcessIsAnErrorThatSaysWhy(t *testing.T) {
	_, err := startAll(t.Context(), refusing(t), "key")
	require.ErrorContains(t, err, "process 1: exit status 1: ")
	require.ErrorContains(t, err, "process 2: exit status 1: ")
	require.ErrorContains(t, err, ratelimit.ErrStore.Error())
}

func TestAnyOtherSumIsAnError(t *testing.T) {
	for _, admitted := range [][]int{{50, 51}, {50, 49}, {0, 0}} {
		require.Error(t, printSum(io.Discard, admitted, ratelimit.PerHour(100)))
	}
	require.NoError(t, printSum(io.Discard, []int{100, 0}, ratelimit.PerHour(100)))
}

// refusing is a server that wants a password. One that nobody runs takes all of the store's time.
func refusing(t *testing.T) string {
	t.Helper()
	server := redistest.Mini(t)
	server.RequireAuth("secret")
	return server.Addr()
}
