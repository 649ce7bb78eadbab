package pgstore_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	st, err := pgstore.New(pool)
	if err != nil {
		log.Fatal(err)
	}
	if err = st.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	if err = st.Ready(ctx); err != nil {
		log.Print(err) // the store works once the database does
	}
	limiter, err := ratelimit.NewTokenBucket(st, ratelimit.PerMinute(100), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	result, err := limiter.Allow(ctx, "user:42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Allowed, result.Remaining)
}

// The table is created by the migrations of the program.
func ExampleStore_Schema() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/app") // does not connect yet
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	st, err := pgstore.New(pool, pgstore.WithTable("limits.rates"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(st.Schema())
	// Output:
	// CREATE TABLE IF NOT EXISTS "limits"."rates" (
	// 	key   bytea  PRIMARY KEY, -- '=' and the key of a user, or '#' and its hash; then 0, and 16 bytes of the limiter
	// 	value bytea  NOT NULL,    -- what the key has spent
	// 	ends  bigint NOT NULL     -- when that has ended, in µs since 1970
	// ) WITH (
	// 	fillfactor = 70,
	// 	autovacuum_vacuum_scale_factor = 0.05,
	// 	autovacuum_vacuum_insert_scale_factor = 0.2,
	// 	autovacuum_analyze_scale_factor = 0.2,
	// 	autovacuum_vacuum_cost_delay = 0
	// );
	// ALTER TABLE "limits"."rates" ALTER COLUMN value SET STORAGE EXTERNAL; -- it does not get shorter by compression
}
