package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
)

// listenOn listens on an address such as localhost:8080 or unix:/run/ratelimit.sock. It removes a
// socket that a dead process left behind.
func listenOn(ctx context.Context, address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	path = strings.TrimPrefix(path, "//") // as in grpc's names
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && isLeft(ctx, path) && os.Remove(path) == nil {
		return new(net.ListenConfig).Listen(ctx, "unix", path)
	}
	return l, err
}

// isLeft reports whether path is a socket on which nobody listens.
func isLeft(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// bounded limits the number of open connections, so that files are left for the other ports and for
// Redis. Each of the two ports of callers gets a quarter of the files that the process may open,
// and the private port gets an eighth. Further connections wait.
func bounded(l net.Listener, name string) net.Listener {
	share := maxFiles() / 8
	if name != "private" {
		share *= 2
	}
	if share == 0 { // the number of files is not known
		return l
	}
	return &boundedListener{Listener: l, open: make(chan struct{}, share), closed: make(chan struct{})}
}

type boundedListener struct {
	net.Listener
	open   chan struct{} // one for each connection
	closed chan struct{}
	once   sync.Once
}

func (l *boundedListener) Accept() (net.Conn, error) {
	select {
	case l.open <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	free := sync.OnceFunc(func() { <-l.open })
	conn, err := l.Listener.Accept()
	if err != nil {
		free()
		return nil, err
	}
	return &boundedConn{conn, free}, nil
}

func (l *boundedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type boundedConn struct {
	net.Conn
	free func()
}

func (c *boundedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// CloseWrite is used by package http to close a connection whose request it has not read. Without
// it, the response could be lost.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
