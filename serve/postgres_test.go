package serve_test

import (
	"testing"
	"time"

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
