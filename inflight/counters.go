package inflight

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Counters count the Slots that [CountIn] gives them: how many are held, and how they have ended.
// Metrics are read from them by [Counters.Stats]. A Slot costs some 90 ns and no allocation.
//
// The zero value is ready to use. They are safe for concurrent use.
type Counters struct {
	held  atomic.Int64
	ended [Forgotten + 1]atomic.Int64 // by their Reason
	took  atomic.Int64                // ns, of those that have ended
}

// Stats is what [Counters] have counted so far.
type Stats struct {
	Held      int64         // Slots that this process holds now, lost ones among them
	Released  int64         // those that a Release has ended
	Lost      int64         // those that were lost; each ends later in another way, and is counted there too
	TooLong   int64         // those that [Longest] has ended
	Forgotten int64         // those that nothing could reach any more
	Took      time.Duration // the sum of the times that those were held which have ended
}

// CountIn counts the Slot in c. One that holds nothing is not counted, such as that of a key that an
// accesslist admits. One of several limits counts once. c should be that of one limiter.
func CountIn(c *Counters) Option {
	return func(s *settings) error {
		if c == nil {
			return fmt.Errorf("%w: CountIn(nil)", ratelimit.ErrInvalidOption)
		}
		s.counters = c
		return nil
	}
}

// Stats returns what was counted so far.
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

// end counts a Slot that has ended, or is lost.
func (c *Counters) end(e Ending) {
	c.ended[e.Reason].Add(1)
	if e.Reason != Lost {
		c.held.Add(-1)
		c.took.Add(int64(e.Held))
	}
}
