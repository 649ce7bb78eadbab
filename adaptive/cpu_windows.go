package adaptive

import (
	"syscall"
	"time"
)

// cpuTime returns the processor time that this process has used.
func cpuTime() (time.Duration, error) {
	self, err := syscall.GetCurrentProcess()
	if err != nil {
		return 0, err
	}
	var created, ended, kernel, user syscall.Filetime
	if err := syscall.GetProcessTimes(self, &created, &ended, &kernel, &user); err != nil {
		return 0, err
	}
	return duration(kernel) + duration(user), nil
}

// duration converts a Filetime that is a number of 100 ns, not a date.
func duration(t syscall.Filetime) time.Duration {
	return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * 100
}
