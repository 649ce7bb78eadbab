package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// deployment is servers, and the client of them. With one it is a *redis.Client.
type deployment struct {
	servers int
	ring    bool // or else a cluster
	tags    int  // hash tags; 0: each key is one
}

func (d deployment) String() string {
	name := fmt.Sprintf("cluster of %d", d.servers)
	switch {
	case d.servers == 1:
		return "one server"
	case d.ring:
		name = fmt.Sprintf("ring of %d", d.servers)
	}
	if d.tags > 0 {
		name += fmt.Sprintf(", %d hash tags", d.tags)
	}
	return name
}

// severalCell is what is measured, in turns with the others of the same number of callers.
type severalCell struct {
	deployment
	what string // a name of severalLimiters, or redis_rate
}

// key is where the rounds of c with so many callers are.
func (c severalCell) key(callers int) string { return fmt.Sprint(c.deployment, c.what, callers) }

// severalLimiters are what callers ask.
var severalLimiters = map[string]func(s store.Store) (ratelimit.Limiter, error){
	"one limit": func(s store.Store) (ratelimit.Limiter, error) {
		return ratelimit.NewTokenBucket(s, ratelimit.PerHour(1<<30))
	},
	"an All of two": func(s store.Store) (ratelimit.Limiter, error) {
		bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(1<<30))
		window, err2 := ratelimit.NewFixedWindow(s, ratelimit.PerDay(1<<30))
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		return ratelimit.NewAll(bucket, window)
	},
	"an All of three windows": func(s store.Store) (ratelimit.Limiter, error) {
		var list []ratelimit.Limiter
		for _, l := range []ratelimit.Limit{ratelimit.PerMinute(1 << 30), ratelimit.PerHour(1 << 30), ratelimit.PerDay(1 << 30)} {
			window, err := ratelimit.NewSlidingWindow(s, l)
			if err != nil {
				return nil, err
			}
			list = append(list, window)
		}
		return ratelimit.NewAll(list...)
	},
}

func severalCells(masters ...int) (cells []severalCell) {
	const one, two, three, peer = "one limit", "an All of two", "an All of three windows", "redis_rate"
	for _, n := range masters {
		d := deployment{servers: n}
		cells = append(cells, severalCell{d, peer}, severalCell{d, one}, severalCell{d, two})
		if n == 1 {
			cells = append(cells, severalCell{d, three})
			continue
		}
		d.tags = 64
		cells = append(cells, severalCell{d, one}, severalCell{d, two})
	}
	return append(cells, severalCell{deployment{servers: 2, ring: true}, one}, severalCell{deployment{servers: 2, ring: true}, two})
}

// severalRound is what a round of a cell gave.
type severalRound struct {
	rate     float64 // decisions a second
	script   float64 // decisions in a script
	client   float64 // µs of this process for a decision
	server   float64 // µs of a server's time in scripts for a decision
	p999     float64 // ms
	refused  float64 // part of the calls
	failures int64   // other errors
}

// measureSeveral writes what one, three and six servers serve of one limit and of several.
func (b *bench) measureSeveral(ctx context.Context) error {
	if !haveRedis() {
		return nil
	}
	fmt.Fprintf(b.out, "### Several servers and several limits\n\n"+
		"A key for each caller. The servers and the callers share the processors of one machine, so more servers do not serve more here:\n"+
		"see the time of a server for a decision. Medians of the rounds, in turns.\n\n"+
		"| callers | servers | | decisions/s | beside redis_rate there | decisions a script | server, µs | client, µs | p99.9, ms | overloaded |\n"+
		"|--:|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	rounds := map[string][]severalRound{}
	for range b.severalRounds {
		for _, c := range b.severalCells {
			b.progress("several: %v, %s", c.deployment, c.what)
			if err := b.severalRound(ctx, c, rounds); err != nil {
				return err
			}
		}
	}
	for _, callers := range b.severalCallers {
		peers := map[string]float64{}
		for _, c := range b.severalCells {
			r := medianOf(rounds[c.key(callers)])
			bare := c.deployment
			bare.tags = 0
			if c.what == "redis_rate" {
				peers[bare.String()] = r.rate
			}
			beside := "–"
			if peer := peers[bare.String()]; peer > 0 {
				beside = fmt.Sprintf("%.2f", r.rate/peer)
			}
			if r.failures > 0 {
				beside += fmt.Sprintf(" (%d failures)", r.failures)
			}
			fmt.Fprintf(b.out, "| %d | %v | %s | %.0f | %s | %.1f | %.1f | %.1f | %.1f | %.3f |\n",
				callers, c.deployment, c.what, r.rate, beside, r.script, r.server, r.client, r.p999, r.refused)
		}
	}
	fmt.Fprintln(b.out)
	var rows []modelRow
	for _, c := range b.severalCells {
		if c.servers != 3 || c.what == "redis_rate" {
			continue
		}
		r := medianOf(rounds[c.key(b.severalCallers[len(b.severalCallers)/2])])
		name := c.what
		if c.tags > 0 {
			name += fmt.Sprintf(", %d hash tags", c.tags)
		}
		rows = append(rows, modelRow{name, c.tags, r.server}, modelRow{name + ", leases", c.tags, r.server / 400})
	}
	b.reportModel(rows)
	return nil
}

// medianOf takes the median of each figure.
func medianOf(rounds []severalRound) (r severalRound) {
	middle := func(of func(*severalRound) float64) float64 {
		values := make([]float64, len(rounds))
		for i := range rounds {
			values[i] = of(&rounds[i])
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	if len(rounds) == 0 {
		return r
	}
	r.rate = middle(func(r *severalRound) float64 { return r.rate })
	r.script = middle(func(r *severalRound) float64 { return r.script })
	r.client = middle(func(r *severalRound) float64 { return r.client })
	r.server = middle(func(r *severalRound) float64 { return r.server })
	r.p999 = middle(func(r *severalRound) float64 { return r.p999 })
	r.refused = middle(func(r *severalRound) float64 { return r.refused })
	for i := range rounds {
		r.failures += rounds[i].failures
	}
	return r
}

// severalRound measures a cell once, with each number of callers, on servers of its own.
func (b *bench) severalRound(ctx context.Context, c severalCell, rounds map[string][]severalRound) error {
	client, servers, stop, err := c.start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	var ask func(ctx context.Context, key string) error
	if c.what == "redis_rate" {
		peer := redis_rate.NewLimiter(client)
		ask = func(ctx context.Context, key string) error {
			_, err := peer.Allow(ctx, key, redis_rate.PerHour(1<<30))
			return err
		}
	} else {
		var opts []redisstore.Option
		if c.tags > 0 {
			opts = append(opts, redisstore.WithHashTags(c.tags))
		}
		s, err := redisstore.New(client, opts...)
		if err != nil {
			return err
		}
		l, err := severalLimiters[c.what](s)
		if err != nil {
			return err
		}
		if err := s.Ready(ctx); err != nil {
			return err
		}
		ask = func(ctx context.Context, key string) error {
			_, err := l.Allow(ctx, key)
			return err
		}
	}
	for _, callers := range b.severalCallers {
		severalPress(ctx, callers, b.severalTime/3, ask)
		scripts, busy := scriptsOf(ctx, servers)
		cpu := usedCPU()
		r, calls := severalPress(ctx, callers, b.severalTime, ask)
		cpu = usedCPU() - cpu
		after, spent := scriptsOf(ctx, servers)
		r.client = cpu.Seconds() * 1e6 / float64(calls)
		r.server = (spent - busy) / float64(calls)
		r.script = float64(calls) / (after - scripts)
		rounds[c.key(callers)] = append(rounds[c.key(callers)], r)
	}
	return ctx.Err()
}

// severalPress has so many callers ask again and again for d.
func severalPress(ctx context.Context, callers int, d time.Duration, ask func(context.Context, string) error) (r severalRound, calls int64) {
	var ok, refused, failed atomic.Int64
	var all sync.WaitGroup
	var took histogram
	begun := time.Now()
	end := begun.Add(d)
	for i := range callers {
		all.Go(func() {
			for key := fmt.Sprint("user:", i); time.Now().Before(end); {
				from := time.Now()
				switch err := ask(ctx, key); {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, store.ErrOverloaded):
					refused.Add(1)
				default:
					failed.Add(1)
				}
				took.add(time.Since(from))
			}
		})
	}
	all.Wait()
	calls = max(1, ok.Load())
	r.rate = float64(calls) / time.Since(begun).Seconds()
	r.refused = float64(refused.Load()) / float64(calls+refused.Load()+failed.Load())
	r.failures = failed.Load()
	r.p999 = took.quantile(0.999, total(&took))
	return r, calls
}

// scriptsOf is how many scripts the servers have run, and for how many µs.
func scriptsOf(ctx context.Context, servers []*redis.Client) (calls, us float64) {
	for _, c := range servers {
		text, _ := c.Info(ctx, "commandstats").Result()
		for line := range strings.Lines(text) {
			var n, t float64
			if _, rest, found := strings.Cut(line, "cmdstat_eval"); found {
				if _, err := fmt.Sscanf(rest[strings.Index(rest, "calls="):], "calls=%f,usec=%f", &n, &t); err == nil {
					calls, us = calls+n, us+t
				}
			}
		}
	}
	return calls, us
}

// start starts the servers of d, with a client of them all and one of each.
func (d deployment) start(ctx context.Context) (client redis.UniversalClient, servers []*redis.Client, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	var addrs []string
	shards := map[string]string{}
	for i := range d.servers {
		var args []string
		if d.servers > 1 && !d.ring {
			args = []string{"--cluster-enabled", "yes"}
		}
		addr, end, err := startRedis(ctx, args...)
		if err != nil {
			return nil, nil, stop, err
		}
		stops = append(stops, end)
		addrs, shards[fmt.Sprint(i)] = append(addrs, addr), addr
		c := redis.NewClient(&redis.Options{Addr: addr})
		stops = append(stops, func() { _ = c.Close() })
		servers = append(servers, c)
	}
	switch {
	case d.servers == 1:
		client = redis.NewClient(&redis.Options{Addr: addrs[0], ContextTimeoutEnabled: true, PoolSize: 64})
	case d.ring:
		client = redis.NewRing(&redis.RingOptions{Addrs: shards, ContextTimeoutEnabled: true, PoolSize: 64})
	default:
		if err := formCluster(ctx, servers); err != nil {
			return nil, nil, stop, err
		}
		client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true, PoolSize: 64})
	}
	stops = append(stops, func() { _ = client.Close() })
	return client, servers, stop, nil
}

// formCluster makes a cluster of the servers, with equal ranges of slots.
func formCluster(ctx context.Context, servers []*redis.Client) error {
	const slots = 16384
	host, port, err := net.SplitHostPort(servers[0].Options().Addr)
	if err != nil {
		return err
	}
	for i, c := range servers {
		from, to := i*slots/len(servers), (i+1)*slots/len(servers)-1
		err := errors.Join(c.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(), c.ClusterAddSlotsRange(ctx, from, to).Err())
		if err == nil && i > 0 {
			err = c.ClusterMeet(ctx, host, port).Err()
		}
		if err != nil {
			return err
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for _, c := range servers {
		for ; ; time.Sleep(50 * time.Millisecond) {
			info, err := c.ClusterInfo(ctx).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_size:%d\r", len(servers))) {
				break
			}
			if time.Now().After(deadline) || ctx.Err() != nil {
				return fmt.Errorf("the cluster did not come up: %q, %w", info, errors.Join(err, ctx.Err()))
			}
		}
	}
	return nil
}
