package pgstore_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

// answers makes the server run what in place of the next writes of a table's rows, and returns how many it was asked for.
func answers(t *testing.T, pool *pgxpool.Pool, name, what string, times int) (asked func() int64) {
	t.Helper()
	_, err := pool.Exec(t.Context(), fmt.Sprintf(`CREATE SEQUENCE IF NOT EXISTS %[1]s_asked; ALTER SEQUENCE %[1]s_asked RESTART;
		CREATE OR REPLACE FUNCTION %[1]s_answer() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('%[1]s_asked') <= %[3]d THEN %[2]s; END IF;
			RETURN NEW;
		END $$;
		CREATE OR REPLACE TRIGGER answer BEFORE INSERT OR UPDATE ON %[1]s FOR EACH ROW WHEN (NEW.key <> '') EXECUTE FUNCTION %[1]s_answer()`,
		name, what, times), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	return func() (n int64) {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM "+name+"_asked").Scan(&n))
		return n
	}
}

func raise(code string) string {
	return fmt.Sprintf("RAISE EXCEPTION USING ERRCODE = '%s', MESSAGE = 'planted'", code)
}

// A deadlock, and whatever ends by itself, costs a caller time at most.
func TestAnswersThatMayNotComeAgainAreTriedAgain(t *testing.T) {
	t.Parallel()
	const times = 6 // more than a trip tries
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		pool, name := shared(t), table()
		l := way(t, openAt(t, connect(t, pgtest.Shared(t).URL(), 4), name))
		spent := 0
		for _, code := range []string{"40001", "40P01", "55P03", "25006", "0A000", "57P03", "08006", "53300"} {
			asked := answers(t, pool, name, raise(code), times)
			require.True(t, take(t, l, "key").Allowed, code)
			require.Greater(t, asked(), int64(times), code)
			spent++
		}
		require.Equal(t, 1000-spent, remaining(t, l, "key"))
	})
}

func TestAnswersThatWouldComeAgainAreTheErrorOfTheCall(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		pool, name := shared(t), table()
		l := way(t, openAt(t, connect(t, pgtest.Shared(t).URL(), 4), name))
		take(t, l, "key")
		for code, class := range map[string]error{
			"53100": store.ErrOutOfMemory, "53200": store.ErrOutOfMemory, "57014": store.ErrUnavailable, "42501": store.ErrStore, "XX000": store.ErrStore,
		} {
			for _, key := range []string{"key", "new"} {
				asked := answers(t, pool, name, raise(code), 1000)
				_, err := l.Allow(t.Context(), key)
				require.ErrorIs(t, err, class, code)
				require.ErrorContains(t, err, "planted")
				require.NotErrorIs(t, err, store.ErrTimeout, code)
				if class == store.ErrStore { //nolint:errorlint // itself
					require.NotErrorIs(t, err, store.ErrUnavailable, code)
				}
				if code == "57014" { // perhaps of a wait for a row, which is not tried again
					require.LessOrEqual(t, asked(), int64(2))
				} else {
					require.EqualValues(t, 1, asked(), code)
				}
			}
		}
		require.Equal(t, 999, remaining(t, l, "key"))
		require.Equal(t, 1000, remaining(t, l, "new"))
	})
}

// Nobody knows what a session has committed that ended while it wrote.
func TestASessionThatEndsWhileItWritesIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, way func(*testing.T, store.Store) ratelimit.Limiter) {
		pool, name := shared(t), table()
		l := way(t, openAt(t, connect(t, pgtest.Shared(t).URL(), 4), name))
		take(t, l, "key")
		asked := answers(t, pool, name, "PERFORM pg_terminate_backend(pg_backend_pid())", 1)
		_, err := l.Allow(t.Context(), "key")
		require.ErrorIs(t, err, store.ErrTimeout)
		require.ErrorContains(t, err, "unknown")
		require.EqualValues(t, 1, asked())
		require.Equal(t, 999, remaining(t, l, "key"))
	})
}
