package suite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// TestSoak has some 90 limiters decide for as long as RATELIMIT_SOAK says, such as 3h, while their
// servers break 200 times an hour: on one Redis server, a cluster, a Sentinel and a Ring, on Postgres,
// and in memory. A referee of each key counts what is admitted over its limit. Without the variable a
// full run has the one Redis server break for some seconds.
func TestSoak(t *testing.T) {
	long, pause := 8*time.Second, 100*time.Millisecond
	text := os.Getenv("RATELIMIT_SOAK")
	if text == "" {
		effort.NeedFull(t)
	} else {
		var err error
		long, err = time.ParseDuration(text)
		require.NoError(t, err, "RATELIMIT_SOAK")
		pause = time.Hour / 200
	}
	before := runtime.NumGoroutine()
	t.Run("load", func(t *testing.T) { newSoak(t, text != "").run(t, long, pause) })
	for limit := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(limit) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("goroutines are left:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func (s *soak) run(t *testing.T, long, pause time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var running sync.WaitGroup
	for _, sub := range s.subjects {
		callers := 2
		if sub.slots {
			callers = 3 * soakSlots
		}
		for range callers {
			running.Go(func() { sub.load(ctx) })
		}
	}
	running.Go(func() { s.reload(t, ctx) })
	running.Go(func() { s.watchMasters(ctx) })
	running.Go(func() { s.measure(t, ctx, long/120) })
	s.breakServers(t, ctx, pause)
	running.Wait()
	s.close(t)
	s.report(t, long >= time.Minute)
}

// soak is what is tried.
type soak struct {
	places   []*place
	subjects []*subject
	limiters []*config.Limiters // that are read anew
	leases   []*lease.Store
	faults   []fault
	samples  []sample
}

// place is where limiters count, and what befalls it.
type place struct {
	name        string
	store       store.Store
	probe       ratelimit.Limiter                         // nil in memory, where nothing breaks
	servers     func(ctx context.Context) []*redis.Client // the masters of Redis, or nil
	connections func() float64
	close       func()
	// lasting returns what is kept although nobody needs it any more.
	lasting func(ctx context.Context) []string

	mu      sync.Mutex    // protects what follows
	masters int           // how many there are at first
	changed time.Time     // when they changed last
	unasked []time.Time   // when they were not as before, without a fault
	lossy   bool          // writes may be lost just now
	calm    time.Time     // when the last fault was over, and all had come back
	decided time.Time     // when the last call had its decision
	silent  time.Duration // the longest time in calm without a decision
}

// subject is a limiter, and who judges it.
type subject struct {
	name  string
	at    *place
	lim   ratelimit.Limiter
	slots bool // it is held, with the others of an All
	judge func() judge

	mu     sync.Mutex // protects what follows
	judges map[string]judge
	told   map[string]int // outcomes by name
	overAt []time.Time    // when there was one too many
}

const (
	soakRate   = 20 // events a second of a key; a reload gives some half as many more
	soakSlots  = 2
	soakLife   = 2 * time.Second
	soakPeriod = time.Second
	soakKeep   = 5 * soakPeriod // for which a judge has events in mind, at most
)

func newSoak(t *testing.T, whole bool) *soak {
	s := &soak{}
	mem, err := memstore.New(memstore.WithMaxKeys(20_000))
	require.NoError(t, err)
	s.places = append(s.places, &place{name: "memory", store: mem})
	s.addServer(t, whole)
	if whole {
		s.addCluster(t)
		s.addSentinel(t)
		s.addRing(t)
		s.addPostgres(t)
	}
	for _, p := range s.places {
		s.addSubjects(t, p)
	}
	return s
}

// addPlace adds a place where servers break.
func (s *soak) addPlace(t *testing.T, p *place) {
	p.probe = newLimiter(t, "token_bucket", p.store, ratelimit.PerSecond(1_000_000), ratelimit.WithName("probe"))
	s.places = append(s.places, p)
}

// addRedis adds the place that client reaches, and returns it.
func (s *soak) addRedis(t *testing.T, name string, client redis.UniversalClient, servers func(ctx context.Context) []*redis.Client) *place {
	onRedis, err := redisstore.New(client)
	require.NoError(t, err)
	p := &place{
		name: name, store: onRedis, servers: servers,
		connections: func() float64 { return float64(client.PoolStats().TotalConns) },
		close:       func() { require.NoError(t, client.Close()) },
		lasting:     func(ctx context.Context) []string { return keysWithoutTTL(ctx, servers(ctx)) },
	}
	s.addPlace(t, p)
	return p
}

// addSubjects adds the limiters that count at p.
func (s *soak) addSubjects(t *testing.T, p *place) {
	rate := ratelimit.PerSecond(soakRate)
	add := func(name string, lim ratelimit.Limiter, slots bool, j func() judge) {
		s.subjects = append(s.subjects, &subject{
			name: p.name + " " + name, at: p, lim: lim, slots: slots, judge: j,
			judges: map[string]judge{}, told: map[string]int{},
		})
	}
	for _, algorithm := range algorithms {
		add(algorithm, newLimiter(t, algorithm, p.store, rate), false, judgeOf(algorithm, soakRate))
	}
	wider := ratelimit.PerSecond(2 * soakRate)
	add("all of two", all(t, newLimiter(t, "token_bucket", p.store, rate, ratelimit.WithName("strict")),
		newLimiter(t, "fixed_window", p.store, wider, ratelimit.WithName("wide"))), false, judgeOf("token_bucket", soakRate))
	first, err := ratelimit.NewFirst( // the second may take what the first leaves
		newLimiter(t, "sliding_log", p.store, rate, ratelimit.WithName("shared"), ratelimit.WithReserved(soakRate/2)),
		all(t, newLimiter(t, "sliding_log", p.store, rate, ratelimit.WithName("shared")), newLimiter(t, "token_bucket", p.store, wider, ratelimit.WithName("credits"))))
	require.NoError(t, err)
	add("first of a reserve", first, false, judgeOf("sliding_log", soakRate))
	slots, err := inflight.New(p.store, soakSlots, soakLife, ratelimit.WithName("slots"))
	require.NoError(t, err)
	add("slots", slots, true, slotJudge)
	both, err := inflight.New(p.store, soakSlots, soakLife, ratelimit.WithName("both"))
	require.NoError(t, err)
	add("slots and a rate", all(t, newLimiter(t, "token_bucket", p.store, rate, ratelimit.WithName("rate")), both), true, slotJudge)
	if p.probe == nil {
		return
	}
	leases, err := lease.New(p.store, 50*time.Millisecond)
	require.NoError(t, err)
	s.leases = append(s.leases, leases)
	for _, algorithm := range []string{"fixed_window", "sliding_log", "token_bucket"} {
		add("lease of "+algorithm, newLimiter(t, algorithm, leases, ratelimit.PerSecond(4*soakRate), ratelimit.WithName("leased")),
			false, judgeOf(algorithm, 4*soakRate))
	}
	add("deny cache", newLimiter(t, "sliding_log", newDenyCache(t, p.store), rate, ratelimit.WithName("cached")), false, judgeOf("sliding_log", soakRate))
	add("coalesced", newLimiter(t, "fixed_window", newCoalesced(t, p.store), rate, ratelimit.WithName("coalesced")), false, judgeOf("fixed_window", soakRate))
	open := failover(t, newLimiter(t, "token_bucket", p.store, rate, ratelimit.WithName("open")), fallback.FailOpen(),
		fallback.WithBreaker(5, 100*time.Millisecond))
	add("fails open", open, false, judgeOf("token_bucket", soakRate))
	s.addReloaded(t, p, add)
}

// soakTexts are what limiters are read from, in turns.
var soakTexts = []string{
	`limiters: {a: {algorithm: fixed_window, limit: 20/s, on_failure: closed}}`,
	`limiters: {a: {algorithm: fixed_window, limit: 30/s, on_failure: local, instances: 3}}`,
}

func (s *soak) addReloaded(t *testing.T, p *place, add func(string, ratelimit.Limiter, bool, func() judge)) {
	text, err := config.Parse([]byte(soakTexts[0]))
	require.NoError(t, err)
	limiters, err := text.Build(p.store)
	require.NoError(t, err)
	lim, err := limiters.Limiter("a")
	require.NoError(t, err)
	s.limiters = append(s.limiters, limiters)
	add("read anew", lim, false, judgeOf("fixed_window", 30))
}

// reload reads limits anew, again and again.
func (s *soak) reload(t *testing.T, ctx context.Context) {
	for i := 1; ; i++ {
		if rest(ctx, 3*time.Second); ctx.Err() != nil {
			return
		}
		text, err := config.Parse([]byte(soakTexts[i%len(soakTexts)]))
		if err != nil {
			t.Error(err)
			return
		}
		for _, limiters := range s.limiters {
			if err := limiters.Update(text); err != nil {
				t.Error(err)
			}
		}
	}
}

// load asks until ctx ends: mostly for two keys, and for one that is new each time.
func (sub *subject) load(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		key := strconv.Itoa(i / 3 % 2)
		if i%10 == 9 {
			key = "once " + strconv.FormatUint(rand.Uint64(), 36)
		}
		// No call may end with ctx: one that has no answer may have been charged.
		call := context.WithoutCancel(ctx)
		if sub.slots {
			sub.hold(call, key)
		} else {
			sub.ask(call, key, i)
		}
		time.Sleep(rand.N(60 * time.Millisecond))
	}
}

// ask asks in one of several ways.
func (sub *subject) ask(ctx context.Context, key string, i int) {
	began := time.Now()
	var r ratelimit.Result
	var err error
	n := 1
	switch i % 11 {
	case 3:
		n = 2
		r, err = sub.lim.AllowN(ctx, key, n)
	case 5:
		_, err = sub.lim.Peek(ctx, key)
		sub.tell(r, err)
		return
	case 7:
		waiting, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		r, err = ratelimit.Wait(waiting, sub.lim, key, n)
		if errors.Is(err, ratelimit.ErrWouldExceedDeadline) || errors.Is(err, context.DeadlineExceeded) {
			err = nil // r is no admission
		}
	default:
		r, err = sub.lim.Allow(ctx, key)
	}
	sub.tell(r, err)
	if err != nil || !r.Allowed || r.Source() != ratelimit.SourceStore {
		return
	}
	t := &turn{began: began, ended: time.Now(), n: n}
	sub.saw(key, t)
	if i%11 == 9 {
		sub.forget(key, t)
		sub.tellError("refund", sub.lim.Refund(ctx, key, r, r.Charged()))
	}
}

// hold holds a slot for some time.
func (sub *subject) hold(ctx context.Context, key string) {
	slot, r, err := inflight.Hold(ctx, sub.lim, key, 1)
	sub.tell(r, err)
	if slot == nil {
		return
	}
	held := &turn{slot: slot, n: 1}
	sub.saw(key, held)
	work := time.NewTimer(rand.N(200 * time.Millisecond))
	defer work.Stop()
	select {
	case <-work.C:
	case <-slot.Context().Done():
		sub.tellError("lost", inflight.ErrLost)
	}
	sub.forget(key, held) // before it is given back
	slot.Release()
}

// tell counts an outcome.
func (sub *subject) tell(r ratelimit.Result, err error) {
	if err == nil && r.Source() == ratelimit.SourceStore {
		sub.at.heard()
	}
	switch {
	case err != nil:
		sub.tellError("call", err)
	case r.Allowed:
		sub.count("admitted")
	default:
		sub.count("denied")
	}
}

func (sub *subject) count(what string) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	sub.told[what]++
}

// tellError counts an error, apart if nothing is broken.
func (sub *subject) tellError(of string, err error) {
	if err == nil {
		return
	}
	what := fmt.Sprintf("%s: failed", of)
	switch {
	case !errors.Is(err, store.ErrStore) && !errors.Is(err, inflight.ErrLost):
		what = fmt.Sprintf("%s: unexpected: %v", of, err)
	case sub.at.isCalm():
		what = fmt.Sprintf("%s: in calm: %s", of, observe.ErrorClass(err))
	}
	sub.count(what)
}

// heard notes that p has decided.
func (p *place) heard() {
	calm, now := p.isCalm(), time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if calm && p.decided.After(p.calm) {
		p.silent = max(p.silent, now.Sub(p.decided))
	}
	p.decided = now
}

// isCalm reports whether nothing has been broken for long enough that no call is left that met it.
func (p *place) isCalm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calm.Before(time.Now().Add(-2 * soakLife))
}

func (s *soak) close(t *testing.T) {
	for _, limiters := range s.limiters {
		require.NoError(t, limiters.Close(t.Context()))
	}
	for _, leases := range s.leases {
		require.NoError(t, leases.Close(t.Context()))
	}
	for _, p := range s.places {
		if p.close != nil {
			p.close()
		}
	}
}
