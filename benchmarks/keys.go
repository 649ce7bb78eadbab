package main

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
)

const (
	shortKey = 17  // bytes, of user:%012d
	longKey  = 200 // bytes
)

// key returns the i-th key, of at least length bytes: "user:000000000042", with leading
// zeros up to the length. It is a new string each time, as in a service that reads its
// keys from requests.
func key(i, length int) string {
	var digits [20]byte
	n := strconv.AppendInt(digits[:0], int64(i), 10)
	var b strings.Builder
	b.Grow(length)
	b.WriteString("user:")
	b.WriteString(zeros[:length-b.Len()-len(n)])
	b.Write(n)
	return b.String()
}

var zeros = strings.Repeat("0", longKey)

// shuffled returns the keys 0 to n-1 in random order. They are made in that order, so
// that every contestant reads them cheaply.
func shuffled(n int) []string {
	keys := make([]string, n)
	for j, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		keys[j] = key(i, shortKey)
	}
	return keys
}

// fill shows lim each of the keys first to n-1 once. Later decisions use other strings: a
// map that finds the very same string does not compare it, which does not happen in a
// service.
func fill(lim limiter, first, n, length int) error {
	for i := first; i < n; i++ {
		ok, err := lim.decide(key(i, length))
		if err := check(ok, err, true); err != nil {
			return err
		}
	}
	return nil
}

// pass makes n decisions on keys, beginning at index from. It fails at the first decision
// that is not want.
func pass(lim limiter, keys []string, from, n int, want bool) error {
	k := from % len(keys)
	for range n {
		if ok, err := lim.decide(keys[k]); ok != want || err != nil {
			return check(ok, err, want)
		}
		if k++; k == len(keys) {
			k = 0
		}
	}
	return nil
}

// passes is pass by several callers.
func passes(lim limiter, keys []string, from, n, callers int, want bool) error {
	return inShares(callers, n, from, len(keys), func(from, n int) error { return pass(lim, keys, from, n, want) })
}

// inShares makes n calls by several callers, each of which makes its share. They begin at
// different keys, so that they only meet if there are few keys.
func inShares(callers, n, from, keys int, calls func(from, n int) error) error {
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			errs[c] = calls(from+c*keys/callers, (c+1)*n/callers-c*n/callers)
		})
	}
	wg.Wait()
	return firstError(errs)
}
