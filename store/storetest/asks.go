package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// decidedByTheCall is a check: of limits that each call chooses, all are charged or none. A shadow
// is charged together with them if it fits, and a look never is.
func decidedByTheCall(t testing.TB, s *suite, _ algorithm) { askTogether(t, s, false) }

// decidedByGates is the same check with gates in place of looks. A gate that denies prevents all
// others from being charged, and is never charged itself.
func decidedByGates(t testing.TB, s *suite, _ algorithm) { askTogether(t, s, true) }

// gates is a store that turns each look into a gate.
type gates struct{ store.Store }

func (g gates) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	for i := range requests {
		if requests[i].Op == store.OpLook && len(requests) > 1 {
			requests[i].Op = store.OpGate
		}
	}
	return g.Store.Decide(ctx, requests, replies)
}

func askTogether(t testing.TB, s *suite, gated bool) {
	for seed := range uint64(20) {
		b, rng := s.bench(t), rand.New(rand.NewPCG(seed, 11))
		if !b.store.Together("key", "key") {
			return
		}
		if gated {
			b.store = gates{b.store}
		}
		var limits []pair
		for i := range 2 + rng.IntN(3) {
			limits = append(limits, pairs(t, b, s.algorithms[rng.IntN(len(s.algorithms))].name, limitOf(rng), ratelimit.WithName(fmt.Sprint(i))))
		}
		for i := range 30 {
			if err := decideByTheCall(limits, gated, rng); err != nil {
				t.Fatalf("seed %d, call %d: %v", seed, i, err)
			}
			b.advance(time.Duration(rng.Int64N(int64(20 * time.Minute))))
		}
	}
}

// decideByTheCall asks some of limits for some events, and the reference of each limit alone.
func decideByTheCall(limits []pair, gated bool, rng *rand.Rand) error {
	ctx, fits, votes := context.Background(), true, false
	var asks []ratelimit.Ask
	var rooms []ratelimit.Result
	for _, p := range limits {
		a := ratelimit.Ask{Limiter: p.tested, Key: "key", N: rng.IntN(7), Shadow: rng.IntN(3) == 0}
		a.Look = a.N == 0
		r, err := p.reference.Peek(ctx, "key")
		if err != nil {
			return err
		}
		if a.N > 0 && !a.Shadow {
			fits, votes = fits && r.Remaining >= a.N, true
		}
		if a.N == 0 && gated {
			fits = fits && r.Allowed
		}
		asks, rooms = append(asks, a), append(rooms, r)
	}
	got, err := ratelimit.Decide(ctx, asks...)
	if err != nil {
		return err
	}
	if got.Allowed != fits || len(got.Parts()) != len(asks) {
		return fmt.Errorf("asks %+v: fit is %v, but the decision is %+v", asks, fits, got)
	}
	if err := sameAsAlone(limits, asks, rooms, got, fits); err != nil {
		return err
	}
	if fits && votes && rng.IntN(4) == 0 {
		return giveBack(limits, got, asks)
	}
	return nil
}

// sameAsAlone compares each part of got with its limit asked alone. before has the rooms before the
// call.
func sameAsAlone(limits []pair, asks []ratelimit.Ask, rooms []ratelimit.Result, got ratelimit.Result, fits bool) (err error) {
	ctx := context.Background()
	for i, a := range asks {
		part, want := got.Parts()[i], rooms[i]
		if a.N > 0 && (fits || want.Remaining < a.N) { // a denial charges nothing
			if want, err = limits[i].reference.AllowN(ctx, "key", a.N); err != nil {
				return err
			}
		} else if a.N > 0 { // a would have been admitted, but nothing was charged
			part.Allowed, part.RetryAfter, part.Delay, want.Delay = want.Allowed, want.RetryAfter, 0, 0
		}
		if part.Result != want {
			return fmt.Errorf("asks %+v: part %d is\n%+v, but alone it would be\n%+v", asks, i, part, want)
		}
	}
	return nil
}

// giveBack refunds what was charged, together and alone.
func giveBack(limits []pair, charged ratelimit.Result, asks []ratelimit.Ask) error {
	ctx := context.Background()
	if err := ratelimit.GiveBack(ctx, charged, asks...); err != nil {
		return err
	}
	for i, a := range asks {
		if part := charged.Parts()[i]; part.Charged() > 0 {
			if err := limits[i].reference.Refund(ctx, "key", part.Result, a.N); err != nil {
				return err
			}
		}
	}
	return nil
}
