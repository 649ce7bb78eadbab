package carrier

import (
	"sync/atomic"
	"time"
)

// pulse is when a server last answered. It distinguishes a pool whose connections are all
// busy from one whose connections all hang.
type pulse struct {
	base  time.Time
	last  atomic.Int64          // the last answer, in ns since base; 0 if there was none
	asked atomic.Int64          // when a call last asked after a rest, in ns since base
	cause atomic.Pointer[error] // why no connection could be made since the last answer, or nil
}

// beat records that a server has answered.
func (p *pulse) beat() {
	p.last.Store(max(1, int64(time.Since(p.base))))
	if p.cause.Load() != nil {
		p.cause.Store(nil)
	}
}

// noteDial records err if it says why no connection could be made, and reports whether it does.
func (p *pulse) noteDial(err error) bool {
	ok := dialFailed(err) && !contextEnded(err)
	if ok {
		p.cause.Store(&err)
	}
	return ok
}

// ask records that the server is asked again after a rest.
func (p *pulse) ask() { p.asked.Store(int64(time.Since(p.base))) }

// silent reports whether the server has not answered for d although it was asked, or cannot be
// reached.
func (p *pulse) silent(d time.Duration) bool {
	if p.cause.Load() != nil {
		return true
	}
	last := p.last.Load()
	return last == 0 || time.Since(p.base)-time.Duration(max(last, p.asked.Load())) > d
}

// since reports whether a server has answered since t.
func (p *pulse) since(t time.Time) bool { return p.last.Load() > int64(t.Sub(p.base)) }

// leastSilence is the time without an answer after which a server no longer counts as
// busy. It is longer than a server may stop for a moment, to fork or for a slow command.
const leastSilence = time.Second
