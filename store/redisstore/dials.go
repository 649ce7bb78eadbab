package redisstore

import "time"

// dials keeps some places of a pool free of hanging dials. go-redis dials apart from the
// calls, for up to DialTimeout, and each dial holds a place in the pool. If dials of an
// unreachable host held all places, a new master that Sentinel names could not be reached
// before they end. So only half of the places are given out at once. The others follow
// one by one, over the time that a dial lasts.
type dials struct {
	free  int           // how many dials may begin without a pause
	pause time.Duration // between the dials that follow

	vain int       // dials begun since a connection last worked, and not ended
	last time.Time // when a dial last began
}

// mostDialPause is the longest pause, for clients with a very long DialTimeout. What
// looks like a hanging dial may be a machine that has stopped for a moment.
const mostDialPause = time.Second

func newDials(size int, timeout time.Duration) dials {
	free := max(1, size/2)
	return dials{free: free, pause: min(timeout/time.Duration(max(1, size-free)), mostDialPause)}
}

// may reports whether a dial may begin.
func (d *dials) may(now time.Time) bool { return d.vain < d.free || now.Sub(d.last) >= d.pause }

func (d *dials) begin(now time.Time) { d.vain, d.last = d.vain+1, now }

// reached notes that a dial did not hang: the handshake was slow.
func (d *dials) reached() { d.vain = max(0, d.vain-1) }

// worked notes that a connection worked.
func (d *dials) worked() { d.vain = 0 }
