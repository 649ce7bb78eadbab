//go:build unix

package main

import (
	"math"
	"syscall"
)

// maxFiles returns how many files the process may have open at the same time, or 0 if that is not
// known.
func maxFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, math.MaxInt32))
}
