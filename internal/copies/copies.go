// Package copies keeps the packages that grpclimit and serve need of this module's internal ones.
// They are copied, since those are modules of their own: an older one must compile beside a
// newer root.
package copies

//go:generate go test -run TestOtherModulesHaveTheirCopies -update
