package redisstore

import (
	"sync/atomic"
	"time"
)

// pulse is when a server last answered. It distinguishes a pool whose connections are all
// busy from one whose connections all hang.
type pulse struct {
	base time.Time
	last atomic.Int64 // ns since base; 0: never
}

// beat notes that a server has answered.
func (p *pulse) beat() { p.last.Store(max(1, int64(time.Since(p.base)))) }

// silent reports whether no server has answered for d.
func (p *pulse) silent(d time.Duration) bool {
	last := p.last.Load()
	return last == 0 || time.Since(p.base)-time.Duration(last) > d
}

// leastSilence is the time without an answer after which a server no longer counts as
// busy. It is longer than a server may stop for a moment, to fork or for a slow command.
const leastSilence = time.Second

// silent reports whether the servers have been silent for so long that a call which waits
// for a connection is really waiting for a server.
func (s *Store) silent() bool { return s.link.pulse.silent(max(leastSilence, 2*s.timeout)) }
