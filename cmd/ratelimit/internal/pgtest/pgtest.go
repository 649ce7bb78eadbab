// Code generated from store/pgstore/internal/pgtest by go generate ./internal/copies; DO NOT EDIT.

// Package pgtest runs real Postgres servers for tests, and breaks them on purpose. It has no client. The
// servers listen on the loopback interface only, and end with the test that started them.
//
// A test that needs Postgres is skipped if its binaries are neither on the PATH nor where Debian has them. With
// RATELIMIT_REQUIRE_POSTGRES=1 it fails instead. Postgres refuses to run as root: if root runs the tests, the server
// belongs to the user postgres, or to nobody.
package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout = 2 * time.Minute // for a busy machine
	startTries   = 3               // another process may take the free port first
)

// Server is a Postgres server.
type Server struct {
	bin  string
	dir  string
	port string
	args []string
	proc *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start creates a cluster of databases, and starts its server for one test, with settings such as "fsync=off". It takes
// about two seconds.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := start(bin(t), settings, initdb...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// Standby starts a replica of s, which only reads until it is promoted.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	replica, err := start(s.bin, nil, "pg_basebackup", "--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replica.end)
	return replica
}

// initdb is the command that creates a cluster of databases.
var initdb = []string{"initdb", "--auth", "trust", "--username", "postgres", "--no-sync", "--encoding", "UTF8", "--locale", "C"}

// bin returns the directory of the binaries. It skips t if there is none.
func bin(t testing.TB) string {
	t.Helper()
	dir, err := binaries()
	switch {
	case err == nil:
	case os.Getenv("RATELIMIT_REQUIRE_POSTGRES") == "1":
		t.Fatalf("%v, and RATELIMIT_REQUIRE_POSTGRES=1", err)
	default:
		t.Skip(err)
	}
	return dir
}

// binaries returns the directory with initdb and postgres: the one on the PATH, or the newest of Debian's.
func binaries() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		path, err = filepath.EvalSymlinks(path) // the others are in the same directory
		return filepath.Dir(path), err
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", errors.New("postgres is missing")
	}
	return filepath.Dir(found[len(found)-1]), nil
}

// start starts a server with the files that a command makes.
func start(bin string, settings []string, command ...string) (*Server, error) {
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir}
	for _, setting := range settings {
		s.args = append(s.args, "-c", setting)
	}
	if err = s.init(command); err == nil {
		for range startTries {
			if s.port, err = freePort(); err != nil {
				break
			}
			if err = s.run(); err == nil {
				return s, nil
			}
		}
	}
	_ = os.RemoveAll(dir)
	return nil, err
}

// init creates the files.
func (s *Server) init(command []string) error {
	if id := owner(); id != nil {
		if err := os.Chown(s.dir, int(id.Uid), int(id.Gid)); err != nil {
			return err
		}
	}
	cmd := s.command(command[0], append([]string{"--pgdata", s.data()}, command[1:]...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command[0], err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = attributes(owner())
	return cmd
}

// id is a user.
type id struct{ Uid, Gid uint32 }

// owner returns the user to whom servers belong, or nil if that is the user who runs the tests.
func owner() *id {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range [...]string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &id{uint32(uid), uint32(gid)}
		}
	}
	return nil
}

// run starts the process, and waits until it accepts connections.
func (s *Server) run() error {
	args := append([]string{
		"-D", s.data(), "-p", s.port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + s.dir,
	}, s.args...)
	s.proc = s.command("postgres", args...)
	var log lockedBuffer
	s.proc.Stdout, s.proc.Stderr = &log, &log
	if err := s.proc.Start(); err != nil {
		return err
	}
	done, proc := make(chan struct{}), s.proc
	s.done = done
	go func() {
		defer close(done)
		_ = proc.Wait()
	}()
	for limit := time.Now().Add(startTimeout); time.Now().Before(limit) && !s.ended(); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(log.String(), "ready to accept ") {
			return nil
		}
	}
	s.Kill()
	return fmt.Errorf("postgres on port %s did not come up: %s", s.port, log.String())
}

// lockedBuffer is a buffer for two goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (s *Server) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Addr returns the server's host:port.
func (s *Server) Addr() string { return "127.0.0.1:" + s.port }

// URL returns the URL of the database postgres, for its superuser.
func (s *Server) URL() string { return URL(s.Addr()) }

// URL returns the URL of the database postgres at addr, for its superuser.
func URL(addr string) string { return "postgres://postgres@" + addr + "/postgres?sslmode=disable" }

// Kill ends all processes of the server immediately (SIGKILL). What was committed is on the disk.
func (s *Server) Kill() {
	if !s.ended() {
		s.signal(syscall.SIGKILL)
	}
	<-s.done
}

// Restart kills the server if it runs, and starts it again on the same port.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	err := s.run()
	for limit := time.Now().Add(startTimeout); err != nil && time.Now().Before(limit); err = s.run() {
		time.Sleep(10 * time.Millisecond) // the last of its processes may still hold its memory
	}
	if err != nil {
		t.Fatal(err)
	}
}

// signal sends sig to the server's first process, and to the children of that process.
func (s *Server) signal(sig syscall.Signal) {
	pid := s.proc.Process.Pid
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	_ = s.proc.Process.Signal(sig)
	for _, child := range strings.Fields(string(text)) {
		if n, err := strconv.Atoi(child); err == nil {
			if process, err := os.FindProcess(n); err == nil {
				_ = process.Signal(sig)
				_ = process.Release()
			}
		}
	}
}

// end ends the server, and removes its files.
func (s *Server) end() {
	if !s.ended() {
		_ = s.proc.Process.Signal(syscall.SIGQUIT) // leaves no shared memory behind
		select {
		case <-s.done:
		case <-time.After(startTimeout):
			s.Kill()
		}
	}
	_ = os.RemoveAll(s.dir)
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

// FreePort returns a port of 127.0.0.1 on which no server listens.
func FreePort(t testing.TB) string {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// shared is the server of Shared; it belongs to the test binary.
var shared struct {
	sync.Mutex
	server *Server
	err    error
}

// End ends the server of [Shared], after the tests of the binary have run.
func End() {
	shared.Lock()
	defer shared.Unlock()
	if s := shared.server; s != nil {
		s.end()
	}
}

// Shared returns the server that all tests of this binary share. The first call starts it. Tests must not disturb each
// other: use a table per test, and no faults. TestMain must call [End]. The server writes to the disk as it does by
// default, but does not wait for the disk.
func Shared(t testing.TB) *Server {
	t.Helper()
	dir := bin(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = start(dir, []string{"synchronous_commit=off", "max_connections=300"}, initdb...)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}
