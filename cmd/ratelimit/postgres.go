package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
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

// bucket is the algorithm of a row that a token bucket or a leaky bucket has written.
const bucket = "bucket"

// algorithmsOfRows are the algorithms that rows tell.
var algorithmsOfRows = append(slices.DeleteFunc(slices.Clone(algorithms), isBucket), bucket)

func isBucket(algorithm string) bool { return strings.HasSuffix(algorithm, "_"+bucket) }

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

// ruleSpy is a store that only learns the rule of a limiter that is made on it.
type ruleSpy struct {
	store.Store
	rule *store.Rule
}

func (s *ruleSpy) Prepare(rule *store.Rule, _ store.Limit, _ bool) error {
	s.rule = rule
	return nil
}

// rulesOf returns the rules of algorithms.
func rulesOf(algorithms []string) (map[string]*store.Rule, error) {
	rules, inside := make(map[string]*store.Rule), ratelimit.Limiter(nil)
	for _, algorithm := range algorithms {
		var err error
		spy := new(ruleSpy)
		switch algorithm {
		case ban:
			_, err = ratelimit.NewBan(inside, spy, ratelimit.Penalty{Denials: 1, Within: time.Second, For: time.Second})
		case inflight.Algorithm:
			_, err = inflight.New(spy, 1, time.Second)
		default:
			inside, err = ratelimit.New(algorithm, spy, ratelimit.PerDay(1))
		}
		if err != nil {
			return nil, err
		}
		rules[algorithm] = spy.rule
	}
	return rules, nil
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
			if len(value) > 0 && (ends > now || h.err != nil) { // a value that has ended is deleted later
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

// The first bytes of values. A value that begins with 0 has slots: it begins with a time.
const (
	formSlots   = 0
	formState   = 1
	formLog     = 2
	formShifted = 3
)

var errNoState = errors.New("the value is not a state")

// readRow reads a value. The algorithm is "?" if it is not known.
func (h *held) readRow(rules map[string]*store.Rule, value []byte, ends, now int64) error {
	h.algorithm = "?"
	if len(value) == 0 {
		return errNoState
	}
	switch value[0] {
	case formSlots:
		h.algorithm = inflight.Algorithm
		return h.readSlotRow(rules[inflight.Algorithm], value, now)
	case formState:
		return h.readStateRow(rules, value, ends, now)
	case formLog, formShifted:
		h.algorithm = "sliding_log"
		return h.readLogRow(rules[h.algorithm], value, now)
	}
	return errNoState
}

// readStateRow reads a state. It does not name its algorithm, but only one algorithm lets it end at
// ends, to the µs. Both buckets do, because their states are alike.
func (h *held) readStateRow(rules map[string]*store.Rule, value []byte, ends, now int64) error {
	s, l, err := store.ParseState(value)
	if err != nil {
		return errNoState
	}
	var of []string
	for name, rule := range rules {
		if rule.NewLog == nil && s.At+rule.TTL(s, l) == ends {
			of = append(of, name)
		}
	}
	h.limit = ratelimit.Limit{Rate: int(l.Rate), Period: time.Duration(l.Period) * time.Microsecond}
	if len(of) != 1 && !(len(of) == 2 && isBucket(of[0]) && isBucket(of[1])) {
		return errors.New("the value does not tell its algorithm")
	}
	h.algorithm = of[0]
	if h.algorithm == ban {
		h.setBan(stored{time.UnixMicro(s.At), h.limit, int(s.Whole), time.Duration(s.Part) * time.Microsecond}, time.UnixMicro(now))
		h.limit.Period = 0 // the Within is not known
		return nil
	}
	h.calendar = h.algorithm == "fixed_window" && s.Part > 0
	l = h.wideIntegers()
	_, reply := rules[h.algorithm].Step(s, l, now, 1)
	h.setSpent(rules[h.algorithm], l, reply)
	for _, by := range [...]ratelimit.Limit{ratelimit.PerWeek(h.limit.Rate), ratelimit.PerMonth(h.limit.Rate)} {
		if h.calendar && h.limit.Period == by.Period { // its first day and its zone are not known
			h.limit = by
		}
	}
	if isBucket(h.algorithm) {
		h.algorithm = bucket
	}
	return nil
}

// wideIntegers returns the limit of wide, as rules take it.
func (h *held) wideIntegers() store.Limit {
	wide := h.wide()
	return store.Limit{Rate: int64(wide.Rate), Period: wide.Period.Microseconds(), Burst: int64(cmp.Or(wide.Burst, wide.Rate))}
}

// setSpent sets what a reply under l, which is wide, says of the spend.
func (h *held) setSpent(rule *store.Rule, l store.Limit, reply store.Reply) {
	report := reply.Report(rule, l, 1, 0)
	h.spent, h.reset = int(l.Burst-report.Remaining), time.Duration(report.Reset)*time.Microsecond
}

// readLogRow reads a sliding log. It may follow the µs by which the server's clock was set back.
func (h *held) readLogRow(rule *store.Rule, value []byte, now int64) error {
	var shift int64
	if value[0] == formShifted {
		n := 0
		if shift, n = binary.Varint(value[1:]); n <= 0 {
			return errNoState
		}
		value = value[1+n:]
	}
	log, err := rule.ParseLog(value)
	if err != nil {
		return errNoState
	}
	period, _ := binary.Uvarint(value[1:])
	h.limit.Period = time.Duration(period) * time.Microsecond //nolint:gosec // ParseLog limits it
	l := h.wideIntegers()
	h.setSpent(rule, l, log.Step(l, now-shift, 1))
	return nil
}

// readSlotRow reads the slots of package inflight: the last number, then the number and the end of
// each. Their holders are not known.
func (h *held) readSlotRow(rule *store.Rule, value []byte, now int64) error {
	if _, err := rule.ParseLog(value); err != nil {
		return errNoState
	}
	for b := value[8:]; len(b) > 0; b = b[16:] {
		number, end := int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:])) //nolint:gosec // the bits stay
		if end > now {
			h.addSlot(slot{number: number}, time.UnixMicro(end), time.UnixMicro(now))
		}
	}
	return nil
}

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
