package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

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
	end, _ := ctx.Deadline()
	defer until(conn, end)()
	if !t.Writing().Begin() {
		return nil
	}
	if t.Len() == 0 {
		return s.probe(conn.Conn().PgConn())
	}
	calls := make([]*call, 0, t.Len())
	for c := range t.Calls {
		calls = append(calls, c.Call)
	}
	twice, err := s.decide(conn, calls, true)
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

// alone makes a call on its caller's goroutine. Once it has begun to write, the end of the caller's context does not
// interrupt it, because nobody would know what is charged. It does not wait for rows that others hold: if its time ended
// during such a wait, that would cost a connection, and new connections cost the server more than calls.
func (s *Store) alone(b carrier.Budget, c *call) (*call, bool, error) {
	ctx, cancel := context.WithDeadline(b.Context, b.End)
	conn, err := s.pool.Acquire(ctx)
	cancel()
	if err != nil {
		return c, false, err
	}
	defer until(conn, b.End)()
	if _, err = s.decide(conn, []*call{c}, false); err == nil {
		err = c.err
	}
	return c, true, err
}

// probe writes a row that belongs to no key, and commits: the least that a trip does.
func (s *Store) probe(conn *pgconn.PgConn) error {
	var p pipeline
	p.add(s.sql.probe, nil)
	return p.run(conn, nil)
}

// until ends everything that is done on conn at end, and returns a function that releases conn. A deadline of the socket
// costs less than a context, because pgx starts a goroutine for each context.
func until(conn *pgxpool.Conn, end time.Time) (release func()) {
	socket := conn.Conn().PgConn().Conn()
	_ = socket.SetDeadline(end)
	return func() {
		_ = socket.SetDeadline(time.Time{})
		conn.Release()
	}
}

// decide decides on calls. Its error is that of the connection, or an answer of the server, and applies to all calls
// that are not done and have no error of their own. twice reports whether it took several attempts. If waits is false,
// calls whose rows others hold fail with errHeld.
func (s *Store) decide(conn *pgxpool.Conn, calls []*call, waits bool) (twice bool, err error) {
	b := newBatch(calls)
	if len(b.rows) == 1 && len(calls) == 1 {
		lost, err := s.compare(conn.Conn().PgConn(), b)
		if s.unprepare(err) { // nothing has run
			lost, err = s.compare(conn.Conn().PgConn(), b)
		}
		// A standby answers notSupported in a session that is serializable by default, but reads in locked's transactions.
		if !lost && codeOf(err) != notSupported {
			return false, s.failed(err)
		}
		twice = true
	}
	for range mostAttempts {
		now := time.Now().UnixNano()
		mayWait := waits && now >= s.noWaitUntil.Load()
		err = s.locked(conn.Conn().PgConn(), b, mayWait)
		switch code := codeOf(err); {
		// A short statement_timeout ends a wait first. From now on, only calls whose rows are held fail.
		case code == lockNotAvailable, code == queryCanceled && mayWait:
			s.noWaitUntil.Store(now + retryWaitAfter*int64(s.timeout))
		case errors.Is(err, errRaced), code == deadlockDetected, code == serializationFailure:
		default:
			return twice, s.failed(err)
		}
		twice = true
	}
	return twice, err
}

const (
	// mostAttempts is how often a trip tries to decide before its calls are sent again.
	mostAttempts = 4

	// retryWaitAfter is the number of timeouts for which no trip waits for rows, once a trip has waited without success.
	// Otherwise, repeated calls for a row that a stranger holds would delay all other calls, trip after trip.
	retryWaitAfter = 8
)

// failed returns err. If the server is a standby, or read-only, another server may have taken over, so failed resets the
// pool, at most once per lasting.
func (s *Store) failed(err error) error {
	if code := codeOf(err); code == readOnly || code == notSupported {
		if last, now := s.renewed.Load(), time.Now().UnixNano(); now-last > int64(lasting) && s.renewed.CompareAndSwap(last, now) {
			s.pool.Reset()
		}
	}
	return err
}

// sweep queues the deletion of ended rows on some pages, after rows of b have been written.
func (s *Store) sweep(p *pipeline, b *batch, updated, inserted int) {
	for pages := s.pages(updated, inserted); pages > 0; {
		n := min(pages, mostPages)
		first := (s.page.Add(n) - n) & math.MaxInt32
		p.add(s.sql.sweep, swept, int8of(int64(first)), int8of(int64(n)), int8of(b.now-endedFor)) //nolint:gosec // as above
		pages -= n
	}
}

// pages returns how many pages are to be swept after rows have been written.
func (s *Store) pages(updated, inserted int) uint64 {
	rows := uint64(updated + perInsert*inserted) //nolint:gosec // some thousand
	sum := s.written.Add(rows)
	return sum/rowsPerPage - (sum-rows)/rowsPerPage
}

const (
	// endedFor is how long ended rows stay, in µs. Callers whose clock is behind, and calls that take long, still see
	// them.
	endedFor = 60 * 1e6

	// rowsPerPage is the number of written rows after which another page is swept. An inserted row counts as perInsert. A
	// page has 40 rows or more, so rows are deleted faster than they are inserted.
	rowsPerPage, perInsert = 64, 4

	// mostPages is the maximum number of pages that a statement sweeps. It stops at the end of the table, so the fewer it
	// sweeps, the fewer are left out there.
	mostPages = 16
)

// compare decides on a call of one row without a lock: it writes the row if it is still as it was read. lost reports
// whether it is not, so that nothing was written.
func (s *Store) compare(conn *pgconn.PgConn, b *batch) (lost bool, err error) {
	c, r := b.calls[0], b.rows[0]
	var at int64
	as := s.prepared(conn)
	var p pipeline
	p.addOne(as.readOne, s.sql.readOne, r.key)
	if err = p.run(conn, func(_ int, values [][]byte) {
		if values[0] != nil {
			b.found(r.key, values[0])
		}
		at = timestamp(values[1])
	}); err != nil {
		return false, beforeWriting(err)
	}
	if update, insert := s.decideAll(b, at); len(update)+len(insert) > 0 {
		value, end, err := r.value()
		if err != nil {
			return false, err
		}
		var p pipeline
		if r.there {
			p.addOne(as.compareOne, s.sql.compareOne, r.key, value, int8of(end), r.old)
		} else {
			p.add(s.sql.insertOne, single[:3], r.key, value, int8of(end))
		}
		s.sweep(&p, b, len(update), len(insert))
		lost = true // until the server says that it has written
		if err = p.run(conn, func(int, [][]byte) { lost = false }); err != nil {
			return false, whileWriting(err)
		}
	}
	c.done = !lost && c.err == nil
	return lost, nil
}

// locked decides on all calls in one transaction, which holds their rows. If waits is true, it waits for rows that others
// hold, and the answer may be lockNotAvailable. Otherwise, calls whose rows are held fail with errHeld.
func (s *Store) locked(conn *pgconn.PgConn, b *batch, waits bool) (err error) {
	b.forget()
	defer func() {
		if err != nil && !conn.IsClosed() {
			rollback(conn)
		}
	}()
	at, err := s.lockRows(conn, b, waits)
	if err != nil {
		return beforeWriting(err)
	}
	update, insert := s.decideAll(b, at)
	if err = s.insert(conn, insert); err != nil {
		return beforeWriting(err)
	}
	if len(update)+len(insert) == 0 {
		rollback(conn) // costs the server less than a COMMIT
	} else if err = s.commit(conn, b, update, len(insert)); err != nil {
		return err
	}
	for _, c := range b.calls {
		c.done = c.err == nil
	}
	return nil
}

// lockRows begins a transaction, reads the rows, which it locks unless the calls only look, and then reads the time.
func (s *Store) lockRows(conn *pgconn.PgConn, b *batch, waits bool) (at int64, err error) {
	var p pipeline
	all := keys(b.rows)
	p.add(begin, nil)
	p.add(s.sql.settings, nil)
	const rows, existing = 2, 3
	switch {
	case b.onlyLooks():
		p.add(s.sql.read, arrays, all)
		p.add("", nil) // in place of exist
	case waits:
		p.add(s.sql.lock, arrays, all)
		p.add("", nil)
	default:
		p.add(s.sql.lockFree, arrays, all)
		p.add(s.sql.exist, arrays, all)
	}
	p.add(clock, nil)
	err = p.run(conn, func(i int, values [][]byte) {
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
	})
	return at, err
}

// insert inserts rows. It returns errRaced if one of them already exists.
func (s *Store) insert(conn *pgconn.PgConn, rows []*row) error {
	if len(rows) == 0 {
		return nil
	}
	args, err := values(rows)
	if err != nil {
		return err
	}
	inserted := 0
	var p pipeline
	p.add(s.sql.insert, written, args...)
	if err = p.run(conn, func(int, [][]byte) { inserted++ }); err == nil && inserted < len(rows) {
		err = errRaced
	}
	return err
}

// commit writes the rows that the transaction holds, and commits them together with the inserted ones.
func (s *Store) commit(conn *pgconn.PgConn, b *batch, update []*row, inserted int) error {
	var p pipeline
	if len(update) > 0 {
		args, err := values(update)
		if err != nil {
			return err
		}
		p.add(s.sql.update, written, args...)
	}
	s.sweep(&p, b, len(update), inserted)
	p.add(commit, nil)
	err := p.run(conn, nil)
	if err == nil && p.last != commit {
		err = fmt.Errorf("the server answered COMMIT with %q", p.last)
	}
	return whileWriting(err)
}

// rollback ends the transaction of a connection that works.
func rollback(conn *pgconn.PgConn) { _, _ = conn.Exec(context.Background(), "ROLLBACK").ReadAll() }
