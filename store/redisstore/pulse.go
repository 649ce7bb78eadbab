package redisstore

import (
	"sync/atomic"
	"time"
)

// pulse is when a server was last heard. It tells a pool of which all connections are busy
// from one of which all hang.
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

// leastSilence is after how long without an answer nobody is taken for busy any more. A
// server that stands still for a moment (a fork, a slow command) is.
const leastSilence = time.Second

// silent reports whether the servers have not answered for so long that calls which wait
// for a connection wait for a server.
func (s *Store) silent() bool { return s.link.pulse.silent(max(leastSilence, 2*s.timeout)) }
