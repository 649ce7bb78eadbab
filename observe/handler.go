package observe

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"html/template"
	"net/http"
	"time"
)

// maxTopKeys is the maximum number of keys that a Handler shows of each TopKeys.
const maxTopKeys = 100

// Page is the content that a [Handler] shows. The keys of Limits, TopKeys and Exact are the names
// of limiters.
type Page struct {
	Counters []*Counters
	Limits   map[string]string // as text, shown next to the Counters
	TopKeys  map[string]*TopKeys
	Exact    map[string]*Exact
}

// page is the JSON of a Page, and the data of page.html.
type page struct {
	Counters []Snapshot           `json:"counters"`
	Limits   map[string]string    `json:"limits,omitempty"`
	TopKeys  map[string]Top       `json:"top_keys"`
	Exact    map[string]Exactness `json:"exact"`
}

//go:embed page.html
var pageHTML string

// Handler returns a handler that responds to GET and HEAD with the current numbers of p: the
// Snapshots, and from each TopKeys the 100 keys that are denied most, or that ask most. Elements
// that are nil are left out.
//
// The response is JSON with all numbers. A client that prefers text/html, as browsers do, gets a
// page without scripts. The page leaves out sources and errors that have not occurred.
//
// The response contains keys, which may be personal data, and the handler authenticates nobody.
// Serve it on a port that only operators can reach.
func Handler(p Page) http.Handler {
	// The page is parsed here so that programs without a Handler link little of package template.
	html := template.Must(template.New("page").Funcs(template.FuncMap{"mean": mean}).Parse(pageHTML))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Vary", "Accept")
		if prefersHTML(r.Header.Values("Accept")) {
			writeHTML(w, html, p.snapshot())
			return
		}
		text, err := json.MarshalIndent(p.snapshot(), "", "  ")
		if err != nil {
			http.Error(w, "no JSON", http.StatusInternalServerError)
			return
		}
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(append(text, '\n')) // an error means that the client is gone
	})
}

func writeHTML(w http.ResponseWriter, html *template.Template, s page) {
	var text bytes.Buffer
	if err := html.Execute(&text, s); err != nil {
		http.Error(w, "no HTML", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_, _ = w.Write(text.Bytes()) // an error means that the client is gone
}

// mean is a function of page.html.
func mean(d Durations) time.Duration {
	return (d.Sum / time.Duration(d.Count)).Round(time.Microsecond)
}

func (p *Page) snapshot() page {
	s := page{Counters: []Snapshot{}, Limits: p.Limits, TopKeys: make(map[string]Top), Exact: make(map[string]Exactness)}
	for _, c := range p.Counters {
		if c != nil {
			s.Counters = append(s.Counters, c.Snapshot())
		}
	}
	for name, t := range p.TopKeys {
		if t != nil {
			s.TopKeys[name] = t.Top(maxTopKeys)
		}
	}
	for name, e := range p.Exact {
		if e != nil {
			s.Exact[name] = e.Snapshot()
		}
	}
	return s
}
