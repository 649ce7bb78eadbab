package pgstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

// A row that was reset, or has ended, is one of a new key, also for the calls that share the transaction of a Reset.
func TestAResetRowIsThatOfANewKey(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	s := newCore(func() time.Time { return at }, true)
	for _, q := range rulesOf(t, ratelimit.PerMinute(5)) {
		take := func(key string) *call {
			q := q
			q.Key, q.N, q.Op = key, 2, store.OpTake
			return newCall([]store.Request{q})
		}
		require.NoError(t, s.batch(take("reset"), take("ended"), take("together")))
		require.NoError(t, s.Reset(t.Context(), q.Namespace, "reset"))
		at = at.Add(time.Hour)
		together := newCall([]store.Request{{Namespace: q.Namespace, Key: "together"}})
		together.op = reset
		require.NoError(t, s.batch(together, take("together"), take("reset"), take("ended"), take("new")))
		for _, key := range []string{"reset", "ended", "together"} {
			require.Equal(t, s.rows[string(address(q.Namespace, "new"))], s.rows[string(address(q.Namespace, key))], "%s: %s", q.Namespace.Rule.Name, key)
		}
	}
}

// After the server's clock was set back, a log is decided on as one whose newest event is of now.
func TestALogThatWasSetBackIsDecidedOnAsOneOfTheNewTime(t *testing.T) {
	t.Parallel()
	for seed := range uint64(pgtest.Of(200, 1_000, 20_000)) {
		rng := rand.New(rand.NewPCG(seed, 4))
		l := ratelimit.Limit{Rate: 3 + rng.IntN(8), Period: time.Minute}
		of := ofLog(t, l)
		now, ahead := time.Unix(1_700_000_000, 0), 10*time.Hour
		back := newCore(func() time.Time { return now.Add(ahead) }, true)
		steady := newCore(func() time.Time { return now }, false)
		var receipts []store.Receipt
		ask := func(op store.Op) {
			q := of
			q.Op, q.N, q.Most = op, 1+rng.Int64N(3), 1<<31-1
			if op != store.OpOverdraw && rng.IntN(2) == 0 {
				q.Reserved = rng.Int64N(int64(l.Rate))
			}
			got, want := newCall([]store.Request{q}), newCall([]store.Request{q})
			require.NoError(t, back.batch(got))
			require.NoError(t, steady.batch(want))
			want.replies[0].X += ahead.Microseconds()
			require.Equal(t, want.replies, got.replies, "seed %d: %+v", seed, q)
			require.Equal(t, want.charged, got.charged, "seed %d: %+v", seed, q)
			if n := got.charged[0]; n > 0 && ahead == 0 {
				receipts = append(receipts, got.replies[0].Receipt(q.Namespace.Rule, q.Limit, n, n))
			}
		}
		for range 3 {
			ask(store.OpOverdraw)
			now = now.Add(time.Second)
		}
		now, ahead = now.Add(-time.Second), 0
		ask(store.OpLook) // moves nothing
		ask(store.OpTake)
		for range 12 {
			switch rng.IntN(4) {
			case 0:
				now = now.Add(time.Duration(rng.Int64N(int64(20 * time.Second))))
			case 1:
				if len(receipts) > 0 {
					receipt := receipts[rng.IntN(len(receipts))]
					require.NoError(t, back.Refund(t.Context(), of.Namespace, of.Key, of.Limit, receipt))
					require.NoError(t, steady.Refund(t.Context(), of.Namespace, of.Key, of.Limit, receipt))
				}
			default:
				ask([...]store.Op{store.OpTake, store.OpShadow, store.OpLook, store.OpGate, store.OpUpTo, store.OpOverdraw}[rng.IntN(6)])
			}
			require.Equal(t, steady.ends, back.ends, "seed %d", seed)
		}
	}
}

// ofLog is a request of a limiter that keeps a log.
func ofLog(t *testing.T, l ratelimit.Limit) store.Request {
	t.Helper()
	for _, q := range rulesOf(t, l) {
		if q.Namespace.Rule.NewLog != nil {
			q.Key, q.Op = "key", store.OpTake
			return q
		}
	}
	panic("no algorithm has a log")
}

// Builds of two releases read the shift of each other.
func TestTheRowOfALogThatWasSetBackStays(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	s := newCore(func() time.Time { return now }, true)
	q := ofLog(t, ratelimit.PerMinute(5))
	q.N = 1
	at := address(q.Namespace, q.Key)
	require.NoError(t, s.batch(newCall([]store.Request{q})))
	now = now.Add(-time.Hour)
	denied := q
	denied.N = 5
	require.NoError(t, s.batch(newCall([]store.Request{denied})), "which moves it all the same")
	want := binary.AppendVarint([]byte{3}, -time.Hour.Microseconds())
	require.Equal(t, want, s.rows[string(at)][:len(want)])
	require.Equal(t, now.Add(time.Minute).UnixMicro(), s.ends[string(at)])
	now = now.Add(time.Minute)
	require.NoError(t, s.batch(newCall([]store.Request{q})))
	require.NotEqual(t, byte(3), s.rows[string(at)][0], "it is new")
}

// A key that is asked about continues from the new time, unless the call looks, or is a gate that lets others pass.
func TestCallsThatMoveARowAfterTheServersClockWasSetBack(t *testing.T) {
	t.Parallel()
	for _, q := range rulesOf(t, ratelimit.PerMinute(5)) {
		for op, moves := range map[store.Op]bool{store.OpLook: false, store.OpGate: false, store.OpTake: true, store.OpShadow: true} {
			at := time.Unix(1_700_000_000, 0)
			s := newCore(func() time.Time { return at }, true)
			take := func(key string, n int64) store.Request {
				q := q
				q.Key, q.N, q.Op = key, n, store.OpTake
				return q
			}
			require.NoError(t, s.batch(newCall([]store.Request{take("key", 1), take("full", 5)})))
			at = at.Add(-time.Hour)
			require.NoError(t, s.batch(newCall([]store.Request{take("full", 1)})))
			written, some := s.written, take("key", 1)
			some.Op = op
			c := newCall([]store.Request{some, take("full", 1)})
			require.NoError(t, s.batch(c))
			require.True(t, c.replies[0].OK())
			require.False(t, c.replies[1].OK())
			require.Equal(t, moves, s.written > written, "%s: %v", q.Namespace.Rule.Name, op)
			some.Op, some.N = store.OpGate, 5
			require.NoError(t, s.batch(newCall([]store.Request{some})))
			require.Greater(t, s.written, written, "%s: a gate that is closed", q.Namespace.Rule.Name)
		}
	}
}

// After a lost race, nothing stays of the attempt before it.
func TestARowIsReadAgain(t *testing.T) {
	t.Parallel()
	s := newCore(func() time.Time { return time.Unix(1_700_000_000, 0) }, false)
	for _, q := range rulesOf(t, ratelimit.PerMinute(5)) {
		q.Key, q.N, q.Op = "key", 5, store.OpTake
		require.NoError(t, s.batch(newCall([]store.Request{q})))
		full := s.rows[string(address(q.Namespace, q.Key))]
		b := newBatch([]*call{newCall([]store.Request{q})})
		r, c := b.rows[0], b.calls[0]
		for range 2 {
			r.there, r.old = false, nil
			update, insert := s.decideAll(b, 0)
			require.NoError(t, c.err)
			require.True(t, c.replies[0].OK())
			require.Empty(t, update)
			require.Equal(t, b.rows, insert)

			r.there, r.old = true, full
			update, insert = s.decideAll(b, 0)
			require.NoError(t, c.err)
			require.False(t, c.replies[0].OK())
			require.Empty(t, append(update, insert...))

			r.old = []byte("garbage")
			update, insert = s.decideAll(b, 0)
			require.ErrorIs(t, c.err, store.ErrCorrupt)
			require.Empty(t, append(update, insert...))
		}
	}
}

// What is refunded for a caller who has left is what the call has charged, however often it was decided on.
func TestWhatACallHasCharged(t *testing.T) {
	t.Parallel()
	s := newCore(func() time.Time { return time.Unix(1_700_000_000, 0) }, false)
	charged := func(list ...store.Request) []int64 {
		c := newCall(list)
		require.NoError(t, s.batch(c))
		return c.charged
	}
	for _, full := range rulesOf(t, ratelimit.PerMinute(5)) {
		full.Key, full.N, full.Op = "full", 5, store.OpTake
		room := full
		room.Key, room.N = "room", 1
		require.Equal(t, []int64{5}, charged(full))
		require.Equal(t, []int64{0}, charged(full))
		require.Equal(t, []int64{0, 0}, charged(room, full))
		for _, op := range []store.Op{store.OpShadow, store.OpLook} {
			full.Op = op
			require.Equal(t, []int64{1, 0}, charged(room, full))
		}
		full.Op = store.OpUpTo
		require.Equal(t, []int64{0}, charged(full))
		room.Op, room.N = store.OpUpTo, 9
		require.Equal(t, []int64{3}, charged(room))
		room.Op, full.Op = store.OpTake, store.OpTake
		room.Key, room.N, room.Else = "else", 4, true
		either := newCall([]store.Request{full, room})
		require.NoError(t, s.batch(either))
		require.Equal(t, []int64{0, 4}, either.charged)
		require.NoError(t, s.Reset(t.Context(), full.Namespace, "full"))
		require.NoError(t, s.batch(either), "as after a race with a Reset")
		require.Equal(t, []int64{5, 0}, either.charged)
	}
	require.False(t, returns(&store.Request{Op: store.OpOverdraw, Namespace: store.NewNamespace(&store.Rule{Report: report}, "n")}))
	require.False(t, returns(&store.Request{Namespace: store.NewNamespace(&store.Rule{}, "n")}))
	require.True(t, returns(&store.Request{Namespace: store.NewNamespace(&store.Rule{Report: report}, "n")}))
}

func report(store.Limit, store.Reply, int64, int64) (r store.Report) { return r }

// asked keeps the requests of a limiter of slots.
type asked struct {
	store.Store
	requests []store.Request
}

func (a *asked) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	a.requests = append(a.requests, requests...)
	return a.Store.Decide(ctx, requests, replies)
}

func (a *asked) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	a.requests = append(a.requests, store.Request{Namespace: ns, Key: key, Limit: l, N: n})
	return a.Store.Take(ctx, ns, key, l, n)
}

// A renewal goes ahead of calls for new slots, and its caller still holds the slot if it has left.
func TestRenewals(t *testing.T) {
	t.Parallel()
	s := &asked{Store: newCore(func() time.Time { return time.Unix(1_700_000_000, 0) }, true)}
	l, err := inflight.New(s, 2, 10*time.Second)
	require.NoError(t, err)
	slot, err := l.Allow(t.Context(), "key")
	require.NoError(t, err)
	_, err = l.Renew(t.Context(), "key", slot)
	require.NoError(t, err)
	require.Len(t, s.requests, 2)
	require.False(t, renews(&s.requests[0]))
	require.True(t, returns(&s.requests[0]))
	require.True(t, renews(&s.requests[1]))
	require.False(t, returns(&s.requests[1]))
}

// Slots of processes that died before the server's clock was set back are free after their life at the new time, also if all
// calls since then were denied. Calls that move no slot write nothing.
func TestSlotsEndAfterTheServersClockWasSetBack(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	s := newCore(func() time.Time { return at }, true)
	l, err := inflight.New(s, 2, 10*time.Second)
	require.NoError(t, err)
	for range 2 {
		_, err = l.Allow(t.Context(), "key")
		require.NoError(t, err)
	}
	denied := func() {
		r, err := l.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, r.Allowed)
	}
	written := s.written
	denied()
	require.Equal(t, written, s.written)
	at = at.Add(-time.Hour)
	_, err = l.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, written, s.written)
	denied()
	require.Equal(t, written+1, s.written)
	at = at.Add(9 * time.Second)
	denied()
	require.Equal(t, written+1, s.written)
	at = at.Add(time.Second)
	r, err := l.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

var errPlanted = errors.New("planted")

// unwritable is a log that cannot be stored.
type unwritable struct{ store.Log }

func (unwritable) AppendBinary([]byte) ([]byte, error) { return nil, errPlanted }

// The log of another package's rule that cannot be stored fails its calls, which charge nothing, and no connection.
func TestALogThatCannotBeWrittenFailsItsCalls(t *testing.T) {
	t.Parallel()
	s := newSession(t, "unwritable", func(*pgxpool.Config) {})
	good := ofLog(t, ratelimit.PerMinute(5))
	good.N = 1
	rule := *good.Namespace.Rule
	rule.NewLog = func(of store.State) store.Log { return unwritable{good.Namespace.Rule.NewLog(of)} }
	bad := good
	bad.Namespace = store.NewNamespace(&rule, "bad")
	var replies [2]store.Reply
	for _, list := range [][]store.Request{{bad}, {good, bad}} {
		err := s.Decide(t.Context(), list, replies[:])
		require.ErrorIs(t, err, store.ErrStore)
		require.ErrorContains(t, err, "planted")
		require.NotErrorIs(t, err, store.ErrTimeout)
		require.NotErrorIs(t, err, store.ErrUnavailable)
	}
	good.N = 5
	require.NoError(t, s.Decide(t.Context(), []store.Request{good}, replies[:1]))
	require.True(t, replies[0].OK())
	require.EqualValues(t, 1, s.pool.Stat().NewConnsCount())
}
