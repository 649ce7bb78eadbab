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
		f, err := s.findings(ctx, conns[0])
		switch blocking := f.blocking; {
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
		f, err := s.findings(ctx, conn)
		found = append(f.blocking, f.others...)
		return err
	})
	return found, err
}

// The findings that a failover may end.
const (
	isReplica = "the server is a replica, which only reads. Connect to the primary, for example with target_session_attrs=read-write."
	onlyReads = "transactions only read (default_transaction_read_only). Set it off for this user or database."
)

// findings are what keeps the store from working, and what else is not as it should be.
type findings struct{ blocking, others []string }

func (f *findings) blocks(format string, args ...any) {
	f.blocking = append(f.blocking, fmt.Sprintf(format, args...))
}

func (f *findings) other(format string, args ...any) {
	f.others = append(f.others, fmt.Sprintf(format, args...))
}

func (s *Store) findings(ctx context.Context, conn *pgxpool.Conn) (f findings, err error) {
	of, err := askServer(ctx, conn)
	if err != nil {
		return f, err
	}
	s.judge(&of, &f)
	if n := s.carrier.Stats().TooShort; n > 0 {
		f.other("%d calls had less time than a round trip takes, and were not sent. Give the contexts of calls more time.", n)
	}
	finding, err := s.layout(ctx, conn)
	switch {
	case err != nil:
	case errors.Is(finding, errNoTable):
		f.blocks("the table %s does not exist, or its schema is not on the search path. Call Migrate, or run what Schema returns.", s.table())
	case finding != nil:
		f.blocks("%v.", finding)
	default:
		err = s.judgeTable(ctx, conn, &f)
	}
	return f, err
}

// server is what a server says of itself, and when.
type server struct {
	version                           string
	recovery                          bool
	readOnly, synchronous, autovacuum string
	us                                int64 // its clock, in Unix µs
	began, ended                      time.Time
}

func askServer(ctx context.Context, conn *pgxpool.Conn) (of server, err error) {
	of.version, of.began = conn.Conn().PgConn().ParameterStatus("server_version"), time.Now()
	err = conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('synchronous_commit'),
		current_setting('autovacuum'), (extract(epoch FROM clock_timestamp()) * 1e6)::bigint`, pgx.QueryExecModeExec).
		Scan(&of.recovery, &of.readOnly, &of.synchronous, &of.autovacuum, &of.us) // not a text, which would be in the session's DateStyle
	of.ended = time.Now()
	return of, err
}

// judge adds the findings about the server.
func (s *Store) judge(of *server, f *findings) {
	major, _, _ := strings.Cut(of.version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < leastVersion {
		f.blocks("Postgres %s is too old: the store needs %d or later. Upgrade it.", of.version, leastVersion)
	}
	switch {
	case of.recovery:
		f.blocks(isReplica)
	case of.readOnly == "on":
		f.blocks(onlyReads)
	}
	at := time.UnixMicro(of.us)
	if ahead := max(at.Sub(of.ended), 0) - max(of.began.Sub(at), 0); ahead.Abs() > clockSlack && s.clock == nil {
		f.other("the server's clock is %v ahead of this machine's. Decisions go by the server's, so windows begin and end at other "+
			"times than this machine thinks. Set both clocks by NTP.", ahead.Round(time.Millisecond))
	}
	if trip := of.ended.Sub(of.began); 2*trip > s.timeout {
		f.other("a round trip takes %v, and a call, which takes two to four, has %v. Set WithTimeout to at least %v.",
			trip.Round(time.Millisecond), s.timeout, (8 * trip).Round(time.Millisecond))
	}
	if of.synchronous == "off" {
		f.other("synchronous_commit is off, so a crash of the server forgets the decisions of its last moments, less than a second. " +
			"Their events may be admitted once more.")
	}
	if of.autovacuum == "off" {
		f.other("autovacuum is off, so the table grows without bound. Set it on.")
	}
}

// judgeTable adds the findings about the table.
func (s *Store) judgeTable(ctx context.Context, conn *pgxpool.Conn, f *findings) error {
	var missing []string
	var unlogged bool
	var options string
	err := conn.QueryRow(ctx, `SELECT array(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
			WHERE NOT has_table_privilege(c.oid, p)), relpersistence = 'u', coalesce(array_to_string(reloptions, ','), '')
		FROM pg_class c WHERE oid = to_regclass($1)`, pgx.QueryExecModeExec, s.table()).Scan(&missing, &unlogged, &options)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		f.blocks("the user may not %s on the table %s. Run GRANT SELECT, INSERT, UPDATE, DELETE ON %[2]s TO the user.",
			strings.Join(missing, ", "), s.table())
	}
	if unlogged {
		f.other("the table is unlogged: after a crash or a failover it is empty, and each key starts again with its whole limit.")
	}
	if !strings.Contains(options, "fillfactor") || !strings.Contains(options, "autovacuum_vacuum_scale_factor") {
		f.other("the table has no fillfactor or no settings of autovacuum, so it grows more than it needs to. " +
			"Set those that Schema returns by ALTER TABLE.")
	}
	return nil
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
