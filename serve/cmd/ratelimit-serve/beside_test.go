package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

const besideLimits = `domain: edge
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 2000000000}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 2000000000}}
  - {key: c, rate_limit: {unit: day, requests_per_unit: 2000000000}}
`

// The service beside envoyproxy/ratelimit, on one Redis, in turns. RATELIMIT_ORIGINAL is its
// program: go install github.com/envoyproxy/ratelimit/src/service_cmd@main.
func TestBesideTheOriginal(t *testing.T) {
	original := os.Getenv("RATELIMIT_ORIGINAL")
	if original == "" {
		t.Skip("RATELIMIT_ORIGINAL is not set")
	}
	redisServer := testenv.Redis(t)
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "ratelimit", "config"), 0o700))
	config := filepath.Join(dir, "ratelimit", "config", "limits.yaml")
	require.NoError(t, os.WriteFile(config, []byte(besideLimits), 0o600))

	services := map[string]pb.RateLimitServiceClient{}
	times := map[string]func() time.Duration{}
	run := func(name, address string, cmd *exec.Cmd) {
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGKILL); _ = cmd.Wait() })
		require.Eventually(t, func() bool {
			conn, err := net.Dial("tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		}, time.Minute, 10*time.Millisecond)
		services[name] = pb.NewRateLimitServiceClient(dial(t, address, insecure.NewCredentials()))
		times[name] = func() time.Duration { return processTime(t, cmd.Process.Pid) }
	}
	ours, theirs, private := freeAddress(t), freeAddress(t), freeAddress(t)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-config", config, "-store", "redis://"+redisServer, "-grpc", ours, "-http=", "-private="+private)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	run("this", ours, cmd)
	port := func(address string) string { _, p, _ := net.SplitHostPort(address); return p }
	cmd = exec.Command(original)
	cmd.Env = append(os.Environ(), "USE_STATSD=false", "LOG_LEVEL=ERROR", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redisServer,
		"RUNTIME_ROOT="+dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+port(theirs), "PORT="+port(freeAddress(t)), "DEBUG_PORT="+port(freeAddress(t)))
	run("original", theirs, cmd)

	defer failures(t, private)
	t.Logf("%-26s %12s %12s %8s %14s", "callers, descriptors", "this", "original", "ratio", "CPU µs each")
	for _, descriptors := range []int{1, 3} {
		for _, callers := range []int{1, 32, 256} {
			rates, cpu := map[string][]float64{}, map[string]time.Duration{}
			decisions := map[string]int64{}
			for round := range 5 {
				for _, name := range []string{"this", "original"} {
					before := times[name]()
					n, took := load(t, services[name], callers, descriptors)
					if round > 0 { // the first one warms up
						rates[name] = append(rates[name], float64(n)/took.Seconds())
						cpu[name] += times[name]() - before
						decisions[name] += n
					}
				}
			}
			this, other := slices.Max(rates["this"]), slices.Max(rates["original"])
			t.Logf("%-26s %10.0f/s %10.0f/s %8.2f %6.0f %6.0f", fmt.Sprintf("%d, %d", callers, descriptors), this, other, this/other,
				cpu["this"].Seconds()*1e6/float64(decisions["this"]), cpu["original"].Seconds()*1e6/float64(decisions["original"]))
		}
	}
}

// load asks for a second, of 10,000 keys.
// what a service says of the failures of its store.
func failures(t *testing.T, private string) {
	resp, err := http.Get("http://" + private + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "ratelimit_serve_store_failures_total") {
			t.Log(line)
		}
	}
}

func load(t *testing.T, service pb.RateLimitServiceClient, callers, descriptors int) (int64, time.Duration) {
	var decided, failed atomic.Int64
	var some atomic.Value
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	for caller := range callers {
		all.Go(func() {
			for i := caller; ctx.Err() == nil; i += callers {
				req := &pb.RateLimitRequest{Domain: "edge"}
				for d := range descriptors {
					req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{
						Entries: []*common.RateLimitDescriptor_Entry{{Key: "abc"[d : d+1], Value: fmt.Sprint(i % 10_000)}},
					})
				}
				if _, err := service.ShouldRateLimit(context.WithoutCancel(ctx), req); err != nil {
					failed.Add(1)
					some.Store(err.Error())
				} else {
					decided.Add(1)
				}
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 {
		t.Logf("%d of %d failed, such as: %v", failed.Load(), failed.Load()+decided.Load(), some.Load())
	}
	return decided.Load(), time.Since(start)
}

// processTime is the processor's time that a process has taken.
func processTime(t *testing.T, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	var ticks [2]int64
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &ticks[0], &ticks[1])
	require.NoError(t, err)
	return time.Duration(ticks[0]+ticks[1]) * 10 * time.Millisecond
}
