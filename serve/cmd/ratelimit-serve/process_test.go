package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

// spawned is the program in a process of its own, of which a test wants more than decisions.
type spawned struct {
	cmd    *exec.Cmd
	stderr *output
}

// spawn starts the program, by a shell after a command.
func spawn(t *testing.T, before string, args ...string) *spawned {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	s := &spawned{exec.Command("sh", append([]string{"-c", before + ` exec "$@"`, "sh", self}, args...)...), new(output)}
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), asProgram+"=1"), s.stderr
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
	return s
}

// address waits until it listens.
func (s *spawned) address(t *testing.T, name string) (address string) {
	t.Helper()
	line := regexp.MustCompile(`"?for"?[=:]"?` + name + `"?[, ]"?address"?[=:]"?([^\s"]+)`)
	require.Eventually(t, func() bool {
		if m := line.FindStringSubmatch(s.stderr.String()); m != nil {
			address = m[1]
		}
		return address != ""
	}, time.Minute, time.Millisecond, "%v", s.stderr)
	return address
}

// code is that of a private path.
func code(t *testing.T, address, path string) int {
	t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + path)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

// A log of JSON has nothing else in it: neither what libraries say nor why the server has not started.
func TestALogOfJSONIsOfJSON(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "limits.yaml", limits)
	s := spawn(t, "", "-config", config, "-log", "json", "-store", "redis://127.0.0.1:1", "-grpc", "127.0.0.1:0", "-http", "", "-private", "127.0.0.1:0")
	s.address(t, "private")
	require.Eventually(t, func() bool { return strings.Contains(s.stderr.String(), "failed to dial") }, time.Minute, time.Millisecond, "go-redis has something to say")
	taken := spawn(t, "", "-config", config, "-log", "json", "-grpc", s.address(t, "grpc"), "-http", "", "-private", "")
	require.Error(t, taken.cmd.Wait())
	require.Contains(t, taken.stderr.String(), "address already in use")
	wrong := spawn(t, "", "-config", writeFile(t, "wrong.yaml", "domain: d\nx: y"), "-log", "json")
	require.Error(t, wrong.cmd.Wait())
	require.Contains(t, wrong.stderr.String(), "unknown field")
	for _, text := range []string{s.stderr.String(), taken.stderr.String(), wrong.stderr.String()} {
		for line := range strings.Lines(text) {
			require.True(t, json.Valid([]byte(line)) || !strings.HasSuffix(line, "\n"), line)
		}
	}
	require.Contains(t, s.stderr.String(), `"library":"go-redis"`)
}

// While requests are waited for, operators still see the server, which is not ready any more. A second signal ends it.
func TestSignals(t *testing.T) {
	t.Parallel()
	redis := testenv.StartRedis(t)
	s := spawn(t, "", "-config", writeFile(t, "limits.yaml", "on_failure: open\n"+limits), "-drain", "1h", "-timeout", "1h", "-store", "redis://"+redis.Address, "-grpc", "", "-http", "127.0.0.1:0", "-private", "127.0.0.1:0")
	private := s.address(t, "private")
	require.Equal(t, http.StatusOK, code(t, private, "/readyz"))
	redis.Freeze()
	conn, err := net.Dial("tcp", s.address(t, "http")) // for a request that lasts
	require.NoError(t, err)
	defer conn.Close()
	const body = `{"domain": "edge", "asks": [{"entries": {"user": "ann"}}]}`
	_, err = fmt.Fprintf(conn, "POST /v1/decide HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1)) // it is under way
	require.NoError(t, err)
	_, err = io.WriteString(conn, body)
	require.NoError(t, err)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool { return strings.Contains(s.stderr.String(), "msg=stopping") }, time.Minute, time.Millisecond)
	require.Equal(t, http.StatusServiceUnavailable, code(t, private, "/readyz"))
	require.Equal(t, http.StatusOK, code(t, private, "/healthz"))
	require.Equal(t, http.StatusOK, code(t, private, "/metrics"))
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	defer time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() }).Stop()
	err = s.cmd.Wait()
	require.Error(t, err)
	require.Equal(t, syscall.SIGTERM, s.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), "%v\n%v", err, s.stderr)
}

// Callers that connect and say nothing take no file that operators need.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	s := spawn(t, "ulimit -n 256;", "-config", writeFile(t, "limits.yaml", limits), "-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-private", "127.0.0.1:0")
	private := s.address(t, "private")
	for _, name := range []string{"http", "grpc"} {
		for range 400 {
			conn, err := net.Dial("tcp", s.address(t, name))
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte("GET / HTTP/1.1\r\n"))
			require.NoError(t, err)
		}
		require.Equal(t, http.StatusOK, code(t, private, "/healthz"), name)
	}
	require.NotContains(t, s.stderr.String(), "too many open files")
}

// Each port may be a Unix socket. A socket that a dead process left behind is replaced, and one in
// use stays.
func TestUnixSockets(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "rl") // whose name is short enough
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	args := []string{"-config", writeFile(t, "limits.yaml", limits+"checks:\n  client: [{user: address}]\n"), "-grpc", "unix:" + at("g"), "-http", "unix://" + at("h"), "-private", "unix:" + at("p")}
	get := func(path string) int {
		client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path[:strings.LastIndexByte(path, '|')])
		}}}
		resp, err := client.Get("http://unix" + path[strings.LastIndexByte(path, '|')+1:])
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	for range 2 {
		s := spawn(t, "", args...)
		s.address(t, "private")
		var stdout, stderr output
		require.Equal(t, 0, run(t.Context(), []string{"ask", "-grpc", "unix:" + at("g"), "edge", "user=ann"}, &stdout, &stderr), &stderr)
		require.Regexp(t, `"limitRemaining":\s*2`, stdout.String())
		require.Equal(t, http.StatusOK, get(at("p")+"|/healthz"))
		require.Equal(t, http.StatusNotFound, get(at("h")+"|/check/none"))
		var out output
		require.Equal(t, 1, run(t.Context(), args, io.Discard, &out), "it is in use")
		require.Contains(t, out.String(), "address already in use")
		require.Equal(t, http.StatusOK, get(at("p")+"|/healthz"))
		require.NoError(t, s.cmd.Process.Kill())
		_ = s.cmd.Wait()
		require.FileExists(t, at("g"))
	}
	require.NoError(t, os.Remove(at("g")))
	require.NoError(t, os.WriteFile(at("g"), []byte("a file"), 0o600))
	var out output
	require.Equal(t, 1, run(t.Context(), args, io.Discard, &out), "what is no socket is not removed")
	require.FileExists(t, at("g"))
}

// Reflection is a switch, and nothing else depends on it.
func TestReflection(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "limits.yaml", limits)
	for arg, want := range map[string]codes.Code{"-reflection": codes.OK, "-reflection=false": codes.Unimplemented} {
		s := startServer(t, "-config", config, arg)
		conn := dial(t, s.grpc, insecure.NewCredentials())
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		require.NoError(t, err)
		_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}) // it may have ended
		_, err = stream.Recv()
		require.Equal(t, want, status.Code(err), arg)
		_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), user("ann"))
		require.NoError(t, err)
	}
}

// The versions are printed, and are a metric.
func TestVersions(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"-version"}, &stdout, &stderr))
	require.Regexp(t, `^ratelimit-serve \S+, library \S+, go1\.\S+ \w+/\w+\n$`, stdout.String())
	s := startServer(t, "-config", writeFile(t, "limits.yaml", limits))
	resp, err := http.Get("http://" + s.private + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Regexp(t, `(?m)^go_build_info\{checksum="[^"]*",path="[^"]+",version="[^"]+"\} 1$`, string(page))
}

// A named pipe in place of a file is an error, and not waited for.
func TestANamedPipeForAFile(t *testing.T) {
	t.Parallel()
	var out output
	require.Equal(t, 1, run(t.Context(), []string{"-config", testenv.Pipe(t)}, &out, &out))
	require.Contains(t, out.String(), "want a regular file")
}

// A SIGHUP while the server starts, as of a sidecar that has seen a change, does not end it, and is heard once it serves.
func TestASignalToReloadDuringTheStart(t *testing.T) {
	t.Parallel()
	url := testenv.Pipe(t)
	s := spawn(t, "", "-config", writeFile(t, "limits.yaml", limits), "-store-file", url, "-grpc", "", "-http", "127.0.0.1:0", "-private", "")
	pipe, err := os.OpenFile(url, os.O_WRONLY, 0) // opens when the server does
	require.NoError(t, err)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
	_, err = pipe.WriteString("memory:\n")
	require.NoError(t, err)
	require.NoError(t, pipe.Close())
	s.address(t, "http")
	require.Eventually(t, func() bool { return strings.Contains(s.stderr.String(), "new rules are in force") }, time.Minute, time.Millisecond)
}
