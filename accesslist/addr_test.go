package accesslist_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// keys has one key of each kind that middlewares make.
var keys = []string{
	"203.0.113.9", "2001:db8:9::/64", "combined:9:192.0.2.9,8:user:ann,", "apikey:x-api-key:ungWv48Bz", "user:ann", "global",
}

func client(ctx context.Context, addr string) context.Context {
	return clientaddr.NewContext(ctx, netip.MustParseAddr(addr))
}

func TestTheAddressInTheContextDecidesWhateverTheKeyIs(t *testing.T) {
	lists := accesslist.Lists{Deny: list(t, "192.0.2.66", "2001:db8:66::/48"), Allow: list(t, "192.0.2.0/24", "2001:db8::/32")}
	lim := limiter(t, inMemory(t, ratelimit.PerHour(1e6)), lists)
	for _, key := range keys {
		for addr, want := range map[string]string{
			"192.0.2.66": "0/s", "::ffff:192.0.2.66": "0/s", "64:ff9b::192.0.2.66": "0/s", "2001:db8:66::1%eth0": "0/s",
			"192.0.2.7": "unlimited", "64:ff9b::192.0.2.7": "unlimited", "2001:db8::1": "unlimited",
			"198.51.100.1": "1000000/h", "2001:db9::1": "1000000/h",
		} {
			ctx := client(t.Context(), addr)
			r, err := lim.Allow(ctx, key)
			require.NoError(t, err)
			require.Equal(t, want != "0/s", r.Allowed, "%s from %s", key, addr)
			require.Equal(t, want != "1000000/h", r.Source() == ratelimit.SourceList, "%s from %s", key, addr)
			policies, err := lim.AppendPolicies(ctx, nil, key)
			require.NoError(t, err)
			require.Equal(t, want, policies[0].Name)
		}
	}
}

func TestAnAddressThatIsNotKnownIsAnErrorAndNothingIsConsumed(t *testing.T) {
	inner := inMemory(t, ratelimit.PerHour(2))
	lim := limiter(t, inner, accesslist.Lists{})
	for _, lists := range []accesslist.Lists{
		{Deny: list(t, "192.0.2.0/24")},
		{Allow: list(t, "2001:db8::/32", "=ann")},
		{Allow: list(t, "=user:ann"), Deny: list(t, "192.0.2.0/24")}, // deny would win
	} {
		lim.Replace(lists)
		for _, key := range []string{"user:ann", "192.0.2.1:443", "combined:9:192.0.2.1,", "fe80::%eth0/64"} {
			for name, call := range map[string]func(context.Context, string) error{
				"Allow":  func(ctx context.Context, key string) error { _, err := lim.Allow(ctx, key); return err },
				"AllowN": func(ctx context.Context, key string) error { _, err := lim.AllowN(ctx, key, 2); return err },
				"Peek":   func(ctx context.Context, key string) error { _, err := lim.Peek(ctx, key); return err },
				"Charge": func(ctx context.Context, key string) error { _, err := lim.Charge(ctx, key, 1); return err },
				"UpTo":   func(ctx context.Context, key string) error { _, _, err := lim.AllowUpTo(ctx, key, 1); return err },
				"Within": func(ctx context.Context, key string) error {
					_, err := lim.AllowWithin(ctx, key, 1, time.Hour)
					return err
				},
				"Policies": func(ctx context.Context, key string) error { _, err := lim.AppendPolicies(ctx, nil, key); return err },
				"Wait":     func(ctx context.Context, key string) error { _, err := ratelimit.Wait(ctx, lim, key, 1); return err },
			} {
				for _, ctx := range []context.Context{t.Context(), clientaddr.NewContext(t.Context(), netip.Addr{})} {
					err := call(ctx, key)
					require.ErrorIs(t, err, accesslist.ErrNoAddr, name)
					require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
					require.ErrorContains(t, err, key, name)
				}
			}
			require.NoError(t, lim.Reset(t.Context(), key))
			require.Equal(t, 2, peek(t, inner, key).Remaining)
		}
	}
}

func TestAnAddressThatDecidesNothingIsNotNeeded(t *testing.T) {
	prefixes := list(t, "192.0.2.0/24")
	for _, lists := range []accesslist.Lists{
		{},
		{Deny: list(t, "=user:bob"), Allow: list(t, "=user:eve")},
		{Deny: list(t, "=user:ann", "192.0.2.0/24"), Allow: prefixes},
		{Allow: list(t, "=user:ann", "192.0.2.0/24")},
	} {
		_, err := limiter(t, inMemory(t, ratelimit.PerHour(1)), lists).Allow(t.Context(), "user:ann")
		require.NoError(t, err)
	}
}

func TestAFunctionFindsTheAddressOfAKey(t *testing.T) {
	errUnknown := errors.New("no such device")
	asks := 0
	find := accesslist.WithAddr(func(_ context.Context, key string) (netip.Addr, error) {
		asks++
		switch key {
		case "device:1":
			return netip.MustParseAddr("64:ff9b::192.0.2.7"), nil
		case "device:2":
			return netip.MustParseAddr("192.0.3.7"), nil
		case "device:offline":
			return netip.Addr{}, nil
		}
		return netip.Addr{}, errUnknown
	})
	lim := limiter(t, asked(), accesslist.Lists{Deny: list(t, "192.0.2.0/24"), Allow: list(t, "198.51.100.1")}, find)
	ctx := client(t.Context(), "192.0.2.1") // which the function does not read
	for key, want := range map[string]error{"device:1": nil, "device:2": errAsked, "device:offline": errAsked, "192.0.2.1": errUnknown} {
		r, err := lim.Allow(ctx, key)
		require.ErrorIs(t, err, want, key)
		require.False(t, r.Allowed)
		require.Equal(t, 1, asks)
		asks = 0
	}
}

// A decision on a network agrees with the decision on each of its addresses.
func TestAKeyThatIsANetworkIsOnAListWhole(t *testing.T) {
	for _, tt := range []struct {
		deny, allow []string
		want        error // errAsked if the key is on no list
		denied      bool
	}{
		{deny: []string{"2001:db8::/32"}, denied: true},
		{deny: []string{"2001:db8::/64"}, denied: true},
		{deny: []string{"2001:db8::/32", "2001:db8::1"}, denied: true},
		{deny: []string{"2001:db8::1"}, want: accesslist.ErrNoAddr},
		{deny: []string{"2001:db8::/65", "2001:db8:0:0:8000::/65"}, want: accesslist.ErrNoAddr}, // all of it, but by none alone
		{deny: []string{"2001:db8:0:1::/64"}, want: errAsked},
		{deny: []string{"2001:db8::1"}, allow: []string{"2001:db8::/64"}, want: accesslist.ErrNoAddr},
		{allow: []string{"2001:db8::1"}, want: accesslist.ErrNoAddr},
		{allow: []string{"2001:db8::/64"}},
		{deny: []string{"192.0.2.1"}, want: errAsked},
	} {
		lim := limiter(t, asked(), accesslist.Lists{Deny: list(t, tt.deny...), Allow: list(t, tt.allow...)})
		r, err := lim.Allow(t.Context(), "2001:db8::/64")
		require.ErrorIs(t, err, tt.want, "%v", tt)
		require.Equal(t, err == nil && !tt.denied, r.Allowed, "%v", tt)
	}
}

// The oracle compares with each prefix, one after the other.
func TestANetworkIsOnAListThatHoldsIt(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var prefixes []netip.Prefix
		var entries []string
		for range random.IntN(10) {
			p := randomPrefix(random)
			prefixes, entries = append(prefixes, p), append(entries, p.String())
		}
		lim := limiter(t, ratelimittest.Static(ratelimit.Result{}, nil), accesslist.Lists{Allow: list(t, entries...)})
		for range 100 {
			key := randomPrefix(random)
			holds, overlaps := false, false
			for _, p := range prefixes {
				holds = holds || p.Bits() <= key.Bits() && p.Contains(key.Addr())
				overlaps = overlaps || p.Overlaps(key)
			}
			r, err := lim.Allow(t.Context(), key.String())
			require.Equal(t, holds, r.Allowed, "%v in %v", key, prefixes)
			require.Equal(t, overlaps && !holds, errors.Is(err, accesslist.ErrNoAddr), "%v in %v", key, prefixes)
		}
	}
}

func TestAnAllHandsTheAddressOnAndGivesBackWhatAnUnknownOneLeaves(t *testing.T) {
	first, second := inMemory(t, ratelimit.PerHour(5)), inMemory(t, ratelimit.PerHour(5))
	all, err := ratelimit.NewAll(first, limiter(t, second, accesslist.Lists{Deny: list(t, "192.0.2.0/24")}))
	require.NoError(t, err)
	_, err = all.Allow(t.Context(), "user:ann")
	require.ErrorIs(t, err, accesslist.ErrNoAddr)
	require.False(t, allowFrom(t, all, "192.0.2.1").Allowed)
	require.Equal(t, 5, peek(t, first, "user:ann").Remaining)
	require.True(t, allowFrom(t, all, "198.51.100.1").Allowed)
	require.Equal(t, 4, peek(t, second, "user:ann").Remaining)
}

func TestAFallbackWithinHasTheAddressToo(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	cache, err := denycache.New(mem)
	require.NoError(t, err)
	cached, err := ratelimit.NewTokenBucket(cache, ratelimit.PerHour(1))
	require.NoError(t, err)
	open, err := fallback.New(cached, fallback.FailOpen())
	require.NoError(t, err)
	lim := limiter(t, open, accesslist.Lists{Deny: list(t, "192.0.2.0/24")})
	require.True(t, allowFrom(t, lim, "198.51.100.1").Allowed)
	require.Equal(t, ratelimit.SourceStore, allowFrom(t, lim, "198.51.100.1").Source())
	require.Equal(t, ratelimit.SourceDenyCache, allowFrom(t, lim, "198.51.100.1").Source())
	require.Equal(t, ratelimit.SourceList, allowFrom(t, lim, "192.0.2.1").Source())
	_, err = lim.Allow(t.Context(), "user:ann")
	require.ErrorIs(t, err, accesslist.ErrNoAddr, "which is no outage that a fallback could hide")
	within, err := ratelimit.NewAll(lim)
	require.NoError(t, err)
	require.Equal(t, ratelimit.SourceList, allowFrom(t, within, "192.0.2.1").Source())
}

// allowFrom asks for the user ann at addr.
func allowFrom(t *testing.T, l ratelimit.Limiter, addr string) ratelimit.Result {
	t.Helper()
	r, err := l.Allow(client(t.Context(), addr), "user:ann")
	require.NoError(t, err)
	return r
}

// Waiters of one key can come from different addresses.
func TestAWaiterIsDecidedOnByItsOwnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, inMemory(t, ratelimit.PerSecond(1)), accesslist.Lists{Deny: list(t, "192.0.2.1"), Allow: list(t, "192.0.2.2")})
		var wg sync.WaitGroup
		var denied, exempt, admitted atomic.Int32
		for i := range 12 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				addr := []string{"198.51.100.1", "192.0.2.1", "198.51.100.2", "192.0.2.2"}[i%4]
				r, err := ratelimit.Wait(client(t.Context(), addr), lim, "user:ann", 1)
				switch {
				case errors.Is(err, ratelimit.ErrNever):
					denied.Add(1)
					assert.Equal(t, "192.0.2.1", addr)
				case r.Source() == ratelimit.SourceList:
					exempt.Add(1)
					assert.Equal(t, "192.0.2.2", addr)
				default:
					admitted.Add(1)
					assert.NoError(t, err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, []int32{3, 3, 6}, []int32{denied.Load(), exempt.Load(), admitted.Load()})
	})
}

// The first leaves while it has its permit, some milliseconds ahead of its time.
func TestAPermitIsNotHandedToAnotherAddress(t *testing.T) {
	for name, queued := range map[string]func(l ratelimit.Limiter) func(ctx context.Context) (ratelimit.Result, error){
		"Wait": func(l ratelimit.Limiter) func(ctx context.Context) (ratelimit.Result, error) {
			return func(ctx context.Context) (ratelimit.Result, error) { return ratelimit.Wait(ctx, l, "user:ann", 1) }
		},
		"Waiter": func(l ratelimit.Limiter) func(ctx context.Context) (ratelimit.Result, error) {
			w, err := throttle.NewWaiter(l, time.Minute)
			require.NoError(t, err)
			return func(ctx context.Context) (ratelimit.Result, error) { return w.Allow(ctx, "user:ann") }
		},
	} {
		for before := time.Millisecond; before < 10*time.Millisecond; before += time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				bucket := inMemory(t, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1})
				wait := queued(limiter(t, bucket, accesslist.Lists{Deny: list(t, "192.0.2.1")}))
				_, err := wait(client(t.Context(), "198.51.100.1"))
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(client(t.Context(), "198.51.100.1"), time.Minute)
				var wg sync.WaitGroup
				wg.Go(func() {
					_, err := wait(ctx)
					assert.ErrorIs(t, err, context.Canceled)
				})
				synctest.Wait()
				wg.Go(func() {
					r, _ := wait(client(t.Context(), "192.0.2.1"))
					assert.False(t, r.Allowed, "%s, %v before", name, before)
				})
				time.Sleep(time.Second - before)
				cancel()
				wg.Wait()
				time.Sleep(before)
				require.Equal(t, 1, peek(t, bucket, "user:ann").Remaining, "given back")
			})
		}
	}
}
