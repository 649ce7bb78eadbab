package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is how long this thread has had a processor, if that is known.
func threadTime() (time.Duration, bool) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err == nil
}
