package observe_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
)

func get(h http.Handler, method string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
	return w
}

func TestHandlerShowsWhatThereIs(t *testing.T) {
	counters, top, exact := observe.NewCounters("api"), newTopKeys(t, 0), newExact(t, ratelimit.PerDay(1), 100)
	limiter := observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(1)), counters, top, exact)
	for i := range 150 {
		for range 2 {
			_, err := limiter.Allow(t.Context(), fmt.Sprint("user:", i))
			require.NoError(t, err)
		}
	}
	w := get(observe.Handler(observe.Page{
		Counters: []*observe.Counters{counters, nil},
		Limits:   map[string]string{"api": "1/d"},
		TopKeys:  map[string]*observe.TopKeys{"api": top, "none": nil},
		Exact:    map[string]*observe.Exact{"api": exact, "none": nil},
	}), http.MethodGet)
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	var got struct {
		Counters []observe.Snapshot           `json:"counters"`
		Limits   map[string]string            `json:"limits"`
		TopKeys  map[string]observe.Top       `json:"top_keys"`
		Exact    map[string]observe.Exactness `json:"exact"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.Equal(t, []observe.Snapshot{counters.Snapshot()}, got.Counters)
	require.Equal(t, map[string]string{"api": "1/d"}, got.Limits)
	require.Len(t, got.TopKeys, 1)
	require.Len(t, got.TopKeys["api"].Keys, 100)
	require.Equal(t, map[string]observe.Exactness{"api": {Decisions: 300, Admitted: 150, Denied: 150}}, got.Exact)
}

// A browser asks for HTML. Programs, which ask for JSON, for anything or for nothing, get JSON.
func TestHandlerShowsPeopleAPage(t *testing.T) {
	h := observe.Handler(observe.Page{})
	for _, c := range []struct {
		accept []string
		html   bool
	}{
		{[]string{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"}, true}, // Firefox, Chromium
		{[]string{"text/html"}, true},
		{[]string{"TEXT/HTML; charset=utf-8"}, true},
		{[]string{"text/*"}, true},
		{[]string{"application/json;q=0.5", "text/html"}, true}, // two fields form one list
		{[]string{"application/*;q=0.1, */*"}, true},
		{[]string{"text/html, application/json;q=0"}, true},
		{nil, false},
		{[]string{""}, false},
		{[]string{"*/*"}, false}, // curl
		{[]string{"application/json, text/plain, */*"}, false}, // axios
		{[]string{"application/json, text/html"}, false},       // neither is preferred
		{[]string{"text/html;q=0.5, application/json"}, false},
		{[]string{"text/html;q=0, */*"}, false}, // the specific range decides, in any position
		{[]string{"*/*, text/html;q=0"}, false},
		{[]string{"text/plain"}, false},
		{[]string{"text/html;q=2"}, false},
		{[]string{"text/html;q=NaN"}, false},
		{[]string{"text/html;q"}, false},
		{[]string{",;/,text"}, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Accept"] = c.accept
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		want := "application/json"
		if c.html {
			want = "text/html; charset=utf-8"
		}
		require.Equal(t, want, w.Header().Get("Content-Type"), c.accept)
		require.Equal(t, "Accept", w.Header().Get("Vary"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	}
}

// getHTML returns the page of p.
func getHTML(t testing.TB, p observe.Page) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", "text/html")
	w := httptest.NewRecorder()
	observe.Handler(p).ServeHTTP(w, r)
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "default-src 'none'; style-src 'unsafe-inline'", w.Header().Get("Content-Security-Policy"))
	return w.Body.String()
}

func TestThePageShowsWhatThereIs(t *testing.T) {
	counters, top, exact := observe.NewCounters("api"), newTopKeys(t, 0, observe.WithAskers()), newExact(t, ratelimit.PerDay(1), 100)
	limiter := observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(1)), counters, top, exact)
	for range 3 {
		_, err := limiter.Allow(t.Context(), "user:42")
		require.NoError(t, err)
	}
	_, err := limiter.Allow(t.Context(), "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	counters.Expect("daily")
	got := getHTML(t, observe.Page{
		Counters: []*observe.Counters{counters, nil},
		Limits:   map[string]string{"api": "1/d", "other": "2/d"},
		TopKeys:  map[string]*observe.TopKeys{"api": top, "none": nil},
		Exact:    map[string]*observe.Exact{"api": exact},
	})
	for _, want := range []string{
		"<h2>api</h2>\n<p>1/d",
		`<td>allowed<td>store<td class="n">1<td class="n">1`,
		`<td>denied<td>store<td class="n">2<td class="n">2`,
		`<td>daily<td class="n">0`,
		`<td>invalid<td class="n">1`,
		`<th class="n">10`,
		"<p>4 decisions took ",
		"Denied most by api: 2 denials since ",
		`<code>&#34;user:42&#34;</code><td class="n">2<td class="n">0`,
		"Asking api most: 3 calls in this time",
		`<code>&#34;user:42&#34;</code><td class="n">3<td class="n">0`,
		"api beside an exact log",
	} {
		require.Contains(t, got, want)
	}
	for _, not := range []string{"fail_open", "timeout", "none"} { // not counted, or nil
		require.NotContains(t, got, not+"<")
	}
	require.NotContains(t, got, "<script")
}

// Names and keys are shown as text, whatever they contain: a key often comes from a client.
func TestThePageEscapesHostileNames(t *testing.T) {
	plain := tags(getHTML(t, named(t, "name")))
	for _, hostile := range []string{
		"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "' onmouseover='alert(1)", "</code></table><h1>x",
		"{{.Counters}}", "<!--", "javascript:alert(1)", "</style><svg onload=alert(1)>", "&lt;b&gt;",
		"\u202e<i>", "\x00<b>\xff", "a\r\n\r\n<b>",
	} {
		got := getHTML(t, named(t, hostile))
		require.Equal(t, plain, tags(got), "%q", hostile)
		require.Contains(t, html.UnescapeString(got), fmt.Sprintf("<code>%q</code>", hostile), "a key is quoted: nothing of it is invisible")
		require.NotContains(t, got, "\x00")
	}
}

// named returns a Page in which all names and keys are the given one.
func named(t testing.TB, name string) observe.Page {
	t.Helper()
	counters, top := observe.NewCounters(name), newTopKeys(t, 0, observe.WithAskers())
	counters.Expect(name)
	top.Decided(t.Context(), name, 1, ratelimit.Result{}, nil, 0)
	return observe.Page{
		Counters: []*observe.Counters{counters},
		Limits:   map[string]string{name: name},
		TopKeys:  map[string]*observe.TopKeys{name: top},
		Exact:    map[string]*observe.Exact{name: newExact(t, ratelimit.PerDay(1), 100)},
	}
}

// tags returns the tags of a page, with their attributes.
func tags(page string) []string { return regexp.MustCompile(`<[^>]*>`).FindAllString(page, -1) }

func TestHandlerAnswersGetAndHeadOnly(t *testing.T) {
	h := observe.Handler(observe.Page{})
	require.JSONEq(t, `{"counters":[],"top_keys":{},"exact":{}}`, get(h, http.MethodGet).Body.String())
	require.Equal(t, http.StatusOK, get(h, http.MethodHead).Code)
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodOptions} {
		w := get(h, method)
		require.Equal(t, http.StatusMethodNotAllowed, w.Code)
		require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
}

func TestEmptyListsAreNotNullInJSON(t *testing.T) {
	text, err := json.Marshal([]any{observe.NewCounters("api").Snapshot(), newTopKeys(t, 0).Top(1)})
	require.NoError(t, err)
	require.NotContains(t, string(text), "null")
}
