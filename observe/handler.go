package observe

import (
	"encoding/json"
	"net/http"
)

// maxTopKeys is how many keys of a TopKeys a Handler shows.
const maxTopKeys = 100

// Page is what a [Handler] shows. TopKeys and Exact are by the name of their limiter.
type Page struct {
	Counters []*Counters
	TopKeys  map[string]*TopKeys
	Exact    map[string]*Exact
}

// page is its JSON.
type page struct {
	Counters []Snapshot           `json:"counters"`
	TopKeys  map[string]Top       `json:"top_keys"`
	Exact    map[string]Exactness `json:"exact"`
}

// Handler returns a handler that answers GET and HEAD with p as JSON, as it stands then: the
// Snapshots, and the 100 keys of each TopKeys that are denied most. What is nil is left out.
//
// It shows keys, which may be personal data, and asks nobody who they are. So serve it on a
// port that only operators reach.
func Handler(p Page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		text, err := json.MarshalIndent(p.snapshot(), "", "  ")
		if err != nil {
			http.Error(w, "no JSON", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(append(text, '\n')) // an error is the client's
	})
}

func (p *Page) snapshot() page {
	s := page{Counters: []Snapshot{}, TopKeys: make(map[string]Top), Exact: make(map[string]Exactness)}
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
