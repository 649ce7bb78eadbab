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

var algorithms = ratelimit.PerSecond(1).Algorithms()

// route is a handler, with its limits. Its name is that of its limiter for operators.
type route struct {
	name, pattern string
	limits        func(store.Store) (ratelimit.Limiter, error)
	key           httplimit.Key
	handler       http.HandlerFunc
}

var routes = []route{
	{"algorithms", "GET /v1/algorithms", clientLimits, client, listAlgorithms},
	{"search", "GET /v1/search", searchLimits, client, search},
	{"login", "POST /v1/login", loginLimits, attempt, login},
}

// handlers are what the server listens with.
type handlers struct{ public, private http.Handler }

// newServer returns the handlers of all routes, and a function that closes the stores.
func newServer(cfg config) (handlers, func() error, error) {
	s, err := newStores(cfg)
	if err != nil {
		return handlers{}, nil, err
	}
	w := newWatch(cfg.log, s.memory)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", health) // without a limit
	for _, r := range routes {
		if err := r.add(mux, s, w); err != nil {
			return handlers{}, nil, errors.Join(err, s.close())
		}
	}
	private, err := w.handler()
	if err != nil {
		return handlers{}, nil, errors.Join(err, s.close())
	}
	return handlers{http.MaxBytesHandler(mux, maxBody), private}, s.close, nil
}

// add adds r with its limits to mux.
func (r route) add(mux *http.ServeMux, s *stores, w *watch) error {
	limiter, err := s.limiter(r.name, r.limits, w)
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
