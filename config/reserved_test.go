package config_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/store"
)

// classes is a text of "api", and of "batch" with the same limits and counts. The one that shares comes first.
func classes(api, batch string) string {
	return "limiters: {batch: {shares: api, " + batch + "}, api: {" + api + "}}"
}

func TestALimiterThatSharesCountsLeavesWhatIsReserved(t *testing.T) {
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		t.Run(algorithm, func(t *testing.T) {
			onEach(t, func(t *testing.T, s store.Store) {
				ls := build(t, s, classes("algorithm: "+algorithm+", limit: 10/m", "reserved: 4, store: {deny_cache: true}"))
				api, batch := limiter(t, ls, "api"), limiter(t, ls, "batch")
				r := allow(t, batch, "key")
				require.Equal(t, 6, r.Limit)
				require.Equal(t, 5, r.Remaining)
				require.Equal(t, 5, admitted(t, batch, "key", 10))
				require.Equal(t, 4, admitted(t, api, "key", 5), "although others had all but these")
				require.Equal(t, "batch 10/m", policies(t, batch, "key"))

				require.NoError(t, batch.Reset(t.Context(), "key"))
				require.Equal(t, 5, admitted(t, api, "key", 5))
				require.Equal(t, 1, admitted(t, batch, "key", 5))
			})
		})
	}
}

func TestLimitsAndTiersAreThoseOfTheLimiterThatIsNamed(t *testing.T) {
	ls := build(t, memory(t), classes("algorithm: fixed_window, limit: 10/m, tiers: {pro: 20/m, all: unlimited, none: 0/m}", "reserved: 4"))
	for key, want := range map[string]int{"a": 6, "pro:a": 16, "all:a": 30, "none:a": 0} {
		require.Equal(t, want, admitted(t, limiter(t, ls, "batch"), key, 30), key)
	}
	ls = build(t, memory(t), classes("algorithm: fixed_window, limits: [10/m, 12/h]", "reserved: 4"))
	require.Equal(t, 6, admitted(t, limiter(t, ls, "batch"), "key", 12))
	require.Equal(t, "batch/m 10/m, batch/h 12/h", policies(t, limiter(t, ls, "batch"), "key"))
	require.Equal(t, 4, admitted(t, limiter(t, ls, "api"), "key", 12))
}

func TestALimiterThatSharesFollowsTheOther(t *testing.T) {
	onEach(t, func(t *testing.T, s store.Store) {
		ls := build(t, s, classes("algorithm: fixed_window, limit: 10/d", "reserved: 4"))
		api, batch := limiter(t, ls, "api"), limiter(t, ls, "batch")
		require.Equal(t, 6, admitted(t, batch, "key", 10))
		charged := allow(t, api, "key")
		update(t, ls, classes("algorithm: fixed_window, limit: 20/d", "reserved: 8"))
		require.Equal(t, 5, admitted(t, batch, "key", 10))
		require.NoError(t, api.Refund(t.Context(), "key", charged, 1))
		last := allow(t, batch, "key")
		require.True(t, last.Allowed)

		update(t, ls, "limiters: {api: {algorithm: fixed_window, limit: 20/d}, batch: {algorithm: fixed_window, limit: 20/d}}")
		require.Equal(t, 20, admitted(t, batch, "key", 30), "counts of its own")
		require.NoError(t, batch.Refund(t.Context(), "key", last, 1))
		require.Equal(t, 9, admitted(t, api, "key", 30), "a Refund reaches the counts that were charged")
	})
}

// On a lease, a bucket is asked for fewer events at once. Who shares its counts gets no more than these either.
func TestALimiterThatSharesCountsIsOnTheSameLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const api = "algorithm: token_bucket, limit: 100/s burst 20, store: {lease: 50ms}" // 6 events in the TTL
		ls := build(t, &frail{Store: memory(t)}, classes(api, "reserved: 4"))
		require.Equal(t, 20-6-4, admitted(t, limiter(t, ls, "batch"), "key", 20))
		require.Equal(t, 4, admitted(t, limiter(t, ls, "api"), "key", 20))
		require.NoError(t, ls.Close(t.Context()))
	})
}

func TestAReserveIsSharedOutWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &frail{Store: memory(t)}
		ls := build(t, s, classes("algorithm: token_bucket, limit: 40/h, on_failure: local, instances: 4", "reserved: 8, on_failure: local, instances: 4"))
		s.down = true
		require.Equal(t, 8, admitted(t, limiter(t, ls, "batch"), "key", 20))
		require.Equal(t, 2, admitted(t, limiter(t, ls, "api"), "key", 20))
	})
}

func TestReservesThatCannotBe(t *testing.T) {
	const a = "algorithm: fixed_window, limit: "
	for fields, want := range map[string]string{
		a + "10/s, reserved: 0":                                   `1:64: limiter "a": reserved: "0": want a number from 1 to 2147483647`,
		a + "10/s, reserved: few":                                 `1:64: limiter "a": reserved: "few": want a number from 1 to 2147483647`,
		a + "10/s, reserved: 10":                                  `1:64: limiter "a": reserved: ratelimit: invalid option: 10 leaves nothing of 10/s`,
		a + "0/s, reserved: 10":                                   `1:63: limiter "a": reserved: ratelimit: invalid option: 10 leaves nothing of 0/s`,
		a + "unlimited, reserved: 1":                              `1:69: limiter "a": reserved: ratelimit: invalid option: it has no effect on unlimited`,
		a + "unlimited, tiers: {x: 0/s}, reserved: 1":             `1:86: limiter "a": reserved: ratelimit: invalid option: it has no effect on unlimited`,
		a + "10/s, tiers: {x: 20/s, y: 5/s}, reserved: 5":         `1:90: limiter "a": reserved: ratelimit: invalid option: 5 leaves nothing of tier "y": 5/s`,
		a + "5/s, tiers: {x: 20/s}, reserved: 5":                  `1:81: limiter "a": reserved: ratelimit: invalid option: 5 leaves nothing of 5/s`,
		"algorithm: sliding_log, limits: [9/m, 5/s], reserved: 5": `1:70: limiter "a": reserved: ratelimit: invalid option: 5 leaves nothing of 5/s`,
		"in_flight: 5, reserved: 2":                               `1:30: limiter "a": reserved: cannot be combined with in_flight, because slots are not reserved`,
		a + "10/s, reserved: 2, store: {coalescing: true}":        `1:75: limiter "a": store: coalescing: has no effect beside reserved`,
		a + "10/s, reserved: 2, store: {lease: 50ms}":             `1:75: limiter "a": store: lease: has no effect with reserved, because only the store knows what remains`,
		"shares: c, reserved: 4}, c: {algorithm: token_bucket, limit: 100/s burst 10, store: {lease: 50ms}": `1:24: limiter "a": shares: on the lease of limiter "c": WithReserved(4) leaves 6 events of 100/s burst 10: ratelimit: invalid option: 6 events are refilled per lease TTL of 50ms, want fewer than the burst of 6`,
		"shares: c, store: {deny_cache: true}}, c: {" + a + "5/s, store: {lease: 50ms}":                     `1:27: limiter "a": store: want none beside shares: the lease is that of limiter "c"`,
		"shares: [b]": `1:24: limiter "a": shares: a list of 1: want the name of a limiter`,
		"shares: b":   `1:24: limiter "a": shares: there is no limiter "b"`,
		"shares: ''":  `1:24: limiter "a": shares: there is no limiter ""`,
		"shares: a":   `1:24: limiter "a": shares: want a limiter with limits of its own, and "a" shares those of "a"`,
		"shares: c}, c: {shares: d}, d: {" + a + "5/s": `1:24: limiter "a": shares: want a limiter with limits of its own, and "c" shares those of "d"`,
		"shares: c}, c: {" + a + "5/s, in_flight: 1":   `1:24: limiter "a": shares: limiter "c" has in_flight, and slots are not shared`,
		"shares: c, limit: 5/s}, c: {" + a + "5/s":     `1:27: limiter "a": limit: want none beside shares: the limits are those of the limiter that it names`,
		"shares: c, reserved: 5}, c: {" + a + "5/s":    `1:37: limiter "a": reserved: ratelimit: invalid option: 5 leaves nothing of 5/s`,
	} {
		_, err := config.Parse([]byte(one(fields)))
		require.EqualError(t, err, "config: "+want, fields)
	}
	_, err := config.Parse([]byte(one(a + "unlimited, tiers: {x: 0/s, y: 9/s}, reserved: 5")))
	require.NoError(t, err)
}
