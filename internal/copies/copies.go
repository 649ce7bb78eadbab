// Package copies keeps the copy of internal/clientip that serve has. It is a copy, because serve is a module
// of its own, and an older serve must compile with a newer root.
package copies

//go:generate go test -run TestServeHasItsCopy -update
