//go:build !unix

package main

// maxFiles is how many files the process may have open at once, 0 if that is not known.
func maxFiles() int { return 0 }
