package frameworks_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// framework makes a server of a handler that can take over its connection, behind a middleware.
type framework func(limit func(http.Handler) http.Handler, handle func(hijack func() (net.Conn, *bufio.ReadWriter, error))) http.Handler

var slotted = map[string]framework{
	"gin": func(limit func(http.Handler) http.Handler, handle func(func() (net.Conn, *bufio.ReadWriter, error))) http.Handler {
		gin.SetMode(gin.ReleaseMode)
		e := gin.New()
		e.Use(limited(limit))
		e.GET("/", func(c *gin.Context) { handle(c.Writer.Hijack) })
		return e
	},
	"echo": func(limit func(http.Handler) http.Handler, handle func(func() (net.Conn, *bufio.ReadWriter, error))) http.Handler {
		e := echo.New()
		e.Use(echo.WrapMiddleware(limit), writeErrors)
		e.GET("/", func(c echo.Context) error {
			handle(c.Response().Hijack)
			return nil
		})
		return e
	},
}

// eachSlotted tests each framework on each store, with a slot at once.
func eachSlotted(t *testing.T, test func(t *testing.T, f framework, s store.Store)) {
	mem := ratelimit.Must(memstore.New())
	for name, f := range slotted {
		t.Run(name+"/in memory", func(t *testing.T) { test(t, f, mem) })
		t.Run(name+"/on Redis", func(t *testing.T) {
			s, err := redisstore.New(redistest.Start(t).Client(t), redisstore.WithTimeout(10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			test(t, f, s)
		})
	}
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func held(t *testing.T, l ratelimit.Limiter) int {
	t.Helper()
	r, err := l.Peek(t.Context(), "global")
	if err != nil {
		t.Fatal(err)
	}
	return r.Limit - r.Remaining
}

func get(url string) (int, error) {
	res, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode, err
}

// Requests wait for a slot behind the frameworks too: of three one is served, one waits, and one is
// refused at once. Their slots are counted.
func TestRequestsWaitForSlots(t *testing.T) {
	eachSlotted(t, func(t *testing.T, f framework, s store.Store) {
		atOnce := ratelimit.Must(inflight.New(s, 1, time.Minute, ratelimit.WithName("waits "+t.Name())))
		counters := new(inflight.Counters)
		leave := make(chan struct{})
		limit := httplimit.Middleware(atOnce, httplimit.WithKey(httplimit.Global()), httplimit.WithSlots(
			inflight.WaitUpTo(time.Hour), inflight.MaxWaiting(1), inflight.CountIn(counters)))
		server := httptest.NewServer(f(limit, func(func() (net.Conn, *bufio.ReadWriter, error)) { <-leave }))
		defer server.Close()
		codes := make(chan int, 3)
		var requests sync.WaitGroup
		for range 3 {
			requests.Go(func() {
				code, err := get(server.URL)
				if err != nil {
					t.Error(err)
				}
				codes <- code
			})
		}
		if code := <-codes; code != http.StatusTooManyRequests {
			t.Fatal(code)
		}
		eventually(t, "no slot is counted", func() bool { return counters.Stats().Held == 1 })
		close(leave)
		requests.Wait()
		for range 2 {
			if code := <-codes; code != http.StatusOK {
				t.Error(code)
			}
		}
		eventually(t, "a slot is left", func() bool { return held(t, atOnce) == 0 })
		if stats := counters.Stats(); stats.Held != 0 || stats.Released != 2 {
			t.Error(stats)
		}
	})
}

// A connection that a handler takes over, such as a WebSocket, holds its slot until it is closed, and not
// only until the handler returns.
func TestAConnectionThatIsTakenOverHoldsItsSlot(t *testing.T) {
	eachSlotted(t, func(t *testing.T, f framework, s store.Store) {
		atOnce := ratelimit.Must(inflight.New(s, 1, time.Minute, ratelimit.WithName("taken over "+t.Name())))
		counters := new(inflight.Counters)
		taken := make(chan net.Conn, 1)
		limit := httplimit.Middleware(atOnce, httplimit.WithKey(httplimit.Global()), httplimit.WithSlots(inflight.CountIn(counters)))
		returned := make(chan struct{}, 1)
		inner := f(limit, func(hijack func() (net.Conn, *bufio.ReadWriter, error)) {
			c, _, err := hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			taken <- c
		})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner.ServeHTTP(w, r)
			returned <- struct{}{}
		}))
		defer server.Close()
		client, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		_, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		<-returned
		if n := held(t, atOnce); n != 1 {
			t.Error("after the handler", n)
		}
		if code, err := get(server.URL); code != http.StatusTooManyRequests {
			t.Error(code, err)
		}
		<-returned
		_ = (<-taken).Close()
		eventually(t, "the slot is not given back", func() bool { return held(t, atOnce) == 0 })
		if stats := counters.Stats(); stats.Held != 0 || stats.Released != 1 {
			t.Error(stats)
		}
	})
}

// What an http.ResponseController can do without the middleware, it can do behind it, with slots or without.
func TestDeadlinesCanBeSetBehindTheMiddleware(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	atOnce := ratelimit.Must(inflight.New(mem, 1, time.Minute))
	for what, limit := range map[string]func(http.Handler) http.Handler{
		"slots": httplimit.Middleware(atOnce), "a rate": httplimit.Middleware(perDay(9)),
		"refunds": httplimit.Middleware(perDay(9), httplimit.WithRefund(httplimit.Failed)),
	} {
		gin.SetMode(gin.ReleaseMode)
		g := gin.New()
		g.Use(limited(limit))
		deadline := func(w http.ResponseWriter) {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}
		g.GET("/", func(c *gin.Context) { deadline(c.Writer) })
		e := echo.New()
		e.Use(echo.WrapMiddleware(limit), writeErrors)
		e.GET("/", func(c echo.Context) error {
			deadline(c.Response())
			return nil
		})
		for name, h := range map[string]http.Handler{"gin": g, "echo": e} {
			server := httptest.NewServer(h)
			if code, err := get(server.URL); code != http.StatusNoContent || err != nil {
				t.Errorf("%s, %s: %d, %v", name, what, code, err)
			}
			server.Close()
		}
	}
}
