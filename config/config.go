// Package config makes limiters from a YAML or JSON text, so that operators can change limits
// without changing code, even at run time.
//
//	limiters:
//	  api:                      # the limiter's name: ratelimit.WithName("api")
//	    algorithm: token_bucket
//	    limit: 100/m            # applies to tiers that are not listed, too
//	    tiers:                  # the program looks up the tier of a key: WithTierFunc
//	      free: 10/m
//	      internal: unlimited
//	      banned: 0/m
//	  batch:
//	    shares: api             # has its limits, and shares its counts
//	    reserved: 5             # ratelimit.WithReserved: admits only if 5 remain for others
//	  crawl:
//	    algorithm: fixed_window
//	    limits: [60/m, 1000/d]  # all of them must admit: ratelimit.NewAll; clients see crawl/m and crawl/d
//	    ban:                    # ratelimit.NewBan; not for passwords: see Ban.Strike
//	      denials: 3/10m        # 3 denials of a key within 10 minutes of the first start a ban
//	      for: 15m
//	      most: 24h             # each further ban lasts twice as long, up to this
//	  search:
//	    algorithm: token_bucket
//	    limit: 10/s burst 20
//	    on_failure: local       # or open, closed, error; the default is error
//	    instances: 4            # each instance takes 1/4 of the limit while the store fails
//	    store:                  # caches in front of the store, if it is not in memory
//	      deny_cache: true      # denycache.New
//	      coalescing: true      # coalesce.New
//	  ingest:
//	    algorithm: fixed_window
//	    limit: 1000000/m
//	    store:
//	      lease: 50ms           # lease.New, in place of the others; decisions may be this old
//	  plan:
//	    algorithm: fixed_window # the only algorithm that can count by a calendar
//	    limit: 10000/month from 31 in America/Sao_Paulo
//	  model:
//	    algorithm: token_bucket
//	    limit: 100/m
//	    in_flight: 8            # concurrent calls, alone or together with rates: package inflight
//	    life: 30s               # until the slot of a dead process is free; the default is 1m
//
// A limiter has an algorithm and a limit or limits, or shares those of another limiter, or has in_flight.
// Everything else is optional. Limits are written as for [ratelimit.ParseLimit], and algorithms are
// those of [ratelimit.New]. Names and tiers are used as they are written, quoted or not. A name has 1
// to 256 bytes and no braces.
//
// [Schema] is for editors. [Parse] checks a text completely, and [Config.Build] makes the limiters
// on a store. [Limiters.Update] lets them follow another text while they are in use.
//
// JSON is read as YAML, with one exception: a character above U+FFFF must be in the text itself,
// and not be written as a pair of \u escapes.
package config

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/yamltree"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Config is a valid text that has been read. It never changes, and can be built more than once. Use
// [Parse] to create one.
type Config struct {
	specs []*spec // in the order of the text
}

// Parse reads a YAML or JSON text in UTF-8, at most 1 MiB long. The text can contain at most 65,536
// of the characters , : - ? [ { # % & * and !, wherever they are, which is enough for 8,000
// limiters. A text with more of them is rejected before it is read, because reading it could take
// gigabytes.
//
// The error lists all mistakes, or the first 20 of them, in the order of the text. Each of them is
// an [*Error] with line and column, and errors.As finds the first. Errors about limits wrap
// [ratelimit.ErrInvalidLimit], and errors about names and algorithms wrap
// [ratelimit.ErrInvalidOption]. After a syntax error, nothing else is checked.
//
// Unknown fields, repeated names, an empty text and a second document are errors. So are the
// features of YAML that can hide the meaning of a text: anchors, aliases, tags and merge keys.
func Parse(text []byte) (*Config, error) {
	p := &parser{Reader: yamltree.Reader{Dialect: &dialect}}
	if root := p.root(text); root != nil {
		p.limiters(root)
	}
	if err := yamltree.Join(p.Sorted(), func(e *yamltree.Error) error { return &Error{e.Line, e.Column, e.Err} }); err != nil {
		return nil, err
	}
	return &Config{p.specs}, nil
}

// Error is a mistake at one place of a text.
type Error struct {
	Line   int // from 1
	Column int // in characters, from 1
	Err    error
}

// Error returns the place and the mistake, such as `config: 3:12: limiter "api": limit: …`.
func (e *Error) Error() string {
	return fmt.Sprintf("config: %d:%d: %v", e.Line, e.Column, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// spec is the description of one limiter in a text.
type spec struct {
	line, column int // of the name

	name, algorithm string
	limits          []ratelimit.Limit // one, unless several is true; none if there are only slots
	several         bool              // the limits are listed under the field limits
	tiers           map[string]ratelimit.Limit
	shares          string             // the limiter whose limits and counts this one uses; "" for its own
	reserved        int                // events left to other limiters
	slots           int                // concurrent calls; 0 if they are not limited
	life            time.Duration      // lifetime of a slot
	ban             *ratelimit.Penalty // nil if there is none
	onFailure       failure
	instances       int // 0 unless onFailure is local
	front           front
}

// failure is a value of on_failure.
type failure string

const (
	failError  failure = "error"
	failOpen   failure = "open"
	failClosed failure = "closed"
	failLocal  failure = "local"
)

// fail returns an error about the limiter, at the place of its name.
func (s *spec) fail(err error) error {
	return &Error{s.line, s.column, fmt.Errorf("limiter %s: %w", yamltree.Quote(s.name), err)}
}

// check returns an error if the algorithm does not accept l.
func (s *spec) check(l ratelimit.Limit) error {
	return l.ValidateFor(s.algorithm)
}

// checkShares returns the first error that the algorithm reports for the shares of instances. It
// checks the limits before the tiers.
func (s *spec) checkShares() error {
	mem := ratelimit.Must(memstore.New())
	all := slices.Clone(s.limits)
	for _, tier := range slices.Sorted(maps.Keys(s.tiers)) {
		all = append(all, s.tiers[tier])
	}
	for _, l := range all {
		lim, err := ratelimit.New(s.algorithm, mem, l)
		if err == nil {
			_, err = see.Local(lim, mem, s.instances)
		}
		if err != nil {
			return err
		}
	}
	if s.slots == 0 {
		return nil
	}
	slots, err := s.newSlots(mem)
	if err == nil {
		_, err = see.Local(slots, mem, s.instances)
	}
	return err
}

// checkReserved returns an error if the reserve leaves nothing of a limit, or has no effect.
func (s *spec) checkReserved() error {
	mem := ratelimit.Must(memstore.New())
	check := func(what string, l ratelimit.Limit) error {
		switch _, err := ratelimit.New(s.algorithm, mem, l, ratelimit.WithReserved(s.reserved)); {
		case err == nil:
			return nil
		case l == ratelimit.Unlimited():
			return fmt.Errorf("%w: it has no effect on %sunlimited", ratelimit.ErrInvalidOption, what)
		default:
			return fmt.Errorf("%w: %d leaves nothing of %s%v", ratelimit.ErrInvalidOption, s.reserved, what, l)
		}
	}
	some := false // whether a limit admits some events, but not all
	limited := func(l ratelimit.Limit) bool { return l != ratelimit.Unlimited() && l.Rate > 0 }
	for _, tier := range slices.Sorted(maps.Keys(s.tiers)) {
		if l := s.tiers[tier]; limited(l) {
			some = true
			if err := check("tier "+yamltree.Quote(tier)+": ", l); err != nil {
				return err
			}
		}
	}
	for _, l := range s.limits {
		if limited(l) || !some {
			if err := check("", l); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkLife returns an error if life is not valid for slots.
func checkLife(life time.Duration) error {
	_, err := inflight.New(ratelimit.Must(memstore.New()), 1, life)
	return err
}

// newSlots makes the limiter of concurrent calls.
func (s *spec) newSlots(on store.Store) (ratelimit.Limiter, error) {
	opts := []ratelimit.Option{ratelimit.WithName(s.name)}
	if len(s.limits) > 0 {
		opts = append(opts, ratelimit.WithPolicyName(s.name+"/"+inflight.Algorithm))
	}
	return inflight.New(on, s.slots, s.life, opts...)
}

// checkLease checks the lease with each limit, and if that fails, whether any tier can be leased.
func (s *spec) checkLease() (err error) {
	for _, l := range s.limits {
		if err = s.tryLease(l); err != nil {
			break
		}
	}
	if err == nil || s.tiers == nil { // tiers have a single limit
		return err
	}
	noTier := func(context.Context, string) (string, error) { return "", nil }
	if err := s.tryLease(s.limits[0], ratelimit.WithTiers(noTier, s.tiers)); err != nil {
		return err
	}
	for _, l := range s.tiers {
		if l.Rate > 0 && s.tryLease(l) == nil {
			return nil
		}
	}
	return err
}

func (s *spec) tryLease(l ratelimit.Limit, opts ...ratelimit.Option) error {
	leases, err := lease.New(ratelimit.Must(memstore.New()), s.front.lease)
	if err != nil {
		return err
	}
	_, err = ratelimit.New(s.algorithm, leases, l, append(opts, ratelimit.WithReserved(s.reserved))...)
	return err
}

// options returns the options of each limit.
func (s *spec) options(tierOf func(ctx context.Context, key string) (string, error)) []ratelimit.Option {
	opts := []ratelimit.Option{ratelimit.WithName(s.counts()), ratelimit.WithReserved(s.reserved)}
	if s.tiers != nil {
		opts = append(opts, ratelimit.WithTiers(tierOf, s.tiers))
	}
	return opts
}

// counts returns the name that the limits have in the store.
func (s *spec) counts() string { return cmp.Or(s.shares, s.name) }

// periods returns the Periods and calendars of the limits, which are part of their identity.
func (s *spec) periods() []ratelimit.Limit {
	periods := make([]ratelimit.Limit, len(s.limits))
	for i, l := range s.limits {
		periods[i] = period(l)
	}
	return periods
}

// period returns the part of l that defines its windows: l without its events.
func period(l ratelimit.Limit) ratelimit.Limit {
	l.Rate, l.Burst = 0, 0
	return l
}
