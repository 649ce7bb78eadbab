package suite_test

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Linearizability: whatever callers do at once, there is an instant between each call
// and its return at which the call took place alone, so that all answers together are
// those of one caller who asks one thing after the other. Porcupine searches recorded
// histories for such an order.

const (
	linearClients  = 8
	linearCapacity = 20
	linearTimeout  = 30 * time.Second // of a search; what is not known by then has failed
)

// standing is a limit of which nothing comes back while a test runs, by any clock: what
// a key has spent is then a whole number that only calls change. The windows of ten
// years have an edge in December 2029.
func standing(algorithm string) ratelimit.Limit {
	year := 365 * 24 * time.Hour
	if hasBurst(algorithm) {
		return ratelimit.Limit{Rate: 1, Period: year, Burst: linearCapacity}
	}
	return ratelimit.Limit{Rate: linearCapacity, Period: 10 * year}
}

// ---- What is asked and answered, and the model.

type verb string

const (
	askAllow  verb = "Allow"
	askAllowN verb = "AllowN"
	askUpTo   verb = "AllowUpTo"
	askPeek   verb = "Peek"
	askRefund verb = "Refund"
	askReset  verb = "Reset"
)

// act is a call. Each has an id of its own.
type act struct {
	verb verb
	key  string
	id   int
	n    int
	// A Refund gives back events of the call of, which left the key with spent events.
	of, spent int
}

type answer struct {
	allowed            bool
	granted, remaining int
}

// account is the model's state of a key: the events spent, the id of the call that was
// admitted last, and whether there was a Reset or a Refund.
type account struct {
	events, last    int
	reset, refunded bool
}

// after is what the account may be after a call with this answer: nothing if it does
// not answer so.
func (s account) after(a act, got answer, tailOnly bool) []any {
	switch a.verb {
	case askReset:
		return []any{account{reset: true}}
	case askRefund:
		return s.giveBack(a, tailOnly)
	}
	for short := range 2 {
		if next, want := s.decided(a, short); got == want {
			return []any{next}
		}
		if !s.refunded || tailOnly { // of a queue the model knows less anyway
			break
		}
	}
	return nil
}

// decided is what the account becomes, and the answer. A call whose reading of the clock is
// from before a Refund may find an event short: a bucket counts as refunded what was still
// charged at the Refund's own reading, and so a part of an event more at an earlier one.
func (s account) decided(a act, short int) (account, answer) {
	room := max(0, linearCapacity-s.events-short)
	granted := min(a.n, room)
	switch {
	case a.verb == askPeek:
		return s, answer{allowed: room > 0, remaining: room}
	case granted == 0, granted < a.n && a.verb != askUpTo:
		return s, answer{remaining: room}
	}
	next := s
	next.events, next.last = s.events+granted, a.id
	return next, answer{allowed: true, granted: granted, remaining: room - granted}
}

// giveBack is the account after a Refund. A queue gives back its tail only: what came
// last, and what came in the same µs if nothing is left behind it. The model does not
// know of µs, so there both may be.
func (s account) giveBack(a act, tailOnly bool) []any {
	less := s
	less.events, less.refunded = s.events-min(a.n, s.events), true
	switch {
	case s.reset: // what was charged before it is gone, if that can still be told by its time
		return []any{s, less}
	case !tailOnly || a.of == s.last:
		return []any{less}
	case a.spent < s.events:
		return []any{s}
	}
	return []any{s, less}
}

func linearModel(algorithm string) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Partition: partitionByKey,
		Init:      func() []any { return []any{account{}} },
		Step: func(state, input, output any) []any {
			return state.(account).after(input.(act), output.(answer), algorithm == "leaky_bucket")
		},
		Hash: func(state any) uint64 { return uint64(state.(account).events) },
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v: %+v", input, output)
		},
	}
	return model.ToModel()
}

func partitionByKey(history []porcupine.Operation) [][]porcupine.Operation {
	byKey := map[string][]porcupine.Operation{}
	for _, op := range history {
		key := op.Input.(act).key
		byKey[key] = append(byKey[key], op)
	}
	var parts [][]porcupine.Operation
	for _, part := range byKey {
		parts = append(parts, part)
	}
	return parts
}

// ---- The callers.

// limiting is all that the five types can do.
type limiting interface {
	ratelimit.Limiter
	AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error)
}

// caller makes one call after the other on two keys, and records them. One key sees
// Refunds, the other Resets: a Refund of what a Reset has forgotten takes the events of
// others, by rules that differ.
type caller struct {
	lim              limiting
	id               int
	random           *mathrand.Rand
	began            time.Time
	calls            *atomic.Int64 // of all callers
	refunded, resets string
	charges          []charge // on the key that sees Refunds, the newest last
	history          []porcupine.Operation
}

// charge is an admission, of which left events have not been given back.
type charge struct {
	id, left int
	result   ratelimit.Result
}

// run makes this many calls.
func (c *caller) run(ctx context.Context, calls int) error {
	for range calls {
		a := c.choose(int(c.calls.Add(1)))
		op := porcupine.Operation{ClientId: c.id, Input: a, Call: int64(time.Since(c.began))}
		r, granted, err := c.ask(ctx, a)
		op.Return = int64(time.Since(c.began))
		if err != nil {
			return fmt.Errorf("%+v: %w", a, err)
		}
		op.Output = answer{r.Allowed, granted, r.Remaining}
		c.history = append(c.history, op)
		if granted > 0 && a.key == c.refunded {
			c.charges = append(c.charges, charge{a.id, granted, r})
		}
	}
	return nil
}

// choose is what to ask next. In every third stretch of 400 calls of all callers
// more is given back than taken, so that keys are empty at times too.
func (c *caller) choose(id int) act {
	a := act{verb: askPeek, key: c.resets, id: id, n: 1}
	if c.random.IntN(2) == 0 {
		a.key = c.refunded
	}
	least := 0
	if id/400%3 == 2 {
		least = 13
	}
	switch p := least + c.random.IntN(20-least); {
	case p < 8:
		a.verb = askAllow
	case p < 11:
		a.verb, a.n = askAllowN, 1+c.random.IntN(4)
	case p < 13:
		a.verb, a.n = askUpTo, 1+c.random.IntN(6)
	case p < 15:
	case p < 17 && a.key == c.resets:
		a.verb = askReset
	case a.key == c.refunded && len(c.charges) > 0:
		a = c.refundOfNewest(a)
	case p == 19:
		a.verb = askAllow
	}
	return a
}

func (c *caller) refundOfNewest(a act) act {
	of := c.charges[len(c.charges)-1]
	a.verb, a.n = askRefund, 1+c.random.IntN(of.left)
	a.of, a.spent = of.id, linearCapacity-of.result.Remaining
	return a
}

func (c *caller) ask(ctx context.Context, a act) (r ratelimit.Result, granted int, err error) {
	switch a.verb {
	case askAllow:
		r, err = c.lim.Allow(ctx, a.key)
	case askAllowN:
		r, err = c.lim.AllowN(ctx, a.key, a.n)
	case askUpTo:
		granted, r, err = c.lim.AllowUpTo(ctx, a.key, a.n)
		return r, granted, err
	case askPeek:
		r, err = c.lim.Peek(ctx, a.key)
		return r, 0, err
	case askRefund:
		return r, 0, c.refund(ctx, a)
	case askReset:
		return r, 0, c.lim.Reset(ctx, a.key)
	}
	if r.Allowed {
		granted = a.n
	}
	return r, granted, err
}

// refund gives back events of the newest charge, each once.
func (c *caller) refund(ctx context.Context, a act) error {
	newest := &c.charges[len(c.charges)-1]
	err := c.lim.Refund(ctx, a.key, newest.result, a.n)
	if newest.left -= a.n; newest.left == 0 {
		c.charges = c.charges[:len(c.charges)-1]
	}
	return err
}

// record is what all callers have seen, each of them after so many calls.
func record(t *testing.T, lim limiting, calls int) (history []porcupine.Operation) {
	t.Helper()
	seed, fresh, began := mathrand.Uint64(), rand.Text(), time.Now()
	t.Logf("seed %d", seed)
	var callers [linearClients]caller
	var group sync.WaitGroup
	var made atomic.Int64
	begin := make(chan struct{})
	for i := range callers {
		c := &callers[i]
		*c = caller{lim: lim, id: i, began: began, calls: &made, refunded: "refunded" + fresh, resets: "reset" + fresh}
		c.random = mathrand.New(mathrand.NewPCG(seed, uint64(i)))
		group.Go(func() {
			<-begin
			if err := c.run(t.Context(), calls); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	group.Wait()
	for i := range callers {
		history = append(history, callers[i].history...)
	}
	return history
}

// yielding lets other callers run while it is asked, as a store does that is far away,
// so that there are lines to be coalesced. It counts how often it decides.
type yielding struct {
	store.Store
	decisions atomic.Int64
}

// Decide implements [store.Store].
func (s *yielding) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *yielding) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.decisions.Add(1)
	runtime.Gosched()
	defer runtime.Gosched()
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *yielding) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.decisions.Add(1)
	runtime.Gosched()
	defer runtime.Gosched()
	return store.TakeUpTo(ctx, s.Store, ns, key, l, n)
}

// decisions is how many calls of a history need one.
func decisions(history []porcupine.Operation) (n int64) {
	for _, op := range history {
		switch op.Input.(act).verb {
		case askAllow, askAllowN, askUpTo:
			n++
		}
	}
	return n
}

// ---- The checks.

func TestEachCallTakesPlaceAtOneInstantBetweenItsBeginningAndItsEnd(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			eachStore(t, func(t *testing.T, s store.Store) {
				y := &yielding{Store: s}
				history := record(t, newLimiter(t, algorithm, y, standing(algorithm)).(limiting), effort.Of(100, 500))
				requireLinear(t, algorithm, history)
				require.Equal(t, decisions(history), y.decisions.Load())
			})
		})
	}
}

func TestCoalescedCallsTakePlaceAtOneInstantToo(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			eachStore(t, func(t *testing.T, s store.Store) {
				y := &yielding{Store: s}
				lim := newLimiter(t, algorithm, newCoalesced(t, y), standing(algorithm))
				history := record(t, lim.(limiting), effort.Of(100, 500))
				requireLinear(t, algorithm, history)
				require.Less(t, y.decisions.Load(), decisions(history), "nothing was coalesced")
			})
		})
	}
}

// requireLinear fails the test unless an order is found. Otherwise the history can be
// looked at in a browser: run the test with -artifacts.
func requireLinear(t *testing.T, algorithm string, history []porcupine.Operation) {
	t.Helper()
	model := linearModel(algorithm)
	result := porcupine.CheckOperationsTimeout(model, history, linearTimeout)
	if result != porcupine.Ok && !t.Failed() {
		_, info := porcupine.CheckOperationsVerbose(model, history, linearTimeout)
		require.NoError(t, porcupine.VisualizePath(model, info, filepath.Join(t.ArtifactDir(), "history.html")))
	}
	require.Equal(t, porcupine.Ok, result)
}

// ---- Faults of the kinds that the check is for, each of which it must find.

func TestACallThatTakesPlaceAtNoOneInstantIsFound(t *testing.T) {
	t.Parallel()
	faults := map[string]func(s store.Store) store.Store{
		"a take that looks first and then charges": func(s store.Store) store.Store { return looking{s} },
		"a limit that admits one more":             func(s store.Store) store.Store { return generous{s} },
		"a take that is sent twice":                func(s store.Store) store.Store { return repeating{s} },
		"a peek at a replica that lags":            func(s store.Store) store.Store { return &lagging{Store: s} },
		"a refund that is lost":                    func(s store.Store) store.Store { return keeping{s} },
		"a reset that returns before it is done":   func(s store.Store) store.Store { return tardy{s} },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			requireFound(t, fault, func(lim limiting) limiting { return lim })
		})
	}
}

func TestAnswersThatNoOrderOfTheCallersExplainsAreFound(t *testing.T) {
	t.Parallel()
	faults := map[string]func(lim limiting) limiting{
		"permits fetched before they are asked for, and told from the wrong end": func(lim limiting) limiting {
			return &leasing{limiting: lim, permits: map[string][]ratelimit.Result{}}
		},
		"one permit for all who ask at once": func(lim limiting) limiting {
			return &sharing{limiting: lim, flights: map[string]*flight{}}
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			requireFound(t, func(s store.Store) store.Store { return s }, fault)
		})
	}
}

// requireFound fails the test unless the fault is seen in every algorithm.
func requireFound(t *testing.T, inStore func(store.Store) store.Store, inLimiter func(limiting) limiting) {
	t.Helper()
	for _, algorithm := range algorithms {
		s, err := memstore.New()
		require.NoError(t, err)
		lim := newLimiter(t, algorithm, inStore(&yielding{Store: s}), standing(algorithm)).(limiting)
		history := record(t, inLimiter(lim), 200)
		result := porcupine.CheckOperationsTimeout(linearModel(algorithm), history, linearTimeout)
		require.Equal(t, porcupine.Illegal, result, algorithm)
	}
}

// looking answers by what it saw before it charged.
type looking struct{ store.Store }

func (s looking) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	r, err := store.Peek(ctx, s, ns, key, l, n)
	if err != nil || !r.OK() {
		return r, err
	}
	_, err = s.Store.Take(ctx, ns, key, l, n)
	return r, err
}

// generous admits one event more than the limit.
type generous struct{ store.Store }

func (s generous) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	l.Rate, l.Burst = l.Rate+1, l.Burst+1
	return s.Store.Take(ctx, ns, key, l, n)
}

// repeating is a client that sends again what was carried out.
type repeating struct{ store.Store }

func (s repeating) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if r, err := s.Store.Take(ctx, ns, key, l, n); err != nil || !r.OK() {
		return r, err
	}
	return s.Store.Take(ctx, ns, key, l, n)
}

// lagging answers what it would have answered the last time.
type lagging struct {
	store.Store
	last sync.Map // of store.Reply by key
}

// Decide implements [store.Store].
func (s *lagging) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *lagging) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	r, err := store.Peek(ctx, s.Store, ns, key, l, n)
	if before, found := s.last.Swap(key, r); found {
		return before.(store.Reply), err
	}
	return r, err
}

// keeping gives nothing back.
type keeping struct{ store.Store }

func (keeping) Refund(context.Context, *store.Namespace, string, store.Limit, store.Receipt) error {
	return nil
}

// tardy resets after it has said so.
type tardy struct{ store.Store }

func (s tardy) Reset(_ context.Context, ns *store.Namespace, key string) error {
	time.AfterFunc(100*time.Microsecond, func() { _ = s.Store.Reset(context.Background(), ns, key) })
	return nil
}

// leasing fetches four permits at once and hands them out from the wrong end.
type leasing struct {
	limiting
	mu      sync.Mutex
	permits map[string][]ratelimit.Result
}

func (l *leasing) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.permits[key]) == 0 {
		granted, r, err := l.AllowUpTo(ctx, key, 4)
		if err != nil || granted == 0 {
			return r, err
		}
		for range granted {
			l.permits[key] = append(l.permits[key], r)
			r.Remaining++
		}
	}
	r := l.permits[key][0]
	l.permits[key] = l.permits[key][1:]
	return r, nil
}

// sharing asks once for all who ask at once, and tells them all the same.
type sharing struct {
	limiting
	mu      sync.Mutex
	flights map[string]*flight
}

type flight struct {
	done   chan struct{}
	result ratelimit.Result
	err    error
}

func (s *sharing) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	s.mu.Lock()
	if f, found := s.flights[key]; found {
		s.mu.Unlock()
		<-f.done
		return f.result, f.err
	}
	f := &flight{done: make(chan struct{})}
	s.flights[key] = f
	s.mu.Unlock()
	f.result, f.err = s.limiting.Allow(ctx, key)
	s.mu.Lock()
	delete(s.flights, key)
	s.mu.Unlock()
	close(f.done)
	return f.result, f.err
}
