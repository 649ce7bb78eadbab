//go:build !js

// The other side of the page: chromedp drives a browser, and is not built for one.

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
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
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/examples/playground/simulation"
)

// browser is a headless Chromium and a server of the site, at a path of its own.
type browser struct {
	ctx  context.Context
	host string
	page string
}

// newBrowser skips the test if there is no Chromium. RATELIMIT_REQUIRE_BROWSER=1 fails it.
func newBrowser(t *testing.T) *browser {
	options := []chromedp.ExecAllocatorOption{}
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to sandbox for root
	}
	ctx, cancel := chromedp.NewContext(t.Context(), chromedp.WithAllocatorOptions(options...))
	t.Cleanup(cancel)
	err := chromedp.Do(ctx)
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("RATELIMIT_REQUIRE_BROWSER") != "1" {
		t.Skip("no Chromium on the PATH")
	}
	require.NoError(t, err)

	dir, err := folder()
	require.NoError(t, err)
	server := httptest.NewServer(http.StripPrefix("/some/path/", http.FileServer(http.Dir(dir))))
	t.Cleanup(server.Close)
	return &browser{ctx, server.URL, server.URL + "/some/path/"}
}

// tab is a page that is open. The test fails if it logs anything, or asks another host.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	requests []string // the addresses
	logged   []string // messages, errors and exceptions
}

// open opens the page, in light or dark and with what a link says.
func (b *browser) open(t *testing.T, width int64, scheme, link string) *tab {
	p := &tab{t: t}
	tabCtx, closeTab := chromedp.NewContext(b.ctx, chromedp.WithListener(p.listen))
	t.Cleanup(closeTab)
	require.NoError(t, chromedp.Do(tabCtx)) // opens it, for longer than the timeout
	ctx, cancel := context.WithTimeout(tabCtx, 20*time.Second)
	t.Cleanup(cancel)
	p.ctx = ctx
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Empty(t, p.logged)
		require.NotEmpty(t, p.requests)
		for _, address := range p.requests {
			require.True(t, strings.HasPrefix(address, b.page), address)
		}
	})
	p.scheme(scheme)
	p.do(chromedp.EmulateViewport(width, 800))
	p.do(chromedp.Navigate(b.page + "#" + link))
	p.do(chromedp.WaitReady(chromedp.CSS("html[data-ready]")))
	return p
}

func (p *tab) scheme(scheme string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(p.t, err)
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

func (p *tab) sent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.requests)
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

// enter types text into a field, in place of what it has.
func (p *tab) enter(field, text string) {
	p.t.Helper()
	eval[bool](p, `document.getElementById("`+field+`").select() ?? true`)
	_, err := chromedp.Call(p.ctx, input.InsertText, input.InsertTextParams{Text: text})
	require.NoError(p.t, err)
}

func (p *tab) choose(traffic string) {
	p.t.Helper()
	eval[bool](p, `traffic.value = "`+traffic+`", traffic.dispatchEvent(new Event("input", {bubbles: true}))`)
}

// reserve moves the slider.
func (p *tab) reserve(percent int) {
	p.t.Helper()
	eval[bool](p, fmt.Sprintf(`reserve.value = %d, reserve.dispatchEvent(new Event("input", {bubbles: true}))`, percent))
}

// counts returns what the page shows of each algorithm.
func (p *tab) counts() []string {
	p.t.Helper()
	return eval[[]string](p, `[...document.querySelectorAll(".card")].map((card) => [card.id,
		...["allowed", "beyond", "denied", "most"].map((name) => card.querySelector("[data-count=" + name + "]").textContent)].join(" "))`)
}

// native returns the same, of a run without a browser.
func native(t *testing.T, in simulation.Input) (counts []string) {
	t.Helper()
	out, err := simulation.Run(in)
	require.NoError(t, err)
	for _, o := range out.Outcomes {
		if o.Error != "" {
			counts = append(counts, o.Algorithm+" – – – –")
			continue
		}
		counts = append(counts, fmt.Sprint(o.Algorithm, " ", o.Within+o.Beyond, " ", o.Beyond, " ", o.Denied, " ", o.Most))
	}
	return counts
}

const accessLog = `192.0.2.1 - - [17/May/2015:10:05:00 +0000] "GET /a HTTP/1.1" 200 5 "-" "agent"
192.0.2.1 - - [17/May/2015:10:05:01 +0000] "GET /b HTTP/1.1" 200 5 "-" "agent"
192.0.2.1 - - [17/May/2015:10:05:01 +0000] "GET /c HTTP/1.1" 200 5 "-" "agent"
not a line
198.51.100.7 - - [17/May/2015:10:07:00 +0000] "GET / HTTP/1.1" 200 5 "-" "agent"
`

func TestBrowser(t *testing.T) {
	b := newBrowser(t)
	for name, test := range map[string]func(*testing.T, *browser){
		"the counts are those of a native run":        testCounts,
		"nothing sticks out sideways":                 testWidths,
		"all can be done with the keyboard":           testKeyboard,
		"light and dark have contrast":                testSchemes,
		"the charts have their colours":               testColours,
		"a link shows what its sender saw":            testLink,
		"a link that nobody copied":                   testBadLink,
		"errors are the library's own":                testErrors,
		"a pasted log is decided on and stays":        testLog,
		"a change of the width draws the charts anew": testResize,
		"too many steps can be cleared":               testTooManySteps,
		"one request of one client":                   testOneRequest,
		"a calendar":                                  testCalendar,
		"a slider reserves for important requests":    testReserve,
	} {
		t.Run(name, func(t *testing.T) { test(t, b) })
	}
}

func testCounts(t *testing.T, b *browser) {
	p := b.open(t, 1280, "light", "")
	require.Equal(t, native(t, simulation.Input{Limit: "10/s", Cost: 1, Traffic: "edge"}), p.counts())
	require.Equal(t, "a bar is 100 ms", eval[string](p, `bin.textContent`))
	for _, traffic := range simulation.Traffics {
		p.choose(traffic.Name)
		for _, in := range []simulation.Input{{Limit: "10/s", Cost: 1}, {Limit: "600/15m", Cost: 7}, {Limit: "60/m burst 90", Cost: 2}} {
			in.Traffic = traffic.Name
			p.enter("limit", in.Limit)
			p.enter("cost", fmt.Sprint(in.Cost))
			require.Equal(t, native(t, in), p.counts(), "%+v", in)
		}
	}
}

func testWidths(t *testing.T, b *browser) {
	for _, width := range []int64{320, 375, 768, 1280} {
		p := b.open(t, width, "light", "limit=100/15m&traffic=random&steps=10,w,10")
		for _, change := range []func(){
			func() {},
			func() { p.enter("limit", strings.Repeat("1234567890", 12)) },
			func() { p.enter("limit", "60/m burst 90") },
			func() { p.reserve(90) },
			func() { p.choose("log"); p.enter("log", strings.Repeat(accessLog, 3)) },
		} {
			change()
			require.Equal(t, width, eval[int64](p, "document.documentElement.scrollWidth"))
			require.Empty(t, eval[[]string](p, `[...document.querySelectorAll("body *")].filter((e) => !e.closest(".uplot, option, textarea") &&
				e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML)`), "%d px", width)
		}
	}
}

// Each control is reached by Tab, has a name, and shows the focus.
func testKeyboard(t *testing.T, b *browser) {
	p := b.open(t, 768, "light", "traffic=none")
	var reached []string
	for range 9 {
		p.do(chromedp.KeyEvent(kb.Tab))
		name := eval[string](p, `document.activeElement.labels?.[0]?.textContent ?? document.activeElement.textContent`)
		reached = append(reached, name)
		require.Equal(t, "solid", eval[string](p, `getComputedStyle(document.activeElement).outlineStyle`), name)
	}
	require.Equal(t, []string{"ratelimit", "which algorithm?", "Limit", "Traffic", "Cost of a request", "Reserve", "Send one", "Send ten", "Wait 100 ms"}, reached)

	require.Equal(t, "polite status", eval[string](p, `answer.ariaLive + " " + answer.role`))
	require.Empty(t, eval[string](p, `answer.textContent`))
	p.do(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
	p.do(chromedp.KeyEvent(kb.Enter))
	require.Equal(t, "Sent ten. Allowed: FixedWindow 10, SlidingWindow 10, SlidingLog 10, TokenBucket 10, LeakyBucket 10.", eval[string](p, `answer.textContent`))
	p.do(chromedp.KeyEvent(kb.Enter))
	require.Equal(t, "Sent ten. Allowed: FixedWindow 0, SlidingWindow 0, SlidingLog 0, TokenBucket 0, LeakyBucket 0.", eval[string](p, `answer.textContent`))
	require.Equal(t, "0 of 10 allowed. The last: denied, retry after 100ms", eval[string](p, `document.querySelector("#token_bucket .said").textContent`))
	p.do(chromedp.KeyEvent(kb.Tab))
	p.do(chromedp.KeyEvent(" "))
	require.Equal(t, "Waited 100 ms.", eval[string](p, `answer.textContent`))
	require.Equal(t, native(t, simulation.Input{Limit: "10/s", Cost: 1, Traffic: "none", Steps: "10,10,w"}), p.counts())

	p.do(chromedp.KeyEvent(kb.Tab))
	require.Equal(t, "Clear", eval[string](p, `document.activeElement.textContent`))
	p.do(chromedp.KeyEvent(kb.Enter))
	require.Equal(t, native(t, simulation.Input{Limit: "10/s", Cost: 1, Traffic: "none"}), p.counts())
	require.Equal(t, "one", eval[string](p, `document.activeElement.id`), "the focus is not lost with the button")
}

// contrast is the ratio of WCAG 2, of each pair of the page's colours.
const contrast = `(() => {
	const rgb = (c) => { const x = document.createElement("canvas").getContext("2d"); x.fillStyle = c; x.fillRect(0, 0, 1, 1); return x.getImageData(0, 0, 1, 1).data; };
	const light = (c) => [...rgb(c)].slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const of = (name) => light(getComputedStyle(document.documentElement).getPropertyValue("--" + name));
	return %s.map(([a, b]) => { const [x, y] = [of(a), of(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); });
})()`

func testSchemes(t *testing.T, b *browser) {
	for scheme, ground := range map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"} {
		p := b.open(t, 768, scheme, "")
		require.Equal(t, ground, eval[string](p, `getComputedStyle(document.body).backgroundColor`))
		for _, ratio := range eval[[]float64](p, fmt.Sprintf(contrast, `[["text", "ground"], ["text", "panel"], ["soft", "ground"], ["soft", "panel"], ["error", "panel"]]`)) {
			require.GreaterOrEqual(t, ratio, 4.5, scheme)
		}
		for _, ratio := range eval[[]float64](p, fmt.Sprintf(contrast, `[["within", "ground"], ["important", "ground"], ["beyond", "ground"], ["denied", "ground"], ["field", "ground"], ["focus", "ground"]]`)) {
			require.GreaterOrEqual(t, ratio, 3.0, scheme)
		}
	}
}

// colours returns which colours of bars and edges are in the chart of an algorithm.
func colours(p *tab, algorithm string) string {
	p.t.Helper()
	return eval[string](p, `(() => {
		const canvas = document.querySelector("#`+algorithm+` canvas"), { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
		const found = new Set();
		for (let i = 0; i < data.length; i += 4) found.add("#" + [...data.slice(i, i + 3)].map((v) => v.toString(16).padStart(2, "0")).join(""));
		return ["within", "important", "beyond", "denied", "field"].filter((name) => found.has(getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim())).join(" ");
	})()`)
}

func testColours(t *testing.T, b *browser) {
	for _, scheme := range []string{"light", "dark"} {
		p := b.open(t, 768, scheme, "traffic=edge")
		for algorithm, want := range map[string]string{
			"fixed_window": "within beyond field", "sliding_window": "within beyond denied field", "sliding_log": "within denied",
			"token_bucket": "within beyond denied", "leaky_bucket": "within denied",
		} {
			require.Equal(t, want, colours(p, algorithm), "%s, %s", algorithm, scheme)
		}
	}
}

func testLink(t *testing.T, b *browser) {
	in := simulation.Input{Limit: "20/m burst 30", Cost: 2, Traffic: "bursts", Steps: "10,w,1"}
	p := b.open(t, 768, "light", "")
	p.enter("limit", in.Limit)
	p.enter("cost", "2")
	p.choose(in.Traffic)
	eval[bool](p, `ten.click(), wait.click(), one.click(), true`)
	want := p.counts()
	require.Equal(t, native(t, in), want)
	_, link, _ := strings.Cut(eval[string](p, `location.href`), "#")

	other := b.open(t, 768, "light", link)
	require.Equal(t, []string{in.Limit, "2", in.Traffic}, eval[[]string](other, `[limit.value, cost.value, traffic.value]`))
	require.Equal(t, want, other.counts())
	require.Equal(t, link, eval[string](other, `location.hash.slice(1)`))

	eval[bool](other, `share.click() ?? true`)
	other.do(chromedp.Poll[chromedp.Void](`answer.textContent.includes("link")`))

	eval[bool](other, `location.hash = "limit=10/s&traffic=edge", true`)
	other.do(chromedp.Poll[chromedp.Void](`limit.value === "10/s"`))
	require.Equal(t, native(t, simulation.Input{Limit: "10/s", Cost: 1, Traffic: "edge"}), other.counts())
}

// A link with what no page has written shows the defaults, or what is wrong, and raises no exception.
func testBadLink(t *testing.T, b *browser) {
	p := b.open(t, 768, "light", "limit=none&reserve=none")
	require.Equal(t, "0", eval[string](p, `reserve.value`))
	require.Contains(t, eval[string](p, `error.textContent`), "invalid limit")
	p.scheme("dark")
	p.do(chromedp.Poll[chromedp.Void](`getComputedStyle(document.body).backgroundColor === "rgb(20, 23, 26)"`))
	p.enter("limit", "10/s")
	require.Equal(t, native(t, simulation.Input{Limit: "10/s", Cost: 1, Traffic: "edge"}), p.counts())
}

func testErrors(t *testing.T, b *browser) {
	p := b.open(t, 768, "light", "")
	before := p.counts()
	for _, in := range []simulation.Input{
		{Limit: "ten/s", Cost: 1}, {Limit: "", Cost: 1}, {Limit: "10/s burst 0", Cost: 1}, {Limit: "10/s", Cost: 0}, {Limit: "2147483647/s", Cost: 1},
	} {
		in.Traffic = "edge"
		p.enter("limit", in.Limit)
		p.enter("cost", fmt.Sprint(in.Cost))
		_, err := simulation.Run(in)
		require.Error(t, err)
		require.Equal(t, err.Error(), eval[string](p, `error.textContent`))
		require.Equal(t, fmt.Sprint(strings.Contains(err.Error(), "invalid limit")), eval[string](p, `limit.ariaInvalid`))
	}
	p.enter("limit", "10/s")
	p.enter("cost", "1.5")
	require.Equal(t, "ratelimit: invalid number of events: 1.5, want a whole number", eval[string](p, `error.textContent`))
	require.Equal(t, "true", eval[string](p, `cost.ariaInvalid`))
	p.enter("cost", "1")
	require.Empty(t, eval[string](p, `error.textContent`))
	require.Equal(t, before, p.counts())

	p.enter("limit", "10/s burst 20") // some can keep it
	require.Empty(t, eval[string](p, `error.textContent`))
	require.Equal(t, "No chart: only the two buckets can have a burst.",
		eval[string](p, `document.querySelector("#fixed_window .said").textContent`))
}

func testLog(t *testing.T, b *browser) {
	p := b.open(t, 768, "light", "limit=2/m")
	require.Equal(t, "none", eval[string](p, `getComputedStyle(paste).display`))
	requests := p.sent()
	p.choose("log")
	require.Equal(t, "block", eval[string](p, `getComputedStyle(paste).display`))
	require.Empty(t, eval[string](p, `error.textContent`), "nothing is wrong before something is pasted")
	require.Equal(t, "Paste some lines above, and the charts show what becomes of them.", eval[string](p, `answer.textContent`))
	p.enter("log", "not a line")
	require.Contains(t, eval[string](p, `error.textContent`), "1 not readable")
	p.enter("log", accessLog)
	require.Empty(t, eval[string](p, `error.textContent`))
	require.Empty(t, eval[string](p, `answer.textContent`))
	require.Equal(t, native(t, simulation.Input{Limit: "2/m", Cost: 1, Traffic: simulation.Pasted, Log: accessLog}), p.counts())
	require.Equal(t, `4 requests of 2 clients. Clients that were denied something: FixedWindow 1, SlidingWindow 1, SlidingLog 1, TokenBucket 1, LeakyBucket 1.`+
		` Left out: 1 not readable, first "not a line".`, eval[string](p, `summary.textContent`))
	require.NotContains(t, eval[string](p, `location.href`), "192.0.2.1")
	require.Equal(t, requests, p.sent(), "nothing is sent")
}

// A link of too many steps can be mended on the page.
func testTooManySteps(t *testing.T, b *browser) {
	p := b.open(t, 768, "light", "steps=1"+strings.Repeat(",w", 100))
	require.Contains(t, eval[string](p, `error.textContent`), "101 steps by hand are too many, at most 100: clear them")
	require.Equal(t, "false", eval[string](p, `String(clear.hidden)`))
	eval[bool](p, `wait.click() ?? true`) // nothing happens, and no exception
	eval[bool](p, `document.getElementById("clear").click() ?? true`)
	require.Empty(t, eval[string](p, `error.textContent`))
	require.Equal(t, native(t, simulation.Input{Limit: "10/s", Cost: 1, Traffic: "edge"}), p.counts())
}

func testOneRequest(t *testing.T, b *browser) {
	p := b.open(t, 768, "light", "")
	p.choose("log")
	p.enter("log", strings.SplitAfter(accessLog, "\n")[0])
	require.Contains(t, eval[string](p, `summary.textContent`), "1 request of 1 client. ")
}

// The zones of the library's documents are known, as on a server.
func testCalendar(t *testing.T, b *browser) {
	p := b.open(t, 768, "light", "")
	in := simulation.Input{Limit: "10000/month from 31 in America/Sao_Paulo", Cost: 1000, Traffic: "edge"}
	p.enter("cost", "1000")
	p.enter("limit", in.Limit)
	require.Empty(t, eval[string](p, `error.textContent`))
	require.Equal(t, native(t, in), p.counts())
	require.Equal(t, "No chart: only a FixedWindow counts by a calendar.",
		eval[string](p, `document.querySelector("#sliding_log .said").textContent`))
}

func testReserve(t *testing.T, b *browser) {
	p := b.open(t, 768, "light", "limit=20/s&traffic=steady&cost=1")
	require.Equal(t, "for important requests: nothing", eval[string](p, `reserved.textContent`))
	require.Equal(t, "within denied", colours(p, "sliding_log"))
	legend := `getComputedStyle(document.querySelector(".legend .classes")).display`
	require.Equal(t, "none", eval[string](p, legend))
	before := p.counts()
	p.reserve(30)
	eval[bool](p, `ten.click() ?? true`)
	in := simulation.Input{Limit: "20/s", Cost: 1, Reserve: 30, Traffic: "steady", Steps: "10"}
	require.Equal(t, native(t, in), p.counts())
	require.Equal(t, "for important requests: 6 (30%)", eval[string](p, `reserved.textContent`))
	require.Equal(t, "flex", eval[string](p, legend))
	require.Equal(t, "within important denied", colours(p, "sliding_log"))
	out, err := simulation.Run(in)
	require.NoError(t, err)
	for _, o := range out.Outcomes {
		important := o.Important + o.ImportantRefused
		require.Equal(t, fmt.Sprintf("Allowed: %d of %d important, %d of %d others.", o.Important, important, o.Within+o.Beyond-o.Important, out.Requests-important),
			eval[string](p, `document.querySelector("#`+o.Algorithm+` .classes").textContent`))
	}
	_, link, _ := strings.Cut(eval[string](p, `location.href`), "#")
	require.Equal(t, p.counts(), b.open(t, 768, "light", link).counts())

	p.choose("log")
	p.enter("log", accessLog)
	require.Equal(t, "none", eval[string](p, legend), "nobody in a log is important")
	eval[bool](p, `document.getElementById("clear").click() ?? true`)
	p.choose("steady")
	p.reserve(0)
	require.Equal(t, before, p.counts())
}

func testResize(t *testing.T, b *browser) {
	p := b.open(t, 1280, "light", "")
	p.do(chromedp.EmulateViewport(320, 800))
	p.do(chromedp.Poll[chromedp.Void](`[...document.querySelectorAll(".uplot")].every((u) => u.getBoundingClientRect().width <= 300)`))
	p.do(chromedp.EmulateViewport(1280, 800))
	p.do(chromedp.Poll[chromedp.Void](`[...document.querySelectorAll(".uplot")].every((u) => u.getBoundingClientRect().width > 600)`))
}
