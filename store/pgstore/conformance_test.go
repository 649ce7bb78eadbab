package pgstore_test

import (
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
	"github.com/ratelimit-go/ratelimit/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	pool := shared(t)
	storetest.Run(t, func(t testing.TB, clock func() time.Time) store.Store {
		return open(t, pool, pgstore.WithClock(clock))
	}, storetest.Traces(pgtest.Of(1, 4, 40)))
}
