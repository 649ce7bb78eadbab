package suite_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/suite/internal/pgtest"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

// fault is what breaks, and what came of it.
type fault struct {
	name  string
	at    *place
	lossy bool // writes that a server has confirmed may be gone afterwards
	do    func(ctx context.Context)

	times int
	worst time.Duration // from the end of do until the store decides again
}

// addServer adds one server behind a proxy, and what befalls it.
func (s *soak) addServer(t *testing.T, whole bool) {
	server := redistest.Start(t, "--busy-reply-threshold", "50")
	proxy := redistest.StartProxy(t, server.Addr())
	admin := server.Client(t)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	p := s.addRedis(t, "server", client, func(context.Context) []*redis.Client { return []*redis.Client{admin} })
	s.addFaults(p, false, map[string]func(ctx context.Context){
		"replies 20 ms late": func(ctx context.Context) {
			proxy.Delay(20 * time.Millisecond)
			rest(ctx, 2*time.Second)
			proxy.Delay(0)
		},
		"replies too late":               func(ctx context.Context) { proxy.Delay(400 * time.Millisecond); rest(ctx, time.Second); proxy.Delay(0) },
		"replies held back for 1 s":      func(ctx context.Context) { proxy.Hold(); rest(ctx, time.Second); proxy.Release() },
		"all connections cut":            func(context.Context) { proxy.Cut() },
		"50 replies lost":                func(context.Context) { proxy.DropReplies(50, "EVALSHA") },
		"all connections half open":      func(context.Context) { proxy.Mute() },
		"the process stopped for 1 s":    func(ctx context.Context) { server.Freeze(); rest(ctx, time.Second); server.Thaw() },
		"the process stopped for a life": func(ctx context.Context) { server.Freeze(); rest(ctx, soakLife+time.Second); server.Thaw() },
		"scripts forgotten":              func(ctx context.Context) { admin.ScriptFlush(ctx) },
		"BUSY": func(ctx context.Context) {
			busy, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			one := admin.Conn()
			defer one.Close()
			one.Eval(busy, "while true do end", nil)
			admin.ScriptKill(context.WithoutCancel(ctx))
		},
		"READONLY": func(ctx context.Context) {
			ctx = context.WithoutCancel(ctx)
			admin.ReplicaOf(ctx, "127.0.0.1", "1")
			rest(ctx, time.Second)
			admin.ReplicaOf(ctx, "no", "one")
		},
		"out of memory": func(ctx context.Context) {
			ctx = context.WithoutCancel(ctx)
			admin.ConfigSet(ctx, "maxmemory", "1")
			rest(ctx, time.Second)
			admin.ConfigSet(ctx, "maxmemory", "0")
		},
		"2,000 callers at once": func(ctx context.Context) { p.flood(ctx) },
	})
	if !whole { // what follows takes long
		return
	}
	s.addFaults(p, true, map[string]func(ctx context.Context){
		"killed, and empty again": func(ctx context.Context) {
			server.Kill()
			rest(ctx, 200*time.Millisecond)
			server.Restart(t)
		},
	})
}

func (p *place) flood(ctx context.Context) {
	var all sync.WaitGroup
	for range 2_000 {
		all.Go(func() { _, _ = p.probe.Allow(context.WithoutCancel(ctx), "flood") })
	}
	all.Wait()
}

// rest lets d pass, or less if ctx ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (s *soak) addFaults(p *place, lossy bool, faults map[string]func(ctx context.Context)) {
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		s.faults = append(s.faults, fault{name: p.name + ": " + name, at: p, lossy: lossy, do: faults[name]})
	}
}

// addCluster adds a cluster, of which masters hang, or hand over to a replica.
func (s *soak) addCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 3)
	nodes := newNodes(t, append(slices.Clone(cluster.Masters), cluster.Replicas...))
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: true})
	p := s.addRedis(t, "cluster", client, nodes.masters)
	s.addFaults(p, true, map[string]func(ctx context.Context){
		"a replica takes over": func(ctx context.Context) {
			replicas := nodes.clients(ctx, "slave")
			if len(replicas) > 0 {
				replicas[rand.N(len(replicas))].ClusterFailover(ctx)
			}
		},
		"a master stops for 4 s": nodes.freezeMaster,
	})
}

// addSentinel adds a master with two replicas that Sentinels watch.
func (s *soak) addSentinel(t *testing.T) {
	group := redistest.StartSentinel(t, 2, time.Second)
	nodes := newNodes(t, append(slices.Clone(group.Replicas), group.Master))
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.MasterName, SentinelAddrs: group.Addrs(),
		ContextTimeoutEnabled: true, DialTimeout: 500 * time.Millisecond,
	})
	p := s.addRedis(t, "sentinel", client, nodes.masters)
	watch := redis.NewSentinelClient(&redis.Options{Addr: group.Sentinels[0].Addr()})
	t.Cleanup(func() { _ = watch.Close() })
	s.addFaults(p, true, map[string]func(ctx context.Context){
		"told to fail over": func(ctx context.Context) { // which a busy machine does late
			before, until := p.servers(ctx), time.Now().Add(10*time.Second)
			for watch.Failover(ctx, redistest.MasterName); slices.Equal(before, p.servers(ctx)) && time.Now().Before(until); {
				rest(ctx, 50*time.Millisecond)
			}
		},
		"the master stops for 4 s": nodes.freezeMaster,
	})
}

// addRing adds two shards behind a Ring that keeps a shard which does not answer, as Check advises.
func (s *soak) addRing(t *testing.T) {
	shards := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	admins := []*redis.Client{shards[0].Client(t), shards[1].Client(t)}
	client := redis.NewRing(&redis.RingOptions{
		Addrs:                 map[string]string{"a": shards[0].Addr(), "b": shards[1].Addr()},
		HeartbeatFn:           func(context.Context, *redis.Client) bool { return true },
		ContextTimeoutEnabled: true,
	})
	p := s.addRedis(t, "ring", client, func(context.Context) []*redis.Client { return admins })
	s.addFaults(p, false, map[string]func(ctx context.Context){
		"a shard stops for 1 s": func(ctx context.Context) {
			shard := shards[rand.N(len(shards))]
			shard.Freeze()
			rest(ctx, time.Second)
			shard.Thaw()
		},
	})
	s.addFaults(p, true, map[string]func(ctx context.Context){
		"a shard is killed, and empty again": func(ctx context.Context) {
			shard := shards[rand.N(len(shards))]
			shard.Kill()
			rest(ctx, 200*time.Millisecond)
			shard.Restart(t)
		},
	})
}

// addPostgres adds Postgres behind a proxy. What it has committed it keeps, even if it is killed.
func (s *soak) addPostgres(t *testing.T) {
	server := pgtest.Start(t, "fsync=off") // the processes are killed, and not the machine
	proxy := redistest.StartProxy(t, server.Addr())
	pool, err := pgxpool.New(t.Context(), pgtest.URL(proxy.Addr())+"&pool_max_conns=16")
	require.NoError(t, err)
	admin, err := pgxpool.New(t.Context(), server.URL())
	require.NoError(t, err)
	onPostgres, err := pgstore.New(pool)
	require.NoError(t, err)
	require.NoError(t, onPostgres.Migrate(t.Context()))
	p := &place{
		name: "postgres", store: onPostgres,
		connections: func() float64 { return float64(pool.Stat().TotalConns()) },
		close:       func() { pool.Close(); admin.Close() },
		lasting:     func(ctx context.Context) []string { return rowsThatStay(ctx, admin) },
	}
	s.addPlace(t, p)
	exec := func(ctx context.Context, sql string) { _, _ = admin.Exec(context.WithoutCancel(ctx), sql) }
	s.addFaults(p, false, map[string]func(ctx context.Context){
		"replies 20 ms late": func(ctx context.Context) {
			proxy.Delay(20 * time.Millisecond)
			rest(ctx, 2*time.Second)
			proxy.Delay(0)
		},
		"replies held back for 1 s": func(ctx context.Context) { proxy.Hold(); rest(ctx, time.Second); proxy.Release() },
		"all connections cut":       func(context.Context) { proxy.Cut() },
		"all connections half open": func(context.Context) { proxy.Mute() },
		"all sessions ended": func(ctx context.Context) {
			exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
		},
		"the table locked for 1 s": func(ctx context.Context) { exec(ctx, "BEGIN; LOCK TABLE ratelimit; SELECT pg_sleep(1); COMMIT") },
		"all rows locked for 1 s": func(ctx context.Context) {
			exec(ctx, "BEGIN; SELECT FROM ratelimit FOR UPDATE; SELECT pg_sleep(1); COMMIT")
		},
		"the table rewritten":       func(ctx context.Context) { exec(ctx, "VACUUM FULL ratelimit") },
		"killed, and started again": func(ctx context.Context) { server.Kill(); rest(ctx, 200*time.Millisecond); server.Restart(t) },
		"2,000 callers at once":     func(ctx context.Context) { p.flood(ctx) },
	})
}

// nodes are servers of which some are masters, in turns.
type nodes []node

type node struct {
	*redistest.Server
	client *redis.Client
}

func newNodes(t *testing.T, servers []*redistest.Server) (all nodes) {
	for _, server := range servers {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		all = append(all, node{server, client})
	}
	return all
}

// with returns the nodes that have a role just now, and answer soon.
func (all nodes) with(ctx context.Context, role string) (found nodes) {
	for _, n := range all {
		soon, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		if n.client.InfoMap(soon, "replication").Item("Replication", "role") == role {
			found = append(found, n)
		}
		cancel()
	}
	return found
}

func (all nodes) masters(ctx context.Context) []*redis.Client { return all.clients(ctx, "master") }

func (all nodes) clients(ctx context.Context, role string) (found []*redis.Client) {
	for _, n := range all.with(ctx, role) {
		found = append(found, n.client)
	}
	return found
}

// freezeMaster stops a master for longer than it takes to replace it.
func (all nodes) freezeMaster(ctx context.Context) {
	masters := all.with(ctx, "master")
	if len(masters) == 0 {
		return
	}
	n := masters[rand.N(len(masters))]
	n.Freeze()
	defer n.Thaw()
	rest(ctx, 4*time.Second)
}

// breakServers has a fault befall a server each pause, at most, until ctx ends: each fault once
// before any comes again.
func (s *soak) breakServers(t *testing.T, ctx context.Context, pause time.Duration) {
	for round := rand.Perm(len(s.faults)); ctx.Err() == nil; round = rand.Perm(len(s.faults)) {
		for _, i := range round {
			next := time.Now().Add(pause)
			f := &s.faults[i]
			f.at.mark(true, f.lossy)
			f.do(ctx)
			took := f.at.untilItDecides(t)
			s.forgetLost(ctx, f)
			f.times, f.worst = f.times+1, max(f.worst, took)
			if rest(ctx, time.Until(next)); ctx.Err() != nil {
				return
			}
		}
	}
}

const watchPause = 100 * time.Millisecond

// watchMasters notes when masters change, or are more or fewer than at first, until ctx ends. A busy
// machine can look like one that is down, so that they change without a fault.
func (s *soak) watchMasters(ctx context.Context) {
	last := map[*place][]*redis.Client{}
	for ; ctx.Err() == nil; rest(ctx, watchPause) {
		for _, p := range s.places {
			if p.servers == nil {
				continue
			}
			masters := p.servers(ctx)
			if ctx.Err() != nil {
				return
			}
			if last[p] == nil {
				last[p], p.masters = masters, len(masters)
			}
			if !slices.Equal(masters, last[p]) || len(masters) != p.masters {
				p.unrest()
			}
			last[p] = masters
		}
	}
}

// unrest notes that masters may have changed.
func (p *place) unrest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = time.Now()
	if !p.lossy {
		p.unasked = append(p.unasked, p.changed)
	}
}

// settled reports whether masters have not changed for so long that what was held before has ended.
func (p *place) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.changed) > 2*soakLife
}

// changedUnasked reports whether masters changed around at, without a fault, so that writes of the
// events that a judge has in mind may be lost.
func (p *place) changedUnasked(at time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.unasked, func(u time.Time) bool {
		return u.Before(at.Add(time.Second)) && u.After(at.Add(-soakKeep-time.Second))
	})
}

// forgetLost ends a fault. Judges forget what writes may have been lost of, once masters stay.
func (s *soak) forgetLost(ctx context.Context, f *fault) {
	if f.lossy {
		for f.at.unrest(); ctx.Err() == nil && !f.at.settled(); {
			rest(ctx, watchPause)
		}
		for _, sub := range s.subjects {
			if sub.at == f.at {
				sub.restart()
			}
		}
	}
	f.at.mark(false, false)
}

func (sub *subject) restart() {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	for _, j := range sub.judges {
		j.restart()
	}
}

// mark says that p is broken, or is whole again from now on.
func (p *place) mark(broken, lossy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lossy, p.calm = lossy, time.Now()
	if broken {
		p.calm = p.calm.Add(time.Hour)
	}
}

// untilItDecides is how long it takes until the store decides ten times in a row, whatever the key.
func (p *place) untilItDecides(t *testing.T) time.Duration {
	began, good := time.Now(), 0
	for i := 0; good < 10; i++ {
		if _, err := p.probe.Allow(context.WithoutCancel(t.Context()), fmt.Sprint(i)); err != nil {
			good = 0
		} else {
			good++
		}
		require.Less(t, time.Since(began), time.Minute, "%s does not come back", p.name)
	}
	return time.Since(began)
}

// sample is what the process holds at one time. The heap is without the buffers of connections, of which
// there may be so many as a pool has: how many there are follows the load.
type sample struct {
	at                            time.Duration
	heap, goroutines, connections float64
}

const connectionBuffers = 2 * 32 << 10 // of go-redis

// measure takes samples while nothing is broken, and looks for keys that live for ever.
func (s *soak) measure(t *testing.T, ctx context.Context, pause time.Duration) {
	began := time.Now()
	for {
		if rest(ctx, pause); ctx.Err() != nil {
			return
		}
		if slices.ContainsFunc(s.places, func(p *place) bool { return p.probe != nil && !p.isCalm() }) {
			continue
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		connections := s.connections()
		s.samples = append(s.samples, sample{
			time.Since(began), float64(m.HeapAlloc) - connectionBuffers*connections, float64(runtime.NumGoroutine()), connections,
		})
		for _, p := range s.places {
			if p.lasting == nil {
				continue // in memory, where heap tells
			}
			for _, what := range p.lasting(ctx) {
				t.Errorf("%s: %s", p.name, what)
			}
		}
	}
}

// connections is how many the clients have.
func (s *soak) connections() (n float64) {
	for _, p := range s.places {
		if p.connections != nil {
			n += p.connections()
		}
	}
	return n
}

func keysWithoutTTL(ctx context.Context, servers []*redis.Client) (found []string) {
	for _, server := range servers {
		keys := server.Scan(ctx, 0, "*", 1000).Iterator()
		for keys.Next(ctx) {
			if ttl, err := server.PTTL(ctx, keys.Val()).Result(); err == nil && ttl == -1 {
				found = append(found, fmt.Sprintf("%q has no TTL", keys.Val()))
			}
		}
	}
	return found
}

// rowsThatStay finds rows that do not end, and more rows than calls of some minutes leave.
func rowsThatStay(ctx context.Context, pool *pgxpool.Pool) (found []string) {
	var all, endless int
	err := pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE ends > extract(epoch FROM now() + interval '10 minutes') * 1e6)
		FROM ratelimit`).Scan(&all, &endless)
	if err == nil && (all > 30_000 || endless > 0) {
		found = append(found, fmt.Sprintf("%d rows, of which %d do not end", all, endless))
	}
	return found
}

// slope is the growth of y a second by least squares, and the standard error of that.
func slope(samples []sample, y func(sample) float64) (perSecond, standardError float64) {
	n := float64(len(samples))
	var mx, my float64
	for _, s := range samples {
		mx, my = mx+s.at.Seconds()/n, my+y(s)/n
	}
	var xx, xy, rest float64
	for _, s := range samples {
		xx, xy = xx+(s.at.Seconds()-mx)*(s.at.Seconds()-mx), xy+(s.at.Seconds()-mx)*(y(s)-my)
	}
	perSecond = xy / xx
	for _, s := range samples {
		d := y(s) - my - perSecond*(s.at.Seconds()-mx)
		rest += d * d
	}
	return perSecond, math.Sqrt(rest / (n - 2) / xx)
}

// report fails for each admission over a limit, each unexpected error, and each growth beyond
// noise; and says what was seen.
func (s *soak) report(t *testing.T, long bool) {
	sum, decided := map[string]int{}, map[string]int{}
	for _, sub := range s.subjects {
		for _, at := range sub.overAt {
			what := "over"
			if sub.at.changedUnasked(at) {
				what = "over, while masters changed unasked"
			}
			sub.told[what]++
			if sub.told[what] <= 3 {
				t.Logf("%s: %s: at %s", sub.name, what, at.Format(time.TimeOnly))
			}
		}
		for _, what := range slices.Sorted(maps.Keys(sub.told)) {
			n := sub.told[what]
			sum[what] += n
			if what == "over" || strings.Contains(what, "unexpected") || strings.Contains(what, "in calm") {
				t.Logf("%s: %s: %d", sub.name, what, n)
			}
		}
		for _, what := range []string{"admitted", "denied"} {
			decided[sub.at.name+" "+what] += sub.told[what]
			if long {
				require.Positive(t, sub.told[what], "%s: %s", sub.name, what)
			}
		}
	}
	for what, n := range decided { // in a short run, a server may be broken for most of the time
		require.Positive(t, n, what)
	}
	for _, what := range slices.Sorted(maps.Keys(sum)) {
		t.Logf("%d limiters, %s: %d", len(s.subjects), what, sum[what])
		if what == "over" || strings.Contains(what, "unexpected") {
			t.Error(what)
		}
	}
	for _, p := range s.places {
		t.Logf("%s: at most %v without a decision in calm", p.name, p.silent.Round(time.Millisecond))
		if len(p.unasked) > 0 {
			t.Logf("%s: masters changed unasked for %v or more, first at %s", p.name, time.Duration(len(p.unasked))*watchPause, p.unasked[0].Format(time.TimeOnly))
		}
	}
	for _, f := range s.faults {
		t.Logf("| %s | %d | %v |", f.name, f.times, f.worst.Round(time.Millisecond))
	}
	s.reportGrowth(t)
}

// reportGrowth fails if the heap or the goroutines have grown, after a third of the time, by more
// than three standard errors of the slope and by more than a tenth. Ten minutes are too short to tell.
func (s *soak) reportGrowth(t *testing.T) {
	late := s.samples[len(s.samples)/3:]
	if len(late) < 10 {
		t.Logf("%d samples are too few for a slope", len(late))
		return
	}
	last := late[len(late)-1]
	t.Logf("connections: %.0f, then %.0f", late[0].connections, last.connections)
	span := (last.at - late[0].at).Seconds()
	for name, y := range map[string]func(sample) float64{
		"heap, bytes": func(s sample) float64 { return s.heap },
		"goroutines":  func(s sample) float64 { return s.goroutines },
	} {
		perSecond, e := slope(late, y)
		grown, first := perSecond*span, y(late[0])
		t.Logf("%s: %.0f, then %+.0f ± %.0f in %.0f s (%d samples)", name, first, grown, e*span, span, len(late))
		if span > 600 && grown > 3*e*span && grown > first/10 {
			t.Errorf("%s grow", name)
		}
	}
}
