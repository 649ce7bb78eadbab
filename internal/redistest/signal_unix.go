//go:build unix

package redistest

import "syscall"

const (
	stop = syscall.SIGSTOP
	cont = syscall.SIGCONT
)
