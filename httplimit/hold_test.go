package httplimit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// living is a store in memory, whose clock goes.
func living(t testing.TB) store.Store {
	t.Helper()
	s, err := memstore.New()
	require.NoError(t, err)
	return s
}

// elsewhere is a store that is not known to be of this process.
func elsewhere(t testing.TB) store.Store { return struct{ store.Store }{living(t)} }

func livingOnRedis(t testing.TB) store.Store {
	t.Helper()
	s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(t.Name()+strconv.FormatInt(stores.Add(1), 10)),
		redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	return s
}

func slots(t testing.TB, s store.Store, n int) *ratelimit.Custom {
	t.Helper()
	l, err := inflight.New(s, n, time.Minute, ratelimit.WithName("at_once"))
	require.NoError(t, err)
	return l
}

// requireHeld waits until so many slots of all clients are held: they are given back behind the
// back of who releases them.
func requireHeld(t testing.TB, l ratelimit.Limiter, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return spent(t, l, "global") == n }, time.Minute, time.Millisecond)
}

var global = httplimit.WithKey(httplimit.Global())

// holding are the limiters of two slots, which l counts, in which the middleware finds them.
func holding(t testing.TB, s store.Store) (l *ratelimit.Custom, all map[string]ratelimit.Limiter) {
	t.Helper()
	l = slots(t, s, 2)
	safe, err := fallback.New(l, fallback.FailLocal(1))
	require.NoError(t, err)
	seen, err := observe.Around(safe, observe.NewCounters("x"))
	require.NoError(t, err)
	enforced, err := shadow.New(l, func(context.Context, string, int, ratelimit.Result, error) {}, shadow.WithEnforcement(100))
	require.NoError(t, err)
	both, err := ratelimit.NewAll(window(t, s, ratelimit.PerDay(1_000_000)), l)
	require.NoError(t, err)
	safeBoth, err := fallback.New(both, fallback.FailOpen())
	require.NoError(t, err)
	return l, map[string]ratelimit.Limiter{
		"alone": l, "observed": seen, "enforced": enforced, "beside a rate": both, "all in a fallback": safeBoth,
	}
}

// With WaitUpTo a request waits for a slot, and those that find the queue full are refused at once.
func TestARequestMayWaitForASlot(t *testing.T) {
	for name, s := range map[string]store.Store{"in memory": living(t), "on Redis": livingOnRedis(t)} {
		l, all := holding(t, s)
		for where, limiter := range all {
			t.Run(name+"/"+where, func(t *testing.T) {
				counters := new(inflight.Counters)
				inside, leave := make(chan struct{}, 3), make(chan struct{})
				server := httptest.NewServer(httplimit.Middleware(limiter, global, httplimit.WithSlots(
					inflight.WaitUpTo(time.Hour), inflight.MaxWaiting(1), inflight.CountIn(counters),
				))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					inside <- struct{}{}
					<-leave
				})))
				defer server.Close()
				codes := make(chan int, 4)
				var requests sync.WaitGroup
				get := func() { requests.Go(func() { codes <- status(server.Client(), server.URL) }) }
				for range 2 {
					get()
					<-inside
				}
				get()
				get()
				require.Equal(t, http.StatusTooManyRequests, <-codes, "of two, one finds the queue full")
				require.EqualValues(t, 2, counters.Stats().Held)

				close(leave)
				<-inside
				requests.Wait()
				for range 3 {
					require.Equal(t, http.StatusOK, <-codes)
				}
				requireHeld(t, l, 0)
			})
		}
	}
}

// A request leaves the queue when its client hangs up, and when it has waited for long enough.
func TestARequestDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, elsewhere(t), 1)
		leave := make(chan struct{})
		h := httplimit.Middleware(l, global, httplimit.WithSlots(inflight.WaitUpTo(5*time.Second)))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-leave }))
		serve := func(ctx context.Context) <-chan *http.Response {
			ends := make(chan *http.Response, 1)
			go func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
				ends <- w.Result()
			}()
			synctest.Wait()
			return ends
		}
		first := serve(t.Context())
		gone, hangUp := context.WithCancel(t.Context())
		second, third := serve(gone), serve(t.Context())
		hangUp()
		require.Equal(t, 499, (<-second).StatusCode)
		began := time.Now()
		late := <-third
		require.Equal(t, http.StatusTooManyRequests, late.StatusCode)
		require.Equal(t, "1", late.Header.Get("Retry-After"))
		require.Equal(t, 5*time.Second, time.Since(began))
		close(leave)
		require.Equal(t, http.StatusOK, (<-first).StatusCode)
		require.Equal(t, http.StatusOK, (<-serve(t.Context())).StatusCode)
		synctest.Wait()
		require.Zero(t, spent(t, l, "global"))
	})
}

// A request whose deadline passes while it waits is not served, even by an ErrorHandler that fails open.
func TestARequestIsNotServedAfterItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, callers = 2, 8
		var served atomic.Int64
		limit := httplimit.Middleware(slots(t, memory(t), n), global, httplimit.WithSlots(inflight.WaitUpTo(5*time.Second)), httplimit.WithErrorHandler(letThrough))
		h := http.TimeoutHandler(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			served.Add(1)
			time.Sleep(2 * time.Second)
		})), time.Second, "")
		for range callers {
			go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}
		time.Sleep(time.Minute)
		require.EqualValues(t, n, served.Load())
	})
}

func TestARequestHoldsASlotUntilItsHandlerIsDone(t *testing.T) {
	for name, s := range map[string]store.Store{"in memory": living(t), "on Redis": livingOnRedis(t)} {
		l, all := holding(t, s)
		for where, limiter := range all {
			t.Run(name+"/"+where, func(t *testing.T) {
				inside, leave := make(chan struct{}), make(chan struct{})
				server := httptest.NewServer(httplimit.Middleware(limiter, global)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					inside <- struct{}{}
					<-leave
				})))
				defer server.Close()
				var requests sync.WaitGroup
				for range 2 {
					requests.Go(func() { require.Equal(t, http.StatusOK, status(server.Client(), server.URL)) })
					<-inside
				}
				require.Equal(t, http.StatusTooManyRequests, status(server.Client(), server.URL))
				require.Equal(t, 2, spent(t, l, "global"))
				close(leave)
				requests.Wait()
				requireHeld(t, l, 0)
			})
		}
	}
}

func TestAResponseReportsSlots(t *testing.T) {
	l := slots(t, living(t), 8)
	w := httptest.NewRecorder()
	httplimit.Middleware(l, global)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		require.Equal(t, `"at_once";q=8;qu="concurrent-requests"`, w.Header().Get("RateLimit-Policy"))
		require.Equal(t, `"at_once";r=7`, w.Header().Get("RateLimit"))
		require.Equal(t, "8", w.Header().Get("X-RateLimit-Limit"))
		require.Equal(t, "7", w.Header().Get("X-RateLimit-Remaining"))
		require.Empty(t, w.Header().Get("X-RateLimit-Reset"), "nobody knows")
	})).ServeHTTP(w, get("192.0.2.1:1"))
	require.Equal(t, http.StatusOK, w.Code)
	httplimit.Middleware(l, global, httplimit.WithHeaders(httplimit.Legacy))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		require.Empty(t, w.Header().Get("X-RateLimit-Reset"))
	})).ServeHTTP(httptest.NewRecorder(), get("192.0.2.1:1"))
	for range 8 {
		slot, _, err := inflight.Hold(t.Context(), l, "global", 1)
		require.NoError(t, err)
		defer slot.Release()
	}
	for _, c := range []struct {
		opts []httplimit.ServerOption
		want string
	}{
		{nil, "1"},
		{[]httplimit.ServerOption{httplimit.WithSlotRetryAfter(2500 * time.Millisecond)}, "3"},
		{[]httplimit.ServerOption{httplimit.WithSlotRetryAfter(time.Hour), httplimit.WithDeniedHandler(func(w http.ResponseWriter, _ *http.Request, _ http.Handler, d httplimit.Decision) {
			require.Greater(t, d.Result.RetryAfter, 24*time.Hour, "it is exact")
			httplimit.SetHeaders(w.Header(), d)
			httplimit.WriteProblem(w, d)
		})}, "3600"},
	} {
		w := httptest.NewRecorder()
		protect(t, l, append(c.opts, global)...).ServeHTTP(w, get("192.0.2.1:1"))
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, c.want, w.Header().Get("Retry-After"))
		require.Equal(t, `"at_once";r=0;t=`+c.want, w.Header().Get("RateLimit"))
		var problem struct {
			RetryAfter json.Number `json:"retryAfter"`
			Violated   []string    `json:"violated-policies"`
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &problem))
		require.Equal(t, c.want, problem.RetryAfter.String())
		require.Equal(t, []string{"at_once"}, problem.Violated)
	}
	d := httplimit.NewDecision(t.Context(), l, "global", ratelimit.Result{Limit: 8, RetryAfter: time.Hour})
	h := make(http.Header)
	httplimit.SetHeaders(h, d)
	require.Equal(t, "1", h.Get("Retry-After"), "also without the middleware")
}

// A rate that denies beside slots says when to come back.
func TestRetryAfterIsThatOfTheRates(t *testing.T) {
	s := living(t)
	l := slots(t, s, 2)
	bucket, err := ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 1, Period: 100 * time.Second, Burst: 1}, ratelimit.WithName("rate"))
	require.NoError(t, err)
	both, err := ratelimit.NewAll(bucket, l)
	require.NoError(t, err)
	h := protect(t, both, global)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, get("192.0.2.1:1"))
	require.Equal(t, `"rate";r=0;t=100,"at_once";r=1`, w.Header().Get("RateLimit"))
	daily, err := ratelimit.NewAll(l, window(t, s, ratelimit.PerDay(100)))
	require.NoError(t, err)
	other := httptest.NewRecorder()
	protect(t, daily, global).ServeHTTP(other, get("192.0.2.1:1"))
	require.Equal(t, "99", other.Header().Get("X-RateLimit-Remaining"), "that of requests")
	for _, held := range []int{0, 2} {
		for range held {
			slot, _, err := inflight.Hold(t.Context(), l, "global", 1)
			require.NoError(t, err)
			defer slot.Release()
		}
		w = httptest.NewRecorder()
		h.ServeHTTP(w, get("192.0.2.1:1"))
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "100", w.Header().Get("Retry-After"))
	}
}

// However a handler ends, its slot is given back, and only then.
func TestHoweverAHandlerEnds(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"nothing written": func(http.ResponseWriter, *http.Request) {},
		"a failure":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"a panic":         func(http.ResponseWriter, *http.Request) { panic("x") },
		"an abort":        func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a stream": func(w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				io.WriteString(w, "data: x\n\n")
				if f, ok := w.(http.Flusher); ok {
					f.Flush()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := living(t)
			l, rate := slots(t, s, 2), window(t, s, ratelimit.PerDay(100))
			both, err := ratelimit.NewAll(rate, l)
			require.NoError(t, err)
			for _, refund := range [][]httplimit.ServerOption{nil, {httplimit.WithRefund(httplimit.Failed)}, {httplimit.WithRefund(httplimit.Successful), httplimit.WithContext()}} {
				_ = overLoopback(t, httplimit.Middleware(both, append(refund, global)...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					require.Equal(t, 1, spent(t, l, "global"))
					handler(w, r)
					require.Equal(t, 1, spent(t, l, "global"))
				})))
				requireHeld(t, l, 0)
			}
		})
	}
}

// A timeout goes around the middleware, as docs/http.md says: the slot is that of the work, and not of the answer.
func TestWorkBehindATimeoutKeepsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := living(t)
		l, rate := slots(t, s, 2), window(t, s, ratelimit.PerDay(100), ratelimit.WithName("rate"))
		var running, most atomic.Int32
		work := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			w.WriteHeader(http.StatusOK) // too late
		})
		limit := httplimit.Middleware(ratelimittest.All(t, rate, l), global, httplimit.WithRefund(httplimit.Failed))
		h := http.TimeoutHandler(limit(work), time.Millisecond, "late")
		codes := make(map[int]int)
		for range 12 {
			codes[serve(h, get(alice)).StatusCode]++
		}
		require.Equal(t, map[int]int{http.StatusServiceUnavailable: 2, http.StatusTooManyRequests: 10}, codes)
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 2, most.Load())
		require.Zero(t, spent(t, l, "global"))
		require.Equal(t, 2, spent(t, rate, "global"), "the work was done")
	})
}

// A refund is of the rates. The slot stays held until the handler is done.
func TestARefundIsNotOfTheSlot(t *testing.T) {
	for _, s := range []store.Store{living(t), elsewhere(t)} {
		l, rate := slots(t, s, 2), window(t, s, ratelimit.PerDay(100), ratelimit.WithName("rate"))
		both, err := ratelimit.NewAll(rate, l)
		require.NoError(t, err)
		cost := httplimit.WithCost(func(*http.Request) int { return 3 })
		h := httplimit.Middleware(both, global, cost, httplimit.WithContext(), httplimit.WithRefund(httplimit.Failed))
		h(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, _ := httplimit.FromContext(r.Context())
			require.Equal(t, 3, spent(t, rate, "global"))
			require.NoError(t, d.Refund(r.Context()))
			require.Zero(t, spent(t, rate, "global"))
			require.Equal(t, 1, spent(t, l, "global"))
			w.WriteHeader(http.StatusBadGateway)
		})).ServeHTTP(httptest.NewRecorder(), get("192.0.2.1:1"))
		requireHeld(t, l, 0)
		require.Zero(t, spent(t, rate, "global"))
		h(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
		})).ServeHTTP(httptest.NewRecorder(), get("192.0.2.1:1"))
		requireHeld(t, l, 0)
		require.Zero(t, spent(t, rate, "global"))
		h(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			d, _ := httplimit.FromContext(r.Context())
			require.NoError(t, d.Slot().Settle(r.Context(), 40))
			d.Slot().Release()
			requireHeld(t, l, 0)
		})).ServeHTTP(httptest.NewRecorder(), get("192.0.2.1:1"))
		require.Equal(t, 40, spent(t, rate, "global"))
		require.Zero(t, spent(t, l, "global"))
	}
	require.Nil(t, httplimit.Decision{}.Slot())
}

// A connection that was taken over holds the slot until it is closed, even if the handler panics
// afterwards.
func TestAHijackedConnectionHoldsItsSlotUntilItIsClosed(t *testing.T) {
	for name, opts := range map[string][]httplimit.ServerOption{"plain": nil, "with a refund": {httplimit.WithRefund(httplimit.Failed)}} {
		for _, panics := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				s := living(t)
				l := slots(t, s, 1)
				both := ratelimittest.All(t, l, window(t, s, ratelimit.PerDay(100)))
				taken := make(chan net.Conn, 8)
				server := httptest.NewUnstartedServer(httplimit.Middleware(both, append(opts, global)...)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					c, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						panic(err)
					}
					taken <- c
					if panics {
						panic("x")
					}
				})))
				server.Config.ErrorLog = quiet
				server.Start()
				defer server.Close()
				c, err := net.Dial("tcp", server.Listener.Addr().String())
				require.NoError(t, err)
				defer c.Close()
				_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
				require.NoError(t, err)
				conn := <-taken
				require.Equal(t, http.StatusTooManyRequests, status(server.Client(), server.URL))
				n, err := io.Copy(conn, io.MultiReader(strings.NewReader("hello\n")))
				require.NoError(t, err)
				require.EqualValues(t, 6, n)
				line, err := bufio.NewReader(c).ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "hello\n", line)
				half, ok := conn.(interface{ CloseWrite() error })
				require.True(t, ok)
				require.NoError(t, half.CloseWrite())
				require.IsType(t, &net.TCPConn{}, conn.(interface{ NetConn() net.Conn }).NetConn())
				require.Equal(t, 1, spent(t, l, "global"))
				require.NoError(t, conn.Close())
				requireHeld(t, l, 0)
				require.Error(t, conn.Close())
				require.Zero(t, spent(t, l, "global"))
			})
		}
	}
}

// wrapping is a ResponseWriter as most middlewares put around another one: only an http.ResponseController
// finds what that can do.
type wrapping struct{ http.ResponseWriter }

func (w wrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type flushing struct {
	wrapping
	http.Flusher
}

type failing struct{ flushing }

func (failing) FlushError() error { return errRefused }

func TestAConnectionTakenOverThroughAnotherWriterHoldsItsSlotToo(t *testing.T) {
	for name, c := range map[string]struct {
		around func(w http.ResponseWriter) http.ResponseWriter
		err    error
	}{
		"plain":   {around: func(w http.ResponseWriter) http.ResponseWriter { return wrapping{wrapping{w}} }},
		"flushes": {func(w http.ResponseWriter) http.ResponseWriter { return flushing{wrapping{w}, w.(http.Flusher)} }, nil},
		"tells": {func(w http.ResponseWriter) http.ResponseWriter {
			return failing{flushing{wrapping{w}, w.(http.Flusher)}}
		}, errRefused},
	} {
		t.Run(name, func(t *testing.T) {
			l := slots(t, living(t), 1)
			taken, done := make(chan net.Conn, 1), make(chan error, 2)
			limited := httplimit.Middleware(l, global)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if _, flushes := w.(http.Flusher); !flushes {
					panic("it cannot flush")
				}
				control := http.NewResponseController(w)
				done <- errors.Join(control.SetWriteDeadline(time.Time{}), control.Flush())
				conn, _, err := control.Hijack()
				if err != nil {
					panic(err)
				}
				taken <- conn
			}))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				limited.ServeHTTP(c.around(w), r)
				done <- nil
			}))
			defer server.Close()
			client, err := net.Dial("tcp", server.Listener.Addr().String())
			require.NoError(t, err)
			defer client.Close()
			_, err = io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			require.NoError(t, err)
			require.ErrorIs(t, <-done, c.err)
			require.NoError(t, <-done)
			require.Equal(t, 1, spent(t, l, "global"))
			require.NoError(t, (<-taken).Close())
			requireHeld(t, l, 0)
		})
	}
}

// No defer gives back the slot of a connection that was taken over and is forgotten.
func TestAHijackedConnectionThatIsForgottenGivesBackItsSlot(t *testing.T) {
	for name, c := range map[string]net.Conn{"one half can be closed": new(net.TCPConn), "plain": new(plainConn)} {
		t.Run(name, func(t *testing.T) {
			l := slots(t, living(t), 1)
			httplimit.Middleware(l, global)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _, err := http.NewResponseController(w).Hijack()
				require.NoError(t, err)
			})).ServeHTTP(giving{httptest.NewRecorder(), c}, get("192.0.2.1:1"))
			require.Equal(t, 1, spent(t, l, "global"))
			require.Eventually(t, func() bool {
				runtime.GC()
				return spent(t, l, "global") == 0
			}, time.Minute, time.Millisecond)
		})
	}
}

type plainConn struct{ net.Conn }

// giving is a ResponseWriter that gives the connection to who takes it over.
type giving struct {
	http.ResponseWriter
	conn net.Conn
}

func (g giving) Hijack() (net.Conn, *bufio.ReadWriter, error) { return g.conn, nil, nil }

// The defer of the middleware needs nobody who looks whether a slot is forgotten.
func TestARequestWithASlotAllocatesLittle(t *testing.T) {
	h := httplimit.Middleware(slots(t, living(t), 1), httplimit.WithoutHeaders())(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w, r := &emptied{make(http.Header)}, get("192.0.2.1:1")
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) }), 1.0)
}

// The slots of requests are made of those of others. One that a handler has kept stays its own.
func TestASlotThatAHandlerKeepsIsNobodyElses(t *testing.T) {
	l := slots(t, living(t), 2)
	var kept *inflight.Slot
	serve := func(next func(r *http.Request), opts ...httplimit.ServerOption) {
		h := httplimit.Middleware(l, append(opts, global)...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { next(r) }))
		for range 3 {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}
	}
	serve(func(r *http.Request) {
		if kept == nil {
			kept = slotOf(r)
			return
		}
		kept.Release()
		require.NotSame(t, kept, slotOf(r))
		require.Equal(t, 1, spent(t, l, "global"))
	}, httplimit.WithContext())
	serve(func(*http.Request) { require.Equal(t, 1, spent(t, l, "global")) })
	require.Equal(t, 0, spent(t, l, "global"))
}

func slotOf(r *http.Request) *inflight.Slot {
	d, _ := httplimit.FromContext(r.Context())
	return d.Slot()
}

// On Redis a slot is on its way back when its request has ended.
func TestSlotsOfManyRequestsAreEachGivenBackOnce(t *testing.T) {
	for name, s := range map[string]store.Store{"memory": living(t), "elsewhere": elsewhere(t), "redis": livingOnRedis(t)} {
		t.Run(name, func(t *testing.T) {
			const n = 3
			l, err := inflight.New(s, n, time.Hour, ratelimit.WithName("at_once")) // no slot is free by itself
			require.NoError(t, err)
			var now, most, admitted atomic.Int64
			h := httplimit.Middleware(l, global)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				at := now.Add(1)
				for m := most.Load(); at > m && !most.CompareAndSwap(m, at); m = most.Load() {
				}
				admitted.Add(1)
				runtime.Gosched()
				now.Add(-1)
			}))
			var callers sync.WaitGroup
			for range 8 {
				callers.Go(func() {
					for range 200 {
						h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
					}
				})
			}
			callers.Wait()
			require.LessOrEqual(t, most.Load(), int64(n))
			require.Positive(t, admitted.Load())
			requireHeld(t, l, 0)
		})
	}
}

func TestOfAConnectionThatCannotBeTakenOverTheHandlerHasTheSlot(t *testing.T) {
	l := slots(t, living(t), 1)
	w := refusing{httptest.NewRecorder()}
	httplimit.Middleware(l, global)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _, err := http.NewResponseController(w).Hijack()
		require.ErrorIs(t, err, errRefused)
	})).ServeHTTP(w, get("192.0.2.1:1"))
	require.Zero(t, spent(t, l, "global"))
}

var errRefused = errors.New("no")

type refusing struct{ http.ResponseWriter }

func (refusing) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errRefused }

// Clients that hang up while the store is asked, or while they are served, leave nothing, and at no
// instant are more served than there are slots.
func TestClientsThatHangUpLeaveNothing(t *testing.T) {
	for name, s := range map[string]store.Store{"in memory": living(t), "on Redis": livingOnRedis(t)} {
		t.Run(name, func(t *testing.T) {
			const n = 5
			l := slots(t, s, n)
			var inside, most, served atomic.Int64
			server := httptest.NewServer(httplimit.Middleware(l, global)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				now := inside.Add(1)
				defer inside.Add(-1)
				for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
				}
				served.Add(1)
				io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})))
			defer server.Close()
			var clients sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(effort.Of(1000, 5000)))
			for i := range 20 {
				clients.Go(func() {
					for left.Add(-1) >= 0 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
						if i == 0 { // which waits for the first byte
							ctx, cancel = context.WithCancel(t.Context())
						}
						r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
						if err == nil {
							if res, err := server.Client().Do(r); err == nil {
								_, _ = res.Body.Read(make([]byte, 1))
								if i > 0 {
									_, _ = io.Copy(io.Discard, res.Body)
								}
								cancel()
								res.Body.Close()
							}
						}
						cancel()
					}
				})
			}
			clients.Wait()
			requireHeld(t, l, 0)
			require.LessOrEqual(t, most.Load(), int64(n))
			require.Positive(t, served.Load())
		})
	}
}

// A request that has lost its slot is notified, and continues unless an option ends it.
func TestALostSlotIsTold(t *testing.T) {
	for i := range 4 {
		cancels, inContext := i%2 == 1, i > 1
		synctest.Test(t, func(t *testing.T) {
			l := slots(t, elsewhere(t), 1)
			var told []inflight.Reason
			opts := []httplimit.ServerOption{global, httplimit.WithSlots(inflight.OnEnd(func(e inflight.Ending) { told = append(told, e.Reason) }))}
			if cancels {
				opts = append(opts, httplimit.WithCancelLost())
			}
			if inContext {
				opts = append(opts, httplimit.WithContext())
			}
			type mine struct{}
			r := get("192.0.2.1:1")
			httplimit.Middleware(l, opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				require.NoError(t, l.Reset(r.Context(), "global")) // a server without its data
				time.Sleep(time.Microsecond)
				other, _, err := inflight.Hold(r.Context(), l, "global", 1)
				require.NoError(t, err)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, []inflight.Reason{inflight.Lost}, told)
				if cancels {
					require.ErrorIs(t, context.Cause(r.Context()), inflight.ErrLost)
				} else {
					require.NoError(t, r.Context().Err())
				}
				require.Equal(t, "mine", r.Context().Value(mine{}))
				_, found := httplimit.FromContext(r.Context())
				require.Equal(t, inContext, found)
				other.Release()
			})).ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(r.Context(), mine{}, "mine")))
			synctest.Wait()
			require.Equal(t, []inflight.Reason{inflight.Lost, inflight.Released}, told)
		})
	}
}

// A request that fails because its slot is lost fails through the server's fault, and not because
// its client has disconnected.
func TestARequestThatEndsWithItsSlotIsGivenBack(t *testing.T) {
	lost, refund := httplimit.WithCancelLost(), httplimit.WithRefund(httplimit.Failed)
	for name, wrap := range map[string]func(h http.Handler, l, rate ratelimit.Limiter) http.Handler{
		"in one": func(h http.Handler, l, rate ratelimit.Limiter) http.Handler {
			return httplimit.Middleware(ratelimittest.All(t, l, rate), global, refund, lost)(h)
		},
		"with its decision": func(h http.Handler, l, rate ratelimit.Limiter) http.Handler {
			return httplimit.Middleware(ratelimittest.All(t, l, rate), global, refund, lost, httplimit.WithContext())(h)
		},
		"of another middleware": func(h http.Handler, l, rate ratelimit.Limiter) http.Handler {
			return httplimit.Middleware(l, global, lost)(httplimit.Middleware(rate, global, refund)(h))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := elsewhere(t)
			l, rate := slots(t, s, 1), window(t, s, ratelimit.PerDay(9), ratelimit.WithName("rate"))
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.NoError(t, l.Reset(r.Context(), "global"))
				time.Sleep(time.Microsecond)
				other, _, err := inflight.Hold(r.Context(), l, "global", 1)
				require.NoError(t, err)
				<-r.Context().Done()
				other.Release()
				http.Error(w, r.Context().Err().Error(), http.StatusInternalServerError)
			})
			wrap(h, l, rate).ServeHTTP(httptest.NewRecorder(), get("192.0.2.1:1"))
			require.Zero(t, spent(t, rate, "global"), name)
			synctest.Wait()
		})
	}
}

// The limiter inside a wrapper may change, for example when a file is loaded again.
func TestALimiterThatComesToCountSlotsHoldsThem(t *testing.T) {
	s := living(t)
	l := slots(t, s, 1)
	changing := &changing{window(t, s, ratelimit.PerDay(100))}
	h := httplimit.Middleware(changing, global)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	h.ServeHTTP(httptest.NewRecorder(), get("192.0.2.1:1"))
	changing.Limiter = l
	for range 3 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, get("192.0.2.1:1"))
		require.Equal(t, http.StatusOK, w.Code)
		requireHeld(t, l, 0)
	}
}

type changing struct{ ratelimit.Limiter }

func (c *changing) Unwrap() ratelimit.Limiter { return c.Limiter }

func TestOptionsOfSlotsNeedSlots(t *testing.T) {
	s := living(t)
	for name, opt := range map[string]httplimit.ServerOption{
		"slots": httplimit.WithSlots(inflight.Longest(time.Second)), "retry": httplimit.WithSlotRetryAfter(time.Second), "cancel": httplimit.WithCancelLost(),
	} {
		_, err := httplimit.New(window(t, s, ratelimit.PerDay(1)), opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		_, err = httplimit.New(slots(t, s, 1), opt)
		require.NoError(t, err, name)
	}
	for _, opt := range []httplimit.ServerOption{
		httplimit.WithSlots(), httplimit.WithSlots(nil), httplimit.WithSlots(inflight.Longest(0)), httplimit.WithSlotRetryAfter(0),
	} {
		_, err := httplimit.New(slots(t, s, 1), opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

// A slot is given back whatever the status is, so there is nothing to refund.
func TestARefundNeedsMoreThanSlots(t *testing.T) {
	s := living(t)
	alone := slots(t, s, 1)
	for _, l := range []ratelimit.Limiter{alone, ratelimit.Must(ratelimit.NewAll(alone, slots(t, s, 2)))} {
		_, err := httplimit.New(l, httplimit.WithRefund(httplimit.Failed))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, "WithRefund has no effect on a limiter that counts only slots")
	}
	_, err := httplimit.New(ratelimit.Must(ratelimit.NewAll(alone, window(t, s, ratelimit.PerDay(1)))), httplimit.WithRefund(httplimit.Failed))
	require.NoError(t, err)
}

// The slice of options is the caller's, who may use it again.
func TestTheOptionsOfSlotsStayAsTheyWereGiven(t *testing.T) {
	var told []string
	tells := func(whom string) inflight.Option {
		return inflight.OnEnd(func(inflight.Ending) { told = append(told, whom) })
	}
	opts := []inflight.Option{tells("first")}
	with := httplimit.WithSlots(opts...)
	h := httplimit.Middleware(slots(t, living(t), 1), global, with)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	opts[0] = tells("second")
	h.ServeHTTP(httptest.NewRecorder(), get("192.0.2.1:1"))
	require.Equal(t, []string{"first"}, told)
}

// A client's request holds a slot until its answer has been read or closed, or there is none.
func TestAClientHoldsASlotUntilTheAnswerIsRead(t *testing.T) {
	for name, s := range map[string]store.Store{"in memory": living(t), "on Redis": livingOnRedis(t)} {
		for _, refuses := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				l := slots(t, s, 2)
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/abort" {
						panic(http.ErrAbortHandler)
					}
					if r.URL.Path != "/empty" {
						io.WriteString(w, strings.Repeat("x", 1<<16))
					}
				}))
				server.Config.ErrorLog = quiet
				defer server.Close()
				opts := []httplimit.ClientOption{global}
				if refuses {
					opts = append(opts, httplimit.WithoutWaiting())
				}
				transport, err := httplimit.NewTransport(nil, l, opts...)
				require.NoError(t, err)
				client := &http.Client{Transport: transport}
				get := func(path string) *http.Response {
					res, err := client.Get(server.URL + path)
					require.NoError(t, err)
					return res
				}
				a, b := get("/"), get("/")
				require.Equal(t, 2, spent(t, l, "global"))
				if refuses {
					_, err = client.Get(server.URL)
					var limited *httplimit.LimitedError
					require.ErrorAs(t, err, &limited)
					require.Equal(t, time.Second, limited.RetryAfter)
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					defer cancel()
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
					require.NoError(t, err)
					_, err = client.Do(r)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					go func() {
						time.Sleep(10 * time.Millisecond)
						a.Body.Close()
					}()
					a = get("/") // which waits for it
				}
				_, err = io.Copy(io.Discard, a.Body)
				require.NoError(t, err)
				requireHeld(t, l, 1)
				a.Body.Close()
				require.NoError(t, b.Body.Close())
				requireHeld(t, l, 0)
				empty := get("/empty")
				requireHeld(t, l, 0)
				empty.Body.Close()
				_, err = client.Get(server.URL + "/abort")
				require.Error(t, err)
				requireHeld(t, l, 0)
			})
		}
	}
}

// Whatever panics after a response, nobody is left to close its body.
func TestAPanicAfterAnAnswerLeavesNoSlotTaken(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "come back", http.StatusTooManyRequests)
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	atOnce := slots(t, living(t), 1)
	tr, err := httplimit.NewTransport(nil, atOnce, httplimit.WithKey(httplimit.Global()), httplimit.WithRetries(1),
		httplimit.WithOnPause(func(string, time.Duration, string) { panic("planted") }))
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	require.PanicsWithValue(t, "planted", func() { _, _ = tr.RoundTrip(r) })
	require.Zero(t, spent(t, atOnce, "global"))
}

// A request that is sent again gives its slot back before it waits.
func TestARetryTakesASlotOfItsOwn(t *testing.T) {
	l := slots(t, living(t), 1)
	var tries atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if tries.Add(1) < 3 {
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, "later")
		}
	}))
	defer server.Close()
	transport, err := httplimit.NewTransport(nil, l, global, httplimit.WithRetries(5), httplimit.WithMaxPause(time.Millisecond))
	require.NoError(t, err)
	res, err := (&http.Client{Transport: transport}).Get(server.URL)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.NoError(t, res.Body.Close())
	requireHeld(t, l, 0)
	_, err = httplimit.NewTransport(nil, window(t, living(t), ratelimit.PerDay(1)), httplimit.WithSlots(inflight.Longest(time.Second)))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// A proxy passes on that a client has sent all, and the backend answers then.
func TestAConnectionThatAServerHasSwitchedCanBeClosedForWriting(t *testing.T) {
	l := slots(t, living(t), 1)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		all, _ := io.ReadAll(buffer)
		c.Write(all)
	}))
	defer backend.Close()
	transport, err := httplimit.NewTransport(nil, l, global)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, backend.URL, nil)
	require.NoError(t, err)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "x")
	res, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
	body, ok := res.Body.(interface {
		io.ReadWriter
		CloseWrite() error
	})
	require.True(t, ok)
	_, err = io.WriteString(body, "hello")
	require.NoError(t, err)
	require.NoError(t, body.CloseWrite())
	requireHeld(t, l, 1)
	all, err := io.ReadAll(body)
	require.NoError(t, err)
	require.Equal(t, "hello", string(all))
	requireHeld(t, l, 0)
}
