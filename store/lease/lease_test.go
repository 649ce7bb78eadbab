package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

var perSecond = ratelimit.PerSecond(1000)

// In one process a fixed window decides as it does without leases, and its denials cost nothing.
func TestOneProcessDecidesAsThePlainLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		plain := newLimiter(t, "fixed_window", memory(t), perSecond)
		d := newLease(t, newLimiter(t, "fixed_window", s, perSecond), 50*time.Millisecond)
		defer closeLease(t, d)
		random := rand.New(rand.NewPCG(1, 2))
		steps, allowed, mean := effort.Of(40_000, 100_000), 0, time.Millisecond
		for step := range steps {
			if step%1000 == 0 { // half of the limit, or a tenth of it, or ten times as much
				mean = []time.Duration{2 * time.Millisecond, 10 * time.Millisecond, 100 * time.Microsecond}[random.IntN(3)]
			}
			time.Sleep(time.Duration(random.Int64N(int64(2 * mean))))
			n := 1
			if random.IntN(20) == 0 {
				n += random.IntN(5)
			}
			want, got := allowN(t, plain, n), allowN(t, d, n)
			if n == 1 {
				require.Equal(t, want.Allowed, got.Allowed, "step %d: %v", step, got)
			}
			if want.Allowed {
				allowed++
			}
			if want.Allowed != got.Allowed { // of several events, which the store does not have while they are held
				steps--
				require.NoError(t, plain.Refund(t.Context(), "key", want, n))
			}
		}
		calls := len(s.reset())
		t.Logf("%d of %d allowed; %d calls of the store: %+v", allowed, steps, calls, d.Stats())
		require.Less(t, calls, steps/5)
	})
}

// Processes that share a store admit no more than the limit, and after Close the store knows
// what they have admitted, to the event.
func TestManyProcessesAdmitTheLimit(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		const limit, processes, callers, calls = 5_000, 4, 16, 200
		mem := memory(t, stopped)
		var leases []*onLease
		for range processes {
			leases = append(leases, newLease(t, newLimiter(t, algorithm, mem, ratelimit.PerDay(limit)), 20*time.Second))
		}
		var admitted atomic.Int64
		var asking sync.WaitGroup
		for i := range processes * callers {
			asking.Go(func() {
				for range calls {
					r, err := leases[i%processes].Allow(context.Background(), "key")
					if err != nil {
						t.Error(err)
					}
					if r.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		asking.Wait()
		commands := int64(0)
		for _, d := range leases {
			closeLease(t, d)
			commands += d.Stats().Asked
		}
		t.Logf("%d admitted, %d calls of the store", admitted.Load(), commands)
		require.LessOrEqual(t, admitted.Load(), int64(limit))
		require.Greater(t, admitted.Load(), int64(limit/2))
		plain := newLimiter(t, algorithm, mem, ratelimit.PerDay(limit))
		require.Equal(t, limit-int(admitted.Load()), remaining(t, plain))
	})
}

func TestNewRefuses(t *testing.T) {
	s := memory(t)
	bucket := newLimiter(t, "token_bucket", s, ratelimit.Limit{Rate: 1000, Period: time.Second, Burst: 100})
	window := newLimiter(t, "fixed_window", s, perSecond)
	sliding := newLimiter(t, "sliding_window", s, perSecond)
	for _, c := range []struct {
		name string
		l    ratelimit.Limiter
		life time.Duration
		opts []lease.Option
		text string
	}{
		{"leaky bucket", newLimiter(t, "leaky_bucket", s, perSecond), time.Millisecond, nil, "it refunds only its last events"},
		{"a short life", window, time.Millisecond - 1, nil, "want 1ms to 1h"},
		{"a long life", newLimiter(t, "fixed_window", s, ratelimit.PerDay(1_000_000)), time.Hour + 1, nil, "want 1ms to 1h"},
		{"longer than the period", window, time.Second + 1, nil, "use at most 1s"},
		{"all of the burst", bucket, 100 * time.Millisecond, nil, "101 events are refilled per lease TTL of 100ms, want fewer than the burst of 100"},
		{"a log of few events", newLimiter(t, "sliding_log", s, ratelimit.PerMinute(1000)), 50 * time.Millisecond, nil, "a lease TTL of 50ms is too short for an event at 1000/m: use at least 60ms"},
		{"a bucket of few events", newLimiter(t, "token_bucket", s, ratelimit.PerDay(1_000_000)), 86_399_999 * time.Nanosecond, nil, "a lease TTL of 86.399999ms is too short for an event at 1000000/d: use at least 86.4ms"},
		{"very few events", newLimiter(t, "sliding_log", s, ratelimit.PerDay(23)), time.Hour, nil, "a lease TTL of 1h0m0s is too short for an event at 23/d: this limit cannot be leased"},
		{"few, and no burst for more", newLimiter(t, "token_bucket", s, ratelimit.Limit{Rate: 1000, Period: time.Minute, Burst: 2}), 50 * time.Millisecond, nil, "a lease TTL of 50ms is too short for an event at 1000/m: this limit cannot be leased"},
		{"a log of the longest period", newLimiter(t, "sliding_log", s, ratelimit.Limit{Rate: 1_000_000_000, Period: 10 * 365 * 24 * time.Hour}), time.Second, nil, "a leased sliding_log remembers events for its period plus one lease TTL, which must not exceed 87600h0m0s"},
		{"overdraft of a sliding window", sliding, time.Millisecond, []lease.Option{lease.WithOverdraft(1)}, "WithOverdraft cannot be used with a sliding_window"},
		{"no overdraft", window, time.Millisecond, []lease.Option{lease.WithOverdraft(0)}, "WithOverdraft(0)"},
		{"too much overdraft", window, time.Millisecond, []lease.Option{lease.WithOverdraft(1_000_000_001)}, "want 1 to 1000000000"},
		{"no lease", window, time.Millisecond, []lease.Option{lease.WithMaxLease(0)}, "WithMaxLease(0)"},
		{"no keys", window, time.Millisecond, []lease.Option{lease.WithMaxKeys(0)}, "WithMaxKeys(0)"},
		{"nil option", window, time.Millisecond, []lease.Option{nil}, "an Option is nil"},
	} {
		_, err := leaseOf(c.l, c.life, c.opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, c.name)
		require.ErrorContains(t, err, c.text, c.name)
	}
	for _, none := range []store.Store{nil, (*memstore.Store)(nil)} {
		_, err := lease.New(none, time.Second)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, "the store is nil")
	}
	_, err := ratelimit.NewFixedWindow(new(lease.Store), perSecond)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, "was not made by its constructor")
	require.ErrorIs(t, new(lease.Store).Close(t.Context()), ratelimit.ErrInvalidOption)
	_, err = leaseOf(bucket, 98*time.Millisecond)
	require.NoError(t, err)
	for _, limit := range []ratelimit.Limit{{Rate: 0, Period: time.Second}, ratelimit.Unlimited()} {
		_, err = leaseOf(newLimiter(t, "sliding_log", s, limit), time.Millisecond)
		require.NoError(t, err, "no call asks the store anyway")
	}
	few := func(context.Context, string) (ratelimit.Limit, error) { return perSecond, nil }
	_, err = leaseOf(newLimiter(t, "sliding_log", s, ratelimit.PerDay(1), ratelimit.WithLimitFunc(few)), 50*time.Millisecond)
	require.NoError(t, err, "keys have limits of their own")
}

func TestBadInput(t *testing.T) {
	s := &recorder{Store: memory(t)}
	for _, algorithm := range algorithms {
		for _, d := range []*onLease{newLease(t, newLimiter(t, algorithm, s, perSecond), time.Millisecond)} {
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			for _, c := range []struct {
				ctx context.Context
				key string
				n   int
				err error
			}{
				{t.Context(), "", 1, ratelimit.ErrInvalidKey},
				{t.Context(), string(make([]byte, 64<<10+1)), 1, ratelimit.ErrInvalidKey},
				{t.Context(), "key", 0, ratelimit.ErrInvalidN},
				{t.Context(), "key", -1, ratelimit.ErrInvalidN},
				{ended, "key", 1, context.Canceled},
			} {
				for _, n := range []int{c.n, 3 * c.n} {
					_, err := d.AllowN(c.ctx, c.key, n)
					require.ErrorIs(t, err, c.err)
					_, _, err = d.AllowUpTo(c.ctx, c.key, n)
					require.ErrorIs(t, err, c.err)
					_, err = d.AllowWithin(c.ctx, c.key, n, time.Second)
					require.ErrorIs(t, err, c.err)
					_, err = d.Charge(c.ctx, c.key, n)
					require.ErrorIs(t, err, c.err)
					require.ErrorIs(t, d.Refund(c.ctx, c.key, ratelimit.Result{}, n), c.err)
				}
				if c.n != 1 {
					continue
				}
				_, err := d.Allow(c.ctx, c.key)
				require.ErrorIs(t, err, c.err)
				_, err = d.Peek(c.ctx, c.key)
				require.ErrorIs(t, err, c.err)
				require.ErrorIs(t, d.Reset(c.ctx, c.key), c.err)
			}
		}
	}
	require.Empty(t, s.reset())
}

// Except for windows, a Rate of 0, Unlimited and keys of few events are decided as without leases.
// So are long keys.
func TestLimitsThatAreNotLeasedDecideAsTheStoreDoes(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t, stopped)}
			limits := map[string]ratelimit.Limit{
				"none": {Rate: 0, Period: time.Second}, "all": ratelimit.Unlimited(), "few": ratelimit.PerSecond(19),
				"many": ratelimit.PerSecond(20), "full": {Rate: 1000, Period: time.Second},
			}
			bucket := algorithm == "token_bucket"
			if bucket {
				limits["full"] = ratelimit.Limit{Rate: 1000, Period: time.Second, Burst: 51} // 51 flow in a life
			}
			l := newLimiter(t, algorithm, s, perSecond, ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) {
				if len(key) > 10 {
					return perSecond, nil
				}
				if l, ok := limits[key]; ok {
					return l, nil
				}
				return ratelimit.Limit{}, errOdd
			}))
			d := newLease(t, l, 50*time.Millisecond)
			defer closeLease(t, d)
			ask := func(key string) ratelimit.Result {
				r, err := d.Allow(t.Context(), key)
				require.NoError(t, err)
				synctest.Wait() // for leases that are fetched ahead
				return r
			}
			require.Equal(t, ratelimit.SourceZeroRate, ask("none").Source())
			require.Equal(t, ratelimit.Never, ask("none").RetryAfter)
			require.Equal(t, ratelimit.SourceUnlimited, ask("all").Source())
			granted, r, err := d.AllowUpTo(t.Context(), "all", 7)
			require.NoError(t, err)
			require.Equal(t, 7, granted)
			require.NoError(t, d.Refund(t.Context(), "all", r, 7))
			require.Empty(t, s.reset())
			window := algorithm == "fixed_window" || algorithm == "sliding_window"
			for range 10 {
				r := ask("few")
				require.Equal(t, 19, r.Limit, "as it is")
				require.True(t, window || r.Source() == ratelimit.SourceStore)
			}
			if calls := s.reset(); window {
				require.Equal(t, []call{{"TakeUpTo", 1}, {"TakeUpTo", 1}}, calls[:2])
			} else {
				require.Equal(t, []call{{"Take", 1}, {"Take", 1}}, calls[:2])
			}
			long := string(make([]byte, 257))
			for range 3 {
				ask(long)
			}
			require.Len(t, asked(s.reset(), "Take"), 3)
			for range 10 {
				ask("full")
			}
			require.Equal(t, bucket, len(asked(s.reset(), "Take")) == 10)
			for range 10 {
				ask(long[1:])
			}
			require.NotEmpty(t, asked(s.reset(), "TakeUpTo"))
			ask("many")
			require.Len(t, asked(s.reset(), "TakeUpTo"), 1)
			for _, key := range []string{"odd"} {
				_, err := d.Allow(t.Context(), key)
				require.ErrorIs(t, err, errOdd)
				_, _, err = d.AllowUpTo(t.Context(), key, 2)
				require.ErrorIs(t, err, errOdd)
				_, err = d.AllowWithin(t.Context(), key, 2, 0)
				require.ErrorIs(t, err, errOdd)
				_, err = d.Peek(t.Context(), key)
				require.ErrorIs(t, err, errOdd)
				_, err = d.Charge(t.Context(), key, 1)
				require.ErrorIs(t, err, errOdd)
			}
		})
	})
}

// A window is leased by what is asked of it, however few events it has: a hot key of a daily
// quota asks the store a few times.
func TestADailyQuotaIsLeased(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window"} {
		for _, limit := range []ratelimit.Limit{ratelimit.PerDay(1000), ratelimit.PerDay(1_000_000)} {
			t.Run(fmt.Sprintf("%s of %v", algorithm, limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &recorder{Store: memory(t)}
					plain := newLimiter(t, algorithm, s, limit)
					d := newLease(t, plain, 50*time.Millisecond)
					admitted := 0
					for range 2000 {
						time.Sleep(time.Millisecond)
						if allow(t, d).Allowed {
							admitted++
						}
					}
					require.Equal(t, min(2000, limit.Rate), admitted)
					require.Less(t, len(s.reset()), 200)
					closeLease(t, d)
					require.Equal(t, limit.Rate-admitted, remaining(t, plain))
				})
			})
		}
	}
}

// A lease of few events ends with its window too, and what is given back after that still
// makes room in the window that weighs.
func TestALeaseOfFewEventsEndsWithItsWindow(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window"} {
		synctest.Test(t, func(t *testing.T) {
			plain := newLimiter(t, algorithm, memory(t), ratelimit.PerDay(1000))
			d := newLease(t, plain, time.Minute)
			time.Sleep(24*time.Hour - time.Second - time.Until(time.Now().UTC().Truncate(24*time.Hour)))
			admitted := len(hold(t, d, 8))
			time.Sleep(time.Second) // into the next window, not a life
			before := d.Stats()
			require.Zero(t, before.Held)
			require.True(t, allow(t, d).Allowed)
			require.Equal(t, before.Local, d.Stats().Local, "the store was asked")
			closeLease(t, d)
			want := 999
			if algorithm == "sliding_window" {
				want -= admitted // weighs in full, at the beginning
			}
			require.Equal(t, want, remaining(t, plain), algorithm)
		})
	}
}

// An event of each call that asks the store for want of a lease is counted.
func TestCallsThatCannotBeLeasedAreCounted(t *testing.T) {
	s := &recorder{Store: memory(t, stopped)}
	few := func(_ context.Context, key string) (ratelimit.Limit, error) {
		if key == "few" {
			return ratelimit.PerMinute(1000), nil
		}
		return ratelimit.Limit{}, nil
	}
	l := newLimiter(t, "sliding_log", s, ratelimit.PerSecond(20), ratelimit.WithLimitFunc(few))
	d := newLease(t, l, 50*time.Millisecond, lease.WithMaxKeys(1))
	ask := func(key string, n int) int64 {
		before := d.Stats()
		_, err := d.AllowN(t.Context(), key, n)
		require.NoError(t, err)
		after := d.Stats()
		require.Equal(t, int64(1), after.Asked-before.Asked)
		return after.Unleased - before.Unleased
	}
	require.Zero(t, ask("key", 1))
	require.Zero(t, ask("key", 7), "by the store alone, however large a lease is")
	require.Equal(t, int64(1), ask("few", 1))
	require.Equal(t, int64(1), ask("few", 2))
	require.Equal(t, int64(1), ask("another key", 1), "with one key held")
	require.Equal(t, int64(1), ask(string(make([]byte, 257)), 1))
	_, err := d.AllowWithin(t.Context(), "few", 1, time.Second)
	require.NoError(t, err)
	require.Equal(t, int64(5), d.Stats().Unleased)

	other := newLimiter(t, "fixed_window", d.Store, perSecond)
	all, err := ratelimit.NewAll(d.limiting, other)
	require.NoError(t, err)
	before := d.Stats().Asked
	_, err = all.Peek(t.Context(), "few")
	require.NoError(t, err)
	require.Equal(t, before, d.Stats().Asked, "looks are for no events")
	_, err = ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: d.limiting, Key: "few", Look: true}, ratelimit.Ask{Limiter: other, Key: "few", N: 1})
	require.NoError(t, err)
	require.Equal(t, before+1, d.Stats().Asked)
	for key, want := range map[string]int64{"few": 1, "key": 0} {
		before := d.Stats()
		_, err = ratelimit.Decide(t.Context(), ratelimit.Ask{Limiter: d.limiting, Key: key, N: 1}, ratelimit.Ask{Limiter: d.limiting, Key: "key", N: 1000})
		require.NoError(t, err)
		after := d.Stats()
		require.Equal(t, []int64{1, want}, []int64{after.Asked - before.Asked, after.Unleased - before.Unleased}, "with others: %s", key)
	}
	closeLease(t, d)
	require.Zero(t, ask("key", 1), "closed: as its owner wants it")
	unleased := d.Stats().Unleased
	_, err = all.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, unleased, d.Stats().Unleased)
}

// A call that is lost was not counted as another one before.
func TestNoNumberOfCallsFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		s.set(time.Second, func(string) error {
			time.Sleep(time.Second)
			return errOdd
		})
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerDay(1_000_000)), time.Minute)
		defer closeLease(t, d)
		go func() { _, _ = d.Allow(context.Background(), "key") }()
		synctest.Wait()
		under := d.Stats()
		time.Sleep(time.Minute)
		over := d.Stats()
		require.Equal(t, int64(1), over.Lost)
		require.GreaterOrEqual(t, over.Asked-over.Lost, under.Asked-under.Lost)
	})
}

var errOdd = errors.New("an odd key")

func BenchmarkHeld(b *testing.B) {
	limit := ratelimit.PerSecond(1_000_000_000)
	mem, err := memstore.New()
	require.NoError(b, err)
	l := newLimiter(b, "token_bucket", mem, limit)
	d := newLease(b, l, life)
	defer func() { _ = d.Close(b.Context()) }()
	for name, lim := range map[string]ratelimit.Limiter{"plain": l, "leased": d} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := b.Context()
			for b.Loop() {
				if r, err := lim.Allow(ctx, "user:42"); !r.Allowed || err != nil {
					b.Fatal(r, err)
				}
			}
		})
		b.Run(name+", many keys at once", func(b *testing.B) {
			b.ReportAllocs()
			var caller atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				key, ctx := strconv.FormatInt(caller.Add(1), 10), b.Context()
				for pb.Next() {
					_, _ = lim.Allow(ctx, key)
				}
			})
		})
	}
}

type rateKey struct{}

// If another caller brings another limit while callers wait for the store, each is decided by its
// own limit, and by the store.
func TestWaitersKeepTheirOwnLimitWhenItChanges(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t), latency: trip}
			d := newLease(t, newLimiter(t, algorithm, s, window, ratelimit.WithLimitFunc(func(ctx context.Context, _ string) (ratelimit.Limit, error) {
				rate, _ := ctx.Value(rateKey{}).(int)
				return ratelimit.PerMinute(rate), nil
			})), life)
			var wg sync.WaitGroup
			ask := func(rate, callers int) {
				for range callers {
					wg.Go(func() {
						r, err := d.AllowN(context.WithValue(t.Context(), rateKey{}, rate), "key", 1)
						require.NoError(t, err)
						require.True(t, r.Allowed, rate)
						require.Equal(t, rate, r.Limit)
					})
					synctest.Wait()
				}
			}
			ask(1_000_000, 1)
			ask(1_000_000, 1000) // so that the next lease is as large
			time.Sleep(trip + trip/2)
			ask(1_000_000, 1) // waits
			ask(2_000_000, 1) // changes the limit
			wg.Wait()
			closeLease(t, d)
		})
	})
}

// A denial by a lease has the numbers that the store would report. (The others lend a little less
// than there is.)
func TestADenialOfALeaseSaysWhatTheStoreWould(t *testing.T) {
	for _, algorithm := range algorithms[:2] {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, algorithm, memory(t), ratelimit.PerMinute(1000))
			d := newLease(t, l, life)
			for allow(t, d).Allowed {
				synctest.Wait()
			}
			before := d.Stats()
			for range 3 {
				time.Sleep(10 * time.Millisecond)
				r := allow(t, d)
				require.Equal(t, ratelimit.SourceLease, r.Source())
				says, err := l.Peek(t.Context(), "key")
				require.NoError(t, err)
				require.Equal(t, []any{says.RetryAfter, says.ResetAfter, says.Remaining}, []any{r.RetryAfter, r.ResetAfter, r.Remaining})
			}
			require.Equal(t, before.Local+3, d.Stats().Local)
			require.Equal(t, before.Asked, d.Stats().Asked)
			closeLease(t, d)
		})
	}
}

// slow is a limit of which nothing comes back while a store is asked.
var slow = ratelimit.PerMinute(1200)

// One asks, and the others wait. The store has no events: others have had them.
func TestWaitersAreDeniedAsTheStoreDenies(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t), latency: trip}
			l := newLimiter(t, algorithm, s, slow)
			d := newLease(t, l, 2*life)
			require.True(t, allowN(t, l, slow.Rate).Allowed)
			var wg sync.WaitGroup
			s.reset()
			for range 3 {
				wg.Go(func() {
					r := allow(t, d)
					require.False(t, r.Allowed)
					require.Positive(t, r.ResetAfter)
				})
				synctest.Wait()
			}
			wg.Wait()
			require.Equal(t, []call{{"TakeUpTo", 1}}, s.reset(), "for all")
			require.NoError(t, l.Reset(t.Context(), "key"))
			time.Sleep(2 * life)
			s.reset()
			require.True(t, allow(t, d).Allowed)
			require.Equal(t, []int{1}, asked(s.reset(), "TakeUpTo"), "nobody waits any more")
			closeLease(t, d)
		})
	})
}

// One asks, and another one waits: each is a call for a lease.
func TestALoneWaiterFetchesALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t), latency: trip}
		d := newLease(t, newLimiter(t, "fixed_window", s, slow), life)
		require.Equal(t, 2, allowed(atOnce(t, d.limiting, 2, one), one))
		require.Equal(t, []call{{"TakeUpTo", 1}, {"TakeUpTo", 1}}, s.reset())
		closeLease(t, d)
	})
}

// A denial by the store says when the next event comes, of a bucket as well, but no sooner than the store is asked
// again.
func TestADenialByTheStoreSaysWhenTheNextEventComes(t *testing.T) {
	for rate, next := range map[int]time.Duration{25: 40 * time.Millisecond, 100: 10 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := memory(t)
			bucket := ratelimit.Limit{Rate: rate, Period: time.Second, Burst: 100}
			d := newLease(t, newLimiter(t, "token_bucket", s, bucket), life)
			_, _, err := d.AllowUpTo(t.Context(), "key", 100)
			require.NoError(t, err)
			says, err := d.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, next, says.RetryAfter)
			r := allow(t, d)
			require.Equal(t, max(next, life/2), r.RetryAfter)
			time.Sleep(r.RetryAfter)
			require.True(t, allow(t, d).Allowed)
			closeLease(t, d)
		})
	}
}

// A window of one event is leased, too: its denials cost the store nothing.
func TestAWindowOfOneEventIsLeased(t *testing.T) {
	for _, algorithm := range algorithms[:2] {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t)}
			d := newLease(t, newLimiter(t, algorithm, s, ratelimit.PerDay(1)), time.Minute)
			require.True(t, allow(t, d).Allowed)
			s.reset()
			require.False(t, allow(t, d).Allowed)
			require.Empty(t, s.reset())
			closeLease(t, d)
		})
	}
}

// Limits of equal numbers and different algorithms are each asked for as their own algorithm is.
func TestEqualLimitsOfTwoAlgorithmsAreTheirOwn(t *testing.T) {
	d, _ := onStopped(t, time.Second)
	window, bucket := newLimiter(t, "fixed_window", d, ratelimit.PerMinute(1200)), newLimiter(t, "token_bucket", d, ratelimit.PerMinute(1200))
	fresh := fullKey(t, bucket)
	require.Less(t, fresh, 1200)
	for i := range 300 { // so that some are in one shard
		for l, want := range map[ratelimit.Limiter]int{window: 1199, bucket: fresh - 1} {
			r, err := l.Allow(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
			require.Equal(t, want, r.Remaining)
		}
	}
	require.NoError(t, d.Close(t.Context()))
}

// The lease is closed while one asks and others wait: those ask the store themselves.
func TestWaitersAreServedWhileALeaseIsClosed(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t), latency: trip}
			l := newLimiter(t, algorithm, s, slow)
			d := newLease(t, l, 2*life)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { require.True(t, allow(t, d).Allowed) })
				synctest.Wait()
			}
			closeLease(t, d)
			wg.Wait()
			require.Equal(t, slow.Rate-3, remaining(t, l))
		})
	})
}

// BenchmarkSeveral measures an All of two limits of which all is held.
func BenchmarkSeveral(b *testing.B) {
	mem, err := memstore.New()
	require.NoError(b, err)
	d, err := lease.New(mem, life)
	require.NoError(b, err)
	defer func() { _ = d.Close(b.Context()) }()
	all, err := ratelimit.NewAll(newLimiter(b, "token_bucket", d, ratelimit.PerSecond(1_000_000_000)), newLimiter(b, "fixed_window", d, ratelimit.PerSecond(1_000_000_000)))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if r, err := all.Allow(b.Context(), "user:42"); !r.Allowed || err != nil {
			b.Fatal(r, err)
		}
	}
}

// BenchmarkUnheld measures calls of keys that come once.
func BenchmarkUnheld(b *testing.B) {
	mem, err := memstore.New(memstore.WithMaxKeys(1000))
	require.NoError(b, err)
	d, err := lease.New(mem, life)
	require.NoError(b, err)
	defer func() { _ = d.Close(b.Context()) }()
	one, two := newLimiter(b, "token_bucket", d, ratelimit.PerSecond(1_000_000_000)), newLimiter(b, "fixed_window", d, ratelimit.PerSecond(1_000_000_000))
	all, err := ratelimit.NewAll(one, two)
	require.NoError(b, err)
	for name, l := range map[string]ratelimit.Limiter{"one": one, "all": all} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				if r, err := l.Allow(b.Context(), strconv.Itoa(i)); !r.Allowed || err != nil {
					b.Fatal(r, err)
				}
			}
		})
	}
}
