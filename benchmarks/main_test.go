package main

import (
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const testKeys = 50

// outcomes has lim see each key once, which it admits, and then decide on each
// three times, alone and by several callers.
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
	for _, c := range contestants() {
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

func TestQuickPrintsAReport(t *testing.T) {
	var out strings.Builder
	if err := run(context.Background(), []string{"-quick"}, &out, io.Discard); err != nil {
		t.Fatal(err, out.String())
	}
	for _, want := range []string{
		"every call admitted, ns", "every call denied, ns", "ours / fastest peer",
		"### Memory", "keys, ours", "p99.99", "go-limiter",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "Failed") {
		t.Error(out.String())
	}
}
