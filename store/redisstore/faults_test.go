package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// plan is a server, or a cluster of some, its troubles and its callers. It is made of a seed alone.
type plan struct {
	seed      uint64
	masters   int           // of the cluster; 0: it is one server
	tags      int           // hash tags of the cluster; 0: each key is one
	way, cost time.Duration // see bookkeeper
	timeout   time.Duration
	size      int           // of the pool
	keeps     bool          // the client keeps to deadlines by itself
	ready     bool          // connections are made first
	rests     time.Duration // then nobody calls
	floods    bool          // there are more calls than the server can answer, and no troubles
	troubles  []trouble
	calls     []planned
	ends      time.Duration
}

type trouble struct {
	what      string
	at, lasts time.Duration
	much      int // 0 to 99
}

type planned struct {
	at      time.Duration
	left    time.Duration // until its own end; 0: it has none
	cancels bool          // which is no deadline
	op      string
	n       int64
	key     int // of a cluster, where callers share them
}

var (
	troubles = []string{"slow way", "slow server", "stop", "cut", "cut", "half-open", "dark", "gone", "failover", "answer", "answer", "flush"}
	answers  = []string{
		"BUSY Redis is busy running a script", "LOADING Redis is loading the dataset in memory", "MOVED 1 10.0.0.1:6379",
		"READONLY You can't write against a read only replica.", "CLUSTERDOWN The cluster is down", "MASTERDOWN Link with MASTER is down",
		"OOM command not allowed when used memory > 'maxmemory'.", "MISCONF Redis is configured to save RDB snapshots",
	}
)

func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int64N(int64(most-least)))
	}
	p := plan{
		seed: seed, way: between(20*time.Microsecond, time.Millisecond), cost: between(20*time.Microsecond, 300*time.Microsecond),
		timeout: []time.Duration{50, 100, 250, 500}[r.IntN(4)] * time.Millisecond,
		size:    []int{1, 4, 16, 40}[r.IntN(4)], keeps: r.IntN(2) == 0, ready: r.IntN(4) > 0,
		rests: time.Duration(r.IntN(2)) * 3 * time.Second, ends: between(time.Second, 2*time.Second),
	}
	call := func(at time.Duration) {
		c := planned{at: at, op: []string{"all", "peek", "take", "take", "take", "take", "take", "take"}[r.IntN(8)], n: 1 + r.Int64N(mostFits+1)}
		switch r.IntN(5) {
		case 0:
			c.left = between(0, p.timeout/2)
		case 1:
			c.left, c.cancels = between(0, 2*p.timeout), r.IntN(3) == 0
		}
		p.calls = append(p.calls, c)
	}
	if p.floods = r.IntN(50) == 0; p.floods {
		p.cost, p.ready, p.size, p.timeout, p.ends = 2*time.Millisecond, true, 16, max(p.timeout, 250*time.Millisecond), 500*time.Millisecond
		for at := time.Duration(0); at < p.ends; at += between(1, p.cost/4) { // 8 times as many as it answers one by one
			call(at)
		}
		return p
	}
	if r.IntN(4) == 0 {
		p.way *= 20
	}
	for range 1 + r.IntN(3) {
		p.troubles = append(p.troubles, trouble{troubles[r.IntN(len(troubles))], between(0, p.ends), between(time.Millisecond, 3*p.timeout), r.IntN(100)})
	}
	p.waves(r, call)
	return p
}

// waves has calls come at once, or one after the other.
func (p *plan) waves(r *rand.Rand, call func(at time.Duration)) {
	for range 2 + r.IntN(3) {
		at, apart := time.Duration(r.Int64N(int64(p.ends))), 5*time.Microsecond
		if r.IntN(2) == 0 {
			at, apart = at/2, p.ends/80
		}
		for range r.IntN(40) {
			at += 1 + time.Duration(r.Int64N(int64(2*apart-1)))
			call(at)
		}
	}
}

// far reports whether the first call on a new connection may be late.
func (p *plan) far() bool { return p.timeout < 12*p.way }

// suffer has b suffer from tr.
func (b *bookkeeper) suffer(tr trouble, r *rand.Rand) {
	b.note("%s for %v", tr.what, tr.lasts)
	some := func(w *wire) bool { return r.IntN(100) <= tr.much }
	switch tr.what {
	case "slow way":
		more := time.Duration(tr.much) * tr.lasts / 100
		b.way += more
		b.in(tr.lasts, func() { b.way -= more })
	case "slow server":
		more := time.Duration(tr.much) * b.cost
		b.cost += more
		b.in(tr.lasts, func() { b.cost -= more })
	case "stop":
		b.stopped = time.Now().Add(tr.lasts)
	case "cut":
		b.cut(r.IntN(2) == 0, some)
	case "half-open", "dark":
		b.dark = tr.what == "dark"
		for _, w := range b.wires {
			w.silent = b.dark || some(w)
		}
		b.in(tr.lasts, func() {
			b.dark = false
			b.cut(true, func(w *wire) bool { return w.silent })
		})
	case "gone", "failover":
		b.gone = true
		b.cut(r.IntN(2) == 0, func(*wire) bool { return true })
		b.queue, b.scripts = nil, map[string]bool{}
		b.in(tr.lasts/2, func() {
			b.gone = false
			if b.answer = answers[1]; tr.what == "failover" {
				b.answer = answers[3]
			}
		})
		b.in(tr.lasts, func() { b.answer = "" })
	case "answer":
		b.answer = answers[r.IntN(len(answers))]
		b.in(tr.lasts, func() { b.answer = "" })
	case "flush":
		b.scripts = map[string]bool{}
	}
}

// story is how a plan went.
type story struct {
	plan
	t       *testing.T
	b       *bubble
	limits  *limits // of a cluster
	told    []told
	stats   redisstore.Stats // at the end
	lock    sync.Mutex       // protects what follows
	jitter  *rand.Rand
	log     *strings.Builder // nil: none
	sum     uint64           // of what happened when; not in which order at one instant
	strange []string
}

// told is what a caller was told.
type told struct {
	planned
	begun, ended, end time.Time // it had to end by end
	over              bool      // its context, when it ended
	replies           []store.Reply
	err               error
	shared            // of a cluster
}

// probes are the calls that are made long after all troubles, one after the other. The last is
// answered: after two that fail, or three where none has time to make a connection.
func (p *plan) probes() (list []planned) {
	if p.masters > 0 {
		return clusterProbes()
	}
	return slices.Repeat([]planned{{op: "take", n: 1}}, 4)
}

// play carries out a plan. Call it in a bubble.
func play(t *testing.T, p plan, log *strings.Builder) *story {
	seed, probes := p.seed, p.probes()
	st := &story{plan: p, t: t, told: make([]told, len(p.calls)+len(probes)), jitter: rand.New(rand.NewPCG(seed, 1)), log: log}
	goroutines := runtime.NumGoroutine()
	jitter := redisstore.WithJitter(func(most time.Duration) time.Duration {
		st.lock.Lock()
		defer st.lock.Unlock()
		return time.Duration(st.jitter.Int64N(int64(most)))
	})
	var client io.Closer
	var s *redisstore.Store
	var suffer func(trouble, *rand.Rand)
	if p.masters > 0 {
		client, s, suffer = st.openCluster(redisstore.WithTimeout(p.timeout), jitter)
	} else {
		b := newBookkeeper()
		b.way, b.cost = p.way, p.cost
		st.b, suffer = b.bubble, b.suffer
		client, s = b.open(t, &redis.Options{PoolSize: p.size, ContextTimeoutEnabled: p.keeps}, redisstore.WithTimeout(p.timeout), jitter)
	}
	b := st.b
	b.note = st.note
	if p.ready {
		require.NoError(t, s.Ready(context.Background()))
		time.Sleep(p.rests)
	}
	b.mu.Lock()
	b.began = time.Now()
	for i, tr := range p.troubles {
		b.in(tr.at, func() { suffer(tr, rand.New(rand.NewPCG(seed, uint64(i+2)))) })
	}
	b.mu.Unlock()
	var callers sync.WaitGroup
	callers.Add(len(p.calls))
	for i, c := range p.calls {
		time.AfterFunc(c.at, func() {
			defer callers.Done()
			st.call(s, i, c)
		})
	}
	callers.Wait()
	time.Sleep(p.ends + 10*time.Second)
	for b.busy() { // with a command that several slow spells, one in the other, have made take 18 s
		time.Sleep(time.Second)
	}
	for i, c := range probes {
		st.call(s, len(p.calls)+i, c)
		time.Sleep(time.Second)
	}
	st.stats = s.Stats()
	st.wrong(s.Trips()+s.Late() > 0 || st.stats.UnderWay != 0, "%d trips, %d late ones and %d calls are left", s.Trips(), s.Late(), st.stats.UnderWay)
	st.wrong(s.Busy() != 0, "%d connections are taken by nobody", s.Busy())
	require.NoError(t, client.Close())
	if p.masters > 0 {
		time.Sleep(2 * time.Second) // once a second go-redis dials a server that is gone, until it is closed
	}
	synctest.Wait()
	left := runtime.NumGoroutine() - goroutines
	for range 1000 { // that of finalizers counts while it runs one
		if left <= 0 {
			break
		}
		runtime.Gosched()
		left = runtime.NumGoroutine() - goroutines
	}
	st.wrong(left > 0, "%d goroutines are left", left)
	return st
}

// open returns a client of b, and a store on it.
func (b *bookkeeper) open(t *testing.T, o *redis.Options, opts ...redisstore.Option) (*redis.Client, *redisstore.Store) {
	o.Dialer, o.DialTimeout, o.DialerRetries = b.dial, time.Second, 2
	o.Protocol, o.DisableIdentity, o.ReadBufferSize, o.WriteBufferSize = 2, true, 4096, 4096
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	client := redis.NewClient(o)
	s, err := redisstore.New(client, opts...)
	require.NoError(t, err)
	require.NoError(t, s.Prepare(bookkeeping.Rule, year(1), true))
	return client, s
}

// note notes that something happens now.
func (st *story) note(format string, args ...any) {
	if st.log == nil {
		return
	}
	st.lock.Lock()
	defer st.lock.Unlock()
	sum := fnv.New64a()
	fmt.Fprintf(io.MultiWriter(sum, st.log), "%v "+format+"\n", append([]any{time.Since(st.b.began)}, args...)...)
	st.sum += sum.Sum64()
}

// call makes call i.
func (st *story) call(s *redisstore.Store, i int, c planned) {
	to := &st.told[i]
	to.planned, to.begun, to.end = c, time.Now(), time.Now().Add(st.timeout)
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	switch {
	case c.cancels:
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(c.left, cancel)
	case c.left > 0:
		ctx, cancel = context.WithTimeout(ctx, c.left)
		if own, _ := ctx.Deadline(); own.Before(to.end) {
			to.end = own
		}
	}
	defer cancel()
	key, limit := strconv.Itoa(i), store.Limit{Rate: mostFits, Period: 1e6, Burst: mostFits}
	to.replies = make([]store.Reply, 1)
	switch {
	case st.limits != nil:
		st.limits.ask(ctx, i, to)
		if moves := func(tr trouble) bool { return tr.what == "move" }; (to.op == "all" || to.op == "first") && slices.ContainsFunc(st.troubles, moves) {
			to.more = 2 * st.timeout // while its slot moves, it may be decided one after the other, as one of two servers is
		}
	case c.op == "take":
		to.replies[0], to.err = s.Take(ctx, bookkeeping, key, limit, c.n)
	case c.op == "peek":
		to.replies[0], to.err = store.Peek(ctx, s, bookkeeping, key, limit, c.n)
	case c.op == "all":
		to.replies = make([]store.Reply, 2)
		to.err = s.Decide(ctx, []store.Request{
			{Namespace: bookkeeping, Key: key + "a", Limit: limit, N: c.n},
			{Namespace: bookkeeping, Key: key + "b", Limit: limit, N: 1},
		}, to.replies)
	}
	to.ended = time.Now()
	to.over = ctx.Err() != nil || c.left > 0 && !c.cancels && !to.ended.Before(to.begun.Add(c.left))
	st.note("%s %s %d ends: %v %v %v %v %v", key, c.op, c.n, to.replies, to.allowed, to.refund, to.more, to.err)
}

// wrong notes what must not be.
func (st *story) wrong(is bool, what string, args ...any) {
	if is {
		st.strange = append(st.strange, fmt.Sprintf(what, args...))
	}
}

// late is how much later than the store's timeout a call may end, if its context has no end:
// such calls leave in waves. All others end in time.
const late = 8 * time.Millisecond

// judge notes what is wrong with st.
func (st *story) judge() {
	served, overloaded := 0, int64(0)
	for i := range st.told {
		to := &st.told[i]
		known := len(st.strange)
		class := "deadline"
		switch {
		case to.err == nil:
			class = "ok"
			served++
		case errors.Is(to.err, store.ErrStore):
			class = classOf(st.t, to.err)
		}
		if errors.Is(to.err, store.ErrOverloaded) {
			overloaded++
		}
		if st.limits != nil {
			st.judgeAsked(i, to, class)
		} else {
			st.judgeCharge(i, to, class)
		}
		st.judgeClass(i, to, class)
		for j := range st.strange[known:] {
			st.strange[known+j] += fmt.Sprintf(" (call %d, %+v, %v to %v: %v)", i, to.planned, to.begun.Sub(st.b.began), to.ended.Sub(st.b.began), to.err)
		}
	}
	if st.limits != nil {
		st.limits.judgeCounts(st)
		overloaded = st.stats.Overloaded // a First, or an All of two servers, asks more than once
	}
	st.wrong(st.stats.Overloaded != overloaded, "%d calls are told of no room, and %d are counted", overloaded, st.stats.Overloaded)
	if st.floods { // it would answer so many one by one
		st.wrong(served < int(st.ends/st.cost), "only %d of %d are served", served, len(st.calls))
	}
}

// judgeCharge judges what call i was charged.
func (st *story) judgeCharge(i int, to *told, class string) {
	pages := []*page{st.b.page(strconv.Itoa(i))}
	if to.op == "all" {
		pages = []*page{st.b.page(fmt.Sprint(i, "a")), st.b.page(fmt.Sprint(i, "b"))}
		st.wrong(pages[0].ran != pages[1].ran, "one limit is charged without the other")
	}
	fits, ran := to.n <= mostFits, pages[0].ran
	for _, p := range pages {
		st.wrong(p.ran > 1, "is run %d times", p.ran)
		st.wrong(p.sent > 1+p.refused, "is sent %d times, and refused %d times", p.sent, p.refused)
	}
	st.wrong(to.op == "peek" && pages[0].sent > 0, "a look is sent as something else")
	unsent := to.err != nil && strings.Contains(to.err.Error(), "nothing was sent")
	switch {
	case class == "ok":
		st.wrong(fits && to.op != "peek" && ran == 0, "is not charged")
		for j, r := range to.replies {
			st.wrong(r.X != int64(i), "has the reply of call %d", r.X)
			st.wrong(r.OK() != (fits || j == 1), "is told %t", r.OK())
		}
	case class == "timeout" && !unsent:
		st.wrong(to.op != "peek" && pages[0].sent == 0, "is not sent")
	case class != "deadline":
		st.wrong(ran > 0, "is charged")
	}
	p, told := pages[0], pages[0].told
	st.wrong(class == "out of memory" && p.refused == 0, "the server did not say so")
	if class != "deadline" && to.op != "peek" && !told.IsZero() && told.Before(to.ended) {
		st.wrong(strings.HasPrefix(p.answer, "OOM") != (class == "out of memory"), "after %q", p.answer)
		st.wrong(strings.HasPrefix(p.answer, "MISCONF") && class != "unavailable", "after %q", p.answer)
	}
	st.wrong(class != "ok" && pages[0].answer == "" && told.After(to.begun) && told.Before(to.end) && told.Before(to.ended), "is decided, and told of no decision")
}

// judgeClass judges when call i has ended, and as what.
func (st *story) judgeClass(i int, to *told, class string) {
	own := to.left > 0 && to.left <= st.timeout && !to.cancels
	latest := to.end.Add(to.more)
	st.wrong(to.ended.After(latest.Add(late)) || own && to.ended.After(latest), "is %v late", to.ended.Sub(latest))
	st.wrong(class == "no class", "is of no class")
	if class == "deadline" {
		st.wrong(!to.over, "its context has not ended")
		st.wrong(own && to.ended.Before(to.end), "its time is not up")
		return
	}
	st.wrong(class != "ok" && own && !to.ended.Before(latest), "its context has ended")
	st.wrong(class == "unavailable" && !st.troubled(to, true), "no trouble")
	calm := !st.floods && st.ready && !st.far() && to.left == 0 && !st.troubled(to, false)
	last := i == len(st.calls)+3 || i == len(st.calls)+2 && !st.far()
	if st.limits != nil {
		last = i >= len(st.calls)+len(st.probes())/2
	}
	st.wrong(class != "ok" && (calm || last), "long after all troubles, or before")
}

// troubled reports whether a trouble may have met a call, one after which the server may be taken
// for gone if that is asked.
func (st *story) troubled(to *told, gone bool) bool {
	first := st.ends // when connections begin to be made
	for _, c := range st.calls {
		first = min(first, c.at)
	}
	if st.far() || !st.ready && to.begun.Sub(st.b.began) < first+time.Second {
		return true // connections are made
	}
	var slow time.Duration
	for _, tr := range st.troubles {
		if tr.what == "stop" || tr.what == "slow server" {
			slow += tr.lasts
		}
	}
	return slices.ContainsFunc(st.troubles, func(tr trouble) bool {
		from := st.b.began.Add(tr.at)
		until, silent := from.Add(tr.lasts), slow
		switch tr.what {
		case "move":
			until = until.Add(tr.lasts)
		case "die": // who is the first to ask a master that is gone for ever finds that out
			until = until.Add(30 * time.Second)
		}
		if tr.what == "slow server" && st.b.behind.After(until) { // one spell in another makes it far slower
			silent += st.b.behind.Sub(until)
			until = st.b.behind
		}
		if tr.what == "flush" || gone && (tr.what == "stop" || tr.what == "slow server") && silent < 500*time.Millisecond {
			return false
		}
		return !to.ended.Before(from) && to.begun.Before(until.Add(2*time.Second))
	})
}

// alone runs the test in a process of its own, and reports whether this is that one. For go-redis
// keeps timers for its next call, and time stands still in a bubble that waits for one of outside.
func alone(t *testing.T) bool {
	if os.Getenv("RATELIMIT_ALONE") != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", fmt.Sprint("-test.short=", testing.Short()))
	cmd.Env = append(os.Environ(), "RATELIMIT_ALONE=1", "GODEBUG=randseednop=0") // for the seed of openCluster
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	if testing.Verbose() {
		t.Logf("%s", out)
	}
	return false
}

// rare are schedules that a million found, and what is wrong in them without the mend.
var rare = []uint64{
	20261978, // pipeline.fill with late trips uncounted: "only 243 of 2015 are served"
	20373926, // pipeline.exec on a connection that go-redis has given up: "is of no class"
}

// Redis and the way to it fail, at any time. No call is charged twice, or without being told so, or
// ends late or as what it is not, and nothing is left. RATELIMIT_SEED replays one schedule, and says
// what happened when. RATELIMIT_SCHEDULES is how many there are from that seed on.
//
// What the first 2,000 find if it is taken out of the store:
//
//	the window, so 1,024 calls are under way:  "only 163 of 1999 are served", one by one 250, seed 179
//	over, so a caller's deadline has a class:  "its context has ended", seed 0
//	pulse.ask, so who rested finds it silent:  "no trouble", but ErrUnavailable, seed 1781
//	none, so late calls are run all the same:  "is charged", though told of no room, seed 7
//	NoRetry, so go-redis sends calls again:    "is sent 3 times, and refused 1 times", seed 33
func TestSchedulesOfFaults(t *testing.T) {
	t.Parallel()
	schedules(t, newPlan, rare, effort.Of(200, 1000, 10_000))
}

// schedules plays the plans of n seeds, and judges them.
func schedules(t *testing.T, plan func(seed uint64) plan, rare []uint64, n int) {
	if !alone(t) {
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // with more, the order of calls would not be the seed's
	seeds, first := slices.Clone(rare), uint64(0)
	if testing.Short() {
		n = min(n, 20)
	}
	var log *strings.Builder
	if text := os.Getenv("RATELIMIT_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seeds, first, n, log = nil, seed, 1, new(strings.Builder)
	}
	if text := os.Getenv("RATELIMIT_SCHEDULES"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
		log = nil
	}
	for i := range n {
		seeds = append(seeds, first+uint64(i))
	}
	for together := range slices.Chunk(seeds, 100) { // go-redis keeps timers of a bubble
		synctest.Test(t, func(t *testing.T) {
			for _, seed := range together {
				st := play(t, plan(seed), log)
				st.judge()
				for _, what := range st.strange {
					t.Errorf("RATELIMIT_SEED=%d: %s", seed, what)
				}
				if log != nil {
					t.Logf("%+v\n%s", st.plan, log)
				}
			}
		})
		runtime.GC() // twice, and go-redis has forgotten its timers, which belong to the bubble
		runtime.GC()
	}
}

// A call that comes while all trips are under way must not wait until they are back: far from the
// server it would have no time for its own.
func TestFarCallersOfAShortDeadlineAreServed(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		b := newBookkeeper()
		b.way = 15 * time.Millisecond
		client, s := b.open(t, &redis.Options{PoolSize: 20, ContextTimeoutEnabled: true})
		require.NoError(t, s.Ready(t.Context()))
		var all, failed atomic.Int64
		var callers sync.WaitGroup
		for key := range 256 {
			callers.Go(func() {
				time.Sleep(time.Duration(key) * time.Millisecond / 8)
				for range 20 {
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					_, err := s.Take(ctx, bookkeeping, strconv.Itoa(key), store.Limit{Rate: mostFits, Period: 1e6, Burst: mostFits}, 1)
					cancel()
					if all.Add(1); err != nil {
						failed.Add(1)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		callers.Wait()
		require.Less(t, failed.Load(), all.Load()/100, "of %d", all.Load())
		time.Sleep(5 * time.Second)
		require.NoError(t, client.Close())
	})
	runtime.GC()
	runtime.GC()
}

func TestAScheduleIsReplayedExactly(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector shuffles goroutines")
	}
	t.Parallel()
	if !alone(t) {
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		plans := []func(uint64) plan{newPlan, newClusterPlan}
		for seed := range uint64(effort.Of(10, 30, 100)) {
			plan := plans[seed%2]
			st := play(t, plan(seed), new(strings.Builder))
			for try := 1; ; try++ { // who runs for 10 ms of a busy machine has to let others go first
				again := play(t, plan(seed), new(strings.Builder))
				if st.sum == again.sum {
					break
				}
				require.Less(t, try, 20, "%d:\n%s\n%s", seed, st.log, again.log)
				st = again
			}
		}
	})
	runtime.GC()
	runtime.GC()
}
