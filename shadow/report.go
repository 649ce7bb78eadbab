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

// Report is called for each decision of Allow, AllowN and AllowWithin, enforced or not. If
// the limiter denied n events of key, r.Allowed is false. If it failed, err is its error
// and r is zero. ctx has the caller's values, with the address of the client (package
// clientaddr), and does not end.
//
// Report is called soon after the decision, in a goroutine of the [Limiter]: for one
// decision at a time, and in their order. The caller does not wait for it. While it is busy
// up to 1,024 decisions wait, and [Limiter.Dropped] counts those that find no place. Its
// first panic is logged, by package log. What waits when the process ends is lost.
type Report func(ctx context.Context, key string, n int, r ratelimit.Result, err error)

// maxWaiting is how many decisions wait for a Report. Each takes 160 bytes.
const maxWaiting = 1024

// decision holds the arguments of a Report.
type decision struct {
	ctx    context.Context
	key    string
	n      int
	result ratelimit.Result
	err    error
	client netip.Addr // zero until add
}

// reports holds the decisions that wait for a Report, and runs the goroutine that calls it.
type reports struct {
	report   Report
	panicked sync.Once

	mu          sync.Mutex // protects what follows; never held during a report
	ring        []decision // of maxWaiting, nil before the first
	first, size int        // the decisions that wait
	running     bool       // whether the goroutine runs
	dropped     int64
}

// add queues d for the report.
func (q *reports) add(d decision) {
	d.client, _ = clientaddr.FromContext(d.ctx) // which reads the request: not while others write to it
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

// next removes the first decision that waits. If there is none, the goroutine must end.
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

// run reports until nothing waits.
func (q *reports) run() {
	ended := false
	defer func() {
		if p := recover(); p != nil {
			q.panicked.Do(func() { log.Printf("shadow: a report panicked: %v\n%s", p, debug.Stack()) })
		}
		if !ended { // by a panic, or by runtime.Goexit, as a test that fails does
			go q.run()
		}
	}()
	for d, ok := q.next(); ok; d, ok = q.next() {
		ctx := clientaddr.NewContext(context.WithoutCancel(d.ctx), d.client)
		q.report(ctx, d.key, d.n, d.result, d.err)
	}
	ended = true
}

// Dropped returns how many decisions were not reported because too many others waited for
// the Report.
func (l *Limiter) Dropped() int64 {
	l.reports.mu.Lock()
	defer l.reports.mu.Unlock()
	return l.reports.dropped
}
