package redistest

// StartIn is Start without a test to fail.
func StartIn(dir string, args ...string) (*Server, error) { return start(dir, args) }

// NeedBinary skips t, or fails it, if redis-server is missing.
var NeedBinary = needBinary
