package suite_test

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
)

const module = "github.com/ratelimit-go/ratelimit"

// links are what each package may link beside the standard library and this module's
// internal packages: packages of this module, "." the one at its root, and other
// modules.
var links = map[string][]string{
	".":                {"store"},
	"store":            {},
	"store/carrier":    {"store"},
	"store/coalesce":   {"store"},
	"store/denycache":  {"store"},
	"store/lease":      {"store"},
	"store/memstore":   {"store"},
	"store/redischeck": {"store", "store/carrier", "store/redisstore", "github.com/redis/go-redis/v9", "github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys"},
	"store/redisstore": {"store", "store/carrier", "github.com/redis/go-redis/v9", "github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys"},
	"store/regions":    {"store"},
	"store/storetest":  {".", "store", "store/memstore", "inflight"},
	"accesslist":       {".", "clientaddr", "store", "github.com/gaissmai/bart"},
	"adaptive":         {".", "store"},
	"clientaddr":       {},
	"config":           {".", "store/coalesce", "store/denycache", "fallback", "inflight", "store/lease", "store", "store/memstore", "go.yaml.in/yaml/v4", "github.com/sony/gobreaker/v2"},
	"fallback":         {".", "store", "store/memstore", "github.com/sony/gobreaker/v2"},
	"grpclimit": {
		".", "clientaddr", "inflight", "store", "store/memstore", "google.golang.org/grpc", "google.golang.org/genproto/googleapis/rpc",
		"google.golang.org/protobuf", "golang.org/x/net", "golang.org/x/sys", "golang.org/x/text",
	},
	"httplimit":     {".", "clientaddr", "inflight", "store", "store/memstore"},
	"inflight":      {".", "store", "store/memstore"},
	"observe":       {".", "store", "store/memstore"},
	"ratelimittest": {".", "store", "store/memstore"},
	"plancache":     {"store"},
	"shadow":        {".", "clientaddr", "store"},
	"throttle":      {".", "store"},
}

func TestPackagesLinkOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-f", `{{if not .Standard}}{{.ImportPath}} {{.Module.Path}} {{join .Deps " "}}{{end}}`, "./...").Output()
	require.NoError(t, err)
	moduleOf, deps := make(map[string]string), make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			moduleOf[fields[0]], deps[fields[0]] = fields[1], fields[2:]
		}
	}
	name := func(pkg string) string { // as in links; empty for the standard library
		switch {
		case pkg == module:
			return "."
		case moduleOf[pkg] == module:
			return strings.TrimPrefix(pkg, module+"/")
		}
		return moduleOf[pkg]
	}
	free := regexp.MustCompile(`^$|^internal/|^examples/`)

	found := make(map[string]bool)
	for pkg := range deps {
		if moduleOf[pkg] != module || free.MatchString(name(pkg)) {
			continue
		}
		found[name(pkg)] = true
		t.Run(name(pkg), func(t *testing.T) {
			may, ok := links[name(pkg)]
			require.True(t, ok, "links says nothing of this package")
			for _, dep := range deps[pkg] {
				require.True(t, free.MatchString(name(dep)) || slices.Contains(may, name(dep)), "it links %s", dep)
			}
		})
	}
	for pkg := range links {
		require.True(t, found[pkg], "there is no package %s", pkg)
	}
}

// TestObservingCostsNobodyElse: what package observe needs stays out of these.
func TestObservingCostsNobodyElse(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`,
		".", "./store/memstore", "./httplimit", "./observe").Output()
	require.NoError(t, err)
	deps := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		deps[fields[0]] = fields[1:]
	}
	for pkg, not := range map[string][]string{
		"":                {"encoding/json", "expvar", "log", "log/slog", "net/http"},
		"/store/memstore": {"encoding/json", "expvar", "log", "log/slog", "net/http"},
		"/httplimit":      {"encoding/json", "expvar", "log/slog"},
		"/observe":        {"expvar"}, // which adds to http.DefaultServeMux
	} {
		require.Contains(t, deps[module+pkg], "time", pkg)
		for _, dep := range not {
			require.NotContains(t, deps[module+pkg], dep, pkg)
		}
	}
}
