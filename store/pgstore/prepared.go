package pgstore

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A lone call has no other calls to share the cost of planning with, and planning costs more than running. Its two
// statements are therefore prepared, on pools that prepare statements anyway. Each is named after its text, so that even
// behind a pooler that does not know prepared statements, a name means this statement or none. If it means none, no
// more statements are prepared.

// prepared holds the statements of lone calls that are prepared on one connection.
type prepared struct {
	readOne, compareOne *pgconn.StatementDescription
	until               time.Time
}

// replan is the time after which statements are prepared again, because a plan for a small table is bad for a large one.
const replan = 10 * time.Second

const noStatement = "26000" // a SQLSTATE code

// prepares reports whether the pool of this configuration prepares statements.
func prepares(config *pgx.ConnConfig) bool {
	return config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && config.StatementCacheCapacity > 0
}

// prepared returns the statements that are prepared on conn, which are nil if none are.
func (s *Store) prepared(conn *pgconn.PgConn) (p prepared) {
	if !s.prepares.Load() {
		return p
	}
	now, data := time.Now(), conn.CustomData()
	if p, _ = data[s.sql.names[0]].(prepared); now.Before(p.until) {
		return p
	}
	p.until = now.Add(replan)
	var err error
	if p.readOne, err = prepare(conn, s.sql.names[0], s.sql.readOne, single[:1]); err == nil {
		p.compareOne, err = prepare(conn, s.sql.names[1], s.sql.compareOne, single)
	}
	if err != nil {
		s.unprepare(err)
		return prepared{}
	}
	data[s.sql.names[0]] = p
	return p
}

// unprepare reports whether err is the answer that a prepared statement does not exist, or already exists. From then
// on, no statement is prepared.
func (s *Store) unprepare(err error) bool {
	if code := codeOf(err); code != noStatement && code != "42P05" {
		return false
	}
	s.prepares.Store(false)
	return true
}

func prepare(conn *pgconn.PgConn, name, sql string, types []uint32) (*pgconn.StatementDescription, error) {
	ctx := context.Background()
	if err := conn.Deallocate(ctx, name); err != nil {
		return nil, err
	}
	return conn.Prepare(ctx, name, sql, types)
}

func nameOf(sql string) string {
	h := fnv.New128a()
	_, _ = h.Write([]byte(sql))
	return fmt.Sprintf("ratelimit_%x", h.Sum(nil))
}
