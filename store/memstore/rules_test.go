package memstore_test

import (
	"errors"
	"math"

	"github.com/ratelimit-go/ratelimit/store"
)

const second = int64(1e6) // µs

// plenty is a limit that is never reached.
var plenty = store.Limit{Rate: 1 << 30, Period: 3600 * second, Burst: 1 << 30}

// builtIn is the Plain of rules on which a store decides as on the built-in ones.
const builtIn = "built in"

// window is a fixed window, the simplest possible rule. Reply.X is the previous spend, and Y the
// time that counted.
var window = &store.Rule{
	Name: "window", Plain: builtIn,
	Step: func(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
		now = max(now, s.At)
		if now >= s.At+l.Period {
			s = store.State{At: now - now%l.Period}
		}
		r := store.Reply{Outcome: store.AdmittedIf(s.Whole+n <= l.Burst), X: s.Whole, Y: now}
		s.Period, s.Whole = l.Period, s.Whole+n
		return s, r
	},
	Refund: func(s store.State, _ store.Limit, _ int64, c store.Receipt) store.State {
		if c.At >= s.At && c.At < s.At+s.Period {
			s.Whole = max(s.Whole-c.N, 0)
		}
		return s
	},
	TTL:  func(s store.State, _ store.Limit) int64 { return s.Period },
	Used: func(s store.State, _, _ int64) int64 { return s.Whole },
}

// plainLog is a sliding log. Its Reply has the same fields as that of window.
type plainLog struct {
	at, n  []int64
	period int64
}

// sliding keeps a log from the first event on.
var sliding = &store.Rule{
	Name: "log", Plain: builtIn,
	Step: func(_ store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
		return store.State{}, new(plainLog).Step(l, now, n)
	},
	NewLog: func(store.State) store.Log { return new(plainLog) },
}

// forward is sliding with a log whose time does not go back, as the contract of Log requires.
var forward = &store.Rule{
	Name:   "forward",
	Plain:  builtIn,
	Step:   sliding.Step,
	NewLog: func(store.State) store.Log { return new(forwardLog) },
}

type forwardLog struct{ plainLog }

func (g *forwardLog) Add(l store.Limit, now, n int64) (end int64) {
	if len(g.at) > 0 {
		now = max(now, g.at[len(g.at)-1])
	}
	return g.plainLog.Add(l, now, n)
}

func (g *plainLog) Step(l store.Limit, now, n int64) store.Reply {
	spent := g.after(now - l.Period)
	if g.End() <= now {
		spent = 0
	}
	return store.Reply{Outcome: store.AdmittedIf(spent+n <= l.Burst), X: spent, Y: now}
}

func (g *plainLog) Add(l store.Limit, now, n int64) (end int64) {
	if g.End() <= now {
		g.at, g.n = nil, nil
	}
	g.at, g.n, g.period = append(g.at, now), append(g.n, n), l.Period
	return g.End()
}

func (g *plainLog) Refund(_ store.Limit, _ int64, c store.Receipt) {
	for i, at := range g.at {
		if at == c.At {
			back := min(g.n[i], c.N)
			g.n[i] -= back
			c.N -= back
		}
	}
}

func (g *plainLog) End() int64 {
	for i := len(g.at) - 1; i >= 0; i-- {
		if g.n[i] > 0 {
			return g.at[i] + g.period
		}
	}
	return math.MinInt64
}

func (g *plainLog) Used(now int64) int64 { return g.after(now - g.period) }

// AppendBinary is not called, because memstore keeps logs as they are.
func (g *plainLog) AppendBinary([]byte) ([]byte, error) { return nil, errors.ErrUnsupported }

func (g *plainLog) after(t int64) (n int64) {
	for i, at := range g.at {
		if at > t {
			n += g.n[i]
		}
	}
	return n
}
