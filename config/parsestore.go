package config

// This file reads the caches in front of a limiter's store, and what decides while the store fails.

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/ratelimit-go/ratelimit/internal/yamltree"
)

// store reads the caches in front of the store. good reports whether the limiter has no errors so
// far.
func (b *block) store(good bool) {
	f, found := b.fields["store"]
	switch shared := b.spec.front.lease; {
	case !found && shared > 0 && good:
		if err := b.spec.checkLease(); err != nil {
			b.Fail(b.fields["shares"].Value, "%sshares: on the lease of limiter %s: %w", b.what, yamltree.Quote(b.spec.shares), err)
		}
		return
	case !found:
		return
	case shared > 0:
		b.Fail(f.Key, "%sstore: want none beside shares: the lease is that of limiter %s", b.what, yamltree.Quote(b.spec.shares))
		return
	}
	before, what := len(b.Errors), b.what+"store: "
	fields := b.Fields(f.Value, what, "a mapping with deny_cache, coalescing or lease", storeFields...)
	in := block{b.parser, b.spec, what, f.Key, fields}
	in.spec.front = front{denyCache: in.flag("deny_cache"), coalescing: in.flag("coalescing")}
	if b.spec.reserved > 0 && in.spec.front.coalescing {
		b.Fail(fields["coalescing"].Key, "%scoalescing: has no effect beside reserved", what)
	}
	if b.spec.several && in.spec.front.denyCache {
		b.Fail(fields["deny_cache"].Key, "%sdeny_cache: cannot be combined with limits, because it only repeats denials by all of them: use limit", what)
	}
	in.lease(good && len(b.Errors) == before)
}

// lease reads lease. good reports whether the limiter has no errors so far, so that the lease can
// be tried.
func (b *block) lease(good bool) {
	f, found := b.fields["lease"]
	if !found {
		return
	}
	const want = "the lifetime of a lease, such as 50ms"
	text, ok := b.Text(f.Value, b.what+"lease: ", want)
	if !ok {
		return
	}
	life, err := time.ParseDuration(text)
	switch {
	case err != nil:
		b.Fail(f.Value, "%slease: %s: want %s", b.what, yamltree.Quote(text), want)
	case b.spec.front != front{}:
		b.Fail(f.Key, "%slease: cannot be combined with deny_cache or coalescing, because a lease does both", b.what)
	case b.spec.reserved > 0:
		b.Fail(f.Key, "%slease: has no effect with reserved, because only the store knows what remains", b.what)
	case good:
		b.spec.front.lease = life
		if err := b.spec.checkLease(); err != nil {
			b.Fail(f.Value, "%slease: %w", b.what, err)
		}
	}
}

// flag reads a boolean field.
func (b *block) flag(field string) bool {
	f, found := b.fields[field]
	return found && b.Flag(f.Value, b.what+field+": ")
}

// onFailure reads on_failure and instances. good reports whether the limiter has no errors so far,
// so that its shares can be checked.
func (b *block) onFailure(good bool) {
	if f, found := b.fields["on_failure"]; found {
		const want = "open, closed, local or error"
		text, ok := b.Text(f.Value, b.what+"on_failure: ", want)
		if ok && !slices.Contains(failures, failure(text)) {
			b.Fail(f.Value, "%son_failure: %s: want %s", b.what, yamltree.Quote(text), want)
			ok = false
		}
		if !ok {
			return
		}
		b.spec.onFailure = failure(text)
	}
	f, found := b.fields["instances"]
	switch local := b.spec.onFailure == failLocal; {
	case found && !local:
		b.Fail(f.Key, "%sinstances: needs on_failure: local", b.what)
	case found:
		b.instances(f.Value, good)
	case local:
		b.Fail(b.fields["on_failure"].Value, "%son_failure: local: needs instances, the number of processes that share the store", b.what)
	}
}

func (b *block) instances(n *yaml.Node, good bool) {
	b.spec.instances = b.Number(n, b.what+"instances: ")
	if !good || b.spec.instances == 0 {
		return
	}
	if err := b.spec.checkShares(); err != nil {
		b.Fail(n, "%sinstances: %w", b.what, err)
	}
}
