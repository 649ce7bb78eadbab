// Package simulation sends the same requests through all five algorithms, in memory and on a
// simulated clock. Therefore, the same Input always has the same Output, in a browser too.
package simulation

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Input is what the page asks for.
type Input struct {
	Limit   string // as ratelimit.ParseLimit reads it
	Cost    int    // of each request, in events
	Reserve int    // percent of the limit, 0 to 90, that only important requests may use; not of Pasted
	Traffic string // the Name of a Traffic, or Pasted
	Log     string // lines of the common or the combined format, for Pasted
	Steps   string // what is sent by hand after the traffic: see steps
}

// Output is what has become of the requests.
type Output struct {
	Requests   int
	Last       int // requests of the last step by hand
	Clients    int
	Unreadable string          // how many lines of the Log were left out, and the first of them
	Period     time.Duration   // of the limit
	Bin        time.Duration   // the length of each bar
	Edges      []time.Duration // when windows begin, from the start on; none for Pasted
	Reserved   int             // events; 0 if no request is more important than another
	Average    float64         // requests in a Bin at the limit, for one client; 0 if unlimited
	Outcomes   []Outcome       // in the order of ratelimit.Algorithms
}

// Outcome is what an algorithm made of the requests. A request is counted once.
type Outcome struct {
	Algorithm string
	Error     string // why the algorithm cannot keep the limit; all else is then zero

	Within int // admitted, and an exact log would have admitted it as well
	Beyond int // admitted beyond an exact log
	Denied int

	Important        int // admitted, of the important requests; all of them are in the counts above
	ImportantRefused int

	DeniedClients int    // clients with a denial
	Most          int    // events of one client that went through within one Period
	Granted       int    // requests of the last step by hand that were admitted
	Answer        string // to the last request of that step

	Bars []Bar // from the start on
}

// Bar counts the requests of one Bin. Admitted ones are in the Bin in which they go. Important ones are within.
type Bar struct{ Within, Beyond, Denied, Important int }

// Cost is what a page's number says of the cost of a request.
func Cost(x float64) (int, error) {
	if x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return 0, fmt.Errorf("%w: %v, want a whole number", ratelimit.ErrInvalidN, x)
	}
	return int(x), nil
}

// Run sends the traffic of in through all algorithms.
func Run(in Input) (*Output, error) {
	p, err := newPlan(in)
	if err != nil {
		return nil, err
	}
	out := &Output{
		Requests:   len(p.requests),
		Last:       p.last,
		Clients:    p.clients(),
		Unreadable: p.unreadable,
		Period:     p.scale.Period,
		Bin:        p.bin,
		Edges:      p.edges,
		Reserved:   p.reserved,
		Average:    float64(max(0, p.limit.Rate)) / float64(in.Cost) * float64(p.bin) / float64(p.scale.Period),
	}
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		if err := p.limit.ValidateFor(algorithm); err != nil { // windows have no Burst
			out.Outcomes = append(out.Outcomes, Outcome{Algorithm: algorithm, Error: err.Error()})
			continue
		}
		o, err := p.run(algorithm)
		if err != nil {
			return nil, err
		}
		out.Outcomes = append(out.Outcomes, o)
	}
	return out, nil
}

// run asks a limiter about each request, at its time.
func (p *plan) run(algorithm string) (Outcome, error) {
	o := Outcome{Algorithm: algorithm}
	var now time.Duration
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return p.start.Add(now) }))
	if err != nil {
		return o, err
	}
	all, err := ratelimit.New(algorithm, mem, p.limit, ratelimit.WithName("all"))
	if err != nil {
		return o, err
	}
	others := all
	if p.reserved > 0 {
		if others, err = ratelimit.New(algorithm, mem, p.limit, ratelimit.WithName("all"), ratelimit.WithReserved(p.reserved)); err != nil {
			return o, err
		}
	}

	o.Bars = make([]Bar, p.bars)
	logs, denied := map[string]*exactLog{}, map[string]bool{}
	for i, q := range p.requests {
		now = q.at
		limiter := others
		if q.important {
			limiter = all
		}
		r, err := limiter.AllowN(context.Background(), q.client, p.cost)
		if err != nil {
			return o, err
		}
		if r.Allowed {
			o.admit(p, q, r.Delay, logs)
		} else {
			o.Denied++
			denied[q.client] = true
			o.bar(q.at/p.bin).Denied++
			if q.important {
				o.ImportantRefused++
			}
		}
		if i >= len(p.requests)-p.last {
			o.Answer = r.String()
			if r.Allowed {
				o.Granted++
			}
		}
	}
	o.DeniedClients = len(denied)
	return o, nil
}

// admit counts an admission at the time at which it goes.
func (o *Outcome) admit(p *plan, q request, delay time.Duration, logs map[string]*exactLog) {
	log := logs[q.client]
	if log == nil {
		log = &exactLog{}
		logs[q.client] = log
	}
	goes := q.at + delay
	spent := log.add(goes, p.scale.Period) * p.cost
	o.Most = max(o.Most, spent)
	if q.important {
		o.Important++
	}
	if bar := o.bar(goes / p.bin); spent > p.scale.Rate && p.limit != ratelimit.Unlimited() {
		o.Beyond++
		bar.Beyond++
	} else {
		o.Within++
		bar.Within++
		if q.important {
			bar.Important++
		}
	}
}

// bar returns the bar at an index. Requests after the last one are not drawn.
func (o *Outcome) bar(i time.Duration) *Bar {
	if i < time.Duration(len(o.Bars)) {
		return &o.Bars[i]
	}
	return &Bar{}
}

// exactLog has the times at which the requests of a client went through.
type exactLog struct {
	times []time.Duration
	first int // within the last Period
}

// add returns how many requests went through in the Period that ends with at. The times
// ascend. A request of a whole Period ago is not in it, as in a SlidingLog.
func (l *exactLog) add(at, period time.Duration) int {
	l.times = append(l.times, at)
	for at-l.times[l.first] >= period {
		l.first++
	}
	return len(l.times) - l.first
}
