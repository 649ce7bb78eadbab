// Package redistest runs real Redis servers, clusters and Sentinels for tests, and breaks
// them on purpose. It can put proxies that lose replies in front of them. Everything
// listens on the loopback interface only, and ends with the test that started it.
//
// A test that needs redis-server is skipped if the binary is missing. With
// RATELIMIT_REQUIRE_REDIS=1 it fails instead.
package redistest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startTimeout = 5 * time.Second
	startTries   = 3 // another process may take the free port first
)

// Server is a redis-server process without persistence.
type Server struct {
	port   string
	dir    string
	args   []string
	config string // of a Sentinel, which rewrites it; "" for others
	proc   *process
}

// Start starts a redis-server with extra arguments for one test, in about 50 ms.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	needBinary(t)
	s, err := start(t.TempDir(), args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func needBinary(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err == nil {
		return
	}
	missing(t, "redis-server")
}

// NeedRedis7 skips t if redis-server is older than Redis 7.0.
func NeedRedis7(t testing.TB) {
	t.Helper()
	if version, _ := exec.CommandContext(t.Context(), "redis-server", "--version").Output(); bytes.Contains(version, []byte(" v=6.")) {
		t.Skip("needs Redis 7.0")
	}
}

// missing skips t, or fails it, because what it needs is missing.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("RATELIMIT_REQUIRE_REDIS") == "1" {
		t.Fatal(what + " is missing and RATELIMIT_REQUIRE_REDIS=1")
	}
	t.Skip(what + " is missing")
}

func start(dir string, args []string) (*Server, error) {
	var err error
	for range startTries {
		s := &Server{dir: dir, args: args}
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = s.run(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// run starts the process and waits until it answers.
func (s *Server) run() error {
	log := filepath.Join(s.dir, "redis.log")
	args := append([]string{
		"--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir, "--logfile", log,
		"--save", "", "--appendonly", "no",
	}, s.args...)
	if s.config != "" {
		args = []string{s.config, "--sentinel", "--logfile", log}
	}
	proc, err := startProcess("redis-server", args)
	if err != nil {
		return err
	}
	s.proc = proc

	// If another server took the port first, that server answers.
	mine := "process_id:" + strconv.Itoa(proc.pid()) + "\r"
	for limit := time.Now().Add(startTimeout); time.Now().Before(limit) && !proc.ended(); time.Sleep(5 * time.Millisecond) {
		if info, err := s.ask("INFO server", time.Second); err == nil && strings.Contains(info, mine) {
			return nil
		}
	}
	proc.kill()
	text, _ := os.ReadFile(log)
	return fmt.Errorf("redis-server on port %s did not come up: %s", s.port, text)
}

// ask sends an inline command on a connection of its own and returns the beginning of the
// reply.
func (s *Server) ask(command string, timeout time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr(), timeout)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	reply := make([]byte, 64<<10)
	n, err := conn.Read(reply)
	return string(reply[:n]), err
}

// Addr returns the server's host:port.
func (s *Server) Addr() string { return "127.0.0.1:" + s.port }

// Client returns a client of s with go-redis' default options, closed with t.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Freeze stops the process (SIGSTOP) and returns once it has stopped. Its kernel
// still accepts connections and bytes.
func (s *Server) Freeze() {
	s.proc.signal(stop)
	for range 10_000 {
		if stopped, known := s.proc.stopped(); known && stopped {
			return
		} else if !known { // a busy server may seem to be stopped
			if _, err := s.ask("PING", 10*time.Millisecond); err != nil {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
	panic("redistest: server runs after SIGSTOP")
}

// Thaw continues a frozen server.
func (s *Server) Thaw() { s.proc.signal(cont) }

// Kill ends the process immediately (SIGKILL). All data is lost.
func (s *Server) Kill() { s.proc.kill() }

// Restart kills the process if it runs, and starts a new one on the same port. The new server is empty
// unless SAVE has written a file. Restart then returns while the file is being loaded.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
}

// freePort returns a port on which no server listens. It is below the ports that systems assign to
// connections, so that nothing takes it before the server starts, or while it restarts.
func freePort() (string, error) {
	var err error
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			return port, l.Close()
		}
	}
	return "", err
}

// shared is the server of Shared; it belongs to the test binary.
var shared struct {
	sync.Mutex
	main   bool // Main runs the tests
	server *Server
}

// Main runs the tests of a binary that uses [Shared], and returns their exit code:
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
//
// Twelve parallel tests run at the same time, unless -parallel is given, because they wait for
// servers and not for processors.
func Main(m *testing.M) int {
	_ = flag.Set("test.parallel", "12") // the command line is read later
	shared.Lock()
	shared.main = true
	shared.Unlock()
	defer func() {
		shared.Lock()
		defer shared.Unlock()
		if s := shared.server; s != nil {
			s.Kill()
			_ = os.RemoveAll(s.dir)
		}
	}()
	return m.Run()
}

// Shared returns the server that all tests of this binary share. The first call starts it. Tests must
// not disturb each other: use a prefix per test, and neither FLUSHALL nor faults. The binary needs
// [Main].
func Shared(t testing.TB) *Server {
	t.Helper()
	needBinary(t)
	shared.Lock()
	defer shared.Unlock()
	if !shared.main {
		t.Fatal("redistest.Shared needs a TestMain that calls redistest.Main")
	}
	if shared.server == nil {
		dir, err := os.MkdirTemp("", "redistest")
		if err != nil {
			t.Fatal(err)
		}
		if shared.server, err = start(dir, nil); err != nil {
			_ = os.RemoveAll(dir)
			t.Fatal(err)
		}
	}
	return shared.server
}

// prefixes are the prefixes of running tests.
var prefixes struct {
	sync.Mutex
	given int
	of    map[testing.TB]string
}

// Prefix returns the prefix of t's keys on a [Shared] server: its name and a number. A test that
// runs again (-count) gets a new prefix, so it does not find its old keys.
func Prefix(t testing.TB) string {
	t.Helper()
	prefixes.Lock()
	defer prefixes.Unlock()
	if prefixes.of == nil {
		prefixes.of = map[testing.TB]string{}
	}
	if _, found := prefixes.of[t]; !found {
		prefixes.given++
		prefixes.of[t] = fmt.Sprintf("%s-%d", t.Name(), prefixes.given)
		t.Cleanup(func() {
			prefixes.Lock()
			defer prefixes.Unlock()
			delete(prefixes.of, t)
		})
	}
	return prefixes.of[t]
}

// eventually fails t unless ok returns true within limit.
func eventually(t testing.TB, limit time.Duration, what string, ok func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for !ok(ctx) {
		if ctx.Err() != nil {
			t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
