package accesslist_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func inMemory(t testing.TB, l ratelimit.Limit) ratelimit.Limiter {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	lim, err := ratelimit.NewTokenBucket(mem, l)
	require.NoError(t, err)
	return lim
}

func limiter(t testing.TB, l ratelimit.Limiter, lists accesslist.Lists, opts ...accesslist.Option) *accesslist.Limiter {
	t.Helper()
	lim, err := accesslist.New(l, append(opts, accesslist.WithLists(lists))...)
	require.NoError(t, err)
	return lim
}

func allow(t testing.TB, l ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := l.Allow(t.Context(), key)
	require.NoError(t, err)
	return r
}

func peek(t testing.TB, l ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := l.Peek(t.Context(), key)
	require.NoError(t, err)
	return r
}

var errAsked = errors.New("the limiter was asked")

// asked fails each call, so a decision without an error was made without asking it.
func asked() ratelimit.Limiter { return ratelimittest.Static(ratelimit.Result{}, errAsked) }

func TestALimiterWithoutItsPartsIsRefused(t *testing.T) {
	var none *ratelimit.TokenBucket
	for _, l := range []ratelimit.Limiter{nil, none} {
		lim, err := accesslist.New(l)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.Nil(t, lim)
	}
	for _, opt := range []accesslist.Option{nil, accesslist.WithAddr(nil)} {
		lim, err := accesslist.New(asked(), opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.Nil(t, lim)
	}
}

func TestTheZeroValueAnswersWithAnError(t *testing.T) {
	ctx, l := t.Context(), new(accesslist.Limiter)
	for range 2 {
		_, err := l.Allow(ctx, "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		_, err = l.Peek(ctx, "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		require.ErrorIs(t, l.Refund(ctx, "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidLimit)
		require.ErrorIs(t, l.Reset(ctx, "key"), ratelimit.ErrInvalidLimit)
		_, err = l.AppendPolicies(ctx, nil, "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		require.Equal(t, accesslist.Lists{}, l.Lists())
		l.Replace(accesslist.Lists{})
	}
}

func TestBadInputIsAnErrorOnEveryList(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	everything := accesslist.WithAddr(func(context.Context, string) (netip.Addr, error) { return netip.MustParseAddr("192.0.2.1"), nil })
	l := list(t, "192.0.2.1")
	for _, lists := range []accesslist.Lists{{}, {Allow: l}, {Deny: l}} {
		lim := limiter(t, inMemory(t, ratelimit.PerHour(5)), lists, everything)
		_, err := lim.AllowN(t.Context(), "key", 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
		for _, key := range []string{"", longKey} {
			_, err = lim.Allow(t.Context(), key)
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			_, err = lim.Peek(t.Context(), key)
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			require.ErrorIs(t, lim.Reset(t.Context(), key), ratelimit.ErrInvalidKey)
			require.ErrorIs(t, lim.Refund(t.Context(), key, peek(t, lim, "key"), 1), ratelimit.ErrInvalidKey)
		}
		_, err = lim.Allow(ended, "key")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidN)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", allow(t, lim, "key"), 0), ratelimit.ErrInvalidN)
	}
}

func TestKeysOnNoListGoToTheLimiter(t *testing.T) {
	inner := inMemory(t, ratelimit.PerHour(2))
	lim := limiter(t, inner, accesslist.Lists{Allow: list(t, "=a", "192.0.2.1"), Deny: list(t, "=b", "192.0.2.2")})
	for _, key := range []string{"2001:db8:1::/48", "192.0.2.3", "2001:db8::1"} {
		first := allow(t, lim, key)
		require.True(t, first.Allowed)
		require.Equal(t, 1, peek(t, lim, key).Remaining)
		require.True(t, allow(t, lim, key).Allowed)
		require.False(t, allow(t, lim, key).Allowed)
		require.NoError(t, lim.Refund(t.Context(), key, first, 1))
		require.Equal(t, 1, peek(t, inner, key).Remaining)
		require.NoError(t, lim.Reset(t.Context(), key))
		require.Equal(t, 2, peek(t, inner, key).Remaining)
	}
	failing := limiter(t, asked(), accesslist.Lists{})
	_, err := failing.Allow(t.Context(), "key")
	require.ErrorIs(t, err, errAsked)
	_, err = failing.Peek(t.Context(), "key")
	require.ErrorIs(t, err, errAsked)
	require.ErrorIs(t, failing.Refund(t.Context(), "key", ratelimit.Result{Allowed: true}, 1), errAsked)
	require.ErrorIs(t, failing.Reset(t.Context(), "key"), errAsked)
}

func TestDeniedKeysDoNotAskTheLimiter(t *testing.T) {
	lim := limiter(t, asked(), accesslist.Lists{Deny: list(t, "=b", "192.0.2.0/24")})
	for _, key := range []string{"b", "192.0.2.2"} {
		r := allow(t, lim, key)
		require.False(t, r.Allowed)
		require.Equal(t, ratelimit.Never, r.RetryAfter)
		require.Zero(t, r.Limit+r.Remaining+r.Charged())
		require.Zero(t, r.ResetAfter+r.Delay)
		require.Equal(t, ratelimit.SourceList, r.Source())
		require.Equal(t, r, peek(t, lim, key))
		_, err := ratelimit.Wait(t.Context(), lim, key, 1)
		require.ErrorIs(t, err, ratelimit.ErrNever)
	}
	require.ErrorIs(t, limiter(t, inMemory(t, ratelimit.PerHour(1)), lim.Lists()).Refund(t.Context(), "b", allow(t, lim, "b"), 1), ratelimit.ErrInvalidN)
}

func TestAllowedKeysDoNotAskTheLimiterAndAreNotCounted(t *testing.T) {
	lim := limiter(t, asked(), accesslist.Lists{Allow: list(t, "=a", "192.0.2.0/24")})
	for _, key := range []string{"a", "192.0.2.2"} {
		for _, n := range []int{1, 1000, math.MaxInt32} {
			r, err := lim.AllowN(t.Context(), key, n)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, math.MaxInt32, r.Limit)
			require.Equal(t, math.MaxInt32, r.Remaining)
			require.Zero(t, r.RetryAfter+r.ResetAfter+r.Delay)
			require.Equal(t, ratelimit.SourceList, r.Source())
			require.Equal(t, r, peek(t, lim, key))
			require.NoError(t, lim.Refund(t.Context(), key, r, n), "nothing was charged, and nothing is given back")
			lim.Replace(accesslist.Lists{})
			require.NoError(t, lim.Refund(t.Context(), key, r, n), "nor after the lists have changed")
			lim.Replace(accesslist.Lists{Allow: list(t, "=a", "192.0.2.0/24")})
		}
	}
}

func TestDenyWins(t *testing.T) {
	for _, lists := range []accesslist.Lists{
		{Allow: list(t, "192.0.2.1"), Deny: list(t, "192.0.2.1")},
		{Allow: list(t, "192.0.2.1"), Deny: list(t, "192.0.0.0/16")}, // also if the other entry is the longer
		{Allow: list(t, "0.0.0.0/0"), Deny: list(t, "192.0.2.1")},
		{Allow: list(t, "=192.0.2.1"), Deny: list(t, "192.0.2.0/24")},
		{Allow: list(t, "192.0.2.1"), Deny: list(t, "=192.0.2.1")},
	} {
		require.False(t, allow(t, limiter(t, asked(), lists), "192.0.2.1").Allowed)
	}
}

func TestListsAreReplacedAtOnceAndTheSpendIsKept(t *testing.T) {
	inner := inMemory(t, ratelimit.PerHour(2))
	lim := limiter(t, inner, accesslist.Lists{})
	charged := allow(t, lim, "192.0.2.1")
	lists := accesslist.Lists{Deny: list(t, "192.0.2.0/24")}
	lim.Replace(lists)
	require.Equal(t, lists, lim.Lists())
	require.False(t, allow(t, lim, "192.0.2.1").Allowed)
	lim.Replace(accesslist.Lists{Allow: lists.Deny})
	require.Equal(t, ratelimit.SourceList, allow(t, lim, "192.0.2.1").Source())
	require.NoError(t, lim.Refund(t.Context(), "192.0.2.1", charged, 1), "to the limiter that has charged it")
	require.Equal(t, 2, peek(t, inner, "192.0.2.1").Remaining)
	allow(t, inner, "192.0.2.1")
	lim.Replace(accesslist.Lists{})
	require.Equal(t, 1, peek(t, lim, "192.0.2.1").Remaining)
}

func TestThePoliciesAreThoseInForceOnTheKey(t *testing.T) {
	lim := limiter(t, inMemory(t, ratelimit.PerHour(5)), accesslist.Lists{Allow: list(t, "=a"), Deny: list(t, "=b")})
	for key, want := range map[string]ratelimit.Policy{
		"a": {Name: "unlimited", Limit: ratelimit.Unlimited(), Quota: math.MaxInt32},
		"b": {Name: "0/s", Limit: ratelimit.PerSecond(0)},
		"c": {Name: "5/h", Limit: ratelimit.PerHour(5), Quota: 5, Window: time.Hour},
	} {
		got, err := ratelimit.AppendPolicies(t.Context(), make([]ratelimit.Policy, 1), lim, key)
		require.NoError(t, err)
		require.Equal(t, []ratelimit.Policy{{}, want}, got)
	}
}

// In both pairs of lists, each key is on one list. A call that saw half of each pair would find the
// key on neither.
func TestReplaceWhileReading(t *testing.T) {
	x, y := list(t, "192.0.2.0/24", "=a"), list(t, "198.51.100.0/24", "=b")
	pairs := []accesslist.Lists{{Allow: x, Deny: y}, {Allow: y, Deny: x}}
	lim := limiter(t, asked(), pairs[0], accesslist.WithAddr(func(_ context.Context, key string) (netip.Addr, error) {
		addr, _ := netip.ParseAddr(key) // "a" and "b" have none
		return addr, nil
	}))
	var stop atomic.Bool
	var wg, ready sync.WaitGroup
	ready.Add(4)
	for _, key := range []string{"192.0.2.1", "198.51.100.1", "a", "b"} {
		wg.Go(func() {
			for first := true; !stop.Load(); first = false {
				if _, err := lim.Allow(t.Context(), key); err != nil {
					t.Error(err)
				}
				if first {
					ready.Done()
				}
			}
		})
	}
	ready.Wait()
	for i := range 20_000 {
		lim.Replace(pairs[i%2])
	}
	stop.Store(true)
	wg.Wait()
}

func TestALookUpAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	lists := accesslist.Lists{Allow: list(t, "=a", "192.0.2.0/24"), Deny: list(t, "=b", "2001:db8::/32")}
	lim := limiter(t, ratelimittest.Static(ratelimit.Result{Allowed: true}, nil), lists)
	ctx := client(t.Context(), "198.51.100.1")
	for _, key := range []string{"a", "b", "user:42"} {
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = lim.Allow(ctx, key) }), key)
	}
	ctx = t.Context()
	for _, key := range []string{"192.0.2.1", "203.0.113.1", "2001:db9::/64", "2001:db8::1", "2001:db9::1%eth0", "::ffff:192.0.2.1"} {
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = lim.Allow(ctx, key) }), key)
	}
}

// many returns a list of n prefixes: 4 in 5 are IPv4, /12 to /32, and the others IPv6, /32 to /64.
func many(b *testing.B, n int) *accesslist.List {
	b.Helper()
	entries := make([]string, n)
	for i := range entries {
		random := uint32(i) * 2654435761
		a := netip.AddrFrom4([4]byte{byte(random >> 24), byte(random >> 16), byte(random >> 8), byte(random)})
		bits := 12 + i%21
		if i%5 == 0 {
			a = netip.AddrFrom16([16]byte{0x20, 1, byte(random >> 24), byte(random >> 16), byte(random >> 8), byte(random), byte(i)})
			bits = 32 + i%33
		}
		entries[i] = netip.PrefixFrom(a, bits).Masked().String()
	}
	return list(b, entries...)
}

// BenchmarkLookUp measures a call of Allow whose limiter answers without a store: without lists,
// and behind a deny list of about 100,000 prefixes. For that list, it also measures the lookup of a
// parsed address alone.
func BenchmarkLookUp(b *testing.B) {
	deny := many(b, 100_000)
	answer := ratelimittest.Static(ratelimit.Result{Allowed: true}, nil)
	without, with := limiter(b, answer, accesslist.Lists{}), limiter(b, answer, accesslist.Lists{Deny: deny})
	for _, kind := range []struct {
		name string
		key  func(i uint32) string
	}{
		{"IPv4", func(i uint32) string {
			return netip.AddrFrom4([4]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}).String()
		}},
		{"IPv6", func(i uint32) string {
			return netip.AddrFrom16([16]byte{0x20, 1, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i), 15: 1}).String()
		}},
		{"network", func(i uint32) string {
			a := netip.AddrFrom16([16]byte{0x20, 1, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
			return netip.PrefixFrom(a, 64).String()
		}},
	} {
		const n = 1 << 14
		keys, networks := make([]string, n), make([]netip.Prefix, n)
		for i := range keys {
			keys[i] = kind.key(uint32(i) * 2246822519)
			networks[i], _ = accesslist.NetworkOf(keys[i])
		}
		for _, do := range []struct {
			name string
			call func(i int)
		}{
			{"Allow/no list", func(i int) { _, _ = without.Allow(b.Context(), keys[i%n]) }},
			{fmt.Sprintf("Allow/%d prefixes", deny.Len()), func(i int) { _, _ = with.Allow(b.Context(), keys[i%n]) }},
			{fmt.Sprintf("look-up alone/%d prefixes", deny.Len()), func(i int) { _, _ = deny.Has(networks[i%n]) }},
		} {
			b.Run(do.name+"/"+kind.name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					do.call(i)
				}
			})
		}
	}
}

func TestAnAllSaysOfAListWhatTheListSays(t *testing.T) {
	list, err := accesslist.NewList("=key")
	require.NoError(t, err)
	bucket := inMemory(t, ratelimit.PerHour(5))
	both := func(lists accesslist.Lists) ratelimit.Limiter {
		a, err := ratelimit.NewAll(limiter(t, bucket, lists), bucket)
		require.NoError(t, err)
		return a
	}
	denied := both(accesslist.Lists{Deny: list})
	r := allow(t, denied, "key")
	require.False(t, r.Allowed)
	require.Zero(t, r.Limit)
	require.Zero(t, r.Remaining)
	require.Equal(t, ratelimit.SourceList, r.Source())
	require.Zero(t, peek(t, denied, "key").Remaining, "of a Peek, which asks the bucket too")
	allowed := both(accesslist.Lists{Allow: list})
	require.Equal(t, 4, allow(t, allowed, "key").Remaining)
	only, err := ratelimit.NewAll(limiter(t, bucket, accesslist.Lists{Allow: list}))
	require.NoError(t, err)
	r = allow(t, only, "key")
	require.Equal(t, math.MaxInt32, r.Remaining)
	require.Equal(t, ratelimit.SourceList, r.Source())
	require.False(t, r.Counted())
}
