package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// leasing is the environment variable with which a process is a fleetMember.
const leasing = "RATELIMIT_BENCHMARK_LEASE"

// leaseCell is the work of a fleet: so many processes, each of so many callers, all on the same
// keys.
type leaseCell struct {
	Name      string
	Processes int
	Callers   int // in each process
	Keys      int // 0 is another one in each call
	Zipf      bool
	Algorithm string
	Limit     ratelimit.Limit
	Limits    int // as many of it in an All; 0 is one alone
	Life      time.Duration
}

// fleetMember is one process of a cell.
type fleetMember struct {
	leaseCell
	How  string // one of leaseWays
	Addr string
	Time time.Duration
	Seed uint64
}

// fleetResult is what a process, or all of a fleet, has done.
type fleetResult struct {
	Decisions, Admitted int64
	CPU                 time.Duration // of the processes and of the server
	Commands            float64       // scripts that the server has run
}

const plainWay = "plain"

var leaseWays = []string{plainWay, "coalesce", "lease", "lease, overdraft 8"}

var (
	million   = ratelimit.Limit{Rate: 1_000_000, Period: time.Second}
	thousand  = ratelimit.Limit{Rate: 1_000, Period: time.Second}
	perMinute = ratelimit.Limit{Rate: 60_000_000, Period: time.Minute}
)

// leaseCells are those of docs/scaling.md.
func leaseCells() (cells []leaseCell) {
	for _, processes := range []int{1, 4} {
		for _, callers := range []int{32, 512} {
			for _, keys := range []int{1, 100} {
				cells = append(cells, leaseCell{
					Name:      fmt.Sprintf("%d × %d callers, %d keys", processes, callers/processes, keys),
					Processes: processes, Callers: callers / processes, Keys: keys,
					Algorithm: "token_bucket", Limit: million, Life: 50 * time.Millisecond,
				})
			}
		}
	}
	for _, zipf := range []bool{true, false} {
		spread := map[bool]string{true: "Zipf", false: "uniform"}[zipf]
		cells = append(cells, leaseCell{
			Name: "1 × 512 callers, 10,000 keys, " + spread, Processes: 1, Callers: 512, Keys: 10_000, Zipf: zipf,
			Algorithm: "fixed_window", Limit: perMinute, Life: time.Second,
		})
	}
	for _, algorithm := range []string{"token_bucket", "fixed_window", "sliding_window", "sliding_log"} {
		cells = append(cells, leaseCell{
			Name: "4 × 64 callers at a limit of 1,000/s, " + algorithm, Processes: 4, Callers: 64, Keys: 1,
			Algorithm: algorithm, Limit: thousand, Life: 50 * time.Millisecond,
		})
	}
	for _, callers := range []int{32, 512, 8192} {
		cells = append(cells, leaseCell{
			Name: fmt.Sprintf("1 × %d callers, 1 key, three limits in an All", callers), Processes: 1, Callers: callers, Keys: 1,
			Algorithm: "token_bucket", Limit: million, Limits: 3, Life: 50 * time.Millisecond,
		})
	}
	return append(cells, leaseCell{
		Name: "1 × 32 callers, each key once", Processes: 1, Callers: 32,
		Algorithm: "token_bucket", Limit: million, Life: 50 * time.Millisecond,
	})
}

// measureLeased writes decisions per second, processor time and commands of each way, as parts
// of the plain one's.
func (b *bench) measureLeased(ctx context.Context) error {
	if !haveRedis() {
		fmt.Fprintln(b.out, "\nLeases were not measured: there is no redis-server on the PATH.")
		return nil
	}
	addr, stop, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer stop()
	cells := b.leaseCells
	names := make([]string, len(cells))
	for i := range cells {
		names[i] = cells[i].Name
	}
	speed := newGrid("Leases, decisions/s over plain", names)
	speed.note = "From a cold start. Plain is in decisions/s."
	work := newGrid("Leases, processor time of a decision (clients and Redis), plain over it", names)
	commands := newGrid("Leases, scripts that Redis runs for a decision", names)
	commands.printed = func(x float64) string { return fmt.Sprintf("%.5f", x) }
	for row, cell := range cells {
		b.progress("leased: %s", cell.Name)
		var plain fleetResult
		for _, how := range leaseWays {
			if strings.Contains(how, "overdraft") && cell.Algorithm == "sliding_window" {
				continue
			}
			r, err := b.bestFleet(ctx, addr, cell, how)
			if how == plainWay {
				plain = r
			}
			rate := float64(r.Decisions) / float64(plain.Decisions)
			if how == plainWay {
				rate = float64(r.Decisions) / b.leaseTime.Seconds()
			}
			speed.set(how, row, rate, err)
			work.set(how, row, perDecision(plain)/perDecision(r), err)
			commands.set(how, row, r.Commands/float64(max(1, r.Decisions)), err)
		}
	}
	b.report(speed, work, commands)
	return nil
}

func perDecision(r fleetResult) float64 { return float64(r.CPU) / float64(max(1, r.Decisions)) }

// bestFleet is the fastest of some rounds.
func (b *bench) bestFleet(ctx context.Context, addr string, cell leaseCell, how string) (best fleetResult, err error) {
	for range b.leaseRounds {
		if _, err := emptied(ctx, addr); err != nil {
			return best, err
		}
		r, err := b.fleet(ctx, addr, cell, how)
		if err != nil {
			return best, err
		}
		if r.Decisions > best.Decisions {
			best = r
		}
	}
	return best, nil
}

// fleet runs the processes of a cell at the same time.
func (b *bench) fleet(ctx context.Context, addr string, cell leaseCell, how string) (sum fleetResult, err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	members := make([]*member, cell.Processes)
	for i := range members {
		if members[i], err = startMember(ctx, fleetMember{cell, how, addr, b.leaseTime, uint64(i)}); err != nil {
			return sum, err
		}
		defer members[i].end()
	}
	for _, m := range members {
		if line, err := m.out.ReadString('\n'); err != nil || line != "ready\n" {
			return sum, errors.Join(fmt.Errorf("a process says %q", line), err)
		}
	}
	before, err := serverWork(ctx, client)
	if err != nil {
		return sum, err
	}
	for _, m := range members {
		if _, err := io.WriteString(m.in, "go\n"); err != nil {
			return sum, err
		}
	}
	for _, m := range members {
		var r fleetResult
		if err := json.NewDecoder(m.out).Decode(&r); err != nil {
			return sum, err
		}
		sum.Decisions, sum.Admitted, sum.CPU = sum.Decisions+r.Decisions, sum.Admitted+r.Admitted, sum.CPU+r.CPU
	}
	after, err := serverWork(ctx, client)
	sum.CPU += after.CPU - before.CPU
	sum.Commands = after.Commands - before.Commands
	return sum, err
}

// member is a process that was started.
type member struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startMember(ctx context.Context, f fleetMember) (*member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startChild(ctx, self, leasing, f)
}

// startChild starts the program at path as what spec says.
func startChild(ctx context.Context, path, variable string, spec any) (*member, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	m := &member{cmd: exec.CommandContext(ctx, path)}
	m.cmd.Env = append(os.Environ(), variable+"="+string(text))
	m.cmd.Stderr = os.Stderr
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.out = bufio.NewReader(out)
	return m, m.cmd.Start()
}

func (m *member) end() {
	_ = m.in.Close()
	_ = m.cmd.Wait()
}

// serverWork is what the server has done up to now.
func serverWork(ctx context.Context, client *redis.Client) (r fleetResult, err error) {
	stats, err := commandStats(ctx, client)
	if err != nil {
		return r, err
	}
	r.Commands = stats["evalsha"].calls + stats["eval"].calls
	info := client.InfoMap(ctx, "cpu")
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		d, err := time.ParseDuration(info.Item("CPU", name) + "s")
		if err != nil {
			return r, err
		}
		r.CPU += d
	}
	return r, info.Err()
}

// runMember is what a process of a fleet does: it says that it is ready, waits for a line, asks
// for some time, and tells what it has done.
func runMember(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	var f fleetMember
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return err
	}
	lim, end, err := f.limiter(ctx)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return err
	}
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	r, err := f.ask(ctx, lim)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(out).Encode(r), end())
}

func (f *fleetMember) limiter(ctx context.Context) (lim ratelimit.Limiter, end func() error, err error) {
	client := redis.NewClient(&redis.Options{Addr: f.Addr, ContextTimeoutEnabled: true})
	leased := strings.HasPrefix(f.How, "lease")
	shared, err := redisstore.New(client, redisstore.WithTimeout(redisTimeout))
	if err != nil {
		return nil, nil, err
	}
	front, end := store.Store(shared), client.Close
	switch {
	case f.How == "coalesce":
		if front, err = coalesce.New(shared); err != nil {
			return nil, nil, err
		}
	case leased:
		var how []lease.Option
		if strings.Contains(f.How, "overdraft") {
			how = append(how, lease.WithOverdraft(8))
		}
		leases, err := lease.New(shared, f.Life, how...)
		if err != nil {
			return nil, nil, err
		}
		front, end = leases, func() error { return errors.Join(leases.Close(ctx), client.Close()) }
	}
	limits := make([]ratelimit.Limiter, max(1, f.Limits))
	for i := range limits {
		if limits[i], err = ratelimit.New(f.Algorithm, front, f.Limit, ratelimit.WithName(fmt.Sprint("fleet", i))); err != nil {
			return nil, nil, err
		}
	}
	if lim = limits[0]; f.Limits > 0 {
		if lim, err = ratelimit.NewAll(limits...); err != nil {
			return nil, nil, err
		}
	}
	return lim, end, shared.Ready(ctx)
}

// ask has all callers ask at the same time.
func (f *fleetMember) ask(ctx context.Context, lim ratelimit.Limiter) (r fleetResult, err error) {
	keys := make([]string, f.Keys)
	for i := range keys {
		keys[i] = key(i, 16)
	}
	before := usedCPU()
	var stop atomic.Bool
	time.AfterFunc(f.Time, func() { stop.Store(true) })
	errs := make([]error, f.Callers)
	var decisions, admitted atomic.Int64
	var callers sync.WaitGroup
	for c := range f.Callers {
		callers.Go(func() {
			next := f.keys(keys, c)
			var n, ok int64
			for !stop.Load() {
				r, err := lim.Allow(ctx, next(int(n)))
				if errors.Is(err, store.ErrOverloaded) { // more callers than the server can serve
					continue
				}
				if errs[c] = err; err != nil {
					return
				}
				if n++; r.Allowed {
					ok++
				}
			}
			decisions.Add(n)
			admitted.Add(ok)
		})
	}
	callers.Wait()
	return fleetResult{Decisions: decisions.Load(), Admitted: admitted.Load(), CPU: usedCPU() - before}, firstError(errs)
}

// keys returns how caller c chooses its keys.
func (f *fleetMember) keys(keys []string, c int) func(n int) string {
	rng := rand.New(rand.NewPCG(f.Seed, uint64(c)))
	switch {
	case len(keys) == 0:
		return func(n int) string { return key((int(f.Seed)*f.Callers+c)*10_000_000+n, 16) }
	case len(keys) == 1:
		return func(int) string { return keys[0] }
	case f.Zipf:
		zipf := rand.NewZipf(rng, 1.1, 1, uint64(len(keys)-1))
		return func(int) string { return keys[zipf.Uint64()] }
	}
	return func(int) string { return keys[rng.IntN(len(keys))] }
}
