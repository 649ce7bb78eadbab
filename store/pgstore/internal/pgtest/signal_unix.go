//go:build unix

package pgtest

import "syscall"

const (
	stop = syscall.SIGSTOP
	cont = syscall.SIGCONT
)
