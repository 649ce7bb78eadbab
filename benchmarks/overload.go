package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// pressCell is a cell of the part overload: processes that press one server at the same time.
type pressCell struct {
	name  string
	loads []load        // Who is empty where the contestants take turns; their decisions count
	paced *paced        // in place of Redis
	way   time.Duration // to the server and back
	fault string        // in the middle: see faults
	who   []string      // the contestants, in place of a token bucket and its peers
}

// The two paced servers make 36,700 and 7,300 decisions a second in scripts of 64, and 23,000
// and 4,650 in scripts of one.
var (
	steady = &paced{Script: 16 * time.Microsecond, Decision: 27 * time.Microsecond}
	slow   = &paced{Script: 80 * time.Microsecond, Decision: 135 * time.Microsecond}
)

// capacity is about what the best contestant serves of arrivals on two processors. The
// control that is called ideal drops what exceeds it.
const capacity = 180_000

func pressCells() (list []pressCell) {
	add := func(c pressCell, loads ...load) {
		c.loads = loads
		list = append(list, c)
	}
	callers := func(n int) load { return load{Callers: n} }
	for _, n := range []int{1, 4, 8, 16, 32, 64, 128, 512, 1024, 2048, 4096, 8192, 16384} {
		add(pressCell{name: fmt.Sprint("callers ", n)}, callers(n))
	}
	for _, n := range []int{1, 8, 32} {
		add(pressCell{name: fmt.Sprintf("server's time, one window, callers %d", n), who: []string{"one window", "one INCRBY and EXPIRE"}}, callers(n))
		add(pressCell{name: fmt.Sprintf("server's time, three windows, callers %d", n), who: []string{"three windows", "three of INCRBY and EXPIRE"}}, callers(n))
	}
	for _, pause := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
		for _, n := range []int{1024, 2048, 4096, 8192} {
			add(pressCell{name: fmt.Sprintf("callers %d, pause %v", n, pause)}, load{Callers: n, Pause: pause})
		}
	}
	for _, part := range []float64{0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4} {
		add(pressCell{name: fmt.Sprintf("arrivals %v a second", part*capacity)}, load{Rate: part * capacity})
	}
	for name, server := range map[string]*paced{"paced 36,700": steady, "paced 7,300": slow} { // in any order
		for _, n := range []int{64, 256, 1024, 4096} {
			add(pressCell{name: fmt.Sprintf("%s, callers %d", name, n), paced: server}, callers(n))
		}
		most := map[*paced]float64{steady: 36_700, slow: 7_300}[server]
		for _, part := range []float64{0.8, 1.5, 3} {
			add(pressCell{name: fmt.Sprintf("%s, arrivals %v a second", name, part*most), paced: server}, load{Rate: part * most})
		}
	}
	for _, way := range []time.Duration{2, 5, 20} {
		for _, n := range []int{64, 1024, 4096} {
			add(pressCell{name: fmt.Sprintf("%d ms away, callers %d", way, n), way: way * time.Millisecond}, callers(n))
		}
	}
	for _, n := range []int{64, 1024, 8192} {
		add(pressCell{name: fmt.Sprintf("slots, callers %d", n), who: []string{"slots"}}, callers(n))
		add(pressCell{name: fmt.Sprintf("slots, 20 ms away, callers %d", n), who: []string{"slots"}, way: 20 * time.Millisecond}, callers(n))
	}
	for _, n := range []int{8, 32} {
		add(pressCell{name: fmt.Sprintf("0.5 ms away, callers %d", n), way: 500 * time.Microsecond}, callers(n))
		add(pressCell{name: fmt.Sprintf("2 ms away, callers %d", n), way: 2 * time.Millisecond}, callers(n))
	}
	add(pressCell{name: "2 ms away, callers 64, deadline 5ms", way: 2 * time.Millisecond}, load{Callers: 64, Deadline: 5 * time.Millisecond})
	add(pressCell{name: "2 ms away, callers 64, deadline 10ms", way: 2 * time.Millisecond}, load{Callers: 64, Deadline: 10 * time.Millisecond})
	add(pressCell{name: "5 ms away, callers 64, deadline 1ms", way: 5 * time.Millisecond}, load{Callers: 64, Deadline: time.Millisecond})
	add(pressCell{name: "20 ms away, callers 256, deadline 50ms", way: 20 * time.Millisecond}, load{Callers: 256, Deadline: 50 * time.Millisecond})
	for _, n := range []int{64, 512, 2048} {
		add(pressCell{name: fmt.Sprintf("callers %d, deadline 5ms", n)}, load{Callers: n, Deadline: 5 * time.Millisecond})
	}
	for _, timeout := range []time.Duration{500 * time.Millisecond, time.Second} {
		add(pressCell{name: fmt.Sprintf("callers 4096, timeout %v", timeout)}, load{Callers: 4096, Timeout: timeout})
		add(pressCell{name: fmt.Sprintf("20 ms away, callers 4096, timeout %v", timeout), way: 20 * time.Millisecond}, load{Callers: 4096, Timeout: timeout})
	}
	for _, fault := range slices.Sorted(maps.Keys(faults)) {
		add(pressCell{name: "callers 2048, " + fault, fault: fault}, callers(2048))
		add(pressCell{name: "callers 2048, timeout 500ms, " + fault, fault: fault}, load{Callers: 2048, Timeout: 500 * time.Millisecond})
		add(pressCell{name: "75 ms away, callers 1024, timeout 500ms, " + fault, way: 75 * time.Millisecond, fault: fault}, load{Callers: 1024, Timeout: 500 * time.Millisecond})
	}
	for _, who := range []string{"SET", "pipeline", "MULTI"} {
		add(pressCell{name: "callers 256, beside " + who}, callers(256), load{Who: who, Callers: 8})
	}
	eight := slices.Repeat([]load{callers(512)}, 8)
	add(pressCell{name: "8 processes, callers 512"}, eight...)
	add(pressCell{name: "paced 36,700, 8 processes, callers 512", paced: steady}, eight...)
	add(pressCell{name: "paced 7,300, 8 processes, callers 512", paced: slow}, eight...)
	flood := append([]load{{Who: "TokenBucket", Callers: 4096}}, slices.Repeat([]load{{Callers: 8, Pause: 2 * time.Millisecond}}, 7)...)
	add(pressCell{name: "7 processes, callers 8, pause 2ms, beside one of 4096 callers"}, flood...)
	return list
}

// quickPress is a few of them: callers, arrivals, a paced server and a fault.
func quickPress() []pressCell {
	return slices.DeleteFunc(pressCells(), func(c pressCell) bool {
		return !slices.Contains([]string{"callers 4", "arrivals 45000 a second", "paced 7,300, callers 64", "callers 2048, cut"}, c.name)
	})
}

// faults are what happens to a server in the middle of a round.
var faults = map[string]func(ctx context.Context, addr string, way *far) error{
	"stalled for 100ms": func(ctx context.Context, addr string, _ *far) error {
		return command(ctx, addr, "client", "pause", 100, "all")
	},
	"stalled for 1s": func(ctx context.Context, addr string, _ *far) error {
		return command(ctx, addr, "client", "pause", 1000, "all")
	},
	"flushed": func(ctx context.Context, addr string, _ *far) error { return command(ctx, addr, "script", "flush") },
	"cut": func(_ context.Context, _ string, way *far) error {
		way.cut()
		return nil
	},
}

func command(ctx context.Context, addr string, args ...any) error {
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: 5 * time.Second})
	return errors.Join(client.Do(ctx, args...).Err(), client.Close())
}

// faulted is the time of a round with a fault, and calm how much of it comes before.
const (
	faulted = 4 * time.Second
	calm    = time.Second
	settled = 500 * time.Millisecond // before what is counted
)

// presser is a contestant of the part overload.
type presser struct {
	name, who, program string
	ideal              bool
}

// measureOverload writes what callers get past the capacity of a server.
func (b *bench) measureOverload(ctx context.Context, name *regexp.Regexp) error {
	if !haveRedis() {
		fmt.Fprintln(b.out, "\nCallers past capacity were not measured: there is no redis-server on the PATH.")
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	_, _ = fmt.Fprint(b.out, "\n### Callers past capacity\n\nDecisions a second, medians of interleaved rounds. Times are in ms: p50 and p99 of the decisions; "+
		"late is p99.9 of all calls beyond their deadline, and timers is how late those of the process were. Processor time is in µs for each decision. "+
		"Ideal drops the arrivals beyond "+strconv.Itoa(capacity)+" a second before the call.\n\n"+
		"| cell | | decisions/s | p50 | p99 | late | timers | client | server | other ends | |\n|---|---|--:|--:|--:|--:|--:|--:|--:|---|---|\n")
	for _, c := range b.pressCells {
		b.progress("overload: %s", c.name)
		contestants := b.pressers(c, self, name)
		rounds := make([][]pressResult, len(contestants))
		for range b.pressRounds {
			for i, who := range contestants {
				r, err := b.press(ctx, c, who)
				if err != nil {
					b.failures++
					fmt.Fprintf(b.out, "| %s | %s | failed: %v |\n", c.name, who.name, err)
					break
				}
				rounds[i] = append(rounds[i], r)
			}
		}
		for i, who := range contestants {
			if len(rounds[i]) > 0 {
				fmt.Fprintf(b.out, "| %s | %s | %s |\n", c.name, who.name, medianPress(rounds[i]))
			}
		}
	}
	return nil
}

// pressers are the contestants of c, whose name matches: this program's, and that of another
// build.
func (b *bench) pressers(c pressCell, self string, name *regexp.Regexp) (list []presser) {
	who := c.who
	if who == nil {
		who = []string{"TokenBucket", "redis_rate"}
		if c.loads[0].Rate == 0 {
			who = append(who, "rueidis")
		}
	}
	for i, w := range who {
		list = append(list, presser{name: w, who: w, program: self})
		if i == 0 && b.beside != "" {
			list = append(list, presser{name: w + " beside", who: w, program: b.beside})
		}
	}
	if c.loads[0].Rate > 0 && c.paced == nil {
		list = append(list, presser{name: "ideal", who: who[0], program: self, ideal: true})
	}
	return slices.DeleteFunc(list, func(p presser) bool { return !name.MatchString(p.name) })
}

// pressResult is what those of a contestant saw, together, and what their neighbours did.
type pressResult struct {
	pressed
	others  float64       // a second: what neighbours got
	returns time.Duration // from a fault to 0.9 of the rate before; 0: there was none
}

func medianPress(rounds []pressResult) string {
	of := func(f func(*pressResult) float64) float64 {
		all := make([]float64, len(rounds))
		for i := range rounds {
			all[i] = f(&rounds[i])
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	perDecision := func(r *pressResult, s float64) float64 { return s * 1e6 / float64(max(1, r.Classes["ok"])) }
	text := fmt.Sprintf("%.0f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | ",
		of(func(r *pressResult) float64 { return r.ok() }), of(func(r *pressResult) float64 { return r.P50 }), of(func(r *pressResult) float64 { return r.P99 }),
		of(func(r *pressResult) float64 { return r.Late }), of(func(r *pressResult) float64 { return r.Timers }),
		of(func(r *pressResult) float64 { return perDecision(r, r.CPU) }), of(func(r *pressResult) float64 { return perDecision(r, r.Server) }))
	ends := map[string]bool{}
	for i := range rounds {
		for class := range rounds[i].Classes {
			ends[class] = class != "ok"
		}
	}
	var others []string
	for _, class := range slices.Sorted(maps.Keys(ends)) {
		if ends[class] {
			others = append(others, fmt.Sprintf("%s %.0f", class, of(func(r *pressResult) float64 { return float64(r.Classes[class]) / r.Seconds })))
		}
	}
	text += strings.Join(others, ", ") + " | "
	if rounds[0].others > 0 {
		text += fmt.Sprintf("neighbours %.0f", of(func(r *pressResult) float64 { return r.others }))
	}
	if rounds[0].returns > 0 {
		text += fmt.Sprintf("back after %.0f ms", of(func(r *pressResult) float64 { return float64(r.returns.Milliseconds()) }))
	}
	return text
}

// press makes one round of one contestant.
func (b *bench) press(ctx context.Context, c pressCell, who presser) (sum pressResult, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addr, stop, err := b.pressedServer(ctx, c)
	if err != nil {
		return sum, err
	}
	defer stop()
	target := addr
	var way *far
	if c.way > 0 || c.fault != "" {
		if way, err = startFar(ctx, addr, c.way, false); err != nil {
			return sum, err
		}
		defer way.close()
		target = way.addr()
	}
	members := make([]*member, len(c.loads))
	mine := make([]bool, len(c.loads))
	var timeout time.Duration
	for i, l := range c.loads {
		if mine[i] = l.Who == ""; mine[i] {
			l.Who = who.who
		}
		l.Addr, l.Warm, l.Time = target, settled, b.pressTime
		if c.fault != "" {
			l.Time = faulted
		}
		if who.ideal {
			l.Ideal = capacity
		}
		if timeout = l.Timeout; timeout == 0 {
			timeout = 250 * time.Millisecond
		}
		if members[i], err = startLoad(ctx, who.program, l); err != nil {
			return sum, err
		}
		defer members[i].end()
	}
	for _, m := range members {
		if err := m.begin(); err != nil {
			return sum, err
		}
	}
	broken := make(chan error, 1)
	var at time.Time
	if c.fault != "" {
		time.Sleep(settled + calm)
		at = time.Now()
		go func() { broken <- faults[c.fault](ctx, addr, way) }()
	} else {
		broken <- nil
	}
	sum.Classes = map[string]int64{}
	for i, m := range members {
		r, err := m.result()
		if err != nil {
			return sum, err
		}
		if mine[i] {
			sum.add(r)
		} else {
			sum.others += r.ok()
		}
	}
	if err = <-broken; err == nil && c.fault != "" {
		sum.recovery(at, timeout)
	}
	return sum, err
}

// pressedServer starts the server of c, new for each round.
func (b *bench) pressedServer(ctx context.Context, c pressCell) (addr string, stop func(), err error) {
	if c.paced == nil {
		return startRedis(ctx)
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	m, err := startChild(ctx, self, pacing, c.paced)
	if err != nil {
		return "", nil, err
	}
	line, err := m.out.ReadString('\n')
	if _, _, wrong := net.SplitHostPort(strings.TrimSpace(line)); err == nil {
		err = wrong
	}
	return strings.TrimSpace(line), func() {
		_ = m.cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, m.out)
		m.end()
	}, err
}

// add adds what another process saw.
func (r *pressResult) add(p *pressed) {
	if r.Seconds == 0 {
		classes := r.Classes
		r.pressed, r.Classes = *p, classes
	} else {
		r.P50, r.P99, r.Late, r.Timers = max(r.P50, p.P50), max(r.P99, p.P99), max(r.Late, p.Late), max(r.Timers, p.Timers)
		r.CPU += p.CPU
	}
	for class, n := range p.Classes {
		r.Classes[class] += n
	}
}

// recovery finds out how long after a fault at this time the rate is back.
func (r *pressResult) recovery(at time.Time, timeout time.Duration) {
	fault := int(at.Sub(time.Unix(0, r.Begun)) / seriesStep)
	step := int(max(timeout, 100*time.Millisecond) / seriesStep)
	rate := func(from, to int) float64 {
		var n int64
		for _, x := range r.Series[max(0, from):min(to, len(r.Series))] {
			n += x
		}
		return float64(n) / float64(to-from)
	}
	before := rate(0, fault)
	for from := fault; from+step <= len(r.Series)-1; from++ {
		if rate(from, from+step) >= 0.9*before {
			r.returns = max(1, time.Duration(from-fault)*seriesStep)
			return
		}
	}
	r.returns = time.Duration(len(r.Series)-fault) * seriesStep
}
