package main

import (
	"cmp"
	"context"
	"fmt"
	"image/color"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/store"
)

var outage = picture{
	file:  "outage.svg",
	title: "What three policies admit while the store fails",
	description: "Three instances share a limit of 30 a second on one store, which fails from second 20 to second 40. A line shows " +
		"the events that are offered in each second, and the area those that are admitted. While the store fails, FailOpen admits all " +
		"of them and FailClosed none. FailLocal admits what fits into a third of the limit on each instance.",
	height: 470,
	draw:   drawOutage,
}

const (
	rate     = 30 // per second, for all instances
	down, up = 20 * time.Second, 40 * time.Second
	end      = time.Minute
)

// offers is how many events each instance is offered per second, on average.
var offers = []float64{24, 15, 6}

func drawOutage(c draw.Canvas) error {
	var panels [][]panel
	admitted := entry{text: "admitted"}
	for _, p := range []policy{
		{"FailOpen()", vermilion, func(ratelimit.Limiter, store.Store) (fallback.Answer, error) { return fallback.FailOpen(), nil }},
		{"FailClosed()", blue, func(ratelimit.Limiter, store.Store) (fallback.Answer, error) { return fallback.FailClosed(), nil }},
		{"FailLocal(3)", green, localShare},
	} {
		shown, err := p.chart(calls())
		if err != nil {
			return err
		}
		panels = append(panels, []panel{shown})
		admitted.lines = append(admitted.lines, filled(nil, p.colour))
	}
	panels[len(panels)-1][0].X.Label.Text = "seconds"
	c = key(c, entry{"offered in a second", []*plotter.Line{outlined(nil, dark, pixel)}}, admitted,
		entry{"limit: 30 a second", []*plotter.Line{dashed(0, 0, 0, 0, dark)}})
	for _, row := range grid(c, panels) {
		c.FillText(style(draw.XCenter), vg.Point{X: row[0].Center().X, Y: row[0].Max.Y - 8}, "the store fails")
	}
	return nil
}

// policy is one of package fallback, and how it is shown.
type policy struct {
	name   string
	colour color.Color
	of     func(l ratelimit.Limiter, mem store.Store) (fallback.Answer, error)
}

// localShare is [fallback.FailLocal] on the simulated clock.
func localShare(_ ratelimit.Limiter, mem store.Store) (fallback.Answer, error) {
	return fallback.FailLocal(len(offers)).On(mem), nil
}

// chart shows what p admits of the calls.
func (p policy) chart(calls []call) (panel, error) {
	admitted, err := p.simulate(calls)
	if err != nil {
		return panel{}, err
	}
	title := fmt.Sprintf("fallback.%s: %d of %d admitted while the store fails", p.name, during(admitted), during(calls))
	const top = 75
	shown := newPanel(title, axis{max: int(end.Seconds()), step: 10}, axis{max: top, step: rate})
	from, to := down.Seconds(), up.Seconds()
	shown.Add(filled(plotter.XYs{{X: from, Y: top}, {X: to, Y: top}}, shade),
		filled(steps(perSecond(admitted), 1), p.colour), outlined(steps(perSecond(calls), 1), dark, pixel),
		outlined(plotter.XYs{{X: from}, {X: from, Y: top}}, edge, pixel), outlined(plotter.XYs{{X: to}, {X: to, Y: top}}, edge, pixel),
		dashed(0, rate, end.Seconds(), rate, dark))
	return shown, nil
}

// call is an event that an instance is offered.
type call struct {
	at       time.Duration
	instance int
}

// calls returns what all instances are offered, in the order of time.
func calls() (all []call) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i, offer := range offers {
		for _, at := range poisson(rng, offer, 0, end) {
			all = append(all, call{at, i})
		}
	}
	slices.SortFunc(all, func(a, b call) int { return cmp.Compare(a.at, b.at) })
	return all
}

// during counts the calls while the store fails.
func during(calls []call) (n int) {
	for _, c := range calls {
		if down <= c.at && c.at < up {
			n++
		}
	}
	return n
}

func perSecond(calls []call) []int {
	var times []time.Duration
	for _, c := range calls {
		times = append(times, c.at)
	}
	return tally(times, time.Second, end)
}

// simulate asks the instances about the calls, and returns those that are admitted.
func (p policy) simulate(calls []call) (admitted []call, err error) {
	var c clock
	shared, err := c.memory()
	if err != nil {
		return nil, err
	}
	instances := make([]*fallback.Limiter, len(offers))
	for i := range instances {
		if instances[i], err = p.instance(&failing{shared, &c}, &c); err != nil {
			return nil, err
		}
	}
	for _, call := range calls {
		c.now = call.at
		r, err := instances[call.instance].Allow(context.Background(), "key")
		if err != nil {
			return nil, err
		}
		if r.Allowed {
			admitted = append(admitted, call)
		}
	}
	return admitted, nil
}

// instance returns a limiter on the shared store, with a memory of its own. Its breaker
// never opens, since that counts in real time: each call asks the store.
func (p policy) instance(shared store.Store, c *clock) (*fallback.Limiter, error) {
	bucket, err := ratelimit.NewTokenBucket(shared, ratelimit.PerSecond(rate))
	if err != nil {
		return nil, err
	}
	mem, err := c.memory()
	if err != nil {
		return nil, err
	}
	policy, err := p.of(bucket, mem)
	if err != nil {
		return nil, err
	}
	return fallback.New(bucket, policy, fallback.WithBreaker(math.MaxInt32, time.Second))
}

// failing is a store that does not answer during the outage.
type failing struct {
	store.Store
	clock *clock
}

// Take implements [store.Store].
func (f *failing) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if f.fails() {
		return store.Reply{}, store.ErrUnavailable
	}
	return f.Store.Take(ctx, ns, key, l, n)
}

// Decide implements [store.Store]. A key that owes asks by it.
func (f *failing) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if f.fails() {
		return store.ErrUnavailable
	}
	return f.Store.Decide(ctx, requests, replies)
}

func (f *failing) fails() bool { return down <= f.clock.now && f.clock.now < up }
