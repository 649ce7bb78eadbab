package adaptive

import (
	"math"
	"runtime"
	"sync"
	"time"
)

// CPU returns a signal: the processor time, of user and of system, that this process has
// taken since the last reading, as a part of what GOMAXPROCS processors have to give. The
// first reading counts from the call of CPU. A reading takes a system call: about a
// microsecond.
//
// It is the process's own time as the operating system counts it (getrusage, and
// GetProcessTimes on Windows; elsewhere, such as js and plan9, all readings are NaN, which
// are none). The runtime's /cpu/classes metrics would be the same everywhere, but they move
// only when a garbage collection ends: a busy loop of two seconds has read as 0.
//
// What it does not see: other processes and virtual machines that take the processor away,
// and a container's throttling. A process starved by them takes little, and seems idle:
// then use [SchedulerLatency], or the larger of both. GOMAXPROCS follows a container's
// limit, but is a whole number, on most machines 2 and more: of a limit of 0.5 processors a
// full load reads as 0.25, and the band wants to be as much lower ([WithBand]).
//
// Each reading begins a new mean: let one Limit have it. It is safe for concurrent use.
func CPU() func() float64 {
	c := &cpu{used: cpuTime, now: time.Now, procs: func() int { return runtime.GOMAXPROCS(0) }}
	c.load()
	return c.load
}

// cpu makes a share of an ever growing processor time.
type cpu struct {
	used  func() (time.Duration, error)
	now   func() time.Time
	procs func() int

	mu   sync.Mutex // covers all below, and the order of readings
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
