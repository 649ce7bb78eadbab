package memstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const (
	fireLimit = 300 // of a hammered key, per 10 years: nothing refills
	headStart = 10  // spent by a hammered key at once, more than a passing key ever does
	passLimit = 5   // of a passing key, per second
)

// TestStressLeavesEveryCountExact hammers some keys from many goroutines with all five algorithms,
// while other goroutines use passing keys. Tables grow and split. Keys are reset, refunded, and
// swept when they end, so that tables shrink. If the number of keys is limited, they are evicted
// all the time. Then the hammered keys are reset under the same load, and everything starts again.
func TestStressLeavesEveryCountExact(t *testing.T) {
	for _, v := range []struct {
		name               string
		maxKeys, passing   int
		jump               int64 // of the clock, between two waves of passing keys
		manyKeys, evicting int   // with fewer, the test would not show what its name claims
	}{
		{"passing keys die", memstore.DefaultMaxKeys, 80_000, 10 * second, 50_000, 0},
		{"passing keys are evicted", 5000, 40_000, 0, 5000, 100_000},
	} {
		if !effort.Long() {
			v.passing, v.manyKeys, v.evicting = v.passing/4, min(v.manyKeys/4, v.maxKeys), v.evicting/4
		}
		t.Run(v.name, func(t *testing.T) {
			c := newClock()
			s := newStore(t, memstore.WithClock(c.now), memstore.WithMaxKeys(v.maxKeys))
			f := newFire(t, s, c)
			for range 2 {
				f.burn(v.passing, v.jump)
				check(t, s)
				f.settleAccounts()
			}
			if f.most.Load() < int64(v.manyKeys) || s.Evicted() < uint64(v.evicting) || f.most.Load() > int64(v.maxKeys) {
				t.Errorf("%d keys at most, %d evicted", f.most.Load(), s.Evicted())
			}
			if v.evicting == 0 && s.Evicted() > 0 {
				t.Errorf("%d keys evicted by a store with room", s.Evicted())
			}
			t.Logf("%d keys at most, %d evicted", f.most.Load(), s.Evicted())
			c.add(3600 * second)
			s.SweepAll()
			if s.Len() != len(f.accounts) {
				t.Errorf("%d keys are left, want the %d hammered ones", s.Len(), len(f.accounts))
			}
			f.settleAccounts()
			check(t, s)
		})
	}
}

// fire is the load on one store.
type fire struct {
	t        *testing.T
	s        *memstore.Store
	clock    *clock
	accounts []*account
	passers  []ratelimit.Limiter
	passed   atomic.Int64 // passing keys, for their names
	most     atomic.Int64 // keys seen in the store
	faults   atomic.Int64
}

func newFire(t *testing.T, s *memstore.Store, c *clock) *fire {
	t.Helper()
	f := &fire{t: t, s: s, clock: c}
	for _, algorithm := range algorithms {
		lim, err := ratelimit.New(algorithm, s, ratelimit.Limit{Rate: fireLimit, Period: 10 * 365 * 24 * time.Hour})
		passer, err2 := ratelimit.New(algorithm, s, ratelimit.PerSecond(passLimit))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		f.passers = append(f.passers, passer)
		for k := range 20 {
			refunds := k%2 == 1
			f.accounts = append(f.accounts, &account{
				lim: lim, name: algorithm, key: fmt.Sprint("hammered", k),
				refunds: refunds, inTurn: refunds && algorithm == "leaky_bucket",
			})
		}
	}
	return f
}

// account is a hammered key and the record of its events.
type account struct {
	lim       ratelimit.Limiter
	name, key string

	// refunds means that nearly every event is refunded. A leaky bucket takes back only the tail of
	// its queue, so its callers take turns.
	refunds, inTurn bool
	turn            sync.Mutex

	admitted, refunded atomic.Int64
}

func (a *account) net() int64 { return a.admitted.Load() - a.refunded.Load() }

// burn resets the accounts and hammers them, while other keys pass.
func (f *fire) burn(passing int, jump int64) {
	var over atomic.Bool
	var passers, hammerers sync.WaitGroup
	passers.Go(func() {
		for wave := range 3 {
			f.wave(passing)
			f.clock.add(jump)
			if wave == 1 { // after the others, sweeps come by themselves
				f.s.SweepAll()
			}
		}
	})
	for _, a := range f.accounts {
		f.open(a)
	}
	for range 4 {
		hammerers.Go(func() {
			for i := 0; i < fireLimit/2 || !over.Load(); i++ {
				for _, a := range f.accounts {
					f.hammer(a, i)
				}
			}
		})
	}
	passers.Wait()
	over.Store(true)
	hammerers.Wait()
}

// open resets an account.
func (f *fire) open(a *account) {
	f.note(a.lim.Reset(ctx, a.key))
	f.wantRemaining(a.lim, a.key, fireLimit)
	r, err := a.lim.AllowN(ctx, a.key, headStart)
	f.note(err)
	if !r.Allowed || r.Remaining != fireLimit-headStart {
		f.fault("%s %s: %+v after a Reset", a.name, a.key, r)
	}
	a.admitted.Store(headStart)
	a.refunded.Store(0)
}

// hammer is the ith round of a goroutine on an account.
func (f *fire) hammer(a *account, i int) {
	if a.inTurn {
		a.turn.Lock()
		defer a.turn.Unlock()
	}
	r, err := a.lim.Allow(ctx, a.key)
	f.note(err)
	if r.Allowed {
		a.admitted.Add(1)
		if a.refunds && i%16 != 0 {
			f.note(a.lim.Refund(ctx, a.key, r, 1))
			a.refunded.Add(1)
		}
	}
	if i%4 == 0 {
		r, err = a.lim.Peek(ctx, a.key)
		f.note(err)
		if r.Remaining > fireLimit-headStart {
			f.fault("%s %s: %d remain while it is hammered", a.name, a.key, r.Remaining)
		}
	}
}

// wave uses n passing keys, from four goroutines.
func (f *fire) wave(n int) {
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range n / 4 {
				f.pass(f.passed.Add(1))
				f.countKeys()
				f.clock.add(1)
			}
		})
	}
	group.Wait()
}

// pass uses the ith passing key.
func (f *fire) pass(i int64) {
	lim, key := f.passers[i%5], fmt.Sprint("passing", i)
	r, err := lim.Allow(ctx, key)
	f.note(err)
	if !r.Allowed || r.Remaining != passLimit-1 {
		f.fault("a new key: %+v", r)
	}
	switch i / 5 % 8 {
	case 0:
		f.note(lim.Reset(ctx, key))
		f.wantRemaining(lim, key, passLimit)
	case 1:
		f.note(lim.Refund(ctx, key, r, 1))
		f.wantRemaining(lim, key, passLimit)
	case 2:
		_, err = lim.Peek(ctx, key)
		f.note(err)
	case 3:
		_, err = lim.Allow(ctx, key)
		f.note(err)
	}
}

// settleAccounts compares the records with the store after all calls have ended, and spends what is
// left.
func (f *fire) settleAccounts() {
	f.t.Helper()
	for _, a := range f.accounts {
		f.wantRemaining(a.lim, a.key, fireLimit-int(a.net()))
		if !a.refunds && a.net() != fireLimit {
			f.fault("%s %s: %d admitted, want %d", a.name, a.key, a.net(), fireLimit)
		}
		for f.allow(a) {
			a.admitted.Add(1)
		}
		if a.net() != fireLimit {
			f.fault("%s %s: %d admitted, %d refunded, want %d between", a.name, a.key, a.admitted.Load(), a.refunded.Load(), fireLimit)
		}
	}
}

func (f *fire) allow(a *account) bool {
	r, err := a.lim.Allow(ctx, a.key)
	f.note(err)
	return r.Allowed
}

func (f *fire) wantRemaining(lim ratelimit.Limiter, key string, want int) {
	r, err := lim.Peek(ctx, key)
	f.note(err)
	if r.Remaining != want {
		f.fault("%T %s: %d remain, want %d", lim, key, r.Remaining, want)
	}
}

func (f *fire) countKeys() {
	n := int64(f.s.Len())
	for most := f.most.Load(); n > most && !f.most.CompareAndSwap(most, n); {
		most = f.most.Load()
	}
}

func (f *fire) note(err error) {
	if err != nil {
		f.fault("%v", err)
	}
}

// fault reports only the first few faults, because there may be many.
func (f *fire) fault(format string, args ...any) {
	f.t.Helper()
	if f.faults.Add(1) <= 10 {
		f.t.Errorf(format, args...)
	}
}
