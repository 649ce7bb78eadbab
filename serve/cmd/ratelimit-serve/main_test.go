package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

const limits = `domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
`

const asProgram = "RATELIMIT_SERVE_PROGRAM"

// TestMain is the program itself in a process that a test starts.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// itself is the program, for a shell.
func itself(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return asProgram + "=1 " + path
}

// output can be read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// started is a server on ports of its own.
type started struct {
	grpc, http, private string
	stop                func() int // returns its exit code
	stderr              *output
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func startServer(t *testing.T, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &started{stderr: new(output)}
	args = append([]string{"-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-private", "127.0.0.1:0"}, args...)
	code, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		code = run(ctx, args, io.Discard, s.stderr)
	}()
	s.stop = func() int {
		cancel()
		<-ended
		return code
	}
	t.Cleanup(func() { s.stop() })
	listening := regexp.MustCompile(`for=(\w+) address=(\S+)`)
	require.Eventually(t, func() bool {
		for _, m := range listening.FindAllStringSubmatch(s.stderr.String(), -1) {
			*map[string]*string{"grpc": &s.grpc, "http": &s.http, "private": &s.private}[m[1]] = m[2]
		}
		return s.private != ""
	}, 30*time.Second, time.Millisecond, "%v", s.stderr)
	return s
}

func dial(t *testing.T, address string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func user(name string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "edge", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: name}}}}}
}

// The whole server: over gRPC and HTTP, for operators, and its end.
func TestServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, "-config", writeFile(t, "limits.yaml", limits), "-headers", "-log", "text")
	conn := dial(t, s.grpc, insecure.NewCredentials())
	client := pb.NewRateLimitServiceClient(conn)
	answer, err := client.ShouldRateLimit(t.Context(), user("ann"))
	require.NoError(t, err)
	require.EqualValues(t, 2, answer.GetStatuses()[0].GetLimitRemaining())
	require.Len(t, answer.GetResponseHeadersToAdd(), 3)

	resp, err := http.Post("http://"+s.http+"/json", "application/json", strings.NewReader(`{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}`))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Regexp(t, `"limitRemaining":\s*1`, string(body))

	var stdout, stderr output
	require.Equal(t, 0, run(t.Context(), []string{"ask", "-grpc", s.grpc, "edge", "user=ann"}, &stdout, &stderr), &stderr)
	require.Regexp(t, `"overallCode":\s*"OK"`, stdout.String())
	require.Equal(t, 0, run(t.Context(), []string{"ask", "-grpc", s.grpc, "edge", "user=ann", "other=x,more=y"}, &stdout, &stderr))
	require.Regexp(t, `"overallCode":\s*"OVER_LIMIT"`, stdout.String())
	require.Equal(t, "ratelimit-serve ask: no limit counts other=x,more=y; the private port lists all rules at /rules\n", stderr.String())
	require.Equal(t, 0, run(t.Context(), []string{"ask", "-grpc", s.grpc, "-back", "-hits", "2", "edge", "user=ann"}, &stdout, &stderr))
	require.Equal(t, 1, run(t.Context(), []string{"ask", "-grpc", s.grpc, "", "user=ann"}, &stdout, &stderr))

	state, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, state.GetStatus())
	for path, want := range map[string]string{"/metrics": "ratelimit_serve_requests_total", "/healthz": "ok", "/readyz": "ready", "/rules": "edge/user"} {
		resp, err := http.Get("http://" + s.private + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Contains(t, string(body), want)
	}
	large := user(strings.Repeat("x", 1<<20))
	_, err = client.ShouldRateLimit(t.Context(), large)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "a message of 1 MiB is not read")

	require.Zero(t, s.stop())
	_, err = client.ShouldRateLimit(t.Context(), user("ann"))
	require.Equal(t, codes.Unavailable, status.Code(err))
}

// Requests that are too large are rejected before they have arrived. The bodies here never end.
func TestAbsurdSizes(t *testing.T) {
	t.Parallel()
	s := startServer(t, "-config", writeFile(t, "limits.yaml", limits))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, c := range map[string]struct {
		url, kind, begins string
		code              int
		says              string
	}{
		"a gRPC message of 1 GiB":   {"http://" + s.grpc + pb.RateLimitService_ShouldRateLimit_FullMethodName, "application/grpc", "\x00\x40\x00\x00\x00", 200, "8 grpc: received message larger than max (1073741824 vs. 262144)"},
		"JSON of 1 GiB":             {"http://" + s.http + "/json", "", strings.Repeat(" ", serve.MaxBody+1), 413, "more than 262144 bytes"},
		"an ask of 1 GiB":           {"http://" + s.http + "/v1/decide", "", strings.Repeat(" ", serve.MaxBody+1), 413, "more than 262144 bytes"},
		"a path of 64 KiB":          {"http://" + s.http + "/check/" + strings.Repeat("x", 1<<16), "", "", 431, "Request Header Fields Too Large"},
		"a path of 64 KiB, private": {"http://" + s.private + "/" + strings.Repeat("x", 1<<16), "", "", 431, "Request Header Fields Too Large"},
	} {
		body, more := io.Pipe()
		go func() { _, _ = more.Write([]byte(c.begins)) }()
		t.Cleanup(func() { _ = more.Close() })
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, body)
		require.NoError(t, err)
		req.ContentLength = 1 << 30
		transport := &http.Transport{}
		if c.kind != "" {
			req.ContentLength = -1
			req.Header.Set("Content-Type", c.kind)
			transport.Protocols = new(http.Protocols)
			transport.Protocols.SetUnencryptedHTTP2(true)
		}
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err, name)
		require.Equal(t, c.code, resp.StatusCode, name)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err, name)
		require.NoError(t, resp.Body.Close())
		require.Contains(t, resp.Header.Get("Grpc-Status")+" "+resp.Header.Get("Grpc-Message")+string(text), c.says, name)
		transport.CloseIdleConnections()
	}
	client := pb.NewRateLimitServiceClient(dial(t, s.grpc, insecure.NewCredentials()))
	_, err := client.ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("x", 1<<20)), user("ann"))
	require.ErrorContains(t, err, "header list size")
	_, err = client.ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "tracestate", strings.Repeat("x", 60_000)), user("bob"))
	require.NoError(t, err, "as much as Envoy takes of a client, and may pass on")
	many := user("ann")
	many.Descriptors = slices.Repeat(many.Descriptors, 10_000)
	_, err = client.ShouldRateLimit(t.Context(), many)
	require.ErrorContains(t, err, "10000 descriptors, more than 64")
	answer, err := client.ShouldRateLimit(t.Context(), user("ann"))
	require.NoError(t, err)
	require.EqualValues(t, 2, answer.GetStatuses()[0].GetLimitRemaining(), "nothing was counted")
}

// If the proxies are missing, the log names the flag.
func TestAProxyThatIsNotTrusted(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "limits.yaml", limits+"checks:\n  client: [{user: address}]\n")
	for _, args := range [][]string{nil, {"-proxies", "192.0.2.0/24"}} {
		s := startServer(t, append([]string{"-config", config}, args...)...)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.http+"/check/client", nil)
		require.NoError(t, err)
		req.Header.Set("X-Forwarded-For", "198.51.100.1")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusNoContent, resp.StatusCode)
		require.Regexp(t, `level=WARN msg="httplimit: .* X-Forwarded-For.* -proxies`, s.stderr.String())
	}
}

// If the family of fields that a check needs is missing, the error names the flag, and nothing
// starts.
func TestFieldsThatNobodyHasNamed(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "limits.yaml", limits+"checks: {client: [{user: path}]}\n")
	var stderr output
	require.Equal(t, 1, run(t.Context(), []string{"-config", config, "-proxies", "10.0.0.1"}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), `limits.yaml: check "client" counts a method, a path or a host: set -fields`)
}

// A port that is taken, and a store that is away when the server starts.
func TestStarts(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "limits.yaml", "on_failure: open\n"+limits)
	s := startServer(t, "-config", config, "-store", "redis://127.0.0.1:1", "-timeout", "50ms")
	answer, err := pb.NewRateLimitServiceClient(dial(t, s.grpc, insecure.NewCredentials())).ShouldRateLimit(t.Context(), user("ann"))
	require.NoError(t, err)
	require.Equal(t, pb.RateLimitResponse_OK, answer.GetOverallCode())
	resp, err := http.Get("http://" + s.private + "/readyz")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "the address may be wrong")
	var stderr output
	require.Equal(t, 1, run(t.Context(), []string{"-config", config, "-grpc", s.grpc, "-http", "", "-private", ""}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "address already in use")
}

// For gRPC too a server is healthy once its store has answered. Its /readyz then no longer doubts the address, even if
// nobody has asked for it before.
func TestHealthBeforeTheStoreAnswers(t *testing.T) {
	t.Parallel()
	redis := testenv.StartRedis(t)
	redis.Freeze()
	s := startServer(t, "-config", writeFile(t, "limits.yaml", "on_failure: open\n"+limits), "-store", "redis://"+redis.Address)
	client := healthpb.NewHealthClient(dial(t, s.grpc, insecure.NewCredentials()))
	serving := func() bool {
		state, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err == nil && state.GetStatus() == healthpb.HealthCheckResponse_SERVING
	}
	require.False(t, serving())
	redis.Thaw()
	require.Eventually(t, serving, time.Minute, time.Millisecond)
	redis.Stop()
	resp, err := http.Get("http://" + s.private + "/readyz")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Zero(t, s.stop())
}

// Over TLS, with certificates of clients. The server's own is read again when it changes.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first := newCertificate(t, cert, key)
	ours := newCertificate(t, filepath.Join(dir, "clients.pem"), filepath.Join(dir, "client-key.pem"))
	s := startServer(t, "-config", writeFile(t, "limits.yaml", limits), "-tls-cert", cert, "-tls-key", key, "-tls-clients", filepath.Join(dir, "clients.pem"))
	ask := func(root *x509.Certificate, own ...tls.Certificate) error {
		roots := x509.NewCertPool()
		roots.AddCert(root)
		config := &tls.Config{RootCAs: roots, Certificates: own, MinVersion: tls.VersionTLS12}
		_, err := pb.NewRateLimitServiceClient(dial(t, s.grpc, credentials.NewTLS(config))).ShouldRateLimit(t.Context(), user("ann"))
		if err != nil {
			return err
		}
		client := http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		resp, err := client.Get("https://" + s.http + "/check/none")
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	require.NoError(t, ask(first.Leaf, *ours))
	require.Error(t, ask(first.Leaf), "no certificate of a client")
	require.Error(t, ask(first.Leaf, *first), "another one")
	second := newCertificate(t, cert, key)
	require.NoError(t, os.Chtimes(cert, time.Now(), time.Now().Add(time.Hour)))
	require.Eventually(t, func() bool { return ask(second.Leaf, *ours) == nil }, 30*time.Second, 100*time.Millisecond)
}

// newCertificate writes a certificate of the loopback address, which is its own root.
func newCertificate(t *testing.T, certFile, keyFile string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	require.NoError(t, err)
	return &pair
}

func TestArguments(t *testing.T) {
	t.Parallel()
	good, bad := writeFile(t, "good.yaml", limits), writeFile(t, "bad.yaml", "domain: d\nx: y\n")
	more := writeFile(t, "more.yaml", "domain: edge\ndescriptors: [{key: more}]\n")
	buckets := strings.Replace(limits, "unit: day, requests_per_unit: 3", "limit: 3/d, algorithm: token_bucket", 1)
	front, short := writeFile(t, "front.yaml", limits+"store: {deny_cache: true}\n"), writeFile(t, "short.yaml", buckets+"store: {lease: 1ms}\n")
	lease := writeFile(t, "lease.yaml", strings.Replace(buckets, "3/d", "9000/s", 1)+"store: {lease: 50ms}\n")
	paths := writeFile(t, "paths.yaml", limits+"checks: {client: [{user: path}]}\n")
	url := writeFile(t, "url", "redis://:?secret@h\n")
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"":                                              {2, "-config is missing"},
		"-config GOOD more":                             {2, "unexpected arguments"},
		"-config GOOD -grpc= -http=":                    {2, "nothing could be asked"},
		"-config GOOD -grpc unix:":                      {2, "no path after unix:"},
		"-config GOOD -private unix://":                 {2, "no path after unix:"},
		"-config GOOD -http localhost:":                 {2, "no port"},
		"-config GOOD -timeout 0s":                      {2, "-timeout, -reload and -max-connection-age must be above 0, and -drain 0 or more"},
		"-config GOOD -tls-cert x":                      {2, "together"},
		"-config GOOD -tls-clients x":                   {2, "no effect"},
		"-config GOOD -header-limit X-Limit":            {2, "no effect without -headers"},
		"-config GOOD -grpc= -headers":                  {2, "no effect without -grpc"},
		"-config GOOD -grpc= -metadata":                 {2, "no effect without -grpc"},
		"-config GOOD -http= -proxies 10.0.0.0/8":       {2, "no effect without -http"},
		"-config GOOD -proxies 10.0.0.1,unix":           {2, "no effect, because -http is not a Unix socket"},
		"-config GOOD -fields original":                 {2, "no effect without -proxies"},
		"-config GOOD -proxies 10.0.0.1 -fields both":   {1, "want original or forwarded"},
		"-config GOOD -private= -top-keys 100":          {2, "no effect without -private"},
		"-config GOOD -top-keys 3":                      {1, "NewTopKeys(3)"},
		"-config GOOD -log xml":                         {2, "text or json"},
		"-config GOOD -none":                            {2, "-none"},
		"-config GOOD -store http://x":                  {1, "must begin with redis://"},
		"-config GOOD -store pg://x":                    {1, "postgres://user@host/database"},
		"-config GOOD -store redis://:/secret@h":        {1, "no host"},
		"-config GOOD -store memory: -store-file URL":   {2, "cannot be combined"},
		"-config GOOD -store-file URL":                  {1, "no host"},
		"-config GOOD -store-file none":                 {1, "none: no such file"},
		"-config GOOD -proxies 0.0.0.0/0":               {1, "proxy"},
		"-config GOOD -tls-cert x -tls-key y":           {1, "no such file"},
		"-config none.yaml":                             {1, "none.yaml"},
		"-config BAD":                                   {1, "bad.yaml:2:1: file: unknown field"},
		"-config GOOD -config BAD -check":               {1, "bad.yaml:2:1"},
		"-config GOOD -check":                           {0, "files: 1, errors: 0"},
		"-config FRONT -check":                          {0, "files: 1, errors: 0"},
		"-config SHORT -check":                          {1, "a lease TTL of 1ms is too short"},
		"-config LEASE -check":                          {0, "files: 1, errors: 0"},
		"-config LEASE -check -store memory:":           {1, "it has no effect, because the store is in memory"},
		"-config LEASE -check -store redis://localhost": {0, "files: 1, errors: 0"},
		"-config LEASE -check -store-file URL":          {1, "no host"},
		"-config PATHS -proxies 10.0.0.1 -check":        {1, "set -fields"},
		"-config GOOD,GOOD -check":                      {1, `domain "edge" is already at`},
		"-config GOOD,MORE -check":                      {1, `domain "edge" is already at`},
		"-merge-domain-config -config GOOD,MORE -check": {0, "files: 2, errors: 0"},
		"-merge-domain-config -config GOOD,GOOD -check": {1, `descriptor "edge/user" is already at`},
		"-h":                                  {0, "usage: ratelimit-serve"},
		"ask -h":                              {0, "usage: ratelimit-serve"},
		"ask edge":                            {2, "want a domain and a descriptor"},
		"ask -grpc 127.0.0.1:1 e a=b -hits 0": {2, "-hits comes after e: flags come first"},
		"ask -grpc 127.0.0.1:1 -- e -a=b":     {1, "connection refused"},
		"ask -grpc 127.0.0.1:1 -timeout 5s e a=b": {1, "connection refused"},
	} {
		args = strings.NewReplacer("GOOD", good, "BAD", bad, "MORE", more, "URL", url, "FRONT", front, "SHORT", short, "LEASE", lease, "PATHS", paths).Replace(args)
		var out output
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // or else it serves
		defer cancel()
		require.Equal(t, want.code, run(ctx, strings.Fields(args), &out, &out), "%s: %v", args, &out)
		require.Contains(t, out.String(), want.says, args)
		require.NotContains(t, out.String(), "secret", args)
	}
}
