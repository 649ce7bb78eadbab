//go:build !unix

package pgtest

import "syscall"

// There is no server for these systems that a test starts.
const (
	stop = syscall.Signal(-1)
	cont = syscall.Signal(-1)
)
