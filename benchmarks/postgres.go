package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

// postgresKind is what a server and its table do at a commit.
type postgresKind struct {
	name     string
	unlogged bool
	setting  string // of the server
}

var postgresKinds = []postgresKind{
	{"logged", false, "synchronous_commit=on"},
	{"logged, synchronous_commit = off", false, "synchronous_commit=off"},
	{"unlogged", true, "synchronous_commit=on"},
}

// peersUpsert is the statement of rate-limiter-flexible, which is written for Node. It is sent as a Go program would: by pgx, which prepares it.
const peersUpsert = `INSERT INTO peer VALUES ($1, $2, $3) ON CONFLICT (key) DO UPDATE SET
	points = CASE WHEN peer.expire <= $4 THEN $2 ELSE peer.points + $2 END,
	expire = CASE WHEN peer.expire <= $4 THEN $3 ELSE peer.expire END
	RETURNING points, expire`

const (
	postgresConns = 16
	postgresKeys  = 10_000
)

// measurePostgres compares the store with the upsert, side by side, with a window of an hour that admits everything.
func (b *bench) measurePostgres(ctx context.Context) error {
	bin := postgresBinaries()
	if bin == "" {
		return nil
	}
	fmt.Fprintf(b.out, "### On Postgres\n\n%d keys, and a pool of %d connections each. The server and the callers share the processors. Medians of the "+
		"rounds, in turns. The times are those of the processor for a decision, of the server and of the process that asks.\n\n"+
		"| table | callers | | decisions/s | beside the upsert | µs of the processor | beside the upsert |\n|---|--:|---|--:|--:|--:|--:|\n", postgresKeys, postgresConns)
	for _, kind := range postgresKinds {
		b.progress("postgres: %s", kind.name)
		if err := b.measurePostgresKind(ctx, bin, kind); err != nil {
			return err
		}
	}
	fmt.Fprintln(b.out)
	return nil
}

// postgresWays are the contestants: the upsert is the first.
var postgresWays = []string{"upsert", "FixedWindow", "All of 2 limits", "FixedWindow, leases"}

func (b *bench) measurePostgresKind(ctx context.Context, bin string, kind postgresKind) error {
	url, pids, stop, err := startPostgres(ctx, bin, kind.setting)
	if err != nil {
		return err
	}
	defer stop()
	var ways [4]func(context.Context, string) error
	for i := range ways {
		pool, err := pgxpool.New(ctx, url+"&pool_max_conns="+strconv.Itoa(postgresConns))
		if err != nil {
			return err
		}
		defer pool.Close()
		if i == 0 {
			ways[i], err = upsert(ctx, pool, kind)
		} else {
			var end func()
			ways[i], end, err = onPostgres(ctx, pool, kind, postgresWays[i])
			if err == nil {
				defer end()
			}
		}
		if err != nil {
			return err
		}
		postgresPress(ctx, 64, b.postgresTime, pids, ways[i]) // makes connections and rows
	}
	for _, callers := range b.postgresCallers {
		var rounds [len(ways)][]postgresRound
		for range b.postgresRounds {
			for i, ask := range ways {
				rounds[i] = append(rounds[i], postgresPress(ctx, callers, b.postgresTime, pids, ask))
			}
		}
		peer := medianRound(rounds[0])
		for i := range ways {
			r := medianRound(rounds[i])
			failed := ""
			if r.failures > 0 {
				failed = fmt.Sprintf(" (%d errors)", r.failures)
			}
			fmt.Fprintf(b.out, "| %s | %d | %s | %.0f%s | %.2f | %.1f | %.2f |\n", kind.name, callers, postgresWays[i], r.rate, failed, r.rate/peer.rate, r.cpu, r.cpu/peer.cpu)
		}
	}
	return ctx.Err()
}

func upsert(ctx context.Context, pool *pgxpool.Pool, kind postgresKind) (func(context.Context, string) error, error) {
	create := "CREATE TABLE"
	if kind.unlogged {
		create = "CREATE UNLOGGED TABLE"
	}
	_, err := pool.Exec(ctx, create+" peer (key varchar(255) PRIMARY KEY, points integer NOT NULL DEFAULT 0, expire bigint)")
	return func(ctx context.Context, key string) error {
		now := time.Now().UnixMilli()
		var points, expire int64
		return pool.QueryRow(ctx, peersUpsert, key, 1, now+time.Hour.Milliseconds(), now).Scan(&points, &expire)
	}, err
}

// onPostgres is a limiter of this library.
func onPostgres(ctx context.Context, pool *pgxpool.Pool, kind postgresKind, way string) (ask func(context.Context, string) error, end func(), err error) {
	opts := []pgstore.Option{pgstore.WithTable("limits" + strconv.Itoa(slices.Index(postgresWays, way)))}
	if kind.unlogged {
		opts = append(opts, pgstore.WithUnlogged())
	}
	s, err := pgstore.New(pool, opts...)
	if err != nil {
		return nil, nil, err
	}
	if err = errors.Join(s.Migrate(ctx), s.Ready(ctx)); err != nil {
		return nil, nil, err
	}
	var st store.Store = s
	end = func() {}
	if way == postgresWays[3] {
		leased, err := lease.New(s, 5*time.Second)
		if err != nil {
			return nil, nil, err
		}
		st, end = leased, func() { _ = leased.Close(context.WithoutCancel(ctx)) }
	}
	var l ratelimit.Limiter
	l, err = ratelimit.NewFixedWindow(st, ratelimit.PerHour(1<<30), ratelimit.WithName("first"))
	if way == postgresWays[2] && err == nil {
		var second *ratelimit.TokenBucket
		if second, err = ratelimit.NewTokenBucket(st, ratelimit.PerHour(1<<30), ratelimit.WithName("second")); err == nil {
			l, err = ratelimit.NewAll(l, second)
		}
	}
	return func(ctx context.Context, key string) error {
		_, err := l.Allow(ctx, key)
		return err
	}, end, err
}

// postgresRound is what was measured once.
type postgresRound struct {
	rate     float64 // decisions per second
	cpu      float64 // µs of the processor for a decision
	failures int64
}

func medianRound(rounds []postgresRound) postgresRound {
	r := postgresRound{}
	for i := range rounds {
		r.failures += rounds[i].failures
	}
	slices.SortFunc(rounds, func(a, b postgresRound) int { return int(math.Copysign(1, a.cpu-b.cpu)) })
	r.cpu = rounds[len(rounds)/2].cpu
	slices.SortFunc(rounds, func(a, b postgresRound) int { return int(math.Copysign(1, a.rate-b.rate)) })
	r.rate = rounds[len(rounds)/2].rate
	return r
}

// postgresPress has so many callers ask again and again for d.
func postgresPress(ctx context.Context, callers int, d time.Duration, pids func() []int, ask func(context.Context, string) error) (r postgresRound) {
	var ok, failed atomic.Int64
	var all sync.WaitGroup
	busy, begun := usedCPU()+spentBy(pids()), time.Now()
	for i := range callers {
		all.Go(func() {
			for n := 0; time.Since(begun) < d; n++ {
				if err := ask(ctx, "user:"+strconv.Itoa((i*31+n)%postgresKeys)); err == nil {
					ok.Add(1)
				} else {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	calls := float64(max(1, ok.Load()))
	r.rate = calls / time.Since(begun).Seconds()
	r.cpu = float64((usedCPU() + spentBy(pids()) - busy).Microseconds()) / calls
	r.failures = failed.Load()
	return r
}

// spentBy is the time of the processor that these processes have had.
func spentBy(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		var ns int64
		_, _ = fmt.Fscan(bytes.NewReader(text), &ns)
		sum += time.Duration(ns)
	}
	return sum
}

// postgresBinaries is the directory with initdb, "" if there is none.
func postgresBinaries() string {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	return ""
}

// startPostgres starts a server on the loopback interface, with its files in a temporary folder. pids are its processes. It ends
// with stop, or with ctx.
func startPostgres(ctx context.Context, bin, setting string) (url string, pids func() []int, stop func(), err error) {
	dir, err := os.MkdirTemp("", "benchmarks")
	if err != nil {
		return "", nil, nil, err
	}
	stop = func() { _ = os.RemoveAll(dir) }
	var attributes *syscall.SysProcAttr
	if os.Getuid() == 0 { // as whom it refuses to run
		u, err := osuser.Lookup("nobody")
		if err != nil {
			return "", nil, nil, err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		attributes = asUser(uid, gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			return "", nil, nil, err
		}
	}
	data, port := filepath.Join(dir, "data"), strconv.Itoa(20_000+rand.IntN(12_000))
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, attributes
		return cmd
	}
	if out, err := command("initdb", "--pgdata", data, "--auth", "trust", "--username", "postgres", "--no-sync", "--locale", "C").CombinedOutput(); err != nil {
		stop()
		return "", nil, nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	cmd := command("postgres", "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", setting, "-c", "max_connections=200")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	if err := cmd.Start(); err != nil {
		stop()
		return "", nil, nil, err
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	pids = func() (list []int) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		for _, field := range bytes.Fields(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				list = append(list, pid)
			}
		}
		return list
	}
	addr := net.JoinHostPort("127.0.0.1", port)
	url = "postgres://postgres@" + addr + "/postgres?sslmode=disable"
	for range 1000 {
		pool, err := pgxpool.New(ctx, url)
		if err == nil {
			err = pool.Ping(ctx)
			pool.Close()
		}
		if err == nil {
			return url, pids, stop, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	return "", nil, nil, fmt.Errorf("postgres did not come up at %s", addr)
}
