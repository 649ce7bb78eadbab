// Package copies keeps serve's copies of internal packages up to date. They are copied because
// serve is a module of its own, and an older serve must compile with a newer root.
package copies

//go:generate go test -run TestServeHasItsCopies -update
