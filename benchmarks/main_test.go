package main

import (
	"context"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const testKeys = 50

// outcomes shows lim each key once, which it admits. Then lim decides on each three
// times, alone and by several callers.
func outcomes(t *testing.T, lim limiter, w workload) {
	t.Helper()
	defer lim.close()
	if err := fill(lim, 0, testKeys, shortKey); err != nil {
		t.Fatalf("new keys: %v", err)
	}
	keys, want := shuffled(testKeys), w.outcome != denied
	for range 3 {
		if err := pass(lim, keys, 0, testKeys, want); err != nil {
			t.Fatalf("known keys: %v", err)
		}
		if err := passes(lim, keys, 0, testKeys, 4, want); err != nil {
			t.Fatalf("known keys by four callers: %v", err)
		}
	}
}

func TestEachContestantAdmitsAndDeniesAsMeasured(t *testing.T) {
	for _, c := range append(contestants(), tokenBucketPeek, allOfTwo, growingLog) {
		for name, out := range map[string]outcome{"allowed": allowed, "denied": denied, "brief": brief} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				w := workload{out, testKeys, 2 * time.Second}
				lim, err := c.open(w)
				if err != nil {
					t.Fatal(err)
				}
				outcomes(t, lim, w)
			})
		}
	}
}

func TestEachMiddlewareAdmitsAndDeniesAsMeasured(t *testing.T) {
	for _, c := range middlewares() {
		for name, out := range map[string]outcome{"allowed": allowed, "denied": denied} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				w := workload{outcome: out, keys: testKeys}
				handlers, err := openMiddlewares([]middlewareContestant{c}, w) // each address once
				if err != nil {
					t.Fatalf("new addresses: %v", err)
				}
				h, clients, want := handlers[0], addresses(testKeys, measuredPort), wanted(c, w)
				if err := requests(h, clients, 0, 3*testKeys, want); err != nil {
					t.Fatalf("known addresses: %v", err)
				}
				if err := requestsBy(4, h, clients, 0, 3*testKeys, want); err != nil {
					t.Fatalf("known addresses by four callers: %v", err)
				}
			})
		}
	}
}

func TestEachMiddlewareTellsAddressesApart(t *testing.T) {
	for _, c := range middlewares() {
		if c.bare {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			handlers, err := openMiddlewares([]middlewareContestant{c}, workload{outcome: denied, keys: 1})
			if err != nil {
				t.Fatal(err)
			}
			for _, remote := range addresses(testKeys, measuredPort) {
				want := http.StatusOK
				if c.oneKey || remote == addresses(1, measuredPort)[0] {
					want = http.StatusTooManyRequests
				}
				if err := requests(handlers[0], []string{remote}, 0, 1, want); err != nil {
					t.Fatalf("%s: %v", remote, err)
				}
			}
		})
	}
}

func TestEachMiddlewareSendsTheFieldsThatREADMESays(t *testing.T) {
	for _, c := range middlewares() {
		for name, out := range map[string]outcome{"allowed": allowed, "denied": denied} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				w := workload{outcome: out, keys: 1}
				handlers, err := openMiddlewares([]middlewareContestant{c}, w)
				if err != nil {
					t.Fatal(err)
				}
				r, end, err := newRequest()
				if err != nil {
					t.Fatal(err)
				}
				defer end()
				a := &answer{header: http.Header{}}
				r.RemoteAddr = addresses(1, measuredPort)[0]
				handlers[0].ServeHTTP(a, r)
				want := c.admitted
				if a.status == http.StatusTooManyRequests {
					want = c.refused
				}
				if got := slices.Sorted(maps.Keys(a.header)); !slices.Equal(got, want) {
					t.Errorf("%d with %q, want %q", a.status, got, want)
				}
			})
		}
	}
}

func TestAWrongStatusIsAnError(t *testing.T) {
	always := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	if err := requestsBy(2, always, addresses(2, measuredPort), 0, 10, http.StatusTooManyRequests); err == nil {
		t.Error("an admission passed for a denial")
	}
}

func TestAddressesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range addresses(70_000, measuredPort) {
		ip, port, err := net.SplitHostPort(a)
		if err != nil || net.ParseIP(ip).To4() == nil || port != measuredPort {
			t.Fatalf("%q is not an IPv4 address with port %s", a, measuredPort)
		}
		seen[ip] = true
	}
	if len(seen) != 70_000 {
		t.Errorf("%d of 70,000 addresses are distinct", len(seen))
	}
}

func TestEachContestantAdmitsAndDeniesAsMeasuredOnRedis(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	addr, stop, err := startRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, c := range redisContestants() {
		if c.floor {
			continue
		}
		for name, out := range map[string]outcome{"allowed": allowed, "denied": denied} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				if _, err := emptied(t.Context(), addr); err != nil {
					t.Fatal(err)
				}
				client := redis.NewClient(redisOptions(addr, 0))
				defer func() { _ = client.Close() }()
				w := workload{outcome: out, keys: testKeys}
				lim, err := c.open(client, w)
				if err != nil {
					t.Fatal(err)
				}
				outcomes(t, lim, w)
			})
		}
	}
}

func TestKeysAreDistinctAndOfTheirLength(t *testing.T) {
	for _, length := range []int{shortKey, longKey} {
		if k := key(42, length); len(k) != length || !strings.HasPrefix(k, "user:000") || !strings.HasSuffix(k, "042") {
			t.Errorf("key(42, %d) is %q", length, k)
		}
	}
	seen := map[string]bool{}
	for _, k := range shuffled(1000) {
		seen[k] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d of 1,000 keys are distinct", len(seen))
	}
}

func TestCallersShareTheKeysOut(t *testing.T) {
	seen := make(chan string, 1000)
	lim := limiter{decide: func(key string) (bool, error) { seen <- key; return true, nil }}
	if err := passes(lim, shuffled(1000), 0, 1000, 32, true); err != nil {
		t.Fatal(err)
	}
	close(seen)
	distinct := map[string]bool{}
	for k := range seen {
		distinct[k] = true
	}
	if len(distinct) != 1000 {
		t.Errorf("%d of 1,000 keys were decided on", len(distinct))
	}
}

func TestAWrongOutcomeIsAnError(t *testing.T) {
	always := limiter{decide: func(string) (bool, error) { return true, nil }}
	if err := passes(always, []string{"a", "b"}, 0, 10, 2, false); err == nil {
		t.Error("an admission passed for a denial")
	}
}

// TestMain is also a process of a part: it starts itself.
func TestMain(m *testing.M) {
	switch is, err := part(context.Background()); {
	case err != nil:
		log.Fatal(err)
	case !is:
		os.Exit(m.Run())
	}
}

func TestQuickPrintsAReport(t *testing.T) {
	var out strings.Builder
	args, want := []string{"-quick"}, []string{
		"every call admitted, ns", "every call denied, ns", "ours / fastest peer",
		"### Memory", "keys, ours", "p99.99", "go-limiter", "every request admitted, ns", "every request denied, ns",
		"### Waiting", // or why it was not measured
	}
	if os.Getenv("RATELIMIT_LONG") == "1" {
		want = append(want, "past capacity", "Leases")
	} else { // the others take far longer
		args = append(args, "-only", "time,footprint,latency,http,redis,waiting")
	}
	if err := run(context.Background(), args, &out, io.Discard); err != nil {
		t.Fatal(err, out.String())
	}
	for _, want := range want {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "Failed") {
		t.Error(out.String())
	}
}
