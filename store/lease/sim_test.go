package lease

import (
	"cmp"
	"container/heap"
	"context"
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/batch"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// This is a simulation of many processes that lease events of one key from one store, while messages
// are late or lost, processes stop or are killed, and clocks are wrong. Time is virtual: it
// does one step after another, each at its time.
//
// The store is a limiter in memory. The processes run what Store runs: holding, fetch.ask,
// strict, pause and untilWindowEnds. What it has of its own is who calls, how messages
// travel, and what goes wrong. When it is over, bound says whether too much was admitted.

// schedule is what happens in one run.
type schedule struct {
	seed      uint64
	algorithm string
	limit     ratelimit.Limit
	processes int
	life      time.Duration
	overdraft int
	length    time.Duration

	// Calls come by chance: so many a second, of which each process has its part by Zipf's law.
	load, skew float64
	inBursts   bool // each process is asked in a third of the time only
	ambush     *ambush

	shortest, longest time.Duration // that a message is under way
	lost              float64       // part of the messages
	stops             float64       // part of the calls before which a process stops
	longestStop       time.Duration
	kills             float64 // part of the calls before which a process is killed
	drift             float64 // the part by which a clock may be wrong

	removed guard
}

// ambush is the worst that callers can do. At a moment they have each process hold its part of
// all that there is. At another one they ask for all that is held, and for all that has come
// since.
type ambush struct {
	taken, spent   time.Duration // when the leases are
	stopped, awake time.Duration // when the processes stop meanwhile, and their timers with them
}

// guard is a part of the protocol that the model can leave out.
type guard string

const (
	nothing        guard = ""
	fromSending    guard = "a life starts before the store is asked"
	atEachSpend    guard = "each spend looks at the clock"
	forClocks      guard = "clocks may differ"
	withItsWindow  guard = "a lease ends with its window"
	returnedIsGone guard = "what was given back is not spent"
	overdraftCap   guard = "overdraft is bounded"
	fullIsKept     guard = "nothing is lent until what was overdrawn has left"
	strictLimit    guard = "the store is asked under a strict limit"
	onItsOwn       guard = "what has drained is not given back"
)

type model struct {
	schedule
	random  *rand.Rand
	now     time.Duration // of the store's clock, which is right
	steps   steps
	store   store.Store
	space   *store.Namespace // of the one key
	limits  *limits
	terms   terms
	running []*process

	admitted     []time.Duration // when each event was
	asked, calls int             // calls of the store and of the processes
	killed       int
}

// process holds leases of the one key.
type process struct {
	holding[*grant]
	fast     float64       // by which part its clock is fast
	stopped  time.Duration // until then it does nothing
	killed   bool
	fetching bool
	waiting  int
}

// started is when the model's time begins. It is the beginning of a window of each limit.
var started = time.Unix(1_800_000_000, 0)

func newModel(t testing.TB, s schedule) *model {
	m := &model{schedule: s, random: rand.New(rand.NewPCG(s.seed, 1))}
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return started.Add(m.now) }))
	require.NoError(t, err)
	seen := &seen{Store: mem}
	l, err := ratelimit.New(s.algorithm, seen, s.limit)
	require.NoError(t, err)
	_, err = l.Peek(t.Context(), "key")
	require.NoError(t, err)
	m.store, m.space, m.limits = mem, seen.space, newLimits(seen.space.Rule, seen.limit, s.life)
	require.True(t, m.limits.leasable, "%+v", s)
	if s.removed == strictLimit {
		m.limits.by = m.limits.own
	}
	m.terms = terms{life: s.life, most: maxLease, overdraft: s.overdraft, halve: s.algorithm == fixedWindow}
	if s.removed == overdraftCap {
		m.terms.overdraft = math.MaxInt32
	}
	for range s.processes {
		m.running = append(m.running, m.newProcess())
	}
	return m
}

// seen is a store that sees what a limiter asks for.
type seen struct {
	store.Store
	space *store.Namespace
	limit store.Limit
}

// Decide implements [store.Store].
func (s *seen) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *seen) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.space, s.limit = ns, l
	return store.Peek(ctx, s.Store, ns, key, l, n)
}

func (m *model) newProcess() *process {
	p := &process{fast: (2*m.random.Float64() - 1) * m.drift}
	p.next = 1
	m.sweep(p)
	return p
}

// run returns how much was admitted at most, where bound is the limit.
func (m *model) run() (most, bound float64) {
	if m.ambush != nil {
		m.lieInWait()
	} else {
		m.callByChance()
	}
	for len(m.steps) > 0 {
		next := heap.Pop(&m.steps).(step)
		if next.at > m.length {
			break
		}
		m.now = max(m.now, next.at)
		next.do()
	}
	return m.judge()
}

// at does something later.
func (m *model) at(t time.Duration, do func()) {
	m.calls++ // in their order, if their times are equal
	heap.Push(&m.steps, step{t, m.calls, do})
}

// by p does something later, unless it is killed. If it is stopped, it does so when it goes on.
func (m *model) byProcess(p *process, t time.Duration, do func()) {
	m.at(t, func() {
		switch {
		case p.killed:
		case m.now < p.stopped:
			m.byProcess(p, p.stopped, do)
		default:
			do()
		}
	})
}

// clock is what p reads.
func (m *model) clock(p *process) time.Duration {
	return time.Duration(float64(m.now) * (1 + p.fast))
}

// arrives is when a message arrives that is sent now. It is false if that is never.
func (m *model) arrives() (at time.Duration, ok bool) {
	return m.now + m.shortest + m.upTo(m.longest-m.shortest), m.random.Float64() >= m.lost
}

func (m *model) upTo(d time.Duration) time.Duration {
	return time.Duration(m.random.Int64N(int64(d) + 1))
}

// call is a call of Allow in process i.
func (m *model) call(i int) {
	p := m.running[i]
	if m.random.Float64() < m.kills {
		p.killed = true
		m.killed++
		p = m.newProcess()
		m.running[i] = p
	}
	if m.random.Float64() < m.stops {
		p.stopped = m.now + m.upTo(m.longestStop)
	}
	m.byProcess(p, m.now, func() { m.decide(p) })
}

// decide is what Store.Take does.
func (m *model) decide(p *process) {
	now := m.clock(p)
	if m.removed != atEachSpend {
		m.tidy(p, now)
	}
	switch {
	case m.spend(p, now):
		m.admit(m.now)
		if p.low() && now >= p.denied {
			m.doFetch(p)
		}
	case now < p.denied:
	case p.lend(now, &m.terms):
		m.admit(m.now)
		if p.mustPay(&m.terms) {
			m.doFetch(p)
		}
	default:
		p.waiting++
		m.doFetch(p)
	}
}

func (m *model) spend(p *process, now time.Duration) bool {
	if m.removed == atEachSpend && p.left > 0 { // that a timer has left
		p.left--
		return true
	}
	return p.spend(now, 1) != nil
}

func (m *model) admit(at time.Duration) { m.admitted = append(m.admitted, at) }

// tidy gives back what has lapsed.
func (m *model) tidy(p *process, now time.Duration) {
	for {
		was := p.lease
		from, n := p.lapse(now)
		if n == 0 {
			return
		}
		if m.removed == returnedIsGone {
			was.until = now + m.life
			p.lease = was
		}
		if at, ok := m.arrives(); ok {
			m.at(at, func() {
				c := from.receipt(n)
				if m.removed == onItsOwn {
					c = store.NewReceipt(m.limits.by, from.at, from.reset, int64(n))
				}
				m.ok(m.store.Refund(context.Background(), m.space, "key", m.limits.by, c))
			})
		}
		m.asked++
	}
}

// sweep does what the timer does. In a process that was stopped it may be late by a life.
func (m *model) sweep(p *process) {
	m.at(m.now+m.life, func() {
		if p.killed {
			return
		}
		if m.now >= p.stopped {
			m.tidy(p, m.clock(p))
			if p.owed > 0 {
				m.doFetch(p)
			}
		}
		m.sweep(p)
	})
}

// timeout is when a call of the store fails.
const timeout = 50 * time.Millisecond

// doFetch asks the store for the next lease.
func (m *model) doFetch(p *process) {
	if p.fetching {
		return
	}
	sent := m.clock(p)
	m.tidy(p, sent)
	f := oneKey(m.space, m.limits, p.waiting, p.ask(sent, p.waiting, &m.terms), p.due())
	p.fetching, p.waiting = true, 0

	over := false // what comes later is not read
	once := func(do func()) func() {
		return func() {
			if !over {
				over, p.fetching = true, false
				do()
				m.serve(p)
			}
		}
	}
	m.byProcess(p, m.now+timeout+2*m.longest, once(p.failed))
	at, ok := m.arrives()
	if !ok {
		return
	}
	m.at(at, func() {
		decided := m.now // by the first call of a fetch
		f.Ask(context.Background(), &slowly{m.store, m, true})
		m.ok(f.Err)
		if at, ok := m.arrives(); ok {
			m.byProcess(p, at, once(func() { m.decideOn(p, f, sent, decided) }))
		}
	})
}

// slowly is the store. Between the calls of one fetch some time passes.
type slowly struct {
	store.Store
	model *model
	first bool
}

func (s *slowly) call() {
	if s.model.asked++; !s.first {
		s.model.now, _ = s.model.arrives()
	}
	s.first = false
}

// Decide implements [store.Store].
func (s *slowly) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *slowly) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.call()
	return store.TakeUpTo(ctx, s.Store, ns, key, l, n)
}

func (s *slowly) Overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	s.call()
	return store.Overdraw(ctx, s.Store, ns, key, l, n, most)
}

func (s *slowly) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.call()
	return store.Peek(ctx, s.Store, ns, key, l, n)
}

func (m *model) ok(err error) {
	if err != nil {
		panic(err)
	}
}

// oneKey is a call of the store for one key, for so many callers of one event.
func oneKey(ns *store.Namespace, ls *limits, waiting, want, owed int) *batch.Batch {
	request := store.Request{Namespace: ns, Key: "key", Limit: ls.by}
	claims := slices.Repeat([]batch.Claim{{N: []int64{1}}}, waiting)
	b := new(batch.Batch)
	b.Make(1, claims, new(pending.Patience))
	b.Requests[0] = request
	b.Parts[0].Want, b.Parts[0].Owed = int64(want), int64(owed)
	return b
}

// decideOn is what Store.takeIn does.
func (m *model) decideOn(p *process, f *batch.Batch, sent, decided time.Duration) {
	now, part := m.clock(p), &f.Parts[0]
	p.unsure = false
	p.owed -= int(part.Forced)
	if part.Granted > 0 {
		if m.removed == fromSending {
			sent = now
		}
		reset := part.Reply.Report(m.space.Rule, m.limits.by, part.Granted, part.Granted).Reset
		held := p.receive(answer{
			granted: int(part.Granted), want: int(part.Want), owed: int(part.Owed), room: int(part.Room),
			sent: sent, now: now, window: m.windowEnds(reset),
		}, &m.terms)
		held.grant = &grant{at: part.Reply.X, reset: reset, room: int(part.Room), limits: m.limits}
		for range f.Fit {
			held.left--
			m.admit(decided) // by the store
		}
	}
	if f.Next != nil {
		denial := f.Next[0].Plainly(m.space.Rule, m.limits.by, 1, 0)
		p.refused(micros(denial.X), pause(m.algorithm, m.limits.by, m.life), sent, now, &m.terms)
		if m.removed == fullIsKept {
			p.full = 0
		}
	}
}

func (m *model) windowEnds(reset int64) time.Duration {
	switch {
	case m.removed == withItsWindow:
		return math.MaxInt64
	case m.removed == forClocks && m.algorithm == fixedWindow:
		return micros(reset)
	}
	return untilWindowEnds(m.algorithm, reset, m.limits.by)
}

// serve decides on those who came during a fetch.
func (m *model) serve(p *process) {
	waiting := p.waiting
	p.waiting = 0
	for range waiting {
		m.decide(p)
	}
}

// callByChance has callers come as the schedule says.
func (m *model) callByChance() {
	parts, sum := make([]float64, m.processes), 0.0
	for i := range parts {
		parts[i] = math.Pow(float64(i+1), -m.skew)
		sum += parts[i]
	}
	for i, part := range parts {
		mean := float64(time.Second) * sum / (m.load * part)
		var again func()
		again = func() {
			m.at(m.now+time.Duration(m.random.ExpFloat64()*mean), func() {
				if !m.inBursts || (int(m.now/(3*m.life))+i)%3 == 0 {
					m.call(i)
				}
				again()
			})
		}
		again()
	}
}

// lieInWait has callers come at the two moments of the ambush.
func (m *model) lieInWait() {
	all := max(m.limit.Rate, m.limit.Burst)
	for i, p := range m.running {
		p.next = max(1, all/m.processes)
		m.at(m.ambush.taken+time.Duration(i)*time.Microsecond, func() { m.call(i) })
		for range 2*all/m.processes + 4 {
			m.at(m.ambush.spent+m.upTo(20*time.Microsecond), func() { m.call(i) })
		}
		m.at(m.ambush.stopped, func() { p.stopped = m.ambush.awake })
	}
}

// judge returns the most that was admitted, in the sense of the algorithm's promise, and what
// that says it is at most. Each process may add its overdraft, and so may those that were killed.
func (m *model) judge() (most, bound float64) {
	slices.Sort(m.admitted)
	period := m.limit.Period
	bound = float64(m.limit.Rate)
	switch m.algorithm {
	case fixedWindow:
		most = fullestWindow(m.admitted, period)
	case slidingWindow:
		most = meter(m.admitted, m.limit.Rate, period)
	case slidingLog:
		most = densest(m.admitted, period)
	case tokenBucket:
		most = meter(m.admitted, m.limit.Rate, period)
		aMicrosecond := bound * float64(time.Microsecond) / float64(period) // of the store's clock
		bound = float64(cmp.Or(m.limit.Burst, m.limit.Rate)) + aMicrosecond
	}
	return most, bound + float64(m.overdraft*(m.processes+m.killed))
}

func fullestWindow(times []time.Duration, period time.Duration) float64 {
	most, counts := 0, map[time.Duration]int{}
	for _, t := range times {
		counts[t/period]++
		most = max(most, counts[t/period])
	}
	return float64(most)
}

// meter is the most by which the events of any interval exceed what flows in that time.
func meter(times []time.Duration, rate int, period time.Duration) float64 {
	most, level, last := 0.0, 0.0, time.Duration(0)
	for _, t := range times {
		level = max(0, level-float64(t-last)*float64(rate)/float64(period)) + 1
		last, most = t, max(most, level)
	}
	return most
}

// densest is the most events in less than span.
func densest(times []time.Duration, span time.Duration) float64 {
	most, from := 0, 0
	for i, t := range times {
		for t-times[from] >= span {
			from++
		}
		most = max(most, i-from+1)
	}
	return float64(most)
}

// step is something that happens at a time.
type step struct {
	at    time.Duration
	order int
	do    func()
}

type steps []step

func (s steps) Len() int { return len(s) }
func (s steps) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(s[i].at, s[j].at), cmp.Compare(s[i].order, s[j].order)) < 0
}
func (s steps) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *steps) Push(x any)   { *s = append(*s, x.(step)) }
func (s *steps) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// TestTheMeterFindsTheLargestExcess holds what judges the model to the definition: the most of n - x·rate/period, over
// all intervals that begin and end with an event, where n is their number and x the length.
func TestTheMeterFindsTheLargestExcess(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 1_000 {
		times := make([]time.Duration, 1+random.IntN(40))
		for i := range times {
			times[i] = time.Duration(random.Int64N(int64(2 * time.Second)))
		}
		slices.Sort(times)
		rate, most, crowd, windows := 1+random.IntN(30), 0.0, 0, [2]int{}
		for i, from := range times {
			windows[from/time.Second]++
			for j, to := range times[i:] {
				most = max(most, float64(j+1)-(to-from).Seconds()*float64(rate))
				if to-from < time.Second {
					crowd = max(crowd, j+1)
				}
			}
		}
		require.InDelta(t, most, meter(times, rate, time.Second), 1e-9)
		require.EqualValues(t, crowd, densest(times, time.Second))
		require.EqualValues(t, max(windows[0], windows[1]), fullestWindow(times, time.Second))
	}
}

var leased = []string{fixedWindow, slidingWindow, slidingLog, tokenBucket}

// atRandom is a schedule by chance.
func atRandom(seed uint64) schedule {
	random := rand.New(rand.NewPCG(seed, 2))
	pick := func(of ...float64) float64 { return of[random.IntN(len(of))] }
	s := schedule{
		seed:      seed,
		algorithm: leased[seed%4],
		limit:     ratelimit.Limit{Rate: int(pick(97, 300, 1000)), Period: time.Second},
		processes: int(pick(1, 2, 5, 20)),
		life:      time.Duration(pick(11, 50, 200)) * time.Millisecond,
		length:    4 * time.Second,

		skew:     pick(0, 1, 2),
		inBursts: random.IntN(2) == 0,

		shortest:    100 * time.Microsecond,
		longest:     time.Duration(pick(300, 5_000, 30_000)) * time.Microsecond,
		lost:        pick(0, 0.02),
		stops:       pick(0, 0.003),
		longestStop: 400 * time.Millisecond,
		kills:       pick(0, 0.002),
		drift:       pick(0, 0.0005),
	}
	s.load = float64(s.limit.Rate) * pick(0.5, 1, 3, 10)
	if s.algorithm == tokenBucket { // 60 and more: what flows in a life must fit
		s.limit.Burst = int(float64(s.limit.Rate)*pick(0.5, 2)) + 60
	}
	if random.IntN(3) == 0 && s.algorithm != slidingWindow {
		s.overdraft = 1 + random.IntN(5)
	}
	if random.IntN(5) == 0 {
		s.ambush = &ambush{taken: time.Second - time.Duration(random.Int64N(int64(s.life)))}
		s.ambush.spent = s.ambush.taken + time.Duration(random.Int64N(int64(2*s.life)))
	}
	return s
}

// ofFew is a schedule in which less than an event of a window comes in a life. Its leases are of
// what the window has.
func ofFew(seed uint64) schedule {
	random := rand.New(rand.NewPCG(seed, 5))
	pick := func(of ...float64) float64 { return of[random.IntN(len(of))] }
	s := atRandom(seed)
	s.algorithm = leased[seed%2]
	s.life = time.Duration(pick(11, 50)) * time.Millisecond
	s.limit = ratelimit.Limit{Rate: int(pick(5, 20, 97, 150)), Period: 10 * time.Second}
	s.length = 25 * time.Second
	s.load = float64(s.limit.Rate) * pick(0.1, 1, 5)
	if s.algorithm == slidingWindow {
		s.overdraft = 0
	}
	if s.ambush != nil {
		s.ambush.taken += 9 * time.Second
		s.ambush.spent += 9 * time.Second
	}
	return s
}

var (
	firstSeed = flag.Uint64("sim.seed", 0, "the first of the schedules' seeds")
	schedules = flag.Int("sim.schedules", 0, "how many schedules; 0 is 150, 1,000 with RATELIMIT_FULL=1 and 10,000 with RATELIMIT_LONG=1")
)

// tight is the part of the bound that some schedule must reach, or else the model is too tame.
var tight = map[string]float64{fixedWindow: 0.99, slidingLog: 0.99, slidingWindow: 0.98, tokenBucket: 0.98}

func TestLeasesKeepTheirBounds(t *testing.T) {
	effort.OneGoroutine(t)
	n := effort.Of(60, 300, 10_000)
	if *schedules > 0 {
		n = *schedules
	}
	for _, c := range []struct {
		name string
		of   func(seed uint64) schedule
		n    int
	}{{"events in each life", atRandom, n}, {"less than an event in a life", ofFew, n / 4}} {
		largest := map[string]float64{}
		for seed := *firstSeed; seed < *firstSeed+uint64(c.n); seed++ {
			s := c.of(seed)
			most, bound := newModel(t, s).run()
			if most > bound {
				t.Errorf("%s, -sim.seed=%d: %.2f of %.2f: %+v", c.name, seed, most, bound, s)
			}
			largest[s.algorithm] = max(largest[s.algorithm], most/bound)
		}
		t.Logf("%s: %d schedules from seed %d; the largest parts of the bounds are %v", c.name, c.n, *firstSeed, largest)
		for algorithm, part := range largest {
			if n >= 10_000 { // fewer may miss it by chance
				require.GreaterOrEqual(t, part, tight[algorithm], "%s: the model is too tame", algorithm)
			}
		}
	}
}

// ambushed is a schedule in which leases are taken late in a window, and spent at their end.
func ambushed(algorithm string, processes int) schedule {
	const life = 100 * time.Millisecond
	s := schedule{
		algorithm: algorithm, processes: processes, life: life, length: 4 * time.Second,
		limit:    ratelimit.Limit{Rate: 1000, Period: time.Second},
		shortest: 100 * time.Microsecond, longest: 200 * time.Microsecond,
		ambush: &ambush{taken: time.Second - life/2, spent: time.Second + life/2 - 20*time.Microsecond},
	}
	switch algorithm {
	case tokenBucket:
		s.limit.Burst = 500
	case fixedWindow, slidingWindow: // whose leases end with the window
		s.ambush = &ambush{taken: time.Second - 5*time.Millisecond, spent: time.Second - 400*time.Microsecond}
	}
	return s
}

// TestBoundsAreTight reaches them, and tries with up to 1,000 processes.
func TestBoundsAreTight(t *testing.T) {
	effort.OneGoroutine(t)
	for _, algorithm := range leased {
		largest := 0.0
		for _, processes := range []int{1, 10, 100, 1000} {
			most, bound := newModel(t, ambushed(algorithm, processes)).run()
			t.Logf("%s, %d processes: %.1f of %.1f", algorithm, processes, most, bound)
			require.LessOrEqual(t, most, bound)
			largest = max(largest, most/bound)
		}
		require.GreaterOrEqual(t, largest, tight[algorithm], "%s: the ambush is too tame", algorithm)
	}
}

// TestEachGuardIsNeeded leaves out one guard after another. Each time there must be a schedule
// that admits too much, and without that no more than the bound.
func TestEachGuardIsNeeded(t *testing.T) {
	effort.OneGoroutine(t)
	type each struct {
		guard guard
		of    func(seed uint64) schedule
	}
	few := func(s schedule, processes, rate int) schedule { // less than an event in a life
		s.processes, s.limit.Rate = processes, rate
		return s
	}
	clocks := func(seed uint64) schedule { // 500 µs a second are 22 ms of a long lease
		s := ambushed(fixedWindow, 5)
		s.seed, s.drift = seed, 0.0005
		s.limit.Period, s.life, s.length = 100*time.Second, 90*time.Second, 120*time.Second
		s.ambush = &ambush{taken: 55 * time.Second, spent: 100*time.Second + 10*time.Millisecond}
		return s
	}
	pastTheWindow := func(seed uint64) schedule {
		s := ambushed(leased[seed%2], 20)
		s.ambush.spent = time.Second + 10*time.Millisecond
		return s
	}
	for _, c := range []each{
		{fromSending, func(uint64) schedule { // the answer is read late
			s := ambushed(tokenBucket, 2)
			s.ambush.stopped = s.ambush.taken + 100*time.Microsecond
			s.ambush.awake = s.ambush.taken + 45*time.Millisecond
			s.ambush.spent += 44 * time.Millisecond
			return s
		}},
		{atEachSpend, func(uint64) schedule { // timers stop with their process
			s := ambushed(tokenBucket, 5)
			s.ambush.spent += 150 * time.Millisecond
			s.ambush.stopped, s.ambush.awake = s.ambush.taken+s.life/2, s.ambush.spent
			return s
		}},
		{fromSending, func(seed uint64) schedule { // the answer is read in the next window
			s := few(pastTheWindow(seed), 2, 9)
			s.ambush.stopped, s.ambush.awake = s.ambush.taken+100*time.Microsecond, time.Second+time.Millisecond
			s.ambush.spent = s.ambush.awake + time.Millisecond
			return s
		}},
		{atEachSpend, func(seed uint64) schedule {
			s := few(pastTheWindow(seed), 2, 9)
			s.ambush.stopped, s.ambush.awake = s.ambush.taken+2*time.Millisecond, s.ambush.spent
			return s
		}},
		{forClocks, clocks},
		{forClocks, func(seed uint64) schedule {
			s := few(clocks(seed), 1, 2)
			s.life = 49 * time.Second
			return s
		}},
		{withItsWindow, pastTheWindow},
		{withItsWindow, func(seed uint64) schedule { // of a sliding one less than an event comes by that
			return few(pastTheWindow(2*seed), 2, 9)
		}},
		{returnedIsGone, atRandom},
		{returnedIsGone, ofFew},
		{overdraftCap, func(seed uint64) schedule {
			s := atRandom(2 * seed) // of a window or a log
			s.overdraft = 1
			return s
		}},
		{fullIsKept, func(seed uint64) schedule {
			s := atRandom(2 * seed)
			s.overdraft, s.load = 5, 10*float64(s.limit.Rate)
			return s
		}},
		{overdraftCap, func(seed uint64) schedule {
			s := ofFew(2 * seed) // of a fixed window
			s.overdraft = 1
			return s
		}},
		{fullIsKept, func(seed uint64) schedule {
			s := ofFew(2 * seed)
			s.overdraft, s.load = 5, 10*float64(s.limit.Rate)
			return s
		}},
		{strictLimit, func(seed uint64) schedule { return ambushed(leased[2+seed%2], 20) }},
		{onItsOwn, func(seed uint64) schedule { // one stops while the other one gives back, and takes all
			s := ambushed(tokenBucket, 2)
			s.seed, s.stops, s.longestStop = seed, 0.01, 400*time.Millisecond
			s.ambush.spent = s.ambush.taken + s.life + time.Millisecond
			return s
		}},
	} {
		t.Run(string(c.guard), func(t *testing.T) {
			for seed := range uint64(400) {
				s := c.of(seed)
				s.removed = c.guard
				most, bound := newModel(t, s).run()
				if most <= bound {
					continue
				}
				s.removed = nothing
				whole, _ := newModel(t, s).run()
				require.LessOrEqual(t, whole, bound, "%+v", s)
				t.Logf("seed %d: %s, %v: %.1f of %.1f, and with the guard %.1f", seed, s.algorithm, s.limit, most, bound, whole)
				return
			}
			t.Error("nothing breaks without it")
		})
	}
}
