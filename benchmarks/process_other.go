//go:build !unix

package main

import (
	"syscall"
	"time"
)

// usedCPU is not known here.
func usedCPU() time.Duration { return 0 }

// asUser is not needed here.
func asUser(_, _ int) *syscall.SysProcAttr { return nil }
