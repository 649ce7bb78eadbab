package frameworks_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// clock is set by hand.
type clock struct{ us atomic.Int64 }

func (c *clock) now() time.Time          { return time.UnixMicro(c.us.Load()) }
func (c *clock) advance(d time.Duration) { c.us.Add(d.Microseconds()) }

// passwords are attempts at a login: five are heard in 15 minutes, and three denials ban for an hour.
func passwords(t *testing.T, s store.Store) ratelimit.Limiter {
	t.Helper()
	wrong, err := ratelimit.NewSlidingLog(s, ratelimit.Limit{Rate: 5, Period: 15 * time.Minute}, ratelimit.WithName("login"))
	if err != nil {
		t.Fatal(err)
	}
	ban, err := ratelimit.NewBan(wrong, s, ratelimit.Penalty{Denials: 3, Within: 15 * time.Minute, For: time.Hour, Most: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return ban
}

// Of 60 wrong passwords at once five are heard, and the others begin one ban of an hour, in each framework.
// What comes after them makes it no longer.
func TestSixtyWrongPasswordsAtOnceBeginOneBan(t *testing.T) {
	server, prefixes := redistest.Start(t), 0
	for name, on := range map[string]func(*testing.T, *clock) store.Store{
		"memory": func(t *testing.T, c *clock) store.Store {
			s, err := memstore.New(memstore.WithClock(c.now))
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"redis": func(t *testing.T, c *clock) store.Store {
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = client.Close() })
			prefixes++ // each framework has limits of its own
			s, err := redisstore.New(client, redisstore.WithClock(c.now), redisstore.WithPrefix(fmt.Sprint(prefixes)), redisstore.WithTimeout(10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		c := new(clock)
		c.us.Store(time.Now().UnixMicro())
		limits := func() func(http.Handler) http.Handler {
			return httplimit.Middleware(passwords(t, on(t, c)), httplimit.WithRefund(httplimit.Successful))
		}
		for framework, h := range logins(t, limits, right) {
			t.Run(name+"/"+framework, func(t *testing.T) { banned(t, h, c) })
		}
	}
}

// banned sends passwords to h.
func banned(t *testing.T, h http.Handler, c *clock) {
	s := httptest.NewServer(h)
	defer s.Close()
	post := func(password string) (status int, retryAfter string) {
		answer, err := http.PostForm(s.URL+"/login", url.Values{"password": {password}})
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode, answer.Header.Get("Retry-After")
	}
	var heard, refused atomic.Int64
	var guesses sync.WaitGroup
	for range 60 {
		guesses.Go(func() {
			switch status, _ := post("guess"); status {
			case http.StatusUnauthorized:
				heard.Add(1)
			case http.StatusTooManyRequests:
				refused.Add(1)
			}
		})
	}
	guesses.Wait()
	if heard.Load() != 5 || refused.Load() != 55 {
		t.Fatalf("%d of 60 guesses were heard, and %d refused", heard.Load(), refused.Load())
	}
	c.advance(59 * time.Minute)
	if status, after := post("secret"); status != http.StatusTooManyRequests || after != "60" {
		t.Errorf("%d and Retry-After %q a minute before the end of the ban", status, after)
	}
	c.advance(time.Minute)
	if status, after := post("secret"); status != http.StatusOK || after != "" {
		t.Errorf("%d and Retry-After %q at the end of the ban", status, after)
	}
}

// In each framework the tenth wrong password in an hour bans for an hour, as in docs/login.md. What the limit
// denies is no strike.
func TestTheTenthWrongPasswordBans(t *testing.T) {
	c := new(clock)
	c.us.Store(time.Now().UnixMicro())
	s, err := memstore.New(memstore.WithClock(c.now))
	if err != nil {
		t.Fatal(err)
	}
	free, err := ratelimit.NewSlidingLog(s, ratelimit.Unlimited(), ratelimit.WithName("wrong-passwords"))
	if err != nil {
		t.Fatal(err)
	}
	var door *ratelimit.Ban
	limits := func() func(http.Handler) http.Handler {
		attempts, err := ratelimit.NewSlidingLog(s, ratelimit.Limit{Rate: 5, Period: 15 * time.Minute}, ratelimit.WithName("login"))
		if err != nil {
			t.Fatal(err)
		}
		door, err = ratelimit.NewBan(free, s, ratelimit.Penalty{Denials: 10, Within: time.Hour, For: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		both, err := ratelimit.NewAll(door, attempts)
		if err != nil {
			t.Fatal(err)
		}
		return httplimit.Middleware(both, httplimit.WithContext())
	}
	counted := func(r *http.Request) bool {
		if right(r) {
			give(t, r)
			return true
		}
		d, _ := httplimit.FromContext(r.Context())
		if _, err := door.Strike(context.WithoutCancel(r.Context()), d.Key, 1); err != nil {
			t.Error(err)
		}
		return false
	}
	all := logins(t, limits, counted)
	delete(all, "gin: as in net/http") // which checks each password twice
	for framework, h := range all {
		t.Run(framework, func(t *testing.T) {
			defer c.advance(2 * time.Hour) // all have one ban
			for range 2 {
				requireTwenty(t, h, "guess", http.StatusUnauthorized, 5)
				if code := try(h, "secret"); code != http.StatusTooManyRequests {
					t.Fatal("a right password at the limit:", code)
				}
				c.advance(15 * time.Minute)
			}
			if code := try(h, "secret"); code != http.StatusTooManyRequests {
				t.Fatal("a right password during the ban:", code)
			}
			c.advance(45 * time.Minute)
			if code := try(h, "secret"); code != http.StatusOK {
				t.Fatal("a right password after the ban:", code)
			}
		})
	}
}
