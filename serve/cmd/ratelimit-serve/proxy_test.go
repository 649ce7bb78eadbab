package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
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

var taken sync.Map // addresses, so that no two tests get the same

func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		if _, before := taken.LoadOrStore(l.Addr().String(), true); !before {
			return l.Addr().String()
		}
	}
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

// proxy is one of the page's, which asks a service before it asks a site.
type proxy struct {
	family string // its -fields
	start  func(t *testing.T, service, site string, changes ...string) (address string)
}

// patient are changes of the page's files, for machines that are busy.
var patient = []string{"200ms", "30s", "400ms", "30s", "500ms", "30s", "settimeout(0.5)", "settimeout(30)", "connect 1s", "connect 30s"}

var proxies = map[string]proxy{"nginx": {"original", nginx}, "Caddy": {"forwarded", caddy}, "HAProxy": {"original", haproxy}}

// nginx has the page's file.
func nginx(t *testing.T, service, site string, changes ...string) (address string) {
	t.Helper()
	address = freeAddress(t)
	changes = append(changes, "localhost:8080", service, "localhost:8000", address, "localhost:3000", site)
	nginxWith(t, address, strings.NewReplacer(changes...).Replace(block(t, "nginx")))
	return address
}

// nginxWith is nginx with these servers, which listen on address.
func nginxWith(t *testing.T, address, servers string) {
	t.Helper()
	need(t, "nginx")
	dir := t.TempDir()
	text := "daemon off; error_log stderr; pid " + dir + "/pid; events {}\nhttp { access_log off; client_body_temp_path " + dir +
		"; proxy_temp_path " + dir + "; fastcgi_temp_path " + dir + "; uwsgi_temp_path " + dir + "; scgi_temp_path " + dir + ";\n" + servers + "}\n"
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	background(t, address, "nginx", "-c", file, "-p", dir)
}

// caddy has the page's file.
func caddy(t *testing.T, service, site string, changes ...string) (address string) {
	t.Helper()
	need(t, "caddy")
	address = freeAddress(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	changes = append(changes, "localhost:8080", service, ":8000 {", "http://:"+port+" {\n\tbind 127.0.0.1", "localhost:3000", site)
	file := writeFile(t, "Caddyfile", "{\n\tadmin off\n}\n"+strings.NewReplacer(changes...).Replace(block(t, "caddyfile")))
	background(t, address, "caddy", "run", "--config", file, "--adapter", "caddyfile")
	return address
}

// haproxy has the page's files.
func haproxy(t *testing.T, service, site string, changes ...string) (address string) {
	t.Helper()
	need(t, "haproxy")
	address = freeAddress(t)
	host, port, err := net.SplitHostPort(service)
	require.NoError(t, err)
	script := strings.NewReplacer(append(changes, `"127.0.0.1", 8080`, `"`+host+`", `+port)...).Replace(block(t, "lua"))
	require.NotContains(t, script, "8080")
	changes = append(changes, "ratelimit.lua", writeFile(t, "ratelimit.lua", script), "localhost:8000", address, "localhost:3000", site)
	text := strings.NewReplacer(changes...).Replace(block(t, "haproxy"))
	background(t, address, "haproxy", "-f", writeFile(t, "haproxy.cfg", text))
	return address
}

// behind starts a service with a file, and a proxy that asks it.
func behind(t *testing.T, p proxy, file string, args ...string) (s *started, address string) {
	t.Helper()
	s = startServer(t, append([]string{"-config", writeFile(t, "limits.yaml", file), "-proxies", "127.0.0.1,::1", "-fields", p.family}, args...)...)
	return s, p.start(t, s.http, site(t), patient...)
}

func eachProxy(t *testing.T, test func(t *testing.T, p proxy)) {
	t.Parallel()
	for name, p := range proxies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// askFor sends a request as it is written, with these lines in its header. A 200 must be the site's.
func askFor(t *testing.T, address, method, target string, lines ...string) (int, http.Header) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	lines = append([]string{method + " " + target + " HTTP/1.1", "Host: example.com", "Connection: close"}, append(lines, "", "")...)
	_, err = conn.Write([]byte(strings.Join(lines, "\r\n")))
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	if resp.StatusCode == http.StatusOK {
		require.Equal(t, "page", string(body))
	}
	return resp.StatusCode, resp.Header
}

// The page's files: what is admitted reaches the site, what is denied does not, and both have their fields.
func TestProxies(t *testing.T) {
	eachProxy(t, func(t *testing.T, p proxy) {
		_, address := behind(t, p, block(t, "yaml"))
		code, h := through(t, address, "192.0.2.1")
		require.Equal(t, http.StatusOK, code)
		if p.family == "original" {
			require.Equal(t, "5", h.Get("RateLimit-Limit"))
			require.NotEmpty(t, h.Get("RateLimit-Remaining"))
		}
		require.Eventually(t, func() bool { // a slow machine refills the bucket meanwhile
			code, h := through(t, address, "192.0.2.1")
			return code == http.StatusTooManyRequests && h.Get("Retry-After") != "" && h.Get("RateLimit-Limit") == "5" && h.Get("RateLimit-Remaining") == "0"
		}, 30*time.Second, time.Millisecond)
	})
}

// A client must not choose the host that is counted by a comma in it.
func TestAHostWithACommaBehindHAProxy(t *testing.T) {
	t.Parallel()
	_, address := behind(t, proxies["HAProxy"], byPath)
	for host, want := range map[string]int{"example.com": http.StatusOK, "any,example.com": http.StatusBadRequest} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
		require.NoError(t, err)
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode, host)
	}
}

// byPath has three requests for each path and address, and counts all that proxies say.
const byPath = `domain: edge
descriptors:
  - key: path
    descriptors:
      - {key: address, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: method, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: host, rate_limit: {unit: year, requests_per_unit: 100}}
checks:
  client: [{path: path, address: address}, {method: method}, {host: host}]
`

// Nothing that a client adds to a request, and no other spelling of it, has a count of its own.
func TestAClientDoesNotChooseWhatIsCounted(t *testing.T) {
	eachProxy(t, func(t *testing.T, p proxy) {
		_, address := behind(t, p, byPath)
		for name, c := range map[string]struct {
			method string
			paths  []string
			lines  []string
		}{
			"other addresses": {"GET", []string{"/a"}, []string{"X-Forwarded-For: 198.51.100.%d", "X-Real-Ip: 198.51.100.%[1]d", "Forwarded: for=198.51.100.%[1]d"}},
			"other paths":     {"GET", []string{"/b"}, []string{"X-Original-URI: /%d", "X-Original-URL: /%[1]d", "X-Forwarded-Uri: /%[1]d", "X_Original_URI: /%[1]d", "X-Rewrite-Url: /%[1]d"}},
			"other families":  {"GET", []string{"/c"}, []string{"X-Forwarded-Method: A%d", "X-Original-Method: A%[1]d", "X-Forwarded-Host: %[1]d", "X-Original-Host: %[1]d"}},
			"twice":           {"GET", []string{"/d"}, []string{"X-Original-URI: /%d", "X-Original-URI: /x%[1]d", "X-Forwarded-Uri: /%[1]d", "X-Forwarded-Uri: /x%[1]d"}},
			"spellings":       {"GET", []string{"/e", "//e", "/./e", "/x/../e", "/%65", "/e?%d", "/%2e/e", "/x/%2e%2e/e"}, nil},
			"a long path":     {"GET", []string{"/" + strings.Repeat("f", 7900)}, nil},
			"a body":          {"POST", []string{"/g"}, []string{"Content-Length: 0"}},
			"a method":        {"PROPFIND", []string{"/h"}, nil},
		} {
			admitted := 0
			for i := range 9 {
				var lines []string
				for _, line := range c.lines {
					if strings.Contains(line, "%") {
						line = fmt.Sprintf(line, i)
					}
					lines = append(lines, line)
				}
				code, _ := askFor(t, address, c.method, strings.ReplaceAll(c.paths[i%len(c.paths)], "%d", strconv.Itoa(i)), lines...)
				if code == http.StatusOK {
					admitted++
				}
				require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, code, name)
			}
			require.Equal(t, 3, admitted, name)
		}
	})
}

// Requests that the proxy, the service or both cannot read are rejected. Requests that are only
// long may be counted like others.
func TestUnreadableRequestsAreNotLetThrough(t *testing.T) {
	eachProxy(t, func(t *testing.T, p proxy) {
		_, address := behind(t, p, strings.ReplaceAll(byPath, "requests_per_unit: 3", "requests_per_unit: 1"))
		for _, size := range []int{0, 8180, 9000, 12_000, 15_000, 30_000} {
			path := "/" + strings.Repeat("x", size)
			_, _ = askFor(t, address, "GET", path)
			code, _ := askFor(t, address, "GET", path)
			require.NotEqual(t, http.StatusOK, code, size)
			code, _ = askFor(t, address, "GET", "/"+strings.Repeat("%26", size/3)+"%00")
			require.NotEqual(t, http.StatusOK, code, size)
		}
	})
}

// service answers each request by a status, after what it waits for, and keeps the last request.
type service struct {
	*httptest.Server
	status atomic.Int64
	hangs  chan struct{} // nil, or until it is closed
	last   atomic.Pointer[http.Request]
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.last.Store(r)
		switch code := int(s.status.Load()); {
		case code == 0:
			<-s.hangs
		case code == http.StatusTooManyRequests && r.URL.Query().Get("denied") == "403":
			w.WriteHeader(http.StatusForbidden)
		default:
			w.WriteHeader(code)
		}
	}))
	return s
}

func (s *service) address() string { return strings.TrimPrefix(s.URL, "http://") }

// The page lists what a client gets for each answer of the service.
func TestTheTableOfAnswers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/serve.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "| over gRPC | over HTTP | because |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	head := strings.Split(strings.Trim(lines[0], "| "), " | ")
	for i, name := range head {
		p, found := proxies[name]
		if !found {
			require.Equal(t, "Envoy", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.hangs = make(chan struct{})
			t.Cleanup(func() { close(s.hangs); s.Close() })
			hasty, calm := p.start(t, s.address(), site(t)), p.start(t, s.address(), site(t), patient...)
			var stopped string
			tried := 0
			for _, line := range lines[2:] {
				cells := strings.Split(line, "|")
				answer, want := strings.TrimSpace(cells[2]), strings.TrimSpace(cells[4+i])
				address := calm
				switch answer {
				case "no connection":
					stopped = want
					continue
				case "no answer":
					s.status.Store(0)
					address = hasty
				default:
					status, err := strconv.Atoi(strings.Split(answer, " or ")[0])
					require.NoError(t, err)
					s.status.Store(int64(status))
				}
				require.Equal(t, want, outcome(t, address), line)
				tried++
			}
			require.Equal(t, 9, tried)
			s.status.Store(http.StatusNoContent)
			require.NoError(t, s.Listener.Close())
			s.CloseClientConnections()
			require.Equal(t, stopped, outcome(t, calm), "stopped")
		})
	}
}

// outcome is a code, or through for one that the site has answered.
func outcome(t *testing.T, address string) string {
	t.Helper()
	if code, _ := askFor(t, address, "GET", "/"); code != http.StatusOK {
		return strconv.Itoa(code)
	}
	return "through"
}

// A service that Redis has left, and whose file says nothing about that, leaves it to the proxy.
func TestProxiesWhileRedisIsAway(t *testing.T) {
	eachProxy(t, func(t *testing.T, p proxy) {
		want := "through"
		if p.family == "forwarded" {
			want = "503"
		}
		for file, want := range map[string]string{byPath: want, "on_failure: open\n" + byPath: "through", "on_failure: closed\n" + byPath: "429"} {
			_, address := behind(t, p, file, "-store", "redis://127.0.0.1:1", "-timeout", "50ms")
			require.Equal(t, want, outcome(t, address), file)
		}
	})
}

// What a client sends to the site alone is not sent to the service, whatever its size.
func TestSecretsStayBetweenClientAndSite(t *testing.T) {
	eachProxy(t, func(t *testing.T, p proxy) {
		s := newService(t)
		t.Cleanup(s.Close)
		s.status.Store(http.StatusNoContent)
		address := p.start(t, s.address(), site(t), patient...)
		other := map[string]string{"original": "X-Forwarded-", "forwarded": "X-Original-"}[p.family]
		lines := []string{"Authorization: Bearer x", "X-Original-URI: /x", "X-Original-Else: /x", "X-Original-Method: PUT", "X-Original-Host: x", "X-Forwarded-Uri: /x", "X-Forwarded-Method: PUT", "X-Forwarded-Host: x"}
		for i := range 2 {
			lines = append(lines, fmt.Sprintf("Cookie: c%d=%s", i, strings.Repeat("x", 6000)))
		}
		code, _ := askFor(t, address, "GET", "/page", lines...)
		require.Equal(t, http.StatusOK, code)
		for name := range s.last.Load().Header {
			require.NotContains(t, []string{"Authorization", "Cookie"}, name)
			if name != "X-Forwarded-For" && name != "X-Forwarded-Proto" {
				require.False(t, strings.HasPrefix(name, other), name)
			}
		}
	})
}

// nginx takes cookies of more than the service takes of a header.
func TestLargeCookies(t *testing.T) {
	t.Parallel()
	_, address := behind(t, proxies["nginx"], byPath)
	var lines []string
	for i := range 3 {
		lines = append(lines, fmt.Sprintf("Cookie: c%d=%s", i, strings.Repeat("x", 8000)))
	}
	code, _ := askFor(t, address, "GET", "/page", lines...)
	require.Equal(t, http.StatusOK, code)
}

// Paths are counted as nginx tells them apart: what it takes for one path has one count.
func TestPathsAreThoseOfNginx(t *testing.T) {
	t.Parallel()
	const limit = `domain: edge
descriptors:
  - key: path
    descriptors:
      - {key: address, rate_limit: {unit: year, requests_per_unit: 1}}
checks:
  client: [{path: path, address: address}]
`
	s := startServer(t, "-config", writeFile(t, "limits.yaml", limit), "-proxies", "127.0.0.1", "-fields", "original")
	address := freeAddress(t)
	nginxWith(t, address, `server { listen `+address+`; location / { add_header Path "$uri"; return 204; } }`)
	// counted is the answer to a client that asks for a path: 204 for the first time.
	counted := func(client int, path string) int {
		code, _ := askFor(t, s.http, "GET", "/check/client", "X-Original-URI: "+path, fmt.Sprint("X-Forwarded-For: 10.", client>>16, ".", client>>8&255, ".", client&255))
		return code
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"/", "/", "/", ".", "..", "/.", "/..", "a", "b", "...", "%2e", "%2E", "%2f", "%61", "%3f", "%23", "%25", "%2b", "+", ";", "=", "~", "A", "\\", "%5c", "%c3%a9", ":", "@", "&", "*", "'"}
	ends := []string{"", "", "", "?", "?a=/../b", "#", "#/../a"}
	same := 0
	for client := range testenv.Of(1000, 20_000) {
		target := "/"
		for range r.IntN(8) {
			target += pieces[r.IntN(len(pieces))]
		}
		target += ends[r.IntN(len(ends))]
		code, header := askFor(t, address, "GET", target)
		if code != http.StatusNoContent {
			continue // above the root, which nginx refuses
		}
		path := (&url.URL{Path: header.Get("Path")}).EscapedPath()
		require.Equal(t, http.StatusNoContent, counted(client, target), target)
		require.Equal(t, http.StatusTooManyRequests, counted(client, path), "seed %d: %s and %s", seed, target, path)
		require.Equal(t, http.StatusNoContent, counted(client, path+"x"), target)
		same++
	}
	require.Greater(t, same, 100)
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
