package adaptive

import (
	"fmt"
	"math"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// SchedulerLatency returns a signal of how long runnable goroutines have waited for a processor
// since the last reading. It is the 99th percentile of their waits, as a part of full, the wait
// that counts as full load. The first reading counts from the call of SchedulerLatency. The signal
// is 0 if no goroutine has waited.
//
// For a service that users wait for, choose a full of 1 to 10 ms, and try out which value fits. The
// signal climbs steeply when the processors are nearly full, so a wide band ([WithBand]) suits it.
// It sees what [CPU] does not, because goroutines also wait while another process has the
// processor. SchedulerLatency returns [ratelimit.ErrInvalidOption] if full is not positive.
//
// It reads the runtime's /sched/latencies:seconds. The buckets of that histogram are about 20%
// wide, and the percentile is the upper end of a bucket. A reading takes some microseconds, and
// only the first one allocates. Each reading begins a new percentile, so use one signal per Limit.
// The signal is safe for concurrent use.
func SchedulerLatency(full time.Duration) (func() float64, error) {
	if full <= 0 {
		return nil, fmt.Errorf("%w: SchedulerLatency(%v), want above 0", ratelimit.ErrInvalidOption, full)
	}
	w := &waits{sample: []metrics.Sample{{Name: "/sched/latencies:seconds"}}}
	w.percentile()
	return func() float64 { return w.percentile() / full.Seconds() }, nil
}

// waits measures how long goroutines have waited.
type waits struct {
	mu     sync.Mutex       // protects the fields below
	sample []metrics.Sample // a single one
	before []uint64         // the counts of the last reading
}

// percentile returns the 99th percentile of the waits since the last reading, in seconds. It
// returns NaN if this runtime does not count them.
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

// percentile99 returns the end of the bucket that contains the 99th percentile of the counts since
// before. For the last bucket, which has no end, it returns its beginning. Without counts, it
// returns 0.
func percentile99(h *metrics.Float64Histogram, before []uint64) float64 {
	var all uint64
	for i, n := range h.Counts {
		all += n - before[i]
	}
	above := all / 100 // how many waits may be above the percentile
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
