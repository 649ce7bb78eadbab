//go:build unix

package testenv

import "syscall"

const (
	stop = syscall.SIGSTOP
	cont = syscall.SIGCONT
)

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }
