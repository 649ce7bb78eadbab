package fallback

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// moving is a store whose keys move to a new server with each call.
type moving struct {
	store.Store
	moves int
}

func (m *moving) ServerOf(string) string {
	m.moves++
	return strconv.Itoa(m.moves)
}

// The addresses of servers may change as often as containers are replaced.
func TestServersThatAreGoneAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &moving{Store: ratelimit.Must(memstore.New())}
		lim := ratelimit.Must(New(ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerHour(1_000_000))), FailOpen()))
		for range 1000 {
			_, err := lim.Allow(t.Context(), "key")
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		known := 0
		lim.breakers.servers.Range(func(any, any) bool {
			known++
			return true
		})
		require.LessOrEqual(t, known, 20)
	})
}
