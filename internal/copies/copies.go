// Package copies keeps copies of internal packages up to date. Package serve has copies because it is
// a module of its own, and an older serve must compile with a newer root. internal/suite and
// cmd/ratelimit have copies of pgtest because only pgstore can import the original.
package copies

//go:generate go test -run TestModulesHaveTheirCopies -update
