package observe

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"html/template"
	"net/http"
	"time"
)

// maxTopKeys is how many keys of a TopKeys a Handler shows.
const maxTopKeys = 100

// Page is what a [Handler] shows. Limits, TopKeys and Exact are by the name of their limiter.
type Page struct {
	Counters []*Counters
	Limits   map[string]string // as text, to stand beside the Counters
	TopKeys  map[string]*TopKeys
	Exact    map[string]*Exact
}

// page is its JSON, and what page.html shows.
type page struct {
	Counters []Snapshot           `json:"counters"`
	Limits   map[string]string    `json:"limits,omitempty"`
	TopKeys  map[string]Top       `json:"top_keys"`
	Exact    map[string]Exactness `json:"exact"`
}

//go:embed page.html
var pageHTML string

// Handler returns a handler that answers GET and HEAD with p as it stands then: the Snapshots,
// and the 100 keys of each TopKeys that are denied most, or ask most. What is nil is left out.
//
// The answer is JSON, with each number. Whoever asks for text/html rather than that, as browsers
// do, gets a page without scripts. It leaves out sources and errors that have not been.
//
// It shows keys, which may be personal data, and asks nobody who they are. So serve it on a
// port that only operators reach.
func Handler(p Page) http.Handler {
	// Parsed here, so that programs without a Handler link little of package template.
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
		_, _ = w.Write(append(text, '\n')) // an error is the client's
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
	_, _ = w.Write(text.Bytes()) // an error is the client's
}

// mean is for page.html.
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
