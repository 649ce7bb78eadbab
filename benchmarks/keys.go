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

// key is the i-th key, of at least length bytes: "user:000000000042", with zeros in
// front up to the length. It is a new string each time, as in a service that reads
// its keys from requests.
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

// shuffled returns the keys 0 to n-1 in random order. They are made in that order,
// so that reading them costs every contestant little.
func shuffled(n int) []string {
	keys := make([]string, n)
	for j, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		keys[j] = key(i, shortKey)
	}
	return keys
}

// fill has lim see each of the keys first to n-1 once. The strings are others than
// those of any later decision: a map that finds the very same string does not
// compare it, which no service will see.
func fill(lim limiter, first, n, length int) error {
	for i := first; i < n; i++ {
		ok, err := lim.decide(key(i, length))
		if err := check(ok, err, true); err != nil {
			return err
		}
	}
	return nil
}

// pass makes n decisions on keys, from the one at index on, and fails at the first
// that does not end as it should.
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

// inShares has each of callers make its share of n calls. Each begins elsewhere among
// the keys, so that they meet only where there are few.
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
