// Package fiber shows the middleware of httplimit in fiber, which is not built on net/http. It
// is a module of its own, so that users of other frameworks do not download it.
package fiber_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
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

// fiber answers after the middleware, so that WithRefund sees no status. A handler finds the
// decision in its context, and gives the charge back itself.
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

// limited is middleware of net/http as fiber's.
func limited(middleware func(http.Handler) http.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		passed := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed = true
			c.SetContext(r.Context())
		})
		if err := adaptor.HTTPHandler(middleware(next))(c); err != nil || !passed {
			return err
		}
		return c.Next()
	}
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
	out := log.Writer()
	log.SetOutput(io.Discard) // the line that WithRefund has seen nothing
	defer log.SetOutput(out)
	for name, opt := range map[string]httplimit.ServerOption{
		"by the decision":                     httplimit.WithContext(),
		"by the status, which nothing writes": httplimit.WithRefund(httplimit.Successful),
	} {
		t.Run(name, func(t *testing.T) {
			app := fiber.New()
			app.Use(limited(httplimit.Middleware(perDay(5), opt)))
			app.Post("/login", func(fiber.Ctx) error { return fiber.ErrUnauthorized })
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
