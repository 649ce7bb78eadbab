// Package copies keeps copies of internal packages up to date. Those of serve are copied because
// serve is a module of its own, and an older serve must compile with a newer root. That of pgtest is copied because
// only pgstore can import it where it is.
package copies

//go:generate go test -run TestModulesHaveTheirCopies -update
