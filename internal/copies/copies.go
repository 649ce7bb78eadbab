// Package copies keeps the packages that grpclimit needs of this module's internal ones.
// They are copied, since grpclimit is a module of its own: an older one must compile beside a
// newer root.
package copies

//go:generate go test -run TestGrpclimitHasTheCopies -update
