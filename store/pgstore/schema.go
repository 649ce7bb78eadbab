package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

const maxIdentifier = 63 // bytes; Postgres truncates longer ones

// tableName returns the identifiers in name: that of the table, perhaps after that of its schema.
func tableName(name string) ([]string, error) {
	parts := strings.Split(name, ".")
	if len(parts) > 2 {
		return nil, fmt.Errorf("%w: table %q has more than one dot: want table or schema.table", store.ErrInvalidOption, name)
	}
	for _, part := range parts {
		if part == "" || len(part) > maxIdentifier || strings.ContainsAny(part, "\x00\"") {
			return nil, fmt.Errorf("%w: table %q: want table or schema.table, with names of 1 to %d bytes", store.ErrInvalidOption, name, maxIdentifier)
		}
	}
	return parts, nil
}

// table returns the table's name as it is written in statements.
func (s *Store) table() string { return pgx.Identifier(s.name).Sanitize() }

// Schema returns the statements that create the table, for use with a migration tool. They change nothing if the
// table exists, but they lock it, and so wait for transactions that have read it. Calls wait behind them: run them once.
//
// A page keeps a third of its room free, so that a row that is written again stays on its page and no index
// changes. Rows change often and are small, so autovacuum runs sooner than elsewhere, and without pauses.
func (s *Store) Schema() string {
	unlogged := ""
	if s.unlogged {
		unlogged = "UNLOGGED "
	}
	return `CREATE ` + unlogged + `TABLE IF NOT EXISTS ` + s.table() + ` (
	key   bytea  PRIMARY KEY, -- '=' and the key of a user, or '#' and its hash; then 0, and 16 bytes of the limiter
	value bytea  NOT NULL,    -- what the key has spent
	ends  bigint NOT NULL     -- when that has ended, in µs since 1970
) WITH (
	fillfactor = 70,
	autovacuum_vacuum_scale_factor = 0.05,
	autovacuum_vacuum_insert_scale_factor = 0.2,
	autovacuum_analyze_scale_factor = 0.2,
	autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE ` + s.table() + ` ALTER COLUMN value SET STORAGE EXTERNAL; -- it does not get shorter by compression
`
}

// Migrate runs the statements of [Store.Schema], if the table does not exist. Several processes may call it at the same time. It
// returns by ctx's deadline, or within 5 s. If a table of this name has another layout, it returns an error and
// changes nothing.
func (s *Store) Migrate(ctx context.Context) error {
	return s.within(ctx, func(ctx context.Context) error {
		tx, err := s.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if _, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", pgx.QueryExecModeExec, "ratelimit: "+s.table()); err != nil {
			return err
		}
		switch finding, err := s.layout(ctx, tx); {
		case err != nil || finding == nil:
			return err
		case errors.Is(finding, errNoTable):
		default:
			return &carrier.Failure{Class: store.ErrStore, Err: finding}
		}
		if _, err = tx.Exec(ctx, s.Schema(), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}

// checkTimeout limits a Migrate, a Ready or a Check, unless its context has an earlier deadline.
const checkTimeout = 5 * time.Second

// within calls f with checkTimeout. The error is ctx's own, or wraps [store.ErrStore].
func (s *Store) within(ctx context.Context, f func(context.Context) error) error {
	if s.carrier == nil {
		return errNotMade
	}
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := f(limited)
	var finding *carrier.Failure
	var sent unknown
	switch over := s.carrier.Begin(ctx).Over(); {
	case err == nil:
		return nil
	case errors.As(err, &finding): // the server has answered
		return err
	case over != nil:
		return over
	}
	return failureOf(s.carrier.Explain(err, errors.As(err, &sent)))
}

var errNoTable = errors.New("the table does not exist")

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// layout returns errNoTable if there is no table, or what is wrong with the table. If it had partitions, a place in it
// (ctid) would be that of a row in each of them.
func (s *Store) layout(ctx context.Context, q querier) (finding, err error) {
	rows, err := q.Query(ctx, `SELECT a.attname || ' ' || format_type(a.atttypid, -1) ||
			CASE WHEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid
				AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum) THEN ' unique' ELSE '' END ||
			CASE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = a.attrelid) THEN ' in partitions' ELSE '' END
		FROM pg_attribute a
		WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, pgx.QueryExecModeExec, s.table())
	if err != nil {
		return nil, err
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	const want = "key bytea unique, value bytea, ends bigint"
	switch got := strings.Join(columns, ", "); {
	case err != nil:
		return nil, err
	case got == "":
		return errNoTable, nil
	case got != want:
		return fmt.Errorf("the table %s has other columns: it has %s, want %s. Set another name with WithTable", s.table(), got, want), nil
	}
	return nil, nil
}
