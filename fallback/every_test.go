package fallback

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
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// This is every schedule of a small world. Calls of one key come, two at once at most. Each message
// to the store is answered, refused, or answered to nobody, at once or after others. When all is
// over, the store must have been charged with each admission once, whoever made it.

const (
	pause  = time.Second // of the breaker, and the unit of time
	atOnce = 2
)

// scope says how large a world is.
type scope struct {
	rate, calls    int
	refused, muted int // messages at most, by the store and by the way back
	ticks          int
}

type world struct {
	scope
	begun   time.Time
	limiter *Limiter
	behind  ratelimit.Limiter // the store's, without the wire

	mu       sync.Mutex
	messages []*message
	healed   bool // each message is answered at once
	underway int
	told     int // admissions
	unheard  int // events that were charged without a word
	failing  bool
	outages  int
	err      error
}

type message struct {
	what  string
	do    func() (charged int64)
	done  bool
	at    int // by calls
	heard chan error
}

// wire is the store as the limiter sees it.
type wire struct {
	store.Store
	*world
}

// Decide implements [store.Store].
func (w *wire) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, w, w.Store, requests, replies)
}

func (w *wire) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	wrong := w.send("take", func() int64 {
		if r, err = w.Store.Take(ctx, ns, key, l, n); !r.OK() {
			return 0
		}
		return n
	})
	return r, cmp.Or(wrong, err)
}

func (w *wire) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	wrong := w.send(fmt.Sprint("take up to ", n), func() int64 {
		if r, err = store.TakeUpTo(ctx, w.Store, ns, key, l, n); !r.OK() {
			return 0
		}
		return min(n, r.Available(ns.Rule, l))
	})
	return r, cmp.Or(wrong, err)
}

func (w *wire) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	wrong := w.send("peek", func() int64 {
		r, err = store.Peek(ctx, w.Store, ns, key, l, n)
		return 0
	})
	return r, cmp.Or(wrong, err)
}

// send sends a message, and waits for what becomes of it.
func (w *world) send(what string, do func() int64) error {
	m := &message{what: what, do: do, heard: make(chan error, 1)}
	w.mu.Lock()
	if w.healed {
		defer w.mu.Unlock()
		m.do()
		return nil
	}
	w.messages = append(w.messages, m)
	slices.SortStableFunc(w.messages, func(a, b *message) int { return cmp.Compare(a.what, b.what) })
	w.mu.Unlock()
	return <-m.heard
}

func newWorld(t *testing.T, s scope) *world {
	mem, err := memstore.New()
	require.NoError(t, err)
	w := &world{scope: s, begun: time.Now()}
	l, err := ratelimit.NewFixedWindow(&wire{mem, w}, ratelimit.PerHour(s.rate))
	require.NoError(t, err)
	w.behind, err = ratelimit.NewFixedWindow(mem, ratelimit.PerHour(s.rate))
	require.NoError(t, err)
	w.limiter, err = New(l, FailLocal(1), WithBreaker(2, pause))
	require.NoError(t, err)
	return w
}

// Steps are all that can come next.
func (w *world) Steps() (all []every.Step) {
	add := func(name string, do func()) {
		all = append(all, every.Step{Name: name, Do: func() error { do(); return nil }})
	}
	if w.calls > 0 && w.underway < atOnce {
		add("a call", w.call)
	}
	for _, m := range w.messages {
		if m.done {
			if m.at != w.calls { // or it was heard at once
				add(m.what+" is heard at last", func() { w.end(m, nil) })
			}
			continue
		}
		add(m.what+" is answered", func() { m.do(); w.end(m, nil) })
		add(m.what+" is done", func() { m.do(); m.done, m.at = true, w.calls })
		if w.refused > 0 {
			add(m.what+" is refused", func() { w.refused--; w.end(m, store.ErrUnavailable) })
		}
		if w.muted > 0 {
			add(m.what+" is done, and nobody hears", func() {
				w.muted--
				w.unheard += int(m.do())
				w.end(m, store.ErrTimeout)
			})
		}
	}
	if w.ticks > 0 {
		add("tick", func() { w.ticks--; time.Sleep(pause) })
	}
	return all
}

func (w *world) call() {
	w.calls--
	w.underway++
	go func() {
		r, err := w.limiter.Allow(context.Background(), "key")
		w.mu.Lock()
		defer w.mu.Unlock()
		w.underway--
		if w.err = cmp.Or(w.err, err); r.Allowed {
			w.told++
		}
	}()
}

// end takes m off the way.
func (w *world) end(m *message, err error) {
	w.messages = slices.DeleteFunc(w.messages, func(other *message) bool { return other == m })
	if err != nil && !w.failing {
		w.outages++
	}
	w.failing = err != nil
	m.heard <- err
}

// Check returns what is wrong with w.
func (w *world) Check() error {
	if most := w.rate + w.outages + atOnce - 1; w.told > most {
		return fmt.Errorf("%d were admitted, want at most %d", w.told, most)
	}
	return w.err
}

// String tells one state from another.
func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, w.scope, w.underway, w.told, w.unheard, w.failing, w.outages, time.Since(w.begun))
	f := w.limiter
	c := f.breakers.whole.Load()
	fmt.Fprintln(&b, c.gate.State(), c.gate.Counts(), time.Duration(c.probeAt.Load()), c.halfOpen.Load(), c.failing.Load())
	for _, owed := range f.owed.byKey {
		fmt.Fprintln(&b, owed)
	}
	for _, l := range []ratelimit.Limiter{f.local, w.behind} {
		r, err := l.Peek(context.Background(), "key")
		fmt.Fprintln(&b, r.Remaining, err)
	}
	for _, m := range w.messages {
		fmt.Fprintln(&b, m.what, m.done, m.at)
	}
	return b.String()
}

// End lets the store answer everything, and the limiter pay what it owes. It then compares the
// counts.
func (w *world) End() error {
	w.mu.Lock()
	w.healed = true
	for _, m := range w.messages {
		if !m.done {
			m.do()
		}
		m.heard <- nil
	}
	w.mu.Unlock()
	synctest.Wait()
	for range 3 {
		time.Sleep(pause) // until the breaker lets a probe go
		if _, err := w.limiter.Peek(context.Background(), "key"); err != nil {
			return err
		}
	}
	r, err := w.behind.Peek(context.Background(), "key")
	switch spent := w.rate - r.Remaining; {
	case err != nil:
		return err
	case spent < min(w.told, w.rate), spent > w.told+w.unheard:
		return fmt.Errorf("the store was charged with %d events, of %d that were admitted and %d unheard", spent, w.told, w.unheard)
	}
	return w.Check()
}

func TestEverySchedule(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	large := scope{rate: 3, calls: 6, refused: 4, muted: 1, ticks: 2}
	for name, s := range map[string]scope{
		"room for all":   {rate: 10, calls: effort.Of(3, 4), refused: 3, muted: 1, ticks: 1},
		"room for three": {rate: 3, calls: 6, refused: 3},
		"more of it":     large,
	} {
		t.Run(name, func(t *testing.T) {
			if s == large {
				effort.NeedLong(t)
			}
			states, err := every.State(t, func(t *testing.T) every.World { return newWorld(t, s) })
			require.NoError(t, err)
			t.Logf("%+v: %d states", s, states)
		})
	}
}
