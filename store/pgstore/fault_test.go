package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
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

// ways is how a call comes to its row: alone without a lock, and with others in a transaction.
var ways = map[string]func(t *testing.T, s store.Store) ratelimit.Limiter{
	"alone": func(t *testing.T, s store.Store) ratelimit.Limiter {
		t.Helper()
		return window(t, s, "n", 1000)
	},
	"list": func(t *testing.T, s store.Store) ratelimit.Limiter {
		t.Helper()
		all, err := ratelimit.NewAll(window(t, s, "n", 1000), window(t, s, "m", 1000))
		require.NoError(t, err)
		return all
	},
}

func eachWay(t *testing.T, f func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter)) {
	t.Helper()
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, way)
		})
	}
}

// writes reports whether a request ends with something that is committed.
func writes(request []byte) bool {
	return bytes.Contains(request, []byte("COMMIT\x00")) || bytes.Contains(request, []byte("SKIP LOCKED) RETURNING"))
}

func TestALostAnswerToACommitIsUnknownAndIsNotRepeated(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		proxy, name := pgtest.StartProxy(t, pgtest.Shared(t).Addr()), table()
		noNames := func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec } // so that the proxy can read them
		l := way(t, openAt(t, connect(t, pgtest.URL(proxy.Addr()), 4, noNames), name))
		take(t, l, "key")
		proxy.Lose(writes)
		_, err := l.Allow(t.Context(), "key")
		require.ErrorIs(t, err, store.ErrTimeout)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		proxy.Lose(nil)
		require.Equal(t, 998, remaining(t, l, "key"))
	})
}

func TestAConnectionLostBeforeTheCommitCostsNothing(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		proxy, name := pgtest.StartProxy(t, pgtest.Shared(t).Addr()), table()
		l := way(t, openAt(t, connect(t, pgtest.URL(proxy.Addr()), 4), name))
		take(t, l, "key")
		lost := 0
		proxy.Lose(func(request []byte) bool {
			if writes(request) || lost == 3 {
				return false
			}
			lost++
			return true
		})
		take(t, l, "key")
		require.Equal(t, 3, lost)
		require.Equal(t, 998, remaining(t, l, "key"))
	})
}

// locks holds the rows of name in another transaction until it is called.
func locks(t *testing.T, pool *pgxpool.Pool, name string) (release func()) {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	require.NoError(t, err)
	_, err = tx.Exec(context.Background(), "SELECT key FROM "+name+" FOR UPDATE")
	require.NoError(t, err)
	return func() { _ = tx.Rollback(context.Background()) }
}

func TestARowThatAStrangerHoldsIsUnavailableInTime(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		pool, name := shared(t), table()
		patient := way(t, openAt(t, pool, name))
		take(t, patient, "held")
		l := way(t, openAt(t, connect(t, pgtest.Shared(t).URL(), 4), name, pgstore.WithTimeout(400*time.Millisecond)))
		release := locks(t, pool, name)
		defer release()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := l.Allow(ctx, "held")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, store.ErrStore)
		began := time.Now()
		_, err = l.Allow(t.Context(), "held")
		require.ErrorIs(t, err, store.ErrStore)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(began), long)
		eventually(t, func() bool { // nobody waits any more, whose caller has left
			var waiting int
			err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' AND query LIKE '%\"' || $1 || '\"%'", name).Scan(&waiting)
			return err == nil && waiting == 0
		})
		release()
		eventually(t, func() bool { return remaining(t, patient, "held") == 999 })
	})
}

// Of calls that share transactions with those for a row that is held, only the first wait for it.
func TestARowThatAStrangerHoldsFailsNoOtherCall(t *testing.T) {
	t.Parallel()
	aHeldRowFailsNoOtherCall(t)
}

// The same with a statement_timeout that ends the wait before the store would.
func TestARowThatAStrangerHoldsFailsNoOtherCallOfAHurriedRole(t *testing.T) {
	t.Parallel()
	aHeldRowFailsNoOtherCall(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "1000" })
}

func aHeldRowFailsNoOtherCall(t *testing.T, change ...func(*pgxpool.Config)) {
	t.Helper()
	pool, name := shared(t), table()
	take(t, window(t, openAt(t, pool, name), "n", 10_000), "held")
	s := openAt(t, connect(t, pgtest.Shared(t).URL(), 1, change...), name, pgstore.WithTimeout(8*time.Second))
	l := window(t, s, "n", 10_000)
	release := locks(t, pool, name)
	defer release()
	var asked sync.WaitGroup
	var done atomic.Bool
	for range 4 { // so that each transaction has one
		asked.Go(func() {
			for !done.Load() {
				_, err := l.Allow(t.Context(), "held")
				assert.ErrorIs(t, err, store.ErrStore)
			}
		})
	}
	crowd(16, 10, func(i, _ int) bool {
		_, err := l.Allow(t.Context(), string(rune('a'+i)))
		return assert.NoError(t, err)
	})
	done.Store(true)
	asked.Wait()
}

func TestAPoolThatOthersUseUpIsOverloaded(t *testing.T) {
	t.Parallel()
	late := func(c *pgxpool.Config) { // a program may know its password, or its user, only when it connects
		c.ConnConfig.User, c.BeforeConnect = "stranger", func(_ context.Context, c *pgx.ConnConfig) error {
			c.User = "postgres"
			return nil
		}
	}
	pool := connect(t, pgtest.Shared(t).URL(), 2, late)
	s := open(t, pool, pgstore.WithTimeout(time.Second)) // a server that has been silent for twice as long is unavailable
	l := window(t, s, "n", 10)
	eventually(t, func() bool { _, err := l.Allow(t.Context(), "key"); return err == nil })
	for range 2 {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			_, err := l.Allow(t.Context(), "key")
			assert.ErrorIs(t, err, store.ErrOverloaded)
			assert.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	all.Wait()
	require.GreaterOrEqual(t, s.Stats().Overloaded, int64(5))
}

func TestAServerThatIsGoneIsUnavailableUntilItIsBack(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	name := table()
	patient := window(t, openAt(t, connect(t, server.URL(), 4), name), "n", 10)
	take(t, patient, "key")
	l := window(t, openAt(t, connect(t, server.URL(), 4), name, pgstore.WithTimeout(2*time.Second)), "n", 10)
	eventually(t, func() bool { _, err := l.Peek(t.Context(), "key"); return err == nil })
	unlogged := window(t, open(t, connect(t, server.URL(), 4), pgstore.WithUnlogged()), "n", 10)
	take(t, unlogged, "key")
	server.Kill()
	_, err := l.Allow(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrUnavailable)
	server.Restart(t)
	eventually(t, func() bool { _, err = l.Peek(t.Context(), "key"); return err == nil })
	require.Equal(t, 9, remaining(t, patient, "key"))
	require.Equal(t, 10, remaining(t, unlogged, "key"))
}

func TestAFailoverToAReplica(t *testing.T) {
	t.Parallel()
	if pgtest.Of(0, 1, 1) == 0 {
		t.Skip("RATELIMIT_FULL=1 runs it")
	}
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		primary, name := pgtest.Start(t), table()
		standby := primary.Standby(t)
		both := "postgres://postgres@" + primary.Addr() + "," + standby.Addr() + "/postgres?sslmode=disable&target_session_attrs=read-write"
		l := way(t, openAt(t, connect(t, both, 4), name))
		take(t, l, "key")
		direct := connect(t, standby.URL(), 4)
		s, err := pgstore.New(direct, pgstore.WithTable(name), pgstore.WithTimeout(time.Second))
		require.NoError(t, err)
		replica := way(t, s)
		eventually(t, func() bool { r, err := replica.Peek(t.Context(), "key"); return err == nil && r.Remaining == 999 })
		require.ErrorContains(t, s.Ready(t.Context()), "is a replica")
		_, err = replica.Allow(t.Context(), "key")
		require.ErrorIs(t, err, store.ErrUnavailable)
		primary.Kill()
		_, err = direct.Exec(t.Context(), "SELECT pg_promote()")
		require.NoError(t, err)
		take(t, l, "key")
		require.Equal(t, 998, remaining(t, l, "key"))
	})
}

// As a role may have it by default.
func TestASerializableSessionSharesExactlyTheLimit(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"serializable", "repeatable read"} {
		s := open(t, connect(t, pgtest.Shared(t).URL(), 8, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level }))
		l := window(t, s, "n", 300)
		require.EqualValues(t, 200, crowd(2, 100, func(int, int) bool { return take(t, l, "key").Allowed }))
		require.EqualValues(t, 100, crowd(32, 10, func(int, int) bool { return take(t, l, "key").Allowed }))
	}
}

// A standby has no serializable transactions, and does not read unlogged tables.
func TestASerializableSessionOnAStandbyPeeks(t *testing.T) {
	t.Parallel()
	primary, name, unlogged := pgtest.Start(t), table(), table()
	l := openAt(t, connect(t, primary.URL(), 4), name)
	for _, way := range ways {
		take(t, way(t, l), "key")
	}
	openAt(t, connect(t, primary.URL(), 4), unlogged, pgstore.WithUnlogged())
	standby := primary.Standby(t)
	for _, way := range ways {
		var now atomic.Value // the address of the server that has taken over
		now.Store(standby.Addr())
		moved := connect(t, primary.URL(), 4, func(c *pgxpool.Config) {
			c.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, now.Load().(string))
			}
		})
		s, err := pgstore.New(moved, pgstore.WithTable(unlogged), pgstore.WithTimeout(500*time.Millisecond))
		require.NoError(t, err)
		eventually(t, func() bool {
			_, err := way(t, s).Allow(t.Context(), "key")
			require.ErrorIs(t, err, store.ErrStore)
			return errors.Is(err, store.ErrUnavailable) && strings.Contains(err.Error(), "during recovery")
		})
		now.Store(primary.Addr())
		eventually(t, func() bool { _, err := way(t, s).Allow(t.Context(), "key"); return err == nil })
	}
	pool := connect(t, standby.URL(), 4, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable" })
	patient, err := pgstore.New(pool, pgstore.WithTable(name), pgstore.WithTimeout(long))
	require.NoError(t, err)
	s, err := pgstore.New(pool, pgstore.WithTable(name), pgstore.WithTimeout(2*time.Second))
	require.NoError(t, err)
	for _, way := range ways {
		require.Equal(t, 998, remaining(t, way(t, patient), "key"), "the copy was made afterwards")
		eventually(t, func() bool { // unless the time ends during an attempt
			_, err := way(t, s).Allow(t.Context(), "key")
			return errors.Is(err, store.ErrUnavailable) && strings.Contains(err.Error(), "read-only")
		})
	}
}

func TestAPoolLargerThanTheServerAllowsServesByTheConnectionsThatThereAre(t *testing.T) {
	t.Parallel()
	pool, name, role := shared(t), table(), table()
	openAt(t, pool, name)
	_, err := pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 3; GRANT SELECT, INSERT, UPDATE, DELETE ON "+name+" TO "+role, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	s, err := pgstore.New(connect(t, "postgres://"+role+"@"+pgtest.Shared(t).Addr()+"/postgres?sslmode=disable", 16), pgstore.WithTable(name), pgstore.WithTimeout(long))
	require.NoError(t, err)
	require.NoError(t, s.Ready(t.Context()))
	l := window(t, s, "n", 10_000)
	require.EqualValues(t, 640, crowd(64, 10, func(i, n int) bool { return take(t, l, string(rune('a'+i))).Allowed }))
}

func TestATableThatIsLockedOrDroppedFailsCallsUntilItIsBack(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		pool, name := shared(t), table()
		patient := openAt(t, pool, name)
		l := way(t, patient)
		take(t, l, "key")
		hurried := way(t, openAt(t, pool, name, pgstore.WithTimeout(300*time.Millisecond)))
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "LOCK TABLE "+name)
		require.NoError(t, err)
		_, err = hurried.Allow(t.Context(), "key")
		require.ErrorIs(t, err, store.ErrStore)
		require.NoError(t, tx.Rollback(t.Context()))
		require.GreaterOrEqual(t, remaining(t, l, "key"), 998) // the transaction may come to it now

		_, err = pool.Exec(t.Context(), "DROP TABLE "+name)
		require.NoError(t, err)
		_, err = l.Allow(t.Context(), "key")
		require.ErrorIs(t, err, store.ErrStore)
		require.ErrorContains(t, err, "does not exist")
		require.NoError(t, patient.Migrate(t.Context()))
		take(t, l, "key")
		require.Equal(t, 999, remaining(t, l, "key"))
	})
}

func TestAServerThatHangsTakesNoLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	proxy := pgtest.StartProxy(t, pgtest.Shared(t).Addr())
	l := window(t, open(t, connect(t, pgtest.URL(proxy.Addr()), 4), pgstore.WithTimeout(300*time.Millisecond)), "n", 100)
	eventually(t, func() bool { _, err := l.Allow(t.Context(), "key"); return err == nil })
	proxy.Hold()
	crowd(8, 3, func(int, int) bool {
		began := time.Now()
		_, err := l.Allow(t.Context(), "key")
		require.ErrorIs(t, err, store.ErrStore)
		require.Less(t, time.Since(began), long)
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := l.Allow(ctx, "key")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	proxy.Release()
	eventually(t, func() bool { _, err := l.Peek(t.Context(), "key"); return err == nil })
}

// A caller whose context ends while its call is on its way has no use of the events.
func TestChargesForACallerThatHasLeftAreRefunded(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		proxy := pgtest.StartProxy(t, pgtest.Shared(t).Addr())
		l := way(t, open(t, connect(t, pgtest.URL(proxy.Addr()), 4)))
		take(t, l, "key")
		proxy.Hold()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := l.Allow(ctx, "key")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		proxy.Release()
		eventually(t, func() bool { r, err := l.Peek(t.Context(), "key"); return err == nil && r.Remaining == 999 })
	})
}

func TestAStatementTimeoutIsUnavailableAndChargesNothing(t *testing.T) {
	t.Parallel()
	name, url := table(), pgtest.Shared(t).URL()
	pool := shared(t)
	s := openAt(t, pool, name)
	l := window(t, s, "n", 1000)
	take(t, l, "key")
	slow := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "20" }
	hurried, err := pgstore.New(connect(t, url, 4, slow), pgstore.WithTable(name), pgstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE "+name)
	require.NoError(t, err)
	_, err = window(t, hurried, "n", 1000).Allow(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, 999, remaining(t, l, "key"))
}

// A Peek changes nothing, so it waits for nobody, and a replica can answer it. That holds for several limits as for one.
func TestAPeekLocksNoRow(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		pool, name := shared(t), table()
		take(t, way(t, openAt(t, pool, name)), "key")
		reads := connect(t, pgtest.Shared(t).URL(), 4, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		})
		s, err := pgstore.New(reads, pgstore.WithTable(name), pgstore.WithTimeout(long))
		require.NoError(t, err)
		defer locks(t, pool, name)()
		require.Equal(t, 999, remaining(t, way(t, s), "key"))
	})
}

func TestAServerThatOnlyReadsIsUnavailableUntilItWrites(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		name, url := table(), pgtest.Shared(t).URL()
		l := way(t, openAt(t, shared(t), name))
		take(t, l, "key")
		var writes atomic.Bool
		pool := connect(t, url, 4, func(c *pgxpool.Config) {
			c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
				c.RuntimeParams["default_transaction_read_only"] = map[bool]string{false: "on", true: "off"}[writes.Load()]
				return nil
			}
		})
		s, err := pgstore.New(pool, pgstore.WithTable(name), pgstore.WithTimeout(time.Second))
		require.NoError(t, err)
		replica := way(t, s)
		eventually(t, func() bool {
			_, err := replica.Allow(t.Context(), "key")
			return errors.Is(err, store.ErrUnavailable) && strings.Contains(err.Error(), "read-only")
		})
		err = s.Ready(t.Context())
		require.ErrorContains(t, err, "only read")
		require.ErrorIs(t, err, store.ErrUnavailable)
		writes.Store(true) // another server has taken over: new connections go there
		unknown := 0
		eventually(t, func() bool {
			_, err := replica.Allow(t.Context(), "key")
			if errors.Is(err, store.ErrTimeout) {
				unknown++
			}
			return err == nil
		})
		require.InDelta(t, 998, remaining(t, l, "key"), float64(unknown))
	})
}

// A pooler in transaction mode gives each transaction another session.
func TestSessionsThatForgetEverythingAreEnough(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pgxpool.Config){
		"forgets": func(c *pgxpool.Config) {
			c.AfterRelease = func(conn *pgx.Conn) bool {
				_, err := conn.PgConn().Exec(context.Background(), "DISCARD ALL").ReadAll()
				return err == nil
			}
		},
		"simple": func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol },
		"exec":   func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, connect(t, pgtest.Shared(t).URL(), 8, change))
			require.NoError(t, s.Ready(t.Context()))
			l := window(t, s, "n", 50)
			all, err := ratelimit.NewAll(l, window(t, s, "m", 1000))
			require.NoError(t, err)
			for i := range 20 {
				require.Equal(t, 50-i, remaining(t, l, "key"))
				take(t, l, "key")
			}
			require.EqualValues(t, 30, crowd(16, 10, func(i, _ int) bool {
				if i%2 == 0 {
					return take(t, all, "key").Allowed
				}
				return take(t, l, "key").Allowed
			}))
		})
	}
}

func TestErrorsOfTheServerHaveTheirClass(t *testing.T) {
	t.Parallel()
	pool := shared(t)
	s, err := pgstore.New(pool, pgstore.WithTable("nowhere"), pgstore.WithTimeout(long))
	require.NoError(t, err)
	_, err = window(t, s, "n", 1).Allow(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrStore)
	require.NotErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "nowhere")

	s, err = pgstore.New(connect(t, "postgres://stranger@"+pgtest.Shared(t).Addr()+"/postgres?sslmode=disable", 2), pgstore.WithTimeout(long))
	require.NoError(t, err)
	_, err = window(t, s, "n", 1).Allow(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrStore)
	require.NotErrorIs(t, err, store.ErrUnavailable, "a role that does not exist does not come by itself")
	require.ErrorContains(t, err, "nothing was sent")
	require.ErrorContains(t, err, "stranger")
}

func TestGarbageIsCorruptUntilReset(t *testing.T) {
	t.Parallel()
	pool, name := shared(t), table()
	s := openAt(t, pool, name)
	for way, open := range ways {
		l := open(t, s)
		take(t, l, "key")
		_, err := pool.Exec(t.Context(), "UPDATE "+name+" SET value = '\\x0102'")
		require.NoError(t, err)
		_, err = l.Allow(t.Context(), "key")
		require.ErrorIs(t, err, store.ErrCorrupt, way)
		require.NoError(t, l.Reset(t.Context(), "key"))
		require.Equal(t, 1000, remaining(t, l, "key"), way)
		require.True(t, take(t, l, "key").Allowed, way)
	}
}

// A key continues from the new time, with what it has spent. It is not locked out for the length of the step.
func TestAKeyIsNotLockedOutAfterTheServersClockWasSetBack(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"token_bucket", "sliding_log"} {
		pool, name := shared(t), table()
		of := func(opts ...pgstore.Option) ratelimit.Limiter {
			l, err := ratelimit.New(algorithm, openAt(t, pool, name, opts...), ratelimit.PerHour(1), ratelimit.WithName("n"))
			require.NoError(t, err)
			return l
		}
		before := of(pgstore.WithClock(func() time.Time { return time.Now().Add(24 * time.Hour) }))
		require.True(t, take(t, before, "key").Allowed)
		r := take(t, of(), "key")
		require.False(t, r.Allowed)
		require.LessOrEqual(t, r.RetryAfter, time.Hour, algorithm)
		var left float64 // s, until the row ends
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT max(ends) / 1e6 - extract(epoch FROM clock_timestamp()) FROM "+name).Scan(&left))
		require.LessOrEqual(t, left, time.Hour.Seconds(), algorithm)
	}
}
