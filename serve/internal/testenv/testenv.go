// Package testenv has what the tests of this module need: a redis-server, and how much to do.
package testenv

import (
	"context"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Redis starts a redis-server for one test, and returns its address. Without the binary the test is
// skipped, or fails if RATELIMIT_REQUIRE_REDIS=1.
func Redis(t *testing.T) (address string) {
	t.Helper()
	return StartRedis(t).Address
}

// Server is a redis-server of a test.
type Server struct {
	Address string

	process *os.Process
	ended   chan struct{}
}

// Stop ends the server.
func (s *Server) Stop() { _ = s.process.Kill(); <-s.ended }

// Freeze stops its process. The kernel still takes connections and bytes.
func (s *Server) Freeze() { _ = s.process.Signal(syscall.SIGSTOP) }

// Thaw lets it go on.
func (s *Server) Thaw() { _ = s.process.Signal(syscall.SIGCONT) }

// StartRedis is [Redis] with a server that can be stopped.
func StartRedis(t *testing.T) *Server {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("RATELIMIT_REQUIRE_REDIS") != "1" {
		t.Skip("redis-server is missing")
	}
	require.NoError(t, err)
	for range 10 { // another process may take the port
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address := l.Addr().String()
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		cmd := exec.CommandContext(t.Context(), binary, "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--appendonly", "no")
		require.NoError(t, cmd.Start())
		s := &Server{address, cmd.Process, make(chan struct{})}
		go func() { _ = cmd.Wait(); close(s.ended) }()
		if up(t.Context(), address, s.ended) {
			t.Cleanup(s.Stop)
			return s
		}
		_ = cmd.Process.Kill()
	}
	t.Fatal("no redis-server has started")
	return nil
}

// up reports whether a server answers before it ends.
func up(ctx context.Context, address string, ended <-chan struct{}) bool {
	for range 10_000 {
		select {
		case <-ended:
			return false
		case <-time.After(5 * time.Millisecond):
		}
		if conn, err := new(net.Dialer).DialContext(ctx, "tcp", address); err == nil {
			_ = conn.Close()
			return true
		}
	}
	return false
}

// Of returns how much of something a test does: full under RATELIMIT_FULL=1.
func Of(plain, full int) int {
	if os.Getenv("RATELIMIT_FULL") == "1" {
		return full
	}
	return plain
}
