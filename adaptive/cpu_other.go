//go:build !unix && !windows

package adaptive

import (
	"errors"
	"time"
)

// cpuTime returns an error, because the time is not known on this system.
func cpuTime() (time.Duration, error) { return 0, errors.ErrUnsupported }
