// Package testenv has what the tests of this module need: a redis-server, and how much to do.
package testenv

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// Freeze stops its process. The kernel still accepts connections and bytes.
func (s *Server) Freeze() { _ = s.process.Signal(stop) }

// Thaw continues a frozen server.
func (s *Server) Thaw() { _ = s.process.Signal(cont) }

// StartRedis is like [Redis], but returns a server that can be stopped, and takes arguments in
// addition to those of all servers.
func StartRedis(t *testing.T, args ...string) *Server {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("RATELIMIT_REQUIRE_REDIS") != "1" {
		t.Skip("redis-server is missing")
	}
	require.NoError(t, err)
	for range 10 { // another process may take the port first
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address := l.Addr().String()
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		all := append(slices.Clone(args), "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--appendonly", "no")
		cmd := exec.CommandContext(t.Context(), binary, all...)
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

// Pipe makes a named pipe, limits.yaml in a folder of its own, and returns its path.
func Pipe(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "limits.yaml")
	err := mkfifo(path)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("named pipes are no files here")
	}
	require.NoError(t, err)
	return path
}

// Far returns the address of a proxy in front of server, with the given round-trip time.
func Far(t *testing.T, server string, roundTrip time.Duration) (address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", server)
				if err != nil {
					_ = client.Close()
					return
				}
				go carry(conn, client, roundTrip/2)
				carry(client, conn, roundTrip/2)
			}()
		}
	}()
	return l.Addr().String()
}

// carry writes to one connection what it reads from the other, after the delay. Bytes in flight do
// not hold up others.
func carry(to, from net.Conn, later time.Duration) {
	type chunk struct {
		bytes []byte
		due   time.Time
	}
	way := make(chan chunk, 1<<12)
	go func() {
		defer close(way)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			way <- chunk{b[:n], time.Now().Add(later)}
		}
	}()
	for c := range way {
		time.Sleep(time.Until(c.due))
		_, _ = to.Write(c.bytes) // an error shows at the next Read
	}
	_, _ = to.Close(), from.Close()
}

// Original starts envoyproxy/ratelimit on a Redis, with files by their names. It returns the
// address for gRPC, and the process. RATELIMIT_ORIGINAL is the path of the program. Without it the
// test is skipped:
//
//	go install github.com/envoyproxy/ratelimit/src/service_cmd@main
func Original(t *testing.T, redis string, files map[string]string, env ...string) (address string, process *os.Process) {
	t.Helper()
	program := os.Getenv("RATELIMIT_ORIGINAL")
	if program == "" {
		t.Skip("RATELIMIT_ORIGINAL is not set")
	}
	root := t.TempDir()
	config := filepath.Join(root, "ratelimit", "config")
	require.NoError(t, os.MkdirAll(config, 0o700))
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(config, name), []byte(text), 0o600))
	}
	var ports [3]string
	for i := range ports {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		_, ports[i], err = net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(append(os.Environ(), "USE_STATSD=false", "LOG_LEVEL=ERROR", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis,
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+ports[0], "PORT="+ports[1], "DEBUG_PORT="+ports[2]), env...)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	address = net.JoinHostPort("127.0.0.1", ports[0])
	require.True(t, up(t.Context(), address, ended), "the original has ended")
	return address, cmd.Process
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
