package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const (
	maxRequests = 50_000 // in all; the page stands still while it computes
	maxSteps    = 100
	maxYears    = 100 // of a log
	perPeriod   = 10  // bars
	mostReserve = 90  // percent

	importantOf = 5 // one in so many requests of a traffic
)

// request is one of a client, at a time since the start.
type request struct {
	client    string
	at        time.Duration
	important bool // if some events are reserved
}

// plan is the requests of an Input in the order of their times.
type plan struct {
	limit      ratelimit.Limit
	scale      ratelimit.Limit // limit, or what stands for it if it has no Rate or Period
	cost       int
	reserved   int
	start      time.Time
	edges      []time.Duration // when windows begin, since the start
	requests   []request
	last       int // how many of them are the last step by hand
	unreadable string
	bin        time.Duration
	bars       int
}

func newPlan(in Input) (*plan, error) {
	limit, err := ratelimit.ParseLimit(in.Limit)
	if err != nil {
		return nil, err
	}
	if err := store.CheckCall(context.Background(), "key", in.Cost); err != nil {
		return nil, err
	}
	p := &plan{limit: limit, scale: limit, cost: in.Cost}
	if limit == ratelimit.Unlimited() {
		p.scale = ratelimit.PerSecond(10)
	}
	if in.Reserve < 0 || in.Reserve > mostReserve {
		return nil, fmt.Errorf("a reserve of %d %%, want 0 to %d", in.Reserve, mostReserve)
	}
	if in.Traffic != Pasted && limit != ratelimit.Unlimited() {
		p.reserved = int(int64(cmp.Or(limit.Burst, limit.Rate)) * int64(in.Reserve) / 100)
	}
	p.bin = binOf(p.scale.Period)
	end, err := p.addTraffic(in)
	if err != nil {
		return nil, err
	}
	now := end
	if len(p.requests) == 0 {
		now = 0
	}
	if now, err = p.addSteps(in.Steps, now); err != nil {
		return nil, err
	}
	end = max(end, now) + p.scale.Period // a Period more shows what a queue lets go
	if n := len(p.requests); n > maxRequests {
		if in.Traffic == Pasted {
			return nil, tooMany(n, "paste fewer lines")
		}
		return nil, tooMany(n, "clear what you sent")
	}
	p.bars = int((end + p.bin - 1) / p.bin)
	if in.Traffic != Pasted {
		p.edges, err = p.edgesUntil(end)
	}
	return p, err
}

func tooMany(n int, advice string) error {
	return fmt.Errorf("%d requests are too many for this page, which draws up to %d: %s", n, maxRequests, advice)
}

const day = 24 * time.Hour

// round are the lengths of bars up to a day. Longer ones are whole days.
var round = func() (lengths []time.Duration) {
	for unit := time.Microsecond; unit < time.Second; unit *= 10 {
		lengths = append(lengths, unit, 2*unit, 5*unit)
	}
	for _, n := range []time.Duration{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600} {
		lengths = append(lengths, n*time.Second)
	}
	return append(lengths, day)
}()

// binOf returns the length of bars for a period: round, and so that each window ends with a bar.
func binOf(period time.Duration) time.Duration {
	most := period / perPeriod
	if most >= day {
		return most.Truncate(day)
	}
	for _, length := range slices.Backward(round) {
		if length <= most && period%length == 0 && period/length <= 2*perPeriod {
			return length
		}
	}
	return most
}

// addTraffic adds the requests of in.Traffic, and returns when they end.
func (p *plan) addTraffic(in Input) (time.Duration, error) {
	if in.Traffic == Pasted {
		return p.addLog(in.Log)
	}
	i := slices.IndexFunc(Traffics, func(t Traffic) bool { return t.Name == in.Traffic })
	if i < 0 {
		return 0, fmt.Errorf("no traffic is named %.40q", in.Traffic)
	}
	var err error
	if p.start, err = windowEnd(p.scale, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Microsecond)); err != nil {
		return 0, err
	}
	perPeriod := float64(max(1, p.scale.Rate)) / float64(p.cost)
	if n := 2 * perPeriod * periods; n > maxRequests {
		return 0, tooMany(int(n), "raise the cost or lower the rate")
	}
	for i, at := range Traffics[i].times(perPeriod) {
		important := p.reserved > 0 && i%importantOf == importantOf-1
		p.requests = append(p.requests, request{"you", time.Duration(at * float64(p.scale.Period)).Round(time.Microsecond), important})
	}
	return periods * p.scale.Period, nil
}

// windowEnd returns when the window of a limit that contains t ends. The windows of a calendar differ in
// length, and only a FixedWindow knows them.
func windowEnd(l ratelimit.Limit, t time.Time) (time.Time, error) {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return t }))
	if err != nil {
		return t, err
	}
	l.Rate, l.Burst = 1, 0
	windows, err := ratelimit.NewFixedWindow(mem, l)
	if err != nil {
		return t, err
	}
	r, err := windows.Allow(context.Background(), "key")
	return t.Add(r.ResetAfter), err
}

// edgesUntil returns when windows begin, from the start on, which is such a time.
func (p *plan) edgesUntil(end time.Duration) (edges []time.Duration, err error) {
	for at := p.start; err == nil && at.Sub(p.start) <= end; at, err = windowEnd(p.scale, at) {
		edges = append(edges, at.Sub(p.start))
	}
	return edges, err
}

// addLog adds the requests of an access log. Its bars are of a round length and begin at round
// times: others beat with what comes each minute or hour.
func (p *plan) addLog(text string) (end time.Duration, err error) {
	lines, unreadable := parseLog(text)
	if p.unreadable = unreadable; len(lines) == 0 {
		return 0, errors.New("paste lines of an access log: " + cmp.Or(unreadable, "there are none yet"))
	}
	// Logs are a little out of order, and a limiter takes a late request for one of now.
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	const bars = 60
	first, last := lines[0].at, lines[len(lines)-1].at
	if last.Sub(first) > maxYears*365*day { // a time.Duration holds three times as long
		return 0, fmt.Errorf("the log is from %s to %s, which is over %d years", first.Format("2006"), last.Format("2006"), maxYears)
	}
	least := last.Sub(first) / bars
	i, _ := slices.BinarySearch(round, least)
	if i < len(round) {
		least = round[i]
	} else {
		least = (least + day - 1).Truncate(day)
	}
	p.bin = max(p.bin, least)
	p.start = first.Truncate(p.bin)
	for _, l := range lines {
		p.requests = append(p.requests, request{l.client, l.at.Sub(p.start), false})
	}
	return p.requests[len(p.requests)-1].at, nil
}

// addSteps adds what is sent by hand, and returns the time after it. Steps are separated
// by commas: a number of requests at once, or "w" to wait for a bar's length.
func (p *plan) addSteps(text string, now time.Duration) (time.Duration, error) {
	if text == "" {
		return now, nil
	}
	steps := strings.Split(text, ",")
	if len(steps) > maxSteps {
		return 0, fmt.Errorf("%d steps by hand are too many, at most %d: clear them", len(steps), maxSteps)
	}
	for _, step := range steps {
		p.last = 0
		if step == "w" {
			now += p.bin
			continue
		}
		n, err := strconv.Atoi(step)
		if err != nil || n < 1 || n > 1000 {
			return 0, fmt.Errorf("%.40q is no step: a number up to 1000, or w to wait", step)
		}
		p.requests = append(p.requests, slices.Repeat([]request{{"you", now, p.reserved > 0}}, n)...)
		p.last = n
	}
	return now, nil
}

func (p *plan) clients() int {
	clients := map[string]bool{}
	for _, q := range p.requests {
		clients[q.client] = true
	}
	return len(clients)
}
