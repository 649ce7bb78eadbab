// Package effort reports how much the tests of this run should do. The environment decides:
//
//	                    what a newcomer runs, within a minute on two cores
//	RATELIMIT_FULL=1    what CI runs: more and longer random traces, slow faults
//	RATELIMIT_LONG=1    what runs at night: the longest traces, failovers, floods of 10 million keys
//
// A test that is shorter in a plain run checks the same promises, on less data. With -short, a test
// promises nothing about time and runs the fewest traces, as the race detector needs it.
package effort

import (
	"os"
	"testing"
)

// Full reports whether this run is CI's, or a longer one.
func Full() bool { return os.Getenv("RATELIMIT_FULL") == "1" || Long() }

// Long reports whether this run may take as long as it likes.
func Long() bool { return os.Getenv("RATELIMIT_LONG") == "1" }

// Of returns how much of something a test does: plain, full, or long if that is given and this
// run is long.
func Of(plain, full int, long ...int) int {
	switch {
	case len(long) > 0 && Long():
		return long[0]
	case Full():
		return full
	}
	return plain
}

// NeedFull skips t in a plain run.
func NeedFull(t testing.TB) {
	t.Helper()
	if !Full() {
		t.Skip("RATELIMIT_FULL=1 runs it")
	}
}

// OneGoroutine skips t with -short, because t takes long and has no races to detect.
func OneGoroutine(t testing.TB) {
	t.Helper()
	skipShort(t, "one goroutine races with nobody")
}

// OthersRace skips t with -short, because t takes long, and other tests run the same code under the
// race detector.
func OthersRace(t testing.TB) {
	t.Helper()
	skipShort(t, "other tests show the race detector the same")
}

func skipShort(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip(why)
	}
}

// NeedLong skips t unless RATELIMIT_LONG=1.
func NeedLong(t testing.TB) {
	t.Helper()
	if !Long() {
		t.Skip("RATELIMIT_LONG=1 runs it")
	}
}
