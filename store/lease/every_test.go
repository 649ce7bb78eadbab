package lease

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// This is every schedule of a small world, where the simulator of sim_test.go plays some of a large
// one. Two processes lease events of two keys. In each state each step that can come next does: a
// call, a message that arrives or is lost, a process that is killed, a tick of time, or a step of
// the store's clock. So messages take any time, and a process stops for any time. No state is
// visited twice, and in each the bound must hold.

// tick is the unit of time. A lease lives for 2, and a window is 3.
const tick = 10 * time.Millisecond

// scope says how large the world is.
type scope struct {
	processes, keys int
	rate            int // events of a key in a window
	calls           int // of all processes together
	ticks           int
	kills           int // of processes
	steps           int // of the store's clock, by a tick
	removed         guard
}

const (
	mostProcesses = 2
	mostKeys      = 2
	mostReturns   = 3
)

// world is one state, all of it.
type world struct {
	now          int // in ticks
	ahead        int // by how many ticks the store's clock is
	calls, kills int // that may still come
	steps        int
	keys         [mostKeys]worldKey
}

// worldKey is one key: what the store has of it, and what each process.
type worldKey struct {
	state     store.State
	processes [mostProcesses]worldProcess
	returns   [mostReturns]returned // on their way
	meter     admissions
}

// worldProcess is what one process has of one key.
type worldProcess struct {
	holding[lent]
	stage   stage // of the call for the next lease
	sent    time.Duration
	waiting int // who wait for it
	want    int
	reply   replied
}

// lent says when events were charged, for the receipt.
type lent struct{ at, reset int64 }

type stage uint8

const (
	idle stage = iota
	asking
	answering
)

type replied struct {
	granted, room int
	lent
	retry int64
}

type returned struct {
	lent
	n int
}

// admissions are those in the current window of the store's clock. spare is how many more than the
// limit there may be, because that clock has jumped.
type admissions struct {
	window   int64
	n, spare int
}

// everything explores the worlds of a scope.
type everything struct {
	scope
	rule    *store.Rule
	limits  *limits
	terms   terms
	seeds   [2]maphash.Seed
	visited map[[2]uint64]struct{}
	path    []string
}

func newEverything(t *testing.T, s scope) *everything {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	of := &seen{Store: mem}
	l, err := ratelimit.NewFixedWindow(of, ratelimit.Limit{Rate: s.rate, Period: 3 * tick})
	require.NoError(t, err)
	_, err = l.Peek(t.Context(), "key")
	require.NoError(t, err)
	e := &everything{
		scope: s, rule: of.space.Rule, limits: newLimits(of.space.Rule, of.limit, 2*tick),
		terms: terms{life: 2 * tick, most: maxLease, halve: true},
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, visited: map[[2]uint64]struct{}{},
	}
	return e
}

func (e *everything) start() world {
	w := world{calls: e.calls, kills: e.kills, steps: e.steps}
	for k := range e.keys {
		for p := range e.processes {
			w.keys[k].processes[p].next = 2
		}
	}
	return w
}

// clock is what a process reads.
func (w *world) clock() time.Duration { return time.Duration(w.now) * tick }

// stores is what the store reads, Unix µs.
func (w *world) stores() int64 {
	return started.UnixMicro() + int64(w.now+w.ahead)*tick.Microseconds()
}

// explore visits w and all that can come of it. It returns what is wrong with the first state in
// which something is.
func (e *everything) explore(w *world) error {
	id := [2]uint64{maphash.Comparable(e.seeds[0], *w), maphash.Comparable(e.seeds[1], *w)}
	if _, found := e.visited[id]; found {
		return nil
	}
	e.visited[id] = struct{}{}
	for k := range w.keys {
		if m := w.keys[k].meter; m.n > e.rate+m.spare {
			return fmt.Errorf("%d events of key %d in a window, want at most %d: %v", m.n, k, e.rate+m.spare, e.path)
		}
	}
	try := func(name string, step func(w *world)) error {
		next := *w
		step(&next)
		e.path = append(e.path, name)
		defer func() { e.path = e.path[:len(e.path)-1] }()
		return e.explore(&next)
	}
	for _, s := range e.stepsOf(w) {
		if err := try(s.name, s.do); err != nil {
			return err
		}
	}
	return nil
}

// worldStep is one step.
type worldStep struct {
	name string
	do   func(w *world)
}

// stepsOf are all that can come next.
func (e *everything) stepsOf(w *world) (all []worldStep) {
	add := func(do func(w *world), name string, args ...any) {
		all = append(all, worldStep{fmt.Sprintf(name, args...), do})
	}
	for k := range e.keys {
		for p := range e.processes {
			mine := &w.keys[k].processes[p]
			if w.calls > 0 {
				add(func(w *world) { w.calls--; e.call(w, k, p) }, "p%d calls k%d", p, k)
			}
			if lapsed(&mine.holding, w.clock()) {
				add(func(w *world) { e.tidy(w, k, p) }, "p%d sweeps k%d", p, k)
			}
			switch mine.stage {
			case asking:
				add(func(w *world) { e.decide(w, k, p) }, "the store answers p%d on k%d", p, k)
				add(func(w *world) { e.lose(w, k, p) }, "p%d's request on k%d is lost", p, k)
			case answering:
				add(func(w *world) { e.receive(w, k, p) }, "p%d has the answer on k%d", p, k)
				add(func(w *world) { e.lose(w, k, p) }, "p%d's answer on k%d is lost", p, k)
			}
		}
		for i, r := range w.keys[k].returns {
			if r.n > 0 && !slices.Contains(w.keys[k].returns[:i], r) {
				add(func(w *world) { e.takeBack(w, k, i) }, "%d of k%d come back", r.n, k)
				add(func(w *world) { w.keys[k].takeReturn(i) }, "%d of k%d that were given back are lost", r.n, k)
			}
		}
	}
	if w.kills > 0 {
		for p := range e.processes {
			add(func(w *world) { w.kills--; e.kill(w, p) }, "p%d is killed", p)
		}
	}
	if w.steps > 0 {
		for _, by := range []int{1, -1} {
			add(func(w *world) { w.steps--; e.jump(w, by) }, "the store's clock goes by %+d", by)
		}
	}
	if w.now < e.ticks {
		add(func(w *world) { w.now++ }, "tick")
	}
	return all
}

// lapsed reports whether a grant is over, of which something is left.
func lapsed(h *holding[lent], now time.Duration) bool {
	return h.left > 0 && now >= h.until || h.spare.left > 0 && now >= h.spare.until
}

// call is what Store.Take does.
func (e *everything) call(w *world, k, p int) {
	mine, now := &w.keys[k].processes[p], w.clock()
	if e.removed != atEachSpend {
		e.tidy(w, k, p)
	}
	switch {
	case e.removed == atEachSpend && mine.left > 0:
		mine.left--
		e.admit(w, k, 1)
	case mine.spend(now, 1) != nil:
		e.admit(w, k, 1)
		if mine.low() && now >= mine.denied {
			e.fetch(w, k, p)
		}
	case now < mine.denied:
	default:
		mine.waiting++
		e.fetch(w, k, p)
	}
}

// admit counts n events in the window of the store's clock.
func (e *everything) admit(w *world, k, n int) {
	m := &w.keys[k].meter
	if window := w.window(); window != m.window {
		m.window, m.n = window, 0
	}
	m.n += n
}

// window is the number of that in which the store's clock is.
func (w *world) window() int64 { return w.stores() / (3 * tick.Microseconds()) }

// tidy gives back what has lapsed.
func (e *everything) tidy(w *world, k, p int) {
	mine := &w.keys[k].processes[p]
	for {
		was := mine.lease
		from, n := mine.lapse(w.clock())
		if n == 0 {
			return
		}
		if e.removed == returnedIsGone {
			was.until = w.clock() + 2*tick
			mine.lease = was
		}
		w.keys[k].addReturn(returned{from, n})
		if e.removed == returnedIsGone {
			return
		}
	}
}

// fetch sends a call for the next lease, unless one is under way.
func (e *everything) fetch(w *world, k, p int) {
	mine := &w.keys[k].processes[p]
	if mine.stage != idle {
		return
	}
	e.tidy(w, k, p)
	mine.stage, mine.sent = asking, w.clock()
	mine.want = mine.ask(mine.sent, mine.waiting, &e.terms)
}

// decide is the store's part: TakeUpTo by the rule. Callers who wait are admitted at that instant.
func (e *everything) decide(w *world, k, p int) {
	mine := &w.keys[k].processes[p]
	f := oneKey(&store.Namespace{Rule: e.rule}, e.limits, 0, mine.want, 0)
	of := &worldStore{rule: e.rule, state: &w.keys[k].state, now: w.stores()}
	f.Ask(context.Background(), of)
	if f.Panicked != nil {
		panic(f.Panicked)
	}
	by, part := e.limits.by, &f.Parts[0]
	r := replied{granted: int(part.Granted), room: int(part.Room)}
	if r.granted > 0 {
		r.lent = lent{part.Reply.X, part.Reply.Report(e.rule, by, part.Granted, part.Granted).Reset}
	}
	if f.Next != nil {
		r.retry = f.Next[0].Plainly(e.rule, by, 1, 0).X
	}
	mine.stage = answering
	mine.reply = r
	e.admit(w, k, min(mine.waiting, r.granted))
}

// worldStore is a store of one key.
type worldStore struct {
	store.Store
	rule  *store.Rule
	state *store.State
	now   int64
}

// get forgets a state that has ended, and moves one of the future to now.
func (s *worldStore) get(l store.Limit) store.State {
	switch at := *s.state; {
	case at.Whole > 0 && at.At+s.rule.TTL(at, l) <= s.now:
		*s.state = store.State{}
	case at.Whole > 0 && at.At > s.now:
		s.state.At = s.now
	}
	return *s.state
}

// Decide implements [store.Store].
func (s *worldStore) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *worldStore) TakeUpTo(_ context.Context, _ *store.Namespace, _ string, l store.Limit, n int64) (store.Reply, error) {
	next, r := s.rule.Step(s.get(l), l, s.now, n)
	if !r.OK() && n > 1 {
		next, r = s.rule.Step(s.get(l), l, s.now, max(1, r.Available(s.rule, l)))
	}
	if r.OK() {
		*s.state = next
	}
	return r, nil
}

func (s *worldStore) Peek(_ context.Context, _ *store.Namespace, _ string, l store.Limit, n int64) (store.Reply, error) {
	_, r := s.rule.Step(*s.state, l, s.now, n)
	return r, nil
}

// receive is what Store.decideOn does.
func (e *everything) receive(w *world, k, p int) {
	mine, now := &w.keys[k].processes[p], w.clock()
	sent, r, waiting := mine.sent, mine.reply, mine.waiting
	mine.stage, mine.waiting, mine.reply = idle, 0, replied{}
	if r.granted > 0 {
		if e.removed == fromSending {
			sent = now
		}
		window := untilWindowEnds(fixedWindow, r.reset, e.limits.by)
		if e.removed == withItsWindow {
			window = math.MaxInt64
		}
		held := mine.receive(answer{
			granted: r.granted, want: mine.want, room: r.room, sent: sent, now: now, window: window,
		}, &e.terms)
		held.grant = r.lent
		held.left -= min(waiting, r.granted)
	}
	if r.granted < mine.want {
		mine.refused(micros(r.retry), pause(fixedWindow, e.limits.by, 2*tick), sent, now, &e.terms)
	}
	mine.sent, mine.want = 0, 0
}

// lose is a call of which nothing is heard.
func (e *everything) lose(w *world, k, p int) {
	mine := &w.keys[k].processes[p]
	mine.failed()
	mine.stage, mine.waiting, mine.reply, mine.sent, mine.want = idle, 0, replied{}, 0, 0
}

// kill restarts a process. What it held is lost, and so are its calls, which the store may have
// charged.
func (e *everything) kill(w *world, p int) {
	for k := range e.keys {
		w.keys[k].processes[p] = worldProcess{}
		w.keys[k].processes[p].next = 2
	}
}

// jump sets the store's clock. Leases that are held or in flight can then be used once in a window
// that is not their own.
func (e *everything) jump(w *world, by int) {
	before := w.window()
	w.ahead += by
	for k := range e.keys {
		key := &w.keys[k]
		if by < 0 && w.window() != before && key.meter.window == before {
			key.meter.window = w.window() // as the store's count
		}
		for _, r := range key.returns {
			key.meter.spare += r.n
		}
		for p := range e.processes {
			mine := &key.processes[p]
			key.meter.spare += mine.left + mine.spare.left
			if mine.stage == answering {
				key.meter.spare += max(0, mine.reply.granted-mine.waiting)
			}
		}
	}
}

// addReturn sends events back. If too many are on their way, these stay charged.
func (k *worldKey) addReturn(r returned) {
	if i := slices.Index(k.returns[:], returned{}); i >= 0 {
		k.returns[i] = r
		slices.SortFunc(k.returns[:], func(a, b returned) int {
			return int(min(1, max(-1, (b.at-a.at)*1_000_000+int64(b.n-a.n)*1_000+b.reset-a.reset)))
		})
	}
}

func (k *worldKey) takeReturn(i int) (r returned) {
	r = k.returns[i]
	copy(k.returns[i:], k.returns[i+1:])
	k.returns[mostReturns-1] = returned{}
	return r
}

// takeBack is a Refund that has come to the store.
func (e *everything) takeBack(w *world, k, i int) {
	key := &w.keys[k]
	r := key.takeReturn(i)
	l := e.limits.by
	if s := key.state; s.Whole > 0 && s.At+e.rule.TTL(s, l) > max(s.At, w.stores()) {
		key.state = e.rule.Refund(s, l, w.stores(), store.NewReceipt(l, r.at, r.reset, int64(r.n)))
	}
}

// everySmallScope are those that are explored: in a plain run the first, and by night all.
var everySmallScope = []scope{
	{processes: 2, keys: 1, rate: 2, calls: 3, ticks: 3},
	{processes: 2, keys: 1, rate: 3, calls: 3, ticks: 3, kills: 1},
	{processes: 1, keys: 1, rate: 2, calls: 4, ticks: 4, steps: 1},
	{processes: 2, keys: 2, rate: 2, calls: 3, ticks: 2},
	{processes: 2, keys: 2, rate: 3, calls: 3, ticks: 4},
	{processes: 2, keys: 1, rate: 3, calls: 4, ticks: 5},
	{processes: 2, keys: 1, rate: 2, calls: 3, ticks: 4, kills: 1, steps: 1},
}

// Each schedule keeps the bound.
func TestEverySmallScheduleKeepsTheBound(t *testing.T) {
	effort.OneGoroutine(t)
	for _, s := range everySmallScope[:effort.Of(1, 2, len(everySmallScope))] {
		e := newEverything(t, s)
		w := e.start()
		require.NoError(t, e.explore(&w))
		t.Logf("%+v: %d states, each visited once", s, len(e.visited))
	}
}

// Without a guard of the protocol, some schedule does not.
func TestEveryGuardIsNeededInASmallWorld(t *testing.T) {
	for _, removed := range []guard{fromSending, atEachSpend, withItsWindow, returnedIsGone} {
		t.Run(string(removed), func(t *testing.T) {
			s := scope{processes: 1, keys: 1, rate: 2, calls: 4, ticks: 4, removed: removed}
			e := newEverything(t, s)
			w := e.start()
			err := e.explore(&w)
			require.Error(t, err, "%d states", len(e.visited))
			t.Log(err)
		})
	}
}
