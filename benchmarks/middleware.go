package main

import (
	"net"
	"net/http"

	"github.com/didip/tollbooth/v7"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-chi/httprate"
	"github.com/throttled/throttled/v2"
	throttledmemory "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululestdlib "github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// middlewareContestant is HTTP middleware that keeps its keys in memory.
type middlewareContestant struct {
	name     string // as in the tables
	ours     bool
	bare     bool // no middleware; its time is subtracted from the others'
	oneKey   bool // whatever the client
	admitted []string
	refused  []string // the names of the fields that it sends, sorted
	open     func(workload) (func(http.Handler) http.Handler, error)
}

func (c middlewareContestant) label() string { return c.name }

// Fields that several send, in the form that net/http keeps.
var (
	threeFields = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}
	ourFields   = append([]string{"Ratelimit", "Ratelimit-Policy"}, threeFields...)
	ourRefusal  = []string{"Cache-Control", "Content-Type", "Retry-After"}
	httpError   = []string{"Content-Type", "X-Content-Type-Options"} // of http.Error
)

// middlewares returns all that are measured, the bare handler first, then ours.
func middlewares() []middlewareContestant {
	fixed := ourMiddleware("httplimit, fixed key", ourFields, httplimit.WithKey(httplimit.Global()))
	fixed.oneKey = true
	return []middlewareContestant{
		{
			name: bareHandler, bare: true,
			open: func(workload) (func(http.Handler) http.Handler, error) {
				return func(h http.Handler) http.Handler { return h }, nil
			},
		},
		ourMiddleware("httplimit", ourFields),
		ourMiddleware("httplimit, X-RateLimit alone", threeFields, httplimit.WithHeaders(httplimit.Legacy)),
		ourMiddleware("httplimit, without headers", nil, httplimit.WithoutHeaders()),
		fixed,
		httprateWithChi, httprateAlone, tollboothHandler, ululeMiddleware, throttledHTTP,
	}
}

// ourMiddleware is httplimit around a sliding window, as in its documentation.
func ourMiddleware(name string, fields []string, opts ...httplimit.ServerOption) middlewareContestant {
	return middlewareContestant{
		name: name, ours: true,
		admitted: fields, refused: together(fields, ourRefusal),
		open: func(w workload) (func(http.Handler) http.Handler, error) {
			s, err := memstore.New()
			if err != nil {
				return nil, err
			}
			lim, err := ratelimit.NewSlidingWindow(s, ourLimit("sliding_window", w))
			if err != nil {
				return nil, err
			}
			return httplimit.New(lim, opts...)
		},
	}
}

var httprateRefusal = together(threeFields, httpError, []string{"Retry-After"})

// httprateWithChi is github.com/go-chi/httprate as in its README. chi finds the client's
// address and puts it into the request's context. LimitBy makes the key from it.
var httprateWithChi = middlewareContestant{
	name: "httprate, key by chi", admitted: threeFields, refused: httprateRefusal,
	open: func(w workload) (func(http.Handler) http.Handler, error) {
		q := w.quota()
		limited := httprate.LimitBy(q.events, q.window, func(r *http.Request) (string, error) {
			return httprate.CanonicalizeIP(middleware.GetClientIP(r.Context())), nil
		})
		return func(h http.Handler) http.Handler { return middleware.ClientIPFromRemoteAddr(limited(h)) }, nil
	},
}

// httprateAlone makes the key of RemoteAddr itself, as httprate's LimitByIP does. That is
// deprecated, and faster.
var httprateAlone = middlewareContestant{
	name: "httprate, key by RemoteAddr", admitted: threeFields, refused: httprateRefusal,
	open: func(w workload) (func(http.Handler) http.Handler, error) {
		q := w.quota()
		return httprate.LimitBy(q.events, q.window, func(r *http.Request) (string, error) {
			ip, _, err := net.SplitHostPort(r.RemoteAddr)
			return httprate.CanonicalizeIP(ip), err
		}), nil
	},
}

// tollboothHandler is github.com/didip/tollbooth/v7 with its default lookups. Its key
// is the address and the path.
var tollboothHandler = middlewareContestant{
	name: "tollbooth",
	admitted: []string{
		"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset",
		"X-Rate-Limit-Duration", "X-Rate-Limit-Limit", "X-Rate-Limit-Request-Remote-Addr",
	},
	refused: []string{
		"Content-Type", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset",
		"X-Rate-Limit-Duration", "X-Rate-Limit-Limit", "X-Rate-Limit-Request-Remote-Addr",
	},
	open: func(w workload) (func(http.Handler) http.Handler, error) {
		q := w.quota()
		lim := tollbooth.NewLimiter(1/q.each.Seconds(), nil)
		lim.SetBurst(q.events)
		return func(h http.Handler) http.Handler { return tollbooth.LimitHandler(lim, h) }, nil
	},
}

// ululeMiddleware is github.com/ulule/limiter's middleware for net/http.
var ululeMiddleware = middlewareContestant{
	name: "ulule", admitted: threeFields, refused: together(threeFields, httpError),
	open: func(w workload) (func(http.Handler) http.Handler, error) {
		q := w.quota()
		lim := ulule.New(ululememory.NewStore(), ulule.Rate{Period: q.window, Limit: int64(q.events)})
		return ululestdlib.NewMiddleware(lim).Handler, nil
	},
}

// throttledHTTP is github.com/throttled/throttled's HTTPRateLimiterCtx, by address, on
// its memory store without a cap, as in throttled.go. That file also says why many swaps
// may be lost.
var throttledHTTP = middlewareContestant{
	name: "throttled", admitted: threeFields, refused: together(threeFields, httpError, []string{"Retry-After"}),
	open: func(w workload) (func(http.Handler) http.Handler, error) {
		s, err := throttledmemory.NewCtx(0)
		if err != nil {
			return nil, err
		}
		lim, err := newThrottled(s, w)
		if err != nil {
			return nil, err
		}
		limited := throttled.HTTPRateLimiterCtx{RateLimiter: lim, VaryBy: &throttled.VaryBy{RemoteAddr: true}}
		return limited.RateLimit, nil
	},
}
