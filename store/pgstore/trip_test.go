package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

func same(*pgxpool.Config) {}

// both is an All of two limits.
func (s *session) both(t *testing.T) ratelimit.Limiter {
	t.Helper()
	other, err := ratelimit.NewFixedWindow(s.Store, ratelimit.PerDay(1000), ratelimit.WithName("other"))
	require.NoError(t, err)
	all, err := ratelimit.NewAll(s.limiter, other)
	require.NoError(t, err)
	return all
}

// exec runs a statement on another connection.
func exec(t *testing.T, sql string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), pgtest.Shared(t).URL())
	require.NoError(t, err)
	_, err = conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	require.NoError(t, conn.Close(context.Background()))
}

// fails makes writes of a table fail by an answer of the server.
func fails(t *testing.T, table, code string) {
	t.Helper()
	exec(t, fmt.Sprintf(`CREATE FUNCTION %[1]s_fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '%[2]s'; END $$;
		CREATE TRIGGER fails BEFORE INSERT OR UPDATE ON %[1]s FOR EACH ROW WHEN (NEW.key <> '') EXECUTE FUNCTION %[1]s_fails()`, table, code))
}

// hold holds the rows of a table in another transaction.
func hold(t *testing.T, table string) (release func()) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), pgtest.Shared(t).URL())
	require.NoError(t, err)
	_, err = conn.Exec(context.Background(), "BEGIN; SELECT FROM "+table+" FOR UPDATE", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	release = func() { _ = conn.Close(context.Background()) }
	t.Cleanup(release)
	return release
}

// As docs/postgres.md has it.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	proxy := pgtest.StartProxy(t, pgtest.Shared(t).Addr())
	s := newSession(t, "round_trips", func(c *pgxpool.Config) {
		host, port, _ := strings.Cut(proxy.Addr(), ":")
		c.ConnConfig.Host = host
		_, err := fmt.Sscan(port, &c.ConnConfig.Port)
		require.NoError(t, err)
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	})
	all := s.both(t)
	require.NoError(t, s.Ready(t.Context()))
	trips := 0
	of := func(what string, want int, f func(context.Context) error) {
		proxy.Lose(func(request []byte) bool {
			if !strings.Contains(string(request), s.sql.probe) {
				trips++
			}
			return false
		})
		trips = 0
		require.NoError(t, f(t.Context()), what)
		proxy.Lose(nil) // and sees trips
		require.Equal(t, want, trips, what)
	}
	allow := func(l ratelimit.Limiter, key string, n int) func(context.Context) error {
		return func(ctx context.Context) error { _, err := l.AllowN(ctx, key, n); return err }
	}
	of("a new key", 2, allow(s.limiter, "key", 1))
	of("a key", 2, allow(s.limiter, "key", 1))
	of("a denial", 1, allow(s.limiter, "key", 1000))
	of("a Peek", 1, func(ctx context.Context) error { _, err := s.limiter.Peek(ctx, "key"); return err })
	of("a new key of several limits", 3, allow(all, "keys", 1))
	of("a key of several limits", 2, allow(all, "keys", 1))
	of("a denial by several limits", 2, allow(all, "keys", 1000))
	of("a Reset", 2, func(ctx context.Context) error { return s.limiter.Reset(ctx, "key") })
	require.EqualValues(t, 1, s.pool.Stat().NewConnsCount(), "none is left in a transaction")
	require.Positive(t, s.Stats().RoundTrip)
}

// The program, whose pool it is, may use a connection at any time.
func TestAReleasedConnectionHasNoDeadline(t *testing.T) {
	t.Parallel()
	s := newSession(t, "released", same)
	conn, err := s.pool.Acquire(t.Context())
	require.NoError(t, err)
	until(conn, time.Now().Add(-time.Second))()
	_, err = s.pool.Exec(t.Context(), "SELECT")
	require.NoError(t, err)
	require.EqualValues(t, 1, s.pool.Stat().NewConnsCount())
}

// Nobody knows what became of a call that was sent, and one that was not can be tried again.
func TestALoneCallKnowsWhetherItWasSent(t *testing.T) {
	t.Parallel()
	s := newSession(t, "was_sent", same)
	q := ofLog(t, ratelimit.PerMinute(5))
	_, sent, err := s.alone(s.carrier.Begin(t.Context()), newCall([]store.Request{q}))
	require.NoError(t, err)
	require.True(t, sent)
	s.pool.Close()
	_, sent, err = s.alone(s.carrier.Begin(t.Context()), newCall([]store.Request{q}))
	require.Error(t, err)
	require.False(t, sent)
	require.ErrorIs(t, s.limiter.Reset(t.Context(), "key"), store.ErrUnavailable)
}

// It waits in a transaction of the carrier, so that its caller can leave without costing a connection.
func TestACallWaitsForARowAndItsCallerMayLeave(t *testing.T) {
	t.Parallel()
	s := newSession(t, "waits", same)
	for range 3 { // so that it may go alone
		s.take(t)
	}
	waits := func() bool {
		conn, err := pgx.Connect(t.Context(), pgtest.Shared(t).URL())
		require.NoError(t, err)
		defer func() { _ = conn.Close(context.Background()) }()
		var n int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"waits"%'`).Scan(&n))
		return n > 0
	}
	for _, leaves := range []bool{false, true} {
		release := hold(t, "waits")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := s.limiter.Allow(ctx, "key")
			ended <- err
		}()
		require.Eventually(t, waits, time.Minute, 5*time.Millisecond)
		if leaves {
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
			require.True(t, waits(), "without its caller")
		}
		release()
		if !leaves {
			require.NoError(t, <-ended)
		}
	}
	require.Eventually(t, func() bool {
		r, err := s.limiter.Peek(t.Context(), "key")
		return err == nil && r.Remaining == 1000-4
	}, time.Minute, 5*time.Millisecond)
	require.EqualValues(t, 1, s.pool.Stat().NewConnsCount())
}

// After a wait without success, calls for rows that are held fail for eight timeouts, without waiting, and no others.
func TestNoTripWaitsAfterOneHasWaitedWithoutSuccess(t *testing.T) {
	t.Parallel()
	before := newSession(t, "no_wait", same).both(t)
	for _, key := range []string{"held", "free"} {
		_, err := before.Allow(t.Context(), key)
		require.NoError(t, err)
	}
	s := newSession(t, "no_wait", same, WithTimeout(300*time.Millisecond))
	all := s.both(t)
	s.noWaitUntil.Store(math.MaxInt64)
	conn, err := pgx.Connect(t.Context(), pgtest.Shared(t).URL())
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), `BEGIN; SELECT FROM no_wait WHERE key >= '=held\000' AND key < '=held\001' FOR UPDATE`, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	for _, l := range []ratelimit.Limiter{s.limiter, all} {
		require.Eventually(t, func() bool {
			_, err = l.Allow(t.Context(), "held")
			require.ErrorIs(t, err, store.ErrStore)
			return errors.Is(err, store.ErrUnavailable) && strings.Contains(err.Error(), errHeld.Error())
		}, time.Minute, time.Millisecond)
		for _, key := range []string{"free", fmt.Sprintf("new %T", l)} {
			require.Eventually(t, func() bool { _, err = l.Allow(t.Context(), key); return err == nil }, time.Minute, time.Millisecond)
		}
	}
	require.NoError(t, conn.Close(t.Context()))
	for _, l := range []ratelimit.Limiter{s.limiter, all} {
		require.Eventually(t, func() bool { _, err = l.Allow(t.Context(), "held"); return err == nil }, time.Minute, time.Millisecond)
	}
}

func TestAWaitWithoutSuccessIsTheLastForEightTimeouts(t *testing.T) {
	t.Parallel()
	const timeout = 10 * time.Second
	for _, of := range []struct {
		code       string
		waits, set bool
	}{{lockNotAvailable, true, true}, {queryCanceled, true, true}, {queryCanceled, false, false}, {"53100", true, false}} {
		s := newSession(t, strings.ToLower(fmt.Sprint("last_wait_", of.code, of.waits)), same, WithTimeout(timeout))
		fails(t, s.name[0], of.code)
		q := ofLog(t, ratelimit.PerMinute(5))
		other := q
		other.Key = "other"
		conn, err := s.pool.Acquire(t.Context())
		require.NoError(t, err)
		began := time.Now()
		_, err = s.decide(conn, []*call{newCall([]store.Request{q, other})}, of.waits)
		require.Equal(t, of.code, codeOf(err))
		conn.Release()
		if !of.set {
			require.Zero(t, s.noWaitUntil.Load())
			continue
		}
		require.GreaterOrEqual(t, s.noWaitUntil.Load(), began.Add(8*timeout).UnixNano())
		require.LessOrEqual(t, s.noWaitUntil.Load(), time.Now().Add(8*timeout).UnixNano())
	}
}

// A call whose row others have changed is decided on again, and fails if that fails.
func TestACallThatLostARaceFailsIfItsTransactionFails(t *testing.T) {
	t.Parallel()
	asked := 0
	var s *session
	s = newSession(t, "lost_race", same, WithClock(func() time.Time {
		if asked++; asked == 2 {
			exec(t, `UPDATE lost_race SET value = '' WHERE key <> ''`)
			fails(t, "lost_race", "53100")
		}
		require.EqualValues(t, 1, s.Stats().UnderWay)
		return time.Now()
	}))
	s.take(t)
	_, err := s.limiter.Allow(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrOutOfMemory)
	require.Equal(t, 3, asked)
}

// Decisions go by the server's clock, alone and together.
func TestTheServersClock(t *testing.T) {
	t.Parallel()
	s, yesterday := newSession(t, "clocks", same), newSession(t, "clocks", same, WithClock(func() time.Time { return time.Now().Add(-24 * time.Hour) }))
	of := func(s *session) map[string]ratelimit.Limiter {
		one, err := ratelimit.NewTokenBucket(s.Store, ratelimit.PerHour(1))
		require.NoError(t, err)
		other, err := ratelimit.NewTokenBucket(s.Store, ratelimit.PerHour(1), ratelimit.WithName("other"))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(one, other)
		require.NoError(t, err)
		return map[string]ratelimit.Limiter{"alone": one, "together": all}
	}
	us := func() (n int64) {
		require.NoError(t, s.pool.QueryRow(t.Context(), "SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint").Scan(&n))
		return n
	}
	before := of(yesterday)
	for way, l := range of(s) {
		r, err := before[way].Allow(t.Context(), way)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		r, err = l.Peek(t.Context(), way)
		require.NoError(t, err)
		require.Equal(t, 1, r.Remaining, "a day later")
		from := us()
		r, err = l.Allow(t.Context(), way)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		to := us()
		var ends int64
		require.NoError(t, s.pool.QueryRow(t.Context(), "SELECT max(ends) FROM clocks").Scan(&ends))
		require.GreaterOrEqual(t, ends, from+time.Hour.Microseconds(), way)
		require.LessOrEqual(t, ends, to+time.Hour.Microseconds(), way)
	}
}

// After a failover, connections are made anew, but not for each of many calls.
func TestAServerThatOnlyReadsResetsThePoolOnceASecond(t *testing.T) {
	t.Parallel()
	for _, code := range []string{readOnly, notSupported} {
		s := newSession(t, "resets", same)
		for _, other := range []error{nil, errRaced, &pgconn.PgError{Code: "53100"}} {
			require.Equal(t, other, s.failed(other))
			require.Zero(t, s.renewed.Load())
		}
		_ = s.failed(&pgconn.PgError{Code: code})
		first := s.renewed.Load()
		require.InDelta(t, time.Now().UnixNano(), first, float64(time.Hour))
		s.renewed.Store(time.Now().UnixNano() + int64(time.Second/2))
		soon := s.renewed.Load()
		_ = s.failed(&pgconn.PgError{Code: code})
		require.Equal(t, soon, s.renewed.Load())
	}
}

// Each write sweeps its share, also of a caller who is alone, and only what has ended for a minute.
func TestALoneCallerSweeps(t *testing.T) {
	t.Parallel()
	var s Store
	pages := func(updated, inserted, times int) (n uint64) {
		for range times {
			n += s.pages(updated, inserted)
		}
		return n
	}
	require.EqualValues(t, 1, pages(1, 0, 64))
	require.EqualValues(t, 1, pages(0, 1, 16))
	require.EqualValues(t, 3, pages(2, 1, 32))
	require.EqualValues(t, 5, pages(64, 64, 1))
	require.EqualValues(t, 0, pages(1, 0, 63))

	at := time.Unix(1_700_000_000, 0)
	swept := newSession(t, "sweeps", same, WithClock(func() time.Time { return at }))
	ended := at.Add(-time.Minute).UnixMicro()
	exec(t, fmt.Sprintf(`INSERT INTO sweeps SELECT '=' || n::text::bytea, '', %d - n %% 2 FROM generate_series(1, 200) n`, ended))
	count := func(of string) (n int) {
		require.NoError(t, swept.pool.QueryRow(t.Context(), "SELECT count(*) FROM sweeps WHERE "+of).Scan(&n))
		return n
	}
	for i := 0; count(fmt.Sprint("ends < ", ended)) > 0; i++ {
		require.Less(t, i, 100, "a page has 40 rows or more, and 16 new rows sweep one")
		for j := range 5 {
			_, err := swept.limiter.Allow(t.Context(), fmt.Sprint(i, j))
			require.NoError(t, err)
		}
	}
	require.Equal(t, 100, count(fmt.Sprint("ends = ", ended)))
}

// The class of an error says whether anything may be charged, and whether to try again.
func TestWhatErrorsMean(t *testing.T) {
	t.Parallel()
	answer := &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "XX000"}
	pooler := &pgconn.PgError{Severity: "ERROR", Code: "08P01"}
	fatal := &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "FATAL", Code: "57P01"}
	ended := &pgconn.PgError{Severity: "FATAL", Code: "08P01"}
	broken := errors.New("broken")
	for _, of := range []struct {
		err           error
		before, while carrier.Meaning
	}{
		{answer, carrier.Answered, carrier.Answered},
		{pooler, carrier.Answered, carrier.Answered},
		{fatal, carrier.Unsent, carrier.Unknown},
		{ended, carrier.Unsent, carrier.Unknown},
		{broken, carrier.Unsent, carrier.Unknown},
		{errRaced, carrier.Answered, carrier.Unknown},
		{fmt.Errorf("%w: %w", store.ErrStore, broken), carrier.Answered, carrier.Unknown},
	} {
		require.Equal(t, of.before, meaning(beforeWriting(of.err)), of.err)
		require.Equal(t, of.while, meaning(whileWriting(of.err)), of.err)
		require.ErrorIs(t, beforeWriting(of.err), of.err)
		require.ErrorIs(t, whileWriting(of.err), of.err)
	}
	require.NoError(t, beforeWriting(nil))
	require.NoError(t, whileWriting(nil))
	for _, err := range []error{errHeld, errRaced} {
		require.Equal(t, carrier.Answered, meaning(err))
		f := failureOf(err)
		require.ErrorIs(t, f, store.ErrUnavailable)
		require.True(t, f.Again)
	}
	f := failureOf(broken)
	require.ErrorIs(t, f, store.ErrStore)
	require.False(t, f.Again)
}

func TestARefundMakesRoom(t *testing.T) {
	t.Parallel()
	s := newSession(t, "refunds", same)
	for _, q := range rulesOf(t, ratelimit.PerDay(5)) {
		q.Key, q.Op, q.N = "key", store.OpTake, 5
		for range 3 {
			var replies [1]store.Reply
			require.NoError(t, s.Decide(t.Context(), []store.Request{q}, replies[:]))
			require.True(t, replies[0].OK(), q.Namespace.Rule.Name)
			require.NoError(t, s.Refund(t.Context(), q.Namespace, q.Key, q.Limit, replies[0].Receipt(q.Namespace.Rule, q.Limit, 5, 5)))
		}
	}
}

// Refunds and renewals make room for others, so they are sent even if time seems to be short.
func TestRefundsAndRenewalsGoAhead(t *testing.T) {
	t.Parallel()
	of := func(s *session) *ratelimit.Custom {
		slots, err := inflight.New(s.Store, 1000, time.Hour)
		require.NoError(t, err)
		return slots
	}
	slot, err := of(newSession(t, "ahead", same)).Allow(t.Context(), "key")
	require.NoError(t, err)
	q := ofLog(t, ratelimit.PerDay(5))
	far := func() *session {
		s := newSession(t, "ahead", same, WithTimeout(10*time.Second))
		s.carrier.Warmed(1, time.Minute) // of a round trip
		return s
	}
	s := far()
	for s.Stats().TooShort == 0 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		require.ErrorIs(t, s.Reset(ctx, q.Namespace, "key"), context.DeadlineExceeded)
		cancel()
	}
	require.NoError(t, far().Refund(t.Context(), q.Namespace, "key", q.Limit, store.NewReceipt(q.Limit, 0, 0, 1)))
	_, err = of(far()).Renew(t.Context(), "key", slot)
	require.NoError(t, err)
}

// A refund is tried again after half a second too. A server that stays away leaves nothing behind in the process.
func TestARefundForACallerWhoHasLeftEnds(t *testing.T) {
	t.Parallel()
	s := newSession(t, "refund_ends", same)
	c := newCall([]store.Request{ofLog(t, ratelimit.PerDay(5))})
	c.charged[0], c.done = 1, true
	s.pool.Close()
	began := time.Now()
	s.giveBack(c)
	require.Eventually(t, func() bool {
		stacks := make([]byte, 16<<20)
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "pgstore.(*Store).giveBack")
	}, time.Minute, 100*time.Millisecond)
	require.Greater(t, time.Since(began), time.Second/2)
}
