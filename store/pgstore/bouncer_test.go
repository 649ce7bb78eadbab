package pgstore_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

// bouncer starts a real pooler, if there is one, and returns its address.
func bouncer(t *testing.T, mode string) string {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is missing")
	}
	dir, err := os.MkdirTemp("", "pgbouncer")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // pgbouncer is another user
	users, config := filepath.Join(dir, "users"), filepath.Join(dir, "ini")
	host, port, _ := net.SplitHostPort(pgtest.Shared(t).Addr())
	listen := pgtest.FreePort(t)
	require.NoError(t, os.WriteFile(users, []byte("\"postgres\" \"\"\n"), 0o644)) //nolint:gosec // as above
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "[databases]\npostgres = host=%s port=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %s\n"+
		"unix_socket_dir =\nauth_type = trust\nauth_file = %s\npool_mode = %s\ndefault_pool_size = 4\nmax_client_conn = 200\n", host, port, listen, users, mode), 0o644)) //nolint:gosec // as above
	cmd := exec.Command(bin, "-u", "nobody", config)
	if os.Getuid() != 0 {
		cmd = exec.Command(bin, config)
	}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return "127.0.0.1:" + listen
}

// Lone calls would work in this mode, and all others would fail.
func TestReadySaysThatPgBouncerIsInStatementMode(t *testing.T) {
	t.Parallel()
	addr, name := bouncer(t, "statement"), table()
	openAt(t, shared(t), name)
	s, err := pgstore.New(connect(t, pgtest.URL(addr), 2), pgstore.WithTable(name), pgstore.WithTimeout(long))
	require.NoError(t, err)
	eventually(t, func() bool {
		err = s.Ready(t.Context())
		require.ErrorIs(t, err, store.ErrStore)
		return strings.Contains(err.Error(), "statement pooling")
	})
	require.NotErrorIs(t, err, store.ErrUnavailable, "waiting does not help")
}

func TestPgBouncerInTransactionMode(t *testing.T) {
	t.Parallel()
	addr := bouncer(t, "transaction")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		name := table()
		openAt(t, shared(t), name)
		var limiters []ratelimit.Limiter
		var alls []ratelimit.Limiter
		for range 4 {
			pool := connect(t, pgtest.URL(addr), 8, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			s, err := pgstore.New(pool, pgstore.WithTable(name), pgstore.WithTimeout(long))
			require.NoError(t, err)
			eventually(t, func() bool {
				err = s.Ready(t.Context())
				return err == nil
			})
			l := window(t, s, "n", 300)
			all, err := ratelimit.NewAll(window(t, s, "m", 300), window(t, s, "o", 300))
			require.NoError(t, err)
			limiters, alls = append(limiters, l), append(alls, all)
		}
		require.EqualValues(t, 200, crowd(1, 200, func(_, n int) bool { return take(t, limiters[n%4], "key").Allowed }))
		require.EqualValues(t, 100, crowd(32, 10, func(i, _ int) bool { return take(t, limiters[i%4], "key").Allowed }))
		require.EqualValues(t, 300, crowd(32, 20, func(i, _ int) bool { return take(t, alls[i%4], "key").Allowed }))
	}
}
