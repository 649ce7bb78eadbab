package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

const (
	mostConns    = 16                     // the most connections of a carrier
	leastVersion = 14                     // of Postgres; older versions read a whole table to find one of its pages
	clockSlack   = 100 * time.Millisecond // the accepted difference between clocks
)

// Ready makes the connections that many callers will use at the same time, up to 16, and finds out whether the store
// can work. Call it when a program starts. Its error says why it cannot: the server is not reached, only reads or
// is too old, the table is missing or has another layout, the user has no permission, or a pooler allows no transactions.
//
// Ready returns by ctx's deadline, or within 5 s. Its error is ctx's own or wraps [store.ErrStore]. The store still
// works after an error, once its cause is gone.
func (s *Store) Ready(ctx context.Context) error {
	return s.within(ctx, func(ctx context.Context) error {
		conns, err := s.acquire(ctx)
		end, _ := ctx.Deadline()
		for _, conn := range conns {
			defer until(conn, end)() // a probe may have to wait for the table
		}
		if err != nil {
			return err
		}
		blocking, _, err := s.findings(ctx, conns[0])
		switch {
		case err != nil:
			return err
		case len(blocking) > 0:
			class := store.ErrStore
			if len(blocking) == 1 && (blocking[0] == isReplica || blocking[0] == onlyReads) {
				class = store.ErrUnavailable // as for calls, because a failover may end it
			}
			return &carrier.Failure{Class: class, Err: errors.New(strings.Join(blocking, " "))}
		}
		conn := conns[0].Conn().PgConn()
		var p pipeline
		p.add(begin, nil)
		if err := p.run(conn, nil); err != nil {
			if strings.Contains(err.Error(), "statement pooling") { // PgBouncer has one code for all of its errors
				return &carrier.Failure{Class: store.ErrStore, Err: err}
			}
			return err
		}
		rollback(conn)
		began := time.Now()
		if err := s.probe(conn); err != nil {
			return whileWriting(err)
		}
		took := time.Since(began)
		for _, conn := range conns {
			s.prepared(conn.Conn().PgConn())
		}
		s.carrier.Warmed(len(conns), took)
		return nil
	})
}

// acquire acquires as many connections as calls will use, or as many as the server and the rest of the program leave.
func (s *Store) acquire(ctx context.Context) (conns []*pgxpool.Conn, err error) {
	first, err := s.pool.Acquire(ctx) // one is enough to find out that the server refuses all
	if err != nil {
		return nil, err
	}
	conns = []*pgxpool.Conn{first}
	limited, cancel := context.WithTimeout(ctx, lasting)
	defer cancel()
	var mu sync.Mutex // protects conns
	var made sync.WaitGroup
	for range min(mostConns, s.pool.Config().MaxConns) - 1 {
		made.Go(func() {
			if conn, err := s.pool.Acquire(limited); err == nil {
				mu.Lock()
				defer mu.Unlock()
				conns = append(conns, conn)
			}
		})
	}
	made.Wait()
	return conns, nil
}

// Check looks for settings of the pool, the server and the table under which limits do not hold, or calls fail or cost more than they
// need to. Each finding is one or two sentences for a log: what is set, why it matters, and what to do. The store keeps
// working with any of them, except with those that [Store.Ready] returns as an error.
//
// Check returns by ctx's deadline, or within 5 s. An error means that the server could not be asked. It is ctx's own or
// wraps [store.ErrStore].
func (s *Store) Check(ctx context.Context) (found []string, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		blocking, others, err := s.findings(ctx, conn)
		found = append(blocking, others...)
		return err
	})
	return found, err
}

// The findings that a failover may end.
const (
	isReplica = "the server is a replica, which only reads. Connect to the primary, for example with target_session_attrs=read-write."
	onlyReads = "transactions only read (default_transaction_read_only). Set it off for this user or database."
)

// findings returns what keeps the store from working, and what else is not as it should be.
func (s *Store) findings(ctx context.Context, conn *pgxpool.Conn) (blocking, others []string, err error) {
	found, err := s.serverFindings(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	if n := s.carrier.Stats().TooShort; n > 0 {
		found[1] = append(found[1], fmt.Sprintf("%d calls had less time than a round trip takes, and were not sent. "+
			"Give the contexts of calls more time.", n))
	}
	finding, err := s.layout(ctx, conn)
	switch {
	case err != nil:
	case errors.Is(finding, errNoTable):
		found[0] = append(found[0], fmt.Sprintf("the table %s does not exist, or its schema is not on the search path. "+
			"Call Migrate, or run what Schema returns.", s.table()))
	case finding != nil:
		found[0] = append(found[0], finding.Error()+".")
	default:
		var more [2][]string
		more, err = s.tableFindings(ctx, conn)
		found[0], found[1] = append(found[0], more[0]...), append(found[1], more[1]...)
	}
	return found[0], found[1], err
}

// serverFindings returns the findings about the server: the blocking ones, and the others.
func (s *Store) serverFindings(ctx context.Context, conn *pgxpool.Conn) (found [2][]string, err error) {
	blocks := func(format string, args ...any) { found[0] = append(found[0], fmt.Sprintf(format, args...)) }
	other := func(format string, args ...any) { found[1] = append(found[1], fmt.Sprintf(format, args...)) }
	version := conn.Conn().PgConn().ParameterStatus("server_version")
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < leastVersion {
		blocks("Postgres %s is too old: the store needs %d or later. Upgrade it.", version, leastVersion)
	}
	var recovery bool
	var readOnly, synchronous, autovacuum string
	var us int64
	began := time.Now()
	err = conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('synchronous_commit'),
		current_setting('autovacuum'), (extract(epoch FROM clock_timestamp()) * 1e6)::bigint`, pgx.QueryExecModeExec).
		Scan(&recovery, &readOnly, &synchronous, &autovacuum, &us) // not a text, which would be in the session's DateStyle
	if err != nil {
		return found, err
	}
	ended, at := time.Now(), time.UnixMicro(us)
	switch {
	case recovery:
		blocks(isReplica)
	case readOnly == "on":
		blocks(onlyReads)
	}
	if ahead := max(at.Sub(ended), 0) - max(began.Sub(at), 0); ahead.Abs() > clockSlack && s.clock == nil {
		other("the server's clock is %v ahead of this machine's. Decisions go by the server's, so windows begin and end at other "+
			"times than this machine thinks. Set both clocks by NTP.", ahead.Round(time.Millisecond))
	}
	if trip := ended.Sub(began); 2*trip > s.timeout {
		other("a round trip takes %v, and a call, which takes two to four, has %v. Set WithTimeout to at least %v.",
			trip.Round(time.Millisecond), s.timeout, (8 * trip).Round(time.Millisecond))
	}
	if synchronous == "off" {
		other("synchronous_commit is off, so a crash of the server forgets the decisions of its last moments, less than a second. " +
			"Their events may be admitted once more.")
	}
	if autovacuum == "off" {
		other("autovacuum is off, so the table grows without bound. Set it on.")
	}
	return found, nil
}

// tableFindings returns the findings about the table: the blocking ones, and the others.
func (s *Store) tableFindings(ctx context.Context, conn *pgxpool.Conn) (found [2][]string, err error) {
	var missing []string
	var unlogged bool
	var options string
	err = conn.QueryRow(ctx, `SELECT array(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
			WHERE NOT has_table_privilege(c.oid, p)), relpersistence = 'u', coalesce(array_to_string(reloptions, ','), '')
		FROM pg_class c WHERE oid = to_regclass($1)`, pgx.QueryExecModeExec, s.table()).Scan(&missing, &unlogged, &options)
	if err != nil {
		return found, err
	}
	if len(missing) > 0 {
		found[0] = append(found[0], fmt.Sprintf("the user may not %s on the table %s. Run GRANT SELECT, INSERT, UPDATE, DELETE ON %[2]s TO the user.",
			strings.Join(missing, ", "), s.table()))
	}
	if unlogged {
		found[1] = append(found[1], "the table is unlogged: after a crash or a failover it is empty, and each key starts again with its whole limit.")
	}
	if !strings.Contains(options, "fillfactor") || !strings.Contains(options, "autovacuum_vacuum_scale_factor") {
		found[1] = append(found[1], "the table has no fillfactor or no settings of autovacuum, so it grows more than it needs to. "+
			"Set those that Schema returns by ALTER TABLE.")
	}
	return found, nil
}

// Stats is what a [Store] knows of its calls. Overloaded and TooShort only grow.
type Stats struct {
	UnderWay   int64         // calls that have not returned
	Overloaded int64         // calls that ended with [store.ErrOverloaded], and were not sent
	TooShort   int64         // calls that had less time than a round trip, and were not sent
	RoundTrip  time.Duration // the shortest recent transaction; 0 if it is not known
}

// Stats returns what is known up to now.
func (s *Store) Stats() Stats {
	if s.carrier == nil {
		return Stats{}
	}
	of := s.carrier.Stats()
	return Stats{UnderWay: of.UnderWay, Overloaded: of.Overloaded, TooShort: of.TooShort, RoundTrip: of.RoundTrip}
}
