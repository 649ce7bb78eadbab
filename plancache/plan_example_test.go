package plancache_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/plancache"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// plan is what a customer has bought.
type plan struct{ rate, quota ratelimit.Limit }

// customers is a database with the tables users and plans.
type customers struct{ *sql.DB }

// planOf is asked for keys such as "user:ann" and "192.0.2.1".
func (c customers) planOf(ctx context.Context, key string) (plan, error) {
	user, known := strings.CutPrefix(key, "user:")
	if !known {
		return plan{}, nil // the limits of the constructors
	}
	var perSecond, perMonth int
	err := c.QueryRowContext(ctx, `SELECT plans.per_second, plans.per_month
		FROM users JOIN plans ON plans.name = users.plan WHERE users.name = $1`, user).Scan(&perSecond, &perMonth)
	if errors.Is(err, sql.ErrNoRows) {
		return plan{}, nil
	}
	return plan{ratelimit.PerSecond(perSecond), ratelimit.PerMonth(perMonth)}, err
}

// newPlanLimiter returns a limiter that admits what the rate and the quota of the customer's plan both admit.
func newPlanLimiter(db *sql.DB, shared store.Store) (ratelimit.Limiter, error) {
	plans, err := plancache.New(customers{db}.planOf, time.Minute)
	if err != nil {
		return nil, err
	}
	rateOf := func(ctx context.Context, key string) (ratelimit.Limit, error) {
		p, err := plans.Get(ctx, key)
		return p.rate, err
	}
	quotaOf := func(ctx context.Context, key string) (ratelimit.Limit, error) {
		p, err := plans.Get(ctx, key)
		return p.quota, err
	}
	rate, err := ratelimit.NewTokenBucket(shared, ratelimit.PerSecond(1),
		ratelimit.WithName("rate"), ratelimit.WithLimitFunc(rateOf))
	if err != nil {
		return nil, err
	}
	quota, err := ratelimit.NewFixedWindow(shared, ratelimit.PerMonth(100),
		ratelimit.WithName("quota"), ratelimit.WithLimitFunc(quotaOf))
	if err != nil {
		return nil, err
	}
	both, err := ratelimit.NewAll(rate, quota)
	if err != nil {
		return nil, err
	}
	return fallback.New(both, fallback.FailLocal(2)) // two instances
}

// Each plan in a database has two limits: requests per second, and requests per month.
func ExampleCache_plans() {
	database := new(rows)
	store, err := memstore.New() // or redisstore.New(client)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := newPlanLimiter(sql.OpenDB(database), store)
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"user:ann", "user:ann", "192.0.2.1"} {
		r, err := limiter.Allow(context.Background(), key)
		if err != nil {
			log.Fatal(err)
		}
		for _, part := range r.Parts() {
			fmt.Println(key, part.Name(), part.Remaining, "of", part.Limit)
		}
	}
	fmt.Println(database.queries, "query")
	// Output:
	// user:ann rate 9 of 10
	// user:ann quota 4999 of 5000
	// user:ann rate 8 of 10
	// user:ann quota 4998 of 5000
	// 192.0.2.1 rate 0 of 1
	// 192.0.2.1 quota 99 of 100
	// 1 query
}

// rows is a database in which each query finds one row.
type rows struct{ queries, left int }

func (r *rows) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r *rows) Driver() driver.Driver                        { return nil }
func (r *rows) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (r *rows) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (r *rows) Close() error                                 { return nil }
func (r *rows) Columns() []string                            { return []string{"per_second", "per_month"} }

func (r *rows) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	r.queries++
	r.left = 1
	return r, nil
}

func (r *rows) Next(row []driver.Value) error {
	if r.left == 0 {
		return io.EOF
	}
	r.left--
	row[0], row[1] = int64(10), int64(5000)
	return nil
}
