package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// pressing is the environment variable with which a process is a load.
const pressing = "RATELIMIT_BENCHMARK_LOAD"

// load is the callers of one process, and what they call: either so many that call again and
// again, or so many a second that wait for nobody.
type load struct {
	Who      string // a name of loaders
	Addr     string
	Callers  int
	Pause    time.Duration // of a caller between two calls
	Rate     float64       // arrivals a second, in place of Callers
	Ideal    float64       // a second: what exceeds it is dropped before the call; 0: nothing is
	Deadline time.Duration // of a call's context; 0: none
	Timeout  time.Duration // of the store; 0: the default
	Warm     time.Duration // before what is counted
	Time     time.Duration
}

// pressed is what the callers saw.
type pressed struct {
	Classes  map[string]int64 // calls by how they ended; ok is a decision
	P50, P99 float64          // ms, of the decisions
	Late     float64          // ms beyond the deadline, of those that ended after it: p99.9 of all calls
	Timers   float64          // the same of timers of this process
	CPU      float64          // s of this process
	Server   float64          // s of the server, if it tells
	Seconds  float64
	Dropped  int64 // before the call
	Begun    int64 // Unix ns, of Series
	Series   []int64
}

// seriesStep is the length of a step of a Series of decisions.
const seriesStep = 10 * time.Millisecond

func (r *pressed) ok() float64 { return float64(r.Classes["ok"]) / r.Seconds }

// loaders are what a load can call.
var loaders = map[string]func(*redis.Client, *load) (func(context.Context, string) error, func(context.Context) error, error){
	"TokenBucket": func(client *redis.Client, l *load) (func(context.Context, string) error, func(context.Context) error, error) {
		var opts []redisstore.Option
		if l.Timeout > 0 {
			opts = append(opts, redisstore.WithTimeout(l.Timeout))
		}
		s, err := redisstore.New(client, opts...)
		if err != nil {
			return nil, nil, err
		}
		lim, err := ratelimit.NewTokenBucket(s, ratelimit.PerMinute(1_000_000), ratelimit.WithName("overload"))
		return func(ctx context.Context, key string) error {
			_, err := lim.Allow(ctx, key)
			return err
		}, s.Ready, err
	},
	"redis_rate": func(client *redis.Client, _ *load) (func(context.Context, string) error, func(context.Context) error, error) {
		lim := redis_rate.NewLimiter(client)
		return func(ctx context.Context, key string) error {
			_, err := lim.Allow(ctx, key, redis_rate.PerMinute(1_000_000))
			return err
		}, func(ctx context.Context) error { return client.Ping(ctx).Err() }, nil
	},
	"slots":   loadSlots,
	"rueidis": loadRueidis,
}

// loadSlots is the loader of slots that are held and given back at once. Only the holding is waited for.
func loadSlots(client *redis.Client, _ *load) (func(context.Context, string) error, func(context.Context) error, error) {
	s, err := redisstore.New(client)
	if err != nil {
		return nil, nil, err
	}
	lim, err := inflight.New(s, 64, time.Minute, ratelimit.WithName("overload"))
	return func(ctx context.Context, key string) error {
		slot, _, err := inflight.Hold(ctx, lim, key, 1)
		slot.Release()
		return err
	}, s.Ready, err
}

// loadLimits is the loader of fixed windows, each of another length: of one, or of an All.
func loadLimits(windows ...time.Duration) func(*redis.Client, *load) (func(context.Context, string) error, func(context.Context) error, error) {
	return func(client *redis.Client, _ *load) (func(context.Context, string) error, func(context.Context) error, error) {
		s, err := redisstore.New(client)
		if err != nil {
			return nil, nil, err
		}
		list := make([]ratelimit.Limiter, len(windows))
		for i, window := range windows {
			if list[i], err = ratelimit.NewFixedWindow(s, ratelimit.Limit{Rate: 1_000_000, Period: window}); err != nil {
				return nil, nil, err
			}
		}
		lim := list[0]
		if len(list) > 1 {
			if lim, err = ratelimit.NewAll(list...); err != nil {
				return nil, nil, err
			}
		}
		return func(ctx context.Context, key string) error {
			_, err := lim.Allow(ctx, key)
			return err
		}, s.Ready, nil
	}
}

// loadCounters is the loader of what people write by hand: INCRBY and EXPIRE of each of so
// many keys, in one round trip. It is not atomic, and tells no more than the counts.
func loadCounters(n int) func(*redis.Client, *load) (func(context.Context, string) error, func(context.Context) error, error) {
	return neighbour(func(ctx context.Context, client *redis.Client, key string) error {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range n {
				counter := "counter:" + strconv.Itoa(i) + ":" + key
				p.IncrBy(ctx, counter, 1)
				p.Expire(ctx, counter, time.Minute)
			}
			return nil
		})
		return err
	})
}

// neighbours are other users of the server, which do so many commands at once.
func neighbour(run func(ctx context.Context, client *redis.Client, key string) error) func(*redis.Client, *load) (func(context.Context, string) error, func(context.Context) error, error) {
	return func(client *redis.Client, _ *load) (func(context.Context, string) error, func(context.Context) error, error) {
		return func(ctx context.Context, key string) error { return run(ctx, client, key) },
			func(ctx context.Context) error { return client.Ping(ctx).Err() }, nil
	}
}

const neighbours = 20 // commands of a neighbour

func init() {
	loaders["one window"] = loadLimits(time.Minute)
	loaders["three windows"] = loadLimits(time.Minute, time.Hour, 24*time.Hour)
	loaders["one INCRBY and EXPIRE"] = loadCounters(1)
	loaders["three of INCRBY and EXPIRE"] = loadCounters(3)
	loaders["SET"] = neighbour(func(ctx context.Context, client *redis.Client, key string) error {
		return client.Set(ctx, "neighbour:"+key, key, time.Minute).Err()
	})
	loaders["pipeline"] = neighbour(func(ctx context.Context, client *redis.Client, key string) error {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for range neighbours {
				p.Set(ctx, "neighbour:"+key, key, time.Minute)
			}
			return nil
		})
		return err
	})
	loaders["MULTI"] = neighbour(func(ctx context.Context, client *redis.Client, key string) error {
		_, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
			for range neighbours {
				p.Set(ctx, "neighbour:"+key, key, time.Minute)
			}
			return nil
		})
		return err
	})
}

// loadKeys is how many keys the callers use.
const loadKeys = 10_000

// classOf names how a call ended.
func classOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, store.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, store.ErrTimeout):
		return "timeout"
	case errors.Is(err, store.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, store.ErrStore):
		return "store"
	}
	return "other"
}

// histogram counts durations by steps of a sixteenth.
type histogram [64 * 16]atomic.Int64

func slotOf(d time.Duration) int {
	us := uint64(max(d, 0)/time.Microsecond) + 16
	top := bits.Len64(us) - 5
	return top*16 + int(us>>top)
}

func (h *histogram) add(d time.Duration) { h[slotOf(d)].Add(1) }

// quantile is a quantile in ms. Durations that were not added count as 0.
func (h *histogram) quantile(q float64, all int64) float64 {
	rest := int64((1 - q) * float64(all))
	for i := len(h) - 1; i >= 0; i-- {
		if rest -= h[i].Load(); rest < 0 {
			top := i/16 - 1
			return float64(((uint64(i%16+16))<<max(top, 0))-16) / 1e3
		}
	}
	return 0
}

// account is what is counted of calls.
type account struct {
	from, to     atomic.Int64 // ns since base: when to count
	base         time.Time
	classes      sync.Map // of *atomic.Int64 by string
	served, late histogram
	all, dropped atomic.Int64
	series       []atomic.Int64
}

func (a *account) count(begun time.Time, took, allowed time.Duration, err error) {
	ended := begun.Add(took).Sub(a.base)
	if int64(ended) < a.from.Load() || int64(ended) >= a.to.Load() {
		return
	}
	class := classOf(err)
	n, ok := a.classes.Load(class)
	if !ok {
		n, _ = a.classes.LoadOrStore(class, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
	a.all.Add(1)
	if err == nil {
		a.served.add(took)
		a.series[(int64(ended)-a.from.Load())/int64(seriesStep)].Add(1)
	}
	if took > allowed {
		a.late.add(took - allowed)
	}
}

// runLoad is what a process of callers does: it says that it is ready, waits for a line, calls
// for some time, and tells what it saw.
func runLoad(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	var l load
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: l.Addr})
	defer func() { _ = client.Close() }()
	decide, ready, err := loaders[l.Who](client, &l)
	if err != nil {
		return err
	}
	if err := ready(ctx); err != nil {
		return err
	}
	keys := make([]string, loadKeys)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return err
	}
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	r, err := l.press(ctx, decide, keys)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

func (l *load) press(ctx context.Context, decide func(context.Context, string) error, keys []string) (*pressed, error) {
	probe := redis.NewClient(&redis.Options{Addr: l.Addr, PoolSize: 1, ReadTimeout: time.Minute})
	defer func() { _ = probe.Close() }()
	a := &account{base: time.Now(), series: make([]atomic.Int64, l.Time/seriesStep+1)}
	a.from.Store(1 << 62)
	a.to.Store(1 << 62)
	allowed := l.Deadline
	if allowed == 0 {
		if allowed = l.Timeout; allowed == 0 {
			allowed = 250 * time.Millisecond
		}
	}
	one := func(key string) {
		ctx, begun := ctx, time.Now()
		if l.Deadline > 0 {
			limited, cancel := context.WithDeadline(ctx, begun.Add(l.Deadline))
			defer cancel()
			ctx = limited
		}
		err := decide(ctx, key)
		a.count(begun, time.Since(begun), allowed, err)
	}
	stop := make(chan struct{})
	var callers sync.WaitGroup
	if l.Rate > 0 {
		callers.Go(func() { l.arrive(stop, &callers, a, keys, one) })
	} else {
		l.loop(stop, &callers, keys, one)
	}
	var timers histogram
	var fired int64
	callers.Go(func() { // how late timers are here
		for {
			due := time.Now().Add(10 * time.Millisecond)
			select {
			case <-stop:
				return
			case <-time.After(time.Until(due)):
				timers.add(time.Since(due))
				fired++
			}
		}
	})
	time.Sleep(l.Warm)
	server := serverCPU(ctx, probe)
	cpu, from := usedCPU(), time.Now()
	a.from.Store(int64(from.Sub(a.base)))
	a.to.Store(int64(from.Sub(a.base) + l.Time))
	time.Sleep(l.Time)
	took := time.Since(from)
	cpu = usedCPU() - cpu
	server = serverCPU(ctx, probe) - server
	close(stop)
	callers.Wait()
	r := &pressed{
		Classes: map[string]int64{}, P50: a.served.quantile(0.5, total(&a.served)), P99: a.served.quantile(0.99, total(&a.served)),
		Late: a.late.quantile(0.999, a.all.Load()), Timers: timers.quantile(0.999, fired),
		CPU: cpu.Seconds(), Server: server, Seconds: min(took, l.Time).Seconds(), Dropped: a.dropped.Load(), Begun: from.UnixNano(),
	}
	a.classes.Range(func(class, n any) bool {
		r.Classes[class.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	for i := range a.series {
		r.Series = append(r.Series, a.series[i].Load())
	}
	return r, nil
}

func total(h *histogram) (n int64) {
	for i := range h {
		n += h[i].Load()
	}
	return n
}

// loop starts callers that call again and again.
func (l *load) loop(stop chan struct{}, callers *sync.WaitGroup, keys []string, one func(string)) {
	for c := range l.Callers {
		callers.Go(func() {
			time.Sleep(time.Duration(rand.Int64N(int64(l.Pause + time.Millisecond))))
			for n := c; ; n += l.Callers {
				select {
				case <-stop:
					return
				default:
				}
				one(keys[n%len(keys)])
				if l.Pause > 0 {
					time.Sleep(l.Pause)
				}
			}
		})
	}
}

// arrive starts calls at a rate, each in a goroutine of its own.
func (l *load) arrive(stop chan struct{}, calls *sync.WaitGroup, a *account, keys []string, one func(string)) {
	begun, n := time.Now(), 0
	var taken atomic.Int64 // of Ideal, since begun
	for {
		select {
		case <-stop:
			return
		default:
		}
		for due := int(time.Since(begun).Seconds() * l.Rate); n < due; n++ {
			key := keys[n%len(keys)]
			calls.Go(func() {
				if l.Ideal > 0 {
					may := int64((time.Since(begun) + time.Millisecond).Seconds() * l.Ideal)
					if taken.Add(1) > may {
						taken.Add(-1)
						a.dropped.Add(1)
						return
					}
				}
				one(key)
			})
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// serverCPU is the processor time that the server has used, in s; 0 if it does not tell.
func serverCPU(ctx context.Context, client *redis.Client) (sum float64) {
	info := client.InfoMap(ctx, "cpu")
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		s, err := strconv.ParseFloat(info.Item("CPU", name), 64)
		if err != nil {
			return 0
		}
		sum += s
	}
	return sum
}

// startLoad starts the process of a load, of the program at path.
func startLoad(ctx context.Context, path string, l load) (*member, error) {
	m, err := startChild(ctx, path, pressing, l)
	if err != nil {
		return nil, err
	}
	if line, err := m.out.ReadString('\n'); err != nil || line != "ready\n" {
		m.end()
		return nil, errors.Join(fmt.Errorf("a process says %q", line), err)
	}
	return m, nil
}

// begin lets it call, and result waits for what it saw.
func (m *member) begin() error {
	_, err := io.WriteString(m.in, "go\n")
	return err
}

func (m *member) result() (*pressed, error) {
	r := new(pressed)
	return r, json.NewDecoder(m.out).Decode(r)
}
