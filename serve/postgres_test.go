package serve_test

import (
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store"
)

func TestURLsOfPostgres(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"postgres://user:secret@127.0.0.1:1/app", "postgresql://user:secret@127.0.0.1:1/app?sslmode=disable"} {
		st, err := serve.Open(address, "rl", time.Second)
		require.NoError(t, err)
		err = st.Ready(t.Context())
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.NotContains(t, err.Error(), "secret")
		_, err = st.Check(t.Context())
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.NoError(t, st.Close())
	}
	for address, table := range map[string]string{"postgres://user:secret@127.0.0.1:x/app": "rl", "postgres://user:secret@127.0.0.1:1/app": "a.b.c"} {
		_, err := serve.Open(address, table, time.Second)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.NotContains(t, err.Error(), "secret")
	}
}

// A Postgres that hangs does not hold up the end of a server: pgx would wait for it for 15 s.
func TestCloseDoesNotWaitForAPostgresThatHangs(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			backend := pgproto3.NewBackend(conn, conn)
			_, _ = backend.ReceiveStartupMessage()
			backend.Send(&pgproto3.AuthenticationOk{})
			backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			_ = backend.Flush() // and nothing after it
		}
	}()
	st, err := serve.Open("postgres://user@"+l.Addr().String()+"/app?sslmode=disable", "rl", 100*time.Millisecond)
	require.NoError(t, err)
	require.Error(t, st.Ready(t.Context()))
	require.ErrorIs(t, st.Close(), store.ErrUnavailable)
}
