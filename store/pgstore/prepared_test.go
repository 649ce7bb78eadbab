package pgstore

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

// session is a store on a pool of one connection.
type session struct {
	*Store
	limiter *ratelimit.FixedWindow
}

func newSession(t *testing.T, table string, change func(*pgxpool.Config), opts ...Option) *session {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.Shared(t).URL())
	require.NoError(t, err)
	config.MaxConns = 1
	change(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s, err := New(pool, append([]Option{WithTable(table), WithTimeout(30 * time.Second)}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	l, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1000))
	require.NoError(t, err)
	return &session{Store: s, limiter: l}
}

func (s *session) take(t *testing.T) {
	t.Helper()
	r, err := s.limiter.Allow(context.Background(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

// prepared is when the statements were prepared that the session has.
func (s *session) prepared(t *testing.T) []time.Time {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), `SELECT prepare_time FROM pg_prepared_statements WHERE name LIKE 'ratelimit\_%' ORDER BY statement`, pgx.QueryExecModeExec)
	require.NoError(t, err)
	times, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	require.NoError(t, err)
	return times
}

// keepUntil changes until when the first statement stays prepared, and returns until when it would have.
func (s *session) keepUntil(t *testing.T, until time.Time) (before time.Time) {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	data := conn.Conn().PgConn().CustomData()
	p, ok := data[s.sql.names[0]].(prepared)
	require.True(t, ok)
	before, p.until = p.until, until
	data[s.sql.names[0]] = p
	return before
}

func TestALoneCallPreparesItsStatementsWherePgxDoes(t *testing.T) {
	t.Parallel()
	for i, of := range []struct {
		mode     pgx.QueryExecMode
		capacity int
		want     int
	}{
		{pgx.QueryExecModeCacheStatement, 512, 2},
		{pgx.QueryExecModeCacheStatement, 1, 2},
		{pgx.QueryExecModeCacheStatement, 0, 0},
		{pgx.QueryExecModeCacheDescribe, 512, 0},
		{pgx.QueryExecModeExec, 512, 0},
	} {
		s := newSession(t, "prepared_where", func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode, c.ConnConfig.StatementCacheCapacity = of.mode, of.capacity
		})
		s.take(t)
		s.take(t)
		require.Len(t, s.prepared(t), of.want, i)
	}
}

// A plan for a table that was small would read all of a large one.
func TestStatementsArePreparedAgainAfterTenSeconds(t *testing.T) {
	t.Parallel()
	s := newSession(t, "prepared_again", func(*pgxpool.Config) {})
	began := time.Now()
	s.take(t)
	first := s.prepared(t)
	require.Len(t, first, 2)
	const after = 10 * time.Second
	until := s.keepUntil(t, began.Add(time.Hour))
	require.False(t, until.Before(began.Add(after)))
	require.False(t, until.After(time.Now().Add(after)))
	s.take(t)
	require.Equal(t, first, s.prepared(t))

	s.keepUntil(t, began)
	s.take(t)
	again := s.prepared(t)
	require.Len(t, again, 2)
	for i := range again {
		require.True(t, again[i].After(first[i]))
	}
}

// A pooler that does not know prepared statements gives a call a session without them, or with those of others.
func TestAPoolerThatDoesNotKnowPreparedStatementsPreparesNoMore(t *testing.T) {
	t.Parallel()
	s := newSession(t, "prepared_no_more", func(*pgxpool.Config) {})
	s.take(t)
	require.Len(t, s.prepared(t), 2)
	_, err := s.pool.Exec(t.Context(), "DEALLOCATE ALL", pgx.QueryExecModeExec)
	require.NoError(t, err)
	for range 3 {
		s.take(t)
		require.Empty(t, s.prepared(t))
	}
	s.prepares.Store(true)
	require.False(t, s.unprepare(&pgconn.PgError{Code: readOnly}))
	require.True(t, s.prepares.Load())
	require.True(t, s.unprepare(&pgconn.PgError{Code: "42P05"})) // it already exists
	require.False(t, s.prepares.Load())
	r, err := s.limiter.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 996, r.Remaining)
}

// inAnother is a pooler that closes statements in another session.
type inAnother struct{ net.Conn }

func (c inAnother) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("C")) { // Close
		b = bytes.Replace(b, []byte("Sratelimit"), []byte("Selsewhere"), 1)
	}
	return c.Conn.Write(b)
}

// A call does not pay for statements that cannot be prepared, and those after it do not try.
func TestStatementsThatCannotBePreparedAreNotTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSession(t, "prepared_in_vain", func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return inAnother{conn}, err
		}
	})
	s.take(t)
	first := s.prepared(t)
	require.Len(t, first, 2)
	s.keepUntil(t, time.Time{})
	s.take(t)
	require.False(t, s.prepares.Load())
	require.Equal(t, first, s.prepared(t))
	r, err := s.limiter.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 998, r.Remaining)
	require.EqualValues(t, 1, s.pool.Stat().NewConnsCount())
}

// As docs/postgres.md has it.
func TestATransactionWaitsForHalfOfTheTimeoutAndIsEndedAfterFive(t *testing.T) {
	t.Parallel()
	s := newSession(t, "patience", func(*pgxpool.Config) {})
	for timeout, want := range map[time.Duration][3]string{
		250 * time.Millisecond: {"125ms", "1250ms", "0.1"},
		100 * time.Millisecond: {"50ms", "1s", "0.1"},
		time.Microsecond:       {"1ms", "1s", "0.1"}, // 0 would be without end
	} {
		of, err := New(s.pool, WithTimeout(timeout))
		require.NoError(t, err)
		tx, err := s.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), of.sql.settings)
		require.NoError(t, err)
		var got [3]string
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
			current_setting('random_page_cost')`).Scan(&got[0], &got[1], &got[2]))
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, want, got)
	}
}
