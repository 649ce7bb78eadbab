package pgstore

import (
	"fmt"
	"strings"
	"time"
)

// statements are the statements on a table. Rows are locked in the order of their keys, before others are inserted in
// the same order, and no transaction waits for anything afterwards. Therefore, transactions cannot deadlock.
type statements struct {
	readOne    string // a row and the time, without a lock
	insertOne  string // a row that does not exist
	compareOne string // a row that is still as it was read, and that nobody holds

	names    [2]string // of readOne and compareOne, where they are prepared
	settings string    // of a transaction that locks rows
	read     string    // rows, without a lock
	lock     string    // rows, and waits for those that others hold
	lockFree string    // rows that nobody holds
	exist    string    // which rows exist
	insert   string    // rows that do not exist
	update   string    // rows that are locked
	sweep    string    // deletes the ended rows of some pages
	probe    string    // writes a row that belongs to no key
}

const (
	begin  = "BEGIN ISOLATION LEVEL READ COMMITTED"
	clock  = "SELECT clock_timestamp()"
	commit = "COMMIT"
)

func (s *Store) statements() statements {
	ms := func(d time.Duration) int64 { return max(1, d.Milliseconds()) }
	of := strings.NewReplacer("'TABLE'", "'"+strings.ReplaceAll(s.table(), "'", "''")+"'", "TABLE", s.table()).Replace
	st := statements{
		readOne:   of(`SELECT (SELECT value FROM TABLE WHERE key = $1), clock_timestamp()`),
		insertOne: of(`INSERT INTO TABLE (key, value, ends) VALUES ($1, $2, $3) ON CONFLICT (key) DO NOTHING RETURNING ''`),
		compareOne: of(`UPDATE TABLE SET value = $2, ends = $3
			WHERE ctid = (SELECT ctid FROM TABLE WHERE key = $1 AND value = $4 FOR UPDATE SKIP LOCKED) RETURNING ''`),
		// Without the last setting, a batch of many rows would read the whole table, instead of its pages in memory.
		settings: fmt.Sprintf(`SELECT set_config('lock_timeout', '%d', true), set_config('idle_in_transaction_session_timeout', '%d', true),
			set_config('random_page_cost', '0.1', true)`, ms(s.timeout/2), ms(s.patience())),
		read:     of(`SELECT key, value FROM TABLE WHERE key = ANY($1::bytea[])`),
		lock:     of(`SELECT key, value FROM TABLE WHERE key = ANY($1::bytea[]) ORDER BY key FOR UPDATE`),
		lockFree: of(`SELECT key, value FROM TABLE WHERE key = ANY($1::bytea[]) ORDER BY key FOR UPDATE SKIP LOCKED`),
		exist:    of(`SELECT key FROM TABLE WHERE key = ANY($1::bytea[])`),
		insert: of(`INSERT INTO TABLE (key, value, ends) SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[])
			ON CONFLICT (key) DO NOTHING RETURNING ''`),
		update: of(`UPDATE TABLE AS t SET value = v.value, ends = v.ends
			FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) AS v(key, value, ends) WHERE t.key = v.key`),
		probe: of(`INSERT INTO TABLE AS t (key, value, ends) VALUES ('', '', 0) ON CONFLICT (key) DO UPDATE SET ends = t.ends`),
		sweep: of(`WITH place AS (
				SELECT $1::bigint % greatest(pg_relation_size('TABLE') / current_setting('block_size')::bigint, 1) AS page)
			DELETE FROM TABLE WHERE ctid = ANY(ARRAY(SELECT ctid FROM TABLE
				WHERE ctid >= (SELECT format('(%s,0)', page)::tid FROM place) AND ctid < (SELECT format('(%s,0)', page + $2::bigint)::tid FROM place)
				AND ends < $3::bigint FOR UPDATE SKIP LOCKED))`),
	}
	st.names = [...]string{nameOf(st.readOne), nameOf(st.compareOne)}
	return st
}
