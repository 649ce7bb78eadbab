package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/net/netutil"
)

// listenOn listens on an address such as localhost:8080 or unix:/run/ratelimit.sock. A socket that a process
// has left behind is removed.
func listenOn(ctx context.Context, address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	path = strings.TrimPrefix(path, "//") // as in the names of grpc
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && isLeft(ctx, path) && os.Remove(path) == nil {
		return new(net.ListenConfig).Listen(ctx, "unix", path)
	}
	return l, err
}

// isLeft is whether a path is a socket at which nobody listens.
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

// bounded takes so many connections at once that files are left for the other ports: 3 of 8 that the process may
// open for each of the two that are for callers, and 1 for the private one. More connections wait.
func bounded(l net.Listener, name string) net.Listener {
	share := maxFiles() / 8
	if name != "private" {
		share *= 3
	}
	if share == 0 { // it is not known
		return l
	}
	return netutil.LimitListener(l, share)
}
