package redistest

// StartIn is Start without a test to fail.
func StartIn(dir string, args ...string) (*Server, error) { return start(dir, args) }
