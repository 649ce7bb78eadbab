package main

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// block is the first of docs/serve.md in a language.
func block(t *testing.T, language string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/serve.md")
	require.NoError(t, err)
	m := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$").FindSubmatch(page)
	require.NotNil(t, m)
	return string(m[1])
}

// need skips t without a program. RATELIMIT_REQUIRE_PROXIES=1 makes it fail.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("RATELIMIT_REQUIRE_PROXIES") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// background starts a program that listens on address, and ends with the test.
func background(t *testing.T, address string, args ...string) *os.Process {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var stderr output
	cmd.Stderr, cmd.WaitDelay = &stderr, 10*time.Second
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_DATA_HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // so that it ends what it has started
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(stderr.String())
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	return cmd.Process
}

// through is what a client gets through a proxy. It says that it has no time, in each way that a proxy
// could pass on: then nobody would count it.
func through(t *testing.T, address, client string) (int, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/page?timeout=1ns&denied=200", nil)
	require.NoError(t, err)
	req.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", "0")
	req.Header.Set("Grpc-Timeout", "1n")
	if client != "" {
		req.Header.Set("X-Forwarded-For", client)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, resp.Header
}

// site is what the proxies stand before.
func site(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("page")) }))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// The page's file of nginx.
func TestNginx(t *testing.T) {
	t.Parallel()
	need(t, "nginx")
	config := writeFile(t, "limits.yaml", block(t, "yaml"))
	s := startServer(t, "-config", config, "-proxies", "127.0.0.1,::1")
	address, dir := freeAddress(t), t.TempDir()
	text := strings.NewReplacer("localhost:8080", s.http, "localhost:8000", address, "localhost:3000", site(t)).Replace(block(t, "nginx"))
	text = "daemon off; error_log stderr; pid " + dir + "/pid; events {}\nhttp { access_log off; client_body_temp_path " + dir +
		"; proxy_temp_path " + dir + "; fastcgi_temp_path " + dir + "; uwsgi_temp_path " + dir + "; scgi_temp_path " + dir + ";\n" + text + "}\n"
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	background(t, address, "nginx", "-c", file, "-p", dir)

	judge(t, s, address)
}

// judge asks through a proxy: 200 and 429 reach the client, with their fields, and a service that is
// stopped lets through.
func judge(t *testing.T, s *started, address string) {
	t.Helper()
	for range 5 {
		code, h := through(t, address, "")
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "5", h.Get("RateLimit-Limit"))
		require.NotEmpty(t, h.Get("RateLimit-Remaining"))
	}
	require.Eventually(t, func() bool { // a slow machine refills the bucket meanwhile
		code, h := through(t, address, "")
		return code == http.StatusTooManyRequests && h.Get("Retry-After") != "" && h.Get("RateLimit-Remaining") == "0"
	}, 30*time.Second, time.Millisecond)
	require.Zero(t, s.stop())
	code, _ := through(t, address, "")
	require.Equal(t, http.StatusOK, code)
}

// The page's file of Caddy.
func TestCaddy(t *testing.T) {
	t.Parallel()
	need(t, "caddy")
	s := startServer(t, "-config", writeFile(t, "limits.yaml", block(t, "yaml")), "-proxies", "127.0.0.1,::1")
	address := freeAddress(t)
	text := strings.NewReplacer("localhost:8080", s.http, ":8000", "http://"+address, "localhost:3000", site(t)).Replace(block(t, "caddyfile"))
	file := writeFile(t, "Caddyfile", "{\n\tadmin off\n}\n"+text)
	background(t, address, "caddy", "run", "--config", file, "--adapter", "caddyfile")
	code, _ := through(t, address, "")
	require.Equal(t, http.StatusOK, code)
	require.Eventually(t, func() bool {
		code, h := through(t, address, "")
		return code == http.StatusTooManyRequests && h.Get("Retry-After") != "" && h.Get("RateLimit-Limit") == "5"
	}, 30*time.Second, time.Millisecond)
}

// The page's files of HAProxy.
func TestHAProxy(t *testing.T) {
	t.Parallel()
	need(t, "haproxy")
	s := startServer(t, "-config", writeFile(t, "limits.yaml", block(t, "yaml")), "-proxies", "127.0.0.1,::1")
	address := freeAddress(t)
	script := strings.Replace(block(t, "lua"), `"127.0.0.1", 8080`, strings.Replace(`"`+s.http, ":", `", `, 1), 1)
	require.NotContains(t, script, "8080")
	text := strings.NewReplacer("ratelimit.lua", writeFile(t, "ratelimit.lua", script), "localhost:8000", address, "localhost:3000", site(t)).Replace(block(t, "haproxy"))
	background(t, address, "haproxy", "-f", writeFile(t, "haproxy.cfg", text))
	judge(t, s, address)
}

// The commands of the page print what it shows.
func TestTheMinuteOfThePage(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	file := strings.Replace(block(t, "yaml"), "unit: minute", "unit: year", 1) // no window ends meanwhile
	require.Contains(t, file, "unit: year")
	s := startServer(t, "-config", writeFile(t, "limits.yaml", file))
	other := strings.NewReplacer("localhost:8080", s.http, "localhost:6070", s.private, "ratelimit-serve ask", itself(t)+" ask -grpc "+s.grpc)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	played := 0
	for _, step := range strings.Split("\n"+block(t, "shell-session"), "\n$ ")[1:] {
		line, want, _ := strings.Cut(step, "\n")
		if strings.HasPrefix(line, "go install ") || strings.HasSuffix(line, " &") {
			continue // the server runs already
		}
		cmd := exec.CommandContext(ctx, "sh", "-c", other.Replace(line))
		cmd.Dir = t.TempDir()
		got, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", line, got)
		like := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", ".*")
		require.Regexp(t, "^"+cmp.Or(like, ".*")+"$", strings.TrimSpace(string(got)), line)
		played++
	}
	require.Equal(t, 4, played)
}
