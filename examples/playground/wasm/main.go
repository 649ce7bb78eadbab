//go:build js && wasm

// Command wasm is the library in a browser. It gives the page one function:
//
//	simulate({limit, cost, reserve, traffic, log, steps}) → the Output, or {error}
package main

import (
	"syscall/js"
	"time"
	_ "time/tzdata" // of calendars: a browser has no files

	"github.com/ratelimit-go/ratelimit/examples/playground/simulation"
)

func main() {
	traffics := []any{}
	for _, t := range simulation.Traffics {
		traffics = append(traffics, map[string]any{"name": t.Name, "title": t.Title})
	}
	js.Global().Set("ratelimit", map[string]any{
		"traffics": traffics,
		"simulate": js.FuncOf(func(_ js.Value, args []js.Value) any { return simulate(args[0]) }),
	})
	select {} // the page calls from now on
}

func simulate(in js.Value) any {
	cost, err := simulation.Cost(in.Get("cost").Float())
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	out, err := simulation.Run(simulation.Input{
		Limit:   in.Get("limit").String(),
		Cost:    cost,
		Reserve: in.Get("reserve").Int(),
		Traffic: in.Get("traffic").String(),
		Log:     in.Get("log").String(),
		Steps:   in.Get("steps").String(),
	})
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	edges := []any{}
	for _, edge := range out.Edges {
		edges = append(edges, seconds(edge))
	}
	outcomes := []any{}
	for _, o := range out.Outcomes {
		outcomes = append(outcomes, outcome(o))
	}
	return map[string]any{
		"requests":   out.Requests,
		"last":       out.Last,
		"clients":    out.Clients,
		"unreadable": out.Unreadable,
		"period":     seconds(out.Period),
		"bin":        seconds(out.Bin),
		"edges":      edges,
		"reserved":   out.Reserved,
		"average":    out.Average,
		"outcomes":   outcomes,
	}
}

func outcome(o simulation.Outcome) any {
	var within, beyond, denied, important []any
	for _, b := range o.Bars {
		within, beyond, denied = append(within, b.Within), append(beyond, b.Beyond), append(denied, b.Denied)
		important = append(important, b.Important)
	}
	return map[string]any{
		"algorithm":     o.Algorithm,
		"error":         o.Error,
		"within":        o.Within,
		"beyond":        o.Beyond,
		"denied":        o.Denied,
		"deniedClients": o.DeniedClients,
		"important":     o.Important,
		"refused":       o.ImportantRefused,
		"most":          o.Most,
		"granted":       o.Granted,
		"answer":        o.Answer,
		"bars":          map[string]any{"within": within, "beyond": beyond, "denied": denied, "important": important},
	}
}

func seconds(d time.Duration) float64 { return d.Seconds() }
