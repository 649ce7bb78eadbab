//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd || solaris || illumos)

package rested

// CanLook reports whether a socket can be checked without reading. go-redis cannot check it either.
const CanLook = false

func arrived(uintptr) arrival { return nothing }
