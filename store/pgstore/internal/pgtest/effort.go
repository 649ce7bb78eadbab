package pgtest

import "os"

// Of returns how much of something a test does: plain, with RATELIMIT_FULL=1 full, and with RATELIMIT_LONG=1 long.
func Of(plain, full, long int) int {
	switch {
	case os.Getenv("RATELIMIT_LONG") == "1":
		return long
	case os.Getenv("RATELIMIT_FULL") == "1":
		return full
	}
	return plain
}
