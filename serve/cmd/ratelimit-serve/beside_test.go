package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// The service beside envoyproxy/ratelimit, on one Redis, in turns: see [testenv.Original]. With
// RATELIMIT_FAR=20ms that is so far away.
func TestBesideTheOriginal(t *testing.T) {
	redisServer := testenv.Redis(t)
	if far := os.Getenv("RATELIMIT_FAR"); far != "" {
		way, err := time.ParseDuration(far)
		require.NoError(t, err)
		redisServer = testenv.Far(t, redisServer, way)
	}
	theirs, original := testenv.Original(t, redisServer, map[string]string{"limits.yaml": besideLimits})
	config := writeFile(t, "limits.yaml", besideLimits)

	services := map[string]pb.RateLimitServiceClient{}
	times := map[string]func() time.Duration{}
	add := func(name, address string, process *os.Process) {
		services[name] = pb.NewRateLimitServiceClient(dial(t, address, insecure.NewCredentials()))
		times[name] = func() time.Duration { return processTime(t, process.Pid) }
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for name, file := range map[string]string{"this": config, "leases": writeFile(t, "leased.yaml", besideLimits+"store: {lease: 50ms}\n")} {
		ours, private := freeAddress(t), freeAddress(t)
		add(name, ours, background(t, ours, "env", asProgram+"=1", self, "-config", file, "-store", "redis://"+redisServer, "-grpc", ours, "-http=", "-private="+private))
		defer failures(t, private)
	}
	add("original", theirs, original)

	t.Logf("%-30s %10s %12s %8s %14s %22s", "callers, descriptors, keys", "this", "original", "ratio", "CPU µs each", "99 of 100 within")
	for _, c := range []struct {
		name              string
		descriptors, keys int
	}{{"this", 1, 10_000}, {"this", 3, 10_000}, {"this", 1, 1}, {"leases", 1, 1}} {
		for _, callers := range []int{1, 32, 256} {
			rates, cpu, waits := map[string][]float64{}, map[string]time.Duration{}, map[string]time.Duration{}
			decisions := map[string]int64{}
			for round := range 5 {
				for _, name := range []string{c.name, "original"} {
					before := times[name]()
					n, took, most := load(t, services[name], callers, c.descriptors, c.keys)
					if round > 0 { // the first one warms up
						rates[name] = append(rates[name], float64(n)/took.Seconds())
						cpu[name] += times[name]() - before
						waits[name] = max(waits[name], most)
						decisions[name] += n
					}
				}
			}
			this, other := slices.Max(rates[c.name]), slices.Max(rates["original"])
			t.Logf("%-28s %10.0f/s %10.0f/s %8.2f %6.0f %6.0f %12v %9v", fmt.Sprintf("%s: %d, %d, %d", c.name, callers, c.descriptors, c.keys), this, other, this/other,
				cpu[c.name].Seconds()*1e6/float64(decisions[c.name]), cpu["original"].Seconds()*1e6/float64(decisions["original"]),
				waits[c.name].Round(time.Millisecond), waits["original"].Round(time.Millisecond))
		}
	}
}

// failures logs what a service says of the failures of its store.
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

// load asks for a second, of so many keys. most is what 99 of 100 calls take at most.
func load(t *testing.T, service pb.RateLimitServiceClient, callers, descriptors, keys int) (n int64, took, most time.Duration) {
	var decided, failed atomic.Int64
	var some atomic.Value
	var all sync.WaitGroup
	waits := make([][]time.Duration, callers)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	for caller := range callers {
		all.Go(func() {
			for i := caller; ctx.Err() == nil; i += callers {
				req := &pb.RateLimitRequest{Domain: "edge"}
				for d := range descriptors {
					req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{
						Entries: []*common.RateLimitDescriptor_Entry{{Key: "abc"[d : d+1], Value: fmt.Sprint(i % keys)}},
					})
				}
				asked := time.Now()
				_, err := service.ShouldRateLimit(context.WithoutCancel(ctx), req)
				waits[caller] = append(waits[caller], time.Since(asked))
				if err != nil {
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
	took = time.Since(start)
	sorted := slices.Sorted(slices.Values(slices.Concat(waits...)))
	return decided.Load(), took, sorted[len(sorted)*99/100]
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
