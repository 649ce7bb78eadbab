//go:build !race

package suite_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func TestAnAdmissionByTwoLimitsAllocatesNothing(t *testing.T) {
	two := pairOn(t, memory(t, newClock()), "token_bucket", "sliding_window")
	all, err := ratelimit.NewAll(two...)
	require.NoError(t, err)
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(4, func() {
		if r, err := all.Allow(ctx, "a"); err != nil || !r.Allowed || r.Charged() != 1 || r.Source() != ratelimit.SourceStore {
			t.Fatal(r, err)
		}
	}))
}

func TestADenialByOneOfTwoLimitsAllocatesNothing(t *testing.T) {
	two := pairOn(t, memory(t, newClock()), "token_bucket", "sliding_window")
	all, err := ratelimit.NewAll(two...)
	require.NoError(t, err)
	ctx := t.Context()
	require.True(t, allowN(t, all, 10).Allowed)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if r, err := all.Allow(ctx, "key"); err != nil || r.Allowed || r.DeniedBy() == "" || r.Source() != ratelimit.SourceStore {
			t.Fatal(r, err)
		}
	}))
}
