//go:build race

package memstore_test

// The race detector makes everything ten times as slow.
const scale = 10
