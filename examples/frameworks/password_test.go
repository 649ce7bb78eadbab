package frameworks_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"
	"github.com/labstack/echo/v4"

	"github.com/ratelimit-go/ratelimit/httplimit"
)

// right reports whether the password of r is.
func right(r *http.Request) bool { return r.FormValue("password") == "secret" }

// give gives the charge of a request back.
func give(t *testing.T, r *http.Request) {
	d, ok := httplimit.FromContext(r.Context())
	if err := d.Refund(r.Context()); !ok || err != nil {
		t.Error(ok, err)
	}
}

// logins are handlers of POST /login that answer a wrong password by 401, behind limit.
func logins(t *testing.T, limit func() func(http.Handler) http.Handler, right func(*http.Request) bool) map[string]http.Handler {
	login := func(w http.ResponseWriter, r *http.Request) {
		if !right(r) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "welcome")
	}
	all := make(map[string]http.Handler)

	c := chi.NewRouter()
	c.With(limit()).Post("/login", login)
	all["chi"] = c

	m := mux.NewRouter()
	m.Use(mux.MiddlewareFunc(limit()))
	m.HandleFunc("/login", login)
	all["gorilla"] = m

	for name, wrong := range map[string]func(echo.Context) error{
		"echo: a status":            func(c echo.Context) error { return c.String(http.StatusUnauthorized, "wrong") },
		"echo: no body":             func(c echo.Context) error { return c.NoContent(http.StatusUnauthorized) },
		"echo: an error":            func(echo.Context) error { return echo.NewHTTPError(http.StatusUnauthorized, "wrong") },
		"echo: an error of its own": func(echo.Context) error { return errWrong },
	} {
		e := echo.New()
		e.HTTPErrorHandler = func(err error, c echo.Context) {
			if errors.Is(err, errWrong) {
				err = echo.ErrUnauthorized
			}
			e.DefaultHTTPErrorHandler(err, c)
		}
		e.Use(echo.WrapMiddleware(limit()), writeErrors)
		e.POST("/login", func(c echo.Context) error {
			if !right(c.Request()) {
				return wrong(c)
			}
			return c.String(http.StatusOK, "welcome")
		})
		all[name] = e
	}

	for name, wrong := range map[string]gin.HandlerFunc{
		"gin: a status":        func(c *gin.Context) { c.String(http.StatusUnauthorized, "wrong") },
		"gin: an abort":        func(c *gin.Context) { c.AbortWithStatus(http.StatusUnauthorized) },
		"gin: no body":         func(c *gin.Context) { c.Status(http.StatusUnauthorized) },
		"gin: another status":  func(c *gin.Context) { c.Status(http.StatusOK); c.String(http.StatusUnauthorized, "wrong") },
		"gin: as in net/http":  func(c *gin.Context) { login(c.Writer, c.Request); c.Writer.WriteHeaderNow() },
		"gin: a flush":         func(c *gin.Context) { c.Status(http.StatusUnauthorized); c.Writer.Flush() },
		"gin: a handler above": func(c *gin.Context) { _ = c.Error(errWrong) },
		"gin: a panic":         func(c *gin.Context) { c.String(http.StatusUnauthorized, "wrong"); panic("afterwards") },
	} {
		gin.SetMode(gin.ReleaseMode)
		g := gin.New()
		g.Use(gin.CustomRecoveryWithWriter(nil, func(*gin.Context, any) {}), func(c *gin.Context) {
			c.Next()
			if len(c.Errors) > 0 {
				c.String(http.StatusUnauthorized, "wrong")
			}
		}, limited(limit()))
		g.POST("/login", func(c *gin.Context) {
			if !right(c.Request) {
				wrong(c)
				return
			}
			c.String(http.StatusOK, "welcome")
		})
		all[name] = g
	}
	return all
}

var errWrong = errors.New("wrong password")

func TestOfTwentyWrongPasswordsFiveAreHeardAndRightOnesCostNothing(t *testing.T) {
	for by, ways := range map[string]map[string]http.Handler{
		"the status": logins(t, func() func(http.Handler) http.Handler {
			return httplimit.Middleware(perDay(5), httplimit.WithRefund(httplimit.Successful))
		}, right),
		"all but 401": logins(t, func() func(http.Handler) http.Handler {
			return httplimit.Middleware(perDay(5), httplimit.WithRefund(func(status int) bool { return status != http.StatusUnauthorized }))
		}, right),
		"the decision": logins(t, func() func(http.Handler) http.Handler {
			return httplimit.Middleware(perDay(5), httplimit.WithContext())
		}, func(r *http.Request) bool {
			if !right(r) {
				return false
			}
			give(t, r)
			return true
		}),
	} {
		for name, h := range ways {
			t.Run(name+", by "+by, func(t *testing.T) {
				requireTwenty(t, h, "secret", http.StatusOK, 20)
				requireTwenty(t, h, "guess", http.StatusUnauthorized, 5)
			})
		}
	}
}

func TestFailedRequestsCostNothingIfTheirStatusIsWritten(t *testing.T) {
	for name, h := range logins(t, func() func(http.Handler) http.Handler {
		return httplimit.Middleware(perDay(5), httplimit.WithRefund(func(status int) bool { return status >= 400 }))
	}, right) {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "gin: no body", "gin: a handler above": // written after the middleware
				requireTwenty(t, h, "guess", http.StatusUnauthorized, 5)
			default:
				requireTwenty(t, h, "guess", http.StatusUnauthorized, 20)
				requireTwenty(t, h, "secret", http.StatusOK, 5)
			}
		})
	}
}

// requireTwenty logs in 20 times. The first so many answers are code, and the others 429.
func requireTwenty(t *testing.T, h http.Handler, password string, code, first int) {
	t.Helper()
	for i := range 20 {
		want := code
		if i >= first {
			want = http.StatusTooManyRequests
		}
		if got := try(h, password); got != want {
			t.Fatalf("%s %d: %d", password, i, got)
		}
	}
}

// try logs in.
func try(h http.Handler, password string) int {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader("password="+password))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	quiet := &http.Server{ErrorLog: log.New(io.Discard, "", 0)}
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, quiet)))
	return w.Code
}

// gin's own answer to a request without a route comes after its middlewares, so WithRefund does not see it.
func TestARequestWithoutARouteIsRefundedIfNoRouteAnswersIt(t *testing.T) {
	e := gin.New()
	e.Use(limited(httplimit.Middleware(perDay(5), httplimit.WithRefund(func(status int) bool { return status == http.StatusNotFound }))))
	e.NoRoute(func(c *gin.Context) { c.String(http.StatusNotFound, "404 page not found") })
	for range 9 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/nowhere", nil))
		if w.Code != http.StatusNotFound {
			t.Fatal(w.Code)
		}
	}
}
