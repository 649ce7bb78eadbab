// Package config makes limiters of a text in YAML or JSON, so that operators change
// limits without code, at run time too.
//
//	limiters:
//	  api:                      # its name: ratelimit.WithName("api")
//	    algorithm: sliding_window
//	    limit: 100/m            # of tiers that are not listed, too
//	    tiers:                  # which tier a key has, the program says: WithTierFunc
//	      free: 10/m
//	      internal: unlimited
//	      banned: 0/m
//	  login:
//	    algorithm: fixed_window
//	    limits: [5/15m, 50/d]   # each must admit: ratelimit.NewAll; clients read login/15m and login/d
//	  search:
//	    algorithm: token_bucket
//	    limit: 10/s burst 20
//	    on_failure: local       # or open, closed; error, if it is left out
//	    instances: 4            # that share the limit: each takes a 1/4 while the store fails
//	    deny_cache: true        # denycache.New
//	    coalescing: true        # ratelimit.WithCoalescing
//
// A limiter has an algorithm, and a limit or limits; all else is optional. Limits are
// what [ratelimit.ParseLimit] reads, and algorithms what [ratelimit.New] knows. Names
// and tiers are taken as they are written, quoted or not. A name has 1 to 256 bytes and
// no braces.
//
// [Parse] checks a text completely, [Config.Build] makes the limiters on a store, and
// [Limiters.Update] lets them follow another text while they are in use.
//
// JSON is read as the YAML that it is, with one exception: a character beyond U+FFFF
// must stand in the text itself, not as a pair of \u escapes.
package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Config is a text that has been read and found good. It never changes, and can be
// built more than once. Make it by [Parse].
type Config struct {
	specs []*spec // in the order of the text
}

// Parse reads a text in YAML or JSON, in UTF-8, of at most 1 MiB. It has at most 65,536 of
// the signs , : - ? [ { # % & * and ! wherever they stand, which is enough for 8,000
// limiters. More are refused before they are read: to read them could take gigabytes.
//
// Its error tells of all that is wrong, or of the first 20 places, each as an
// [*Error] with line and column (errors.As finds the first; all are joined in the
// order of the text). Those about limits wrap [ratelimit.ErrInvalidLimit], and those
// about names and algorithms [ratelimit.ErrInvalidOption]. After an error of syntax
// nothing else is checked. Wrong are also fields that are not known, names that come
// twice, an empty text and a second document, and all of YAML that only hides
// what is meant: anchors, aliases, tags, merge keys.
func Parse(text []byte) (*Config, error) {
	p := &parser{}
	if root := p.document(text); root != nil {
		p.limiters(root)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return &Config{p.specs}, nil
}

// Error is what is wrong at one place of a text.
type Error struct {
	Line   int // from 1
	Column int // in characters, from 1
	Err    error
}

// Error is the place and what is wrong there, such as
// `config: 3:12: limiter "api": limit: …`.
func (e *Error) Error() string {
	return fmt.Sprintf("config: %d:%d: %v", e.Line, e.Column, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// spec is what a text says of one limiter.
type spec struct {
	line, column int // of the name

	name, algorithm string
	limits          []ratelimit.Limit // one, unless several
	several         bool              // they stand under limits
	tiers           map[string]ratelimit.Limit
	onFailure       failure
	instances       int // 0 unless onFailure is local
	denyCache       bool
	coalescing      bool
}

// failure is what on_failure says.
type failure string

const (
	failError  failure = "error"
	failOpen   failure = "open"
	failClosed failure = "closed"
	failLocal  failure = "local"
)

// fail is an error about the limiter, at its name.
func (s *spec) fail(err error) error {
	return &Error{s.line, s.column, fmt.Errorf("limiter %s: %w", quote(s.name), err)}
}

// check is what the algorithm says of a limit.
func (s *spec) check(l ratelimit.Limit) error {
	return l.ValidateFor(s.algorithm)
}

// checkShares is what the algorithm says of the shares of instances, first of the
// limits, then of the tiers.
func (s *spec) checkShares() error {
	all := slices.Clone(s.limits)
	for _, tier := range slices.Sorted(maps.Keys(s.tiers)) {
		all = append(all, s.tiers[tier])
	}
	for _, l := range all {
		share, err := l.Share(s.instances)
		if err == nil {
			err = s.check(share)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// periods are those of limits, which are part of their identity.
func (s *spec) periods() []time.Duration {
	periods := make([]time.Duration, len(s.limits))
	for i, l := range s.limits {
		periods[i] = l.Period
	}
	return periods
}
