package httplimit_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

// spent returns how many events of key are charged.
func spent(t testing.TB, lim ratelimit.Limiter, key string) int {
	t.Helper()
	r, err := lim.Peek(context.Background(), key)
	require.NoError(t, err)
	return r.Limit - r.Remaining
}

func TestARequestCountsByTheStatusThatWasWritten(t *testing.T) {
	for _, c := range []struct {
		name                   string
		handler                http.HandlerFunc
		failed, panics, unseen bool
	}{
		{name: "nothing written", unseen: true, handler: func(http.ResponseWriter, *http.Request) {}},
		{name: "a body", handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x") }},
		{name: "a body of bytes", handler: func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("x")) }},
		{name: "500", handler: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "x", http.StatusInternalServerError) }, failed: true},
		{name: "the first status counts", failed: true, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			w.WriteHeader(http.StatusOK)
		}},
		{name: "information does not count", failed: true, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusBadGateway)
		}},
		{name: "a status after the body", handler: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "x")
			w.WriteHeader(http.StatusInternalServerError)
		}},
		{name: "a stream that ends in a status", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.WriteHeader(http.StatusInternalServerError)
		}},
		{name: "the same by a ResponseController", handler: func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			w.WriteHeader(http.StatusInternalServerError)
		}},
		{name: "a file", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader("x"))
			w.WriteHeader(http.StatusInternalServerError)
		}},
		{name: "a copy that fails before its first byte", failed: true, handler: func(w http.ResponseWriter, _ *http.Request) {
			if _, err := w.(io.ReaderFrom).ReadFrom(iotest.ErrReader(io.ErrUnexpectedEOF)); err != nil {
				w.WriteHeader(http.StatusBadGateway)
			}
		}},
		{name: "a copy of nothing", failed: true, handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader(""))
			w.WriteHeader(http.StatusBadGateway)
		}},
		{name: "a panic", failed: true, panics: true, handler: func(http.ResponseWriter, *http.Request) { panic("x") }},
		{name: "an abort", failed: true, panics: true, handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{name: "a panic after the status", panics: true, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			panic(http.ErrAbortHandler)
		}},
		{name: "a status that is none", failed: true, panics: true, handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(7) }},
		{name: "a connection taken over", panics: true, handler: func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}},
		{name: "the same by a ResponseController", panics: true, handler: func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for option, refunded := range map[string]bool{"failed": c.failed, "successful": !c.failed} {
				lim := window(t, memory(t), ratelimit.PerHour(100))
				refund := map[string]func(int) bool{"failed": httplimit.Failed, "successful": httplimit.Successful}[option]
				err := overLoopback(t, httplimit.Middleware(lim, httplimit.WithRefund(refund), httplimit.WithKey(httplimit.Global()),
					httplimit.WithCost(func(*http.Request) int { return 3 }))(c.handler))
				require.Equal(t, c.panics, err != nil, "the client sees what it would without us")
				want := 3
				if refunded && !c.unseen {
					want = 0
				}
				require.Equal(t, want, spent(t, lim, "global"), option)
			}
		})
	}
}

// Most middlewares put a ResponseWriter around another one through which only an http.ResponseController gets.
func TestAStatusIsSeenThroughAnotherWriter(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"taken over": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
		},
	} {
		for around, writer := range map[string]func(http.ResponseWriter) http.ResponseWriter{
			"plain":   func(w http.ResponseWriter) http.ResponseWriter { return wrapping{w} },
			"flushes": func(w http.ResponseWriter) http.ResponseWriter { return flushing{wrapping{w}, w.(http.Flusher)} },
			"takes over": func(w http.ResponseWriter) http.ResponseWriter {
				return struct {
					wrapping
					http.Hijacker
				}{wrapping{w}, w.(http.Hijacker)}
			},
		} {
			lim := window(t, memory(t), ratelimit.PerHour(100))
			limited := httplimit.Middleware(lim, httplimit.WithRefund(httplimit.Successful), httplimit.WithKey(httplimit.Global()))(handler)
			require.Error(t, overLoopback(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { limited.ServeHTTP(writer(w), r) })))
			require.Zero(t, spent(t, lim, "global"), "%s, %s", name, around)
		}
	}
}

// overLoopback is a request to h by a real server, and the end of h.
func overLoopback(t testing.TB, h http.Handler) error {
	t.Helper()
	done := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		h.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = quiet
	server.Start()
	defer server.Close()
	res, err := server.Client().Post(server.URL, "text/plain", nil) // which is not sent again if it fails
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	<-done
	return err
}

func TestAnAnswerThatWentPastTheMiddlewareIsNotRefundedAndTheLogSaysSoOnce(t *testing.T) {
	for name, refund := range map[string]func(int) bool{
		"Failed": httplimit.Failed, "Successful": httplimit.Successful,
		"all but 401": func(status int) bool { return status != http.StatusUnauthorized },
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			ctx := context.WithValue(t.Context(), http.ServerContextKey, &http.Server{ErrorLog: log.New(&said, "", 0)})
			limit := httplimit.Middleware(window(t, memory(t), ratelimit.PerHour(5)), httplimit.WithRefund(refund))
			guess := func() (code int) {
				framework := httptest.NewRecorder() // whose handlers do not write to the middleware's w
				limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					framework.WriteHeader(http.StatusUnauthorized)
				})).ServeHTTP(framework, get(alice).WithContext(ctx))
				return framework.Code
			}
			for i := range 20 {
				require.Equal(t, i < 5, guess() == http.StatusUnauthorized, "guess %d", i)
			}
			require.Equal(t, "httplimit: WithRefund refunded nothing, because a handler wrote nothing to the ResponseWriter that it got: "+
				"let the framework write through it, or call Decision.Refund\n", said.String())
		})
	}
}

func TestAHandlerWhoseClientHasGoneMayWriteNothing(t *testing.T) {
	var said bytes.Buffer
	ctx := context.WithValue(t.Context(), http.ServerContextKey, &http.Server{ErrorLog: log.New(&said, "", 0)})
	ctx, hangUp := context.WithCancel(ctx)
	h := httplimit.Middleware(window(t, memory(t), ratelimit.PerHour(5)), httplimit.WithRefund(httplimit.Failed))(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hangUp() }))
	serve(h, get(alice).WithContext(ctx))
	require.Empty(t, said.String())
}

func TestADecisionIsRefundedOnceWhoeverAsksAndHoweverOften(t *testing.T) {
	for name, s := range map[string]store.Store{"in memory": memory(t), "on Redis": onRedis(t)} {
		for _, opts := range [][]httplimit.ServerOption{
			{httplimit.WithContext()},
			{httplimit.WithContext(), httplimit.WithRefund(httplimit.Successful)},
		} {
			t.Run(fmt.Sprint(name, " ", len(opts)), func(t *testing.T) {
				lim := window(t, s, ratelimit.PerHour(100), ratelimit.WithName(t.Name()))
				_, err := lim.AllowN(t.Context(), "192.0.2.1", 7)
				require.NoError(t, err)
				h := httplimit.Middleware(lim, append(opts, httplimit.WithCost(func(*http.Request) int { return 3 }))...)(
					http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						require.Equal(t, 10, spent(t, lim, "192.0.2.1"), "charged before")
						var all sync.WaitGroup
						for range 10 {
							all.Go(func() {
								d, ok := httplimit.FromContext(r.Context())
								require.True(t, ok)
								require.NoError(t, d.Refund(r.Context()))
							})
						}
						all.Wait()
						require.Equal(t, 7, spent(t, lim, "192.0.2.1"), "and given back at once")
						w.WriteHeader(http.StatusNoContent)
					}))
				require.Equal(t, http.StatusNoContent, serve(h, get(alice)).StatusCode)
				require.Equal(t, 7, spent(t, lim, "192.0.2.1"))
			})
		}
	}
}

func TestADecisionIsRefundedAlsoIfTheClientHasGone(t *testing.T) {
	for name, s := range map[string]store.Store{"in memory": memory(t), "on Redis": onRedis(t)} {
		t.Run(name, func(t *testing.T) {
			lim := window(t, s, ratelimit.PerHour(100), ratelimit.WithName(t.Name()))
			ctx, hangUp := context.WithCancel(t.Context())
			h := httplimit.Middleware(lim, httplimit.WithContext())(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				hangUp()
				d, _ := httplimit.FromContext(r.Context())
				require.NoError(t, d.Refund(r.Context()))
			}))
			serve(h, get(alice).WithContext(ctx))
			require.Equal(t, 0, spent(t, lim, "192.0.2.1"))
		})
	}
}

func TestUnchargedEventsAreNotRefunded(t *testing.T) {
	lim := window(t, memory(t), ratelimit.PerHour(1))
	r, err := lim.Allow(t.Context(), "192.0.2.1")
	require.NoError(t, err)
	for name, d := range map[string]httplimit.Decision{
		"the zero Decision": {}, "one that no middleware made": httplimit.NewDecision(t.Context(), lim, "192.0.2.1", r),
	} {
		require.ErrorIs(t, d.Refund(t.Context()), ratelimit.ErrInvalidOption, name)
	}
	denied := false
	h := httplimit.Middleware(lim, httplimit.WithContext(), httplimit.WithDeniedHandler(
		func(_ http.ResponseWriter, r *http.Request, _ http.Handler, _ httplimit.Decision) {
			d, _ := httplimit.FromContext(r.Context())
			denied = !d.Result.Allowed
			require.ErrorIs(t, d.Refund(r.Context()), ratelimit.ErrInvalidN)
		}))(http.NotFoundHandler())
	serve(h, get(alice))
	require.True(t, denied)
	require.Equal(t, 1, spent(t, lim, "192.0.2.1"))
}

func TestTheErrorOfADecisionsRefundIsTheLimiters(t *testing.T) {
	lim := failingRefund{window(t, memory(t), ratelimit.PerHour(2))}
	h := httplimit.Middleware(lim, httplimit.WithContext())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := httplimit.FromContext(r.Context())
		require.EqualError(t, d.Refund(r.Context()), "down")
		require.EqualError(t, d.Refund(r.Context()), "down", "it is tried once, and nobody takes it for made")
	}))
	require.Equal(t, http.StatusOK, serve(h, get(alice)).StatusCode)
}

func TestARefundIsMadeAlsoIfTheClientHasGone(t *testing.T) {
	for name, s := range map[string]store.Store{"in memory": memory(t), "on Redis": onRedis(t)} {
		t.Run(name, func(t *testing.T) {
			lim := window(t, s, ratelimit.PerHour(100))
			ctx, cancel := context.WithCancel(t.Context())
			h := httplimit.Middleware(lim, httplimit.WithRefund(func(status int) bool { return status == http.StatusNoContent }))(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					require.Equal(t, 1, spent(t, lim, "192.0.2.1"), "charged before")
					cancel()
					w.WriteHeader(http.StatusNoContent)
				}))
			serve(h, get(alice).WithContext(ctx))
			require.Equal(t, 0, spent(t, lim, "192.0.2.1"))
		})
	}
}

func TestAClientThatHangsUpOnAReverseProxyIsNotRefunded(t *testing.T) {
	for name, c := range map[string]struct {
		refund func(int) bool
		want   int // requests that reach the backend
	}{
		"Failed":            {httplimit.Failed, 5},
		"Successful":        {httplimit.Successful, 5},
		"all errors":        {func(status int) bool { return status >= 400 }, 100},
		"those of a server": {func(status int) bool { return status >= 500 }, 5},
	} {
		reached, hangUp := 0, func() {}
		proxy := &httputil.ReverseProxy{
			Rewrite:  func(r *httputil.ProxyRequest) { r.Out.URL.Host = "backend" },
			ErrorLog: quiet,
			Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				reached++
				hangUp()
				return nil, r.Context().Err()
			}),
		}
		h := httplimit.Middleware(window(t, memory(t), ratelimit.PerHour(5)), httplimit.WithRefund(c.refund))(proxy)
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			hangUp = cancel
			serve(h, get(alice).WithContext(ctx))
		}
		require.Equal(t, c.want, reached, name)
	}
}

func TestABodyThatIsNoneIsNotRefundedThoughAReverseProxyAnswers502(t *testing.T) {
	const chunked = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
	for name, text := range map[string]string{
		"no chunk":         chunked + "zz\r\n",
		"a chunk too long": chunked + "fffffffffffffffff\r\n",
		"no trailer":       chunked + "0\r\nnone\r\n\r\n",
		"an end too soon":  chunked + "10\r\nx",
		"a body too short": "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nx",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var reached atomic.Int32
			backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				reached.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
			}))
			defer backend.Close()
			target, err := url.Parse(backend.URL)
			require.NoError(t, err)
			proxy := httputil.NewSingleHostReverseProxy(target)
			proxy.ErrorLog = quiet
			front := httptest.NewServer(httplimit.Middleware(window(t, memory(t), ratelimit.PerDay(5)), httplimit.WithRefund(httplimit.Failed))(proxy))
			defer front.Close()

			codes := map[int]int{}
			for range 20 {
				conn, err := net.Dial("tcp", front.Listener.Addr().String())
				require.NoError(t, err)
				_, err = io.WriteString(conn, text)
				require.NoError(t, err)
				require.NoError(t, conn.(*net.TCPConn).CloseWrite())
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err)
				codes[res.StatusCode]++
				require.NoError(t, conn.Close())
			}
			require.Equal(t, map[int]int{http.StatusBadGateway: 5, http.StatusTooManyRequests: 15}, codes)
			require.LessOrEqual(t, reached.Load(), int32(5))
		})
	}
}

func TestOnlyABodyThatTheClientHasBrokenIsTheClients(t *testing.T) {
	broken := iotest.ErrReader(errors.New("malformed chunked encoding"))
	const data = "x"
	read := func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
	for name, c := range map[string]struct {
		sent    func() io.Reader
		do      func(*http.Request)
		status  int
		charged int
	}{
		"broken":       {func() io.Reader { return broken }, read, http.StatusBadGateway, 1},
		"broken later": {func() io.Reader { return io.MultiReader(strings.NewReader(data), broken) }, read, http.StatusBadGateway, 1},
		"broken beside its data": {func() io.Reader { return iotest.DataErrReader(io.MultiReader(strings.NewReader(data), broken)) },
			read, http.StatusBadGateway, 1},
		"too short": {func() io.Reader { return iotest.ErrReader(io.ErrUnexpectedEOF) }, read, http.StatusBadGateway, 1},
		"broken, and a panic": {func() io.Reader { return broken }, func(r *http.Request) { read(r); panic(http.ErrAbortHandler) },
			http.StatusInternalServerError, 1},
		"broken, and closed": {func() io.Reader { return broken }, func(r *http.Request) { read(r); r.Body.Close() }, http.StatusBadGateway, 1},
		"broken, and served": {func() io.Reader { return broken }, read, http.StatusOK, 1},
		"whole":              {func() io.Reader { return strings.NewReader(data) }, read, http.StatusBadGateway, 0},
		"whole, and its end": {func() io.Reader { return iotest.DataErrReader(strings.NewReader(data)) }, read, http.StatusBadGateway, 0},
		"not read":           {func() io.Reader { return broken }, func(*http.Request) {}, http.StatusBadGateway, 0},
		"closed, then read": {func() io.Reader { return iotest.ErrReader(http.ErrBodyReadAfterClose) },
			func(r *http.Request) { r.Body.Close(); read(r) }, http.StatusBadGateway, 0},
		"none": {func() io.Reader { return http.NoBody }, func(r *http.Request) { require.Equal(t, http.NoBody, r.Body) },
			http.StatusBadGateway, 0},
		"none at all": {func() io.Reader { return nil }, func(*http.Request) {}, http.StatusBadGateway, 0},
	} {
		for _, opts := range [][]httplimit.ServerOption{nil, {httplimit.WithContext()}} {
			lim := window(t, memory(t), ratelimit.PerHour(100))
			h := httplimit.Middleware(lim, append(opts, httplimit.WithRefund(httplimit.Failed))...)(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c.do(r)
					w.WriteHeader(c.status)
				}))
			r := httptest.NewRequest(http.MethodPost, "/", c.sent())
			if r.RemoteAddr = alice; name == "none at all" {
				r.Body = nil
			}
			func() {
				defer func() { _ = recover() }() // of the panic
				serve(h, r)
			}()
			require.Equal(t, c.charged, spent(t, lim, "192.0.2.1"), "%s %d", name, len(opts))
		}
	}
}

// Otherwise, a client could ask for things that do not exist without end.
func TestErrorsOfClientsAreNeitherFailuresNorSuccesses(t *testing.T) {
	for status := 400; status < 500; status++ {
		require.False(t, httplimit.Failed(status))
		require.False(t, httplimit.Successful(status))
	}
	require.True(t, httplimit.Failed(500))
	require.True(t, httplimit.Successful(399))
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRequestsUnderWayAreChargedUntilTheyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := window(t, memory(t), ratelimit.PerHour(2))
		h := httplimit.Middleware(lim, httplimit.WithRefund(httplimit.Failed))(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(time.Second)
				w.WriteHeader(http.StatusBadGateway)
			}))
		codes := make(chan int, 5)
		for range 5 {
			go func() { codes <- serve(h, get(alice)).StatusCode }()
		}
		refused := 0
		for range 5 {
			if <-codes == http.StatusTooManyRequests {
				refused++
			}
		}
		require.Equal(t, 3, refused)
		require.Equal(t, 0, spent(t, lim, "192.0.2.1"))
	})
}

func TestARefundThatFailsLeavesTheAnswer(t *testing.T) {
	lim := failingRefund{window(t, memory(t), ratelimit.PerHour(2))}
	h := protect(t, lim, httplimit.WithRefund(httplimit.Successful))
	require.Equal(t, http.StatusOK, serve(h, get(alice)).StatusCode)
}

type failingRefund struct{ ratelimit.Limiter }

func (failingRefund) Refund(context.Context, string, ratelimit.Result, int) error {
	return errors.New("down")
}

// everything is a ResponseWriter with all optional methods.
type everything struct{ *httptest.ResponseRecorder }

func (everything) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }
func (everything) ReadFrom(io.Reader) (int64, error)            { return 0, nil }
func (everything) Push(string, *http.PushOptions) error         { return nil }
func (everything) SetReadDeadline(time.Time) error              { return nil }
func (everything) SetWriteDeadline(time.Time) error             { return nil }
func (everything) EnableFullDuplex() error                      { return nil }

func TestTheOptionalMethodsAreThoseOfTheWriterBeneath(t *testing.T) {
	lim := window(t, memory(t), ratelimit.PerHour(100))
	var seen http.ResponseWriter
	look := httplimit.Middleware(lim, httplimit.WithRefund(httplimit.Failed))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { seen = w }))

	look.ServeHTTP(everything{httptest.NewRecorder()}, get(alice))
	require.Implements(t, (*http.Flusher)(nil), seen)
	require.Implements(t, (*http.Hijacker)(nil), seen)
	require.Implements(t, (*http.Pusher)(nil), seen)
	require.Implements(t, (*io.ReaderFrom)(nil), seen)
	require.Implements(t, (*io.StringWriter)(nil), seen)
	c := http.NewResponseController(seen)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	require.NoError(t, c.EnableFullDuplex())

	look.ServeHTTP(&emptied{make(http.Header)}, get(alice))
	require.NotImplements(t, (*http.Flusher)(nil), seen, "none is invented")
	require.NotImplements(t, (*http.Hijacker)(nil), seen)
}

func TestWithoutRefundsTheWriterIsTheServersOwn(t *testing.T) {
	w := httptest.NewRecorder()
	httplimit.Middleware(window(t, memory(t), ratelimit.PerHour(1)))(
		http.HandlerFunc(func(seen http.ResponseWriter, _ *http.Request) { require.Same(t, w, seen) })).ServeHTTP(w, get(alice))
}

// The server looks at the type of its own Body: whether it is to wait for a body that nobody reads, and whether
// what comes next is another request.
func TestABodyThatIsNotReadIsNeitherWaitedForNorARequest(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	h := httplimit.Middleware(window(t, memory(t), ratelimit.PerDay(9)), httplimit.WithRefund(httplimit.Failed))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			if r.URL.Path == "/close" { // as a proxy does whose backend is down
				r.Body.Close()
			}
			w.WriteHeader(http.StatusBadGateway)
		}))
	server := httptest.NewServer(h)
	defer server.Close()
	size := 1 << 20
	for name, request := range map[string]string{
		"expects":   fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", size),
		"is closed": fmt.Sprintf("POST /close HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size) + strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", size/27),
	} {
		t.Run(name, func(t *testing.T) {
			calls.Store(0)
			c, err := net.Dial("tcp", server.Listener.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
			go func() { _, _ = io.WriteString(c, request) }()
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err)
			require.Equal(t, http.StatusBadGateway, res.StatusCode)
			require.True(t, res.Close, "the connection is not used again")
			_, _ = io.Copy(io.Discard, c)
			require.EqualValues(t, 1, calls.Load())
		})
	}
}

// Everything that a handler finds out about a request is also known to the server and to handlers
// outside the middleware.
func TestChangesToARequestAreSeenOutsideTheMiddleware(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /users/{id}", func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, r.ParseMultipartForm(1))
		w.WriteHeader(http.StatusNoContent)
	})
	for _, opts := range [][]httplimit.ServerOption{
		nil, {httplimit.WithRefund(httplimit.Failed)}, {httplimit.WithContext()}, {httplimit.WithCancelLost()},
		{httplimit.WithRefund(httplimit.Failed), httplimit.WithContext(), httplimit.WithCancelLost()},
	} {
		s := living(t)
		h := httplimit.Middleware(ratelimittest.All(t, slots(t, s, 1), window(t, s, ratelimit.PerDay(1))), opts...)(mux)
		r := httptest.NewRequest(http.MethodPost, "/users/7", strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x--\r\n"))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		h.ServeHTTP(httptest.NewRecorder(), r)
		require.Equal(t, "POST /users/{id}", r.Pattern)
		require.NotNil(t, r.MultipartForm, "whose files the server removes")
	}
}
