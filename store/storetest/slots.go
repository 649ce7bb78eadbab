package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
)

// slotsEnd sets the clock back by an hour while three slots of a key are held. Their holders know them by the time
// at which they were taken, so a store that shifts times loses them, and one that does nothing keeps slots of dead
// processes for an hour.
func slotsEnd(t testing.TB, s *suite, _ algorithm) {
	const life = 10 * time.Minute
	b := s.bench(t)
	slots, err := inflight.New(b.store, 3, life)
	if err != nil {
		t.Fatal(err)
	}
	k := &key{bench: b, lim: slots, name: "key"}
	renew := func(held ratelimit.Result) ratelimit.Result {
		t.Helper()
		r, err := slots.Renew(context.Background(), k.name, held)
		if err != nil {
			t.Fatalf("Renew: %v", err)
		}
		return r
	}
	ends := func(r ratelimit.Result, after time.Duration) {
		t.Helper()
		if r.Allowed || r.RetryAfter != after {
			t.Fatalf("%+v, want a denial for %v", r, after)
		}
	}
	var held []ratelimit.Result
	for range 3 {
		held = append(held, k.take(1))
		k.advance(time.Second)
	}
	k.advance(-time.Hour)
	ends(k.peek(), life)
	ends(k.allow(1), life)
	k.advance(life / 2)
	ends(k.allow(1), life/2) // a denial has not prolonged it
	if r := renew(held[0]); !r.Allowed || slots.ChargedAt(r) != slots.ChargedAt(held[0]) {
		t.Fatalf("Renew of slot %d: slot %d, %+v", slots.ChargedAt(held[0]), slots.ChargedAt(r), r)
	}
	k.advance(life/2 - time.Microsecond)
	ends(k.allow(1), time.Microsecond)
	k.advance(time.Microsecond)
	r := k.take(1)
	if r.Remaining != 1 || slots.ChargedAt(r) <= slots.ChargedAt(held[2]) {
		t.Fatalf("slot %d, %+v, want 1 left, and a slot after %d", slots.ChargedAt(r), r, slots.ChargedAt(held[2]))
	}
	k.refund(r, 1)
	k.refund(held[0], 1)
	k.has(3)
}
