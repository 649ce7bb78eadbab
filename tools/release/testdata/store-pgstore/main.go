// A store on a Postgres that is not there: its schema can be printed, and a call fails.
package main

import (
	"context"
	"errors"
	"log"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

func main() {
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	st, err := pgstore.New(pool, pgstore.WithTable("limits"))
	if err != nil {
		log.Fatal(err)
	}
	if !strings.Contains(st.Schema(), `CREATE TABLE IF NOT EXISTS "limits"`) {
		log.Fatal(st.Schema())
	}
	limiter, err := ratelimit.NewTokenBucket(st, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := limiter.Allow(context.Background(), "key"); !errors.Is(err, store.ErrUnavailable) {
		log.Fatal(err)
	}
}
