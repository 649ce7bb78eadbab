// Package rested has connections that check, before they write, whether the other side has closed them.
//
// Servers and proxies close idle connections. Before go-redis uses a connection, it checks whether the
// socket is still open, but it cannot do so if another layer, such as TLS, is above the socket. A call
// would then be written to a closed connection, and its outcome would be unknown. The connections of
// this package therefore check themselves.
package rested

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrClosed is the error of a write that found the connection closed. Nothing was sent. It wraps
// io.EOF, because go-redis then repeats commands of users.
var ErrClosed = fmt.Errorf("the connection was closed while it was idle: %w", io.EOF)

// Grace is how long a connection waits for the rest of a record that has begun to arrive.
const Grace = 5 * time.Millisecond

// watched is a connection of layers over a socket, whose socket can be checked.
type watched struct {
	net.Conn
	socket syscall.RawConn
	look   func(fd uintptr) // checks the socket, and sets seen
	rests  atomic.Bool      // the last transfer was a read

	reading sync.Mutex // protects the fields below
	seen    arrival
	ahead   [1]byte // the byte that was read ahead, if isAhead
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

// Watch returns a connection that checks its socket before it writes. It returns conn if go-redis
// can check conn itself, or if no socket is found.
func Watch(conn net.Conn) net.Conn {
	const layers = 8 // no connection has more, unless its layers form a cycle
	for c, n := conn, 0; c != nil && n < layers; n++ {
		if socket, ok := c.(syscall.Conn); ok {
			raw, err := socket.SyscallConn()
			if n == 0 || err != nil {
				return conn
			}
			r := &watched{Conn: conn, socket: raw}
			r.look = func(fd uintptr) { r.seen = arrived(fd) }
			return r
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if _, already := c.(*watched); already || !ok {
			return conn
		}
		c = over.NetConn()
	}
	return conn
}

// NetConn returns the underlying connection, like the method of package tls.
func (r *watched) NetConn() net.Conn { return r.Conn }

func (r *watched) Read(b []byte) (int, error) {
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

// Write writes b, or fails with ErrClosed if the other side has closed the connection. If a Read is
// in progress, that Read sees the end instead.
func (r *watched) Write(b []byte) (int, error) {
	if r.rests.Load() && r.reading.TryLock() {
		closed := r.closed()
		r.reading.Unlock()
		if closed {
			return 0, ErrClosed
		}
	}
	r.rests.Store(false)
	return r.Conn.Write(b)
}

// closed reports whether the other side has closed the connection. Data may have arrived, with or
// without an end: a message that nobody has asked for, whose first byte is kept for the next Read,
// or a message of the layer itself, such as its close message.
func (r *watched) closed() bool {
	const looks = 3
	for range looks {
		if r.socket.Control(r.look) != nil || r.seen == theEnd {
			return true
		}
		if r.seen == nothing || r.isAhead || r.Conn.SetReadDeadline(time.Now().Add(Grace)) != nil {
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

func (r *watched) deadline() time.Time {
	if t := r.until.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

func (r *watched) SetDeadline(t time.Time) error {
	r.until.Store(&t)
	return r.Conn.SetDeadline(t)
}

func (r *watched) SetReadDeadline(t time.Time) error {
	r.until.Store(&t)
	return r.Conn.SetReadDeadline(t)
}
