package adaptive

import (
	"fmt"
	"math"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// SchedulerLatency returns a signal of how long goroutines that could run have waited for a
// processor since the last reading: the 99th percentile, as a part of full, which is the
// wait that counts as a full load, above 0 (1 to 10 ms for a service with a user in front
// of it). It is 0 where none has waited. The first reading counts from the call of
// SchedulerLatency.
//
// It sees what [CPU] does not, since goroutines wait as well while another process has the
// processor. It has no unit of its own, so try which full fits; and it climbs steeply near
// a full processor: a wide band ([WithBand]) suits it.
//
// It is the runtime's /sched/latencies:seconds. Its buckets are some 20 % wide, and the
// percentile is the upper end of one. A reading takes some microseconds, which allocate
// nothing after the first. Each begins a new percentile: let one Limit have it. It is safe
// for concurrent use. The error wraps [ratelimit.ErrInvalidOption].
func SchedulerLatency(full time.Duration) (func() float64, error) {
	if full <= 0 {
		return nil, fmt.Errorf("%w: SchedulerLatency(%v): above 0", ratelimit.ErrInvalidOption, full)
	}
	w := &waits{sample: []metrics.Sample{{Name: "/sched/latencies:seconds"}}}
	w.percentile()
	return func() float64 { return w.percentile() / full.Seconds() }, nil
}

// waits reads how long goroutines have waited.
type waits struct {
	mu     sync.Mutex       // covers all below
	sample []metrics.Sample // of one
	before []uint64         // the counts of the last reading
}

// percentile is the 99th of the waits since the last reading, in seconds, and NaN if this
// runtime does not count them.
func (w *waits) percentile() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	metrics.Read(w.sample)
	if w.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return math.NaN()
	}
	h := w.sample[0].Value.Float64Histogram()
	if w.before == nil {
		w.before = make([]uint64, len(h.Counts))
	}
	p := percentile99(h, w.before)
	copy(w.before, h.Counts)
	return p
}

// percentile99 is the end of the bucket in which the 99th percentile of the counts since
// before lies; of the last bucket, which has no end, the beginning; and 0 of no counts.
func percentile99(h *metrics.Float64Histogram, before []uint64) float64 {
	var all uint64
	for i, n := range h.Counts {
		all += n - before[i]
	}
	above := all / 100 // how many may be beyond it
	for i := len(h.Counts) - 1; i >= 0; i-- {
		n := h.Counts[i] - before[i]
		switch {
		case n <= above:
			above -= n
		case math.IsInf(h.Buckets[i+1], 1):
			return h.Buckets[i]
		default:
			return h.Buckets[i+1]
		}
	}
	return 0
}
