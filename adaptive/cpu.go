package adaptive

import (
	"math"
	"runtime"
	"sync"
	"time"
)

// CPU returns a signal: the processor time, user and system, that this process has used since the
// last reading, as a part of the time of GOMAXPROCS processors. The first reading counts from the
// call of CPU. A reading is a system call that takes about a microsecond.
//
// The time is measured by the operating system: by getrusage, or by GetProcessTimes on Windows. On
// other systems, such as js and plan9, all readings are NaN and change nothing.
//
// CPU does not see a container's throttling, nor other processes and virtual machines that take the
// processor. A process starved by them uses little and seems idle. In that case, use
// [SchedulerLatency], or the larger of both signals. GOMAXPROCS follows a container's limit, but it
// is a whole number, and on most machines at least 2. With a limit of 0.5 processors, a full load
// therefore reads as 0.25, so lower the band in proportion ([WithBand]).
//
// Each reading begins a new mean, so use one signal per Limit. The signal is safe for concurrent
// use.
func CPU() func() float64 {
	c := &cpu{used: cpuTime, now: time.Now, procs: func() int { return runtime.GOMAXPROCS(0) }}
	c.load()
	return c.load
}

// cpu turns a growing processor time into a load. It does not use the runtime's /cpu/classes
// metrics, because they change only at the end of a garbage collection: with them, a busy loop of
// two seconds read as 0.
type cpu struct {
	used  func() (time.Duration, error)
	now   func() time.Time
	procs func() int

	mu   sync.Mutex // protects the fields below, and orders the readings
	took time.Duration
	at   time.Time // zero before the first reading
}

func (c *cpu) load() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	used, err := c.used()
	if err != nil {
		return math.NaN()
	}
	now := c.now()
	took, over, first := used-c.took, now.Sub(c.at), c.at.IsZero()
	if over <= 0 {
		return math.NaN()
	}
	c.took, c.at = used, now
	if first {
		return math.NaN()
	}
	return took.Seconds() / (over.Seconds() * float64(c.procs()))
}
