package store_test

import (
	"errors"
	"math"
	"testing"

	"github.com/ratelimit-go/ratelimit/store"
)

func TestAStateComesBackFromItsBytes(t *testing.T) {
	const tenYears = 10 * 365 * 24 * 3600 * 1e6
	for _, s := range []store.State{
		{At: 1, Period: 1_000},
		{At: -1, Period: 60e6, Whole: 1, Part: 2},
		{At: 1 << 60, Period: tenYears, Whole: 1<<32 - 1, Part: 1<<49 - 1},
		{At: -1 << 60, Period: tenYears, Whole: 1<<32 - 1, Part: 1<<49 - 1},
	} {
		for _, rate := range []int64{1, 1<<31 - 1} {
			b := store.AppendState([]byte("before"), s, store.Limit{Rate: rate, Period: s.Period, Burst: 7}.TurnBefore(8))
			got, l, err := store.ParseState(b[len("before"):])
			if got != s || l != (store.Limit{Rate: rate, Period: s.Period}) || err != nil {
				t.Errorf("%+v of rate %d: %+v, %+v, %v", s, rate, got, l, err)
			}
		}
	}
}

func TestTheFormOfAState(t *testing.T) {
	got := store.AppendState(nil, store.State{At: 64, Period: 1_000_000, Whole: 3, Part: 200}, store.Limit{Rate: 5})
	if want := "\x01\x80\x01\x05\xc0\x84\x3d\x03\xc8\x01"; string(got) != want {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestBytesThatAreNotAStateAreCorrupt(t *testing.T) {
	good := store.State{At: 1, Period: 1_000_000, Whole: 3, Part: 200}
	of := func(rate int64, change func(*store.State)) []byte {
		s := good
		change(&s)
		return store.AppendState(nil, s, store.Limit{Rate: rate})
	}
	same := func(*store.State) {}
	whole := of(5, same)
	garbage := map[string][]byte{
		"nothing":            nil,
		"a log":              append([]byte{2}, whole[1:]...),
		"more":               append(whole[:len(whole):len(whole)], 0),
		"a Rate of 0":        of(0, same),
		"a Rate of 2^31":     of(1<<31, same),
		"a Rate below 0":     of(-1, same),
		"a time too late":    of(5, func(s *store.State) { s.At = 1<<60 + 1 }),
		"a time too early":   of(5, func(s *store.State) { s.At = math.MinInt64 }),
		"a Period of 999 µs": of(5, func(s *store.State) { s.Period = 999 }),
		"a Period of ages":   of(5, func(s *store.State) { s.Period = 10*365*24*3600*1e6 + 1 }),
		"2^32 events":        of(5, func(s *store.State) { s.Whole = 1 << 32 }),
		"events below 0":     of(5, func(s *store.State) { s.Whole = -1 }),
		"a part of 2^49":     of(5, func(s *store.State) { s.Part = 1 << 49 }),
	}
	for n := range whole {
		garbage[string(rune('0'+n))+" bytes of it"] = whole[:n]
	}
	for name, b := range garbage {
		s, l, err := store.ParseState(b)
		if !errors.Is(err, store.ErrCorrupt) || s != (store.State{}) || l != (store.Limit{}) {
			t.Errorf("%s: %+v, %+v, %v, want ErrCorrupt", name, s, l, err)
		}
	}
}

func FuzzParseState(f *testing.F) {
	f.Add(store.AppendState(nil, store.State{At: 1_767_225_600_000_000, Period: 60e6, Whole: 3, Part: 200}, store.Limit{Rate: 5}))
	f.Add(store.AppendState(nil, store.State{At: -1 << 60, Period: 1_000, Whole: 1<<32 - 1, Part: 1<<49 - 1}, store.Limit{Rate: 1<<31 - 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, l, err := store.ParseState(b)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again, of, err := store.ParseState(store.AppendState(nil, s, l))
		if again != s || of != l || err != nil {
			t.Fatalf("%+v, %+v: %+v, %+v, %v", s, l, again, of, err)
		}
	})
}
