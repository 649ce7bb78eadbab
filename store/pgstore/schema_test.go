package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

func TestSeveralProcessesMigrateAtTheSameTime(t *testing.T) {
	t.Parallel()
	var pools []*pgxpool.Pool
	for range 8 {
		pool := connect(t, pgtest.Shared(t).URL(), 2)
		require.NoError(t, pool.Ping(t.Context()))
		pools = append(pools, pool)
	}
	for range 5 { // each time, some come before the table is there
		name := table()
		require.EqualValues(t, len(pools), crowd(len(pools), 1, func(i, _ int) bool {
			s, err := pgstore.New(pools[i], pgstore.WithTable(name))
			for n := 0; err == nil && n < 2; n++ {
				err = s.Migrate(t.Context())
			}
			return assert.NoError(t, err)
		}))
	}
}

func TestSchemaIsWhatMigrateRuns(t *testing.T) {
	t.Parallel()
	pool := shared(t)
	_, err := pool.Exec(t.Context(), `CREATE SCHEMA "of limits"`)
	require.NoError(t, err)
	for _, unlogged := range []bool{false, true} {
		opts := []pgstore.Option{pgstore.WithTimeout(long)}
		if unlogged {
			opts = append(opts, pgstore.WithUnlogged())
		}
		s, err := pgstore.New(pool, append(opts, pgstore.WithTable(fmt.Sprint("of limits.Order ", unlogged)))...)
		require.NoError(t, err)
		require.Equal(t, unlogged, strings.Contains(s.Schema(), "UNLOGGED"))
		for range 2 {
			_, err = pool.Exec(t.Context(), s.Schema(), pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
		}
		require.NoError(t, s.Migrate(t.Context()))
		require.NoError(t, s.Ready(t.Context()))
		found, err := s.Check(t.Context())
		require.NoError(t, err)
		require.Equal(t, unlogged, strings.Contains(fmt.Sprint(found), "the table is unlogged"), found)
		require.NotContains(t, fmt.Sprint(found), "fillfactor")
		require.True(t, take(t, window(t, s, "n", 1), "key").Allowed)
	}
}

// reader is a user of the shared server with few permissions.
func reader(t *testing.T, grants string) *pgxpool.Pool {
	t.Helper()
	name := table()
	_, err := shared(t).Exec(t.Context(), "CREATE ROLE "+name+" LOGIN; "+strings.ReplaceAll(grants, "ROLE", name), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	return connect(t, "postgres://"+name+"@"+pgtest.Shared(t).Addr()+"/postgres?sslmode=disable", 2)
}

func TestReadyAndMigrateSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	pool, name := shared(t), table()
	at := func(pool *pgxpool.Pool, name string) *pgstore.Store {
		s, err := pgstore.New(pool, pgstore.WithTable(name), pgstore.WithTimeout(long))
		require.NoError(t, err)
		return s
	}
	wrong := func(err error, text string) { // what a table lacks does not come by itself, and is found by asking
		require.ErrorIs(t, err, store.ErrStore)
		require.NotErrorIs(t, err, store.ErrUnavailable)
		require.ErrorContains(t, err, text)
		require.NotContains(t, err.Error(), "nothing was sent")
	}
	wrong(at(pool, name).Ready(t.Context()), "does not exist")
	found, err := at(pool, name).Check(t.Context())
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(found), "Call Migrate")
	require.NoError(t, at(pool, name).Migrate(t.Context()))
	require.NoError(t, at(pool, name).Ready(t.Context()))
	_, err = pool.Exec(t.Context(), "CREATE UNIQUE INDEX ON "+name+" (key)") // to take the place of the first, which has grown
	require.NoError(t, err)
	require.NoError(t, at(pool, name).Ready(t.Context()))
	require.NoError(t, at(pool, name).Migrate(t.Context()))
	german := connect(t, pgtest.Shared(t).URL(), 2, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["datestyle"] = "German" }) // as a role may have it
	require.NoError(t, at(german, name).Ready(t.Context()))

	wrong(at(reader(t, "GRANT SELECT, INSERT ON "+name+" TO ROLE"), name).Ready(t.Context()), "may not UPDATE, DELETE")
	wrong(at(reader(t, "GRANT SELECT, INSERT, UPDATE ON "+name+" TO ROLE"), name).Ready(t.Context()), "may not DELETE")
	least := at(reader(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+name+" TO ROLE"), name)
	require.NoError(t, least.Ready(t.Context()))
	require.NoError(t, least.Migrate(t.Context()), "the table is there")
	all, err := ratelimit.NewAll(window(t, least, "n", 10), window(t, least, "m", 10))
	require.NoError(t, err)
	require.True(t, take(t, all, "key").Allowed)
	wrong(at(reader(t, ""), table()).Migrate(t.Context()), "permission denied")

	other, parts := table(), table()
	_, err = pool.Exec(t.Context(), "CREATE TABLE "+other+" (key text, points int)")
	require.NoError(t, err)
	for _, f := range []func(context.Context) error{at(pool, other).Ready, at(pool, other).Migrate} {
		wrong(f(t.Context()), "has other columns: it has key text, points integer, want key bytea unique, value bytea, ends bigint")
	}
	_, err = pool.Exec(t.Context(), "CREATE TABLE "+parts+` (key bytea PRIMARY KEY, value bytea NOT NULL, ends bigint NOT NULL) PARTITION BY HASH (key);
		CREATE TABLE `+table()+" PARTITION OF "+parts+" FOR VALUES WITH (MODULUS 1, REMAINDER 0)", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	for _, f := range []func(context.Context) error{at(pool, parts).Ready, at(pool, parts).Migrate} {
		wrong(f(t.Context()), "key bytea unique in partitions")
	}
	gone := at(connect(t, "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable", 2), name)
	require.ErrorIs(t, gone.Ready(t.Context()), store.ErrUnavailable)
	_, err = gone.Check(t.Context())
	require.ErrorIs(t, err, store.ErrUnavailable)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, gone.Ready(ended), context.Canceled)
}

// While others have locked the table, for example by VACUUM FULL, there is nothing to be found out.
func TestReadyReturnsByItsDeadlineWhileTheTableIsLocked(t *testing.T) {
	t.Parallel()
	pool, name := shared(t), table()
	s := openAt(t, connect(t, pgtest.Shared(t).URL(), 4), name)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	release := func() { _ = tx.Rollback(context.Background()) }
	defer release()
	_, err = tx.Exec(t.Context(), "LOCK TABLE "+name)
	require.NoError(t, err)
	defer time.AfterFunc(long, release).Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Ready(ctx), context.DeadlineExceeded)
	release()
	require.NoError(t, s.Ready(t.Context()))
}

// count is how many rows of keys a table has.
func count(t *testing.T, pool *pgxpool.Pool, name string) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM "+name+" WHERE key <> ''").Scan(&n))
	return n
}

// As docs/postgres.md has it for operators.
func TestSQLFindsAndForgetsTheRowsOfAKey(t *testing.T) {
	t.Parallel()
	pool, name := shared(t), table()
	s := openAt(t, pool, name)
	l := window(t, s, "n", 10)
	for _, key := range []string{"user:42", "user:420", "user:4", "user:42\x00", "other=user:42"} {
		take(t, l, key)
		take(t, window(t, s, "m", 10), key)
	}
	tag, err := pool.Exec(t.Context(), "DELETE FROM "+name+` WHERE key >= '=user:42\000' AND key < '=user:42\001'`)
	require.NoError(t, err)
	require.EqualValues(t, 2, tag.RowsAffected())
	require.Equal(t, 10, remaining(t, l, "user:42"))
	require.Equal(t, 9, remaining(t, l, "user:420"))
	take(t, l, "user:42")
}

// Calls delete the rows that have ended faster than they come, and none that is in force.
func TestRowsThatHaveEndedLeave(t *testing.T) {
	t.Parallel()
	pool, name := shared(t), table()
	at := time.Unix(1_700_000_000, 0)
	s := openAt(t, pool, name, pgstore.WithUnlogged(), pgstore.WithClock(func() time.Time { return at }))
	l, err := ratelimit.NewFixedWindow(s, ratelimit.PerMinute(10))
	require.NoError(t, err)
	kept := window(t, s, "n", 10)
	const keys = 1000
	crowd(8, keys/8, func(i, n int) bool { return take(t, l, fmt.Sprint(i, " of ", n)).Allowed })
	crowd(8, 25, func(i, n int) bool { return take(t, kept, fmt.Sprint(i, " of ", n)).Allowed })
	require.GreaterOrEqual(t, count(t, pool, name), keys+200)
	at = at.Add(3 * time.Minute)
	crowd(8, keys/8, func(i, n int) bool { return take(t, l, fmt.Sprint(i, " and ", n)).Allowed })
	require.Less(t, count(t, pool, name), 2*keys, "as many have come as had ended")
	require.EqualValues(t, 200, crowd(8, 25, func(i, n int) bool {
		return remaining(t, kept, fmt.Sprint(i, " of ", n)) == 9
	}))
	at = at.Add(3 * time.Minute)
	busy := window(t, s, "n", 1_000_000)
	for range 1000 { // three are enough, unless others have locked pages, or a transaction of another test keeps what was overwritten
		crowd(8, 100, func(i, _ int) bool { return take(t, busy, fmt.Sprint(i, " of 0")).Allowed })
		if count(t, pool, name) == 200 {
			break
		}
	}
	require.Equal(t, 200, count(t, pool, name), "only those in force stay")
}

// Transactions of lists write so many rows that a few pages each would not be enough.
func TestRowsOfListsThatHaveEndedLeave(t *testing.T) {
	t.Parallel()
	pool, name := shared(t), table()
	var now atomic.Int64
	s := openAt(t, connect(t, pgtest.Shared(t).URL(), 1), name, pgstore.WithUnlogged(), pgstore.WithClock(func() time.Time { return time.Unix(now.Load(), 0) }))
	var limits [12]ratelimit.Limiter
	for i := range limits {
		var err error
		limits[i], err = ratelimit.NewFixedWindow(s, ratelimit.PerMinute(10), ratelimit.WithName(fmt.Sprint("n", i)))
		require.NoError(t, err)
	}
	all, err := ratelimit.NewAll(limits[:]...)
	require.NoError(t, err)
	const keys = 256
	for generation := range 8 {
		now.Store(1_700_000_000 + int64(generation)*180) // what was written before has ended
		crowd(keys, 1, func(i, _ int) bool { return take(t, all, fmt.Sprint(generation, " of ", i)).Allowed })
		_, err = pool.Exec(t.Context(), "VACUUM "+name) // so that new rows use the space, as with autovacuum
		require.NoError(t, err)
	}
	require.Less(t, count(t, pool, name), 2*keys*len(limits), "of eight times as many")
}

// A table's name may have any characters that New accepts, also once calls delete rows.
func TestATableMayHaveAnyName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"it's 100% TABLE", `Größe \ $1`, strings.Repeat("n", 63)} {
		l := window(t, openAt(t, shared(t), name), "n", 1000)
		for i := range 200 {
			require.Equal(t, 999-i, take(t, l, "key").Remaining)
		}
	}
}

func TestOptionsThatCannotBeUsedAreRefused(t *testing.T) {
	t.Parallel()
	pool := connect(t, "postgres://nobody@127.0.0.1:1/none", 2)
	for _, opt := range []pgstore.Option{
		nil, pgstore.WithTable(""), pgstore.WithTable("a.b.c"), pgstore.WithTable("."), pgstore.WithTable(`a"b`), pgstore.WithTable(strings.Repeat("t", 64)),
		pgstore.WithClock(nil),
	} {
		_, err := pgstore.New(pool, opt)
		require.ErrorIs(t, err, store.ErrInvalidOption)
	}
	_, err := pgstore.New(nil)
	require.ErrorIs(t, err, store.ErrInvalidOption)
	for _, timeout := range []time.Duration{0, -1, 25 * time.Hour} {
		_, err := pgstore.New(pool, pgstore.WithTimeout(timeout))
		require.ErrorIs(t, err, store.ErrInvalidOption)
		require.ErrorContains(t, err, fmt.Sprintf("WithTimeout(%v), want above 0 and at most 24h", timeout))
	}
	for _, timeout := range []time.Duration{1, time.Minute, 24 * time.Hour} {
		s, err := pgstore.New(pool, pgstore.WithTimeout(timeout))
		require.NoError(t, err)
		require.Equal(t, timeout, s.Timeout())
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	s, err := pgstore.New(shared(t))
	require.NoError(t, err)
	require.Equal(t, 250*time.Millisecond, s.Timeout())
	require.Contains(t, s.Schema(), `CREATE TABLE IF NOT EXISTS "ratelimit" (`)
}

func TestAStoreThatNewHasNotMadeSaysSo(t *testing.T) {
	t.Parallel()
	var s pgstore.Store
	_, err := ratelimit.NewFixedWindow(&s, ratelimit.PerHour(1))
	require.ErrorIs(t, err, store.ErrInvalidOption)
	ns := store.NewNamespace(&store.Rule{}, "n")
	_, err = s.Take(t.Context(), ns, "key", store.Limit{}, 1)
	require.ErrorIs(t, err, store.ErrStore)
	require.ErrorIs(t, s.Refund(t.Context(), ns, "key", store.Limit{}, store.Receipt{}), store.ErrStore)
	require.ErrorIs(t, s.Reset(t.Context(), ns, "key"), store.ErrStore)
	require.ErrorIs(t, s.Migrate(t.Context()), store.ErrStore)
	require.ErrorIs(t, s.Ready(t.Context()), store.ErrStore)
	_, err = s.Check(t.Context())
	require.ErrorIs(t, err, store.ErrStore)
	require.Zero(t, s.Stats())
}
