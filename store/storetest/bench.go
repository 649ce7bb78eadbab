package storetest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// epoch is when the suite's time starts, the beginning of a minute, an hour and a day in UTC.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clock is a clock that is set by hand. Its readings are never whole microseconds, so a store must
// drop the rest.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.us.Store(epoch.UnixMicro())
	return c
}

func (c *clock) read() time.Time         { return time.UnixMicro(c.us.Load()).Add(999 * time.Nanosecond) }
func (c *clock) set(us int64)            { c.us.Store(us) }
func (c *clock) advance(d time.Duration) { c.us.Add(d.Microseconds()) }

// bench is a store under test, with its clock.
type bench struct {
	*clock
	t     testing.TB
	suite *suite
	store store.Store
}

func (s *suite) bench(t testing.TB) *bench {
	t.Helper()
	c := newClock()
	return &bench{clock: c, t: t, suite: s, store: s.open(t, c.read)}
}

// limiter returns a limiter on the store of b. l must be valid.
func (b *bench) limiter(algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	b.t.Helper()
	lim, err := ratelimit.New(algorithm, b.store, l, opts...)
	if err != nil {
		b.t.Fatalf("New(%q, %v): %v", algorithm, l, err)
	}
	if b.suite.realTime {
		lim = &watch{lim, &watched{late: b.suite.late, ends: map[string]time.Time{}}}
	}
	return lim
}

// like returns a limiter on the same keys as lim, with these options.
func (b *bench) like(lim ratelimit.Limiter, algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	b.t.Helper()
	other := b.limiter(algorithm, l, opts...)
	if w, ok := other.(*watch); ok {
		w.watched = lim.(*watch).watched
	}
	return other
}

// key is a key of a limiter. Its calls must not fail.
type key struct {
	*bench
	lim  ratelimit.Limiter
	name string
}

// key returns a key of a limiter of l.
func (b *bench) key(algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) *key {
	b.t.Helper()
	return &key{bench: b, lim: b.limiter(algorithm, l, opts...), name: "key"}
}

// at sets the clock to d after [epoch].
func (k *key) at(d time.Duration) *key {
	k.set(epoch.UnixMicro() + d.Microseconds())
	return k
}

func (k *key) allow(n int) ratelimit.Result {
	k.t.Helper()
	r, err := k.lim.AllowN(context.Background(), k.name, n)
	if err != nil {
		k.t.Fatalf("AllowN(%d): %v", n, err)
	}
	return r
}

func (k *key) allowWithin(n int, d time.Duration) ratelimit.Result {
	k.t.Helper()
	r, err := ratelimit.AllowWithin(context.Background(), k.lim, k.name, n, d)
	if err != nil {
		k.t.Fatalf("AllowWithin(%d, %v): %v", n, d, err)
	}
	return r
}

func (k *key) peek() ratelimit.Result {
	k.t.Helper()
	r, err := k.lim.Peek(context.Background(), k.name)
	if err != nil {
		k.t.Fatalf("Peek: %v", err)
	}
	return r
}

// take expects n events to be admitted.
func (k *key) take(n int) ratelimit.Result {
	k.t.Helper()
	r := k.allow(n)
	if !r.Allowed {
		k.t.Fatalf("AllowN(%d) is denied: %+v", n, r)
	}
	return r
}

// deny expects n events to be denied.
func (k *key) deny(n int) ratelimit.Result {
	k.t.Helper()
	r := k.allow(n)
	if r.Allowed {
		k.t.Fatalf("AllowN(%d) is admitted: %+v", n, r)
	}
	return r
}

func (k *key) refund(r ratelimit.Result, n int) {
	k.t.Helper()
	if err := k.lim.Refund(context.Background(), k.name, r, n); err != nil {
		k.t.Fatalf("Refund(%+v, %d): %v", r, n, err)
	}
}

func (k *key) reset() {
	k.t.Helper()
	if err := k.lim.Reset(context.Background(), k.name); err != nil {
		k.t.Fatalf("Reset: %v", err)
	}
}

// has expects n events to be left.
func (k *key) has(n int) {
	k.t.Helper()
	if r := k.peek(); r.Remaining != n {
		k.t.Fatalf("Remaining is %d, want %d: %+v", r.Remaining, n, r)
	}
}

// resetsAfter expects the key to be fully reset after d.
func (k *key) resetsAfter(d time.Duration) {
	k.t.Helper()
	if r := k.peek(); r.ResetAfter != d {
		k.t.Fatalf("ResetAfter is %v, want %v: %+v", r.ResetAfter, d, r)
	}
}
