package memstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// TestAKeyThatIsDeniedAgainTakesNoLock holds the lock of the key's table during the call, which
// would otherwise wait forever.
func TestAKeyThatIsDeniedAgainTakesNoLock(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns, l := store.NewNamespace(window, ""), perMinute(2)
	take(t, s, ns, "k", l, 2)
	want := take(t, s, ns, "k", l, 1)
	take(t, s, ns, "k", l, 1)
	for n := int64(1); n <= 3; n++ {
		unlock := s.LockTableOf(ns, "k")
		got := take(t, s, ns, "k", l, n)
		unlock()
		if got != want {
			t.Errorf("%+v on %d events without the lock, want %+v", got, n, want)
		}
	}
	for range 3 { // a denial is noted anew when it has become old
		c.add(1_000)
		take(t, s, ns, "k", l, 1)
		unlock := s.LockTableOf(ns, "k")
		got := take(t, s, ns, "k", l, 1)
		unlock()
		if want.Y += 1_000; got != want {
			t.Errorf("%+v without the lock later on, want %+v", got, want)
		}
	}
	l.Burst = 3 // of the same Rate and Period, so that the state tells
	if r := take(t, s, ns, "k", l, 1); !r.OK() || r.X != 2 {
		t.Errorf("%+v with room for one more, want an admission", r)
	}
}

// TestDenialsGoOnWithTheSweeping denies one key, and no other, until the idle keys are dropped.
func TestDenialsGoOnWithTheSweeping(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	ns := store.NewNamespace(window, "")
	for i := range 10_000 / scale {
		take(t, s, ns, fmt.Sprint("idle", i), perMinute(1), 1)
	}
	hot := store.Limit{Rate: 1, Period: 3600 * second, Burst: 1}
	take(t, s, ns, "hot", hot, 1)
	c.add(100 * second)
	calls := 0
	for ; s.Len() > 1 && calls < 200_000; calls++ {
		take(t, s, ns, "hot", hot, 1)
		c.add(1)
	}
	if s.Len() != 1 {
		t.Errorf("%d keys are left after %d denials", s.Len(), calls)
	}
	if at := take(t, s, ns, "hot", hot, 1).X; at != 1 {
		t.Errorf("the key that is denied has spent %d, want 1", at)
	}
}

// TestADenialSeesWhatWasDropped sets the clock back to before the end of a state that was dropped.
// All calls then count as of that end.
func TestADenialSeesWhatWasDropped(t *testing.T) {
	for _, first := range []string{"the end", "the denial"} {
		c := newClock()
		s := newStore(t, memstore.WithClock(c.now), memstore.WithMaxKeys(32)) // one table
		ns, l := store.NewNamespace(window, ""), store.Limit{Rate: 1, Period: 3600 * second, Burst: 1}
		start := c.µs.Load()
		take(t, s, ns, "short", store.Limit{Rate: 1, Period: second, Burst: 1}, 1)
		take(t, s, ns, "hot", l, 1)
		drop := func() {
			c.add(10 * second)
			s.SweepAll()
			c.add(-10 * second)
		}
		if first == "the end" {
			drop()
		}
		take(t, s, ns, "hot", l, 1)
		take(t, s, ns, "hot", l, 1)
		if first == "the denial" {
			drop()
		}
		if r := take(t, s, ns, "hot", l, 1); r.OK() || r.Y != start+second || s.Len() != 1 {
			t.Errorf("%s came first: %+v, %v after the start, want 1s", first, r, time.Duration(r.Y-start)*time.Microsecond)
		}
	}
}

// TestADenialIsOfOneLimit asks under another Rate after the state has ended under its own.
func TestADenialIsOfOneLimit(t *testing.T) {
	c := newClock()
	s := newStore(t, memstore.WithClock(c.now))
	var lims [2]ratelimit.Limiter
	for i, rate := range []int{4, 1} {
		var err error
		if lims[i], err = ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: rate, Period: time.Second, Burst: 4}, ratelimit.WithName("same")); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []bool{true, false, false} {
		if r, err := lims[0].AllowN(ctx, "k", 4); err != nil || r.Allowed != want {
			t.Fatalf("call %d: %+v, %v", i, r, err)
		}
		if i == 0 {
			c.add(second - 10)
		}
	}
	c.add(10)
	if r, err := lims[1].AllowN(ctx, "k", 4); err != nil || !r.Allowed {
		t.Errorf("%+v, %v of a bucket that is full again", r, err)
	}
}

// TestADenialIsOfOneKey asks for a key that shares a third of its hash with the denied key.
func TestADenialIsOfOneKey(t *testing.T) {
	secret, ns, l := memstore.SecretOf(1), store.NewNamespace(window, ""), perMinute(1)
	alike, known := [2]string{}, map[uint64]string{}
	for i := 0; alike[1] == ""; i++ {
		key := fmt.Sprint(i)
		hi := secret.Hash(ns, key).Hi() >> 32
		if other, ok := known[hi]; ok {
			alike = [2]string{other, key}
		}
		known[hi] = key
	}
	for i, key := range alike {
		s := newStore(t, memstore.WithClock(newClock().now))
		s.Use(secret)
		for range 4 {
			take(t, s, ns, key, l, 1)
		}
		other := alike[1-i]
		if s.Hash(ns, key).Same(s.Hash(ns, other)) {
			t.Errorf("%s is found in the slot of %s", other, key)
		}
		if s.Denials() != 1 || !take(t, s, ns, other, l, 1).OK() {
			t.Errorf("%d denials can be seen; %s is denied since %s is", s.Denials(), other, key)
		}
	}
}

// TestADenialThatChangesMeanwhileIsNotSeen reads a denial that has been replaced since the read
// began. The result would be a mix of both.
func TestADenialThatChangesMeanwhileIsNotSeen(t *testing.T) {
	s := newStore(t, memstore.WithMaxKeys(32)) // one table
	ns, l := store.NewNamespace(window, ""), perMinute(1)
	deny := func(key string) {
		for range 3 {
			take(t, s, ns, key, l, 1)
		}
	}
	deny("a")
	before := s.VersionOf(ns, "a")
	if !s.Denies(before, ns, "a", l) {
		t.Error("a denial cannot be seen")
	}
	deny("b")
	deny("a")
	if after := s.VersionOf(ns, "a"); s.Denies(before, ns, "a", l) || !s.Denies(after, ns, "a", l) {
		t.Errorf("a denial of version %d is seen as of version %d, or not as its own", after, before)
	}
}

// TestDenialsAnswerAsUnderTheLock makes random calls on a few keys while others come and go, and
// compares all answers with those of a store that reads each state under the lock. The clock is
// sometimes set back.
func TestDenialsAnswerAsUnderTheLock(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			p := newDenialPair(t, algorithm)
			for i := range effort.Of(10_000, 60_000, 300_000) {
				p.call(t, i)
			}
			check(t, p.s)
			if p.published < 100 && algorithm != "sliding_log" { // a sliding log is a state only while it has one entry
				t.Errorf("only %d calls came while a denial could be seen without the lock", p.published)
			}
		})
	}
}

// denialPair consists of two stores that get the same calls. The second one forgets its denials.
type denialPair struct {
	rng       *rand.Rand
	clock     *clock
	s, plain  *memstore.Store
	limiters  [2][]ratelimit.Limiter // per store, two that share their counts under different limits
	last      [2]map[string]ratelimit.Result
	published int
}

func newDenialPair(t *testing.T, algorithm string) *denialPair {
	c := newClock()
	open := func() *memstore.Store { return newStore(t, memstore.WithClock(c.now), memstore.WithMaxKeys(63)) } // one table
	p := &denialPair{rng: rand.New(rand.NewPCG(7, 8)), clock: c, s: open(), plain: open()}
	for i, s := range []*memstore.Store{p.s, p.plain} {
		p.last[i] = map[string]ratelimit.Result{}
		for _, rate := range []int{3, 4} {
			lim, err := ratelimit.New(algorithm, s, ratelimit.Limit{Rate: rate, Period: 10 * time.Millisecond}, ratelimit.WithName("same"))
			if err != nil {
				t.Fatal(err)
			}
			p.limiters[i] = append(p.limiters[i], lim)
		}
	}
	return p
}

// call makes the ith call on both stores.
func (p *denialPair) call(t *testing.T, i int) {
	t.Helper()
	key, which, n, what := fmt.Sprint("hot", p.rng.IntN(2)), 0, 1+p.rng.IntN(2), p.rng.IntN(100)
	if p.rng.IntN(20) == 0 {
		key = fmt.Sprint("passing", i%40)
	}
	if p.rng.IntN(10) == 0 {
		which = 1
	}
	if p.s.Denials() > 0 {
		p.published++
	}
	p.plain.ForgetDenials()
	var answers [2]ratelimit.Result
	for k := range p.limiters {
		lim := p.limiters[k][which]
		r, err := ratelimit.Result{}, error(nil)
		switch {
		case what < 90:
			if r, err = lim.AllowN(ctx, key, n); r.Allowed {
				p.last[k][key] = r
			}
		case what < 92:
			r, err = lim.Peek(ctx, key)
		case what < 94:
			_, r, err = ratelimit.AllowUpTo(ctx, lim, key, n)
		case what < 95:
			r, err = ratelimit.Charge(ctx, lim, key, n)
		case what < 97:
			r, err = ratelimit.Decide(ctx, ratelimit.Ask{Limiter: lim, Key: key, N: n}, ratelimit.Ask{Limiter: lim, Key: "other", N: 1})
		case what < 99:
			if given := p.last[k][key]; given.Charged() > 0 {
				err = lim.Refund(ctx, key, given, 1)
			}
		default:
			err = lim.Reset(ctx, key)
		}
		if err != nil {
			t.Fatal(err)
		}
		answers[k] = ratelimit.Result{
			Allowed: r.Allowed, Limit: r.Limit, Remaining: r.Remaining,
			RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, Delay: r.Delay,
		}
	}
	if answers[0] != answers[1] {
		t.Fatalf("call %d (%d) on %s: without the lock and under it\n%+v\n%+v", i, what, key, answers[0], answers[1])
	}
	switch step := p.rng.IntN(200); {
	case step < 100:
		p.clock.add(p.rng.Int64N(30))
	case step < 110:
		p.clock.add(-p.rng.Int64N(100))
	case step == 199:
		p.clock.add(p.rng.Int64N(20_000))
	case step == 198 && p.rng.IntN(5) == 0: // drop ended states
		p.clock.add(3 * second)
	}
}

// TestNoDenialOutlivesARefund has some callers that are denied all the time, while others refund
// their events. A caller that has just refunded must be admitted next.
func TestNoDenialOutlivesARefund(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			s := newStore(t)
			lim, err := ratelimit.New(algorithm, s, ratelimit.Limit{Rate: 2, Period: 24 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			var others sync.WaitGroup
			for range 3 {
				others.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
							if r, err := lim.AllowN(ctx, "k", 3); r.Allowed || err != nil { // more than the limit, so it charges nothing
								t.Errorf("%+v, %v", r, err)
								return
							}
						}
					}
				})
			}
			for i := range effort.Of(5_000, 15_000, 50_000) / scale {
				first, err := lim.Allow(ctx, "k")
				r, err2 := lim.Allow(ctx, "k")
				if err != nil || err2 != nil || !r.Allowed || first.Remaining != 1 {
					t.Errorf("turn %d: %+v, %v, then %+v, %v", i, first, err, r, err2)
					break
				}
				if err := errors.Join(lim.Refund(ctx, "k", r, 1), giveBack(i, lim, first)); err != nil {
					t.Error(err)
				}
			}
			close(done)
			others.Wait()
		})
	}
}

// giveBack restores the full limit of key "k", in one of two ways.
func giveBack(i int, lim ratelimit.Limiter, r ratelimit.Result) error {
	if i%2 == 0 {
		return lim.Reset(ctx, "k")
	}
	return lim.Refund(ctx, "k", r, 1)
}
