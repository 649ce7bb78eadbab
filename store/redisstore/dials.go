package redisstore

import "time"

// dials keeps some places of a pool free of dials that hang. go-redis dials apart from the
// calls, for up to DialTimeout, and a dial holds a place in the pool. If all are taken by
// dials of a host that is cut off, another host, as Sentinel names it, is not reached
// before they end. So when half of the places may be taken, those that are left are
// given out one by one, over the time that a dial lasts.
type dials struct {
	free  int           // of those that may hang, how many may begin at once
	pause time.Duration // between those that follow

	vain int       // how many have begun since a connection last worked, and not ended
	last time.Time // when one began
}

// mostDialPause bounds it for clients that dial for very long: what looks like a dial that
// hangs may be a machine that stands still.
const mostDialPause = time.Second

func newDials(size int, timeout time.Duration) dials {
	free := max(1, size/2)
	return dials{free: free, pause: min(timeout/time.Duration(max(1, size-free)), mostDialPause)}
}

// may reports whether one may begin.
func (d *dials) may(now time.Time) bool { return d.vain < d.free || now.Sub(d.last) >= d.pause }

func (d *dials) begin(now time.Time) { d.vain, d.last = d.vain+1, now }

// reached notes that one did not hang: what takes long is the handshake.
func (d *dials) reached() { d.vain = max(0, d.vain-1) }

// worked notes that a connection did.
func (d *dials) worked() { d.vain = 0 }
