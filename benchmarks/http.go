package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
)

const bareHandler = "the handler alone"

// measureHTTP writes what middleware adds to a request, and our ratios to the fastest
// peer.
func (b *bench) measureHTTP(all []middlewareContestant) error {
	for _, out := range []outcome{allowed, denied} {
		what := map[outcome]string{allowed: "every request admitted", denied: "every request denied"}[out]
		times := newGrid("HTTP middleware, "+what+", ns per request", nil)
		for _, c := range all {
			times.rows = append(times.rows, c.name)
		}
		times.printed = whole
		for _, addresses := range []int{1, b.addresses} {
			if err := b.measureAddresses(all, workload{outcome: out, keys: addresses}, times); err != nil {
				return err
			}
		}
		times.moveLast("allocations")
		withoutBare(all, times)
		b.report(times, ratios("HTTP middleware, "+what+", ns, ours / fastest peer", times,
			func(i int) bool { return all[i].ours },
			func(i int) bool { return !all[i].ours && !all[i].bare }))
	}
	return nil
}

// measureAddresses measures the cells of one number of clients, all contestants open.
func (b *bench) measureAddresses(all []middlewareContestant, w workload, times *grid) error {
	b.progress("%s, of addresses: %s", times.title, grouped(w.keys))
	handlers, err := openMiddlewares(all, w)
	if err != nil {
		return err
	}
	remotes, callers := addresses(w.keys, measuredPort), runtime.GOMAXPROCS(0)
	return withoutGC(func() error {
		b.requestRounds(all, w, times, "serial", func(i, round int) error {
			return requests(handlers[i], remotes, round*b.requests, b.requests, wanted(all[i], w))
		})
		b.requestRounds(all, w, times, "parallel", func(i, round int) error {
			return requestsBy(callers, handlers[i], remotes, round*b.requests/callers, b.requests, wanted(all[i], w))
		})
		if w.keys != b.addresses {
			return nil
		}
		for i, h := range handlers {
			allocs, err := allocations(func() error { return requests(h, remotes, 0, allocating, wanted(all[i], w)) })
			times.set("allocations", i, allocs, err)
		}
		return nil
	})
}

// requestRounds is rounds with a collection before each batch. Middleware allocates, and
// one batch must not pay for what another has left.
func (b *bench) requestRounds(all []middlewareContestant, w workload, g *grid, how string, batch func(i, round int) error) {
	cell := fmt.Sprintf("%s addresses %s", grouped(w.keys), how)
	if w.keys == 1 {
		cell = "1 address " + how
	}
	for round := range b.roundCount {
		for i := range all {
			i = (i + round) % len(all)
			runtime.GC()
			ns, err := timed(b.requests, func() error { return batch(i, round) })
			g.least(cell, i, ns, err)
		}
	}
}

// withoutBare subtracts the bare handler's times from those of the others.
func withoutBare(all []middlewareContestant, g *grid) {
	bare := slices.IndexFunc(all, func(c middlewareContestant) bool { return c.bare })
	if bare < 0 {
		return
	}
	g.note = fmt.Sprintf("The first row is the handler without middleware, and is subtracted from the others. httprate %s, chi %s, tollbooth %s, ulule %s, throttled %s.",
		version("github.com/go-chi/httprate"), version("github.com/go-chi/chi/v5"), version(tollboothBuckets.module),
		version(ululeMemory.module), version(throttledMemory.module))
	for _, cells := range g.cells {
		for i := range cells {
			if i != bare {
				cells[i] -= cells[bare]
			}
		}
	}
}

// openMiddlewares puts each contestant around the handler, and shows it each client once.
func openMiddlewares(all []middlewareContestant, w workload) ([]http.Handler, error) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	var handlers []http.Handler
	for _, c := range all {
		wrap, err := c.open(w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		h, clients := wrap(handler), w.keys
		if c.oneKey {
			clients = 1
		}
		if err := requests(h, addresses(clients, firstPort), 0, clients, http.StatusOK); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		handlers = append(handlers, h)
	}
	return handlers, nil
}

// wanted is the status of each request after the first of its client.
func wanted(c middlewareContestant, w workload) int {
	if w.outcome == denied && !c.bare {
		return http.StatusTooManyRequests
	}
	return http.StatusOK
}

// Ports of the clients. They make new connections, and thus other strings than those seen
// first.
const (
	firstPort    = "50001"
	measuredPort = "50002"
)

// addresses returns the addresses of n IPv4 clients with a port, in random order.
func addresses(n int, port string) []string {
	list := make([]string, n)
	for j, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		list[j] = net.JoinHostPort(fmt.Sprintf("198.%d.%d.%d", 18+i>>16, i>>8&255, i&255), port)
	}
	return list
}

// answer is a ResponseWriter that is reused. It keeps only the status.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) { a.status = status }

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return len(b), nil
}

// newRequest returns a request in a context like that of net/http's server, and a
// function that ends it.
func newRequest() (r *http.Request, end func(), err error) {
	ctx := context.WithValue(context.Background(), http.ServerContextKey, &http.Server{})
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, &net.TCPAddr{})
	ctx, end = context.WithCancel(ctx)
	r, err = http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/search", http.NoBody)
	return r, end, err
}

// requests sends h n requests from the clients, beginning with the client at index from.
// It fails at the first answer with another status than want.
func requests(h http.Handler, clients []string, from, n, want int) error {
	r, end, err := newRequest()
	if err != nil {
		return err
	}
	defer end()
	a, k := &answer{header: http.Header{}}, from%len(clients)
	for range n {
		r.RemoteAddr, a.status = clients[k], 0
		h.ServeHTTP(a, r)
		if a.status != want {
			return fmt.Errorf("%w: status %d, want %d", errOutcome, a.status, want)
		}
		clear(a.header)
		if k++; k == len(clients) {
			k = 0
		}
	}
	return nil
}

// requestsBy is requests by several callers.
func requestsBy(callers int, h http.Handler, clients []string, from, n, want int) error {
	return inShares(callers, n, from, len(clients), func(from, n int) error { return requests(h, clients, from, n, want) })
}

// together returns the lists as one, sorted.
func together(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return all
}
