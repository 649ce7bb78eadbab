package redisstore_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// mostSlots is how many slots a cluster has.
const mostSlots = 16384

// nodes is a cluster of bookkeepers. Each master has the slots of an equal range, but for those that have moved.
type nodes struct {
	*bubble
	masters []*bookkeeper // of the ranges, in their order
	all     map[string]*bookkeeper
	before  func()                   // called before a script is run
	moving  bool                     // a slot is
	says    func(addr string) string // how nodes name an address to clients
}

// node is what a bookkeeper knows of its cluster.
type node struct {
	cluster   *nodes // nil: it is in none
	addr      string
	elsewhere map[int]int  // the slots that are not in their range, and in which they are
	migrating map[int]int  // the slots that leave it, and for which range
	importing map[int]bool // the slots that come to it
	down      bool         // it has lost most of the others
}

func newNodes(n int) *nodes {
	c := &nodes{bubble: newBubble(), all: map[string]*bookkeeper{}, before: func() {}, says: func(addr string) string { return addr }}
	for range n {
		c.masters = append(c.masters, c.add())
	}
	return c
}

// add returns a new server of the cluster, which has no slots.
func (c *nodes) add() *bookkeeper {
	b := c.server()
	b.node = node{
		cluster: c, addr: fmt.Sprintf("10.0.0.%d:6379", 1+len(c.all)),
		elsewhere: map[int]int{}, migrating: map[int]int{}, importing: map[int]bool{},
	}
	c.all[b.addr] = b
	return b
}

// dial is the Dialer of a client.
func (c *nodes) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	b := c.all[addr]
	c.mu.Unlock()
	if b == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return b.dial(ctx, network, addr)
}

// first is the first slot of range i.
func (c *nodes) first(i int) int { return (i*mostSlots + len(c.masters) - 1) / len(c.masters) }

// master is the one that has slot, as far as b knows.
func (b *bookkeeper) master(slot int) *bookkeeper {
	i, moved := b.elsewhere[slot]
	if !moved {
		i = slot * len(b.cluster.masters) / mostSlots
	}
	return b.cluster.masters[i]
}

// redirect is the answer to a script that b may not run, since its keys are elsewhere or on their way, or "".
func (b *bookkeeper) redirect(keys []string, asking bool) string {
	if b.cluster == nil {
		return ""
	}
	b.cluster.before()
	slot, missing := redisstore.SlotOf(keys[0]), 0
	for _, key := range keys {
		if redisstore.SlotOf(key) != slot {
			return "CROSSSLOT Keys in request don't hash to the same slot"
		}
		if _, ok := b.kept[key]; !ok {
			missing++
		}
	}
	to, migrating := b.migrating[slot]
	several := slices.ContainsFunc(keys, func(key string) bool { return key != keys[0] })
	switch owner := b.master(slot); {
	case b.down:
		return "CLUSTERDOWN The cluster is down"
	case owner == b && migrating && missing > 0 && missing < len(keys), b.importing[slot] && asking && several && missing > 0:
		return "TRYAGAIN Multiple keys request during rehashing of slot"
	case owner == b && migrating && missing > 0:
		return fmt.Sprintf("ASK %d %s", slot, b.cluster.says(b.cluster.masters[to].addr))
	case owner == b, b.importing[slot] && asking:
		return ""
	default:
		return fmt.Sprintf("MOVED %d %s", slot, b.cluster.says(owner.addr))
	}
}

// clusterSlots is the reply to CLUSTER SLOTS.
func (b *bookkeeper) clusterSlots() string {
	if b.cluster == nil {
		return "-ERR This instance has cluster support disabled\r\n"
	}
	edges := []int{mostSlots}
	for i := range b.cluster.masters {
		edges = append(edges, b.cluster.first(i))
	}
	for slot := range b.elsewhere {
		edges = append(edges, slot, slot+1)
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	reply := fmt.Sprintf("*%d\r\n", len(edges)-1)
	for i, first := range edges[:len(edges)-1] {
		host, port, _ := net.SplitHostPort(b.master(first).addr)
		reply += fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*3\r\n$%d\r\n%s\r\n:%s\r\n$1\r\n-\r\n", first, edges[i+1]-1, len(host), host, port)
	}
	return reply
}

// keysIn are the keys of slot that b has.
func (b *bookkeeper) keysIn(slot int) (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(b.kept)) {
		if redisstore.SlotOf(key) == slot {
			keys = append(keys, key)
		}
	}
	return keys
}

// move returns the steps by which slot moves to range i, with its keys one after the other. The last one has those know that
// have no part in it.
func (c *nodes) move(slot, i int, keys []string) (steps []func()) {
	from, to := c.masters[0].master(slot), c.masters[i]
	owns := func(b *bookkeeper) {
		b.elsewhere[slot] = i
		delete(b.migrating, slot)
		delete(b.importing, slot)
	}
	steps = append(steps, func() {
		c.note("slot %d moves from %s to %s", slot, from.addr, to.addr)
		c.moving, to.importing[slot], from.migrating[slot] = true, true, i
	})
	for _, key := range keys {
		steps = append(steps, func() {
			if n, ok := from.kept[key]; ok {
				c.note("%s moves", key)
				to.kept[key] = n
				delete(from.kept, key)
			}
		})
	}
	return append(steps, func() { owns(to) }, func() { owns(from) }, func() {
		for _, b := range c.masters {
			owns(b)
		}
		c.moving = false
	})
}

// die has a master die. Some time later the others do without it, and then another server, with all that it had kept, takes
// its place. It comes back as a replica of that, or never.
func (c *nodes) die(b *bookkeeper, lasts time.Duration, back bool) {
	i := slices.Index(c.masters, b)
	if i < 0 || c.moving { // then a replica would not know what has moved
		return
	}
	c.moving, b.gone = true, true
	b.cut(false, func(*wire) bool { return true })
	b.queue = nil
	down := func(is bool) {
		for _, other := range c.masters {
			other.down = is
		}
	}
	c.in(lasts/3, func() { down(true) })
	c.in(lasts, func() {
		heir := c.add()
		c.note("%s takes the place of %s", heir.addr, b.addr)
		heir.kept, heir.elsewhere = maps.Clone(b.kept), maps.Clone(b.elsewhere)
		b.kept = map[string]int64{}
		c.masters[i] = heir
		b.down, c.moving = false, false
		down(false)
	})
	if !back {
		return
	}
	c.in(2*lasts, func() {
		b.gone, b.scripts, b.elsewhere = false, map[string]bool{}, maps.Clone(c.masters[i].elsewhere)
	})
}

// suffer has the cluster suffer from tr.
func (c *nodes) suffer(tr trouble, r *rand.Rand) {
	b := c.masters[r.IntN(len(c.masters))]
	switch tr.what {
	case "move":
		var slots []int
		for _, b := range c.masters {
			for key := range b.kept {
				slots = append(slots, redisstore.SlotOf(key))
			}
		}
		if c.moving || len(slots) == 0 {
			return
		}
		slices.Sort(slots) // the order of a map is none
		slot := slots[r.IntN(len(slots))]
		from := c.masters[0].master(slot)
		to := (slices.Index(c.masters, from) + 1 + r.IntN(len(c.masters)-1)) % len(c.masters)
		steps := c.move(slot, to, from.keysIn(slot))
		steps[0]()
		at := time.Duration(0)
		for _, step := range steps[1:] {
			c.in(at+time.Duration(r.Int64N(int64(tr.lasts))), func() {
				if tr.much < 40 { // and connections break
					from.cut(r.IntN(2) == 0, func(*wire) bool { return true })
					c.masters[to].cut(r.IntN(2) == 0, func(*wire) bool { return r.IntN(2) == 0 })
				}
			})
			at += time.Duration(r.Int64N(int64(2*tr.lasts)/int64(len(steps)))) + 1
			c.in(at, step)
		}
	case "die":
		c.note("%s dies", b.addr)
		c.die(b, tr.lasts, tr.much < 50)
	default:
		c.note("%s:", b.addr)
		b.suffer(tr, r)
	}
}

// counts are the events of all keys, by name.
func (c *nodes) counts() map[string]int64 {
	counts := map[string]int64{}
	for _, b := range c.all {
		for key, n := range b.kept {
			counts[key] += n
		}
	}
	return counts
}
