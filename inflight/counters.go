package inflight

import (
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/options"
)

// Counters count the Slots that [CountIn] assigns to them: how many are held, and how they ended.
// [Counters.Stats] returns the counts, for metrics. Counting costs about 90 ns and no allocation
// per Slot.
//
// The zero value is ready to use. Counters are safe for concurrent use.
type Counters struct {
	held  atomic.Int64
	ended [Forgotten + 1]atomic.Int64 // by their Reason
	took  atomic.Int64                // ns, of the Slots that have ended
}

// Stats is what [Counters] have counted so far.
type Stats struct {
	Held      int64         // Slots that this process holds now, including lost ones
	Released  int64         // Slots that ended with a Release
	Lost      int64         // Slots that were lost; each of them later ends in another way, and is counted there too
	TooLong   int64         // Slots that [Longest] ended
	Forgotten int64         // Slots that ended because nothing referred to them any more
	Took      time.Duration // the total time for which the Slots that have ended were held
}

// CountIn counts the Slot in c, which should be used for one limiter only. A Slot that holds
// nothing is not counted, such as that of a key that an accesslist admits. A Slot of several limits
// is counted once.
func CountIn(c *Counters) Option {
	return options.Checked(options.Given("CountIn", c != nil), func(s *settings) { s.counters = c })
}

// Stats returns the counts so far.
func (c *Counters) Stats() Stats {
	return Stats{
		Held:      c.held.Load(),
		Released:  c.ended[Released].Load(),
		Lost:      c.ended[Lost].Load(),
		TooLong:   c.ended[TooLong].Load(),
		Forgotten: c.ended[Forgotten].Load(),
		Took:      time.Duration(c.took.Load()),
	}
}

// end counts a Slot that has ended, or that is lost.
func (c *Counters) end(e Ending) {
	c.ended[e.Reason].Add(1)
	if e.Reason != Lost {
		c.held.Add(-1)
		c.took.Add(int64(e.Held))
	}
}
