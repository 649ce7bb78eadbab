package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// patience is how long a connection may wait for the server.
func (s *Store) patience() time.Duration { return max(lasting, 5*s.timeout) }

// send makes the calls of t in one transaction.
func (s *Store) send(ctx context.Context, t *carrier.Trip[*call]) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if !t.Writing().Begin() {
		return nil
	}
	end, _ := ctx.Deadline()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	defer cancel()
	if t.Len() == 0 {
		return conn.Ping(ctx)
	}
	calls := make([]*call, 0, t.Len())
	for c := range t.Calls {
		calls = append(calls, c.Call)
	}
	twice, err := s.decide(ctx, conn, calls)
	if twice {
		t.Twice()
	}
	for c := range t.Calls {
		if c.Call.done || c.Call.err != nil {
			c.End(c.Call.err)
		}
	}
	return err
}

// alone makes a call on its caller's goroutine. Once it has begun to write, the end of the caller's context does
// not break it off, since nobody would know what is charged.
func (s *Store) alone(b carrier.Budget, c *call) (*call, bool, error) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(b.Context), b.End)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return c, false, err
	}
	defer conn.Release()
	if _, err = s.decide(ctx, conn, []*call{c}); err == nil {
		err = c.err
	}
	return c, true, err
}

// unwritten is an error of a connection over which nothing was written that charges.
type unwritten struct{ error }

func (u unwritten) Unwrap() error { return u.error }

// unknown is the last word of a server that does not say whether it has committed.
type unknown struct{ error }

var (
	errRaced = errors.New("another transaction has inserted the row")
	errHeld  = errors.New("another transaction holds the row")
)

// decide decides on calls. It returns the error of the connection or an answer of the server, which is that of all
// calls that are not done and have no error of their own; and whether it took several attempts.
func (s *Store) decide(ctx context.Context, conn *pgxpool.Conn, calls []*call) (twice bool, err error) {
	b := newBatch(calls)
	if b.apart && s.contested.Add(-1) < 0 {
		s.contested.Store(0)
		if calls, err = s.compare(ctx, conn.Conn().PgConn(), b); err != nil || len(calls) == 0 {
			return false, s.failed(ctx, conn, err)
		}
		s.contested.Store(contestedFor)
		b, twice = newBatch(calls), true
	}
	waits := true
	for range 4 {
		err = s.locked(ctx, conn.Conn().PgConn(), b, waits)
		switch code := codeOf(err); {
		case code == lockNotAvailable:
			waits = false // so that only those fail whose rows are held
		case errors.Is(err, errRaced), code == deadlockDetected, code == serializationFailure:
		default:
			return twice, s.failed(ctx, conn, err)
		}
		twice = true
	}
	return twice, err
}

// failed returns err. A connection to a server that only reads is of no use.
func (s *Store) failed(ctx context.Context, conn *pgxpool.Conn, err error) error {
	if codeOf(err) == readOnly {
		_ = conn.Conn().Close(ctx)
	}
	return err
}

// contestedFor is how many batches lock their rows after one in which others were faster.
const contestedFor = 8

// batch is calls that are decided on together, and their rows in the order of their keys.
type batch struct {
	calls []*call
	rows  []*row
	byKey map[string]*row // nil if there is one row
	apart bool            // each call has one row
}

func newBatch(calls []*call) *batch {
	b := &batch{calls: calls, apart: true}
	if len(calls) == 1 && len(calls[0].requests) == 1 {
		b.add(calls[0], 0)
		return b
	}
	b.byKey = make(map[string]*row, len(calls))
	for _, c := range calls {
		b.apart = b.apart && len(c.requests) == 1
		for i := range c.requests {
			b.add(c, i)
		}
	}
	slices.SortFunc(b.rows, func(r, other *row) int { return bytes.Compare(r.key, other.key) })
	return b
}

// add gives request i of c its row.
func (b *batch) add(c *call, i int) {
	q := &c.requests[i]
	key := address(q.Namespace, q.Key)
	r := b.byKey[string(key)]
	if r == nil {
		r = &row{key: key, rule: q.Namespace.Rule}
		if b.rows = append(b.rows, r); b.byKey != nil {
			b.byKey[string(key)] = r
		}
	}
	c.rows[i] = r
}

// row is the row of key, nil if b has none.
func (b *batch) row(key []byte) *row {
	if b.byKey != nil {
		return b.byKey[string(key)]
	}
	if bytes.Equal(b.rows[0].key, key) {
		return b.rows[0]
	}
	return nil
}

// found notes that the table has a row.
func (b *batch) found(key, value []byte) {
	if r := b.row(key); r != nil {
		r.there, r.old = true, bytes.Clone(value)
	}
}

// forget makes all rows as before they were read.
func (b *batch) forget() {
	for _, r := range b.rows {
		r.there, r.old, r.lost = false, nil, false
	}
}

// keys are those of rows, as an array.
func keys(rows []*row) []byte {
	return byteArrays(len(rows), func(i int) []byte { return rows[i].key })
}

// decide decides on all calls at now, but for those whose rows are lost. It returns the rows to write: those that
// the table has, and those that it has not.
func (s *Store) decideAll(b *batch, now int64) (update, insert []*row) {
	if s.clock != nil {
		now = s.clock().UnixMicro()
	}
	for _, r := range b.rows {
		r.read(now)
	}
	for _, c := range b.calls {
		switch {
		case slices.ContainsFunc(c.rows, func(r *row) bool { return r.lost }):
			c.err = errHeld
		default:
			c.err = c.decide(now, s.setBack)
		}
	}
	for _, r := range b.rows {
		switch {
		case !r.changed:
		case r.there:
			update = append(update, r)
		case r.end() > now:
			insert = append(insert, r)
		}
	}
	return update, insert
}

// sweep queues the deletion of rows that have ended on some pages, as many as rows are written.
func (s *Store) sweep(p *pipeline, rows int) {
	pages := min(s.written.Add(uint64(rows))/rowsPerSweep-(s.written.Load()-uint64(rows))/rowsPerSweep, mostPages)
	for range pages {
		before := s.timeNow().Add(-endedFor).UnixMicro()
		p.add(s.sql.sweep, int64s, int8of(int64(s.page.Add(1)&0xffffffff)), int8of(before))
	}
}

// timeNow is about the time of decisions.
func (s *Store) timeNow() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now()
}

const (
	// endedFor is how long rows that have ended stay. Callers with a clock that is behind, and calls that take long,
	// still see them.
	endedFor = time.Minute

	// rowsPerSweep is after how many rows that are written a page is swept. A page has some 40 rows or more, so that rows
	// leave faster than they come.
	rowsPerSweep = 16
	mostPages    = 4 // in one batch
)

// compare decides on calls of one row each, without locks: rows that are still as they were read are written. It
// returns the calls whose rows are not.
func (s *Store) compare(ctx context.Context, conn *pgconn.PgConn, b *batch) (again []*call, err error) {
	var p pipeline
	var at int64
	p.add(s.sql.read, arrays, keys(b.rows))
	if err = p.run(ctx, conn, func(_ int, values [][]byte) {
		if values[0] != nil {
			b.found(values[0], values[1])
		}
		at = max(at, timestamp(values[2]))
	}); err != nil {
		return nil, beforeWriting(err)
	}
	update, insert := s.decideAll(b, at)
	if len(update)+len(insert) > 0 {
		var p pipeline
		for _, list := range [...][]*row{insert, update} {
			if len(list) == 0 {
				continue
			}
			args, err := values(list)
			if err != nil {
				return nil, err
			}
			for _, r := range list {
				r.lost = true // until the server returns its key
			}
			if list[0].there {
				args = append(args, byteArrays(len(list), func(i int) []byte { return list[i].old }))
				p.add(s.sql.compare, compared, args...)
			} else {
				p.add(s.sql.insert, written, args...)
			}
		}
		s.sweep(&p, len(update)+len(insert))
		if err = p.run(ctx, conn, func(_ int, values [][]byte) {
			if r := b.row(values[0]); r != nil {
				r.lost = false
			}
		}); err != nil {
			return nil, whileWriting(err)
		}
	}
	for _, c := range b.calls {
		if c.rows[0].lost {
			c.err = nil
			again = append(again, c)
		} else {
			c.done = c.err == nil
		}
	}
	return again, nil
}

// locked decides on all calls in one transaction, which holds the rows. If it waits for whoever holds one, the answer may
// be lockNotAvailable. Otherwise calls whose rows are held fail with errHeld.
func (s *Store) locked(ctx context.Context, conn *pgconn.PgConn, b *batch, waits bool) (err error) {
	b.forget()
	var p pipeline
	var at int64
	all := keys(b.rows)
	p.add(begin, nil)
	p.add(s.sql.settings, nil)
	const rows, existing = 2, 3
	if waits {
		p.add(s.sql.lock, arrays, all)
		p.add("", nil)
	} else {
		p.add(s.sql.lockFree, arrays, all)
		p.add(s.sql.exist, arrays, all)
	}
	p.add(now, nil)
	defer func() {
		if err != nil && !conn.IsClosed() {
			rollback(ctx, conn)
		}
	}()
	if err = p.run(ctx, conn, func(i int, values [][]byte) {
		switch {
		case i == rows:
			b.found(values[0], values[1])
		case i == existing:
			if r := b.row(values[0]); r != nil && !r.there {
				r.lost = true
			}
		case i > existing:
			at = timestamp(values[0])
		}
	}); err != nil {
		return beforeWriting(err)
	}
	update, insert := s.decideAll(b, at)
	if len(insert) > 0 {
		inserted := 0
		args, err := values(insert)
		if err != nil {
			return err
		}
		var p pipeline
		p.add(s.sql.insert, written, args...)
		if err = p.run(ctx, conn, func(int, [][]byte) { inserted++ }); err != nil {
			return beforeWriting(err)
		}
		if inserted < len(insert) {
			return errRaced
		}
	}
	if len(update)+len(insert) == 0 {
		rollback(ctx, conn) // costs the server less than a COMMIT
	} else if err = s.commit(ctx, conn, update, len(insert)); err != nil {
		return err
	}
	for _, c := range b.calls {
		c.done = c.err == nil
	}
	return nil
}

// commit writes the rows that the transaction holds, and commits them and those that it has inserted.
func (s *Store) commit(ctx context.Context, conn *pgconn.PgConn, update []*row, inserted int) error {
	var p pipeline
	if len(update) > 0 {
		args, err := values(update)
		if err != nil {
			return err
		}
		p.add(s.sql.update, written, args...)
	}
	s.sweep(&p, len(update)+inserted)
	p.add(commit, nil)
	err := p.run(ctx, conn, nil)
	if err == nil && p.last != commit {
		err = fmt.Errorf("the server has answered %q to a COMMIT", p.last)
	}
	return whileWriting(err)
}

// values are the rows, as the arguments of a statement that writes them.
func values(rows []*row) ([][]byte, error) {
	list, ends := make([][]byte, len(rows)), make([]int64, len(rows))
	for i, r := range rows {
		var err error
		if list[i], ends[i], err = r.value(); err != nil {
			return nil, fmt.Errorf("%w: %w", store.ErrStore, err)
		}
	}
	return [][]byte{
		keys(rows),
		byteArrays(len(rows), func(i int) []byte { return list[i] }),
		int8array(ends),
	}, nil
}

// rollback ends the transaction of a connection that works.
func rollback(ctx context.Context, conn *pgconn.PgConn) { _, _ = conn.Exec(ctx, "ROLLBACK").ReadAll() }
