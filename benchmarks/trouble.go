package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// spinning, in the environment, makes this program do nothing but spin.
const spinning = "RATELIMIT_BENCHMARKS_SPIN"

// herd is callers of a server that is a round trip away. All their connections break.
type herd struct {
	trip      time.Duration
	callers   int
	pool      int           // PoolSize; 0: go-redis' default
	pause     time.Duration // of a caller between two calls
	encrypted bool          // TLS, by RESP2
}

func (h herd) String() string {
	text := fmt.Sprintf("%v, %d callers", h.trip, h.callers)
	if h.pool > 0 {
		text += fmt.Sprintf(", PoolSize %d", h.pool)
	}
	if h.encrypted {
		text += ", TLS"
	}
	return text
}

var herds = []herd{
	{trip: time.Millisecond, callers: 256},
	{trip: time.Millisecond, callers: 256, pool: 600},
	{trip: 2 * time.Millisecond, callers: 256, pool: 600},
	{trip: 5 * time.Millisecond, callers: 256},
	{trip: 5 * time.Millisecond, callers: 256, pool: 600},
	{trip: 8 * time.Millisecond, callers: 128},
	{trip: 8 * time.Millisecond, callers: 512},
	{trip: time.Millisecond, callers: 256, pool: 266, pause: 10 * time.Millisecond, encrypted: true},
}

// coldTrips are the distances of the cells that begin without a connection.
var coldTrips = []time.Duration{8 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 40 * time.Millisecond}

// patron is a contestant of this part: it decides by a client with default settings.
type patron struct {
	name  string
	open  func(*redis.Client) (decide func(ctx context.Context, key string) error, ready func(context.Context) error, err error)
	ready bool // warmed up before the first call
}

var theirs = patron{name: "redis_rate", open: func(client *redis.Client) (func(context.Context, string) error, func(context.Context) error, error) {
	lim := redis_rate.NewLimiter(client)
	return func(ctx context.Context, key string) error {
		_, err := lim.Allow(ctx, key, redis_rate.PerMinute(1_000_000))
		return err
	}, nil, nil
}}

var mine = patron{name: "TokenBucket", open: func(client *redis.Client) (func(context.Context, string) error, func(context.Context) error, error) {
	s, err := redisstore.New(client)
	if err != nil {
		return nil, nil, err
	}
	lim, err := ratelimit.NewTokenBucket(s, ratelimit.PerMinute(1_000_000), ratelimit.WithName("trouble"))
	return func(ctx context.Context, key string) error {
		_, err := lim.Allow(ctx, key)
		return err
	}, s.Ready, err
}}

var mineReady = patron{name: "TokenBucket, after Ready", open: mine.open, ready: true}

// measureTrouble writes what callers get whose connections break, or who have none yet.
func (b *bench) measureTrouble(ctx context.Context) error {
	if !haveRedis() {
		fmt.Fprintln(b.out, "\nTrouble was not measured: there is no redis-server on the PATH.")
		return nil
	}
	addr, stop, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer stop()
	calm, err := spin(ctx, b.busy)
	if err != nil {
		return err
	}
	defer calm()
	if err := b.measureHerds(ctx, addr); err != nil {
		return err
	}
	if err := b.measureColdStarts(ctx, addr); err != nil {
		return err
	}
	return b.measureNear(ctx, addr)
}

// spin starts n processes that do nothing but spin.
func spin(ctx context.Context, n int) (stop func(), err error) {
	var all []*exec.Cmd
	stop = func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	program, err := os.Executable()
	if err != nil {
		return stop, err
	}
	for range n {
		cmd := exec.CommandContext(ctx, program)
		cmd.Env = append(os.Environ(), spinning+"=1")
		if err := cmd.Start(); err != nil {
			stop()
			return stop, err
		}
		all = append(all, cmd)
	}
	return stop, nil
}

// call is one call of a caller.
type call struct {
	begun, ended time.Time
	err          error
}

// crowd is callers who call decide without end.
type crowd struct {
	stop  chan struct{}
	done  sync.WaitGroup
	calls [][]call // by caller
}

func gather(callers int, pause time.Duration, decide func(context.Context, string) error) *crowd {
	c := &crowd{stop: make(chan struct{}), calls: make([][]call, callers)}
	for i := range callers {
		c.done.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-c.stop:
					return
				default:
				}
				begun := time.Now()
				err := decide(context.Background(), strconv.Itoa((i+n*callers)%10_000))
				c.calls[i] = append(c.calls[i], call{begun, time.Now(), err})
				if err != nil && time.Since(begun) < time.Millisecond {
					time.Sleep(time.Millisecond) // to not spin if refused at once
				}
				time.Sleep(pause)
			}
		})
	}
	return c
}

// end stops all callers, and returns their calls.
func (c *crowd) end() []call {
	close(c.stop)
	c.done.Wait()
	return slices.Concat(c.calls...)
}

// tally is the calls of a time span, by their outcome.
type tally struct{ good, failed float64 }

func count(calls []call, from, to time.Time) tally {
	var t tally
	for _, c := range calls {
		if c.ended.Before(from) || !c.ended.Before(to) {
			continue
		}
		if c.err == nil {
			t.good++
		} else {
			t.failed++
		}
	}
	return t
}

// firstGood is the time from since to the first call that began then and ended well, or
// NaN if none did.
func firstGood(calls []call, since time.Time) float64 {
	first := math.NaN()
	for _, c := range calls {
		if c.err == nil && !c.begun.Before(since) {
			if ms := float64(c.ended.Sub(since).Microseconds()) / 1e3; !(first <= ms) {
				first = ms
			}
		}
	}
	return first
}

func longest(calls []call) float64 {
	var most time.Duration
	for _, c := range calls {
		most = max(most, c.ended.Sub(c.begun))
	}
	return float64(most.Microseconds()) / 1e3
}

func (b *bench) measureHerds(ctx context.Context, addr string) error {
	names := make([]string, len(b.herds))
	for i, h := range b.herds {
		names[i] = h.String()
	}
	g := newGrid("All connections broken under load", names)
	g.printed = whole
	g.note = fmt.Sprintf("Decisions and errors a second count from 1 s after the break on. The others are the first decision after it, the errors of the first second, "+
		"the longest call, and the connections made after it. Each is the median of %d interleaved rounds. The first column is the server's distance. "+
		"redis_rate has a bare client; both have default settings.", b.troubleRounds)
	for i, h := range b.herds {
		var rows [2][]map[string]float64
		for range b.troubleRounds {
			for who, p := range []patron{theirs, mine} {
				b.progress("trouble: %v, %s", h, p.name)
				figures, err := b.runHerd(ctx, addr, h, p)
				if err != nil {
					return err
				}
				rows[who] = append(rows[who], figures)
			}
		}
		for _, column := range []string{"decisions/s", "errors/s", "first ms", "errors in 1 s", "longest ms", "connections"} {
			for who, p := range []patron{theirs, mine} {
				g.set(column+", "+p.name, i, median(rows[who], column), nil)
			}
		}
		g.set("ratio", i, median(rows[1], "decisions/s")/median(rows[0], "decisions/s"), nil)
	}
	b.report(g)
	return nil
}

// median is the median of a figure over rounds.
func median(rounds []map[string]float64, name string) float64 {
	var all []float64
	for _, r := range rounds {
		all = append(all, r[name])
	}
	slices.Sort(all) // NaN first
	return all[len(all)/2]
}

func clientOf(p *far, h herd) *redis.Client {
	o := &redis.Options{Addr: p.addr(), PoolSize: h.pool}
	if h.encrypted {
		o.Protocol = 2
		o.TLSConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the certificate was made for this run
	}
	return redis.NewClient(o)
}

func (b *bench) runHerd(ctx context.Context, addr string, h herd, who patron) (map[string]float64, error) {
	proxy, err := startFar(ctx, addr, h.trip, h.encrypted)
	if err != nil {
		return nil, err
	}
	defer proxy.close()
	client := clientOf(proxy, h)
	defer func() { _ = client.Close() }()
	decide, _, err := who.open(client)
	if err != nil {
		return nil, err
	}
	c := gather(h.callers, h.pause, decide)
	time.Sleep(b.troubleTime / 2)
	before := proxy.accepted.Load()
	proxy.cut()
	cut := time.Now()
	time.Sleep(time.Second + b.troubleTime)
	after := proxy.accepted.Load()
	calls := c.end()
	steady := count(calls, cut.Add(time.Second), cut.Add(time.Second+b.troubleTime))
	seconds := b.troubleTime.Seconds()
	return map[string]float64{
		"decisions/s":   steady.good / seconds,
		"errors/s":      steady.failed / seconds,
		"first ms":      firstGood(calls, cut),
		"errors in 1 s": count(calls, cut, cut.Add(time.Second)).failed,
		"longest ms":    longest(calls),
		"connections":   float64(after - before),
	}, nil
}

func (b *bench) measureColdStarts(ctx context.Context, addr string) error {
	for _, callers := range b.coldCallers {
		var names []string
		for _, trip := range b.coldTrips {
			names = append(names, trip.String())
		}
		g := newGrid(fmt.Sprintf("Cold start, %d callers", callers), names)
		g.printed = whole
		g.note = fmt.Sprintf("The ms until the first decision. Errors and decisions are those of the first and the second second. Each is the median of %d rounds.", b.troubleRounds)
		for i, trip := range b.coldTrips {
			for _, who := range []patron{theirs, mine, mineReady} {
				b.progress("trouble: cold start, %v, %d callers, %s", trip, callers, who.name)
				var rounds []map[string]float64
				for range b.troubleRounds {
					figures, err := b.runCold(ctx, addr, herd{trip: trip, callers: callers}, who)
					if err != nil {
						return err
					}
					rounds = append(rounds, figures)
				}
				for _, column := range []string{"first ms", "errors 1st s", "errors 2nd s", "decisions 2nd s"} {
					g.set(column+", "+who.name, i, median(rounds, column), nil)
				}
			}
		}
		b.report(g)
	}
	return nil
}

func (b *bench) runCold(ctx context.Context, addr string, h herd, who patron) (map[string]float64, error) {
	proxy, err := startFar(ctx, addr, h.trip, false)
	if err != nil {
		return nil, err
	}
	defer proxy.close()
	client := clientOf(proxy, h)
	defer func() { _ = client.Close() }()
	decide, ready, err := who.open(client)
	if err != nil {
		return nil, err
	}
	near := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = near.Close() }()
	if err := near.ScriptFlush(ctx).Err(); err != nil {
		return nil, err
	}
	if who.ready {
		if err := ready(ctx); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	c := gather(h.callers, 0, decide)
	time.Sleep(2 * time.Second)
	calls := c.end()
	first, second := count(calls, start, start.Add(time.Second)), count(calls, start.Add(time.Second), start.Add(2*time.Second))
	return map[string]float64{
		"first ms":     firstGood(calls, start),
		"errors 1st s": first.failed, "errors 2nd s": second.failed, "decisions 2nd s": second.good,
	}, nil
}

// measureNear measures many callers on this machine, with default settings.
func (b *bench) measureNear(ctx context.Context, addr string) error {
	g := newGrid("On the same machine, default settings, 10,000 keys", []string{"32 callers", "512 callers"})
	g.printed = whole
	g.note = fmt.Sprintf("Decisions a second, the median of %d interleaved rounds.", b.troubleRounds)
	for i, callers := range []int{32, 512} {
		var rows [2][]map[string]float64
		for range b.troubleRounds {
			for who, p := range []patron{theirs, mine} {
				b.progress("trouble: near, %d callers, %s", callers, p.name)
				figures, err := b.runNear(addr, callers, p)
				if err != nil {
					return err
				}
				rows[who] = append(rows[who], figures)
			}
		}
		for who, p := range []patron{theirs, mine} {
			g.set("decisions/s, "+p.name, i, median(rows[who], "decisions/s"), nil)
			g.set("errors/s, "+p.name, i, median(rows[who], "errors/s"), nil)
		}
		g.set("ratio", i, median(rows[1], "decisions/s")/median(rows[0], "decisions/s"), nil)
	}
	_ = ctx
	b.report(g)
	return nil
}

func (b *bench) runNear(addr string, callers int, who patron) (map[string]float64, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	decide, _, err := who.open(client)
	if err != nil {
		return nil, err
	}
	c := gather(callers, 0, decide)
	time.Sleep(b.troubleTime / 2)
	from := time.Now()
	time.Sleep(b.troubleTime)
	to := time.Now()
	t := count(c.end(), from, to)
	seconds := to.Sub(from).Seconds()
	return map[string]float64{"decisions/s": t.good / seconds, "errors/s": t.failed / seconds}, nil
}
