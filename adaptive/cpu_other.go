//go:build !unix && !windows

package adaptive

import (
	"errors"
	"time"
)

// cpuTime is not known on this system.
func cpuTime() (time.Duration, error) { return 0, errors.ErrUnsupported }
