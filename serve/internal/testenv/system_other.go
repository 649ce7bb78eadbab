//go:build !unix

package testenv

import (
	"errors"
	"syscall"
)

// There is no redis-server for these systems.
const (
	stop = syscall.Signal(-1)
	cont = syscall.Signal(-1)
)

func mkfifo(string) error { return errors.ErrUnsupported }
