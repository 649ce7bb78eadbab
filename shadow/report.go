package shadow

import (
	"context"
	"log"
	"net/netip"
	"runtime/debug"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
)

// Report is called for each decision of Allow, AllowN and AllowWithin, enforced or not. If the
// limiter denied n events of key, r.Allowed is false. If the limiter failed, err is its error and r
// is zero. ctx has the caller's values, including the client's address (package clientaddr), but is
// never canceled.
//
// Report is called soon after the decision, by a goroutine of the [Limiter]: one decision at a
// time, in the order of the decisions. The caller does not wait for it. While a Report runs, up to
// 1,024 decisions are queued; [Limiter.Dropped] counts the decisions that find the queue full. The
// first panic of a Report is logged by package log. Decisions that are still queued when the
// process ends are lost.
type Report func(ctx context.Context, key string, n int, r ratelimit.Result, err error)

// maxWaiting is the maximum number of decisions that wait for a Report. Each takes 160 bytes.
const maxWaiting = 1024

// decision holds the arguments of a Report.
type decision struct {
	ctx    context.Context
	key    string
	n      int
	result ratelimit.Result
	err    error
	client netip.Addr // zero until add sets it
}

// reports holds the decisions that wait for a Report, and runs the goroutine that calls it.
type reports struct {
	report   Report
	panicked sync.Once

	mu          sync.Mutex // protects what follows; never held during a report
	ring        []decision // of length maxWaiting; nil before the first decision
	first, size int        // of the decisions that wait
	running     bool       // the goroutine runs
	dropped     int64
}

// add queues d for the report.
func (q *reports) add(d decision) {
	d.client, _ = clientaddr.FromContext(d.ctx) // FromContext reads the request, so it must not run later, when others may write to the request
	q.mu.Lock()
	defer q.mu.Unlock()
	switch q.size {
	case maxWaiting:
		q.dropped++
		return
	case 0:
		if q.ring == nil {
			q.ring = make([]decision, maxWaiting)
		}
	}
	q.ring[(q.first+q.size)%maxWaiting] = d
	q.size++
	if !q.running {
		q.running = true
		go q.run()
	}
}

// next removes and returns the first decision that waits. If there is none, ok is false, and the
// goroutine must end.
func (q *reports) next() (d decision, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size == 0 {
		q.running = false
		return decision{}, false
	}
	d, q.ring[q.first] = q.ring[q.first], decision{}
	q.first, q.size = (q.first+1)%maxWaiting, q.size-1
	return d, true
}

// run calls the Report until no decision waits.
func (q *reports) run() {
	ended := false
	defer func() {
		if p := recover(); p != nil {
			q.panicked.Do(func() { log.Printf("shadow: a report panicked: %v\n%s", p, debug.Stack()) })
		}
		if !ended { // because of a panic, or of runtime.Goexit, which a failing test calls
			go q.run()
		}
	}()
	for d, ok := q.next(); ok; d, ok = q.next() {
		ctx := clientaddr.NewContext(context.WithoutCancel(d.ctx), d.client)
		q.report(ctx, d.key, d.n, d.result, d.err)
	}
	ended = true
}

// Dropped returns the number of decisions that were not reported because the queue of the Report
// was full.
func (l *Limiter) Dropped() int64 {
	l.reports.mu.Lock()
	defer l.reports.mu.Unlock()
	return l.reports.dropped
}
