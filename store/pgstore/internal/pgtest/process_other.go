//go:build !linux

package pgtest

import "syscall"

func attributes(*id) *syscall.SysProcAttr { return nil }
