package main

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit"
)

// counters count the decisions of a route.
type counters struct {
	allowed, blocked, local, storeErrors atomic.Int64
}

// counts are the values of counters.
type counts struct {
	Allowed     int64 `json:"allowed"`
	Blocked     int64 `json:"blocked"`
	Local       int64 `json:"local"`        // of these, decided in memory because Redis failed
	StoreErrors int64 `json:"store_errors"` // calls that Redis failed; there are none while it is known to be down
}

func (c *counters) counts() counts {
	return counts{c.allowed.Load(), c.blocked.Load(), c.local.Load(), c.storeErrors.Load()}
}

func (c *counts) add(more counts) {
	c.Allowed += more.Allowed
	c.Blocked += more.Blocked
	c.Local += more.Local
	c.StoreErrors += more.StoreErrors
}

// metrics are the counters of all routes. Routes must be added before the first request.
type metrics struct {
	routes map[string]*counters // by pattern
}

// report is the answer of /metrics.
type report struct {
	counts
	Routes map[string]counts `json:"routes"`
}

// add returns the counters of a new route.
func (m *metrics) add(pattern string) *counters {
	c := new(counters)
	m.routes[pattern] = c
	return c
}

func (m *metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	all := report{Routes: make(map[string]counts, len(m.routes))}
	for pattern, c := range m.routes {
		route := c.counts()
		all.Routes[pattern] = route
		all.add(route)
	}
	writeJSON(w, http.StatusOK, all)
}

// decisions is a limiter whose decisions are counted.
type decisions struct {
	ratelimit.Limiter
	count *counters
}

// AllowN is the only method that the middleware calls for a decision.
func (d decisions) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := d.Limiter.AllowN(ctx, key, n)
	switch {
	case err != nil: // for example because the client has gone
		return r, err
	case r.Allowed:
		d.count.allowed.Add(1)
	default:
		d.count.blocked.Add(1)
	}
	if r.Source() == ratelimit.SourceLocal {
		d.count.local.Add(1)
	}
	return r, nil
}

// AppendPolicies lets the middleware report the limits to clients.
func (d decisions) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, d.Limiter, key)
}

// Unwrap lets constructors see what is inside.
func (d decisions) Unwrap() ratelimit.Limiter { return d.Limiter }

// storeErrors is a limiter on Redis whose errors are counted, before the fallback around
// it handles them.
type storeErrors struct {
	ratelimit.Limiter
	count *counters
}

// AllowN asks the limiter, and counts its errors.
func (s storeErrors) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := s.Limiter.AllowN(ctx, key, n)
	if errors.Is(err, ratelimit.ErrStore) {
		s.count.storeErrors.Add(1)
	}
	return r, err
}

// AppendPolicies lets the middleware report the limits to clients.
func (s storeErrors) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, s.Limiter, key)
}

// Unwrap lets constructors see what is inside: a fallback refuses what must go around it.
func (s storeErrors) Unwrap() ratelimit.Limiter { return s.Limiter }
