//go:build !unix

package redistest

import "syscall"

// There is no redis-server for these systems.
const (
	stop = syscall.Signal(-1)
	cont = syscall.Signal(-1)
)
