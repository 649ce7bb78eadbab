// Package fiber shows the middleware of httplimit in fiber, which is not built on net/http. It
// is a module of its own, so that users of other frameworks do not download it.
package fiber_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gofiber/fiber/v3/middleware/recover"

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

// A handler finds the decision in its context, and gives the charge back itself. WithRefund(Successful) does
// that by the status.
func Example() {
	app := fiber.New()
	app.Use(limited(httplimit.Middleware(perDay(2), httplimit.WithContext())))
	app.Post("/login", func(c fiber.Ctx) error {
		if c.FormValue("password") != "secret" {
			return fiber.NewError(fiber.StatusUnauthorized, "wrong password")
		}
		if d, ok := httplimit.FromContext(c.Context()); ok {
			if err := d.Refund(c.Context()); err != nil {
				log.Print(err) // it stays charged
			}
		}
		return c.SendString("welcome")
	})
	for _, password := range []string{"secret", "secret", "secret", "guess", "guess", "guess"} {
		fmt.Println(password, login(app, password))
	}
	// Output:
	// secret 200
	// secret 200
	// secret 200
	// guess 401
	// guess 401
	// guess 429
}

// Where no handler asks for the decision, fiber's own adaptor does.
func Example_adaptor() {
	app := fiber.New()
	app.Use(adaptor.HTTPMiddleware(httplimit.Middleware(perDay(2))))
	app.Post("/login", func(c fiber.Ctx) error { return c.SendString("welcome") })
	for range 3 {
		fmt.Println(login(app, "secret"))
	}
	// Output:
	// 200
	// 200
	// 429
}

// limited adapts net/http middleware to fiber. The middleware runs fiber's handlers, so it sees their
// status and holds their slots.
func limited(middleware func(http.Handler) http.Handler) fiber.Handler {
	return func(c fiber.Ctx) (err error) {
		r, err := adaptor.ConvertRequest(c, false)
		if err != nil {
			return err
		}
		answer := &writer{c: c, header: http.Header{}}
		middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer.passed = true
			answer.send()
			c.SetContext(r.Context())
			err = c.Next()
			w.WriteHeader(statusOf(c, err))
		})).ServeHTTP(answer, r)
		return err
	}
}

// writer is the http.ResponseWriter of a request that fiber answers.
type writer struct {
	c      fiber.Ctx
	header http.Header
	passed bool // the handlers answer
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) Write(b []byte) (int, error) { return w.c.Write(b) }

func (w *writer) WriteHeader(code int) {
	if !w.passed {
		w.send()
		w.c.Status(code)
	}
}

func (w *writer) send() {
	for name, values := range w.header {
		for _, v := range values {
			w.c.Response().Header.Add(name, v)
		}
	}
}

// statusOf is the status that fiber answers with after err.
func statusOf(c fiber.Ctx, err error) int {
	var known *fiber.Error
	switch {
	case errors.As(err, &known):
		return known.Code
	case err != nil:
		return fiber.StatusInternalServerError
	}
	return c.Response().StatusCode()
}

// login returns the status of an attempt.
func login(app *fiber.App, password string) int {
	r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader("password="+password))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := app.Test(r)
	if err != nil {
		log.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

func TestOfTwentyWrongPasswordsFiveAreHeard(t *testing.T) {
	for name, opt := range map[string]httplimit.ServerOption{
		"by the decision": httplimit.WithContext(),
		"by the status":   httplimit.WithRefund(httplimit.Successful),
	} {
		t.Run(name, func(t *testing.T) {
			app := fiber.New()
			app.Use(limited(httplimit.Middleware(perDay(5), opt)))
			app.Post("/login", func(c fiber.Ctx) error {
				if c.FormValue("password") != "secret" {
					return fiber.ErrUnauthorized
				}
				if d, ok := httplimit.FromContext(c.Context()); ok {
					if err := d.Refund(c.Context()); err != nil {
						t.Error(err)
					}
				}
				return c.SendString("welcome")
			})
			for range 10 {
				if code := login(app, "secret"); code != fiber.StatusOK {
					t.Fatal(code)
				}
			}
			for i := range 20 {
				want := fiber.StatusUnauthorized
				if i >= 5 {
					want = fiber.StatusTooManyRequests
				}
				if code := login(app, "guess"); code != want {
					t.Fatalf("guess %d: %d", i, code)
				}
			}
		})
	}
}

// A request holds its slot while fiber's handler runs, returns an error or panics, and its answer has the
// fields of the middleware and those of the handler.
func TestARequestHoldsItsSlot(t *testing.T) {
	atOnce := ratelimit.Must(inflight.New(ratelimit.Must(memstore.New()), 1, time.Minute))
	app := fiber.New()
	app.Use(recover.New())
	app.Use(limited(httplimit.Middleware(atOnce, httplimit.WithKey(httplimit.Global()))))
	inside, leave := make(chan struct{}), make(chan struct{})
	app.Get("/slow", func(c fiber.Ctx) error {
		inside <- struct{}{}
		<-leave
		c.Set("X-Of-Handler", "yes")
		return c.Status(fiber.StatusAccepted).SendString("done")
	})
	app.Get("/fails", func(fiber.Ctx) error { return fiber.ErrTeapot })
	app.Get("/panics", func(fiber.Ctx) error { panic("on purpose") })
	get := func(path string) *http.Response {
		res, err := app.Test(httptest.NewRequest(http.MethodGet, path, nil), fiber.TestConfig{Timeout: time.Minute})
		if err != nil {
			t.Error(err)
			return &http.Response{}
		}
		_ = res.Body.Close()
		return res
	}
	first := make(chan *http.Response)
	go func() { first <- get("/slow") }()
	<-inside
	if res := get("/fails"); res.StatusCode != fiber.StatusTooManyRequests || res.Header.Get("Content-Type") != "application/problem+json" {
		t.Error(res.StatusCode, res.Header)
	}
	close(leave)
	if res := <-first; res.StatusCode != fiber.StatusAccepted || res.Header.Get("RateLimit") == "" || res.Header.Get("X-Of-Handler") != "yes" {
		t.Error(res.StatusCode, res.Header)
	}
	for path, want := range map[string]int{"/fails": fiber.StatusTeapot, "/panics": fiber.StatusInternalServerError} {
		if res := get(path); res.StatusCode != want {
			t.Error(path, res.StatusCode)
		}
	}
	if r, err := atOnce.Peek(t.Context(), "global"); err != nil || r.Remaining != 1 {
		t.Error(r, err)
	}
}

// The tenth wrong password bans, as in docs/login.md. What the limit denies is no strike.
func TestTheTenthWrongPasswordBans(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	attempts := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerDay(15), ratelimit.WithName("login")))
	free := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.Unlimited(), ratelimit.WithName("wrong-passwords")))
	door := ratelimit.Must(ratelimit.NewBan(free, mem, ratelimit.Penalty{Denials: 10, Within: time.Hour, For: time.Hour}))
	app := fiber.New()
	app.Use(limited(httplimit.Middleware(ratelimit.Must(ratelimit.NewAll(door, attempts)), httplimit.WithContext())))
	app.Post("/login", func(c fiber.Ctx) error {
		if c.FormValue("password") != "secret" {
			if d, ok := httplimit.FromContext(c.Context()); ok {
				if _, err := door.Strike(context.WithoutCancel(c.Context()), d.Key, 1); err != nil {
					t.Error(err)
				}
			}
			return fiber.ErrUnauthorized
		}
		return c.SendString("welcome")
	})
	for range 15 { // all of the limit: the rest is denied
		if code := login(app, "secret"); code != fiber.StatusOK {
			t.Fatal(code)
		}
	}
	for range 20 {
		if code := login(app, "secret"); code != fiber.StatusTooManyRequests {
			t.Fatal(code)
		}
	}
	if err := attempts.Reset(t.Context(), "0.0.0.0"); err != nil {
		t.Fatal(err)
	}
	for i := range 11 {
		want := fiber.StatusUnauthorized
		if i == 10 {
			want = fiber.StatusTooManyRequests
		}
		if code := login(app, "guess"); code != want {
			t.Fatalf("guess %d: %d", i, code)
		}
	}
}
