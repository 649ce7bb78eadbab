package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

const deniedPage = "../../docs/denied.md"

// TestThePageShowsOneDenialEverywhere: the texts of docs/denied.md are what one denied request
// leaves, in their order. Three dots stand for what differs from run to run.
func TestThePageShowsOneDenialEverywhere(t *testing.T) {
	seen := denied(t)
	shown := texts(t, deniedPage)
	require.Len(t, shown, len(seen))
	for i, text := range shown {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(text), "…", ".*") + "$"
		require.Regexp(t, pattern, seen[i], "the text %d of %s", i+1, deniedPage)
	}
}

var textBlock = regexp.MustCompile("(?ms)^```text\n(.*?)^```$")

// texts are the blocks of text in a page.
func texts(t *testing.T, page string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, m := range textBlock.FindAllSubmatch(text, -1) {
		all = append(all, string(m[1]))
	}
	return all
}

// denied is what one denied search of a customer leaves, in the order of the page.
func denied(t *testing.T) []string {
	t.Helper()
	tool := buildTool(t)
	redis, logged, spans := redistest.Start(t), new(lockedBuffer), tracetest.NewSpanRecorder()
	at := time.Now().Truncate(time.Minute).Add(time.Minute) // a window begins, and does not end in the test
	h, closeStores, err := newServer(config{
		redisAddr: redis.Addr(), redisTimeout: 10 * time.Second,
		clock: func() time.Time { return at },
		log:   slog.New(slog.NewJSONHandler(logged, nil)),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, closeStores()) }()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(spans)).Tracer("server")
	public := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := tracer.Start(r.Context(), "GET /v1/search")
		h.public.ServeHTTP(w, r.WithContext(ctx))
		span.End()
	}))
	private := httptest.NewServer(h.private)
	for range 20 {
		fetch(t, public.URL+"/v1/search?q=log")
	}
	fields, problem := fetch(t, public.URL+"/v1/search?q=log")
	_, metrics := fetch(t, private.URL+"/metrics")
	_, limits := fetch(t, private.URL+"/limits")
	public.Close() // so that the last span has ended
	private.Close()

	var attributes strings.Builder
	for _, a := range spans.Ended()[20].Attributes() {
		fmt.Fprintf(&attributes, "%s=%s\n", a.Key, a.Value.String())
	}
	held, err := exec.CommandContext(t.Context(), tool, "key", "-store", redis.Addr(), "user:customer-1").CombinedOutput()
	require.NoError(t, err, "%s", held)
	return []string{
		fields + "\n" + problem + "\n", grep(logged.String(), "denied"), grep(metrics, `(decisions|denied_by).*limiter="search".* 1$`),
		top(t, limits), attributes.String(), string(held),
	}
}

// buildTool builds the command ratelimit.
func buildTool(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ratelimit")
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "build", "-o", path, ".")
	cmd.Dir = "../../cmd/ratelimit"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// fetch returns the fields and the content that a customer gets.
func fetch(t *testing.T, url string) (fields, content string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	r.Header.Set("X-API-Key", "demo-free")
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	var lines strings.Builder
	lines.WriteString(answer.Proto + " " + answer.Status + "\n")
	require.NoError(t, answer.Header.Write(&lines))
	return strings.ReplaceAll(lines.String(), "\r", ""), string(body)
}

// top is what a page for operators has of the limiter of searches, in one line.
func top(t *testing.T, page string) string {
	t.Helper()
	var limits struct {
		TopKeys struct{ Search json.RawMessage } `json:"top_keys"`
	}
	require.NoError(t, json.Unmarshal([]byte(page), &limits))
	var line bytes.Buffer
	require.NoError(t, json.Compact(&line, limits.TopKeys.Search))
	return line.String() + "\n"
}

// grep returns the lines of text that match pattern.
func grep(text, pattern string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if regexp.MustCompile(pattern).MatchString(strings.TrimSpace(line)) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
