package pgstore

import (
	"fmt"
	"strings"
	"time"
)

// statements are those of a table. They have no prepared form, which a pooler would lose. Rows are locked in the order of
// their keys, and then never waited for: no transaction waits for another that waits for it.
type statements struct {
	read     string // rows and the time, without a lock
	settings string // of a transaction that locks rows
	lock     string // rows, which waits for whoever holds one
	lockFree string // rows that nobody holds
	exist    string // which rows there are
	insert   string // rows that are not there: in the order of their keys, so that inserts wait for each other in one order
	update   string // rows that are locked
	compare  string // rows that are as they were read, and that nobody holds
	sweep    string // deletes the rows of a page that have ended
}

const (
	begin  = "BEGIN ISOLATION LEVEL READ COMMITTED"
	now    = "SELECT clock_timestamp()"
	commit = "COMMIT"
)

func (s *Store) statements() statements {
	ms := func(d time.Duration) int64 { return max(1, d.Milliseconds()) }
	of := func(text string) string { return strings.ReplaceAll(text, "TABLE", s.table()) }
	return statements{
		read: of(`SELECT t.key, t.value, clock_timestamp() FROM unnest($1::bytea[]) AS v(key) LEFT JOIN TABLE AS t ON t.key = v.key`),
		settings: fmt.Sprintf(`SELECT set_config('lock_timeout', '%d', true), set_config('idle_in_transaction_session_timeout', '%d', true)`,
			ms(s.timeout/2), ms(s.patience())),
		lock:     of(`SELECT key, value FROM TABLE WHERE key = ANY($1::bytea[]) ORDER BY key FOR UPDATE`),
		lockFree: of(`SELECT key, value FROM TABLE WHERE key = ANY($1::bytea[]) ORDER BY key FOR UPDATE SKIP LOCKED`),
		exist:    of(`SELECT key FROM TABLE WHERE key = ANY($1::bytea[])`),
		insert: of(`INSERT INTO TABLE (key, value, ends) SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[])
			ON CONFLICT (key) DO NOTHING RETURNING key`),
		update: of(`UPDATE TABLE AS t SET value = v.value, ends = v.ends
			FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) AS v(key, value, ends) WHERE t.key = v.key`),
		compare: of(`WITH free AS MATERIALIZED (
				SELECT t.ctid AS place, v.value, v.ends FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[]) AS v(key, value, ends, old)
				JOIN TABLE AS t ON t.key = v.key AND t.value = v.old FOR UPDATE OF t SKIP LOCKED)
			UPDATE TABLE AS t SET value = free.value, ends = free.ends FROM free WHERE t.ctid = free.place RETURNING t.key`),
		sweep: of(`WITH place AS (
				SELECT $1::bigint % greatest(pg_relation_size('TABLE') / current_setting('block_size')::bigint, 1) AS page)
			DELETE FROM TABLE WHERE ctid = ANY(ARRAY(SELECT ctid FROM TABLE
				WHERE ctid >= (SELECT format('(%s,0)', page)::tid FROM place) AND ctid < (SELECT format('(%s,0)', page + 1)::tid FROM place)
				AND ends < $2::bigint FOR UPDATE SKIP LOCKED))`),
	}
}
