package storetest

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

func badInput(t testing.TB, s *suite, a algorithm) {
	b := s.bench(t)
	seen := &tap{Store: b.store}
	b.store = seen
	k := b.key(a.name, ratelimit.PerHour(10))
	charged := k.take(1)
	denied := k.deny(10)
	peeked := k.peek()
	before := seen.calls

	badCalls(k, charged, denied, peeked)
	badLimits(b, a)
	if seen.calls != before {
		t.Fatalf("the store was called %d times", seen.calls-before)
	}
	k.has(9)
	k.name = strings.Repeat("k", 64<<10) // the longest
	k.take(10)
}

func badCalls(k *key, charged, denied, peeked ratelimit.Result) {
	k.t.Helper()
	background := context.Background()
	cancelled, cancel := context.WithCancel(background)
	cancel()
	late, cancel := context.WithDeadline(background, time.Unix(0, 0))
	defer cancel()
	for _, c := range []struct {
		what    string
		ctx     context.Context
		key     string
		n       int
		charged ratelimit.Result
		want    error
	}{
		{"0 events", background, "key", 0, charged, ratelimit.ErrInvalidN},
		{"-1 events", background, "key", -1, charged, ratelimit.ErrInvalidN},
		{"the least events", background, "key", math.MinInt, charged, ratelimit.ErrInvalidN},
		{"no key", background, "", 1, charged, ratelimit.ErrInvalidKey},
		{"a key of 64 KiB and a byte", background, strings.Repeat("k", 64<<10+1), 1, charged, ratelimit.ErrInvalidKey},
		{"a context that is cancelled", cancelled, "key", 1, charged, context.Canceled},
		{"a context whose deadline is over", late, "key", 1, charged, context.DeadlineExceeded},
	} {
		_, err := k.lim.AllowN(c.ctx, c.key, c.n)
		expect(k.t, "AllowN of "+c.what, err, c.want)
		expect(k.t, "Refund of "+c.what, k.lim.Refund(c.ctx, c.key, c.charged, c.n), c.want)
		if c.n != 1 {
			continue
		}
		_, err = k.lim.Allow(c.ctx, c.key)
		expect(k.t, "Allow of "+c.what, err, c.want)
		_, err = k.lim.Peek(c.ctx, c.key)
		expect(k.t, "Peek of "+c.what, err, c.want)
		expect(k.t, "Reset of "+c.what, k.lim.Reset(c.ctx, c.key), c.want)
	}
	for _, r := range []ratelimit.Result{{}, denied, peeked, {Allowed: true, Limit: 10}} {
		expect(k.t, "Refund of no charge", k.lim.Refund(background, "key", r, 1), ratelimit.ErrInvalidN)
	}
}

// badLimits checks that the constructor rejects invalid limits.
func badLimits(b *bench, a algorithm) {
	b.t.Helper()
	tooMany := math.MaxInt32
	tooMany++ // negative if int has 32 bits
	limits := []ratelimit.Limit{
		{},
		{Rate: -1, Period: time.Second},
		{Rate: tooMany, Period: time.Second},
		{Rate: 1, Period: time.Second, Burst: -1},
		{Rate: 1, Period: time.Second, Burst: tooMany},
		{Rate: 1, Period: time.Millisecond - microsecond},
		{Rate: 1, Period: time.Millisecond + 1},
		{Rate: 1, Period: 3650*day + microsecond},
		{Rate: 1, Period: -time.Second},
	}
	for _, l := range append(limits, a.refused...) {
		lim, err := ratelimit.New(a.name, b.store, l)
		expect(b.t, l.String(), err, ratelimit.ErrInvalidLimit)
		if lim != nil {
			b.t.Fatalf("%v: New returned a limiter and an error", l)
		}
	}
}

func expect(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v, want %v", what, err, want)
	}
}
