package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// This file tests several limits together, and debts. The limits have long Periods, so that the
// time of the test does not matter.

// pair is a limiter on the store under test, and an equal one on the reference store.
type pair struct{ tested, reference ratelimit.Limiter }

// limitOf returns a limit of some hours.
func limitOf(rng *rand.Rand) ratelimit.Limit {
	return ratelimit.Limit{Rate: 1 + rng.IntN(20), Period: time.Duration(1+rng.IntN(7)) * 53 * time.Minute}
}

// pairs returns limiters on both stores. They are not watched, because their Periods are long.
func pairs(t testing.TB, b *bench, algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) pair {
	t.Helper()
	tested, err := ratelimit.New(algorithm, b.store, l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	reference, err := ratelimit.New(algorithm, newReference(b.read), l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return pair{tested, reference}
}

// decidedTogether is a check: a call of several limits charges each as a separate call would, or
// none. Each Result is that of its own limit.
func decidedTogether(t testing.TB, s *suite, _ algorithm) {
	for seed := range uint64(20) {
		b, rng := s.bench(t), rand.New(rand.NewPCG(seed, 1))
		if !b.store.Together("key", "key") {
			return // one after the other, which the tests of All cover
		}
		var parts []pair
		var tested []ratelimit.Limiter
		for i := range 1 + rng.IntN(5) {
			p := pairs(t, b, s.algorithms[rng.IntN(len(s.algorithms))].name, limitOf(rng), ratelimit.WithName(fmt.Sprint(i)))
			parts, tested = append(parts, p), append(tested, p.tested)
		}
		all, err := ratelimit.NewAll(tested...)
		if err != nil {
			t.Fatal(err)
		}
		for range traceLen {
			if err := decideTogether(all, parts, 1+rng.IntN(6)); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			b.advance(time.Duration(rng.Int64N(int64(time.Hour))))
		}
	}
}

// decideTogether asks all for n events, and each of its parts alone.
func decideTogether(all *ratelimit.All, parts []pair, n int) error {
	ctx, fits := context.Background(), true
	for _, p := range parts {
		r, err := p.reference.Peek(ctx, "key")
		if err != nil {
			return err
		}
		fits = fits && r.Remaining >= n
	}
	got, err := all.AllowN(ctx, "key", n)
	if err != nil {
		return err
	}
	if got.Allowed != fits || len(got.Parts()) != len(parts) {
		return fmt.Errorf("%d events: fit is %v, but the decision is %+v", n, fits, got)
	}
	for i, p := range parts {
		want, err := p.reference.Peek(ctx, "key")
		if err != nil {
			return err
		}
		part := got.Parts()[i]
		if fits || want.Remaining < n {
			if want, err = p.reference.AllowN(ctx, "key", n); err != nil {
				return err
			}
		} else { // the part would have been admitted, but nothing was charged
			part.ResetAfter, part.Delay, want.ResetAfter, want.Delay = 0, 0, 0, 0
		}
		if part.Result != want {
			return fmt.Errorf("limit %d, %d events:\n%+v, but alone it would be\n%+v", i, n, part, want)
		}
	}
	return nil
}

// toldApart is a store that sets all replies before a call, and expects those to alternatives that
// were not asked to say so.
type toldApart struct{ store.Store }

func (s toldApart) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	for i := range replies {
		replies[i] = store.Reply{X: 1}
	}
	if err := s.Store.Decide(ctx, requests, replies); err != nil {
		return err
	}
	asked := 0
	_ = store.InTurn(ctx, requests, slices.Clone(replies), func(_ context.Context, list []store.Request, _ []store.Reply) error {
		asked += len(list)
		return nil
	})
	for i, r := range replies[asked:] {
		if r.Outcome != store.NotAsked {
			return fmt.Errorf("reply %d is %+v, want NotAsked", asked+i, r)
		}
	}
	return nil
}

// decidedInTurn is a check: of several lists, which may have limits in common, the first one that is
// admitted is charged alone, and those after it are not asked.
func decidedInTurn(t testing.TB, s *suite, _ algorithm) {
	for seed := range uint64(20) {
		b, rng := s.bench(t), rand.New(rand.NewPCG(seed, 3))
		if !b.store.Together("key", "key") {
			return // one after the other, which the tests of First cover
		}
		b.store = toldApart{b.store}
		var limits []pair
		for i := range 4 {
			limits = append(limits, pairs(t, b, s.algorithms[rng.IntN(len(s.algorithms))].name, limitOf(rng), ratelimit.WithName(fmt.Sprint(i))))
		}
		lists, firsts := make([][]pair, 2+rng.IntN(3)), []ratelimit.Limiter{}
		for i := range lists {
			var tested []ratelimit.Limiter
			for _, j := range rng.Perm(len(limits))[:1+rng.IntN(3)] {
				lists[i], tested = append(lists[i], limits[j]), append(tested, limits[j].tested)
			}
			all, err := ratelimit.NewAll(tested...)
			if err != nil {
				t.Fatal(err)
			}
			firsts = append(firsts, all)
		}
		first, err := ratelimit.NewFirst(firsts...)
		if err != nil {
			t.Fatal(err)
		}
		for range traceLen {
			if err := decideInTurn(first, lists, limits, 1+rng.IntN(6)); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			b.advance(time.Duration(rng.Int64N(int64(time.Hour))))
		}
	}
}

// decideInTurn asks first, which has these lists of limits, for n events, and each limit alone.
func decideInTurn(first *ratelimit.First, lists [][]pair, limits []pair, n int) error {
	ctx := context.Background()
	var admits []pair
	for _, list := range lists {
		fits := true
		for _, p := range list {
			r, err := p.reference.Peek(ctx, "key")
			if err != nil {
				return err
			}
			fits = fits && r.Remaining >= n
		}
		if fits {
			admits = list
			break
		}
	}
	got, err := first.AllowN(ctx, "key", n)
	if err != nil {
		return err
	}
	if got.Allowed != (admits != nil) {
		return fmt.Errorf("%d events are decided as %+v, and fit: %v", n, got, admits != nil)
	}
	for _, p := range admits {
		if _, err := p.reference.AllowN(ctx, "key", n); err != nil {
			return err
		}
	}
	for i, p := range limits {
		r, err := p.tested.Peek(ctx, "key")
		if err != nil {
			return err
		}
		want, err := p.reference.Peek(ctx, "key")
		if err != nil {
			return err
		}
		if r != want {
			return fmt.Errorf("after %d events limit %d says\n%+v, and alone\n%+v", n, i, r, want)
		}
	}
	return nil
}

// debts is a check: what is charged past the limit counts as on the reference store.
func debts(t testing.TB, s *suite, a algorithm) {
	for seed := range uint64(20) {
		b, rng := s.bench(t), rand.New(rand.NewPCG(seed, 2))
		l := limitOf(rng)
		p := pairs(t, b, a.name, l, ratelimit.WithName("n"), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		var admissions []ratelimit.Result
		for i := range traceLen {
			n, kind := 1+rng.IntN(25), rng.IntN(8)
			if rng.IntN(20) == 0 { // more than drains in 100 years, and more than a state can hold
				n = math.MaxInt32 - rng.IntN(2)
			}
			var of ratelimit.Result
			if kind == 0 && len(admissions) > 0 {
				of = admissions[rng.IntN(len(admissions))]
			}
			d := time.Duration(rng.Int64N(int64(2 * l.Period)))
			got, err := debtCall(p.tested, kind, n, d, of)
			want, wanted := debtCall(p.reference, kind, n, d, of)
			if err != nil && !errors.Is(err, ratelimit.ErrInvalidN) { // returned by a charge when no more could be charged
				t.Fatal(err)
			}
			if got != want || (err == nil) != (wanted == nil) {
				t.Fatalf("seed %d, call %d: %+v, %v, but the reference store returns %+v, %v", seed, i, got, err, want, wanted)
			}
			if got.Allowed && kind != 1 {
				admissions = append(admissions, got)
			}
			if rng.IntN(8) == 0 {
				l = limitOf(rng)
			}
			b.advance(time.Duration(rng.Int64N(int64(l.Period))))
		}
	}
}

// debtCall refunds n events of of, or peeks at, charges or asks for n, perhaps within d.
func debtCall(lim ratelimit.Limiter, kind, n int, d time.Duration, of ratelimit.Result) (r ratelimit.Result, err error) {
	ctx := context.Background()
	switch {
	case kind == 0 && of.Allowed:
		err = lim.Refund(ctx, "key", of, n)
	case kind == 1:
		r, err = lim.Peek(ctx, "key")
	case kind <= 3:
		r, err = lim.(ratelimit.Charger).Charge(ctx, "key", n)
	case kind <= 5:
		r, err = ratelimit.AllowWithin(ctx, lim, "key", n, d)
	default:
		r, err = lim.AllowN(ctx, "key", n)
	}
	return r, err
}
