package main

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store"
)

const maxBody = 4 << 10 // bytes

// The one user of the example.
const demoUser, demoPassword = "demo", "demo-password"

var algorithms = ratelimit.Algorithms()

// route is a handler, with its limits.
type route struct {
	pattern string
	limits  func(store.Store) (ratelimit.Limiter, error)
	key     httplimit.Key
	handler http.HandlerFunc
}

var routes = []route{
	{"GET /v1/algorithms", clientLimits, client, listAlgorithms},
	{"GET /v1/search", searchLimits, client, search},
	{"POST /v1/login", loginLimits, attempt, login},
}

// newServer returns the handler of all routes, and a function that closes its stores.
func newServer(cfg config) (http.Handler, func() error, error) {
	s, err := newStores(cfg)
	if err != nil {
		return nil, nil, err
	}
	m := &metrics{routes: make(map[string]*counters)}
	mux := http.NewServeMux()
	// These have no limits. Serve metrics on an address that the public does not reach.
	mux.HandleFunc("GET /health", health)
	mux.Handle("GET /metrics", m)
	for _, r := range routes {
		if err := r.add(mux, s, m.add(r.pattern)); err != nil {
			return nil, nil, errors.Join(err, s.close())
		}
	}
	return http.MaxBytesHandler(mux, maxBody), s.close, nil
}

// add adds r with its limits to mux.
func (r route) add(mux *http.ServeMux, s *stores, c *counters) error {
	limiter, err := s.limiter(r.limits, c)
	if err != nil {
		return err
	}
	limit, err := httplimit.New(limiter, httplimit.WithKey(r.key))
	if err != nil {
		return err
	}
	mux.Handle(r.pattern, limit(r.handler))
	return nil
}

func health(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func listAlgorithms(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string][]string{"algorithms": algorithms})
}

func search(w http.ResponseWriter, r *http.Request) {
	found := []string{} // [] in JSON, not null
	for _, name := range algorithms {
		if strings.Contains(name, r.FormValue("q")) {
			found = append(found, name)
		}
	}
	writeJSON(w, http.StatusOK, map[string][]string{"found": found})
}

func login(w http.ResponseWriter, r *http.Request) {
	user, password := strings.ToLower(r.PostFormValue("user")), r.PostFormValue("password")
	if user != demoUser || subtle.ConstantTimeCompare([]byte(password), []byte(demoPassword)) == 0 {
		writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "wrong user or password"})
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"user": user})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}
