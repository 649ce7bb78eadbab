//go:build !unix

package main

// maxFiles returns how many files the process may have open at the same time, or 0 if that is not
// known.
func maxFiles() int { return 0 }
