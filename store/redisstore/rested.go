package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// Servers and proxies close connections that rest for long. Before go-redis uses a connection it
// looks whether the socket still lives, but not if another layer lies over the socket, such as
// TLS. A call would then be written to nobody, and its outcome be unknown. So such a connection
// looks by itself before it writes.

// errRested is the error of a write for which the connection was found closed. Nothing was
// sent. go-redis repeats users' own commands after an EOF.
var errRested = fmt.Errorf("the connection was closed while it rested: %w", io.EOF)

// mostRested is how many connections a call finds closed before it waits for a while.
const mostRested = 64

// grace is how long a connection waits for the rest of a record that has begun to arrive.
const grace = 5 * time.Millisecond

// resting is a connection in layers over a socket, of which the lowest can be looked at.
type resting struct {
	net.Conn
	socket syscall.RawConn
	look   func(fd uintptr) // looks at the socket, and notes what it saw in seen
	rests  atomic.Bool      // the last that went over it was read

	reading sync.Mutex // protects what is below
	seen    arrival
	ahead   [1]byte // has been read before it was asked for
	isAhead bool

	until atomic.Pointer[time.Time] // the deadline of reads
}

// arrival is what a socket has for its reader.
type arrival uint8

const (
	nothing arrival = iota
	something
	theEnd
)

// watchRests returns conn, or a connection that looks before it writes if conn itself cannot be
// looked at.
func watchRests(conn net.Conn) net.Conn {
	const layers = 8 // none has more, unless they are a circle
	for c, n := conn, 0; c != nil && n < layers; n++ {
		if socket, ok := c.(syscall.Conn); ok {
			raw, err := socket.SyscallConn()
			if n == 0 || err != nil {
				return conn
			}
			r := &resting{Conn: conn, socket: raw}
			r.look = func(fd uintptr) { r.seen = arrived(fd) }
			return r
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if _, watched := c.(*resting); watched || !ok {
			return conn
		}
		c = over.NetConn()
	}
	return conn
}

// NetConn returns the connection below, as that of crypto/tls does.
func (r *resting) NetConn() net.Conn { return r.Conn }

func (r *resting) Read(b []byte) (int, error) {
	r.reading.Lock()
	defer r.reading.Unlock()
	if r.isAhead && len(b) > 0 {
		b[0], r.isAhead = r.ahead[0], false
		return 1, nil
	}
	n, err := r.Conn.Read(b)
	if n > 0 {
		r.rests.Store(true)
	}
	return n, err
}

// Write writes b, or fails with errRested if the other side has closed the connection. While
// somebody reads, that reader will see the end.
func (r *resting) Write(b []byte) (int, error) {
	if r.rests.Load() && r.reading.TryLock() {
		closed := r.closed()
		r.reading.Unlock()
		if closed {
			return 0, errRested
		}
	}
	r.rests.Store(false)
	return r.Conn.Write(b)
}

// closed reports whether the other side has closed the connection. Before the end there may be a
// layer's own goodbye, or something else than an end: a message that nobody has asked for, which is
// kept for the next Read, or one of the layer's own.
func (r *resting) closed() bool {
	const looks = 3
	for range looks {
		if r.socket.Control(r.look) != nil || r.seen == theEnd {
			return true
		}
		if r.seen == nothing || r.isAhead || r.Conn.SetReadDeadline(time.Now().Add(grace)) != nil {
			return false
		}
		n, err := r.Conn.Read(r.ahead[:])
		r.isAhead = n > 0
		_ = r.Conn.SetReadDeadline(r.deadline())
		var timeout net.Error
		if !r.isAhead && err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()) {
			return true
		}
	}
	return false
}

func (r *resting) deadline() time.Time {
	if t := r.until.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

func (r *resting) SetDeadline(t time.Time) error {
	r.until.Store(&t)
	return r.Conn.SetDeadline(t)
}

func (r *resting) SetReadDeadline(t time.Time) error {
	r.until.Store(&t)
	return r.Conn.SetReadDeadline(t)
}

// watcher is a hook that watches the connections which a client makes from now on.
type watcher struct{}

func (watcher) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil || conn == nil {
			return conn, err
		}
		return watchRests(conn), nil
	}
}

func (watcher) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (watcher) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// watch has the connections of client look before they write. Of an AutoPipeliner of a
// ClusterClient it finds no connections.
func watch(client Client) {
	if !canLook {
		return
	}
	switch c := client.(type) {
	case *redis.Client:
		if first(c) {
			c.AddHook(watcher{})
			retire(c)
		}
	case *redis.AutoPipeliner:
		if first(c) {
			c.AddHook(watcher{})
		}
	case *redis.ClusterClient:
		watchNodes(c, c)
	case *redis.Ring:
		watchNodes(c, c)
	}
}

// watchNodes is watch for the servers of client, now and later.
func watchNodes[T any](client *T, nodes interface {
	OnNewNode(fn func(*redis.Client))
	ForEachShard(ctx context.Context, fn func(context.Context, *redis.Client) error) error
}) {
	if first(client) {
		nodes.OnNewNode(func(c *redis.Client) { watch(c) })
		_ = nodes.ForEachShard(gone, func(_ context.Context, c *redis.Client) error { watch(c); return nil })
	}
}

// watchedClients are those that are watched, by weak pointers.
var watchedClients sync.Map

// first reports whether c is not watched yet, and notes that it is. A second store on a client
// adds no second hook.
func first[T any](c *T) bool {
	key := weak.Make(c)
	_, known := watchedClients.LoadOrStore(key, nil)
	if !known {
		runtime.AddCleanup(c, func(key weak.Pointer[T]) { watchedClients.Delete(key) }, key)
	}
	return !known
}

// retire closes the connections over TLS that rest in c's pool. They are not watched.
func retire(c *redis.Client) {
	if c.Options().TLSConfig == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*grace)
	defer cancel()
	c = c.WithTimeout(time.Nanosecond) // for one that would have to greet the server first
	for n := c.PoolStats().IdleConns; n > 0 && c.PoolStats().IdleConns > 0; n-- {
		_ = c.Process(ctx, command{redis.NewCmd(ctx, "ping", unwritable{})})
	}
}

// unwritable is an argument that cannot be written. go-redis closes the connection that it
// was to be written to, and sends nothing.
type unwritable struct{}

func (unwritable) MarshalBinary() ([]byte, error) { return nil, errRested }
