//go:build !race

package accesslist_test

const raceEnabled = false
