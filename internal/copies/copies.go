// Package copies keeps the copies of internal packages that serve has. They are copied, because serve is a module
// of its own, and an older serve must compile with a newer root.
package copies

//go:generate go test -run TestServeHasItsCopies -update
