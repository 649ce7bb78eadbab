//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd || solaris || illumos

package rested

import "syscall"

// CanLook reports whether a socket can be checked without reading.
const CanLook = true

// arrived returns what the socket has for its reader, and leaves it there.
func arrived(fd uintptr) arrival {
	var b [1]byte
	switch n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT); {
	case n > 0:
		return something
	case err == syscall.EAGAIN || err == syscall.EWOULDBLOCK || err == syscall.EINTR: //nolint:errorlint // these are numbers
		return nothing
	}
	return theEnd // the end of the data, or an error such as a reset
}
