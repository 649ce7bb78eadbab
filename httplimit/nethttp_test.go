package httplimit_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// variants are the middleware in each form in which a handler gets another ResponseWriter or Request.
func variants(t *testing.T) map[string]func(http.Handler) http.Handler {
	t.Helper()
	lists, err := accesslist.New(plenty(t))
	require.NoError(t, err)
	atOnce := slots(t, living(t), 1)
	both := ratelimittest.All(t, plenty(t), atOnce)
	refund, inContext, cancel := httplimit.WithRefund(httplimit.Failed), httplimit.WithContext(), httplimit.WithCancelLost()
	all := map[string]func(http.Handler) http.Handler{"no middleware": func(h http.Handler) http.Handler { return h }}
	for name, m := range map[string]func(http.Handler) http.Handler{
		"rates":                        httplimit.Middleware(plenty(t), global),
		"lists":                        httplimit.Middleware(lists),
		"WithContext":                  httplimit.Middleware(plenty(t), global, inContext),
		"WithRefund":                   httplimit.Middleware(plenty(t), global, refund),
		"WithRefund, WithContext":      httplimit.Middleware(plenty(t), global, refund, inContext),
		"slots":                        httplimit.Middleware(atOnce, global),
		"slots, WithCancelLost":        httplimit.Middleware(atOnce, global, cancel),
		"slots and rates, all options": httplimit.Middleware(both, global, refund, inContext, cancel),
	} {
		all[name] = m
	}
	all["slots around WithRefund"] = func(h http.Handler) http.Handler { return all["slots"](all["WithRefund"](h)) }
	return all
}

// Optional methods that net/http and users look for in a ResponseWriter exist behind the middleware
// if the server has them. TestABodyThatIsTooLargeEndsTheConnection covers the one without an
// exported name.
func TestOptionalMethodsOfAResponseWriterAreKept(t *testing.T) {
	look := func(w http.ResponseWriter) map[string]bool {
		found := make(map[string]bool)
		_, found["Flusher"] = w.(http.Flusher)
		_, found["FlushError"] = w.(interface{ FlushError() error })
		_, found["Hijacker"] = w.(http.Hijacker)
		_, found["Pusher"] = w.(http.Pusher)
		_, found["CloseNotifier"] = w.(http.CloseNotifier) //nolint:staticcheck // still looked for
		_, found["ReaderFrom"] = w.(io.ReaderFrom)
		_, found["StringWriter"] = w.(io.StringWriter)
		_, found["EnableFullDuplex"] = w.(interface{ EnableFullDuplex() error })
		_, found["SetReadDeadline"] = w.(interface{ SetReadDeadline(time.Time) error })
		_, found["SetWriteDeadline"] = w.(interface{ SetWriteDeadline(time.Time) error })
		c := http.NewResponseController(w)
		for name, err := range map[string]error{
			"controller's read deadline": c.SetReadDeadline(time.Time{}), "controller's write deadline": c.SetWriteDeadline(time.Time{}),
			"controller's full duplex": c.EnableFullDuplex(), "controller's flush": c.Flush(),
		} {
			found[name] = err == nil
		}
		return found
	}
	for _, h2 := range []bool{false, true} {
		var want map[string]bool
		all := variants(t)
		for _, name := range append([]string{"no middleware"}, keys(all)...) {
			found := make(chan map[string]bool, 1)
			server := httptest.NewUnstartedServer(all[name](http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { found <- look(w) })))
			server.EnableHTTP2 = h2
			server.StartTLS()
			res, err := server.Client().Get(server.URL)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, res.Body) // until the handler is done
			require.NoError(t, err)
			res.Body.Close()
			server.Close()
			require.Equal(t, h2, res.ProtoMajor == 2)
			got := <-found
			if want == nil {
				want = got
			}
			for _, either := range []string{"Pusher", "ReaderFrom", "StringWriter"} { // done without the server's, or told that it cannot be
				got[either] = got[either] && want[either]
			}
			require.Equal(t, want, got, "%s, HTTP/2 %v", name, h2)
		}
		require.Equal(t, !h2, want["Hijacker"])
		require.Equal(t, h2, want["Pusher"])
	}
}

// An optional method that is not supported fails as it does without the middleware.
func TestUnsupportedMethodsOfAResponseWriterFail(t *testing.T) {
	for name, m := range variants(t) {
		type plain struct{ http.ResponseWriter } // hides all other methods
		recorder := httptest.NewRecorder()
		m(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			require.ErrorIs(t, c.Flush(), http.ErrNotSupported, name)
			require.ErrorIs(t, c.SetReadDeadline(time.Time{}), http.ErrNotSupported, name)
			_, _, err := c.Hijack()
			require.ErrorIs(t, err, http.ErrNotSupported, name)
			if p, ok := w.(http.Pusher); ok {
				require.ErrorIs(t, p.Push("/", nil), http.ErrNotSupported, name)
			}
			require.NotImplements(t, (*http.Flusher)(nil), w)
			w.WriteHeader(http.StatusTeapot)
			n, err := io.Copy(w, strings.NewReader("short"))
			require.NoError(t, err)
			require.EqualValues(t, 5, n)
		})).ServeHTTP(plain{recorder}, get("192.0.2.1:1"))
		require.Equal(t, http.StatusTeapot, recorder.Code, name)
		require.Equal(t, "short", recorder.Body.String(), name)
	}
}

// A Flush that cannot be done has written nothing: the charge of a handler that then fails is refunded.
func TestAFlushThatCannotBeDoneIsNoAnswer(t *testing.T) {
	l := plenty(t)
	handler := httplimit.Middleware(l, global, httplimit.WithRefund(httplimit.Failed))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		require.ErrorIs(t, http.NewResponseController(w).Flush(), http.ErrNotSupported)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	handler.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, get("192.0.2.1:1"))
	require.Zero(t, spent(t, l, "global"))
}

func keys[V any](m map[string]V) (all []string) {
	for name := range m {
		all = append(all, name)
	}
	return all
}

// An http.MaxBytesReader tells the server by a method without an exported name that it is not to wait for the rest of the
// body. Behind another ResponseWriter it finds none.
func TestABodyThatIsTooLargeEndsTheConnection(t *testing.T) {
	tooLarge := func(answer func(http.ResponseWriter, *http.Request, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 10)); err != nil {
				answer(w, r, err)
			}
		}
	}
	status := func(code int) func(http.ResponseWriter, *http.Request, error) {
		return func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(code) }
	}
	long := strings.Repeat("too large ", 1000)
	own := []string{"no middleware", "rates", "lists", "WithContext"} // the server's own writer, after which it rests for half a second
	for name, c := range map[string]struct {
		h    http.Handler
		want int
	}{
		"413": {tooLarge(status(413)), 413},
		"a long 413": {tooLarge(func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error()+long, http.StatusRequestEntityTooLarge)
		}), 413},
		"400": {tooLarge(status(400)), 400},
		"a redirect": {tooLarge(func(w http.ResponseWriter, r *http.Request, _ error) {
			http.Redirect(w, r, "/form", http.StatusSeeOther)
		}), 303},
		"a page": {tooLarge(func(w http.ResponseWriter, _ *http.Request, _ error) { _, _ = w.Write([]byte(long)) }), 200},
		"a text": {tooLarge(func(w http.ResponseWriter, _ *http.Request, _ error) { _, _ = io.WriteString(w, long) }), 200},
		"a file": {tooLarge(func(w http.ResponseWriter, _ *http.Request, _ error) {
			_, _ = io.Copy(w, io.LimitReader(strings.NewReader(long), 1<<20)) // which has no WriteTo
		}), 200},
		"what is flushed": {tooLarge(func(w http.ResponseWriter, _ *http.Request, _ error) {
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, long)
		}), 200},
		"what its writer flushes": {tooLarge(func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, long)
		}), 200},
		"hints before it": {tooLarge(func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(413)
		}), 413},
		"nothing": {tooLarge(func(http.ResponseWriter, *http.Request, error) {}), 200},
		"JSON": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 10)).Decode(new(any)); err != nil {
				http.Error(w, long, 400)
			}
		}), 400},
		"small buffers": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, five := http.MaxBytesReader(w, r.Body, 10), make([]byte, 5)
			for {
				if _, err := io.ReadFull(body, five); err != nil {
					http.Error(w, long, http.StatusRequestEntityTooLarge)
					return
				}
			}
		}), 413},
		"MaxBytesHandler": {http.MaxBytesHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := r.ParseForm(); err != nil {
				http.Error(w, long, http.StatusRequestEntityTooLarge)
			}
		}), 10), 413},
	} {
		for _, variant := range keys(variants(t)) {
			if slices.Contains(own, variant) && name != "413" && !effort.Full() {
				continue
			}
			for framing, body := range map[string]string{
				"Content-Length: 1000": `"` + strings.Repeat("x", 19), "Transfer-Encoding: chunked": "400\r\n\"" + strings.Repeat("x", 19),
			} {
				t.Run(name+"/"+variant+"/"+framing, func(t *testing.T) {
					t.Parallel()
					server := httptest.NewServer(variants(t)[variant](c.h))
					defer server.Close()
					defer server.CloseClientConnections()
					conn, err := net.Dial("tcp", server.Listener.Addr().String())
					require.NoError(t, err)
					defer conn.Close()
					require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
					_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n%s\r\n\r\n%s", framing, body)
					require.NoError(t, err)
					read := bufio.NewReader(conn)
					res, err := http.ReadResponse(read, nil)
					if err == nil && res.StatusCode < 200 {
						require.True(t, !res.Close || slices.Contains(own, variant), "which says it at once")
						res, err = http.ReadResponse(read, nil)
					}
					require.NoError(t, err, "an answer comes before the rest of the body")
					require.Equal(t, c.want, res.StatusCode)
					require.True(t, res.Close)
				})
			}
		}
	}
}

// However much of a body a handler leaves unread, the connection is reused if it would be without
// the middleware.
func TestAConnectionIsUsedAgainAsWithoutTheMiddleware(t *testing.T) {
	answer := func(read func(w http.ResponseWriter, body io.Reader), status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			read(w, r.Body)
			w.WriteHeader(status)
		}
	}
	first := func(_ http.ResponseWriter, b io.Reader) { _, _ = b.Read(make([]byte, 100)) }
	whole := func(_ http.ResponseWriter, b io.Reader) { _, _ = io.Copy(io.Discard, b) }
	exact := func(_ http.ResponseWriter, b io.Reader) { _, _ = io.ReadFull(b, make([]byte, 20)) }
	none := func(http.ResponseWriter, io.Reader) {}
	within := func(w http.ResponseWriter, b io.Reader) {
		_, _ = io.ReadAll(http.MaxBytesReader(w, io.NopCloser(b), 20))
	}
	decode := func(w http.ResponseWriter, b io.Reader) {
		_ = json.NewDecoder(http.MaxBytesReader(w, io.NopCloser(b), 20)).Decode(new(any))
	}
	for name, h := range map[string]http.Handler{
		"the first of it": answer(first, 200), "the first of it, and an error": answer(first, 400),
		"all of it": answer(whole, 200), "all of it, and an error": answer(whole, 400), "all that it is long": answer(exact, 413),
		"nothing of it": answer(none, 200), "nothing of it, and an error": answer(none, 413),
		"what is not too large": answer(within, 200), "what is not too large, and an error": answer(within, 400),
		"JSON": answer(decode, 200), "JSON, and an error": answer(decode, 400),
	} {
		for _, variant := range keys(variants(t)) {
			for framing, body := range map[string]string{
				"Content-Length: 20":         "\"xxxxxxxxxxxxxxxxx\" ",
				"Content-Length: 0":          "",
				"Transfer-Encoding: chunked": "14\r\n\"xxxxxxxxxxxxxxxxx\" \r\n0\r\n\r\n",
			} {
				t.Run(name+"/"+variant+"/"+framing, func(t *testing.T) {
					t.Parallel()
					server := httptest.NewServer(variants(t)[variant](h))
					defer server.Close()
					conn, err := net.Dial("tcp", server.Listener.Addr().String())
					require.NoError(t, err)
					defer conn.Close()
					require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
					answers := bufio.NewReader(conn)
					for range 2 {
						_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", framing, body)
						require.NoError(t, err)
						res, err := http.ReadResponse(answers, nil)
						require.NoError(t, err)
						require.NotEqual(t, 429, res.StatusCode)
						require.False(t, res.Close)
					}
				})
			}
		}
	}
}

// A handler may answer before it has read all that is still to come.
func TestOnlyAReadThatFillsItsBufferMayBeTheLastOfABodyTooLarge(t *testing.T) {
	for size, want := range map[int]string{9: "close", 10: "close", 11: "", 100: ""} {
		for _, variant := range []string{"WithRefund", "slots"} {
			h := variants(t)[variant](http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = r.Body.Read(make([]byte, size))
				w.WriteHeader(http.StatusBadRequest)
			}))
			parts := io.MultiReader(strings.NewReader(strings.Repeat("x", 10)), strings.NewReader("more"))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", parts))
			require.Equal(t, want, w.Header().Get("Connection"), "%d, %s", size, variant)
		}
	}
}

// In HTTP/2 the other requests of a connection would end with it.
func TestABodyThatIsTooLargeEndsNoConnectionOfHTTP2(t *testing.T) {
	for name, limit := range variants(t) {
		server := httptest.NewUnstartedServer(limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 10)); err != nil {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
		})))
		server.EnableHTTP2 = true
		server.StartTLS()
		connections := make(map[net.Conn]bool)
		for range 3 {
			trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { connections[info.Conn] = true }}
			r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, server.URL, strings.NewReader(strings.Repeat("x", 1000)))
			require.NoError(t, err)
			res, err := server.Client().Do(r)
			require.NoError(t, err)
			require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode, name)
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		server.Close()
		require.Len(t, connections, 1, name)
	}
}

// Otherwise, each client that sends its body slowly would hold a slot until the server's
// ReadTimeout.
func TestABodyThatIsTooLargeHoldsNoSlot(t *testing.T) {
	l := slots(t, living(t), 1)
	server := httptest.NewServer(httplimit.Middleware(l, global)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 10)); err != nil {
			http.Error(w, strings.Repeat("too large ", 1000), http.StatusRequestEntityTooLarge)
		}
	})))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n%s", strings.Repeat("x", 20))
	require.NoError(t, err)
	_, err = bufio.NewReader(conn).Peek(1)
	require.NoError(t, err)
	requireHeld(t, l, 0)
}

// A log around the middleware finds what the mux within has matched, as it would without the middleware.
func TestPathValuesAreKnownAroundTheMiddleware(t *testing.T) {
	mux := http.NewServeMux()
	for _, pattern := range []string{"POST /users/{id}", "/files/{dir}/{rest...}", "x.example/{$}", "/a/{b}/{c}/{$}", "/plain"} {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	}
	mux.HandleFunc("/set/{id}", func(_ http.ResponseWriter, r *http.Request) { r.SetPathValue("id", "of the handler") })
	other := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { // as routers do that know other patterns
		r.Pattern = "/other/{id:[0-9]{3}}/{rest}"
		r.SetPathValue("id", "123")
		r.SetPathValue("rest", "x")
	})
	outer := func(h http.Handler) http.Handler {
		m := http.NewServeMux()
		m.Handle("/{id}/{rest...}", h)
		m.Handle("POST /{id}/{rest...}", h)
		return m
	}
	names := []string{"id", "dir", "rest", "b", "c", "$", "", "none"}
	for _, c := range []struct {
		h    func(func(http.Handler) http.Handler) http.Handler
		path string
		same bool // behind each middleware, and not only what a mux within has matched
		want map[string]string
	}{
		{func(m func(http.Handler) http.Handler) http.Handler { return m(mux) }, "/users/7", true, map[string]string{"id": "7"}},
		{func(m func(http.Handler) http.Handler) http.Handler { return m(mux) }, "/files/a/b/c", true, map[string]string{"dir": "a", "rest": "b/c"}},
		{func(m func(http.Handler) http.Handler) http.Handler { return m(mux) }, "/a/1/2/", true, map[string]string{"b": "1", "c": "2"}},
		{func(m func(http.Handler) http.Handler) http.Handler { return m(mux) }, "/a/1/", true, nil},
		{func(m func(http.Handler) http.Handler) http.Handler { return m(mux) }, "/plain", true, nil},
		{func(m func(http.Handler) http.Handler) http.Handler { return m(mux) }, "/set/7", true, map[string]string{"id": "of the handler"}},
		{func(m func(http.Handler) http.Handler) http.Handler { return m(other) }, "/other/123/x", true, map[string]string{"id": "123", "rest": "x"}},
		{func(m func(http.Handler) http.Handler) http.Handler { return outer(m(http.NotFoundHandler())) }, "/users/7", true,
			map[string]string{"id": "users", "rest": "7"}},
		{func(m func(http.Handler) http.Handler) http.Handler { return outer(m(mux)) }, "/users/7", false, map[string]string{"id": "7"}},
	} {
		for variant, limit := range variants(t) {
			for _, body := range []string{"", "body"} {
				r := httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(body))
				if body == "" {
					r.Body = http.NoBody
				}
				w := httptest.NewRecorder()
				c.h(limit).ServeHTTP(w, r)
				require.NotEqual(t, 429, w.Code)
				for _, name := range names {
					if _, matched := c.want[name]; c.same || matched {
						require.Equal(t, c.want[name], r.PathValue(name), "%s of %s, %s", name, c.path, variant)
					}
				}
			}
		}
	}
}

// A server sets the trailer of its own request when the body has been read. Its map is there before if the client has
// announced it, as net/http wants it to.
func TestATrailerIsThereWhenTheBodyHasBeenRead(t *testing.T) {
	for variant, limit := range variants(t) {
		requireTrailer(t, variant, limit, "Trailer: Sum\r\n")
	}
}

// A trailer that the client has not announced has no map before the body has been read. Where a request gets another
// context, net/http itself loses it.
func TestATrailerThatWasNotAnnouncedIsThereToo(t *testing.T) {
	all := variants(t)
	for _, variant := range []string{"no middleware", "rates", "lists", "WithRefund", "slots", "slots around WithRefund"} {
		requireTrailer(t, variant, all[variant], "")
	}
}

// requireTrailer sends a request with a trailer, and requires that a handler finds it.
func requireTrailer(t *testing.T, variant string, limit func(http.Handler) http.Handler, announced string) {
	t.Helper()
	got := make(chan string, 1)
	server := httptest.NewServer(limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer.Get("Sum")
	})))
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+announced+"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nSum: 7\r\n\r\n")
	require.NoError(t, err)
	require.Equal(t, "7", <-got, variant)
	require.NoError(t, conn.Close())
	server.Close()
}

// A ReverseProxy answers 502 to a body that is too large for it. That is the client's fault, and is known as such if the
// limit on bodies is around the middleware.
func TestABodyThatIsTooLargeForAProxyIsCounted(t *testing.T) {
	t.Parallel()
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer backend.Close()
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = quiet
	limit := httplimit.Middleware(window(t, memory(t), ratelimit.PerDay(5)), httplimit.WithRefund(httplimit.Failed))
	front := httptest.NewServer(http.MaxBytesHandler(limit(proxy), 10))
	defer front.Close()
	codes := make(map[int]int)
	for range 20 {
		res, err := http.Post(front.URL, "text/plain", strings.NewReader(strings.Repeat("x", 1000)))
		require.NoError(t, err)
		codes[res.StatusCode]++
		res.Body.Close()
	}
	require.Equal(t, map[int]int{http.StatusBadGateway: 5, http.StatusTooManyRequests: 15}, codes)
}
