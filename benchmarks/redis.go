package main

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	redisTimeout = 10 * time.Second // for all; no call should reach it
	redisPool    = 64               // connections of each contestant
	redisCounted = 1000             // decisions whose commands are counted
	redisSeenBy  = 32               // callers that show a contestant its keys
)

// redisContestant is a rate limiter that keeps its keys on Redis. Each gets a plain
// client of its own with equal options. open can wrap it in another kind of client.
type redisContestant struct {
	name   string
	module string
	ours   bool
	floor  bool // decides nothing

	pipelined bool // uses go-redis' auto-pipeliner, and is not compared with plain clients
	swaps     bool // by compare and swap: on one key, one of many callers succeeds at a time

	open func(*redis.Client, workload) (limiter, error)
}

func (c redisContestant) label() string { return c.name }

// redisContestants are all that keep keys on Redis, after the floor.
func redisContestants() []redisContestant {
	return append(append([]redisContestant{ping}, oursOnRedis()...), redisRate, redisRatePipelined, ululeOnRedis, throttledOnRedis)
}

// ping is the floor: a round trip that decides nothing.
var ping = redisContestant{
	name: "PING", module: "github.com/redis/go-redis/v9", floor: true,
	open: func(client *redis.Client, w workload) (limiter, error) {
		ctx := context.Background()
		decide := func(string) (bool, error) { return w.outcome == allowed, client.Ping(ctx).Err() }
		return limiter{decide, nothing}, nil
	},
}

// redisCell is a number of callers at once, on all keys or on one.
type redisCell struct {
	callers, decisions int
	hot                bool
}

func (c redisCell) String() string {
	text := strconv.Itoa(c.callers) + " callers"
	if c.callers == 1 {
		text = "1 caller"
	}
	if c.hot {
		text += ", 1 key"
	}
	return text
}

var redisCells = []redisCell{{1, 2_000, false}, {32, 12_000, false}, {512, 20_000, false}, {512, 20_000, true}}

// measureRedis writes µs per decision, and what it costs the server.
func (b *bench) measureRedis(ctx context.Context, all []redisContestant) error {
	if _, err := exec.LookPath("redis-server"); err != nil {
		fmt.Fprintln(b.out, "\nRedis was not measured: there is no redis-server on the PATH.")
		return nil
	}
	addr, stop, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for _, out := range []outcome{allowed, denied} {
		if err := b.redisOutcome(ctx, addr, all, workload{outcome: out, keys: b.redisKeys}); err != nil {
			return err
		}
	}
	return nil
}

// redisOutcome measures the cells of one outcome on an empty server, with all contestants
// open.
func (b *bench) redisOutcome(ctx context.Context, addr string, all []redisContestant, w workload) error {
	what, cells := "admitted", redisCells
	if w.outcome == denied {
		what, cells = "denied", redisCells[1:2]
	}
	b.progress("redis: every call %s", what)
	server, err := emptied(ctx, addr)
	if err != nil {
		return err
	}
	times := newGrid(fmt.Sprintf("Redis %s, every call %s, µs per decision", server, what), redisNames(all))
	times.note = fmt.Sprintf("%s keys, %d connections each. %s. On one key throttled is not measured: 512 callers take minutes "+
		"to swap one after the other.", grouped(w.keys), redisPool, redisVersions(all))
	keys := shuffled(w.keys)
	if err := b.redisTimes(addr, all, keys, w, cells, times); err != nil {
		return err
	}
	r := ratios(times.title+", ours / fastest peer", times,
		func(i int) bool { return all[i].ours },
		func(i int) bool { return !all[i].ours && !all[i].floor && !all[i].pipelined })
	for i, c := range all {
		if err := countCommands(ctx, addr, c, keys, w, i, times); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	b.report(times, r)
	return nil
}

// redisTimes shows each contestant all keys, and then runs interleaved rounds.
func (b *bench) redisTimes(addr string, all []redisContestant, keys []string, w workload, cells []redisCell, g *grid) error {
	open := make([]limiter, len(all))
	for i, c := range all {
		client := redis.NewClient(redisOptions(addr, i))
		defer func() { _ = client.Close() }()
		var err error
		if open[i], err = c.open(client, w); err == nil && !c.floor {
			err = passes(open[i], keys, 0, len(keys), redisSeenBy, true)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		defer open[i].close()
	}
	for _, cell := range cells {
		b.redisRound(all, open, keys, w, cell, g)
	}
	for i, lim := range open {
		allocs, err := allocated(lim, keys, w.outcome == allowed)
		g.set("allocations", i, allocs, err)
	}
	return nil
}

func (b *bench) redisRound(all []redisContestant, open []limiter, keys []string, w workload, cell redisCell, g *grid) {
	n := max(cell.decisions/b.redisShare, cell.callers)
	if cell.hot {
		keys = keys[:1]
	}
	for round := range b.redisRounds {
		for i := range open {
			i = (i + round) % len(open)
			if cell.hot && all[i].swaps {
				g.set(cell.String(), i, math.NaN(), nil)
				continue
			}
			ns, err := timed(n, func() error {
				return passes(open[i], keys, round*n/cell.callers, n, cell.callers, w.outcome == allowed)
			})
			g.least(cell.String(), i, ns/1e3, err)
		}
	}
}

// redisOptions returns the options of contestant i. Each has a database of its own, since
// some of them would use the same keys.
func redisOptions(addr string, i int) *redis.Options {
	return &redis.Options{
		Addr: addr, DB: i, PoolSize: redisPool, PoolTimeout: redisTimeout,
		ReadTimeout: redisTimeout, WriteTimeout: redisTimeout,
	}
}

// countCommands sets commands and round trips per decision, on keys that c has seen. It
// counts them on the wire of a client of its own. It also sets the µs for which they keep
// the server busy, as the server reports it.
func countCommands(ctx context.Context, addr string, c redisContestant, keys []string, w workload, row int, g *grid) error {
	sent := &traffic{commands: map[string]float64{}}
	options := redisOptions(addr, row)
	options.Dialer = sent.dial
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	lim, err := c.open(client, w)
	if err != nil {
		return err
	}
	defer lim.close()
	decide := func() error { return pass(lim, keys, 0, redisCounted, w.outcome == allowed) }
	if err := decide(); err != nil { // connects
		return err
	}
	before, err := commandStats(ctx, client)
	if err != nil {
		return err
	}
	sent.reset()
	if err := decide(); err != nil {
		return err
	}
	commands, trips := sent.reset()
	after, err := commandStats(ctx, client)
	if err != nil {
		return err
	}
	total, busy := 0.0, 0.0
	for name, n := range commands {
		total += n
		calls, µs := after[name].calls-before[name].calls, after[name].µs-before[name].µs
		busy += n * µs / calls // commands that scripts call are counted under the same names
	}
	g.set("commands", row, total/redisCounted, nil)
	g.set("round trips", row, trips/redisCounted, nil)
	g.set("server µs", row, busy/redisCounted, nil)
	return nil
}

// commandStat is what the server has counted of a command.
type commandStat struct{ calls, µs float64 }

// commandStats reads lines such as
//
//	cmdstat_evalsha:calls=12,usec=345,usec_per_call=28.75,...
func commandStats(ctx context.Context, client *redis.Client) (map[string]commandStat, error) {
	text, err := client.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	stats := map[string]commandStat{}
	for line := range strings.Lines(text) {
		line, found := strings.CutPrefix(line, "cmdstat_")
		name, fields, _ := strings.Cut(line, ":")
		var s commandStat
		if _, err := fmt.Sscanf(fields, "calls=%f,usec=%f,", &s.calls, &s.µs); found && err == nil {
			stats[name] = s
		}
	}
	return stats, nil
}

// emptied forgets all keys of the server at addr and returns its version.
func emptied(ctx context.Context, addr string) (string, error) {
	client := redis.NewClient(redisOptions(addr, 0))
	defer func() { _ = client.Close() }()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return "", err
	}
	text, err := client.Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("INFO server names no version")
}

func redisNames(all []redisContestant) []string {
	var list []string
	for _, c := range all {
		list = append(list, c.name)
	}
	return list
}

func redisVersions(all []redisContestant) string {
	var list []string
	for _, c := range all {
		if v := version(c.module); v != "" {
			list = append(list, c.name+" "+v)
		}
	}
	return strings.ReplaceAll(strings.Join(list, ", "), "PING", "go-redis")
}
