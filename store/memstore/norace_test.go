//go:build !race

package memstore_test

// scale divides the sizes of the large tests.
const scale = 1
