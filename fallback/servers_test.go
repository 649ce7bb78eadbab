package fallback_test

import (
	"context"
	"errors"
	"fmt"

	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// servers is a store of several servers. The first letter of a key is its server, unless it has moved.
type servers struct {
	store.Store
	mu    sync.Mutex
	down  map[string]bool
	moved map[string]string
	calls map[string]int // to servers that are down
	asked map[string]int // all calls
}

func newServers() *servers {
	return &servers{Store: ratelimit.Must(memstore.New()), down: map[string]bool{}, moved: map[string]string{}, calls: map[string]int{}, asked: map[string]int{}}
}

// ServerOf implements the optional method of a [store.Store].
func (s *servers) ServerOf(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	server := key[:1]
	if to, ok := s.moved[server]; ok {
		server = to
	}
	return server
}

func (s *servers) set(server string, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[server] = down
}

func (s *servers) reach(key string) error {
	server := s.ServerOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[server]++
	if s.down[server] {
		s.calls[server]++
		return see.At(server, fmt.Errorf("%w: %s is down", store.ErrUnavailable, server))
	}
	return nil
}

// Decide implements [store.Store].
func (s *servers) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := s.reach(requests[0].Key); err != nil {
		return err
	}
	return s.Store.Decide(ctx, requests, replies)
}

func (s *servers) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := s.reach(key); err != nil {
		return store.Reply{}, err
	}
	return s.Store.Take(ctx, ns, key, l, n)
}

// Together implements [store.Store].
func (s *servers) Together(key, other string) bool { return s.ServerOf(key) == s.ServerOf(other) }

func (s *servers) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if err := s.reach(key); err != nil {
		return err
	}
	return s.Store.Refund(ctx, ns, key, l, c)
}

// inside are limiters on a store of several servers.
func inside(t *testing.T, s store.Store) map[string]ratelimit.Limiter {
	t.Helper()
	one := func(name string, opts ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000), append(opts, ratelimit.WithName(name))...))
	}
	behind := func(s store.Store, err error) ratelimit.Limiter {
		require.NoError(t, err)
		return ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerHour(1_000_000)))
	}
	mem := ratelimit.Must(ratelimit.NewFixedWindow(ratelimit.Must(memstore.New()), ratelimit.PerHour(1_000_000)))
	swapped := ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key[1:], nil })
	return map[string]ratelimit.Limiter{
		"one":             one("one"),
		"All":             ratelimit.Must(ratelimit.NewAll(one("one"), one("two"))),
		"All with memory": ratelimit.Must(ratelimit.NewAll(mem, one("two"))),
		"First":           ratelimit.Must(ratelimit.NewFirst(one("one"), one("two"))),
		"Ban":             ratelimit.Must(ratelimit.NewBan(mem, s, ratelimit.Penalty{Denials: 10, Within: time.Hour, For: time.Hour})),
		"observed":        ratelimit.Must(observe.Around(one("one"), nobody{})),
		"key function":    one("one", swapped),
		"coalesce":        behind(coalesce.New(s)),
		"denycache":       behind(denycache.New(s)),
	}
}

// A server that is down makes only its own keys local: each server has a breaker.
func TestAServerThatIsDownDecidesForNoOther(t *testing.T) {
	for name := range inside(t, newServers()) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServers()
				lim := failover(t, inside(t, s)[name], fallback.FailOpen())
				time.Sleep(time.Hour) // without calls
				key := func(server string) string { return strings.Repeat(server, 3) }
				ask := func(server string) ratelimit.Source {
					r, err := lim.Allow(t.Context(), key(server))
					require.NoError(t, err)
					return r.Source()
				}
				s.set("b", true)
				for range 100 {
					require.Equal(t, ratelimit.SourceStore, ask("a"))
					require.Equal(t, ratelimit.SourceFailOpen, ask("b"))
					require.Equal(t, ratelimit.SourceStore, ask("c"))
				}
				require.LessOrEqual(t, s.calls["b"], 2*5, "the breaker of b is open")
				require.Equal(t, fallback.StateOpen, state(lim))
				_, err := ratelimit.Charge(t.Context(), lim, key("a"), 1)
				require.NoError(t, err)
				require.NoError(t, lim.Reset(t.Context(), key("a")))

				s.set("b", false)
				time.Sleep(time.Second)
				require.Equal(t, ratelimit.SourceStore, ask("b"), "a probe")
				require.Equal(t, fallback.StateClosed, state(lim))
			})
		})
	}
}

// A call for limits on several servers needs all of them. A failure is that of the server that failed, so that the others
// go on, whichever keys are asked for together.
func TestAServerIsNotBlamedForAnother(t *testing.T) {
	for _, order := range []string{"user, tenant", "tenant, user"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServers()
				user := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000)))
				tenant := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000), ratelimit.WithName("tenant"),
					ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key[1:], nil })))
				all := ratelimit.Must(ratelimit.NewAll(user, tenant))
				if order == "tenant, user" {
					all = ratelimit.Must(ratelimit.NewAll(tenant, user))
				}
				lim := failover(t, all, fallback.FailClosed(), fallback.WithBreaker(5, 10*time.Second))
				ask := func(key string) ratelimit.Result {
					r, err := lim.Allow(t.Context(), key)
					require.NoError(t, err)
					return r
				}
				s.set("b", true)
				for range 100 {
					for _, key := range []string{"ab", "ab", "ab", "ba", "cb", "bc"} {
						require.Equal(t, ratelimit.SourceFailClosed, ask(key).Source(), key)
					}
					for _, key := range []string{"aa", "ac", "ca"} {
						require.Equal(t, ratelimit.SourceStore, ask(key).Source(), key)
					}
				}
				require.LessOrEqual(t, s.calls["b"], 5)
				for _, key := range []string{"ab", "ba"} {
					require.Equal(t, 10*time.Second, ask(key).RetryAfter, "until the probe of b")
				}
				calls := s.calls["b"]
				time.Sleep(10 * time.Second)
				require.Equal(t, ratelimit.SourceFailClosed, ask("ab").Source())
				require.Equal(t, calls+1, s.calls["b"], "the probe is a Peek as long as b fails")
				s.set("b", false)
				s.set("a", true)
				time.Sleep(10 * time.Second)
				require.Equal(t, ratelimit.SourceFailClosed, ask("ab").Source(), "b has answered, if it was asked")
				require.Equal(t, ratelimit.SourceStore, ask("bc").Source())
				require.Equal(t, ratelimit.SourceStore, ask("cb").Source())
			})
		})
	}
}

// hung is a store whose servers that are down hang.
type hung struct{ *servers }

const hungFor = 250 * time.Millisecond

func (h hung) Timeout() time.Duration { return hungFor }

func (h hung) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := h.reach(key); err != nil {
		time.Sleep(hungFor)
		return store.Reply{}, err
	}
	return h.Store.Take(ctx, ns, key, l, n)
}

func (h hung) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := h.reach(requests[0].Key); err != nil {
		time.Sleep(hungFor)
		return err
	}
	return h.Store.Decide(ctx, requests, replies)
}

// Calls that wait in a cache for a server that hangs, until their time is over, are a failure of that server too.
func TestAServerIsNotBlamedForAnotherBehindACache(t *testing.T) {
	fronts := map[string]func(s store.Store) store.Store{
		"coalesce": func(s store.Store) store.Store { return ratelimit.Must(coalesce.New(s)) },
		"lease":    func(s store.Store) store.Store { return ratelimit.Must(lease.New(s, time.Second)) },
	}
	for name, front := range fronts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServers()
				cached := front(hung{s})
				user := ratelimit.Must(ratelimit.NewTokenBucket(cached, ratelimit.PerHour(1_000_000)))
				tenant := ratelimit.Must(ratelimit.NewTokenBucket(cached, ratelimit.PerHour(1_000_000), ratelimit.WithName("tenant"),
					ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key[1:], nil })))
				lim := failover(t, ratelimit.Must(ratelimit.NewAll(user, tenant)), fallback.FailClosed())
				s.set("b", true)
				var calls sync.WaitGroup
				for i := range 16 {
					calls.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						r, err := lim.Allow(t.Context(), "ab")
						require.NoError(t, err)
						require.Equal(t, ratelimit.SourceFailClosed, r.Source())
					})
				}
				calls.Wait()
				require.Equal(t, fallback.StateOpen, state(lim), "that of b")
				require.Equal(t, ratelimit.SourceStore, allow(t, lim, "aa").Source())
				time.Sleep(time.Minute) // leases end
			})
		})
	}
}

// The server that fails may not be the one of the caller's key, because a limiter of another package has changed the key,
// or because keys of a Ring have moved. The breaker opens even then.
func TestAServerThatIsNotThatOfTheKeyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers()
		lim := failover(t, prefixed{inside(t, s)["one"]}, fallback.FailOpen())
		s.set("t", true) // of all keys that begin with "tenant:"
		for range 100 {
			require.Equal(t, ratelimit.SourceFailOpen, allow(t, lim, "a").Source())
		}
		require.Equal(t, 5, s.calls["t"])
		s.set("t", false)
		time.Sleep(time.Second)
		require.Equal(t, ratelimit.SourceStore, allow(t, lim, "a").Source())
		require.Equal(t, fallback.StateClosed, state(lim))
	})
}

// A limit that denies, or the first of a First, decides without the server of the other limit. That server has not answered then.
func TestAServerThatWasNotAskedHasNotAnswered(t *testing.T) {
	last := ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return key[len(key)-1:], nil })
	for _, name := range []string{"All", "First", "All of a First"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServers()
				user := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1)))
				tenant := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000), ratelimit.WithName("tenant"), last))
				var l ratelimit.Limiter = ratelimit.Must(ratelimit.NewAll(user, tenant))
				alone, both := "a spent b", "a %d b" // keys of which only a is asked, and also b
				switch name {
				case "First":
					l = ratelimit.Must(ratelimit.NewFirst(user, tenant))
					alone, both = "a %d b", "a spent b"
				case "All of a First":
					l = ratelimit.Must(ratelimit.NewAll(ratelimit.Must(ratelimit.NewFirst(user, tenant)), inMemory(t, "fixed_window", ratelimit.PerHour(1_000_000))))
					alone, both = "a %d b", "a spent b"
				}
				lim, keys := failover(t, l, fallback.FailOpen()), 0
				ask := func(key string) ratelimit.Source {
					keys++
					r, err := lim.Allow(t.Context(), strings.ReplaceAll(key, "%d", fmt.Sprint(keys)))
					require.NoError(t, err)
					return r.Source()
				}
				require.Equal(t, ratelimit.SourceStore, ask("a spent b"))
				asked := s.asked["b"]
				ask(alone)
				require.Equal(t, asked, s.asked["b"])
				s.set("b", true)
				for range 100 {
					ask(alone)
					ask(both)
				}
				require.Equal(t, 5, s.calls["b"], "its breaker is open")
				require.Equal(t, ratelimit.SourceStore, ask("a spent a"))
				for range 10 {
					time.Sleep(time.Second)
					require.Equal(t, ratelimit.SourceFailOpen, ask(alone), "the probe of b fails")
					require.Equal(t, ratelimit.SourceFailOpen, ask(both))
				}
				require.LessOrEqual(t, s.calls["b"], 5+10*2)
				s.set("b", false)
				time.Sleep(time.Second)
				require.Equal(t, ratelimit.SourceStore, ask(alone), "the probe of b succeeds")
				require.Equal(t, fallback.StateClosed, state(lim))
			})
		})
	}
}

// word is a limit per hour of word i of the key.
func (s *servers) word(i, limit int) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(limit), ratelimit.WithName(fmt.Sprint("word", i)),
		ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return strings.Fields(key)[i], nil })))
}

// A limit that denies leaves those behind it to the Peek of a probe, and a limiter of a First that is not needed has not answered.
func TestAServerBehindADenialHasNotAnsweredAProbe(t *testing.T) {
	for _, down := range []string{"c", "d"} {
		t.Run(down, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServers()
				user, first := s.word(0, 2), ratelimit.Must(ratelimit.NewFirst(s.word(1, 1), s.word(2, 1_000_000)))
				lim := failover(t, all(t, user, user, first, s.word(3, 1_000_000)), fallback.FailOpen(), fallback.WithBreaker(1, time.Second))
				require.Equal(t, ratelimit.SourceStore, allow(t, lim, "a-spent b-spent c d").Source())
				s.set(down, true)
				require.Equal(t, ratelimit.SourceFailOpen, allow(t, lim, "a b-spent c d").Source())
				for range 3 {
					time.Sleep(time.Second)
					allow(t, lim, "a-spent b c d")
					require.NotEqual(t, fallback.StateClosed, state(lim), "the server has not answered")
				}
				s.set(down, false)
				time.Sleep(time.Second)
				require.False(t, allow(t, lim, "a-spent b-spent c d").Allowed)
				require.Equal(t, fallback.StateClosed, state(lim))
			})
		})
	}
}

// A probe that the first limiter of a First admits asks all others, too, and those inside them.
func TestAProbeAsksWhatIsInsideALimiterOfAFirst(t *testing.T) {
	for down, needs := range map[string]string{"d": "a-spent b c-spent d e", "e": "a-spent b-spent c d e"} {
		t.Run(down, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServers()
				inner := ratelimit.Must(ratelimit.NewFirst(s.word(2, 1), s.word(3, 1_000_000)))
				lim := failover(t, ratelimit.Must(ratelimit.NewFirst(s.word(0, 1), all(t, s.word(1, 1), inner), s.word(4, 1_000_000))),
					fallback.FailOpen(), fallback.WithBreaker(1, time.Second))
				for range 2 {
					require.Equal(t, ratelimit.SourceStore, allow(t, lim, "a-spent b-spent c-spent d e").Source())
				}
				s.set(down, true)
				require.Equal(t, ratelimit.SourceFailOpen, allow(t, lim, needs).Source())
				time.Sleep(time.Second)
				require.Equal(t, ratelimit.SourceFailOpen, allow(t, lim, "a b c d e").Source())
				require.Equal(t, fallback.StateOpen, state(lim))
				s.set(down, false)
				time.Sleep(time.Second)
				require.Equal(t, ratelimit.SourceStore, allow(t, lim, "a b c d e").Source())
				require.Equal(t, fallback.StateClosed, state(lim))
			})
		})
	}
}

// Limits of other packages are asked one by one, even those of one server. Its answer to one of them is its answer.
func TestAServerThatAnswersForOneOfItsLimitsHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers()
		user := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1)))
		route := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000), ratelimit.WithName("route")))
		tenant := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000), ratelimit.WithName("tenant"),
			ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return "b" + key, nil })))
		lim := failover(t, all(t, foreign{user}, foreign{route}, foreign{tenant}), fallback.FailOpen(), fallback.WithBreaker(2, time.Second))
		require.Equal(t, ratelimit.SourceStore, allow(t, lim, "a spent").Source())
		for range 10 {
			s.set("a", true)
			require.Equal(t, ratelimit.SourceFailOpen, allow(t, lim, "a").Source())
			s.set("a", false)
			require.False(t, allow(t, lim, "a spent").Allowed)
		}
		require.Equal(t, fallback.StateClosed, state(lim), "no two failures in a row")
	})
}

// The error of a key function is that of the call, and of no server.
func TestAKeyFunctionThatFailsIsNoFailureOfAServer(t *testing.T) {
	failed := errors.New("no such tenant")
	lim := failover(t, ratelimit.Must(ratelimit.NewTokenBucket(newServers(), ratelimit.PerHour(1),
		ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "", failed }))), fallback.FailOpen(), fallback.WithBreaker(1, time.Hour))
	for range 3 {
		_, err := lim.Allow(t.Context(), "a")
		require.ErrorIs(t, err, failed)
	}
}

// slowServers is servers, of which a answers when told.
type slowServers struct {
	*servers
	answer chan struct{}
}

func (s slowServers) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if s.ServerOf(requests[0].Key) == "a" {
		<-s.answer
	}
	return s.servers.Decide(ctx, requests, replies)
}

func (s slowServers) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if s.ServerOf(key) == "a" {
		<-s.answer
	}
	return s.servers.Take(ctx, ns, key, l, n)
}

// A call may fail long after its server was forgotten. Nobody would close that breaker.
func TestAFailureOfAServerThatWasForgottenOpensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowServers{newServers(), make(chan struct{})}
		lim := failover(t, ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000))), fallback.FailOpen(), fallback.WithBreaker(1, time.Second))
		s.set("a", true)
		var slow sync.WaitGroup
		slow.Go(func() { require.Equal(t, ratelimit.SourceFailOpen, allow(t, lim, "a").Source()) })
		time.Sleep(time.Minute)
		require.Equal(t, ratelimit.SourceStore, allow(t, lim, "b").Source())
		close(s.answer)
		slow.Wait()
		require.Equal(t, fallback.StateClosed, state(lim))
	})
}

// A limit in memory that denies, or the first of a First, decides without the store, of which nothing is learned.
func TestALimitInMemoryDoesNotAnswerForTheStore(t *testing.T) {
	for name, c := range map[string]struct {
		first, single, observed bool
	}{"All": {}, "All that is observed": {observed: true}, "All, of a single server": {single: true}, "First": {first: true}, "First, of a single server": {first: true, single: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, server := newServers(), "b"
				if c.single {
					s.moved[server] = ""
					server = ""
				}
				mem := inMemory(t, "fixed_window", ratelimit.PerHour(1))
				one := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000)))
				var l ratelimit.Limiter = ratelimit.Must(ratelimit.NewAll(mem, one))
				alone, both := func(int) string { return "b spent" }, func(i int) string { return fmt.Sprint("b", i) }
				if c.first {
					l, alone, both = ratelimit.Must(ratelimit.NewFirst(mem, one)), both, alone
				}
				if c.observed {
					l = ratelimit.Must(observe.Around(l, nobody{}))
				}
				lim := failover(t, l, fallback.FailOpen())
				allow(t, lim, "b spent")
				s.set(server, true)
				for i := range 100 {
					allow(t, lim, alone(i))
					allow(t, lim, both(i))
				}
				require.Equal(t, 5, s.calls[server], "the breaker is open")
				time.Sleep(time.Second)
				require.Equal(t, ratelimit.SourceFailOpen, allow(t, lim, alone(100)).Source(), "the probe fails")
				s.set(server, false)
				time.Sleep(time.Second)
				require.Equal(t, ratelimit.SourceStore, allow(t, lim, alone(101)).Source())
				require.Equal(t, fallback.StateClosed, state(lim))
			})
		})
	}
}

// While one server is down, the state is open. Its breaker is forgotten when its keys have moved to another server, where
// nobody would probe it.
func TestTheStateIsThatOfTheServersThatAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var told []string
		s := newServers()
		lim := failover(t, inside(t, s)["one"], fallback.FailOpen(), fallback.WithBreaker(1, time.Second),
			fallback.WithOnChange(func(s fallback.State, since time.Time) {
				told = append(told, fmt.Sprint(s, " after ", since.Sub(start)))
			}))
		s.set("a", true)
		s.set("b", true)
		allowKeys := func() {
			for _, key := range []string{"a", "b", "c"} {
				_, err := lim.Allow(t.Context(), key)
				require.NoError(t, err)
			}
		}
		allowKeys()
		require.Equal(t, []string{"open after 0s"}, told)
		time.Sleep(time.Second)
		s.set("a", false)
		allowKeys() // the probe of a does not show, because b is still open; that of b fails
		require.Equal(t, fallback.StateOpen, state(lim))
		require.Equal(t, []string{"open after 0s", "half_open after 1s", "open after 1s"}, told)
		s.moved["b"] = "d"
		for range 12 {
			time.Sleep(time.Second)
			allowKeys()
		}
		require.Equal(t, "closed after 12s", told[len(told)-1], told)
		require.Equal(t, fallback.StateClosed, state(lim))

		s.set("a", true)
		allowKeys()
		s.moved["a"] = "c"
		require.Equal(t, fallback.StateOpen, state(lim))
		time.Sleep(time.Minute)
		require.Equal(t, fallback.StateClosed, state(lim), "without another call")
	})
}

func TestBreakersThatNobodyUsesAreForgottenInTime(t *testing.T) {
	for probeAfter, idle := range map[time.Duration]time.Duration{100 * time.Millisecond: 10 * time.Second, time.Second: 10 * time.Second, time.Minute: 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := newServers()
			lim := failover(t, inside(t, s)["one"], fallback.FailOpen(), fallback.WithBreaker(1, probeAfter))
			for _, server := range []string{"a", "b"} {
				s.set(server, true)
				allow(t, lim, server)
			}
			require.Equal(t, fallback.StateOpen, state(lim), probeAfter)
			time.Sleep(idle)
			require.Equal(t, fallback.StateHalfOpen, state(lim), probeAfter)
			time.Sleep(time.Nanosecond)
			require.Equal(t, fallback.StateClosed, state(lim), probeAfter)
		})
	}
}

// The server of a key may be unknown until the first call succeeds.
func TestABreakerOfUnknownServersIsForgottenToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers()
		s.moved["a"] = ""
		s.set("", true)
		lim := failover(t, inside(t, s)["one"], fallback.FailOpen(), fallback.WithBreaker(1, time.Second))
		for range 100 {
			_, err := lim.Allow(t.Context(), "a")
			require.NoError(t, err)
		}
		require.Equal(t, 1, s.calls[""])
		require.Equal(t, fallback.StateOpen, state(lim))
		delete(s.moved, "a")
		r, err := lim.Allow(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceStore, r.Source())
		time.Sleep(12 * time.Second)
		require.Equal(t, fallback.StateClosed, state(lim))
	})
}

// The store of a single server, such as one on a redis.Client, never tells a server. Its breaker is not forgotten while there are no
// calls: the next call is a probe.
func TestTheBreakerOfASingleServerIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers()
		s.moved["a"] = ""
		s.set("", true)
		lim := failover(t, inside(t, s)["one"], fallback.FailOpen())
		for range 100 {
			allow(t, lim, "a")
		}
		for range 2 {
			time.Sleep(time.Minute)
			require.Equal(t, fallback.StateHalfOpen, state(lim))
		}
		allow(t, lim, "a")
		require.Equal(t, fallback.StateOpen, state(lim))
		require.Equal(t, 5+1, s.calls[""])
	})
}

// While the breaker of a single server is open, no function of the limiter is called, as it may be slow.
func TestTheKeyFunctionOfASingleServerIsNotCalled(t *testing.T) {
	t.Parallel()
	s, calls := newServers(), 0
	s.moved["a"] = ""
	s.set("", true)
	lim := failover(t, ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1), ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) {
		calls++
		return key, nil
	}))), fallback.FailOpen(), fallback.WithBreaker(2, time.Hour))
	for range 100 {
		allow(t, lim, "a")
	}
	require.Equal(t, 2, calls)
}

// One of three servers hangs. The store decides for the keys of the others, as if nothing had happened.
func TestAServerOfAClusterHangs(t *testing.T) {
	t.Parallel()
	addrs := map[string]string{}
	var servers []*redistest.Server
	for i := range 3 {
		servers = append(servers, redistest.Start(t))
		addrs[fmt.Sprint(i)] = servers[i].Addr()
	}
	type several struct {
		client redisstore.Client
		hangs  *redistest.Server
	}
	kinds := map[string]several{
		"Ring": {redis.NewRing(&redis.RingOptions{Addrs: addrs, HeartbeatFrequency: time.Hour, ContextTimeoutEnabled: true}), servers[0]},
	}
	if effort.Full() {
		cluster := redistest.StartCluster(t, 3, 0)
		for _, m := range cluster.Masters {
			require.NoError(t, m.Client(t).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
		}
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Masters[1].Addr()}, ContextTimeoutEnabled: true})
		kinds["Cluster"] = several{client, cluster.Masters[0]}
	}
	for name, of := range kinds {
		s := ratelimit.Must(redisstore.New(of.client, redisstore.WithTimeout(500*time.Millisecond)))
		require.NoError(t, s.Ready(t.Context()))
		one := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerHour(1_000_000)))
		slots := ratelimit.Must(inflight.New(s, 1_000_000, time.Hour))
		leases := ratelimit.Must(lease.New(s, time.Second))
		insides := map[string]ratelimit.Limiter{
			"one": one, "All": ratelimit.Must(ratelimit.NewAll(one, slots)), "lease": ratelimit.Must(ratelimit.NewFixedWindow(leases, ratelimit.PerHour(1_000_000))),
		}
		of.hangs.Freeze()
		for inside, l := range insides {
			t.Run(name+", "+inside, func(t *testing.T) {
				t.Parallel()
				lim := failover(t, l, fallback.FailOpen(), fallback.WithBreaker(2, time.Hour))
				hanging := 0
				for i := range 300 {
					key, want := fmt.Sprint("key", i), ratelimit.SourceStore
					if s.ServerOf(key) == of.hangs.Addr() {
						want = ratelimit.SourceFailOpen
						hanging++
					}
					r, err := lim.Allow(t.Context(), key)
					require.NoError(t, err)
					require.Equal(t, want, r.Source(), key)
				}
				require.Greater(t, hanging, 2)
				require.Equal(t, fallback.StateOpen, state(lim))
			})
		}
	}
}
