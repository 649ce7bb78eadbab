package httplimit_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// checks is the handler of docs/login.md with its ban. It calls checking while it checks a password.
func checks(door *ratelimit.Ban, checking func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		checking()
		d, ok := httplimit.FromContext(r.Context())
		if r.PostFormValue("password") != "secret" {
			if ok {
				if _, err := door.Strike(context.WithoutCancel(r.Context()), d.Key, 1); err != nil {
					log.Print(err) // it does not count
				}
			}
			http.Error(w, "wrong password", http.StatusUnauthorized)
			return
		}
		if ok {
			if err := d.Refund(r.Context()); err != nil {
				log.Print(err) // it stays charged
			}
		}
	}
}

// attempt makes the key of a login: "192.0.2.1 ann".
func attempt(r *http.Request) (string, error) {
	ip, err := httplimit.PeerIP().Of(r)
	return ip + " " + r.PostFormValue("user"), err
}

// addressOf is the address in the key of a login.
func addressOf(_ context.Context, key string) (string, error) {
	ip, _, _ := strings.Cut(strings.TrimPrefix(key, "attempt:"), " ")
	return ip, nil
}

// logins are the limits and the handler of docs/login.md with its ban, which has opts.
func logins(t *testing.T, store store.Store, checking func(), opts ...ratelimit.Option) (http.Handler, *ratelimit.Ban) {
	t.Helper()
	perAttempt, err := ratelimit.NewSlidingLog(store,
		ratelimit.Limit{Rate: 5, Period: 15 * time.Minute}, ratelimit.WithName("login"))
	require.NoError(t, err)
	perAddress, err := ratelimit.NewSlidingLog(store,
		ratelimit.Limit{Rate: 20, Period: 15 * time.Minute}, ratelimit.WithName("login-address"), ratelimit.WithKeyFunc(addressOf))
	require.NoError(t, err)
	free, err := ratelimit.NewSlidingLog(store, ratelimit.Unlimited(), ratelimit.WithName("wrong-passwords"))
	require.NoError(t, err)
	tenAnHour := ratelimit.Penalty{Denials: 10, Within: time.Hour, For: time.Hour, Most: 24 * time.Hour}
	door, err := ratelimit.NewBan(free, store, tenAnHour, opts...)
	require.NoError(t, err)
	wrong, err := ratelimit.NewAll(door, perAttempt, perAddress)
	require.NoError(t, err)
	limit := httplimit.Middleware(wrong,
		httplimit.WithKey(httplimit.KeyFunc("attempt", attempt)),
		httplimit.WithContext())
	return limit(checks(door, checking)), door
}

// attemptOf is a request of a user at 192.0.2.1.
func attemptOf(user int, password string) *http.Request {
	form := url.Values{"user": {fmt.Sprint("user", user)}, "password": {password}}
	r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

func logIn(h http.Handler, user int, password string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, attemptOf(user, password))
	return w
}

// onBothStores runs f on stores whose clock is c.
func onBothStores(t *testing.T, name string, f func(t *testing.T, s store.Store, c *ratelimittest.Clock)) {
	t.Run(name+"/memory", func(t *testing.T) {
		c := ratelimittest.NewClock(start)
		f(t, c.Memory(t), c)
	})
	t.Run(name+"/redis", func(t *testing.T) {
		c := ratelimittest.NewClock(start)
		s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(t.Name()+strconv.FormatInt(stores.Add(1), 10)),
			redisstore.WithTimeout(10*time.Second), redisstore.WithClock(c.Now))
		require.NoError(t, err)
		f(t, s, c)
	})
}

// by are options of the ban: who is banned.
var by = map[string][]ratelimit.Option{"the user": nil, "the address": {ratelimit.WithKeyFunc(addressOf)}}

// If 30 users of one address log in at the same time, ten are denied by its limit, and nobody is
// banned.
func TestNoRightPasswordOfAnOfficeBeginsABan(t *testing.T) {
	for name, opts := range by {
		onBothStores(t, name, func(t *testing.T, s store.Store, _ *ratelimittest.Clock) {
			const users, heard = 30, 20
			var denied, all sync.WaitGroup
			denied.Add(users - heard)
			h, _ := logins(t, s, denied.Wait, opts...) // a password is being checked until all others are denied
			for i := range users {
				all.Go(func() {
					if w := logIn(h, i, "secret"); w.Code != http.StatusOK {
						assert.Contains(t, w.Body.String(), "quota-exceeded")
						denied.Done()
					}
				})
			}
			all.Wait()
			for i := range users { // also those who were denied
				require.Equal(t, http.StatusOK, logIn(h, i, "secret").Code)
			}
		})
	}
}

func TestTheTenthWrongPasswordBeginsABan(t *testing.T) {
	for name, opts := range by {
		onBothStores(t, name, func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
			h, door := logins(t, s, func() {}, opts...)
			for i := range 10 {
				if i == 5 {
					require.Equal(t, http.StatusTooManyRequests, logIn(h, 1, "guess").Code, "the limit, which is no strike")
					c.Advance(15 * time.Minute)
					require.Equal(t, http.StatusOK, logIn(h, 1, "secret").Code)
				}
				require.Equal(t, http.StatusUnauthorized, logIn(h, 1, "guess").Code)
			}
			for _, password := range []string{"guess", "secret"} {
				w := logIn(h, 1, password)
				require.Equal(t, "3600", w.Header().Get("Retry-After"))
				require.Contains(t, w.Body.String(), "abnormal-usage-detected")
				require.Contains(t, w.Body.String(), `"The client is banned. Try again in 3600 s."`, "no request was refused, but passwords")
				require.Contains(t, w.Body.String(), `["ban"]`)
			}
			c.Advance(15 * time.Minute) // the limits have room again
			require.Equal(t, name == "the address", logIn(h, 2, "secret").Code == http.StatusTooManyRequests)
			require.NoError(t, door.Lift(t.Context(), "attempt:192.0.2.1 user1"))
			require.Equal(t, http.StatusOK, logIn(h, 1, "secret").Code)
			require.Equal(t, http.StatusOK, logIn(h, 2, "secret").Code)
		})
	}
}

// Of 60 concurrent guesses, five are checked, and each of these is a strike, even if the client has
// disconnected.
func TestEachGuessThatIsHeardIsAStrike(t *testing.T) {
	onBothStores(t, "the user", func(t *testing.T, s store.Store, c *ratelimittest.Clock) {
		var heard func()
		h, _ := logins(t, s, func() { heard() })
		for range 2 {
			ctx, hangUp := context.WithCancel(t.Context())
			var denied, five, all sync.WaitGroup
			denied.Add(55)
			five.Add(5)
			heard = func() { // when nobody is on the way any more
				denied.Wait()
				five.Done()
				five.Wait()
				hangUp()
			}
			for range 60 {
				all.Go(func() {
					w := httptest.NewRecorder()
					if h.ServeHTTP(w, attemptOf(1, "guess").WithContext(ctx)); w.Code != http.StatusUnauthorized {
						denied.Done()
					}
				})
			}
			all.Wait()
			c.Advance(15 * time.Minute)
		}
		require.Equal(t, "2700", logIn(h, 1, "secret").Header().Get("Retry-After"))
	})
}
