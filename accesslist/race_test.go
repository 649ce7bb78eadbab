//go:build race

package accesslist_test

// raceEnabled: the race detector allocates in its own right.
const raceEnabled = true
