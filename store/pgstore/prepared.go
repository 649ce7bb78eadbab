package pgstore

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Calls that come alone have no others to share the cost of planning with, which is more than that of running. So their two
// statements are prepared, on the pools that prepare statements anyway. Each is named by its text. So behind a pooler that
// knows nothing of prepared statements, a name means this statement or none; from then on none is prepared.

// prepared is the statements of a call that comes alone, on one connection.
type prepared struct {
	readOne, compareOne *pgconn.StatementDescription
	until               time.Time
}

// replan is the time after which statements are prepared anew. A plan that was made for a small table is bad for a large one.
const replan = 10 * time.Second

const noStatement = "26000" // the code of an answer

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

// unprepare reports whether err is the answer that a statement was not there, or there already. No statement is
// prepared any more then.
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
