package observe

import "github.com/ratelimit-go/ratelimit/internal/keyhash"

// maxShown is how many bytes of a key are kept for display.
const maxShown = 128

// shown returns the part of key that is displayed.
func shown(key string) string { return key[:min(len(key), maxShown)] }

// sketch counts the most frequent keys among any number of keys, with the algorithm Space-Saving. A
// key that is not counted yet replaces the key with the least count, and inherits its count,
// because it may have occurred as often before.
//
// Source: Metwally, Agrawal and El Abbadi, Efficient Computation of Frequent and Top-k Elements in
// Data Streams, 2005.
type sketch struct {
	counters []*counter // a min-heap by count
	index    index
	total    int64
}

// counter counts one key. Its count is too high by at most excess.
type counter struct {
	id     keyhash.Hash
	key    []byte // as shown returns it
	count  int64
	excess int64
	at     int // its place in the heap
}

func newSketch(k int) *sketch {
	return &sketch{counters: make([]*counter, 0, k), index: newIndex(k)}
}

// add counts key once.
func (s *sketch) add(id keyhash.Hash, key string) {
	s.total++
	c := s.index.of(id)
	if c == nil {
		c = s.free()
		c.id, c.key = id, append(c.key[:0], shown(key)...)
		s.index[s.index.find(c.id)] = c
	}
	c.count++
	s.sink(c)
}

// free returns a counter for a key that has none.
func (s *sketch) free() *counter {
	if n := len(s.counters); n < cap(s.counters) {
		s.counters = s.counters[:n+1]
		c := s.counters[n]
		if c == nil { // reset has left none over
			c = new(counter)
			s.counters[n] = c
		}
		c.count, c.excess, c.at = 0, 0, n
		s.rise(c)
		return c
	}
	c := s.counters[0]
	s.index.drop(c.id)
	c.excess = c.count
	return c
}

// least returns the maximum number of times that a key without a counter may have occurred.
func (s *sketch) least() int64 {
	if len(s.counters) < cap(s.counters) {
		return 0
	}
	return s.counters[0].count
}

// reset forgets all keys, but keeps the memory.
func (s *sketch) reset() {
	clear(s.index)
	s.counters, s.total = s.counters[:0], 0
}

// rise moves c up until the count above it is not higher.
func (s *sketch) rise(c *counter) {
	for c.at > 0 {
		above := s.counters[(c.at-1)/2]
		if above.count <= c.count {
			return
		}
		s.swap(c, above)
	}
}

// sink moves c down until no count below it is lower.
func (s *sketch) sink(c *counter) {
	for {
		i := 2*c.at + 1
		if i >= len(s.counters) {
			return
		}
		below := s.counters[i]
		if i+1 < len(s.counters) && s.counters[i+1].count < below.count {
			below = s.counters[i+1]
		}
		if c.count <= below.count {
			return
		}
		s.swap(c, below)
	}
}

func (s *sketch) swap(a, b *counter) {
	a.at, b.at = b.at, a.at
	s.counters[a.at], s.counters[b.at] = a, b
}
