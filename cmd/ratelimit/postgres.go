package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
)

// redisPrefix is the default of -prefix. As for ratelimit-serve, it means the default table of
// package pgstore.
const (
	redisPrefix  = "rl"
	defaultTable = "ratelimit"
)

// onPostgres is a table of package pgstore.
type onPostgres struct {
	conn  *pgx.Conn
	table string // as it is written in statements
	rules map[string]*store.Rule
}

// isPostgres reports whether a URL is one of Postgres.
func isPostgres(address string) bool {
	return strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://")
}

// openPostgres connects to a database. The URL may have parameters of a pool.
func openPostgres(ctx context.Context, address, table, _ string) (server, error) {
	if table == redisPrefix {
		table = defaultTable
	}
	name := strings.Split(table, ".")
	if len(name) > 2 || slices.Contains(name, "") {
		return nil, fmt.Errorf("%w: table %q: want table or schema.table", ratelimit.ErrInvalidOption, table)
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil { // err may contain the password
		return nil, fmt.Errorf("%w: Postgres URL: it cannot be parsed", ratelimit.ErrInvalidOption)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may not have what was prepared
	p := &onPostgres{table: pgx.Identifier(name).Sanitize()}
	if p.rules, err = rulesOf(algorithms); err != nil {
		return nil, err
	}
	return p, inTime(ctx, func(ctx context.Context) error {
		p.conn, err = pgx.ConnectConfig(ctx, config.ConnConfig)
		return err
	})
}

// inTime calls f with a limit to its time.
func inTime(ctx context.Context, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := f(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the database has not answered for %v: %w", patience, err)
	}
	return err
}

// rowsOf returns the keys between which the rows of a user's key are: '=' and the key, or '#' and
// its hash, then 0, and 16 bytes of the limiter.
func rowsOf(key string) (from, to []byte) {
	if len(key) > maxPlainKey || strings.IndexByte(key, 0) >= 0 {
		sum := sha256.Sum256([]byte(key))
		from = append([]byte("#"), sum[:]...)
	} else {
		from = []byte("=" + key)
	}
	return append(slices.Clone(from), 0), append(from, 1)
}

// find implements server. The states are in the order of their algorithms.
func (p *onPostgres) find(ctx context.Context, key string) (all []held, err error) {
	from, to := rowsOf(key)
	err = inTime(ctx, func(ctx context.Context) error {
		rows, err := p.conn.Query(ctx, "SELECT key, value, ends, "+nowInMicros+" FROM "+p.table+" WHERE key >= $1 AND key < $2", from, to)
		if err != nil {
			return err
		}
		var at, value []byte
		var ends, now int64
		_, err = pgx.ForEachRow(rows, []any{&at, &value, &ends, &now}, func() error {
			limiter := hex.EncodeToString(at[min(len(from), len(at)):])
			h := held{at: string(at), name: "#" + limiter[:min(8, len(limiter))], ttl: time.UnixMicro(ends).Sub(time.UnixMicro(now)).Round(time.Millisecond)}
			h.err = h.readRow(p.rules, value, ends, now)
			if len(value) > 0 && (ends > now || errors.Is(h.err, errNoState)) { // what has ended is deleted later
				all = append(all, h)
			}
			return nil
		})
		return err
	})
	slices.SortFunc(all, func(a, b held) int {
		return cmp.Or(cmp.Compare(a.algorithm, b.algorithm), cmp.Compare(a.at, b.at))
	})
	return all, err
}

// nowInMicros is the server's time, in Unix µs.
const nowInMicros = "(extract(epoch FROM clock_timestamp()) * 1e6)::bigint"

// change calls f in a transaction that holds the rows of all, locked in the order in which a store
// locks them.
func (p *onPostgres) change(ctx context.Context, all []held, f func(ctx context.Context, tx pgx.Tx, keys [][]byte) error) error {
	var keys [][]byte
	for _, h := range all {
		keys = append(keys, []byte(h.at))
	}
	return inTime(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, p.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT FROM "+p.table+" WHERE key = ANY($1) ORDER BY key FOR UPDATE", keys); err != nil {
				return err
			}
			return f(ctx, tx, keys)
		})
	})
}

// forget implements server.
func (p *onPostgres) forget(ctx context.Context, all []held) error {
	return p.change(ctx, all, p.delete)
}

func (p *onPostgres) delete(ctx context.Context, tx pgx.Tx, keys [][]byte) error {
	_, err := tx.Exec(ctx, "DELETE FROM "+p.table+" WHERE key = ANY($1)", keys)
	return err
}

// free implements server.
func (p *onPostgres) free(ctx context.Context, h held, one slot) (was bool, err error) {
	err = p.change(ctx, []held{h}, func(ctx context.Context, tx pgx.Tx, keys [][]byte) error {
		var value []byte
		var now int64
		err := tx.QueryRow(ctx, "SELECT value, "+nowInMicros+" FROM "+p.table+" WHERE key = $1", keys[0]).Scan(&value, &now)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && len(value) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		slots, err := p.rules[inflight.Algorithm].ParseLog(value)
		if err != nil {
			return errNoState
		}
		before := slots.Used(now)
		slots.Refund(store.Limit{}, now, store.Receipt{At: one.number, N: 1})
		switch was = slots.Used(now) < before; {
		case !was:
			return nil
		case slots.Used(now) == 0:
			return p.delete(ctx, tx, keys)
		}
		if value, err = slots.AppendBinary(nil); err == nil {
			_, err = tx.Exec(ctx, "UPDATE "+p.table+" SET value = $2, ends = $3 WHERE key = $1", keys[0], value, slots.End())
		}
		return err
	})
	return was && err == nil, err
}

func (p *onPostgres) close() {
	_ = inTime(context.Background(), p.conn.Close)
}
