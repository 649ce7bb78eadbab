// Package site_test builds the site and tries it: its links, its search, and how many clicks an answer takes.
package site_test

import (
	"cmp"
	"context"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	base       = "/ratelimit/"
	playground = base + "playground/" // which examples/playground writes there
)

// The test needs npm, and a browser for a part. It skips what is missing, unless RATELIMIT_REQUIRE_SITE=1.
func TestSite(t *testing.T) {
	s := build(t)
	t.Run("all links lead somewhere, and nothing comes from another host", s.testLinks)
	t.Run("each question is answered after two clicks", s.testClicks)
	t.Run("browser", func(t *testing.T) {
		b := newBrowser(t, s.dir)
		t.Run("phone and desktop", func(t *testing.T) { s.testWidths(t, b) })
		t.Run("search", func(t *testing.T) { testSearch(t, b) })
	})
}

func missing(t *testing.T, why ...any) {
	t.Helper()
	if os.Getenv("RATELIMIT_REQUIRE_SITE") == "1" {
		t.Fatal(why...)
	}
	t.Skip(why...)
}

// site is the built site: for each page, what it links to and the anchors that it has.
type site struct {
	dir   string
	pages map[string]page // by their names, such as index.html
}

type page struct {
	text           string
	links, sources []string // links that are clicked, and files that are loaded
	anchors        []string
}

func build(t *testing.T) *site {
	if testing.Short() {
		t.Skip("builds the site")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		missing(t, err)
	}
	if _, err := os.Stat("node_modules"); err != nil {
		if out, err := exec.CommandContext(t.Context(), "npm", "ci").CombinedOutput(); err != nil {
			missing(t, string(out))
		}
	}
	s := &site{t.TempDir(), map[string]page{}}
	out, err := exec.CommandContext(t.Context(), "npm", "run", "build", "--", "--outDir", s.dir).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, fs.WalkDir(os.DirFS(s.dir), ".", func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".html" && name != "404.html" {
			text, err := os.ReadFile(filepath.Join(s.dir, name))
			require.NoError(t, err)
			s.pages[name] = read(string(text))
		}
		return err
	}))
	return s
}

var (
	element   = regexp.MustCompile(`<(\w+)\s([^>]*)>`)
	attribute = regexp.MustCompile(`([\w-]+)="([^"]*)"`)
)

func read(text string) page {
	p := page{text: text}
	for _, e := range element.FindAllStringSubmatch(text, -1) {
		for _, a := range attribute.FindAllStringSubmatch(e[2], -1) {
			switch value := html.UnescapeString(a[2]); {
			case a[1] == "id":
				p.anchors = append(p.anchors, value)
			case a[1] == "href" && e[1] == "a":
				p.links = append(p.links, value)
			case a[1] == "href" || a[1] == "src":
				p.sources = append(p.sources, value)
			}
		}
	}
	return p
}

// target returns the page or file, and the anchor, that a link of a page leads to. It is "" for other hosts.
func target(t *testing.T, from, link string) (to, anchor string) {
	t.Helper()
	here := &url.URL{Path: base + from}
	u, err := here.Parse(link)
	require.NoError(t, err)
	if u.Host != "" || u.Scheme == "data" || u.Path == playground {
		return "", ""
	}
	require.True(t, strings.HasPrefix(u.Path, base), link)
	if to = strings.TrimPrefix(u.Path, base); to == "" {
		to = "index.html"
	}
	return to, u.Fragment
}

func (s *site) testLinks(t *testing.T) {
	for name, p := range s.pages {
		for _, link := range p.links {
			to, anchor := target(t, name, link)
			if to == "" {
				continue
			}
			require.Contains(t, s.pages, to, "%s: %s", name, link)
			if anchor != "" {
				require.Contains(t, s.pages[to].anchors, anchor, "%s: %s", name, link)
			}
		}
		for _, source := range p.sources {
			to, _ := target(t, name, source)
			require.NotEmpty(t, to, "%s loads %s", name, source)
			require.FileExists(t, filepath.Join(s.dir, to), name)
		}
	}
	llms, err := os.ReadFile(filepath.Join(s.dir, "llms.txt"))
	require.NoError(t, err)
	links := regexp.MustCompile(`https://ratelimit-go\.github\.io/ratelimit/([\w.]*)`).FindAllStringSubmatch(string(llms), -1)
	require.NotEmpty(t, links)
	for _, link := range links {
		require.Contains(t, s.pages, cmp.Or(link[1], "index.html"), "llms.txt")
	}
}

// questions are what readers ask first: the page and the anchor where the answer is, and words of it.
var questions = map[string]struct{ page, anchor, answer string }{
	"which algorithm for logins?":           {"login.html", "", "The algorithm for logins is"},
	"what does a load balancer need?":       {"http.html", "behind-a-load-balancer", "Behind a load balancer, use"},
	"what happens without Redis?":           {"redis.html", "when-redis-does-not-answer", "admits everything"},
	"what must be closed?":                  {"deploying.html", "what-must-be-closed", "lease.Store"},
	"how do plans come from a database?":    {"api.html", "plans-in-a-database", "database/sql"},
	"how do limits come from a database?":   {"api.html", "limits-in-a-database", "WithLimitFunc"},
	"how do I run on Postgres?":             {"postgres.html", "", "Migrate"},
	"how large a Redis?":                    {"scaling.html", "how-large-a-redis", "150 bytes"},
	"is it GCRA?":                           {"promises.html", "gcra", "generic cell rate algorithm"},
	"how do I test?":                        {"testing.html", "", "ratelimittest"},
	"how do I unblock a customer?":          {"composing.html", "how-do-i-unblock-a-customer", "-reset"},
	"what to tell an operator about a 429?": {"denied.html", "", "Tell the client"},
}

// testClicks counts the clicks from the first page: a link to a page is one, and a link to an anchor in it is another.
func (s *site) testClicks(t *testing.T) {
	linked := func(from, page, anchor string) bool {
		return slices.ContainsFunc(s.pages[from].links, func(link string) bool {
			to, at := target(t, from, link)
			return to == page && at == anchor
		})
	}
	for name := range s.pages {
		require.True(t, linked("index.html", name, ""), "no link to %s: add it to the menu in .vitepress/config.mjs", name)
	}
	for question, q := range questions {
		require.Contains(t, s.pages[q.page].text, q.answer, question)
		require.True(t, linked("index.html", q.page, q.anchor) || linked("index.html", q.page, ""), question)
		if q.anchor != "" {
			require.Contains(t, s.pages[q.page].anchors, q.anchor, question)
		}
	}
}

// browser is a headless Chromium, and a server of the site.
type browser struct {
	ctx  context.Context
	site string // its address
}

func newBrowser(t *testing.T, dir string) *browser {
	options := []chromedp.ExecAllocatorOption{}
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to sandbox for root
	}
	ctx, cancel := chromedp.NewContext(t.Context(), chromedp.WithAllocatorOptions(options...))
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		missing(t, err)
	}
	server := httptest.NewServer(http.StripPrefix(base, http.FileServer(http.Dir(dir))))
	t.Cleanup(server.Close)
	return &browser{ctx, server.URL + base}
}

// tab is a page that is open. The test fails if it logs anything, or asks another host.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu               sync.Mutex
	requests, logged []string
}

func (b *browser) open(t *testing.T, width int64, scheme string) *tab {
	p := &tab{t: t}
	tabCtx, closeTab := chromedp.NewContext(b.ctx, chromedp.WithListener(p.listen))
	t.Cleanup(closeTab)
	require.NoError(t, chromedp.Do(tabCtx))                   // opens it, for longer than the timeout
	ctx, cancel := context.WithTimeout(tabCtx, 5*time.Minute) // for all of its pages, on a busy machine
	t.Cleanup(cancel)
	p.ctx = ctx
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Empty(t, p.logged)
		require.NotEmpty(t, p.requests)
		for _, address := range p.requests {
			require.True(t, strings.HasPrefix(address, b.site) || strings.HasPrefix(address, "data:"), address)
		}
	})
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(t, err)
	p.do(chromedp.EmulateViewport(width, 800))
	return p
}

func (p *tab) listen(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	case *runtime.EventConsoleAPICalled:
		p.logged = append(p.logged, fmt.Sprint(e.Type, " ", e.Args))
	case *runtime.EventExceptionThrown:
		p.logged = append(p.logged, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		p.logged = append(p.logged, e.Entry.Text)
	}
}

func (p *tab) do(action chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, action))
}

// eval returns the value of a JavaScript expression.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	require.NoError(p.t, err, expression)
	return value
}

// hydrated is whether the scripts of the page have taken it over.
const hydrated = `document.querySelector("#app")?.__vue_app__ !== undefined`

// Nothing sticks out sideways: tables and code scroll in themselves.
func (s *site) testWidths(t *testing.T, b *browser) {
	for _, width := range []int64{360, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			p := b.open(t, width, scheme)
			for name := range s.pages {
				if scheme == "dark" && name != "index.html" {
					continue
				}
				p.do(chromedp.Navigate(b.site + name))
				p.do(chromedp.Poll[chromedp.Void](hydrated))
				require.Equal(t, width, eval[int64](p, "document.documentElement.scrollWidth"), name)
				require.Equal(t, scheme == "dark", eval[bool](p, `document.documentElement.classList.contains("dark")`))
			}
		}
	}
}

func testSearch(t *testing.T, b *browser) {
	p := b.open(t, 1280, "light")
	for query, want := range map[string]string{
		"brute force": "login.html", "graceful shutdown": "deploying.html", "bulkhead": "inflight.html", "GCRA": "promises.html",
		"unblock": "composing.html", "jitter": "composing.html", "backoff": "client.html", "distributed": "redis.html", "ACL": "http.html",
	} {
		p.do(chromedp.Navigate(b.site))
		p.do(chromedp.Poll[chromedp.Void](hydrated))
		eval[bool](p, `document.querySelector("#local-search button").click() ?? true`)
		p.do(chromedp.Poll[chromedp.Void](`document.activeElement.id === "localsearch-input"`))
		_, err := chromedp.Call(p.ctx, input.InsertText, input.InsertTextParams{Text: query})
		require.NoError(t, err)
		p.do(chromedp.Poll[chromedp.Void](`document.querySelector(".VPLocalSearchBox a.result") !== null`))
		found := eval[[]string](p, `[...document.querySelectorAll(".VPLocalSearchBox a.result")].slice(0, 5).map((a) => a.getAttribute("href"))`)
		assert.True(t, slices.ContainsFunc(found, func(href string) bool { return strings.HasPrefix(href, base+want) }), "%q: %v", query, found)
	}
}
