package inflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/every"
	"github.com/ratelimit-go/ratelimit/store"
)

// This is every schedule of a small world. Some processes want the slots of one key. In each state
// each step that can come next does: a Hold, a Release, a message that arrives or is lost, a process
// that is killed, or a tick of time. So messages take any time. It is [Hold] itself that runs, and
// the rule, in a bubble of time. No state is looked at twice. In each, no more processes may work
// than there are slots, and from each all slots come back.

// tick is the unit of time: a slot lives for two and a half, and is renewed within each.
const tick = 100 * time.Millisecond

// scope says how large a world is.
type scope struct {
	processes, slots int
	calls            int // of Hold
	ticks            int
	losses           int // of messages
	kills            int
}

// world is what is there after some steps.
type world struct {
	scope
	start     time.Time
	processes []*process

	mu       sync.Mutex
	server   *slotLog
	messages []*message
	done     int  // messages, by the server
	prompt   bool // each message arrives at once
}

// process has a worker, which holds at most one slot.
type process struct {
	limiter *ratelimit.Custom
	killed  bool
	asking  bool
	slot    *Slot
	sent    time.Time // its last message
}

// works reports whether the worker of p may do what only so many may do at once.
func (p *process) works() bool { return !p.killed && p.slot != nil && !p.slot.Lost() }

// message is a call of the store on its way, or its reply.
type message struct {
	from     int
	what     string
	sent     time.Time
	do       func() store.Reply // by the server
	answered bool
	at       int // by ticks
	answer   store.Reply
	left     bool // nobody waits for it any more
	reply    chan store.Reply
}

// wire is the store as a process sees it.
type wire struct {
	store.Store
	*world
	process int
}

func (w *wire) Prepare(*store.Rule, store.Limit, bool) error { return nil }

// Decide implements [store.Store].
func (w *wire) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, w, w.Store, requests, replies)
}

func (w *wire) Take(ctx context.Context, _ *store.Namespace, _ string, l store.Limit, n int64) (store.Reply, error) {
	return w.call(ctx, fmt.Sprintf("take %d", l.Before()), func() store.Reply {
		now := w.clock()
		r := w.server.Step(l, now, n)
		if r.OK() {
			w.server.Add(l, now, n)
		}
		return r
	})
}

func (w *wire) Refund(ctx context.Context, _ *store.Namespace, _ string, l store.Limit, c store.Receipt) error {
	_, err := w.call(ctx, fmt.Sprintf("refund %d", c.At), func() store.Reply {
		w.server.Refund(l, w.clock(), c)
		return store.Reply{}
	})
	return err
}

// clock is the server's. No two messages are done in the same µs: who answers the second has heard of
// the first.
func (w *world) clock() int64 {
	w.done++
	return time.Now().UnixMicro() + int64(w.done)
}

// call sends a message, and waits for its reply.
func (w *wire) call(ctx context.Context, what string, do func() store.Reply) (store.Reply, error) {
	m := &message{from: w.process, what: what, sent: time.Now(), do: do, reply: make(chan store.Reply, 1)}
	w.mu.Lock()
	p := w.processes[w.process]
	p.sent = m.sent
	if w.prompt {
		defer w.mu.Unlock()
		return m.do(), nil
	}
	if !p.killed {
		w.messages = append(w.messages, m)
		slices.SortFunc(w.messages, func(a, b *message) int { // whatever sends first at the same time
			return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.what, b.what), a.sent.Compare(b.sent))
		})
	}
	w.mu.Unlock()
	select {
	case r := <-m.reply:
		return r, nil
	case <-ctx.Done():
	case <-time.After(3 * tick / 2):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.left = true
	if m.answered {
		w.drop(m)
	}
	return store.Reply{}, store.ErrTimeout
}

// drop takes m off the way.
func (w *world) drop(m *message) {
	w.messages = slices.DeleteFunc(w.messages, func(other *message) bool { return other == m })
}

func newWorld(t *testing.T, s scope) *world {
	w := &world{scope: s, start: time.Now(), server: newSlotLog()}
	for i := range s.processes {
		l, err := New(&wire{world: w, process: i}, s.slots, 5*tick/2)
		require.NoError(t, err)
		w.processes = append(w.processes, &process{limiter: l})
	}
	return w
}

// Steps are all that can come next.
func (w *world) Steps() (all []every.Step) {
	add := func(do func(), name string, args ...any) {
		all = append(all, every.Step{Name: fmt.Sprintf(name, args...), Do: func() error { do(); return nil }})
	}
	for i, p := range w.processes {
		switch {
		case p.killed:
			continue
		case p.slot != nil:
			add(func() { p.slot.Release(); p.slot = nil }, "p%d releases", i)
		case !p.asking && w.calls > 0 && (i == 0 || !w.processes[i-1].sent.IsZero()): // they are alike
			add(func() { w.calls--; w.hold(p) }, "p%d wants one", i)
		}
		if w.kills > 0 {
			add(func() { w.kills--; w.kill(p, i) }, "p%d is killed", i)
		}
	}
	for _, m := range w.messages {
		switch {
		case m.answered && m.at == w.ticks: // it is late, or it would have come with the step before
		case m.answered:
			add(func() { w.deliver(m) }, "p%d has the answer to %s at last", m.from, m.what)
		default:
			add(func() { w.answer(m) }, "the store does p%d's %s, and answers", m.from, m.what)
			if !m.left {
				add(func() { w.answer(m); w.deliver(m) }, "the store does p%d's %s", m.from, m.what)
			}
		}
		if w.losses > 0 {
			add(func() { w.losses--; w.drop(m) }, "p%d's %s is lost (answered: %v)", m.from, m.what, m.answered)
		}
	}
	if w.ticks > 0 {
		all = append(all, every.Step{Name: "tick", Do: func() error { w.ticks--; return w.pass() }})
	}
	return all
}

func (w *world) hold(p *process) {
	p.asking = true
	go func() {
		slot, _, _ := Hold(context.Background(), p.limiter, "key", 1)
		w.mu.Lock()
		defer w.mu.Unlock()
		p.asking, p.slot = false, slot
	}()
}

// kill ends a process. Its messages are still in flight.
func (w *world) kill(p *process, i int) {
	p.killed = true
	for _, m := range slices.Clone(w.messages) {
		if m.from == i && m.answered {
			w.drop(m)
		}
		m.left = m.left || m.from == i
	}
}

// deliver brings the answer.
func (w *world) deliver(m *message) {
	w.drop(m)
	m.reply <- m.answer
}

// answer is the server's part.
func (w *world) answer(m *message) {
	m.answered, m.at, m.answer = true, w.ticks, m.do()
	if m.left {
		w.drop(m)
	}
}

// Check returns what is wrong with w.
func (w *world) Check() error {
	n := 0
	for _, p := range w.processes {
		if p.works() {
			n++
		}
	}
	if n > w.slots {
		return fmt.Errorf("%d work, of at most %d", n, w.slots)
	}
	if held := w.server.Used(time.Now().UnixMicro()); held > int64(w.slots) {
		return fmt.Errorf("%d are held, of at most %d", held, w.slots)
	}
	return nil
}

// String tells one state from another.
func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, time.Since(w.start), w.calls, w.ticks, w.losses, w.kills)
	for _, s := range w.server.all {
		fmt.Fprint(&b, s, " ")
	}
	fmt.Fprintln(&b, w.server.last)
	for _, p := range w.processes {
		if p.killed {
			fmt.Fprintln(&b, "killed")
			continue
		}
		fmt.Fprint(&b, p.asking, p.sent.Sub(w.start))
		if p.slot != nil {
			h := p.slot.hold
			h.mu.Lock()
			fmt.Fprint(&b, h.ended, h.lost, h.busy, h.pause)
			for _, one := range h.taken {
				fmt.Fprint(&b, one.until.Sub(w.start), one.core.ChargedAt(one.answer))
			}
			h.mu.Unlock()
		}
		fmt.Fprintln(&b)
	}
	for _, m := range w.messages {
		fmt.Fprintln(&b, m.from, m.what, m.sent.Sub(w.start), m.answered, m.at, m.left)
	}
	return b.String()
}

// pass lets a tick pass, and checks what is there meanwhile.
func (w *world) pass() error {
	for range 5 {
		time.Sleep(tick / 5)
		synctest.Wait()
		if err := w.Check(); err != nil {
			return err
		}
	}
	return nil
}

// End has all messages arrive and all workers release. It returns an error if slots are still held
// a life afterwards.
func (w *world) End() error {
	w.mu.Lock()
	w.prompt = true
	for _, m := range w.messages {
		if !m.left && !m.answered {
			w.answer(m)
		}
		if !m.left {
			m.reply <- m.answer
		}
	}
	w.mu.Unlock()
	synctest.Wait()
	for _, p := range w.processes {
		p.slot.Release()
	}
	time.Sleep(5 * tick)
	synctest.Wait()
	if n := w.server.Used(time.Now().UnixMicro()); n > 0 {
		return fmt.Errorf("%d slots are still held", n)
	}
	return nil
}

func TestEveryScheduleOfHolds(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	effort.NeedFull(t)
	small := scope{processes: 2, slots: 1, calls: 2, ticks: 3}
	for name, s := range map[string]scope{
		"small":           small,
		"a kill":          {2, 1, 2, 3, 0, 1},
		"a loss":          {2, 1, 2, 3, 1, 0},
		"one slot thrice": {2, 1, 3, 2, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if s != small { // half a minute each, or some
				effort.NeedLong(t)
			}
			states, err := every.State(t, func(t *testing.T) every.World { return newWorld(t, s) })
			require.NoError(t, err)
			require.Greater(t, states, 5000)
			t.Logf("%+v: %d states", s, states)
		})
	}
}
