package pgstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
	"github.com/ratelimit-go/ratelimit/store/storetest"
)

// core is the decisions of a Store, with a map in place of the table.
type core struct {
	*Store
	mu      sync.Mutex
	rows    map[string][]byte
	ends    map[string]int64
	written int // rows
}

func newCore(clock func() time.Time, setBack bool) *core {
	return &core{Store: &Store{clock: clock, setBack: setBack}, rows: map[string][]byte{}, ends: map[string]int64{}}
}

// batch decides on calls together.
func (m *core) batch(calls ...*call) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := newBatch(calls)
	for _, r := range b.rows {
		r.old, r.there = m.rows[string(r.key)]
	}
	m.decideAll(b, 0) // and again, as after a race with others
	update, insert := m.decideAll(b, 0)
	m.written += len(update) + len(insert)
	for _, r := range append(update, insert...) {
		value, end, err := r.value()
		if err != nil {
			return err
		}
		m.rows[string(r.key)], m.ends[string(r.key)] = value, end
	}
	for _, c := range calls {
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

func (m *core) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	var replies [1]store.Reply
	err := m.Decide(ctx, []store.Request{{Namespace: ns, Key: key, Limit: l, N: n}}, replies[:])
	return replies[0], err
}

func (m *core) Decide(_ context.Context, requests []store.Request, replies []store.Reply) error {
	c := newCall(requests)
	defer copy(replies, c.replies)
	return m.batch(c)
}

func (m *core) Refund(_ context.Context, ns *store.Namespace, key string, l store.Limit, receipt store.Receipt) error {
	c := newCall([]store.Request{{Namespace: ns, Key: key, Limit: l}})
	c.op, c.receipt = refund, receipt
	return m.batch(c)
}

func (m *core) Reset(_ context.Context, ns *store.Namespace, key string) error {
	c := newCall([]store.Request{{Namespace: ns, Key: key}})
	c.op = reset
	return m.batch(c)
}

func (m *core) Prepare(*store.Rule, store.Limit, bool) error { return nil }

// What is not about Postgres holds without it, on many more traces.
func TestConformanceWithoutServer(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(_ testing.TB, clock func() time.Time) store.Store { return newCore(clock, false) },
		storetest.Traces(pgtest.Of(10, 50, 3_000)))
}

func TestAServersClockCanBeSetBack(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(_ testing.TB, clock func() time.Time) store.Store { return newCore(clock, true) },
		storetest.SetBack(), storetest.Traces(pgtest.Of(10, 50, 3_000)))
}

// While a key is banned, nothing else asks about its ban.
func TestABanIsNotLongerAfterTheServersClockWasSetBack(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	s := newCore(func() time.Time { return at }, true)
	l, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1))
	require.NoError(t, err)
	b, err := ratelimit.NewBan(l, s, ratelimit.Penalty{Denials: 1, Within: time.Minute, For: time.Minute})
	require.NoError(t, err)
	_, err = b.AllowN(t.Context(), "key", 2)
	require.NoError(t, err)
	at = at.Add(-time.Hour)
	for left := time.Minute; left > 0; left -= 20 * time.Second {
		_, r, err := b.AllowUpTo(t.Context(), "key", 1)
		require.NoError(t, err)
		require.Equal(t, left, r.RetryAfter)
		r, err = b.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, left, r.RetryAfter)
		at = at.Add(20 * time.Second)
	}
	r, err := b.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

// Slots of dead processes are free after their life, although others of the key are renewed.
func TestASlotThatIsNotRenewedEnds(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	l, err := inflight.New(newCore(func() time.Time { return at }, true), 2, 10*time.Second)
	require.NoError(t, err)
	dead, err := l.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, dead.Allowed)
	at = at.Add(time.Second)
	live, err := l.Allow(t.Context(), "key")
	require.NoError(t, err)
	for range 4 {
		at = at.Add(3 * time.Second)
		r, err := l.Renew(t.Context(), "key", live)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, l.ChargedAt(live), l.ChargedAt(r), "it is the same slot")
	}
	r, err := l.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Zero(t, r.Remaining)
}

// taps is a store that keeps what it is asked.
type taps struct {
	store.Store
	requests []store.Request
}

func (s *taps) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	s.requests = slices.Clone(requests)
	return s.Store.Decide(ctx, requests, replies)
}

// rulesOf returns a namespace and a limit of each algorithm, as a limiter asks.
func rulesOf(t *testing.T, l ratelimit.Limit) (list []store.Request) {
	t.Helper()
	m, err := memstore.New()
	require.NoError(t, err)
	s := &taps{Store: m}
	for _, name := range l.Algorithms() {
		lim, err := ratelimit.New(name, s, l, ratelimit.WithName("n"))
		require.NoError(t, err)
		_, err = lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		list = append(list, s.requests[0])
	}
	return list
}

// Lists with reserves, shadows, looks, gates and alternatives are decided as memory decides on them, whether they come
// alone or many in one transaction.
func TestListsAreDecidedAsInMemory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(pgtest.Of(200, 1_000, 20_000)) {
		rng := rand.New(rand.NewPCG(seed, 3))
		at := time.Unix(1_700_000_000, 0)
		clock := func() time.Time { return at }
		m, err := memstore.New(memstore.WithClock(clock))
		require.NoError(t, err)
		s := newCore(clock, false)
		of := rulesOf(t, ratelimit.Limit{Rate: 5 + rng.IntN(5), Period: time.Minute})
		for step := range 40 {
			var calls []*call
			for range 1 + rng.IntN(3) {
				calls = append(calls, newCall(randomList(rng, of)))
			}
			require.NoError(t, s.batch(calls...))
			for _, c := range calls {
				want := make([]store.Reply, len(c.requests))
				require.NoError(t, store.InTurn(t.Context(), c.requests, want, m.Decide))
				require.Equal(t, want, c.replies, "seed %d, step %d: %+v", seed, step, c.requests)
			}
			at = at.Add(time.Duration(rng.Int64N(int64(30 * time.Second))))
		}
	}
}

// A row costs Postgres a version of it, so only what is charged writes one.
func TestADenialWritesNoRow(t *testing.T) {
	clock := func() time.Time { return time.Unix(1_700_000_000, 0) }
	s := newCore(clock, true)
	for _, q := range rulesOf(t, ratelimit.PerMinute(5)) {
		q.Key, q.N, q.Op = "key", 5, store.OpTake
		before := s.written
		require.NoError(t, s.batch(newCall([]store.Request{q})))
		require.Equal(t, before+1, s.written, q.Namespace.Rule.Name)
		for _, op := range []store.Op{store.OpTake, store.OpShadow, store.OpLook, store.OpGate, store.OpUpTo} {
			q.Op = op
			require.NoError(t, s.batch(newCall([]store.Request{q})))
			require.Equal(t, before+1, s.written, q.Namespace.Rule.Name)
		}
	}
}

// randomList is a list of one or more alternatives.
func randomList(rng *rand.Rand, of []store.Request) (list []store.Request) {
	for alternative := range 1 + rng.IntN(3) {
		from := len(list)
		for i := range 1 + rng.IntN(4) {
			q := of[rng.IntN(len(of))]
			q.Key = string(rune('a' + rng.IntN(3)))
			q.N, q.Op = 1+rng.Int64N(4), [...]store.Op{store.OpTake, store.OpTake, store.OpShadow, store.OpLook, store.OpGate}[rng.IntN(5)]
			q.Else = alternative > 0 && i == 0
			if rng.IntN(3) == 0 {
				q.Reserved = rng.Int64N(4)
			}
			if !slices.ContainsFunc(list[from:], func(o store.Request) bool { return o.Namespace.Equal(q.Namespace) && o.Key == q.Key }) {
				list = append(list, q)
			}
		}
	}
	return list
}

// One of a list's rows that is no state fails that call, and no other of its transaction.
func TestGarbageFailsItsOwnCallAlone(t *testing.T) {
	t.Parallel()
	s := newCore(time.Now, false)
	for _, garbage := range [][]byte{
		[]byte("garbage"), {shifted}, append([]byte{shifted}, bytes.Repeat([]byte{0xff}, 11)...),
		binary.AppendVarint([]byte{shifted}, math.MaxInt64), binary.AppendVarint([]byte{shifted}, math.MinInt64),
		binary.AppendVarint([]byte{shifted}, 1<<60+1), binary.AppendVarint([]byte{shifted}, -1<<60-1),
	} {
		for _, q := range rulesOf(t, ratelimit.PerMinute(50)) {
			q.Key, q.N, q.Op = "bad", 1, store.OpTake
			require.NoError(t, s.batch(newCall([]store.Request{q})))
			at := string(address(q.Namespace, q.Key))
			s.rows[at] = append(slices.Clone(garbage), s.rows[at]...) // what follows is a value
			good := q
			good.Key = "good"
			bad, both, other := newCall([]store.Request{q}), newCall([]store.Request{good, q}), newCall([]store.Request{good})
			_ = s.batch(bad, both, other)
			require.ErrorIs(t, bad.err, store.ErrCorrupt)
			require.ErrorIs(t, both.err, store.ErrCorrupt)
			require.NoError(t, other.err)
			require.True(t, other.replies[0].OK())
			require.ErrorIs(t, failureOf(bad.err), store.ErrCorrupt)
			require.Equal(t, bad.err.Error(), failureOf(bad.err).Error())
			require.NoError(t, s.Reset(t.Context(), q.Namespace, "bad"))
			again := newCall([]store.Request{q})
			require.NoError(t, s.batch(again))
			require.True(t, again.replies[0].OK())
		}
	}
}

// Transactions lock and insert their rows in one order, so that none waits for another that waits for it.
func TestTransactionsTakeRowsInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	q := rulesOf(t, ratelimit.PerMinute(5))[0]
	var list []store.Request
	for _, key := range []string{"c", "a", "d", "b"} {
		q.Key = key
		list = append(list, q)
	}
	b := newBatch([]*call{newCall(list[:2]), newCall(list[1:])})
	require.Len(t, b.rows, 4)
	for i, key := range []string{"a", "b", "c", "d"} {
		require.Equal(t, address(q.Namespace, key), b.rows[i].key)
	}
}

func TestKeysThatDifferHaveDifferentAddresses(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	const maxPlainKey = 128 // so that tables keep their rows
	long := strings.Repeat("k", maxPlainKey)
	for _, name := range []string{"n", "m"} {
		ns := store.NewNamespace(&store.Rule{Name: "r"}, name)
		hi, lo := ns.ID()
		id := string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, hi), lo))
		for _, key := range []string{"a", "b", "a\x00", "a\x00" + id, "\x00a", "=a", "#a", long, long + "k", long + "l", strings.Repeat("\x00", store.MaxKey)} {
			at := string(address(ns, key))
			require.LessOrEqual(t, len(at), 18+maxPlainKey)
			require.NotContains(t, seen, at)
			require.Equal(t, len(key) <= maxPlainKey && !strings.Contains(key, "\x00"), strings.HasPrefix(at, "="+key+"\x00"), "SQL finds it")
			seen[at] = key
		}
	}
}
