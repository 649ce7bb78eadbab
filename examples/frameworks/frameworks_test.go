// Package frameworks shows the middleware of httplimit, which is that of net/http, in
// routers and frameworks. It is a module of its own, so that users do not download them.
package frameworks_test

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"
	"github.com/labstack/echo/v4"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// perDay is a limiter of n a day.
func perDay(n int) ratelimit.Limiter {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerDay(n))
	if err != nil {
		log.Fatal(err)
	}
	return limiter
}

// knock sends three requests and prints what comes back.
func knock(h http.Handler) {
	for range 3 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/users/7", nil))
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"))
	}
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

// chi has middleware of net/http. What stands in a With runs after chi has found the
// route and set the request's pattern.
func Example_chi() {
	r := chi.NewRouter()
	byRoute := httplimit.WithKey(httplimit.Combined(httplimit.PeerIP(), httplimit.Route()))
	r.With(httplimit.Middleware(perDay(2), byRoute)).Get("/users/{id}", hello)
	knock(r)
	// Output:
	// 200 1
	// 200 0
	// 429 0
}

// gorilla/mux has it too, and runs it after it has found the route: its template is a key.
func Example_gorilla() {
	route := httplimit.KeyFunc("route", func(r *http.Request) (string, error) {
		if route := mux.CurrentRoute(r); route != nil {
			return route.GetPathTemplate()
		}
		return "", httplimit.ErrNoIdentity
	})
	r := mux.NewRouter()
	r.Use(mux.MiddlewareFunc(httplimit.Middleware(perDay(2), httplimit.WithKey(httplimit.Combined(httplimit.PeerIP(), route)))))
	r.HandleFunc("/users/{id}", hello)
	knock(r)
	// Output:
	// 200 1
	// 200 0
	// 429 0
}

// echo wraps it.
func Example_echo() {
	e := echo.New()
	e.Use(echo.WrapMiddleware(httplimit.Middleware(perDay(2))), writeErrors)
	e.GET("/users/:id", func(c echo.Context) error { return c.String(http.StatusOK, "hello") })
	knock(e)
	// Output:
	// 200 1
	// 200 0
	// 429 0
}

// writeErrors answers an error that a handler returns inside of the middleware, so that
// WithRefund sees its status. echo itself would answer it afterwards.
func writeErrors(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

// gin has a handler of its own, which goes on where the middleware lets it.
func Example_gin() {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.Use(limited(httplimit.Middleware(perDay(2))))
	e.GET("/users/:id", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	knock(e)
	// Output:
	// 200 1
	// 200 0
	// 429 0
}

// A request holds a slot for as long as its handler runs, also in gin and echo: after each there
// is one again.
func Example_slots() {
	mem := ratelimit.Must(memstore.New())
	atOnce := ratelimit.Must(inflight.New(mem, 1, time.Minute, ratelimit.WithName("at_once")))
	limit := httplimit.Middleware(atOnce)

	g := gin.New()
	g.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.Status(http.StatusInternalServerError) }), limited(limit))
	g.GET("/users/:id", func(*gin.Context) { panic("trouble") })
	knock(g)
	e := echo.New()
	e.Use(echo.WrapMiddleware(limit), writeErrors)
	e.GET("/users/:id", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
	knock(e)
	// Output:
	// 500 0
	// 500 0
	// 500 0
	// 200 0
	// 200 0
	// 200 0
}

// limited adapts net/http middleware to gin.
func limited(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r
			if h, ok := w.(http.Hijacker); ok { // so that a WebSocket holds its slot until it is closed
				c.Writer = hijackable{c.Writer, h}
			}
			defer func() { // for WithRefund, also after a panic
				if c.Writer.Written() { // else another handler can still change the status
					w.WriteHeader(c.Writer.Status())
				}
			}()
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}

// hijackable is gin's writer whose connection is taken over by way of the middleware's.
type hijackable struct {
	gin.ResponseWriter
	by http.Hijacker
}

func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return h.by.Hijack() }

// Unwrap is for an http.ResponseController, such as one that sets deadlines.
func (h hijackable) Unwrap() http.ResponseWriter { return h.ResponseWriter }
